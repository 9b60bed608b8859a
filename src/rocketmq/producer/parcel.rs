//! A message made ready to go out: checked, with its id, its properties as text and its body compressed if it is long.
//!
//! Made once per send, before the first attempt, so that all attempts carry the same id and bytes. The caller's message
//! is only read.

use std::borrow::Cow;

use crate::error::Error;
use crate::model::Message;
use crate::model::tags::java_hash;
use crate::rocketmq::route::PublishQueue;
use crate::wire::compress::{self, Kind};
use crate::wire::remoting::properties::names as key;
use crate::wire::remoting::send::SendRequest;

use super::check;
use super::settings::Settings;
use super::unique::{MessageId, ids};

/// What goes out, apart from the queue. The plain body stays with its owner.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) id: MessageId,
    properties: Text,
    /// The body that goes out in place of the plain one.
    packed: Option<Vec<u8>>,
    sys_flag: i32,
    flag: i32,
    born_ms: i64,
    batch: bool,
}

impl Parcel {
    /// Packs a message at the time `wall_ms`.
    pub(super) fn pack(message: &Message, settings: &Settings, wall_ms: i64) -> Result<Self, Error> {
        let refused = |reason| Error::Message { reason };
        check::message(message, settings.max_message_size).map_err(refused)?;
        let id = ids().next(wall_ms);
        let properties = Text::Long(check::properties(message, &id).map_err(refused)?);
        let (packed, sys_flag) = packed(message.body(), settings);
        Ok(Self { id, properties, packed, sys_flag, flag: message.flag_bits(), born_ms: wall_ms, batch: false })
    }

    /// Packs a body with properties that are always the same but for the id.
    pub(super) fn stamp(body: &[u8], stamp: &Stamp, settings: &Settings, wall_ms: i64) -> Result<Self, Error> {
        check::body(body, settings.max_message_size).map_err(|reason| Error::Message { reason })?;
        let id = ids().next(wall_ms);
        let (packed, sys_flag) = packed(body, settings);
        Ok(Self { id, properties: stamp.with(&id), packed, sys_flag, flag: 0, born_ms: wall_ms, batch: false })
    }

    /// A batch whose entries are encoded already.
    pub(super) fn batch(id: MessageId, entries: Vec<u8>, properties: String, wall_ms: i64) -> Self {
        let (properties, packed) = (Text::Long(properties), Some(entries));
        Self { id, properties, packed, sys_flag: 0, flag: 0, born_ms: wall_ms, batch: true }
    }

    /// The body as it goes out; `plain` is the one that was packed.
    pub(super) fn body<'b>(&'b self, plain: &'b [u8]) -> &'b [u8] {
        self.packed.as_deref().unwrap_or(plain)
    }

    /// The header of a send to `to`. Java always writes all of these fields.
    pub(super) fn request<'r>(&'r self, settings: &'r Settings, to: &'r PublishQueue) -> SendRequest<'r> {
        SendRequest {
            producer_group: Cow::Borrowed(&settings.group),
            topic: Cow::Borrowed(&to.queue.topic),
            default_topic: Cow::Borrowed(&settings.template_topic),
            default_topic_queue_nums: settings.template_queues,
            queue_id: to.queue.id,
            sys_flag: self.sys_flag,
            born_ms: self.born_ms,
            flag: self.flag,
            properties: Some(Cow::Borrowed(self.properties.as_str())),
            reconsume_times: Some(0),
            unit_mode: Some(false),
            max_reconsume_times: None,
            batch: Some(self.batch),
            broker_name: Some(Cow::Borrowed(&to.queue.broker)),
        }
    }
}

/// A properties text; a short one needs no memory of its own.
#[derive(Debug)]
pub(super) enum Text {
    Short([u8; SHORT], usize),
    Long(String),
}

/// Bytes of an id, a wait flag and a tag of ordinary length.
const SHORT: usize = 128;

impl Text {
    pub(super) fn as_str(&self) -> &str {
        match self {
            // Put together from texts: always UTF-8.
            Self::Short(bytes, len) => bytes.get(..*len).and_then(|text| str::from_utf8(text).ok()).unwrap_or_default(),
            Self::Long(text) => text,
        }
    }
}

/// Properties that are the same for every message of a writer but for the id.
#[derive(Clone, Debug)]
pub(super) struct Stamp {
    before: String,
    behind: String,
    tag_hash: i32,
}

impl Stamp {
    /// For messages with this tag, which must have been checked.
    pub(super) fn new(tag: Option<&str>) -> Self {
        let before = format!("{}\u{1}", key::UNIQ_KEY);
        let mut behind = format!("\u{2}{}\u{1}true\u{2}", key::WAIT);
        if let Some(tag) = tag {
            behind.push_str(&format!("{}\u{1}{tag}\u{2}", key::TAGS));
        }
        Self { before, behind, tag_hash: tag.map_or(0, java_hash) }
    }

    /// Java's hash of the tag; 0 without one.
    pub(super) fn tag_hash(&self) -> i32 {
        self.tag_hash
    }

    /// The text with this id in its place.
    pub(super) fn with(&self, id: &MessageId) -> Text {
        let parts = [self.before.as_bytes(), id.as_str().as_bytes(), self.behind.as_bytes()];
        let (mut short, mut len) = ([0; SHORT], 0);
        for part in parts {
            let Some(place) = short.get_mut(len..len + part.len()) else {
                return Text::Long(format!("{}{id}{}", self.before, self.behind));
            };
            place.copy_from_slice(part);
            len += part.len();
        }
        Text::Short(short, len)
    }
}

/// The compressed body, and the bits that say so. A body that does not get shorter goes out as it is, and so does every
/// body if the codec is not built in.
fn packed(body: &[u8], settings: &Settings) -> (Option<Vec<u8>>, i32) {
    if body.len() < settings.compress_over {
        return (None, 0);
    }
    let mut short = Vec::new();
    match compress::deflate(Kind::Zlib, settings.compress_level, body, &mut short) {
        Ok(()) if short.len() < body.len() => (Some(short), Kind::Zlib.flag()),
        Ok(()) | Err(_) => (None, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::Asked;
    use super::*;

    fn settings() -> Settings {
        Settings::checked("g".into(), Asked::default()).unwrap()
    }

    #[test]
    #[cfg(feature = "zlib")]
    fn b187_a_body_of_4096_bytes_is_compressed_and_4095_are_not() {
        let (short, long) = (vec![b'a'; 4095], vec![b'a'; 4096]);
        assert_eq!(packed(&short, &settings()), (None, 0));
        let (body, flag) = packed(&long, &settings());
        let body = body.unwrap();
        assert_eq!((flag, body.len() < 100, body[0]), (0x301, true, 0x78));
    }

    #[test]
    fn a_body_that_compression_makes_longer_goes_out_as_it_is() {
        let mut seed = 7_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 32) as u8
        })
        .take(5_000)
        .collect();
        assert_eq!(packed(&noise, &settings()), (None, 0));
    }

    #[test]
    fn b191_c065_packing_leaves_the_message_as_it_was_and_every_attempt_the_same_bytes() {
        let message = Message::new("t", vec![b'a'; 10_000]).tag("x").flag(9);
        let before = message.clone();
        let settings = settings();
        let parcel = Parcel::pack(&message, &settings, 5).unwrap();
        let to = |id| PublishQueue { queue: crate::model::Queue::new("t", "b", id), addr: "h:1".into() };
        let (first, second) = (to(0), to(1));
        let (first, second) = (parcel.request(&settings, &first), parcel.request(&settings, &second));
        assert_eq!((first.properties.clone(), first.sys_flag), (second.properties.clone(), second.sys_flag));
        assert_eq!((first.queue_id, second.queue_id, first.flag, first.born_ms), (0, 1, 9, 5));
        assert_eq!(message, before);
    }

    #[test]
    fn a_stamp_writes_what_a_message_would() {
        let settings = settings();
        for tag in [None, Some("paid"), Some(&*"t".repeat(200))] {
            let message = tag.map_or(Message::new("t", "b"), |tag| Message::new("t", "b").tag(tag));
            let stamped = Parcel::stamp(b"b", &Stamp::new(tag), &settings, 5).unwrap();
            assert_eq!(stamped.properties.as_str(), check::properties(&message, &stamped.id).unwrap());
            assert_eq!(stamped.body(b"b"), b"b");
        }
        assert!(Parcel::stamp(b"", &Stamp::new(None), &settings, 5).is_err());
    }
}
