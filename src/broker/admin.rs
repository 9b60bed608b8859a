//! What tools ask of a broker: topics, groups, figures (codes 17, 28, 200 to 204, 207, 208, 215, 351).
//!
//! Called by `command.rs`. Nothing here is on the path of a message.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/processor/AdminBrokerProcessor.java

use std::sync::Arc;

use super::dispatch::{Dispatcher, Refusal};
use super::groups::GroupSettings;
use super::members::{Manner, Member, Subscription};
use super::session::Outbox;
use super::topics::{MOST_QUEUES, Topic, is_system};
use crate::model::sort::{sort, sort_by};
use crate::model::{DelayLevel, SortedMap, names};
use crate::wire::remoting::codes::answer;

/// How far a queue of a topic reaches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueStats {
    /// The queue.
    pub queue: i32,
    /// First offset.
    pub min: i64,
    /// One past the last.
    pub max: i64,
    /// When the last message was stored; 0 if there is none.
    pub last_ms: i64,
}

/// How far a group is behind in a queue.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Lag {
    /// The topic.
    pub topic: Arc<str>,
    /// The queue.
    pub queue: i32,
    /// One past the queue's last offset.
    pub end: i64,
    /// The group's committed offset.
    pub committed: i64,
    /// When the last consumed message was stored; 0 if there is none.
    pub last_ms: i64,
}

/// Who is in a group, and what it consumes.
pub struct Connections {
    /// Its members.
    pub members: Vec<Member>,
    /// How it consumes.
    pub manner: Manner,
    /// Its subscriptions, by topic.
    pub subscriptions: Vec<Subscription>,
}

/// Figures of Apache's broker that have one value here, without which tools stop.
const FIXED_FIGURES: &[(&str, &str)] = &[
    ("brokerActive", "true"),
    ("msgPutTotalYesterdayMorning", "0"),
    ("msgPutTotalTodayMorning", "0"),
    ("msgGetTotalYesterdayMorning", "0"),
    ("msgGetTotalTodayMorning", "0"),
    ("putMessageFailedTimes", "0"),
    ("sendThreadPoolQueueSize", "0"),
    ("sendThreadPoolQueueCapacity", "0"),
    ("sendThreadPoolQueueHeadWaitTimeMills", "0"),
    ("pullThreadPoolQueueSize", "0"),
    ("pullThreadPoolQueueCapacity", "0"),
    ("pullThreadPoolQueueHeadWaitTimeMills", "0"),
    ("queryThreadPoolQueueSize", "0"),
    ("queryThreadPoolQueueCapacity", "0"),
    ("pageCacheLockTimeMills", "0"),
    ("commitLogDiskRatio", "0.0"),
    ("consumeQueueDiskRatio", "0.0"),
    ("dispatchBehindBytes", "0"),
    ("startAcceptSendRequestTimeStamp", "0"),
    ("timerReadBehind", "0"),
    ("timerOffsetBehind", "0"),
    ("timerCongestNum", "0"),
    ("timerEnqueueTps", "0.0"),
    ("timerDequeueTps", "0.0"),
];

impl Dispatcher {
    /// Makes or replaces a topic (17).
    ///
    /// # Errors
    /// A bad name, a topic of the broker itself, impossible numbers of queues.
    pub fn put_topic(&self, topic: Topic) -> Result<(), Refusal> {
        self.set_topic(topic)?;
        self.topics_changed();
        Ok(())
    }

    /// As [`put_topic`](Self::put_topic), for one of several: `topics_changed` writes them all down, and is to be called
    /// behind the last.
    ///
    /// # Errors
    /// As there.
    pub(super) fn set_topic(&self, topic: Topic) -> Result<(), Refusal> {
        let bad = |remark: String| Refusal::new(self.settings.compat.invalid_parameter(), remark);
        names::check_topic(&topic.name).map_err(|error| bad(error.to_string()))?;
        if is_system(&topic.name, self.settings.own()) {
            return Err(bad(format!("The topic[{}] is conflict with system topic.", topic.name)));
        }
        let allowed = 0..=MOST_QUEUES;
        if !allowed.contains(&topic.read_queues) || !allowed.contains(&topic.write_queues) {
            return Err(bad(format!("a topic may have at most {MOST_QUEUES} queues")));
        }
        log::info!(
            target: "windlass::broker",
            "topic set: topic={} read={} write={} perm={}",
            topic.name, topic.read_queues, topic.write_queues, topic.perm
        );
        self.topics.lock().change(topic, self.clock.wall_ms());
        Ok(())
    }

    /// Deletes a topic (215), its messages and the offsets of all groups in it. Pulls that wait for it are answered.
    /// Answers the position of the log up to which it must be durable, so that no power cut brings the topic back.
    ///
    /// # Errors
    /// A topic of the broker itself; what the store says, and then the topic stays.
    pub fn delete_topic(&self, name: &str, out: &mut Outbox) -> Result<u64, Refusal> {
        if is_system(name, self.settings.own()) {
            let remark = format!("The topic[{name}] is conflict with system topic.");
            return Err(Refusal::new(self.settings.compat.invalid_parameter(), remark));
        }
        let now_ms = self.clock.wall_ms();
        // Before the mark: a send that finds the topic behind it would store what nobody can read.
        let had = self.topics.lock().delete(name, now_ms);
        let deleted = self.store.delete_topic(name, now_ms);
        if let (Err(_), Some(topic)) = (&deleted, had) {
            self.topics.lock().restore(topic);
        }
        self.topics_changed();
        let deleted = deleted.map_err(super::send::store_refusal)?;
        self.offsets.lock().forget_topic(name);
        let mut waiting = Vec::new();
        self.holds.lock().take_topic(name, &mut waiting);
        self.answer_held(waiting, out);
        log::info!(target: "windlass::broker", "topic deleted: topic={name}");
        Ok(deleted.end)
    }

    /// One topic (351).
    ///
    /// # Errors
    /// TOPIC_NOT_EXIST.
    pub fn topic(&self, name: &str) -> Result<Arc<Topic>, Refusal> {
        self.topics
            .lock()
            .find(name)
            .cloned()
            .ok_or_else(|| Refusal::new(answer::TOPIC_NOT_EXIST, format!("No topic in this broker. topic: {name}")))
    }

    /// How far each queue of a topic reaches (202).
    ///
    /// # Errors
    /// TOPIC_NOT_EXIST.
    pub fn topic_stats(&self, name: &str) -> Result<Vec<QueueStats>, Refusal> {
        let topic = self
            .topics
            .lock()
            .find(name)
            .cloned()
            .ok_or_else(|| Refusal::new(answer::TOPIC_NOT_EXIST, format!("topic[{name}] not exist")))?;
        let stats = (0..topic.write_queues.max(topic.read_queues)).map(|queue| {
            let (min, max) = self.queue_bounds(name, queue);
            let last_ms = if max > min { self.stored_at(name, queue, max - 1).unwrap_or(0) } else { 0 };
            QueueStats { queue, min, max, last_ms }
        });
        Ok(stats.collect())
    }

    /// How far a group is behind (208): in the topics given, or in all it has offsets in.
    pub fn consume_stats(&self, group: &str, topics: &[&str]) -> Vec<Lag> {
        let topics: Vec<Arc<str>> = if topics.is_empty() {
            self.offsets.lock().topics_of(group)
        } else {
            topics.iter().map(|topic| Arc::from(*topic)).collect()
        };
        let mut lags = Vec::new();
        for name in topics {
            let Some(topic) = self.topics.lock().find(&name).cloned() else { continue };
            let dropped = {
                let members = self.members.lock();
                members.group(group).is_some_and(|group| !group.subscriptions().contains_key(&name))
            };
            if dropped {
                continue;
            }
            for queue in 0..topic.read_queues {
                let (_, end) = self.queue_bounds(&name, queue);
                let committed = self.offsets.lock().find(group, &name, queue).unwrap_or(0).max(0);
                let last = committed.checked_sub(1).filter(|last| *last >= 0);
                let last_ms = last.and_then(|last| self.stored_at(&name, queue, last)).unwrap_or(0);
                lags.push(Lag { topic: name.clone(), queue, end, committed, last_ms });
            }
        }
        lags
    }

    /// Which groups consume a topic (300): those that subscribe to it now or have an offset in it.
    pub fn groups_of_topic(&self, topic: &str) -> Vec<String> {
        let mut groups: Vec<Arc<str>> = self.offsets.lock().groups_of(topic);
        {
            let members = self.members.lock();
            let subscribed = members.groups().filter(|(_, group)| group.subscriptions().contains_key(topic));
            groups.extend(subscribed.map(|(name, _)| name.clone()));
        }
        sort(&mut groups);
        groups.dedup();
        groups.iter().map(|group| group.to_string()).collect()
    }

    /// Who is in a group (203).
    ///
    /// # Errors
    /// CONSUMER_NOT_ONLINE.
    pub fn connections(&self, group: &str) -> Result<Connections, Refusal> {
        let members = self.members.lock();
        let found = members.group(group).ok_or_else(|| {
            let remark = format!("the consumer group[{group}] not online");
            Refusal::new(answer::CONSUMER_NOT_ONLINE, remark)
        })?;
        let mut subscriptions: Vec<Subscription> = found.subscriptions().values().cloned().collect();
        sort_by(&mut subscriptions, |a, b| a.topic.cmp(&b.topic));
        Ok(Connections { members: found.members().cloned().collect(), manner: *found.manner(), subscriptions })
    }

    /// Who is in a producer group (204).
    ///
    /// # Errors
    /// SYSTEM_ERROR if nobody is.
    pub fn producer_connections(&self, group: &str) -> Result<Vec<Member>, Refusal> {
        let members: Vec<Member> = self.members.lock().producers(group).cloned().collect();
        if members.is_empty() {
            let remark = format!("the producer group[{group}] not exist");
            return Err(Refusal::new(answer::SYSTEM_ERROR, remark));
        }
        Ok(members)
    }

    /// Makes or replaces a group's settings (200).
    ///
    /// # Errors
    /// A bad name, or more retry queues than a topic may have.
    pub fn put_group(&self, group: GroupSettings) -> Result<(), Refusal> {
        if group.name.is_empty() || group.name.len() > names::GROUP_MAX || !names::is_legal(&group.name) {
            let remark = format!("the group name [{}] is illegal", group.name);
            return Err(Refusal::new(self.settings.compat.invalid_parameter(), remark));
        }
        if group.retry_queues > MOST_QUEUES {
            let remark = format!("a group may have at most {MOST_QUEUES} retry queues");
            return Err(Refusal::new(self.settings.compat.invalid_parameter(), remark));
        }
        self.groups.lock().change(group, self.clock.wall_ms());
        self.save_groups();
        Ok(())
    }

    /// Deletes a group (207), with its offsets if that is asked for.
    pub fn delete_group(&self, name: &str, with_offsets: bool) {
        self.groups.lock().delete(name, self.clock.wall_ms());
        if with_offsets {
            self.offsets.lock().forget_group(name);
        }
        self.save_groups();
    }

    /// The broker's figures (28), all as text. The keys are those that tools cannot do without.
    pub fn figures(&self) -> SortedMap<String, String> {
        let totals = self.counters.totals();
        let now_ms = self.clock.wall_ms();
        let up_ms = now_ms.saturating_sub(self.started_ms).max(1);
        let rate = |count: u64| {
            // A figure for people: the loss above 2^53 does not matter.
            let tps = count as f64 * 1000.0 / up_ms as f64;
            format!("{tps:.2} {tps:.2} {tps:.2}")
        };
        let compat = self.settings.compat;
        let (start, end) = (self.store.log_min(), self.store.log_end());
        let counted = [
            ("brokerVersionDesc", compat.version_name().to_owned()),
            ("brokerVersion", compat.version().to_string()),
            ("bootTimestamp", self.started_ms.to_string()),
            ("runtime", format!("[ 0 days, 0 hours, 0 minutes, {} seconds ]", up_ms / 1000)),
            ("msgPutTotalTodayNow", totals.put_messages.to_string()),
            ("msgGetTotalTodayNow", totals.got_messages.to_string()),
            ("putTps", rate(totals.put_messages)),
            ("getTotalTps", rate(totals.got_messages)),
            ("getFoundTps", rate(totals.got_messages)),
            ("getMissTps", rate(0)),
            ("getTransferedTps", rate(totals.got_messages)),
            ("getTransferredTps", rate(totals.got_messages)),
            ("putMessageTimesTotal", totals.put_messages.to_string()),
            ("putMessageSizeTotal", totals.put_bytes.to_string()),
            ("putMessageAverageSize", totals.put_bytes.checked_div(totals.put_messages).unwrap_or(0).to_string()),
            ("earliestMessageTimeStamp", self.started_ms.to_string()),
            ("commitLogMinOffset", start.to_string()),
            ("commitLogMaxOffset", end.to_string()),
            ("remainHowManyDataToFlush", format!("{} B", end.saturating_sub(self.store.durable()))),
        ];
        let fixed = FIXED_FIGURES.iter().map(|(key, value)| (*key, (*value).to_owned()));
        let mut table = SortedMap::new();
        for (key, value) in counted.into_iter().chain(fixed) {
            table.insert(key.to_owned(), value);
        }
        for number in 1..=DelayLevel::MAX.number() {
            let position = self.delays.lock().position(number - 1);
            let (_, max) = self.queue_bounds(names::SCHEDULE_TOPIC, number - 1);
            table.insert(format!("scheduleMessageOffset_{number}"), format!("{position},{max}"));
        }
        table
    }
}
