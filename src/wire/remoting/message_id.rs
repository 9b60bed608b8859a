//! The two kinds of message id: where a broker stored it (offset id), and the producer's own (unique id).
//!
//! Pure: the caller gives address, process id and time.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3
//! common/src/main/java/org/apache/rocketmq/common/message/{MessageDecoder,MessageClientIDSetter}.java

use std::net::{IpAddr, SocketAddr};

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

/// Makes a producer's unique ids. The caller keeps it, under whatever lock its threads need, and gives the time.
#[derive(Clone, Debug)]
pub struct UniqueIds {
    prefix: String,
    month_start_ms: i64,
    next_month_ms: i64,
    counter: u16,
}

impl UniqueIds {
    /// For a process with this address and id; `salt` tells two generators of one process apart and should be random.
    pub fn new(ip: IpAddr, process_id: u32, salt: u32) -> Self {
        let mut prefix = String::with_capacity(OFFSET_ID_MAX);
        push_ip(&mut prefix, ip);
        // The low 16 bits, as Java takes them.
        push_hex(&mut prefix, &(process_id as u16).to_be_bytes());
        push_hex(&mut prefix, &salt.to_be_bytes());
        Self { prefix, month_start_ms: i64::MAX, next_month_ms: i64::MIN, counter: 0 }
    }

    /// Appends a new id; unique while fewer than 65 536 are made in one ms. `wall_ms`: ms since 1970.
    pub fn push_next(&mut self, out: &mut String, wall_ms: i64) {
        if wall_ms >= self.next_month_ms {
            (self.month_start_ms, self.next_month_ms) = month_of(wall_ms);
        }
        // A clock that was set back within a month before it gives the month's start, as Java does.
        let since = wall_ms.saturating_sub(self.month_start_ms).max(0);
        out.push_str(&self.prefix);
        push_hex(out, &(since as u32).to_be_bytes());
        push_hex(out, &self.counter.to_be_bytes());
        self.counter = self.counter.wrapping_add(1);
    }

    /// A new id: see [`UniqueIds::push_next`].
    pub fn next(&mut self, wall_ms: i64) -> String {
        let mut out = String::with_capacity(OFFSET_ID_MAX);
        self.push_next(&mut out, wall_ms);
        out
    }
}

/// First ms of the month of `wall_ms`, UTC, and of the one that follows. Readers use the month only to guess a time.
fn month_of(wall_ms: i64) -> (i64, i64) {
    const DAY_MS: i64 = 86_400_000;
    let days = wall_ms.div_euclid(DAY_MS);
    let (year, month) = year_and_month(days);
    let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    (first_day(year, month) * DAY_MS, first_day(next_year, next_month) * DAY_MS)
}

/// Days from 1970-01-01 to the first of a month of the Gregorian calendar.
fn first_day(year: i64, month: i64) -> i64 {
    // Years start in March, so that the leap day is the last one.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * month + 2) / 5;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn year_and_month(days: i64) -> (i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let year = era * 400 + year_of_era;
    if month >= 10 { (year + 1, month - 9) } else { (year, month + 3) }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn unique_ids_count_from_the_start_of_the_month() {
        let mut ids = UniqueIds::new(IpAddr::from([10, 0, 0, 5]), 4711, 0x251A_8A1D);
        // 2026-11-01T00:00:00Z
        let november = 1_793_491_200_000;
        ids.next(november);
        assert_eq!(ids.next(november + 42), "0A0000051267251A8A1D0000002A0001");
        assert_eq!(ids.next(november - 5), "0A0000051267251A8A1D000000000002");
        let december = november + 30 * 86_400_000;
        assert!(ids.next(december - 1).starts_with("0A0000051267251A8A1D9A7EC7FF"));
        assert!(ids.next(december + 7).ends_with("000000070004"));
    }

    #[test]
    fn months_are_those_of_the_calendar() {
        // 2000-02-29, 1970-01-01, 2100-03-01, 2024-12-31
        for (ms, start, next) in [
            (951_782_400_000, 949_363_200_000, 951_868_800_000),
            (0, 0, 2_678_400_000),
            (4_107_542_400_000, 4_107_542_400_000, 4_110_220_800_000),
            (1_735_603_200_000, 1_733_011_200_000, 1_735_689_600_000),
        ] {
            assert_eq!(month_of(ms), (start, next), "{ms}");
        }
    }
}
