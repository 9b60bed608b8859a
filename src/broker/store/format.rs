//! Bytes of the log: the envelope around every record, the payloads of internal records, and the check of one record.
//!
//! Used by the append, by recovery and by every read that does not trust what it reads. Never touches a file.
//!
//! A record is a 32-byte envelope and a payload padded with zeros to 8 bytes; all integers are big-endian:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `WLR1` |
//! | 4 | 4 | length of the payload |
//! | 8 | 4 | CRC-32C over the envelope from byte 12 on and over the payload without the body |
//! | 12 | 2 | kind |
//! | 14 | 2 | flags: bit 0 the body CRC's 32nd bit, bit 1 more members of this group follow |
//! | 16 | 8 | own position in the log |
//! | 24 | 4 | CRC-32C of the record before |
//! | 28 | 4 | recovery epoch |
//!
//! The payload of a message is exactly Apache's stored message; its body is covered by its own CRC-32 inside it.

use super::keys;
use crate::wire::remoting::record::Record;

/// First bytes of every record.
pub(super) const MAGIC: u32 = 0x574C_5231;
/// Bytes before every payload.
pub(super) const ENVELOPE: usize = 32;
/// Records begin at multiples of this.
pub(super) const ALIGN: usize = 8;
/// Bytes of the record that ends a segment; always kept free.
pub(super) const END_RECORD: usize = ENVELOPE + END_PAYLOAD;
/// Durable mark and latest store time.
const END_PAYLOAD: usize = 16;

/// Where in a record its sum begins to cover it.
pub(super) const SUMMED_FROM: usize = 12;

/// Flag: the body's CRC-32 has its top bit set (the record itself has room for 31).
pub(super) const BODY_TOP: u16 = 1;
/// Flag: the next record belongs to the same group.
pub(super) const MORE: u16 = 2;

/// What a record is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// A message by itself.
    Message,
    /// A message of a group.
    Member,
    /// Something the store says to itself.
    Internal,
    /// The last record of a segment.
    End,
}

/// The fixed part of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Envelope {
    pub length: u32,
    pub crc: u32,
    pub kind: Kind,
    pub flags: u16,
    pub offset: u64,
    pub prev_crc: u32,
    pub epoch: u32,
}

impl Envelope {
    /// Writes it, its sum left as it is given.
    pub fn write(&self) -> [u8; ENVELOPE] {
        let kind: u16 = match self.kind {
            Kind::Message => 1,
            Kind::Member => 2,
            Kind::Internal => 3,
            Kind::End => 4,
        };
        let mut out = [0; ENVELOPE];
        out[0..4].copy_from_slice(&MAGIC.to_be_bytes());
        out[4..8].copy_from_slice(&self.length.to_be_bytes());
        out[8..12].copy_from_slice(&self.crc.to_be_bytes());
        out[12..14].copy_from_slice(&kind.to_be_bytes());
        out[14..16].copy_from_slice(&self.flags.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..28].copy_from_slice(&self.prev_crc.to_be_bytes());
        out[28..32].copy_from_slice(&self.epoch.to_be_bytes());
        out
    }

    /// Reads one, if the magic and the kind are known ones.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let fixed = bytes.first_chunk::<ENVELOPE>()?;
        if u32_at(fixed, 0)? != MAGIC {
            return None;
        }
        let kind = match u16_at(fixed, 12)? {
            1 => Kind::Message,
            2 => Kind::Member,
            3 => Kind::Internal,
            4 => Kind::End,
            _ => return None,
        };
        Some(Self {
            length: u32_at(fixed, 4)?,
            crc: u32_at(fixed, 8)?,
            kind,
            flags: u16_at(fixed, 14)?,
            offset: u64_at(fixed, 16)?,
            prev_crc: u32_at(fixed, 24)?,
            epoch: u32_at(fixed, 28)?,
        })
    }

    /// Bytes of the whole record, padding included.
    pub fn record_len(&self) -> usize {
        record_len(self.length as usize)
    }

    pub fn more(&self) -> bool {
        self.flags & MORE != 0
    }
}

/// Bytes of a record whose payload has this length.
pub(super) fn record_len(payload: usize) -> usize {
    (ENVELOPE + payload).next_multiple_of(ALIGN)
}

/// A record whose sums are right.
#[derive(Clone, Debug)]
pub(super) struct Checked {
    pub envelope: Envelope,
    /// The message, an index into the payload; none for internal and end records.
    pub message: Option<Record>,
}

/// Reads and sums the record at the front of `bytes`, whose position in the log must be `own`. Its place in the chain
/// is for the caller to check.
pub(super) fn check(bytes: &[u8], own: u64) -> Option<Checked> {
    let envelope = Envelope::read(bytes)?;
    if envelope.offset != own {
        return None;
    }
    let payload = bytes.get(ENVELOPE..ENVELOPE.checked_add(envelope.length as usize)?)?;
    let head = crc32c::crc32c(bytes.get(SUMMED_FROM..ENVELOPE)?);
    match envelope.kind {
        Kind::Internal | Kind::End => {
            let sum = crc32c::crc32c_append(head, payload);
            (sum == envelope.crc).then_some(Checked { envelope, message: None })
        }
        Kind::Message | Kind::Member => {
            let message = keys::record(payload)?;
            let body = message.body_range();
            let before = payload.get(..body.start)?;
            let after = payload.get(body.end..)?;
            let sum = crc32c::crc32c_append(crc32c::crc32c_append(head, before), after);
            let body = crc32fast::hash(payload.get(body)?);
            let top = envelope.flags & BODY_TOP != 0;
            let body_is_right = body & 0x7FFF_FFFF == message.body_crc && (body >> 31 == 1) == top;
            (sum == envelope.crc && body_is_right).then_some(Checked { envelope, message: Some(message) })
        }
    }
}

/// Payload of the record that ends a segment.
pub(super) fn write_end(durable: u64, latest_ms: i64) -> [u8; END_PAYLOAD] {
    let mut out = [0; END_PAYLOAD];
    out[..8].copy_from_slice(&durable.to_be_bytes());
    out[8..].copy_from_slice(&latest_ms.to_be_bytes());
    out
}

/// Durable mark and latest store time of an end record's payload.
pub(super) fn read_end(payload: &[u8]) -> Option<(u64, i64)> {
    Some((u64_at(payload, 0)?, i64_at(payload, 8)?))
}

/// What the store says to itself in the log, in the order of events, so that it holds after a crash exactly if the
/// messages beside it do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mark<'a> {
    /// Every message of the topic before this record is gone.
    TopicDeleted(&'a str),
    /// The delayed message at this offset of this level's queue has been delivered, and all before it.
    DelayDelivered {
        /// Queue id in the schedule topic: level - 1.
        level_queue: i32,
        /// Its offset there.
        offset: i64,
    },
    /// The half message at this offset of the half topic has been committed or rolled back.
    HalfResolved {
        /// Its offset there.
        offset: i64,
    },
    /// Consumer offsets as of this point; what the bytes mean is the broker's affair.
    OffsetSnapshot(&'a [u8]),
    /// A queue without messages goes on at this offset: its last segment has been retired.
    QueueFloor {
        /// Topic.
        topic: &'a str,
        /// Queue id.
        queue: i32,
        /// Offset of the next message.
        next: i64,
    },
}

impl<'a> Mark<'a> {
    /// Appends the payload.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::TopicDeleted(topic) => {
                out.extend(1u16.to_be_bytes());
                out.extend(topic.as_bytes());
            }
            Self::DelayDelivered { level_queue, offset } => {
                out.extend(2u16.to_be_bytes());
                out.extend(level_queue.to_be_bytes());
                out.extend(offset.to_be_bytes());
            }
            Self::HalfResolved { offset } => {
                out.extend(3u16.to_be_bytes());
                out.extend(offset.to_be_bytes());
            }
            Self::OffsetSnapshot(bytes) => {
                out.extend(4u16.to_be_bytes());
                out.extend(*bytes);
            }
            Self::QueueFloor { topic, queue, next } => {
                out.extend(5u16.to_be_bytes());
                out.extend(queue.to_be_bytes());
                out.extend(next.to_be_bytes());
                out.extend(topic.as_bytes());
            }
        }
    }

    /// Reads a payload; `None` if it is of a kind that a later version wrote, or broken.
    pub(super) fn read(payload: &'a [u8]) -> Option<Self> {
        let rest = payload.get(2..)?;
        Some(match u16_at(payload, 0)? {
            1 => Self::TopicDeleted(std::str::from_utf8(rest).ok()?),
            2 => Self::DelayDelivered { level_queue: i32_at(rest, 0)?, offset: i64_at(rest, 4)? },
            3 => Self::HalfResolved { offset: i64_at(rest, 0)? },
            4 => Self::OffsetSnapshot(rest),
            5 => Self::QueueFloor {
                queue: i32_at(rest, 0)?,
                next: i64_at(rest, 4)?,
                topic: std::str::from_utf8(rest.get(12..)?).ok()?,
            },
            _ => return None,
        })
    }
}

/// A 64-bit hash of a key under a topic's seed; the index stores it. Never changes: it is on disk.
pub(super) fn key_hash(seed: u64, key: &[u8]) -> u64 {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut hash = seed ^ (key.len() as u64).wrapping_mul(K);
    let mut words = key.chunks_exact(8);
    for word in &mut words {
        let word = u64_at(word, 0).unwrap_or_default();
        hash = (hash ^ word).wrapping_mul(K);
        hash ^= hash >> 29;
    }
    let last = words.remainder().iter().fold(0u64, |sum, byte| (sum << 8) | u64::from(*byte));
    hash = (hash ^ last).wrapping_mul(K);
    hash ^ (hash >> 32)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn i64_at(bytes: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_is_read_as_written_and_nothing_else_is() {
        let envelope = Envelope {
            length: 7,
            crc: 1,
            kind: Kind::Internal,
            flags: MORE,
            offset: u64::MAX - 1,
            prev_crc: 3,
            epoch: 4,
        };
        let mut bytes = envelope.write();
        assert_eq!(Envelope::read(&bytes), Some(envelope));
        assert_eq!((Envelope::read(&bytes[..31]), envelope.record_len()), (None, 40));
        bytes[13] = 9;
        assert_eq!(Envelope::read(&bytes), None);
    }

    #[test]
    fn marks_are_read_as_written() {
        let marks = [
            Mark::TopicDeleted("t"),
            Mark::DelayDelivered { level_queue: 3, offset: 1 << 40 },
            Mark::HalfResolved { offset: 9 },
            Mark::OffsetSnapshot(b"{}"),
            Mark::QueueFloor { topic: "t", queue: 2, next: 77 },
        ];
        for mark in marks {
            let mut bytes = Vec::new();
            mark.write(&mut bytes);
            assert_eq!(Mark::read(&bytes), Some(mark));
        }
        assert_eq!((Mark::read(&[0, 99]), Mark::read(&[0]), Mark::read(&[0, 2, 1])), (None, None, None));
    }

    #[test]
    fn key_hashes_are_those_on_disk() {
        assert_eq!(key_hash(0, b""), 0);
        assert_ne!(key_hash(1, b"order-7"), key_hash(2, b"order-7"));
        assert_ne!(key_hash(1, b"order-7"), key_hash(1, b"order-8"));
        assert_eq!(key_hash(0, b"topic"), 0xC784AC612B2DEDB3);
    }
}
