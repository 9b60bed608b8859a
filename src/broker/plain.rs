//! A short way into the store for plain messages of clients in the same process: what is the same for every message of a
//! topic is worked out once.
//!
//! `embedded.rs` uses it for writers. It refuses whatever is not plain; the caller then sends as usual.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::dispatch::Dispatcher;
use super::fault::Op;
use super::send::REGION;
use super::session::Outbox;
use super::settings::Compat;
use super::store::{IndexBy, NewMessage, StoreQueue};
use super::topics::{Topic, is_closed_to_sends};
use crate::model::names;
use crate::wire::remoting::codes::sys_flag;
use crate::wire::remoting::properties::{self, names as key};

impl Dispatcher {
    /// A short way to a topic, for messages of which nothing is asked but to be stored and found by their id: no delay,
    /// no transaction, no retry topic. `None` if the topic is unknown or is none for them, or if the answer of a send has
    /// to wait for the disk.
    pub fn plain_topic(self: &Arc<Self>, name: &str, host: SocketAddr) -> Option<PlainTopic> {
        let compat = self.settings.compat;
        // Queues are looked up ahead, so a topic with very many is none for this way either.
        if self.is_sync() || is_closed_to_sends(name, compat) || names::group_of_retry_topic(name).is_some() {
            return None;
        }
        // Read first: a change in between is then seen by the first send.
        let seen = self.topics_generation.load(Ordering::Acquire);
        let topic = self.topics.lock().find(name).filter(|topic| topic.write_queues <= MOST_QUEUES)?.clone();
        let mut extra = Vec::new();
        if compat == Compat::V5 {
            properties::push(&mut extra, key::MSG_REGION, REGION);
            properties::push(&mut extra, key::TRACE_ON, "true");
        }
        properties::push(&mut extra, key::CLUSTER, &self.settings.cluster);
        let queues = (0..topic.write_queues).map(|queue| self.store.queue(name, queue)).collect();
        let (dispatcher, seen) = (Arc::clone(self), AtomicU64::new(seen));
        Some(PlainTopic { dispatcher, topic, queues, extra, host, seen })
    }
}

/// Most queues of a topic that has a short way.
const MOST_QUEUES: i32 = 1024;

/// See [`Dispatcher::plain_topic`].
pub struct PlainTopic {
    dispatcher: Arc<Dispatcher>,
    topic: Arc<Topic>,
    queues: Box<[Arc<StoreQueue>]>,
    /// What a broker adds to every message.
    extra: Vec<u8>,
    host: SocketAddr,
    /// The state of the topic table in which `topic` was last seen.
    seen: AtomicU64,
}

/// A plain message.
#[derive(Clone, Copy, Debug)]
pub struct Plain<'a> {
    /// Body, not compressed.
    pub body: &'a [u8],
    /// Properties text; has the unique id, and a tag or none.
    pub properties: &'a [u8],
    /// The unique id.
    pub id: &'a [u8],
    /// Java's hash of the tag; 0 without one.
    pub tag: i32,
    /// Now, in Unix milliseconds: both when it was made and when it is stored.
    pub now_ms: i64,
    /// Where it comes from.
    pub born_host: SocketAddr,
}

/// Where a plain message is stored.
#[derive(Clone, Copy, Debug)]
pub struct PlainStored {
    /// Queue.
    pub queue: i32,
    /// Offset in it.
    pub offset: i64,
    /// Position in the log.
    pub position: i64,
}

impl PlainTopic {
    /// The name of its broker.
    pub fn broker(&self) -> &Arc<str> {
        &self.dispatcher.settings.broker
    }

    /// Stores a message in one of the queues, chosen by `turn`. `None`: not this way, nothing was stored. Say it by an
    /// ordinary send, which knows what is wrong.
    ///
    /// Lock: store append (rank 3); the topic table's (rank 1) only after a change of any topic.
    pub fn store(&self, turn: u32, plain: &Plain<'_>, out: &mut Outbox) -> Option<PlainStored> {
        let (dispatcher, settings) = (&*self.dispatcher, &self.dispatcher.settings);
        let fits = plain.body.len() + plain.properties.len() + self.extra.len() < settings.max_message_bytes;
        if !fits || plain.body.is_empty() || !self.is_current() || dispatcher.faults.are_set(Op::Send) {
            return None;
        }
        let count = u32::try_from(self.queues.len()).ok().filter(|count| *count > 0)?;
        let queue = self.queues.get((turn % count) as usize)?;
        let message = NewMessage {
            body: plain.body,
            properties: [plain.properties, &self.extra],
            index: IndexBy::Known { tag: plain.tag, keys: &[plain.id] },
            flag: 0,
            sys_flag: if self.topic.multi_tag { sys_flag::MULTI_TAGS } else { 0 },
            born_ms: plain.now_ms,
            born_host: plain.born_host,
            store_host: self.host,
            reconsume_times: 0,
            prepared_offset: 0,
        };
        let appended = dispatcher.store.append(queue, &message, plain.now_ms).ok()?;
        dispatcher.counters.put(1, plain.body.len());
        dispatcher.wake(out);
        Some(PlainStored {
            queue: queue.id(),
            offset: appended.queue_offset.0,
            position: i64::try_from(appended.physical).unwrap_or(i64::MAX),
        })
    }

    /// Whether the topic is as it was when this way to it was made.
    fn is_current(&self) -> bool {
        let now = self.dispatcher.topics_generation.load(Ordering::Acquire);
        if self.seen.load(Ordering::Relaxed) == now {
            return true;
        }
        let same =
            self.dispatcher.topics.lock().find(&self.topic.name).is_some_and(|known| Arc::ptr_eq(known, &self.topic));
        if same {
            self.seen.store(now, Ordering::Relaxed);
        }
        same
    }
}
