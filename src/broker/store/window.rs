//! Windows: stretches of a queue in an older segment that a blocking read brings into memory for the reads that follow,
//! which then need not block: the entries, a read-only mapping of the segment (a view) with the pages in it, and the
//! sums of the messages checked.
//!
//! Made by reads that may block (`read.rs`), found by all of them through the queue. A reader that goes on where its
//! window ends has the next one made twice as long. Bounded: entries in all windows together, and the bytes of segments
//! that are mapped for them, those included of which only frames are left; beyond that, reads go by position as they do
//! where the system cannot map files safely. No lock is held over the disk.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::Shared;
use super::format::ENVELOPE;
use super::queue::{DAMAGED, Entry, Run, StoreQueue};
use super::read::{Filter, is_right};
use super::segments::Segment;
use crate::disk::Region;
use crate::disk::mapped::fetch;
use crate::model::QueueOffset;
use crate::wire::frame::FrameOwner;
use crate::work::sync::locked;

/// Entries in all windows together: 2.5 MiB of them.
const ENTRIES: usize = 65_536;
/// The longest window: a thirtieth of the jobs that single pulls would be, and a few MiB of messages.
const LONGEST: usize = 1024;
/// Bytes of the log that one window may span, and how many times its own messages beside a first piece: a queue with few
/// messages between those of others is read message by message.
const SPAN: u64 = 8 << 20;
const SPARSE: u64 = 16;
const FIRST_SPAN: u64 = 256 << 10;
/// Pages come in by so many bytes at once.
const PIECE: usize = 1 << 20;
/// A message is asked for from memory while that many before it are summed.
const SUMMED_AHEAD: usize = 3;
/// A window that nobody has used for so long goes.
const UNUSED_MS: i64 = 10_000;

/// A read-only mapping of an older segment, and which pieces of it have been brought in.
pub(super) struct View {
    region: Arc<Region>,
    pieces: Vec<AtomicBool>,
    /// Bytes of all views.
    mapped: Arc<AtomicU64>,
}

impl View {
    fn new(region: Arc<Region>, mapped: Arc<AtomicU64>) -> Self {
        mapped.fetch_add(region.capacity() as u64, Ordering::SeqCst);
        let pieces = (0..region.capacity().div_ceil(PIECE)).map(|_| AtomicBool::new(false)).collect();
        Self { region, pieces, mapped }
    }

    /// Brings the pages of a range in. False if the disk cannot read them: touching them would be a signal. Blocks.
    fn bring_in(&self, from: usize, to: usize) -> bool {
        for number in from / PIECE..to.div_ceil(PIECE) {
            let Some(piece) = self.pieces.get(number) else { return false };
            if !piece.load(Ordering::Relaxed) {
                if !self.region.bring_in(number * PIECE..(number + 1) * PIECE) {
                    return false;
                }
                piece.store(true, Ordering::Relaxed);
            }
        }
        true
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.mapped.fetch_sub(self.region.capacity() as u64, Ordering::SeqCst);
    }
}

impl FrameOwner for View {
    fn bytes(&self) -> &[u8] {
        self.region.bytes()
    }

    fn capacity(&self) -> usize {
        // Its pages belong to the file's cache; a frame into it costs its holder nothing.
        0
    }
}

/// Consecutive entries of one queue in one segment, whose messages are in memory.
pub(super) struct Window {
    pub segment: Arc<Segment>,
    pub view: Arc<View>,
    pub first: i64,
    pub entries: Vec<Entry>,
    /// Of each message, whether its sums have been found right.
    summed: Vec<AtomicBool>,
    used: AtomicBool,
}

impl Window {
    /// Offset behind its last entry.
    pub fn end(&self) -> i64 {
        self.first + self.entries.len() as i64
    }

    /// The entries from this offset on.
    pub fn entries_from(&self, offset: i64) -> &[Entry] {
        self.used.store(true, Ordering::Relaxed);
        let at = usize::try_from(offset - self.first).ok();
        at.and_then(|at| self.entries.get(at..)).unwrap_or_default()
    }

    /// Whether the sums of the message at this offset have been found right.
    pub fn is_summed(&self, offset: QueueOffset) -> bool {
        self.flag(offset).is_some_and(|flag| flag.load(Ordering::Acquire))
    }

    /// They have.
    pub fn note_summed(&self, offset: QueueOffset) {
        if let Some(flag) = self.flag(offset) {
            flag.store(true, Ordering::Release);
        }
    }

    fn flag(&self, offset: QueueOffset) -> Option<&AtomicBool> {
        self.summed.get(usize::try_from(offset.0 - self.first).ok()?)
    }

    /// The record of one of its entries with its envelope; `None` if it does not lie in the segment.
    pub fn record(&self, entry: &Entry) -> Option<&[u8]> {
        let (from, to) = self.place(entry)?;
        self.view.bytes().get(from..to)
    }

    fn place(&self, entry: &Entry) -> Option<(usize, usize)> {
        let from = entry.physical.checked_sub(ENVELOPE as u64)?.checked_sub(self.segment.start)?;
        let from = usize::try_from(from).ok()?;
        Some((from, from.checked_add(ENVELOPE + entry.size as usize)?))
    }
}

/// All windows there are, in the order in which they were made.
#[derive(Default)]
pub(super) struct Windows {
    /// A leaf lock.
    list: Mutex<VecDeque<Arc<Window>>>,
    /// Bytes of all views.
    mapped: Arc<AtomicU64>,
    swept_ms: AtomicI64,
}

impl Windows {
    /// How many entries a window of this queue from `first` on is to have for a reader that wants `wanted`: twice as
    /// many as the one that has just been read to its end, which goes.
    fn length(&self, queue: &StoreQueue, first: i64, wanted: usize) -> usize {
        // Dropped behind the lock of the list: the last one of a view unmaps a file.
        let before = queue.index().take_window_before(first);
        let mut list = locked(&self.list);
        if let Some(before) = &before {
            list.retain(|window| !Arc::ptr_eq(window, before));
        }
        let share = (ENTRIES / (list.len() + 1)).min(LONGEST);
        let len = before.as_ref().map_or(wanted, |before| before.entries.len());
        (2 * len).min(share).max(wanted)
    }

    fn add(&self, window: &Arc<Window>) {
        let mut gone = Vec::new();
        {
            let mut list = locked(&self.list);
            list.push_back(Arc::clone(window));
            let mut entries: usize = list.iter().map(|window| window.entries.len()).sum();
            while entries > ENTRIES {
                let Some(oldest) = list.pop_front() else { break };
                entries -= oldest.entries.len();
                gone.push(oldest);
            }
        }
        // Outside of the lock: the last of a view unmaps a file.
        drop(gone);
    }

    /// Gives up those windows that `keep` does not want.
    fn keep(&self, keep: impl Fn(&Window) -> bool) {
        let all = std::mem::take(&mut *locked(&self.list));
        let (kept, gone): (VecDeque<_>, Vec<_>) =
            all.into_iter().fold(Default::default(), |(mut kept, mut gone), it| {
                if keep(&it) {
                    kept.push_back(it)
                } else {
                    gone.push(it)
                }
                (kept, gone)
            });
        let mut list = locked(&self.list);
        let meanwhile = std::mem::replace(&mut *list, kept);
        list.extend(meanwhile);
        drop(list);
        drop(gone);
    }

    /// Gives up windows that nobody has used for a while.
    pub fn sweep(&self, now_ms: i64) {
        if (0..UNUSED_MS).contains(&(now_ms - self.swept_ms.load(Ordering::Relaxed))) {
            return;
        }
        self.swept_ms.store(now_ms, Ordering::Relaxed);
        self.keep(|window| window.used.swap(false, Ordering::Relaxed));
    }

    /// Gives up the windows in this segment.
    pub fn leave(&self, segment: &Arc<Segment>) {
        self.keep(|window| !Arc::ptr_eq(&window.segment, segment));
    }
}

impl Shared {
    /// A window of `queue` that begins with this run, for a reader that wants `wanted` entries now. `None` if that has
    /// to be read by position. Blocks.
    pub(super) fn make_window(
        &self,
        queue: &StoreQueue,
        run: &Run,
        wanted: usize,
        filter: &dyn Filter,
    ) -> Option<Arc<Window>> {
        let wanted = wanted.min(run.count as usize);
        // First what its reader has done with: that may have been the last of another segment.
        let len = self.windows.length(queue, run.first, wanted);
        let view = self.view(&run.segment)?;
        let mut entries = self.entries_of(run, len.min(run.count as usize))?;
        entries.truncate(near(&entries, run.segment.limit()));
        let (first, last) = (entries.first()?, entries.last().filter(|_| entries.len() >= wanted)?);
        let start = run.segment.start + ENVELOPE as u64;
        let from = usize::try_from(first.physical.checked_sub(start)?).ok()?;
        let to = usize::try_from((last.physical + u64::from(last.size)).checked_sub(run.segment.start)?).ok()?;
        if !view.bring_in(from, to) {
            return None;
        }
        let summed = entries.iter().map(|_| AtomicBool::new(false)).collect();
        let (segment, used) = (Arc::clone(&run.segment), AtomicBool::new(true));
        let window = Arc::new(Window { segment, view, first: run.first, entries, summed, used });
        let ahead = window.entries.iter().skip(SUMMED_AHEAD).map(Some).chain(std::iter::repeat(None));
        for ((entry, offset), ahead) in window.entries.iter().zip(run.first..).zip(ahead) {
            let offset = QueueOffset(offset);
            if let Some(record) = ahead.filter(|entry| filter.entry(entry.tag)).and_then(|entry| window.record(entry)) {
                fetch(record);
            }
            // What is wrong is told by whoever wants it.
            if entry.flags & DAMAGED == 0
                && filter.entry(entry.tag)
                && window.record(entry).is_some_and(|record| is_right(record, record_at(entry), queue, offset))
            {
                window.note_summed(offset);
            }
        }
        queue.index().add_window(&window);
        self.windows.add(&window);
        Some(window)
    }

    /// The view of an older segment, mapped if there is none and there may be one more.
    fn view(&self, segment: &Arc<Segment>) -> Option<Arc<View>> {
        if self.released.load(Ordering::SeqCst) {
            return None;
        }
        if let Some(view) = segment.view() {
            return Some(view);
        }
        // As much again as of the log's end. Nobody's windows are taken away for another: three readers that are far apart
        // would take them from each other at every pull. Those that are not used any more go by themselves.
        if self.windows.mapped.load(Ordering::SeqCst) + segment.capacity > self.options.mapped_bytes {
            return None;
        }
        let region = self.disk.view(&segment.name())?;
        segment.share(Arc::new(View::new(region, Arc::clone(&self.windows.mapped))))
    }
}

/// Where the record of an entry begins.
fn record_at(entry: &Entry) -> u64 {
    entry.physical.saturating_sub(ENVELOPE as u64)
}

/// How many of these entries lie near enough to each other, in order, and below `limit`.
fn near(entries: &[Entry], limit: u64) -> usize {
    let Some(first) = entries.first() else { return 0 };
    let (from, mut behind, mut useful) = (record_at(first), 0, 0);
    let fits = |entry: &&Entry| {
        let end = entry.physical + u64::from(entry.size);
        useful += u64::from(entry.size);
        let in_order = entry.physical >= behind && end <= limit;
        behind = end;
        in_order && end - from <= SPAN.min(FIRST_SPAN + useful * SPARSE)
    };
    entries.iter().take_while(fits).count()
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use crate::broker::store::tests::{Ears, body, message};
    use crate::broker::store::{All, Cold, Event, Found, Limits, Options, Status, Store};
    use crate::disk::{Disk, Files};
    use std::os::unix::fs::FileExt;

    const SEGMENT: u64 = 4 << 20;

    struct Given {
        store: Store,
        ears: Arc<Ears>,
        queues: Vec<Arc<StoreQueue>>,
        disk: Arc<Files>,
    }

    /// A store of `count` messages of 1000 bytes in four queues, of which all but the newest two segments are cold.
    fn given(count: u32) -> Given {
        let options = Options::ephemeral().segments(SEGMENT, SEGMENT).mapped_bytes(2 * SEGMENT);
        let (disk, ears) = (Arc::new(Files::temporary().unwrap()), Arc::new(Ears::default()));
        let (store, _) = Store::open(disk.clone(), options, 0, ears.clone()).unwrap();
        let queues: Vec<_> = (0..4).map(|id| store.queue("t", id)).collect();
        for n in 0..count {
            let text = [&(n / 4).to_be_bytes()[..], &[b'x'; 996]].concat();
            store.append(&queues[n as usize % 4], &message(&text, b""), 0).unwrap();
            if n % 500 == 0 {
                store.flush_step().unwrap();
                store.segment_step(0);
            }
        }
        store.flush_step().unwrap();
        store.segment_step(0);
        Given { store, ears, queues, disk }
    }

    impl Given {
        fn read(&self, queue: usize, from: i64, cold: Cold) -> Found {
            self.store.read(&self.queues[queue], QueueOffset(from), &Limits::default(), &All, cold)
        }

        fn mapped(&self) -> u64 {
            self.store.shared.windows.mapped.load(Ordering::SeqCst)
        }
    }

    fn numbers(found: &Found) -> Vec<u32> {
        found.frames.iter().map(|frame| u32::from_be_bytes(*body(frame.bytes()).first_chunk().unwrap())).collect()
    }

    /// A drain of older segments blocks once for hundreds of messages, and what it keeps mapped goes with it.
    #[test]
    fn reads_behind_a_blocking_one_need_not_block() {
        let given = given(40_000);
        let (mut blocked, mut reads, mut at, mut most) = (0, 0, [0i64; 4], 0);
        for queue in (0..4).cycle().take(4 * 400) {
            let from = at[queue];
            let mut found = given.read(queue, from, Cold::Refuse);
            if found.status == Status::Cold {
                found = given.read(queue, from, Cold::Read);
                blocked += 1;
            }
            let want: Vec<u32> = (from as u32..found.next.0 as u32).collect();
            assert_eq!(numbers(&found), want, "queue {queue} from {from}");
            (reads, at[queue], most) = (reads + 1, found.next.0, most.max(given.mapped()));
        }
        assert_eq!(at, [10_000; 4]);
        assert!(blocked * 10 < reads, "{blocked} of {reads} reads blocked");
        assert!(most > 0 && most <= 2 * SEGMENT, "{most} bytes mapped");
        given.store.segment_step(20_000);
        given.store.segment_step(40_000);
        assert_eq!(given.mapped(), 0, "windows that nobody uses");
        assert_eq!(numbers(&given.read(1, 0, Cold::Read)).len(), 32);
    }

    /// However many frames slow readers keep, no more segments stay mapped for them than there may be.
    #[test]
    fn frames_that_are_kept_do_not_map_the_whole_log() {
        let given = given(60_000);
        let kept: Vec<_> = (0..40).map(|n| given.read(n % 4, n as i64 * 300, Cold::Read)).collect();
        assert!(given.mapped() > 0 && given.mapped() <= 2 * SEGMENT, "{} bytes mapped", given.mapped());
        for (found, n) in kept.iter().zip(0u32..) {
            assert_eq!(numbers(found)[..5], [0, 1, 2, 3, 4].map(|more| n * 300 + more));
        }
        let of_views = kept.iter().filter(|found| found.frames[0].held_bytes() == 0).count();
        assert!(of_views < 40, "the others were read by position");
        drop(kept);
        given.store.segment_step(20_000);
        given.store.segment_step(40_000);
        assert_eq!(given.mapped(), 0);
    }

    /// Readers that are too far apart for all of them to have windows leave each other theirs.
    #[test]
    fn readers_far_apart_leave_each_other_their_windows() {
        let given = given(40_000);
        let (mut at, mut blocked) = ([0i64, 2500, 5000], [0; 3]);
        for _ in 0..20 {
            for (from, blocked) in at.iter_mut().zip(&mut blocked) {
                let mut found = given.read(0, *from, Cold::Refuse);
                if found.status == Status::Cold {
                    found = given.read(0, *from, Cold::Read);
                    *blocked += 1;
                }
                assert_eq!(numbers(&found)[0], *from as u32);
                *from = found.next.0;
            }
        }
        assert!(blocked[0] < 6 && blocked[1] < 6 && blocked[2] == 20, "{blocked:?}");
    }

    /// A damaged message is told and left out, and the others of its window come.
    #[test]
    fn damage_within_a_window_costs_one_message() {
        let given = given(20_000);
        let entry = given.store.entry(&given.queues[2], QueueOffset(40)).unwrap();
        let file = std::fs::File::options().write(true).open(format!("{}/log/{:020}", given.disk.place(), 0)).unwrap();
        file.write_all_at(b"?", entry.physical + 500).unwrap();
        let (mut found, mut from) = (Vec::new(), 0);
        for cold in [Cold::Read, Cold::Refuse, Cold::Read] {
            let read = given.read(2, from, cold);
            from = read.next.0;
            found.extend(numbers(&read));
        }
        let want: Vec<u32> = (0..96).filter(|n| *n != 40).collect();
        assert_eq!(found[..want.len()], want);
        let told = given.ears.events.lock().unwrap();
        let damaged = told.iter().filter(|event| matches!(event, Event::Damaged { queue: 2, offset: 40, .. })).count();
        assert_eq!((told.len(), damaged > 0), (damaged, true), "{told:?}");
    }

    /// A file that somebody has cut under its mapping is an event for each message that is gone, no signal.
    #[test]
    fn pages_that_cannot_be_read_are_never_touched() {
        let given = given(20_000);
        assert_eq!(numbers(&given.read(0, 0, Cold::Read)).len(), 32);
        assert!(given.mapped() > 0);
        let file = std::fs::File::options().write(true).open(format!("{}/log/{:020}", given.disk.place(), 0)).unwrap();
        file.set_len(PIECE as u64).unwrap();
        let found = given.read(0, 700, Cold::Read);
        assert!(given.ears.events.lock().unwrap().iter().any(|event| matches!(event, Event::Damaged { .. })));
        assert!(numbers(&found).iter().all(|n| *n > 700));
    }
}
