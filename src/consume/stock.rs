//! What one process queue has in stock, and every change of it. The process queue holds it under its one lock; nothing
//! here locks, waits or calls anybody.

use std::collections::VecDeque;
use std::sync::Arc;

use super::chunk::{Batch, Chunk, Epoch, Failed, Generation, Part, RunKey, Verdicts};
use super::flow::Held;
use super::listener::{Mark, Outcome};
use super::queue::{SETTLED, Settings, Share, Tally};
use super::ring::{Ring, Slot};
use super::runs::Runs;
use super::stretch::{Stretch, StretchKey};
use crate::model::{QueueOffset, SortedMap};
use crate::work::clock::Nanos;

/// Where the claim's token is. There is at most one that counts: posting another ages all others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Token {
    /// Nowhere: there is nothing to take, or no more handlers may run.
    Idle,
    /// Posted.
    Ready,
    /// In a worker's hand since then.
    Taken { since: Nanos },
}

/// How far the life of the claim has come.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Phase {
    Open,
    /// What is cached is still delivered, nothing is put any more.
    Draining,
    /// What runs is finished, nothing is taken any more.
    Stopping,
    /// Results are ignored.
    Closed,
}

pub(super) struct Stock<B> {
    pub(super) phase: Phase,
    pub(super) ring: Ring,
    /// What nobody has taken, in the order of offsets.
    pub(super) waiting: VecDeque<Waiting<B>>,
    /// Single messages that are delivered once more; taken before all others.
    pub(super) again: VecDeque<Part<B>>,
    /// Messages in `waiting` and `again`.
    pub(super) takeable: u64,
    pub(super) runs: Runs<B>,
    /// Times that an offset has been delivered again here; what has not been is not listed.
    pub(super) attempts: SortedMap<i64, u32>,
    pub(super) failed: Vec<Failed<B>>,
    /// Messages in state `SendingBack`.
    pub(super) sending_back: u64,
    /// Not finished: waiting, running, being sent back.
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) token: Token,
    pub(super) generation: u32,
    /// The stretch that was opened last, until it is recalled or finished.
    pub(super) stretched: Option<(StretchKey, RunKey)>,
    /// The loop wants to fetch as soon as there is room.
    pub(super) parked: bool,
    /// The bell was rung and the loop has not asked yet.
    pub(super) rung: bool,
    /// Somebody has been told that the commit point is not `taken` any more.
    pub(super) announced: bool,
    /// The loop knows when what waits is to be delivered although it is less than a batch.
    pub(super) gathering: bool,
    /// May be committed: below it everything is settled. Never goes back.
    pub(super) commit: i64,
    /// The commit point that the loop took last.
    pub(super) taken: i64,
    pub(super) tally: Tally,
}

pub(super) struct Waiting<B> {
    pub(super) part: Part<B>,
    pub(super) since: Nanos,
}

/// What a batch looks like, read before the lock is taken.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) count: u32,
    pub(super) first: i64,
    /// The offsets follow one by one.
    pub(super) dense: bool,
    pub(super) bytes: u64,
}

impl Shape {
    pub(super) fn of(batch: &impl Batch) -> Self {
        let count = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        let first = if count > 0 { batch.offset(0).0 } else { 0 };
        let mut shape = Self { count, first, dense: true, bytes: 0 };
        for at in 0..count {
            shape.dense &= batch.offset(at as usize).0 == first.saturating_add(i64::from(at));
            shape.bytes = shape.bytes.saturating_add(batch.bytes(at as usize));
        }
        shape
    }
}

impl<B: Batch> Stock<B> {
    /// Nothing, of a group that has consumed everything below `start`.
    pub(super) fn new(start: i64) -> Self {
        Self {
            phase: Phase::Open,
            ring: Ring::default(),
            waiting: VecDeque::new(),
            again: VecDeque::new(),
            takeable: 0,
            runs: Runs::default(),
            attempts: SortedMap::new(),
            failed: Vec::new(),
            sending_back: 0,
            messages: 0,
            bytes: 0,
            token: Token::Idle,
            generation: 0,
            stretched: None,
            parked: false,
            rung: false,
            announced: false,
            gathering: false,
            commit: start,
            taken: start,
            tally: Tally::default(),
        }
    }

    pub(super) fn held(&self) -> Held {
        Held { messages: self.messages, bytes: self.bytes, span: if self.messages == 0 { 0 } else { self.ring.span() } }
    }

    pub(super) fn insert(&mut self, batch: &Arc<B>, shape: Shape, now: Nanos) -> u32 {
        if shape.count == 0 {
            return 0;
        }
        let whole = Part {
            batch: batch.clone(),
            from: 0,
            to: shape.count,
            attempt: 0,
            first: shape.first,
            dense: shape.dense,
            bytes: shape.bytes,
            run: Part::<B>::NO_RUN,
        };
        if shape.dense && self.ring.put_run(shape.first, shape.count).is_some() {
            self.messages = self.messages.saturating_add(u64::from(shape.count));
            self.bytes = self.bytes.saturating_add(shape.bytes);
            self.wait(whole, now);
            return shape.count;
        }
        self.insert_singly(&whole, now)
    }

    /// Puts message by message; what was new and stands side by side in the batch waits as one part.
    pub(super) fn insert_singly(&mut self, whole: &Part<B>, now: Nanos) -> u32 {
        let (mut inserted, mut from, mut bytes) = (0, None, 0);
        for at in 0..=whole.to {
            if at < whole.to && self.ring.put(whole.offset(at)) {
                from = from.or(Some(at));
                inserted += 1;
                bytes += whole.batch.bytes(at as usize);
            } else if let Some(start) = from.take() {
                let first = whole.offset(start);
                let dense = (start..at).all(|i| whole.offset(i) == first.saturating_add(i64::from(i - start)));
                self.messages = self.messages.saturating_add(u64::from(at - start));
                self.bytes = self.bytes.saturating_add(bytes);
                self.wait(Part { from: start, to: at, first, dense, bytes, ..whole.clone() }, now);
                bytes = 0;
            }
        }
        inserted
    }

    pub(super) fn wait(&mut self, part: Part<B>, now: Nanos) {
        self.takeable = self.takeable.saturating_add(u64::from(part.len()));
        let behind = self.waiting.iter().rev().take_while(|waiting| waiting.part.first > part.first).count();
        let place = self.waiting.len().saturating_sub(behind);
        self.waiting.insert(place, Waiting { part, since: now });
    }

    /// True if a worker could take something now.
    pub(super) fn ready(&self, settings: &Settings, now: Nanos) -> bool {
        self.takeable > 0
            && self.phase <= Phase::Draining
            && self.runs.live() < settings.running
            && (settings.wait.is_zero()
                || !self.again.is_empty()
                || self.phase == Phase::Draining
                || self.takeable >= u64::from(settings.batch)
                || self.waiting.front().is_none_or(|front| now.since(front.since) >= settings.wait))
    }

    /// What has waited for long and is all that is left of its batch.
    pub(super) fn settled(&self, now: Nanos) -> Vec<Part<B>> {
        let waiting =
            self.waiting.iter().filter(|waiting| now.since(waiting.since) >= SETTLED).map(|waiting| &waiting.part);
        waiting.chain(&self.again).filter(|part| Arc::strong_count(&part.batch) == 1).cloned().collect()
    }

    /// Lets what waits of `part` wait in `batch`, which has the same messages from place 0. False if it waits no more.
    pub(super) fn replace(&mut self, part: &Part<B>, batch: &Arc<B>) -> bool {
        let same = |other: &&mut Part<B>| {
            Arc::ptr_eq(&other.batch, &part.batch) && (other.from, other.to) == (part.from, part.to)
        };
        let waiting = self.waiting.iter_mut().map(|waiting| &mut waiting.part);
        let Some(found) = waiting.chain(&mut self.again).find(same) else { return false };
        (found.batch, found.from, found.to) = (batch.clone(), 0, part.len());
        true
    }

    pub(super) fn post(&mut self) -> Generation {
        self.token = Token::Ready;
        self.generation = self.generation.wrapping_add(1);
        Generation(self.generation)
    }

    pub(super) fn post_if_ready(&mut self, settings: &Settings, now: Nanos) -> Option<Generation> {
        (self.token == Token::Idle && self.ready(settings, now)).then(|| self.post())
    }

    /// When what waits for company is to be delivered, if that is so and nobody knows yet.
    pub(super) fn gather(&mut self, settings: &Settings, now: Nanos) -> Option<Nanos> {
        if !self.must_gather(settings, now) {
            return None;
        }
        self.gathering = true;
        self.waiting.front().map(|front| front.since + settings.wait)
    }

    pub(super) fn must_gather(&self, settings: &Settings, now: Nanos) -> bool {
        !settings.wait.is_zero()
            && !self.gathering
            && self.takeable > 0
            && self.phase == Phase::Open
            && self.token == Token::Idle
            && self.runs.live() < settings.running
            && !self.ready(settings, now)
    }

    /// Takes the next chunk, and the token with it unless more is ready and is to be shared.
    pub(super) fn next_chunk(
        &mut self,
        epoch: Epoch,
        settings: &Settings,
        stretch: &Stretch,
        share: Share,
        now: Nanos,
    ) -> (Option<Chunk<B>>, Option<Generation>) {
        if !self.ready(settings, now) {
            self.token = Token::Idle;
            return (None, None);
        }
        let calls = match share {
            Share::Keep { calls } if settings.wait.is_zero() => calls.max(1),
            Share::Keep { .. } | Share::Rest => 1,
        };
        let Some(first) = self.take_part(settings.batch.saturating_mul(calls), now) else {
            self.token = Token::Idle;
            return (None, None);
        };
        let mut more = Vec::new();
        let mut left = settings.batch.saturating_sub(first.len());
        while !settings.wait.is_zero() && first.attempt == 0 && left > 0 {
            let Some(part) = self.take_part(left, now) else { break };
            left = left.saturating_sub(part.len());
            more.push(part);
        }
        self.token = Token::Taken { since: now };
        let own = Some(Generation(self.generation));
        let post = (share == Share::Rest && self.ready(settings, now)).then(|| self.post());
        let token = if post.is_some() { None } else { own };
        let stretch = (calls > 1 && first.len() > settings.batch).then(|| stretch.open());
        self.stretched = stretch.map(|key| (key, first.run));
        (Some(Chunk { epoch, first, more, token, stretch }), post)
    }

    /// Takes back what the worker of the last stretch has not begun; it waits again, in its old place.
    pub(super) fn recall(&mut self, settings: &Settings, stretch: &Stretch, now: Nanos) {
        let Some((key, run)) = self.stretched.take() else { return };
        let Some(begun) = stretch.recall(key) else { return };
        let Some(rest) = self.runs.recall(run, begun.saturating_mul(settings.batch)) else { return };
        if rest.dense {
            self.ring.turn_run(rest.first, rest.len(), Slot::Taken, Slot::Waiting);
        } else {
            for at in rest.from..rest.to {
                self.ring.turn(rest.offset(at), Slot::Taken, Slot::Waiting);
            }
        }
        self.wait(rest, now);
    }

    pub(super) fn take_part(&mut self, most: u32, now: Nanos) -> Option<Part<B>> {
        let mut part = match self.again.pop_front() {
            Some(part) => part,
            None => {
                let front = self.waiting.front_mut()?;
                match front.part.cut(most) {
                    Some(head) => head,
                    None => self.waiting.pop_front()?.part,
                }
            }
        };
        self.takeable = self.takeable.saturating_sub(u64::from(part.len()));
        if part.dense {
            self.ring.turn_run(part.first, part.len(), Slot::Waiting, Slot::Taken);
        } else {
            for at in part.from..part.to {
                self.ring.turn(part.offset(at), Slot::Waiting, Slot::Taken);
            }
        }
        part.run = self.runs.start(&part, now);
        Some(part)
    }

    pub(super) fn finish_part(&mut self, part: &Part<B>) {
        let count = part.len();
        if part.dense {
            self.ring.settle_run(part.first, count, Slot::Taken);
        } else {
            for at in part.from..part.to {
                self.ring.settle(part.offset(at), Slot::Taken);
            }
        }
        if part.attempt > 0 {
            self.attempts.remove(&part.first);
        }
        self.runs.leave(part.run, count);
        self.tally.finished = self.tally.finished.saturating_add(u64::from(count));
        self.uncount(count, part.bytes);
    }

    /// Results of a closed claim or of a run that was given up: counted, but for what finishes on its own.
    pub(super) fn late_part(&mut self, part: &Part<B>, place: u32, verdicts: Verdicts<'_>) {
        let mark = |more: u32| verdicts.marks.and_then(|marks| marks.get(place.saturating_add(more)));
        let late = (0..part.len()).filter(|more| mark(*more) != Some(Mark::Detached)).count();
        self.tally.late = self.tally.late.saturating_add(late as u64);
    }

    pub(super) fn judge_part(&mut self, epoch: Epoch, part: &Part<B>, place: u32, verdicts: Verdicts<'_>) {
        let mut left = 0;
        for at in part.from..part.to {
            let place = place.saturating_add(at.saturating_sub(part.from));
            let mark = verdicts.marks.and_then(|marks| marks.get(place));
            let reason = verdicts.marks.and_then(|marks| marks.take_reason(place));
            left += match mark {
                Some(Mark::Detached) => 0,
                Some(Mark::Outcome(outcome)) => u32::from(self.judge(epoch, part, at, outcome, reason, false)),
                None => u32::from(self.judge(epoch, part, at, verdicts.rest, reason, false)),
            };
        }
        self.runs.leave(part.run, left);
    }

    /// Applies one outcome. False if the message is not in a handler's hand (any more).
    pub(super) fn judge(
        &mut self,
        epoch: Epoch,
        part: &Part<B>,
        at: u32,
        outcome: Outcome,
        reason: Option<String>,
        stuck: bool,
    ) -> bool {
        let offset = part.offset(at);
        if outcome == Outcome::Done {
            let done = self.ring.settle(offset, Slot::Taken);
            if done {
                self.attempts.remove(&offset);
                self.tally.finished = self.tally.finished.saturating_add(1);
                self.uncount(1, part.batch.bytes(at as usize));
            }
            return done;
        }
        if !self.ring.turn(offset, Slot::Taken, Slot::SendingBack) {
            return false;
        }
        self.sending_back = self.sending_back.saturating_add(1);
        let (batch, offset) = (part.batch.clone(), QueueOffset(offset));
        self.failed.push(Failed { epoch, batch, at, offset, attempt: part.attempt, outcome, reason, stuck });
        true
    }

    pub(super) fn is_sending_back(&self, epoch: Epoch, failed: &Failed<B>) -> bool {
        self.phase < Phase::Closed
            && failed.epoch == epoch
            && self.attempts.get(&failed.offset.0).copied().unwrap_or(0) == failed.attempt
    }

    pub(super) fn uncount(&mut self, messages: u32, bytes: u64) {
        self.messages = self.messages.saturating_sub(u64::from(messages));
        self.bytes = if self.messages == 0 { 0 } else { self.bytes.saturating_sub(bytes) };
    }

    pub(super) fn advance(&mut self) {
        if let Some(watermark) = self.ring.watermark() {
            self.commit = self.commit.max(watermark);
        }
    }

    /// True, once, if the commit point has moved and nobody has been told.
    pub(super) fn announce(&mut self) -> bool {
        let moved = self.commit != self.taken && !self.announced;
        self.announced |= moved;
        moved
    }

    pub(super) fn has_room(&self, settings: &Settings) -> bool {
        self.parked && settings.limits.exceeded(self.held()).is_none()
    }

    pub(super) fn ended(&self) -> bool {
        self.phase > Phase::Open
            && self.runs.live() == 0
            && self.sending_back == 0
            && (self.phase > Phase::Draining || self.takeable == 0)
    }

    /// True, until the loop has asked, if there is news.
    pub(super) fn rings(&mut self, settings: &Settings, now: Nanos) -> bool {
        let news = !self.failed.is_empty()
            || (self.commit != self.taken && !self.announced)
            || self.has_room(settings)
            || self.must_gather(settings, now)
            || self.ended();
        let ring = news && !self.rung;
        self.rung |= ring;
        ring
    }

    /// Empties what waits, which keeps its state in the ring: it holds the commit point.
    pub(super) fn drop_cached(&mut self) -> (VecDeque<Waiting<B>>, VecDeque<Part<B>>) {
        self.tally.dropped = self.tally.dropped.saturating_add(self.takeable);
        self.takeable = 0;
        (std::mem::take(&mut self.waiting), std::mem::take(&mut self.again))
    }
}
