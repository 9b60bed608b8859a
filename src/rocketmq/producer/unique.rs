//! The ids that producers give to messages (property `UNIQ_KEY`): 16 bytes as 32 upper-case hex digits.
//!
//! They are made on the sending thread without a lock, never twice in one process. The same id stays with a message
//! over all attempts, which is how a consumer can tell a second copy.
//!
//! Source: apache/rocketmq@rocketmq-all-4.9.3
//! common/src/main/java/org/apache/rocketmq/common/message/MessageClientIDSetter.java

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Characters of an id.
pub(super) const ID_LEN: usize = 32;

const DAY_MS: i64 = 86_400_000;
const SHORTEST_MONTH_MS: i64 = 28 * DAY_MS;

/// The id a producer gave to a message: Java's `SendResult.getMsgId`.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct MessageId([u8; ID_LEN]);

impl MessageId {
    /// The id as text: 32 upper-case hex digits.
    pub fn as_str(&self) -> &str {
        // Always hex digits; the fallback is never taken.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Where ids come from. One per process: two sources in one process could make the same id.
#[derive(Debug)]
pub(super) struct Ids {
    /// Address, low half of the process id, four random bytes, as hex.
    prefix: [u8; 20],
    /// Unix milliseconds times 65536 plus a counter within the millisecond; only ever grows.
    last: AtomicU64,
    /// Unix milliseconds at which the month of the last id began.
    month: AtomicI64,
}

impl Ids {
    /// The source of this process.
    pub(super) fn of_process() -> &'static Self {
        static IDS: OnceLock<Ids> = OnceLock::new();
        IDS.get_or_init(|| {
            let random = RandomState::new().hash_one(0_u8);
            let bytes = random.to_be_bytes();
            let [a, b, c, d, fallback @ ..] = bytes;
            let own = own_ipv4().map_or(fallback, |own| own.octets());
            Self::new(own, std::process::id(), [a, b, c, d])
        })
    }

    fn new(own: [u8; 4], process: u32, random: [u8; 4]) -> Self {
        let mut bytes = [0; 10];
        let pid = (process & 0xFFFF).to_be_bytes();
        for (to, from) in bytes.iter_mut().zip(own.iter().chain(pid.iter().skip(2)).chain(&random)) {
            *to = *from;
        }
        let mut prefix = [0; 20];
        hex(&bytes, &mut prefix);
        Self { prefix, last: AtomicU64::new(0), month: AtomicI64::new(i64::MIN) }
    }

    /// A new id; `wall_ms` is the time by the wall clock. Differs from every earlier one even if the clock goes back
    /// or more than 65536 are made within a millisecond: then the id's time runs ahead.
    pub(super) fn next(&self, wall_ms: i64) -> MessageId {
        let now = u64::try_from(wall_ms).unwrap_or(0) << 16;
        // The closure never refuses, so both arms carry the value before.
        let before = match self.last.fetch_update(Relaxed, Relaxed, |last| Some(now.max(last.wrapping_add(1)))) {
            Ok(before) | Err(before) => before,
        };
        let at = now.max(before.wrapping_add(1));
        let ms = i64::try_from(at >> 16).unwrap_or(i64::MAX);
        let since = u64::try_from(ms.saturating_sub(self.month_of(ms))).unwrap_or(0) & 0xFFFF_FFFF;
        let [_, _, tail @ ..] = ((since << 16) | (at & 0xFFFF)).to_be_bytes();
        let mut id = [0; ID_LEN];
        let (head, end) = id.split_at_mut(self.prefix.len());
        head.copy_from_slice(&self.prefix);
        hex(&tail, end);
        MessageId(id)
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

/// Unix milliseconds at which the UTC month of `ms` began. Java takes the local month; readers only guess a time by it.
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

/// The address this host would use to reach others; connecting a datagram socket sends nothing.
fn own_ipv4() -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    match socket.local_addr().ok()?.ip() {
        IpAddr::V4(own) if !own.is_loopback() && !own.is_unspecified() => Some(own),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

/// Writes `bytes` as upper-case hex into `text`, which has two places for each.
fn hex(bytes: &[u8], text: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for (byte, pair) in bytes.iter().zip(text.chunks_exact_mut(2)) {
        if let [high, low] = pair {
            *high = DIGITS[usize::from(byte >> 4)];
            *low = DIGITS[usize::from(byte & 15)];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// 2024-03-15 12:00:00 UTC and the start of that month.
    const MARCH: (i64, i64) = (1_710_504_000_000, 1_709_251_200_000);

    fn ids() -> Ids {
        Ids::new([10, 0, 0, 1], 0x0001_2345, [0xAB, 0xCD, 0xEF, 0x01])
    }

    #[test]
    fn b186_an_id_is_address_process_random_time_counter() {
        let ids = ids();
        let since = MARCH.0 - MARCH.1;
        assert_eq!(ids.next(MARCH.0).as_str(), format!("0A0000012345ABCDEF01{since:08X}0000"));
        assert_eq!(ids.next(MARCH.0).as_str(), format!("0A0000012345ABCDEF01{since:08X}0001"));
        assert_eq!(ids.next(MARCH.0 + 1).as_str(), format!("0A0000012345ABCDEF01{:08X}0000", since + 1));
    }

    #[test]
    fn ids_differ_even_when_the_clock_goes_back_or_stands() {
        let (ids, mut seen) = (ids(), HashSet::new());
        for at in [MARCH.0, MARCH.0 - 1, MARCH.0 - 86_400_000, 0, -5, MARCH.0] {
            assert!(seen.insert(ids.next(at)), "at {at}");
        }
        for _ in 0..70_000 {
            assert!(seen.insert(ids.next(MARCH.0)));
        }
        assert!(seen.insert(ids.next(MARCH.0 + 1)), "the next millisecond is taken already");
    }

    #[test]
    fn the_time_restarts_with_the_month() {
        for (year, month, first, last) in [
            (2024, 2, 1_706_745_600_000, 1_709_251_199_999),
            (2024, 12, 1_733_011_200_000, 1_735_689_599_999),
            (1970, 1, 0, 2_678_399_999),
            (2100, 2, 4_105_123_200_000, 4_107_542_399_999_i64),
        ] {
            assert_eq!(month_start(first), first, "{year}-{month}");
            assert_eq!(month_start(last), first, "{year}-{month}");
            assert_eq!(month_start(last + 1), last + 1, "after {year}-{month}");
        }
        let ids = ids();
        let end = &ids.next(1_709_251_199_999).as_str()[20..28].to_owned();
        assert_eq!(end, &format!("{:08X}", 1_709_251_199_999_i64 - 1_706_745_600_000));
        assert_eq!(&ids.next(1_709_251_200_000).as_str()[20..28], "00000000");
    }

    #[test]
    fn threads_never_get_the_same_id() {
        let ids = ids();
        let mut all: Vec<MessageId> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..5_000).map(|_| ids.next(MARCH.0)).collect::<Vec<_>>())).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 20_000);
    }

    #[test]
    fn the_source_of_the_process_is_one() {
        let (a, b) = (Ids::of_process().next(MARCH.0), Ids::of_process().next(MARCH.0));
        assert_eq!(a.as_str()[..20], b.as_str()[..20]);
        assert_ne!(a, b);
    }
}
