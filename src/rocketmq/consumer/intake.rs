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
        let (mut at, mut bad, mut moved, mut gather) = (arrived.asked, None, false, None);
        let frames = arrived.frames.all();
        // An answer without messages is put as well: it may bring progress.
        for place in 0..frames.len().max(1) {
            let frame = frames.get(place).cloned().unwrap_or_else(|| Frame::from(Vec::new()));
            let mut records = self.indexes.take();
            bad = index_frame(&frame, &mut at, arrived.next, claim.queue.id, &subscribed.tags, records.list());
            let last = place + 1 >= frames.len();
            let end = bad.as_ref().map_or(if last { arrived.next } else { at }, |bad| bad.offset);
            let batch = Pulled { queue: claim.queue.clone(), own_retry, frame, records, min, max };
            let put = work.put(&Arc::new(batch), end, now);
            moved |= put.moved;
            gather = put.gather_until.or(gather);
            if bad.is_some() {
                break;
            }
        }
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

/// Appends the good records of a frame up to the first damaged one, which is the answer. `at` is where the next record
/// must be, before and after.
fn index_frame(
    frame: &Frame,
    at: &mut QueueOffset,
    next: QueueOffset,
    queue_id: i32,
    tags: &TagExpression,
    records: &mut Vec<Record>,
) -> Option<Bad> {
    let mut damage = Vec::new();
    index(frame.bytes(), Check::Crc, records, &mut damage);
    let first = damage.into_iter().next();
    if let Some(damage) = &first {
        records.retain(|record| (record.at as usize) < damage.at);
    }
    records.retain(|record| record.queue_offset >= at.0);
    *at = records.last().map_or(*at, |record| QueueOffset(record.queue_offset).next());
    if !tags.is_all() {
        // The broker has compared hashes, and two tags may share one (B-080).
        records.retain(|record| tags.admits(record.properties(frame.bytes()).find(names::TAGS)));
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
    use crate::wire::remoting::record::Place;

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
