//! How often a condition that others can repeat at will is told: at once, and then at most once a second with the number
//! of times.
//!
//! Where a peer, a full disk or a flood decides how often something happens, a line each time would fill the disk that
//! holds the log. Any thread may ask; nobody waits for long.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// At most one line in this time.
const EVERY: Duration = Duration::from_secs(1);

/// One condition's pace: a `static` beside the line that tells it.
pub struct Pace(Mutex<Told>);

#[derive(Clone, Copy)]
struct Told {
    last: Option<Instant>,
    since: u64,
}

impl Pace {
    /// Nothing has happened yet.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(Mutex::new(Told { last: None, since: 0 }))
    }

    /// It has happened: `Some` if that is to be told now, with how often it has happened since it was told last, this
    /// time included.
    pub fn tell(&self) -> Option<u64> {
        self.tell_at(Instant::now())
    }

    fn tell_at(&self, now: Instant) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.since += 1;
        if told.last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            return None;
        }
        let before = std::mem::replace(&mut *told, Told { last: Some(now), since: 0 });
        Some(before.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_time_is_told_and_then_one_a_second_with_the_count() {
        let (pace, start) = (Pace::new(), Instant::now());
        let at = |ms| pace.tell_at(start + Duration::from_millis(ms));
        assert_eq!(at(0), Some(1));
        assert_eq!((at(1), at(500), at(999)), (None, None, None));
        assert_eq!(at(1000), Some(4));
        assert_eq!(at(1500), None);
        assert_eq!(at(9000), Some(2));
    }
}
