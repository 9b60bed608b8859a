//! A claim: one queue that this client consumes, its process queue, the consumer it belongs to and the way back to the
//! loop. Here user code is called.
//!
//! The loop puts in what it fetched and asks for news; workers of the pool run the claim when they receive its token.
//! No lock is held while the handler runs, and a panic in it is a failed batch, not a stuck queue.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::chunk::{Batch, Chunk, Failed, Generation, Part, Verdicts};
use super::listener::{Marks, Outcome};
use super::pool::{Pool, Token, Work, Worker};
use super::queue::{Next, ProcessQueue, Put, Share};
use crate::model::QueueOffset;
use crate::work::clock::{Clock, Nanos};
use crate::work::fence::fenced;

/// A handler is slow if a call takes longer than the wake-up of another worker is worth.
const SLOW_CALL: Duration = Duration::from_micros(30);
/// A worker takes messages for no more calls than this at once, and for none that would end later than a slow call.
const MOST_CALLS: u32 = 64;
/// What one measurement may add to the average counts for no more than this: a worker that lost its core in mid-chunk says
/// nothing about the handler.
const MOST_MEASURED: Duration = Duration::from_micros(120);
/// A claim is brief if all it holds takes no longer: a worker that was woken to help would come too late.
const BRIEF: Duration = Duration::from_micros(50);
/// A worker goes on with one claim for this long while tokens of others wait.
const SLICE: Duration = Duration::from_millis(1);

/// The way back to the loop: one small message "look at this claim" for its inbox. Nothing is carried in it.
pub trait Bell: Send + Sync {
    /// Rings. False if there was no room for it: it will be rung again at the next event.
    fn ring(&self) -> bool;
}

/// User code as this room sees it.
pub trait Listen<B: Batch>: Send + Sync {
    /// State that belongs to one worker's thread and never leaves it, made there before the first batch and again after
    /// a panic.
    fn local(&self, worker: usize) -> Box<dyn Any>;

    /// Handles what is in hand. Marks win over the outcome.
    fn handle(&self, hand: Hand<'_, B>, local: &mut dyn Any) -> Outcome;

    /// The handler panicked over what is in hand; everything unmarked will be delivered again.
    fn panicked(&self, hand: Hand<'_, B>, message: &str);
}

/// What a handler is given.
pub struct Hand<'a, B: Batch> {
    /// Where it comes from.
    pub claim: &'a Arc<Claim<B>>,
    /// The messages, and maybe those of the worker's next calls.
    pub chunk: &'a Chunk<B>,
    /// First of this call's places in the chunk.
    pub from: u32,
    /// One past the last.
    pub to: u32,
    /// What is said about each place of the chunk.
    pub marks: &'a Marks,
    /// Number of the worker, from 0.
    pub worker: usize,
}

impl<B: Batch> Clone for Hand<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Batch> Copy for Hand<'_, B> {}

impl<B: Batch> Hand<'_, B> {
    /// The places of this call's messages in the chunk.
    pub fn places(&self) -> Range<u32> {
        self.from..self.to
    }

    /// Takes the message at `place` out of the batch, to be finished on any thread at any time. `None` if there is no
    /// such message or it was taken out before.
    pub fn detach(&self, place: u32) -> Option<Detached<B>> {
        let (part, at) = self.chunk.at(place).filter(|_| self.places().contains(&place))?;
        let at = u32::try_from(at).ok()?;
        self.marks.detach(place).then(|| Detached {
            claim: self.claim.clone(),
            part: part.clone(),
            at,
            finished: false,
        })
    }
}

/// A message that left its batch. Dropping it without a word delivers it again later.
pub struct Detached<B: Batch> {
    claim: Arc<Claim<B>>,
    part: Part<B>,
    at: u32,
    finished: bool,
}

impl<B: Batch> Detached<B> {
    /// The batch it is in, and its place there.
    pub fn message(&self) -> (&B, usize) {
        (&self.part.batch, self.at as usize)
    }

    /// How often it has been delivered here before without a trip to the broker.
    pub fn attempt(&self) -> u32 {
        self.part.attempt
    }

    /// Says what becomes of it. Ignored if its queue has been given up since, or the message was given up for stuck.
    pub fn finish(mut self, outcome: Outcome, reason: Option<String>) {
        self.settle(outcome, reason);
    }

    fn settle(&mut self, outcome: Outcome, reason: Option<String>) {
        self.finished = true;
        let claim = &self.claim;
        let next = claim.queue.finish_detached(&self.part, self.at, outcome, reason, claim.consumer.clock.now());
        claim.follow(&next);
    }
}

impl<B: Batch> Drop for Detached<B> {
    fn drop(&mut self) {
        if !self.finished {
            self.settle(Outcome::Retry, None);
        }
    }
}

/// What the claims of one consumer share.
pub struct Consumer<B: Batch> {
    id: u64,
    listener: Box<dyn Listen<B>>,
    pool: Arc<Pool>,
    clock: Clock,
    pace: Pace,
    /// Shared with what workers keep for this consumer.
    closed: Arc<AtomicBool>,
}

impl<B: Batch> Consumer<B> {
    /// A consumer whose claims are run by `pool`.
    pub fn new(listener: Box<dyn Listen<B>>, pool: Arc<Pool>, clock: Clock) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, listener, pool, clock, pace: Pace::default(), closed: Arc::default() })
    }

    /// User code.
    pub fn listener(&self) -> &dyn Listen<B> {
        &*self.listener
    }

    /// Average time of one call of the handler, of which no more than 120 us count; zero before the first.
    pub fn average(&self) -> Duration {
        Duration::from_nanos(self.pace.average_ns.load(Ordering::Relaxed))
    }

    /// No batch will come any more: what workers keep for this consumer is dropped, each on its own thread.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.pool.nudge();
    }
}

/// How long handlers take, over all workers: a worker for itself would have to learn it anew.
#[derive(Debug, Default)]
struct Pace {
    /// Moving average of a call; 0 until the first has ended.
    average_ns: AtomicU64,
    /// Handlers whose token was taken back and that have not returned.
    blocked: AtomicU32,
}

impl Pace {
    /// So many calls, one after the other, took so long. Racing updates may lose one measurement, which is harmless.
    fn measured(&self, calls: u32, took: Duration) {
        let took = took / calls.max(1);
        let took = u64::try_from(took.min(MOST_MEASURED).as_nanos()).unwrap_or(u64::MAX).max(1);
        let average = self.average_ns.load(Ordering::Relaxed);
        let next = if average == 0 { took } else { average - average / 8 + took / 8 };
        self.average_ns.store(next.max(1), Ordering::Relaxed);
    }

    /// Whether so many chunks are expected to be run before another worker is awake.
    fn is_brief(&self, chunks: u64) -> bool {
        let average = self.average_ns.load(Ordering::Relaxed);
        !self.is_slow() && u128::from(average.saturating_mul(chunks)) <= BRIEF.as_nanos()
    }

    /// What the next worker is to do about what lies behind the first call's messages.
    fn share(&self) -> Share {
        if self.is_slow() {
            return Share::Rest;
        }
        let calls = SLOW_CALL.as_nanos() / u128::from(self.average_ns.load(Ordering::Relaxed).max(1));
        Share::Keep { calls: u32::try_from(calls).unwrap_or(u32::MAX).min(MOST_CALLS) }
    }

    /// Whether the next call is expected to be worth another worker. Nothing known counts as slow.
    fn is_slow(&self) -> bool {
        let average = self.average_ns.load(Ordering::Relaxed);
        average == 0 || u128::from(average) > SLOW_CALL.as_nanos() || self.blocked.load(Ordering::Relaxed) > 0
    }
}

/// See the head of this file.
pub struct Claim<B: Batch> {
    queue: ProcessQueue<B>,
    consumer: Arc<Consumer<B>>,
    bell: Box<dyn Bell>,
}

impl<B: Batch> Claim<B> {
    /// A claim of `consumer` on `queue` that reaches its loop by `bell`.
    pub fn new(queue: ProcessQueue<B>, consumer: Arc<Consumer<B>>, bell: Box<dyn Bell>) -> Arc<Self> {
        Arc::new(Self { queue, consumer, bell })
    }

    /// Its process queue: for everything that posts no token.
    pub fn queue(&self) -> &ProcessQueue<B> {
        &self.queue
    }

    /// The consumer it belongs to.
    pub fn consumer(&self) -> &Arc<Consumer<B>> {
        &self.consumer
    }

    /// [`ProcessQueue::put`], and the token is posted.
    pub fn put(self: &Arc<Self>, batch: &Arc<B>, next_begin: QueueOffset, now: Nanos) -> Put {
        let put = self.queue.put(batch, next_begin, now);
        self.post(put.post);
        put
    }

    /// [`ProcessQueue::again`], and the token is posted.
    pub fn again(self: &Arc<Self>, failed: Failed<B>, now: Nanos) {
        self.post(self.queue.again(failed, now));
    }

    /// [`ProcessQueue::gathered`], and the token is posted.
    pub fn gathered(self: &Arc<Self>, now: Nanos) {
        self.post(self.queue.gathered(now));
    }

    /// Looks after tokens that wait behind handlers which take longer than was expected.
    pub fn stir(&self) {
        self.consumer.pool.stir();
    }

    /// [`ProcessQueue::overdue`], and the token is posted; until the blocked handler returns its consumer counts as slow,
    /// so that the next worker does not fall into the same trap. True if a token was taken back.
    pub fn overdue(self: &Arc<Self>, now: Nanos) -> bool {
        let post = self.queue.overdue(now);
        if post.is_some() {
            self.consumer.pace.blocked.fetch_add(1, Ordering::Relaxed);
        }
        self.post(post);
        post.is_some()
    }

    fn post(self: &Arc<Self>, generation: Option<Generation>) {
        if let Some(generation) = generation {
            self.consumer.pool.post(Token { work: self.clone(), generation });
        }
    }

    fn follow(self: &Arc<Self>, next: &Next<B>) {
        self.post(next.post);
        if next.ring && !self.bell.ring() {
            self.queue.unrung();
        }
        if next.was_taken_back {
            self.consumer.pace.blocked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Calls user code for a chunk, once or, for a stretch, as often as it takes. Returns how often and what becomes of
    /// the unmarked; what was recalled meanwhile has left the chunk.
    fn calls(self: &Arc<Self>, chunk: &mut Chunk<B>, worker: &mut Worker) -> (u32, Outcome) {
        let len = chunk.len();
        worker.reset(len);
        if !chunk.is_stretch() {
            return (1, self.call(chunk, 0..len, worker));
        }
        let (batch, mut from, mut calls) = (self.queue.settings().batch.max(1), 0_u32, 0_u32);
        loop {
            let to = from.saturating_add(batch).min(len);
            let rest = self.call(chunk, from..to, worker);
            if rest != Outcome::Done {
                worker.marks().fill(from..to, rest);
            }
            calls = calls.saturating_add(1);
            if to >= len || !self.queue.begin(chunk, calls) {
                return (calls, Outcome::Done);
            }
            from = to;
        }
    }

    /// Calls user code behind a fence.
    fn call(self: &Arc<Self>, chunk: &Chunk<B>, places: Range<u32>, worker: &mut Worker) -> Outcome {
        let listener = &self.consumer.listener;
        let number = worker.number();
        let (marks, locals) = worker.hand();
        let hand = Hand { claim: self, chunk, from: places.start, to: places.end, marks, worker: number };
        let handled = fenced(|| {
            let local = locals.of(self.consumer.id, &self.consumer.closed, || listener.local(number));
            listener.handle(hand, local)
        });
        handled.unwrap_or_else(|text| {
            log::error!(target: "windlass::consume", "handler panicked, its batch will be redelivered: panic={text}");
            let told = fenced(|| {
                locals.forget(self.consumer.id);
                listener.panicked(hand, &text);
            });
            if told.is_err() {
                log::error!(target: "windlass::consume", "observer of a handler's panic panicked too");
            }
            Outcome::Retry
        })
    }
}

impl<B: Batch> Work for Claim<B> {
    /// Runs chunk after chunk, until there is none, the token is another's, or others have waited long enough.
    fn run(self: Arc<Self>, token: Generation, worker: &mut Worker) {
        let (clock, pace) = (&self.consumer.clock, &self.consumer.pace);
        let mut now = clock.now();
        let slice = now + SLICE;
        let mut next = self.queue.take(token, pace.share(), now);
        loop {
            self.follow(&next);
            let Some(mut chunk) = next.chunk else { return };
            let (calls, rest) = self.calls(&mut chunk, worker);
            let ended = clock.now();
            pace.measured(calls, ended.since(now));
            now = ended;
            let go_on = now < slice || self.consumer.pool.is_quiet();
            let verdicts = Verdicts { marks: Some(worker.marks()), rest };
            next = self.queue.finish(chunk, verdicts, go_on, pace.share(), now);
        }
    }

    fn is_brief(&self) -> bool {
        self.consumer.pace.is_brief(self.queue.held_messages().div_ceil(u64::from(self.queue.settings().batch.max(1))))
    }
}

impl<B: Batch> fmt::Debug for Claim<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:?})", self.queue.epoch())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
#[path = "claim_tests.rs"]
mod tests;
