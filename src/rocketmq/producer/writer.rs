//! A writer for one topic: what is the same for every message is worked out once.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::error::Error;
use crate::model::{Message, Queue, QueueOffset};
use crate::rocketmq::port::{Express, Letter};

use super::check;
use super::outcome::{Receipt, SendError, SendStatus};
use super::parcel::{Parcel, Stamp};
use super::send::{Core, Member, Producer, deliver};
use super::topic::Topic;
use super::unique;

impl Producer {
    /// A writer for messages of one topic that have a body and at most a tag. It has looked up the route, so that
    /// [`send`](TopicWriter::send) only sends.
    ///
    /// # Errors
    /// [`Error::Message`] for a topic that nobody may send to; what asking for its route can end in.
    pub fn topic(&self, topic: &str) -> Result<TopicWriter, Error> {
        let core = self.core();
        core.is_open()?;
        check::topic(topic).map_err(|reason| Error::Message { reason })?;
        let topic = core.topics.find(topic, &core.shared);
        topic.choose(&core.shared, &core.settings, None, Instant::now() + core.settings.send_deadline)?;
        let express = core.shared.caller().express(&topic.name).map(Arc::from);
        let member = Arc::clone(&self.member);
        Ok(TopicWriter { member, topic, tag: None, stamp: Stamp::new(None), express })
    }
}

/// Sends bodies to one topic, for producers with many small messages. Any thread may send.
#[derive(Clone)]
pub struct TopicWriter {
    member: Arc<Member>,
    topic: Arc<Topic>,
    tag: Option<Arc<str>>,
    stamp: Stamp,
    express: Option<Arc<dyn Express>>,
}

impl TopicWriter {
    /// Gives every message this tag.
    ///
    /// # Errors
    /// [`Error::Message`] if it can be no tag.
    pub fn tag(mut self, tag: &str) -> Result<Self, Error> {
        check::tag(tag).map_err(|reason| Error::Message { reason })?;
        (self.stamp, self.tag) = (Stamp::new(Some(tag)), Some(tag.into()));
        Ok(self)
    }

    /// Sends a body and waits until a broker has stored it, as [`Producer::send`] does.
    ///
    /// Copies the body once, into the socket or into the log of an embedded broker. Allocates nothing unless the body
    /// is compressed, the tag is very long or something fails.
    ///
    /// # Errors
    /// As [`Producer::send`]; the message that the error gives back is made from the body.
    pub fn send(&self, body: &[u8]) -> Result<Receipt, Box<SendError>> {
        let core = &*self.member.core;
        if let Some(receipt) = self.express(core, body) {
            return Ok(receipt);
        }
        let result = core.is_open().and_then(|()| {
            let parcel = Parcel::stamp(body, &self.stamp, &core.settings, core.shared.clock().wall_ms())?;
            deliver(core, &self.topic, &parcel, body, None, Instant::now())
        });
        result.map_err(|cause| SendError::new(self.message(body), cause))
    }

    /// By the short way, if there is one and the message is one for it.
    fn express(&self, core: &Core, body: &[u8]) -> Option<Receipt> {
        let express = self.express.as_ref()?;
        let settings = &core.settings;
        if body.len() >= settings.compress_over || body.len() > settings.max_message_size || core.is_open().is_err() {
            return None;
        }
        let now_ms = core.shared.clock().wall_ms();
        let id = unique::ids().next(now_ms);
        let properties = self.stamp.with(&id);
        let tag = self.stamp.tag_hash();
        let letter = Letter { body, properties: properties.as_str(), id: id.as_str(), tag, now_ms };
        let stored = express.send(&letter)?;
        let (topic, broker) = (Arc::clone(&self.topic.name), Arc::clone(express.broker()));
        Some(Receipt {
            queue: Queue { topic, broker, id: stored.queue_id },
            offset: QueueOffset(stored.queue_offset),
            status: SendStatus::Stored,
            message_id: id,
            offset_message_id: stored.id,
        })
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic.name
    }

    fn message(&self, body: &[u8]) -> Message {
        let message = Message::new(&*self.topic.name, body);
        match &self.tag {
            Some(tag) => message.tag(&**tag),
            None => message,
        }
    }
}

impl fmt::Debug for TopicWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicWriter({})", self.topic.name)
    }
}
