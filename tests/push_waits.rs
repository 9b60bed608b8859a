//! What a queue of a push consumer waits for, and what ends it: each wait here has one thing alone that can end it before the
//! test's patience does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use peer::obedient::run;
use peer::queue::{TOPIC, cluster, commits, pulled, pulls, record, stored};
use peer::{PATIENCE, Peer, Reply, Request, response, route};
use serde_json::{Value, json};
use windlass::{Client, ClientBuilder, Event, Outcome, PauseReason};

/// Whatever happens at intervals happens after the test.
fn builder(peer: &Peer) -> ClientBuilder {
    let never = Duration::from_secs(3600);
    let builder = Client::builder().name_servers([peer.text()]).workers(2);
    let builder = builder.route_interval(never).rebalance_interval(never).pull_hold(PATIENCE * 2, PATIENCE * 3);
    builder.timing(|timing| {
        timing.retry = Duration::from_millis(30);
        timing.pull_retry = Duration::from_millis(30);
        timing.local_retry = Duration::from_millis(30);
    })
}

/// B-155: a queue that holds nothing waits for the other queues of its topic, whose handlers ring no bell of its.
#[test]
fn b155_a_queue_that_waits_for_others_of_its_topic_goes_on_when_they_have_room() {
    let own = Arc::new(OnceLock::<SocketAddr>::new());
    let addr = Arc::clone(&own);
    let peer =
        cluster(move |request, _| match (request.code, request.field("queueId"), request.field("queueOffset")) {
            (105, ..) if request.field("topic") == TOPIC => {
                Some(Reply::with_body(route(&[("broker-a", *addr.get()?, 2)])))
            }
            (11, "0", "0") => {
                let body: Vec<u8> = (0..4).flat_map(|at| record(at, b"x")).collect();
                Some(pulled(0, 4, 4, body))
            }
            // The other queue comes to nothing, again and again, until the first one is full.
            (11, "1", _) => Some(pulled(19, 0, 0, Vec::new())),
            _ => None,
        });
    own.set(peer.addr()).unwrap();
    let running =
        run(&builder(&peer).build().unwrap(), |consumer| consumer.topic_messages(2).pull_interval(Duration::ZERO));
    running.next();
    let is_full = |id: i32| {
        let assigned = running.consumer.assigned().unwrap();
        assigned.iter().any(|at| at.queue.id == id && at.waits.as_deref().is_some_and(|why| why.contains("messages")))
    };
    let end = Instant::now() + PATIENCE;
    while !is_full(1) {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    let of_second = |seen: &[Request]| seen.iter().filter(|at| at.code == 11 && at.field("queueId") == "1").count();
    let before = of_second(&peer.seen());
    for _ in 0..4 {
        running.go.send(Outcome::Done).unwrap();
    }
    peer.wait("a pull of the second queue", |seen| of_second(seen) > before);
}

/// A broker that has left a topic's route, but not that of another topic, so that its connection stands and no heartbeat
/// follows when it is back: the route is asked for, and the queue looks for itself.
#[test]
fn a_queue_whose_broker_left_the_route_asks_for_the_route_and_goes_on_when_it_is_back() {
    let own = Arc::new(OnceLock::<SocketAddr>::new());
    let (addr, held, asked) = (Arc::clone(&own), Mutex::new(None::<Request>), AtomicU32::new(0));
    let peer = cluster(move |request, _| match (request.code, request.field("topic"), request.field("queueOffset")) {
        (105, TOPIC, _) => {
            let full = route(&[("broker-a", *addr.get()?, 1)]);
            let mut left: Value = serde_json::from_str(&full).unwrap();
            left["brokerDatas"] = json!([]);
            match asked.fetch_add(1, Ordering::SeqCst) {
                // The pull that was out is answered when its broker has just left.
                1 => {
                    let pull = held.lock().unwrap().take().unwrap();
                    let Reply::Answer { code, fields, body, .. } = pulled(0, 1, 1, record(0, b"first")) else {
                        return None;
                    };
                    let route = response(request, 0, None, &BTreeMap::new(), left.to_string().as_bytes());
                    Some(Reply::Bytes([route, response(&pull, code, None, &fields, &body)].concat()))
                }
                2..5 => Some(Reply::with_body(left.to_string())),
                _ => Some(Reply::with_body(full)),
            }
        }
        (105, "other", _) => Some(Reply::with_body(route(&[("broker-a", *addr.get()?, 1)]))),
        (11, TOPIC, "0") => {
            *held.lock().unwrap() = Some(request.clone());
            None
        }
        (11, TOPIC, _) => stored(request, 2),
        _ => None,
    });
    own.set(peer.addr()).unwrap();
    let client = builder(&peer).build().unwrap();
    let running = run(&client, |consumer| consumer.subscribe("other", "*"));
    peer.wait("the first pull", |seen| !pulls(seen).is_empty());
    client.set_name_servers([peer.text()]).unwrap();
    assert_eq!(running.next(), 0);
    assert!(matches!(running.event("paused"), Event::Paused { why: PauseReason::NoBroker, .. }));
    running.go.send(Outcome::Done).unwrap();
    assert_eq!(running.next(), 1);
    running.event("resumed");
}

/// B-022: an answer may name a slave; a slave that fails is left for the master.
#[test]
fn b022_a_suggested_slave_is_pulled_from_until_it_fails() {
    let (own, slave) = (Arc::new(OnceLock::<SocketAddr>::new()), Arc::new(OnceLock::<SocketAddr>::new()));
    let (addr, second) = (Arc::clone(&own), Arc::clone(&slave));
    let peer = cluster(move |request, _| match (request.code, request.field("queueOffset")) {
        (105, _) if request.field("topic") == TOPIC => {
            let mut data: Value = serde_json::from_str(&route(&[("broker-a", *addr.get()?, 1)])).unwrap();
            data["brokerDatas"][0]["brokerAddrs"]["1"] = second.get()?.to_string().into();
            Some(Reply::with_body(data.to_string()))
        }
        (11, "0") => {
            let Reply::Answer { code, remark, mut fields, body } = pulled(0, 1, 1, record(0, b"master")) else {
                return None;
            };
            fields.insert("suggestWhichBrokerId".into(), "1".into());
            Some(Reply::Answer { code, remark, fields, body })
        }
        (11, "2") => Some(pulled(0, 3, 3, record(2, b"master again"))),
        _ => None,
    });
    let of_slave = Peer::start(|request| match (request.code, request.field("queueOffset")) {
        (11, "1") => {
            let Reply::Answer { code, remark, mut fields, body } = pulled(0, 2, 2, record(1, b"slave")) else {
                return Reply::Silence;
            };
            fields.insert("suggestWhichBrokerId".into(), "1".into());
            Reply::Answer { code, remark, fields, body }
        }
        (11, _) => Reply::code(1),
        _ => peer::housekeeping(request),
    });
    own.set(peer.addr()).unwrap();
    slave.set(of_slave.addr()).unwrap();
    let running = run(&builder(&peer).build().unwrap(), |consumer| consumer);
    for offset in 0..3 {
        assert_eq!(running.next(), offset);
        running.go.send(Outcome::Done).unwrap();
    }
    assert_eq!(pulls(&of_slave.seen()).iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(pulls(&peer.seen()).iter().map(|(at, _)| *at).take(2).collect::<Vec<_>>(), [0, 2]);
}

/// B-086 and its kin: what a refusal means for how soon it is asked again. The group's own delay is far longer.
#[test]
fn a_broker_that_throttles_or_goes_away_is_asked_sooner_than_one_that_fails() {
    for code in [peer_code::FLOW_CONTROL, peer_code::GO_AWAY] {
        let peer = cluster(move |request, nth| match (request.code, nth) {
            (11, 0) => Some(Reply::code(code)),
            _ => stored(request, 1),
        });
        let begun = Instant::now();
        let running =
            run(&builder(&peer).build().unwrap(), |consumer| consumer.pull_retry_delay(Duration::from_secs(5)));
        assert_eq!(running.next(), 0, "{code}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{code}: {:?}", begun.elapsed());
    }
}

mod peer_code {
    pub const FLOW_CONTROL: i32 = 215;
    pub const GO_AWAY: i32 = 1500;
}

/// A pause between pulls lasts as long as it was set, whatever wakes the claim in between.
#[test]
fn b087_a_pause_between_pulls_ends_while_a_handler_keeps_the_queue_looked_after() {
    let peer = cluster(|request, _| stored(request, 3));
    let running = run(&builder(&peer).build().unwrap(), |consumer| consumer.pull_interval(Duration::from_millis(300)));
    // The first message stays in its handler's hand for all of the test.
    let mut offsets: Vec<i64> = (0..2).map(|_| running.next()).collect();
    running.go.send(Outcome::Done).unwrap();
    offsets.push(running.next());
    offsets.sort_unstable();
    assert_eq!(offsets, [0, 1, 2]);
}

/// A handler that never returns: the message is sent back and the queue goes on, though nothing of it rings.
#[test]
fn b134_a_handler_that_does_not_return_is_told_and_its_message_sent_back() {
    let peer = cluster(|request, _| stored(request, 1));
    let running =
        run(&builder(&peer).build().unwrap(), |consumer| consumer.consume_timeout(Duration::from_millis(1000)));
    assert_eq!(running.next(), 0);
    assert!(matches!(running.event("stuck"), Event::Stuck { messages: 1, .. }));
    peer.wait("progress over it", |seen| commits(seen).contains(&1));
    let back = &peer.seen_of(36)[0];
    assert_eq!((back.field("offset"), back.field("delayLevel")), ("1000", "3"));
}

/// Fewer messages than a batch wait for company no longer than they were told to.
#[test]
fn b122_messages_that_wait_for_company_are_delivered_when_their_time_is_over() {
    let peer = cluster(|request, _| stored(request, 2));
    let running = run(&builder(&peer).build().unwrap(), |consumer| consumer.batch(10, Duration::from_millis(400)));
    let begun = Instant::now();
    assert_eq!((running.next(), running.next()), (0, 1));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // Both in one call: one word is enough.
    running.go.send(Outcome::Done).unwrap();
    peer.wait("progress", |seen| commits(seen).contains(&2));
}

/// A message that could not be handed on comes again here, and another one after it too: each at its own time.
#[test]
fn b128_messages_that_cannot_be_handed_on_come_again_here_each_after_its_pause() {
    let peer = cluster(|request, _| match request.code {
        36 | 310 => Some(Reply::code(1)),
        _ => stored(request, 2),
    });
    let running = run(&builder(&peer).build().unwrap(), |consumer| consumer);
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(running.next());
        running.go.send(Outcome::Retry).unwrap();
    }
    for _ in 0..2 {
        seen.push(running.next());
        running.go.send(Outcome::Done).unwrap();
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 0, 1, 1]);
    peer.wait("progress", |seen| commits(seen).contains(&2));
    let _events = &running.events;
}

/// Commits go on, round after round, and what failed is sent again without new progress.
#[test]
fn b043_a_commit_that_failed_is_repeated_without_new_movement() {
    let failing = Arc::new(AtomicBool::new(true));
    let fails = Arc::clone(&failing);
    let peer = cluster(move |request, _| {
        let fails = request.code == 15 && request.field("commitOffset") == "1" && fails.swap(false, Ordering::SeqCst);
        if fails { Some(Reply::code(1)) } else { stored(request, 1) }
    });
    let running = run(&builder(&peer).build().unwrap(), |consumer| consumer);
    assert_eq!(running.next(), 0);
    running.go.send(Outcome::Done).unwrap();
    peer.wait("the commit again", |seen| commits(seen).iter().filter(|at| **at == 1).count() >= 2);
    let commits = Mutex::new(commits(&peer.seen()));
    assert!(commits.lock().unwrap().windows(2).all(|pair| pair[0] <= pair[1]));
}

/// A pull that nobody answers is a reason to ask where the broker is now.
#[test]
fn a_pull_without_an_answer_has_the_route_asked_for() {
    let peer = cluster(|_, _| None);
    let hold = builder(&peer).pull_hold(Duration::from_millis(100), Duration::from_millis(300));
    let _running = run(&hold.build().unwrap(), |consumer| consumer);
    let routes = |seen: &[Request]| seen.iter().filter(|at| at.code == 105 && at.field("topic") == TOPIC).count();
    peer.wait("the route once more", |seen| routes(seen) >= 2);
}

/// D6: a connection that comes up pulls at once, however long the pause after the failure is.
#[test]
fn d6_a_broker_that_is_back_is_pulled_from_at_once() {
    let lost = Arc::new(AtomicBool::new(false));
    let is_lost = Arc::clone(&lost);
    let peer = cluster(move |request, _| if is_lost.load(Ordering::SeqCst) { stored(request, 1) } else { None });
    let slow = builder(&peer).timing(|timing| timing.pull_retry_most = Duration::from_secs(60));
    let running = run(&slow.build().unwrap(), |consumer| consumer.pull_retry_delay(Duration::from_secs(60)));
    peer.wait("a held pull", |seen| !pulls(seen).is_empty());
    lost.store(true, Ordering::SeqCst);
    peer.drop_connections();
    assert_eq!(running.next(), 0);
}

/// What lies below the offset that was asked for has been delivered, whatever else an answer holds.
#[test]
fn b083_messages_below_the_offset_asked_for_are_not_delivered_again() {
    let peer = cluster(|request, _| match (request.code, request.field("queueOffset")) {
        (14, _) => Some(Reply::with_fields(0, [("offset", "5")])),
        (11, "5") => Some(pulled(0, 7, 7, (3..7).flat_map(|at| record(at, b"x")).collect())),
        _ => None,
    });
    let running = run(&builder(&peer).build().unwrap(), |consumer| consumer);
    let mut seen = [running.next(), running.next()];
    seen.sort_unstable();
    let _go = [running.go.send(Outcome::Done), running.go.send(Outcome::Done)];
    peer.wait("progress", |seen| commits(seen).contains(&7));
    assert_eq!((seen, running.seen.try_recv().is_err()), ([5, 6], true));
}

/// D8: a damaged record whose own place cannot be is told, and no other message is buried in its stead.
#[test]
fn d8_a_damaged_record_that_names_another_place_is_told_and_buries_nothing() {
    let peer = cluster(|request, _| match (request.code, request.field("queueOffset")) {
        (11, "0") => {
            let mut body = record(900, b"m0");
            body[88] ^= 1;
            Some(pulled(0, 1, 2, body))
        }
        _ => stored(request, 2),
    });
    let running = run(&builder(&peer).build().unwrap(), |consumer| consumer);
    let told = running.event("damaged record");
    assert!(
        matches!(&told, Event::DamagedRecord { offset, physical: None, dead_lettered: false, .. } if offset.0 == 0),
        "{told:?}"
    );
    assert_eq!(running.next(), 1);
    assert!(peer.seen_of(36).is_empty());
}

/// A commit that fails is told each time that it did not before.
#[test]
fn a_commit_that_fails_again_after_it_went_well_is_told_again() {
    let failed = AtomicU32::new(0);
    let peer = cluster(move |request, _| {
        // 1 fails once, then 2 does.
        let at = request.field("commitOffset").parse().unwrap_or(0);
        let fails = request.code == 15 && failed.load(Ordering::SeqCst) + 1 == at;
        if fails {
            failed.fetch_add(1, Ordering::SeqCst);
            return Some(Reply::code(1));
        }
        stored(request, 2)
    });
    let running = run(&builder(&peer).build().unwrap(), |consumer| consumer.pull_interval(Duration::from_secs(2)));
    for offset in 0..2 {
        assert_eq!(running.next(), offset);
        running.go.send(Outcome::Done).unwrap();
        let told = running.event("commit failed");
        assert!(matches!(&told, Event::CommitFailed { offset: at, times: 1, .. } if at.0 == offset + 1), "{told:?}");
        peer.wait("the commit", |seen| commits(seen).iter().filter(|at| **at == offset + 1).count() >= 2);
    }
}

/// A broker that no route names for a while, and that still holds a pull when one does again, is not connected to a second
/// time: it would list the client twice, and members that ask different brokers would not agree on who has what.
#[test]
fn a_broker_that_comes_back_into_the_route_has_its_connection_back() {
    let broker = cluster(|_, _| None);
    let here = broker.addr();
    let gone = Arc::new(AtomicBool::new(false));
    let is_gone = Arc::clone(&gone);
    let names = Peer::start(move |request| match request.field("topic") {
        // Without a broker nobody can be asked who is in the group: all queues stay with whoever has them.
        TOPIC if is_gone.load(Ordering::SeqCst) => Reply::with_body("{}"),
        TOPIC => Reply::with_body(route(&[("broker-a", here, 1)])),
        _ => Reply::code(17),
    });
    let client = builder(&names).route_interval(Duration::from_millis(50)).build().unwrap();
    let _running = run(&client, |consumer| consumer);
    broker.wait("a pull", |seen| !pulls(seen).is_empty());
    let asked = |seen: &[Request]| seen.iter().filter(|request| request.field("topic") == TOPIC).count();
    let before = asked(&names.seen());
    gone.store(true, Ordering::SeqCst);
    // One of them may have been answered before, the next is asked when the answer without a broker has been taken in.
    names.wait("three questions", |seen| asked(seen) >= before + 3);
    let before = broker.seen_of(34).len();
    gone.store(false, Ordering::SeqCst);
    broker.wait("a heartbeat", |seen| seen.iter().filter(|request| request.code == 34).count() > before);
    assert_eq!(broker.connections(), 1);
}
