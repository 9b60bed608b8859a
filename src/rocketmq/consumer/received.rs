//! A received message as the user reads it: topic, tag, keys, properties, body. Views into the pulled frame; properties
//! are parsed when they are asked for, the body is borrowed.

use std::borrow::Cow;
use std::net::SocketAddr;

use super::pulled::Pulled;
use crate::model::{Queue, QueueOffset};
use crate::wire::frame::Frame;
use crate::wire::remoting::properties::{Properties, names};
use crate::wire::remoting::record::Record;

/// Everything that is known about one message, borrowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) pulled: &'a Pulled,
    pub(super) record: &'a Record,
    /// The body, if it was compressed.
    pub(super) inflated: Option<&'a [u8]>,
    /// Deliveries here that the broker does not know of.
    pub(super) attempt: u32,
}

impl<'a> View<'a> {
    fn bytes(&self) -> &'a [u8] {
        self.pulled.frame.bytes()
    }

    pub(super) fn properties(&self) -> Properties<'a> {
        self.record.properties(self.bytes())
    }

    pub(super) fn topic(&self) -> &'a str {
        let own = if self.pulled.own_retry { self.properties().find(names::RETRY_TOPIC) } else { None };
        own.unwrap_or(&self.pulled.queue.topic)
    }

    pub(super) fn body(&self) -> &'a [u8] {
        self.inflated.unwrap_or_else(|| self.record.body(self.bytes()))
    }

    pub(super) fn message_id(&self) -> Cow<'a, str> {
        match self.properties().find(names::UNIQ_KEY) {
            Some(key) => Cow::Borrowed(key),
            None => Cow::Owned(self.record.offset_id(self.bytes())),
        }
    }

    pub(super) fn redeliveries(&self) -> u32 {
        u32::try_from(self.record.reconsume_times).unwrap_or(0).saturating_add(self.attempt)
    }

    pub(super) fn born_host(&self) -> SocketAddr {
        self.record.born_host(self.bytes())
    }

    pub(super) fn store_host(&self) -> SocketAddr {
        self.record.store_host(self.bytes())
    }

    pub(super) fn offset_id(&self) -> String {
        self.record.offset_id(self.bytes())
    }

    fn to_owned(self) -> OwnedMessage {
        let mut record = *self.record;
        record.at = 0;
        let bytes = self.record.bytes(self.bytes()).to_vec();
        let pulled = Pulled {
            queue: self.pulled.queue.clone(),
            own_retry: self.pulled.own_retry,
            frame: Frame::from(bytes),
            records: vec![record].into(),
            min: self.pulled.min,
            max: self.pulled.max,
        };
        OwnedMessage { pulled, record, inflated: self.inflated.map(<[u8]>::to_vec), attempt: self.attempt }
    }
}

/// Pairs of a properties text. See `properties()` of a delivery.
#[derive(Clone, Debug)]
pub struct PropertyIter<'a>(crate::wire::remoting::properties::Iter<'a>);

impl<'a> Iterator for PropertyIter<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let mut texts = self
            .0
            .by_ref()
            .filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?)));
        texts.next()
    }
}

pub(super) fn pairs(properties: Properties<'_>) -> PropertyIter<'_> {
    PropertyIter(properties.iter())
}

/// The readers that every form of a received message has. The type must have `fn view(&self) -> View<_>`; `$life` is how
/// long what they return lives.
macro_rules! readers {
    ($life:lifetime) => {
        /// The topic it was sent to. For a redelivered message that is the original topic, although it was pulled from
        /// the group's retry topic; see [`queue`](Self::queue) for that.
        pub fn topic(&self) -> &$life str {
            self.view().topic()
        }

        /// The queue it was pulled from: the group's retry topic for a redelivered message.
        pub fn queue(&self) -> &$life Queue {
            &self.view().pulled.queue
        }

        /// Its offset in that queue.
        pub fn offset(&self) -> QueueOffset {
            QueueOffset(self.view().record.queue_offset)
        }

        /// The body, inflated if it was compressed.
        pub fn body(&self) -> &$life [u8] {
            self.view().body()
        }

        /// The tag, if it has one.
        pub fn tag(&self) -> Option<&$life str> {
            self.property(names::TAGS)
        }

        /// The keys: words by which it can be found again.
        pub fn keys(&self) -> std::str::SplitAsciiWhitespace<$life> {
            self.property(names::KEYS).unwrap_or_default().split_ascii_whitespace()
        }

        /// One property; of two with the same name the later. Looked up in place, nothing is parsed ahead.
        pub fn property(&self, name: &str) -> Option<&$life str> {
            self.view().properties().find(name)
        }

        /// All properties in order, the user's and the system's (`TAGS`, `KEYS`, `UNIQ_KEY`, ...). Text that is not
        /// UTF-8 is passed over.
        pub fn properties(&self) -> PropertyIter<$life> {
            received::pairs(self.view().properties())
        }

        /// The id its producer gave it.
        pub fn unique_key(&self) -> Option<&$life str> {
            self.property(names::UNIQ_KEY)
        }

        /// Its id: the producer's unique key, or, if it has none, the offset id (Java's `getMsgId`).
        pub fn message_id(&self) -> std::borrow::Cow<$life, str> {
            self.view().message_id()
        }

        /// Where it is stored, as an id: the broker's address and its offset in the commit log (Java's
        /// `getOffsetMsgId`).
        pub fn offset_message_id(&self) -> String {
            self.view().offset_id()
        }

        /// How often the group has failed on it before (Java's `getReconsumeTimes`).
        pub fn redeliveries(&self) -> u32 {
            self.view().redeliveries()
        }

        /// When its producer made it, in ms since 1970 by the producer's clock.
        pub fn born_ms(&self) -> i64 {
            self.view().record.born_ms
        }

        /// When the broker stored it, in ms since 1970 by its clock.
        pub fn stored_ms(&self) -> i64 {
            self.view().record.store_ms
        }

        /// Address of the producer, as the broker saw it.
        pub fn born_host(&self) -> std::net::SocketAddr {
            self.view().born_host()
        }

        /// Address of the broker that stored it.
        pub fn store_host(&self) -> std::net::SocketAddr {
            self.view().store_host()
        }

        /// The application's own 32 bits.
        pub fn flag_bits(&self) -> i32 {
            self.view().record.flag
        }

        /// Lowest offset of its queue when it was pulled.
        pub fn queue_min(&self) -> QueueOffset {
            self.view().pulled.min
        }

        /// One past the highest offset of its queue when it was pulled: the distance to it is the lag.
        pub fn queue_max(&self) -> QueueOffset {
            self.view().pulled.max
        }
    };
}
pub(super) use readers;

/// A received message that owns its bytes: to keep a message after the handler has returned without keeping the whole frame
/// it arrived in. It cannot be finished; see `Batch::detach` for that.
#[derive(Debug)]
pub struct OwnedMessage {
    pulled: Pulled,
    record: Record,
    inflated: Option<Vec<u8>>,
    attempt: u32,
}

use super::received;

impl OwnedMessage {
    readers!('_);

    fn view(&self) -> View<'_> {
        let inflated = self.inflated.as_deref();
        View { pulled: &self.pulled, record: &self.record, inflated, attempt: self.attempt }
    }
}

impl From<View<'_>> for OwnedMessage {
    fn from(view: View<'_>) -> Self {
        view.to_owned()
    }
}
