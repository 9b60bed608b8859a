//! Where a topic's queues are: what a name server says, as this client uses it, and the table that other threads read.
//!
//! The core asks and stores; producers and consumers read [`RouteCell`]s. A [`Route`] is never changed once it is made,
//! whoever chooses a queue keeps his own cursor. Nothing here asks anybody.
//!
//! Source: apache/rocketmq@rocketmq-all-4.9.3
//! client/src/main/java/org/apache/rocketmq/client/impl/factory/MQClientInstance.java (`topicRouteData2TopicPublishInfo`)

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::sort::{sort, sort_by};
use crate::model::{Queue, SortedMap};
use crate::wire::remoting::codes::perm;
use crate::wire::remoting::route::RouteBody;
use crate::work::ranks::{Rank, Ranked};

/// A broker group's master has this id.
pub const MASTER: i64 = 0;
/// More queues of one topic than any cluster has; what a peer announces beyond it is ignored.
const MOST_QUEUES: i32 = 1 << 16;

/// A queue that may be written, and where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PublishQueue {
    /// The queue.
    pub queue: Queue,
    /// Its broker's master, `host:port`.
    pub addr: Arc<str>,
}

/// A topic's route. Equal content gives equal routes, whatever the order in which a name server lists it (C-032).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Route {
    /// The topic.
    pub topic: Arc<str>,
    /// Queues that may be written, by broker name, then id.
    pub publish: Vec<PublishQueue>,
    /// Queues that may be read, by broker name, then id.
    pub subscribe: Vec<Queue>,
    /// The publish queues were fixed by hand (`orderTopicConf`).
    pub ordered: bool,
    /// Addresses of every broker in the route, by name and id.
    pub brokers: SortedMap<Arc<str>, SortedMap<i64, Arc<str>>>,
}

impl Route {
    /// A route from an answer. `map` may replace each address, for clients that reach brokers by other names.
    pub fn build(topic: &str, data: &RouteBody, map: impl Fn(&str) -> String) -> Self {
        let topic: Arc<str> = topic.into();
        let mut brokers: SortedMap<Arc<str>, SortedMap<i64, Arc<str>>> = SortedMap::new();
        for broker in &data.brokers {
            let addrs = broker.broker_addrs.iter().map(|(id, addr)| (*id, map(addr).into()));
            brokers.get_or_default(broker.broker_name.as_str().into()).extend(addrs);
        }
        let mut route = Self { topic, publish: Vec::new(), subscribe: Vec::new(), ordered: false, brokers };
        match data.order_topic_conf.as_deref().map(str::trim).filter(|conf| !conf.is_empty()) {
            Some(conf) => {
                route.ordered = true;
                for (broker, queues) in ordered_queues(&route.topic, conf) {
                    route.publish_from(broker, queues);
                }
            }
            None => {
                for queues in data.queues.iter().filter(|queues| queues.perm & perm::WRITE != 0) {
                    route.publish_from(&queues.broker_name, queues.write_queue_nums);
                }
            }
        }
        for queues in data.queues.iter().filter(|queues| queues.perm & perm::READ != 0) {
            let broker: Arc<str> = queues.broker_name.as_str().into();
            for id in 0..queues.read_queue_nums.min(room_beside(route.subscribe.len())) {
                route.subscribe.push(Queue::new(Arc::clone(&route.topic), Arc::clone(&broker), id));
            }
        }
        sort_by(&mut route.publish, |left, right| left.queue.cmp(&right.queue));
        route.publish.dedup_by(|left, right| left.queue == right.queue);
        sort(&mut route.subscribe);
        route.subscribe.dedup();
        route
    }

    /// Only a broker with a master can be written to (B-014).
    fn publish_from(&mut self, broker: &str, queues: i32) {
        let Some((name, addrs)) = self.brokers.get_key_value(broker) else { return };
        let Some(master) = addrs.get(&MASTER) else { return };
        for id in 0..queues.min(room_beside(self.publish.len())) {
            let queue = Queue::new(Arc::clone(&self.topic), Arc::clone(name), id);
            self.publish.push(PublishQueue { queue, addr: Arc::clone(master) });
        }
    }

    /// The master of a broker: for sends, send-backs, offsets and locks.
    pub fn master(&self, broker: &str) -> Option<&Arc<str>> {
        self.brokers.get(broker)?.get(&MASTER)
    }

    /// Where to pull from a broker: at the id it suggested, else the next one, else anywhere (B-022). Also tells
    /// whether that is a slave, which stores no offsets.
    pub fn pull_addr(&self, broker: &str, suggested: i64) -> Option<(&Arc<str>, bool)> {
        let addrs = self.brokers.get(broker)?;
        let id = if addrs.contains_key(&suggested) {
            suggested
        } else if suggested != MASTER && addrs.contains_key(&suggested.saturating_add(1)) {
            suggested.saturating_add(1)
        } else {
            *addrs.keys().next()?
        };
        addrs.get(&id).map(|addr| (addr, id != MASTER))
    }

    /// Whom to ask about the group as a whole: the master, else any address, of the broker that `seed` picks.
    pub fn any_addr(&self, seed: u64) -> Option<&Arc<str>> {
        let most = u64::try_from(self.brokers.len()).unwrap_or(u64::MAX);
        let at = usize::try_from(seed.checked_rem(most)?).ok()?;
        let mut from = self.brokers.values().skip(at).chain(self.brokers.values().take(at));
        from.find_map(|addrs| addrs.get(&MASTER).or_else(|| addrs.values().next()))
    }

    /// Every address with its id.
    pub fn addrs(&self) -> Vec<(&Arc<str>, i64, &Arc<str>)> {
        let mut all = Vec::new();
        for (name, addrs) in &self.brokers {
            all.extend(addrs.iter().map(|(id, addr)| (name, *id, addr)));
        }
        all
    }
}

/// How many queues a topic that has `queues` may still get: a broker may be named as often as the answer is long.
fn room_beside(queues: usize) -> i32 {
    MOST_QUEUES.saturating_sub(i32::try_from(queues).unwrap_or(i32::MAX))
}

/// Splits `broker:number;broker:number`; bad segments are left out with one warning (C-033).
fn ordered_queues<'a>(topic: &str, conf: &'a str) -> Vec<(&'a str, i32)> {
    let mut bad = 0;
    let mut good = Vec::new();
    for segment in conf.split(';').map(str::trim).filter(|segment| !segment.is_empty()) {
        let parsed = segment
            .split_once(':')
            .map(|(broker, number)| (broker.trim(), number.trim().parse::<i32>()))
            .filter(|(broker, number)| !broker.is_empty() && number.as_ref().is_ok_and(|number| *number > 0));
        match parsed {
            Some((broker, Ok(number))) => good.push((broker, number)),
            Some((_, Err(_))) | None => bad += 1,
        }
    }
    if bad > 0 {
        log::warn!(target: "windlass::route", "ordered topic has bad segments: topic={topic} bad={bad} conf={conf:?}");
    }
    good
}

/// The addresses that are in no route any more: sorted union of what all routes name.
pub fn all_addrs<'a>(routes: impl Iterator<Item = &'a Route>) -> SortedMap<Arc<str>, bool> {
    let mut addrs = SortedMap::new();
    for route in routes {
        for (_, id, addr) in route.addrs() {
            *addrs.get_or_default(Arc::clone(addr)) |= id == MASTER;
        }
    }
    addrs
}

/// The latest route of one topic, for threads other than the loop.
#[derive(Debug)]
pub struct RouteCell {
    version: AtomicU64,
    route: Ranked<Option<Arc<Route>>>,
}

impl RouteCell {
    fn new() -> Self {
        Self { version: AtomicU64::new(0), route: Ranked::new(Rank::Tables, None) }
    }

    /// Grows with every change; a look without a lock.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The route; `None` while none is known.
    pub fn load(&self) -> Option<Arc<Route>> {
        self.route.lock().clone()
    }

    /// Puts a new route in; true if it differs from the old one. Thread: the loop.
    pub fn store(&self, route: Arc<Route>) -> bool {
        let mut current = self.route.lock();
        if current.as_ref().is_some_and(|current| **current == *route) {
            return false;
        }
        *current = Some(route);
        drop(current);
        self.version.fetch_add(1, Ordering::Release);
        true
    }
}

/// Routes of all topics in use. Locks: rank 1, for a look-up only.
#[derive(Debug)]
pub struct Routes {
    cells: Ranked<SortedMap<Arc<str>, Arc<RouteCell>>>,
}

impl Routes {
    /// No topics.
    pub fn new() -> Self {
        Self { cells: Ranked::new(Rank::Tables, SortedMap::new()) }
    }

    /// The cell of a topic, made if there is none yet.
    pub fn cell(&self, topic: &str) -> Arc<RouteCell> {
        let mut cells = self.cells.lock();
        if let Some(cell) = cells.get(topic) {
            return Arc::clone(cell);
        }
        let cell = Arc::new(RouteCell::new());
        cells.insert(topic.into(), Arc::clone(&cell));
        cell
    }
}

impl Default for Routes {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::remoting::route::{BrokerBody, QueuesBody};

    fn broker(name: &str, ids: &[i64]) -> BrokerBody {
        let broker_addrs = ids.iter().map(|id| (*id, format!("{name}-{id}:10911"))).collect();
        BrokerBody { broker_name: name.to_owned(), broker_addrs, ..BrokerBody::default() }
    }

    fn queues(broker: &str, read: i32, write: i32, perm: i32) -> QueuesBody {
        QueuesBody {
            broker_name: broker.to_owned(),
            read_queue_nums: read,
            write_queue_nums: write,
            perm,
            ..QueuesBody::default()
        }
    }

    fn body(brokers: Vec<BrokerBody>, queues: Vec<QueuesBody>, order: Option<&str>) -> RouteBody {
        RouteBody { brokers, queues, order_topic_conf: order.map(str::to_owned), ..RouteBody::default() }
    }

    fn route(data: &RouteBody) -> Route {
        Route::build("T", data, str::to_owned)
    }

    #[test]
    fn a_broker_that_is_named_a_thousand_times_makes_no_more_queues_than_a_topic_may_have() {
        let many = vec![queues("a", i32::MAX, i32::MAX, 6); 1000];
        let route = route(&body(vec![broker("a", &[0])], many, None));
        assert_eq!((route.subscribe.len(), route.publish.len()), (1 << 16, 1 << 16));
        let order = vec!["a:2000000000"; 1000].join(";");
        let ordered = self::route(&body(vec![broker("a", &[0])], Vec::new(), Some(&order)));
        assert_eq!(ordered.publish.len(), 1 << 16);
    }

    fn published(route: &Route) -> Vec<String> {
        route.publish.iter().map(|to| format!("{}{}", to.queue.broker, to.queue.id)).collect()
    }

    #[test]
    fn c032_the_same_route_has_the_same_order_however_it_is_listed() {
        let (a, b) = (broker("a", &[0]), broker("b", &[0, 1]));
        let (qa, qb) = (queues("a", 4, 4, 6), queues("b", 4, 4, 6));
        let one = body(vec![b.clone(), a.clone()], vec![qb.clone(), qa.clone()], None);
        let two = body(vec![a, b], vec![qa, qb], None);
        assert_eq!(route(&one), route(&two));
        assert_eq!(published(&route(&one)), ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]);
        assert_eq!(published(&route(&one))[5], "b1", "hash 5 of 8");
    }

    #[test]
    fn b014_publishing_needs_permission_and_a_master_subscribing_only_permission() {
        let data = body(
            vec![broker("a", &[0]), broker("b", &[1]), broker("c", &[0])],
            vec![queues("a", 2, 1, 6), queues("b", 1, 4, 6), queues("c", 1, 1, 2), queues("d", 1, 1, 4)],
            None,
        );
        let route = route(&data);
        assert_eq!(published(&route), ["a0", "c0"]);
        let readable: Vec<String> =
            route.subscribe.iter().map(|queue| format!("{}{}", queue.broker, queue.id)).collect();
        assert_eq!(readable, ["a0", "a1", "b0", "d0"]);
    }

    #[test]
    fn b015_c033_an_ordered_topics_setting_overrides_queue_numbers_and_its_errors_are_skipped() {
        let names = ["b-a", "b-b", "b-c", "b-d", "b-e"];
        let brokers = names.iter().map(|name| broker(name, &[0])).collect();
        let data = body(brokers, vec![queues("b-a", 1, 1, 6)], Some("b-a:8;b-b;b-c:x;b-d:4;:3;b-e:-1;"));
        let route = route(&data);
        let mut want: Vec<String> = (0..8).map(|id| format!("b-a{id}")).collect();
        want.extend((0..4).map(|id| format!("b-d{id}")));
        assert_eq!((published(&route), route.ordered, route.subscribe.len()), (want, true, 1));
    }

    #[test]
    fn b022_pulls_go_to_the_suggested_id_else_the_next_else_any() {
        let data = RouteBody { brokers: vec![broker("a", &[0, 2, 3]), broker("b", &[4])], ..RouteBody::default() };
        let route = route(&data);
        let at = |name: &str, id| route.pull_addr(name, id).map(|(addr, slave)| (addr.to_string(), slave));
        assert_eq!(at("a", 0), Some(("a-0:10911".into(), false)));
        assert_eq!(at("a", 3), Some(("a-3:10911".into(), true)));
        assert_eq!(at("a", 1), Some(("a-2:10911".into(), true)));
        assert_eq!(at("a", 9), Some(("a-0:10911".into(), false)));
        assert_eq!(at("b", 0), Some(("b-4:10911".into(), true)));
        assert_eq!((at("x", 0), route.master("b")), (None, None));
    }

    #[test]
    fn group_questions_go_to_any_broker_and_to_its_master_first() {
        let data = RouteBody { brokers: vec![broker("a", &[0, 1]), broker("b", &[1])], ..RouteBody::default() };
        let route = route(&data);
        assert_eq!(route.any_addr(0).map(AsRef::as_ref), Some("a-0:10911"));
        assert_eq!(route.any_addr(1).map(AsRef::as_ref), Some("b-1:10911"));
        assert_eq!(super::Route::build("T", &RouteBody::default(), str::to_owned).any_addr(3), None);
    }

    #[test]
    fn b016_addresses_of_all_routes_tell_who_is_still_a_broker() {
        let data = RouteBody { brokers: vec![broker("a", &[0, 1])], ..RouteBody::default() };
        let route = route(&data);
        let addrs = all_addrs([&route, &route].into_iter());
        let want: Vec<(Arc<str>, bool)> = vec![("a-0:10911".into(), true), ("a-1:10911".into(), false)];
        assert!(addrs.into_iter().eq(want));
    }

    #[test]
    fn a_huge_queue_number_allocates_no_more_than_a_cluster_may_have() {
        let data = body(vec![broker("a", &[0])], vec![queues("a", i32::MAX, i32::MAX, 6)], None);
        let route = route(&data);
        assert_eq!((route.publish.len(), route.subscribe.len()), (1 << 16, 1 << 16));
    }

    #[test]
    fn a_cell_changes_its_version_only_when_its_content_changes() {
        let routes = Routes::new();
        let cell = routes.cell("T");
        let data = RouteBody { brokers: vec![broker("a", &[0])], ..RouteBody::default() };
        assert!(cell.load().is_none());
        assert!(cell.store(Arc::new(route(&data))) && !cell.store(Arc::new(route(&data))));
        assert_eq!((routes.cell("T").version(), routes.cell("T").load().is_some()), (1, true));
    }
}
