//! Segments ahead and behind: makes the next one, populates its pages, writes the index of complete ones, unmaps and
//! retires old ones, and saves checkpoints. One step that `wl-segment` runs, or a simulation.
//!
//! Everything here does input and output, none of it under a lock. An appender that finds no segment made ahead makes
//! it itself with the same function.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::append::{Next, Sealing, Tail};
use super::checkpoint::End;
use super::event::{AppendError, Event};
use super::index::{self, About, Builder, IndexFile};
use super::queue::StoreQueue;
use super::scan::{Since, scan};
use super::segments::{Segment, name_of};
use super::{Flush, Shared, Store};
use crate::work::ranks::RankedGuard;
use crate::work::sync::locked;

/// How long an appender waits for another one that is making a segment, before it looks again.
const MAKING: Duration = Duration::from_millis(100);
/// A full disk is asked again after this.
const FULL_AGAIN: Duration = Duration::from_secs(1);
/// How often old segments are looked at.
const RETENTION_EVERY: Duration = Duration::from_secs(10);
/// Retired segments that are kept to be used again.
const SPARES: usize = 2;

impl Store {
    /// Does what is due: makes the next segment, writes index files and checkpoints, retires. Blocks on the disk. Only
    /// one thread at a time may call it: `wl-segment`, or a simulation. Answers when it wants to be called again at
    /// the latest; earlier when the log has grown.
    pub fn segment_step(&self, now_ms: i64) -> Duration {
        self.shared.segment_step(now_ms)
    }
}

impl Shared {
    pub(super) fn segment_step(&self, now_ms: i64) -> Duration {
        let mut again = RETENTION_EVERY;
        if self.released.load(Ordering::SeqCst) {
            return again;
        }
        if self.prepare() {
            self.populate();
        } else {
            self.retire(now_ms);
            again = FULL_AGAIN;
        }
        let sealed = self.seal_all();
        self.settle();
        let durable = self.durable.load(Ordering::SeqCst);
        let saved = self.checkpoint_at.load(Ordering::Relaxed);
        let due = now_ms - self.checkpoint_ms.load(Ordering::Relaxed)
            >= i64::try_from(self.options.checkpoint_every.as_millis()).unwrap_or(i64::MAX);
        if sealed || (due && durable > saved) {
            self.checkpoint_ms.store(now_ms, Ordering::Relaxed);
            if self.save_checkpoint(None) {
                self.checkpoint_at.store(durable, Ordering::Relaxed);
            }
        } else if durable > saved {
            again = again.min(self.options.checkpoint_every);
        }
        if self.retire(now_ms) {
            self.save_checkpoint(None);
        }
        if self.sealing_waits() { again.min(FULL_AGAIN) } else { again }
    }

    /// Makes the segment that comes after the active one, if it is not there. False: the disk is full.
    fn prepare(&self) -> bool {
        let mut tail = self.tail.lock();
        if tail.next.is_some() || tail.preparing || tail.closed || tail.read_only.is_some() {
            return true;
        }
        tail.full = None;
        self.make_next(tail, 0).is_ok()
    }

    /// Makes the next segment with room for `need` bytes, or waits for who is at it. Gives the lock back meanwhile.
    pub(super) fn make_next<'a>(
        &'a self,
        mut tail: RankedGuard<'a, Tail>,
        need: usize,
    ) -> Result<RankedGuard<'a, Tail>, AppendError> {
        if tail.preparing {
            return Ok(tail.wait_for(&self.room, MAKING));
        }
        if let Some(detail) = &tail.full {
            return Err(AppendError::Full { place: self.disk.place(), detail: detail.clone() });
        }
        tail.preparing = true;
        let too_small = tail.next.take();
        let start = tail.segment.limit();
        let size = self.options.segment_after(Some(tail.segment.capacity), need as u64);
        drop(tail);
        drop(too_small);
        let made = self.make_segment(start, size);
        let mut tail = self.tail.lock();
        tail.preparing = false;
        self.room.notify_all();
        match made {
            Ok(next) => {
                tail.next = Some(next);
                if self.was_full.swap(false, Ordering::Relaxed) {
                    drop(tail);
                    self.watch.event(Event::RoomAgain);
                    return Ok(self.tail.lock());
                }
                Ok(tail)
            }
            Err(error) => {
                let detail = error.to_string();
                tail.full = Some(detail.clone());
                drop(tail);
                if !self.was_full.swap(true, Ordering::Relaxed) {
                    self.watch.event(Event::Full { place: self.disk.place(), detail: detail.clone() });
                }
                self.segment_signal.raise();
                Err(AppendError::Full { place: self.disk.place(), detail })
            }
        }
    }

    fn make_segment(&self, start: u64, size: u64) -> std::io::Result<Next> {
        let name = name_of(start);
        let spare = {
            let mut spares = locked(&self.spares);
            let fitting = spares.iter().position(|(_, len)| *len >= size);
            fitting.map(|at| spares.swap_remove(at))
        };
        let size = match spare {
            // Its old bytes carry other positions and another chain, so they are never taken for records.
            Some((spare, len)) if self.disk.rename(&spare, &name).is_ok() => {
                // A power cut must not bring its first name back with what is written from now on.
                if self.options.flush != Flush::None {
                    self.disk.sync_dir("log")?;
                }
                len
            }
            Some(_) | None => size,
        };
        let region = self.disk.allocate(&name, size, 0)?;
        let writer = region.writer().ok_or_else(|| std::io::Error::other("the new segment has a writer already"))?;
        let segment = Arc::new(Segment::new(start, size, Some(region)));
        segment.made_here.store(true, Ordering::Relaxed);
        Ok(Next { segment, writer })
    }

    /// Brings the pages that the next appends will touch into memory.
    fn populate(&self) {
        let ahead = usize::try_from(self.options.populate_bytes).unwrap_or(usize::MAX);
        let (region, at, start, capacity, next) = {
            let tail = self.tail.lock();
            let region = Arc::clone(tail.writer.region());
            let next = tail.next.as_ref().map(|next| Arc::clone(next.writer.region()));
            (region, tail.writer.end(), tail.segment.start, region_len(&tail), next)
        };
        let upto = at.saturating_add(ahead).min(capacity);
        region.populate(at..upto);
        // The step is asked again when half of that has been used; the rest of a segment belongs to the next one.
        let low = if upto == capacity { u64::MAX } else { start + (at + (upto - at) / 2) as u64 };
        self.populate_at.store(low, Ordering::Relaxed);
        if upto == capacity
            && let Some(next) = next
        {
            next.populate(0..(at + ahead - upto).min(ahead));
        }
    }

    /// True if a complete segment waits for its index file and is durable.
    pub(super) fn sealing_waits(&self) -> bool {
        let durable = self.durable.load(Ordering::SeqCst);
        let tail = self.tail.lock();
        tail.sealing.front().is_some_and(|sealing| sealing.segment.sealed_end().is_some_and(|end| end <= durable))
    }

    /// Writes the index of every complete and durable segment. True if it wrote any.
    pub(super) fn seal_all(&self) -> bool {
        let mut wrote = false;
        while self.sealing_waits() {
            let Some(sealing) = self.tail.lock().sealing.front().cloned() else { break };
            match self.write_index(&sealing) {
                Ok(()) => {
                    self.tail.lock().sealing.pop_front();
                    wrote = true;
                }
                Err(error) => {
                    self.watch.event(Event::CacheFailed { what: "an index file", detail: error.to_string() });
                    break;
                }
            }
        }
        wrote
    }

    fn write_index(&self, sealing: &Sealing) -> std::io::Result<()> {
        let segment = &sealing.segment;
        let end = segment.sealed_end().unwrap_or(segment.start);
        let (last_crc, last_epoch) = *locked(&segment.last);
        let keys = sealing.keys.iter().flat_map(|piece| piece.iter()).copied().collect();
        let about = About {
            start: segment.start,
            end,
            last_crc,
            last_epoch,
            earliest_ms: segment.earliest_ms.load(Ordering::Relaxed),
            latest_ms: segment.latest_ms.load(Ordering::Relaxed),
        };
        let bytes = index_of(&sealing.touched, about, &sealing.deletions, keys);
        index::save(&*self.disk, segment.start, &bytes, self.options.flush != Flush::None)?;
        let (file, _) = IndexFile::open(&*self.disk, segment.start, end, last_crc)
            .ok_or_else(|| std::io::Error::other("an index file is not what was written"))?;
        segment.set_index(Arc::new(file));
        Ok(())
    }

    /// Gives up the mappings and entries in memory of segments that are no longer among the newest.
    fn settle(&self) {
        let segments = self.segments.all();
        let mut mapped = 0;
        let mut keep_from = segments.len();
        for (at, segment) in segments.iter().enumerate().rev() {
            mapped += segment.capacity;
            if segments.len() - at > 2 && mapped > self.options.mapped_bytes {
                break;
            }
            keep_from = at;
        }
        for segment in segments.iter().take(keep_from) {
            let Some(file) = segment.index() else { break };
            if segment.region().is_none() {
                continue;
            }
            let about = file.about;
            let Some((_, directory)) = IndexFile::open(&*self.disk, segment.start, about.end, about.last_crc) else {
                // It was written by us and is gone or damaged: what it is made of is still in memory only in part.
                if self.rebuild_index(segment).is_err() {
                    break;
                }
                continue;
            };
            self.queues.take_runs(segment, &directory.rows);
            segment.unmap();
        }
    }

    /// Makes a segment's index file again from its records, and points the queues to it. Blocks.
    pub(super) fn rebuild_index(&self, segment: &Arc<Segment>) -> std::io::Result<()> {
        if self.released.load(Ordering::SeqCst) {
            return Err(std::io::Error::other("the store has been closed"));
        }
        let scanned = scan(&*self.disk, &self.options, segment.start, Since::default(), true)?;
        let (last_crc, last_epoch) = *locked(&segment.last);
        let end = segment.sealed_end().unwrap_or(scanned.end);
        let latest_ms = segment.latest_ms.load(Ordering::Relaxed);
        let about =
            About { start: segment.start, end, last_crc, last_epoch, earliest_ms: scanned.earliest_ms, latest_ms };
        let bytes = scanned.index_file(about);
        index::save(&*self.disk, segment.start, &bytes, self.options.flush != Flush::None)?;
        let (file, directory) = IndexFile::open(&*self.disk, segment.start, about.end, about.last_crc)
            .ok_or_else(|| std::io::Error::other("an index file is not what was written"))?;
        segment.set_index(Arc::new(file));
        self.queues.refresh_runs(segment, &directory.rows);
        self.watch.event(Event::IndexRebuilt { segment: segment.start });
        Ok(())
    }

    /// Writes the index of the active segment and a checkpoint that says that the log ends here.
    pub(super) fn save_clean(&self) -> bool {
        let (sealing, end) = {
            let tail = self.tail.lock();
            let end =
                End { at: tail.segment.start + tail.writer.end() as u64, crc: tail.prev_crc, epoch: tail.last_epoch };
            let sealing = Sealing {
                segment: Arc::clone(&tail.segment),
                touched: Arc::new(tail.touched.clone()),
                keys: Arc::new(tail.keys.pieces()),
                deletions: Arc::new(tail.deletions.clone()),
            };
            (sealing, end)
        };
        let about = About {
            start: sealing.segment.start,
            end: end.at,
            last_crc: end.crc,
            last_epoch: end.epoch,
            earliest_ms: sealing.segment.earliest_ms.load(Ordering::Relaxed),
            latest_ms: self.tail.lock().latest_ms,
        };
        let keys = sealing.keys.iter().flat_map(|piece| piece.iter()).copied().collect();
        let bytes = index_of(&sealing.touched, about, &sealing.deletions, keys);
        let durable = self.options.flush != Flush::None;
        if let Err(error) = index::save(&*self.disk, about.start, &bytes, durable) {
            self.watch.event(Event::CacheFailed { what: "an index file", detail: error.to_string() });
            return false;
        }
        self.save_checkpoint(Some(end))
    }

    /// Puts a retired segment's file aside to be used again, under the name and size answered, or removes it. `None` if
    /// the disk refused.
    pub(super) fn take_away(&self, segment: &Arc<Segment>) -> Option<Option<(String, u64)>> {
        let name = segment.name();
        // A frame may still point into the mapping: then the file must not be written again under it.
        let unused = segment.unmap().is_none_or(|region| Arc::strong_count(&region) == 1);
        // An earlier store of this process may have left frames that point into a file which this one has only found.
        let ours = segment.made_here.load(Ordering::Relaxed);
        let room = locked(&self.spares).len() < SPARES;
        if ours && unused && room && segment.capacity == self.options.largest_segment {
            let spare = format!("log/.spare-{}", segment.start);
            if self.disk.rename(&name, &spare).is_ok() {
                return Some(Some((spare, segment.capacity)));
            }
        }
        match self.disk.remove(&name) {
            Ok(()) => Some(None),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(None),
            Err(error) => {
                self.watch.event(Event::CacheFailed { what: "a retired segment", detail: error.to_string() });
                None
            }
        }
    }
}

/// An index file made of what the queues hold in memory.
fn index_of(
    touched: &[Arc<StoreQueue>],
    about: About,
    deletions: &[(u64, Arc<str>)],
    keys: Vec<super::append::Key>,
) -> Vec<u8> {
    // A topic that was deleted behind this segment is entered all the same: until its deletion is durable, a power cut
    // can bring it back.
    let there = |queue: &&Arc<StoreQueue>| queue.deleted_at.load(Ordering::Acquire) >= about.end;
    let mut queues: Vec<&Arc<StoreQueue>> = touched.iter().filter(there).collect();
    queues.sort_by(|left, right| (left.topic(), left.id()).cmp(&(right.topic(), right.id())));
    let mut builder = Builder::default();
    for queue in queues {
        let (first, entries) = queue.index().within(about.start, about.end);
        builder.queue(queue.topic(), queue.id(), first, &entries);
    }
    builder.finish(about, deletions, keys)
}

fn region_len(tail: &Tail) -> usize {
    tail.writer.region().capacity()
}
