//! Rules of a push consumer that only a scripted broker shows: where queues start, where pulls go on, what is committed
//! first, and when a connection is given up.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use peer::queue::{TOPIC, cluster, commits, pulled, pulls};
use peer::{Peer, Reply, Request, route};
use windlass::{Client, ClientBuilder, PushConsumer, StartFrom};

fn builder(peer: &Peer) -> ClientBuilder {
    let builder = Client::builder().name_servers([peer.text()]).workers(2);
    builder.timing(|timing| timing.retry = Duration::from_millis(20))
}

fn run(builder: ClientBuilder, from: StartFrom) -> PushConsumer {
    let client = builder.build().unwrap();
    let consumer = client.push_consumer("G").subscribe(TOPIC, "*").start_from(from);
    consumer.pull_retry_delay(Duration::from_millis(20)).handler(|_| ()).start().unwrap()
}

fn of_topic(seen: &[Request], code: i32) -> Vec<&Request> {
    seen.iter().filter(|at| at.code == code && at.field("topic") == TOPIC).collect()
}

/// A step back would deliver again what has been delivered.
#[test]
fn a_broker_that_names_an_earlier_offset_is_pulled_from_no_earlier() {
    let peer = cluster(|request, nth| match (request.code, nth) {
        (14, _) => Some(Reply::with_fields(0, [("offset", "5")])),
        (11, 0..5) => Some(pulled(19, 2, 5, Vec::new())),
        _ => None,
    });
    let _consumer = run(builder(&peer), StartFrom::First);
    peer.wait("pulls", |seen| pulls(seen).len() > 5);
    assert!(pulls(&peer.seen()).iter().all(|(at, _)| *at == 5), "{:?}", pulls(&peer.seen()));
}

/// Brokers answer 0 for a young queue of which they have nothing: a restart must find what was decided.
#[test]
fn the_start_of_a_young_queue_is_committed_at_once() {
    let peer = cluster(|_, _| None);
    let _consumer = run(builder(&peer), StartFrom::Last);
    peer.wait("the start", |seen| commits(seen) == [0]);
}

/// A queue that comes to a topic starts at its first message, whatever the group was told: all of it is new (L5).
#[test]
fn a_queue_that_comes_later_starts_at_its_first_message() {
    let (queues, own) = (Arc::new(AtomicI32::new(1)), Arc::new(OnceLock::<SocketAddr>::new()));
    let (count, addr) = (Arc::clone(&queues), Arc::clone(&own));
    let peer = cluster(move |request, _| match request.code {
        105 if request.field("topic") == TOPIC => {
            let addr = *addr.get()?;
            Some(Reply::with_body(route(&[("broker-a", addr, count.load(Ordering::SeqCst))])))
        }
        14 => Some(Reply::code(22)),
        30 => Some(Reply::with_fields(0, [("offset", "70")])),
        _ => None,
    });
    own.set(peer.addr()).unwrap();
    let _consumer = run(builder(&peer).route_interval(Duration::from_millis(50)), StartFrom::Last);
    peer.wait("the first queue", |seen| pulls(seen) == [(70, 32)]);
    queues.store(2, Ordering::SeqCst);
    let second = |at: &Request| at.code == 11 && at.field("topic") == TOPIC && at.field("queueId") == "1";
    peer.wait("the second queue", |seen| seen.iter().any(second));
    let seen = peer.seen();
    assert_eq!(seen.iter().find(|at| second(at)).unwrap().field("queueOffset"), "0");
    let asked: BTreeSet<&str> = of_topic(&seen, 30).iter().map(|at| at.field("queueId")).collect();
    assert_eq!(asked, BTreeSet::from(["0"]), "its end is not asked for");
}

/// C-026: what ends a connection is silence in a row; answers in between are none.
#[test]
fn c026_slow_requests_among_answered_ones_close_nothing() {
    let peer = cluster(|request, _| (request.code == 38).then_some(Reply::Silence));
    let settings = builder(&peer).request_timeout(Duration::from_millis(400));
    let _consumer = run(settings.heartbeat_interval(Duration::from_millis(10)), StartFrom::First);
    peer.wait("time-outs", |seen| seen.iter().filter(|at| at.code == 38).count() >= 6);
    let connections: BTreeSet<u32> = peer.seen().iter().map(|at| at.connection).collect();
    assert_eq!(connections.len(), 1);
}

/// The same holds for a topic that did not exist when its consumer was started.
#[test]
fn b053_a_topic_that_comes_later_starts_at_its_first_message_whatever_the_broker_holds() {
    let own = Arc::new(OnceLock::<SocketAddr>::new());
    let addr = Arc::clone(&own);
    let peer = cluster(move |request, nth| match (request.code, nth) {
        (105, 0..6) => Some(Reply::code(17)),
        (105, _) if request.field("topic") == TOPIC => Some(Reply::with_body(route(&[("broker-a", *addr.get()?, 1)]))),
        (14, _) => Some(Reply::code(22)),
        (30, _) => Some(Reply::with_fields(0, [("offset", "70")])),
        _ => None,
    });
    own.set(peer.addr()).unwrap();
    let _consumer = run(builder(&peer), StartFrom::Last);
    peer.wait("a pull", |seen| !pulls(seen).is_empty());
    assert_eq!(pulls(&peer.seen())[0].0, 0);
}
