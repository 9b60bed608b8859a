//! Pulls (code 11): which messages a group gets, when it has to wait, and what it is told otherwise.
//!
//! Called by `command.rs` for sockets and by the direct port. A pull that finds nothing may be held (`hold.rs`); the
//! append, the end of its time or the flush then answers it through its session.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/processor/PullMessageProcessor.java

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::dispatch::{Dispatcher, Refusal};
use super::hold::{Held, Wants};
use super::members::tag_hashes;
use super::session::{Delivery, Outbox, Session, Ticket};
use super::settings::Compat;
use super::store::{Cold, Filter, Limits, Status, StoreQueue};
use super::topics::{PERM_READ, Topic};
use crate::model::{QueueOffset, names};
use crate::wire::frame::Frame;
use crate::wire::remoting::codes::{answer, pull_flag};
use crate::wire::remoting::group::MessageModel;
use crate::wire::remoting::pull::PullRequest;
use crate::work::clock::Nanos;

/// Longest time a pull may be held, whatever the client asks for: beyond it a client would have given up anyway.
pub const HOLD_MAX: Duration = Duration::from_secs(120);
/// Most pulls that wait at a time; what comes beyond is told at once that there is nothing, so that no peer can fill the
/// memory with requests.
pub const HELD_MAX: usize = 100_000;
/// Most entries one pull looks at; a filtered pull that finds nothing in them goes on at the next.
const ENTRIES_MAX: usize = 64 << 10;

/// The answer to a pull.
#[derive(Clone)]
pub struct PullReply {
    /// 0, 19, 20, 21, or a refusal.
    pub code: i32,
    /// The status by its name in Apache's broker, or what is wrong.
    pub remark: Cow<'static, str>,
    /// Where to go on.
    pub next: i64,
    /// First offset of the queue.
    pub min: i64,
    /// One past the last offset of the queue.
    pub max: i64,
    /// Stored messages, by reference into the log.
    pub frames: Vec<Frame>,
}

impl std::fmt::Debug for PullReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { code, remark, next, min, max, frames } = self;
        write!(f, "PullReply {{ {code} {remark}, next {next}, min {min}, max {max}, {} frames }}", frames.len())
    }
}

/// How a pull went.
#[derive(Debug)]
pub enum Pulled {
    /// Answered.
    Now(PullReply),
    /// It waits; the answer comes as [`Delivery::Pulled`].
    Held,
    /// The messages are not in memory: [`Dispatcher::pull_cold`] on a thread that may wait for the disk.
    Cold(Box<HeldPull>),
}

/// A pull that can be run again.
pub struct HeldPull {
    session: Arc<Session>,
    ticket: Ticket,
    topic: Arc<Topic>,
    queue: Arc<StoreQueue>,
    queue_id: i32,
    offset: i64,
    messages: usize,
    bytes: usize,
    wants: Wants,
}

impl std::fmt::Debug for HeldPull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeldPull {{ {}/{} from {} }}", self.topic.name, self.queue_id, self.offset)
    }
}

impl Filter for Wants {
    fn entry(&self, tag: i32) -> bool {
        match self {
            Wants::All => true,
            Wants::Tags(hashes) => hashes.binary_search(&tag).is_ok(),
        }
    }
}

impl Dispatcher {
    /// Answers a pull, or holds it.
    ///
    /// # Errors
    /// A code of the protocol with a text for people.
    pub fn pull(
        &self,
        session: &Arc<Session>,
        ticket: Ticket,
        request: &PullRequest<'_>,
        out: &mut Outbox,
    ) -> Result<Pulled, Refusal> {
        let topic = self.check_pull(request)?;
        if request.sys_flag & pull_flag::COMMIT_OFFSET != 0 && request.commit_offset >= 0 {
            let offset = request.commit_offset;
            self.note_commit(&request.consumer_group, &request.topic, request.queue_id, offset);
        }
        let wants = self.filter_of(request)?;
        let wished = usize::try_from(request.max_messages).unwrap_or(0).max(1);
        let bytes = request.max_bytes.and_then(|bytes| usize::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
        let pull = HeldPull {
            session: session.clone(),
            ticket,
            queue: self.store.queue(&topic.name, request.queue_id),
            topic,
            queue_id: request.queue_id,
            offset: request.queue_offset,
            messages: wished.min(self.settings.pull_messages),
            bytes: bytes.unwrap_or(usize::MAX).min(self.settings.pull_bytes),
            wants,
        };
        let reply = match self.run(&pull, Cold::Refuse) {
            Some(reply) => reply,
            None => return Ok(Pulled::Cold(Box::new(pull))),
        };
        let wait = Duration::from_millis(u64::try_from(request.suspend_ms).unwrap_or(0)).min(HOLD_MAX);
        let may_wait = request.sys_flag & pull_flag::SUSPEND != 0 && !wait.is_zero();
        if reply.code != answer::PULL_NOT_FOUND || !may_wait || self.holds.lock().len() >= HELD_MAX {
            return Ok(Pulled::Now(reply));
        }
        self.hold(pull, wait, out);
        Ok(Pulled::Held)
    }

    /// Answers a pull whose messages have to be read from the disk.
    pub fn pull_cold(&self, pull: &HeldPull) -> PullReply {
        self.run(pull, Cold::Read).unwrap_or_else(|| PullReply {
            code: answer::SYSTEM_ERROR,
            remark: "store getMessage return null".into(),
            next: pull.offset,
            min: 0,
            max: 0,
            frames: Vec::new(),
        })
    }

    /// Everything that refuses a pull before the store is asked.
    fn check_pull(&self, request: &PullRequest<'_>) -> Result<Arc<Topic>, Refusal> {
        let settings = self.known_group(&request.consumer_group)?;
        if !settings.consume_enable {
            let remark = format!("subscription group no permission, {}", request.consumer_group);
            return Err(Refusal::new(answer::NO_PERMISSION, remark));
        }
        let topic = self.topics.lock().find(&request.topic).cloned().ok_or_else(|| {
            let remark = format!("topic[{}] not exist, apply first please!", request.topic);
            Refusal::new(answer::TOPIC_NOT_EXIST, remark)
        })?;
        if topic.perm & PERM_READ == 0 {
            let remark = format!("the topic[{}] pulling message is forbidden", request.topic);
            return Err(Refusal::new(answer::NO_PERMISSION, remark));
        }
        if request.queue_id < 0 || request.queue_id >= topic.read_queues {
            let remark = format!(
                "queueId[{}] is illegal, topic:[{}] topicConfig.readQueueNums:[{}]",
                request.queue_id, request.topic, topic.read_queues
            );
            return Err(Refusal::new(self.settings.compat.invalid_parameter(), remark));
        }
        Ok(topic)
    }

    /// The filter: what came with the pull, or what the group has registered.
    fn filter_of(&self, request: &PullRequest<'_>) -> Result<Wants, Refusal> {
        let inline = request.subscription.as_deref().filter(|_| request.sys_flag & pull_flag::SUBSCRIPTION != 0);
        if let Some(text) = inline {
            let kind = request.expression_type.as_deref().filter(|kind| !kind.is_empty()).unwrap_or("TAG");
            let hashes = tag_hashes(text).filter(|_| kind == "TAG").ok_or_else(|| {
                Refusal::new(answer::SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")
            })?;
            return Ok(wants(hashes));
        }
        self.registered(request)
    }

    fn registered(&self, request: &PullRequest<'_>) -> Result<Wants, Refusal> {
        let group_name = &*request.consumer_group;
        let missing = |what: &str| Refusal::new(answer::SUBSCRIPTION_NOT_EXIST, what);
        let broadcast_enable = self.groups.lock().find(group_name).is_none_or(|group| group.broadcast_enable);
        let members = self.members.lock();
        let group = members.group(group_name).ok_or_else(|| missing("the consumer's group info not exist"))?;
        if !broadcast_enable && group.manner().model == Some(MessageModel::Broadcasting) {
            let remark = "the consumer group is broadcasting, which its settings forbid";
            return Err(Refusal::new(answer::NO_PERMISSION, remark));
        }
        let subscription = group
            .subscriptions()
            .get(&*request.topic)
            .ok_or_else(|| missing("the consumer's subscription not exist"))?;
        if subscription.version < request.sub_version {
            let remark = "the consumer's subscription not latest";
            return Err(Refusal::new(answer::SUBSCRIPTION_NOT_LATEST, remark));
        }
        if subscription.is_sql() {
            let remark = "The broker does not support consumer to filter message by SQL92";
            return Err(Refusal::new(answer::SYSTEM_ERROR, remark));
        }
        Ok(wants(subscription.hashes.clone()))
    }

    /// Reads the store; `None` if that would have to wait for the disk and may not.
    fn run(&self, pull: &HeldPull, cold: Cold) -> Option<PullReply> {
        let limits = Limits { messages: pull.messages, bytes: pull.bytes, entries: ENTRIES_MAX };
        let found = self.store.read(&pull.queue, QueueOffset(pull.offset), &limits, &pull.wants, cold);
        let (min, max) = (found.min.0, found.max.0);
        let (code, name, next) = match found.status {
            Status::Found => (answer::SUCCESS, "FOUND", found.next.0),
            Status::NoMatch => (answer::PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", found.next.0),
            Status::Removed => (answer::PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING", found.next.0),
            Status::Empty if pull.offset == 0 => (answer::PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0),
            Status::Empty => (answer::PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", 0),
            Status::BelowMin => (answer::PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", min),
            Status::AtEnd => (answer::PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", pull.offset),
            Status::BeyondEnd => {
                let back = self.settings.compat == Compat::V4 && min == 0;
                (answer::PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", if back { 0 } else { max })
            }
            Status::Cold => return None,
        };
        if code == answer::SUCCESS {
            self.counters.got(found.frames.len(), found.bytes);
        }
        Some(PullReply { code, remark: name.into(), next, min, max, frames: found.frames })
    }

    /// Lets a pull wait, unless a message has come since it looked.
    fn hold(&self, pull: HeldPull, wait: Duration, out: &mut Outbox) {
        let until = self.clock.now() + wait;
        let queue = pull.queue.clone();
        let held = Held {
            topic: pull.topic.name.clone(),
            queue: pull.queue_id,
            offset: pull.offset,
            wants: pull.wants.clone(),
            session: pull.session.id,
            until,
            request: pull,
        };
        {
            // Under the table's lock, as the end of the watch below: the flag says whether anybody waits.
            let mut holds = self.holds.lock();
            holds.hold(held);
            queue.watch();
        }
        // A message may have come between the look and the hold, when nobody was told of it. It also has a turn wanted when
        // the first pull ends.
        self.wake_queue(&queue, out);
    }

    /// Runs the pulls that wait for this queue and are concerned by what has come.
    pub(super) fn wake_queue(&self, queue: &Arc<StoreQueue>, out: &mut Outbox) {
        let (_, max) = self.store.bounds(queue);
        let now = self.clock.now();
        let mut woken = Vec::new();
        let (topic, id) = (queue.topic(), queue.id());
        if **topic == *names::SCHEDULE_TOPIC {
            self.look_for_head(id);
        }
        let tag = |offset| self.store.entry(queue, QueueOffset(offset)).map(|entry| entry.tag);
        let next = {
            let mut holds = self.holds.lock();
            holds.arrived(topic, id, max.0, tag, now, &mut woken);
            holds.next_due()
        };
        if let Some(next) = next {
            // One that was passed over now ends earlier than it asked for.
            self.arm(next);
        }
        self.answer_held(woken, out);
    }

    /// Answers the pulls whose time is up.
    pub(super) fn end_holds(&self, now: Nanos, out: &mut Outbox) {
        let mut ended = Vec::new();
        self.holds.lock().due(now, &mut ended);
        self.answer_held(ended, out);
    }

    /// Answers pulls that have been taken out of the table: with what there is, and without waiting again.
    pub(super) fn answer_held(&self, woken: Vec<Held<HeldPull>>, out: &mut Outbox) {
        self.unwatch(&woken);
        for held in woken {
            let pull = held.request;
            // What has just come is in memory; if it is not, it has waited long enough to be read here.
            let reply = self.run(&pull, Cold::Refuse).unwrap_or_else(|| self.pull_cold(&pull));
            out.push((pull.session, Delivery::Pulled { ticket: pull.ticket, reply }));
        }
    }

    /// Queues on which nobody waits any more need not tell when they grow.
    pub(super) fn unwatch(&self, gone: &[Held<HeldPull>]) {
        if gone.is_empty() {
            return;
        }
        let holds = self.holds.lock();
        let over =
            |held: &&Held<HeldPull>| *held.topic != *names::SCHEDULE_TOPIC && !holds.waits_on(&held.topic, held.queue);
        for held in gone.iter().filter(over) {
            held.request.queue.unwatch();
        }
    }
}

fn wants(hashes: Arc<[i32]>) -> Wants {
    if hashes.is_empty() { Wants::All } else { Wants::Tags(hashes) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Node;
    use super::*;
    use crate::disk::FaultyDisk;

    fn pull(node: &mut Node) -> HeldPull {
        let topic = node.dispatcher.topics.lock().find("t").cloned().unwrap();
        HeldPull {
            session: node.session.clone(),
            ticket: node.ticket(),
            queue: node.dispatcher.store().queue("t", 0),
            topic,
            queue_id: 0,
            offset: 0,
            messages: 32,
            bytes: usize::MAX,
            wants: Wants::All,
        }
    }

    fn node() -> Node {
        let node = Node::plain(&FaultyDisk::new());
        node.dispatcher.put_topic(Topic::new("t", 1, 6)).unwrap();
        node
    }

    /// C-070: nobody was told of a message that came between the look into the store and the hold.
    #[test]
    fn c_070_a_pull_looks_once_more_after_it_is_held() {
        let mut node = node();
        let pull = pull(&mut node);
        node.send("t", "", b"x").unwrap();
        let mut outbox = Vec::new();
        node.dispatcher.hold(pull, Duration::from_secs(15), &mut outbox);
        let frames = |delivery| if let Delivery::Pulled { reply, .. } = delivery { reply.frames.len() } else { 0 };
        assert_eq!(outbox.into_iter().map(|(_, delivery)| frames(delivery)).collect::<Vec<_>>(), [1]);
        assert_eq!(node.dispatcher.holds.lock().len(), 0);
    }

    #[test]
    fn a_pull_beyond_the_most_that_wait_is_answered_at_once() {
        let mut node = node();
        let until = node.dispatcher.clock().now() + HOLD_MAX;
        for queue in 0..HELD_MAX as i32 {
            let request = pull(&mut node);
            let (topic, session) = ("t".into(), request.session.id);
            let held = Held { topic, queue: queue + 1, offset: 0, wants: Wants::All, session, until, request };
            node.dispatcher.holds.lock().hold(held);
        }
        let reply = node.pull("t", 0, pull_flag::SUSPEND).unwrap().map(|reply| reply.code);
        assert_eq!(reply, Some(answer::PULL_NOT_FOUND));
    }
}
