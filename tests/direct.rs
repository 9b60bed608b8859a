//! A client and a broker in one process, without a socket between them: the direct port does what the sockets do.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use windlass::broker::{Broker, Flush, Op};
use windlass::{Client, Error, Message, SendStatus, Stored};

const PATIENCE: Duration = Duration::from_secs(20);

fn both(broker: &Broker) -> [Client; 2] {
    [broker.client().unwrap(), broker.socket_client().unwrap()]
}

#[test]
fn b194_b192_every_way_of_sending_goes_over_the_direct_port() {
    for flush in [Flush::None, Flush::Sync] {
        let broker = Broker::ephemeral().topic("orders", 2).flush(flush).start().unwrap();
        let producer = broker.client().unwrap().producer("p").start().unwrap();
        let queue = producer.queues("orders").unwrap()[1].clone();
        assert_eq!(producer.send_to_queue(&queue, Message::new("orders", "a")).unwrap().queue, queue);
        producer.send_oneway(Message::new("orders", "b")).unwrap();
        let ticket = producer.send_async(Message::new("orders", "c")).unwrap();
        assert_eq!(ticket.wait(PATIENCE).unwrap().status, SendStatus::Stored);
        let (told, tell) = mpsc::channel();
        producer.send_then(Message::new("orders", "d"), move |outcome| told.send(outcome.is_ok()).unwrap()).unwrap();
        assert!(tell.recv_timeout(PATIENCE).unwrap());
        let batch = vec![Message::new("orders", "e"), Message::new("orders", "f")];
        assert_eq!(producer.send_batch(batch).unwrap().message_ids.len(), 2);
        producer.topic("orders").unwrap().tag("x").unwrap().send(b"g").unwrap();
        assert_eq!(broker.topic_len("orders"), 7, "{flush:?}");
    }
}

#[test]
fn b190_a_young_topic_is_made_by_the_first_send() {
    let broker = Broker::ephemeral().start().unwrap();
    for (number, client) in both(&broker).into_iter().enumerate() {
        let topic = format!("young-{number}");
        let producer = client.producer("p").start().unwrap();
        for _ in 0..8 {
            producer.send(Message::new(topic.as_str(), "x")).unwrap();
        }
        assert_eq!(broker.topic_len(&topic), 8);
    }
    let strict = Broker::ephemeral().auto_create(false).start().unwrap();
    for client in both(&strict) {
        let error = client.producer("p").start().unwrap().send(Message::new("young", "x")).unwrap_err();
        assert!(matches!(error.cause(), Error::UnknownTopic { .. }), "{error}");
    }
}

#[test]
fn faults_on_demand_meet_direct_sends_and_their_retries() {
    let broker = Broker::ephemeral().topic("orders", 4).start().unwrap();
    for client in both(&broker) {
        let before = broker.topic_len("orders");
        let producer = client.producer("p").send_deadline(Duration::from_secs(4)).start().unwrap();
        producer.send(Message::new("orders", "route")).unwrap();
        broker.fail_next(Op::Send, 2);
        producer.send(Message::new("orders", "after two refusals")).unwrap();
        broker.fail_next(Op::Send, 3);
        let error = producer.send(Message::new("orders", "never")).unwrap_err();
        assert_eq!((error.attempts().len(), error.stored(), error.broker_code()), (3, Stored::No, Some(1)));
        broker.lose_next(Op::Send, 3);
        let error = producer.send(Message::new("orders", "who knows")).unwrap_err();
        assert_eq!((error.attempts().len(), error.stored()), (3, Stored::Unknown));
        assert_eq!(broker.topic_len("orders") - before, 5, "stored by each attempt whose answer was lost");
    }
}

#[test]
fn many_clients_come_and_go() {
    let broker = Broker::ephemeral().topic("orders", 1).start().unwrap();
    for number in 0..50 {
        let client = broker.client().unwrap();
        client.producer("p").start().unwrap().send(Message::new("orders", "x")).unwrap();
        if number % 2 == 0 {
            client.shutdown(PATIENCE).into_result().unwrap();
        }
    }
    assert_eq!(broker.topic_len("orders"), 50);
}

#[test]
fn d12_a_broker_that_stops_stops_its_own_clients_first() {
    let broker = Broker::ephemeral().topic("orders", 1).start().unwrap();
    let client = broker.client().unwrap();
    let writer = client.producer("p").start().unwrap().topic("orders").unwrap();
    writer.send(b"x").unwrap();
    let begun = Instant::now();
    drop(broker);
    assert!(begun.elapsed() < PATIENCE);
    let error = writer.send(b"y").unwrap_err();
    assert_eq!(error.stored(), Stored::No, "{error}");
    assert!(client.producer("q").start().is_err());
}

/// What a client sends once it has been stopped is stored nowhere, whichever way it would have gone.
#[test]
fn nothing_is_stored_for_a_client_that_has_stopped() {
    let broker = Broker::ephemeral().topic("orders", 1).start().unwrap();
    let client = broker.client().unwrap();
    let producer = client.producer("p").start().unwrap();
    let writer = producer.topic("orders").unwrap();
    writer.send(b"x").unwrap();
    client.shutdown(PATIENCE).into_result().unwrap();
    assert_eq!(writer.send(b"y").unwrap_err().stored(), Stored::No);
    assert_eq!(producer.send(Message::new("orders", "z")).unwrap_err().stored(), Stored::No);
    assert!(producer.send_oneway(Message::new("orders", "z")).is_err());
    assert_eq!(broker.topic_len("orders"), 1);
}

/// As over a socket, where nobody would hear of it.
#[test]
fn a_refusal_of_a_one_way_send_is_nobodys_business() {
    let broker = Broker::ephemeral().topic("orders", 1).start().unwrap();
    let producer = broker.client().unwrap().producer("p").start().unwrap();
    producer.send(Message::new("orders", "route")).unwrap();
    broker.fail_next(Op::Send, 1);
    producer.send_oneway(Message::new("orders", "refused")).unwrap();
    producer.send(Message::new("orders", "stored")).unwrap();
    assert_eq!(broker.topic_len("orders"), 2);
}
