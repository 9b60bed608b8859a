//! A client and a broker in one process, without a socket between them: the direct port does what the sockets do.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use windlass::broker::{Broker, Flush};
use windlass::{Batch, Client, DelayLevel, Error, Message, Outcome, SendStatus, StartFrom};

const PATIENCE: Duration = Duration::from_secs(20);

fn both(broker: &Broker) -> [Client; 2] {
    [broker.client().unwrap(), broker.socket_client().unwrap()]
}

/// Consumes `topic` into a channel of bodies.
fn consume(client: &Client, group: &str, topic: &str) -> (mpsc::Receiver<String>, impl Sized + use<>) {
    let (give, take) = mpsc::channel();
    let consumer = client
        .push_consumer(group)
        .subscribe(topic, "*")
        .start_from(StartFrom::First)
        .handler(move |batch| {
            for message in batch {
                give.send(String::from_utf8_lossy(message.body()).into_owned()).unwrap();
            }
            Outcome::Done
        })
        .start()
        .unwrap();
    (take, consumer)
}

fn next(bodies: &mpsc::Receiver<String>) -> String {
    bodies.recv_timeout(PATIENCE).expect("a message")
}

#[test]
fn d33_what_one_port_sends_the_other_consumes() {
    let broker = Broker::ephemeral().topic("orders", 4).start().unwrap();
    for (number, sender) in both(&broker).into_iter().enumerate() {
        let producer = sender.producer("p").start().unwrap();
        let receipt = producer.send(Message::new("orders", format!("from {number}")).tag("t").key("k")).unwrap();
        assert_eq!((receipt.status, receipt.message_id.as_str().len()), (SendStatus::Stored, 32));
        let id = receipt.offset_message_id.to_string();
        assert_eq!(&id[8..16], &format!("{:08X}", broker.broker_addr().port()), "{id}");
    }
    for (number, client) in both(&broker).into_iter().enumerate() {
        let (bodies, _consumer) = consume(&client, &format!("g{number}"), "orders");
        let mut seen = [next(&bodies), next(&bodies)];
        seen.sort();
        assert_eq!(seen, ["from 0", "from 1"]);
    }
}

#[test]
fn d33_a_held_pull_is_answered_by_the_append() {
    for flush in [Flush::None, Flush::Async, Flush::Sync] {
        let broker = Broker::ephemeral().topic("orders", 1).flush(flush).start().unwrap();
        let client = broker.client().unwrap();
        let writer = client.producer("p").start().unwrap().topic("orders").unwrap();
        let (bodies, _consumer) = consume(&client, "g", "orders");
        for number in 0..100 {
            writer.send(format!("{number}").as_bytes()).unwrap();
            assert_eq!(next(&bodies), number.to_string(), "{flush:?}");
        }
    }
}

#[test]
fn a_failed_message_comes_again() {
    for flush in [Flush::None, Flush::Sync] {
        let broker = Broker::ephemeral().topic("orders", 1).flush(flush).delay_scale(0.001).start().unwrap();
        let client = broker.client().unwrap();
        let tries = Arc::new(AtomicU32::new(0));
        let count = tries.clone();
        let _consumer = client
            .push_consumer("g")
            .subscribe("orders", "*")
            .handler(move |_: &Batch<'_>| match count.fetch_add(1, Ordering::SeqCst) {
                0 => Outcome::Retry,
                _ => Outcome::Done,
            })
            .start()
            .unwrap();
        client.producer("p").start().unwrap().send(Message::new("orders", "x")).unwrap();
        broker.wait_drained("g", PATIENCE).unwrap();
        assert_eq!((tries.load(Ordering::SeqCst), broker.topic_len("%RETRY%g")), (2, 1), "{flush:?}");
    }
}

#[test]
fn a_delayed_message_waits_for_the_test_clock() {
    let clock = windlass::TestClock::new();
    let broker = Broker::ephemeral().topic("orders", 1).clock(&clock).start().unwrap();
    let client = broker.client().unwrap();
    let (bodies, _consumer) = consume(&client, "g", "orders");
    let producer = client.producer("p").start().unwrap();
    producer.send(Message::new("orders", "late").delay(DelayLevel::at_least(Duration::from_secs(10)))).unwrap();
    producer.send(Message::new("orders", "now")).unwrap();
    assert_eq!(next(&bodies), "now");
    clock.advance(Duration::from_secs(11));
    assert_eq!(next(&bodies), "late");
}

#[test]
fn d12_a_broker_that_stops_stops_its_own_clients_first() {
    let broker = Broker::ephemeral().topic("orders", 1).start().unwrap();
    let client = broker.client().unwrap();
    let writer = client.producer("p").start().unwrap().topic("orders").unwrap();
    let (bodies, consumer) = consume(&client, "g", "orders");
    writer.send(b"x").unwrap();
    assert_eq!(next(&bodies), "x");
    let begun = Instant::now();
    drop(broker);
    assert!(begun.elapsed() < PATIENCE);
    let error = writer.send(b"y").unwrap_err();
    assert!(!error.attempts().is_empty() || matches!(error.cause(), Error::Closed), "{error}");
    assert!(client.producer("q").start().is_err());
    drop(consumer);
}
