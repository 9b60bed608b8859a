//! Heartbeats: what brokers are told about this client, when, and what follows from their answers.
//!
//! Every broker of a route in use gets one at once when it becomes known or reachable and when a subscription changes,
//! and then at intervals. No pull of a topic goes out before its broker has the subscription (C-034). A heartbeat wanted
//! while one is on its way is sent after it, never skipped.

use std::sync::Arc;
use std::time::Duration;

use super::consumer::group::Group;
use super::core::{Core, Purpose, Timer};
use super::events::{Event, TOLD_EVERY};
use super::port::{Answer, Ask, CallError, Target};
use crate::model::tags::{TagExpression, java_hash};
use crate::model::{SortedMap, StartFrom, names};
use crate::net::Out;
use crate::wire::json;
use crate::wire::remoting::codes::request;
use crate::wire::remoting::group::{
    ConsumeFrom, ConsumeType, ConsumerBody, HeartbeatBody, MessageModel, ProducerBody, SubscriptionBody,
    UnregisterRequest,
};
use crate::wire::remoting::header::NoFields;
use crate::work::clock::Nanos;

/// Failed heartbeats, or connections lost one soon after the other, after which there is no heartbeat at once: it has
/// its pause.
const BROKEN: u32 = 3;

/// Consumers of one client up to which each change is told and looked after at once. One heartbeat tells of all
/// consumers and a broker answers a new one with a notice: who starts thousands would have millions of groups written,
/// read and looked at. So there is a pause then between heartbeats that follow changes (`PAUSE_EACH`), on the client's
/// clock.
pub(super) const FEW: usize = 64;
/// The pause, for each consumer.
const PAUSE_EACH: Duration = Duration::from_micros(100);

/// What is known of a broker's view of us.
#[derive(Debug, Default)]
pub struct Broker {
    /// Its id in some route is that of a master.
    master: bool,
    /// A heartbeat is on its way.
    asked: bool,
    /// Another one is wanted after it.
    again: bool,
    due: Nanos,
    /// When the last one went out; the origin of time before the first.
    sent: Nanos,
    /// Refused or unanswered heartbeats in a row.
    failures: u32,
    /// When its connection was lost, and how often each loss came soon after the one before.
    lost: Nanos,
    losses: u32,
    /// The version of our subscriptions that it has acknowledged; 0 for none since its connection was made.
    pub(super) has: i64,
}

impl Core {
    /// The brokers of all routes. One that is new gets a heartbeat, one that is gone is forgotten (B-016).
    pub(super) fn brokers_are(&mut self, addrs: &SortedMap<Arc<str>, bool>, now: Nanos, out: &mut Out<Timer>) {
        self.brokers.retain(|addr, _| addrs.contains_key(addr));
        let mut new = Vec::new();
        for (addr, master) in addrs {
            if !self.brokers.contains_key(addr) {
                new.push(Arc::clone(addr));
            }
            self.brokers.get_or_default(Arc::clone(addr)).master = *master;
        }
        for addr in new {
            self.heartbeat(&addr, now, out);
        }
    }

    /// The subscriptions or groups have changed: everybody is told.
    pub(super) fn subscriptions_changed(&mut self, now: Nanos, out: &mut Out<Timer>) {
        self.subscriptions = self.context.clock.wall_ms().max(self.subscriptions + 1);
        let many = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        let pause = if self.groups.len() > FEW { PAUSE_EACH.saturating_mul(many) } else { Duration::ZERO };
        let pause = pause.min(self.context.settings.timing.retry);
        let addrs: Vec<Arc<str>> = self.brokers.keys().cloned().collect();
        for addr in addrs {
            let Some(broker) = self.brokers.get_mut(&addr) else { continue };
            let from = broker.sent + pause;
            if from <= now {
                self.heartbeat(&addr, now, out);
            } else {
                // What waits for it goes on with its answer.
                broker.due = broker.due.min(from);
                self.heartbeat_alarm.at(broker.due, Timer::Heartbeats, out);
            }
        }
    }

    pub(super) fn heartbeat_all(&mut self, now: Nanos, out: &mut Out<Timer>) {
        let addrs: Vec<Arc<str>> = self.brokers.keys().cloned().collect();
        for addr in addrs {
            self.heartbeat(&addr, now, out);
        }
    }

    pub(super) fn heartbeat(&mut self, addr: &Arc<str>, now: Nanos, out: &mut Out<Timer>) {
        let every = self.context.settings.timing.heartbeat;
        let consumes = self.groups.values().any(|group| !group.is_leaving());
        let Some(broker) = self.brokers.get_mut(addr) else { return };
        broker.due = now + every;
        self.heartbeat_alarm.at(now + every, Timer::Heartbeats, out);
        // Slaves have to know consumers only (B-017).
        if !(consumes || broker.master && !self.producers.is_empty()) {
            return;
        }
        if std::mem::replace(&mut broker.asked, true) {
            broker.again = true;
            return;
        }
        broker.sent = now;
        let body = json::to_vec(&self.heartbeat_body());
        let ask = Ask::Other { code: request::HEART_BEAT, fields: &NoFields, body: &body };
        let purpose = Purpose::Heartbeat { addr: Arc::clone(addr), version: self.subscriptions };
        let timeout = self.context.settings.timing.request;
        self.ask(Target::Broker(addr), &ask, purpose, timeout, now, out);
    }

    pub(super) fn heartbeats_due(&mut self, now: Nanos, out: &mut Out<Timer>) {
        self.heartbeat_alarm.rang(now);
        self.port.tidy();
        let due: Vec<Arc<str>> =
            self.brokers.iter().filter(|(_, broker)| broker.due <= now).map(|(addr, _)| Arc::clone(addr)).collect();
        for addr in due {
            self.heartbeat(&addr, now, out);
        }
        if let Some(next) = self.brokers.values().map(|broker| broker.due).min() {
            self.heartbeat_alarm.at(next, Timer::Heartbeats, out);
        }
    }

    pub(super) fn heartbeat_answered(
        &mut self,
        addr: &Arc<str>,
        version: i64,
        result: Result<Answer, CallError>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let retry = self.context.settings.timing.retry;
        let read = result.and_then(|answer| answer.read(|command| Ok(command.version)));
        if let Ok(announced) = read {
            self.port.version(addr, announced);
        }
        let Some(broker) = self.brokers.get_mut(addr) else { return };
        broker.asked = false;
        let again = std::mem::take(&mut broker.again);
        match read {
            Ok(_) => {
                let (news, anew) = (broker.has < version, broker.has == 0);
                broker.has = version;
                broker.failures = 0;
                if news {
                    log::debug!(target: "windlass::heartbeat", "the broker knows us: addr={addr} version={version}");
                    self.broker_knows_us(addr, anew, now, out);
                }
            }
            Err(error) => {
                log::debug!(target: "windlass::heartbeat", "heartbeat failed: addr={addr} error={error}");
                broker.has = 0;
                let times = broker.failures;
                broker.failures = times.saturating_add(1);
                // Soon again: while the broker does not know us it gives us nothing.
                broker.due = broker.due.min(now + retry);
                let due = broker.due;
                self.heartbeat_alarm.at(due, Timer::Heartbeats, out);
                // A connection that cannot be made is told as such.
                if times % TOLD_EVERY == 0
                    && !matches!(error, CallError::Connect { .. } | CallError::Disconnected { .. })
                {
                    self.tell_all(Event::HeartbeatFailed { addr: Arc::clone(addr), detail: error.to_string() });
                }
            }
        }
        let broken = self.brokers.get(addr).is_some_and(|broker| broker.failures >= BROKEN);
        if again && !broken {
            self.heartbeat(addr, now, out);
        }
    }

    /// The broker has forgotten us, or never knew: it is told again, and pulls wait for that.
    pub(super) fn broker_forgot_us(&mut self, addr: &Arc<str>, now: Nanos, out: &mut Out<Timer>) {
        if let Some(broker) = self.brokers.get_mut(addr) {
            broker.has = 0;
            self.heartbeat(addr, now, out);
        }
    }

    /// The broker does not count us in although it has acknowledged us: it is told again, soon or with the next heartbeat
    /// that is due before. Never at once: what follows an acknowledgement would be refused at once as well.
    pub(super) fn remind(&mut self, addr: &Arc<str>, now: Nanos, out: &mut Out<Timer>) {
        let soon = now + self.context.settings.timing.retry / 2;
        if let Some(broker) = self.brokers.get_mut(addr) {
            broker.due = broker.due.min(soon);
            self.heartbeat_alarm.at(soon, Timer::Heartbeats, out);
        }
    }

    pub(super) fn broker_up(&mut self, addr: &Arc<str>, again: bool, now: Nanos, out: &mut Out<Timer>) {
        // The first connection was made for a request, and the first heartbeat is on its way.
        if again {
            self.broker_forgot_us(addr, now, out);
        }
    }

    pub(super) fn broker_down(&mut self, addr: &Arc<str>, lost: bool, now: Nanos, out: &mut Out<Timer>) {
        log::debug!(target: "windlass::heartbeat", "connection down: addr={addr} had_stood={lost}");
        let Some(broker) = self.brokers.get_mut(addr) else { return };
        // A broker keeps members by connection: it has forgotten us with this one.
        broker.has = 0;
        self.unsure_of(addr);
        let Some(broker) = self.brokers.get_mut(addr) else { return };
        let retry = self.context.settings.timing.retry;
        if lost {
            let soon = now.since(broker.lost) < retry.saturating_mul(2);
            broker.losses = if soon { broker.losses.saturating_add(1) } else { 0 };
            broker.lost = now;
        }
        // One that takes connections and drops them is not asked as fast as it does so.
        if lost && broker.failures.max(broker.losses) < BROKEN && self.ending.is_none() {
            self.heartbeat(addr, now, out);
        } else {
            // Whatever waits for it goes on with the heartbeat that reaches it again.
            broker.due = broker.due.min(now + retry);
            let due = broker.due;
            self.heartbeat_alarm.at(due, Timer::Heartbeats, out);
        }
    }

    /// A producer group comes or goes.
    pub(super) fn producer(&mut self, group: &Arc<str>, present: bool, now: Nanos, out: &mut Out<Timer>) {
        let count = self.producers.get_or_default(Arc::clone(group));
        *count = if present { count.saturating_add(1) } else { count.saturating_sub(1) };
        match *count {
            0 => {
                self.producers.remove(group);
                self.leave(Some(group), None, None, now, out);
            }
            1 if present => self.heartbeat_all(now, out),
            _ => {}
        }
    }

    /// Tells every broker that a group is left; one-way unless somebody waits for it. How many were asked.
    pub(super) fn leave(
        &mut self,
        producer: Option<&str>,
        consumer: Option<&Group>,
        timeout: Option<std::time::Duration>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) -> usize {
        let client_id = Arc::clone(&self.context.client_id);
        let group = consumer.map(|group| (group.id, Arc::clone(&group.spec.group)));
        let fields = UnregisterRequest {
            client_id: (&*client_id).into(),
            producer_group: producer.map(Into::into),
            consumer_group: group.as_ref().map(|(_, name)| (&**name).into()),
        };
        let ask = Ask::of(request::UNREGISTER_CLIENT, &fields);
        // Who has none of our heartbeats knows nothing that he could forget. One that is on its way may reach him yet: he
        // is told behind it, and nobody waits for an answer that may not come.
        let knows = |broker: &Broker| broker.has > 0 || broker.asked;
        let told = self.brokers.iter().filter(|(_, broker)| knows(broker));
        let told: Vec<(Arc<str>, bool)> = told.map(|(addr, broker)| (Arc::clone(addr), broker.has > 0)).collect();
        let mut waiting = 0;
        for (addr, answers) in &told {
            match (&group, timeout) {
                (Some((id, _)), Some(timeout)) if *answers => {
                    self.ask(Target::Broker(addr), &ask, Purpose::Leave(*id), timeout, now, out);
                    waiting += 1;
                }
                (Some(_) | None, _) => self.port.tell(Target::Broker(addr), &ask, now, out),
            }
        }
        waiting
    }

    fn heartbeat_body(&self) -> HeartbeatBody {
        body(
            &self.context.client_id,
            self.subscriptions,
            self.groups.values().filter(|group| !group.is_leaving()),
            self.producers.keys(),
        )
    }
}

/// The body of a heartbeat.
fn body<'a>(
    client_id: &str,
    version: i64,
    groups: impl Iterator<Item = &'a Group>,
    producers: impl Iterator<Item = &'a Arc<str>>,
) -> HeartbeatBody {
    let consumers = groups.map(|group| ConsumerBody {
        consume_from_where: Some(match group.spec.settings.start_from {
            StartFrom::Last => ConsumeFrom::LastOffset,
            StartFrom::First => ConsumeFrom::FirstOffset,
            StartFrom::Time(_) => ConsumeFrom::Timestamp,
        }),
        consume_type: Some(ConsumeType::Passively),
        group_name: group.spec.group.to_string(),
        message_model: Some(MessageModel::Clustering),
        subscriptions: group.topics().map(|(topic, tags)| subscription(topic, tags, version)).collect(),
        unit_mode: false,
    });
    let groups = producers.map(|group| group.to_string()).chain([names::INNER_PRODUCER.to_owned()]);
    HeartbeatBody {
        client_id: client_id.to_owned(),
        consumers: consumers.collect(),
        producers: groups.map(|group_name| ProducerBody { group_name }).collect(),
        ..HeartbeatBody::default()
    }
}

fn subscription(topic: &str, tags: &TagExpression, version: i64) -> SubscriptionBody {
    SubscriptionBody {
        class_filter_mode: false,
        code_set: tags.tags().iter().map(|tag| java_hash(tag)).collect(),
        expression_type: Some("TAG".to_owned()),
        sub_string: Some(tags.text()),
        sub_version: version,
        tags_set: tags.tags().to_vec(),
        topic: topic.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::consumer::group::for_tests;
    use super::*;

    #[test]
    fn a_subscription_is_told_as_java_tells_it() {
        let tags = TagExpression::parse("TagA || Aa").unwrap();
        let told = subscription("T1", &tags, 1_700_000_000_000);
        let text = String::from_utf8(json::to_vec(&told)).unwrap();
        let want = r#"{"classFilterMode":false,"codeSet":[2598919,2112],"expressionType":"TAG","subString":"TagA||Aa","subVersion":1700000000000,"tagsSet":["TagA","Aa"],"topic":"T1"}"#;
        assert_eq!(text, want);
        let all = subscription("%RETRY%g", &TagExpression::default(), 1);
        assert_eq!((all.sub_string.as_deref(), all.tags_set.len(), all.code_set.len()), (Some("*"), 0, 0));
    }

    #[test]
    fn b052_a_heartbeat_names_the_inner_producer_and_the_retry_topic() {
        let group = for_tests::group("g", &[("t", "*")]);
        let producers: Vec<Arc<str>> = vec!["p".into()];
        let body = body("1.2.3.4@a", 7, [&group].into_iter(), producers.iter());
        assert_eq!(
            body.consumers[0].subscriptions.iter().map(|sub| &*sub.topic).collect::<Vec<_>>(),
            ["%RETRY%g", "t"]
        );
        assert_eq!(
            body.producers.iter().map(|group| &*group.group_name).collect::<Vec<_>>(),
            ["p", "CLIENT_INNER_PRODUCER"]
        );
    }
}
