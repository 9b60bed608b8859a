//! The two threads of a store, thin shells around its steps: `wl-flush` syncs the log, `wl-segment` makes, seals and
//! retires segments. Neither is needed where somebody else runs the steps.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Store;
use super::flush::LastSync;
use crate::work::sync::locked;
use crate::work::threads::{Thread, spawn};

/// How long the threads of a store that nobody came to use may take to end. They have nothing to do.
const UNUSED: Duration = Duration::from_secs(5);

/// A flag that a thread sleeps on.
#[derive(Default)]
pub(super) struct Signal {
    raised: Mutex<Raised>,
    changed: Condvar,
}

#[derive(Default)]
struct Raised {
    work: bool,
    stop: bool,
}

impl Signal {
    /// There is something to do.
    pub fn raise(&self) {
        let mut raised = locked(&self.raised);
        if !raised.work {
            raised.work = true;
            self.changed.notify_one();
        }
    }

    pub fn raise_if(&self, work: bool) {
        if work {
            self.raise();
        }
    }

    fn stop(&self) {
        locked(&self.raised).stop = true;
        self.changed.notify_all();
    }

    /// Sleeps until there is something to do, at most `most`. False: stop.
    fn wait(&self, most: Duration) -> bool {
        let until = Instant::now() + most;
        let mut raised = locked(&self.raised);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if raised.stop || raised.work || left.is_zero() {
                raised.work = false;
                return !raised.stop;
            }
            raised = self.changed.wait_timeout(raised, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The running threads of a store.
pub struct Threads {
    store: Store,
    threads: [Thread; 2],
}

impl Store {
    /// Starts `wl-flush` and `wl-segment`. `wall_ms` is the wall clock in Unix milliseconds.
    ///
    /// # Errors
    /// The system's, if it refuses another thread.
    pub fn start_threads(&self, wall_ms: Arc<dyn Fn() -> i64 + Send + Sync>) -> io::Result<Threads> {
        let store = self.clone();
        let flush = spawn("wl-flush", move || {
            let (shared, options) = (&*store.shared, &store.shared.options);
            let mut last = LastSync::default();
            while shared.flusher.wait_for_work(options.flush, options.flush_every, &last) {
                let began = Instant::now();
                match shared.flush_step() {
                    Ok(released) => last = LastSync { took: began.elapsed(), released },
                    // Reported by the step; nothing will be flushed any more.
                    Err(_) => break,
                }
            }
        })?;
        let store = self.clone();
        let segment = spawn("wl-segment", move || {
            let mut again = store.segment_step(wall_ms());
            while store.shared.segment_signal.wait(again) {
                again = store.segment_step(wall_ms());
            }
        });
        match segment {
            Ok(segment) => Ok(Threads { store: self.clone(), threads: [flush, segment] }),
            Err(error) => {
                self.shared.flusher.stop();
                // It holds the store, and with that the directory.
                flush.join_within(UNUSED);
                Err(error)
            }
        }
    }
}

impl Threads {
    /// Stops both threads and closes the store in order: everything is made durable, and the next start need not scan.
    /// False if that could not be done until `deadline`; nothing acknowledged is lost by it.
    pub fn stop(&self, deadline: Instant) -> bool {
        self.store.shared.flusher.stop();
        self.store.shared.segment_signal.stop();
        let mut ended = true;
        for thread in &self.threads {
            ended &= thread.join_by(deadline);
        }
        ended && self.store.close()
    }
}
