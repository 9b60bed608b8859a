//! Retention: which of the oldest segments go, by the age of their last message, by size, by number.
//!
//! Segments with delayed messages that are not delivered, or half messages that are not resolved, stay until the log is
//! twice as large as it may be. A queue whose last message goes keeps its offset: a mark in the log says so.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::event::Event;
use super::format::Mark;
use super::segments::Segment;
use super::{Shared, Store};
use crate::model::names::{HALF_TOPIC, SCHEDULE_TOPIC};
use crate::work::sync::locked;

impl Store {
    /// Position of the first record.
    pub fn log_min(&self) -> u64 {
        self.shared.segments.all().first().map_or(0, |segment| segment.start)
    }

    /// Bytes of all segments' files.
    pub fn log_bytes(&self) -> u64 {
        self.shared.segments.all().iter().map(|segment| segment.capacity).sum()
    }
}

impl Shared {
    /// Retires what may go. True if anything went.
    pub(super) fn retire(&self, now_ms: i64) -> bool {
        let mut went = 0;
        loop {
            let segments = self.segments.all();
            let Some(oldest) = segments.first().filter(|oldest| self.may_go(oldest, &segments, now_ms)) else { break };
            if !self.keep_floors(oldest, now_ms) {
                break;
            }
            // The file goes first: one that stays behind while a later one goes would leave a hole in the log.
            let Some(spare) = self.take_away(oldest) else { break };
            self.segments.pop_first();
            self.forget(oldest);
            // Only now can nobody read it by position any more.
            locked(&self.spares).extend(spare);
            // An index file without its segment is removed at the next start, if it cannot be now.
            let _ = self.disk.remove(&super::index::name_of(oldest.start));
            went += 1;
        }
        if went > 0 {
            for queue in self.queues.of_topic(HALF_TOPIC) {
                let min = queue.index().min();
                self.tail.lock().marks.halves_begin_at(min);
            }
            let log_min = self.segments.all().first().map_or(0, |segment| segment.start);
            self.watch.event(Event::Retired { log_min, segments: went });
        }
        went > 0
    }

    fn may_go(&self, oldest: &Arc<Segment>, segments: &[Arc<Segment>], now_ms: i64) -> bool {
        // Only what is complete and has its index: the active segment never goes.
        if oldest.sealed_end().is_none() || oldest.index().is_none() {
            return false;
        }
        // What its marks add up to has to be in a checkpoint first: the log does not say it any more.
        if oldest.limit() > self.checkpoint_at.load(Ordering::Relaxed) {
            return false;
        }
        let options = &self.options;
        let bytes: u64 = segments.iter().map(|segment| segment.capacity).sum();
        let age = now_ms.saturating_sub(oldest.latest_ms.load(Ordering::Relaxed));
        let wanted = (options.retain_ms > 0 && age > options.retain_ms)
            || (options.retain_bytes > 0 && bytes > options.retain_bytes)
            || (options.retain_segments > 0 && segments.len() > options.retain_segments);
        if !wanted {
            return false;
        }
        if self.pinned_from() >= oldest.limit() {
            return true;
        }
        let cap = if options.retain_bytes > 0 { options.retain_bytes.saturating_mul(2) } else { u64::MAX };
        if bytes > cap {
            self.watch.event(Event::PinnedRetired { segment: oldest.start });
            return true;
        }
        false
    }

    /// Position of the oldest delayed message that is not delivered or half message that is not resolved.
    fn pinned_from(&self) -> u64 {
        let marks = self.tail.lock().marks.clone();
        let mut pinned = u64::MAX;
        for queue in self.queues.of_topic(SCHEDULE_TOPIC) {
            let min = queue.index().min();
            let next = marks.delay.get(&queue.id()).copied().unwrap_or(0).max(min);
            if let Some(entry) = self.entry(&queue, next, u64::MAX) {
                pinned = pinned.min(entry.physical);
            }
        }
        for queue in self.queues.of_topic(HALF_TOPIC) {
            let (min, max) = {
                let index = queue.index();
                (index.min(), index.max(u64::MAX))
            };
            let first = (min.max(marks.halves_through)..max).find(|offset| !marks.halves.contains(offset));
            if let Some(entry) = first.and_then(|offset| self.entry(&queue, offset, u64::MAX)) {
                pinned = pinned.min(entry.physical);
            }
        }
        pinned
    }

    /// Before a segment goes: writes down where queues go on that will have no message left. False if that failed, or
    /// is not durable yet: the segment goes with a later step then.
    fn keep_floors(&self, oldest: &Arc<Segment>, now_ms: i64) -> bool {
        let limit = oldest.limit();
        let mut written = 0;
        for queue in self.queues.all() {
            let next = {
                let index = queue.index();
                let stays = index.entries.back().is_some_and(|last| last.physical >= limit)
                    || index.runs.back().is_some_and(|run| run.segment.start >= limit);
                if stays || index.max(u64::MAX) == 0 {
                    continue;
                }
                if index.floor_at >= limit {
                    written = written.max(index.floor_at);
                    continue;
                }
                index.max(u64::MAX)
            };
            let mark = Mark::QueueFloor { topic: queue.topic(), queue: queue.id(), next };
            match self.append_mark(mark, now_ms) {
                Ok(appended) => {
                    queue.index().floor_at = appended.physical;
                    written = appended.physical;
                }
                Err(_) => return false,
            }
        }
        written < self.safe()
    }

    /// Forgets the entries of a segment.
    fn forget(&self, segment: &Arc<Segment>) {
        for queue in self.queues.all() {
            let mut index = queue.index();
            while index.runs.front().is_some_and(|run| run.segment.start <= segment.start) {
                index.runs.pop_front();
            }
            index.forget_below(segment.limit());
        }
    }
}
