//! Rebalancing: asking for a group's members, deciding with `rebalance.rs`, claiming and giving up queues.
//!
//! A topic is looked at when its group starts or a broker says that members have changed, when a broker has
//! acknowledged us, when its route has changed, and at intervals; soon again if it could not be done. Only brokers that
//! know our present subscriptions are asked: the others would not list us.

use std::sync::Arc;

use super::claim::Stage;
use super::group::{ConsumerId, Group};
use super::rebalance::{Plan, Reason, plan};
use crate::consume::chunk::Epoch;
use crate::model::{Queue, SortedSet};
use crate::net::Out;
use crate::rocketmq::core::{Core, Purpose, Timer};
use crate::rocketmq::events::Event;
use crate::rocketmq::heartbeat::FEW;
use crate::rocketmq::port::{Answer, Ask, CallError, Target};
use crate::wire::json;
use crate::wire::remoting::codes::request;
use crate::wire::remoting::group::{ConsumerGroupRequest, ConsumerListBody};
use crate::work::clock::Nanos;
use crate::work::fence::fenced;

impl Core {
    pub(in crate::rocketmq) fn rebalance_all(&mut self, now: Nanos, out: &mut Out<Timer>) {
        let groups: Vec<ConsumerId> = self.groups.keys().copied().collect();
        for id in groups {
            self.rebalance_group(id, now, out);
        }
    }

    /// A broker says that the members of `group` have changed. Every group is looked at, since whatever made one change
    /// may have changed the others; if they are very many, the others soon: a broker that has lost its members, or gets
    /// them all at once, says it once for each.
    pub(in crate::rocketmq) fn members_changed(&mut self, group: Option<&str>, now: Nanos, out: &mut Out<Timer>) {
        let named = self.groups.values().find(|known| Some(&*known.spec.group) == group).map(|known| known.id);
        let Some(named) = named.filter(|_| self.groups.len() > FEW) else {
            self.rebalance_all(now, out);
            return;
        };
        self.rebalance_group(named, now, out);
        let soon = now + self.context.settings.timing.retry;
        for subscribed in self.groups.values_mut().flat_map(|group| group.topics.values_mut()) {
            subscribed.due = subscribed.due.min(soon);
        }
        self.rebalance_alarm.at(soon, Timer::Rebalance, out);
    }

    /// A broker has acknowledged us: what could not be asked for is asked for now, and what has gone well once more if
    /// the broker did not know us at all before.
    ///
    /// No more than that: every change of queues is followed by heartbeats, and brokers whose lists of members differ for
    /// a while, as they do after a member's connection to one of them has gone silent, would else have queues claimed and
    /// given up at the rate at which heartbeats are answered. What has not gone well is tried again soon anyway.
    pub(in crate::rocketmq) fn rebalance_acknowledged(&mut self, anew: bool, now: Nanos, out: &mut Out<Timer>) {
        let wanted: Vec<(ConsumerId, Arc<str>)> = self
            .groups
            .values()
            .flat_map(|group| group.topics.iter().map(move |(topic, subscribed)| (group.id, topic, subscribed)))
            .filter(|(_, _, subscribed)| subscribed.unasked || anew && subscribed.trouble.is_none())
            .map(|(id, topic, _)| (id, Arc::clone(topic)))
            .collect();
        for (id, topic) in wanted {
            self.rebalance_topic(id, &topic, now, out);
        }
    }

    pub(in crate::rocketmq) fn rebalance_group(&mut self, id: ConsumerId, now: Nanos, out: &mut Out<Timer>) {
        let Some(group) = self.groups.get(&id) else { return };
        let topics: Vec<Arc<str>> = group.topics.keys().cloned().collect();
        for topic in topics {
            self.rebalance_topic(id, &topic, now, out);
        }
    }

    pub(in crate::rocketmq) fn rebalance_due(&mut self, now: Nanos, out: &mut Out<Timer>) {
        self.rebalance_alarm.rang(now);
        let mut due = Vec::new();
        for group in self.groups.values() {
            for (topic, subscribed) in &group.topics {
                if subscribed.due <= now {
                    due.push((group.id, Arc::clone(topic)));
                }
            }
        }
        for (id, topic) in due {
            self.rebalance_topic(id, &topic, now, out);
        }
        let dues = |group: &Group| group.topics.values().map(|subscribed| subscribed.due).min();
        let next = self.groups.values().filter_map(dues).min();
        if let Some(next) = next {
            self.rebalance_alarm.at(next, Timer::Rebalance, out);
        }
    }

    /// The topic's route has changed.
    pub(in crate::rocketmq) fn topic_changed(&mut self, topic: &Arc<str>, now: Nanos, out: &mut Out<Timer>) {
        let Some(route) = self.route(topic).cloned() else { return };
        let mut groups = Vec::new();
        for group in self.groups.values_mut() {
            if let Some(subscribed) = group.topics.get_mut(topic) {
                subscribed.first_seen.get_or_insert_with(|| route.subscribe.iter().cloned().collect());
                groups.push(group.id);
            }
        }
        for id in groups {
            self.rebalance_topic(id, topic, now, out);
        }
        self.pull_unknown(topic, now, out);
    }

    /// The topic does not exist: whatever queues it will have are new to the groups that wait for it.
    pub(in crate::rocketmq) fn topic_missing(&mut self, topic: &str) {
        for group in self.groups.values_mut() {
            if let Some(subscribed) = group.topics.get_mut(topic) {
                subscribed.first_seen.get_or_insert_default();
            }
        }
    }

    /// Asks a broker of the topic for the group's members.
    fn rebalance_topic(&mut self, id: ConsumerId, topic: &Arc<str>, now: Nanos, out: &mut Out<Timer>) {
        let every = self.context.settings.timing.rebalance;
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.is_running()) else { return };
        let name = Arc::clone(&group.spec.group);
        let Some(subscribed) = group.topics.get_mut(topic) else { return };
        subscribed.due = now + every;
        self.rebalance_alarm.at(now + every, Timer::Rebalance, out);
        if subscribed.asking {
            subscribed.again = true;
            return;
        }
        // Without a route, or a broker that knows us, there is nothing to ask: both rebalance when they come.
        let addr = self.member_of(topic);
        let Some(subscribed) = self.groups.get_mut(&id).and_then(|group| group.topics.get_mut(topic)) else { return };
        subscribed.unasked = addr.is_none();
        let Some(addr) = addr else { return };
        subscribed.asking = true;
        let fields = ConsumerGroupRequest { consumer_group: (&*name).into(), broker_name: None };
        let ask = Ask::of(request::GET_CONSUMER_LIST_BY_GROUP, &fields);
        let purpose = Purpose::Members { group: id, topic: Arc::clone(topic), addr: Arc::clone(&addr) };
        let timeout = self.context.settings.timing.request;
        self.ask(Target::Broker(&addr), &ask, purpose, timeout, now, out);
    }

    /// A broker of the topic that knows our present subscriptions; another one each time, masters first.
    fn member_of(&mut self, topic: &str) -> Option<Arc<str>> {
        self.seed = self.seed.wrapping_add(1);
        let route = self.topics.get(topic)?.route.as_ref()?;
        let knows = |addr: &Arc<str>| self.brokers.get(addr).is_some_and(|broker| broker.has == self.subscriptions);
        let mut addrs: Vec<(bool, &Arc<str>)> = route
            .addrs()
            .into_iter()
            .filter(|(_, _, addr)| knows(addr))
            .map(|(_, id, addr)| (id == crate::rocketmq::route::MASTER, addr))
            .collect();
        if addrs.iter().any(|(master, _)| *master) {
            addrs.retain(|(master, _)| *master);
        }
        let at = usize::try_from(self.seed.checked_rem(addrs.len() as u64)?).ok()?;
        addrs.get(at).map(|(_, addr)| Arc::clone(addr))
    }

    pub(in crate::rocketmq) fn members_answered(
        &mut self,
        id: ConsumerId,
        topic: &Arc<str>,
        addr: &Arc<str>,
        result: Result<Answer, CallError>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let read = result
            .and_then(|answer| answer.read(|command| json::read::<ConsumerListBody>("members", command.body)))
            .map(|body| body.client_ids);
        let Some(subscribed) = self.groups.get_mut(&id).and_then(|group| group.topics.get_mut(topic)) else { return };
        subscribed.asking = false;
        let again = std::mem::take(&mut subscribed.again);
        match read {
            Ok(members) => self.balance(id, topic, addr, &members, now, out),
            Err(error) => {
                // "No consumer for this group": it has lost our registration, which another member's departure at the
                // same moment can do to Apache's broker. Only a heartbeat heals that, and the next is far.
                if error.code().is_some() {
                    self.remind(addr, now, out);
                }
                self.not_balanced(id, topic, &error.to_string(), now, out);
            }
        }
        if again {
            self.rebalance_topic(id, topic, now, out);
        }
    }

    fn balance(
        &mut self,
        id: ConsumerId,
        topic: &Arc<str>,
        addr: &Arc<str>,
        members: &[String],
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let Some(group) = self.groups.get(&id).filter(|group| group.is_running()) else { return };
        let Some(route) = self.route(topic) else { return };
        let mine = self.claims.values().filter(|claim| claim.group == id && claim.queue.topic == *topic);
        let (leaving, held): (Vec<_>, Vec<_>) = mine.partition(|claim| matches!(claim.stage, Stage::Giving(_)));
        let epochs: Vec<(Queue, Epoch)> = held.iter().map(|claim| (claim.queue.clone(), claim.epoch)).collect();
        let leaving: SortedSet<Queue> = leaving.into_iter().map(|claim| claim.queue.clone()).collect();
        let held: Vec<Queue> = epochs.iter().map(|(queue, _)| queue.clone()).collect();
        log::debug!(target: "windlass::rebalance", "members: topic={topic} addr={addr} members={} held={}",
            members.len(), held.len());
        let rule = &*group.spec.assign;
        // The rule may be the user's, and the loop is everybody's.
        let planned = fenced(|| plan(rule, &route.subscribe, members, &self.context.client_id, &held));
        let Ok(planned) = planned else {
            self.not_balanced(id, topic, "the assignment strategy has panicked", now, out);
            return;
        };
        match planned {
            Plan::Keep(Reason::NotListed) => {
                self.remind(addr, now, out);
                self.not_balanced(id, topic, "the broker does not list this client", now, out);
            }
            Plan::Keep(Reason::NoQueues) => self.not_balanced(id, topic, "the topic has no readable queue", now, out),
            Plan::Keep(Reason::NoMembers) => self.not_balanced(id, topic, "the broker lists no member", now, out),
            Plan::Change { revoke, claim } => {
                self.balanced(id, topic, now);
                let given_up: SortedSet<&Queue> = revoke.iter().collect();
                for (_, epoch) in epochs.iter().filter(|(queue, _)| given_up.contains(&queue)) {
                    self.revoke(*epoch, now, out);
                }
                // What is being given up can be claimed again only once that is over.
                let (later, claim): (Vec<_>, Vec<_>) = claim.into_iter().partition(|queue| leaving.contains(queue));
                if !later.is_empty() {
                    self.rebalance_soon(id, topic, now, out);
                }
                if !claim.is_empty() || !revoke.is_empty() {
                    log::debug!(target: "windlass::rebalance", "queues change: topic={topic} members={} claim={} revoke={}",
                        members.len(), claim.len(), revoke.len());
                    // Java's members do the same, so that the subscription of who has changed last counts (B-153).
                    self.subscriptions_changed(now, out);
                }
                for queue in claim {
                    self.claim(id, queue, now, out);
                }
            }
        }
    }

    fn balanced(&mut self, id: ConsumerId, topic: &str, now: Nanos) {
        if let Some(subscribed) = self.groups.get_mut(&id).and_then(|group| group.topics.get_mut(topic)) {
            subscribed.trouble = None;
            subscribed.balanced = now;
        }
    }

    fn rebalance_soon(&mut self, id: ConsumerId, topic: &str, now: Nanos, out: &mut Out<Timer>) {
        let soon = now + self.context.settings.timing.retry;
        if let Some(subscribed) = self.groups.get_mut(&id).and_then(|group| group.topics.get_mut(topic)) {
            subscribed.due = subscribed.due.min(soon);
            self.rebalance_alarm.at(soon, Timer::Rebalance, out);
        }
    }

    /// The present queues are kept, and it is tried again soon (B-143 to B-145).
    pub(super) fn not_balanced(
        &mut self,
        id: ConsumerId,
        topic: &Arc<str>,
        why: &str,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        self.rebalance_soon(id, topic, now, out);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let name = Arc::clone(&group.spec.group);
        let Some(subscribed) = group.topics.get_mut(topic) else { return };
        if subscribed.trouble.as_deref() != Some(why) {
            subscribed.trouble = Some(why.to_owned());
            self.tell(id, Event::NotBalanced { group: name, topic: Arc::clone(topic), detail: why.to_owned() });
        }
    }
}
