//! What user code says about the messages it was given: an outcome for all, a mark for each.
//!
//! Handlers return an [`Outcome`]; while they run they may mark single messages, and a mark wins over the outcome. The
//! claim reads both when the handler has returned. Nothing here calls user code or knows a queue.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::model::DelayLevel;

/// What becomes of the messages that the handler did not mark one by one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// Finished (Java's `CONSUME_SUCCESS`).
    Done,
    /// Delivered again later; how much later grows with each time: 10 s, 30 s, 1 min ... 2 h (Java's
    /// `RECONSUME_LATER`).
    Retry,
    /// Delivered again after this delay (Java's `delayLevelWhenNextConsume`).
    RetryAfter(DelayLevel),
    /// Moved to the group's dead-letter topic at once (Java's delay level -1).
    DeadLetter,
}

/// What a handler may return: `()` is [`Outcome::Done`], an `Err` is [`Outcome::Retry`] and its text becomes an event.
pub trait IntoOutcome {
    /// The outcome; `failed` is told the error's text if there is one.
    fn into_outcome(self, failed: &mut dyn FnMut(&dyn fmt::Display)) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self, _failed: &mut dyn FnMut(&dyn fmt::Display)) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self, _failed: &mut dyn FnMut(&dyn fmt::Display)) -> Outcome {
        Outcome::Done
    }
}

impl<T: IntoOutcome, E: fmt::Display> IntoOutcome for Result<T, E> {
    fn into_outcome(self, failed: &mut dyn FnMut(&dyn fmt::Display)) -> Outcome {
        match self {
            Ok(outcome) => outcome.into_outcome(failed),
            Err(error) => {
                failed(&error);
                Outcome::Retry
            }
        }
    }
}

/// What was said about one message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mark {
    /// It has this outcome, whatever the handler returns.
    Outcome(Outcome),
    /// It left the handler's batch and will be finished on its own.
    Detached,
}

const UNMARKED: u8 = 0;
const DONE: u8 = 1;
const DEAD_LETTER: u8 = 2;
const DETACHED: u8 = 3;
/// A retry whose delay the broker chooses; the delay levels 1 to 18 follow.
const RETRY: u8 = 4;

impl Mark {
    fn code(self) -> u8 {
        match self {
            Self::Outcome(Outcome::Done) => DONE,
            Self::Outcome(Outcome::DeadLetter) => DEAD_LETTER,
            Self::Detached => DETACHED,
            Self::Outcome(Outcome::Retry) => RETRY,
            Self::Outcome(Outcome::RetryAfter(level)) => {
                RETRY.saturating_add(u8::try_from(level.number()).unwrap_or(0))
            }
        }
    }

    fn of(code: u8) -> Option<Self> {
        match code {
            UNMARKED => None,
            DONE => Some(Self::Outcome(Outcome::Done)),
            DEAD_LETTER => Some(Self::Outcome(Outcome::DeadLetter)),
            DETACHED => Some(Self::Detached),
            RETRY.. => Some(Self::Outcome(match DelayLevel::new(i32::from(code - RETRY)) {
                Some(level) => Outcome::RetryAfter(level),
                None => Outcome::Retry,
            })),
        }
    }
}

/// The marks of the messages in one handler's hand, by their place in the batch. A worker has one and reuses it, so that
/// marking allocates nothing. Any thread that the handler lends its batch to may mark; the last mark counts.
#[derive(Debug, Default)]
pub struct Marks {
    codes: Vec<AtomicU8>,
    any: AtomicBool,
    /// Why a message was given up, in the order it was said. A leaf lock.
    reasons: Mutex<Vec<(u32, String)>>,
}

impl Marks {
    /// Forgets everything and has a place for each of `messages`.
    pub fn reset(&mut self, messages: usize) {
        if std::mem::take(self.any.get_mut()) {
            self.codes.iter_mut().for_each(|code| *code.get_mut() = UNMARKED);
            self.reasons.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        }
        if self.codes.len() < messages {
            self.codes.resize_with(messages, AtomicU8::default);
        }
    }

    /// Marks the message at `place`; nothing happens if there is no such place.
    pub fn set(&self, place: u32, mark: Mark) {
        if let Some(code) = self.codes.get(place as usize) {
            code.store(mark.code(), Ordering::Release);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Gives what was not marked at `places` this outcome.
    pub(super) fn fill(&self, places: Range<u32>, outcome: Outcome) {
        for place in places.filter(|place| self.get(*place).is_none()) {
            self.set(place, Mark::Outcome(outcome));
        }
    }

    /// Marks it as detached. False if it already was: there is one finisher for each message.
    pub fn detach(&self, place: u32) -> bool {
        let Some(code) = self.codes.get(place as usize) else { return false };
        self.any.store(true, Ordering::Release);
        code.swap(DETACHED, Ordering::AcqRel) != DETACHED
    }

    /// Remembers why the message at `place` is given up.
    pub fn reason(&self, place: u32, reason: String) {
        self.any.store(true, Ordering::Release);
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).push((place, reason));
    }

    /// What was said about the message at `place`.
    pub fn get(&self, place: u32) -> Option<Mark> {
        self.codes.get(place as usize).and_then(|code| Mark::of(code.load(Ordering::Acquire)))
    }

    /// The reason given last for the message at `place`, taken out.
    pub fn take_reason(&self, place: u32) -> Option<String> {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        let at = reasons.iter().rposition(|(of, _)| *of == place)?;
        Some(reasons.remove(at).1)
    }

    /// True if each of the first `messages` is done: by its mark or, unmarked, by the outcome for the rest.
    pub fn all_done(&self, messages: u32, rest: Outcome) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return rest == Outcome::Done;
        }
        (0..messages).all(|place| match self.get(place) {
            None => rest == Outcome::Done,
            Some(mark) => mark == Mark::Outcome(Outcome::Done),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_survives_its_code() {
        let levels = (1..=18).filter_map(DelayLevel::new).map(Outcome::RetryAfter);
        let outcomes = [Outcome::Done, Outcome::Retry, Outcome::DeadLetter].into_iter().chain(levels);
        for mark in outcomes.map(Mark::Outcome).chain([Mark::Detached]) {
            assert_eq!(Mark::of(mark.code()), Some(mark));
        }
        assert_eq!(Mark::of(UNMARKED), None);
    }

    #[test]
    fn b122_what_handlers_return_becomes_an_outcome() {
        let mut told = Vec::new();
        let mut failed = |error: &dyn fmt::Display| told.push(error.to_string());
        assert_eq!(().into_outcome(&mut failed), Outcome::Done);
        assert_eq!(Outcome::DeadLetter.into_outcome(&mut failed), Outcome::DeadLetter);
        assert_eq!(Ok::<_, String>(Outcome::Done).into_outcome(&mut failed), Outcome::Done);
        assert_eq!(Err::<(), _>("no room").into_outcome(&mut failed), Outcome::Retry);
        assert_eq!(told, ["no room"]);
    }

    #[test]
    fn the_last_mark_counts_and_a_reset_forgets_all() {
        let mut marks = Marks::default();
        marks.reset(4);
        assert!(marks.all_done(4, Outcome::Done) && !marks.all_done(4, Outcome::Retry));
        marks.set(1, Mark::Outcome(Outcome::Retry));
        marks.set(1, Mark::Outcome(Outcome::DeadLetter));
        marks.reason(1, "first".into());
        marks.reason(1, "second".into());
        marks.set(9, Mark::Detached);
        assert_eq!(marks.get(1), Some(Mark::Outcome(Outcome::DeadLetter)));
        assert_eq!(marks.take_reason(1).as_deref(), Some("second"));
        assert!(marks.detach(2) && !marks.detach(2) && !marks.detach(9));
        marks.reset(8);
        assert!((0..8).all(|place| marks.get(place).is_none()) && marks.take_reason(1).is_none());
    }
}
