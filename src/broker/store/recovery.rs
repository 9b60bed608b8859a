//! Opening a store: from an empty directory, from one that was closed in order, and from what a crash left.
//!
//! Complete segments with a good index file are taken over by it; the others are scanned, side by side, and replayed
//! in order. The log ends at the first record that does not chain. What lies above the durable mark there is the torn
//! tail of a crash and is cut; what is missing below the mark is damage, and refused. The end is made final on the
//! disk before anything is appended.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use rayon::prelude::*;

use super::append::{KeyLog, Tail};
use super::checkpoint::{self, Checkpoint, End, Meta, SealedSegment};
use super::event::{Event, OpenError, Watch, io};
use super::format::{self, ENVELOPE, Envelope, Mark};
use super::index::{self, About, Directory, IndexFile, Row};
use super::marks::Marks;
use super::queue::StoreQueue;
use super::scan::{Item, Scan, Since, scan};
use super::segments::{Segment, Segments, name_of};
use super::table::Queues;
use super::{Flush, Options, Shared, Store};
use crate::disk::{Disk, Held, LockError};
use crate::work::ranks::{Rank, Ranked};
use crate::work::sync::locked;

/// What opening a store came upon.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Recovered {
    /// The store was new, or had been closed in order: nothing was scanned.
    pub clean: bool,
    /// Position of the first record.
    pub log_min: u64,
    /// Position behind the last record.
    pub log_end: u64,
    /// Segments that were scanned.
    pub scanned: usize,
    /// Bytes given up behind the end.
    pub cut_bytes: u64,
}

/// A segment's file as it was found.
#[derive(Clone, Copy, Debug)]
struct Found {
    start: u64,
    len: u64,
}

pub(super) fn open(
    disk: Arc<dyn Disk>,
    options: Options,
    now_ms: i64,
    watch: Arc<dyn Watch>,
) -> Result<(Store, Recovered), OpenError> {
    options.check()?;
    let place = disk.place();
    disk.make_dir("").map_err(io(format!("making {place}")))?;
    let lock = disk.lock("LOCK").map_err(|error| match error {
        LockError::Taken { pid } => OpenError::InUse { place: place.clone(), pid },
        LockError::Io(source) => OpenError::Io { doing: format!("locking {place}"), source },
    })?;
    let meta = checkpoint::read_meta(&*disk).map_err(io("reading META"))?;
    if let Meta::Other(found) = meta {
        return Err(OpenError::Version { place, found });
    }
    for dir in ["log", "idx"] {
        disk.make_dir(dir).map_err(io(format!("making {place}/{dir}")))?;
    }
    if meta == Meta::Absent {
        checkpoint::write_meta(&*disk, now_ms).map_err(io("writing META"))?;
    }
    let mut recovery = Recovery {
        queues: Queues::new(options.clone()),
        segments: Segments::default(),
        marks: Marks::default(),
        last: None,
        durable: 0,
        limit: 0,
        latest_ms: 0,
        report: Recovered::default(),
        active: None,
        disk,
        options,
        watch,
    };
    recovery.run()?;
    recovery.finish(lock, now_ms)
}

/// What a recovery has put together so far.
struct Recovery {
    disk: Arc<dyn Disk>,
    options: Options,
    watch: Arc<dyn Watch>,
    queues: Queues,
    segments: Segments,
    marks: Marks,
    /// Sum and epoch of the last record; `None` while nothing is known before.
    last: Option<(u32, u32)>,
    /// The highest durable mark found.
    durable: u64,
    /// Where the next segment starts.
    limit: u64,
    latest_ms: i64,
    report: Recovered,
    active: Option<Active>,
}

/// The segment that appends go on in.
struct Active {
    segment: Arc<Segment>,
    end: u64,
    touched: Vec<Arc<StoreQueue>>,
    keys: KeyLog,
    deletions: Vec<(u64, Arc<str>)>,
    epoch: u32,
    epoch_from: u64,
}

impl Recovery {
    fn run(&mut self) -> Result<(), OpenError> {
        let mut files = self.files()?;
        let known = Checkpoint::load(&*self.disk);
        let since =
            known.as_ref().map_or(Since::default(), |known| Since { epoch_from: known.epoch_from, epoch: known.epoch });
        if let Some(known) = &known {
            self.durable = known.durable;
            self.marks = known.marks.clone();
            self.queues.set_born(known.born.clone());
            self.take_sealed(&known.sealed, &mut files)?;
            for (topic, queue, next, at) in &known.floors {
                self.queues.replay_floor(topic, *queue, *next, *at);
            }
        }
        if self.segments.all().is_empty() {
            self.limit = self.beginning(known.as_ref(), files.front())?;
        }
        let fresh = known.is_none() && files.is_empty();
        if let Some(end) = known.as_ref().and_then(|known| known.clean)
            && self.take_clean(end, since.epoch, &files)?
        {
            return Ok(());
        }
        if fresh {
            return self.begin_new();
        }
        let (end, rest) = self.scan_all(&files, since)?;
        self.make_final(end, &rest, since)
    }

    /// Where a log begins of which the checkpoint names no complete segment that is there. Behind such a segment it goes
    /// on where that ends, whatever files there are: a gap between them is damage.
    fn beginning(&self, known: Option<&Checkpoint>, first: Option<&Found>) -> Result<u64, OpenError> {
        let first = first.map_or(0, |first| first.start);
        // What retention takes lies below the durable mark of the checkpoint that let it go.
        if let Some(known) = known.filter(|known| known.durable > 0 && known.durable < first) {
            let missing = known.sealed.last().map_or(0, |last| last.start + last.capacity);
            if !self.options.repair {
                return Err(damaged(missing, missing, "the segment is missing"));
            }
            self.watch.event(Event::Repaired { at: first, bytes: known.durable.saturating_sub(missing) });
        }
        Ok(first)
    }

    /// The segment files, oldest first.
    fn files(&self) -> Result<VecDeque<Found>, OpenError> {
        let mut found = Vec::new();
        for file in self.disk.list("log").map_err(io("listing log"))? {
            if file.name.len() == 20
                && let Ok(start) = file.name.parse()
            {
                found.push(Found { start, len: file.len });
            } else if file.name.starts_with(".spare-") {
                // What is spare is not worth knowing over a restart.
                self.disk.remove(&format!("log/{}", file.name)).map_err(io("removing a spare segment"))?;
            }
        }
        found.sort_by_key(|found| found.start);
        Ok(found.into())
    }

    /// Takes over the complete segments that the checkpoint names.
    fn take_sealed(&mut self, sealed: &[SealedSegment], files: &mut VecDeque<Found>) -> Result<(), OpenError> {
        // Retired, but for its name.
        while let (Some(file), Some(first)) = (files.front(), sealed.first())
            && file.start < first.start
        {
            self.disk.remove(&name_of(file.start)).map_err(io("removing a retired segment"))?;
            files.pop_front();
        }
        let (mut begun, mut gone) = (false, 0);
        for known in sealed {
            let Some(file) = files.front().filter(|file| file.start == known.start) else {
                if begun {
                    return Err(damaged(known.start, known.start, "the segment is missing"));
                }
                gone += 1;
                continue;
            };
            begun = true;
            if file.len < known.end - known.start {
                return Err(damaged(known.start, known.start + file.len, "the segment is too short"));
            }
            self.take_one_sealed(known)?;
            files.pop_front();
        }
        if let (1.., Some(first)) = (gone, sealed.first()) {
            self.watch.event(Event::Gone { first: first.start, segments: gone });
        }
        Ok(())
    }

    fn take_one_sealed(&mut self, known: &SealedSegment) -> Result<(), OpenError> {
        let opened = IndexFile::open(&*self.disk, known.start, known.end, known.last_crc);
        let (file, directory) = match opened {
            Some(opened) => opened,
            None => {
                let scanned = scan(&*self.disk, &self.options, known.start, Since::default(), true)
                    .map_err(io(format!("reading {}", name_of(known.start))))?;
                self.report.scanned += 1;
                let about = About {
                    start: known.start,
                    end: known.end,
                    last_crc: known.last_crc,
                    last_epoch: known.last_epoch,
                    earliest_ms: scanned.earliest_ms,
                    latest_ms: known.latest_ms,
                };
                self.save_index(&scanned, about)?
            }
        };
        let segment = Arc::new(Segment::new(known.start, known.capacity, None));
        self.push_sealed(&segment, known.end, (known.last_crc, known.last_epoch), known.latest_ms, file, &directory);
        Ok(())
    }

    fn save_index(&self, scanned: &Scan, about: About) -> Result<(IndexFile, Directory), OpenError> {
        let bytes = scanned.index_file(about);
        index::save(&*self.disk, about.start, &bytes, self.options.flush != Flush::None)
            .map_err(io("writing an index file"))?;
        self.watch.event(Event::IndexRebuilt { segment: about.start });
        IndexFile::open(&*self.disk, about.start, about.end, about.last_crc)
            .ok_or_else(|| damaged(about.start, about.start, "its index file is not what was just written"))
    }

    fn push_sealed(
        &mut self,
        segment: &Arc<Segment>,
        end: u64,
        last: (u32, u32),
        latest_ms: i64,
        file: IndexFile,
        directory: &Directory,
    ) {
        segment.end.store(end, Ordering::Release);
        *locked(&segment.last) = last;
        segment.latest_ms.store(latest_ms, Ordering::Relaxed);
        segment.len_synced.store(true, Ordering::Relaxed);
        segment.set_index(Arc::new(file));
        self.queues.adopt(segment, directory);
        self.segments.push(Arc::clone(segment));
        self.last = Some(last);
        self.latest_ms = self.latest_ms.max(latest_ms);
        self.limit = segment.limit();
    }

    /// Takes over a store that was closed in order. False: it has been written to since, or its index is gone.
    fn take_clean(&mut self, end: End, epoch: u32, files: &VecDeque<Found>) -> Result<bool, OpenError> {
        let Some(file) = files.front().copied() else { return Ok(false) };
        if end.at < file.start || end.at > file.start + file.len {
            return Ok(false);
        }
        let name = name_of(file.start);
        let blob = self.disk.open(&name).map_err(io(format!("opening {name}")))?;
        let mut next = [0; ENVELOPE];
        if file.start + file.len >= end.at + ENVELOPE as u64 {
            blob.read_at(end.at - file.start, &mut next).map_err(io(format!("reading {name}")))?;
        }
        if Envelope::read(&next).is_some_and(|next| next.offset == end.at) {
            return Ok(false);
        }
        let Some((index, directory)) = IndexFile::open(&*self.disk, file.start, end.at, end.crc) else {
            return Ok(false);
        };
        // Everything is read before anything is taken over: a file that turns out to be damaged leaves no trace.
        let whole = |row: &Row| index.entries(row.position, row.first, row.count as usize);
        let Some(entries) = directory.rows.iter().map(whole).collect::<Option<Vec<_>>>() else { return Ok(false) };
        let Some(keys) = index.all_keys() else { return Ok(false) };
        let mut active = self.activate(file.start, file.len, end.at)?;
        for (at, topic) in &directory.deletions {
            self.queues.replay_deletion(topic, *at);
            active.deletions.push((*at, Arc::clone(topic)));
        }
        for (row, entries) in directory.rows.iter().zip(entries) {
            for (entry, offset) in entries.into_iter().zip(row.first..) {
                let (_, queue) = self.queues.replay(&row.topic, row.queue, offset, entry);
                active.touch(queue);
            }
        }
        keys.into_iter().for_each(|key| active.keys.push(key));
        self.remove_behind(files.iter().skip(1))?;
        active.segment.earliest_ms.store(index.about.earliest_ms, Ordering::Relaxed);
        self.latest_ms = self.latest_ms.max(index.about.latest_ms);
        self.last = Some((end.crc, end.epoch));
        self.durable = self.durable.max(end.at);
        active.segment.trusted_from.store(end.at, Ordering::Relaxed);
        active.epoch = epoch.wrapping_add(1);
        self.report.clean = true;
        self.active = Some(active);
        Ok(true)
    }

    fn begin_new(&mut self) -> Result<(), OpenError> {
        let size = self.options.segment_after(None, 0);
        let mut active = self.activate(0, size, 0)?;
        active.segment.trusted_from.store(0, Ordering::Relaxed);
        active.epoch = 1;
        self.report.clean = true;
        self.active = Some(active);
        Ok(())
    }

    /// Scans what no index speaks for, and replays it. Answers where the log ends, and the files behind the last good
    /// segment, the active one first if it is there.
    fn scan_all(&mut self, files: &VecDeque<Found>, since: Since) -> Result<(u64, Rest), OpenError> {
        let width = rayon_width(files.len());
        let files: Vec<Found> = files.iter().copied().collect();
        let mut at = 0;
        while at < files.len() {
            let part = files.get(at..(at + width).min(files.len())).unwrap_or_default();
            let read = |file: &Found| {
                scan(&*self.disk, &self.options, file.start, since, false)
                    .map_err(io(format!("reading {}", name_of(file.start))))
            };
            let scans: Vec<Result<Scan, OpenError>> = match part {
                [one] => vec![read(one)],
                many => many.par_iter().map(read).collect(),
            };
            for scanned in scans {
                let scanned = scanned?;
                self.report.scanned += 1;
                if let Some(end) = self.replay(scanned)? {
                    let behind = files.get(at..).unwrap_or_default().to_vec();
                    return Ok((end.0, Rest { active: end.1, files: behind }));
                }
                at += 1;
            }
        }
        Ok((self.limit, Rest { active: None, files: Vec::new() }))
    }

    /// Replays one segment. `Some`: the log ends in it, or before it (then it is not the active one).
    fn replay(&mut self, scanned: Scan) -> Result<Option<(u64, Option<Scan>)>, OpenError> {
        let contiguous = scanned.start == self.limit;
        let chains = match (scanned.first, self.last) {
            (Some((prev, epoch)), Some((last, last_epoch))) => prev == last && epoch >= last_epoch,
            (Some(_), None) | (None, _) => true,
        };
        if !contiguous {
            return Ok(Some((self.limit, None)));
        }
        if !chains {
            // Records of another history: none of them counts, but the file can be used.
            let empty = Scan {
                start: scanned.start,
                len: scanned.len,
                end: scanned.start,
                torn_to: scanned.torn_to.max(scanned.end),
                ..Scan::default()
            };
            return Ok(Some((empty.start, Some(empty))));
        }
        let Some(durable) = scanned.complete else { return Ok(Some((scanned.end, Some(scanned)))) };
        self.durable = self.durable.max(durable);
        // The index must not speak for bytes that a power cut can still take.
        if self.options.flush != Flush::None {
            self.disk.sync(&name_of(scanned.start)).map_err(io("syncing a segment"))?;
        }
        let about = scanned.about();
        let (file, directory) = match IndexFile::open(&*self.disk, about.start, about.end, about.last_crc) {
            Some(opened) => opened,
            None => self.save_index(&scanned, about)?,
        };
        let segment = Arc::new(Segment::new(scanned.start, scanned.len, None));
        self.push_sealed(&segment, scanned.end, scanned.last, scanned.latest_ms, file, &directory);
        self.replay_marks(&scanned);
        Ok(None)
    }

    fn replay_marks(&mut self, scanned: &Scan) {
        for item in &scanned.items {
            let Item::Mark { at, payload } = item else { continue };
            let Some(mark) = Mark::read(payload) else { continue };
            self.marks.apply(mark, *at);
            if let Mark::QueueFloor { topic, queue, next } = mark {
                self.queues.replay_floor(topic, queue, next, *at);
            }
        }
    }

    /// Makes the end of the log final, on the disk too, before anything is appended.
    fn make_final(&mut self, end: u64, rest: &Rest, since: Since) -> Result<(), OpenError> {
        let torn_in_active = rest.active.as_ref().map_or(0, |active| active.torn_to.saturating_sub(active.end));
        let behind = rest.files.iter().filter(|file| file.start > end || rest.active.is_none());
        let lost: Vec<&Found> = behind.filter(|file| self.has_record(file)).collect();
        // A segment is made once the one before it is in use: a gap in front of it was a segment with records.
        let gap = match &rest.active {
            Some(_) => 0,
            None => rest.files.first().map_or(0, |file| file.start.saturating_sub(end)),
        };
        let lost_bytes: u64 = gap + torn_in_active + lost.iter().map(|file| file.len).sum::<u64>();
        if lost_bytes > 0 {
            self.durable = self.durable.max(self.durable_behind(&rest.files)?);
        }
        if end < self.durable {
            let name = rest.active.as_ref().map_or(end, |active| active.start);
            if !self.options.repair {
                return Err(damaged(name, end, &format!("a record does not follow, durable up to {}", self.durable)));
            }
            self.watch.event(Event::Repaired { at: end, bytes: lost_bytes.max(self.durable - end) });
        } else if lost_bytes > 0 {
            self.watch.event(Event::TailCut { at: end, bytes: lost_bytes, segments: lost.len() });
        }
        self.report.cut_bytes = lost_bytes;
        self.queues.forget_above(end);

        let capacity = match &rest.active {
            Some(active) if active.len >= active.end - active.start + format::END_RECORD as u64 => active.len,
            Some(active) => self.options.segment_after(Some(active.len), active.end - active.start),
            None => self.options.segment_after(self.segments.all().last().map(|last| last.capacity), 0),
        };
        let start = rest.active.as_ref().map_or(end, |active| active.start);
        let name = name_of(start);
        if rest.active.is_some() {
            self.disk.truncate(&name, end - start).map_err(io(format!("cutting {name}")))?;
        }
        self.remove_behind(rest.files.iter().filter(|file| file.start != start))?;
        let mut active = self.activate(start, capacity, end)?;
        active.segment.trusted_from.store(start, Ordering::Relaxed);
        let last_epoch = rest.active.as_ref().map_or(0, |scanned| scanned.last.1);
        active.epoch = since.epoch.max(last_epoch).max(self.last.map_or(0, |last| last.1)).wrapping_add(1);
        if let Some(scanned) = &rest.active {
            self.replay_active(scanned, &mut active);
        }
        if self.options.flush != Flush::None {
            active
                .segment
                .region()
                .map_or(Ok(()), |region| region.sync_len())
                .map_err(io(format!("syncing {name}")))?;
            self.disk.sync_dir("log").map_err(io("syncing log"))?;
            active.segment.len_synced.store(true, Ordering::Relaxed);
        }
        self.durable = end;
        self.active = Some(active);
        Ok(())
    }

    fn replay_active(&mut self, scanned: &Scan, active: &mut Active) {
        for item in &scanned.items {
            match item {
                Item::Mark { at, payload } => match Mark::read(payload) {
                    Some(Mark::TopicDeleted(topic)) => {
                        self.queues.replay_deletion(topic, *at);
                        active.deletions.push((*at, topic.into()));
                    }
                    Some(Mark::QueueFloor { topic, queue, next }) => {
                        self.queues.replay_floor(topic, queue, next, *at);
                    }
                    Some(mark) => self.marks.apply(mark, *at),
                    None => {}
                },
                Item::Message { topic, queue, offset, entry } => {
                    let Some(topic) = scanned.topics.get(*topic as usize) else { continue };
                    let (_, queue) = self.queues.replay(topic, *queue, *offset, *entry);
                    active.touch(queue);
                }
            }
        }
        scanned.keys.iter().for_each(|key| active.keys.push(*key));
        if scanned.first.is_some() {
            self.last = Some(scanned.last);
        }
        active.segment.earliest_ms.store(scanned.earliest_ms, Ordering::Relaxed);
        self.latest_ms = self.latest_ms.max(scanned.latest_ms);
    }

    /// The highest durable mark that the ends of segments behind the break name: without a checkpoint only they tell
    /// damage from a torn tail.
    fn durable_behind(&self, files: &[Found]) -> Result<u64, OpenError> {
        let mut durable = 0;
        for file in files {
            let over = scan(&*self.disk, &self.options, file.start, Since::default(), true)
                .map_err(io(format!("reading {}", name_of(file.start))))?;
            durable = durable.max(over.complete.unwrap_or(0));
        }
        Ok(durable)
    }

    /// Whether a file behind the end of the log has a record of its own place.
    fn has_record(&self, file: &Found) -> bool {
        let mut head = [0; ENVELOPE];
        let read = self.disk.open(&name_of(file.start)).and_then(|blob| blob.read_at(0, &mut head));
        read.is_ok() && Envelope::read(&head).is_some_and(|envelope| envelope.offset == file.start)
    }

    fn remove_behind<'a>(&self, files: impl Iterator<Item = &'a Found>) -> Result<(), OpenError> {
        for file in files {
            self.disk.remove(&name_of(file.start)).map_err(io(format!("removing {}", name_of(file.start))))?;
        }
        Ok(())
    }

    /// Maps the segment that appends go on in, its blocks allocated.
    fn activate(&self, start: u64, len: u64, end: u64) -> Result<Active, OpenError> {
        let name = name_of(start);
        let kept = usize::try_from(end - start).unwrap_or(usize::MAX);
        let region = self.disk.allocate(&name, len, kept).map_err(io(format!("allocating {name}")))?;
        let segment = Arc::new(Segment::new(start, len, Some(region)));
        Ok(Active {
            segment,
            end,
            touched: Vec::new(),
            keys: KeyLog::default(),
            deletions: Vec::new(),
            epoch: 0,
            epoch_from: end,
        })
    }

    /// Puts the store together.
    fn finish(mut self, lock: Held, now_ms: i64) -> Result<(Store, Recovered), OpenError> {
        let Some(active) = self.active.take() else {
            return Err(damaged(self.limit, self.limit, "no segment can be appended to"));
        };
        let writer = active.segment.region().and_then(|region| region.writer());
        let writer = writer.ok_or_else(|| damaged(active.segment.start, active.end, "the segment has a writer"))?;
        self.segments.push(Arc::clone(&active.segment));
        self.queues.set_next_offsets();
        self.remove_stray_indexes()?;
        self.report.log_end = active.end;
        self.report.log_min = self.segments.all().first().map_or(0, |first| first.start);
        let tail = Tail {
            writer,
            segment: active.segment,
            prev_crc: self.last.map_or(0, |last| last.0),
            epoch: active.epoch,
            last_epoch: self.last.map_or(0, |last| last.1),
            latest_ms: self.latest_ms,
            next: None,
            preparing: false,
            full: None,
            read_only: None,
            closed: false,
            touched: active.touched,
            keys: active.keys,
            deletions: active.deletions,
            sealing: VecDeque::new(),
            growing: VecDeque::new(),
            marks: self.marks,
        };
        let (report, durable_marks) = (self.report, Mutex::new(tail.marks.clone()));
        let shared = Shared {
            disk: self.disk,
            options: self.options,
            watch: self.watch,
            tail: Ranked::new(Rank::StoreAppend, tail),
            room: Condvar::new(),
            log_end: AtomicU64::new(active.end),
            durable: AtomicU64::new(active.end),
            durable_marks,
            epoch_from: AtomicU64::new(active.epoch_from),
            populate_at: AtomicU64::new(u64::MAX),
            queues: self.queues,
            segments: self.segments,
            windows: super::window::Windows::default(),
            flusher: super::flush::Flusher::default(),
            segment_signal: super::threads::Signal::default(),
            spares: Mutex::default(),
            growth: Mutex::default(),
            large: AtomicBool::new(false),
            was_full: AtomicBool::new(false),
            meta_synced: AtomicBool::new(false),
            begun: AtomicBool::new(false),
            checkpoint_ms: AtomicI64::new(now_ms),
            checkpoint_at: AtomicU64::new(active.end),
            lock: Mutex::new(Some(lock)),
            released: AtomicBool::new(false),
        };
        if !report.clean {
            // The new epoch must be known before anything of it can reach the disk.
            match shared.write_checkpoint(None) {
                Err(source) if shared.options.flush != Flush::None => {
                    let doing = format!("writing CHECKPOINT in {}", shared.disk.place());
                    return Err(OpenError::Io { doing, source });
                }
                Ok(()) | Err(_) => {}
            }
            shared.begun.store(true, Ordering::Relaxed);
        }
        Ok((Store { shared: Arc::new(shared) }, report))
    }

    /// Index files whose segment is gone.
    fn remove_stray_indexes(&self) -> Result<(), OpenError> {
        let segments = self.segments.all();
        for file in self.disk.list("idx").map_err(io("listing idx"))? {
            let start = file.name.parse::<u64>().ok();
            if !start.is_some_and(|start| segments.iter().any(|segment| segment.start == start)) {
                self.disk.remove(&format!("idx/{}", file.name)).map_err(io("removing an index file"))?;
            }
        }
        Ok(())
    }
}

impl Active {
    fn touch(&mut self, queue: Arc<StoreQueue>) {
        if queue.touch(self.segment.start) {
            self.touched.push(queue);
        }
    }
}

/// The files behind the last complete segment.
struct Rest {
    /// The scan of the first of them, if appends can go on in it.
    active: Option<Scan>,
    files: Vec<Found>,
}

/// How many segments are scanned side by side; the pool is not even made for one.
fn rayon_width(files: usize) -> usize {
    if files <= 1 { 1 } else { rayon::current_num_threads().max(1) }
}

fn damaged(start: u64, at: u64, what: &str) -> OpenError {
    OpenError::Damaged { file: name_of(start), at, what: what.to_owned() }
}
