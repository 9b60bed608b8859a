//! A push consumer against a broker that answers what no broker should: at once and with nothing, far beyond its queue.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use peer::queue::{TOPIC, cluster, commits, pulled, pulls, stored};
use peer::{PATIENCE, Peer};
use windlass::{Client, Event, PushConsumer, StartFrom};

struct Running {
    _client: Client,
    consumer: PushConsumer,
    seen: Receiver<i64>,
    events: Receiver<Event>,
}

fn run(peer: &Peer) -> Running {
    let builder = Client::builder().name_servers([peer.text()]).workers(2);
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
        let running = run(&peer);
        assert!(running.pull_failed().contains("at once"), "code {code}");
        let (before, begun) = (pulls(&peer.seen()).len(), Instant::now());
        std::thread::sleep(Duration::from_millis(1200));
        // 20, 40, 80, 160, 320, 640 ms and then one a second.
        let most = 8 + begun.elapsed().as_secs() as usize;
        let asked = pulls(&peer.seen()).len() - before;
        assert!(asked <= most && before <= 6, "code {code}: {before} and then {asked} pulls");
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
