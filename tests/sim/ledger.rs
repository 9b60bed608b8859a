//! What is known for certain, whatever the library says: what was acknowledged, what handlers finished, what the logs
//! hold. The promises are held against it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use windlass::QueueOffset;
use windlass::internals::broker::Dispatcher;
use windlass::internals::model::names;
use windlass::internals::store::{All, Cold, Limits, Store};
use windlass::internals::wire::remoting::offset::QueryOffsetRequest;
use windlass::internals::wire::remoting::record::{Check, Record};
use windlass::internals::work::clock::Nanos;

use crate::plan::GroupPlan;
use crate::process::TOPIC;
use crate::producer::id_of;

/// A record that is given up has to be told within this time.
const TOLD: Duration = Duration::from_secs(1);

/// A queue: its site, topic and number.
pub type Place = (usize, Arc<str>, i32);

/// One delivery of a message to a handler.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Delivered {
    pub epoch: u64,
    pub attempt: u32,
    pub place: Place,
    pub offset: i64,
    pub id: u32,
    pub times: i32,
}

/// A stored copy of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Copy {
    pub id: u32,
    pub times: i32,
}

/// What one broker's log holds.
#[derive(Debug, Default)]
struct LogView {
    queues: BTreeMap<(Arc<str>, i32), Vec<Copy>>,
    /// The highest count of each message in a group's retry topic, or on its way there.
    times: BTreeMap<(usize, u32), i32>,
    dead: BTreeSet<(usize, u32)>,
    stored: BTreeSet<u32>,
    seen: (u64, u64),
}

impl LogView {
    /// Reads what is new. Offsets are dense, and every message is where it says it is.
    fn refresh(&mut self, store: &Store, groups: &[GroupPlan]) -> Result<(), String> {
        let seen = (store.log_end(), store.durable());
        if seen == self.seen {
            return Ok(());
        }
        self.seen = seen;
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
                    let bytes = frame.bytes();
                    let record = Record::read(bytes, Check::Crc).map_err(|error| format!("{name}: {error}"))?;
                    if record.queue_offset != known.len() as i64 {
                        return Err(format!("{name} has offset {} at {}", record.queue_offset, known.len()));
                    }
                    let copy = Copy { id: id_of(&record, bytes), times: record.reconsume_times };
                    known.push(copy);
                    self.stored.insert(copy.id);
                    // A delayed message says where it goes.
                    let goes = record.properties(bytes).find("REAL_TOPIC").unwrap_or(queue.topic());
                    for (at, group) in groups.iter().enumerate() {
                        if *goes == *names::retry_topic(group.name) {
                            let most = self.times.entry((at, copy.id)).or_insert(0);
                            *most = (*most).max(copy.times);
                        } else if *goes == *names::dlq_topic(group.name) {
                            self.dead.insert((at, copy.id));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn copies(&self) -> BTreeMap<(Arc<str>, u32, i32), usize> {
        let mut copies = BTreeMap::new();
        for (place, queue) in &self.queues {
            for copy in queue {
                *copies.entry((place.0.clone(), copy.id, copy.times)).or_insert(0) += 1;
            }
        }
        copies
    }
}

/// What one group has done.
#[derive(Debug, Default)]
struct Done {
    finished: BTreeSet<(Place, i64, u32)>,
    ids: BTreeSet<u32>,
    in_hand: BTreeSet<Delivered>,
    /// Up to where commits have been checked.
    checked: BTreeMap<Place, i64>,
    /// Records that could not be read and were told as such.
    given_up: BTreeSet<(Place, i64)>,
    /// Records that were passed over and must be told until then.
    untold: BTreeMap<(Place, i64), Nanos>,
}

#[derive(Debug)]
pub struct Ledger {
    groups: Vec<GroupPlan>,
    /// By site and message.
    pub acknowledged: BTreeSet<(usize, u32)>,
    done: Vec<Done>,
    logs: Vec<LogView>,
    /// How often a group was given a record that cannot be read.
    damaged: BTreeMap<(usize, Place, i64), u32>,
    /// Messages that a power cut was allowed to take.
    excused: BTreeSet<u32>,
    /// Queues whose offsets a power cut gave out again, up to there.
    reused: BTreeMap<Place, i64>,
    pub deliveries: u64,
}

impl Ledger {
    pub fn new(groups: &[GroupPlan], sites: usize) -> Self {
        Self {
            groups: groups.to_vec(),
            acknowledged: BTreeSet::new(),
            done: groups.iter().map(|_| Done::default()).collect(),
            logs: (0..sites).map(|_| LogView::default()).collect(),
            damaged: BTreeMap::new(),
            excused: BTreeSet::new(),
            reused: BTreeMap::new(),
            deliveries: 0,
        }
    }

    pub fn refresh(&mut self, site: usize, store: &Store) -> Result<(), String> {
        self.logs[site].refresh(store, &self.groups).map_err(|error| format!("site {site}: {error}"))
    }

    /// What is stored in a queue.
    pub fn copies(&self, place: &Place) -> &[Copy] {
        let log = self.logs.get(place.0).and_then(|log| log.queues.get(&(place.1.clone(), place.2)));
        log.map(Vec::as_slice).unwrap_or_default()
    }

    pub fn begin(&mut self, group: usize, what: &Delivered) -> Result<(), String> {
        self.deliveries += 1;
        let stored = self.copies(&what.place).get(what.offset as usize);
        let excused = self.reused.get(&what.place).is_some_and(|until| what.offset < *until);
        // What was served in the last moment of a broker's life is seen when it comes back.
        if stored.is_some_and(|copy| copy.id != what.id || copy.times != what.times) && !excused {
            return Err(format!("{what:?} was delivered, but {stored:?} is stored there"));
        }
        if !self.groups[group].wants(what.id) {
            return Err(format!("{what:?} was delivered to a group that does not want its tag"));
        }
        if !self.done[group].in_hand.insert(what.clone()) {
            return Err(format!("two handlers have the same delivery in hand: {what:?}"));
        }
        Ok(())
    }

    /// A handler is through with it; `done`: it succeeded, in a process that still lived.
    pub fn end(&mut self, group: usize, what: &Delivered, done: bool) {
        let mine = &mut self.done[group];
        mine.in_hand.remove(what);
        if done {
            mine.finished.insert((what.place.clone(), what.offset, what.id));
            mine.ids.insert(what.id);
        }
    }

    /// A group was given a record that cannot be read.
    pub fn damaged(&mut self, group: usize, place: &Place, offset: i64) {
        *self.damaged.entry((group, place.clone(), offset)).or_insert(0) += 1;
    }

    fn was_damaged(&self, group: usize, place: &Place, offset: i64) -> bool {
        self.damaged.get(&(group, place.clone(), offset)).is_some_and(|times| *times > 1)
    }

    /// A member has told that it gave a record up.
    pub fn given_up(&mut self, group: usize, place: &Place, offset: i64) -> Result<(), String> {
        // Where a filter has left gaps it is not known which of them a record without a readable head belongs to.
        let wanted = self.copies(place).get(offset as usize).is_none_or(|copy| self.groups[group].wants(copy.id));
        if !self.was_damaged(group, place, offset) {
            let good = || format!("{place:?} at {offset} was given up as damaged, but was not damaged twice");
            return if wanted { Err(good()) } else { Ok(()) };
        }
        self.done[group].given_up.insert((place.clone(), offset));
        self.done[group].untold.remove(&(place.clone(), offset));
        Ok(())
    }

    /// A member is gone, and with it what it had to tell.
    pub fn told_no_more(&mut self, group: usize) {
        let mine = &mut self.done[group];
        mine.given_up.extend(std::mem::take(&mut mine.untold).into_keys());
    }

    /// Nothing is passed over in silence.
    pub fn check_told(&self, now: Nanos) -> Result<(), String> {
        for (group, done) in self.groups.iter().zip(&self.done) {
            if let Some(((place, offset), _)) = done.untold.iter().find(|(_, until)| **until < now) {
                return Err(format!("{} passed over {place:?} at {offset} and told nobody", group.name));
            }
        }
        Ok(())
    }

    /// The queues of a group that hold something.
    pub fn places(&self, group: usize) -> Vec<Place> {
        let retry = names::retry_topic(self.groups[group].name);
        let mut places = Vec::new();
        for (site, log) in self.logs.iter().enumerate() {
            let ours = log.queues.keys().filter(|(topic, _)| **topic == *TOPIC || **topic == *retry);
            places.extend(ours.map(|(topic, queue)| (site, topic.clone(), *queue)));
        }
        places
    }

    pub fn committed(&self, group: usize, dispatcher: &Dispatcher, place: &Place) -> Option<i64> {
        let request = QueryOffsetRequest {
            consumer_group: self.groups[group].name.into(),
            topic: (&*place.1).into(),
            queue_id: place.2,
            set_zero_if_not_found: Some(false),
            broker_name: None,
        };
        dispatcher.committed(&request).ok()
    }

    /// A failed delivery of this copy has been handed on.
    fn handed_on(&self, group: usize, copy: Copy) -> bool {
        self.is_dead(group, copy.id)
            || self.logs.iter().any(|log| log.times.get(&(group, copy.id)).is_some_and(|most| *most > copy.times))
    }

    fn is_dead(&self, group: usize, id: u32) -> bool {
        self.logs.iter().any(|log| log.dead.contains(&(group, id)))
    }

    /// No committed offset of a site's queues has passed a message that is neither finished nor handed on.
    pub fn check_commits(&mut self, site: usize, dispatcher: &Dispatcher, now: Nanos) -> Result<(), String> {
        for group in 0..self.groups.len() {
            for place in self.places(group).into_iter().filter(|place| place.0 == site) {
                if let Some(committed) = self.committed(group, dispatcher, &place) {
                    self.check_commit(group, &place, committed, now)?;
                }
            }
        }
        Ok(())
    }

    fn check_commit(&mut self, group: usize, place: &Place, committed: i64, now: Nanos) -> Result<(), String> {
        let (name, end) = (self.groups[group].name, self.copies(place).len() as i64);
        let from = self.done[group].checked.get(place).copied().unwrap_or(0);
        // A power cut may take what a member that lives on has finished.
        let excused = self.reused.get(place).copied().unwrap_or(0);
        let committed = if committed <= excused { committed.min(end) } else { committed };
        for offset in from..committed {
            let Some(copy) = self.copies(place).get(offset as usize).copied() else {
                return Err(format!("{name}: {place:?} is committed at {committed}, behind its end {end}"));
            };
            let done = &self.done[group];
            let settled = done.finished.contains(&(place.clone(), offset, copy.id))
                || !self.groups[group].wants(copy.id)
                || self.handed_on(group, copy)
                || offset < excused
                || self.excused.contains(&copy.id)
                || done.given_up.contains(&(place.clone(), offset));
            if settled {
                continue;
            }
            if !self.was_damaged(group, place, offset) {
                return Err(format!(
                    "{name}: {place:?} is committed at {committed}, but {copy:?} at {offset} is not finished"
                ));
            }
            self.done[group].untold.entry((place.clone(), offset)).or_insert(now + TOLD);
        }
        self.done[group].checked.insert(place.clone(), committed.max(from));
        Ok(())
    }

    /// A broker has been opened again. `may_lose`: a power cut without synchronous flushing.
    pub fn reopened(&mut self, site: usize, store: &Store, may_lose: bool) -> Result<(), String> {
        let before = std::mem::take(&mut self.logs[site]);
        self.refresh(site, store)?;
        if may_lose {
            self.excuse(site, before);
            return Ok(());
        }
        let stored = &self.logs[site].stored;
        let lost = |(at, id): &&(usize, u32)| *at == site && !stored.contains(id) && !self.excused.contains(id);
        if let Some((_, lost)) = self.acknowledged.iter().find(lost) {
            return Err(format!("message {lost} was acknowledged and is not in the store after a restart"));
        }
        for ((topic, queue), copies) in before.queues {
            let now = self.copies(&(site, topic.clone(), queue));
            if now.get(..copies.len()) != Some(&copies[..]) {
                return Err(format!("{topic}/{queue} held {} messages and holds {} others", copies.len(), now.len()));
            }
        }
        Ok(())
    }

    /// What a power cut has taken is excused.
    fn excuse(&mut self, site: usize, before: LogView) {
        let after = self.logs[site].copies();
        for ((topic, id, times), count) in before.copies() {
            if after.get(&(topic, id, times)).copied().unwrap_or(0) < count {
                self.excused.insert(id);
            }
        }
        let stored = &self.logs[site].stored;
        let lost = self.acknowledged.iter().filter(|(at, id)| *at == site && !stored.contains(id));
        self.excused.extend(lost.map(|(_, id)| *id));
        for ((topic, queue), copies) in before.queues {
            let place = (site, topic, queue);
            let end = self.copies(&place).len();
            if end < copies.len() {
                let until = self.reused.entry(place.clone()).or_insert(0);
                *until = (*until).max(copies.len() as i64);
                for done in &mut self.done {
                    let checked = done.checked.entry(place.clone()).or_insert(0);
                    *checked = (*checked).min(end as i64);
                    done.given_up.retain(|(at, offset)| *at != place || *offset < end as i64);
                }
            }
        }
    }

    /// Acknowledged messages that are a group's business and are neither delivered with success nor dead letters.
    pub fn open(&self, group: usize) -> Vec<u32> {
        let ids: BTreeSet<u32> = self.acknowledged.iter().map(|(_, id)| *id).collect();
        let settled = |id: u32| {
            self.done[group].ids.contains(&id)
                || !self.groups[group].wants(id)
                || self.is_dead(group, id)
                || self.excused.contains(&id)
                || self.was_reused(id)
                || self.was_given_up(group, id)
        };
        ids.into_iter().filter(|id| !settled(*id)).collect()
    }

    /// Where the copies of a message are stored.
    pub fn places_of(&self, id: u32) -> Vec<String> {
        let mut found = Vec::new();
        for (site, log) in self.logs.iter().enumerate() {
            for ((topic, queue), copies) in &log.queues {
                for (offset, copy) in copies.iter().enumerate().filter(|(_, copy)| copy.id == id) {
                    found.push(format!("{site}:{topic}/{queue}/{offset} times={}", copy.times));
                }
            }
        }
        found
    }

    /// A message that was given up where it was sent to, in one of its copies.
    fn was_given_up(&self, group: usize, id: u32) -> bool {
        let given_up = &self.done[group].given_up;
        given_up
            .iter()
            .any(|(place, offset)| self.copies(place).get(*offset as usize).is_some_and(|copy| copy.id == id))
    }

    /// A message at an offset that was given out twice: a member that stood behind it may have passed it over.
    fn was_reused(&self, id: u32) -> bool {
        self.reused
            .iter()
            .any(|(place, until)| self.copies(place).iter().take(*until as usize).any(|copy| copy.id == id))
    }
}
