//! Failed messages that come back (code 36): to the group's retry topic after a delay, or to its dead letters.
//!
//! Called by `command.rs` and the direct port.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/processor/AbstractSendMessageProcessor.java

use super::dispatch::{Dispatcher, Refusal};
use super::send::Sender;
use super::session::Outbox;
use super::store::{IndexBy, NewMessage};
use super::topics::PERM_WRITE;
use crate::model::{DelayLevel, names};
use crate::wire::remoting::codes::answer;
use crate::wire::remoting::properties::{self, names as key};
use crate::wire::remoting::record::{Check, Record};
use crate::wire::remoting::send::SendBackRequest;

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
        let dead = times >= limit || request.delay_level < 0;
        let level = match request.delay_level {
            _ if dead => None,
            0 => DelayLevel::new(FIRST_LEVEL.saturating_add(times)),
            level => DelayLevel::new(level),
        };
        let (topic, queue) = if dead {
            (self.group_topic(&names::dlq_topic(&request.group), 1), 0)
        } else {
            let queue = self.any_queue(settings.retry_queues);
            (retry, queue)
        };
        let text = returned_properties(&stored, frame, level, &topic.name, queue);
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
        let target = match level {
            Some(level) => (names::SCHEDULE_TOPIC, level.number() - 1),
            None => (&*topic.name, queue),
        };
        let appended = self.append(target.0, target.1, &message, level)?;
        self.counters.sent_back();
        self.wake(out);
        Ok(appended.end)
    }
}

/// The properties of a message that comes back. Those of its last delay are replaced; where it was first and under which
/// id stays what it was at the first failure.
fn returned_properties(stored: &Record, frame: &[u8], level: Option<DelayLevel>, topic: &str, queue: i32) -> Vec<u8> {
    let old = stored.properties(frame);
    let mut text = Vec::with_capacity(old.text().len() + 160);
    properties::push_without(&mut text, old, &[key::DELAY, key::REAL_TOPIC, key::REAL_QUEUE, key::WAIT]);
    if old.bytes(key::RETRY_TOPIC).is_none() {
        properties::push(&mut text, key::RETRY_TOPIC, &String::from_utf8_lossy(stored.topic(frame)));
    }
    if old.bytes(key::ORIGIN_MESSAGE_ID).is_none() {
        properties::push(&mut text, key::ORIGIN_MESSAGE_ID, &stored.offset_id(frame));
    }
    properties::push(&mut text, key::WAIT, "false");
    if let Some(level) = level {
        properties::push(&mut text, key::DELAY, &level.number().to_string());
        properties::push(&mut text, key::REAL_TOPIC, topic);
        properties::push(&mut text, key::REAL_QUEUE, &queue.to_string());
    }
    text
}
