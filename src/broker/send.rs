//! Sends (codes 10, 310, 320): which topic and queue a message goes to, what is added to it, what is refused.
//!
//! Called by `command.rs` for sockets and by the direct port on the sender's own thread. The checks stand in the order of
//! Apache's; the first that fails answers.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/processor/SendMessageProcessor.java

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;

use super::dispatch::{Dispatcher, FLUSH_WAIT, Refusal};
use super::session::{Outbox, Session, Ticket};
use super::settings::Compat;
use super::store::{AppendError, Appended, IndexBy, Member, NewMessage};
use super::topics::{Topic, is_closed_to_sends};
use crate::model::{DelayLevel, names};
use crate::wire::remoting::codes::{answer, sys_flag};
use crate::wire::remoting::properties::{self, Properties, names as key};
use crate::wire::remoting::send::SendRequest;
use crate::wire::remoting::{batch, message_id, record};
use crate::work::clock::Nanos;

/// Longest text of properties, with what the broker adds.
pub const PROPERTIES_MAX: usize = i16::MAX as usize;
/// The region every broker belongs to unless somebody says otherwise.
pub const REGION: &str = "DefaultRegion";
/// Bytes that the properties of a batch may add to its entries, all together: each entry gets a copy of them, and half a
/// million entries fit into the largest body.
const ENVELOPES_MAX: usize = 32 << 20;
/// The first version whose sends carry their own redelivery limit: 3.4.9.
const OWN_LIMIT_SINCE: i32 = 121;

/// The answer to a send.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SendReply {
    /// 0, or FLUSH_DISK_TIMEOUT: stored, but the disk has not confirmed it in time.
    pub code: i32,
    /// Place of the message in the log; of a batch, the first one's.
    pub physical: i64,
    /// Places of the other messages of a batch.
    pub more: Vec<i64>,
    /// Half of an offset id: the address under which the broker is reached.
    pub store_host: SocketAddr,
    /// The queue it went to.
    pub queue_id: i32,
    /// Its offset there; of a batch, the first one's.
    pub queue_offset: i64,
    /// The unique id of the message, in the 5.x profile.
    pub transaction_id: Option<String>,
}

impl SendReply {
    /// The offset id, or of a batch all of them, joined by commas.
    pub fn msg_id(&self) -> String {
        let mut ids = message_id::offset_id(self.store_host, self.physical);
        for physical in &self.more {
            ids.push(',');
            message_id::push_offset_id(&mut ids, self.store_host, *physical);
        }
        ids
    }
}

/// A send that was carried out.
#[derive(Debug)]
pub struct Sent {
    /// Its answer.
    pub reply: SendReply,
    /// End of its bytes in the log: with synchronous flushing the answer waits until the disk has them.
    pub end: u64,
}

/// A send that waits for the disk.
pub struct Waiting {
    /// Whose.
    pub session: Arc<Session>,
    /// Which request.
    pub ticket: Ticket,
    /// Its answer; none if it is a message that came back.
    pub reply: Option<SendReply>,
    /// End of its bytes in the log.
    pub end: u64,
    /// Answered by then in any case.
    pub until: Nanos,
}

/// What a send is to the dispatcher besides its header.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// Where it comes from.
    pub born_host: SocketAddr,
    /// The address under which the broker is reached from there.
    pub store_host: SocketAddr,
    /// The version the client announces.
    pub version: i32,
    /// It is told the unique id of its message again: a client of this process knows it.
    pub wants_id: bool,
}

thread_local! {
    /// Where a thread lays out what is added to the properties of a message: a send allocates nothing for it.
    static EXTRA: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Where a message goes, once all checks are done.
struct Place {
    topic: Arc<Topic>,
    queue: i32,
    /// A dead letter is never delayed.
    dead_letter: bool,
}

impl Dispatcher {
    /// Stores a message, or several of a batch: all or none.
    ///
    /// # Errors
    /// A code of the protocol with a text for people.
    pub fn send(
        &self,
        from: Sender,
        request: &SendRequest<'_>,
        body: &[u8],
        out: &mut Outbox,
    ) -> Result<Sent, Refusal> {
        let topic = self.topic_for_send(request)?;
        let place = self.place(topic, request, from)?;
        let sent = if request.batch.unwrap_or(false) {
            self.send_batch(from, request, body, &place)?
        } else {
            self.send_one(from, request, body, &place)?
        };
        self.wake(out);
        Ok(sent)
    }

    /// Keeps the answer of a send until the disk has its bytes. False if it has them already.
    pub fn wait_for_disk(&self, session: &Arc<Session>, ticket: Ticket, sent: &Sent) -> bool {
        self.wait_until(session, ticket, sent.end, || Some(sent.reply.clone()))
    }

    /// The same for what is answered by success alone and whose bytes end at `end`.
    pub fn done_waits_for_disk(&self, session: &Arc<Session>, ticket: Ticket, end: u64) -> bool {
        self.wait_until(session, ticket, end, || None)
    }

    fn wait_until(
        &self,
        session: &Arc<Session>,
        ticket: Ticket,
        end: u64,
        reply: impl FnOnce() -> Option<SendReply>,
    ) -> bool {
        if end <= self.store.durable() {
            return false;
        }
        let until = self.clock.now() + FLUSH_WAIT;
        self.waiting.lock().push_back(Waiting { session: session.clone(), ticket, reply: reply(), end, until });
        // The flush may have come between the two looks; then nobody else would ring.
        let now = self.clock.now();
        self.arm(if end <= self.store.durable() { now } else { until });
        true
    }

    fn topic_for_send(&self, request: &SendRequest<'_>) -> Result<Arc<Topic>, Refusal> {
        let (name, compat) = (&*request.topic, self.settings.compat);
        if let Some(topic) = self.topics.lock().find(name)
            && !is_closed_to_sends(name, compat)
        {
            return Ok(topic.clone());
        }
        names::check_topic(name).map_err(|error| Refusal::new(compat.invalid_parameter(), error.to_string()))?;
        if is_closed_to_sends(name, compat) {
            let remark = format!("Sending message to topic[{name}] is forbidden.");
            return Err(Refusal::new(answer::NO_PERMISSION, remark));
        }
        let now_ms = self.clock.wall_ms();
        let made = if names::group_of_retry_topic(name).is_some() {
            Some(self.topics.lock().create_for_group(name, 1, now_ms))
        } else {
            let queues = request.default_topic_queue_nums;
            self.topics.lock().create_by_send(name, &request.default_topic, queues, now_ms)
        };
        let topic = made.ok_or_else(|| {
            let remark = format!("topic[{name}] not exist, apply first please!");
            Refusal::new(answer::TOPIC_NOT_EXIST, remark)
        })?;
        log::info!(target: "windlass::broker", "topic made by a send: topic={name} queues={}", topic.write_queues);
        self.topics_changed();
        Ok(topic)
    }

    /// The queue, and whether a failed message has come back too often.
    fn place(&self, topic: Arc<Topic>, request: &SendRequest<'_>, from: Sender) -> Result<Place, Refusal> {
        let queues = topic.write_queues.max(topic.read_queues);
        if request.queue_id >= queues {
            let remark = format!("request queueId[{}] is illegal, topic has {queues} queues", request.queue_id);
            return Err(Refusal::new(self.settings.compat.invalid_parameter(), remark));
        }
        let group = names::group_of_retry_topic(&topic.name).map(str::to_owned);
        if let Some(group) = group
            && self.is_dead(&group, request, from)?
        {
            let topic = self.group_topic(&names::dlq_topic(&group), 1);
            return Ok(Place { topic, queue: 0, dead_letter: true });
        }
        let queue = if request.queue_id < 0 { self.any_queue(topic.write_queues) } else { request.queue_id };
        Ok(Place { topic, queue, dead_letter: false })
    }

    /// Whether a message that a client sends to its group's retry topic has failed too often.
    fn is_dead(&self, group: &str, request: &SendRequest<'_>, from: Sender) -> Result<bool, Refusal> {
        let settings = self.known_group(group)?;
        let own_limit = request.max_reconsume_times.filter(|_| from.version >= OWN_LIMIT_SINCE);
        let limit = own_limit.unwrap_or(settings.retry_max);
        let times = request.reconsume_times.unwrap_or(0);
        Ok(match self.settings.compat {
            Compat::V4 => times >= limit,
            Compat::V5 => times > limit || self.locks.lock().any_live(group, self.clock.now()),
        })
    }

    /// A retry or dead-letter topic, made when missing.
    pub(super) fn group_topic(&self, name: &str, queues: i32) -> Arc<Topic> {
        let mut topics = self.topics.lock();
        if let Some(topic) = topics.find(name) {
            return topic.clone();
        }
        let topic = topics.create_for_group(name, queues, self.clock.wall_ms());
        drop(topics);
        self.topics_changed();
        topic
    }

    /// Some queue of a topic, another one each time.
    pub(super) fn any_queue(&self, queues: i32) -> i32 {
        let turn = self.counters.next_queue();
        i32::try_from(turn % u64::try_from(queues.max(1)).unwrap_or(1)).unwrap_or(0)
    }

    fn send_one(&self, from: Sender, request: &SendRequest<'_>, body: &[u8], place: &Place) -> Result<Sent, Refusal> {
        let text = request.properties.as_deref().unwrap_or_default().as_bytes();
        self.check_body(body, place, text)?;
        let given = Properties::new(text);
        let mut extra = EXTRA.take();
        extra.clear();
        let sent = self.send_with(from, request, body, place, given, &mut extra);
        EXTRA.set(extra);
        sent
    }

    fn send_with(
        &self,
        from: Sender,
        request: &SendRequest<'_>,
        body: &[u8],
        place: &Place,
        given: Properties<'_>,
        extra: &mut Vec<u8>,
    ) -> Result<Sent, Refusal> {
        let made = self.own_properties(given, true, extra);
        let half = given.is_true(key::TRANSACTION);
        let level = if place.dead_letter || half { None } else { delay_level(given)? };
        let target = match level {
            _ if half => Some((names::HALF_TOPIC, 0)),
            Some(level) => Some((names::SCHEDULE_TOPIC, level.number() - 1)),
            None => None,
        };
        if target.is_some() {
            properties::push(extra, key::REAL_TOPIC, &place.topic.name);
            properties::push(extra, key::REAL_QUEUE, &place.queue.to_string());
        }
        // 4.9.x obeys WAIT and does not store it, with plain single sends only.
        let mut kept = Vec::new();
        let strips = self.settings.compat == Compat::V4 && target.is_none() && given.bytes(key::WAIT).is_some();
        let given = if strips {
            properties::push_without(&mut kept, given, &[key::WAIT]);
            Properties::new(&kept)
        } else {
            given
        };
        let (topic, queue) = target.unwrap_or((&place.topic.name, place.queue));
        self.check_properties(given.text().len() + extra.len())?;
        let sys = request.sys_flag & !sys_flag::TRANSACTION;
        let message = NewMessage {
            body,
            properties: [given.text(), extra],
            index: IndexBy::Properties,
            flag: request.flag,
            sys_flag: if place.topic.multi_tag { sys | sys_flag::MULTI_TAGS } else { sys },
            born_ms: request.born_ms,
            born_host: from.born_host,
            store_host: from.store_host,
            reconsume_times: request.reconsume_times.unwrap_or(0),
            prepared_offset: 0,
        };
        let appended = self.append(topic, queue, &message, level)?;
        self.counters.put(1, body.len());
        let told = from.wants_id && self.settings.compat == Compat::V5;
        let transaction_id = if told { made.or_else(|| given.find(key::UNIQ_KEY).map(str::to_owned)) } else { None };
        Ok(Sent {
            reply: SendReply {
                code: answer::SUCCESS,
                physical: place_of(&appended),
                more: Vec::new(),
                store_host: from.store_host,
                queue_id: place.queue,
                queue_offset: appended.queue_offset.0,
                transaction_id,
            },
            end: appended.end,
        })
    }

    /// Appends to a queue that is looked up by name; a delayed one is noted in its level.
    pub(super) fn append(
        &self,
        topic: &str,
        queue: i32,
        message: &NewMessage<'_>,
        level: Option<DelayLevel>,
    ) -> Result<Appended, Refusal> {
        let now_ms = self.clock.wall_ms();
        let delay_ms = level.map(|level| self.delays.lock().delay_ms(level));
        let target = self.store.queue(topic, queue);
        if delay_ms.is_some() {
            // A level that grows by the flush tells so too: it may have had no head.
            target.watch();
        }
        let mut appended = self.store.append(&target, message, now_ms);
        if matches!(appended, Err(AppendError::QueueGone)) {
            // The topic was deleted and made again between the look-up and the append.
            appended = self.store.append(&self.store.queue(topic, queue), message, now_ms);
        }
        let appended = appended.map_err(store_refusal)?;
        if let Some(delay_ms) = delay_ms {
            let due_ms = appended.store_ms.saturating_add(delay_ms);
            self.note_delayed(queue, appended.queue_offset, due_ms);
        }
        Ok(appended)
    }

    fn send_batch(&self, from: Sender, request: &SendRequest<'_>, body: &[u8], place: &Place) -> Result<Sent, Refusal> {
        let envelope = request.properties.as_deref().unwrap_or_default().as_bytes();
        let illegal = |remark: &str| Refusal::new(answer::MESSAGE_ILLEGAL, remark);
        let given = Properties::new(envelope);
        if given.bytes(key::TRANSACTION).is_some() || delay_level(given)?.is_some() {
            return Err(illegal("a batch may be neither transactional nor delayed"));
        }
        if request.sys_flag & sys_flag::TRANSACTION != 0 || place.dead_letter {
            return Err(illegal("a batch may be neither transactional nor a retry"));
        }
        if body.len() > self.settings.max_message_bytes {
            return Err(illegal("the batch is longer than a message may be"));
        }
        let queue = self.store.queue(&place.topic.name, place.queue);
        let entries: Vec<_> = batch::entries(body)
            .collect::<Result<_, _>>()
            .map_err(|error| Refusal::new(answer::SYSTEM_ERROR, error.to_string()))?;
        if entries.len().saturating_mul(envelope.len()) > ENVELOPES_MAX {
            return Err(illegal("the properties of the batch are too long for so many entries"));
        }
        let mut extras = Vec::with_capacity(entries.len());
        for entry in &entries {
            self.check_body(entry.body, place, entry.properties)?;
            let mut extra = Vec::with_capacity(160 + envelope.len());
            properties::push_without(&mut extra, given, &[]);
            self.own_properties(Properties::new(entry.properties), false, &mut extra);
            self.check_properties(entry.properties.len() + extra.len())?;
            extras.push(extra);
        }
        let members: Vec<Member<'_>> = entries
            .iter()
            .zip(&extras)
            .map(|(entry, extra)| {
                let message = NewMessage {
                    body: entry.body,
                    properties: [entry.properties, extra],
                    index: IndexBy::Properties,
                    flag: entry.flag,
                    sys_flag: request.sys_flag,
                    born_ms: request.born_ms,
                    born_host: from.born_host,
                    store_host: from.store_host,
                    reconsume_times: request.reconsume_times.unwrap_or(0),
                    prepared_offset: 0,
                };
                Member::Message(&queue, message)
            })
            .collect();
        let mut appended = Vec::with_capacity(members.len());
        self.store.append_group(&members, self.clock.wall_ms(), &mut appended).map_err(store_refusal)?;
        self.counters.put(appended.len(), body.len());
        let (Some(first), Some(last)) = (appended.first(), appended.last()) else {
            return Err(illegal("the batch is empty"));
        };
        Ok(Sent {
            reply: SendReply {
                code: answer::SUCCESS,
                physical: place_of(first),
                more: appended.iter().skip(1).map(place_of).collect(),
                store_host: from.store_host,
                queue_id: place.queue,
                queue_offset: first.queue_offset.0,
                transaction_id: None,
            },
            end: last.end,
        })
    }

    fn check_body(&self, body: &[u8], place: &Place, text: &[u8]) -> Result<(), Refusal> {
        let limit = self.settings.max_message_bytes;
        let len = match self.settings.compat {
            Compat::V4 => record::RECORD_MIN + body.len() + place.topic.name.len() + text.len(),
            Compat::V5 => body.len(),
        };
        if len > limit {
            let remark = format!("the message has {len} bytes, more than the {limit} that are allowed");
            return Err(Refusal::new(answer::MESSAGE_ILLEGAL, remark));
        }
        if body.is_empty() && self.settings.compat == Compat::V5 {
            return Err(Refusal::new(answer::SYSTEM_ERROR, "the message has no body"));
        }
        Ok(())
    }

    fn check_properties(&self, len: usize) -> Result<(), Refusal> {
        if len > PROPERTIES_MAX {
            let remark = format!("the properties have {len} bytes, more than {PROPERTIES_MAX}");
            return Err(Refusal::new(answer::MESSAGE_ILLEGAL, remark));
        }
        Ok(())
    }

    /// Appends what a broker adds to every message, and an id if the sender gave none and one is wanted. Gives that.
    fn own_properties(&self, given: Properties<'_>, wants_id: bool, extra: &mut Vec<u8>) -> Option<String> {
        let made = (wants_id && given.bytes(key::UNIQ_KEY).is_none()).then(|| {
            let id = self.counters.unique_id(self.clock.wall_ms());
            properties::push(extra, key::UNIQ_KEY, id.as_str());
            id.to_string()
        });
        if self.settings.compat == Compat::V5 {
            properties::push(extra, key::MSG_REGION, REGION);
            properties::push(extra, key::TRACE_ON, "true");
        }
        properties::push(extra, key::CLUSTER, &self.settings.cluster);
        made
    }
}

/// The delay level a message asks for; none if it is 0 or absent.
///
/// # Errors
/// Text that is no number, as Apache's broker answers its exception.
pub(super) fn delay_level(given: Properties<'_>) -> Result<Option<DelayLevel>, Refusal> {
    let level = given.number(key::DELAY).map_err(|error| Refusal::new(answer::SYSTEM_ERROR, error.to_string()))?;
    Ok(level.and_then(|level| DelayLevel::new(i32::try_from(level).unwrap_or(i32::MAX))))
}

/// Place of a stored message in the log, as the wire has it.
fn place_of(appended: &Appended) -> i64 {
    i64::try_from(appended.physical).unwrap_or(i64::MAX)
}

/// What a client is told when the store refuses.
pub(super) fn store_refusal(error: AppendError) -> Refusal {
    let code = match &error {
        AppendError::TooLong { .. } => answer::MESSAGE_ILLEGAL,
        AppendError::QueueGone => answer::TOPIC_NOT_EXIST,
        _ => answer::SERVICE_NOT_AVAILABLE,
    };
    Refusal::new(code, format!("the message was not stored: {error}"))
}
