//! Taking in what pulls have brought: index, check, filter, put; and what becomes of a damaged record (D8).
//!
//! The core calls it in `settle`, after the turn's requests are written. A record that cannot be read is pulled once
//! more, since damage in transit heals. If it is damaged again it is given up, told as an event with its first bytes,
//! and asked to be kept as a dead letter where its place can be believed; what follows is pulled message by message
//! until a good one comes. At most one stored message is given up for each event.

use std::sync::Arc;

use super::claim::Stage;
use super::pull::{Arrived, Damaged, Pull};
use super::pulled::Pulled;
use crate::consume::chunk::Epoch;
use crate::model::QueueOffset;
use crate::model::tags::TagExpression;
use crate::net::Out;
use crate::rocketmq::core::{Core, Purpose, Timer};
use crate::rocketmq::events::Event;
use crate::rocketmq::port::{Ask, Target};
use crate::wire::frame::Frame;
use crate::wire::remoting::codes::request;
use crate::wire::remoting::properties::names;
use crate::wire::remoting::record::{Check, Damage, Record, index};
use crate::wire::remoting::send::SendBackRequest;
use crate::work::clock::Nanos;

/// How much of a damaged record is told.
const HEAD_BYTES: usize = 64;

/// A record that cannot be read, and where it must be.
#[derive(Clone, Debug)]
struct Bad {
    offset: QueueOffset,
    damage: Damage,
    head: Vec<u8>,
}

impl Core {
    /// Takes in what has arrived in this turn.
    pub(in crate::rocketmq) fn take_in(&mut self, now: Nanos, out: &mut Out<Timer>) {
        let mut arrived = std::mem::take(&mut self.arrived);
        for answer in arrived.drain(..) {
            self.take_in_one(answer, now, out);
        }
        if self.arrived.is_empty() {
            // The list is kept for the next turn.
            self.arrived = arrived;
        }
    }

    fn take_in_one(&mut self, arrived: Arrived, now: Nanos, out: &mut Out<Timer>) {
        let epoch = arrived.epoch;
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Stage::Active(active) = &mut claim.stage else { return };
        // Behind a damaged record that is pulled again: what has come meanwhile comes again, too.
        if active.taken != arrived.asked {
            return;
        }
        let Some(subscribed) = self.groups.get(&claim.group).and_then(|group| group.topics.get(&claim.queue.topic))
        else {
            return;
        };
        let own_retry = claim.queue.topic.strip_prefix(crate::model::names::RETRY_PREFIX) == Some(&*claim.group_name);
        let work = Arc::clone(&active.work);
        let (min, max) = (QueueOffset(arrived.header.min_offset), QueueOffset(arrived.header.max_offset));
        let (mut at, mut moved, mut gather) = (arrived.asked, false, None);
        let mut left = arrived.frames.all();
        // An answer without messages is put as well: it may bring progress.
        let bad = loop {
            let mut records = self.indexes.take();
            let (frame, bad) =
                index_beside(&mut left, &mut at, arrived.next, claim.queue.id, &subscribed.tags, records.list());
            let last = left.is_empty();
            let end = bad.as_ref().map_or(if last { arrived.next } else { at }, |bad| bad.offset);
            let batch = Pulled { queue: claim.queue.clone(), own_retry, frame, records, min, max };
            let put = work.put(&Arc::new(batch), end, now);
            moved |= put.moved;
            gather = put.gather_until.or(gather);
            if bad.is_some() || last {
                break bad;
            }
        };
        if bad.is_none() {
            active.damaged = Damaged::No;
        }
        active.taken = bad.as_ref().map_or(arrived.next, |bad| bad.offset);
        active.looks = 0;
        if let Some(at) = gather {
            claim.wake_at(at, out);
        }
        if moved {
            self.progress_moved(now, out);
        }
        if let Some(bad) = bad {
            self.damaged(epoch, &bad, now, out);
        }
        self.look_again(epoch, now, out);
        let due = self.claims.get_mut(&epoch).and_then(|claim| claim.active()).map(|active| active.pull);
        if matches!(due, Some(Pull::Due)) {
            self.pull(epoch, now, out);
        }
    }

    /// The record at `bad.offset` cannot be read.
    fn damaged(&mut self, epoch: Epoch, bad: &Bad, now: Nanos, out: &mut Out<Timer>) {
        let Some(active) = self.claims.get_mut(&epoch).and_then(|claim| claim.active()) else { return };
        let again = active.damaged == Damaged::Again(bad.offset);
        let next = if again { bad.offset.next() } else { bad.offset };
        active.damaged = if again { Damaged::Stepping } else { Damaged::Again(bad.offset) };
        (active.next, active.taken) = (next, next);
        // The pull at the damaged record takes the place of the one that may be on its way already.
        if let Pull::Out(ticket) = std::mem::replace(&mut active.pull, Pull::Due) {
            self.forget(ticket, out);
        }
        if again {
            self.give_up_record(epoch, bad, now, out);
        } else {
            log::warn!(target: "windlass::pull", "damaged record, pulled again: offset={} error={}", bad.offset, bad.damage.error);
        }
    }

    fn give_up_record(&mut self, epoch: Epoch, bad: &Bad, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.get(&epoch) else { return };
        let Some(group) = self.groups.get(&claim.group) else { return };
        let (id, group_name, queue) = (claim.group, Arc::clone(&claim.group_name), claim.queue.clone());
        let max = i32::try_from(group.spec.settings.max_redeliveries).unwrap_or(i32::MAX);
        let place = bad.damage.place;
        // Its fixed fields agree with where it was found, so its place in the log can be believed.
        let physical = place
            .filter(|place| place.queue_offset == bad.offset.0 && place.queue_id == queue.id)
            .map(|place| place.physical_offset)
            .filter(|physical| *physical >= 0);
        let master = self.route(&queue.topic).and_then(|route| route.master(&queue.broker)).cloned();
        let buried = physical.zip(master);
        if let Some((offset, master)) = &buried {
            let fields = SendBackRequest {
                offset: *offset,
                group: (&*group_name).into(),
                delay_level: -1,
                origin_msg_id: None,
                origin_topic: Some((&*queue.topic).into()),
                unit_mode: false,
                max_reconsume_times: Some(max),
                broker_name: Some((&*queue.broker).into()),
            };
            let timeout = self.context.settings.timing.offset;
            let ask = Ask::of(request::CONSUMER_SEND_MSG_BACK, &fields);
            self.ask(Target::Broker(master), &ask, Purpose::Bury, timeout, now, out);
        }
        let event = Event::DamagedRecord {
            group: group_name,
            queue,
            offset: bad.offset,
            physical,
            size: u32::try_from(bad.damage.len).ok().filter(|_| !bad.damage.rest_lost),
            head: bad.head.clone(),
            dead_lettered: buried.is_some(),
        };
        self.tell(id, event);
    }
}

/// Takes frames off the front of `left` that lie one behind the other in the same memory, as those of one answer do that
/// point into the log, and indexes them as one: with what is between them, which nobody looks at. No frame: an empty one.
fn index_beside(
    left: &mut &[Frame],
    at: &mut QueueOffset,
    next: QueueOffset,
    queue_id: i32,
    tags: &TagExpression,
    records: &mut Vec<Record>,
) -> (Frame, Option<Bad>) {
    let Some((first, rest)) = left.split_first() else { return (Frame::from(Vec::new()), None) };
    let mut whole = first.clone();
    *left = rest;
    let mut bad = index_frame(first, 0, at, next, queue_id, tags, records);
    while bad.is_none()
        && let Some((frame, rest)) = left.split_first()
        && let Some(base) = whole.reach(frame)
    {
        *left = rest;
        bad = index_frame(frame, base, at, next, queue_id, tags, records);
    }
    (whole, bad)
}

/// Appends the good records of a frame up to the first damaged one, which is the answer. `at` is where the next record
/// must be, before and after; the frame begins at `base` of what the index is of.
fn index_frame(
    frame: &Frame,
    base: u32,
    at: &mut QueueOffset,
    next: QueueOffset,
    queue_id: i32,
    tags: &TagExpression,
    records: &mut Vec<Record>,
) -> Option<Bad> {
    let (start, from, mut damage) = (records.len(), *at, Vec::new());
    index(frame.bytes(), Check::Crc, records, &mut damage);
    let first = damage.into_iter().next();
    let good_to = first.as_ref().map_or(usize::MAX, |damage| damage.at);
    let is_good = |record: &Record| (record.at as usize) < good_to && record.queue_offset >= from.0;
    // The broker has compared hashes, and two tags may share one (B-080).
    let is_wanted = |record: &Record| {
        is_good(record) && (tags.is_all() || tags.admits(record.properties(frame.bytes()).find(names::TAGS)))
    };
    let fresh = records.get(start..).unwrap_or_default();
    let last = fresh.iter().rfind(|record| is_good(record));
    *at = last.map_or(from, |record| QueueOffset(record.queue_offset).next());
    if !fresh.iter().all(is_wanted) {
        let fresh = records.split_off(start);
        records.extend(fresh.into_iter().filter(is_wanted));
    }
    for record in records.iter_mut().skip(start) {
        record.at = record.at.saturating_add(base);
    }
    let damage = first?;
    let head = frame.bytes().get(damage.at..).unwrap_or_default();
    let head = head.get(..HEAD_BYTES.min(damage.len)).unwrap_or(head).to_vec();
    Some(Bad { offset: place_of(&damage, *at, next, queue_id), damage, head })
}

/// The offset of a damaged record: what it says if that can be, else the first that it can be.
fn place_of(damage: &Damage, at: QueueOffset, next: QueueOffset, queue_id: i32) -> QueueOffset {
    damage
        .place
        .filter(|place| place.queue_id == queue_id && (at.0..next.0.max(at.0 + 1)).contains(&place.queue_offset))
        .map_or(at, |place| QueueOffset(place.queue_offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::WireError;
    use crate::wire::remoting::properties::push;
    use crate::wire::remoting::record::{NewRecord, Place, patch};

    /// A log with messages of the queue and what belongs to others between them: the frames of an answer point into it.
    fn log(tags: &[&str]) -> (Vec<u8>, Vec<std::ops::Range<usize>>) {
        let (mut log, mut places) = (Vec::new(), Vec::new());
        for (offset, tag) in (10..).zip(tags) {
            log.extend_from_slice(b"of another queue");
            let (mut properties, mut bytes) = (Vec::new(), Vec::new());
            push(&mut properties, names::TAGS, tag);
            let record = NewRecord {
                topic: b"orders",
                body: tag.as_bytes(),
                properties: &properties,
                queue_id: 3,
                flag: 0,
                sys_flag: 0,
                born_ms: 1000,
                born_host: "10.0.0.1:1".parse().unwrap(),
                store_host: "10.0.0.1:10911".parse().unwrap(),
                reconsume_times: 0,
                prepared_offset: 0,
                body_crc: None,
            };
            record.encode_into(&mut bytes).unwrap();
            patch(&mut bytes, offset, 700 + offset, 2000);
            places.push(log.len()..log.len() + bytes.len());
            log.extend_from_slice(&bytes);
        }
        (log, places)
    }

    /// The offset and body of what is indexed of an answer, batch by batch, and the offset of what is damaged.
    fn indexed(frames: &[Frame], tags: &str) -> (Vec<Vec<(i64, String)>>, Option<i64>) {
        let (mut left, mut at, tags) = (frames, QueueOffset(10), TagExpression::parse(tags).unwrap());
        let mut batches = Vec::new();
        loop {
            let mut records = Vec::new();
            let (frame, bad) = index_beside(&mut left, &mut at, QueueOffset(20), 3, &tags, &mut records);
            let body = |record: &Record| String::from_utf8_lossy(record.body(frame.bytes())).into_owned();
            batches.push(records.iter().map(|record| (record.queue_offset, body(record))).collect());
            if bad.is_some() || left.is_empty() {
                return (batches, bad.map(|bad| bad.offset.0));
            }
        }
    }

    fn batch(messages: &[(i64, &str)]) -> Vec<(i64, String)> {
        messages.iter().map(|(offset, body)| (*offset, (*body).to_owned())).collect()
    }

    #[test]
    fn messages_of_one_memory_are_one_batch_whatever_lies_between_them() {
        let (log, places) = log(&["a", "b", "a"]);
        let owner = Frame::from(log);
        let frames: Vec<_> = places.into_iter().map(|place| owner.slice(place)).collect();
        let all = batch(&[(10, "a"), (11, "b"), (12, "a")]);
        assert_eq!(indexed(&frames, "*"), (vec![all], None));
        assert_eq!(indexed(&frames, "a"), (vec![batch(&[(10, "a"), (12, "a")])], None));
        // Not in the order of the memory, or of another: batches of their own.
        let mixed = [frames[1].clone(), Frame::from(frames[2].bytes().to_vec())];
        assert_eq!(indexed(&mixed, "*"), (vec![batch(&[(11, "b")]), batch(&[(12, "a")])], None));
        let turned = [frames[1].clone(), frames[0].clone()];
        assert_eq!(indexed(&turned, "*"), (vec![batch(&[(11, "b")]), batch(&[])], None));
        assert_eq!(indexed(&[], "*"), (vec![batch(&[])], None));
    }

    #[test]
    fn d8_what_is_behind_a_damaged_record_of_the_same_memory_is_not_taken() {
        let (mut log, places) = log(&["a", "b", "c"]);
        // Its body: behind 84 fixed bytes and the length.
        log[places[1].start + 88] ^= 1;
        let owner = Frame::from(log);
        let frames: Vec<_> = places.into_iter().map(|place| owner.slice(place)).collect();
        assert_eq!(indexed(&frames, "*"), (vec![batch(&[(10, "a")])], Some(11)));
    }

    fn damage(queue_id: i32, queue_offset: i64) -> Damage {
        let place = Some(Place { queue_id, queue_offset, physical_offset: 700 });
        Damage { at: 0, len: 100, error: WireError::Inflate, place, rest_lost: false }
    }

    #[test]
    fn d8_a_damaged_records_place_is_believed_only_where_it_can_be() {
        let at = |damage: &Damage| place_of(damage, QueueOffset(10), QueueOffset(20), 3).0;
        assert_eq!(at(&damage(3, 12)), 12);
        assert_eq!(at(&damage(3, 9)), 10, "before what was asked for");
        assert_eq!(at(&damage(3, 20)), 10, "behind what was answered");
        assert_eq!(at(&damage(4, 12)), 10, "of another queue");
        assert_eq!(at(&Damage { place: None, ..damage(3, 12) }), 10);
    }
}
