//! What other brokers have registered: topics, addresses, versions, and how long each is believed.
//!
//! The name server's conversations (`names/mod.rs`) call it under rank 1. The broker of the same process is not in it:
//! its routes are read from its live tables.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 namesrv/src/main/java/org/apache/rocketmq/namesrv/routeinfo/RouteInfoManager.java

use std::collections::HashMap;
use std::time::Duration;

use crate::broker::session::SessionId;
use crate::broker::topics::{PERM_READ, PERM_WRITE, Topic, Version};
use crate::model::SortedMap;
use crate::work::clock::Nanos;

/// A broker that has not been heard of for this long is gone, unless it named another time.
pub const BELIEVED: Duration = Duration::from_secs(120);

/// Who a broker is.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Identity {
    /// Cluster name.
    pub cluster: String,
    /// Broker name.
    pub broker: String,
    /// 0: master.
    pub id: i64,
    /// `host:port` that clients connect to.
    pub addr: String,
}

/// Queues of a topic on one broker.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Queues {
    /// Queues that may be read.
    pub read: i32,
    /// Queues that may be written.
    pub write: i32,
    /// Permission bits.
    pub perm: i32,
    /// The topic's system flag.
    pub sys_flag: i32,
}

impl From<&Topic> for Queues {
    fn from(topic: &Topic) -> Self {
        Self { read: topic.read_queues, write: topic.write_queues, perm: topic.perm, sys_flag: topic.sys_flag }
    }
}

/// Addresses of the brokers of one name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Addresses {
    /// Cluster name.
    pub cluster: String,
    /// By broker id.
    pub addrs: SortedMap<i64, String>,
    /// A slave may act as master.
    pub acting_master: bool,
}

/// A registration (code 103).
#[derive(Clone, Debug)]
pub struct Registration {
    /// Who.
    pub who: Identity,
    /// How long it asks to be believed; `None`: [`BELIEVED`].
    pub timeout: Option<Duration>,
    /// A slave may act as master.
    pub acting_master: bool,
    /// State of its topic table.
    pub version: Version,
    /// Its topics: all, or only those that changed.
    pub topics: Vec<Topic>,
}

/// Everything that is registered.
#[derive(Debug, Default)]
pub struct Routes {
    topics: SortedMap<String, SortedMap<String, Queues>>,
    brokers: SortedMap<String, Addresses>,
    live: HashMap<Identity, Live>,
}

#[derive(Debug)]
struct Live {
    session: SessionId,
    seen: Nanos,
    timeout: Duration,
    version: Version,
}

impl Routes {
    /// Takes a registration. Topics are merged, never replaced: a broker may send only what has changed.
    pub fn register(&mut self, registration: Registration, session: SessionId, now: Nanos) {
        let Registration { who, timeout, acting_master, version, topics } = registration;
        let known = self.live.get(&who).map(|live| live.version);
        self.forget_other_ids(&who);
        let addresses = self.brokers.get_or_insert_with(who.broker.clone(), || Addresses {
            cluster: who.cluster.clone(),
            addrs: SortedMap::new(),
            acting_master,
        });
        addresses.cluster.clone_from(&who.cluster);
        addresses.acting_master = acting_master;
        addresses.addrs.insert(who.id, who.addr.clone());
        if who.id == 0 && known != Some(version) {
            for topic in &topics {
                let brokers = self.topics.get_or_default(topic.name.to_string());
                brokers.insert(who.broker.clone(), Queues::from(topic));
            }
        }
        let timeout = timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(BELIEVED);
        self.live.insert(who, Live { session, seen: now, timeout, version });
    }

    /// A broker that comes back under its address with another id, or as the same id elsewhere, is one broker.
    fn forget_other_ids(&mut self, who: &Identity) {
        self.live.retain(|other, _| {
            other == who || other.broker != who.broker || (other.id != who.id && other.addr != who.addr)
        });
        if let Some(addresses) = self.brokers.get_mut(&who.broker) {
            addresses.addrs.retain(|id, addr| *id == who.id || *addr != who.addr);
        }
    }

    /// Ends a registration (code 104).
    pub fn unregister(&mut self, who: &Identity) {
        self.live.remove(who);
        let Some(addresses) = self.brokers.get_mut(&who.broker) else { return };
        if addresses.addrs.get(&who.id) == Some(&who.addr) {
            addresses.addrs.remove(&who.id);
        }
        if addresses.addrs.is_empty() {
            self.brokers.remove(&who.broker);
            self.topics.retain(|_, brokers| {
                brokers.remove(&who.broker);
                !brokers.is_empty()
            });
        }
    }

    /// Compares versions (code 322): the one we have, if any, and whether the broker must register again. An unchanged
    /// one counts as a sign of life.
    pub fn version(&mut self, who: &Identity, theirs: Version, now: Nanos) -> (bool, Option<Version>) {
        let Some(live) = self.live.get_mut(who) else { return (true, None) };
        let changed = live.version != theirs;
        if !changed {
            live.seen = now;
        }
        (changed, Some(live.version))
    }

    /// A broker's connection is gone, so it is gone.
    pub fn closed(&mut self, session: SessionId) {
        self.drop_where(|live| live.session == session);
    }

    /// Drops brokers that have been silent too long.
    pub fn sweep(&mut self, now: Nanos) {
        self.drop_where(|live| now >= live.seen + live.timeout);
    }

    fn drop_where(&mut self, gone: impl Fn(&Live) -> bool) {
        let gone: Vec<Identity> = self.live.iter().filter(|(_, live)| gone(live)).map(|(who, _)| who.clone()).collect();
        for who in gone {
            self.unregister(&who);
        }
    }

    /// Deletes a topic (code 216), everywhere or in one cluster.
    pub fn delete_topic(&mut self, topic: &str, cluster: Option<&str>) {
        let Some(queues) = self.topics.get_mut(topic) else { return };
        match cluster {
            None => queues.clear(),
            Some(cluster) => {
                queues.retain(|broker, _| self.brokers.get(broker).is_none_or(|addresses| addresses.cluster != cluster))
            }
        }
        if queues.is_empty() {
            self.topics.remove(topic);
        }
    }

    /// Queues of a topic by broker name.
    pub fn topic(&self, topic: &str) -> impl Iterator<Item = (&str, Queues)> {
        self.topics.get(topic).into_iter().flatten().map(|(broker, queues)| (broker.as_str(), *queues))
    }

    /// All topics.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.keys().map(String::as_str)
    }

    /// All brokers by name.
    pub fn brokers(&self) -> impl Iterator<Item = (&str, &Addresses)> {
        self.brokers.iter().map(|(name, addresses)| (name.as_str(), addresses))
    }

    /// One broker.
    pub fn broker(&self, name: &str) -> Option<&Addresses> {
        self.brokers.get(name)
    }

    /// Takes (code 205) or gives back (327) the write permission of a broker's queues; how many there were.
    pub fn write_perm(&mut self, broker: &str, write: bool) -> i32 {
        let mut count = 0;
        for queues in self.topics.values_mut().filter_map(|brokers| brokers.get_mut(broker)) {
            queues.perm = if write { PERM_READ | PERM_WRITE } else { queues.perm & !PERM_WRITE };
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(broker: &str, addr: &str) -> Identity {
        Identity { cluster: "c".into(), broker: broker.into(), id: 0, addr: addr.into() }
    }

    fn registration(broker: &str, addr: &str, topics: &[&str], counter: i64) -> Registration {
        Registration {
            who: who(broker, addr),
            timeout: None,
            acting_master: false,
            version: Version { timestamp: 1, counter },
            topics: topics.iter().map(|name| Topic::new(*name, 4, 6)).collect(),
        }
    }

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    /// E-107, E-108.
    #[test]
    fn two_brokers_share_a_topic_and_one_leaves_with_its_connection() {
        let mut routes = Routes::default();
        routes.register(registration("a", "h:1", &["t", "u"], 1), SessionId(1), at(0));
        routes.register(registration("b", "h:2", &["t"], 1), SessionId(2), at(0));
        assert_eq!(routes.topic("t").map(|(broker, _)| broker).collect::<Vec<_>>(), ["a", "b"]);
        routes.closed(SessionId(1));
        assert_eq!(routes.topic("t").map(|(broker, _)| broker).collect::<Vec<_>>(), ["b"]);
        assert_eq!((routes.topic("u").count(), routes.brokers().count()), (0, 1));
    }

    #[test]
    fn a_registration_of_one_topic_leaves_the_others() {
        let mut routes = Routes::default();
        routes.register(registration("a", "h:1", &["t", "u"], 1), SessionId(1), at(0));
        routes.register(registration("a", "h:1", &["v"], 2), SessionId(1), at(1));
        assert_eq!(routes.topics().collect::<Vec<_>>(), ["t", "u", "v"]);
        routes.register(registration("a", "h:1", &["w"], 2), SessionId(1), at(1));
        assert_eq!(routes.topics().count(), 3, "the same version is not read again");
    }

    /// E-115.
    #[test]
    fn an_unchanged_version_is_a_sign_of_life() {
        let mut routes = Routes::default();
        let (a, one) = (who("a", "h:1"), Version { timestamp: 1, counter: 1 });
        assert_eq!(routes.version(&a, one, at(0)), (true, None));
        routes.register(registration("a", "h:1", &["t"], 1), SessionId(1), at(0));
        assert_eq!(routes.version(&a, Version { timestamp: 1, counter: 2 }, at(100)), (true, Some(one)));
        assert_eq!(routes.version(&a, one, at(100)), (false, Some(one)));
        routes.sweep(at(219));
        assert_eq!(routes.brokers().count(), 1);
        routes.sweep(at(220));
        assert_eq!((routes.brokers().count(), routes.topics().count()), (0, 0));
    }

    /// E-112, E-113.
    #[test]
    fn topics_and_permissions_change_by_order() {
        let mut routes = Routes::default();
        routes.register(registration("a", "h:1", &["t", "u"], 1), SessionId(1), at(0));
        assert_eq!((routes.write_perm("a", false), routes.topic("t").next().unwrap().1.perm), (2, 4));
        assert_eq!((routes.write_perm("a", true), routes.topic("t").next().unwrap().1.perm), (2, 6));
        routes.delete_topic("t", Some("other"));
        assert_eq!(routes.topic("t").count(), 1);
        routes.delete_topic("t", Some("c"));
        routes.delete_topic("u", None);
        assert_eq!(routes.topics().count(), 0);
    }

    #[test]
    fn a_broker_that_moves_is_one_broker() {
        let mut routes = Routes::default();
        routes.register(registration("a", "h:1", &["t"], 1), SessionId(1), at(0));
        routes.register(registration("a", "h:2", &["t"], 1), SessionId(2), at(5));
        assert_eq!(routes.broker("a").unwrap().addrs, SortedMap::from([(0, "h:2".to_owned())]));
        routes.closed(SessionId(1));
        assert_eq!(routes.brokers().count(), 1, "the old connection does not take the new address along");
        routes.unregister(&who("a", "h:2"));
        assert_eq!((routes.brokers().count(), routes.topics().count()), (0, 0));
    }
}
