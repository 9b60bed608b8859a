//! Handing on what failed: back to the broker, which delivers it again later or keeps it as a dead letter.
//!
//! First by a send-back (36) to the queue's master; where that is refused or cannot be sent, by an ordinary send to the
//! group's retry topic; where that fails too, by delivering the message here once more after a while. A send-back whose
//! answer never came may have been done, so it is not followed by a send, which would make a second copy (B-129). Until a
//! message is handed on it holds the commit point back. No worker waits for any of it (B-136).
//!
//! Source: apache/rocketmq@rocketmq-all-4.9.3
//! client/src/main/java/org/apache/rocketmq/client/impl/consumer/DefaultMQPushConsumerImpl.java (`sendMessageBack`)

use std::sync::Arc;

use super::group::ConsumerId;
use super::pulled::Pulled;
use crate::consume::chunk::{Epoch, Failed};
use crate::consume::claim::Claim as Work;
use crate::consume::listener::Outcome;
use crate::model::{Queue, names};
use crate::net::Out;
use crate::rocketmq::core::{Core, Purpose, Timer};
use crate::rocketmq::events::Event;
use crate::rocketmq::port::{Answer, Ask, CallError, Target};
use crate::wire::remoting::codes::{request, sys_flag};
use crate::wire::remoting::properties::{NAME_END, Properties, VALUE_END, names as property};
use crate::wire::remoting::record::Record;
use crate::wire::remoting::send::{SendBackRequest, SendRequest};
use crate::work::clock::Nanos;

/// Messages on their way back at the same time; the others wait. Enough to keep a broker busy, few enough not to drown
/// one that is in trouble.
const MOST_OUT: usize = 64;
/// The delay level of the first redelivery; each further one is a level higher.
const FIRST_LEVEL: i32 = 3;
/// Dead letter at once.
const DEAD_LETTER: i32 = -1;

/// A message on its way back.
pub struct SendBack {
    group: ConsumerId,
    epoch: Epoch,
    queue: Queue,
    work: Arc<Work<Pulled>>,
    failed: Failed<Pulled>,
    level: i32,
    /// It is being sent to the retry topic, since a send-back was refused.
    by_send: bool,
}

impl SendBack {
    fn record(&self) -> Option<(&Record, &[u8])> {
        let batch = &self.failed.batch;
        Some((batch.records.get(self.failed.at as usize)?, batch.frame.bytes()))
    }

    /// How often it has been delivered in vain before this time.
    fn times(&self) -> i32 {
        let local = i32::try_from(self.failed.attempt).unwrap_or(i32::MAX);
        self.record().map_or(0, |(record, _)| record.reconsume_times.max(0)).saturating_add(local)
    }
}

impl Core {
    /// A handler has failed a message, or was given up over it.
    pub(in crate::rocketmq) fn send_back(
        &mut self,
        epoch: Epoch,
        work: &Arc<Work<Pulled>>,
        failed: Failed<Pulled>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let Some(claim) = self.claims.get(&epoch) else { return };
        let level = match failed.outcome {
            Outcome::RetryAfter(level) => level.number(),
            Outcome::DeadLetter => DEAD_LETTER,
            Outcome::Retry | Outcome::Done => 0,
        };
        let (group, queue) = (claim.group, claim.queue.clone());
        let mut back = SendBack { group, epoch, queue, work: Arc::clone(work), failed, level, by_send: false };
        // Deliveries of this client alone are no broker's business, but they count.
        if back.times() >= self.max_redeliveries(group) {
            back.level = DEAD_LETTER;
        }
        self.send_backs.push_back(back);
        self.send_backs_on(now, out);
    }

    fn max_redeliveries(&self, group: ConsumerId) -> i32 {
        let most = self.groups.get(&group).map_or(16, |group| group.spec.settings.max_redeliveries);
        i32::try_from(most).unwrap_or(i32::MAX)
    }

    fn send_backs_on(&mut self, now: Nanos, out: &mut Out<Timer>) {
        while self.send_backs_out < MOST_OUT {
            let Some(back) = self.send_backs.pop_front() else { return };
            self.send_backs_out += 1;
            self.send_one_back(back, now, out);
        }
    }

    fn send_one_back(&mut self, back: SendBack, now: Nanos, out: &mut Out<Timer>) {
        let Some(group) = self.groups.get(&back.group).map(|group| Arc::clone(&group.spec.group)) else {
            // Its consumer has ended, and the claim with it.
            self.send_backs_out -= 1;
            return;
        };
        let max = self.max_redeliveries(back.group);
        let queue = back.queue.clone();
        let Some((record, frame)) = back.record() else {
            self.send_backs_out -= 1;
            return;
        };
        let Some(master) = self.route(&queue.topic).and_then(|route| route.master(&queue.broker)).cloned() else {
            self.send_to_retry_topic(back, now, out);
            return;
        };
        let properties = record.properties(frame);
        let origin = properties.find(property::ORIGIN_MESSAGE_ID).or_else(|| properties.find(property::UNIQ_KEY));
        let fields = SendBackRequest {
            offset: record.physical_offset,
            group: (&*group).into(),
            delay_level: back.level,
            origin_msg_id: origin.map(|id| id.to_owned().into()),
            origin_topic: Some(origin_topic(record, frame).to_owned().into()),
            unit_mode: false,
            max_reconsume_times: Some(max),
            broker_name: Some((&*queue.broker).into()),
        };
        let ask = Ask::of(request::CONSUMER_SEND_MSG_BACK, &fields);
        let timeout = self.context.settings.timing.offset;
        self.ask(Target::Broker(&master), &ask, Purpose::SendBack(Box::new(back)), timeout, now, out);
    }

    /// The way for a message whose broker does not take it back: a copy to the group's retry topic.
    fn send_to_retry_topic(&mut self, mut back: SendBack, now: Nanos, out: &mut Out<Timer>) {
        back.by_send = true;
        let Some(group) = self.groups.get(&back.group).map(|group| Arc::clone(&group.spec.group)) else {
            self.send_backs_out -= 1;
            return;
        };
        let (topic, max) = (names::retry_topic(&group), self.max_redeliveries(back.group));
        self.seed = self.seed.wrapping_add(1);
        let seed = self.seed as usize;
        let to = self.route(&topic).and_then(|route| {
            let at = seed.checked_rem(route.publish.len())?;
            route.publish.get(at).map(|to| (to.queue.id, Arc::clone(&to.addr)))
        });
        let (Some((queue_id, addr)), Some((record, frame))) = (to, back.record()) else {
            self.route_doubted(&topic.as_str().into(), now, out);
            let error = CallError::NoAddress { of: topic };
            self.deliver_here_again(back, &error, now, out);
            return;
        };
        // Above the most the broker makes a dead letter of it, from 5.0 on; older ones do so at the most already.
        let times = if back.level < 0 { max.saturating_add(1) } else { back.times().saturating_add(1) };
        let level = if back.level > 0 { back.level } else { FIRST_LEVEL.saturating_add(back.times()).min(18) };
        let properties = retry_properties(record, frame, times, max, level);
        let request = SendRequest {
            producer_group: names::INNER_PRODUCER.into(),
            topic: topic.as_str().into(),
            default_topic: names::AUTO_CREATE_TOPIC.into(),
            default_topic_queue_nums: 4,
            queue_id,
            sys_flag: record.sys_flag & (sys_flag::COMPRESSED | sys_flag::COMPRESSION | sys_flag::MULTI_TAGS),
            born_ms: record.born_ms,
            flag: record.flag,
            properties: Some(String::from_utf8_lossy(&properties).into_owned().into()),
            reconsume_times: Some(times),
            unit_mode: Some(false),
            max_reconsume_times: Some(max),
            batch: Some(false),
            broker_name: None,
        };
        let body = record.body(frame).to_vec();
        let ask = Ask::Send { request: &request, body: &body };
        let timeout = self.context.settings.timing.request;
        self.ask(Target::Broker(&addr), &ask, Purpose::SendBack(Box::new(back)), timeout, now, out);
    }

    pub(in crate::rocketmq) fn send_back_answered(
        &mut self,
        back: SendBack,
        result: Result<Answer, CallError>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let result = match result {
            Ok(answer) if back.by_send => answer.sent().map(drop),
            Ok(answer) => answer.done(),
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => self.handed_on(back, now, out),
            Err(error) if back.by_send || error.maybe_done() => self.deliver_here_again(back, &error, now, out),
            Err(error) => {
                log::debug!(target: "windlass::retry", "send-back refused, sending a copy: queue={} offset={} error={error}",
                    back.queue, back.failed.offset);
                self.send_to_retry_topic(back, now, out);
            }
        }
        self.send_backs_on(now, out);
    }

    fn handed_on(&mut self, back: SendBack, now: Nanos, out: &mut Out<Timer>) {
        self.send_backs_out -= 1;
        let counted = back.work.queue().handed_on(&back.failed);
        let dead = back.level < 0 || back.times() >= self.max_redeliveries(back.group);
        if counted && dead {
            let group = self.groups.get(&back.group).map(|group| Arc::clone(&group.spec.group));
            if let Some(group) = group {
                let reason = back.failed.reason.clone();
                let event = Event::DeadLetter { group, queue: back.queue.clone(), offset: back.failed.offset, reason };
                self.tell(back.group, event);
            }
        }
        self.claim_news(back.epoch, now, out);
    }

    /// It could not be handed on: it is delivered here once more, after a while.
    fn deliver_here_again(&mut self, back: SendBack, error: &CallError, now: Nanos, out: &mut Out<Timer>) {
        self.send_backs_out -= 1;
        if let Some(group) = self.groups.get(&back.group).map(|group| Arc::clone(&group.spec.group)) {
            let (queue, offset) = (back.queue.clone(), back.failed.offset);
            self.tell(back.group, Event::SendBackFailed { group, queue, offset, detail: error.to_string() });
        }
        let at = now + self.context.settings.timing.local_retry;
        self.local_retries.push_back((at, back));
        self.send_back_alarm.at(at, Timer::SendBacks, out);
    }

    pub(in crate::rocketmq) fn local_retries_due(&mut self, now: Nanos, out: &mut Out<Timer>) {
        self.send_back_alarm.rang(now);
        while self.local_retries.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, back)) = self.local_retries.pop_front() else { break };
            // What is sent back counts as held, so that the claim is looked after all the time.
            back.work.again(back.failed, now);
        }
        if let Some((at, _)) = self.local_retries.front() {
            self.send_back_alarm.at(*at, Timer::SendBacks, out);
        }
    }
}

/// The topic a message was sent to first.
fn origin_topic<'f>(record: &Record, frame: &'f [u8]) -> &'f str {
    let stored = std::str::from_utf8(record.topic(frame)).unwrap_or_default();
    record.properties(frame).find(property::RETRY_TOPIC).unwrap_or(stored)
}

/// The properties of a copy for the retry topic. What the handler sees is not touched (B-137).
fn retry_properties(record: &Record, frame: &[u8], times: i32, max: i32, level: i32) -> Vec<u8> {
    const REPLACED: [&str; 6] = [
        property::TRANSACTION,
        property::DELAY,
        property::RETRY_TOPIC,
        property::ORIGIN_MESSAGE_ID,
        property::RECONSUME_TIME,
        property::MAX_RECONSUME_TIMES,
    ];
    let properties: Properties<'_> = record.properties(frame);
    let mut text = Vec::with_capacity(properties.text().len() + 128);
    let mut push = |name: &[u8], value: &[u8]| {
        text.extend_from_slice(name);
        text.push(NAME_END);
        text.extend_from_slice(value);
        text.push(VALUE_END);
    };
    for (name, value) in properties.iter() {
        if !REPLACED.iter().any(|replaced| replaced.as_bytes() == name) {
            push(name, value);
        }
    }
    let origin = properties.find(property::ORIGIN_MESSAGE_ID).or_else(|| properties.find(property::UNIQ_KEY));
    if let Some(origin) = origin {
        push(property::ORIGIN_MESSAGE_ID.as_bytes(), origin.as_bytes());
    }
    push(property::RETRY_TOPIC.as_bytes(), origin_topic(record, frame).as_bytes());
    push(property::RECONSUME_TIME.as_bytes(), times.to_string().as_bytes());
    push(property::MAX_RECONSUME_TIMES.as_bytes(), max.to_string().as_bytes());
    push(property::DELAY.as_bytes(), level.to_string().as_bytes());
    text
}
