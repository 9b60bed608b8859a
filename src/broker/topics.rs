//! The topics of a broker: which exist, with how many queues; which are built in; how one is made by a send.
//!
//! Sends, pulls, routes and tools ask it under rank 1. It holds no messages and does no I/O: `state.rs` saves it.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/topic/TopicConfigManager.java

use std::collections::HashMap;
use std::sync::Arc;

use super::settings::Compat;
use crate::model::SortedMap;
use crate::model::names;
use crate::wire::remoting::topics::{DataVersion, TopicConfigBody};

/// Inherit: automatic creation copies this topic.
pub const PERM_INHERIT: i32 = 1;
/// Clients may write.
pub const PERM_WRITE: i32 = 2;
/// Clients may read.
pub const PERM_READ: i32 = 4;
/// Queues of the automatic template.
pub const TEMPLATE_QUEUES: i32 = 8;
/// Most queues a topic may have: a peer's number never sizes more than this.
pub const MOST_QUEUES: i32 = 65_536;

/// One topic.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Topic {
    /// Its name.
    pub name: Arc<str>,
    /// Queues that may be read.
    pub read_queues: i32,
    /// Queues that may be written.
    pub write_queues: i32,
    /// Sum of the `PERM_` bits. Clients obey it when they choose queues; a broker does not check writes.
    pub perm: i32,
    /// Messages may carry several tags.
    pub multi_tag: bool,
    /// Bits of the field `topicSysFlag`.
    pub sys_flag: i32,
    /// The topic keeps a fixed set of queues even while a broker is away.
    pub order: bool,
    /// Attributes of 5.x, sorted.
    pub attributes: SortedMap<String, String>,
}

impl Topic {
    /// A topic with as many queues for reading as for writing.
    pub fn new(name: impl Into<Arc<str>>, queues: i32, perm: i32) -> Self {
        Self {
            name: name.into(),
            read_queues: queues,
            write_queues: queues,
            perm,
            multi_tag: false,
            sys_flag: 0,
            order: false,
            attributes: SortedMap::new(),
        }
    }
}

/// Which state of a table this is; grows with every change.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Version {
    /// Unix milliseconds of the last change.
    pub timestamp: i64,
    /// Number of changes.
    pub counter: i64,
}

impl Version {
    /// One change further.
    pub fn step(&mut self, now_ms: i64) {
        self.timestamp = now_ms;
        self.counter += 1;
    }
}

impl From<Version> for DataVersion {
    fn from(version: Version) -> Self {
        Self { counter: version.counter, state_version: Some(0), timestamp: version.timestamp }
    }
}

impl From<DataVersion> for Version {
    fn from(version: DataVersion) -> Self {
        Self { timestamp: version.timestamp, counter: version.counter }
    }
}

impl From<&Topic> for TopicConfigBody {
    fn from(topic: &Topic) -> Self {
        Self {
            attributes: Some(topic.attributes.clone()),
            order: topic.order,
            perm: topic.perm,
            read_queue_nums: topic.read_queues,
            topic_filter_type: Some(if topic.multi_tag { "MULTI_TAG" } else { "SINGLE_TAG" }.to_owned()),
            topic_name: Some(topic.name.to_string()),
            topic_sys_flag: topic.sys_flag,
            write_queue_nums: topic.write_queues,
        }
    }
}

impl Topic {
    /// A topic as a file or another broker names it; `name` is the key it stands under.
    pub fn from_body(name: &str, body: TopicConfigBody) -> Self {
        Self {
            name: name.into(),
            read_queues: body.read_queue_nums,
            write_queues: body.write_queue_nums,
            perm: body.perm,
            multi_tag: body.topic_filter_type.as_deref() == Some("MULTI_TAG"),
            sys_flag: body.topic_sys_flag,
            order: body.order,
            attributes: body.attributes.unwrap_or_default(),
        }
    }
}

/// The broker's own names, which are topics too.
#[derive(Clone, Copy, Debug)]
pub struct OwnNames<'a> {
    /// Cluster name.
    pub cluster: &'a str,
    /// Broker name.
    pub broker: &'a str,
}

/// All topics of a broker.
#[derive(Debug, Default)]
pub struct Topics {
    table: HashMap<Arc<str>, Arc<Topic>>,
    version: Version,
}

impl Topics {
    /// The topics every broker starts with.
    pub fn built_in(own: OwnNames<'_>, auto_create: bool) -> Self {
        let mut topics = Self::default();
        let (cluster, broker) = (own.cluster, own.broker);
        let rw = PERM_READ | PERM_WRITE;
        let mut add = |name: &str, queues: i32, perm: i32| topics.put(Topic::new(name, queues, perm));
        add(names::SELF_TEST_TOPIC, 1, rw);
        if auto_create {
            add(names::AUTO_CREATE_TOPIC, TEMPLATE_QUEUES, rw | PERM_INHERIT);
        }
        add("BenchmarkTest", 1024, rw);
        add(cluster, 16, rw | PERM_INHERIT);
        add(broker, 1, rw | PERM_INHERIT);
        add(names::OFFSET_MOVED_EVENT, 1, rw);
        add(names::SCHEDULE_TOPIC, 18, rw);
        add(&format!("{cluster}_REPLY_TOPIC"), 1, rw);
        add(names::HALF_TOPIC, 1, rw);
        add(names::OP_HALF_TOPIC, 1, rw);
        topics
    }

    /// A topic by name.
    pub fn find(&self, name: &str) -> Option<&Arc<Topic>> {
        self.table.get(name)
    }

    /// All topics, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.table.values()
    }

    /// Which state this is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Adds or replaces without a change of version: for loading.
    pub fn put(&mut self, topic: Topic) {
        self.table.insert(topic.name.clone(), Arc::new(topic));
    }

    /// Takes the version a file had.
    pub fn restore_version(&mut self, version: Version) {
        self.version = version;
    }

    /// Creates or replaces (code 17): wholesale, and fewer queues hide messages without deleting them.
    pub fn change(&mut self, topic: Topic, now_ms: i64) -> Arc<Topic> {
        let topic = Arc::new(topic);
        self.table.insert(topic.name.clone(), topic.clone());
        self.version.step(now_ms);
        topic
    }

    /// Deletes (code 215). `None` if there was none.
    pub fn delete(&mut self, name: &str, now_ms: i64) -> Option<Arc<Topic>> {
        let was = self.table.remove(name);
        if was.is_some() {
            self.version.step(now_ms);
        }
        was
    }

    /// Takes a deletion back, unless the topic has been made anew meanwhile.
    pub fn restore(&mut self, topic: Arc<Topic>) {
        self.table.entry(topic.name.clone()).or_insert(topic);
    }

    /// The topic of a send that found none: a copy of the template the sender names, if that may be inherited. A
    /// number of queues from the sender is taken if it is the smaller one.
    pub fn create_by_send(&mut self, name: &str, template: &str, queues: i32, now_ms: i64) -> Option<Arc<Topic>> {
        if let Some(topic) = self.find(name) {
            return Some(topic.clone());
        }
        let template = self.find(template).filter(|topic| topic.perm & PERM_INHERIT != 0)?;
        let queues = queues.min(template.write_queues).max(0);
        let topic = Topic { multi_tag: template.multi_tag, ..Topic::new(name, queues, template.perm & !PERM_INHERIT) };
        Some(self.change(topic, now_ms))
    }

    /// A retry or dead-letter topic: made when missing, `queues` wide, readable and writable. The number is a peer's or a
    /// file's, and tools walk over all queues: it is held to what a topic may have.
    pub fn create_for_group(&mut self, name: &str, queues: i32, now_ms: i64) -> Arc<Topic> {
        if let Some(topic) = self.find(name) {
            return topic.clone();
        }
        self.change(Topic::new(name, queues.clamp(1, MOST_QUEUES), PERM_READ | PERM_WRITE), now_ms)
    }
}

/// True for topics that belong to the broker: nobody may create or delete them.
pub fn is_system(name: &str, own: OwnNames<'_>) -> bool {
    matches!(
        name,
        names::AUTO_CREATE_TOPIC
            | names::SCHEDULE_TOPIC
            | names::HALF_TOPIC
            | names::OP_HALF_TOPIC
            | names::CHECK_MAX_TIME_TOPIC
            | names::SELF_TEST_TOPIC
            | names::OFFSET_MOVED_EVENT
            | "BenchmarkTest"
            | "RMQ_SYS_TRACE_TOPIC"
    ) || name.starts_with("rmq_sys_")
        || name == own.cluster
        || name == own.broker
        || name.strip_suffix("_REPLY_TOPIC").is_some_and(|cluster| cluster == own.cluster)
}

/// True for topics a client may not send to (answer 16): a plain message there would wedge what reads them. The timer
/// topic is refused in both profiles, which Apache's brokers forget: one message there stops their timers for good.
pub fn is_closed_to_sends(name: &str, compat: Compat) -> bool {
    match name {
        names::SCHEDULE_TOPIC | names::TIMER_TOPIC => true,
        names::HALF_TOPIC
        | names::OP_HALF_TOPIC
        | names::CHECK_MAX_TIME_TOPIC
        | names::SELF_TEST_TOPIC
        | names::OFFSET_MOVED_EVENT => compat == Compat::V5,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: OwnNames<'static> = OwnNames { cluster: "DefaultCluster", broker: "broker-a" };

    /// E-121.
    #[test]
    fn a_fresh_broker_has_the_topics_that_clients_and_tools_ask_for() {
        let topics = Topics::built_in(OWN, true);
        for (name, queues, perm) in [
            ("SELF_TEST_TOPIC", 1, 6),
            ("TBW102", 8, 7),
            ("BenchmarkTest", 1024, 6),
            ("DefaultCluster", 16, 7),
            ("broker-a", 1, 7),
            ("OFFSET_MOVED_EVENT", 1, 6),
            (names::SCHEDULE_TOPIC, 18, 6),
            ("DefaultCluster_REPLY_TOPIC", 1, 6),
        ] {
            let topic = topics.find(name).unwrap();
            assert_eq!((topic.read_queues, topic.write_queues, topic.perm), (queues, queues, perm), "{name}");
            assert!(is_system(name, OWN), "{name}");
        }
        assert!(Topics::built_in(OWN, false).find("TBW102").is_none(), "E-005");
    }

    /// E-015, E-016.
    #[test]
    fn a_send_makes_a_topic_from_a_template_that_may_be_inherited() {
        let mut topics = Topics::built_in(OWN, true);
        let four = topics.create_by_send("a", "TBW102", 4, 5).unwrap();
        assert_eq!((four.read_queues, four.write_queues, four.perm), (4, 4, 6));
        assert_eq!(topics.create_by_send("b", "TBW102", 99, 5).unwrap().write_queues, 8);
        assert_eq!(topics.create_by_send("c", "TBW102", -3, 5).unwrap().write_queues, 0);
        assert!(topics.create_by_send("d", "SELF_TEST_TOPIC", 4, 5).is_none(), "not to be inherited");
        assert!(topics.create_by_send("d", "nowhere", 4, 5).is_none());
        assert_eq!(topics.version(), Version { timestamp: 5, counter: 3 });
        assert!(Topics::built_in(OWN, false).create_by_send("a", "TBW102", 4, 0).is_none());
    }

    /// E-125.
    #[test]
    fn a_topic_is_replaced_wholesale() {
        let mut topics = Topics::default();
        topics.change(Topic::new("t", 8, 6), 1);
        topics.change(Topic { read_queues: 4, ..Topic::new("t", 2, 4) }, 2);
        let topic = topics.find("t").unwrap();
        assert_eq!((topic.read_queues, topic.write_queues, topic.perm), (4, 2, 4));
        assert!(topics.delete("t", 3).is_some() && topics.delete("t", 4).is_none());
        assert_eq!(topics.version(), Version { timestamp: 3, counter: 3 });
    }

    /// E-019, E-148.
    #[test]
    fn sends_to_topics_of_the_broker_are_refused_by_profile() {
        for compat in [Compat::V4, Compat::V5] {
            assert!(is_closed_to_sends(names::SCHEDULE_TOPIC, compat));
            assert!(is_closed_to_sends("rmq_sys_wheel_timer", compat));
            assert!(!is_closed_to_sends("TBW102", compat) && !is_closed_to_sends("t", compat));
            assert_eq!(is_closed_to_sends("RMQ_SYS_TRANS_HALF_TOPIC", compat), compat == Compat::V5);
        }
    }
}
