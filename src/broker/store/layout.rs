//! Where the parts of a stored message are, and how a new one is laid out for the append.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use super::format::{i32_at, i64_at, u16_at, u32_at};

const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;
const BORN_V6: i32 = 1 << 4;
const STORE_V6: i32 = 1 << 5;
/// Position of the queue offset in a record.
pub(super) const QUEUE_OFFSET: usize = 20;
/// Position of the physical offset.
pub(super) const PHYSICAL: usize = 28;

/// The parts of a stored message, as ranges of its bytes.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub body_crc: u32,
    pub queue: i32,
    pub queue_offset: i64,
    pub physical: i64,
    pub store_ms: i64,
    pub body: Range<usize>,
    pub topic: Range<usize>,
    pub properties: Range<usize>,
}

/// Finds the parts; `None` if the lengths do not add up to the whole.
pub(super) fn parts(record: &[u8]) -> Option<Parts> {
    let two = match u32_at(record, 4)? {
        MAGIC_V1 => false,
        MAGIC_V2 => true,
        _ => return None,
    };
    if u32_at(record, 0)? as usize != record.len() {
        return None;
    }
    let sys_flag = i32_at(record, 36)?;
    let born: usize = if sys_flag & BORN_V6 != 0 { 20 } else { 8 };
    let store = if sys_flag & STORE_V6 != 0 { 20 } else { 8 };
    let body_at = 72 + born + store;
    let body = body_at..body_at.checked_add(usize::try_from(i32_at(record, body_at - 4)?).ok()?)?;
    let (topic_at, topic_len) = if two {
        (body.end + 2, usize::from(u16_at(record, body.end)?))
    } else {
        (body.end + 1, usize::from(*record.get(body.end)?))
    };
    let topic = topic_at..topic_at + topic_len;
    let properties = topic.end + 2..topic.end + 2 + usize::from(u16_at(record, topic.end)?);
    if properties.end != record.len() {
        return None;
    }
    Some(Parts {
        body_crc: u32_at(record, 8)?,
        queue: i32_at(record, 12)?,
        queue_offset: i64_at(record, QUEUE_OFFSET)?,
        physical: i64_at(record, PHYSICAL)?,
        store_ms: i64_at(record, 48 + born)?,
        body,
        topic,
        properties,
    })
}

/// The fixed fields of a message about to be stored.
pub(super) struct Head {
    pub total: u32,
    pub body_crc: u32,
    pub queue: i32,
    pub flag: i32,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub born_host: SocketAddr,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_offset: i64,
    pub body_len: u32,
    pub long_topic: bool,
}

impl Head {
    /// Appends everything before the body; queue offset, physical offset and store time are left 0. Answers where the
    /// store time goes, from the first byte appended.
    pub fn write(&self, out: &mut Vec<u8>) -> usize {
        let mut sys_flag = self.sys_flag & !(BORN_V6 | STORE_V6);
        if self.born_host.is_ipv6() {
            sys_flag |= BORN_V6;
        }
        if self.store_host.is_ipv6() {
            sys_flag |= STORE_V6;
        }
        let from = out.len();
        out.extend(self.total.to_be_bytes());
        out.extend(if self.long_topic { MAGIC_V2 } else { MAGIC_V1 }.to_be_bytes());
        out.extend(self.body_crc.to_be_bytes());
        out.extend(self.queue.to_be_bytes());
        out.extend(self.flag.to_be_bytes());
        out.extend([0; 16]);
        out.extend(sys_flag.to_be_bytes());
        out.extend(self.born_ms.to_be_bytes());
        write_host(out, self.born_host);
        let store_time = out.len() - from;
        out.extend([0; 8]);
        write_host(out, self.store_host);
        out.extend(self.reconsume_times.to_be_bytes());
        out.extend(self.prepared_offset.to_be_bytes());
        out.extend(self.body_len.to_be_bytes());
        store_time
    }

    /// Bytes that [`Head::write`] appends.
    pub fn len(born_host: SocketAddr, store_host: SocketAddr) -> usize {
        let host = |addr: SocketAddr| if addr.is_ipv6() { 20 } else { 8 };
        72 + host(born_host) + host(store_host)
    }
}

fn write_host(out: &mut Vec<u8>, addr: SocketAddr) {
    match addr.ip() {
        IpAddr::V4(ip) => out.extend(ip.octets()),
        IpAddr::V6(ip) => out.extend(ip.octets()),
    }
    out.extend(i32::from(addr.port()).to_be_bytes());
}

/// What the index keeps of a message's properties: the hash of its tag, and each of its keys.
pub(super) fn tag_and_keys(properties: &[u8], mut key: impl FnMut(&[u8])) -> i32 {
    let mut tag = 0;
    for piece in properties.split(|byte| *byte == 2) {
        let mut sides = piece.splitn(2, |byte| *byte == 1);
        let (Some(name), Some(value)) = (sides.next(), sides.next()) else { continue };
        match name {
            b"TAGS" => tag = std::str::from_utf8(value).map_or(0, crate::model::tags::java_hash),
            b"UNIQ_KEY" => key(value),
            b"KEYS" => value.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).for_each(&mut key),
            _ => {}
        }
    }
    tag
}
