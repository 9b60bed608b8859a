//! Writing a stored message: as a whole, with the places that the store fills in left open.

use std::net::{IpAddr, SocketAddr};

use super::{FIXED, MAGIC_V1, MAGIC_V2, PROPERTIES_MAX, V6_MORE, host_len};
use crate::error::WireError;
use crate::wire::bytes::patch_i64;
use crate::wire::checksum::body_crc;
use crate::wire::remoting::codes::sys_flag;

/// A message to be written as a record. Its offsets and store time are 0 until [`patch`].
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    /// Topic.
    pub topic: &'a [u8],
    /// Body as it is to be stored.
    pub body: &'a [u8],
    /// Properties text.
    pub properties: &'a [u8],
    /// Queue.
    pub queue_id: i32,
    /// The application's own 32 bits.
    pub flag: i32,
    /// See [`sys_flag`]; the two bits of the hosts are set by the hosts below.
    pub sys_flag: i32,
    /// When it was made, ms since 1970.
    pub born_ms: i64,
    /// Address of the producer.
    pub born_host: SocketAddr,
    /// Address of the broker.
    pub store_host: SocketAddr,
    /// How often it was given back.
    pub reconsume_times: i32,
    /// Physical offset of the half message it was, 0 for none.
    pub prepared_offset: i64,
    /// Checksum of the body if it is known already.
    pub body_crc: Option<u32>,
}

/// The fields before the body are at most this long.
const HEAD_MAX: usize = FIXED + 2 * V6_MORE;

/// A run of bytes filled from the front.
struct Head {
    bytes: [u8; HEAD_MAX],
    len: usize,
}

impl Head {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            place.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    fn put_host(&mut self, host: SocketAddr) {
        match host.ip() {
            IpAddr::V4(ip) => self.put(&ip.octets()),
            IpAddr::V6(ip) => self.put(&ip.octets()),
        }
        self.put(&u32::from(host.port()).to_be_bytes());
    }
}

impl NewRecord<'_> {
    fn topic_len_bytes(&self) -> usize {
        if self.topic.len() > i8::MAX as usize { 2 } else { 1 }
    }

    fn fixed_len(&self) -> usize {
        let host = |host: SocketAddr| if host.is_ipv6() { 8 + V6_MORE } else { 8 };
        FIXED - 16 + host(self.born_host) + host(self.store_host)
    }

    /// How long the record will be.
    ///
    /// # Errors
    /// `TooLong` for a topic or properties above 32 767 bytes, or a record above what a frame holds.
    pub fn encoded_len(&self) -> Result<usize, WireError> {
        properties_len(self.properties)?;
        if self.topic.len() > i16::MAX as usize {
            return Err(WireError::TooLong { what: "topic", len: self.topic.len(), max: i16::MAX as usize });
        }
        let ends = self.topic_len_bytes() + self.topic.len() + 2 + self.properties.len();
        let len = self.fixed_len() + self.body.len() + ends;
        let max = crate::wire::frame::REMOTING_MAX as usize;
        if len > max {
            return Err(WireError::TooLong { what: "record", len, max });
        }
        Ok(len)
    }

    fn head(&self, len: usize) -> Head {
        let hosts = [(self.born_host, sys_flag::BORN_HOST_V6), (self.store_host, sys_flag::STORE_HOST_V6)];
        let flags = hosts.iter().fold(
            self.sys_flag,
            |flags, (host, bit)| {
                if host.is_ipv6() { flags | bit } else { flags & !bit }
            },
        );
        let magic = if self.topic_len_bytes() == 1 { MAGIC_V1 } else { MAGIC_V2 };
        let crc = self.body_crc.unwrap_or_else(|| body_crc(self.body));
        let mut head = Head { bytes: [0; HEAD_MAX], len: 0 };
        // `encoded_len` has bounded it to 24 bits.
        head.put(&(len as u32).to_be_bytes());
        head.put(&magic.to_be_bytes());
        head.put(&crc.to_be_bytes());
        head.put(&self.queue_id.to_be_bytes());
        head.put(&self.flag.to_be_bytes());
        head.put(&[0; 16]);
        head.put(&flags.to_be_bytes());
        head.put(&self.born_ms.to_be_bytes());
        head.put_host(self.born_host);
        head.put(&[0; 8]);
        head.put_host(self.store_host);
        head.put(&self.reconsume_times.to_be_bytes());
        head.put(&self.prepared_offset.to_be_bytes());
        head.put(&(self.body.len() as u32).to_be_bytes());
        head
    }

    /// Hands the record's bytes to `put`, piece by piece.
    fn pieces(&self, put: &mut impl FnMut(&[u8])) -> Result<usize, WireError> {
        let len = self.encoded_len()?;
        let head = self.head(len);
        put(head.bytes.get(..head.len).unwrap_or_default());
        put(self.body);
        self.pieces_behind(put);
        Ok(len)
    }

    fn pieces_behind(&self, put: &mut impl FnMut(&[u8])) {
        let topic_len = (self.topic.len() as u16).to_be_bytes();
        put(topic_len.get(2 - self.topic_len_bytes()..).unwrap_or_default());
        put(self.topic);
        put(&(self.properties.len() as u16).to_be_bytes());
        put(self.properties);
    }

    /// Appends all of the record but its body, for a store that copies the body straight to its place, and says how
    /// many of the bytes stand before it.
    ///
    /// # Errors
    /// As [`NewRecord::encoded_len`]; nothing is written then.
    pub fn encode_around(&self, out: &mut Vec<u8>) -> Result<usize, WireError> {
        let head = self.head(self.encoded_len()?);
        out.extend_from_slice(head.bytes.get(..head.len).unwrap_or_default());
        self.pieces_behind(&mut |piece| out.extend_from_slice(piece));
        Ok(head.len)
    }

    /// Appends the record and says how long it is.
    ///
    /// # Errors
    /// As [`NewRecord::encoded_len`]; nothing is written then.
    pub fn encode_into(&self, out: &mut Vec<u8>) -> Result<usize, WireError> {
        out.reserve(self.encoded_len()?);
        self.pieces(&mut |piece| out.extend_from_slice(piece))
    }

    /// Writes the record to the front of `out`, a mapped segment say, and says how long it is.
    ///
    /// # Errors
    /// As [`NewRecord::encoded_len`], and `TooLong` if it does not fit; nothing is written then.
    pub fn encode_to(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let (len, max) = (self.encoded_len()?, out.len());
        let mut rest = out.get_mut(..len).ok_or(WireError::TooLong { what: "record", len, max })?;
        self.pieces(&mut |piece| {
            let (place, after) = std::mem::take(&mut rest).split_at_mut_checked(piece.len()).unwrap_or_default();
            place.copy_from_slice(piece);
            rest = after;
        })
    }
}

/// Length word of a properties text.
///
/// # Errors
/// `TooLong` above 32 767 bytes (C-003).
pub fn properties_len(properties: &[u8]) -> Result<i16, WireError> {
    let len = properties.len();
    i16::try_from(len).map_err(|_| WireError::TooLong { what: "properties", len, max: PROPERTIES_MAX })
}

/// Fills in what a record gets when it is stored. `record` starts with a record that [`NewRecord`] wrote.
#[inline]
pub fn patch(record: &mut [u8], queue_offset: i64, physical_offset: i64, store_ms: i64) {
    let flags = record.get(36..).and_then(<[u8]>::first_chunk::<4>).map_or(0, |word| i32::from_be_bytes(*word));
    patch_i64(record, 20, queue_offset);
    patch_i64(record, 28, physical_offset);
    patch_i64(record, 48 + host_len(flags, sys_flag::BORN_HOST_V6), store_ms);
}
