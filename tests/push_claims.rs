//! Queues that a push consumer loses, gets back or is sent elsewhere on, while handlers run and answers are on their way:
//! nothing of an old claim counts for the next one (D32), nothing that runs is disturbed, nothing finished is forgotten.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use peer::queue::{TOPIC, cluster, commits, pulled, pulls, record, stored};
use peer::{PATIENCE, Peer, Reply, Request, response};
use serde_json::{Value, json};
use windlass::{Client, Event, Outcome, PushConsumer, PushConsumerBuilder, Queue, QueueOffset, StartFrom};

/// A name server and broker of one queue, and whether it is ours: while it is not, a member that comes before us has it.
struct Cluster {
    peer: Peer,
    taken: Arc<AtomicBool>,
}

impl Cluster {
    /// `special` as in [`cluster`].
    fn new(special: impl Fn(&Request, usize) -> Option<Reply> + Send + Sync + 'static) -> Self {
        let (taken, id) = (Arc::new(AtomicBool::new(false)), Mutex::new(Value::Null));
        let is_taken = Arc::clone(&taken);
        let peer = cluster(move |request, nth| match request.code {
            34 => {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                *id.lock().unwrap() = body["clientID"].clone();
                None
            }
            38 if is_taken.load(Ordering::SeqCst) => {
                Some(Reply::with_body(json!({"consumerIdList": ["0", *id.lock().unwrap()]}).to_string()))
            }
            _ => special(request, nth),
        });
        Self { peer, taken }
    }

    /// The queue is another member's now, or ours again.
    fn take(&self, taken: bool) {
        self.taken.store(taken, Ordering::SeqCst);
    }

    /// Waits until the members were asked for `times` more: answers that came before have been handled by then.
    fn asked(&self, times: usize) {
        let count = |seen: &[Request]| seen.iter().filter(|at| at.code == 38).count();
        let before = count(&self.peer.seen());
        self.peer.wait("questions for members", |seen| count(seen) > before + times);
    }
}

/// A consumer whose handler tells the offset, then does as it is told.
struct Running {
    consumer: PushConsumer,
    seen: Receiver<(i64, Vec<u8>)>,
    go: Sender<Outcome>,
    events: Receiver<Event>,
}

impl Running {
    fn next(&self) -> (i64, Vec<u8>) {
        self.seen.recv_timeout(PATIENCE).unwrap()
    }

    fn event(&self, name: &str) -> Event {
        loop {
            let event = self.events.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no event {name}"));
            if event.name() == name && event.queue().is_none_or(|queue| &*queue.topic == TOPIC) {
                return event;
            }
        }
    }
}

fn run(cluster: &Cluster, change: impl FnOnce(PushConsumerBuilder) -> PushConsumerBuilder) -> Running {
    let builder = Client::builder().name_servers([cluster.peer.text()]).workers(1);
    let builder = builder.rebalance_interval(Duration::from_millis(30)).timing(|timing| {
        timing.retry = Duration::from_millis(30);
        timing.local_retry = Duration::from_millis(30);
    });
    let client = builder.build().unwrap();
    let ((tell, events), (told, seen), (go, may_go)) = (unbounded(), unbounded(), unbounded());
    let consumer = client
        .push_consumer("G")
        .subscribe(TOPIC, "*")
        .start_from(StartFrom::First)
        .revoke_wait(Duration::from_secs(20))
        .pull_retry_delay(Duration::from_millis(30))
        .observer(move |event: &Event| drop(tell.send(event.clone())))
        .handler(move |batch| {
            let message = batch.iter().next().unwrap();
            let _ = told.send((message.offset().0, message.body().to_vec()));
            may_go.recv_timeout(PATIENCE).unwrap_or(Outcome::Done)
        });
    Running { consumer: change(consumer).start().unwrap(), seen, go, events }
}

fn queue() -> Queue {
    Queue::new(TOPIC, "broker-a", 0)
}

fn of_topic(seen: &[Request], code: i32) -> usize {
    seen.iter().filter(|at| at.code == code && at.field("topic") == TOPIC).count()
}

/// Handlers of the old claim run on: who started anew at once would deliver to others what they have in hand.
#[test]
fn a_queue_that_comes_back_is_claimed_only_once_its_handlers_have_finished() {
    let cluster = Cluster::new(|request, _| stored(request, 1));
    let running = run(&cluster, |consumer| consumer);
    assert_eq!(running.next().0, 0);
    cluster.take(true);
    let given_up = || running.consumer.assigned().unwrap().iter().any(|at| at.waits.as_deref() == Some("given up"));
    while !given_up() {
        cluster.asked(0);
    }
    cluster.take(false);
    cluster.asked(5);
    assert_eq!(of_topic(&cluster.peer.seen(), 14), 1, "where the group stands is not asked yet");
    running.go.send(Outcome::Done).unwrap();
    assert!(matches!(running.event("revoked"), Event::Revoked { unfinished: 0, committed: Some(QueueOffset(1)), .. }));
    cluster.peer.wait("the next claim", |seen| of_topic(seen, 14) == 2);
    let order: Vec<i32> = cluster.peer.seen().iter().map(|at| at.code).filter(|at| [14, 15].contains(at)).collect();
    assert_eq!(order, [14, 15, 14], "committed before it is asked for again");
}

/// Draining is for a consumer that stops: what is cached of a queue that was lost is the next owner's.
#[test]
fn b147_what_is_cached_of_a_lost_queue_is_not_handled_even_if_a_stop_would_drain_it() {
    let both = [record(0, b"m0"), record(1, b"m1")].concat();
    let body = both.clone();
    let cluster = Cluster::new(move |request, _| {
        (request.code == 11 && request.field("queueOffset") == "0").then(|| pulled(0, 2, 2, body.clone()))
    });
    let running = run(&cluster, |consumer| consumer.drain_on_shutdown(true));
    assert_eq!(running.next().0, 0);
    cluster.take(true);
    while !running.consumer.assigned().unwrap().iter().any(|at| at.waits.as_deref() == Some("given up")) {
        cluster.asked(0);
    }
    running.go.send(Outcome::Done).unwrap();
    assert!(matches!(running.event("revoked"), Event::Revoked { committed: Some(QueueOffset(1)), .. }));
    assert!(running.seen.try_recv().is_err(), "the second is not ours any more");

    // The same messages in a consumer that stops.
    let cluster = Cluster::new(move |request, _| {
        (request.code == 11 && request.field("queueOffset") == "0").then(|| pulled(0, 2, 2, both.clone()))
    });
    let running = run(&cluster, |consumer| consumer.drain_on_shutdown(true));
    assert_eq!(running.next().0, 0);
    let _go = [running.go.send(Outcome::Done), running.go.send(Outcome::Done)];
    let report = running.consumer.shutdown(Duration::from_secs(20));
    assert_eq!((report.finished, report.dropped, report.committed[&queue()]), (2, 0, QueueOffset(2)), "{report:?}");
}

/// The broker's correction holds: what an old handler finishes afterwards moves nothing, and is told as unfinished.
#[test]
fn b084_what_runs_while_an_offset_is_corrected_counts_for_nothing_and_is_told() {
    let (in_hand, has_it) = unbounded::<()>();
    let cluster = Cluster::new(move |request, _| match (request.code, request.field("queueOffset")) {
        (14, _) => Some(Reply::with_fields(0, [("offset", "700")])),
        (11, "700") => Some(pulled(0, 701, 702, record(700, b"old"))),
        (11, "701") => {
            has_it.recv_timeout(PATIENCE).unwrap();
            Some(pulled(21, 40, 41, Vec::new()))
        }
        (11, "40") => Some(pulled(0, 41, 41, record(40, b"new"))),
        _ => None,
    });
    let running = run(&cluster, |consumer| consumer);
    assert_eq!(running.next(), (700, b"old".to_vec()));
    in_hand.send(()).unwrap();
    running.event("offset corrected");
    cluster.peer.wait("the corrected offset is pulled from", |seen| pulls(seen).iter().any(|(at, _)| *at == 40));
    let _go = [running.go.send(Outcome::Done), running.go.send(Outcome::Done)];
    assert_eq!(running.next(), (40, b"new".to_vec()));
    cluster.peer.wait("progress", |seen| commits(seen).contains(&41));
    let report = running.consumer.shutdown(Duration::from_secs(20));
    assert_eq!((report.unfinished, report.committed[&queue()]), (1, QueueOffset(41)), "{report:?}");
    assert!(commits(&cluster.peer.seen()).iter().all(|at| *at <= 41), "{:?}", commits(&cluster.peer.seen()));
}

/// What failed before a correction is handed on: nobody else will do it.
#[test]
fn b084_what_failed_before_a_correction_is_handed_on() {
    let (hold, held) = (Mutex::new(None::<Request>), Arc::new(AtomicBool::new(false)));
    let is_held = Arc::clone(&held);
    let cluster = Cluster::new(move |request, _| match (request.code, request.field("queueOffset")) {
        (14, _) => Some(Reply::with_fields(0, [("offset", "700")])),
        (11, "700") => Some(pulled(0, 701, 702, record(700, b"old"))),
        (11, "701") => {
            *hold.lock().unwrap() = Some(request.clone());
            is_held.store(true, Ordering::SeqCst);
            Some(Reply::Silence)
        }
        // The send-back is refused until the copy is asked for: the correction comes before its answer.
        (36, _) => {
            let pull = hold.lock().unwrap().take()?;
            let Reply::Answer { code, fields, body, .. } = pulled(21, 40, 40, Vec::new()) else { return None };
            let corrected = response(&pull, code, None, &fields, &body);
            let taken = response(request, 0, None, &std::collections::BTreeMap::new(), b"");
            Some(Reply::Bytes([corrected, taken].concat()))
        }
        _ => None,
    });
    let running = run(&cluster, |consumer| consumer);
    assert_eq!(running.next().0, 700);
    while !held.load(Ordering::SeqCst) {
        cluster.asked(0);
    }
    running.go.send(Outcome::Retry).unwrap();
    running.event("offset corrected");
    cluster.peer.wait("the corrected offset is pulled from", |seen| pulls(seen).iter().any(|(at, _)| *at == 40));
    assert_eq!(cluster.peer.seen_of(36).len(), 1);
    assert!(cluster.peer.seen_of(310).is_empty(), "taken once, and no copy made");
}

/// C-052: nothing is held any more, so that what was filtered behind it is progress at once, not with the next answer.
#[test]
fn c052_filtered_offsets_behind_a_finished_message_are_committed_while_the_next_pull_is_held() {
    let cluster = Cluster::new(|request, _| match (request.code, request.field("queueOffset")) {
        (11, "0") => Some(pulled(0, 1, 50, record(0, b"m0"))),
        (11, "1") => Some(pulled(20, 50, 50, Vec::new())),
        // Everything later is held for longer than this test waits.
        _ => None,
    });
    let running = run(&cluster, |consumer| consumer);
    assert_eq!(running.next().0, 0);
    cluster.peer.wait("the held pull", |seen| pulls(seen).iter().any(|(at, _)| *at == 50));
    running.go.send(Outcome::Done).unwrap();
    cluster.peer.wait("progress", |seen| commits(seen).contains(&50));
    assert_eq!(pulls(&cluster.peer.seen()).last(), Some(&(50, 32)), "without another answer");
}

/// A commit that nobody answers is a reason to ask where the broker is now.
#[test]
fn b041_a_commit_without_an_answer_has_the_route_asked_for() {
    let silent = Arc::new(AtomicBool::new(true));
    let is_silent = Arc::clone(&silent);
    let cluster = Cluster::new(move |request, _| {
        let first = request.code == 15 && is_silent.swap(false, Ordering::SeqCst);
        if first { Some(Reply::Silence) } else { stored(request, 1) }
    });
    let builder = Client::builder().name_servers([cluster.peer.text()]).workers(1);
    // Neither at intervals nor by a pull that runs out of time.
    let builder = builder.route_interval(Duration::from_secs(3600)).pull_hold(PATIENCE * 2, PATIENCE * 3);
    let client = builder.timing(|timing| timing.offset = Duration::from_millis(200)).build().unwrap();
    let consumer = client.push_consumer("G").subscribe(TOPIC, "*").start_from(StartFrom::First);
    let _consumer = consumer.handler(|_| ()).start().unwrap();
    cluster.peer.wait("the route once more", |seen| of_topic(seen, 105) >= 2);
    cluster.peer.wait("the commit once more", |seen| commits(seen).len() >= 2);
}

/// What a pull of an earlier claim brings late is not the present claim's (D32), though it would fit.
#[test]
fn d32_a_late_answer_to_an_old_claims_pull_is_dropped() {
    let first = Mutex::new(None::<Request>);
    let cluster = Cluster::new(move |request, _| {
        if request.code != 11 || request.field("topic") != TOPIC || request.field("queueOffset") != "0" {
            return None;
        }
        let mut first = first.lock().unwrap();
        let Some(old) = first.take() else {
            *first = Some(request.clone());
            return Some(Reply::Silence);
        };
        let answer = |request: &Request, body: &[u8]| match pulled(0, 1, 1, record(0, body)) {
            Reply::Answer { code, fields, body, .. } => response(request, code, None, &fields, &body),
            other => panic!("{other:?}"),
        };
        Some(Reply::Bytes([answer(&old, b"late"), answer(request, b"right")].concat()))
    });
    let running = run(&cluster, |consumer| consumer);
    cluster.peer.wait("the first pull", |seen| pulls(seen) == [(0, 32)]);
    cluster.take(true);
    running.event("revoked");
    cluster.take(false);
    assert_eq!(running.next(), (0, b"right".to_vec()));
}

/// ... and neither is what becomes of a message that it has sent back.
#[test]
fn d32_a_late_answer_to_an_old_claims_send_back_finishes_nothing_of_the_present_one() {
    let first = Mutex::new(None::<Request>);
    let cluster = Cluster::new(move |request, _| match request.code {
        36 => {
            let mut first = first.lock().unwrap();
            let Some(old) = first.take() else {
                *first = Some(request.clone());
                return Some(Reply::Silence);
            };
            // The second one is never answered.
            Some(Reply::Bytes(response(&old, 0, None, &std::collections::BTreeMap::new(), b"")))
        }
        _ => stored(request, 1),
    });
    let running = run(&cluster, |consumer| consumer.revoke_wait(Duration::from_millis(200)));
    for times in 1..=2 {
        assert_eq!(running.next().0, 0);
        running.go.send(Outcome::Retry).unwrap();
        cluster.peer.wait("a send-back", |seen| seen.iter().filter(|at| at.code == 36).count() == times);
        if times == 1 {
            cluster.take(true);
            running.event("revoked");
            cluster.take(false);
        }
    }
    // Its answer came before theirs.
    cluster.asked(2);
    let report = running.consumer.shutdown(Duration::from_millis(500));
    assert_eq!((report.committed.get(&queue()).copied(), report.unfinished), (Some(QueueOffset(0)), 2), "{report:?}");
    assert!(commits(&cluster.peer.seen()).iter().all(|at| *at == 0), "{:?}", commits(&cluster.peer.seen()));
}
