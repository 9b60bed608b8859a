//! Finding messages by time, by position in the log, and by key. The broker calls these for its offset and query
//! requests. They may read older segments, so they block; the loop hands them to its serve lane.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::append::Key;
use super::format::{self, ENVELOPE, Envelope, Kind, key_hash};
use super::keys;
use super::queue::{Entry, Place, StoreQueue};
use super::segments::Segment;
use super::{Shared, Store};
use crate::model::QueueOffset;
use crate::wire::frame::{Frame, FrameOwner};

/// Which end of equal or missing times is meant.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Boundary {
    /// The first message stored at or after the time; behind the last one if there is none.
    #[default]
    Lower,
    /// The last message stored at or before the time; the first one if there is none.
    Upper,
}

impl Store {
    /// The entry at an offset of a queue, if a visible message is there. Blocks for older segments.
    pub fn entry(&self, queue: &StoreQueue, offset: QueueOffset) -> Option<Entry> {
        self.shared.entry(queue, offset.0, self.shared.visible())
    }

    /// Offset by store time. Blocks for older segments.
    ///
    /// Source for the boundaries: apache/rocketmq@rocketmq-all-5.3.3
    /// store/src/main/java/org/apache/rocketmq/store/ConsumeQueue.java
    pub fn offset_by_time(&self, queue: &StoreQueue, time_ms: i64, boundary: Boundary) -> QueueOffset {
        let visible = self.shared.visible();
        let (min, max) = {
            let index = queue.index();
            (index.min(), index.max(visible))
        };
        let before = |entry: &Entry| match boundary {
            Boundary::Lower => entry.time_ms < time_ms,
            Boundary::Upper => entry.time_ms <= time_ms,
        };
        let (mut low, mut high) = (min, max);
        while low < high {
            let middle = low + (high - low) / 2;
            // An entry that cannot be read counts as old: the search goes on behind it.
            if self.shared.entry(queue, middle, visible).is_none_or(|entry| before(&entry)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        match boundary {
            Boundary::Lower => QueueOffset(low),
            Boundary::Upper => QueueOffset((low - 1).max(min)),
        }
    }

    /// The stored message at a position of the log (a commit-log offset that a peer named), if one begins there and
    /// its sums are right. Blocks for older segments.
    pub fn record_at(&self, physical: u64) -> Option<Frame> {
        let (frame, kind) = self.shared.record_at(physical)?;
        let visible = physical + frame.len() as u64 <= self.shared.visible();
        (visible && matches!(kind, Kind::Message | Kind::Member)).then_some(frame)
    }

    /// Up to `most` messages of `topic` that have `key` (a word of KEYS, or the unique key), stored between the times,
    /// newest first. Blocks.
    pub fn by_key(&self, topic: &str, key: &str, most: usize, from_ms: i64, to_ms: i64) -> Vec<Frame> {
        let shared = &*self.shared;
        let hash = key_hash(key_hash(0, topic.as_bytes()), key.as_bytes());
        let born = shared.queues.born(topic);
        let (active, pieces, sealing) = {
            let tail = shared.tail.lock();
            (Arc::clone(&tail.segment), tail.keys.pieces(), tail.sealing.iter().cloned().collect::<Vec<_>>())
        };
        let mut found = Vec::new();
        let mut look = |segment: &Segment, mut candidates: Vec<Key>| {
            candidates.sort_unstable_by_key(|key| std::cmp::Reverse(key.at));
            for candidate in candidates {
                if found.len() >= most {
                    return;
                }
                let physical = segment.start + u64::from(candidate.at) + ENVELOPE as u64;
                if physical <= born {
                    continue;
                }
                found.extend(self.record_at(physical).filter(|frame| has_key(frame, topic, key, from_ms, to_ms)));
            }
        };
        let with_hash = |pieces: &[Arc<Vec<Key>>]| {
            pieces.iter().flat_map(|piece| piece.iter()).filter(|key| key.hash == hash).copied().collect::<Vec<_>>()
        };
        look(&active, with_hash(&pieces));
        for segment in shared.segments.all().iter().rev().filter(|segment| segment.start < active.start) {
            let waiting = sealing.iter().find(|sealing| sealing.segment.start == segment.start);
            match waiting {
                Some(sealing) => look(segment, with_hash(&sealing.keys)),
                None => look(segment, shared.keys_of(segment, hash)),
            }
        }
        found
    }
}

impl Shared {
    pub(super) fn entry(&self, queue: &StoreQueue, offset: i64, visible: u64) -> Option<Entry> {
        let mut one = [Entry { physical: 0, size: 0, tag: 0, time_ms: 0, flags: 0 }];
        let place = queue.index().copy(offset, visible, &mut one);
        match place {
            Place::Copied(_) => one.first().copied(),
            Place::InWindow(window) => window.entries_from(offset).first().copied(),
            Place::InFile(run) => self.entries_of(&run, 1)?.first().copied(),
            Place::Nothing => None,
        }
    }

    /// A record by the position of its payload, summed.
    pub(super) fn record_at(&self, physical: u64) -> Option<(Frame, Kind)> {
        let record_at = physical.checked_sub(ENVELOPE as u64)?;
        if record_at % format::ALIGN as u64 != 0 || record_at >= self.log_end.load(Ordering::Acquire) {
            return None;
        }
        let segment = self.segments.at(record_at)?;
        let at = usize::try_from(record_at - segment.start).ok()?;
        let frame = match segment.region() {
            Some(region) => {
                let envelope = Envelope::read(region.bytes().get(at..)?)?;
                let end = at.checked_add(ENVELOPE + envelope.length as usize)?;
                Frame::new(region as Arc<dyn FrameOwner>, at..end)
            }
            None => {
                let blob = segment.blob(&*self.disk).ok()?;
                let mut head = [0; ENVELOPE];
                blob.read_at(at as u64, &mut head).ok()?;
                let envelope = Envelope::read(&head)?;
                // A length that leaves the segment is no length.
                let len = ENVELOPE.checked_add(envelope.length as usize)?;
                if record_at + len as u64 > segment.limit() {
                    return None;
                }
                let mut bytes = vec![0; len];
                blob.read_at(at as u64, &mut bytes).ok()?;
                Frame::from(bytes)
            }
        };
        let kind = format::check(frame.bytes(), record_at)?.envelope.kind;
        Some((frame.slice(ENVELOPE..frame.len()), kind))
    }

    fn keys_of(&self, segment: &Arc<Segment>, hash: u64) -> Vec<Key> {
        if let Some(keys) = segment.index().and_then(|file| file.keys(hash)) {
            return keys;
        }
        if self.rebuild_index(segment).is_err() {
            return Vec::new();
        }
        segment.index().and_then(|file| file.keys(hash)).unwrap_or_default()
    }
}

fn has_key(frame: &Frame, topic: &str, key: &str, from_ms: i64, to_ms: i64) -> bool {
    let bytes = frame.bytes();
    let Some(record) = keys::record(bytes) else { return false };
    let mut has = false;
    keys::tag_and_keys(record.properties(bytes), |known| has |= known == key.as_bytes());
    has && record.topic(bytes) == topic.as_bytes() && (from_ms..=to_ms).contains(&record.store_ms)
}
