//! Committed offsets: what is stored for a group, what a group without one is told (codes 14, 15; piggy-backed in 11).
//!
//! The dispatcher calls the table under rank 1; `state.rs` saves it. A commit is taken as it comes, also when it goes
//! back: a group may be reset by anyone, and the last word wins. Only beyond the end of its queue nothing is taken.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/offset/ConsumerOffsetManager.java

use std::collections::HashMap;
use std::sync::Arc;

use super::dispatch::{Dispatcher, Refusal};
use super::settings::Compat;
use crate::model::sort::sort;
use crate::wire::remoting::codes::answer;
use crate::wire::remoting::offset::{QueryOffsetRequest, UpdateOffsetRequest};

/// Offsets by queue, by group.
type ByGroup = HashMap<Arc<str>, HashMap<i32, i64>>;

/// Committed offsets by topic, group and queue.
#[derive(Debug, Default)]
pub struct Offsets {
    topics: HashMap<Arc<str>, ByGroup>,
    changes: u64,
}

impl Offsets {
    /// Stores a group's offset in a queue.
    pub fn commit(&mut self, group: &str, topic: &str, queue: i32, offset: i64) {
        self.changes += 1;
        if let Some(known) = self.queues_mut(group, topic) {
            known.insert(queue, offset);
            return;
        }
        self.topics.entry(topic.into()).or_default().insert(group.into(), HashMap::from([(queue, offset)]));
    }

    fn queues_mut(&mut self, group: &str, topic: &str) -> Option<&mut HashMap<i32, i64>> {
        self.topics.get_mut(topic)?.get_mut(group)
    }

    /// The offset stored for a group in a queue.
    pub fn find(&self, group: &str, topic: &str, queue: i32) -> Option<i64> {
        self.topics.get(topic)?.get(group)?.get(&queue).copied()
    }

    /// Topics in which a group has an offset.
    pub fn topics_of(&self, group: &str) -> Vec<Arc<str>> {
        let mut topics = Vec::new();
        for (topic, groups) in &self.topics {
            if groups.contains_key(group) {
                topics.push(topic.clone());
            }
        }
        sort(&mut topics);
        topics
    }

    /// Groups that have an offset in a topic.
    pub fn groups_of(&self, topic: &str) -> Vec<Arc<str>> {
        let mut groups: Vec<Arc<str>> =
            self.topics.get(topic).map(|groups| groups.keys().cloned().collect()).unwrap_or_default();
        sort(&mut groups);
        groups
    }

    /// Forgets a topic: a new one of its name starts at 0, and no group may be ahead of it.
    pub fn forget_topic(&mut self, topic: &str) {
        self.changes += u64::from(self.topics.remove(topic).is_some());
    }

    /// Forgets a group.
    pub fn forget_group(&mut self, group: &str) {
        for groups in self.topics.values_mut() {
            self.changes += u64::from(groups.remove(group).is_some());
        }
        self.topics.retain(|_, groups| !groups.is_empty());
    }

    /// Lowers offsets beyond the end of their queue, which a crash under asynchronous flushing can leave behind; how
    /// many there were.
    pub fn clamp(&mut self, end: impl Fn(&str, i32) -> i64) -> usize {
        let mut lowered = 0;
        for (topic, groups) in &mut self.topics {
            for (queue, offset) in groups.values_mut().flatten() {
                let end = end(topic, *queue);
                if *offset > end {
                    *offset = end;
                    lowered += 1;
                }
            }
        }
        lowered
    }

    /// Grows with every change: the saver compares it.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Every offset as `topic@group`, queue, offset.
    pub fn entries(&self) -> Vec<(String, &HashMap<i32, i64>)> {
        let mut entries = Vec::new();
        for (topic, groups) in &self.topics {
            for (group, queues) in groups {
                entries.push((format!("{topic}@{group}"), queues));
            }
        }
        entries
    }

    /// Takes an entry of a file. Entries without an `@` are left out.
    pub fn restore(&mut self, key: &str, queues: HashMap<i32, i64>) {
        let Some((topic, group)) = key.split_once('@') else { return };
        self.topics.entry(topic.into()).or_default().insert(group.into(), queues);
    }
}

/// What is known of a queue when a group without an offset asks for one.
#[derive(Clone, Copy, Debug)]
pub struct QueueAge {
    /// The queue's first offset.
    pub min: i64,
    /// Bytes of the log from the queue's first message to the end; 0 for an empty or unknown queue.
    pub bytes_behind: u64,
}

/// A group without an offset starts a *young* queue at 0, whatever it asked for: messages sent while its first member
/// starts are not lost that way. `None` (answer 22) leaves the choice to the client.
pub fn first_offset(age: QueueAge, young_bytes: u64, zero_if_not_found: bool) -> Option<i64> {
    (zero_if_not_found && age.min <= 0 && age.bytes_behind <= young_bytes).then_some(0)
}

impl Dispatcher {
    /// Stores a group's offset (code 15).
    ///
    /// # Errors
    /// In the 5.x profile an unknown group or topic.
    pub fn commit(&self, request: &UpdateOffsetRequest<'_>) -> Result<(), Refusal> {
        let UpdateOffsetRequest { consumer_group: group, topic, queue_id, commit_offset, .. } = request;
        if self.settings.compat == Compat::V5 {
            if self.groups.lock().find(group).is_none() {
                let remark = format!("group {group} not exist!");
                return Err(Refusal::new(answer::SUBSCRIPTION_GROUP_NOT_EXIST, remark));
            }
            if self.topics.lock().find(topic).is_none() {
                return Err(Refusal::new(answer::TOPIC_NOT_EXIST, format!("topic {topic} not exist!")));
            }
        }
        self.note_commit(group, topic, *queue_id, *commit_offset);
        Ok(())
    }

    /// Stores an offset that was checked; the save follows within seconds.
    ///
    /// An offset beyond the end of its queue is lowered to it. A member that lived through a power cut of this broker
    /// may have finished messages that the log has lost; their offsets are given out again, and a group committed
    /// beyond them would never see the new ones. Apache's broker stores such an offset as it is, and the group jumps
    /// over the messages.
    /// Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/offset/ConsumerOffsetManager.java
    pub(super) fn note_commit(&self, group: &str, topic: &str, queue: i32, offset: i64) {
        let (_, end) = self.queue_bounds(topic, queue);
        if offset > end {
            log::warn!(
                target: "windlass::broker",
                "commit beyond the end of the queue lowered: topic={topic} queue={queue} group={group} offset={offset} end={end}"
            );
        }
        let offset = offset.min(end);
        self.offsets.lock().commit(group, topic, queue, offset);
        self.arm_save();
    }

    /// A group's offset (code 14), or 0 in a young queue.
    ///
    /// # Errors
    /// QUERY_NOT_FOUND: the client starts by its own rule.
    pub fn committed(&self, request: &QueryOffsetRequest<'_>) -> Result<i64, Refusal> {
        let QueryOffsetRequest { consumer_group: group, topic, queue_id, set_zero_if_not_found, .. } = request;
        if let Some(offset) = self.offsets.lock().find(group, topic, *queue_id) {
            return Ok(offset);
        }
        let zero_if_not_found = set_zero_if_not_found.unwrap_or(true);
        first_offset(self.age(topic, *queue_id), self.settings.young_bytes, zero_if_not_found)
            .ok_or_else(|| Refusal::new(answer::QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"))
    }

    fn age(&self, topic: &str, queue: i32) -> QueueAge {
        let Some(queue) = self.store.find_queue(topic, queue) else { return QueueAge { min: 0, bytes_behind: 0 } };
        let (min, _) = self.store.bounds(&queue);
        let first = self.store.entry(&queue, min).map(|entry| entry.physical);
        let bytes_behind = first.map_or(0, |first| self.store.log_end().saturating_sub(first));
        QueueAge { min: min.0, bytes_behind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E-075.
    #[test]
    fn the_last_commit_wins_also_when_it_goes_back() {
        let mut offsets = Offsets::default();
        offsets.commit("g", "t", 0, 9);
        offsets.commit("g", "t", 0, 4);
        offsets.commit("g", "t", 1, 1);
        assert_eq!((offsets.find("g", "t", 0), offsets.find("g", "t", 1)), (Some(4), Some(1)));
        assert_eq!(
            (offsets.find("h", "t", 0), offsets.find("g", "u", 0), offsets.find("g", "t", 2)),
            (None, None, None)
        );
        assert_eq!(offsets.changes(), 3);
    }

    /// E-073, E-074.
    #[test]
    fn a_young_queue_starts_at_zero_and_an_aged_one_is_not_found() {
        let young = 100;
        assert_eq!(first_offset(QueueAge { min: 0, bytes_behind: 0 }, young, true), Some(0), "empty");
        assert_eq!(first_offset(QueueAge { min: 0, bytes_behind: 100 }, young, true), Some(0));
        assert_eq!(first_offset(QueueAge { min: 0, bytes_behind: 101 }, young, true), None, "behind the window");
        assert_eq!(first_offset(QueueAge { min: 1, bytes_behind: 0 }, young, true), None, "its start is gone");
        assert_eq!(first_offset(QueueAge { min: 0, bytes_behind: 0 }, young, false), None, "the client said so");
    }

    /// E-126.
    #[test]
    fn topics_and_groups_are_forgotten_whole() {
        let mut offsets = Offsets::default();
        for (group, topic) in [("g", "t"), ("h", "t"), ("g", "u")] {
            offsets.commit(group, topic, 0, 5);
        }
        assert_eq!(offsets.topics_of("g"), ["t".into(), "u".into()]);
        assert_eq!(offsets.groups_of("t"), ["g".into(), "h".into()]);
        offsets.forget_topic("t");
        assert_eq!(offsets.topics_of("g"), ["u".into()]);
        offsets.forget_group("g");
        assert_eq!(offsets.entries().len(), 0);
    }

    #[test]
    fn offsets_beyond_the_end_are_lowered_at_a_start() {
        let mut offsets = Offsets::default();
        offsets.restore("t@g", HashMap::from([(0, 9), (1, 3)]));
        offsets.restore("no group", HashMap::new());
        assert_eq!(offsets.clamp(|_, _| 5), 1);
        assert_eq!((offsets.find("g", "t", 0), offsets.find("g", "t", 1)), (Some(5), Some(3)));
    }
}
