//! What is known for certain, whatever the library says: what was acknowledged, what handlers finished, what the log
//! holds. The promises are held against it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass::QueueOffset;
use windlass::internals::broker::Dispatcher;
use windlass::internals::model::names;
use windlass::internals::store::{All, Cold, Limits, Store};
use windlass::internals::wire::remoting::offset::QueryOffsetRequest;
use windlass::internals::wire::remoting::record::{Check, Record};

use crate::process::GROUP;
use crate::producer::id_of;

/// One delivery of a message to a handler.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Delivered {
    pub epoch: u64,
    pub attempt: u32,
    pub topic: Arc<str>,
    pub queue: i32,
    pub offset: i64,
    pub id: u32,
    pub times: i32,
}

pub type Place = (Arc<str>, i32);

/// A stored copy of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Copy {
    pub id: u32,
    pub times: i32,
}

/// What the broker's log holds.
#[derive(Debug, Default)]
pub struct LogView {
    pub queues: BTreeMap<Place, Vec<Copy>>,
    most_times: BTreeMap<u32, i32>,
    pub dead: BTreeSet<u32>,
    pub stored: BTreeSet<u32>,
    seen: (u64, u64),
}

impl LogView {
    /// Reads what is new. Offsets are dense, and every message is where it says it is.
    pub fn refresh(&mut self, store: &Store) -> Result<(), String> {
        let seen = (store.log_end(), store.durable());
        if seen == self.seen {
            return Ok(());
        }
        self.seen = seen;
        let dlq = names::dlq_topic(GROUP);
        for queue in store.queues() {
            let (min, max) = store.bounds(&queue);
            let known = self.queues.entry((queue.topic().clone(), queue.id())).or_default();
            let name = format!("{}/{}", queue.topic(), queue.id());
            if min.0 != 0 || (max.0 as usize) < known.len() {
                return Err(format!("{name} holds {min} to {max}, but held {} messages before", known.len()));
            }
            while (known.len() as i64) < max.0 {
                let from = QueueOffset(known.len() as i64);
                let found = store.read(&queue, from, &Limits::default(), &All, Cold::Read);
                if found.frames.is_empty() {
                    return Err(format!("{name} cannot be read at {from}: {:?}", found.status));
                }
                for frame in &found.frames {
                    let record = Record::read(frame.bytes(), Check::Crc).map_err(|error| format!("{name}: {error}"))?;
                    if record.queue_offset != known.len() as i64 {
                        return Err(format!("{name} has offset {} at {}", record.queue_offset, known.len()));
                    }
                    let copy = Copy { id: id_of(record.body(frame.bytes())), times: record.reconsume_times };
                    known.push(copy);
                    self.stored.insert(copy.id);
                    let most = self.most_times.entry(copy.id).or_insert(0);
                    *most = (*most).max(copy.times);
                    if **queue.topic() == *dlq {
                        self.dead.insert(copy.id);
                    }
                }
            }
        }
        Ok(())
    }

    /// True if a failed delivery of this copy has been handed on.
    fn handed_on(&self, copy: Copy) -> bool {
        self.dead.contains(&copy.id) || self.most_times.get(&copy.id).is_some_and(|most| *most > copy.times)
    }

    fn copies(&self) -> BTreeMap<CopyOf, usize> {
        let mut copies = BTreeMap::new();
        for (place, queue) in &self.queues {
            for copy in queue {
                *copies.entry((place.0.clone(), copy.id, copy.times)).or_insert(0) += 1;
            }
        }
        copies
    }
}

type CopyOf = (Arc<str>, u32, i32);

#[derive(Debug, Default)]
pub struct Ledger {
    pub acknowledged: BTreeSet<u32>,
    finished: BTreeSet<(Arc<str>, i32, i64, u32)>,
    pub finished_ids: BTreeSet<u32>,
    in_hand: BTreeSet<Delivered>,
    pub log: LogView,
    /// Up to where commits have been checked.
    checked: BTreeMap<Place, i64>,
    /// Messages that a power cut was allowed to take.
    pub excused: BTreeSet<u32>,
    /// Queues whose offsets a power cut gave out again, up to there.
    reused: BTreeMap<Place, i64>,
    pub deliveries: u64,
}

impl Ledger {
    pub fn begin(&mut self, what: &Delivered) -> Result<(), String> {
        self.deliveries += 1;
        let place = (what.topic.clone(), what.queue);
        let stored = self.log.queues.get(&place).and_then(|copies| copies.get(what.offset as usize));
        let excused = self.reused.get(&place).is_some_and(|until| what.offset < *until);
        // What was served in the last moment of a broker's life is seen when it comes back.
        if stored.is_some_and(|copy| copy.id != what.id || copy.times != what.times) && !excused {
            return Err(format!("{what:?} was delivered, but {stored:?} is stored there"));
        }
        if !self.in_hand.insert(what.clone()) {
            return Err(format!("two handlers have the same delivery in hand: {what:?}"));
        }
        Ok(())
    }

    /// A handler is through with it; `done`: it succeeded, in a process that still lived.
    pub fn end(&mut self, what: &Delivered, done: bool) {
        self.in_hand.remove(what);
        if done {
            self.finished.insert((what.topic.clone(), what.queue, what.offset, what.id));
            self.finished_ids.insert(what.id);
        }
    }

    /// The queues of the group that exist.
    pub fn places(&self) -> Vec<Place> {
        let retry = names::retry_topic(GROUP);
        let ours = |topic: &str| topic == crate::process::TOPIC || topic == retry;
        self.log.queues.keys().filter(|(topic, _)| ours(topic)).cloned().collect()
    }

    pub fn committed(dispatcher: &Dispatcher, place: &Place) -> Option<i64> {
        let request = QueryOffsetRequest {
            consumer_group: GROUP.into(),
            topic: (&*place.0).into(),
            queue_id: place.1,
            set_zero_if_not_found: Some(false),
            broker_name: None,
        };
        dispatcher.committed(&request).ok()
    }

    /// No committed offset has passed a message that is neither finished nor handed on.
    pub fn check_commits(&mut self, dispatcher: &Dispatcher) -> Result<(), String> {
        for place in self.places() {
            let Some(committed) = Self::committed(dispatcher, &place) else { continue };
            let Some(copies) = self.log.queues.get(&place) else { continue };
            let from = *self.checked.entry(place.clone()).or_insert(0);
            let (topic, queue) = &place;
            // A power cut may take what a member that lives on has finished.
            let excused = self.reused.get(&place).copied().unwrap_or(0);
            let committed = if committed <= excused { committed.min(copies.len() as i64) } else { committed };
            for offset in from..committed {
                let Some(copy) = copies.get(offset as usize) else {
                    return Err(format!(
                        "{topic}/{queue} is committed at {committed}, behind its end {}",
                        copies.len()
                    ));
                };
                let settled = self.finished.contains(&(topic.clone(), *queue, offset, copy.id))
                    || self.log.handed_on(*copy)
                    || offset < excused
                    || self.excused.contains(&copy.id);
                if !settled {
                    return Err(format!(
                        "{topic}/{queue} is committed at {committed}, but {copy:?} at {offset} is not finished"
                    ));
                }
            }
            self.checked.insert(place, committed.max(from));
        }
        Ok(())
    }

    /// The broker has been opened again. `may_lose`: a power cut without synchronous flushing.
    pub fn reopened(&mut self, store: &Store, may_lose: bool) -> Result<(), String> {
        let before = std::mem::take(&mut self.log);
        self.log.refresh(store)?;
        if may_lose {
            let after = self.log.copies();
            for ((topic, id, times), count) in before.copies() {
                if after.get(&(topic, id, times)).copied().unwrap_or(0) < count {
                    self.excused.insert(id);
                }
            }
            self.excused.extend(self.acknowledged.iter().filter(|id| !self.log.stored.contains(id)));
            for (place, copies) in before.queues {
                let end = self.log.queues.get(&place).map_or(0, Vec::len);
                if end < copies.len() {
                    let until = self.reused.entry(place.clone()).or_insert(0);
                    *until = (*until).max(copies.len() as i64);
                    let checked = self.checked.entry(place).or_insert(0);
                    *checked = (*checked).min(end as i64);
                }
            }
            return Ok(());
        }
        if let Some(lost) =
            self.acknowledged.iter().find(|id| !self.log.stored.contains(id) && !self.excused.contains(id))
        {
            return Err(format!("message {lost} was acknowledged and is not in the store after a restart"));
        }
        for (place, copies) in before.queues {
            let now = self.log.queues.get(&place).map(Vec::as_slice).unwrap_or_default();
            if now.get(..copies.len()) != Some(&copies[..]) {
                return Err(format!(
                    "{}/{} held {} messages and holds {} others",
                    place.0,
                    place.1,
                    copies.len(),
                    now.len()
                ));
            }
        }
        Ok(())
    }

    /// Acknowledged messages that are neither delivered with success nor dead letters.
    pub fn open(&self) -> Vec<u32> {
        let settled = |id: &u32| {
            self.finished_ids.contains(id)
                || self.log.dead.contains(id)
                || self.excused.contains(id)
                || self.was_reused(*id)
        };
        self.acknowledged.iter().filter(|id| !settled(id)).copied().collect()
    }

    /// Where the copies of a message are stored.
    pub fn places_of(&self, id: u32) -> Vec<String> {
        let mut found = Vec::new();
        for ((topic, queue), copies) in &self.log.queues {
            for (offset, copy) in copies.iter().enumerate().filter(|(_, copy)| copy.id == id) {
                found.push(format!("{topic}/{queue}/{offset} times={}", copy.times));
            }
        }
        found
    }

    /// A message at an offset that was given out twice: a member that stood behind it may have passed it over.
    fn was_reused(&self, id: u32) -> bool {
        self.reused.iter().any(|(place, until)| {
            let copies = self.log.queues.get(place).map(Vec::as_slice).unwrap_or_default();
            copies.iter().take(*until as usize).any(|copy| copy.id == id)
        })
    }
}
