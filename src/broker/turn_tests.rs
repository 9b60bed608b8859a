//! When the dispatcher wants its next turn and what a turn does: on a clock that stands still, so that a turn that is
//! wanted too late, or not at all, is seen.

use std::sync::Arc;
use std::time::Duration;

use super::groups::GroupSettings;
use super::names::routes::{Identity, Registration};
use super::session::{Delivery, Session};
use super::settings::Settings;
use super::store::Flush;
use super::tests::Node;
use super::topics::{PERM_READ, Topic, Version};
use crate::disk::FaultyDisk;
use crate::model::Queue;
use crate::wire::json;
use crate::wire::remoting::codes::{answer, pull_flag};
use crate::wire::remoting::command::Language;
use crate::wire::remoting::group::HeartbeatBody;
use crate::wire::remoting::pull::PullRequest;
use crate::wire::remoting::record::{Check, Record};
use crate::wire::remoting::send::SendBackRequest;

fn node(flush: Flush) -> Node {
    let node = Node::new(&FaultyDisk::new(), flush, Settings::default());
    node.dispatcher.put_topic(Topic::new("t", 1, 6)).unwrap();
    node.pass(Duration::ZERO);
    node
}

/// After how many milliseconds the next turn is wanted.
fn wanted(node: &Node) -> u64 {
    node.dispatcher.wanted().since(node.dispatcher.clock().now()).as_millis() as u64
}

/// Holds a pull of everything, or of a tag, for so long.
fn hold(node: &mut Node, session: &Arc<Session>, tags: &str, ms: i64) {
    let request = node.pull_request("t", node.dispatcher.queue_bounds("t", 0).1, pull_flag::SUSPEND);
    let request = PullRequest { suspend_ms: ms, subscription: Some(tags.to_owned().into()), ..request };
    let (ticket, mut outbox) = (node.ticket(), Vec::new());
    let pulled = node.dispatcher.pull(session, ticket, &request, &mut outbox).unwrap();
    assert!(matches!(pulled, super::pull::Pulled::Held) && outbox.is_empty());
}

/// How many messages each answer to a held pull has brought.
fn answers(node: &Node) -> Vec<usize> {
    let frames = |delivery| if let Delivery::Pulled { reply, .. } = delivery { Some(reply.frames.len()) } else { None };
    node.heard.try_iter().filter_map(frames).collect()
}

fn another_session(node: &Node) -> Arc<Session> {
    let Session { peer, local, ref outlet, .. } = *node.session;
    Arc::new(Session { id: node.dispatcher.session_id(), peer, local, outlet: outlet.clone() })
}

fn back(offset: i64, level: i32) -> SendBackRequest<'static> {
    SendBackRequest {
        offset,
        group: "g".into(),
        delay_level: level,
        origin_msg_id: None,
        origin_topic: None,
        unit_mode: false,
        max_reconsume_times: None,
        broker_name: None,
    }
}

#[test]
fn the_next_turn_is_wanted_when_something_ends() {
    let mut node = node(Flush::Async);
    assert_eq!(wanted(&node), 10_000, "the look for the silent");
    let session = node.session.clone();
    hold(&mut node, &session, "a", 60_000);
    assert_eq!(wanted(&node), 10_000);
    node.send("t", "TAGS\u{1}b\u{2}", b"x").unwrap();
    assert_eq!(wanted(&node), 5_000, "a pull that was passed over");
    hold(&mut node, &session, "*", 4_000);
    assert_eq!(wanted(&node), 4_000, "the end of a pull");
    node.send("t", "DELAY\u{1}1\u{2}", b"x").unwrap();
    assert_eq!(wanted(&node), 1_000, "a delayed message");
    node.turn();
    assert_eq!(wanted(&node), 1_000);
    node.pass(Duration::from_millis(999));
    assert_eq!((wanted(&node), answers(&node)), (1, vec![]));
}

#[test]
fn offsets_that_change_again_after_a_save_are_saved_again() {
    let node = node(Flush::Async);
    node.send("t", "", b"x").unwrap();
    node.pass(Duration::from_secs(9));
    node.pass(Duration::from_secs(1));
    for _ in 0..3 {
        assert!(wanted(&node) > 5_000, "{}", wanted(&node));
        node.dispatcher.note_commit("g", "t", 0, 1);
        assert_eq!(wanted(&node), 5_000);
        node.pass(Duration::from_secs(5));
        node.pass(Duration::from_millis(wanted(&node)));
    }
}

#[test]
fn a_send_that_waits_for_the_disk_wants_a_turn_for_its_end() {
    let mut node = node(Flush::Sync);
    let sent = node.send("t", "", b"x").unwrap();
    let ticket = node.ticket();
    assert!(node.dispatcher.wait_for_disk(&node.session, ticket, &sent));
    node.turn();
    assert_eq!(wanted(&node), 5_000);
    // A connection that has ended hears no more of it.
    let other = another_session(&node);
    let ticket = node.ticket();
    assert!(node.dispatcher.wait_for_disk(&other, ticket, &sent));
    let mut outbox = Vec::new();
    node.dispatcher.closed(other.id, &mut outbox);
    node.hand_on(&mut outbox);
    node.dispatcher.store().flush_step().unwrap();
    node.turn();
    assert_eq!(node.heard.try_iter().count(), 1);
}

#[test]
fn a_queue_is_watched_while_anybody_waits_for_it() {
    let mut node = node(Flush::Async);
    let (first, second) = (node.session.clone(), another_session(&node));
    hold(&mut node, &first, "*", 1_000);
    hold(&mut node, &second, "*", 60_000);
    node.pass(Duration::from_secs(1));
    assert_eq!(answers(&node), [0]);
    node.send("t", "", b"x").unwrap();
    assert_eq!(answers(&node), [1]);
}

/// What ends a delay is seen by who waits for it in the same turn.
#[test]
fn a_delayed_message_answers_the_pull_that_waits_for_it_in_its_turn() {
    for flush in [Flush::Async, Flush::Sync] {
        let mut node = node(flush);
        for _ in 0..2 {
            node.send("t", "DELAY\u{1}1\u{2}", b"x").unwrap();
        }
        let flushed = |node: &Node| flush == Flush::Async || node.dispatcher.store().flush_step().is_ok();
        assert!(flushed(&node));
        node.turn();
        assert_eq!(wanted(&node), 1_000, "{flush:?}");
        let session = node.session.clone();
        hold(&mut node, &session, "*", 60_000);
        node.clock.advance(Duration::from_secs(1));
        node.turn();
        assert!(flushed(&node));
        if flush == Flush::Sync {
            node.turn();
        }
        assert_eq!(answers(&node), [2], "{flush:?}");
    }
}

/// With synchronous flushing a level has its head once the disk has it: nothing else looks for it.
#[test]
fn a_level_finds_its_head_when_the_disk_has_it() {
    let node = node(Flush::Sync);
    for seconds in [0, 4] {
        node.pass(Duration::from_secs(seconds));
        node.send("t", "DELAY\u{1}1\u{2}", b"x").unwrap();
        // Its time comes before the disk has it: it is looked at again and again until then.
        node.pass(Duration::from_secs(1));
        assert!(wanted(&node) <= 100, "{}", wanted(&node));
        node.dispatcher.store().flush_step().unwrap();
        node.pass(Duration::from_millis(100));
        node.dispatcher.store().flush_step().unwrap();
        node.turn();
    }
    assert_eq!(node.dispatcher.queue_bounds("t", 0).1, 2);
}

/// ... also one behind a head that is delivered before the disk has it: only the queue that grows tells of it.
#[test]
fn a_message_behind_a_delivered_head_is_found_when_the_disk_has_it() {
    let node = node(Flush::Sync);
    node.send("t", "DELAY\u{1}1\u{2}", b"x").unwrap();
    node.dispatcher.store().flush_step().unwrap();
    node.send("t", "DELAY\u{1}1\u{2}", b"y").unwrap();
    node.pass(Duration::from_secs(1));
    node.dispatcher.store().flush_step().unwrap();
    assert_eq!(node.dispatcher.queue_bounds("t", 0).1, 1);
    node.pass(Duration::ZERO);
    node.dispatcher.store().flush_step().unwrap();
    assert_eq!(node.dispatcher.queue_bounds("t", 0).1, 2);
}

#[test]
fn lapsed_locks_are_forgotten_without_anybody_asking() {
    let node = node(Flush::Async);
    node.dispatcher.lock("g", "c", vec![Queue::new("t", "b", 0)]);
    let held = |node: &Node| format!("{:?}", *node.dispatcher.locks.lock()).contains("\"g\"");
    node.pass(Duration::from_secs(50));
    assert!(held(&node));
    node.pass(Duration::from_secs(10));
    assert!(!held(&node));
}

/// A name server drops a broker that is silent, and one whose connection has ended, without being asked.
#[test]
fn brokers_that_are_gone_are_in_no_route() {
    let node = node(Flush::Async);
    let other = another_session(&node);
    let registered = |topic: &str| node.dispatcher.route(&node.session, topic).is_ok();
    let register = |name: &str, session: &Session| {
        let who = Identity { cluster: "C".into(), broker: name.into(), id: 0, addr: format!("{name}:1") };
        let (version, topics) = (Version::default(), vec![Topic::new(name, 1, 6)]);
        let registration = Registration { who, timeout: None, acting_master: false, version, topics };
        node.dispatcher.register_broker(session, registration);
    };
    register("silent", &node.session);
    register("closed", &other);
    assert!(registered("silent") && registered("closed"));
    node.dispatcher.closed(other.id, &mut Vec::new());
    assert!(registered("silent") && !registered("closed"));
    for _ in 0..13 {
        node.pass(Duration::from_secs(10));
    }
    assert!(!registered("silent"));
}

/// E-123: a group that does not want to know is told nothing, its neighbours are.
#[test]
fn a_group_that_does_not_want_to_know_is_told_of_no_members() {
    let node = node(Flush::Async);
    node.dispatcher.put_group(GroupSettings { notify: false, ..GroupSettings::new("quiet") }).unwrap();
    for group in ["quiet", "g"] {
        let heartbeat = format!(
            r#"{{"clientID":"c","consumerDataSet":[{{"groupName":"{group}","consumeType":"CONSUME_PASSIVELY",
            "messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[
            {{"topic":"t","subString":"*","subVersion":1}}]}}],"producerDataSet":[]}}"#
        );
        let heartbeat: HeartbeatBody = json::read("heartbeat", heartbeat.as_bytes()).unwrap();
        let mut outbox = Vec::new();
        node.dispatcher.heartbeat(&node.session, (Language::JAVA, 479), &heartbeat, &mut outbox);
        node.hand_on(&mut outbox);
    }
    let told: Vec<Delivery> = node.heard.try_iter().collect();
    assert!(matches!(&told[..], [Delivery::MembersChanged { group }] if **group == *"g"), "{told:?}");
}

/// E-033, E-123: where a message that failed goes is the group's to say, and who waits there is told at once.
#[test]
fn a_message_that_comes_back_goes_where_its_group_says() {
    let mut node = node(Flush::Async);
    let at = node.send("t", "", b"x").unwrap().reply.physical;
    let send_back = |node: &Node, offset, level| {
        let mut outbox = Vec::new();
        let done = node.dispatcher.send_back(node.from(), &back(offset, level), &mut outbox);
        node.hand_on(&mut outbox);
        done
    };
    // Nobody redelivers in a group without retry queues: it is taken and dropped.
    node.dispatcher.put_group(GroupSettings { retry_queues: 0, ..GroupSettings::new("g") }).unwrap();
    assert_eq!(send_back(&node, at, 1), Ok(0));
    assert!(node.dispatcher.topics.lock().find("%RETRY%g").is_none());
    node.dispatcher.put_group(GroupSettings::new("g")).unwrap();
    assert!(send_back(&node, at, 1).unwrap() > 0);
    node.pass(Duration::from_secs(1));
    let pulled = node.pull("%RETRY%g", 0, 0).unwrap().unwrap();
    let first = Record::read(pulled.frames[0].bytes(), Check::Crc).unwrap();
    let origin = |record: &Record, frame: &[u8]| {
        let properties = record.properties(frame);
        let named = |name: &str| properties.iter().filter(|(known, _)| *known == name.as_bytes()).count();
        assert_eq!((named("ORIGIN_MESSAGE_ID"), named("RETRY_TOPIC")), (1, 1));
        properties.find("ORIGIN_MESSAGE_ID").unwrap().to_owned()
    };
    let id = origin(&first, pulled.frames[0].bytes());
    // Once more, as a dead letter, for which somebody waits.
    node.dispatcher.put_topic(Topic::new("%DLQ%g", 1, 6)).unwrap();
    assert!(node.pull("%DLQ%g", 0, pull_flag::SUSPEND).unwrap().is_none(), "held");
    send_back(&node, first.physical_offset, -1).unwrap();
    let Ok(Delivery::Pulled { reply, .. }) = node.heard.try_recv() else { panic!("woken at once") };
    let second = Record::read(reply.frames[0].bytes(), Check::Crc).unwrap();
    assert_eq!(origin(&second, reply.frames[0].bytes()), id, "what it was first");
    node.dispatcher.put_topic(Topic::new("%RETRY%g", 1, PERM_READ)).unwrap();
    assert_eq!(send_back(&node, at, 1).unwrap_err().code, answer::NO_PERMISSION);
}
