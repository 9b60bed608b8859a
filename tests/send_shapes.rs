//! What a send looks like on the wire, and which sends never get there.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use peer::{PATIENCE, Peer, Reply, Request, housekeeping, route};
use windlass::{Client, DelayLevel, Error, Message};

fn client(peer: &Peer) -> Client {
    Client::builder().name_servers([peer.text()]).build().unwrap()
}

fn ok(request: &Request) -> Reply {
    Reply::stored(0, request.field("e"), 7)
}

#[test]
fn a_plain_send_has_every_field_that_java_writes() {
    let peer = Peer::cluster(1, ok);
    let client = client(&peer);
    let producer = client.producer("orders-writer").start().unwrap();
    let message = Message::new("orders", "body").tag("paid").key("7").key("8").property("region", "eu").flag(5);
    let receipt = producer.send(message.delay(DelayLevel::at_least(Duration::from_secs(10)))).unwrap();
    let sent = &peer.seen_of(310)[0];
    let fields = ["a", "b", "c", "d", "e", "f", "h", "j", "k", "m", "n"].map(|name| sent.field(name));
    assert_eq!(fields, ["orders-writer", "orders", "TBW102", "4", "0", "0", "5", "0", "false", "false", "broker-a"]);
    assert!(sent.field("g").parse::<i64>().unwrap() > 1_600_000_000_000);
    let names = ["UNIQ_KEY", "WAIT", "TAGS", "KEYS", "DELAY", "region"].map(|name| sent.property(name).unwrap());
    assert_eq!(names, [receipt.message_id.as_str(), "true", "paid", "7 8", "3", "eu"]);
    assert_eq!((sent.body.as_slice(), sent.flag), (&b"body"[..], 0));
    assert_eq!((receipt.queue.to_string().as_str(), receipt.offset.0), ("orders/broker-a/0", 7));
}

#[test]
fn b180_sends_go_round_the_queues() {
    let peer = Peer::cluster(4, ok);
    let client = client(&peer);
    let producer = client.producer("p").start().unwrap();
    for _ in 0..8 {
        producer.send(Message::new("t", "x")).unwrap();
    }
    let queues: Vec<String> = peer.seen_of(310).iter().map(|sent| sent.field("e").to_owned()).collect();
    assert_eq!(queues[..4], queues[4..]);
    let mut once = queues[..4].to_vec();
    once.sort();
    assert_eq!(once, ["0", "1", "2", "3"]);
}

#[test]
fn b188_b189_bad_messages_never_reach_the_network() {
    let peer = Peer::cluster(1, ok);
    let client = client(&peer);
    let producer = client.producer("p").start().unwrap();
    for bad in [
        Message::new("t", vec![1; (4 << 20) + 1]),
        Message::new("t", ""),
        Message::new("t".repeat(128), "x"),
        Message::new("a b", "x"),
        Message::new("SCHEDULE_TOPIC_XXXX", "x"),
        Message::new("t", "x").property("UNIQ_KEY", "mine"),
        Message::new("t", "x").property("n", "a\u{2}b"),
        Message::new("t", "x").key("a b"),
    ] {
        let error = producer.send(bad.clone()).unwrap_err();
        assert!(matches!(error.cause(), Error::Message { .. }), "{error}");
        assert_eq!(error.into_message(), bad);
    }
    assert!(producer.topic("a b").is_err() && producer.queues("").is_err());
    assert!(peer.seen_of(105).is_empty() && peer.seen_of(310).is_empty());
    let most = Message::new("t", vec![1; 4 << 20]);
    assert!(producer.send(most).is_ok());
}

#[test]
fn b190_an_unknown_topic_uses_the_template_and_without_one_is_an_error() {
    let own = std::sync::Arc::new(std::sync::OnceLock::new());
    let known = own.clone();
    let peer = Peer::start(move |request| match (request.code, request.field("topic")) {
        (105, "TBW102") => Reply::with_body(route(&[("b", *known.get().unwrap(), 8)])),
        (105, _) => Reply::code(17),
        (310, _) => ok(request),
        _ => housekeeping(request),
    });
    own.set(peer.addr()).unwrap();
    let producer = client(&peer).producer("p").start().unwrap();
    for _ in 0..8 {
        producer.send(Message::new("young", "x")).unwrap();
    }
    let mut queues: Vec<String> = peer.seen_of(310).iter().map(|sent| sent.field("e").to_owned()).collect();
    assert!(peer.seen_of(310).iter().all(|sent| sent.field("b") == "young"));
    queues.sort();
    queues.dedup();
    assert_eq!(queues, ["0", "1", "2", "3"]);

    let bare = Peer::start(|request| if request.code == 105 { Reply::code(17) } else { housekeeping(request) });
    let error = client(&bare).producer("p").start().unwrap().send(Message::new("young", "x")).unwrap_err();
    assert!(matches!(error.cause(), Error::UnknownTopic { topic } if topic == "young"), "{error}");
}

#[test]
fn b194_a_one_way_send_waits_for_nobody() {
    let peer = Peer::cluster(1, |_| Reply::Silence);
    let client = client(&peer);
    let producer = client.producer("p").start().unwrap();
    let begun = Instant::now();
    for _ in 0..100 {
        producer.send_oneway(Message::new("t", "x")).unwrap();
    }
    assert!(begun.elapsed() < PATIENCE);
    peer.wait("100 one-way sends", |seen| seen.iter().filter(|request| request.code == 310).count() == 100);
    assert!(peer.seen_of(310).iter().all(Request::is_oneway));
}

#[test]
fn b195_a_batch_is_one_request() {
    let peer = Peer::cluster(1, ok);
    let client = client(&peer);
    let producer = client.producer("p").start().unwrap();
    let receipt =
        producer.send_batch(vec![Message::new("t", vec![b'a'; 9_000]), Message::new("t", "b").tag("x")]).unwrap();
    let sent = &peer.seen_of(320)[0];
    assert_eq!((sent.field("m"), sent.field("f"), sent.property("UNIQ_KEY")), ("true", "0", None));
    assert_eq!((receipt.first.0, receipt.message_ids.len()), (7, 2));
    let first = u32::from_be_bytes(sent.body[..4].try_into().unwrap()) as usize;
    assert!(first > 9_000 && first < sent.body.len(), "not compressed, and another behind it");
    let refused = producer.send_batch(vec![Message::new("t", "a"), Message::new("u", "b")]).unwrap_err();
    assert!(matches!(refused.cause(), Error::Message { .. }));
    assert_eq!(refused.into_messages().len(), 2);
}

#[test]
fn b192_asynchronous_sends_end_once_each_in_tickets_or_callbacks() {
    let peer = Peer::cluster(4, ok);
    let client = client(&peer);
    let producer = client.producer("p").start().unwrap();
    let tickets: Vec<_> = (0..100).map(|n| producer.send_async(Message::new("t", format!("{n}"))).unwrap()).collect();
    for ticket in tickets {
        assert_eq!(ticket.wait(PATIENCE).unwrap().offset.0, 7);
    }
    let (told, tell) = mpsc::channel();
    for n in 0..100 {
        let told = told.clone();
        producer.send_then(Message::new("t", "x"), move |outcome| told.send((n, outcome.is_ok())).unwrap()).unwrap();
    }
    drop(told);
    let mut seen: Vec<_> = tell.iter().collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..100).map(|n| (n, true)).collect::<Vec<_>>());
    let refused = Peer::cluster(1, |_| Reply::code(14));
    let producer = self::client(&refused).producer("p").start().unwrap();
    let error = producer.send_async(Message::new("t", "x")).unwrap().wait(PATIENCE).unwrap_err();
    assert!(matches!(Error::from(error), Error::Send { attempts, .. } if attempts.len() == 1));
}

#[test]
fn c023_a_callback_that_outlasts_the_time_of_its_send_runs_once_and_has_the_receipt() {
    let peer = Peer::cluster(1, ok);
    let limit = Duration::from_millis(200);
    let client = client(&peer);
    let producer = client.producer("p").send_deadline(limit).start().unwrap();
    let (told, tell) = mpsc::channel();
    producer
        .send_then(Message::new("t", "x"), move |outcome| {
            // What is late here is the callback, not the answer.
            let begun = Instant::now();
            while begun.elapsed() < 2 * limit {
                std::thread::yield_now();
            }
            told.send(outcome.map(|receipt| receipt.offset.0)).unwrap();
        })
        .unwrap();
    assert_eq!(tell.recv_timeout(PATIENCE).unwrap().unwrap(), 7);
    assert!(tell.recv().is_err(), "a second call");
}

#[test]
fn b193_an_asynchronous_retry_goes_to_a_queue_that_exists() {
    let (a, b) = (broker(|_| Reply::Close), broker(ok));
    let json = route(&[("a", a.addr(), 8), ("b", b.addr(), 1)]);
    let names = Peer::start(move |request| match request.code {
        105 => Reply::with_body(json.clone()),
        _ => housekeeping(request),
    });
    let producer = client(&names).producer("p").start().unwrap();
    for _ in 0..9 {
        let receipt = producer.send_async(Message::new("t", "x")).unwrap().wait(PATIENCE).unwrap();
        assert_eq!((&*receipt.queue.broker, receipt.queue.id), ("b", 0));
    }
    assert!(b.seen_of(310).iter().all(|sent| sent.field("e") == "0"));
    assert!(!a.seen_of(310).is_empty());
}

fn broker(send: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Peer {
    Peer::start(move |request| if request.code == 310 { send(request) } else { housekeeping(request) })
}

#[test]
fn c041_a_full_producer_refuses_in_time_and_works_again() {
    let peer = Peer::cluster(1, |_| Reply::Silence);
    let client = client(&peer);
    let producer = client
        .producer("p")
        .in_flight(2, 1 << 20)
        .async_retries(0)
        .send_deadline(Duration::from_secs(2))
        .start()
        .unwrap();
    let held: Vec<_> = (0..2).map(|_| producer.send_async(Message::new("t", "x")).unwrap()).collect();
    let error = producer.send_async(Message::new("t", vec![1; 2 << 20])).unwrap_err();
    assert!(matches!(error.cause(), Error::Overloaded { .. }), "more than ever fits");
    for ticket in held {
        assert!(ticket.wait(PATIENCE).is_err());
    }
    assert!(producer.send_async(Message::new("t", "x")).is_ok());
}

#[test]
fn producers_are_in_the_heartbeats_until_they_end() {
    let peer = Peer::cluster(1, ok);
    let client = client(&peer);
    let producer = client.producer("known").start().unwrap();
    producer.send(Message::new("t", "x")).unwrap();
    let names = |request: &Request| String::from_utf8_lossy(&request.body).contains(r#""groupName":"known""#);
    peer.wait("a heartbeat with the group", |seen| seen.iter().any(|request| request.code == 34 && names(request)));
    drop(producer);
    peer.wait("the group's end", |seen| {
        seen.iter().any(|request| request.code == 35 && request.field("producerGroup") == "known")
    });
}
