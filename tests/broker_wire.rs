//! The broker's promises on the wire, asked by a client written by hand. Names carry the numbers of the broker's
//! checklist.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::time::{Duration, Instant};

use peer::{Caller, Request};
use windlass::TestClock;
use windlass::broker::{Broker, Compat};

const SUSPEND: i32 = 2;
const SUBSCRIPTION: i32 = 4;

fn send_fields<'a>(topic: &'a str, queue: &'a str, properties: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("a", "PG"),
        ("b", topic),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", queue),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "7"),
        ("i", properties),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ]
}

fn send(caller: &mut Caller, topic: &str, queue: i32, properties: &str, body: &[u8]) -> Request {
    let queue = queue.to_string();
    caller.ask(310, &send_fields(topic, &queue, properties), body)
}

fn pull_fields(group: &str, topic: &str, queue: i32, offset: i64, flags: i32, tags: &str) -> Vec<(String, String)> {
    [
        ("consumerGroup", group.to_owned()),
        ("topic", topic.to_owned()),
        ("queueId", queue.to_string()),
        ("queueOffset", offset.to_string()),
        ("maxMsgNums", "32".to_owned()),
        ("sysFlag", flags.to_string()),
        ("commitOffset", "0".to_owned()),
        ("suspendTimeoutMillis", "15000".to_owned()),
        ("subscription", tags.to_owned()),
        ("subVersion", "0".to_owned()),
        ("expressionType", "TAG".to_owned()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

fn borrowed(fields: &[(String, String)]) -> Vec<(&str, &str)> {
    fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

fn pull(caller: &mut Caller, topic: &str, queue: i32, offset: i64, tags: &str) -> Request {
    let fields = pull_fields("G", topic, queue, offset, SUBSCRIPTION, tags);
    caller.ask(11, &borrowed(&fields), b"")
}

fn heartbeat(client: &str, group: &str, topics: &[(&str, &str, i64)]) -> Vec<u8> {
    let subscriptions: Vec<_> = topics
        .iter()
        .map(|(topic, tags, version)| {
            serde_json::json!({"topic": topic, "subString": tags, "subVersion": version, "codeSet": [0], "tagsSet": []})
        })
        .collect();
    serde_json::json!({
        "clientID": client,
        "consumerDataSet": [{"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": subscriptions, "unitMode": false}],
        "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}],
    })
    .to_string()
    .into_bytes()
}

fn json(answer: &Request) -> serde_json::Value {
    serde_json::from_slice(&answer.body).expect("strict JSON")
}

/// Queue offset, body and properties of the records of an answer.
fn records(answer: &Request) -> Vec<(i64, Vec<u8>, String)> {
    let (mut rest, mut found) = (answer.body.as_slice(), Vec::new());
    while !rest.is_empty() {
        let size = i32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
        let (record, after) = rest.split_at(size);
        rest = after;
        let offset = i64::from_be_bytes(record[20..28].try_into().unwrap());
        let body_len = i32::from_be_bytes(record[84..88].try_into().unwrap()) as usize;
        let body = record[88..88 + body_len].to_vec();
        let topic_len = usize::from(record[88 + body_len]);
        let properties = &record[88 + body_len + 1 + topic_len + 2..];
        found.push((offset, body, String::from_utf8(properties.to_vec()).unwrap()));
    }
    found
}

fn topic_of(answer: &Request) -> String {
    let body_len = i32::from_be_bytes(answer.body[84..88].try_into().unwrap()) as usize;
    let topic_len = usize::from(answer.body[88 + body_len]);
    String::from_utf8(answer.body[88 + body_len + 1..][..topic_len].to_vec()).unwrap()
}

/// E-001, E-002, E-015, E-026, E-029, E-046, E-110, E-146.
#[test]
fn a_message_is_sent_and_pulled_in_both_header_forms() {
    let broker = Broker::ephemeral().start().unwrap();
    let other = Broker::ephemeral().start().unwrap();
    assert_ne!(broker.broker_addr(), other.broker_addr());
    for binary in [false, true] {
        let topic = if binary { "binary" } else { "json" };
        let (mut names, mut caller) =
            (Caller::connect(broker.name_server_addr()), Caller::connect(broker.broker_addr()));
        (names.binary, caller.binary) = (binary, binary);
        assert_eq!(names.ask(105, &[("topic", topic)], b"").code, 17);
        assert_eq!(names.ask(105, &[("topic", "TBW102")], b"").code, 0, "E-005");
        let sent = send(&mut caller, topic, 1, "TAGS\u{1}a\u{2}UNIQ_KEY\u{1}K1\u{2}WAIT\u{1}true", b"hello");
        assert_eq!((sent.code, sent.binary, sent.version), (0, binary, 479), "{sent:?}");
        assert_eq!((sent.field("queueId"), sent.field("queueOffset")), ("1", "0"));
        assert_eq!((sent.field("MSG_REGION"), sent.field("TRACE_ON")), ("DefaultRegion", "true"));
        assert_eq!(sent.field("transactionId"), "K1");
        let route = names.ask(105, &[("topic", topic)], b"");
        assert_eq!(json(&route)["queueDatas"][0]["writeQueueNums"], 4);
        assert_eq!(json(&route)["brokerDatas"][0]["brokerAddrs"]["0"], broker.broker_addr().to_string());
        let found = pull(&mut caller, topic, 1, 0, "*");
        assert_eq!((found.code, found.binary, found.remark.as_deref()), (0, binary, Some("FOUND")));
        assert_eq!((found.field("nextBeginOffset"), found.field("minOffset")), ("1", "0"));
        assert_eq!((found.field("maxOffset"), found.field("suggestWhichBrokerId")), ("1", "0"));
        let [(0, body, properties)] = &records(&found)[..] else { panic!("{found:?}") };
        assert_eq!(body, b"hello");
        assert!(properties.contains("CLUSTER\u{1}DefaultCluster\u{2}") && properties.contains("TAGS\u{1}a\u{2}"));
        let seen = caller.ask(33, &[("offset", &physical(&sent).to_string())], b"");
        assert_eq!((seen.code, seen.body == found.body), (0, true), "E-030");
    }
}

fn physical(sent: &Request) -> i64 {
    i64::from_str_radix(&sent.field("msgId")[16..], 16).unwrap()
}

/// E-004, E-008, E-010, E-011, E-145.
#[test]
fn answers_match_their_requests() {
    let broker = Broker::ephemeral().compat(Compat::V4).topic("t", 4).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    let unknown = caller.ask(9_999, &[("any", "thing")], b"body");
    assert_eq!((unknown.code, unknown.version), (3, 399));
    assert_eq!(unknown.remark.as_deref(), Some(" request type 9999 not supported"));
    assert_eq!(caller.ask(105, &[("topic", "t")], b"").code, 3, "the broker's port is not the name server's");
    caller.post(9_999, 2, &[], b"");
    caller.post(310, 2, &send_fields("t", "99", ""), b"one-way and refused");
    let asked: Vec<(i32, &str)> = (0..1000)
        .map(|n| if n % 2 == 0 { ("30", "t") } else { ("31", "t") })
        .map(|(code, topic)| {
            let fields = [("topic", topic), ("queueId", "0"), ("unknown", "field")];
            (caller.post(code.parse().unwrap(), 0, &fields, b""), "0")
        })
        .collect();
    for (opaque, offset) in asked.into_iter().rev() {
        let answer = caller.answer_to(opaque);
        assert_eq!((answer.code, answer.field("offset"), answer.flag), (0, offset, 1));
    }
    assert!(caller.heard.is_empty(), "one-way requests are not answered: {:?}", caller.heard);
}

/// E-017 to E-020, E-023, E-024, E-025, E-148.
#[test]
fn sends_are_refused_by_the_rules_of_the_profile() {
    for (compat, invalid) in [(Compat::V4, 1), (Compat::V5, 29)] {
        let broker = Broker::ephemeral().compat(compat).topic("t", 4).max_message_bytes(2000).start().unwrap();
        let mut caller = Caller::connect(broker.broker_addr());
        assert_eq!(send(&mut caller, "a b", 0, "", b"x").code, invalid);
        assert_eq!(send(&mut caller, &"t".repeat(127), 0, "", b"x").code, 0);
        assert_eq!(send(&mut caller, &"t".repeat(128), 0, "", b"x").code, invalid);
        assert_eq!(send(&mut caller, "SCHEDULE_TOPIC_XXXX", 0, "", b"x").code, 16);
        assert_eq!(send(&mut caller, "rmq_sys_wheel_timer", 0, "", b"x").code, 16);
        assert_eq!(send(&mut caller, "waits", 0, "WAIT\u{1}true\u{2}a\u{1}b\u{2}", b"x").code, 0);
        let stored = records(&pull(&mut caller, "waits", 0, 0, "*"));
        assert!(stored[0].2.starts_with(if compat == Compat::V4 { "a\u{1}b" } else { "WAIT\u{1}true" }), "{stored:?}");
        let half = send(&mut caller, "RMQ_SYS_TRANS_HALF_TOPIC", 0, "", b"x").code;
        assert_eq!(half, if compat == Compat::V4 { 0 } else { 16 });
        let illegal = send(&mut caller, "t", 4, "", b"x");
        assert_eq!((illegal.code, illegal.field("MSG_REGION")), (invalid, "DefaultRegion"));
        let chosen = send(&mut caller, "t", -1, "", b"x");
        assert!(chosen.code == 0 && (0..4).contains(&chosen.field("queueId").parse::<i32>().unwrap()));
        let empty = send(&mut caller, "t", 0, "", b"").code;
        assert_eq!(empty, if compat == Compat::V4 { 0 } else { 1 });
        if compat == Compat::V5 {
            assert_eq!(send(&mut caller, "t", 0, "", &[7; 2000]).code, 0);
            assert_eq!(send(&mut caller, "t", 0, "", &[7; 2001]).code, 13);
        }
        let long = |len: usize| format!("UNIQ_KEY\u{1}u\u{2}p\u{1}{}\u{2}", "v".repeat(len - 14));
        let added = "CLUSTER\u{1}DefaultCluster\u{2}".len()
            + if compat == Compat::V5 { "MSG_REGION\u{1}DefaultRegion\u{2}TRACE_ON\u{1}true\u{2}".len() } else { 0 };
        let body: &[u8] = b"x";
        if compat == Compat::V5 {
            assert_eq!(send(&mut caller, "t", 0, &long(32_767 - added), body).code, 0, "E-024");
        }
        assert_eq!(send(&mut caller, "t", 0, &long(32_767 - added + 1), body).code, 13, "E-024");
    }
    let broker = Broker::ephemeral().auto_create(false).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    assert_eq!(send(&mut caller, "new", 0, "", b"x").code, 17, "E-016");
    let mut names = Caller::connect(broker.name_server_addr());
    assert_eq!(names.ask(105, &[("topic", "new")], b"").code, 17);
    assert_eq!(names.ask(105, &[("topic", "TBW102")], b"").code, 17, "E-005");
    assert_eq!(names.ask(105, &[("topic", "DefaultCluster")], b"").code, 0, "E-006");
    assert_eq!(names.ask(105, &[("topic", "broker-a")], b"").code, 0, "E-006");
}

fn batch(bodies: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for body in bodies {
        let len = 22 + body.len();
        out.extend_from_slice(&(len as u32).to_be_bytes());
        out.extend_from_slice(&[0; 12]);
        out.extend_from_slice(&(body.len() as u32).to_be_bytes());
        out.extend_from_slice(body.as_bytes());
        out.extend_from_slice(&0u16.to_be_bytes());
    }
    out
}

/// E-027, E-028 and rule R4 of the clients: a C++ batch says `1`.
#[test]
fn a_batch_is_stored_whole_or_not_at_all() {
    let broker = Broker::ephemeral().topic("t", 1).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    let sent = caller.ask(320, &send_fields("t", "0", "WAIT\u{1}true"), &batch(&["a", "b", "c"]));
    assert_eq!((sent.code, sent.field("queueOffset"), sent.field("msgId").split(',').count()), (0, "0", 3));
    let mut cpp = send_fields("t", "0", "");
    cpp.retain(|(name, _)| *name != "m");
    cpp.push(("m", "1"));
    assert_eq!(caller.ask(310, &cpp, &batch(&["d", "e"])).field("queueOffset"), "3");
    let bodies: Vec<_> = records(&pull(&mut caller, "t", 0, 0, "*")).into_iter().map(|(_, body, _)| body).collect();
    assert_eq!(bodies, [b"a", b"b", b"c", b"d", b"e"]);
    for properties in ["DELAY\u{1}3\u{2}", "TRAN_MSG\u{1}true\u{2}"] {
        let refused = caller.ask(320, &send_fields("t", "0", properties), &batch(&["f"]));
        assert_eq!(refused.code, 13, "{properties}");
    }
    assert_ne!(caller.ask(320, &send_fields("t", "0", ""), &batch(&["g"])[..20]).code, 0);
    assert_eq!(broker.topic_len("t"), 5);
}

/// E-039, E-041 to E-046, E-049.
#[test]
fn every_state_of_a_queue_has_its_code_and_next_offset() {
    for compat in [Compat::V4, Compat::V5] {
        let broker = Broker::ephemeral().compat(compat).topic("t", 2).start().unwrap();
        let mut caller = Caller::connect(broker.broker_addr());
        let state = |caller: &mut Caller, offset: i64| {
            let answer = pull(caller, "t", 0, offset, "*");
            (answer.code, answer.field("nextBeginOffset").to_owned())
        };
        assert_eq!(state(&mut caller, 0), (19, "0".into()));
        assert_eq!(state(&mut caller, 5), (21, "0".into()), "E-041");
        for n in 0..40 {
            assert_eq!(send(&mut caller, "t", 0, "TAGS\u{1}a\u{2}", format!("{n}").as_bytes()).code, 0);
        }
        assert_eq!(state(&mut caller, 0), (0, "32".into()), "E-044");
        assert_eq!(state(&mut caller, 40), (19, "40".into()), "E-049");
        let back = if compat == Compat::V4 { "0" } else { "40" };
        assert_eq!(state(&mut caller, 41), (21, back.into()), "E-042");
        let none = pull(&mut caller, "t", 0, 0, "b");
        assert_eq!((none.code, none.field("nextBeginOffset")), (20, "40"));
        let invalid = if compat == Compat::V4 { 1 } else { 29 };
        assert_eq!(pull(&mut caller, "t", 2, 0, "*").code, invalid);
        assert_eq!(pull(&mut caller, "t", -1, 0, "*").code, invalid);
        assert_eq!(pull(&mut caller, "unknown", 0, 0, "*").code, 17);
        assert_eq!(pull(&mut caller, "t", 0, 0, "||").code, 23);
        let big = vec![1u8; 200_000];
        for _ in 0..3 {
            assert_eq!(send(&mut caller, "t", 1, "", &big).code, 0);
        }
        assert_eq!(records(&pull(&mut caller, "t", 1, 0, "*")).len(), 1, "E-045");
    }
    let broker = Broker::ephemeral().auto_create_groups(false).topic("t", 1).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    assert_eq!(pull(&mut caller, "t", 0, 0, "*").code, 26, "E-122");
}

/// E-052, E-054, E-055, E-063, E-066 and rule R10: hashes are computed here, never taken from the client.
#[test]
fn the_registered_subscription_filters() {
    let broker = Broker::ephemeral().topic("t", 1).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    let ask = |caller: &mut Caller, version: &str| {
        let mut fields = pull_fields("G", "t", 0, 0, 0, "");
        fields.retain(|(name, _)| name != "subVersion");
        fields.push(("subVersion".into(), version.into()));
        caller.ask(11, &borrowed(&fields), b"")
    };
    assert_eq!(ask(&mut caller, "0").code, 24);
    let beat = caller.ask(34, &[], &heartbeat("c1", "G", &[("t", "Aa || b", 5)]));
    assert_eq!((beat.code, beat.version, beat.field("IS_SUPPORT_HEART_BEAT_V2")), (0, 479, "true"));
    assert_eq!(caller.ask(351, &[("topic", "%RETRY%G")], b"").code, 0, "E-063");
    for tag in ["Aa", "BB", "b", "c"] {
        send(&mut caller, "t", 0, &format!("TAGS\u{1}{tag}\u{2}"), tag.as_bytes());
    }
    assert_eq!(ask(&mut caller, "6").code, 25, "E-052");
    let found: Vec<_> = records(&ask(&mut caller, "5")).into_iter().map(|(_, body, _)| body).collect();
    assert_eq!(found, [b"Aa".to_vec(), b"BB".to_vec(), b"b".to_vec()], "E-054");
    assert_eq!(caller.ask(34, &[], &heartbeat("c1", "G", &[("t", "c", 6)])).code, 0);
    assert_eq!(records(&ask(&mut caller, "6")).len(), 1);
    let mut other = pull_fields("G", "other", 0, 0, 0, "");
    other[1].1 = "%RETRY%G".into();
    assert_eq!(caller.ask(11, &borrowed(&other), b"").code, 24, "no subscription of this topic");
}

/// E-047, E-048, E-050, E-051, E-119.
#[test]
fn a_pull_at_the_end_waits_for_its_message_or_its_time() {
    let clock = TestClock::new();
    let broker = Broker::ephemeral().clock(&clock).topic("t", 1).topic("u", 1).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    let mut sender = Caller::connect(broker.broker_addr());
    let hold_of = |caller: &mut Caller, topic: &str, offset: i64, tags: &str, flags: i32| {
        let mut fields = pull_fields("G", topic, 0, offset, SUSPEND | SUBSCRIPTION | flags, tags);
        fields[6].1 = "3".into();
        caller.post(11, 0, &borrowed(&fields), b"")
    };
    let hold = |caller: &mut Caller, offset: i64, tags: &str, flags: i32| hold_of(caller, "t", offset, tags, flags);
    // The commit on the way is there although the pull waits; beyond the end there is nothing to commit.
    for _ in 0..3 {
        assert_eq!(send(&mut sender, "u", 0, "", b"x").code, 0);
    }
    let committed = |topic| [("consumerGroup", "G"), ("topic", topic), ("queueId", "0")];
    let mut other = Caller::connect(broker.broker_addr());
    hold_of(&mut other, "u", 3, "*", 1);
    assert_eq!(other.ask(14, &committed("u"), b"").field("offset"), "3", "E-051");
    let held = hold(&mut caller, 0, "*", 1);
    assert_eq!(caller.ask(14, &committed("t"), b"").field("offset"), "0");
    assert!(caller.heard.is_empty());
    assert_eq!(send(&mut sender, "t", 0, "TAGS\u{1}a\u{2}", b"1").code, 0);
    let answer = caller.answer_to(held);
    assert_eq!((answer.code, records(&answer).len()), (0, 1));
    let held = hold(&mut caller, 1, "*", 0);
    caller.ask(30, &[("topic", "t"), ("queueId", "0")], b"");
    clock.advance(Duration::from_millis(14_999));
    caller.ask(30, &[("topic", "t"), ("queueId", "0")], b"");
    assert!(caller.heard.is_empty(), "E-048");
    clock.advance(Duration::from_millis(1));
    let answer = caller.answer_to(held);
    assert_eq!((answer.code, answer.field("nextBeginOffset")), (19, "1"));
    let held = hold(&mut caller, 1, "b", 0);
    caller.ask(30, &[("topic", "t"), ("queueId", "0")], b"");
    assert_eq!(send(&mut sender, "t", 0, "TAGS\u{1}a\u{2}", b"2").code, 0);
    caller.ask(30, &[("topic", "t"), ("queueId", "0")], b"");
    assert!(caller.heard.is_empty(), "E-050: held on");
    clock.advance(Duration::from_secs(5));
    let answer = caller.answer_to(held);
    assert_eq!((answer.code, answer.field("nextBeginOffset")), (20, "2"), "E-050");
}

/// E-064, E-065, E-068, E-069, E-150.
#[test]
fn members_hear_of_each_other() {
    let broker = Broker::ephemeral().start().unwrap();
    let mut one = Caller::connect(broker.broker_addr());
    assert_eq!(one.ask(38, &[("consumerGroup", "G")], b"").code, 1);
    let beat = |caller: &mut Caller, id: &str| caller.ask(34, &[], &heartbeat(id, "G", &[("t", "*", 1)])).code;
    assert_eq!(beat(&mut one, "c1"), 0);
    assert_eq!(one.asked(40).field("consumerGroup"), "G", "a member hears of itself");
    let mut two = Caller::connect(broker.broker_addr());
    assert_eq!(beat(&mut two, "c2"), 0);
    for member in [&mut one, &mut two] {
        assert!(member.asked(40).is_oneway());
    }
    let list = json(&one.ask(38, &[("consumerGroup", "G")], b""));
    assert_eq!(list["consumerIdList"], serde_json::json!(["c1", "c2"]));
    assert_eq!(beat(&mut one, "c1"), 0);
    let left = Instant::now();
    drop(two);
    one.asked(40);
    assert!(left.elapsed() < peer::PATIENCE, "E-065");
    assert_eq!(json(&one.ask(38, &[("consumerGroup", "G")], b""))["consumerIdList"], serde_json::json!(["c1"]));
    let leave = [("clientID", "somebody else"), ("producerGroup", ""), ("consumerGroup", "G")];
    assert_eq!(one.ask(35, &leave, b"").code, 0);
    assert_eq!(one.ask(38, &[("consumerGroup", "G")], b"").code, 1, "E-150");
}

/// E-070.
#[test]
fn a_silent_member_is_dropped_and_the_others_hear_of_it() {
    let clock = TestClock::new();
    let broker = Broker::ephemeral().clock(&clock).start().unwrap();
    let mut one = Caller::connect(broker.broker_addr());
    let mut two = Caller::connect(broker.broker_addr());
    assert_eq!(one.ask(34, &[], &heartbeat("c1", "G", &[("t", "*", 1)])).code, 0);
    one.asked(40);
    clock.advance(Duration::from_secs(60));
    assert_eq!(two.ask(34, &[], &heartbeat("c2", "G", &[("t", "*", 1)])).code, 0);
    two.asked(40);
    clock.advance(Duration::from_secs(60));
    two.asked(40);
    let list = json(&two.ask(38, &[("consumerGroup", "G")], b""));
    assert_eq!(list["consumerIdList"], serde_json::json!(["c2"]));
}

/// E-073 to E-076.
#[test]
fn offsets_are_kept_as_they_are_committed() {
    let broker = Broker::ephemeral().topic("t", 1).young_bytes(1_000).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    let query = |caller: &mut Caller, group: &str| {
        caller.ask(14, &[("consumerGroup", group), ("topic", "t"), ("queueId", "0")], b"")
    };
    let young = query(&mut caller, "G");
    assert_eq!((young.code, young.field("offset")), (0, "0"));
    let strict = [("consumerGroup", "G"), ("topic", "t"), ("queueId", "0"), ("setZeroIfNotFound", "false")];
    assert_eq!(caller.ask(14, &strict, b"").code, 22, "E-074");
    let commit = |caller: &mut Caller, group: &str, topic: &str, offset: &str| {
        let fields = [("consumerGroup", group), ("topic", topic), ("queueId", "0"), ("commitOffset", offset)];
        caller.ask(15, &fields, b"").code
    };
    assert_eq!(commit(&mut caller, "G", "t", "5"), 26, "E-076");
    caller.ask(34, &[], &heartbeat("c", "G", &[("t", "*", 1)]));
    assert_eq!(commit(&mut caller, "G", "unknown", "5"), 17, "E-076");
    for _ in 0..5 {
        send(&mut caller, "t", 0, "", b"1");
    }
    assert_eq!((commit(&mut caller, "G", "t", "5"), commit(&mut caller, "G", "t", "3")), (0, 0));
    assert_eq!(query(&mut caller, "G").field("offset"), "3", "E-075");
    for _ in 0..20 {
        send(&mut caller, "t", 0, "", &[1; 200]);
    }
    assert_eq!(query(&mut caller, "new").code, 22, "E-073: aged");
    assert_eq!(query(&mut caller, "G").field("offset"), "3");
}

/// E-060.
#[test]
fn offsets_are_found_by_time() {
    let clock = TestClock::new();
    let broker = Broker::ephemeral().clock(&clock).topic("t", 1).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    let start = 1_700_000_000_000_i64;
    for _ in 0..3 {
        clock.advance(Duration::from_millis(10));
        assert_eq!(send(&mut caller, "t", 0, "", b"x").code, 0);
    }
    let find = |caller: &mut Caller, at: i64, boundary: &str| {
        let (at, topic) = ((start + at).to_string(), "t");
        let fields = [("topic", topic), ("queueId", "0"), ("timestamp", at.as_str()), ("boundaryType", boundary)];
        caller.ask(29, &fields, b"").field("offset").to_owned()
    };
    for (at, lower, upper) in [(5, "0", "0"), (10, "0", "0"), (15, "1", "0"), (20, "1", "1"), (31, "3", "2")] {
        assert_eq!((find(&mut caller, at, "LOWER").as_str(), find(&mut caller, at, "upper").as_str()), (lower, upper));
    }
    let unknown = [("topic", "nowhere"), ("queueId", "0"), ("timestamp", "1")];
    assert_eq!(caller.ask(29, &unknown, b"").field("offset"), "0");
}

/// E-031 to E-036, E-082 to E-084.
#[test]
fn a_failed_message_comes_back_after_its_level_and_ends_as_a_dead_letter() {
    let clock = TestClock::new();
    let broker = Broker::ephemeral().clock(&clock).topic("t", 1).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    caller.ask(34, &[], &heartbeat("c", "G", &[("t", "*", 1)]));
    let sent = send(&mut caller, "t", 0, "UNIQ_KEY\u{1}K\u{2}", b"x");
    let back = |caller: &mut Caller, offset: i64, level: &str, max: &str| {
        let offset = offset.to_string();
        let fields = [("offset", offset.as_str()), ("group", "G"), ("delayLevel", level), ("maxReconsumeTimes", max)];
        caller.ask(36, &fields, b"").code
    };
    assert_eq!(back(&mut caller, 12_345_678, "0", "16"), 1, "E-033");
    assert_eq!(back(&mut caller, physical(&sent), "0", "16"), 0);
    clock.advance(Duration::from_millis(9_999));
    assert_eq!(pull(&mut caller, "%RETRY%G", 0, 0, "*").code, 19, "E-031: level 3 is 10 s");
    clock.advance(Duration::from_millis(1));
    let held = pull_fields("G", "%RETRY%G", 0, 0, SUSPEND | SUBSCRIPTION, "*");
    let first = caller.ask(11, &borrowed(&held), b"");
    let [(0, body, properties)] = &records(&first)[..] else { panic!("{first:?}") };
    assert_eq!(body, b"x");
    for expected in
        ["RETRY_TOPIC\u{1}t\u{2}", "DELAY\u{1}3\u{2}", "REAL_TOPIC\u{1}%RETRY%G\u{2}", "UNIQ_KEY\u{1}K\u{2}"]
    {
        assert!(properties.contains(expected), "{expected:?} in {properties:?}");
    }
    let origin = format!("ORIGIN_MESSAGE_ID\u{1}{}\u{2}", sent.field("msgId"));
    assert!(properties.contains(&origin), "{properties:?}");
    let reconsumed = |answer: &Request| i32::from_be_bytes(answer.body[72..76].try_into().unwrap());
    let place = |answer: &Request| i64::from_be_bytes(answer.body[28..36].try_into().unwrap());
    assert_eq!(reconsumed(&first), 1);
    assert_eq!(back(&mut caller, place(&first), "0", "1"), 0, "E-032");
    let dead = pull(&mut caller, "%DLQ%G", 0, 0, "*");
    assert_eq!((dead.code, reconsumed(&dead), topic_of(&dead).as_str()), (0, 2, "%DLQ%G"));
    let [(0, _, properties)] = &records(&dead)[..] else { panic!("{dead:?}") };
    assert!(properties.contains(&origin) && properties.contains("RETRY_TOPIC\u{1}t\u{2}"), "E-035");
    assert!(!properties.contains("DELAY"), "C-059: dead letters do not wait");
    assert_eq!(back(&mut caller, physical(&sent), "-1", "16"), 0, "E-033");
    assert_eq!(broker.topic_len("%DLQ%G"), 2);
    assert_eq!(json(&caller.ask(351, &[("topic", "%DLQ%G")], b""))["perm"], 6);
    let none = serde_json::json!({"groupName": "N", "retryQueueNums": 0}).to_string();
    assert_eq!(caller.ask(200, &[], none.as_bytes()).code, 0);
    let offset = physical(&sent).to_string();
    let fields = [("offset", offset.as_str()), ("group", "N"), ("delayLevel", "0")];
    assert_eq!(caller.ask(36, &fields, b"").code, 0, "E-036, and the three fields of an old C++ client");
    assert_eq!(broker.topic_len("%RETRY%N"), 0);
}

/// E-082, E-083, E-084 for plain delayed sends.
#[test]
fn a_delayed_message_is_delivered_once_when_it_is_due() {
    let clock = TestClock::new();
    let broker = Broker::ephemeral().clock(&clock).topic("t", 1).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    let delayed = |caller: &mut Caller, level: &str| {
        send(caller, "t", 0, &format!("DELAY\u{1}{level}\u{2}UNIQ_KEY\u{1}U{level}\u{2}"), level.as_bytes()).code
    };
    assert_eq!((delayed(&mut caller, "2"), delayed(&mut caller, "1"), delayed(&mut caller, "19")), (0, 0, 0));
    assert_eq!(delayed(&mut caller, "0"), 0);
    assert_eq!(delayed(&mut caller, "soon"), 1);
    assert_eq!(broker.topic_len("t"), 1, "E-083: level 0 does not wait");
    let expect = |at_ms: u64, bodies: &[&str]| {
        clock.advance(Duration::from_millis(at_ms));
        // Two hours of silence end a connection.
        let mut caller = Caller::connect(broker.broker_addr());
        let until = Instant::now() + peer::PATIENCE;
        while broker.topic_len("t") < bodies.len() as u64 && Instant::now() < until {
            std::thread::yield_now();
        }
        caller.ask(30, &[("topic", "t"), ("queueId", "0")], b"");
        let found = records(&pull(&mut caller, "t", 0, 0, "*"));
        let bodies: Vec<_> = bodies.iter().map(|body| body.as_bytes().to_vec()).collect();
        assert_eq!(found.iter().map(|(_, body, _)| body.clone()).collect::<Vec<_>>(), bodies);
        found
    };
    expect(999, &["0"]);
    let found = expect(1, &["0", "1"]);
    assert!(found[1].2.contains("DELAY\u{1}1\u{2}") && found[1].2.contains("REAL_QID\u{1}0\u{2}"), "{found:?}");
    expect(3_999, &["0", "1"]);
    expect(1, &["0", "1", "2"]);
    expect(7_200_000 - 5_001, &["0", "1", "2"]);
    expect(1, &["0", "1", "2", "19"]);
    expect(7_200_000, &["0", "1", "2", "19"]);
    let mut caller = Caller::connect(broker.broker_addr());
    for _ in 0..3 {
        assert_eq!(delayed(&mut caller, "1"), 0);
    }
    expect(1_000, &["0", "1", "2", "19", "1", "1", "1"]);
}

/// E-097, E-098.
#[test]
fn queues_are_locked_for_one_client_at_a_time() {
    let clock = TestClock::new();
    let broker = Broker::ephemeral().clock(&clock).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    let body = |client: &str| {
        let queues = serde_json::json!([{"brokerName": "broker-a", "queueId": 0, "topic": "t"}]);
        serde_json::json!({"clientId": client, "consumerGroup": "G", "mqSet": queues, "onlyThisBroker": false})
            .to_string()
            .into_bytes()
    };
    let locked = |caller: &mut Caller, client: &str| {
        let answer = caller.ask(41, &[], &body(client));
        assert_eq!(answer.code, 0);
        json(&answer)["lockOKMQSet"].as_array().map_or(0, Vec::len)
    };
    assert_eq!((locked(&mut caller, "a"), locked(&mut caller, "b"), locked(&mut caller, "a")), (1, 0, 1));
    assert_eq!(caller.ask(42, &[], &body("b")).code, 0);
    assert_eq!(locked(&mut caller, "b"), 0, "E-098");
    clock.advance(Duration::from_secs(60));
    assert_eq!(locked(&mut caller, "b"), 1, "E-097: lapsed");
    assert_eq!(caller.ask(42, &[], &body("b")).code, 0);
    assert_eq!(locked(&mut caller, "a"), 1);
}

/// E-107, E-108, E-111, E-113 and the registration of a broker of ours with a name server of ours.
#[test]
fn a_second_broker_joins_and_leaves() {
    let first = Broker::ephemeral().topic("t", 2).start().unwrap();
    let mut names = Caller::connect(first.name_server_addr());
    let route_of = |names: &mut Caller, topic: &str| -> Vec<String> {
        let answer = names.ask(105, &[("topic", topic)], b"");
        if answer.code != 0 {
            return Vec::new();
        }
        let queues = json(&answer)["queueDatas"].as_array().cloned().unwrap_or_default();
        queues.iter().map(|queue| queue["brokerName"].as_str().unwrap().to_owned()).collect()
    };
    let wait = |names: &mut Caller, topic: &str, brokers: &[&str]| {
        let until = Instant::now() + peer::PATIENCE;
        loop {
            let mut found = route_of(names, topic);
            found.sort();
            if found == brokers {
                return;
            }
            assert!(Instant::now() < until, "{topic}: {found:?} is not {brokers:?}");
        }
    };
    assert_eq!(route_of(&mut names, "t"), ["broker-a"]);
    let join = first.name_server_addr().to_string();
    let second = Broker::ephemeral().name("broker-b").topic("t", 4).join(&join).start().unwrap();
    assert_eq!(second.name_server_addr(), first.name_server_addr());
    wait(&mut names, "t", &["broker-a", "broker-b"]);
    let mut caller = Caller::connect(second.broker_addr());
    assert_eq!(send(&mut caller, "made-by-send", 0, "", b"x").code, 0);
    wait(&mut names, "made-by-send", &["broker-b"]);
    let clusters = json(&names.ask(106, &[], b""));
    assert_eq!(clusters["clusterAddrTable"]["DefaultCluster"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        clusters["brokerAddrTable"]["broker-b"]["brokerAddrs"]["0"].as_str(),
        Some(second.broker_addr().to_string().as_str())
    );
    second.shutdown(peer::PATIENCE).unwrap();
    wait(&mut names, "t", &["broker-a"]);
    assert!(route_of(&mut names, "made-by-send").is_empty());
    let any = Broker::ephemeral().listen("0.0.0.0:0").start().unwrap();
    let mut names = Caller::connect(any.name_server_addr());
    let route = json(&names.ask(105, &[("topic", "TBW102")], b""));
    assert_eq!(route["brokerDatas"][0]["brokerAddrs"]["0"], any.broker_addr().to_string(), "E-111");
}

/// Rule of D28: the route of a retry topic makes it.
#[test]
fn a_retry_topic_exists_as_soon_as_its_route_is_asked() {
    let broker = Broker::ephemeral().start().unwrap();
    let mut names = Caller::connect(broker.name_server_addr());
    assert_eq!(names.ask(105, &[("topic", "%RETRY%G")], b"").code, 0);
    assert_eq!(names.ask(105, &[("topic", "%RETRY%")], b"").code, 17);
    assert_eq!(names.ask(105, &[("topic", "%DLQ%G")], b"").code, 17);
}

/// E-013, E-014, E-125, E-126, E-128 and what Apache's tools read.
#[test]
fn tools_make_see_and_delete_topics() {
    let broker = Broker::ephemeral().start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    let make = |caller: &mut Caller, queues: &str| {
        let fields = [
            ("topic", "t"),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", queues),
            ("writeQueueNums", queues),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
        ];
        caller.ask(17, &fields, b"").code
    };
    assert_eq!(make(&mut caller, "8"), 0);
    assert_eq!(send(&mut caller, "t", 7, "", b"x").code, 0);
    assert_eq!((make(&mut caller, "2"), pull(&mut caller, "t", 7, 0, "*").code), (0, 29));
    assert_eq!((make(&mut caller, "8"), pull(&mut caller, "t", 7, 0, "*").code), (0, 0), "E-125");
    let stats = caller.ask(202, &[("topic", "t")], b"");
    let text = String::from_utf8(stats.body).unwrap();
    let seventh = text.find(r#"{"brokerName":"broker-a","queueId":7,"topic":"t"}:"#).expect(&text);
    assert!(text[seventh..].contains("\"maxOffset\":1"), "{text}");
    caller.ask(34, &[], &heartbeat("c", "G", &[("t", "*", 1)]));
    let commit = [("consumerGroup", "G"), ("topic", "t"), ("queueId", "7"), ("commitOffset", "1")];
    assert_eq!(caller.ask(15, &commit, b"").code, 0);
    let stats = String::from_utf8(caller.ask(208, &[("consumerGroup", "G"), ("topic", "t")], b"").body).unwrap();
    assert!(stats.contains("\"brokerOffset\":1,\"consumerOffset\":1"), "{stats}");
    let figures = json(&caller.ask(28, &[], b""));
    for key in ["putTps", "getTransferedTps", "getTransferredTps"] {
        let figure = figures["table"][key].as_str().unwrap();
        assert_eq!(figure.split(' ').count(), 3, "E-012: {key}={figure}");
    }
    let connections = json(&caller.ask(203, &[("consumerGroup", "G")], b""));
    assert_eq!(connections["connectionSet"][0]["clientId"], "c");
    assert_eq!(caller.ask(203, &[("consumerGroup", "nobody")], b"").code, 206);
    assert_eq!(caller.ask(215, &[("topic", "t")], b"").code, 0);
    assert_eq!(pull(&mut caller, "t", 7, 0, "*").code, 17);
    assert_eq!(make(&mut caller, "8"), 0);
    let offset = caller.ask(14, &[("consumerGroup", "G"), ("topic", "t"), ("queueId", "7")], b"");
    assert_eq!((offset.code, offset.field("offset")), (0, "0"), "E-126");
    assert_eq!(pull(&mut caller, "t", 7, 0, "*").code, 19, "E-126");
    for system in ["TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"] {
        assert_eq!(caller.ask(215, &[("topic", system)], b"").code, 29, "{system}");
    }
}

/// E-009, E-106, E-140, E-152.
#[test]
fn bad_bytes_cost_their_own_connection_only() {
    let broker = Broker::ephemeral().topic("t", 1).start().unwrap();
    let mut good = Caller::connect(broker.broker_addr());
    for addr in [broker.broker_addr(), broker.name_server_addr()] {
        for bad in [
            &(16u32 * 1024 * 1024 + 1).to_be_bytes()[..],
            &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3],
            &[0, 0, 0, 6, 9, 0, 0, 0, 1, 2],
            &[0, 0, 0, 8, 0, 0, 0, 4, b'{', b'{', b'{', b'{'],
            &[0, 0, 0, 4, 0, 0xff, 0xff, 0xff],
        ] {
            let mut caller = Caller::connect(addr);
            caller.write(bad).unwrap();
            assert!(caller.hear().is_err(), "{bad:?}");
        }
        let mut caller = Caller::connect(addr);
        caller.write(&[0, 0, 0, 6, 0, 0, 0, 2, b'{', b'}']).unwrap();
        assert_eq!(caller.hear().unwrap().code, 3, "E-152: ten bytes are a frame");
    }
    let mut rng = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..300 {
        let mut bytes = Vec::new();
        for _ in 0..64 {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            bytes.extend_from_slice(&rng.to_le_bytes());
        }
        // Half of them with a length that fits, so that the header is looked at.
        if round % 2 == 0 {
            bytes[..4].copy_from_slice(&508u32.to_be_bytes());
            bytes[4..8].copy_from_slice(&[u8::from(round % 4 == 0), 0, 0, (round % 250) as u8]);
        }
        let mut caller = Caller::connect(if round % 3 == 0 { broker.name_server_addr() } else { broker.broker_addr() });
        let _ = caller.write(&bytes);
        drop(caller);
    }
    for code in 0..420 {
        for body in [&b""[..], b"{", b"{\"a\":[[[", b"\xff\xfe"] {
            let answer = good.ask(code, &[("topic", "t"), ("queueId", "-5"), ("offset", "-1")], body);
            assert_ne!(answer.opaque, 0, "{code}");
        }
    }
    assert_eq!(send(&mut good, "t", 0, "", b"still here").code, 0);
}

/// E-061.
#[test]
fn any_number_may_be_given_for_a_place_in_the_log() {
    let broker = Broker::ephemeral().topic("t", 1).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    let mut places = Vec::new();
    for n in 0..20 {
        places.push(physical(&send(&mut caller, "t", 0, "", format!("body {n}").as_bytes())));
    }
    let end = places.last().unwrap() + 500;
    for at in (-10..end).chain([i64::MIN, i64::MAX, 1 << 40]) {
        let answer = caller.ask(33, &[("offset", &at.to_string())], b"");
        assert_eq!(answer.code == 0, places.contains(&at), "{at}");
    }
}

/// Faults on demand.
#[test]
fn requests_fail_and_answers_are_lost_when_a_test_asks_for_it() {
    use windlass::broker::Op;
    let broker = Broker::ephemeral().topic("t", 1).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    broker.fail_next(Op::Send, 1);
    assert_eq!((send(&mut caller, "t", 0, "", b"x").code, broker.topic_len("t")), (1, 0));
    broker.lose_next(Op::Send, 1);
    let lost = caller.post(310, 0, &send_fields("t", "0", ""), b"x");
    assert_eq!(send(&mut caller, "t", 0, "", b"y").field("queueOffset"), "1");
    assert!(caller.heard.iter().all(|heard| heard.opaque != lost));
}

/// A stop ends connections and frees the ports; a second one does nothing.
#[test]
fn a_stopped_broker_is_gone() {
    let broker = Broker::ephemeral().start().unwrap();
    let addr = broker.broker_addr();
    let mut caller = Caller::connect(addr);
    assert_eq!(caller.ask(28, &[], b"").code, 0);
    broker.shutdown(peer::PATIENCE).unwrap();
    broker.shutdown(peer::PATIENCE).unwrap();
    assert!(caller.hear().is_err());
    drop(broker);
    let again = Broker::ephemeral().listen(addr.to_string()).start().unwrap();
    assert_eq!(again.broker_addr(), addr);
}

/// Settings that cannot be used are named; nothing is started.
#[test]
fn wrong_settings_are_errors_that_name_them() {
    use windlass::StartError;
    let named = |result: Result<Broker, StartError>| match result {
        Err(StartError::Config(error)) => error.field,
        other => panic!("{other:?}"),
    };
    assert_eq!(named(Broker::ephemeral().delay_scale(-1.0).start()), "delay_scale");
    assert_eq!(named(Broker::ephemeral().topic("a b", 1).start()), "topic");
    assert_eq!(named(Broker::ephemeral().topic("t", 0).start()), "topic");
    assert_eq!(named(Broker::ephemeral().name("no blanks").start()), "name");
    assert_eq!(named(Broker::ephemeral().max_message_bytes(1).start()), "max_message_bytes");
    assert_eq!(named(Broker::ephemeral().join("nobody.invalid:1").start()), "join");
}
