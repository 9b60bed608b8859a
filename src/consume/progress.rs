//! Progress: when which offset is committed (design D11), as state without a clock; and where offsets are kept.
//!
//! The loop owns one [`Progress`] per claim and one [`Rounds`] per client. At most one commit per queue is under way and
//! each is acknowledged: a broker that handles commits on several threads lets the last writer win, so that two commits
//! close together could go backwards. Nothing here sends.

use std::time::Duration;

use crate::model::{Queue, QueueOffset};
use crate::work::clock::Nanos;

/// Movement is committed at most this often per client.
pub const MOVEMENT: Duration = Duration::from_millis(500);
/// Every queue is committed at least this often, moved or not: it heals what a broker has forgotten.
pub const FULL_ROUND: Duration = Duration::from_secs(30);

/// Why an [`OffsetStore`] could not do what it was asked: whatever its database says.
pub type OffsetStoreError = Box<dyn std::error::Error + Send + Sync>;

/// Keeps a group's progress in a place of your own instead of with the brokers: in your database, say, next to the data that
/// the messages change. The broker's copy is then only a mirror for those who watch the lag: it is written after the store
/// has acknowledged, and never read for a queue that the store knows.
///
/// Called on threads named `wl-serve-N`, never on the loop and under no lock; it may block, and other queues' progress
/// waits no longer than for a free thread. It may be called on two threads at once, but never twice at once for one queue.
/// A panic is an error.
pub trait OffsetStore: Send + Sync {
    /// The first offset of `queue` that is not consumed. `None` if nothing is stored: then the broker's copy counts, so
    /// that a group can move to a store, and where that has none either, `start_from`.
    ///
    /// # Errors
    /// Whatever kept the store from knowing; never return `Ok(None)` in that case. The queue is not started, an event is
    /// told, and the store is asked again.
    fn load(&self, queue: &Queue) -> Result<Option<QueueOffset>, OffsetStoreError>;

    /// Stores the progress of several queues: all of it, or an error. Everything below an offset is finished, and more may
    /// be. An offset lower than the stored one means that an operator or the broker has set the group back.
    ///
    /// # Errors
    /// Whatever kept it from being stored. An event is told, and the next round tries again.
    fn store(&self, progress: &[(Queue, QueueOffset)]) -> Result<(), OffsetStoreError>;
}

impl<S: OffsetStore + ?Sized> OffsetStore for std::sync::Arc<S> {
    fn load(&self, queue: &Queue) -> Result<Option<QueueOffset>, OffsetStoreError> {
        (**self).load(queue)
    }

    fn store(&self, progress: &[(Queue, QueueOffset)]) -> Result<(), OffsetStoreError> {
        (**self).store(progress)
    }
}

/// What one queue's progress has come to: seen, under way, acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Never goes back.
    seen: QueueOffset,
    under_way: Option<QueueOffset>,
    acknowledged: Option<QueueOffset>,
}

impl Progress {
    /// A queue that starts at `start`. `stored` is what the store is known to hold, if anything.
    pub fn new(start: QueueOffset, stored: Option<QueueOffset>) -> Self {
        Self { seen: start, under_way: None, acknowledged: stored }
    }

    /// The commit point is `offset` now. A lower one than before is ignored.
    pub fn saw(&mut self, offset: QueueOffset) {
        self.seen = self.seen.max(offset);
    }

    /// The highest commit point seen.
    pub fn seen(&self) -> QueueOffset {
        self.seen
    }

    /// The last offset that the store is known to hold.
    pub fn acknowledged(&self) -> Option<QueueOffset> {
        self.acknowledged
    }

    /// True if the store is not known to hold what was seen.
    pub fn is_behind(&self) -> bool {
        self.acknowledged != Some(self.seen)
    }

    /// True while a commit has not been answered. A pull carries no offset then.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// The offset to send now, if there is one: with `full` also one that the store is known to hold. It is under way
    /// from now on.
    pub fn send(&mut self, full: bool) -> Option<QueueOffset> {
        if self.under_way.is_some() || !(full || self.is_behind()) {
            return None;
        }
        self.under_way = Some(self.seen);
        self.under_way
    }

    /// The commit under way was answered: well, or not (refused, timed out, connection lost). After a failure the next
    /// round tries again.
    pub fn answered(&mut self, stored: bool) {
        let offset = self.under_way.take();
        self.acknowledged = if stored { offset.or(self.acknowledged) } else { None };
    }

    /// What is under way is stored, and is under way for a little longer: the broker's copy follows.
    pub fn stored(&mut self) {
        self.acknowledged = self.under_way.or(self.acknowledged);
    }

    /// True if what is under way is stored already.
    pub fn is_stored(&self) -> bool {
        self.under_way.is_some() && self.under_way == self.acknowledged
    }

    /// True once nothing is under way and the store holds what was seen: the claim may be given up.
    pub fn is_settled(&self) -> bool {
        self.under_way.is_none() && !self.is_behind()
    }
}

/// When a client's next round of commits is due.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Progress moved and has not been committed; the round may run from then on.
    moved: Option<Nanos>,
    /// The last round of either kind.
    last: Option<Nanos>,
    full: Nanos,
}

/// A round of commits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Round {
    /// What has moved.
    Moved,
    /// Every queue.
    Full,
}

impl Rounds {
    /// A client that starts now.
    pub fn new(now: Nanos) -> Self {
        Self { moved: None, last: None, full: now + FULL_ROUND }
    }

    /// Some queue's commit point has moved, or a commit has failed. Returns when the round is due, if that is news.
    pub fn moved(&mut self, now: Nanos) -> Option<Nanos> {
        if self.moved.is_some() {
            return None;
        }
        // The first movement after a rest waits as well: the rest of its batch will have followed by then.
        self.moved = Some(self.last.map_or(now + MOVEMENT, |last| (last + MOVEMENT).max(now + MOVEMENT / 5)));
        self.moved
    }

    /// When to call [`due`](Self::due) next.
    pub fn next(&self) -> Nanos {
        self.moved.map_or(self.full, |moved| moved.min(self.full))
    }

    /// The round that is due, if there is one; it counts as run.
    pub fn due(&mut self, now: Nanos) -> Option<Round> {
        let round = if now >= self.full {
            self.full = now + FULL_ROUND;
            Round::Full
        } else if self.moved.is_some_and(|moved| now >= moved) {
            Round::Moved
        } else {
            return None;
        };
        self.moved = None;
        self.last = Some(now);
        Some(round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(offset: i64) -> QueueOffset {
        QueueOffset(offset)
    }

    #[test]
    fn b040_what_was_seen_never_goes_back() {
        let mut progress = Progress::new(at(5), None);
        progress.saw(at(9));
        progress.saw(at(7));
        assert_eq!((progress.seen(), progress.send(false)), (at(9), Some(at(9))));
    }

    #[test]
    fn one_commit_is_under_way_and_the_last_one_waits_for_it() {
        let mut progress = Progress::new(at(0), Some(at(0)));
        assert!(progress.is_settled() && progress.send(false).is_none());
        progress.saw(at(3));
        assert_eq!(progress.send(false), Some(at(3)));
        progress.saw(at(4));
        assert!(progress.send(false).is_none() && progress.send(true).is_none() && !progress.is_settled());
        progress.answered(true);
        assert_eq!((progress.acknowledged(), progress.send(false)), (Some(at(3)), Some(at(4))));
        progress.answered(true);
        assert!(progress.is_settled());
        assert_eq!(progress.send(true), Some(at(4)), "a full round commits what has not moved");
    }

    #[test]
    fn d34_what_the_store_has_is_acknowledged_while_the_brokers_copy_follows() {
        let mut progress = Progress::new(at(0), None);
        progress.saw(at(3));
        assert_eq!(progress.send(false), Some(at(3)));
        progress.stored();
        progress.saw(at(5));
        assert_eq!((progress.acknowledged(), progress.send(true), progress.is_settled()), (Some(at(3)), None, false));
        progress.answered(true);
        assert_eq!((progress.acknowledged(), progress.send(false)), (Some(at(3)), Some(at(5))));
    }

    #[test]
    fn c049_a_failed_commit_is_tried_again_and_unknown_until_then() {
        let mut progress = Progress::new(at(0), None);
        progress.saw(at(3));
        assert_eq!(progress.send(false), Some(at(3)));
        progress.answered(false);
        assert!(progress.is_behind() && !progress.is_settled());
        assert_eq!(progress.send(false), Some(at(3)));
    }

    #[test]
    fn b043_movement_is_committed_within_half_a_second_and_everything_each_half_minute() {
        let ms = Nanos::from_ms;
        let mut rounds = Rounds::new(ms(0));
        assert_eq!((rounds.next(), rounds.due(ms(29_999))), (ms(30_000), None));
        assert_eq!((rounds.moved(ms(100)), rounds.moved(ms(150))), (Some(ms(600)), None));
        assert_eq!((rounds.due(ms(599)), rounds.due(ms(600))), (None, Some(Round::Moved)));
        assert_eq!(rounds.moved(ms(601)), Some(ms(1100)), "half a second after the last round");
        assert_eq!(rounds.due(ms(1100)), Some(Round::Moved));
        assert_eq!(rounds.moved(ms(5000)), Some(ms(5100)), "after a rest a fifth of that gathers a batch");
        assert_eq!(rounds.due(ms(30_000)), Some(Round::Full));
        assert_eq!((rounds.next(), rounds.due(ms(30_001))), (ms(60_000), None), "a full round is a round");
    }
}
