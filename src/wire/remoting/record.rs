//! Stored messages: what is known of one, and where its parts stand in the frame that carries it.
//!
//! A pull answer's body is records one after the other. [`index()`] (`record/index.rs`) makes one [`Record`] of each
//! message: its numbers and lengths. Body, topic and properties stay in the frame. The store writes records with
//! [`NewRecord`] and fills in their places with [`patch`] (`record/encode.rs`).
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3
//! common/src/main/java/org/apache/rocketmq/common/message/MessageDecoder.java,
//! store/src/main/java/org/apache/rocketmq/store/MessageExtEncoder.java

use std::net::{IpAddr, SocketAddr};

pub use encode::{NewRecord, patch, properties_len};
pub use index::{Check, DAMAGE_MAX, Damage, Place, index};

use super::codes::sys_flag;
use super::properties::Properties;
use crate::error::WireError;

mod encode;
mod index;

/// A record whose topic length has one byte.
pub const MAGIC_V1: u32 = 0xDAA3_20A7;
/// A record whose topic length has two bytes: for topics above 127 bytes, which 4.9.x cannot read.
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
/// Fills the end of a log file; carries no message.
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;
/// Shortest record: V1, IPv4 hosts, no topic, body or properties.
pub const RECORD_MIN: usize = 91;
/// Longest properties text in bytes.
pub const PROPERTIES_MAX: usize = i16::MAX as usize;
/// Fields up to the body with IPv4 hosts.
const FIXED: usize = 88;
/// What an IPv6 host is longer.
const V6_MORE: usize = 12;

/// One message of an indexed body: its numbers, and where its texts stand.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Record {
    /// Offset in its queue.
    pub queue_offset: i64,
    /// Place in the broker's log.
    pub physical_offset: i64,
    /// When it was made, ms since 1970.
    pub born_ms: i64,
    /// When it was stored, ms since 1970.
    pub store_ms: i64,
    /// Physical offset of the half message it was, 0 for none.
    pub prepared_offset: i64,
    /// Where the record starts in the indexed bytes.
    pub at: u32,
    /// Its whole length.
    pub len: u32,
    /// Length of the body.
    pub body_len: u32,
    /// Checksum of the body as it says.
    pub body_crc: u32,
    /// Queue.
    pub queue_id: i32,
    /// The application's own 32 bits.
    pub flag: i32,
    /// See [`super::codes::sys_flag`].
    pub sys_flag: i32,
    /// How often it was given back.
    pub reconsume_times: i32,
    topic_len: u16,
    properties_len: u16,
    topic_len_bytes: u8,
}

impl Record {
    /// The one record that `bytes` are; bytes behind it are ignored.
    ///
    /// # Errors
    /// What is wrong with it; `MissingField` for a blank one.
    pub fn read(bytes: &[u8], check: Check) -> Result<Self, WireError> {
        index::read(bytes, 0, check)?.ok_or(WireError::MissingField { field: "record" })
    }

    fn part<'f>(&self, frame: &'f [u8], from: usize, len: usize) -> &'f [u8] {
        let from = self.at as usize + from;
        frame.get(from..from.saturating_add(len)).unwrap_or_default()
    }

    fn fixed(&self) -> usize {
        host_len(self.sys_flag, sys_flag::BORN_HOST_V6) + host_len(self.sys_flag, sys_flag::STORE_HOST_V6) + FIXED - 16
    }

    fn topic_at(&self) -> usize {
        self.fixed() + self.body_len as usize + usize::from(self.topic_len_bytes)
    }

    /// All its bytes; `frame` must be what was indexed, here and below.
    pub fn bytes<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        self.part(frame, 0, self.len as usize)
    }

    /// The body as it is stored: compressed if the flag says so.
    #[inline]
    pub fn body<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        self.part(frame, self.fixed(), self.body_len as usize)
    }

    /// Where the body stands in the indexed bytes.
    pub fn body_range(&self) -> std::ops::Range<usize> {
        let from = self.at as usize + self.fixed();
        from..from + self.body_len as usize
    }

    /// The topic's bytes.
    #[inline]
    pub fn topic<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        self.part(frame, self.topic_at(), usize::from(self.topic_len))
    }

    /// The properties.
    #[inline]
    pub fn properties<'f>(&self, frame: &'f [u8]) -> Properties<'f> {
        let at = self.topic_at() + usize::from(self.topic_len) + 2;
        Properties::new(self.part(frame, at, usize::from(self.properties_len)))
    }

    /// Address of the producer.
    pub fn born_host(&self, frame: &[u8]) -> SocketAddr {
        read_host(self.part(frame, 48, host_len(self.sys_flag, sys_flag::BORN_HOST_V6)))
    }

    /// Address of the broker.
    pub fn store_host(&self, frame: &[u8]) -> SocketAddr {
        let from = 48 + host_len(self.sys_flag, sys_flag::BORN_HOST_V6) + 8;
        read_host(self.part(frame, from, host_len(self.sys_flag, sys_flag::STORE_HOST_V6)))
    }

    /// Its offset id, see [`super::message_id`].
    pub fn offset_id(&self, frame: &[u8]) -> String {
        super::message_id::offset_id(self.store_host(frame), self.physical_offset)
    }

    /// True if the body is compressed.
    pub fn is_compressed(&self) -> bool {
        self.sys_flag & sys_flag::COMPRESSED != 0
    }

    /// The transaction bits of its flag.
    pub fn transaction(&self) -> i32 {
        self.sys_flag & sys_flag::TRANSACTION
    }

    /// True if the body is a batch that the reader takes apart, see [`super::batch`].
    pub fn is_inner_batch(&self) -> bool {
        let both = sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
        self.sys_flag & both == both
    }

    /// The same message, to be written again, perhaps changed.
    pub fn again<'f>(&self, frame: &'f [u8]) -> NewRecord<'f> {
        NewRecord {
            topic: self.topic(frame),
            body: self.body(frame),
            properties: self.properties(frame).text(),
            queue_id: self.queue_id,
            flag: self.flag,
            sys_flag: self.sys_flag,
            born_ms: self.born_ms,
            born_host: self.born_host(frame),
            store_host: self.store_host(frame),
            reconsume_times: self.reconsume_times,
            prepared_offset: self.prepared_offset,
            body_crc: None,
        }
    }
}

fn host_len(flags: i32, bit: i32) -> usize {
    if flags & bit == 0 { 8 } else { 8 + V6_MORE }
}

fn read_host(bytes: &[u8]) -> SocketAddr {
    let host = |ip: IpAddr, port: &[u8]| {
        let port = port.first_chunk::<4>().map_or(0, |port| u32::from_be_bytes(*port));
        // A broker writes ports as 32 bits; above 16 there is none.
        SocketAddr::new(ip, u16::try_from(port).unwrap_or(0))
    };
    match (bytes.split_first_chunk::<16>(), bytes.split_first_chunk::<4>()) {
        (Some((ip, port)), _) => host(IpAddr::from(*ip), port),
        (None, Some((ip, port))) => host(IpAddr::from(*ip), port),
        (None, None) => SocketAddr::new(IpAddr::from([0; 4]), 0),
    }
}

/// For the fuzz target `records`: every byte is accounted for, what is read is written and read again as it was.
#[doc(hidden)]
#[cfg(any(test, fuzzing))]
pub fn fuzz_records(bytes: &[u8], measure: crate::wire::Measure) {
    for check in [Check::Crc, Check::Lengths] {
        let (mut records, mut damage) = (Vec::new(), Vec::new());
        let peak = measure(&mut || index(bytes, check, &mut records, &mut damage));
        assert!(peak <= bytes.len() + 4096, "{peak} bytes for {}", bytes.len());
        let mut ends: Vec<_> = records.iter().map(|record| (record.at as usize, record.len as usize)).collect();
        ends.extend(damage.iter().map(|damage| (damage.at, damage.len)));
        ends.sort_unstable();
        let passed = ends.iter().fold(0, |end, (at, len)| {
            assert!(*at >= end, "spans overlap");
            at + len
        });
        assert!(passed <= bytes.len(), "a span leaves the bytes");
        for record in &records {
            again_as_it_was(record, bytes);
        }
    }
    super::batch::fuzz_batch(bytes, measure);
}

#[cfg(any(test, fuzzing))]
fn again_as_it_was(record: &Record, bytes: &[u8]) {
    let new = record.again(bytes);
    let mut out = Vec::new();
    if new.encode_into(&mut out).is_err() {
        return;
    }
    patch(&mut out, record.queue_offset, record.physical_offset, record.store_ms);
    let read = Record::read(&out, Check::Crc);
    assert_eq!(read.as_ref().err(), None, "what was written is read");
    let Ok(again) = read else { return };
    // What may differ: the sum if it was not checked, the form of the topic's length, and with it the whole.
    let (at, len, body_crc, topic_len_bytes) = (record.at, record.len, record.body_crc, record.topic_len_bytes);
    assert_eq!(Record { at, len, body_crc, topic_len_bytes, ..again }, *record, "written and read");
    assert_eq!(again.topic(&out), record.topic(bytes));
    assert_eq!(again.body(&out), record.body(bytes));
    assert_eq!(again.properties(&out), record.properties(bytes));
    assert_eq!(again.born_host(&out), record.born_host(bytes));
    assert_eq!(again.store_host(&out), record.store_host(bytes));
    let mut slice = vec![0; out.len()];
    assert_eq!(new.encode_to(&mut slice), Ok(out.len()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::bytes::patch_u32;

    fn new<'a>(topic: &'a str, body: &'a [u8], properties: &'a [u8]) -> NewRecord<'a> {
        NewRecord {
            topic: topic.as_bytes(),
            body,
            properties,
            queue_id: 3,
            flag: 0,
            sys_flag: 0,
            born_ms: 1_700_000_000_000,
            born_host: "127.0.0.1:40000".parse().unwrap(),
            store_host: "127.0.0.1:10911".parse().unwrap(),
            reconsume_times: 0,
            prepared_offset: 0,
            body_crc: None,
        }
    }

    fn encoded(record: &NewRecord<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        record.encode_into(&mut out).unwrap();
        patch(&mut out, 5, 1024, 1_700_000_000_005);
        out
    }

    /// The record of the cases: topic `T1`, body `abc`, tag `A`, 103 bytes.
    fn base() -> Vec<u8> {
        encoded(&new("T1", b"abc", b"TAGS\x01A\x02"))
    }

    #[test]
    fn the_record_of_the_cases_is_what_we_write() {
        let hex = "00000067daa320a7352441c200000003000000000000000000000005000000000000040000000000\
                   0000018bcfe568007f00000100009c400000018bcfe568057f00000100002a9f\
                   00000000000000000000000000000003616263025431000754414753014102";
        assert_eq!(base(), crate::wire::captures::unhex(hex));
    }

    fn indexed(bytes: &[u8]) -> (Vec<Record>, Vec<Damage>) {
        let (mut records, mut damage) = (Vec::new(), Vec::new());
        index(bytes, Check::Crc, &mut records, &mut damage);
        (records, damage)
    }

    #[test]
    fn c_001_four_mixes_of_hosts() {
        let (v4, v6) = ("127.0.0.1:40000".parse().unwrap(), "[::1]:10911".parse().unwrap());
        for (born_host, store_host, flags, len) in
            [(v4, v4, 0, 103), (v6, v4, 0x10, 115), (v4, v6, 0x20, 115), (v6, v6, 0x30, 127)]
        {
            let bytes = encoded(&NewRecord { born_host, store_host, ..new("T1", b"abc", b"TAGS\x01A\x02") });
            let (records, damage) = indexed(&bytes);
            let record = records.first().unwrap();
            assert_eq!((bytes.len(), record.sys_flag, damage.len(), records.len()), (len, flags, 0, 1));
            assert_eq!((record.topic(&bytes), record.body(&bytes)), (b"T1".as_slice(), b"abc".as_slice()));
            assert_eq!((record.born_host(&bytes), record.store_host(&bytes)), (born_host, store_host));
            assert_eq!((record.queue_offset, record.physical_offset, record.store_ms), (5, 1024, 1_700_000_000_005));
            assert_eq!(record.properties(&bytes).find("TAGS"), Some("A"));
            assert_eq!(encoded(&record.again(&bytes)), bytes);
            let mut around = Vec::new();
            let before = record.again(&bytes).encode_around(&mut around).unwrap();
            around.splice(before..before, record.body(&bytes).iter().copied());
            patch(&mut around, 5, 1024, 1_700_000_000_005);
            assert_eq!((around, record.body_range()), (bytes.clone(), before..before + 3));
            let mut slice = vec![0xEE; len + 1];
            assert_eq!(record.again(&bytes).encode_to(&mut slice), Ok(len));
            patch(&mut slice, 5, 1024, 1_700_000_000_005);
            assert_eq!((slice.get(..len), slice.last()), (Some(bytes.as_slice()), Some(&0xEE)));
            assert!(record.again(&bytes).encode_to(slice.get_mut(..len - 1).unwrap()).is_err());
        }
    }

    #[test]
    fn c_002_unknown_bits_of_the_flag_are_kept() {
        for (flags, transaction) in [(0x04, 4), (0x0C, 12), (i32::MIN, 0)] {
            let mut bytes = base();
            patch_u32(&mut bytes, 36, flags as u32);
            let record = Record::read(&bytes, Check::Crc).unwrap();
            assert_eq!((record.sys_flag, record.transaction(), record.len), (flags, transaction, 103));
            assert_eq!(encoded(&record.again(&bytes)), bytes);
        }
    }

    #[test]
    fn c_003_property_length_beyond_16_bits() {
        let long = vec![b'p'; 32_768];
        let mut out = Vec::new();
        assert!(new("t", b"", &long).encode_into(&mut out).is_err() && out.is_empty());
        assert!(new("t", b"", &long[1..]).encode_into(&mut out).is_ok());
        let mut bytes = base();
        bytes[94..96].copy_from_slice(&[0xFF; 2]);
        bytes.extend(base());
        let (records, damage) = indexed(&bytes);
        assert_eq!((records.len(), records[0].at, damage.len()), (1, 103, 1));
        assert_eq!((damage[0].at, damage[0].len, damage[0].rest_lost), (0, 103, false));
        assert_eq!(damage[0].place, Some(Place { queue_id: 3, queue_offset: 5, physical_offset: 1024 }));
    }

    #[test]
    fn c_004_lengths_that_lie() {
        for word in [0x7FFF_FFFFu32, 0xFFFF_FFFF, 0x8000_0000, 0x10] {
            let mut bytes = base();
            patch_u32(&mut bytes, 84, word);
            assert!(Record::read(&bytes, Check::Lengths).is_err(), "body {word:x}");
        }
        for len in [0x7F, 0xFF, 0x80] {
            let mut bytes = base();
            bytes[91] = len;
            assert!(Record::read(&bytes, Check::Lengths).is_err(), "topic {len:x}");
        }
        for word in [0x7FFF_FFFFu32, 0, 0xFFFF_FFFF, 8] {
            let mut bytes = base();
            patch_u32(&mut bytes, 0, word);
            let (records, damage) = indexed(&bytes);
            assert_eq!((records.len(), records.capacity(), damage.len()), (0, 0, 1), "size {word:x}");
            assert!(damage[0].rest_lost && damage[0].len == 103);
        }
    }

    #[test]
    fn c_007_an_empty_body_is_a_body() {
        let bytes = encoded(&new("T1", b"", b"TAGS\x01A\x02"));
        let record = Record::read(&bytes, Check::Crc).unwrap();
        assert_eq!((bytes.len(), record.body(&bytes), record.body_crc), (100, b"".as_slice(), 0));
    }

    #[test]
    fn a_damaged_record_costs_itself_alone() {
        let mut bytes = Vec::new();
        for _ in 0..5 {
            bytes.extend(base());
        }
        bytes[103 + 88] ^= 1;
        patch_u32(&mut bytes, 3 * 103 + 4, 0xDEAD_BEEF);
        let (records, damage) = indexed(&bytes);
        assert_eq!(records.iter().map(|record| record.at / 103).collect::<Vec<_>>(), [0, 2, 4]);
        assert!(matches!(damage[0].error, WireError::BadChecksum { .. }));
        assert_eq!(damage[1].error, WireError::BadValue { what: "magic", found: 0xDEAD_BEEF });
        assert!(damage.iter().all(|damage| !damage.rest_lost && damage.place.is_some()));
    }

    #[test]
    fn blank_records_are_passed_over() {
        let mut bytes = base();
        bytes.extend([0, 0, 0, 12]);
        bytes.extend(MAGIC_BLANK.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(base());
        let (records, damage) = indexed(&bytes);
        assert_eq!((records.len(), damage.len(), records[1].at), (2, 0, 115));
    }

    #[test]
    fn reports_of_damage_are_bounded() {
        let mut bytes = base();
        patch_u32(&mut bytes, 4, 1);
        let (records, damage) = indexed(&bytes.repeat(1000));
        assert_eq!((records.len(), damage.len()), (0, DAMAGE_MAX));
        assert_eq!(damage.iter().filter(|damage| damage.rest_lost).count(), 1);
        assert_eq!(damage.iter().map(|damage| damage.len).sum::<usize>(), 103_000);
    }

    #[test]
    fn the_index_is_never_larger_than_the_frame() {
        for long in [0, 1, 3, 50] {
            let mut bytes = encoded(&new("t", &vec![0; 4096], b"")).repeat(long);
            bytes.extend(encoded(&new("", b"", b"")).repeat(3000));
            let (records, _) = indexed(&bytes);
            assert!(records.capacity() * size_of::<Record>() <= bytes.len(), "{long}: {}", records.capacity());
        }
        assert_eq!(size_of::<Record>(), 80);
    }

    #[test]
    fn long_topics_take_the_second_form() {
        let topic = "t".repeat(128);
        let bytes = encoded(&new(&topic, b"abc", b""));
        let record = Record::read(&bytes, Check::Crc).unwrap();
        assert_eq!((record.topic(&bytes), bytes[7]), (topic.as_bytes(), 0xAB));
        assert_eq!(record.body(&bytes), b"abc");
    }
}
