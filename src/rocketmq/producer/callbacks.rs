//! Callbacks of asynchronous sends: run one after the other on the client's serve lane, each exactly once.
//!
//! The loop puts an outcome down and goes on; at most one job per producer waits in the lane, whatever the number of
//! outcomes. What may wait here is bounded by the producer's permits, which are given back after the callback has run.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use log::error;

use super::permits::Permit;
use super::ticket::Outcome;
use crate::work::fence::fenced;
use crate::work::serve::{Lane, Refused};

/// What users leave with a send.
pub(super) type Callback = Box<dyn FnOnce(Outcome) + Send>;

/// Outcomes whose callback has not run yet.
#[derive(Default)]
pub(super) struct Callbacks {
    /// A leaf lock, never held over a callback.
    waiting: Mutex<VecDeque<(Callback, Outcome, Permit)>>,
    scheduled: AtomicBool,
}

impl Callbacks {
    /// Has `done` called with `outcome`, soon and on the lane; on this thread if the lane has been closed, because then
    /// nobody else will do it.
    pub(super) fn push(self: &Arc<Self>, lane: &Lane, done: Callback, outcome: Outcome, permit: Permit) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back((done, outcome, permit));
        self.schedule(lane);
    }

    /// Sees to it that what waits is run. Called again by every later send, for a lane that was full.
    pub(super) fn schedule(self: &Arc<Self>, lane: &Lane) {
        if self.is_empty() || self.scheduled.swap(true, Ordering::AcqRel) {
            return;
        }
        let own = Arc::clone(self);
        match lane.user(move || own.run()) {
            Ok(()) => {}
            Err(Refused::Full) => self.scheduled.store(false, Ordering::Release),
            Err(Refused::Closed) => self.run(),
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn next(&self) -> Option<(Callback, Outcome, Permit)> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn run(&self) {
        loop {
            while let Some((done, outcome, permit)) = self.next() {
                if fenced(|| done(outcome)).is_err() {
                    error!(target: "windlass::send", "callback of a send panicked");
                }
                drop(permit);
            }
            self.scheduled.store(false, Ordering::Release);
            // One that came between the last look and the flag found it up and left the work to us.
            if self.is_empty() || self.scheduled.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::SendError;
    use super::super::permits::Permits;
    use super::*;
    use crate::error::Error;
    use crate::model::Message;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    fn failed() -> Outcome {
        Err(SendError::new(Message::new("t", "b"), Error::Closed))
    }

    #[test]
    fn b192_each_callback_runs_once_even_if_another_panics() {
        let (lane, callbacks) = (Lane::start().unwrap(), Arc::new(Callbacks::default()));
        let permits = Permits::new(100, 1 << 20);
        let (told, tell) = mpsc::channel();
        for number in 0..50 {
            let told = told.clone();
            let done = move |outcome: Outcome| {
                told.send((number, outcome.is_err())).unwrap();
                assert!(number % 7 != 3, "as a user's bug");
            };
            callbacks.push(&lane, Box::new(done), failed(), permits.take(1, Duration::ZERO).unwrap());
        }
        let seen: Vec<_> = (0..50).map(|_| tell.recv_timeout(Duration::from_secs(20)).unwrap()).collect();
        assert_eq!(seen, (0..50).map(|number| (number, true)).collect::<Vec<_>>());
        // The last permit comes back after its callback: wait for all of them.
        let all: Vec<_> = (0..100).map(|_| permits.take(1, Duration::from_secs(20))).collect();
        assert!(all.iter().all(Option::is_some));
        assert!(lane.close(Instant::now() + Duration::from_secs(20)));
    }

    #[test]
    fn after_the_lane_has_closed_a_callback_runs_where_it_is() {
        let (lane, callbacks) = (Lane::start().unwrap(), Arc::new(Callbacks::default()));
        assert!(lane.close(Instant::now() + Duration::from_secs(20)));
        let permit = Permits::new(1, 1 << 20).take(1, Duration::ZERO).unwrap();
        let (told, tell) = mpsc::channel();
        callbacks.push(&lane, Box::new(move |_| told.send(()).unwrap()), failed(), permit);
        assert!(tell.try_recv().is_ok());
    }
}
