//! Whether a group has consumed everything: for tests that wait until their messages are done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::delay::LEVELS;
use super::dispatch::Dispatcher;
use crate::model::{QueueOffset, SortedSet, names};
use crate::wire::remoting::properties::names as key;
use crate::wire::remoting::record::{Check, Record};
use crate::work::clock::after;

/// How often a waiter looks again. Nobody tells him: each commit would have to look whether somebody waits.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Queues that are named where not all is consumed.
const QUEUES_TOLD: usize = 8;

impl Dispatcher {
    /// True once the group has committed the end of every queue it consumes and nothing of it is delayed; false if that
    /// has not come within `timeout`.
    pub fn wait_drained(&self, group: &str, timeout: Duration) -> bool {
        let deadline = after(timeout);
        while !self.is_drained(group) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(left.min(LOOK_AGAIN));
        }
        true
    }

    /// Whether the group has committed everything there is for it. A group that nobody has heard of has consumed nothing
    /// yet: its first heartbeat may still be on its way.
    pub fn is_drained(&self, group: &str) -> bool {
        let mut topics = self.topics_consumed(group);
        if topics.is_empty() {
            return false;
        }
        topics.insert(names::retry_topic(group).into());
        topics.iter().all(|topic| self.topic_drained(group, topic)) && !self.has_delayed(&topics)
    }

    fn topics_consumed(&self, group: &str) -> SortedSet<Arc<str>> {
        let mut topics: SortedSet<Arc<str>> = self.offsets.lock().topics_of(group).into_iter().collect();
        if let Some(group) = self.members.lock().group(group) {
            topics.extend(group.subscriptions().keys().cloned());
        }
        topics
    }

    /// What the group has not committed yet, in words: a few queues, and whether something is delayed. Empty if there is
    /// nothing.
    pub fn not_drained(&self, group: &str) -> Vec<String> {
        let mut topics = self.topics_consumed(group);
        if topics.is_empty() {
            return vec!["it has neither members nor commits".to_owned()];
        }
        topics.insert(names::retry_topic(group).into());
        let mut left = Vec::new();
        for topic in topics.iter() {
            let queues = self.topics.lock().find(topic).map_or(0, |topic| topic.read_queues);
            for queue in 0..queues {
                let (min, max) = self.queue_bounds(topic, queue);
                let committed = self.offsets.lock().find(group, topic, queue).unwrap_or(min);
                if committed < max && left.len() < QUEUES_TOLD {
                    left.push(format!("queue {queue} of {topic} is at {committed} of {max}"));
                }
            }
        }
        if self.has_delayed(&topics) {
            left.push("messages wait in delay levels".to_owned());
        }
        left
    }

    fn topic_drained(&self, group: &str, topic: &str) -> bool {
        let Some(queues) = self.topics.lock().find(topic).map(|topic| topic.read_queues) else { return true };
        (0..queues).all(|queue| {
            let (min, max) = self.queue_bounds(topic, queue);
            let committed = self.offsets.lock().find(group, topic, queue).unwrap_or(min);
            committed >= max
        })
    }

    /// Whether a message for one of these topics waits in a delay level.
    fn has_delayed(&self, topics: &SortedSet<Arc<str>>) -> bool {
        (0..LEVELS as i32).any(|level| {
            let Some(queue) = self.store.find_queue(names::SCHEDULE_TOPIC, level) else { return false };
            let next = self.delays.lock().position(level);
            let (_, max) = self.store.bounds(&queue);
            (next..max.0).any(|offset| {
                let frame = self
                    .store
                    .entry(&queue, QueueOffset(offset))
                    .and_then(|entry| self.store.record_at(entry.physical));
                let Some(frame) = frame else { return false };
                let Ok(record) = Record::read(frame.bytes(), Check::Lengths) else { return false };
                let topic = record.properties(frame.bytes()).find(key::REAL_TOPIC);
                topic.is_some_and(|topic| topics.contains(topic))
            })
        })
    }
}
