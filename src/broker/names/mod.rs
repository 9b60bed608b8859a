//! The name server: who has a topic, who is in a cluster (codes 100 to 106, 205, 206, 216, 219, 322, 327).
//!
//! A part of the dispatcher. The broker of the same process does not register: its routes are read from its live tables,
//! so that a topic and its route appear in one step. Other brokers register and are kept in `routes.rs`.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 namesrv/src/main/java/org/apache/rocketmq/namesrv/processor/DefaultRequestProcessor.java

pub mod command;
pub mod join;
pub mod routes;

use std::net::SocketAddr;

use self::routes::{Addresses, Identity, Queues, Registration, Routes};
use super::dispatch::{Dispatcher, Refusal};
use super::session::{Session, SessionId};
use super::topics::Version;
use crate::model::names::group_of_retry_topic;
use crate::model::{SortedMap, SortedSet};
use crate::wire::remoting::codes::answer;
use crate::wire::remoting::route::{BrokerBody, ClusterBody, QueuesBody, RouteBody};
use crate::work::clock::Nanos;
use crate::work::ranks::{Rank, Ranked};

/// The tables of a name server.
pub struct Names {
    routes: Ranked<Routes>,
    values: Ranked<SortedMap<String, SortedMap<String, String>>>,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            routes: Ranked::new(Rank::Tables, Routes::default()),
            values: Ranked::new(Rank::Tables, SortedMap::new()),
        }
    }
}

impl Names {
    pub(super) fn closed(&self, session: SessionId) {
        self.routes.lock().closed(session);
    }

    /// All values, by namespace.
    pub(super) fn all_values(&self) -> SortedMap<String, SortedMap<String, String>> {
        self.values.lock().clone()
    }

    /// Takes over the values of a file.
    pub(super) fn restore_values(&self, values: SortedMap<String, SortedMap<String, String>>) {
        *self.values.lock() = values;
    }

    pub(super) fn sweep(&self, now: Nanos) {
        self.routes.lock().sweep(now);
    }
}

impl Dispatcher {
    /// Whether this process is a name server.
    pub fn has_names(&self) -> bool {
        self.names.is_some()
    }

    /// The route of a topic (105). A group's retry topic is made when it is asked for, so that the first redelivery of a
    /// new group need not wait until its clients ask again.
    ///
    /// # Errors
    /// TOPIC_NOT_EXIST.
    pub fn route(&self, session: &Session, topic: &str) -> Result<RouteBody, Refusal> {
        let mut route = RouteBody { filter_server_table: Some(SortedMap::new()), ..RouteBody::default() };
        if let Some(names) = &self.names {
            let routes = names.routes.lock();
            for (broker, queues) in routes.topic(topic).filter(|(broker, _)| **broker != *self.settings.broker) {
                if let Some(addresses) = routes.broker(broker) {
                    route.queues.push(queues_body(broker, queues));
                    route.brokers.push(broker_body(broker, addresses));
                }
            }
        }
        let mut own = self.own_queues(topic);
        if own.is_none() && route.queues.is_empty() {
            own = self.retry_topic_on_demand(topic);
        }
        if let Some(queues) = own {
            route.brokers.push(broker_body(&self.settings.broker, &self.own_addresses(session)));
            route.queues.push(queues_body(&self.settings.broker, queues));
        }
        if route.queues.is_empty() {
            let remark = format!("No topic route info in name server for the topic: {topic}");
            return Err(Refusal::new(answer::TOPIC_NOT_EXIST, remark));
        }
        Ok(route)
    }

    fn own_queues(&self, topic: &str) -> Option<Queues> {
        self.topics.lock().find(topic).map(|topic| Queues::from(&**topic))
    }

    pub(in crate::broker) fn retry_topic_on_demand(&self, topic: &str) -> Option<Queues> {
        let settings = self.known_group(group_of_retry_topic(topic)?).ok()?;
        (settings.retry_queues > 0).then(|| Queues::from(&*self.group_topic(topic, settings.retry_queues)))
    }

    /// The brokers of all clusters (106).
    pub fn clusters(&self, session: &Session) -> ClusterBody {
        let mut body = ClusterBody::default();
        let mut add = |name: &str, addresses: &Addresses| {
            body.broker_addr_table.insert(name.to_owned(), broker_body(name, addresses));
            body.cluster_addr_table.get_or_default(addresses.cluster.clone()).push(name.to_owned());
        };
        if let Some(names) = &self.names {
            let routes = names.routes.lock();
            routes.brokers().filter(|(name, _)| **name != *self.settings.broker).for_each(|(n, a)| add(n, a));
        }
        add(&self.settings.broker, &self.own_addresses(session));
        body
    }

    /// All topics that have a route (206), sorted.
    pub fn all_topics(&self) -> Vec<String> {
        let mut topics = SortedSet::new();
        if let Some(names) = &self.names {
            topics.extend(names.routes.lock().topics().map(str::to_owned));
        }
        topics.extend(self.topics.lock().all().map(|topic| topic.name.to_string()));
        topics.into_iter().collect()
    }

    fn own_addresses(&self, session: &Session) -> Addresses {
        Addresses {
            cluster: self.settings.cluster.to_string(),
            addrs: SortedMap::from([(0, self.reached_at(session).to_string())]),
            acting_master: false,
        }
    }

    /// The address under which this broker is reached by a session: the one it listens on, or if that is any, the one
    /// through which the session came.
    pub fn reached_at(&self, session: &Session) -> SocketAddr {
        let listens = self.settings.listens;
        if listens.ip().is_unspecified() { SocketAddr::new(session.local.ip(), listens.port()) } else { listens }
    }

    /// Takes another broker's registration (103). Gives the values of a namespace it has to know.
    pub fn register_broker(&self, session: &Session, registration: Registration) -> SortedMap<String, String> {
        let Some(names) = &self.names else { return SortedMap::new() };
        let now = self.clock.now();
        log::debug!(target: "windlass::names", "broker registers: broker={} addr={}", registration.who.broker, registration.who.addr);
        names.routes.lock().register(registration, session.id, now);
        self.values("ORDER_TOPIC_CONFIG").unwrap_or_default()
    }

    /// Ends a registration (104).
    pub fn unregister_broker(&self, who: &Identity) {
        if let Some(names) = &self.names {
            log::info!(target: "windlass::names", "broker leaves: broker={} addr={}", who.broker, who.addr);
            names.routes.lock().unregister(who);
        }
    }

    /// Compares the version of a registration (322): whether it has changed, and the one that is known.
    pub fn broker_version(&self, who: &Identity, theirs: Version) -> (bool, Option<Version>) {
        let now = self.clock.now();
        self.names.as_ref().map_or((true, None), |names| names.routes.lock().version(who, theirs, now))
    }

    /// Deletes a topic from the routes of other brokers (216).
    pub fn delete_route(&self, topic: &str, cluster: Option<&str>) {
        if let Some(names) = &self.names {
            names.routes.lock().delete_topic(topic, cluster.filter(|cluster| !cluster.is_empty()));
        }
    }

    /// Takes or gives the write permission of another broker's topics (205, 327); how many there were.
    pub fn write_perm_of_broker(&self, broker: &str, write: bool) -> i32 {
        self.names.as_ref().map_or(0, |names| names.routes.lock().write_perm(broker, write))
    }

    /// Sets a value of a namespace (100).
    pub fn put_value(&self, namespace: &str, key: &str, value: &str) {
        if let Some(names) = &self.names {
            names.values.lock().get_or_default(namespace.to_owned()).insert(key.to_owned(), value.to_owned());
            self.save_values();
        }
    }

    /// A value of a namespace (101).
    ///
    /// # Errors
    /// QUERY_NOT_FOUND.
    pub fn value(&self, namespace: &str, key: &str) -> Result<String, Refusal> {
        let values = self.values(namespace)?;
        values.get(key).cloned().ok_or_else(|| {
            let remark = format!("No config item, Namespace: {namespace} Key: {key}");
            Refusal::new(answer::QUERY_NOT_FOUND, remark)
        })
    }

    /// Deletes a value (102).
    pub fn delete_value(&self, namespace: &str, key: &str) {
        let Some(names) = &self.names else { return };
        let was = names.values.lock().get_mut(namespace).and_then(|values| values.remove(key));
        if was.is_some() {
            self.save_values();
        }
    }

    /// All values of a namespace (219).
    ///
    /// # Errors
    /// QUERY_NOT_FOUND.
    pub fn values(&self, namespace: &str) -> Result<SortedMap<String, String>, Refusal> {
        let known = self.names.as_ref().and_then(|names| names.values.lock().get(namespace).cloned());
        known.ok_or_else(|| Refusal::new(answer::QUERY_NOT_FOUND, format!("No config item, Namespace: {namespace}")))
    }
}

fn queues_body(broker: &str, queues: Queues) -> QueuesBody {
    QueuesBody {
        broker_name: broker.to_owned(),
        perm: queues.perm,
        read_queue_nums: queues.read,
        topic_sys_flag: queues.sys_flag,
        write_queue_nums: queues.write,
    }
}

/// `enableActingMaster` is always written: one client refuses a route without it, and none minds it.
fn broker_body(broker: &str, addresses: &Addresses) -> BrokerBody {
    BrokerBody {
        broker_addrs: addresses.addrs.clone(),
        broker_name: broker.to_owned(),
        cluster: Some(addresses.cluster.clone()),
        enable_acting_master: Some(addresses.acting_master),
        zone_name: None,
    }
}
