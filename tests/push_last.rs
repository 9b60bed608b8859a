//! How a queue of a push consumer is left: the last commit, its one try at a time, its time, and what a stop waits for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use peer::obedient::{self, Running};
use peer::queue::{TOPIC, cluster, commits, pulled, record, stored};
use peer::{Peer, Reply};
use serde_json::{Value, json};
use windlass::{Client, Event, Outcome, PushConsumerBuilder, Queue, QueueOffset};

/// What the events tell of the queue when it is given up: the last commit and how many are unfinished.
fn revoked(running: &Running) -> (Option<i64>, u64) {
    loop {
        if let Event::Revoked { queue, committed, unfinished, .. } = running.event("revoked")
            && &*queue.topic == TOPIC
        {
            return (committed.map(|at| at.0), unfinished);
        }
    }
}

/// A commit may take `commit` long.
fn run(peer: &Peer, commit: Duration, change: impl FnOnce(PushConsumerBuilder) -> PushConsumerBuilder) -> Running {
    let builder = Client::builder().name_servers([peer.text()]).workers(1);
    let builder = builder.rebalance_interval(Duration::from_millis(50)).timing(|timing| timing.offset = commit);
    obedient::run(&builder.build().unwrap(), change)
}

/// As [`cluster`], but another member has the queue once `taken` is set.
fn shared(
    taken: &Arc<AtomicBool>,
    special: impl Fn(&peer::Request, usize) -> Option<Reply> + Send + Sync + 'static,
) -> Peer {
    let (taken, id) = (Arc::clone(taken), Mutex::new(Value::Null));
    cluster(move |request, nth| {
        if request.code == 34 {
            *id.lock().unwrap() = serde_json::from_slice::<Value>(&request.body).unwrap()["clientID"].clone();
        }
        if request.code == 38 && taken.load(Ordering::SeqCst) {
            return Some(Reply::with_body(json!({"consumerIdList": ["0", *id.lock().unwrap()]}).to_string()));
        }
        special(request, nth)
    })
}

fn queue() -> Queue {
    Queue::new(TOPIC, "broker-a", 0)
}

/// D11: the last commit waits for the one that is on its way; brokers let the last writer win.
#[test]
fn d11_the_last_commit_waits_for_the_one_before_it() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let came = Arc::clone(&times);
    let peer = cluster(move |request, _| {
        if request.code != 15 || request.field("commitOffset") == "0" {
            return stored(request, 2);
        }
        let mut came = came.lock().unwrap();
        came.push(Instant::now());
        (came.len() == 1).then_some(Reply::Silence)
    });
    let running = run(&peer, Duration::from_millis(1500), |consumer| consumer);
    assert_eq!(running.next(), 0);
    running.go.send(Outcome::Done).unwrap();
    peer.wait("the first commit", |seen| commits(seen).contains(&1));
    assert_eq!(running.next(), 1);
    running.go.send(Outcome::Done).unwrap();
    let report = running.consumer.shutdown(Duration::from_secs(10));
    assert_eq!(report.committed.get(&queue()), Some(&QueueOffset(2)), "{report:?}");
    let times = times.lock().unwrap();
    assert!(times.len() == 2 && times[1] - times[0] > Duration::from_millis(1200), "{times:?}");
}

/// A last commit that is refused is tried again while there is time.
#[test]
fn d12_the_last_commit_is_tried_again() {
    let (stopping, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (stops, count) = (Arc::clone(&stopping), Arc::clone(&refused));
    let peer = cluster(move |request, _| {
        let last = request.code == 15 && request.field("commitOffset") == "1";
        if last && (!stops.load(Ordering::SeqCst) || count.fetch_add(1, Ordering::SeqCst) < 2) {
            return Some(Reply::code(1));
        }
        stored(request, 1)
    });
    let running = run(&peer, Duration::from_secs(3), |consumer| consumer);
    assert_eq!(running.next(), 0);
    running.go.send(Outcome::Done).unwrap();
    stopping.store(true, Ordering::SeqCst);
    let report = running.consumer.shutdown(Duration::from_secs(10));
    assert!(report.is_clean() && report.committed[&queue()] == QueueOffset(1), "{report:?}");
    assert!(refused.load(Ordering::SeqCst) >= 3);
}

/// A queue that was lost is left in time although its last commit is never answered.
#[test]
fn b148_a_lost_queue_whose_last_commit_is_not_answered_is_left_in_time() {
    let taken = Arc::new(AtomicBool::new(false));
    let peer = shared(&taken, |request, _| {
        let last = request.code == 15 && request.field("commitOffset") == "1";
        if last { Some(Reply::Silence) } else { stored(request, 1) }
    });
    let running = run(&peer, Duration::from_secs(3600), |consumer| consumer.revoke_wait(Duration::from_millis(100)));
    assert_eq!(running.next(), 0);
    running.go.send(Outcome::Done).unwrap();
    taken.store(true, Ordering::SeqCst);
    assert_eq!(revoked(&running).1, 0);
}

/// Handlers that take longer than a lost queue waits for cost their own messages alone: what was finished is committed.
#[test]
fn b147_what_was_finished_of_a_lost_queue_is_committed_after_its_handlers_time() {
    let taken = Arc::new(AtomicBool::new(false));
    let peer = shared(&taken, |request, _| stored(request, 2));
    let running = run(&peer, Duration::from_secs(3), |consumer| consumer.revoke_wait(Duration::ZERO));
    assert_eq!(running.next(), 0);
    running.go.send(Outcome::Done).unwrap();
    assert_eq!(running.next(), 1);
    taken.store(true, Ordering::SeqCst);
    assert_eq!(revoked(&running), (Some(1), 1));
}

/// A stop waits for the brokers to answer that the group is left.
#[test]
fn b007_a_stop_waits_until_the_brokers_have_answered_that_the_group_is_left() {
    let peer = cluster(|request, _| if request.code == 35 { Some(Reply::Silence) } else { stored(request, 1) });
    let running = run(&peer, Duration::from_secs(3), |consumer| consumer);
    assert_eq!(running.next(), 0);
    running.go.send(Outcome::Done).unwrap();
    let begun = Instant::now();
    let report = running.consumer.shutdown(Duration::from_secs(1));
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
    assert!(report.is_clean(), "{report:?}");
}

/// ... and a consumer that has no queue yet stops at once.
#[test]
fn a_consumer_without_queues_stops_at_once() {
    let peer = cluster(|request, _| (request.code == 105).then(|| Reply::code(17)));
    let running = run(&peer, Duration::from_secs(3), |consumer| consumer);
    peer.wait("a question for the route", |seen| seen.iter().any(|at| at.code == 105));
    let begun = Instant::now();
    assert!(running.consumer.shutdown(Duration::from_secs(60)).is_clean());
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

/// B-126: the last redelivery that is allowed is asked of the broker as a dead letter, whatever its own limit is.
#[test]
fn b126_a_message_that_may_not_come_again_is_sent_back_as_a_dead_letter() {
    let peer = cluster(|request, _| stored(request, 1));
    let running = run(&peer, Duration::from_secs(3), |consumer| consumer.max_redeliveries(0));
    assert_eq!(running.next(), 0);
    running.go.send(Outcome::Retry).unwrap();
    peer.wait("progress over it", |seen| commits(seen).contains(&1));
    let back = peer.seen_of(36);
    assert_eq!((back.len(), back[0].field("delayLevel")), (1, "-1"));
}

/// B-136: more failed messages than are sent back at a time all go, one after another's answer.
#[test]
fn b136_more_failed_messages_than_are_sent_back_at_a_time_are_all_handed_on() {
    const MESSAGES: i64 = 150;
    let peer = cluster(|request, _| {
        let all = || (0..MESSAGES).flat_map(|at| record(at, b"x")).collect();
        let first = request.code == 11 && request.field("queueOffset") == "0";
        first.then(|| pulled(0, MESSAGES, MESSAGES, all()))
    });
    let running = run(&peer, Duration::from_secs(3), |consumer| consumer);
    for offset in 0..MESSAGES {
        running.go.send(Outcome::Retry).unwrap();
        assert_eq!(running.next(), offset);
    }
    peer.wait("progress over all", |seen| commits(seen).contains(&MESSAGES));
    assert_eq!(peer.seen_of(36).len(), MESSAGES as usize);
}
