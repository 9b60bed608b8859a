//! The process queue: what one claim has fetched and not finished, and how far progress may be committed.
//!
//! One lock around everything that must change together: states by offset, what waits, what runs, the claim's one token,
//! the parked fetch, the counts. The loop calls [`put`](ProcessQueue::put) and the calls of the core; workers call
//! [`take`](ProcessQueue::take) and [`finish`](ProcessQueue::finish), each one lock. It calls nobody: what has to follow
//! is in the answers (post this token, ring the bell) or waits here until the loop asks for it
//! ([`news`](ProcessQueue::news)), so that nothing is lost when an inbox is full.
//!
//! Lock: process queue (rank 2). No batch is dropped under it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::chunk::{Batch, Chunk, Epoch, Failed, Generation, Part, Verdicts};
use super::flow::{Full, Held, Limits};
use super::listener::Outcome;
use super::ring::Slot;
use super::stock::{Phase, Shape, Stock, Token};
use super::stretch::Stretch;
use crate::model::{DelayLevel, QueueOffset};
use crate::work::clock::Nanos;
use crate::work::ranks::{Rank, Ranked};

/// A token in a blocked handler's hand is taken back after this long, so that the claim's other messages go on.
pub const TAKE_BACK: Duration = Duration::from_millis(5);
/// What has waited for so long may wait for longer: its memory is looked at (design D21).
pub const SETTLED: Duration = Duration::from_secs(1);
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

/// What a worker that takes a chunk does about what lies behind it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Share {
    /// It posts a token for it at once: its own call may take long.
    Rest,
    /// It goes on with it itself, and takes messages for up to so many calls at once; 0 counts as 1. A consumer that
    /// gathers takes them for one.
    Keep {
        /// The most calls.
        calls: u32,
    },
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
    stretch: Stretch,
    stock: Ranked<Stock<B>>,
}

impl<B: Batch> ProcessQueue<B> {
    /// An empty queue whose group has consumed everything below `start`.
    pub fn new(epoch: Epoch, start: QueueOffset, settings: Settings) -> Self {
        let stock = Ranked::new(Rank::ProcessQueue, Stock::new(start.0));
        Self {
            epoch,
            settings,
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            stretch: Stretch::default(),
            stock,
        }
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
        self.stock.lock().held()
    }

    /// What the claim has come to so far.
    pub fn tally(&self) -> Tally {
        self.stock.lock().tally
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
        let mut stock = self.stock.lock();
        if stock.phase > Phase::Open {
            return Put::default();
        }
        let inserted = stock.insert(batch, shape, now);
        if shape.count == 0 && stock.messages == 0 {
            stock.commit = stock.commit.max(next_begin.0);
        }
        let full = self.settings.limits.exceeded(stock.held());
        stock.parked = full.is_some();
        let post = stock.post_if_ready(&self.settings, now);
        let gather_until = if post.is_none() { stock.gather(&self.settings, now) } else { None };
        let moved = stock.announce();
        self.publish(&stock);
        Put { inserted, post, full, gather_until, moved }
    }

    /// Whether the loop may fetch. If not, the fetch is parked as after [`put`](Self::put).
    pub fn room(&self) -> Option<Full> {
        let mut stock = self.stock.lock();
        let full = self.settings.limits.exceeded(stock.held());
        stock.parked = full.is_some();
        full
    }

    /// The chunk that a token stands for.
    ///
    /// Thread: the worker that received the token.
    pub fn take(&self, token: Generation, share: Share, now: Nanos) -> Next<B> {
        let mut stock = self.stock.lock();
        if stock.token != Token::Ready || stock.generation != token.0 {
            return Next { chunk: None, post: None, ring: false, was_taken_back: false };
        }
        let (chunk, post) = stock.next_chunk(self.epoch, &self.settings, &self.stretch, share, now);
        Next { chunk, post, ring: false, was_taken_back: false }
    }

    /// Whether the worker may run the next call of a chunk it has in hand, of which it has run so many. If not, the rest
    /// was recalled: the chunk is cut to what was run.
    ///
    /// Thread: the worker that took the chunk. No lock.
    pub fn begin(&self, chunk: &mut Chunk<B>, run: u32) -> bool {
        let Some(key) = chunk.stretch else { return false };
        let may = self.stretch.begin(key, run);
        if !may {
            chunk.keep(run.saturating_mul(self.settings.batch));
        }
        may
    }

    /// Applies what was said about a chunk and, if the worker still has the token and wants to `go_on`, takes the next
    /// one. Results of a claim that was closed, and of messages that were given up for stuck, are ignored.
    ///
    /// Thread: the worker that took the chunk. Not done means handed to the loop, never waited for.
    pub fn finish(&self, chunk: Chunk<B>, verdicts: Verdicts<'_>, go_on: bool, share: Share, now: Nanos) -> Next<B> {
        let all_done = verdicts.all_done(chunk.len());
        let mut guard = self.stock.lock();
        let stock = &mut *guard;
        if chunk.stretch.is_some() && stock.stretched.is_some_and(|(key, _)| Some(key) == chunk.stretch) {
            stock.stretched = None;
        }
        let mut place = 0;
        for part in chunk.parts() {
            if stock.phase == Phase::Closed || !stock.runs.holds(part.run) {
                stock.late_part(part, place, verdicts);
            } else if all_done {
                stock.finish_part(part);
            } else {
                stock.judge_part(self.epoch, part, place, verdicts);
            }
            place = place.saturating_add(part.len());
        }
        stock.advance();
        let mut next = Next { chunk: None, post: None, ring: false, was_taken_back: false };
        let owns = chunk.token.is_some_and(|token| token.0 == stock.generation);
        next.was_taken_back = chunk.token.is_some() && !owns;
        if owns && go_on {
            (next.chunk, next.post) = stock.next_chunk(self.epoch, &self.settings, &self.stretch, share, now);
        } else {
            if owns {
                stock.token = Token::Idle;
            }
            next.post = stock.post_if_ready(&self.settings, now);
        }
        next.ring = stock.rings(&self.settings, now);
        self.publish(stock);
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
        let mut stock = self.stock.lock();
        let mut next = Next { chunk: None, post: None, ring: false, was_taken_back: false };
        if stock.phase == Phase::Closed || !stock.runs.holds(part.run) {
            stock.tally.late = stock.tally.late.saturating_add(1);
            return next;
        }
        if stock.judge(self.epoch, part, at, outcome, reason, false) {
            stock.runs.leave(part.run, 1);
        }
        stock.advance();
        next.post = stock.post_if_ready(&self.settings, now);
        next.ring = stock.rings(&self.settings, now);
        self.publish(&stock);
        next
    }

    /// What there is to see to. The loop calls it after the bell, and now and then in case the bell could not be rung.
    pub fn news(&self, now: Nanos) -> News<B> {
        let mut stock = self.stock.lock();
        stock.rung = false;
        let rearm = stock.has_room(&self.settings);
        stock.parked &= !rearm;
        News {
            rearm,
            moved: stock.announce(),
            failed: std::mem::take(&mut stock.failed),
            gather_until: stock.gather(&self.settings, now),
            ended: stock.ended(),
        }
    }

    /// The bell could not be rung; the next event will try again.
    pub fn unrung(&self) {
        self.stock.lock().rung = false;
    }

    /// The offset that may be committed now. Further movement will be announced anew.
    pub fn commit_point(&self) -> QueueOffset {
        let mut stock = self.stock.lock();
        stock.announced = false;
        stock.taken = stock.commit;
        QueueOffset(stock.commit)
    }

    /// The same offset, for a look: announces nothing anew.
    pub fn progress(&self) -> QueueOffset {
        QueueOffset(self.stock.lock().commit)
    }

    /// A failed message is in the retry or dead-letter topic now. False if that comes too late to count.
    pub fn handed_on(&self, failed: &Failed<B>) -> bool {
        let mut stock = self.stock.lock();
        let bytes = failed.batch.bytes(failed.at as usize);
        if !stock.is_sending_back(self.epoch, failed) || !stock.ring.settle(failed.offset.0, Slot::SendingBack) {
            return false;
        }
        stock.attempts.remove(&failed.offset.0);
        stock.sending_back = stock.sending_back.saturating_sub(1);
        stock.uncount(1, bytes);
        let sum = match failed.outcome {
            Outcome::DeadLetter => &mut stock.tally.dead_lettered,
            Outcome::Done | Outcome::Retry | Outcome::RetryAfter(_) => &mut stock.tally.sent_back,
        };
        *sum = sum.saturating_add(1);
        stock.advance();
        self.publish(&stock);
        true
    }

    /// A failed message could not be handed on and is delivered here once more, with its attempt raised by one. The
    /// loop calls it after a pause of 5 s. Post the token if there is one.
    pub fn again(&self, failed: Failed<B>, now: Nanos) -> Option<Generation> {
        let mut stock = self.stock.lock();
        if !stock.is_sending_back(self.epoch, &failed)
            || stock.phase > Phase::Draining
            || !stock.ring.turn(failed.offset.0, Slot::SendingBack, Slot::Waiting)
        {
            drop(stock);
            return None;
        }
        let attempt = failed.attempt.saturating_add(1);
        stock.attempts.insert(failed.offset.0, attempt);
        stock.sending_back = stock.sending_back.saturating_sub(1);
        stock.tally.again = stock.tally.again.saturating_add(1);
        stock.takeable = stock.takeable.saturating_add(1);
        let (from, to, first) = (failed.at, failed.at.saturating_add(1), failed.offset.0);
        let (bytes, run) = (failed.batch.bytes(from as usize), Part::<B>::NO_RUN);
        stock.again.push_back(Part { batch: failed.batch, from, to, attempt, first, dense: true, bytes, run });
        stock.post_if_ready(&self.settings, now)
    }

    /// Takes the token back from a handler that has had it for longer than [`TAKE_BACK`] while other messages wait, or
    /// lie in the same worker's hand. Post the new one.
    pub fn overdue(&self, now: Nanos) -> Option<Generation> {
        let mut stock = self.stock.lock();
        let Token::Taken { since } = stock.token else { return None };
        if now.since(since) < TAKE_BACK || stock.runs.live() >= self.settings.running {
            return None;
        }
        stock.recall(&self.settings, &self.stretch, now);
        stock.ready(&self.settings, now).then(|| stock.post())
    }

    /// Messages have waited long enough for company. Post the token if there is one.
    pub fn gathered(&self, now: Nanos) -> Option<Generation> {
        let mut stock = self.stock.lock();
        stock.gathering = false;
        stock.post_if_ready(&self.settings, now)
    }

    /// Replaces batches that keep much more memory alive than what waits of them needs: of those that have waited for
    /// [`SETTLED`] and that nothing else holds, `excerpt` makes smaller ones, of the messages at these places. It gives
    /// `None` if that is not worth it. Returns how many were replaced.
    ///
    /// Thread: the loop.
    pub fn thin(&self, now: Nanos, excerpt: impl Fn(&B, Range<u32>) -> Option<B>) -> usize {
        let old = self.stock.lock().settled(now);
        let new: Vec<_> = old
            .into_iter()
            .filter_map(|part| {
                let batch = excerpt(&part.batch, part.from..part.to)?;
                Some((part, Arc::new(batch)))
            })
            .collect();
        if new.is_empty() {
            return 0;
        }
        let mut stock = self.stock.lock();
        let replaced = new.iter().filter(|(part, batch)| stock.replace(part, batch)).count();
        drop(stock);
        // The last holds on the old batches end here, after the lock.
        drop(new);
        replaced
    }

    /// Gives up for stuck what has been in a handler's hand for longer than the consume time-out: it is in
    /// [`news`](Self::news) then, with delay level 3, and its handler's result will be ignored. Returns how many, and
    /// when to look again if anything runs.
    pub fn expire(&self, now: Nanos) -> (u32, Option<Nanos>) {
        let mut gone = Vec::new();
        let mut stock = self.stock.lock();
        if stock.runs.oldest().is_some_and(|since| now.since(since) > self.settings.timeout) {
            stock.recall(&self.settings, &self.stretch, now);
        }
        let mut expired = 0;
        while let Some(part) = stock.runs.expire(now, self.settings.timeout) {
            for at in part.from..part.to {
                let level = DelayLevel::new(STUCK_LEVEL).map_or(Outcome::Retry, Outcome::RetryAfter);
                expired += u32::from(stock.judge(self.epoch, &part, at, level, None, true));
            }
            gone.push(part);
        }
        let again = stock.runs.oldest().map(|since| since + self.settings.timeout);
        drop(stock);
        drop(gone);
        (expired, again)
    }

    /// Ends the claim: nothing is put any more. With `drain` what is cached is still delivered, without it is dropped;
    /// what runs is finished in any case. Returns how many messages were dropped; [`News::ended`] tells when nothing
    /// runs any more. What was dropped, and what is not finished in time, holds the commit point: it comes again.
    pub fn stop(&self, drain: bool) -> u64 {
        let mut stock = self.stock.lock();
        stock.phase = stock.phase.max(if drain { Phase::Draining } else { Phase::Stopping });
        stock.parked = false;
        let dropped = (stock.phase > Phase::Draining).then(|| {
            stock.recall(&self.settings, &self.stretch, Nanos::default());
            stock.drop_cached()
        });
        let count = stock.tally.dropped;
        drop(stock);
        drop(dropped);
        count
    }

    /// True once a stopped claim has nothing that runs or is on its way to the retry topic.
    pub fn ended(&self) -> bool {
        self.stock.lock().ended()
    }

    /// Ends everything: results and answers that come from now on are ignored, and the commit point stands. Returns the
    /// final commit point and how many messages were still unfinished, the dropped ones not counted.
    pub fn close(&self) -> (QueueOffset, u64) {
        let mut stock = self.stock.lock();
        stock.phase = Phase::Closed;
        stock.recall(&self.settings, &self.stretch, Nanos::default());
        let unfinished = stock.messages.saturating_sub(stock.takeable).saturating_sub(stock.tally.dropped);
        let cached = stock.drop_cached();
        let failed = std::mem::take(&mut stock.failed);
        let runs = std::mem::take(&mut stock.runs);
        let commit = stock.commit;
        (stock.messages, stock.bytes, stock.sending_back) = (0, 0, 0);
        self.publish(&stock);
        drop(stock);
        drop((cached, failed, runs));
        (QueueOffset(commit), unfinished)
    }

    fn publish(&self, stock: &Stock<B>) {
        self.messages.store(stock.messages, Ordering::Relaxed);
        self.bytes.store(stock.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
#[path = "queue_tests.rs"]
mod tests;
