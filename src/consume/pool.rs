//! The pool: a fixed set of named threads, shared by all consumers of a client, that run what ready tokens stand for.
//!
//! It knows neither queues nor handlers: a token carries its work. A panic that reaches it is an error of this library;
//! it is reported and the thread goes on. What a consumer keeps on a worker's thread (state of a handler that need not
//! be `Send`) lives here and is dropped on that thread.

use std::any::Any;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::chunk::Generation;
use super::listener::Marks;
use super::ready::{Ready, Sleeper, Wake};
use crate::work::clock::after;
use crate::work::fence::fenced;
use crate::work::threads::{self, Thread};

/// Workers of a client unless it is told otherwise (Java's `consumeThreadMin`).
pub const WORKERS: usize = 20;
/// How long the workers of a pool that did not come to be may take to end. They have nothing to do.
const UNUSED: Duration = Duration::from_secs(5);

/// What a token stands for.
pub trait Work: Send + Sync {
    /// Runs it. A token of an old generation does nothing.
    fn run(self: Arc<Self>, token: Generation, worker: &mut Worker);

    /// True if running it is expected to take less time than waking another worker: what waits behind it can wait for
    /// this one.
    fn is_brief(&self) -> bool {
        false
    }
}

/// The right to take work from one claim.
pub struct Token {
    /// The claim.
    pub work: Arc<dyn Work>,
    /// Which of its postings this is.
    pub generation: Generation,
}

impl Token {
    /// Runs it on the calling thread: what a worker does, and what a simulation does in its stead.
    pub fn run(self, worker: &mut Worker) {
        let number = worker.number;
        if fenced(|| self.work.run(self.generation, worker)).is_err() {
            log::error!(target: "windlass::consume", "worker caught a panic outside of a handler: worker={number}");
        }
    }
}

/// One thread of a pool, or whoever stands in for one.
#[derive(Default)]
pub struct Worker {
    number: usize,
    marks: Marks,
    locals: Locals,
}

impl Worker {
    /// A worker that is no thread of a pool: for an inline consumer or a simulation.
    pub fn new(number: usize) -> Self {
        Self { number, ..Self::default() }
    }

    /// Its number, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// What was said about the batch in hand.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Fresh marks for so many messages.
    pub(super) fn reset(&mut self, messages: u32) {
        self.marks.reset(messages as usize);
    }

    /// The marks, and what consumers keep here.
    pub(super) fn hand(&mut self) -> (&Marks, &mut Locals) {
        (&self.marks, &mut self.locals)
    }
}

/// What consumers keep on one worker's thread.
#[derive(Default)]
pub struct Locals(Vec<Local>);

struct Local {
    consumer: u64,
    closed: Arc<AtomicBool>,
    state: Box<dyn Any>,
}

impl Locals {
    /// What `consumer` keeps here, made by `make` if there is nothing.
    pub fn of(&mut self, consumer: u64, closed: &Arc<AtomicBool>, make: impl FnOnce() -> Box<dyn Any>) -> &mut dyn Any {
        let at = match self.0.iter().position(|local| local.consumer == consumer) {
            Some(at) => at,
            None => {
                self.0.push(Local { consumer, closed: closed.clone(), state: make() });
                self.0.len() - 1
            }
        };
        &mut *self.0[at].state
    }

    /// Drops what `consumer` keeps here.
    pub fn forget(&mut self, consumer: u64) {
        self.0.retain(|local| local.consumer != consumer);
    }

    /// Drops what consumers keep that have been closed.
    fn sweep(&mut self) {
        self.0.retain(|local| !local.closed.load(Ordering::SeqCst));
    }
}

/// See the head of this file.
pub struct Pool {
    ready: Ready<Token>,
    threads: Mutex<Vec<Thread>>,
}

impl Pool {
    /// A pool without threads: an inline consumer or a simulation takes its tokens.
    pub fn unmanned() -> Arc<Self> {
        Arc::new(Self { ready: Ready::sparing(|token: &Token| token.work.is_brief()), threads: Mutex::default() })
    }

    /// Starts `workers` threads named `wl-work-0` and on.
    ///
    /// # Errors
    /// The system's, if it refuses a thread; none is left running then.
    pub fn start(workers: usize) -> io::Result<Arc<Self>> {
        let pool = Self::unmanned();
        // The workers that did start have nothing in hand.
        pool.man(workers).inspect_err(|_| _ = pool.stop(after(UNUSED)))?;
        Ok(pool)
    }

    /// Starts `workers` threads for a pool that has none; nothing happens if it has.
    ///
    /// # Errors
    /// The system's, if it refuses a thread. Stop the pool then.
    pub fn man(self: &Arc<Self>, workers: usize) -> io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if !threads.is_empty() {
            return Ok(());
        }
        for number in 0..workers {
            let pool = self.clone();
            threads.push(threads::spawn(&format!("wl-work-{number}"), move || pool.work(number))?);
        }
        Ok(())
    }

    /// Hands a token on. Never blocks.
    pub fn post(&self, token: Token) {
        self.ready.post(token);
    }

    /// Wakes a worker if a token waits that nobody is about to take: work ahead of it lasts longer than was expected.
    pub fn stir(&self) {
        self.ready.stir();
    }

    /// A token, for who runs them without a thread of the pool.
    pub fn try_next(&self) -> Option<Token> {
        self.ready.try_next()
    }

    /// True if no token waits: a moment old.
    pub fn is_quiet(&self) -> bool {
        self.ready.is_empty()
    }

    /// How many times a worker has been woken so far.
    pub fn wakes(&self) -> u64 {
        self.ready.wakes()
    }

    /// True on one of its threads: whoever is called from inside a handler must not wait for the handler.
    pub fn is_worker(&self) -> bool {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).iter().any(Thread::is_current)
    }

    /// Lets every worker drop what closed consumers keep on it.
    pub fn nudge(&self) {
        self.ready.nudge();
    }

    /// Ends the threads once they have finished what they run, and waits for that until `deadline`. Returns how many
    /// have not ended; they are left alone. A worker that calls this does not wait for itself.
    pub fn stop(&self, deadline: Instant) -> usize {
        self.ready.stop();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let left: Vec<_> = threads.into_iter().filter(|thread| !thread.join_by(deadline)).collect();
        for thread in left.iter().filter(|thread| !thread.is_current()) {
            log::warn!(target: "windlass::consume", "worker left alone, its handler does not return: thread={}", thread.name());
        }
        left.len()
    }

    fn work(&self, number: usize) {
        let (sleeper, mut nudged) = (Sleeper::current(), 0);
        let mut worker = Worker::new(number);
        loop {
            match self.ready.next(&sleeper, &mut nudged) {
                Wake::Token(token) => token.run(&mut worker),
                Wake::Nudged => worker.locals.sweep(),
                Wake::Stopped => return,
            }
        }
    }
}
