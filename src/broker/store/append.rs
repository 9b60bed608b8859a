//! The append: a message or an atomic group is laid out and summed outside the lock, gets its offsets and time under
//! it, is copied, summed over its few hundred bytes beside the body, published, and entered into the index in memory.
//!
//! One lock (rank 3) for the whole log; no input or output and no allocation under it once buffers have grown.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::draft::{Draft, Scratch};
use super::event::{AppendError, Event};
use super::format::{ALIGN, END_RECORD, ENVELOPE, Envelope, Kind, MORE, Mark, SUMMED_FROM, write_end};
use super::marks::Marks;
use super::queue::{Entry, StoreQueue};
use super::segments::Segment;
use super::table::Queues;
use super::{Flush, Shared, Store};
use crate::disk::Writer;
use crate::model::QueueOffset;
use crate::wire::remoting::record;
use crate::work::ranks::RankedGuard;

/// Store times never go back by less than this; a clock that went back further is followed.
const CLOCK_LAG_MS: i64 = 5000;
/// Keys of the active segment are kept in pieces of this many, so that a query copies no more than one.
const KEY_PIECE: usize = 4096;

/// A message to be stored.
#[derive(Clone, Copy, Debug)]
pub struct NewMessage<'a> {
    /// Body as it is stored: compressed if it came so.
    pub body: &'a [u8],
    /// Properties text in two parts, joined by the separator where the first does not end with it. The second may be
    /// empty.
    pub properties: [&'a [u8]; 2],
    /// What the index is to hold.
    pub index: IndexBy<'a>,
    /// The application's own bits.
    pub flag: i32,
    /// The protocol's bits. Those that say which address family the hosts are of are set here.
    pub sys_flag: i32,
    /// When the sender made it, in Unix milliseconds.
    pub born_ms: i64,
    /// Address of the sender.
    pub born_host: SocketAddr,
    /// Address of this broker.
    pub store_host: SocketAddr,
    /// How often it has been consumed in vain.
    pub reconsume_times: i32,
    /// Position of the half message that this one commits; 0 for others.
    pub prepared_offset: i64,
}

/// Where tag and keys of a message are taken from.
#[derive(Clone, Copy, Debug)]
pub enum IndexBy<'a> {
    /// From the properties text.
    Properties,
    /// The caller knows them.
    Known {
        /// Java's hash of the tag; 0 without one.
        tag: i32,
        /// Each key, the unique one among them.
        keys: &'a [&'a [u8]],
    },
}

/// A part of an atomic group.
#[derive(Clone, Copy, Debug)]
pub enum Member<'a> {
    /// A message for a queue.
    Message(&'a Arc<StoreQueue>, NewMessage<'a>),
    /// Something the store says to itself.
    Mark(Mark<'a>),
}

/// Where something was appended.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Appended {
    /// Offset in the queue; 0 for a mark.
    pub queue_offset: QueueOffset,
    /// Position of the stored message in the log.
    pub physical: u64,
    /// End of the log behind the whole group. Durable once [`Store::durable`] has reached it.
    pub end: u64,
    /// Store time, Unix milliseconds.
    pub store_ms: i64,
}

/// What the append owns.
pub(super) struct Tail {
    pub writer: Writer,
    pub segment: Arc<Segment>,
    pub prev_crc: u32,
    pub epoch: u32,
    /// Epoch of the last record.
    pub last_epoch: u32,
    pub latest_ms: i64,
    /// The segment that comes after the active one, made ahead.
    pub next: Option<Next>,
    /// Somebody is making a segment, without the lock.
    pub preparing: bool,
    /// Why the last attempt to make one failed.
    pub full: Option<String>,
    /// A write or sync failed: nothing is taken any more.
    pub read_only: Option<String>,
    pub closed: bool,
    /// Queues with messages in the active segment.
    pub touched: Vec<Arc<StoreQueue>>,
    pub keys: KeyLog,
    /// Topics deleted in the active segment, with the position of the mark.
    pub deletions: Vec<(u64, Arc<str>)>,
    /// Complete segments whose index file is not written yet.
    pub sealing: VecDeque<Sealing>,
    /// Under `Flush::Sync`: what becomes visible at which position.
    pub growing: VecDeque<(u64, Arc<StoreQueue>)>,
    pub marks: Marks,
}

/// A segment made ahead.
pub(super) struct Next {
    pub segment: Arc<Segment>,
    pub writer: Writer,
}

/// A complete segment and what its index file is made of.
#[derive(Clone)]
pub(super) struct Sealing {
    pub segment: Arc<Segment>,
    pub touched: Arc<Vec<Arc<StoreQueue>>>,
    pub keys: Arc<Vec<Arc<Vec<Key>>>>,
    pub deletions: Arc<Vec<(u64, Arc<str>)>>,
}

/// One key of one message.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Key {
    pub hash: u64,
    /// Position of the record within its segment.
    pub at: u32,
    pub seconds: u32,
}

/// The keys of the active segment.
#[derive(Default)]
pub(super) struct KeyLog {
    full: Vec<Arc<Vec<Key>>>,
    open: Vec<Key>,
}

impl KeyLog {
    pub fn push(&mut self, key: Key) {
        if self.open.len() == KEY_PIECE {
            self.full.push(Arc::new(std::mem::replace(&mut self.open, Vec::with_capacity(KEY_PIECE))));
        }
        if self.open.capacity() == 0 {
            self.open.reserve_exact(KEY_PIECE);
        }
        self.open.push(key);
    }

    /// All of them, to be looked at without the lock.
    pub fn pieces(&self) -> Vec<Arc<Vec<Key>>> {
        let mut pieces = self.full.clone();
        pieces.push(Arc::new(self.open.clone()));
        pieces
    }
}

impl Store {
    /// Appends one message. `now_ms` is the wall clock; the store time is it, or the latest store time if that is
    /// ahead by less than 5 s.
    ///
    /// Under `Flush::Sync` the message is neither durable nor visible when this returns; see [`Store::wait_durable`].
    ///
    /// Lock: store append (rank 3). Thread: any. Does no input or output, except that it makes a segment where none
    /// was made ahead.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append(
        &self,
        queue: &Arc<StoreQueue>,
        message: &NewMessage<'_>,
        now_ms: i64,
    ) -> Result<Appended, AppendError> {
        let mut scratch = Scratch::take();
        let drafted = scratch.message(queue, message, self.shared.options.max_body);
        let done = drafted.and_then(|draft| {
            let mut draft = [draft];
            self.shared.append_drafts(&mut scratch, &mut draft, now_ms)?;
            let [draft] = draft;
            Ok(draft.done)
        });
        scratch.give_back();
        done
    }

    /// Appends all members or none, next to each other, and adds where each went to `out`. After a crash either all
    /// are there or none.
    ///
    /// # Errors
    /// See [`AppendError`]; `out` is unchanged then.
    pub fn append_group(
        &self,
        members: &[Member<'_>],
        now_ms: i64,
        out: &mut Vec<Appended>,
    ) -> Result<(), AppendError> {
        let mut scratch = Scratch::take();
        let mut drafts = Vec::with_capacity(members.len());
        for member in members {
            let drafted = match member {
                Member::Message(queue, new) => scratch.message(queue, new, self.shared.options.max_body),
                Member::Mark(mark) => Ok(scratch.mark(*mark)),
            };
            match drafted {
                Ok(draft) => drafts.push(draft),
                Err(error) => {
                    scratch.give_back();
                    return Err(error);
                }
            }
        }
        let done = self.shared.append_drafts(&mut scratch, &mut drafts, now_ms);
        if done.is_ok() {
            out.extend(drafts.iter().map(|draft| draft.done));
        }
        scratch.give_back();
        done
    }

    /// Appends what the store says to itself, alone.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn append_mark(&self, mark: Mark<'_>, now_ms: i64) -> Result<Appended, AppendError> {
        self.shared.append_mark(mark, now_ms)
    }

    /// Deletes a topic: every message of it is gone, now and after a restart, and its queues begin at 0 if it is made
    /// again. Handles on its queues refuse appends from now on.
    ///
    /// # Errors
    /// See [`AppendError`]; nothing is deleted then. Answers the mark, behind which it is deleted for good once that is
    /// durable.
    pub fn delete_topic(&self, topic: &str, now_ms: i64) -> Result<Appended, AppendError> {
        let appended = self.shared.append_mark(Mark::TopicDeleted(topic), now_ms)?;
        self.shared.queues.forget_deleted(topic, appended.physical - ENVELOPE as u64);
        Ok(appended)
    }
}

impl Shared {
    pub(super) fn append_mark(&self, mark: Mark<'_>, now_ms: i64) -> Result<Appended, AppendError> {
        let mut scratch = Scratch::take();
        let mut draft = [scratch.mark(mark)];
        let done = self.append_drafts(&mut scratch, &mut draft, now_ms);
        scratch.give_back();
        let [draft] = draft;
        done.map(|()| draft.done)
    }

    fn append_drafts(&self, scratch: &mut Scratch, drafts: &mut [Draft<'_>], now_ms: i64) -> Result<(), AppendError> {
        if drafts.is_empty() {
            return Ok(());
        }
        let need = drafts.iter().map(Draft::record_len).sum();
        let mut tail = self.tail_with_room(need)?;
        if drafts.iter().any(|draft| draft.queue.is_some_and(|queue| queue.is_deleted())) {
            return Err(AppendError::QueueGone);
        }
        let (store_ms, clock_back) = tail.stamp(now_ms);
        if let Err(error) = tail.put_all(scratch, drafts, store_ms) {
            let detail = error.to_string();
            tail.read_only = Some(detail.clone());
            drop(tail);
            return Err(self.read_only(detail));
        }
        let end = tail.enter_all(self.options.flush, &self.queues, &scratch.keys, drafts, store_ms);
        self.log_end.store(end, Ordering::SeqCst);
        let low = self.populate_at.load(Ordering::Relaxed) < end;
        drop(tail);

        if let Some(ms) = clock_back {
            self.watch.event(Event::ClockBack { ms });
        }
        match self.options.flush {
            Flush::Sync => self.flusher.ticket(),
            Flush::Async | Flush::None => {
                self.flusher.appended(end, self.durable.load(Ordering::Relaxed), self.options.flush_bytes);
            }
        }
        if self.options.flush != Flush::Sync {
            for queue in drafts.iter().filter_map(|draft| draft.queue) {
                if queue.is_watched() {
                    self.watch.grew(queue);
                }
            }
        }
        if low {
            self.populate_at.store(u64::MAX, Ordering::Relaxed);
            self.segment_signal.raise();
        }
        Ok(())
    }

    /// The lock, with room for `need` bytes in the active segment.
    pub(super) fn tail_with_room(&self, need: usize) -> Result<RankedGuard<'_, Tail>, AppendError> {
        let mut tail = self.tail.lock();
        loop {
            if tail.closed {
                return Err(AppendError::Closed);
            }
            if let Some(detail) = &tail.read_only {
                return Err(self.read_only(detail.clone()));
            }
            if tail.writer.left() >= need + END_RECORD {
                return Ok(tail);
            }
            match tail.next.take() {
                Some(next) if next.writer.left() >= need + END_RECORD => {
                    if let Err(error) = self.roll(&mut tail, next) {
                        let detail = error.to_string();
                        tail.read_only = Some(detail.clone());
                        return Err(self.read_only(detail));
                    }
                }
                too_small => {
                    tail.next = too_small;
                    tail = self.make_next(tail, need)?;
                }
            }
        }
    }

    pub(super) fn read_only(&self, detail: String) -> AppendError {
        AppendError::ReadOnly { place: self.disk.place(), detail }
    }

    /// Ends the active segment and makes `next` the active one.
    fn roll(&self, tail: &mut Tail, next: Next) -> std::io::Result<()> {
        let at = tail.segment.start + tail.writer.end() as u64;
        let payload = write_end(self.durable.load(Ordering::Acquire), tail.latest_ms);
        let mut envelope = Envelope {
            length: as_u32(payload.len()),
            crc: 0,
            kind: Kind::End,
            flags: 0,
            offset: at,
            prev_crc: tail.prev_crc,
            epoch: tail.epoch,
        };
        let unsummed = envelope.write();
        let (_, covered) = unsummed.split_at(12);
        envelope.crc = crc32c::crc32c_append(crc32c::crc32c(covered), &payload);
        if !(tail.writer.put(&envelope.write()) && tail.writer.put(&payload)) {
            return Err(std::io::Error::other("the segment has no room for its end"));
        }
        tail.writer.publish()?;
        tail.prev_crc = envelope.crc;
        tail.last_epoch = tail.epoch;
        *crate::work::sync::locked(&tail.segment.last) = (envelope.crc, envelope.epoch);
        tail.segment.latest_ms.store(tail.latest_ms, Ordering::Relaxed);
        tail.segment.end.store(at + END_RECORD as u64, Ordering::Release);
        let touched = Arc::new(std::mem::take(&mut tail.touched));
        let keys = Arc::new(std::mem::take(&mut tail.keys).pieces());
        let deletions = Arc::new(std::mem::take(&mut tail.deletions));
        tail.sealing.push_back(Sealing { segment: Arc::clone(&tail.segment), touched, keys, deletions });
        self.segments.push(Arc::clone(&next.segment));
        next.segment.trusted_from.store(next.segment.start, Ordering::Relaxed);
        tail.segment = next.segment;
        tail.writer = next.writer;
        self.log_end.store(tail.segment.start, Ordering::SeqCst);
        self.populate_at.store(tail.segment.start, Ordering::Relaxed);
        self.segment_signal.raise();
        Ok(())
    }
}

impl Tail {
    fn stamp(&mut self, now_ms: i64) -> (i64, Option<i64>) {
        let lag = self.latest_ms - now_ms;
        if lag > CLOCK_LAG_MS {
            self.latest_ms = now_ms;
            return (now_ms, Some(lag));
        }
        self.latest_ms = self.latest_ms.max(now_ms);
        (self.latest_ms, None)
    }

    /// Copies the records behind each other and publishes them. Nothing is readable if it fails.
    fn put_all(&mut self, scratch: &mut Scratch, drafts: &mut [Draft<'_>], store_ms: i64) -> std::io::Result<()> {
        let last = drafts.len() - 1;
        let mut prev = self.prev_crc;
        for (number, draft) in drafts.iter_mut().enumerate() {
            let at = self.segment.start + self.writer.end() as u64;
            let physical = at + ENVELOPE as u64;
            let kind = match (draft.queue, last) {
                (None, _) => Kind::Internal,
                (Some(_), 0) => Kind::Message,
                (Some(_), _) => Kind::Member,
            };
            let more = if number < last { MORE } else { 0 };
            let mut envelope = Envelope {
                length: as_u32(draft.payload),
                crc: 0,
                kind,
                flags: draft.flags | more,
                offset: at,
                prev_crc: prev,
                epoch: self.epoch,
            };
            let head = scratch.bytes.get_mut(draft.head.clone()).unwrap_or_default();
            let offset = draft.queue.map_or(0, |queue| queue.take_next());
            if draft.queue.is_some() {
                let record = head.get_mut(ENVELOPE..).unwrap_or_default();
                record::patch(record, offset, i64::try_from(physical).unwrap_or(i64::MAX), store_ms);
            }
            patch_envelope(head, &envelope);
            // Head and tail lie behind each other.
            let summed = draft.head.start + SUMMED_FROM..draft.tail.end;
            envelope.crc = crc32c::crc32c(scratch.bytes.get(summed).unwrap_or_default());
            let padding = (ALIGN - (ENVELOPE + draft.payload) % ALIGN) % ALIGN;
            if let Some(sum) = scratch.bytes.get_mut(draft.head.start + 8..draft.head.start + 12) {
                sum.copy_from_slice(&envelope.crc.to_be_bytes());
            }
            let before = scratch.bytes.get(draft.head.clone()).unwrap_or_default();
            let behind = scratch.bytes.get(draft.tail.start..draft.tail.end + padding).unwrap_or_default();
            if !(self.writer.put(before) && self.writer.put(draft.body) && self.writer.put(behind)) {
                self.writer.take_back();
                return Err(std::io::Error::other("the segment is shorter than it was"));
            }
            prev = envelope.crc;
            draft.done = Appended { queue_offset: QueueOffset(offset), physical, end: 0, store_ms };
        }
        self.writer.publish()?;
        self.prev_crc = prev;
        self.last_epoch = self.epoch;
        Ok(())
    }

    /// Enters published records into the index in memory. Answers the end of the log.
    fn enter_all(
        &mut self,
        flush: Flush,
        queues: &Queues,
        keys: &[u64],
        drafts: &mut [Draft<'_>],
        store_ms: i64,
    ) -> u64 {
        let end = self.segment.start + self.writer.end() as u64;
        let seconds = u32::try_from(store_ms / 1000).unwrap_or(0);
        for draft in drafts {
            draft.done.end = end;
            let at = draft.done.physical - ENVELOPE as u64;
            if let Some(mark) = draft.mark {
                self.marks.apply(mark, at);
                if let Mark::TopicDeleted(topic) = mark {
                    self.deletions.push((at, topic.into()));
                    // Under the append lock: what was appended before is gone, what comes after needs a new handle.
                    queues.mark_deleted(topic, at);
                }
            }
            let Some(queue) = draft.queue else { continue };
            if store_ms < self.segment.earliest_ms.load(Ordering::Relaxed) {
                self.segment.earliest_ms.store(store_ms, Ordering::Relaxed);
            }
            queue.index().entries.push_back(Entry {
                physical: draft.done.physical,
                size: as_u32(draft.payload),
                tag: draft.tag,
                time_ms: queue.time_of(store_ms),
                flags: queue.flags(),
            });
            let relative = u32::try_from(at - self.segment.start).unwrap_or(u32::MAX);
            for hash in keys.get(draft.keys.clone()).unwrap_or_default() {
                self.keys.push(Key { hash: *hash, at: relative, seconds });
            }
            if queue.touch(self.segment.start) {
                self.touched.push(Arc::clone(queue));
            }
            if flush == Flush::Sync {
                self.growing.push_back((end, Arc::clone(queue)));
            }
        }
        end
    }
}

fn patch_envelope(head: &mut [u8], envelope: &Envelope) {
    if let Some(front) = head.first_chunk_mut::<ENVELOPE>() {
        *front = envelope.write();
    }
}

fn as_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
