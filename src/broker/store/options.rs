//! What can be chosen about a store, with defaults for a durable and for an ephemeral one.

use std::time::Duration;

use crate::error::ConfigError;
use crate::model::DelayLevel;
use crate::model::names::SCHEDULE_TOPIC;

/// When appended messages are made durable.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Flush {
    /// Within a short time (200 ms or 4 MiB). A message is shown at once. It survives the end of the process always; a
    /// power cut may cost the last moments.
    #[default]
    Async,
    /// Before it is acknowledged and before anybody is shown it. Many waiting senders share one sync.
    Sync,
    /// Never, for tests and ephemeral brokers.
    None,
}

/// Settings of a store. Setters take and return it.
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) flush: Flush,
    pub(super) flush_every: Duration,
    pub(super) flush_bytes: u64,
    pub(super) first_segment: u64,
    pub(super) largest_segment: u64,
    pub(super) mapped_bytes: u64,
    pub(super) populate_bytes: u64,
    pub(super) max_body: usize,
    pub(super) retain_ms: i64,
    pub(super) retain_bytes: u64,
    pub(super) retain_segments: usize,
    pub(super) checkpoint_every: Duration,
    pub(super) delay_scale: f64,
    pub(super) repair: bool,
}

const MIB: u64 = 1024 * 1024;

impl Options {
    /// For a broker that keeps its messages: `Flush::Async`, segments of 1 MiB doubling to 64 MiB, 72 hours and 4 GiB.
    pub fn durable() -> Self {
        Self {
            flush: Flush::Async,
            flush_every: Duration::from_millis(200),
            flush_bytes: 4 * MIB,
            first_segment: MIB,
            largest_segment: 64 * MIB,
            mapped_bytes: 128 * MIB,
            populate_bytes: 8 * MIB,
            max_body: 4 * 1024 * 1024,
            retain_ms: 72 * 3600 * 1000,
            retain_bytes: 4096 * MIB,
            retain_segments: 0,
            checkpoint_every: Duration::from_secs(5),
            delay_scale: 1.0,
            repair: false,
        }
    }

    /// For a broker whose directory goes with it: never synced, segments of 4 MiB.
    pub fn ephemeral() -> Self {
        Self { flush: Flush::None, first_segment: 4 * MIB, largest_segment: 4 * MIB, ..Self::durable() }
    }

    /// When messages are made durable. Default `Flush::Async`.
    pub fn flush(mut self, flush: Flush) -> Self {
        self.flush = flush;
        self
    }

    /// Longest time that `Flush::Async` leaves a message unsynced. Default 200 ms, allowed 1 ms to 60 s.
    pub fn flush_every(mut self, time: Duration) -> Self {
        self.flush_every = time;
        self
    }

    /// Size of the first segment and the size that doubling ends at, in bytes. Default 1 MiB and 64 MiB (ephemeral: 4
    /// MiB both), allowed 512 bytes to 1 GiB. A segment is made larger for a message that needs it.
    pub fn segments(mut self, first: u64, largest: u64) -> Self {
        self.first_segment = first;
        self.largest_segment = largest;
        self
    }

    /// How much of the log's end is kept mapped, in bytes; the active and the previous segment always are. Default 128
    /// MiB.
    pub fn mapped_bytes(mut self, bytes: u64) -> Self {
        self.mapped_bytes = bytes;
        self
    }

    /// How far ahead of the log's end pages are brought into memory, in bytes. Default 8 MiB. A log that grows by more
    /// than 32 MiB a second has pages of 2 MiB where the system gives them (not with `Flush::Sync`).
    pub fn populate_bytes(mut self, bytes: u64) -> Self {
        self.populate_bytes = bytes;
        self
    }

    /// Longest body, in bytes, as it is stored. Default 4 MiB, allowed 1 byte to 15 MiB (Java's `maxMessageSize`).
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// How long a segment is kept after its last message. Default 72 hours; zero: for ever (Java's `fileReservedTime`).
    pub fn retain_for(mut self, time: Duration) -> Self {
        self.retain_ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        self
    }

    /// How many bytes of log are kept. Default 4 GiB; 0: no limit.
    pub fn retain_bytes(mut self, bytes: u64) -> Self {
        self.retain_bytes = bytes;
        self
    }

    /// How many segments are kept. Default 0: no limit.
    pub fn retain_segments(mut self, segments: usize) -> Self {
        self.retain_segments = segments;
        self
    }

    /// Opens a store that is damaged below its durable mark by giving up what follows the damage. Default false: such a
    /// store is refused.
    pub fn repair(mut self, repair: bool) -> Self {
        self.repair = repair;
        self
    }

    /// Delays of the schedule topic's queues are multiplied by it. Default 1; a test sets less. It must stay the same
    /// over restarts for messages that are waiting.
    pub fn delay_scale(mut self, scale: f64) -> Self {
        self.delay_scale = scale;
        self
    }

    /// How long messages of this queue wait before they are due; `None` for ordinary messages.
    pub fn delay_of(&self, topic: &str, queue: i32) -> Option<i64> {
        if topic != SCHEDULE_TOPIC {
            return None;
        }
        let wait = DelayLevel::new(queue.saturating_add(1))?.duration();
        i64::try_from(wait.mul_f64(self.delay_scale).as_millis()).ok()
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let segments = 512..=1024 * MIB;
        if !segments.contains(&self.first_segment) || !segments.contains(&self.largest_segment) {
            return refuse(
                "segments",
                format!("{}, {}", self.first_segment, self.largest_segment),
                "512 bytes to 1 GiB",
            );
        }
        if self.first_segment > self.largest_segment {
            let value = format!("{}, {}", self.first_segment, self.largest_segment);
            return refuse("segments", value, "a first segment no larger than the largest");
        }
        if self.max_body == 0 || self.max_body > 15 * 1024 * 1024 {
            return refuse("max_body", self.max_body.to_string(), "1 byte to 15 MiB");
        }
        if !(0.0..=1000.0).contains(&self.delay_scale) {
            return refuse("delay_scale", self.delay_scale.to_string(), "0 to 1000");
        }
        if self.flush_every < Duration::from_millis(1) || self.flush_every > Duration::from_secs(60) {
            return refuse("flush_every", format!("{:?}", self.flush_every), "1 ms to 60 s");
        }
        Ok(())
    }

    /// Size of the segment after one of `last` bytes, with room for a record or group of `need` bytes.
    pub(super) fn segment_after(&self, last: Option<u64>, need: u64) -> u64 {
        let size = match last {
            None => self.first_segment,
            Some(last) => last.saturating_mul(2).clamp(self.first_segment, self.largest_segment),
        };
        let with_end = need + super::format::END_RECORD as u64;
        if size >= with_end { size } else { with_end.next_multiple_of(4096) }
    }
}

fn refuse(field: &'static str, value: String, allowed: &str) -> Result<(), ConfigError> {
    Err(ConfigError { field, value, allowed: allowed.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_double_up_to_the_largest_and_grow_for_a_large_record() {
        let options = Options::durable();
        let mut sizes = vec![options.segment_after(None, 0)];
        for _ in 0..7 {
            sizes.push(options.segment_after(sizes.last().copied(), 100));
        }
        assert_eq!(sizes.iter().map(|size| size / MIB).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64, 64]);
        assert_eq!(options.segment_after(None, 3 * MIB), 3 * MIB + 4096);
        assert_eq!(options.segment_after(Some(3 * MIB + 4096), 100), 6 * MIB + 8192);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        assert!(Options::durable().check().is_ok() && Options::ephemeral().check().is_ok());
        let error = Options::durable().segments(4096, 1024).check().unwrap_err();
        assert_eq!(error.field, "segments");
        assert_eq!(Options::durable().max_body(0).check().unwrap_err().field, "max_body");
    }
}
