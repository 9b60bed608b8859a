//! What a send does about brokers that refuse, keep silent, close, or cannot be reached: attempts, time, and what the
//! error says about the message.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use peer::{PATIENCE, Peer, Reply, Request, housekeeping, nobody, route};
use windlass::{Client, Error, Message, SendStatus, Stage, Stored};

/// A name server of these brokers.
fn names(brokers: &[(&str, std::net::SocketAddr, i32)]) -> Peer {
    let json = route(brokers);
    Peer::start(move |request| match request.code {
        105 => Reply::with_body(json.clone()),
        _ => housekeeping(request),
    })
}

/// A broker that answers sends by `send`.
fn broker(send: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Peer {
    Peer::start(move |request| match request.code {
        310 | 320 => send(request),
        _ => housekeeping(request),
    })
}

fn client(names: &Peer) -> Client {
    Client::builder().name_servers([names.text()]).build().unwrap()
}

fn ok(request: &Request) -> Reply {
    Reply::stored(0, request.field("e"), 7)
}

#[test]
fn c066_a_refusing_broker_gets_at_most_one_attempt_of_each_send() {
    let (a, b) = (broker(|_| Reply::code(14)), broker(ok));
    let names = names(&[("a", a.addr(), 4), ("b", b.addr(), 4)]);
    let client = client(&names);
    let producer = client.producer("p").start().unwrap();
    for number in 0..200 {
        let before = a.seen_of(310).len();
        let receipt = producer.send(Message::new("t", format!("{number}"))).unwrap();
        assert_eq!(&*receipt.queue.broker, "b");
        assert!(a.seen_of(310).len() - before <= 1, "send {number}");
    }
    assert!(!a.seen_of(310).is_empty() && b.seen_of(310).len() == 200);
}

/// Whichever is asked first: one that takes connections and answers nothing, or one that cannot even be connected to.
#[test]
fn b010_a_name_server_that_keeps_silent_leaves_time_for_the_other_within_a_send() {
    let (silent, b) = (Peer::start(|_| Reply::Silence), broker(ok));
    let names = names(&[("b", b.addr(), 1)]);
    let mut kept_waiting = 0;
    for _ in 0..6 {
        let client = Client::builder().name_servers([silent.text(), names.text()]).build().unwrap();
        let producer = client.producer("p").send_deadline(Duration::from_secs(6)).start().unwrap();
        let begun = Instant::now();
        producer.send(Message::new("t", "x")).unwrap();
        kept_waiting += u32::from(begun.elapsed() > Duration::from_secs(1));
        // The choice has moved on: nobody waits twice.
        let begun = Instant::now();
        producer.send(Message::new("u", "x")).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
    assert_eq!(kept_waiting > 0, !silent.seen().is_empty());
}

#[test]
fn b182_a_silent_broker_leaves_time_for_the_other() {
    let (a, b) = (broker(|_| Reply::Silence), broker(ok));
    let names = names(&[("a", a.addr(), 1), ("b", b.addr(), 1)]);
    let client = client(&names);
    let producer = client.producer("p").send_deadline(Duration::from_secs(4)).start().unwrap();
    for _ in 0..2 {
        let receipt = producer.send(Message::new("t", "x")).unwrap();
        assert_eq!(&*receipt.queue.broker, "b");
    }
    assert!((1..=2).contains(&a.seen_of(310).len()), "sends began there, none twice");
}

#[test]
fn b181_d35_silence_ends_at_the_deadline_and_leaves_the_outcome_unknown() {
    let peer = Peer::cluster(4, |_| Reply::Silence);
    let client = client(&peer);
    let producer = client.producer("p").send_deadline(Duration::from_secs(4)).start().unwrap();
    let begun = Instant::now();
    let error = producer.send(Message::new("t", "x").tag("y")).unwrap_err();
    let took = begun.elapsed();
    assert!((Duration::from_millis(3_990)..PATIENCE).contains(&took), "{took:?}");
    assert_eq!((error.attempts().len(), error.stored()), (3, Stored::Unknown));
    for attempt in error.attempts() {
        assert_eq!((attempt.broker.as_str(), attempt.stage, attempt.code), ("broker-a", Stage::Wait, None));
    }
    assert!(error.is_retryable());
    assert_eq!(error.into_message(), Message::new("t", "x").tag("y"));
    let ids: Vec<_> = peer.seen_of(310).iter().map(|sent| sent.property("UNIQ_KEY").unwrap().to_owned()).collect();
    assert!(ids.len() == 3 && ids.iter().all(|id| *id == ids[0] && id.len() == 32), "{ids:?}");
}

#[test]
fn b183_a_refusal_that_no_other_broker_can_mend_is_not_tried_again() {
    let peer = Peer::cluster(4, |_| Reply::Answer {
        code: 13,
        remark: Some("too odd".into()),
        fields: Default::default(),
        body: Vec::new(),
    });
    let client = client(&peer);
    let producer = client.producer("p").start().unwrap();
    let error = producer.send(Message::new("t", "x")).unwrap_err();
    assert_eq!((error.attempts().len(), error.stored(), error.broker_code()), (1, Stored::No, Some(13)));
    assert!(error.to_string().contains("too odd") && !error.is_retryable());
    assert_eq!(peer.seen_of(310).len(), 1);
    let error = Error::from(error);
    assert!(matches!(error, Error::Send { ref topic, .. } if topic == "t"));
}

#[test]
fn b183_b184_codes_that_may_pass_are_tried_three_times() {
    for code in [1, 2, 14, 16, 17, 204, 205] {
        let peer = Peer::cluster(4, move |_| Reply::code(code));
        let client = client(&peer);
        let producer = client.producer("p").start().unwrap();
        let error = producer.send(Message::new("t", "x")).unwrap_err();
        assert_eq!((error.attempts().len(), error.stored(), error.broker_code()), (3, Stored::No, Some(code)));
        assert_eq!(peer.seen_of(310).len(), 3, "code {code}");
    }
}

#[test]
fn b185_stored_without_confirmation_is_a_receipt() {
    for (code, status) in
        [(10, SendStatus::FlushTimeout), (11, SendStatus::NoReplica), (12, SendStatus::ReplicaTimeout)]
    {
        let peer = Peer::cluster(1, move |request| Reply::stored(code, request.field("e"), 3));
        let client = client(&peer);
        let receipt = client.producer("p").start().unwrap().send(Message::new("t", "x")).unwrap();
        assert_eq!((receipt.status, receipt.offset.0, receipt.queue.id), (status, 3, 0));
        assert_eq!(peer.seen_of(310).len(), 1);
    }
}

#[test]
fn c065_b186_every_attempt_carries_the_same_compressed_body_and_id() {
    let tries = Arc::new(AtomicU32::new(0));
    let count = tries.clone();
    let peer = Peer::cluster(
        4,
        move |request| {
            if count.fetch_add(1, Ordering::SeqCst) < 2 { Reply::code(1) } else { ok(request) }
        },
    );
    let client = client(&peer);
    let receipt = client.producer("p").start().unwrap().send(Message::new("t", vec![b'a'; 10_000])).unwrap();
    let sent = peer.seen_of(310);
    assert_eq!(sent.len(), 3);
    for one in &sent {
        assert_eq!(one.body, sent[0].body);
        assert_eq!(one.property("UNIQ_KEY"), Some(receipt.message_id.as_str()));
        assert_eq!(one.field("f").parse::<i32>().unwrap() & 1, 1);
    }
    assert!(sent[0].body.len() < 200 && sent[0].body[0] == 0x78, "zlib");
    assert_eq!(receipt.offset_message_id.to_string(), "7F00000100002A9F0000000000000007");
}

#[test]
fn b025_the_time_of_a_send_includes_connecting() {
    // A listener that accepts nobody: once its backlog is full, the system answers nobody who connects.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (mut kept, mut refused) = (Vec::new(), 0);
    while refused < 3 {
        match std::net::TcpStream::connect_timeout(&addr, Duration::from_millis(200)) {
            Ok(stream) => {
                kept.push(stream);
                refused = 0;
            }
            Err(_) => refused += 1,
        }
    }
    let names = names(&[("a", addr, 1)]);
    let client = client(&names);
    let limit = Duration::from_millis(600);
    let producer = client.producer("p").send_deadline(limit).start().unwrap();
    let begun = Instant::now();
    let error = producer.send(Message::new("t", "x")).unwrap_err();
    // Not the three seconds that a connection may take by itself.
    assert!(begun.elapsed() >= limit / 2 && begun.elapsed() < Duration::from_millis(2500), "{:?}", begun.elapsed());
    assert_eq!(error.stored(), Stored::No, "{error:?}");
    assert!(error.attempts().iter().all(|attempt| attempt.stage == Stage::Connect), "{error:?}");
}

#[test]
fn a_broker_that_cannot_be_reached_has_stored_nothing() {
    let names = names(&[("a", nobody(), 2)]);
    let client = client(&names);
    let error = client.producer("p").start().unwrap().send(Message::new("t", "x")).unwrap_err();
    assert_eq!((error.attempts().len(), error.stored()), (3, Stored::No));
    assert!(error.attempts().iter().all(|attempt| attempt.stage == Stage::Connect), "{error}");
}

#[test]
fn a_connection_that_ends_before_the_answer_is_tried_again_and_may_have_stored() {
    let tries = Arc::new(AtomicU32::new(0));
    let count = tries.clone();
    let peer = Peer::cluster(
        1,
        move |request| {
            if count.fetch_add(1, Ordering::SeqCst) == 0 { Reply::Close } else { ok(request) }
        },
    );
    let client = client(&peer);
    assert!(client.producer("p").start().unwrap().send(Message::new("t", "x")).is_ok());
    assert_eq!(peer.seen_of(310).len(), 2);
    let peer = Peer::cluster(1, |_| Reply::Close);
    let client = self::client(&peer);
    let error = client.producer("p").retries(0).start().unwrap().send(Message::new("t", "x")).unwrap_err();
    assert_eq!((error.attempts().len(), error.stored()), (1, Stored::Unknown));
}

#[test]
fn an_answer_of_garbage_is_an_error_with_an_unknown_outcome() {
    for garbage in [
        vec![0xFF; 64],
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        vec![0, 0, 0, 8, 0, 0, 0, 4, b'{', b'{', b'{', b'{'],
    ] {
        let peer = Peer::cluster(1, move |_| Reply::Bytes(garbage.clone()));
        let client = client(&peer);
        let producer = client.producer("p").retries(0).send_deadline(Duration::from_secs(10)).start().unwrap();
        let error = producer.send(Message::new("t", "x")).unwrap_err();
        assert_eq!((error.attempts().len(), error.stored()), (1, Stored::Unknown), "{error}");
    }
}

#[test]
fn b196_a_given_queue_gets_one_attempt() {
    let peer = Peer::cluster(4, |_| Reply::code(14));
    let client = client(&peer);
    let producer = client.producer("p").start().unwrap();
    let queue = producer.queues("t").unwrap()[2].clone();
    let error = producer.send_to_queue(&queue, Message::new("t", "x")).unwrap_err();
    assert_eq!(error.attempts().len(), 1);
    let error = producer.send_by_key("polygenelubricants", Message::new("t", "x")).unwrap_err();
    assert_eq!(error.attempts().len(), 1);
    let queues: Vec<String> = peer.seen_of(310).iter().map(|sent| sent.field("e").to_owned()).collect();
    assert_eq!(queues, ["2", "0"]);
    assert!(matches!(
        producer.send_to_queue(&queue, Message::new("u", "x")).unwrap_err().cause(),
        Error::Message { .. }
    ));
    let none = producer.send_to_queue(&windlass::Queue::new("t", "broker-a", 9), Message::new("t", "x")).unwrap_err();
    assert_eq!(none.cause().to_string(), "topic t has no queue broker-a/9 with write permission");
}

#[test]
fn a_name_server_that_cannot_be_reached_is_named() {
    let nowhere = nobody().to_string();
    let client = Client::builder().name_servers([&nowhere]).build().unwrap();
    let producer = client.producer("p").send_deadline(Duration::from_secs(2)).start().unwrap();
    let begun = Instant::now();
    let error = producer.send(Message::new("t", "x")).unwrap_err();
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!((error.attempts().len(), error.stored()), (0, Stored::No));
    assert!(error.to_string().contains(&nowhere), "{error}");
}

#[test]
fn after_shutdown_sends_are_refused() {
    let peer = Peer::cluster(1, ok);
    let client = client(&peer);
    let producer = client.producer("p").start().unwrap();
    let writer = producer.topic("t").unwrap();
    writer.send(b"x").unwrap();
    producer.shutdown();
    for cause in [producer.send(Message::new("t", "x")).unwrap_err(), writer.send(b"x").unwrap_err()] {
        assert!(matches!(cause.cause(), Error::Closed));
    }
}

#[test]
fn what_is_on_its_way_when_the_client_stops_may_be_stored() {
    // More than there are lanes to one broker: some go over the loop.
    const SENDERS: usize = 12;
    let sent = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&sent);
    let peer = Peer::cluster(1, move |_| {
        seen.fetch_add(1, Ordering::SeqCst);
        Reply::Silence
    });
    let client = client(&peer);
    let producer = client.producer("p").send_deadline(PATIENCE).start().unwrap();
    producer.queues("t").unwrap();
    let errors: Vec<_> = std::thread::scope(|scope| {
        let senders: Vec<_> =
            (0..SENDERS).map(|_| scope.spawn(|| producer.send(Message::new("t", "x")).unwrap_err())).collect();
        let end = Instant::now() + PATIENCE;
        while sent.load(Ordering::SeqCst) < SENDERS as u32 {
            assert!(Instant::now() < end, "{sent:?} have come");
            std::thread::yield_now();
        }
        client.shutdown(PATIENCE);
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    });
    for error in errors {
        assert_eq!(error.stored(), Stored::Unknown, "{error}");
    }
}

#[test]
fn after_the_clients_shutdown_every_way_to_send_says_closed() {
    let peer = Peer::cluster(1, ok);
    let client = client(&peer);
    let producer = client.producer("p").start().unwrap();
    let writer = producer.topic("t").unwrap();
    producer.send(Message::new("t", "x")).unwrap();
    client.shutdown(PATIENCE).into_result().unwrap();
    let message = || Message::new("t", "x");
    let failed = [
        producer.send(message()).unwrap_err(),
        producer.send_by_key("k", message()).unwrap_err(),
        producer.send_oneway(message()).unwrap_err(),
        producer.send_async(message()).unwrap_err(),
        writer.send(b"x").unwrap_err(),
    ];
    for error in failed {
        assert!(matches!(error.cause(), Error::Closed) && !error.is_retryable(), "{error}");
    }
    let error = producer.send_batch(vec![message()]).unwrap_err();
    assert!(matches!(error.cause(), Error::Closed) && error.attempts().is_empty(), "{error}");
    assert_eq!((error.messages().len(), error.stored(), error.broker_code()), (1, Stored::No, None));
}
