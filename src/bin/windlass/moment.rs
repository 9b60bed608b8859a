//! The words TIME and SECONDS of the command line as the library's types. Pure; clap calls it.

use std::time::{Duration, SystemTime};
use windlass::StartFrom;

/// `first`, `last`, Unix milliseconds, or RFC 3339.
pub fn start_from(text: &str) -> Result<StartFrom, String> {
    match text {
        "first" => Ok(StartFrom::First),
        "last" => Ok(StartFrom::Last),
        _ => unix_ms(text)
            .and_then(|ms| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms)))
            .map(StartFrom::Time)
            .ok_or_else(|| "first, last, Unix milliseconds, or a time as 2026-01-31T12:00:00Z".to_owned()),
    }
}

/// A time span in seconds, fractions allowed, above 0 and at most a year.
pub fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| *seconds > 0.0 && *seconds <= 31_536_000.0)
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "seconds, above 0 and at most 31536000".to_owned())
}

fn unix_ms(text: &str) -> Option<u64> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok();
    }
    rfc_3339(text.as_bytes())
}

/// `YYYY-MM-DDThh:mm:ss`, a fraction if wanted, and `Z` or `+hh:mm`; not before 1970.
fn rfc_3339(text: &[u8]) -> Option<u64> {
    let year = number(text, 0, 4)?;
    let (month, day) = (field(text, 4, b"-", 1..=12)?, field(text, 7, b"-", 1..=31)?);
    let hour = field(text, 10, b"Tt ", 0..=23)?;
    let (minute, second) = (field(text, 13, b":", 0..=59)?, field(text, 16, b":", 0..=60)?);
    if day > days_of(year, month) {
        return None;
    }
    let (fraction_ms, zone) = fraction(text.get(19..)?)?;
    let seconds = days_before(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset(zone)?;
    u64::try_from(seconds * 1000 + fraction_ms).ok()
}

/// Two digits at `at + 1`, after one of `marks`, within `range`.
fn field(text: &[u8], at: usize, marks: &[u8], range: std::ops::RangeInclusive<i64>) -> Option<i64> {
    text.get(at).filter(|mark| marks.contains(mark))?;
    number(text, at + 1, 2).filter(|value| range.contains(value))
}

fn number(text: &[u8], at: usize, digits: usize) -> Option<i64> {
    let word = text.get(at..at + digits)?;
    let all = word.iter().all(u8::is_ascii_digit);
    all.then(|| word.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
}

/// Milliseconds of `.123456`, and what follows.
fn fraction(text: &[u8]) -> Option<(i64, &[u8])> {
    let Some(digits) = text.strip_prefix(b".") else { return Some((0, text)) };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    let ms = [100, 10, 1].iter().zip(digits).map(|(weight, digit)| weight * i64::from(digit - b'0')).sum();
    (!digits.is_empty()).then_some((ms, rest))
}

/// Seconds east of Greenwich.
fn offset(zone: &[u8]) -> Option<i64> {
    if matches!(zone, b"Z" | b"z") {
        return Some(0);
    }
    let sign = match zone.first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = (number(zone, 1, 2)?, field(zone, 3, b":", 0..=59)?);
    (zone.len() == 6 && hours <= 23).then_some(sign * (hours * 3600 + minutes * 60))
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from 1970-01-01 to this date; negative before it.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let past = year - 1;
    let years = (year - 1970) * 365 + (past / 4 - past / 100 + past / 400) - (1969 / 4 - 1969 / 100 + 1969 / 400);
    years + (1..month).map(|month| days_of(year, month)).sum::<i64>() + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_both_forms_are_the_same_moment() {
        for (text, ms) in [
            ("0", Some(0)),
            ("1767225600123", Some(1_767_225_600_123)),
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2026-01-01T00:00:00.123Z", Some(1_767_225_600_123)),
            ("2026-01-01T01:30:00.1239+01:30", Some(1_767_225_600_123)),
            ("2025-12-31t19:00:00-05:00", Some(1_767_225_600_000)),
            ("2000-02-29 12:00:00z", Some(951_825_600_000)),
            ("2026-03-01T00:00:00Z", Some(1_772_323_200_000)),
            ("1969-12-31T23:59:59Z", None),
            ("2026-02-29T00:00:00Z", None),
            ("2026-01-01T24:00:00Z", None),
            ("2026-01-01T00:00:00", None),
            ("2026-01-01T00:00:00.Z", None),
            ("2026-01-01T00:00:00+1:00", None),
            ("2026-01-01", None),
            ("yesterday", None),
            ("-1", None),
            ("", None),
        ] {
            assert_eq!(unix_ms(text), ms, "{text:?}");
        }
    }

    #[test]
    fn words_name_both_ends() {
        assert_eq!((start_from("first"), start_from("last")), (Ok(StartFrom::First), Ok(StartFrom::Last)));
        let second = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        assert_eq!(start_from("1000"), Ok(StartFrom::Time(second)));
        assert!(start_from("middle").is_err());
    }

    #[test]
    fn spans_are_finite_and_above_zero() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for bad in ["0", "-1", "inf", "NaN", "1e300", "", "x"] {
            assert!(seconds(bad).is_err(), "{bad:?}");
        }
    }
}
