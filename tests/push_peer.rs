//! A push consumer against a broker and name server whose every answer a test decides: what it asks for, in which order,
//! and what it makes of refusals, silence, damage and corrections.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use peer::queue::{TOPIC, cluster, pulled, pulls, record, stored};
use peer::{PATIENCE, Peer, Reply, frame, nobody, response, route};
use serde_json::{Value, json};
use windlass::{Client, ClientBuilder, Event, Outcome, StartFrom};

fn builder(peer: &Peer) -> ClientBuilder {
    Client::builder().name_servers([peer.text()]).workers(2).pull_hold(Duration::from_secs(2), Duration::from_secs(4))
}

/// What the handler was given: offset, redeliveries, body.
type Seen = (i64, u32, Vec<u8>);

struct Running {
    _client: Client,
    consumer: windlass::PushConsumer,
    seen: Receiver<Seen>,
    events: Receiver<Event>,
}

impl Running {
    fn event(&self, name: &str) -> Event {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.events.recv_deadline(end) {
                Ok(event) if event.name() == name => return event,
                Ok(_) => {}
                Err(_) => panic!("no event {name}"),
            }
        }
    }

    fn next(&self) -> Seen {
        self.seen.recv_timeout(PATIENCE).unwrap()
    }
}

fn run(builder: ClientBuilder, mut outcome: impl FnMut(u32) -> Outcome + Send + 'static) -> Running {
    let client = builder.build().unwrap();
    let (tell, events) = unbounded();
    let (told, seen) = unbounded();
    let mut calls = 0;
    let outcomes = Mutex::new(move || {
        calls += 1;
        outcome(calls)
    });
    let consumer = client
        .push_consumer("G")
        .subscribe(TOPIC, "*")
        .start_from(StartFrom::First)
        .pull_retry_delay(Duration::from_millis(50))
        .max_redeliveries(16)
        .observer(move |event: &Event| {
            let _ = tell.send(event.clone());
        })
        .handler(move |batch| {
            for message in batch {
                let _ = told.send((message.offset().0, message.redeliveries(), message.body().to_vec()));
            }
            (outcomes.lock().unwrap())()
        })
        .start()
        .unwrap();
    Running { _client: client, consumer, seen, events }
}

#[test]
fn c034_the_first_heartbeat_goes_out_before_the_first_pull() {
    let peer = cluster(|request, _| stored(request, 1));
    let running = run(builder(&peer), |_| Outcome::Done);
    assert_eq!(running.next(), (0, 0, b"m0".to_vec()));
    let codes: Vec<i32> = peer.seen().iter().map(|request| request.code).collect();
    let first = |code| codes.iter().position(|at| *at == code).unwrap();
    assert!(
        first(105) < first(34) && first(34) < first(38) && first(38) < first(14) && first(14) < first(11),
        "{codes:?}"
    );
    let beat: Value = serde_json::from_slice(&peer.seen_of(34)[0].body).unwrap();
    let topics: Vec<&str> = beat["consumerDataSet"][0]["subscriptionDataSet"]
        .as_array()
        .unwrap()
        .iter()
        .map(|sub| sub["topic"].as_str().unwrap())
        .collect();
    assert_eq!(topics, ["%RETRY%G", TOPIC]);
    let pull = &peer.seen_of(11)[0];
    assert_eq!(
        (pull.field("sysFlag"), pull.field("suspendTimeoutMillis"), pull.field("commitOffset")),
        ("2", "2000", "0")
    );
    assert!(pull.binary, "the heartbeat has said version 479 (D7)");
    drop(running);
    peer.wait("the group is left", |seen| seen.iter().any(|at| at.code == 35 && at.field("consumerGroup") == "G"));
}

#[test]
fn b042_b264_c045_only_not_found_means_that_there_is_no_offset() {
    for code in [1, 2, 3, 13, 16, 21, 24, 25] {
        let peer = cluster(move |request, nth| match (request.code, nth) {
            (14, 0) => Some(Reply::code(code)),
            (14, _) => Some(Reply::with_fields(0, [("offset", "500")])),
            _ => None,
        });
        let running = run(builder(&peer).timing(|timing| timing.retry = Duration::from_millis(30)), |_| Outcome::Done);
        running.event("start failed");
        peer.wait("a pull", |seen| !pulls(seen).is_empty());
        assert_eq!(pulls(&peer.seen())[0].0, 500, "code {code}");
    }
}

#[test]
fn a_group_without_an_offset_starts_where_it_was_told_and_commits_that() {
    let peer = cluster(|request, _| (request.code == 14).then(|| Reply::code(22)));
    let _running = run(builder(&peer), |_| Outcome::Done);
    peer.wait("a pull", |seen| !pulls(seen).is_empty());
    assert_eq!(pulls(&peer.seen())[0].0, 0);
    peer.wait("its start is committed", |seen| seen.iter().any(|at| at.code == 15 && at.field("commitOffset") == "0"));
    assert_eq!(peer.seen_of(30).len(), 0);
}

#[test]
fn b084_a_corrected_offset_is_committed_and_pulled_from_at_once() {
    let peer = cluster(|request, _| match request.code {
        14 => Some(Reply::with_fields(0, [("offset", "700")])),
        11 if request.field("queueOffset") == "700" => Some(pulled(21, 40, 41, Vec::new())),
        11 if request.field("queueOffset") == "40" => Some(pulled(0, 41, 41, record(40, b"forty"))),
        _ => None,
    });
    let begun = Instant::now();
    let running = run(builder(&peer), |_| Outcome::Done);
    assert_eq!(running.next(), (40, 0, b"forty".to_vec()));
    // Not only when the assignment is looked at next, after 20 s.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(
        matches!(running.event("offset corrected"), Event::OffsetCorrected { from, to, .. } if (from.0, to.0) == (700, 40))
    );
    let commits: Vec<String> = peer.seen_of(15).iter().map(|at| at.field("commitOffset").to_owned()).collect();
    assert_eq!(commits[0], "40", "before it is pulled from: {commits:?}");
}

/// Whatever it is that a broker answers by closing: it is connected to at a pace.
#[test]
fn a_broker_that_closes_each_time_is_connected_to_at_a_pace() {
    for code in [34, 38] {
        let peer = cluster(move |request, _| (request.code == code).then_some(Reply::Close));
        let begun = Instant::now();
        let paced = builder(&peer).timing(|timing| timing.retry = Duration::from_millis(50));
        let _running = run(paced, |_| Outcome::Done);
        peer.wait("connections", |seen| seen.iter().filter(|at| at.code == code).count() >= 24);
        assert!(begun.elapsed() > Duration::from_millis(300), "{code}: {:?}", begun.elapsed());
    }
}

/// A broker that is there and breaks off each time is asked at the pace of failures, not of connections.
#[test]
fn pulls_that_are_refused_or_broken_each_time_keep_their_pause() {
    for reply in [Reply::code(1500), Reply::Close, Reply::code(25), Reply::Bytes(b"no frame at all".to_vec())] {
        let given = reply.clone();
        let peer = cluster(move |request, _| (request.code == 11).then(|| given.clone()));
        let begun = Instant::now();
        let paced = builder(&peer).timing(|timing| timing.pull_retry_most = Duration::from_millis(60));
        let _running = run(paced, |_| Outcome::Done);
        peer.wait("pulls", |seen| pulls(seen).len() >= 12);
        // The pause is 50 ms, and the first few are made at once.
        assert!(begun.elapsed() > Duration::from_millis(250), "{reply:?}: {:?}", begun.elapsed());
    }
}

#[test]
fn b085_a_broker_that_does_not_know_the_subscription_gets_a_heartbeat_and_the_pull_again() {
    for code in [24, 25, 26] {
        let peer = cluster(move |request, nth| match (request.code, nth) {
            (11, 0) => Some(Reply::code(code)),
            _ => stored(request, 1),
        });
        let running = run(builder(&peer), |_| Outcome::Done);
        running.next();
        let codes: Vec<i32> = peer.seen().iter().map(|request| request.code).collect();
        let first = codes.iter().position(|at| *at == 11).unwrap();
        let second = codes.iter().skip(first + 1).position(|at| *at == 11).unwrap() + first + 1;
        assert!(codes[first..second].contains(&34), "{codes:?}");
    }
}

#[test]
fn a_broker_that_refuses_heartbeats_or_the_group_is_told_and_asked_again() {
    let peer = cluster(|request, nth| match (request.code, nth) {
        (34, 0..3) => Some(Reply::code(16)),
        (11, 0..3) => Some(Reply::code(26)),
        _ => stored(request, 1),
    });
    let running = run(builder(&peer).timing(|timing| timing.retry = Duration::from_millis(20)), |_| Outcome::Done);
    running.event("heartbeat failed");
    running.event("pull failed");
    running.next();
}

/// Promise 2: whatever the reason is, a queue without answers is told, and so is that it goes on.
#[test]
fn a_queue_that_gets_no_answers_is_told_until_it_does() {
    let silent = Arc::new(AtomicU32::new(1));
    let quiet = Arc::clone(&silent);
    let peer = cluster(move |request, _| (quiet.load(Ordering::SeqCst) == 0).then(|| stored(request, 1)).flatten());
    let settings = builder(&peer).timing(|timing| {
        (timing.hold, timing.pull) = (Duration::from_millis(100), Duration::from_millis(200));
        (timing.watch, timing.pull_retry_most) = (Duration::from_millis(200), Duration::from_millis(100));
    });
    let running = run(settings, |_| Outcome::Done);
    assert!(matches!(running.event("pull failed"), Event::PullFailed { times: 1, .. }), "silence is told at once");
    for _ in 0..2 {
        let event = running.event("no answer");
        let Event::NoAnswer { lasted, .. } = &event else { panic!("{event}") };
        assert!(*lasted >= Duration::from_millis(300), "{event}");
    }
    silent.store(0, Ordering::SeqCst);
    running.next();
    running.event("resumed");
}

/// ... and so is a topic whose members nobody lists.
#[test]
fn an_assignment_that_cannot_be_looked_at_is_told() {
    let peer = cluster(|request, nth| (request.code == 34 && nth > 0).then(|| Reply::code(1)));
    let settings = builder(&peer).rebalance_interval(Duration::from_millis(100)).timing(|timing| {
        timing.request = Duration::from_millis(500);
        (timing.watch, timing.retry) = (Duration::from_millis(100), Duration::from_millis(50));
    });
    let running = run(settings, |_| Outcome::Done);
    running.event("heartbeat failed");
    let event = running.event("not balanced");
    assert!(event.to_string().contains("no broker has listed the members"), "{event}");
}

/// Apache's broker can lose a registration when the group's last other member leaves at the same moment.
#[test]
fn a_broker_that_knows_no_member_gets_a_heartbeat_before_it_is_asked_again() {
    let peer = cluster(|request, nth| match (request.code, nth) {
        (38, 0) => Some(Reply::code(1)),
        _ => stored(request, 1),
    });
    let running = run(builder(&peer).timing(|timing| timing.retry = Duration::from_millis(50)), |_| Outcome::Done);
    running.event("not balanced");
    running.next();
    let codes: Vec<i32> =
        peer.seen().iter().map(|request| request.code).filter(|code| [34, 38].contains(code)).collect();
    assert_eq!(codes[..4], [34, 38, 34, 38], "{codes:?}");
}

/// Two members that subscribe differently take the group's subscription from each other: each refusal answered by a
/// heartbeat and a pull at once would be a storm.
#[test]
fn a_broker_that_goes_on_refusing_is_asked_at_intervals() {
    let mut wrong = Vec::new();
    for (refused, answer) in
        [(11, Reply::code(25)), (38, Reply::code(1)), (38, Reply::with_body(r#"{"consumerIdList":["you"]}"#))]
    {
        let peer = cluster(move |request, _| (request.code == refused).then(|| answer.clone()));
        let settings = builder(&peer).rebalance_interval(Duration::from_millis(100)).timing(|timing| {
            timing.retry = Duration::from_millis(100);
        });
        let running = run(settings, |_| Outcome::Done);
        let begun = Instant::now();
        peer.wait("refusals", |seen| seen.iter().filter(|at| at.code == refused).count() > 20);
        // 50 ms between pulls, 100 ms between questions for the members; the first may come at once.
        let took = begun.elapsed();
        wrong.extend((took < Duration::from_millis(800)).then(|| format!("code {refused}: 20 in {took:?}")));
        drop(running);
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn b145_not_being_listed_keeps_the_queues_and_sends_a_heartbeat() {
    let hide = Arc::new(AtomicU32::new(0));
    let hidden = Arc::clone(&hide);
    let peer = cluster(move |request, _| {
        let hides = hidden.load(Ordering::SeqCst) > 0;
        (request.code == 38 && hides).then(|| Reply::with_body(r#"{"consumerIdList":["somebody"]}"#))
    });
    let settings = builder(&peer).rebalance_interval(Duration::from_millis(50));
    let running = run(settings.timing(|timing| timing.retry = Duration::from_millis(50)), |_| Outcome::Done);
    peer.wait("a pull", |seen| !pulls(seen).is_empty());
    hide.store(1, Ordering::SeqCst);
    running.event("not balanced");
    let beats = peer.seen_of(34).len();
    peer.wait("another heartbeat", |seen| seen.iter().filter(|at| at.code == 34).count() > beats);
    let assigned = running.consumer.assigned().unwrap();
    assert!(assigned.iter().any(|at| &*at.queue.topic == TOPIC && at.waits.is_none()), "{assigned:?}");
}

#[test]
fn d8_a_record_damaged_on_its_way_is_pulled_once_more() {
    let peer = cluster(|request, nth| match (request.code, nth) {
        (11, 0) => {
            let mut body = [record(0, b"m0"), record(1, b"m1"), record(2, b"m2")].concat();
            let at = record(0, b"m0").len() + 88;
            body[at] ^= 1;
            Some(pulled(0, 3, 3, body))
        }
        _ => stored(request, 3),
    });
    let running = run(builder(&peer), |_| Outcome::Done);
    let mut offsets: Vec<i64> = (0..3).map(|_| running.next().0).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, [0, 1, 2]);
    assert_eq!(pulls(&peer.seen())[1], (1, 32));
    assert!(!running.events.try_iter().any(|event| event.name() == "damaged record"));
    peer.wait("everything is committed", |seen| seen.iter().any(|at| at.code == 15 && at.field("commitOffset") == "3"));
}

#[test]
fn d8_a_record_damaged_where_it_is_stored_costs_itself_alone_and_is_told() {
    let peer = cluster(|request, _| {
        if request.code == 11 && request.field("queueOffset") == "1" {
            let mut body = record(1, b"m1");
            body[88] ^= 1;
            return Some(pulled(0, 2, 4, body));
        }
        stored(request, 4)
    });
    let running = run(builder(&peer), |_| Outcome::Done);
    let mut offsets: Vec<i64> = (0..3).map(|_| running.next().0).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, [0, 2, 3]);
    let event = running.event("damaged record");
    let Event::DamagedRecord { offset, physical, size, head, dead_lettered, .. } = &event else { panic!("{event}") };
    assert_eq!(
        (offset.0, *physical, *size, head.len(), *dead_lettered),
        (1, Some(1001), Some(record(1, b"m1").len() as u32), 64, true)
    );
    peer.wait("the dead letter", |seen| {
        seen.iter().any(|at| at.code == 36 && at.field("offset") == "1001" && at.field("delayLevel") == "-1")
    });
    let pulls = pulls(&peer.seen());
    // A pull that was on its way when the damage was seen is dropped.
    let count = |pull| pulls.iter().filter(|at| **at == pull).count();
    assert_eq!(
        (count((1, 32)), count((2, 1)), count((3, 1))),
        (2, 1, 0),
        "one by one until a good one comes: {pulls:?}"
    );
    peer.wait("everything is committed", |seen| seen.iter().any(|at| at.code == 15 && at.field("commitOffset") == "4"));
}

#[test]
fn b125_b127_b137_a_refused_send_back_becomes_a_copy_in_the_retry_topic() {
    let own: Arc<Mutex<Option<std::net::SocketAddr>>> = Arc::default();
    let known = Arc::clone(&own);
    let peer = cluster(move |request, _| match request.code {
        105 => Some(Reply::with_body(route(&[("broker-a", known.lock().unwrap().unwrap(), 1)]))),
        36 => Some(Reply::code(1)),
        310 => Some(Reply::stored(0, "0", 1)),
        _ => stored(request, 1),
    });
    *own.lock().unwrap() = Some(peer.addr());
    let running = run(builder(&peer), |_| Outcome::Retry);
    running.next();
    peer.wait("the copy", |seen| seen.iter().any(|at| at.code == 310));
    let back = &peer.seen_of(36)[0];
    let fields = ["offset", "group", "delayLevel", "originTopic", "maxReconsumeTimes", "originMsgId"];
    assert_eq!(fields.map(|name| back.field(name)), ["1000", "G", "0", TOPIC, "16", "unique-0"]);
    let copy = &peer.seen_of(310)[0];
    assert_eq!(
        (copy.field("b"), copy.field("a"), copy.field("j"), copy.field("l")),
        ("%RETRY%G", "CLIENT_INNER_PRODUCER", "1", "16")
    );
    assert_eq!(copy.body, b"m0");
    let names =
        ["RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "DELAY", "UNIQ_KEY", "TAGS"];
    let want = [TOPIC, "unique-0", "1", "16", "3", "unique-0", "a"].map(Some);
    assert_eq!(names.map(|name| copy.property(name)), want);
    peer.wait("it is committed", |seen| seen.iter().any(|at| at.code == 15 && at.field("commitOffset") == "1"));
}

#[test]
fn b128_b129_a_send_back_without_an_answer_makes_no_copy_and_the_message_comes_again_here() {
    let own: Arc<Mutex<Option<std::net::SocketAddr>>> = Arc::default();
    let known = Arc::clone(&own);
    let peer = cluster(move |request, nth| match (request.code, nth) {
        // The retry topic is there: a copy could be sent.
        (105, _) => Some(Reply::with_body(route(&[("broker-a", known.lock().unwrap().unwrap(), 1)]))),
        (36, 0) => Some(Reply::Silence),
        (310, _) => Some(Reply::stored(0, "0", 1)),
        _ => stored(request, 1),
    });
    *own.lock().unwrap() = Some(peer.addr());
    let settings = builder(&peer).timing(|timing| {
        timing.offset = Duration::from_millis(100);
        timing.local_retry = Duration::from_millis(50);
    });
    let running = run(settings, |call| if call == 1 { Outcome::Retry } else { Outcome::Done });
    assert_eq!(running.next(), (0, 0, b"m0".to_vec()));
    running.event("send-back failed");
    assert_eq!(running.next(), (0, 1, b"m0".to_vec()));
    peer.wait("it is committed", |seen| seen.iter().any(|at| at.code == 15 && at.field("commitOffset") == "1"));
    assert_eq!((peer.seen_of(310).len(), peer.seen_of(36).len()), (0, 1));
}

#[test]
fn b033_a_broker_that_goes_away_is_asked_again_on_a_new_connection() {
    let peer = cluster(|request, nth| match (request.code, nth) {
        (11, 0) => Some(Reply::code(1500)),
        _ => stored(request, 1),
    });
    let running = run(builder(&peer), |_| Outcome::Done);
    running.next();
    let pulls = peer.seen_of(11);
    assert_ne!(pulls[0].connection, pulls[1].connection);
    assert_eq!(pulls[0].field("queueOffset"), pulls[1].field("queueOffset"));
}

#[test]
fn b028_b086_a_lost_connection_is_made_again_and_pulls_go_on_at_once() {
    // Not by what came first: the peer's two connections are served by two threads.
    let lost = Arc::new(AtomicBool::new(false));
    let is_lost = Arc::clone(&lost);
    let peer = cluster(move |request, _| if is_lost.load(Ordering::SeqCst) { stored(request, 1) } else { None });
    let settings = builder(&peer).pull_hold(Duration::from_secs(15), Duration::from_secs(30));
    let running = run(settings, |_| Outcome::Done);
    peer.wait("a held pull", |seen| !pulls(seen).is_empty());
    let begun = Instant::now();
    lost.store(true, Ordering::SeqCst);
    peer.drop_connections();
    running.next();
    // Not only when the held pull is out of time.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    running.event("connection lost");
}

#[test]
fn b030_b142_a_notice_of_changed_members_rebalances_and_unknown_requests_are_refused() {
    let sent = AtomicU32::new(0);
    let peer = cluster(move |request, nth| {
        if request.code != 14 || nth > 0 || sent.fetch_add(1, Ordering::SeqCst) > 0 {
            return None;
        }
        let ask = |code: i32, flag: i32| {
            frame(
                &json!({"code": code, "flag": flag, "language": "JAVA", "opaque": 4711, "version": 479,
                "extFields": {"consumerGroup": "G"}, "serializeTypeCurrentRPC": "JSON"}),
                &[],
            )
        };
        let fields = BTreeMap::from([("offset".to_owned(), "0".to_owned())]);
        Some(Reply::Bytes([ask(40, 2), ask(7777, 0), ask(7778, 2), response(request, 0, None, &fields, &[])].concat()))
    });
    let _running = run(builder(&peer), |_| Outcome::Done);
    peer.wait("an answer", |seen| seen.iter().any(|at| at.flag & 1 != 0));
    let answers: Vec<(i32, i32)> =
        peer.seen().iter().filter(|at| at.flag & 1 != 0).map(|at| (at.code, at.opaque)).collect();
    assert_eq!(answers, [(3, 4711)], "one-way requests are never answered");
    peer.wait("the members again", |seen| seen.iter().filter(|at| at.code == 38).count() >= 2);
}

#[test]
fn c026_b027_one_request_without_an_answer_closes_nothing() {
    let peer = cluster(|request, nth| match (request.code, nth) {
        (14, 0) => Some(Reply::Silence),
        _ => stored(request, 5),
    });
    let settings = builder(&peer).timing(|timing| {
        timing.offset = Duration::from_secs(1);
        timing.retry = Duration::from_millis(50);
    });
    let running = run(settings, |_| Outcome::Done);
    for _ in 0..5 {
        running.next();
    }
    let connections: std::collections::BTreeSet<u32> =
        peer.seen().iter().filter(|at| at.code != 105).map(|at| at.connection).collect();
    assert_eq!(connections.len(), 1, "the name server and the broker are one address here");
}

#[test]
fn c026_a_peer_that_never_answers_is_given_up_after_some_requests() {
    let broker = Peer::start(|_| Reply::Silence);
    let addr = broker.addr();
    let names =
        cluster(move |request, _| (request.code == 105).then(|| Reply::with_body(route(&[("broker-a", addr, 1)]))));
    let settings = builder(&names).request_timeout(Duration::from_millis(60));
    let running = run(settings.timing(|timing| timing.retry = Duration::from_millis(20)), |_| Outcome::Done);
    running.event("connection lost");
    broker.wait("a new connection", |seen| seen.iter().any(|at| at.code == 34 && at.connection > 0));
    let first = broker.seen().iter().filter(|at| at.connection == 0).count();
    assert_eq!(first, 3, "one slow call closes nothing, three in a row do");
}

#[test]
fn b010_of_dead_dead_live_name_servers_the_live_one_is_found() {
    let peer = cluster(|request, _| stored(request, 1));
    let list = [nobody().to_string(), nobody().to_string(), peer.text()];
    let running = run(Client::builder().name_servers(list).workers(2), |_| Outcome::Done);
    running.next();
}

#[test]
fn c027_a_name_server_that_goes_silent_is_left() {
    let silent = Peer::start(|_| Reply::Silence);
    let peer = cluster(|request, _| stored(request, 1));
    let list = [silent.text(), peer.text()];
    let settings = Client::builder().name_servers(list).workers(2).request_timeout(Duration::from_millis(60));
    let settings = settings.timing(|timing| timing.retry = Duration::from_millis(20));
    let running = run(settings, |_| Outcome::Done);
    running.next();
}

#[test]
fn c028_b011_name_servers_can_be_replaced_while_in_use() {
    let (old, new) = (cluster(|request, _| stored(request, 1)), cluster(|_, _| None));
    let settings = builder(&old).route_interval(Duration::from_millis(50));
    let running = run(settings, |_| Outcome::Done);
    running.next();
    running._client.set_name_servers([new.text()]).unwrap();
    new.wait("a route", |seen| seen.iter().any(|at| at.code == 105));
    let before = old.seen_of(105).len();
    new.wait("more routes", |seen| seen.iter().filter(|at| at.code == 105).count() >= 20);
    // One for each topic may have been on its way; a loaded machine reads it late.
    assert!(old.seen_of(105).len() <= before + 2, "the old one is not asked any more");
}

/// C-031: 200 queues with offsets to commit, and their broker comes back at another address while the old one swallows
/// everything. Neither heartbeats nor route look-ups nor pulls wait for what was asked of the old one.
#[test]
fn c031_a_broker_that_moves_is_followed_while_its_old_address_swallows_everything() {
    const QUEUES: i32 = 200;
    let id = Arc::new(Mutex::new(String::new()));
    // One message in every queue at the old address, another one at the new; the old one acknowledges no commit.
    let broker = |offset: i64, moved: Arc<AtomicU32>| {
        let id = Arc::clone(&id);
        Peer::start(move |request| {
            let at = request.field("queueOffset").parse().unwrap_or(-1);
            match request.code {
                _ if moved.load(Ordering::SeqCst) > 0 => Reply::Silence,
                34 => {
                    let body: Value = serde_json::from_slice(&request.body).unwrap();
                    *id.lock().unwrap() = body["clientID"].as_str().unwrap().to_owned();
                    Reply::code(0)
                }
                38 => Reply::with_body(json!({"consumerIdList": [*id.lock().unwrap()]}).to_string()),
                14 => Reply::with_fields(0, [("offset", "0")]),
                15 if offset == 0 => Reply::Silence,
                11 if at == offset => pulled(0, at + 1, at + 1, record(at, b"x")),
                11 => Reply::Silence,
                _ => peer::housekeeping(request),
            }
        })
    };
    let moved = Arc::new(AtomicU32::new(0));
    let (old, new) = (broker(0, Arc::clone(&moved)), broker(1, Arc::default()));
    let (from, to, switch) = (old.addr(), new.addr(), Arc::clone(&moved));
    let names = Peer::start(move |request| match request.code {
        105 if request.field("topic").starts_with('%') => Reply::code(17),
        105 => {
            let addr = if switch.load(Ordering::SeqCst) > 0 { to } else { from };
            Reply::with_body(route(&[("broker-a", addr, QUEUES)]))
        }
        _ => peer::housekeeping(request),
    });
    let settings = Client::builder().name_servers([names.text()]).workers(2);
    let settings = settings.pull_hold(Duration::from_secs(600), Duration::from_secs(1200));
    let settings = settings.route_interval(Duration::from_millis(100)).timing(|timing| {
        timing.offset = Duration::from_secs(2);
    });
    let running = run(settings, |_| Outcome::Done);
    for _ in 0..QUEUES {
        assert_eq!(running.next().0, 0);
    }
    moved.store(1, Ordering::SeqCst);
    for _ in 0..QUEUES {
        assert_eq!(running.next().0, 1);
    }
    new.wait("every offset", |seen| {
        let done = |at: &&peer::Request| at.code == 15 && at.field("topic") == TOPIC && at.field("commitOffset") == "2";
        let queues: std::collections::BTreeSet<&str> = seen.iter().filter(done).map(|at| at.field("queueId")).collect();
        queues.len() == QUEUES as usize
    });
}

#[test]
fn b072_a_full_queue_is_not_pulled_until_its_handlers_make_room() {
    let peer = cluster(|request, _| stored(request, 40));
    let (open, gate) = crossbeam_channel::bounded::<()>(0);
    let client = builder(&peer).build().unwrap();
    let (tell, events) = unbounded();
    let done = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&done);
    let _consumer = client
        .push_consumer("G")
        .subscribe(TOPIC, "*")
        .start_from(StartFrom::First)
        .queue_messages(10)
        .observer(move |event: &Event| {
            let _ = tell.send(event.clone());
        })
        .handler(move |_| {
            let _ = gate.recv();
            count.fetch_add(1, Ordering::SeqCst);
        })
        .start()
        .unwrap();
    let paused = events.iter().find(|event| event.name() == "paused");
    assert!(matches!(paused, Some(Event::Paused { .. })));
    assert_eq!(pulls(&peer.seen()).len(), 11, "at the limit once more, above it not (B-072)");
    drop(open);
    peer.wait("all of it", |seen| seen.iter().any(|at| at.code == 15 && at.field("commitOffset") == "40"));
    assert_eq!(done.load(Ordering::SeqCst), 40);
}

#[test]
fn b246_b007_a_shutdown_with_a_silent_broker_ends_in_its_time_and_says_what_is_missing() {
    let peer = cluster(|request, _| match request.code {
        15 | 35 => Some(Reply::Silence),
        _ => stored(request, 3),
    });
    let running = run(builder(&peer), |_| Outcome::Done);
    for _ in 0..3 {
        running.next();
    }
    let begun = Instant::now();
    let report = running.consumer.shutdown(Duration::from_secs(1));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(report.finished, 3);
    assert!(!report.is_clean() && report.failed_commits.len() == 1, "{report:?}");
}
