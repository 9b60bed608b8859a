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
use super::growth::Growth;
use super::index::{self, About, Builder, IndexFile};
use super::queue::StoreQueue;
use super::scan::{Since, scan};
use super::segments::{Segment, name_of};
use super::{Flush, Shared, Store};
use crate::disk::Region;
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

/// The file of a retired segment, to be used again.
pub(super) struct Spare {
    name: String,
    len: u64,
    /// Its pages in the system's cache are large ones.
    large: bool,
}

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
            self.measure(now_ms);
            self.populate();
        } else {
            self.retire(now_ms);
            again = FULL_AGAIN;
        }
        let sealed = self.seal_all();
        self.settle();
        self.windows.sweep(now_ms);
        // What took its time may have let a fast log come near the end of its pages.
        self.populate();
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
        let spare = self.spare(size);
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
        let segment = Arc::new(Segment::new(start, size, Some(Arc::clone(&region))));
        segment.made_here.store(true, Ordering::Relaxed);
        if self.large.load(Ordering::Relaxed) {
            // Before the first append that may not find it populated.
            region.make_large(0);
            segment.large.store(true, Ordering::Relaxed);
        }
        Ok(Next { segment, writer })
    }

    /// A retired segment's file for one of `size` bytes. The system keeps its pages, large or small; it is of use only
    /// for a log of the same pace.
    fn spare(&self, size: u64) -> Option<(String, u64)> {
        let large = self.large.load(Ordering::Relaxed);
        let mut spares = locked(&self.spares);
        let fitting = spares.iter().position(|spare| spare.len >= size)?;
        let spare = spares.swap_remove(fitting);
        drop(spares);
        if spare.large != large && self.disk.remove(&spare.name).is_ok() {
            return None;
        }
        Some((spare.name, spare.len))
    }

    /// Looks how fast the log grows.
    fn measure(&self, now_ms: i64) {
        let fast = locked(&self.growth).measure(self.log_end.load(Ordering::SeqCst), now_ms);
        // What waits for each sync must not wait for a whole large page to be written.
        self.large.store(fast && self.options.flush != Flush::Sync, Ordering::Relaxed);
    }

    /// Brings the pages that the next appends will touch into memory.
    fn populate(&self) {
        let (end, segments) = {
            let tail = self.tail.lock();
            let active = (Arc::clone(&tail.segment), Arc::clone(tail.writer.region()));
            let next = tail.next.as_ref().map(|next| (Arc::clone(&next.segment), Arc::clone(next.writer.region())));
            (tail.segment.start + tail.writer.end() as u64, [Some(active), next])
        };
        let segments = segments.each_ref().map(Option::as_ref);
        // Taken out: only this step changes it, and what follows waits for the disk.
        let mut growth = std::mem::take(&mut *locked(&self.growth));
        let large = self.large.load(Ordering::Relaxed);
        if let Err(error) = suit_pages(&mut growth, large, end, segments) {
            return self.take_no_more(&error.to_string());
        }
        let ahead = self.options.populate_bytes;
        let wanted = end.saturating_add(ahead);
        let mut reached = growth.populated.max(end);
        for (segment, region) in segments.into_iter().flatten() {
            if reached < wanted && (segment.start..segment.limit()).contains(&reached) {
                region.populate(within(segment, reached)..within(segment, wanted));
                reached = wanted.min(segment.limit());
            }
        }
        growth.populated = reached;
        *locked(&self.growth) = growth;
        // The step is asked for again when half of that has been used; at the latest when a segment ends.
        let low = if reached < wanted { u64::MAX } else { end + ahead / 2 };
        self.populate_at.store(low, Ordering::Relaxed);
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
    pub(super) fn take_away(&self, segment: &Arc<Segment>) -> Option<Option<Spare>> {
        let name = segment.name();
        // A frame may still point into the mapping: then the file must not be written again under it.
        self.windows.leave(segment);
        let unused = segment.unmap_for_good();
        // An earlier store of this process may have left frames that point into a file which this one has only found.
        let ours = segment.made_here.load(Ordering::Relaxed);
        let room = locked(&self.spares).len() < SPARES;
        if ours && unused && room && segment.capacity == self.options.largest_segment {
            let spare = format!("log/.spare-{}", segment.start);
            if self.disk.rename(&name, &spare).is_ok() {
                let large = segment.large.load(Ordering::Relaxed);
                return Some(Some(Spare { name: spare, len: segment.capacity, large }));
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

/// Large pages ahead of a log that grows fast. One that has become slow gets small ones again: a large page is written
/// for the least change.
fn suit_pages(
    growth: &mut Growth,
    large: bool,
    end: u64,
    segments: [Option<&(Arc<Segment>, Arc<Region>)>; 2],
) -> std::io::Result<()> {
    for (segment, region) in segments.into_iter().flatten() {
        let small = segment.limit() <= growth.small_to || !segment.large.load(Ordering::Relaxed);
        if large && small {
            // What is populated is small and stays so.
            region.make_large(within(segment, growth.populated.max(end)));
            segment.large.store(true, Ordering::Relaxed);
        } else if !large && !small {
            region.make_small(within(segment, end))?;
            growth.small_to = segment.limit();
            growth.populated = growth.populated.min(end);
        }
    }
    if large {
        growth.small_to = 0;
    }
    Ok(())
}

/// A position of the log within a segment; its start for one before it.
fn within(segment: &Segment, position: u64) -> usize {
    usize::try_from(position.saturating_sub(segment.start)).unwrap_or(usize::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::store::tests::{drain, message};
    use crate::broker::store::{Options, Unwatched};
    use crate::disk::Files;

    /// Segments of a log that comes fast have large pages, and small ones again when it has been slow for a while; what
    /// lies in them stays, is read, and is there after a restart.
    #[test]
    fn pages_follow_the_pace_of_the_log_and_its_bytes_stay() {
        let disk = Arc::new(Files::temporary().unwrap());
        let options = Options::durable().segments(8 << 20, 8 << 20);
        let (store, _) = Store::open(disk.clone(), options.clone(), 0, Arc::new(Unwatched)).unwrap();
        let queue = store.queue("t", 0);
        let mut sent = 0_u32;
        // (messages of 64 KiB, time, large afterwards)
        let steps = [
            (16, 0, false),
            (80, 5, true),
            (200, 10, true),
            (1, 20_000, false),
            (40, 30_000, false),
            (64, 30_001, true),
        ];
        for (count, now_ms, large) in steps {
            for _ in 0..count {
                let body = [&sent.to_be_bytes()[..], &[7; 65_532]].concat();
                store.append(&queue, &message(&body, b""), now_ms).unwrap();
                sent += 1;
            }
            store.segment_step(now_ms);
            assert_eq!(store.shared.large.load(Ordering::Relaxed), large, "at {now_ms} ms");
            store.flush_step().unwrap();
        }
        let check = |store: &Store| {
            let there = drain(store, &store.queue("t", 0));
            let numbers = there.iter().map(|(_, body)| u32::from_be_bytes(*body.first_chunk().unwrap()));
            assert!(numbers.eq(0..sent) && there.iter().all(|(_, body)| body[4..] == [7; 65_532]));
        };
        check(&store);
        assert!(store.close());
        drop((store, queue));
        check(&Store::open(disk, options, 40_000, Arc::new(Unwatched)).unwrap().0);
    }
}
