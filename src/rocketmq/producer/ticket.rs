//! The outcome of an asynchronous send, waited for on any thread.
//!
//! `send_async.rs` fulfils it exactly once, from the client's loop; whoever holds the ticket waits, looks, or leaves a
//! callback with the send instead.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;

use super::outcome::{Receipt, SendError};

/// What comes of an asynchronous send.
pub(super) type Outcome = Result<Receipt, Box<SendError>>;

/// An asynchronous send that is on its way. Dropping it changes nothing about the send.
pub struct Ticket {
    cell: Arc<Cell>,
    begun: Instant,
}

/// Where the outcome is put. Lock: a leaf.
pub(super) struct Cell {
    state: Mutex<State>,
    done: Condvar,
}

enum State {
    Waiting,
    Done(Outcome),
    Taken,
}

impl Cell {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::Waiting), done: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the outcome in; a second one is dropped.
    pub(super) fn fulfil(&self, outcome: Outcome) {
        let mut state = self.state();
        if matches!(*state, State::Waiting) {
            *state = State::Done(outcome);
            drop(state);
            self.done.notify_all();
        }
    }
}

impl Ticket {
    pub(super) fn new(cell: Arc<Cell>) -> Self {
        Self { cell, begun: Instant::now() }
    }

    /// True once the outcome is there.
    pub fn is_done(&self) -> bool {
        !matches!(*self.cell.state(), State::Waiting)
    }

    /// Waits for the outcome, at most `timeout`. It does come: within the producer's `send_deadline` and about a second
    /// more, or when the client stops.
    ///
    /// # Errors
    /// [`WaitError::Pending`] gives the ticket back if there is no outcome yet, [`WaitError::Failed`] the message.
    pub fn wait(self, timeout: Duration) -> Result<Receipt, WaitError> {
        let end = Instant::now().checked_add(timeout);
        let mut state = self.cell.state();
        loop {
            match std::mem::replace(&mut *state, State::Taken) {
                State::Done(outcome) => return outcome.map_err(WaitError::Failed),
                before @ (State::Waiting | State::Taken) => *state = before,
            }
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                drop(state);
                return Err(WaitError::Pending(self));
            }
            // A longer wait is asked for again; nothing shorter can overflow the system's clock.
            let left = left.min(Duration::from_secs(3600));
            state = self.cell.done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The outcome, if it is there.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn try_take(self) -> Result<Receipt, WaitError> {
        self.wait(Duration::ZERO)
    }
}

/// Why waiting for an asynchronous send brought no receipt.
#[derive(Debug)]
pub enum WaitError {
    /// There is no outcome yet; here is the ticket again.
    Pending(Ticket),
    /// The message was not acknowledged.
    Failed(Box<SendError>),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pending(_) => f.write_str("the send is still on its way"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WaitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Pending(_) => None,
            Self::Failed(error) => error.source(),
        }
    }
}

impl From<WaitError> for Error {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::Pending(ticket) => {
                Self::Timeout { request: "SEND_MESSAGE", addr: None, waited: ticket.begun.elapsed() }
            }
            WaitError::Failed(error) => (*error).into(),
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket(done: {})", self.is_done())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Message;

    fn failed() -> Outcome {
        Err(SendError::new(Message::new("t", "b"), Error::Closed))
    }

    #[test]
    fn b192_the_outcome_comes_exactly_once() {
        let cell = Cell::new();
        let ticket = Ticket::new(cell.clone());
        let Err(WaitError::Pending(ticket)) = ticket.try_take() else { panic!("too early") };
        assert!(!ticket.is_done());
        cell.fulfil(failed());
        cell.fulfil(failed());
        assert!(ticket.is_done());
        assert!(matches!(ticket.try_take(), Err(WaitError::Failed(error)) if matches!(error.cause(), Error::Closed)));
    }

    #[test]
    fn a_waiting_thread_wakes_when_the_outcome_comes() {
        let cell = Cell::new();
        let ticket = Ticket::new(cell.clone());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| matches!(ticket.wait(Duration::MAX), Err(WaitError::Failed(_))));
            cell.fulfil(failed());
            assert!(waiting.join().unwrap());
        });
    }
}
