//! What a client makes of peers that answer nonsense or nothing: a typed error or an event that says what and where, never
//! a panic or a hang, and it goes on as soon as the peer is right again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use peer::queue::{TOPIC, cluster, pulls, stored};
use peer::{PATIENCE, Peer, Reply};
use windlass::{Client, ClientBuilder, Error, Event, Message, PushConsumer, StartFrom, Stored};

fn builder(peer: &Peer) -> ClientBuilder {
    let builder = Client::builder().name_servers([peer.text()]).workers(2).request_timeout(Duration::from_millis(300));
    builder.timing(|timing| {
        timing.retry = Duration::from_millis(20);
        timing.offset = Duration::from_millis(300);
    })
}

fn run(builder: ClientBuilder) -> (PushConsumer, Receiver<i64>, Receiver<Event>) {
    let client = builder.build().unwrap();
    let ((told, seen), (tell, events)) = (unbounded(), unbounded());
    let consumer = client
        .push_consumer("G")
        .subscribe(TOPIC, "*")
        .start_from(StartFrom::First)
        .pull_retry_delay(Duration::from_millis(20))
        .observer(move |event: &Event| drop(tell.send(event.clone())))
        .handler(move |batch| {
            for message in batch {
                let _ = told.send(message.offset().0);
            }
        })
        .start()
        .unwrap();
    (consumer, seen, events)
}

fn event(events: &Receiver<Event>, name: &str) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        match events.recv_deadline(end) {
            Ok(event) if event.name() == name => return event.to_string(),
            Ok(_) => {}
            Err(_) => panic!("no event: {name}"),
        }
    }
}

/// A frame whose header says so much and is that.
fn framed(header_word: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + rest.len() as u32).to_be_bytes().to_vec();
    bytes.extend(header_word.to_be_bytes());
    bytes.extend(rest);
    bytes
}

#[test]
fn bytes_that_are_no_frame_end_their_connection_and_the_queue_goes_on() {
    for garbage in [
        vec![0xFF; 64],
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        vec![0; 64],
        framed(0x00FF_FFFF, b"{}"),
        framed(4, b"nope"),
        framed(0x0700_0002, b"{}"),
        framed(0x0100_0005, b"12345"),
    ] {
        let told = garbage.clone();
        let peer = cluster(move |request, nth| match (request.code, nth) {
            (11, 0) if request.field("topic") == TOPIC => Some(Reply::Bytes(garbage.clone())),
            (11, 0) => Some(Reply::Silence),
            _ => stored(request, 2),
        });
        let (_consumer, seen, events) = run(builder(&peer));
        event(&events, "connection lost");
        let mut offsets: Vec<i64> = (0..2).map(|_| seen.recv_timeout(PATIENCE).unwrap()).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, [0, 1], "{told:?}");
        let first: Vec<i64> = pulls(&peer.seen()).iter().map(|(at, _)| *at).take(2).collect();
        assert_eq!(first, [0, 0], "{told:?}: asked for again where it was");
    }
}

#[test]
fn answers_that_make_no_sense_are_told_and_asked_for_again() {
    for (code, name, nonsense) in [
        (105, "route failed", Reply::with_body("no json at all")),
        (105, "route failed", Reply::with_body(r#"{"brokerDatas": 7}"#)),
        (105, "route failed", Reply::code(-1)),
        (38, "not balanced", Reply::with_body("[")),
        (38, "not balanced", Reply::with_body(r#"{"consumerIdList": "me"}"#)),
        (38, "not balanced", Reply::code(9_999)),
        (14, "start failed", Reply::with_fields(0, [("offset", "soon")])),
        (14, "start failed", Reply::with_fields(0, [("offset", "-7")])),
        (14, "start failed", Reply::with_fields(0, [])),
        (11, "pull failed", Reply::with_fields(0, [])),
        (11, "pull failed", Reply::with_fields(0, [("nextBeginOffset", "9223372036854775808")])),
        (11, "pull failed", Reply::code(9_999)),
        (34, "heartbeat failed", Reply::code(9_999)),
        (15, "commit failed", Reply::code(9_999)),
    ] {
        let what = format!("{code} {nonsense:?}");
        let peer = cluster(move |request, nth| match (request.code, nth) {
            // The retry topic has its own look-up, members and pulls.
            (asked, 0..4) if asked == code => Some(nonsense.clone()),
            _ => stored(request, 1),
        });
        let (consumer, seen, events) = run(builder(&peer));
        event(&events, name);
        assert_eq!(seen.recv_timeout(PATIENCE).unwrap(), 0, "{what}");
        consumer.shutdown(Duration::from_secs(2));
    }
}

#[test]
fn a_name_server_that_says_nothing_is_an_error_in_time_and_an_event() {
    let silent = Peer::start(|_| Reply::Silence);
    let (_consumer, _, events) = run(builder(&silent));
    let told = event(&events, "route failed");
    assert!(told.contains(TOPIC) || told.contains("%RETRY%G"), "{told}");
    let client = builder(&silent).build().unwrap();
    let producer = client.producer("p").send_deadline(Duration::from_secs(1)).start().unwrap();
    let begun = Instant::now();
    let error = producer.send(Message::new("t", "x")).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(error.stored(), Stored::No, "no broker was asked: {error}");
    assert!(matches!(error.cause(), Error::Timeout { .. } | Error::NoNameServer { .. }), "{error:?}");
    client.shutdown(Duration::from_secs(1)).into_result().unwrap();
}

#[test]
fn a_wait_of_any_length_may_be_asked_for() {
    let peer = cluster(|request, _| stored(request, 1));
    let client = builder(&peer).build().unwrap();
    let ((told, seen), most) = (unbounded(), Duration::MAX);
    let consumer = client
        .push_consumer("G")
        .subscribe(TOPIC, "*")
        .start_from(StartFrom::First)
        .handler(move |_| {
            let _ = told.send(());
        })
        .start()
        .unwrap();
    seen.recv_timeout(PATIENCE).unwrap();
    assert!(consumer.shutdown(most).is_clean());
    let producer = client.producer("p").start().unwrap();
    assert!(producer.send_async(Message::new(TOPIC, "x")).unwrap().wait(most).is_err(), "this peer stores nothing");
    drop(producer);
    client.shutdown(most).into_result().unwrap();
    assert_eq!(
        client.set_name_servers(["nowhere"]).map_err(|error| error.to_string()).unwrap_err(),
        "name_servers = nowhere is not allowed; allowed: host:port"
    );
}
