//! Delivery of delayed messages: each is stored again under its real topic when it is due, exactly once.
//!
//! [`Dispatcher::turn`] runs it. The copy and the mark that says so are one group of the log, so that a crash at any
//! point leaves both or none. Which head is due when is decided in `delay.rs`.

use std::sync::Arc;

use super::delay::Due;
use super::dispatch::Dispatcher;
use super::store::{AppendError, IndexBy, Mark, Member, NewMessage, StoreQueue};
use super::topics::{MOST_QUEUES, PERM_READ, PERM_WRITE, TEMPLATE_QUEUES, Topic};
use crate::model::{QueueOffset, names};
use crate::wire::remoting::properties::names as key;
use crate::wire::remoting::record::{Check, Record};

/// Most messages delivered in one turn; the rest follow in the next, so that a burst does not stop the loop.
const PER_TURN: usize = 256;

/// What came of one delivery.
enum Delivered {
    /// Stored, or not deliverable and given up: the next one follows.
    Done,
    /// The store refused: again in a moment.
    Refused,
}

impl Dispatcher {
    /// A delayed message was stored: its level may have a new head.
    pub(super) fn note_delayed(&self, queue: i32, offset: QueueOffset, due_ms: i64) {
        let is_head = self.delays.lock().stored(queue, offset.0, due_ms);
        if is_head {
            self.arm_ms(due_ms);
        }
    }

    /// Finds the heads of all levels after a start.
    pub(super) fn restore_delays(&self) {
        for queue in 0..super::delay::LEVELS as i32 {
            let Some(level) = self.store.find_queue(names::SCHEDULE_TOPIC, queue) else { continue };
            let (min, max) = self.store.bounds(&level);
            let next = self.store.delay_position(queue).clamp(min, max).0;
            let head = self.due_ms(&level, next);
            self.delays.lock().restore(queue, next, head);
        }
    }

    /// Delivers what is due, a bounded number.
    pub(super) fn deliver_delayed(&self) {
        for _ in 0..PER_TURN {
            let now_ms = self.clock.wall_ms();
            let due = self.delays.lock().due(now_ms);
            let Some(due) = due else { return };
            match self.deliver(due, now_ms) {
                Delivered::Done => {
                    self.delays.lock().delivered(due.queue, due.offset, None);
                    self.look_for_head(due.queue);
                }
                Delivered::Refused => self.delays.lock().refused(due.queue, now_ms),
            }
        }
    }

    /// Finds the head of a level that has none, if there is a message by now.
    pub(super) fn look_for_head(&self, queue: i32) {
        let next = self.delays.lock().position(queue);
        let level = self.store.find_queue(names::SCHEDULE_TOPIC, queue);
        if let Some(due_ms) = level.and_then(|level| self.due_ms(&level, next)) {
            self.note_delayed(queue, QueueOffset(next), due_ms);
        }
    }

    /// When a waiting message is due: the index holds that in place of its store time.
    fn due_ms(&self, level: &Arc<StoreQueue>, offset: i64) -> Option<i64> {
        self.store.entry(level, QueueOffset(offset)).map(|entry| entry.time_ms)
    }

    /// After a power cut the file of topics may be older than the log: a topic that only delayed messages speak of is
    /// made again for the first that is due. False for one that was deleted after the message at `physical` was stored.
    fn topic_of_the_log(&self, topic: &str, queue: i32, physical: u64) -> bool {
        if self.store.deleted_at(topic).is_some_and(|at| at > physical) {
            return false;
        }
        // How many queues it had is not known; a template's number is what a topic made by a send has at most.
        let queues = queue.saturating_add(1).clamp(TEMPLATE_QUEUES, MOST_QUEUES);
        self.topics.lock().change(Topic::new(topic, queues, PERM_READ | PERM_WRITE), self.clock.wall_ms());
        self.topics_changed();
        log::warn!(target: "windlass::broker", "topic of a delayed message was not known, made again: topic={topic} queues={queues}");
        true
    }

    fn deliver(&self, due: Due, now_ms: i64) -> Delivered {
        let place = format!("level={} offset={}", due.queue + 1, due.offset);
        let level = self.store.find_queue(names::SCHEDULE_TOPIC, due.queue);
        let Some(level) = level else { return Delivered::Done };
        if QueueOffset(due.offset) >= self.store.bounds(&level).1 {
            // Appended and not durable yet: it may not be seen before it is.
            return Delivered::Refused;
        }
        let entry = self.store.entry(&level, QueueOffset(due.offset));
        let entry_at = entry.map_or(0, |entry| entry.physical);
        let frame = entry.and_then(|entry| self.store.record_at(entry.physical));
        let Some(frame) = frame else {
            log::warn!(target: "windlass::broker", "delayed message is gone, left out: {place}");
            return Delivered::Done;
        };
        let Ok(stored) = Record::read(frame.bytes(), Check::Lengths) else {
            log::error!(target: "windlass::broker", "delayed message cannot be read, left out: {place}");
            return Delivered::Done;
        };
        let properties = stored.properties(frame.bytes());
        let topic = properties.find(key::REAL_TOPIC);
        let queue = properties.number(key::REAL_QUEUE).ok().flatten().and_then(|id| i32::try_from(id).ok());
        let (Some(topic), Some(queue)) = (topic, queue) else {
            log::error!(target: "windlass::broker", "delayed message names no topic, left out: {place}");
            return Delivered::Done;
        };
        let known = self.topics.lock().find(topic).is_some();
        if !known && self.retry_topic_on_demand(topic).is_none() && !self.topic_of_the_log(topic, queue, entry_at) {
            log::warn!(target: "windlass::broker", "topic of a delayed message is gone, left out: topic={topic} {place}");
            return Delivered::Done;
        }
        let message = NewMessage {
            body: stored.body(frame.bytes()),
            properties: [properties.text(), &[]],
            index: IndexBy::Properties,
            flag: stored.flag,
            sys_flag: stored.sys_flag,
            born_ms: stored.born_ms,
            born_host: stored.born_host(frame.bytes()),
            store_host: stored.store_host(frame.bytes()),
            reconsume_times: stored.reconsume_times,
            prepared_offset: stored.prepared_offset,
        };
        let target = self.store.queue(topic, queue);
        let mark = Mark::DelayDelivered { level_queue: due.queue, offset: due.offset };
        let members = [Member::Message(&target, message), Member::Mark(mark)];
        match self.store.append_group(&members, now_ms, &mut Vec::with_capacity(2)) {
            Ok(()) => Delivered::Done,
            Err(AppendError::TooLong { .. }) => {
                log::error!(target: "windlass::broker", "delayed message is too large, left out: {place}");
                Delivered::Done
            }
            Err(error) => {
                log::warn!(target: "windlass::broker", "delayed message waits for the store: {place} error={error}");
                Delivered::Refused
            }
        }
    }
}
