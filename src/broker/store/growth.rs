//! How fast the log grows, as the segment step sees it, and which pages it has brought into memory. Decides whether they
//! are large ones; touches none itself.

/// The log is fast from this many bytes a millisecond on: a large page that is written once more with each sync is then
/// a small part of what is written.
const FAST: u64 = 32 * 1024;
/// Less than this in a shorter time than [`LONG_MS`] says nothing about the rate.
const MUCH: u64 = 2 << 20;
const LONG_MS: i64 = 1000;
/// A log that was fast counts as fast for this long: going back to small pages costs a sync and the pages made ahead.
const CALM_MS: i64 = 10_000;

/// See the top of the file. Belongs to whoever runs the segment step.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// End of the log and time at the last measurement.
    at: u64,
    ms: i64,
    /// When the log was last seen to be fast.
    fast_ms: Option<i64>,
    /// Pages below this position are in memory.
    pub populated: u64,
    /// Segments below this position have small pages again.
    pub small_to: u64,
}

impl Growth {
    /// The log ends at `end` now. True if it grows fast, or did a moment ago.
    pub fn measure(&mut self, end: u64, now_ms: i64) -> bool {
        let (bytes, took) = (end.saturating_sub(self.at), now_ms.saturating_sub(self.ms));
        if bytes >= MUCH || !(0..LONG_MS).contains(&took) {
            if bytes >= MUCH && took >= 0 && bytes / FAST >= took.unsigned_abs() {
                self.fast_ms = Some(now_ms);
            }
            (self.at, self.ms) = (end, now_ms);
        }
        self.fast_ms.is_some_and(|then| (0..CALM_MS).contains(&now_ms.saturating_sub(then)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_fast_while_it_brings_much_in_little_time_and_ten_seconds_longer() {
        let mut growth = Growth::default();
        let mut end = 0;
        // (bytes more, ms later, fast)
        let steps = [
            (4 * MUCH, 5_000, false),
            (MUCH, 65, false),
            (2 * MUCH, 128, true),
            (1000, 0, true),
            (MUCH, 9_999, true),
            (1000, 1, false),
            (MUCH - 1001, 1, false),
            (MUCH, 3, true),
            (0, 20_000, false),
            (2 * MUCH, 1, true),
            (2 * MUCH, -100, false),
            (2 * MUCH, 0, true),
        ];
        let mut now = 1_000_000;
        for (number, (more, later, fast)) in steps.into_iter().enumerate() {
            end += more;
            now += later;
            assert_eq!(growth.measure(end, now), fast, "step {number}");
        }
    }
}
