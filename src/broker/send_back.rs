//! Failed messages that come back (code 36): to the group's retry topic after a delay, or to its dead letters.
//!
//! Called by `command.rs` and the direct port.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/processor/AbstractSendMessageProcessor.java

use std::sync::Arc;

use super::dispatch::{Dispatcher, Refusal};
use super::send::{PROPERTIES_MAX, Sender};
use super::session::Outbox;
use super::store::{IndexBy, NewMessage};
use super::topics::{PERM_WRITE, Topic};
use crate::model::{DelayLevel, names};
use crate::wire::remoting::codes::answer;
use crate::wire::remoting::properties::{self, names as key};
use crate::wire::remoting::record::{Check, Record};
use crate::wire::remoting::send::SendBackRequest;
use crate::work::pace::Pace;

/// The level of a message that comes back for the first time: 10 s.
const FIRST_LEVEL: i32 = 3;

impl Dispatcher {
    /// Stores a failed message again for its group. The answer waits for the disk as that of a send does: gives the end
    /// of its bytes in the log, or 0 if it was dropped.
    ///
    /// # Errors
    /// A code of the protocol with a text for people.
    pub fn send_back(&self, from: Sender, request: &SendBackRequest<'_>, out: &mut Outbox) -> Result<u64, Refusal> {
        let settings = self.known_group(&request.group)?;
        if settings.retry_queues <= 0 {
            return Ok(0);
        }
        let retry = self.group_topic(&names::retry_topic(&request.group), settings.retry_queues);
        if retry.perm & PERM_WRITE == 0 {
            let remark = format!("the topic[{}] sending message is forbidden", retry.name);
            return Err(Refusal::new(answer::NO_PERMISSION, remark));
        }
        let failed =
            || Refusal::new(answer::SYSTEM_ERROR, format!("look message by offset failed, {}", request.offset));
        let frame = u64::try_from(request.offset).ok().and_then(|at| self.store.record_at(at)).ok_or_else(failed)?;
        let frame = frame.bytes();
        let stored = Record::read(frame, Check::Lengths).map_err(|_| failed())?;
        let times = stored.reconsume_times;
        let limit = request.max_reconsume_times.unwrap_or(settings.retry_max);
        let mut way = if times >= limit || request.delay_level < 0 {
            self.dead_letter(&request.group)
        } else {
            let queue = self.any_queue(settings.retry_queues);
            Way { topic: retry, queue, level: level_of(request.delay_level, times) }
        };
        let mut text = returned_properties(&stored, frame, &way);
        if text.len() > PROPERTIES_MAX && way.level.is_some() {
            // No room for what a retry adds: it would be refused for ever, so it ends here.
            static LONG: Pace = Pace::new();
            if let Some(times) = LONG.tell() {
                let group = &request.group;
                log::warn!(target: "windlass::broker", "properties too long for a retry, dead letter: group={group} times={times}");
            }
            way = self.dead_letter(&request.group);
            text = returned_properties(&stored, frame, &way);
        }
        let message = NewMessage {
            body: stored.body(frame),
            properties: [&text, &[]],
            index: IndexBy::Properties,
            flag: stored.flag,
            sys_flag: stored.sys_flag,
            born_ms: stored.born_ms,
            born_host: stored.born_host(frame),
            store_host: from.store_host,
            reconsume_times: times.saturating_add(1),
            prepared_offset: 0,
        };
        let (topic, queue) = match way.level {
            Some(level) => (names::SCHEDULE_TOPIC, level.number() - 1),
            None => (&*way.topic.name, way.queue),
        };
        let appended = self.append(topic, queue, &message, way.level)?;
        self.counters.sent_back();
        self.wake(out);
        Ok(appended.end)
    }

    fn dead_letter(&self, group: &str) -> Way {
        Way { topic: self.group_topic(&names::dlq_topic(group), 1), queue: 0, level: None }
    }
}

/// Where a message that comes back goes.
struct Way {
    topic: Arc<Topic>,
    queue: i32,
    /// After which wait; none for a dead letter.
    level: Option<DelayLevel>,
}

/// The level a client asks for; 0 leaves it to the broker, which waits longer each time.
fn level_of(asked: i32, times: i32) -> Option<DelayLevel> {
    DelayLevel::new(if asked == 0 { FIRST_LEVEL.saturating_add(times) } else { asked })
}

/// The properties of a message that comes back. Those of its last delay are replaced; where it was first and under which
/// id stays what it was at the first failure. What a broker added for its own purposes goes if the room is needed.
fn returned_properties(stored: &Record, frame: &[u8], way: &Way) -> Vec<u8> {
    let text = returned_without(stored, frame, way, &[]);
    if text.len() <= PROPERTIES_MAX {
        return text;
    }
    returned_without(stored, frame, way, &[key::MSG_REGION, key::TRACE_ON, key::CLUSTER])
}

fn returned_without(stored: &Record, frame: &[u8], way: &Way, more: &[&str]) -> Vec<u8> {
    let old = stored.properties(frame);
    let mut dropped = vec![key::DELAY, key::REAL_TOPIC, key::REAL_QUEUE, key::WAIT];
    dropped.extend_from_slice(more);
    let mut text = Vec::with_capacity(old.text().len() + 160);
    properties::push_without(&mut text, old, &dropped);
    if old.bytes(key::RETRY_TOPIC).is_none() {
        properties::push(&mut text, key::RETRY_TOPIC, &String::from_utf8_lossy(stored.topic(frame)));
    }
    if old.bytes(key::ORIGIN_MESSAGE_ID).is_none() {
        properties::push(&mut text, key::ORIGIN_MESSAGE_ID, &stored.offset_id(frame));
    }
    properties::push(&mut text, key::WAIT, "false");
    if let Some(level) = way.level {
        properties::push(&mut text, key::DELAY, &level.number().to_string());
        properties::push(&mut text, key::REAL_TOPIC, &way.topic.name);
        properties::push(&mut text, key::REAL_QUEUE, &way.queue.to_string());
    }
    text
}
