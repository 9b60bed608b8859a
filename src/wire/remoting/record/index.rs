//! From bytes to records: one walk over a body that finds every message, and says what is wrong with those it cannot read.
//!
//! The client calls it for each answer to a pull, the store for what it recovers. A length that a peer announced sizes
//! nothing: the index is never larger than the bytes that were given.

use super::{FIXED, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_MIN, Record, host_len};
use crate::error::WireError;
use crate::wire::bytes::Cursor;
use crate::wire::checksum::body_crc;
use crate::wire::remoting::codes::sys_flag;

/// So many damaged records are reported in one body; what follows is given up with the last report.
pub const DAMAGE_MAX: usize = 32;

/// Whether [`index()`] sums every body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Check {
    /// Compare the sum; a record that does not match is damaged.
    Crc,
    /// Lengths only.
    Lengths,
}

/// A record that cannot be used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Damage {
    /// Where it starts in the indexed bytes.
    pub at: usize,
    /// How many bytes are passed over with it.
    pub len: usize,
    /// What is wrong.
    pub error: WireError,
    /// Its place, as far as its fixed fields can be read; nothing vouches for them.
    pub place: Option<Place>,
    /// Its length could not be believed, or too much is damaged: everything behind it is passed over too.
    pub rest_lost: bool,
}

/// Where a damaged record says it belongs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// Queue.
    pub queue_id: i32,
    /// Offset in its queue.
    pub queue_offset: i64,
    /// Place in the broker's log.
    pub physical_offset: i64,
}

/// Appends a [`Record`] for every good record of `bytes`, in order, and a [`Damage`] for every other.
///
/// A damaged record costs itself alone as long as its length leads to the next (D8). Blank records are passed over.
/// Reserves for records that can be there, never by what a length says.
pub fn index(bytes: &[u8], check: Check, records: &mut Vec<Record>, damage: &mut Vec<Damage>) {
    // Positions have 32 bits; no frame and no segment is longer.
    let bytes = bytes.get(..u32::MAX as usize).unwrap_or(bytes);
    let most = damage.len() + DAMAGE_MAX;
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        if let Some(record) = usual(rest, at, check) {
            if records.len() == records.capacity() {
                grow(records, rest.len(), record.len as usize);
            }
            records.push(record);
            at += record.len as usize;
            continue;
        }
        match read(rest, at, check) {
            Ok(Some(record)) => {
                if records.len() == records.capacity() {
                    grow(records, rest.len(), record.len as usize);
                }
                records.push(record);
                at += record.len as usize;
            }
            Ok(None) => at += blank_len(rest),
            Err(error) => {
                let found = damaged(rest, at, error, damage.len() + 1 >= most);
                at += found.len;
                let last = found.rest_lost;
                damage.push(found);
                if last {
                    return;
                }
            }
        }
    }
}

/// Makes place for as many records of this length as can follow, at least a quarter more than there are, at most as
/// many as fit: a frame never makes the index larger than itself.
#[cold]
fn grow(records: &mut Vec<Record>, rest: usize, len: usize) {
    let likely = rest / len.max(RECORD_MIN) + 1;
    records.reserve_exact(likely.max(records.len() / 4).min(rest / RECORD_MIN + 1));
}

#[cold]
fn damaged(rest: &[u8], at: usize, error: WireError, last: bool) -> Damage {
    let mut cursor = Cursor::new(rest);
    let len = cursor.i32("size").ok().and_then(|len| usize::try_from(len).ok());
    let next = len.filter(|len| (RECORD_MIN..=rest.len()).contains(len) && !last);
    let place = || -> Result<Place, WireError> {
        let mut cursor = Cursor::new(rest);
        cursor.take("head", 12)?;
        let queue_id = cursor.i32("queue id")?;
        cursor.take("flag", 4)?;
        Ok(Place {
            queue_id,
            queue_offset: cursor.i64("queue offset")?,
            physical_offset: cursor.i64("physical offset")?,
        })
    };
    Damage { at, len: next.unwrap_or(rest.len()), error, place: place().ok(), rest_lost: next.is_none() }
}

fn blank_len(rest: &[u8]) -> usize {
    // `read` has found a length that fits.
    Cursor::new(rest).i32("size").ok().and_then(|len| usize::try_from(len).ok()).unwrap_or(rest.len()).max(8)
}

/// Reads `N` bytes of the fixed part, whose position is a constant: the bounds are known to the compiler.
#[inline(always)]
fn word<const AT: usize, const N: usize>(head: &[u8; FIXED]) -> [u8; N] {
    head.get(AT..).and_then(<[u8]>::first_chunk::<N>).copied().unwrap_or([0; N])
}

/// The record at the front of `rest` if it is a good one of the usual kind, V1 with IPv4 hosts. Everything else, and what
/// is wrong with it, is for [`read`] to say.
#[inline(always)]
fn usual(rest: &[u8], at: usize, check: Check) -> Option<Record> {
    let head = rest.first_chunk::<FIXED>()?;
    let len = u32::from_be_bytes(word::<0, 4>(head));
    let flags = i32::from_be_bytes(word::<36, 4>(head));
    let wide = flags & (sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6) != 0;
    if u32::from_be_bytes(word::<4, 4>(head)) != MAGIC_V1 || wide {
        return None;
    }
    let body_len = u32::from_be_bytes(word::<84, 4>(head));
    let (body, after) = rest.get(FIXED..len as usize)?.split_at_checked(body_len as usize)?;
    let (&topic_len, after) = after.split_first()?;
    let after = after.get(usize::from(topic_len)..)?;
    let (properties_len, properties) = after.split_first_chunk::<2>()?;
    let properties_len = u16::from_be_bytes(*properties_len);
    // The top bit of each length is a sign.
    if properties.len() != usize::from(properties_len) || properties_len > i16::MAX as u16 || topic_len > i8::MAX as u8
    {
        return None;
    }
    let crc = u32::from_be_bytes(word::<8, 4>(head));
    if check == Check::Crc && body_crc(body) != crc {
        return None;
    }
    Some(Record {
        queue_offset: i64::from_be_bytes(word::<20, 8>(head)),
        physical_offset: i64::from_be_bytes(word::<28, 8>(head)),
        born_ms: i64::from_be_bytes(word::<40, 8>(head)),
        store_ms: i64::from_be_bytes(word::<56, 8>(head)),
        prepared_offset: i64::from_be_bytes(word::<76, 8>(head)),
        // `index` has cut its bytes to 32 bits.
        at: at as u32,
        len,
        body_len,
        body_crc: crc,
        queue_id: i32::from_be_bytes(word::<12, 4>(head)),
        flag: i32::from_be_bytes(word::<16, 4>(head)),
        sys_flag: flags,
        reconsume_times: i32::from_be_bytes(word::<72, 4>(head)),
        topic_len: u16::from(topic_len),
        properties_len,
        topic_len_bytes: 1,
    })
}

/// The record at the front of `rest`, whose first byte is byte `at` of what is indexed; `None` for a blank one.
#[inline(never)]
pub(super) fn read(rest: &[u8], at: usize, check: Check) -> Result<Option<Record>, WireError> {
    let Some(head) = rest.first_chunk::<FIXED>() else { return short(rest) };
    let len = u32::from_be_bytes(word::<0, 4>(head));
    let magic = u32::from_be_bytes(word::<4, 4>(head));
    let bytes = match rest.get(..len as usize) {
        Some(bytes) if bytes.len() >= RECORD_MIN => bytes,
        _ => return short(rest),
    };
    let topic_len_bytes = match magic {
        MAGIC_V1 => 1u8,
        MAGIC_V2 => 2,
        _ => return short(rest),
    };
    let flags = i32::from_be_bytes(word::<36, 4>(head));
    let (store_ms, reconsume_times, prepared_offset, body_len, fixed) =
        if flags & (sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6) == 0 {
            (
                i64::from_be_bytes(word::<56, 8>(head)),
                i32::from_be_bytes(word::<72, 4>(head)),
                i64::from_be_bytes(word::<76, 8>(head)),
                i32::from_be_bytes(word::<84, 4>(head)),
                FIXED,
            )
        } else {
            wide(bytes, flags)?
        };
    let bad = |what, len: i64| WireError::BadLength { what, len, left: bytes.len().saturating_sub(fixed) };
    let body_end = match usize::try_from(body_len).ok().and_then(|len| fixed.checked_add(len)) {
        Some(end) if end < bytes.len() => end,
        _ => return Err(bad("body", i64::from(body_len))),
    };
    let after = bytes.get(body_end..).unwrap_or_default();
    let topic_len = match (topic_len_bytes, after) {
        (1, &[len, ..]) => i16::from(len as i8),
        (_, &[high, low, ..]) => i16::from_be_bytes([high, low]),
        _ => return Err(bad("topic", 0)),
    };
    let topic_end = match usize::try_from(topic_len) {
        Ok(len) => body_end + usize::from(topic_len_bytes) + len,
        Err(_) => return Err(bad("topic", i64::from(topic_len))),
    };
    let Some(word) = bytes.get(topic_end..).and_then(<[u8]>::first_chunk::<2>) else {
        return Err(bad("topic", i64::from(topic_len)));
    };
    let properties_len = i16::from_be_bytes(*word);
    match usize::try_from(properties_len) {
        Ok(len) if topic_end + 2 + len == bytes.len() => {}
        _ => return Err(bad("properties", i64::from(properties_len))),
    }
    let stored = u32::from_be_bytes(self::word::<8, 4>(head));
    if check == Check::Crc {
        let computed = body_crc(bytes.get(fixed..body_end).unwrap_or_default());
        if computed != stored {
            return Err(WireError::BadChecksum { stored, computed });
        }
    }
    Ok(Some(Record {
        queue_offset: i64::from_be_bytes(self::word::<20, 8>(head)),
        physical_offset: i64::from_be_bytes(self::word::<28, 8>(head)),
        born_ms: i64::from_be_bytes(self::word::<40, 8>(head)),
        store_ms,
        prepared_offset,
        // `index` has cut its bytes to 32 bits.
        at: at as u32,
        len,
        body_len: body_len as u32,
        body_crc: stored,
        queue_id: i32::from_be_bytes(self::word::<12, 4>(head)),
        flag: i32::from_be_bytes(self::word::<16, 4>(head)),
        sys_flag: flags,
        reconsume_times,
        topic_len: topic_len as u16,
        properties_len: properties_len as u16,
        topic_len_bytes,
    }))
}

/// A blank record, or what is wrong with something too short or with a foreign mark.
#[cold]
fn short(rest: &[u8]) -> Result<Option<Record>, WireError> {
    let mut cursor = Cursor::new(rest);
    let len = cursor.i32("size")?;
    let magic = cursor.u32("magic")?;
    let fits = usize::try_from(len).is_ok_and(|len| len <= rest.len());
    match magic {
        MAGIC_BLANK if fits && len >= 8 => Ok(None),
        MAGIC_V1 | MAGIC_V2 => Err(WireError::BadLength { what: "size", len: i64::from(len), left: rest.len() }),
        _ if !fits => Err(WireError::BadLength { what: "size", len: i64::from(len), left: rest.len() }),
        _ => Err(WireError::BadValue { what: "magic", found: i64::from(magic) }),
    }
}

/// What stands behind the hosts, when one of them is IPv6.
#[cold]
fn wide(bytes: &[u8], flags: i32) -> Result<(i64, i32, i64, i32, usize), WireError> {
    let mut cursor = Cursor::new(bytes);
    cursor.take("head", 48)?;
    cursor.take("born host", host_len(flags, sys_flag::BORN_HOST_V6))?;
    let store_ms = cursor.i64("store time")?;
    cursor.take("store host", host_len(flags, sys_flag::STORE_HOST_V6))?;
    let reconsume_times = cursor.i32("reconsume times")?;
    let prepared_offset = cursor.i64("prepared offset")?;
    let body_len = cursor.i32("body length")?;
    Ok((store_ms, reconsume_times, prepared_offset, body_len, bytes.len() - cursor.left()))
}
