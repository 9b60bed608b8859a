//! The store: one log of all messages in segments, the only truth; every other file is a cache that may be deleted.
//!
//! The broker's dispatcher opens it, appends to queues, reads from them, and hears through a [`Watch`] what grew and
//! what became durable. It knows nothing of the protocol beyond the layout of a stored message, starts no thread but
//! the two of [`Store::start_threads`], and runs without them where somebody calls its steps.
//!
//! ```text
//! LOCK            held by the process that has the directory
//! META            format version
//! CHECKPOINT      what a start needs to know (checkpoint.rs)
//! log/<start>     segments, named by their first position (format.rs); .spare-*: retired ones to be used again
//! idx/<start>     index of a complete segment (index.rs)
//! ```

mod append;
mod checkpoint;
mod draft;
mod event;
mod flush;
mod format;
mod growth;
mod index;
mod keys;
mod lookup;
mod marks;
mod options;
mod queue;
mod read;
mod recovery;
mod retention;
mod scan;
mod seal;
mod segments;
mod table;
mod threads;
mod window;

#[cfg(test)]
mod crash;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod lives;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

pub use append::{Appended, IndexBy, Member, NewMessage};
pub use event::{AppendError, DurableError, Event, OpenError, Unwatched, Watch};
pub use format::Mark;
pub use lookup::Boundary;
pub use options::{Flush, Options};
pub use queue::{Entry, StoreQueue};
pub use read::{All, Cold, Filter, Found, Limits, Status};
pub use recovery::Recovered;
pub use threads::Threads;

use crate::disk::{Disk, Held};
use crate::model::QueueOffset;
use crate::work::ranks::Ranked;
use crate::work::sync::locked;

/// A store of messages. Clones share it.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

/// What all parts of a store share.
struct Shared {
    disk: Arc<dyn Disk>,
    options: Options,
    watch: Arc<dyn Watch>,
    tail: Ranked<append::Tail>,
    /// Whoever waits for a segment waits here.
    room: Condvar,
    /// Position behind the last record.
    log_end: AtomicU64,
    durable: AtomicU64,
    /// What the marks below the durable position add up to: a checkpoint must not know more than the log. A leaf lock.
    durable_marks: Mutex<marks::Marks>,
    /// First position of the present epoch.
    epoch_from: AtomicU64,
    /// The segment step is asked for when the log reaches this.
    populate_at: AtomicU64,
    queues: table::Queues,
    segments: segments::Segments,
    windows: window::Windows,
    flusher: flush::Flusher,
    segment_signal: threads::Signal,
    spares: Mutex<Vec<seal::Spare>>,
    /// The segment step's; a leaf lock.
    growth: Mutex<growth::Growth>,
    /// The log grows fast and its pages may be large ones.
    large: AtomicBool,
    was_full: AtomicBool,
    meta_synced: AtomicBool,
    /// The checkpoint says that this run has begun.
    begun: AtomicBool,
    /// When the last checkpoint was written, and the durable mark in it.
    checkpoint_ms: AtomicI64,
    checkpoint_at: AtomicU64,
    /// Until the store has been closed in order; a leaf lock.
    lock: Mutex<Option<Held>>,
    /// The directory may belong to somebody else by now: nothing may be changed in it.
    released: AtomicBool,
}

impl Store {
    /// Opens the store in `disk`, making it if there is none. Recovers what a crash left. Blocks on the disk; a start
    /// on an empty or orderly closed directory syncs nothing.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        disk: Arc<dyn Disk>,
        options: Options,
        now_ms: i64,
        watch: Arc<dyn Watch>,
    ) -> Result<(Self, Recovered), OpenError> {
        recovery::open(disk, options, now_ms, watch)
    }

    /// The handle of a queue, made if there is none. Nothing is written before the first append.
    pub fn queue(&self, topic: &str, id: i32) -> Arc<StoreQueue> {
        self.shared.queues.get(topic, id)
    }

    /// The handle of a queue, if there is one.
    pub fn find_queue(&self, topic: &str, id: i32) -> Option<Arc<StoreQueue>> {
        self.shared.queues.find(topic, id)
    }

    /// Every queue of a topic that has or had a message or a handle, by id.
    pub fn topic_queues(&self, topic: &str) -> Vec<Arc<StoreQueue>> {
        self.shared.queues.of_topic(topic)
    }

    /// Every queue, in no order.
    pub fn queues(&self) -> Vec<Arc<StoreQueue>> {
        self.shared.queues.all()
    }

    /// Position of the record that deleted a topic of this name last, if one did: what was said of the topic below it
    /// is no longer so.
    pub fn deleted_at(&self, topic: &str) -> Option<u64> {
        Some(self.shared.queues.born(topic)).filter(|at| *at > 0)
    }

    /// Position behind the last record.
    pub fn log_end(&self) -> u64 {
        self.shared.log_end.load(Ordering::SeqCst)
    }

    /// Next offset to deliver of a queue of the schedule topic.
    pub fn delay_position(&self, level_queue: i32) -> QueueOffset {
        QueueOffset(self.shared.tail.lock().marks.delay.get(&level_queue).copied().unwrap_or(0))
    }

    /// Whether the half message at this offset of the half topic has been committed or rolled back.
    pub fn half_resolved(&self, offset: QueueOffset) -> bool {
        self.shared.tail.lock().marks.is_resolved(offset.0)
    }

    /// Every half message below this offset is resolved; the search for pending ones begins here.
    pub fn halves_resolved_through(&self) -> QueueOffset {
        QueueOffset(self.shared.tail.lock().marks.halves_through)
    }

    /// The newest snapshot of consumer offsets in the log, if there is one that is still there. Blocks.
    pub fn offset_snapshot(&self) -> Option<Vec<u8>> {
        let at = self.shared.tail.lock().marks.snapshot?;
        let (frame, _) = self.shared.record_at(at + format::ENVELOPE as u64)?;
        match Mark::read(frame.bytes()) {
            Some(Mark::OffsetSnapshot(bytes)) => Some(bytes.to_vec()),
            _ => None,
        }
    }

    /// Why the store takes nothing any more, if a write or sync has failed.
    pub fn read_only(&self) -> Option<String> {
        self.shared.tail.lock().read_only.clone()
    }

    /// Takes no more appends, makes everything durable and says in the checkpoint that the log ends here, so that the
    /// next start need not scan. Then the directory is free, although handles may live on: they still read what they
    /// know, and refuse everything else. False if that could not be done; nothing acknowledged is lost by it, and the
    /// directory stays locked until the last handle is dropped. [`Threads::stop`] calls it; without threads the owner
    /// does.
    pub fn close(&self) -> bool {
        let shared = &*self.shared;
        {
            let mut tail = shared.tail.lock();
            if tail.closed {
                return true;
            }
            tail.closed = true;
        }
        if shared.flush_step().is_err() {
            return false;
        }
        shared.seal_all();
        if !shared.save_clean() {
            return false;
        }
        shared.released.store(true, Ordering::SeqCst);
        drop(locked(&shared.lock).take());
        true
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("place", &self.shared.disk.place()).finish_non_exhaustive()
    }
}
