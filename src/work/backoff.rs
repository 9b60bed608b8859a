//! How long to wait before trying something unreachable once more. Pure; the caller keeps one per peer.

use std::time::Duration;

/// Waits that double from a first to a greatest one, until a success.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Backoff {
    /// The first wait is `first`, none is longer than `most`.
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, failures: 0 }
    }

    /// Notes a failure; how long to wait before the next try.
    pub fn failed(&mut self) -> Duration {
        let wait =
            self.first.saturating_mul(1u32.checked_shl(self.failures.min(31)).unwrap_or(u32::MAX)).min(self.most);
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// Notes a success: the next failure waits the first wait again.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_greatest_and_start_anew_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let waits: Vec<u64> = (0..5).map(|_| backoff.failed().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 5, 5]);
        for _ in 0..100 {
            assert!(backoff.failed() <= Duration::from_secs(5));
        }
        backoff.succeeded();
        assert_eq!((backoff.failed(), backoff.failures()), (Duration::from_secs(1), 1));
    }
}
