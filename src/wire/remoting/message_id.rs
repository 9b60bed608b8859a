//! The two kinds of message id: where a broker stored it (offset id), and the producer's own (unique id).
//!
//! Pure: the caller gives address, process id and time.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3
//! common/src/main/java/org/apache/rocketmq/common/message/{MessageDecoder,MessageClientIDSetter}.java

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use crate::error::WireError;
use crate::wire::bytes::Cursor;

const HEX: [u8; 16] = *b"0123456789ABCDEF";

/// Bytes of an offset id's text: 32 for IPv4, 56 for IPv6.
pub const OFFSET_ID_MAX: usize = 56;

fn push_hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for nibble in [byte >> 4, byte & 0xF] {
            out.push(char::from(HEX.get(usize::from(nibble)).copied().unwrap_or(b'0')));
        }
    }
}

fn push_ip(out: &mut String, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => push_hex(out, &ip.octets()),
        IpAddr::V6(ip) => push_hex(out, &ip.octets()),
    }
}

/// The offset id of a message: upper-case hex of store host, port as four bytes, and physical offset.
pub fn offset_id(store_host: SocketAddr, physical_offset: i64) -> String {
    let mut out = String::with_capacity(OFFSET_ID_MAX);
    push_offset_id(&mut out, store_host, physical_offset);
    out
}

/// Appends an offset id: see [`offset_id`].
pub fn push_offset_id(out: &mut String, store_host: SocketAddr, physical_offset: i64) {
    push_ip(out, store_host.ip());
    push_hex(out, &u32::from(store_host.port()).to_be_bytes());
    push_hex(out, &physical_offset.to_be_bytes());
}

/// Store host and physical offset of an offset id. A unique id may have the same length; nothing tells them apart.
///
/// # Errors
/// `BadText` for any other length than 32 or 56 and for what is not hex; `BadValue` for a port above 65 535.
pub fn read_offset_id(text: &str) -> Result<(SocketAddr, i64), WireError> {
    const WHAT: &str = "message id";
    let mut bytes = [0u8; 28];
    if !matches!(text.len(), 32 | 56) {
        return Err(WireError::BadText { what: WHAT });
    }
    let digits = text.as_bytes().chunks_exact(2);
    for (place, pair) in bytes.iter_mut().zip(digits) {
        let value = pair.iter().try_fold(0, |value, digit| Some(value * 16 + char::from(*digit).to_digit(16)?));
        *place = value.and_then(|value| u8::try_from(value).ok()).ok_or(WireError::BadText { what: WHAT })?;
    }
    let mut cursor = Cursor::new(&bytes);
    let ip = if text.len() == 32 {
        IpAddr::from(cursor.u32(WHAT)?.to_be_bytes())
    } else {
        let (high, low) = (cursor.i64(WHAT)?, cursor.i64(WHAT)?);
        IpAddr::from(((u128::from(high as u64) << 64) | u128::from(low as u64)).to_be_bytes())
    };
    let port = cursor.i32(WHAT)?;
    let port = u16::try_from(port).map_err(|_| WireError::BadValue { what: "port", found: i64::from(port) })?;
    Ok((SocketAddr::new(ip, port), cursor.i64(WHAT)?))
}

const DAY_MS: i64 = 86_400_000;
const SHORTEST_MONTH_MS: i64 = 28 * DAY_MS;

/// A producer's own id of a message: 32 upper-case hex digits, 56 for a producer with an IPv6 address only (Java's
/// `SendResult.getMsgId`, property `UNIQ_KEY`).
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct UniqueId {
    text: [u8; OFFSET_ID_MAX],
    len: u8,
}

impl UniqueId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        // Always hex digits; the fallback is never taken.
        self.text.get(..usize::from(self.len)).and_then(|text| str::from_utf8(text).ok()).unwrap_or_default()
    }
}

impl UniqueId {
    /// Appends bytes as upper-case hex; the longest id has just the room.
    fn push(&mut self, bytes: &[u8]) {
        let places = self.text.get_mut(usize::from(self.len)..).unwrap_or_default();
        for (byte, pair) in bytes.iter().zip(places.chunks_exact_mut(2)) {
            for (place, nibble) in pair.iter_mut().zip([byte >> 4, byte & 0xF]) {
                *place = HEX.get(usize::from(nibble)).copied().unwrap_or(b'0');
            }
            self.len += 2;
        }
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Makes unique ids: address, low half of the process id, four salt bytes, milliseconds of the month, counter. Any
/// thread may ask, without a lock.
#[derive(Debug)]
pub struct UniqueIds {
    /// Its text and characters.
    prefix: UniqueId,
    /// Unix milliseconds times 65536 plus a counter within the millisecond; only ever grows.
    last: AtomicU64,
    /// Unix milliseconds at which the month of the last id began.
    month: AtomicI64,
}

impl UniqueIds {
    /// For a process with this address and id; `salt` tells two generators of one process apart and should be random.
    pub fn new(ip: IpAddr, process_id: u32, salt: u32) -> Self {
        let mut prefix = UniqueId { text: [0; OFFSET_ID_MAX], len: 0 };
        match ip {
            IpAddr::V4(ip) => prefix.push(&ip.octets()),
            IpAddr::V6(ip) => prefix.push(&ip.octets()),
        }
        // The low 16 bits of the process id, as Java takes them.
        prefix.push(&(process_id as u16).to_be_bytes());
        prefix.push(&salt.to_be_bytes());
        Self { prefix, last: AtomicU64::new(0), month: AtomicI64::new(i64::MIN) }
    }

    /// A new id; `wall_ms`: ms since 1970. Differs from every earlier one even if the clock goes back or more than 65 536
    /// are made within a millisecond: then the id's time runs ahead.
    pub fn next(&self, wall_ms: i64) -> UniqueId {
        let now = u64::try_from(wall_ms).unwrap_or(0) << 16;
        // The closure never refuses, so both arms carry the value before.
        let before = match self.last.fetch_update(Relaxed, Relaxed, |last| Some(now.max(last.wrapping_add(1)))) {
            Ok(before) | Err(before) => before,
        };
        let at = now.max(before.wrapping_add(1));
        let ms = i64::try_from(at >> 16).unwrap_or(i64::MAX);
        let since = u64::try_from(ms.saturating_sub(self.month_of(ms))).unwrap_or(0) & 0xFFFF_FFFF;
        let [_, _, tail @ ..] = ((since << 16) | (at & 0xFFFF)).to_be_bytes();
        let mut id = self.prefix;
        id.push(&tail);
        id
    }

    fn month_of(&self, ms: i64) -> i64 {
        let known = self.month.load(Relaxed);
        if ms.checked_sub(known).is_some_and(|since| (0..SHORTEST_MONTH_MS).contains(&since)) {
            return known;
        }
        let start = month_start(ms);
        self.month.store(start, Relaxed);
        start
    }
}

/// First ms of the month of `ms`, UTC; Java takes the local month. Readers use it only to guess a time.
fn month_start(ms: i64) -> i64 {
    let days = ms.div_euclid(DAY_MS);
    // Day of the month by the civil calendar in eras of 400 years that begin on a 1 March.
    let day_of_era = (days + 719_468).rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5;
    (days - day_of_month) * DAY_MS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn c_008_offset_ids() {
        for (host, offset, text) in [
            ("127.0.0.1:10091", 1024, "7F0000010000276B0000000000000400"),
            ("[::1]:10911", 1024, "0000000000000000000000000000000100002A9F0000000000000400"),
            ("192.168.1.10:10911", 0x11_2233_4455, "C0A8010A00002A9F0000001122334455"),
            ("[2001:db8::a]:10911", 4096, "20010DB800000000000000000000000A00002A9F0000000000001000"),
        ] {
            let host = host.parse().unwrap();
            assert_eq!(offset_id(host, offset), text);
            assert_eq!(read_offset_id(text), Ok((host, offset)));
        }
        let odd = "Z".repeat(32);
        for bad in ["", &"0".repeat(31), &"0".repeat(33), &odd, "7F0000010001276B0000000000000400", &"é".repeat(16)] {
            assert!(read_offset_id(bad).is_err(), "{bad}");
        }
    }

    /// 2024-03-15 12:00:00 UTC and the start of that month.
    const MARCH: (i64, i64) = (1_710_504_000_000, 1_709_251_200_000);

    fn ids() -> UniqueIds {
        UniqueIds::new(IpAddr::from([10, 0, 0, 5]), 0x0001_1267, 0x251A_8A1D)
    }

    #[test]
    fn b186_a_unique_id_is_address_process_salt_time_of_the_month_and_counter() {
        let ids = ids();
        let since = MARCH.0 - MARCH.1;
        assert_eq!(ids.next(MARCH.0).as_str(), format!("0A0000051267251A8A1D{since:08X}0000"));
        assert_eq!(ids.next(MARCH.0).as_str(), format!("0A0000051267251A8A1D{since:08X}0001"));
        assert_eq!(ids.next(MARCH.0 + 1).as_str(), format!("0A0000051267251A8A1D{:08X}0000", since + 1));
    }

    #[test]
    fn unique_ids_differ_even_when_the_clock_goes_back_or_stands() {
        let (ids, mut seen) = (ids(), HashSet::new());
        for at in [MARCH.0, MARCH.0 - 1, MARCH.0 - DAY_MS, 0, -5, MARCH.0] {
            assert!(seen.insert(ids.next(at)), "at {at}");
        }
        for _ in 0..70_000 {
            assert!(seen.insert(ids.next(MARCH.0)));
        }
        assert!(seen.insert(ids.next(MARCH.0 + 1)), "the next millisecond is taken already");
    }

    #[test]
    fn threads_never_get_the_same_unique_id() {
        let ids = ids();
        let mut all: Vec<UniqueId> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..5_000).map(|_| ids.next(MARCH.0)).collect::<Vec<_>>())).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 20_000);
    }

    #[test]
    fn the_time_restarts_with_the_month_of_the_calendar() {
        for (first, last) in [
            (1_706_745_600_000, 1_709_251_199_999), // February 2024
            (1_733_011_200_000, 1_735_689_599_999), // December 2024
            (0, 2_678_399_999),                     // January 1970
            (4_105_123_200_000, 4_107_542_399_999), // February 2100
            (949_363_200_000, 951_868_799_999),     // February 2000
        ] {
            assert_eq!((month_start(first), month_start(last), month_start(last + 1)), (first, first, last + 1));
        }
        let ids = ids();
        let time = |at: i64| ids.next(at).as_str().get(20..28).map(str::to_owned);
        assert_eq!(time(1_709_251_199_999), Some(format!("{:08X}", 1_709_251_199_999_i64 - 1_706_745_600_000)));
        assert_eq!(time(1_709_251_200_000).as_deref(), Some("00000000"));
    }
}
