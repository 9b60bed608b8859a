//! One answer on its way from a loop to the thread that waits for it.
//!
//! A blocking call that goes over a loop makes a pair, posts the giver in its command and waits on the taker. Whatever
//! races (the answer, a time-out, the end of a connection, a shutdown), the taker gets exactly one outcome and the giver
//! learns whether it was in time. Nothing here knows what an answer is.

use std::time::{Duration, Instant};

use crate::work::clock::after;
use crate::work::sync::{Arc, Condvar, Mutex, locked};

/// The loop's end. Dropping it unused tells the taker that no answer will come.
#[derive(Debug)]
pub struct Giver<T> {
    slot: Option<Arc<Slot<T>>>,
}

/// The waiting thread's end.
#[derive(Debug)]
pub struct Taker<T> {
    slot: Arc<Slot<T>>,
}

#[derive(Debug)]
struct Slot<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
enum State<T> {
    Waiting,
    Given(T),
    /// The giver is gone without an answer.
    Lost,
    /// The taker waits no more.
    Left,
}

/// Why no answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// Not in time. An answer that comes now is given back to its giver.
    Late,
    /// The giver was dropped: the loop has ended, or has let go of the call.
    Lost,
}

/// Both ends of one answer.
pub fn pair<T>() -> (Giver<T>, Taker<T>) {
    let slot = Arc::new(Slot { state: Mutex::new(State::Waiting), changed: Condvar::new() });
    (Giver { slot: Some(slot.clone()) }, Taker { slot })
}

impl<T> Giver<T> {
    /// Gives the answer and wakes its taker.
    ///
    /// # Errors
    /// The answer, if its taker waits no more.
    pub fn give(mut self, answer: T) -> Result<(), T> {
        let Some(slot) = self.slot.take() else { return Err(answer) };
        let mut state = locked(&slot.state);
        if matches!(*state, State::Left) {
            return Err(answer);
        }
        *state = State::Given(answer);
        // Woken under no lock, so that it does not wake into a held one.
        drop(state);
        slot.changed.notify_one();
        Ok(())
    }
}

impl<T> Drop for Giver<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            let mut state = locked(&slot.state);
            if matches!(*state, State::Waiting) {
                *state = State::Lost;
                drop(state);
                slot.changed.notify_one();
            }
        }
    }
}

impl<T> Taker<T> {
    /// Waits for the answer as long as it takes: for what the loop answers at once, or ends.
    ///
    /// # Errors
    /// `Lost`.
    pub fn wait(self) -> Result<T, NoAnswer> {
        self.wait_until(after(Duration::MAX))
    }

    /// The answer, if it is there already; once.
    pub fn poll(&self) -> Option<T> {
        let mut state = locked(&self.slot.state);
        match std::mem::replace(&mut *state, State::Left) {
            State::Given(answer) => Some(answer),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Waits for the answer, at most until `deadline`.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub fn wait_until(self, deadline: Instant) -> Result<T, NoAnswer> {
        let mut state = locked(&self.slot.state);
        loop {
            match std::mem::replace(&mut *state, State::Waiting) {
                State::Given(answer) => {
                    *state = State::Left;
                    return Ok(answer);
                }
                State::Lost => {
                    *state = State::Left;
                    return Err(NoAnswer::Lost);
                }
                State::Waiting | State::Left => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                *state = State::Left;
                return Err(NoAnswer::Late);
            }
            state = match self.slot.changed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

impl<T> Drop for Taker<T> {
    fn drop(&mut self) {
        // A late answer goes back to its giver; one that was given and not taken is dropped here, not with the slot.
        let left = std::mem::replace(&mut *locked(&self.slot.state), State::Left);
        drop(left);
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    /// Counts how often an answer was seen by anybody.
    struct Answer(Arc<AtomicUsize>);

    impl Drop for Answer {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn loom_an_answer_is_taken_or_given_back_exactly_once() {
        for wait in [Duration::ZERO, Duration::from_secs(3600)] {
            loom::model(move || {
                let seen = Arc::new(AtomicUsize::new(0));
                let (giver, taker) = pair();
                let answer = Answer(seen.clone());
                let loop_thread = loom::thread::spawn(move || giver.give(answer).is_ok());
                let taken = taker.wait_until(Instant::now() + wait);
                let got = taken.is_ok();
                drop(taken);
                // In time for the giver means taken, unless the taker left between the two.
                let given = loop_thread.join().unwrap();
                assert!(given || !got);
                assert_eq!(seen.load(SeqCst), 1);
            });
        }
    }

    #[test]
    fn loom_a_lost_giver_is_noticed() {
        loom::model(|| {
            let (giver, taker) = pair::<u32>();
            let loop_thread = loom::thread::spawn(move || drop(giver));
            assert_eq!(taker.wait_until(Instant::now() + Duration::from_secs(3600)), Err(NoAnswer::Lost));
            loop_thread.join().unwrap();
        });
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::time::Duration;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn an_answer_reaches_its_taker_before_or_while_he_waits() {
        let (giver, taker) = pair();
        giver.give(7).unwrap();
        assert_eq!(taker.wait_until(Instant::now()), Ok(7));
        let (giver, taker) = pair();
        std::thread::scope(|scope| {
            scope.spawn(move || giver.give(8).unwrap());
            assert_eq!(taker.wait_until(later()), Ok(8));
        });
    }

    #[test]
    fn a_late_answer_comes_back_and_a_lost_one_is_noticed() {
        let (giver, taker) = pair();
        assert_eq!(taker.wait_until(Instant::now()), Err(NoAnswer::Late));
        assert_eq!(giver.give(7), Err(7));
        let (giver, taker) = pair::<u32>();
        drop(giver);
        assert_eq!(taker.wait_until(later()), Err(NoAnswer::Lost));
    }

    /// B-029: exactly one outcome, whatever races.
    #[test]
    fn answer_and_time_out_race_to_exactly_one_outcome() {
        for round in 0..2_000u32 {
            let (giver, taker) = pair();
            std::thread::scope(|scope| {
                let given = scope.spawn(move || giver.give(round));
                let taken = taker.wait_until(Instant::now() + Duration::from_micros(u64::from(round % 100)));
                match (given.join().unwrap(), taken) {
                    (Ok(()), Ok(got)) => assert_eq!(got, round),
                    (Err(back), Err(NoAnswer::Late)) => assert_eq!(back, round),
                    other => panic!("{other:?}"),
                }
            });
        }
    }
}
