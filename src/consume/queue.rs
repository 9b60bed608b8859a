//! The process queue: what one claim has fetched and not finished, and how far progress may be committed.
//!
//! One lock around everything that must change together: states by offset, what waits, what runs, the claim's one token,
//! the parked fetch, the counts. The loop calls [`put`](ProcessQueue::put) and the calls of the core; workers call
//! [`take`](ProcessQueue::take) and [`finish`](ProcessQueue::finish), each one lock. It calls nobody: what has to follow
//! is in the answers (post this token, ring the bell) or waits here until the loop asks for it
//! ([`news`](ProcessQueue::news)), so that nothing is lost when an inbox is full.
//!
//! Lock: process queue (rank 2). No batch is dropped under it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::chunk::{Batch, Chunk, Epoch, Failed, Generation, Part, Verdicts};
use super::flow::{Full, Held, Limits};
use super::listener::{Mark, Outcome};
use super::ring::{Ring, Slot};
use super::runs::Runs;
use crate::model::{DelayLevel, QueueOffset};
use crate::work::clock::Nanos;
use crate::work::ranks::{Rank, Ranked};

/// A token in a blocked handler's hand is taken back after this long, so that the claim's other messages go on.
pub const TAKE_BACK: Duration = Duration::from_millis(5);
/// Delay level of a message that is sent back because its handler does not return (Java's `cleanExpireMsg`).
const STUCK_LEVEL: i32 = 3;

/// How one claim is consumed.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most messages for one call of the handler.
    pub batch: u32,
    /// How long fewer than `batch` messages wait for more; with zero a chunk ends where a fetch ended.
    pub wait: Duration,
    /// Most handlers at a time; 1 for ordered consumption.
    pub running: u32,
    /// When to stop fetching.
    pub limits: Limits,
    /// How long a message may be in a handler's hand before it is given up for stuck.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch: 1,
            wait: Duration::ZERO,
            running: u32::MAX,
            limits: Limits::default(),
            timeout: Duration::from_secs(15 * 60),
        }
    }
}

/// Where the claim's token is. There is at most one that counts: posting another ages all others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Token {
    /// Nowhere: there is nothing to take, or no more handlers may run.
    Idle,
    /// Posted.
    Ready,
    /// In a worker's hand since then.
    Taken { since: Nanos },
}

/// How far the life of the claim has come.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Phase {
    Open,
    /// What is cached is still delivered, nothing is put any more.
    Draining,
    /// What runs is finished, nothing is taken any more.
    Stopping,
    /// Results are ignored.
    Closed,
}

/// What the claim has come to, for reports.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    /// Messages whose handler finished them.
    pub finished: u64,
    /// Messages handed on to the retry topic.
    pub sent_back: u64,
    /// Messages handed on to the dead-letter topic by this client.
    pub dead_lettered: u64,
    /// Messages delivered again here because they could not be handed on.
    pub again: u64,
    /// Cached messages that were dropped when the claim ended; they are uncommitted and come again.
    pub dropped: u64,
    /// Results that came too late.
    pub late: u64,
}

/// What follows a [`ProcessQueue::put`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Put {
    /// Messages that were new.
    pub inserted: u32,
    /// Post a token of this generation.
    pub post: Option<Generation>,
    /// The limit that is exceeded; the fetch is parked and [`News::rearm`] will tell when to go on.
    pub full: Option<Full>,
    /// Call [`ProcessQueue::gathered`] then.
    pub gather_until: Option<Nanos>,
    /// The commit point has moved and nobody has been told yet.
    pub moved: bool,
}

/// What a worker does next.
#[derive(Debug)]
pub struct Next<B> {
    /// The next chunk; `None`: the token is not this worker's any more.
    pub chunk: Option<Chunk<B>>,
    /// Post a token of this generation before running the chunk's handler.
    pub post: Option<Generation>,
    /// Ring the bell: there is something in [`ProcessQueue::news`].
    pub ring: bool,
    /// The token had been taken back while the handler ran.
    pub was_taken_back: bool,
}

/// What the loop has to see to after the bell.
#[derive(Debug)]
pub struct News<B> {
    /// The parked fetch may go on.
    pub rearm: bool,
    /// The commit point has moved since [`ProcessQueue::commit_point`] was last taken.
    pub moved: bool,
    /// Messages to hand on. Each is answered by [`ProcessQueue::handed_on`] or [`ProcessQueue::again`].
    pub failed: Vec<Failed<B>>,
    /// Call [`ProcessQueue::gathered`] then.
    pub gather_until: Option<Nanos>,
    /// The claim was stopped and nothing of it runs any more.
    pub ended: bool,
}

/// See the head of this file.
pub struct ProcessQueue<B> {
    epoch: Epoch,
    settings: Settings,
    /// `messages` and `bytes` of `held`, for a look without the lock.
    messages: AtomicU64,
    bytes: AtomicU64,
    inner: Ranked<Inner<B>>,
}

struct Inner<B> {
    phase: Phase,
    ring: Ring,
    /// What nobody has taken, in the order of offsets.
    waiting: VecDeque<Waiting<B>>,
    /// Single messages that are delivered once more; taken before all others.
    again: VecDeque<Part<B>>,
    /// Messages in `waiting` and `again`.
    takeable: u64,
    runs: Runs<B>,
    /// Times that an offset has been delivered again here; what has not been is not listed.
    attempts: BTreeMap<i64, u32>,
    failed: Vec<Failed<B>>,
    /// Messages in state `SendingBack`.
    sending_back: u64,
    /// Not finished: waiting, running, being sent back.
    messages: u64,
    bytes: u64,
    token: Token,
    generation: u32,
    /// The loop wants to fetch as soon as there is room.
    parked: bool,
    /// The bell was rung and the loop has not asked yet.
    rung: bool,
    /// Somebody has been told that the commit point is not `taken` any more.
    announced: bool,
    /// The loop knows when what waits is to be delivered although it is less than a batch.
    gathering: bool,
    /// May be committed: below it everything is settled. Never goes back.
    commit: i64,
    /// The commit point that the loop took last.
    taken: i64,
    tally: Tally,
}

struct Waiting<B> {
    part: Part<B>,
    since: Nanos,
}

impl<B: Batch> ProcessQueue<B> {
    /// An empty queue whose group has consumed everything below `start`.
    pub fn new(epoch: Epoch, start: QueueOffset, settings: Settings) -> Self {
        let inner = Inner {
            phase: Phase::Open,
            ring: Ring::default(),
            waiting: VecDeque::new(),
            again: VecDeque::new(),
            takeable: 0,
            runs: Runs::default(),
            attempts: BTreeMap::new(),
            failed: Vec::new(),
            sending_back: 0,
            messages: 0,
            bytes: 0,
            token: Token::Idle,
            generation: 0,
            parked: false,
            rung: false,
            announced: false,
            gathering: false,
            commit: start.0,
            taken: start.0,
            tally: Tally::default(),
        };
        let inner = Ranked::new(Rank::ProcessQueue, inner);
        Self { epoch, settings, messages: AtomicU64::new(0), bytes: AtomicU64::new(0), inner }
    }

    /// The claim this queue belongs to.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How it is consumed.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Messages held, without the lock: a moment old.
    pub fn held_messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Bytes held, without the lock: a moment old.
    pub fn held_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What is held, exactly.
    pub fn held(&self) -> Held {
        self.inner.lock().held()
    }

    /// What the claim has come to so far.
    pub fn tally(&self) -> Tally {
        self.inner.lock().tally
    }

    /// Takes in what a fetch brought. `next_begin` is where the next one starts: what lies below it and was not brought
    /// does not exist for this group.
    ///
    /// Offsets between the last message and `next_begin` count as progress only if the answer is empty and nothing is
    /// held: the client then has nothing that could still be lost.
    ///
    /// Thread: the loop, one fetch at a time. A queue that was stopped takes nothing in.
    pub fn put(&self, batch: &Arc<B>, next_begin: QueueOffset, now: Nanos) -> Put {
        let shape = Shape::of(&**batch);
        let mut inner = self.inner.lock();
        if inner.phase > Phase::Open {
            return Put::default();
        }
        let inserted = inner.insert(batch, shape, now);
        if shape.count == 0 && inner.messages == 0 {
            inner.commit = inner.commit.max(next_begin.0);
        }
        let full = self.settings.limits.exceeded(inner.held());
        inner.parked = full.is_some();
        let post = inner.post_if_ready(&self.settings, now);
        let gather_until = if post.is_none() { inner.gather(&self.settings, now) } else { None };
        let moved = inner.announce();
        self.publish(&inner);
        Put { inserted, post, full, gather_until, moved }
    }

    /// Whether the loop may fetch. If not, the fetch is parked as after [`put`](Self::put).
    pub fn room(&self) -> Option<Full> {
        let mut inner = self.inner.lock();
        let full = self.settings.limits.exceeded(inner.held());
        inner.parked = full.is_some();
        full
    }

    /// The chunk that a token stands for. With `eager` a token for the rest is posted at once.
    ///
    /// Thread: the worker that received the token.
    pub fn take(&self, token: Generation, eager: bool, now: Nanos) -> Next<B> {
        let mut inner = self.inner.lock();
        if inner.token != Token::Ready || inner.generation != token.0 {
            return Next { chunk: None, post: None, ring: false, was_taken_back: false };
        }
        let (chunk, post) = inner.next_chunk(self.epoch, &self.settings, eager, now);
        Next { chunk, post, ring: false, was_taken_back: false }
    }

    /// Applies what was said about a chunk and, if the worker still has the token and wants to `go_on`, takes the next
    /// one. Results of a claim that was closed, and of messages that were given up for stuck, are ignored.
    ///
    /// Thread: the worker that took the chunk. Not done means handed to the loop, never waited for.
    pub fn finish(&self, chunk: Chunk<B>, verdicts: Verdicts<'_>, go_on: bool, eager: bool, now: Nanos) -> Next<B> {
        let all_done = verdicts.all_done(chunk.len());
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut place = 0;
        for part in chunk.parts() {
            if inner.phase == Phase::Closed || !inner.runs.holds(part.run) {
                inner.late_part(part, place, verdicts);
            } else if all_done {
                inner.finish_part(part);
            } else {
                inner.judge_part(self.epoch, part, place, verdicts);
            }
            place = place.saturating_add(part.len());
        }
        inner.advance();
        let mut next = Next { chunk: None, post: None, ring: false, was_taken_back: false };
        let owns = chunk.token.is_some_and(|token| token.0 == inner.generation);
        next.was_taken_back = chunk.token.is_some() && !owns;
        if owns && go_on {
            (next.chunk, next.post) = inner.next_chunk(self.epoch, &self.settings, eager, now);
        } else {
            if owns {
                inner.token = Token::Idle;
            }
            next.post = inner.post_if_ready(&self.settings, now);
        }
        next.ring = inner.rings(&self.settings, now);
        self.publish(inner);
        drop(guard);
        // The chunk's own references end here, after the lock: a batch is never dropped under it.
        drop(chunk);
        next
    }

    /// Finishes one message that left its chunk ([`Mark::Detached`]). The answer has no chunk.
    ///
    /// Thread: any.
    pub fn finish_detached(
        &self,
        part: &Part<B>,
        at: u32,
        outcome: Outcome,
        reason: Option<String>,
        now: Nanos,
    ) -> Next<B> {
        let mut inner = self.inner.lock();
        let mut next = Next { chunk: None, post: None, ring: false, was_taken_back: false };
        if inner.phase == Phase::Closed || !inner.runs.holds(part.run) {
            inner.tally.late = inner.tally.late.saturating_add(1);
            return next;
        }
        if inner.judge(self.epoch, part, at, outcome, reason, false) {
            inner.runs.leave(part.run, 1);
        }
        inner.advance();
        next.post = inner.post_if_ready(&self.settings, now);
        next.ring = inner.rings(&self.settings, now);
        self.publish(&inner);
        next
    }

    /// What there is to see to. The loop calls it after the bell, and now and then in case the bell could not be rung.
    pub fn news(&self, now: Nanos) -> News<B> {
        let mut inner = self.inner.lock();
        inner.rung = false;
        let rearm = inner.has_room(&self.settings);
        inner.parked &= !rearm;
        News {
            rearm,
            moved: inner.announce(),
            failed: std::mem::take(&mut inner.failed),
            gather_until: inner.gather(&self.settings, now),
            ended: inner.ended(),
        }
    }

    /// The bell could not be rung; the next event will try again.
    pub fn unrung(&self) {
        self.inner.lock().rung = false;
    }

    /// The offset that may be committed now. Further movement will be announced anew.
    pub fn commit_point(&self) -> QueueOffset {
        let mut inner = self.inner.lock();
        inner.announced = false;
        inner.taken = inner.commit;
        QueueOffset(inner.commit)
    }

    /// The same offset, for a look: announces nothing anew.
    pub fn progress(&self) -> QueueOffset {
        QueueOffset(self.inner.lock().commit)
    }

    /// A failed message is in the retry or dead-letter topic now. False if that comes too late to count.
    pub fn handed_on(&self, failed: &Failed<B>) -> bool {
        let mut inner = self.inner.lock();
        let bytes = failed.batch.bytes(failed.at as usize);
        if !inner.is_sending_back(self.epoch, failed) || !inner.ring.settle(failed.offset.0, Slot::SendingBack) {
            return false;
        }
        inner.attempts.remove(&failed.offset.0);
        inner.sending_back = inner.sending_back.saturating_sub(1);
        inner.uncount(1, bytes);
        let sum = match failed.outcome {
            Outcome::DeadLetter => &mut inner.tally.dead_lettered,
            Outcome::Done | Outcome::Retry | Outcome::RetryAfter(_) => &mut inner.tally.sent_back,
        };
        *sum = sum.saturating_add(1);
        inner.advance();
        self.publish(&inner);
        true
    }

    /// A failed message could not be handed on and is delivered here once more, with its attempt raised by one. The
    /// loop calls it after a pause of 5 s. Post the token if there is one.
    pub fn again(&self, failed: Failed<B>, now: Nanos) -> Option<Generation> {
        let mut inner = self.inner.lock();
        if !inner.is_sending_back(self.epoch, &failed)
            || inner.phase > Phase::Draining
            || !inner.ring.turn(failed.offset.0, Slot::SendingBack, Slot::Waiting)
        {
            drop(inner);
            return None;
        }
        let attempt = failed.attempt.saturating_add(1);
        inner.attempts.insert(failed.offset.0, attempt);
        inner.sending_back = inner.sending_back.saturating_sub(1);
        inner.tally.again = inner.tally.again.saturating_add(1);
        inner.takeable = inner.takeable.saturating_add(1);
        let (from, to, first) = (failed.at, failed.at.saturating_add(1), failed.offset.0);
        inner.again.push_back(Part {
            batch: failed.batch,
            from,
            to,
            attempt,
            first,
            dense: true,
            run: Part::<B>::NO_RUN,
        });
        inner.post_if_ready(&self.settings, now)
    }

    /// Takes the token back from a handler that has had it for longer than [`TAKE_BACK`] while other messages wait.
    /// Post the new one.
    pub fn overdue(&self, now: Nanos) -> Option<Generation> {
        let mut inner = self.inner.lock();
        let Token::Taken { since } = inner.token else { return None };
        if now.since(since) < TAKE_BACK || !inner.ready(&self.settings, now) {
            return None;
        }
        Some(inner.post())
    }

    /// Messages have waited long enough for company. Post the token if there is one.
    pub fn gathered(&self, now: Nanos) -> Option<Generation> {
        let mut inner = self.inner.lock();
        inner.gathering = false;
        inner.post_if_ready(&self.settings, now)
    }

    /// Gives up for stuck what has been in a handler's hand for longer than the consume time-out: it is in
    /// [`news`](Self::news) then, with delay level 3, and its handler's result will be ignored. Returns how many, and
    /// when to look again if anything runs.
    pub fn expire(&self, now: Nanos) -> (u32, Option<Nanos>) {
        let mut gone = Vec::new();
        let mut inner = self.inner.lock();
        let mut expired = 0;
        while let Some(part) = inner.runs.expire(now, self.settings.timeout) {
            for at in part.from..part.to {
                let level = DelayLevel::new(STUCK_LEVEL).map_or(Outcome::Retry, Outcome::RetryAfter);
                expired += u32::from(inner.judge(self.epoch, &part, at, level, None, true));
            }
            gone.push(part);
        }
        let again = inner.runs.oldest().map(|since| since + self.settings.timeout);
        drop(inner);
        drop(gone);
        (expired, again)
    }

    /// Ends the claim: nothing is put any more. With `drain` what is cached is still delivered, without it is dropped;
    /// what runs is finished in any case. Returns how many messages were dropped; [`News::ended`] tells when nothing
    /// runs any more. What was dropped, and what is not finished in time, holds the commit point: it comes again.
    pub fn stop(&self, drain: bool) -> u64 {
        let mut inner = self.inner.lock();
        inner.phase = inner.phase.max(if drain { Phase::Draining } else { Phase::Stopping });
        inner.parked = false;
        let dropped = if inner.phase == Phase::Draining { None } else { Some(inner.drop_cached()) };
        let count = inner.tally.dropped;
        drop(inner);
        drop(dropped);
        count
    }

    /// True once a stopped claim has nothing that runs or is on its way to the retry topic.
    pub fn ended(&self) -> bool {
        self.inner.lock().ended()
    }

    /// Ends everything: results and answers that come from now on are ignored, and the commit point stands. Returns the
    /// final commit point and how many messages were still unfinished, the dropped ones not counted.
    pub fn close(&self) -> (QueueOffset, u64) {
        let mut inner = self.inner.lock();
        inner.phase = Phase::Closed;
        let unfinished = inner.messages.saturating_sub(inner.takeable).saturating_sub(inner.tally.dropped);
        let cached = inner.drop_cached();
        let failed = std::mem::take(&mut inner.failed);
        let runs = std::mem::take(&mut inner.runs);
        let commit = inner.commit;
        (inner.messages, inner.bytes, inner.sending_back) = (0, 0, 0);
        self.publish(&inner);
        drop(inner);
        drop((cached, failed, runs));
        (QueueOffset(commit), unfinished)
    }

    fn publish(&self, inner: &Inner<B>) {
        self.messages.store(inner.messages, Ordering::Relaxed);
        self.bytes.store(inner.bytes, Ordering::Relaxed);
    }
}

/// What a batch looks like, read before the lock is taken.
#[derive(Clone, Copy)]
struct Shape {
    count: u32,
    first: i64,
    /// The offsets follow one by one.
    dense: bool,
    bytes: u64,
}

impl Shape {
    fn of(batch: &impl Batch) -> Self {
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

impl<B: Batch> Inner<B> {
    fn held(&self) -> Held {
        Held { messages: self.messages, bytes: self.bytes, span: if self.messages == 0 { 0 } else { self.ring.span() } }
    }

    fn insert(&mut self, batch: &Arc<B>, shape: Shape, now: Nanos) -> u32 {
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
    fn insert_singly(&mut self, whole: &Part<B>, now: Nanos) -> u32 {
        let (mut inserted, mut from) = (0, None);
        for at in 0..=whole.to {
            if at < whole.to && self.ring.put(whole.offset(at)) {
                from = from.or(Some(at));
                inserted += 1;
                self.messages = self.messages.saturating_add(1);
                self.bytes = self.bytes.saturating_add(whole.batch.bytes(at as usize));
            } else if let Some(start) = from.take() {
                let first = whole.offset(start);
                let dense = (start..at).all(|i| whole.offset(i) == first.saturating_add(i64::from(i - start)));
                self.wait(Part { from: start, to: at, first, dense, ..whole.clone() }, now);
            }
        }
        inserted
    }

    fn wait(&mut self, part: Part<B>, now: Nanos) {
        self.takeable = self.takeable.saturating_add(u64::from(part.len()));
        let behind = self.waiting.iter().rev().take_while(|waiting| waiting.part.first > part.first).count();
        let place = self.waiting.len().saturating_sub(behind);
        self.waiting.insert(place, Waiting { part, since: now });
    }

    /// True if a worker could take something now.
    fn ready(&self, settings: &Settings, now: Nanos) -> bool {
        self.takeable > 0
            && self.phase <= Phase::Draining
            && self.runs.live() < settings.running
            && (settings.wait.is_zero()
                || !self.again.is_empty()
                || self.phase == Phase::Draining
                || self.takeable >= u64::from(settings.batch)
                || self.waiting.front().is_none_or(|front| now.since(front.since) >= settings.wait))
    }

    fn post(&mut self) -> Generation {
        self.token = Token::Ready;
        self.generation = self.generation.wrapping_add(1);
        Generation(self.generation)
    }

    fn post_if_ready(&mut self, settings: &Settings, now: Nanos) -> Option<Generation> {
        (self.token == Token::Idle && self.ready(settings, now)).then(|| self.post())
    }

    /// When what waits for company is to be delivered, if that is so and nobody knows yet.
    fn gather(&mut self, settings: &Settings, now: Nanos) -> Option<Nanos> {
        if !self.must_gather(settings, now) {
            return None;
        }
        self.gathering = true;
        self.waiting.front().map(|front| front.since + settings.wait)
    }

    fn must_gather(&self, settings: &Settings, now: Nanos) -> bool {
        !settings.wait.is_zero()
            && !self.gathering
            && self.takeable > 0
            && self.phase == Phase::Open
            && self.token == Token::Idle
            && self.runs.live() < settings.running
            && !self.ready(settings, now)
    }

    /// Takes the next chunk, and the token with it unless more is ready and the caller is `eager` to share it.
    fn next_chunk(
        &mut self,
        epoch: Epoch,
        settings: &Settings,
        eager: bool,
        now: Nanos,
    ) -> (Option<Chunk<B>>, Option<Generation>) {
        if !self.ready(settings, now) {
            self.token = Token::Idle;
            return (None, None);
        }
        let Some(first) = self.take_part(settings.batch, now) else {
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
        let post = (eager && self.ready(settings, now)).then(|| self.post());
        let token = if post.is_some() { None } else { own };
        (Some(Chunk { epoch, first, more, token }), post)
    }

    fn take_part(&mut self, most: u32, now: Nanos) -> Option<Part<B>> {
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

    fn finish_part(&mut self, part: &Part<B>) {
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
        self.uncount(count, part.bytes());
    }

    /// Results of a closed claim or of a run that was given up: counted, but for what finishes on its own.
    fn late_part(&mut self, part: &Part<B>, place: u32, verdicts: Verdicts<'_>) {
        let mark = |more: u32| verdicts.marks.and_then(|marks| marks.get(place.saturating_add(more)));
        let late = (0..part.len()).filter(|more| mark(*more) != Some(Mark::Detached)).count();
        self.tally.late = self.tally.late.saturating_add(late as u64);
    }

    fn judge_part(&mut self, epoch: Epoch, part: &Part<B>, place: u32, verdicts: Verdicts<'_>) {
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
    fn judge(
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

    fn is_sending_back(&self, epoch: Epoch, failed: &Failed<B>) -> bool {
        self.phase < Phase::Closed
            && failed.epoch == epoch
            && self.attempts.get(&failed.offset.0).copied().unwrap_or(0) == failed.attempt
    }

    fn uncount(&mut self, messages: u32, bytes: u64) {
        self.messages = self.messages.saturating_sub(u64::from(messages));
        self.bytes = if self.messages == 0 { 0 } else { self.bytes.saturating_sub(bytes) };
    }

    fn advance(&mut self) {
        if let Some(watermark) = self.ring.watermark() {
            self.commit = self.commit.max(watermark);
        }
    }

    /// True, once, if the commit point has moved and nobody has been told.
    fn announce(&mut self) -> bool {
        let moved = self.commit != self.taken && !self.announced;
        self.announced |= moved;
        moved
    }

    fn has_room(&self, settings: &Settings) -> bool {
        self.parked && settings.limits.exceeded(self.held()).is_none()
    }

    fn ended(&self) -> bool {
        self.phase > Phase::Open
            && self.runs.live() == 0
            && self.sending_back == 0
            && (self.phase > Phase::Draining || self.takeable == 0)
    }

    /// True, until the loop has asked, if there is news.
    fn rings(&mut self, settings: &Settings, now: Nanos) -> bool {
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
    fn drop_cached(&mut self) -> (VecDeque<Waiting<B>>, VecDeque<Part<B>>) {
        self.tally.dropped = self.tally.dropped.saturating_add(self.takeable);
        self.takeable = 0;
        (std::mem::take(&mut self.waiting), std::mem::take(&mut self.again))
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
