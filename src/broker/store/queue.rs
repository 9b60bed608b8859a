//! One queue of the store: its entries in memory for the newest segments, and where older ones stand in index files.
//!
//! The append pushes entries, readers copy a few out; both hold the queue's own lock for some lines only. Who holds a
//! handle needs no look-up in any table.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::format::{key_hash, record_len};
use super::segments::Segment;
use super::window::Window;
use crate::work::sync::locked;

/// Entry flag: `time_ms` is when the message is due, not when it was stored.
pub(super) const DUE: u32 = 1;

/// Entry flag: the message is damaged and was left out; its offset is kept.
pub(super) const DAMAGED: u32 = 2;

/// What the index keeps of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry {
    /// Position of the stored message in the log (what peers call the commit-log offset).
    pub physical: u64,
    /// Bytes of the stored message.
    pub size: u32,
    /// Hash of its tag; 0 without one.
    pub tag: i32,
    /// When it was stored, or, for a delayed message, when it is due. Unix milliseconds.
    pub time_ms: i64,
    pub(super) flags: u32,
}

impl Entry {
    /// Position behind its record.
    pub(super) fn end(&self) -> u64 {
        let start = self.physical - super::format::ENVELOPE as u64;
        start + record_len(self.size as usize) as u64
    }

    /// True if `time_ms` says when the message is due.
    pub fn is_due_time(&self) -> bool {
        self.flags & DUE != 0
    }
}

/// A handle on one queue of one topic. Stays valid until the topic is deleted.
pub struct StoreQueue {
    topic: Arc<str>,
    id: i32,
    pub(super) key_seed: u64,
    /// For a queue of delayed messages: how long each waits.
    delay_ms: Option<i64>,
    /// Offset of the next message. Written under the append lock only.
    pub(super) next: AtomicI64,
    /// Start of the newest segment that holds a message of this queue, plus one. Under the append lock only.
    pub(super) touched: AtomicU64,
    /// Position of the record that deleted its topic; `u64::MAX` while it is there. Under the append lock.
    pub(super) deleted_at: AtomicU64,
    watched: AtomicBool,
    pub(super) index: Mutex<QueueIndex>,
}

/// Where the entries of a queue are. Offsets are dense from the first run to the last entry.
#[derive(Default)]
pub(super) struct QueueIndex {
    pub runs: VecDeque<Run>,
    /// Offset of the first of `entries`.
    pub first: i64,
    pub entries: VecDeque<Entry>,
    /// Position of the record that says where this queue goes on without messages; 0: none.
    pub floor_at: u64,
    /// Windows in older segments, as long as there are any.
    windows: Vec<Near>,
}

/// A window by the offsets that it holds, so that only the one that is wanted is taken into hand.
struct Near {
    first: i64,
    end: i64,
    segment: u64,
    window: Weak<Window>,
}

/// Entries of one queue in one index file.
#[derive(Clone)]
pub(super) struct Run {
    pub first: i64,
    pub count: u32,
    /// Number of its first entry in the file.
    pub position: u32,
    pub segment: Arc<Segment>,
}

/// Where an offset was found.
pub(super) enum Place {
    /// That many entries have been copied.
    Copied(usize),
    /// It is in this window, at its own place, and in an index file as well.
    InWindow(Arc<Window>),
    /// It is in an index file, from this entry of the run on.
    InFile(Run),
    /// Nothing is visible there.
    Nothing,
}

impl StoreQueue {
    pub(super) fn new(topic: Arc<str>, id: i32, delay_ms: Option<i64>) -> Self {
        let key_seed = key_hash(0, topic.as_bytes());
        Self {
            topic,
            id,
            key_seed,
            delay_ms,
            next: AtomicI64::new(0),
            touched: AtomicU64::new(0),
            deleted_at: AtomicU64::new(u64::MAX),
            watched: AtomicBool::new(false),
            index: Mutex::default(),
        }
    }

    /// Its topic.
    pub fn topic(&self) -> &Arc<str> {
        &self.topic
    }

    /// Its id.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// True once its topic has been deleted; appends are refused then.
    pub fn is_deleted(&self) -> bool {
        self.deleted_at.load(Ordering::Acquire) != u64::MAX
    }

    /// From now on [`Watch::grew`](super::Watch::grew) is called when messages come. Whoever holds a pull sets this
    /// first and compares [`Store::bounds`](super::Store::bounds) afterwards, so that no message comes unseen between.
    pub fn watch(&self) {
        self.watched.store(true, Ordering::SeqCst);
    }

    /// Ends [`StoreQueue::watch`].
    pub fn unwatch(&self) {
        self.watched.store(false, Ordering::SeqCst);
    }

    /// True between [`StoreQueue::watch`] and [`StoreQueue::unwatch`].
    pub fn is_watched(&self) -> bool {
        self.watched.load(Ordering::SeqCst)
    }

    /// The next offset, taken. Under the append lock, which makes two plain steps enough.
    pub(super) fn take_next(&self) -> i64 {
        let next = self.next.load(Ordering::Relaxed);
        self.next.store(next + 1, Ordering::Relaxed);
        next
    }

    /// True if this is the queue's first message in the segment that starts here. Under the append lock.
    pub(super) fn touch(&self, segment: u64) -> bool {
        let first = self.touched.load(Ordering::Relaxed) != segment + 1;
        if first {
            self.touched.store(segment + 1, Ordering::Relaxed);
        }
        first
    }

    /// The time an entry holds: when the message was stored, or is due.
    pub(super) fn time_of(&self, store_ms: i64) -> i64 {
        self.delay_ms.map_or(store_ms, |delay| store_ms.saturating_add(delay))
    }

    pub(super) fn flags(&self) -> u32 {
        if self.delay_ms.is_some() { DUE } else { 0 }
    }

    pub(super) fn index(&self) -> MutexGuard<'_, QueueIndex> {
        locked(&self.index)
    }
}

impl fmt::Debug for StoreQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.id)
    }
}

impl QueueIndex {
    /// Lowest offset there is; equal to [`QueueIndex::max`] if there is none.
    pub fn min(&self) -> i64 {
        self.runs.front().map_or(self.first, |run| run.first)
    }

    /// Offset behind the last entry that ends at or below `visible`.
    pub fn max(&self, visible: u64) -> i64 {
        let hidden = if self.entries.back().is_none_or(|last| last.end() <= visible) {
            0
        } else {
            self.entries.len() - self.entries.partition_point(|entry| entry.end() <= visible)
        };
        self.first + as_i64(self.entries.len() - hidden)
    }

    /// Copies entries from offset `from` on into `out`, none that ends above `visible`.
    pub fn copy(&self, from: i64, visible: u64, out: &mut [Entry]) -> Place {
        if from < self.first {
            let at = self.runs.partition_point(|run| run.first + i64::from(run.count) <= from);
            let Some(run) = self.runs.get(at).filter(|run| run.first <= from) else { return Place::Nothing };
            if let Some(window) = self.window(from, run.segment.start) {
                return Place::InWindow(window);
            }
            let skip = u32::try_from(from - run.first).unwrap_or(0);
            return Place::InFile(Run {
                first: from,
                count: run.count - skip,
                position: run.position + skip,
                segment: Arc::clone(&run.segment),
            });
        }
        let Ok(at) = usize::try_from(from - self.first) else { return Place::Nothing };
        let mut copied = 0;
        for (slot, entry) in out.iter_mut().zip(self.entries.range(at.min(self.entries.len())..)) {
            if entry.end() > visible {
                break;
            }
            *slot = *entry;
            copied += 1;
        }
        if copied == 0 { Place::Nothing } else { Place::Copied(copied) }
    }

    fn window(&self, offset: i64, segment: u64) -> Option<Arc<Window>> {
        let mut holding = self.windows.iter().filter(|near| (near.first..near.end).contains(&offset));
        holding.find_map(|near| if near.segment == segment { near.window.upgrade() } else { None })
    }

    /// From now on the window is found here.
    pub fn add_window(&mut self, window: &Arc<Window>) {
        self.windows.retain(|near| near.window.strong_count() > 0);
        let (first, end, segment) = (window.first, window.end(), window.segment.start);
        self.windows.push(Near { first, end, segment, window: Arc::downgrade(window) });
    }

    /// Takes out the window that ends before this offset.
    pub fn take_window_before(&mut self, offset: i64) -> Option<Arc<Window>> {
        let at = self.windows.iter().position(|near| near.end == offset)?;
        self.windows.swap_remove(at).window.upgrade()
    }

    /// The entries in memory that lie in `from..to` of the log, with the offset of the first.
    pub fn within(&self, from: u64, to: u64) -> (i64, Vec<Entry>) {
        let start = self.entries.partition_point(|entry| entry.physical < from);
        let end = self.entries.partition_point(|entry| entry.physical < to);
        (self.first + as_i64(start), self.entries.range(start..end.max(start)).copied().collect())
    }

    /// Forgets entries in memory below `log`, which are in an index file or gone by now.
    pub fn forget_below(&mut self, log: u64) {
        while self.entries.front().is_some_and(|entry| entry.physical < log) {
            self.entries.pop_front();
            self.first += 1;
        }
    }

    /// Takes over an entry that recovery found. False if its offset does not follow: then everything before it is
    /// forgotten, and it is the first.
    pub fn replay(&mut self, offset: i64, entry: Entry) -> bool {
        let next = self.max(u64::MAX);
        let follows = offset == next || (self.runs.is_empty() && self.entries.is_empty());
        if offset != next {
            self.runs.clear();
            self.entries.clear();
            self.first = offset;
        }
        self.entries.push_back(entry);
        follows
    }
}

pub(super) fn as_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
