//! Reading a segment record by record: what recovery and the rebuilding of an index file share.
//!
//! Pure but for the one mapping it reads through: nothing is changed, and segments can be scanned side by side.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::Options;
use super::append::Key;
use super::format::{self, ENVELOPE, Envelope, Kind, Mark, key_hash, read_end, record_len};
use super::index::{About, Builder};
use super::keys;
use super::queue::{DAMAGED, DUE, Entry};
use super::segments::name_of;
use crate::disk::Disk;
use crate::model::SortedMap;
use crate::wire::remoting::record::Record;

/// What a scan may take for the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Since {
    /// Records at or above this position have at least this epoch.
    pub epoch_from: u64,
    pub epoch: u32,
}

/// What was found in a segment.
#[derive(Default)]
pub(super) struct Scan {
    pub start: u64,
    /// Length of the file.
    pub len: u64,
    /// Position behind the last good record.
    pub end: u64,
    /// What the first record says about the one before it: sum, and its own epoch.
    pub first: Option<(u32, u32)>,
    /// Sum and epoch of the last good record.
    pub last: (u32, u32),
    pub items: Vec<Item>,
    pub topics: Vec<Arc<str>>,
    pub keys: Vec<Key>,
    /// Durable mark of the end record: the segment is complete.
    pub complete: Option<u64>,
    pub earliest_ms: i64,
    pub latest_ms: i64,
    /// Behind `end`: position behind the last thing that looks like a record of this place.
    pub torn_to: u64,
}

/// One record, in the order of the log.
pub(super) enum Item {
    Message { topic: u32, queue: i32, offset: i64, entry: Entry },
    Mark { at: u64, payload: Vec<u8> },
}

/// Scans the segment that starts at `start`. `over_damage`: goes on behind records that are damaged, for a segment
/// that is known to be complete.
pub(super) fn scan(
    disk: &dyn Disk,
    options: &Options,
    start: u64,
    since: Since,
    over_damage: bool,
) -> io::Result<Scan> {
    let region = disk.map(&name_of(start))?;
    let bytes = region.bytes();
    let mut found =
        Scan { start, len: bytes.len() as u64, end: start, torn_to: start, earliest_ms: i64::MAX, ..Scan::default() };
    let mut interned = HashMap::new();
    // Where the open group began: its members count only if all of them are there.
    let mut group: Option<Rewind> = None;
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= ENVELOPE) {
        let own = start + at as u64;
        let chains = |envelope: &Envelope| {
            let linked = found.first.is_none() || envelope.prev_crc == found.last.0;
            let young = own < since.epoch_from || envelope.epoch >= since.epoch;
            linked && envelope.epoch >= found.last.1 && young
        };
        let checked = format::check(rest, own).filter(|checked| over_damage || chains(&checked.envelope));
        let Some(checked) = checked else {
            match over_damage.then(|| next_record(bytes, at + format::ALIGN, start)).flatten() {
                Some(next) => at = next,
                None => break,
            }
            continue;
        };
        let envelope = checked.envelope;
        let payload = rest.get(ENVELOPE..ENVELOPE + envelope.length as usize).unwrap_or_default();
        if envelope.more() && group.is_none() {
            group = Some(found.rewind());
        }
        found.first.get_or_insert((envelope.prev_crc, envelope.epoch));
        match (envelope.kind, checked.message) {
            (Kind::End, _) => {
                let (durable, latest_ms) = read_end(payload).unwrap_or_default();
                found.complete = Some(durable);
                found.latest_ms = found.latest_ms.max(latest_ms);
            }
            (Kind::Message | Kind::Member, Some(record)) => {
                found.message(options, &mut interned, payload, &record, own);
            }
            (Kind::Internal | Kind::Message | Kind::Member, _) => {
                found.items.push(Item::Mark { at: own, payload: payload.to_vec() });
            }
        }
        found.last = (envelope.crc, envelope.epoch);
        at += envelope.record_len();
        found.end = start + at as u64;
        if !envelope.more() {
            group = None;
        }
        if found.complete.is_some() {
            break;
        }
    }
    if let Some(rewind) = group {
        found.go_back(rewind);
    }
    found.torn_to = found.end;
    if found.complete.is_none() {
        found.torn_to = torn_to(bytes, start, usize::try_from(found.end - start).unwrap_or(0));
    }
    Ok(found)
}

/// What a scan looked like before a group.
struct Rewind {
    end: u64,
    first: Option<(u32, u32)>,
    last: (u32, u32),
    items: usize,
    keys: usize,
    earliest_ms: i64,
    latest_ms: i64,
}

impl Scan {
    fn rewind(&self) -> Rewind {
        Rewind {
            end: self.end,
            first: self.first,
            last: self.last,
            items: self.items.len(),
            keys: self.keys.len(),
            earliest_ms: self.earliest_ms,
            latest_ms: self.latest_ms,
        }
    }

    fn go_back(&mut self, to: Rewind) {
        self.end = to.end;
        self.first = to.first;
        self.last = to.last;
        self.earliest_ms = to.earliest_ms;
        self.latest_ms = to.latest_ms;
        self.items.truncate(to.items);
        self.keys.truncate(to.keys);
    }

    fn message(
        &mut self,
        options: &Options,
        interned: &mut HashMap<Vec<u8>, (u32, u64)>,
        payload: &[u8],
        record: &Record,
        own: u64,
    ) {
        let name = record.topic(payload);
        let (topic, seed) = match interned.get(name) {
            Some(known) => *known,
            None => {
                let text: Arc<str> = String::from_utf8_lossy(name).into();
                let known = (u32::try_from(self.topics.len()).unwrap_or(u32::MAX), key_hash(0, text.as_bytes()));
                self.topics.push(text);
                interned.insert(name.to_vec(), known);
                known
            }
        };
        let at = u32::try_from(own - self.start).unwrap_or(u32::MAX);
        let seconds = u32::try_from(record.store_ms / 1000).unwrap_or(0);
        let found = &mut self.keys;
        let tag = keys::tag_and_keys(record.properties(payload), |key| {
            found.push(Key { hash: key_hash(seed, key), at, seconds });
        });
        let delay = self.topics.get(topic as usize).and_then(|topic| options.delay_of(topic, record.queue_id));
        let entry = Entry {
            physical: own + ENVELOPE as u64,
            size: record.len,
            tag,
            time_ms: record.store_ms.saturating_add(delay.unwrap_or(0)),
            flags: if delay.is_some() { DUE } else { 0 },
        };
        self.earliest_ms = self.earliest_ms.min(record.store_ms);
        self.latest_ms = self.latest_ms.max(record.store_ms);
        self.items.push(Item::Message { topic, queue: record.queue_id, offset: record.queue_offset, entry });
    }

    /// What the index file of this segment says about it.
    pub fn about(&self) -> About {
        About {
            start: self.start,
            end: self.end,
            last_crc: self.last.0,
            last_epoch: self.last.1,
            earliest_ms: self.earliest_ms,
            latest_ms: self.latest_ms,
        }
    }

    /// The bytes of the segment's index file. Offsets that are missing within a queue are entered as damaged.
    pub fn index_file(&self, about: About) -> Vec<u8> {
        let mut queues: SortedMap<(&Arc<str>, i32), Dense> = SortedMap::new();
        let mut deletions = Vec::new();
        for item in &self.items {
            match item {
                Item::Mark { at, payload } => {
                    if let Some(Mark::TopicDeleted(topic)) = Mark::read(payload) {
                        queues.retain(|(name, _), _| &***name != topic);
                        deletions.push((*at, Arc::from(topic)));
                    }
                }
                Item::Message { topic, queue, offset, entry } => {
                    let Some(topic) = self.topics.get(*topic as usize) else { continue };
                    let empty = || Dense { first: *offset, entries: Vec::new() };
                    queues.get_or_insert_with((topic, *queue), empty).push(*offset, *entry);
                }
            }
        }
        let mut builder = Builder::default();
        for ((topic, queue), dense) in queues {
            builder.queue(topic, queue, dense.first, &dense.entries);
        }
        builder.finish(about, &deletions, self.keys.clone())
    }
}

/// Entries of one queue without a gap.
struct Dense {
    first: i64,
    entries: Vec<Entry>,
}

impl Dense {
    /// Adds an entry; offsets that were passed over belong to damaged records. An offset that went back begins anew:
    /// the deletion of the topic was among the damaged.
    fn push(&mut self, offset: i64, entry: Entry) {
        let next = self.first + super::queue::as_i64(self.entries.len());
        if offset < next {
            *self = Self { first: offset, entries: Vec::new() };
        } else {
            let lost =
                std::iter::repeat_n(Entry { flags: DAMAGED, size: 0, tag: 0, ..entry }, (offset - next) as usize);
            self.entries.extend(lost);
        }
        self.entries.push(entry);
    }
}

/// The next place from `from` on where a good record stands.
fn next_record(bytes: &[u8], from: usize, start: u64) -> Option<usize> {
    (from..bytes.len())
        .step_by(format::ALIGN)
        .find(|at| bytes.get(*at..).is_some_and(|rest| format::check(rest, start + *at as u64).is_some()))
}

/// Position behind the last thing from `from` on that carries the mark of a record of its own place.
fn torn_to(bytes: &[u8], start: u64, from: usize) -> u64 {
    let mut last = start + from as u64;
    for at in (from..bytes.len()).step_by(format::ALIGN) {
        let Some(rest) = bytes.get(at..) else { break };
        if let Some(envelope) = Envelope::read(rest).filter(|envelope| envelope.offset == start + at as u64) {
            let len = record_len(envelope.length as usize).min(rest.len());
            last = last.max(start + (at + len) as u64);
        }
    }
    last
}
