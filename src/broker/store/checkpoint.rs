//! CHECKPOINT and META: what a start needs to know so that it need not read the whole log.
//!
//! A checkpoint is a cache like every file beside the log; without it all segments are read. It is replaced whole, at
//! every seal, every few seconds while there is something new, and at a stop, where it says that the log ends here.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::event::Event;
use super::format::{i32_at, i64_at, u16_at, u32_at, u64_at};
use super::index::{put_text, take_text};
use super::marks::Marks;
use super::{Flush, Shared};
use crate::disk::{Disk, atomic_file};
use crate::model::SortedMap;

pub(super) const CHECKPOINT: &str = "CHECKPOINT";
pub(super) const META: &str = "META";
/// Version of everything in the directory.
pub(super) const VERSION: u16 = 1;
const META_MAGIC: &[u8; 4] = b"WLMQ";
const META_LEN: usize = 64;
const MAGIC: u32 = 0x574C_4331;

/// What a start needs to know.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Checkpoint {
    /// Everything below is synced.
    pub durable: u64,
    pub epoch: u32,
    /// Records at or above this position are of this epoch or a later one.
    pub epoch_from: u64,
    /// The store was closed in order and ends here, with a record of this sum and epoch.
    pub clean: Option<End>,
    /// Complete segments with their index files, oldest first.
    pub sealed: Vec<SealedSegment>,
    /// Queues that have no message left: topic, id, next offset, position of the mark that says so.
    pub floors: Vec<(Arc<str>, i32, i64, u64)>,
    /// Topics that have been deleted, and where.
    pub born: SortedMap<Arc<str>, u64>,
    pub marks: Marks,
}

/// The end of a log.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct End {
    pub at: u64,
    pub crc: u32,
    pub epoch: u32,
}

/// A complete segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SealedSegment {
    pub start: u64,
    pub capacity: u64,
    pub end: u64,
    pub last_crc: u32,
    pub last_epoch: u32,
    pub latest_ms: i64,
}

impl Checkpoint {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(MAGIC.to_be_bytes());
        out.extend(VERSION.to_be_bytes());
        out.extend(u16::from(self.clean.is_some()).to_be_bytes());
        out.extend(self.durable.to_be_bytes());
        out.extend(self.epoch.to_be_bytes());
        out.extend(self.epoch_from.to_be_bytes());
        let end = self.clean.unwrap_or_default();
        out.extend(end.at.to_be_bytes());
        out.extend(end.crc.to_be_bytes());
        out.extend(end.epoch.to_be_bytes());
        put_count(&mut out, self.sealed.len());
        for sealed in &self.sealed {
            out.extend(sealed.start.to_be_bytes());
            out.extend(sealed.capacity.to_be_bytes());
            out.extend(sealed.end.to_be_bytes());
            out.extend(sealed.last_crc.to_be_bytes());
            out.extend(sealed.last_epoch.to_be_bytes());
            out.extend(sealed.latest_ms.to_be_bytes());
        }
        put_count(&mut out, self.floors.len());
        for (topic, queue, next, at) in &self.floors {
            put_text(&mut out, topic);
            out.extend(queue.to_be_bytes());
            out.extend(next.to_be_bytes());
            out.extend(at.to_be_bytes());
        }
        put_count(&mut out, self.born.len());
        for (topic, at) in &self.born {
            put_text(&mut out, topic);
            out.extend(at.to_be_bytes());
        }
        put_count(&mut out, self.marks.delay.len());
        for (level, next) in &self.marks.delay {
            out.extend(level.to_be_bytes());
            out.extend(next.to_be_bytes());
        }
        out.extend(self.marks.halves_through.to_be_bytes());
        put_count(&mut out, self.marks.halves.len());
        for offset in &self.marks.halves {
            out.extend(offset.to_be_bytes());
        }
        out.extend(self.marks.snapshot.unwrap_or(u64::MAX).to_be_bytes());
        out.extend(crc32c::crc32c(&out).to_be_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let covered = bytes.get(..bytes.len().checked_sub(4)?)?;
        if u32_at(bytes, covered.len())? != crc32c::crc32c(covered) {
            return None;
        }
        let mut read = Read { bytes: covered, at: 0 };
        if read.u32()? != MAGIC || read.u16()? != VERSION {
            return None;
        }
        let is_clean = read.u16()? != 0;
        let mut found = Self { durable: read.u64()?, epoch: read.u32()?, epoch_from: read.u64()?, ..Self::default() };
        let end = End { at: read.u64()?, crc: read.u32()?, epoch: read.u32()? };
        found.clean = is_clean.then_some(end);
        for _ in 0..read.u32()? {
            found.sealed.push(SealedSegment {
                start: read.u64()?,
                capacity: read.u64()?,
                end: read.u64()?,
                last_crc: read.u32()?,
                last_epoch: read.u32()?,
                latest_ms: read.i64()?,
            });
        }
        for _ in 0..read.u32()? {
            found.floors.push((read.text()?, read.i32()?, read.i64()?, read.u64()?));
        }
        for _ in 0..read.u32()? {
            let topic = read.text()?;
            found.born.insert(topic, read.u64()?);
        }
        for _ in 0..read.u32()? {
            let level = read.i32()?;
            found.marks.delay.insert(level, read.i64()?);
        }
        found.marks.halves_through = read.i64()?;
        for _ in 0..read.u32()? {
            found.marks.halves.insert(read.i64()?);
        }
        found.marks.snapshot = Some(read.u64()?).filter(|at| *at != u64::MAX);
        Some(found)
    }

    /// The checkpoint of a directory, if there is a whole one of a known version.
    pub fn load(disk: &dyn Disk) -> Option<Self> {
        Self::decode(&disk.read(CHECKPOINT).ok()?)
    }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend(u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
}

/// Reads fields one after the other.
struct Read<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Read<'_> {
    fn u16(&mut self) -> Option<u16> {
        self.at += 2;
        u16_at(self.bytes, self.at - 2)
    }

    fn u32(&mut self) -> Option<u32> {
        self.at += 4;
        u32_at(self.bytes, self.at - 4)
    }

    fn i32(&mut self) -> Option<i32> {
        self.at += 4;
        i32_at(self.bytes, self.at - 4)
    }

    fn u64(&mut self) -> Option<u64> {
        self.at += 8;
        u64_at(self.bytes, self.at - 8)
    }

    fn i64(&mut self) -> Option<i64> {
        self.at += 8;
        i64_at(self.bytes, self.at - 8)
    }

    fn text(&mut self) -> Option<Arc<str>> {
        take_text(self.bytes, &mut self.at).map(Arc::from)
    }
}

/// What META says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Meta {
    /// A version this code knows.
    Known,
    /// Another version.
    Other(u16),
    /// Nothing, or nothing whole.
    Absent,
}

/// Reads META.
pub(super) fn read_meta(disk: &dyn Disk) -> io::Result<Meta> {
    let bytes = match disk.read(META) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Meta::Absent),
        Err(error) => return Err(error),
    };
    let whole = bytes.len() == META_LEN
        && bytes.starts_with(META_MAGIC)
        && bytes.get(..META_LEN - 4).map(crc32c::crc32c) == u32_at(&bytes, META_LEN - 4);
    Ok(match u16_at(&bytes, 4) {
        Some(VERSION) if whole => Meta::Known,
        Some(version) if whole => Meta::Other(version),
        _ => Meta::Absent,
    })
}

/// Writes META; it becomes durable with the first segment.
pub(super) fn write_meta(disk: &dyn Disk, created_ms: i64) -> io::Result<()> {
    let mut bytes = META_MAGIC.to_vec();
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend([0; 2]);
    bytes.extend(created_ms.to_be_bytes());
    bytes.resize(META_LEN - 4, 0);
    bytes.extend(crc32c::crc32c(&bytes).to_be_bytes());
    disk.write(META, &bytes)
}

impl Shared {
    /// Makes META durable, once.
    pub(super) fn sync_meta(&self) -> io::Result<()> {
        if !self.meta_synced.load(Ordering::Acquire) {
            self.disk.sync(META)?;
            self.disk.sync_dir("")?;
            self.meta_synced.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Writes a checkpoint; `clean`: the log ends there and nothing more will come. A failure is an event, and is
    /// tried again: the file is a cache.
    pub(super) fn save_checkpoint(&self, clean: Option<End>) -> bool {
        match self.write_checkpoint(clean) {
            Ok(()) => true,
            // Somebody has removed the directory: nothing that is appended from now on would be found again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.take_no_more(&error.to_string());
                false
            }
            Err(error) => {
                self.watch.event(Event::CacheFailed { what: CHECKPOINT, detail: error.to_string() });
                false
            }
        }
    }

    /// The same for who has to know why it failed.
    pub(super) fn write_checkpoint(&self, clean: Option<End>) -> io::Result<()> {
        let durable = self.options.flush != Flush::None;
        atomic_file::replace(&*self.disk, CHECKPOINT, &self.checkpoint(clean).encode(), durable)
    }

    fn checkpoint(&self, clean: Option<End>) -> Checkpoint {
        let (durable, safe) = (self.durable_mark(), self.safe());
        let mut sealed = Vec::new();
        for segment in self.segments.all() {
            let (Some(end), true) = (segment.sealed_end(), segment.index().is_some()) else { break };
            let (last_crc, last_epoch) = *crate::work::sync::locked(&segment.last);
            sealed.push(SealedSegment {
                start: segment.start,
                capacity: segment.capacity,
                end,
                last_crc,
                last_epoch,
                latest_ms: segment.latest_ms.load(Ordering::Relaxed),
            });
        }
        let marks = crate::work::sync::locked(&self.durable_marks).clone();
        let epoch = self.tail.lock().epoch;
        let mut floors = Vec::new();
        for queue in self.queues.all() {
            let index = queue.index();
            if index.runs.is_empty() && index.entries.is_empty() && index.first > 0 {
                let floor_at = if index.floor_at < safe { index.floor_at } else { 0 };
                floors.push((Arc::clone(queue.topic()), queue.id(), index.first, floor_at));
            }
        }
        // What the log can still lose, a checkpoint must not know.
        let born = self.queues.born_below(safe);
        let epoch_from = self.epoch_from.load(Ordering::Relaxed);
        Checkpoint { durable, epoch, epoch_from, clean, sealed, floors, born, marks }
    }

    /// What the log says below this stays said whatever happens, as far as anything is promised.
    pub(super) fn safe(&self) -> u64 {
        match self.options.flush {
            Flush::None => u64::MAX,
            Flush::Async | Flush::Sync => self.durable.load(Ordering::SeqCst),
        }
    }

    /// The durable mark as it may be written down: nothing is promised where nothing is synced.
    pub(super) fn durable_mark(&self) -> u64 {
        match self.options.flush {
            Flush::None => 0,
            Flush::Async | Flush::Sync => self.durable.load(Ordering::SeqCst),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::FaultyDisk;

    fn sample() -> Checkpoint {
        let mut marks = Marks { halves_through: 4, snapshot: Some(77), ..Marks::default() };
        marks.delay.insert(3, 9);
        marks.halves.insert(6);
        let sealed = SealedSegment { start: 0, capacity: 4096, end: 4000, last_crc: 1, last_epoch: 2, latest_ms: 3 };
        Checkpoint {
            durable: 5000,
            epoch: 3,
            epoch_from: 4500,
            clean: Some(End { at: 5000, crc: 8, epoch: 3 }),
            sealed: vec![sealed],
            floors: vec![("t".into(), 1, 20, 64)],
            born: [("gone".into(), 333)].into(),
            marks,
        }
    }

    #[test]
    fn a_checkpoint_is_read_as_written_and_any_flip_is_found() {
        let bytes = sample().encode();
        assert_eq!(Checkpoint::decode(&bytes), Some(sample()));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            assert_eq!(Checkpoint::decode(&flipped), None, "flip at {at}");
            assert_eq!(Checkpoint::decode(&bytes[..at]), None, "cut at {at}");
        }
    }

    #[test]
    fn meta_says_the_version_and_a_damaged_one_counts_as_absent() {
        let disk = FaultyDisk::new();
        assert_eq!(read_meta(&disk).unwrap(), Meta::Absent);
        write_meta(&disk, 5).unwrap();
        assert_eq!(read_meta(&disk).unwrap(), Meta::Known);
        let mut bytes = disk.read(META).unwrap();
        bytes[5] = 9;
        let covered = crc32c::crc32c(&bytes[..60]).to_be_bytes();
        disk.write(META, &bytes).unwrap();
        assert_eq!(read_meta(&disk).unwrap(), Meta::Absent);
        bytes[60..].copy_from_slice(&covered);
        disk.write(META, &bytes).unwrap();
        assert_eq!(read_meta(&disk).unwrap(), Meta::Other(9));
    }
}
