//! What the marks in the log add up to: how far each delay level has been delivered, which half messages are resolved.
//!
//! Kept by the append under its lock, rebuilt by recovery, and written into every checkpoint. A delivered message and
//! its mark are one group in the log, so both hold after a crash or neither: exactly once.

use super::format::Mark;

use crate::model::{SortedMap, SortedSet};

/// The sum of all marks.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Marks {
    /// Next offset to deliver, by queue of the schedule topic.
    pub delay: SortedMap<i32, i64>,
    /// Every half message below this offset is resolved.
    pub halves_through: i64,
    /// Resolved half messages above it.
    pub halves: SortedSet<i64>,
    /// Position of the newest snapshot of consumer offsets.
    pub snapshot: Option<u64>,
}

impl Marks {
    pub fn apply(&mut self, mark: Mark<'_>, at: u64) {
        match mark {
            Mark::DelayDelivered { level_queue, offset } => {
                let position = self.delay.get_or_default(level_queue);
                *position = (*position).max(offset + 1);
            }
            Mark::HalfResolved { offset } => {
                if offset >= self.halves_through {
                    self.halves.insert(offset);
                }
                while self.halves.remove(&self.halves_through) {
                    self.halves_through += 1;
                }
            }
            Mark::OffsetSnapshot(_) => self.snapshot = Some(at),
            Mark::TopicDeleted(_) | Mark::QueueFloor { .. } => {}
        }
    }

    pub fn is_resolved(&self, offset: i64) -> bool {
        offset < self.halves_through || self.halves.contains(&offset)
    }

    /// Forgets what lies below the half topic's first message.
    pub fn halves_begin_at(&mut self, min: i64) {
        if min > self.halves_through {
            self.halves = std::mem::take(&mut self.halves).into_iter().filter(|half| *half >= min).collect();
            self.halves_through = min;
            while self.halves.remove(&self.halves_through) {
                self.halves_through += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolved_halves_collapse_into_a_mark_and_stay_resolved() {
        let mut marks = Marks::default();
        for offset in [3, 0, 1, 9] {
            marks.apply(Mark::HalfResolved { offset }, 0);
        }
        assert_eq!((marks.halves_through, marks.halves.len()), (2, 2));
        assert!(marks.is_resolved(1) && !marks.is_resolved(2) && marks.is_resolved(3));
        marks.apply(Mark::HalfResolved { offset: 2 }, 0);
        assert_eq!((marks.halves_through, marks.halves.len()), (4, 1));
        marks.halves_begin_at(9);
        assert_eq!((marks.halves_through, marks.halves.len()), (10, 0));
    }

    #[test]
    fn a_delay_position_never_goes_back() {
        let mut marks = Marks::default();
        marks.apply(Mark::DelayDelivered { level_queue: 1, offset: 5 }, 0);
        marks.apply(Mark::DelayDelivered { level_queue: 1, offset: 3 }, 0);
        assert_eq!(marks.delay.get(&1), Some(&6));
    }
}
