//! A client of very many consumers: what one of them costs the others, counted on a clock that stands.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use peer::queue::{TOPIC, cluster};
use peer::{PATIENCE, Peer, Reply, Request, frame, response};
use serde_json::{Value, json};
use windlass::{Client, Message, Producer, TestClock};

const CONSUMERS: usize = 200;

/// How many groups each heartbeat has named.
fn named(seen: &[Request]) -> Vec<usize> {
    let beats = seen.iter().filter(|request| request.code == 34);
    let groups = beats.map(|beat| serde_json::from_slice::<Value>(&beat.body).unwrap()["consumerDataSet"].clone());
    groups.map(|groups| groups.as_array().unwrap().len()).collect()
}

/// Groups whose members were asked for.
fn asked(seen: &[Request]) -> Vec<String> {
    let of_members = |request: &&Request| request.code == 38;
    seen.iter().filter(of_members).map(|request| request.field("consumerGroup").to_owned()).collect()
}

/// What the loop wrote before has come, and what it writes on the answers to that: they share a connection with these.
fn settle(producer: &Producer) {
    for _ in 0..3 {
        producer.send_async(Message::new(TOPIC, "x")).unwrap().wait(PATIENCE).unwrap();
    }
}

fn peer(notice: &Arc<AtomicBool>) -> Peer {
    let (notice, first) = (Arc::clone(notice), Mutex::new(0));
    cluster(move |request, _| {
        if request.code != 310 {
            return None;
        }
        let mut number = first.lock().unwrap();
        *number += 1;
        let stored = Reply::stored(0, "0", *number);
        let Reply::Answer { code, fields, .. } = &stored else { return Some(stored) };
        if !notice.swap(false, Ordering::SeqCst) {
            return Some(stored);
        }
        // The members of one group have changed; then the answer.
        let header = json!({"code": 40, "flag": 2, "language": "JAVA", "opaque": 1, "version": 479,
            "serializeTypeCurrentRPC": "JSON", "extFields": {"consumerGroup": "G7"}});
        Some(Reply::Bytes([frame(&header, b""), response(request, *code, None, fields, b"")].concat()))
    })
}

#[test]
fn thousands_of_consumers_are_told_of_together_and_a_notice_asks_for_the_group_it_names() {
    let notice = Arc::new(AtomicBool::new(false));
    let (clock, peer) = (TestClock::new(), peer(&notice));
    let client = Client::builder().name_servers([peer.text()]).clock(&clock).workers(1).build().unwrap();
    let producer = client.producer("p").start().unwrap();
    settle(&producer);
    let start = |number: usize| {
        client.push_consumer(format!("G{number}")).subscribe(TOPIC, "*").handler(|_| {}).start().unwrap()
    };
    let mut consumers: Vec<_> = (0..CONSUMERS / 2).map(start).collect();
    settle(&producer);
    let beats = named(&peer.seen());
    assert!(beats.iter().any(|groups| *groups > 0), "the first ones are told of at once: {beats:?}");
    // A heartbeat for each of these would name 15 000 groups in all.
    consumers.extend((CONSUMERS / 2..CONSUMERS).map(start));
    settle(&producer);
    assert_eq!(named(&peer.seen()), beats);

    clock.advance(Duration::from_secs(1));
    peer.wait("all are told of", |seen| named(seen).contains(&CONSUMERS));
    peer.wait("all have asked for their members", |seen| {
        let asked = asked(seen);
        (0..CONSUMERS).all(|number| asked.contains(&format!("G{number}")))
    });
    // They have queues now, of which brokers are told once more.
    settle(&producer);
    clock.advance(Duration::from_secs(1));
    settle(&producer);

    let before = asked(&peer.seen()).len();
    notice.store(true, Ordering::SeqCst);
    settle(&producer);
    assert_eq!(asked(&peer.seen()).split_off(before), ["G7"]);
    // The others soon: what has changed one group's members may have changed theirs.
    clock.advance(Duration::from_secs(1));
    peer.wait("the others have asked again", |seen| {
        let again = asked(seen).split_off(before);
        (0..CONSUMERS).all(|number| again.contains(&format!("G{number}")))
    });
    assert!(client.shutdown(PATIENCE).unended.is_empty());
    drop(consumers);
}
