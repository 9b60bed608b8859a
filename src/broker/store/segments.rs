//! Segments of the log, from the oldest to the active one, and finding the one that holds a position.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};

use super::index::IndexFile;
use super::window::View;
use crate::disk::{Blob, Disk, Region};
use crate::work::sync::locked;

/// A part of the log in one file.
pub(super) struct Segment {
    /// Position in the log of its first byte.
    pub start: u64,
    /// Length of its file.
    pub capacity: u64,
    /// Position behind its last record; 0 while it is the active one.
    pub end: AtomicU64,
    /// CRC-32C and epoch of its last record, set with `end`.
    pub last: Mutex<(u32, u32)>,
    /// Earliest store time in it; `i64::MAX` without a message.
    pub earliest_ms: AtomicI64,
    /// Latest store time in it.
    pub latest_ms: AtomicI64,
    /// Records at or above this position were written or summed by this process; below it a reader sums first.
    pub trusted_from: AtomicU64,
    /// Whether its name and length are durable.
    pub len_synced: AtomicBool,
    /// Large pages were asked for; written by the segment step.
    pub large: AtomicBool,
    /// This run has made its file; nobody but this store knows frames into it.
    pub made_here: AtomicBool,
    region: RwLock<Option<Arc<Region>>>,
    /// A leaf lock.
    past: Mutex<Past>,
    blob: OnceLock<Arc<dyn Blob>>,
    index: Mutex<Option<Arc<IndexFile>>>,
}

/// Mappings of a segment beside its own, which end with the last frame that points into them.
#[derive(Default)]
struct Past {
    /// The one that it had while it was among the newest.
    region: Weak<Region>,
    /// The one for reading that windows share.
    view: Weak<View>,
    /// There may be no further one.
    over: bool,
}

impl Segment {
    pub fn new(start: u64, capacity: u64, region: Option<Arc<Region>>) -> Self {
        Self {
            start,
            capacity,
            end: AtomicU64::new(0),
            last: Mutex::new((0, 0)),
            earliest_ms: AtomicI64::new(i64::MAX),
            latest_ms: AtomicI64::new(0),
            trusted_from: AtomicU64::new(u64::MAX),
            len_synced: AtomicBool::new(false),
            large: AtomicBool::new(false),
            made_here: AtomicBool::new(false),
            region: RwLock::new(region),
            past: Mutex::default(),
            blob: OnceLock::new(),
            index: Mutex::new(None),
        }
    }

    /// Name of its file.
    pub fn name(&self) -> String {
        name_of(self.start)
    }

    /// Where the next segment starts.
    pub fn limit(&self) -> u64 {
        self.start + self.capacity
    }

    /// Position behind its last record, if it is complete.
    pub fn sealed_end(&self) -> Option<u64> {
        match self.end.load(Ordering::Acquire) {
            0 => None,
            end => Some(end),
        }
    }

    /// Its mapping, if it has one.
    pub fn region(&self) -> Option<Arc<Region>> {
        self.region.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Gives the mapping up; it ends with the last frame that points into it.
    pub fn unmap(&self) {
        let region = self.region.write().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(region) = region {
            locked(&self.past).region = Arc::downgrade(&region);
        }
    }

    /// Gives the mapping up if there is one. True if nobody points into any mapping of its file, nor will.
    pub fn unmap_for_good(&self) -> bool {
        self.unmap();
        let mut past = locked(&self.past);
        past.over = true;
        past.region.strong_count() == 0 && past.view.strong_count() == 0
    }

    /// The view that windows share.
    pub fn view(&self) -> Option<Arc<View>> {
        locked(&self.past).view.upgrade()
    }

    /// Takes a view for all windows, unless there is one already, which is answered. `None` once the file may belong to
    /// another segment.
    pub fn share(&self, view: Arc<View>) -> Option<Arc<View>> {
        let mut past = locked(&self.past);
        let there = past.view.upgrade();
        if there.is_some() || past.over {
            return there.filter(|_| !past.over);
        }
        past.view = Arc::downgrade(&view);
        Some(view)
    }

    /// Its file for reading by position, opened once. Blocks.
    pub fn blob(&self, disk: &dyn Disk) -> io::Result<Arc<dyn Blob>> {
        if let Some(blob) = self.blob.get() {
            return Ok(Arc::clone(blob));
        }
        let opened = disk.open(&self.name())?;
        Ok(Arc::clone(self.blob.get_or_init(|| opened)))
    }

    /// Its index file, if that has been written and is open.
    pub fn index(&self) -> Option<Arc<IndexFile>> {
        locked(&self.index).clone()
    }

    pub fn set_index(&self, index: Arc<IndexFile>) {
        *locked(&self.index) = Some(index);
    }
}

/// Name of the file of the segment that starts here.
pub(super) fn name_of(start: u64) -> String {
    format!("log/{start:020}")
}

/// The segments, oldest first.
#[derive(Default)]
pub(super) struct Segments(RwLock<Vec<Arc<Segment>>>);

impl Segments {
    /// The segment that holds this position.
    pub fn at(&self, position: u64) -> Option<Arc<Segment>> {
        let list = self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let after = list.partition_point(|segment| segment.start <= position);
        list.get(after.checked_sub(1)?).filter(|segment| position < segment.limit()).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Segment>> {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub fn push(&self, segment: Arc<Segment>) {
        self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner).push(segment);
    }

    /// Takes the oldest one out.
    pub fn pop_first(&self) -> Option<Arc<Segment>> {
        let mut list = self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if list.is_empty() { None } else { Some(list.remove(0)) }
    }
}
