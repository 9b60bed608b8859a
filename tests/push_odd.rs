//! A push consumer against a broker that answers what no broker should: at once and with nothing, far beyond its queue.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use peer::queue::{TOPIC, cluster, commits, pulled, pulls, record, stored};
use peer::{PATIENCE, Peer, Reply};
use windlass::{Client, Event, PushConsumer, StartFrom};

struct Running {
    _client: Client,
    consumer: PushConsumer,
    seen: Receiver<i64>,
    events: Receiver<Event>,
}

fn run(peer: &Peer) -> Running {
    let builder = Client::builder().name_servers([peer.text()]).workers(1);
    let client = builder.pull_hold(Duration::from_secs(2), Duration::from_secs(4)).build().unwrap();
    let (tell, events) = unbounded();
    let (told, seen) = unbounded();
    let consumer = client
        .push_consumer("G")
        .subscribe(TOPIC, "*")
        .start_from(StartFrom::First)
        .pull_retry_delay(Duration::from_millis(50))
        .observer(move |event: &Event| {
            let _ = tell.send(event.clone());
        })
        .handler(move |batch| {
            for message in batch {
                let _ = told.send(message.offset().0);
            }
        })
        .start()
        .unwrap();
    Running { _client: client, consumer, seen, events }
}

impl Running {
    fn pull_failed(&self) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.events.recv_deadline(end) {
                Ok(Event::PullFailed { detail, .. }) => return detail,
                Ok(_) => {}
                Err(_) => panic!("nothing is told"),
            }
        }
    }
}

#[test]
fn a_broker_that_holds_no_pull_is_asked_less_and_less_often_and_that_is_told() {
    for code in [0, 19, 20] {
        let peer = cluster(move |request, _| {
            let of_topic = request.code == 11 && request.field("topic") == TOPIC;
            of_topic.then(|| pulled(code, 0, if code == 20 { 100 } else { 0 }, Vec::new()))
        });
        let begun = Instant::now();
        let running = run(&peer);
        assert!(running.pull_failed().contains("at once"), "code {code}");
        std::thread::sleep(Duration::from_millis(1200));
        // Five at once, then after 20, 40, 80, 160, 320, 640 ms and once a second. On a machine that is held up an answer
        // that took 100 ms begins it anew. Without a pace there are thousands.
        let most = 12 + begun.elapsed().as_millis() as usize / 100 * 6;
        let asked = pulls(&peer.seen()).len();
        assert!(asked <= most, "code {code}: {asked} pulls, at most {most}");
        running.consumer.shutdown(Duration::from_secs(2));
    }
}

#[test]
fn what_comes_after_a_standstill_is_delivered() {
    let peer = cluster(|request, nth| {
        let of_topic = request.code == 11 && request.field("topic") == TOPIC;
        if of_topic && nth < 12 { Some(pulled(20, 0, 3, Vec::new())) } else { stored(request, 3) }
    });
    let running = run(&peer);
    for offset in 0..3 {
        assert_eq!(running.seen.recv_timeout(PATIENCE), Ok(offset));
    }
}

#[test]
fn an_answer_that_leads_far_beyond_the_queue_is_not_believed() {
    for (code, next, max) in [(0, i64::MAX, 3), (20, i64::MAX, i64::MAX), (21, i64::MAX, 3), (19, 1 << 40, 3)] {
        let peer = cluster(move |request, nth| {
            let odd = request.code == 11 && request.field("topic") == TOPIC && nth < 2;
            if odd { Some(pulled(code, next, max, Vec::new())) } else { stored(request, 3) }
        });
        let running = run(&peer);
        for offset in 0..3 {
            assert_eq!(running.seen.recv_timeout(PATIENCE), Ok(offset), "code {code}");
        }
        assert!(running.pull_failed().contains("nextBeginOffset"), "code {code}");
        running.consumer.shutdown(Duration::from_secs(2));
        peer.wait("the last commit", |seen| commits(seen).last() == Some(&3));
        let asked = pulls(&peer.seen());
        assert!(asked.iter().all(|(at, _)| *at <= 3), "code {code}: {asked:?}");
        let most = commits(&peer.seen()).into_iter().max();
        assert_eq!(most, Some(3), "code {code}");
    }
}

/// A consumer that has finished and committed three messages, and then loses its connections; `away` is set before that.
fn run_and_lose(peer: &Peer, away: &AtomicBool) -> Running {
    let running = run(peer);
    for offset in 0..3 {
        assert_eq!(running.seen.recv_timeout(PATIENCE), Ok(offset));
    }
    peer.wait("a commit", |seen| commits(seen).last() == Some(&3));
    away.store(true, Ordering::SeqCst);
    peer.drop_connections();
    running
}

/// A process that was frozen for minutes, or whose network was: its broker has given its queues to other members, who
/// have gone on. It goes on behind them, and takes nothing back.
#[test]
fn who_was_forgotten_goes_on_where_others_have_got_to() {
    let away = Arc::new(AtomicBool::new(false));
    let (gone, closes) = (Arc::clone(&away), Arc::clone(&away));
    let peer = cluster(move |request, _| {
        let of_topic = request.field("topic") == TOPIC;
        match request.code {
            14 if of_topic && gone.load(Ordering::SeqCst) => Some(Reply::with_fields(0, [("offset", "500")])),
            11 if of_topic && request.field("queueOffset") == "3" && closes.load(Ordering::SeqCst) => {
                Some(pulled(0, 4, 502, record(3, b"m3")))
            }
            _ if of_topic && request.field("queueOffset") == "501" => None,
            _ if of_topic && request.field("queueOffset") == "500" => Some(pulled(0, 501, 501, record(500, b"m500"))),
            _ => stored(request, 3),
        }
    });
    let running = run_and_lose(&peer, &away);
    let mut after = Vec::new();
    while after.last() != Some(&500) {
        after.push(running.seen.recv_timeout(PATIENCE).unwrap());
    }
    assert!(after.len() <= 20, "{after:?}");
    peer.wait("the last commit", |seen| commits(seen).last() == Some(&501));
    let all = commits(&peer.seen());
    let from = all.iter().position(|offset| *offset > 3).unwrap();
    assert!(all[from..].is_sorted() && all[..from].iter().all(|offset| *offset <= 3), "{all:?}");
    assert!(!all.contains(&4), "{all:?}");
}

/// What the broker holds of a group may be less than the group has committed (it was killed): that changes nothing.
#[test]
fn a_broker_that_has_forgotten_commits_is_told_them_again() {
    let away = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&away);
    let peer = cluster(move |request, _| match request.code {
        14 if request.field("topic") == TOPIC => {
            let offset = if gone.load(Ordering::SeqCst) { "1" } else { "0" };
            Some(Reply::with_fields(0, [("offset", offset)]))
        }
        _ if gone.load(Ordering::SeqCst) => stored(request, 5),
        _ => stored(request, 3),
    });
    let running = run_and_lose(&peer, &away);
    for offset in 3..5 {
        assert_eq!(running.seen.recv_timeout(PATIENCE), Ok(offset));
    }
    peer.wait("the last commit", |seen| commits(seen).last() == Some(&5));
    assert!(commits(&peer.seen()).is_sorted());
}
