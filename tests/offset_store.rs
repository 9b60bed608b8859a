//! A consumer whose progress is in a store of its user's (D34): the store decides, the broker's copy follows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use peer::queue::{TOPIC, cluster, commits, pulls, stored};
use peer::{PATIENCE, Peer, Reply, Request};
use windlass::{Client, Event, OffsetStore, OffsetStoreError, Outcome, PushConsumer, Queue, QueueOffset, StartFrom};

/// A store whose every answer a test decides; it tells what it was asked.
#[derive(Clone)]
struct Table {
    rows: Arc<Mutex<BTreeMap<Queue, i64>>>,
    /// Called with the number of calls before; an error is the answer.
    loads: Arc<dyn Fn(u32) -> Result<(), OffsetStoreError> + Send + Sync>,
    stores: Arc<dyn Fn(u32) -> Result<(), OffsetStoreError> + Send + Sync>,
    calls: Arc<[AtomicU32; 2]>,
    tell: Sender<i64>,
}

impl Table {
    fn new() -> (Self, Receiver<i64>) {
        let (tell, told) = unbounded();
        let calls = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        (Self { rows: Arc::default(), loads: Arc::new(|_| Ok(())), stores: Arc::new(|_| Ok(())), calls, tell }, told)
    }

    fn with(self, offset: i64) -> Self {
        self.rows.lock().unwrap().insert(Queue::new(TOPIC, "broker-a", 0), offset);
        self
    }

    fn offset(&self) -> Option<i64> {
        self.rows.lock().unwrap().get(&Queue::new(TOPIC, "broker-a", 0)).copied()
    }
}

impl OffsetStore for Table {
    fn load(&self, queue: &Queue) -> Result<Option<QueueOffset>, OffsetStoreError> {
        if &*queue.topic == TOPIC {
            (self.loads)(self.calls[0].fetch_add(1, Ordering::SeqCst))?;
        }
        Ok(self.rows.lock().unwrap().get(queue).map(|offset| QueueOffset(*offset)))
    }

    fn store(&self, progress: &[(Queue, QueueOffset)]) -> Result<(), OffsetStoreError> {
        let thread = std::thread::current();
        assert!(thread.name().is_some_and(|name| name.starts_with("wl-serve")), "{:?}", thread.name());
        let Some((_, offset)) = progress.iter().find(|(queue, _)| &*queue.topic == TOPIC) else { return Ok(()) };
        let _ = self.tell.send(offset.0);
        (self.stores)(self.calls[1].fetch_add(1, Ordering::SeqCst))?;
        self.rows.lock().unwrap().extend(progress.iter().map(|(queue, offset)| (queue.clone(), offset.0)));
        Ok(())
    }
}

struct Running {
    consumer: PushConsumer,
    seen: Receiver<i64>,
    events: Receiver<Event>,
}

impl Running {
    fn event(&self, name: &str) -> String {
        let found =
            self.events.iter().find(|event| event.name() == name && event.queue().unwrap().topic.as_ref() == TOPIC);
        found.unwrap().to_string()
    }

    fn next(&self) -> i64 {
        self.seen.recv_timeout(PATIENCE).unwrap()
    }

    /// The next two; workers take turns.
    fn both(&self) -> [i64; 2] {
        let mut both = [self.next(), self.next()];
        both.sort_unstable();
        both
    }
}

fn run(peer: &Peer, store: &Table) -> Running {
    let client = Client::builder()
        .name_servers([peer.text()])
        .workers(2)
        .timing(|timing| timing.retry = Duration::from_millis(30))
        .build()
        .unwrap();
    let ((told, seen), (tell, events)) = (unbounded(), unbounded());
    let consumer = client
        .push_consumer("G")
        .subscribe(TOPIC, "*")
        .start_from(StartFrom::First)
        .offset_store(store.clone())
        .observer(move |event: &Event| drop(tell.send(event.clone())))
        .handler(move |batch| {
            for message in batch {
                let _ = told.send(message.offset().0);
            }
            Outcome::Done
        })
        .start()
        .unwrap();
    Running { consumer, seen, events }
}

fn asked_for_the_topic(seen: &[Request], code: i32) -> usize {
    seen.iter().filter(|at| at.code == code && at.field("topic") == TOPIC).count()
}

#[test]
fn d34_the_store_says_where_to_start_and_is_told_first() {
    let peer = cluster(|request, _| stored(request, 5));
    let (store, told) = Table::new();
    let store = store.with(3);
    let running = run(&peer, &store);
    assert_eq!(running.both(), [3, 4]);
    let first = told.recv_timeout(PATIENCE).unwrap();
    peer.wait("the broker's copy", |seen| commits(seen).contains(&5));
    assert_eq!((store.offset(), first > 3), (Some(5), true));
    assert_eq!(asked_for_the_topic(&peer.seen(), 14), 0, "the broker is not asked for what the store knows");
    let report = running.consumer.shutdown(Duration::from_secs(5));
    assert!(report.is_clean() && report.finished == 2, "{report:?}");
    assert_eq!(report.committed[&Queue::new(TOPIC, "broker-a", 0)], QueueOffset(5));
}

#[test]
fn d34_a_group_that_moves_to_a_store_goes_on_where_the_broker_has_it() {
    let peer = cluster(|request, _| match request.code {
        14 => Some(Reply::with_fields(0, [("offset", "2")])),
        _ => stored(request, 4),
    });
    let (store, told) = Table::new();
    let running = run(&peer, &store);
    assert_eq!(running.both(), [2, 3]);
    assert!(told.recv_timeout(PATIENCE).unwrap() >= 2, "also what the broker had is stored now");
    running.consumer.shutdown(Duration::from_secs(5));
    assert_eq!(store.offset(), Some(4));
}

#[test]
fn d34_c045_a_store_that_fails_or_panics_keeps_the_queue_unstarted_and_is_asked_again() {
    let peer = cluster(|request, _| stored(request, 2));
    let (mut store, _told) = Table::new();
    store.loads = Arc::new(|call| match call {
        0 => Err("no database".into()),
        1 => std::panic::resume_unwind(Box::new("on purpose")),
        _ => Ok(()),
    });
    let running = run(&peer, &store.clone().with(1));
    assert!(running.event("start failed").contains("no database"));
    assert_eq!(running.next(), 1);
    assert!(pulls(&peer.seen()).iter().all(|(at, _)| *at >= 1), "{:?}", pulls(&peer.seen()));
    assert_eq!(asked_for_the_topic(&peer.seen(), 14), 0, "an error is not 'nothing stored'");
}

#[test]
fn d34_d11_what_the_store_refused_is_not_committed_anywhere_and_tried_again() {
    let peer = cluster(|request, _| stored(request, 3));
    let (mut store, told) = Table::new();
    let (go, gate) = unbounded::<()>();
    store.stores = Arc::new(move |call| match call {
        0 => Err("disk full".into()),
        1 => std::panic::resume_unwind(Box::new("on purpose")),
        2 => gate.recv_timeout(PATIENCE).map_err(Into::into),
        _ => Ok(()),
    });
    let running = run(&peer, &store.clone().with(0));
    assert!(running.event("commit failed").contains("disk full"));
    for _ in 0..3 {
        told.recv_timeout(PATIENCE).unwrap();
    }
    assert_eq!((commits(&peer.seen()), store.offset()), (vec![], Some(0)), "the third call has not returned");
    go.send(()).unwrap();
    peer.wait("the broker's copy", |seen| commits(seen).contains(&3));
    assert_eq!(store.offset(), Some(3));
    running.consumer.shutdown(Duration::from_secs(5));
}

#[test]
fn d34_what_is_stored_counts_also_if_the_broker_takes_no_copy() {
    let peer = cluster(|request, _| if request.code == 15 { Some(Reply::code(1)) } else { stored(request, 3) });
    let (store, _told) = Table::new();
    let running = run(&peer, &store.clone().with(0));
    assert!(running.event("commit failed").contains("the broker's copy"));
    while running.next() != 2 {}
    let report = running.consumer.shutdown(Duration::from_secs(5));
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((store.offset(), report.committed[&Queue::new(TOPIC, "broker-a", 0)]), (Some(3), QueueOffset(3)));
}

#[test]
fn d34_d12_a_store_that_hangs_ends_no_later_than_the_stop() {
    let peer = cluster(|request, _| stored(request, 3));
    let (mut store, told) = Table::new();
    let (go, gate) = unbounded::<()>();
    store.stores = Arc::new(move |_| gate.recv_timeout(PATIENCE).map_err(Into::into));
    let running = run(&peer, &store.clone().with(0));
    while running.next() != 2 {}
    told.recv_timeout(PATIENCE).unwrap();
    let report = running.consumer.shutdown(Duration::from_millis(300));
    assert!(report.failed_commits.iter().any(|(queue, _)| &*queue.topic == TOPIC), "{report:?}");
    drop(go);
}

#[cfg(feature = "broker")]
#[test]
fn d34_in_process_a_successor_goes_on_without_gap_or_repeat() {
    use windlass::Message;
    use windlass::broker::Broker;
    let broker = Broker::ephemeral().topic(TOPIC, 4).start().unwrap();
    let (store, _told) = Table::new();
    let mut all = Vec::new();
    for round in 0..4 {
        let client = broker.client().unwrap();
        let producer = client.producer("P").start().unwrap();
        for n in 0..50 {
            producer.send(Message::new(TOPIC, format!("{}", round * 50 + n))).unwrap();
        }
        let (told, seen) = unbounded();
        let consumer = client
            .push_consumer("G")
            .subscribe(TOPIC, "*")
            .start_from(StartFrom::First)
            .offset_store(store.clone())
            .handler(move |batch| {
                for message in batch {
                    let _ = told.send(String::from_utf8_lossy(message.body()).into_owned());
                }
            })
            .start()
            .unwrap();
        while all.len() < (round + 1) * 50 {
            all.push(seen.recv_timeout(PATIENCE).unwrap());
        }
        assert!(consumer.shutdown(Duration::from_secs(5)).is_clean());
        assert!(seen.try_recv().is_err(), "a repeat");
        client.shutdown(Duration::from_secs(5));
    }
    let different: std::collections::BTreeSet<&String> = all.iter().collect();
    assert_eq!((all.len(), different.len()), (200, 200));
    let rows: i64 =
        store.rows.lock().unwrap().iter().filter(|(at, _)| &*at.topic == TOPIC).map(|(_, offset)| offset).sum();
    assert_eq!(rows, 200);
}
