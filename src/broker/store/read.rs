//! Reading a queue from an offset: entries are copied out of the index a few at a time, filtered, and answered as
//! frames that point into the mapped segment; older segments are read by position, only where the caller allows it.
//!
//! Holds a queue's lock while it copies entries, and no lock over input or output. What this process has neither
//! written nor summed yet is summed before it is served.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::event::Event;
use super::format::{self, ENVELOPE};
use super::queue::{DAMAGED, Entry, Place, Run, StoreQueue};
use super::segments::Segment;
use super::window::Window;
use super::{Flush, Shared, Store};
use crate::model::QueueOffset;
use crate::wire::frame::{Frame, FrameOwner};

/// Entries copied out under a queue's lock at once.
const COPIED: usize = 64;
/// Records of a cold segment are fetched by one read where that takes at most this much more than they need.
const SPARE_READ: u64 = 64 * 1024;

/// How much one read may bring. The first message that passes always comes, however large.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Messages.
    pub messages: usize,
    /// Bytes of stored messages.
    pub bytes: usize,
    /// Entries looked at.
    pub entries: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { messages: 32, bytes: 256 * 1024, entries: 65_536 }
    }
}

/// Which messages of a queue are wanted.
pub trait Filter {
    /// Whether a message with this tag hash may be wanted; looked at before the message is.
    fn entry(&self, _tag: i32) -> bool {
        true
    }

    /// Whether this stored message is wanted.
    fn record(&self, _record: &[u8]) -> bool {
        true
    }
}

/// Every message.
pub struct All;

impl Filter for All {}

/// Whether older segments, which need blocking reads, may be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cold {
    /// No: `Status::Cold` says that they would be needed.
    Refuse,
    /// Yes.
    Read,
}

/// How a read ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Status {
    /// At least one message.
    Found,
    /// Entries were looked at, none passed.
    NoMatch,
    /// The queue has no message and never had one.
    Empty,
    /// The offset is that of the next message to come.
    AtEnd,
    /// The offset lies beyond that.
    BeyondEnd,
    /// The offset lies below the first message.
    BelowMin,
    /// The messages there have just been retired.
    Removed,
    /// Blocking reads are needed: ask again with [`Cold::Read`] where blocking is allowed.
    Cold,
}

/// What a read brought.
#[derive(Debug)]
pub struct Found {
    /// How it ended.
    pub status: Status,
    /// The stored messages, each a frame of its own, in the order of their offsets.
    pub frames: Vec<Frame>,
    /// Bytes of all of them.
    pub bytes: usize,
    /// Where to read on: behind the last entry looked at.
    pub next: QueueOffset,
    /// The queue's first offset.
    pub min: QueueOffset,
    /// The offset of the next message to come.
    pub max: QueueOffset,
}

/// What became of one entry.
enum Taken {
    Frame(Frame),
    Rejected,
    Removed,
    Damaged,
    Cold,
}

impl Store {
    /// Messages of `queue` from offset `from` on. With [`Cold::Refuse`] it does not block.
    pub fn read(
        &self,
        queue: &StoreQueue,
        from: QueueOffset,
        limits: &Limits,
        filter: &dyn Filter,
        cold: Cold,
    ) -> Found {
        let shared = &*self.shared;
        let visible = shared.visible();
        let (min, max) = {
            let index = queue.index();
            (index.min(), index.max(visible))
        };
        let mut found = Found {
            status: Status::Found,
            frames: Vec::new(),
            bytes: 0,
            next: from,
            min: QueueOffset(min),
            max: QueueOffset(max),
        };
        let outside = match from.0 {
            _ if max == 0 => Some((Status::Empty, 0)),
            from if from < min => Some((Status::BelowMin, min)),
            from if from == max => Some((Status::AtEnd, from)),
            from if from > max => Some((Status::BeyondEnd, max)),
            _ => None,
        };
        if let Some((status, next)) = outside {
            return Found { status, next: QueueOffset(next), ..found };
        }
        shared.scan(queue, limits, filter, cold, visible, &mut found);
        found
    }

    /// First offset of a queue and offset of the next message to come. Under `Flush::Sync` only what is durable counts.
    pub fn bounds(&self, queue: &StoreQueue) -> (QueueOffset, QueueOffset) {
        let visible = self.shared.visible();
        let index = queue.index();
        (QueueOffset(index.min()), QueueOffset(index.max(visible)))
    }
}

impl Shared {
    /// Everything that ends at or below it may be shown.
    pub(super) fn visible(&self) -> u64 {
        match self.options.flush {
            Flush::Sync => self.durable.load(Ordering::SeqCst),
            Flush::Async | Flush::None => u64::MAX,
        }
    }

    fn scan(
        &self,
        queue: &StoreQueue,
        limits: &Limits,
        filter: &dyn Filter,
        cold: Cold,
        visible: u64,
        found: &mut Found,
    ) {
        let mut near = Near::default();
        let mut copied = [Entry { physical: 0, size: 0, tag: 0, time_ms: 0, flags: 0 }; COPIED];
        let mut looked = 0;
        let mut removed = false;
        'scan: while looked < limits.entries {
            let want = COPIED.min(limits.entries - looked);
            let mut place = queue.index().copy(found.next.0, visible, copied.get_mut(..want).unwrap_or_default());
            if let Place::InFile(run) = &place {
                if cold == Cold::Refuse {
                    if found.frames.is_empty() {
                        found.status = Status::Cold;
                        return;
                    }
                    break;
                }
                if let Some(window) = self.make_window(queue, run, limits.messages.min(want), filter) {
                    place = Place::InWindow(window);
                }
            }
            let (from_file, window);
            let entries = match place {
                Place::Nothing => break,
                Place::Copied(count) => copied.get(..count).unwrap_or_default(),
                Place::InWindow(there) => {
                    window = there;
                    near = Near::of_window(&window);
                    let entries = window.entries_from(found.next.0);
                    entries.get(..entries.len().min(want)).unwrap_or_default()
                }
                Place::InFile(run) => {
                    match self.entries_of(&run, (run.count as usize).min(want)) {
                        Some(entries) => from_file = entries,
                        None => {
                            // Retired under our hands, or unreadable: the queue goes on behind it.
                            removed = true;
                            found.next = QueueOffset(found.next.0 + i64::from(run.count));
                            continue;
                        }
                    }
                    &from_file
                }
            };
            for (at, entry) in entries.iter().enumerate() {
                if filter.entry(entry.tag) {
                    if found.frames.len() >= limits.messages
                        || (!found.frames.is_empty() && found.bytes + entry.size as usize > limits.bytes)
                    {
                        break 'scan;
                    }
                    let ahead = entries.get(at..).unwrap_or_default();
                    match self.take(queue, found.next, entry, ahead, filter, cold, &mut near) {
                        Taken::Frame(frame) => {
                            found.bytes += frame.len();
                            found.frames.push(frame);
                        }
                        Taken::Rejected | Taken::Damaged => {}
                        Taken::Removed => removed = true,
                        Taken::Cold if found.frames.is_empty() => {
                            found.status = Status::Cold;
                            return;
                        }
                        Taken::Cold => break 'scan,
                    }
                }
                found.next = found.next.next();
                looked += 1;
            }
        }
        found.status = match (found.frames.is_empty(), removed) {
            (false, _) => Status::Found,
            (true, true) => Status::Removed,
            (true, false) => Status::NoMatch,
        };
    }

    /// The stored message of an entry.
    #[allow(clippy::too_many_arguments)]
    fn take(
        &self,
        queue: &StoreQueue,
        offset: QueueOffset,
        entry: &Entry,
        ahead: &[Entry],
        filter: &dyn Filter,
        cold: Cold,
        near: &mut Near,
    ) -> Taken {
        if !near.holds(entry) {
            let Some(segment) = self.segments.at(entry.physical) else { return Taken::Removed };
            *near = Near::of_segment(segment);
        }
        let Some(segment) = &near.segment else { return Taken::Removed };
        if entry.flags & DAMAGED != 0 {
            return self.damaged(queue, offset, entry);
        }
        let record_at = entry.physical - ENVELOPE as u64;
        let len = ENVELOPE + entry.size as usize;
        let record = if let Some(region) = &near.region {
            let at = usize::try_from(record_at.saturating_sub(segment.start)).unwrap_or(usize::MAX);
            let trusted = match &near.window {
                Some(window) => window.is_summed(offset),
                None => record_at >= segment.trusted_from.load(Ordering::Relaxed),
            };
            if !trusted {
                let bytes = region.bytes().get(at..at.saturating_add(len)).unwrap_or_default();
                if !is_right(bytes, record_at, queue, offset) {
                    return self.gone_or_damaged(queue, offset, entry);
                }
                if let Some(window) = &near.window {
                    window.note_summed(offset);
                }
            }
            Frame::new(Arc::clone(region), at.saturating_add(ENVELOPE)..at.saturating_add(len))
        } else if cold == Cold::Refuse {
            return Taken::Cold;
        } else {
            match near.fetch(self, entry, ahead).filter(|frame| is_right(frame.bytes(), record_at, queue, offset)) {
                Some(frame) => frame.slice(ENVELOPE..len),
                None => return self.gone_or_damaged(queue, offset, entry),
            }
        };
        if record.len() != entry.size as usize {
            return self.damaged(queue, offset, entry);
        }
        if filter.record(record.bytes()) { Taken::Frame(record) } else { Taken::Rejected }
    }

    /// What could not be read right has been retired meanwhile, or is damaged.
    fn gone_or_damaged(&self, queue: &StoreQueue, offset: QueueOffset, entry: &Entry) -> Taken {
        if self.segments.at(entry.physical).is_none() { Taken::Removed } else { self.damaged(queue, offset, entry) }
    }

    fn damaged(&self, queue: &StoreQueue, offset: QueueOffset, entry: &Entry) -> Taken {
        self.watch.event(Event::Damaged {
            topic: Arc::clone(queue.topic()),
            queue: queue.id(),
            offset: offset.0,
            physical: entry.physical,
        });
        Taken::Damaged
    }

    /// Entries of an index file, which is made anew if it turns out to be damaged. Blocks.
    pub(super) fn entries_of(&self, run: &Run, count: usize) -> Option<Vec<Entry>> {
        let file = run.segment.index()?;
        if let Some(entries) = file.entries(run.position, run.first, count) {
            return Some(entries);
        }
        self.rebuild_index(&run.segment).ok()?;
        run.segment.index()?.entries(run.position, run.first, count)
    }
}

/// Sums a record with its envelope and checks that it is the message of this queue and offset.
pub(super) fn is_right(record: &[u8], record_at: u64, queue: &StoreQueue, offset: QueueOffset) -> bool {
    let Some(checked) = format::check(record, record_at) else { return false };
    let whole = checked.envelope.length as usize + ENVELOPE == record.len();
    let Some(message) = checked.message else { return false };
    whole
        && message.queue_id == queue.id()
        && message.queue_offset == offset.0
        && message.topic(record.get(ENVELOPE..).unwrap_or_default()) == queue.topic().as_bytes()
}

/// The segment that was read last, and bytes of it that have been fetched.
#[derive(Default)]
struct Near {
    segment: Option<Arc<Segment>>,
    region: Option<Arc<dyn FrameOwner>>,
    /// Of which the region is the view.
    window: Option<Arc<Window>>,
    fetched: Option<(u64, Frame)>,
    /// Much of what was fetched lies between the records.
    sparse: bool,
}

impl Near {
    fn of_segment(segment: Arc<Segment>) -> Self {
        let region = segment.region().map(|region| region as Arc<dyn FrameOwner>);
        Self { region, segment: Some(segment), ..Self::default() }
    }

    fn of_window(window: &Arc<Window>) -> Self {
        let (segment, region) =
            (Some(Arc::clone(&window.segment)), Some(Arc::clone(&window.view) as Arc<dyn FrameOwner>));
        Self { segment, region, window: Some(Arc::clone(window)), ..Self::default() }
    }

    fn holds(&self, entry: &Entry) -> bool {
        let there = self.segment.as_ref();
        there.is_some_and(|segment| segment.start <= entry.physical && entry.physical < segment.limit())
    }

    /// A record of a cold segment with its envelope; the ones ahead are read with it where they are near.
    fn fetch(&mut self, shared: &Shared, entry: &Entry, ahead: &[Entry]) -> Option<Frame> {
        let segment = self.segment.as_ref()?;
        let from = entry.physical - ENVELOPE as u64;
        let to = entry.physical + u64::from(entry.size);
        if let Some((start, frame)) = &self.fetched
            && from >= *start
            && to <= *start + frame.len() as u64
        {
            let at = usize::try_from(from - start).ok()?;
            return Some(self.cut(frame.slice(at..at + usize::try_from(to - from).ok()?)));
        }
        let (mut end, mut useful, mut wanted) = (to, to - from, to - from);
        for next in ahead.iter().skip(1) {
            let next_end = next.physical + u64::from(next.size);
            useful += u64::from(next.size);
            if next.physical < end || next_end > segment.limit() || next_end - from > useful + SPARE_READ {
                break;
            }
            if next_end - from > 512 * 1024 {
                break;
            }
            (end, wanted) = (next_end, wanted + u64::from(next.size));
        }
        let mut bytes = vec![0; usize::try_from(end - from).ok()?];
        segment.blob(&*shared.disk).ok()?.read_at(from - segment.start, &mut bytes).ok()?;
        let frame = Frame::from(bytes);
        self.sparse = end - from > wanted + wanted / 4;
        self.fetched = Some((from, frame.clone()));
        Some(self.cut(frame.slice(0..usize::try_from(to - from).ok()?)))
    }

    /// A record that leaves what lies between behind: an answer that waits for a slow peer keeps its own bytes alive, by
    /// which it is counted, and not those of the other queues of the log.
    fn cut(&self, record: Frame) -> Frame {
        if self.sparse { Frame::from(record.bytes().to_vec()) } else { record }
    }
}
