//! Promises of the broker that need no socket: what tools and odd members meet, and what outlives a start.

use std::sync::Arc;
use std::time::Duration;

use super::groups::GroupSettings;
use super::settings::{Compat, Settings};
use super::store::{Flush, Options};
use super::tests::Node;
use super::topics::{MOST_QUEUES, PERM_READ, Topic};
use crate::disk::{Disk, FaultyDisk};
use crate::model::Queue;
use crate::wire::json;
use crate::wire::remoting::batch;
use crate::wire::remoting::codes::{answer, pull_flag};
use crate::wire::remoting::command::Language;
use crate::wire::remoting::group::HeartbeatBody;
use crate::wire::remoting::pull::PullRequest;

fn profiles(test: impl Fn(Compat, Node)) {
    for compat in [Compat::V4, Compat::V5] {
        test(compat, Node::new(&FaultyDisk::new(), Flush::Async, Settings { compat, ..Settings::default() }));
    }
}

/// E-007.
#[test]
fn a_route_is_strict_json_with_the_master_under_0() {
    profiles(|compat, node| {
        node.send("t", "", b"x").unwrap();
        let bytes = json::to_vec(&node.dispatcher.route(&node.session, "t").unwrap());
        let route: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let brokers = route["brokerDatas"][0]["brokerAddrs"].as_object().unwrap();
        assert_eq!(brokers.keys().collect::<Vec<_>>(), ["0"], "{compat:?}");
        assert_eq!(route["queueDatas"][0]["perm"], 6);
    });
}

/// E-021.
#[test]
fn a_topic_that_may_not_be_written_takes_a_send_all_the_same() {
    profiles(|compat, mut node| {
        node.dispatcher.put_topic(Topic::new("t", 1, PERM_READ)).unwrap();
        assert_eq!(node.send("t", "", b"x").unwrap().reply.code, answer::SUCCESS, "{compat:?}");
        assert_eq!(node.bodies("t"), [b"x"]);
    });
}

/// E-040, E-041, E-042: where a pull outside of the queue is sent.
#[test]
fn a_pull_outside_of_its_queue_is_sent_to_it() {
    profiles(|compat, mut node| {
        node.dispatcher.put_topic(Topic::new("empty", 1, 6)).unwrap();
        let outcome = |node: &mut Node, topic: &str, offset: i64| {
            node.pull(topic, offset, 0).unwrap().map(|reply| (reply.code, reply.next))
        };
        assert_eq!(outcome(&mut node, "empty", 0), Some((answer::PULL_NOT_FOUND, 0)), "{compat:?}");
        assert_eq!(outcome(&mut node, "empty", 5), Some((answer::PULL_OFFSET_MOVED, 0)), "{compat:?}");
        for _ in 0..3 {
            node.send("t", "", b"x").unwrap();
        }
        assert_eq!(outcome(&mut node, "t", 0), Some((answer::SUCCESS, 3)));
        assert_eq!(outcome(&mut node, "t", 3), Some((answer::PULL_NOT_FOUND, 3)));
        let beyond = if compat == Compat::V4 { 0 } else { 3 };
        assert_eq!(outcome(&mut node, "t", 9), Some((answer::PULL_OFFSET_MOVED, beyond)), "{compat:?}");
    });
}

/// E-043.
#[test]
fn a_pull_below_what_is_kept_is_sent_to_the_first_message() {
    let options = Options::durable().segments(4096, 4096).retain_segments(2);
    let mut node = Node::over(&FaultyDisk::new(), options, Settings::default());
    for _ in 0..60 {
        node.send("t", "", &[7; 300]).unwrap();
        node.dispatcher.store().flush_step().unwrap();
        node.dispatcher.store().segment_step(0);
    }
    let (min, _) = node.dispatcher.queue_bounds("t", 0);
    assert!(min > 20, "{min}");
    for offset in [0, min - 1] {
        let reply = node.pull("t", offset, 0).unwrap().unwrap();
        assert_eq!((reply.code, reply.next, reply.min), (answer::PULL_OFFSET_MOVED, min, min));
    }
}

/// E-053, E-124: a pull that brings its subscription needs no heartbeat; one that does not is refused for a member that
/// broadcasts where the group may not.
#[test]
fn a_group_that_may_not_broadcast_is_refused_unless_the_pull_says_what_it_wants() {
    profiles(|compat, mut node| {
        node.send("t", "", b"x").unwrap();
        assert_eq!(node.pull("t", 0, 0).unwrap().map(|reply| reply.code), Some(answer::SUCCESS), "{compat:?} E-053");
        let settings = GroupSettings { broadcast_enable: false, ..GroupSettings::new("g") };
        node.dispatcher.put_group(settings).unwrap();
        let heartbeat = br#"{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY",
            "messageModel":"BROADCASTING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[
            {"topic":"t","subString":"*","subVersion":1}]}],"producerDataSet":[]}"#;
        let heartbeat: HeartbeatBody = json::read("heartbeat", heartbeat).unwrap();
        node.dispatcher.heartbeat(&node.session, (Language::JAVA, 479), &heartbeat, &mut Vec::new());
        let pull = PullRequest { subscription: None, ..node.pull_request("t", 0, 0) };
        let pull = PullRequest { sys_flag: pull.sys_flag & !pull_flag::SUBSCRIPTION, ..pull };
        let ticket = node.ticket();
        let refused = node.dispatcher.pull(&node.session, ticket, &pull, &mut Vec::new()).map(drop);
        assert_eq!(refused.unwrap_err().code, answer::NO_PERMISSION, "{compat:?} E-124");
    });
}

/// E-099.
#[test]
fn locks_end_with_the_broker_that_gave_them() {
    let disk = FaultyDisk::new();
    let node = Node::plain(&disk);
    let queues = || vec![Queue::new("t", "broker-a", 0)];
    assert_eq!(node.dispatcher.lock("g", "first", queues()).len(), 1);
    assert_eq!(node.dispatcher.lock("g", "second", queues()).len(), 0);
    node.pass(Duration::from_secs(5));
    let after = Node::plain(&disk.after_kill());
    assert_eq!(after.dispatcher.lock("g", "second", queues()).len(), 1);
    assert_eq!(after.dispatcher.lock("g", "first", queues()).len(), 0);
}

/// E-127: the state files have the members that Apache's loaders look for, in strict JSON.
#[test]
fn state_files_have_the_shape_of_apaches() {
    let disk = FaultyDisk::new();
    let node = Node::plain(&disk);
    node.dispatcher.put_topic(Topic::new("orders", 4, 6)).unwrap();
    node.dispatcher.put_group(GroupSettings { retry_max: 3, ..GroupSettings::new("g") }).unwrap();
    node.send("orders", "", b"x").unwrap();
    node.dispatcher.note_commit("g", "orders", 0, 1);
    node.pass(Duration::from_secs(10));
    let read = |name: &str| -> serde_json::Value { serde_json::from_slice(&disk.read(name).unwrap()).unwrap() };
    let topics = read("config/topics.json");
    let orders = &topics["topicConfigTable"]["orders"];
    assert_eq!((&orders["topicName"], &orders["perm"]), (&"orders".into(), &6.into()));
    assert_eq!((&orders["readQueueNums"], &orders["writeQueueNums"]), (&4.into(), &4.into()));
    assert_eq!((&orders["topicFilterType"], &orders["order"]), (&"SINGLE_TAG".into(), &false.into()));
    assert!(topics["dataVersion"]["counter"].is_i64() && topics["dataVersion"]["timestamp"].is_i64());
    let group = &read("config/subscriptionGroup.json")["subscriptionGroupTable"]["g"];
    assert_eq!((&group["groupName"], &group["retryMaxTimes"]), (&"g".into(), &3.into()));
    assert_eq!((&group["consumeEnable"], &group["retryQueueNums"]), (&true.into(), &1.into()));
    assert_eq!(read("config/consumerOffset.json")["offsetTable"]["orders@g"]["0"], 1);
}

/// E-149.
#[test]
fn one_topic_is_described_to_tools() {
    profiles(|_, node| {
        node.dispatcher.put_topic(Topic::new("orders", 4, 6)).unwrap();
        assert_eq!(node.dispatcher.topic("orders").map(|topic| topic.read_queues), Ok(4));
        assert_eq!(node.dispatcher.topic("none").unwrap_err().code, answer::TOPIC_NOT_EXIST);
    });
}

/// E-133: the age of a segment is that of its messages; a copied directory is no younger.
#[test]
fn messages_are_kept_by_their_own_age() {
    let options = || Options::durable().segments(4096, 4096).retain_for(Duration::from_secs(3600));
    let disk = FaultyDisk::new();
    let node = Node::over(&disk, options(), Settings::default());
    let stored_ms = node.clock.clock().wall_ms();
    for _ in 0..60 {
        node.send("t", "", &[7; 300]).unwrap();
    }
    let store = node.dispatcher.store();
    store.flush_step().unwrap();
    store.segment_step(stored_ms);
    assert_eq!(node.dispatcher.queue_bounds("t", 0).0, 0);
    let copy = Arc::new(disk.after_kill());
    for (age_ms, gone) in [(3_599_000, false), (3_601_000, true)] {
        let copy: Arc<dyn Disk> = Arc::new(copy.after_kill());
        let watch = Arc::new(super::store::Unwatched);
        let (store, _) = super::store::Store::open(copy, options(), stored_ms + age_ms, watch).unwrap();
        store.segment_step(stored_ms + age_ms);
        assert_eq!(store.log_min() > 0, gone, "{age_ms} ms old");
    }
}

/// Values of the name server outlive it, as those of Apache's do; a deleted one stays deleted.
#[test]
fn values_of_the_name_server_outlive_it() {
    let disk = FaultyDisk::new();
    let node = Node::plain(&disk);
    for (key, value) in [("orders", "broker-a:4"), ("gone", "x"), ("quoted \"", "\u{e9}\n")] {
        node.dispatcher.put_value("ORDER_TOPIC_CONFIG", key, value);
    }
    node.dispatcher.delete_value("ORDER_TOPIC_CONFIG", "gone");
    let after = Node::plain(&disk.after_kill());
    let value = |key: &str| after.dispatcher.value("ORDER_TOPIC_CONFIG", key).ok();
    assert_eq!((value("orders"), value("gone")), (Some("broker-a:4".to_owned()), None));
    assert_eq!(value("quoted \""), Some("\u{e9}\n".to_owned()));
    let file: serde_json::Value = serde_json::from_slice(&disk.read("config/kvConfig.json").unwrap()).unwrap();
    assert_eq!(file["configTable"]["ORDER_TOPIC_CONFIG"]["orders"], "broker-a:4", "Apache's shape");
}

/// S-10: what the disk has kept once is there after a power cut, however often the file was written since.
#[test]
fn s_10_a_power_cut_between_changes_of_state_files_costs_nothing_that_was_synced() {
    let mut cut = 0;
    for seed in 0..80 {
        let disk = FaultyDisk::new();
        let node = Node::plain(&disk);
        node.dispatcher.put_topic(Topic::new("first", 4, 6)).unwrap();
        node.dispatcher.put_group(GroupSettings { retry_max: 3, ..GroupSettings::new("g") }).unwrap();
        node.dispatcher.sync_state();
        assert!(!node.dispatcher.is_unsynced());
        for topic in ["second", "third", "fourth"] {
            node.dispatcher.put_topic(Topic::new(topic, 4, 6)).unwrap();
        }
        assert!(node.dispatcher.is_unsynced());
        let after = Node::plain(&disk.after_power_cut(seed));
        assert!(after.dispatcher.topic("first").is_ok(), "seed {seed}");
        assert_eq!(after.dispatcher.known_group("g").map(|group| group.retry_max), Ok(3), "seed {seed}");
        cut += u32::from(after.dispatcher.topic("fourth").is_err());
    }
    assert!(cut > 10, "{cut}");
}

/// S-10: topics that many threads make at once are all in the file.
#[test]
fn s_10_changes_of_many_threads_are_all_saved() {
    let disk = FaultyDisk::new();
    let node = Node::plain(&disk);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let dispatcher = &node.dispatcher;
            scope.spawn(move || {
                for number in 0..20 {
                    dispatcher.put_topic(Topic::new(format!("t-{thread}-{number}"), 1, 6)).unwrap();
                }
            });
        }
    });
    let after = Node::plain(&disk.after_kill());
    for (thread, number) in (0..6).flat_map(|thread| (0..20).map(move |number| (thread, number))) {
        assert!(after.dispatcher.topic(&format!("t-{thread}-{number}")).is_ok(), "{thread} {number}");
    }
}

/// A number of a peer must not become a walk over two thousand million queues: tools walk over all of a topic's.
#[test]
fn a_retry_topic_is_never_wider_than_a_topic_may_be() {
    profiles(|compat, node| {
        let wide = || GroupSettings { retry_queues: i32::MAX, ..GroupSettings::new("g") };
        let refused = node.dispatcher.put_group(wide()).unwrap_err();
        assert_eq!(refused.code, compat.invalid_parameter());
        // Nor one that a state file speaks of.
        node.dispatcher.groups.lock().put(wide());
        node.dispatcher.retry_topic_on_demand("%RETRY%g").unwrap();
        assert_eq!(node.dispatcher.topic("%RETRY%g").unwrap().read_queues, MOST_QUEUES, "{compat:?}");
    });
}

/// What a heartbeat costs grows with its length: it writes no file for each of its groups.
#[test]
fn a_heartbeat_of_many_groups_writes_each_file_once() {
    let disk = FaultyDisk::new();
    let node = Node::plain(&disk);
    let groups: Vec<String> = (0..500)
        .map(|group| {
            format!(
                r#"{{"groupName":"g{group}","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",
                "consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[]}}"#
            )
        })
        .collect();
    let body = format!(r#"{{"clientID":"c","consumerDataSet":[{}],"producerDataSet":[]}}"#, groups.join(","));
    let heartbeat: HeartbeatBody = json::read("heartbeat", body.as_bytes()).unwrap();
    let before = disk.calls();
    node.dispatcher.heartbeat(&node.session, (Language::JAVA, 479), &heartbeat, &mut Vec::new());
    let calls = disk.calls() - before;
    assert!(calls <= 10, "{calls} calls");
    let after = Node::plain(&disk.after_kill());
    for group in ["g0", "g499"] {
        assert!(after.dispatcher.groups.lock().find(group).is_some(), "{group} outlives the process");
        assert!(after.dispatcher.topic(&format!("%RETRY%{group}")).is_ok());
    }
}

/// Each entry of a batch gets the batch's own properties: a few kilobytes of a peer's must not become gigabytes here.
#[test]
fn a_batch_whose_properties_would_outgrow_it_is_refused() {
    profiles(|compat, node| {
        let mut body = Vec::new();
        for _ in 0..2000 {
            batch::push(&mut body, &batch::Entry { flag: 0, body: b"x", properties: b"" }).unwrap();
        }
        let send = |envelope: usize| {
            let properties = format!("a\u{1}{}\u{2}", "v".repeat(envelope));
            node.send_batch("t", &properties, &body)
        };
        assert_eq!(send(30_000).unwrap_err().code, answer::MESSAGE_ILLEGAL, "{compat:?}");
        assert_eq!(send(10).unwrap().reply.more.len(), 1999, "{compat:?}");
    });
}
