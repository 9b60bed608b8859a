//! Registration with a name server that runs elsewhere, ours or Apache's, as its client.
//!
//! A pure part of the loop's role: it says what to send when, `server.rs` sends it. The full table is sent at every
//! connect, every 30 s and after each change; on a clean stop the registration is ended. A name server that does not
//! answer is asked again over a new connection: one that went half-open would swallow registrations for a quarter of an
//! hour before the system gives it up, and the broker's topics would have no route meanwhile.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/BrokerController.java

use std::time::Duration;

use crate::work::clock::Nanos;

/// How often a registration is repeated.
pub const PERIOD: Duration = Duration::from_secs(30);
/// First wait after a connection that could not be made or was lost.
pub const BACK_OFF: Duration = Duration::from_millis(200);
/// A registration that is not answered for this long is given up with its connection.
pub const ANSWER: Duration = Duration::from_secs(6);
/// Longest such wait.
pub const BACK_OFF_MAX: Duration = Duration::from_secs(10);

/// The state of one registration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Join {
    /// Not connected: connect at this time.
    Down {
        /// When.
        again: Nanos,
        /// How long the wait was.
        waited: Duration,
    },
    /// A connection is being made.
    Connecting {
        /// The wait before the next attempt, should this one fail.
        waited: Duration,
    },
    /// Connected: register at this time.
    Up {
        /// When.
        next: Nanos,
        /// The last one is to be answered until then; `None`: it was.
        answer: Option<Nanos>,
    },
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Make a connection.
    Connect,
    /// Send the registration.
    Register,
    /// Close the connection, on which nobody answers.
    Close,
}

impl Join {
    /// A registration that has not been begun.
    pub fn new(now: Nanos) -> Self {
        Self::Down { again: now, waited: Duration::ZERO }
    }

    /// True until the first connection is begun.
    pub fn is_new(&self) -> bool {
        matches!(self, Self::Down { waited: Duration::ZERO, .. })
    }

    /// When [`Join::due`] has something to do.
    pub fn next(&self) -> Option<Nanos> {
        match self {
            Self::Down { again, .. } => Some(*again),
            Self::Connecting { .. } => None,
            Self::Up { next, answer } => Some(answer.map_or(*next, |answer| answer.min(*next))),
        }
    }

    /// What time asks for.
    pub fn due(&mut self, now: Nanos) -> Step {
        match *self {
            Self::Down { again, waited } if again <= now => {
                *self = Self::Connecting { waited };
                Step::Connect
            }
            Self::Up { answer: Some(answer), .. } if answer <= now => {
                *self = Self::Down { again: now, waited: BACK_OFF };
                Step::Close
            }
            Self::Up { next, answer } if next <= now => {
                *self = Self::Up { next: now + PERIOD, answer: answer.or(Some(now + ANSWER)) };
                Step::Register
            }
            Self::Down { .. } | Self::Connecting { .. } | Self::Up { .. } => Step::Nothing,
        }
    }

    /// The topics have changed.
    pub fn changed(&mut self, now: Nanos) {
        if let Self::Up { next, .. } = self {
            *next = now;
        }
    }

    /// The name server has answered, whatever it said.
    pub fn answered(&mut self) {
        if let Self::Up { answer, .. } = self {
            *answer = None;
        }
    }

    /// The connection stands.
    pub fn connected(&mut self, now: Nanos) {
        *self = Self::Up { next: now, answer: None };
    }

    /// The connection failed or ended.
    pub fn lost(&mut self, now: Nanos) {
        let waited = match *self {
            Self::Connecting { waited } | Self::Down { waited, .. } => (waited * 2).clamp(BACK_OFF, BACK_OFF_MAX),
            Self::Up { .. } => BACK_OFF,
        };
        *self = Self::Down { again: now + waited, waited };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_ms(ms)
    }

    #[test]
    fn a_registration_is_repeated_and_follows_changes() {
        let mut join = Join::new(ms(0));
        assert_eq!((join.due(ms(0)), join.due(ms(0)), join.next()), (Step::Connect, Step::Nothing, None));
        join.connected(ms(5));
        assert_eq!((join.due(ms(5)), join.due(ms(5))), (Step::Register, Step::Nothing));
        join.changed(ms(100));
        assert_eq!(join.due(ms(100)), Step::Register);
        join.answered();
        assert_eq!(join.next(), Some(ms(30_100)));
        assert_eq!((join.due(ms(30_099)), join.due(ms(30_100))), (Step::Nothing, Step::Register));
    }

    #[test]
    fn a_name_server_that_does_not_answer_is_asked_over_another_connection() {
        let mut join = Join::new(ms(0));
        join.due(ms(0));
        join.connected(ms(0));
        assert_eq!((join.due(ms(0)), join.next()), (Step::Register, Some(ms(6000))));
        join.changed(ms(4000));
        assert_eq!(join.due(ms(4000)), Step::Register);
        assert_eq!(join.due(ms(5999)), Step::Nothing, "a change does not put the end of the wait off");
        assert_eq!((join.due(ms(6000)), join.due(ms(6000))), (Step::Close, Step::Connect));
    }

    #[test]
    fn waits_grow_while_nobody_is_there() {
        let mut join = Join::new(ms(0));
        let mut now = ms(0);
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert_eq!(join.due(now), Step::Connect);
            join.lost(now);
            let next = join.next().unwrap();
            waits.push(next.since(now).as_millis());
            now = next;
        }
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        join.connected(now);
        join.lost(now);
        assert_eq!(join.next().unwrap().since(now), BACK_OFF);
    }
}
