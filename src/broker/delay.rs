//! Delayed messages: which level's next message is due, and when.
//!
//! A delayed message waits in queue `level - 1` of [`SCHEDULE_TOPIC`](crate::model::names::SCHEDULE_TOPIC). Within a level due times follow the queue's
//! order, so one head per level says everything. This file is the pure part; `deliver.rs` reads the heads from the
//! store and stores each message again under its real topic.
//!
//! Time is Unix milliseconds, because due times outlive a process.
//!
//! Source: apache/rocketmq@rocketmq-all-4.9.3 store/src/main/java/org/apache/rocketmq/store/schedule/ScheduleMessageService.java

use crate::model::DelayLevel;

/// Number of levels.
pub const LEVELS: usize = DelayLevel::SECONDS.len();
/// Wait after a delivery that the store refused.
pub const RETRY_MS: i64 = 100;

/// The heads of all levels.
#[derive(Debug)]
pub struct Delays {
    levels: [Level; LEVELS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Level {
    delay_ms: i64,
    next: i64,
    due_ms: Option<i64>,
}

/// A level whose head is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Due {
    /// Queue of the topic of delayed messages: level - 1.
    pub queue: i32,
    /// Offset of the message.
    pub offset: i64,
}

impl Delays {
    /// Levels whose delays are multiplied by `scale`.
    pub fn new(scale: f64) -> Self {
        let mut levels = [Level::default(); LEVELS];
        for (level, seconds) in levels.iter_mut().zip(DelayLevel::SECONDS) {
            let scaled = f64::from(seconds) * 1000.0 * scale.max(0.0);
            // A float becomes an integer by saturation: no scale can overflow.
            level.delay_ms = scaled.round() as i64;
        }
        Self { levels }
    }

    /// How long `level` waits, milliseconds.
    pub fn delay_ms(&self, level: DelayLevel) -> i64 {
        self.level(level.number() - 1).map_or(0, |level| level.delay_ms)
    }

    /// Where delivery of a queue goes on, after a start. `head_due_ms`: when the message there is due, if there is one.
    pub fn restore(&mut self, queue: i32, next: i64, head_due_ms: Option<i64>) {
        if let Some(level) = self.level_mut(queue) {
            level.next = next;
            level.due_ms = head_due_ms;
        }
    }

    /// The offset of `queue` that is delivered next.
    pub fn position(&self, queue: i32) -> i64 {
        self.level(queue).map_or(0, |level| level.next)
    }

    /// A delayed message was stored. True if the earliest due time may have changed.
    pub fn stored(&mut self, queue: i32, offset: i64, due_ms: i64) -> bool {
        let Some(level) = self.level_mut(queue) else { return false };
        let is_head = level.due_ms.is_none() && offset == level.next;
        if is_head {
            level.due_ms = Some(due_ms);
        }
        is_head
    }

    /// When the next message is due.
    pub fn next_due_ms(&self) -> Option<i64> {
        self.levels.iter().filter_map(|level| level.due_ms).min()
    }

    /// The earliest message that is due. One whose time lies further off than its level's delay is due now: the clock
    /// was set back after it was stored.
    pub fn due(&self, now_ms: i64) -> Option<Due> {
        let ready = |level: &Level| {
            let due = level.due_ms?;
            (due <= now_ms || due > now_ms.saturating_add(level.delay_ms)).then_some(due)
        };
        let (queue, level) = self
            .levels
            .iter()
            .enumerate()
            .filter(|(_, level)| ready(level).is_some())
            .min_by_key(|(_, level)| level.due_ms)?;
        Some(Due { queue: i32::try_from(queue).unwrap_or(0), offset: level.next })
    }

    /// The head of `queue`, at `offset`, is done; `head_due_ms`: when the one behind it is due.
    pub fn delivered(&mut self, queue: i32, offset: i64, head_due_ms: Option<i64>) {
        if let Some(level) = self.level_mut(queue) {
            level.next = offset + 1;
            level.due_ms = head_due_ms;
        }
    }

    /// The store refused the head of `queue`: try again in a moment.
    pub fn refused(&mut self, queue: i32, now_ms: i64) {
        if let Some(level) = self.level_mut(queue) {
            // Never later than the level's delay from now, which `due` would take for a clock set back.
            level.due_ms = Some(now_ms.saturating_add(RETRY_MS.min(level.delay_ms)));
        }
    }

    fn level(&self, queue: i32) -> Option<&Level> {
        self.levels.get(usize::try_from(queue).ok()?)
    }

    fn level_mut(&mut self, queue: i32) -> Option<&mut Level> {
        self.levels.get_mut(usize::try_from(queue).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E-082 with a clock of our own.
    #[test]
    fn each_level_is_due_at_its_delay_and_not_before() {
        for (at, seconds) in DelayLevel::SECONDS.iter().enumerate() {
            let (queue, delay) = (at as i32, i64::from(*seconds) * 1000);
            let mut delays = Delays::new(1.0);
            assert_eq!(delays.delay_ms(DelayLevel::new(queue + 1).unwrap()), delay);
            assert!(delays.stored(queue, 0, 5_000 + delay));
            assert_eq!((delays.due(5_000 + delay - 1), delays.next_due_ms()), (None, Some(5_000 + delay)));
            assert_eq!(delays.due(5_000 + delay), Some(Due { queue, offset: 0 }));
        }
    }

    #[test]
    fn a_scale_shortens_every_level() {
        let delays = Delays::new(0.001);
        assert_eq!(delays.delay_ms(DelayLevel::new(1).unwrap()), 1);
        assert_eq!(delays.delay_ms(DelayLevel::MAX), 7_200);
        assert_eq!(Delays::new(f64::NAN).delay_ms(DelayLevel::MAX), 0);
    }

    #[test]
    fn heads_follow_each_other_and_the_earliest_level_comes_first() {
        let mut delays = Delays::new(1.0);
        assert!(delays.stored(1, 0, 5_000));
        assert!(delays.stored(0, 0, 2_000), "due before the 5 s of the other");
        assert!(!delays.stored(0, 1, 2_500), "not the head");
        assert_eq!(delays.due(9_000), Some(Due { queue: 0, offset: 0 }));
        delays.delivered(0, 0, Some(2_500));
        assert_eq!(delays.due(2_600), Some(Due { queue: 0, offset: 1 }));
        delays.delivered(0, 1, None);
        assert_eq!((delays.due(2_600), delays.position(0)), (None, 2));
        assert!(delays.stored(0, 2, 4_000), "an empty level takes the next message as its head");
        assert_eq!(delays.next_due_ms(), Some(4_000));
    }

    /// E-085.
    #[test]
    fn a_clock_set_back_delivers_now() {
        let mut delays = Delays::new(1.0);
        delays.stored(3, 0, 10_030_000);
        assert_eq!(delays.due(10_000_000), None);
        assert_eq!(delays.due(10_000_000 - 3_600_000), Some(Due { queue: 3, offset: 0 }));
    }

    #[test]
    fn a_refused_delivery_waits_a_moment() {
        let mut delays = Delays::new(1.0);
        delays.restore(2, 7, Some(10_000));
        assert_eq!(delays.due(10_000), Some(Due { queue: 2, offset: 7 }));
        delays.refused(2, 10_000);
        assert_eq!((delays.due(10_099), delays.next_due_ms()), (None, Some(10_100)));
        assert!(delays.due(10_100).is_some());
        // A level shorter than the pause: its head would be taken for one of a clock that was set back.
        let mut short = Delays::new(0.001);
        short.restore(0, 0, Some(10_000));
        short.refused(0, 10_000);
        assert_eq!((short.due(10_000), short.next_due_ms()), (None, Some(10_001)));
        delays.restore(99, 0, None);
        assert_eq!(delays.position(99), 0);
    }
}
