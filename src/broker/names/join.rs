//! Registration with a name server that runs elsewhere, ours or Apache's, as its client.
//!
//! A pure part of the loop's role: it says what to send when, `server.rs` sends it. The full table is sent at every
//! connect, every 30 s and after each change; on a clean stop the registration is ended.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/BrokerController.java

use std::time::Duration;

use crate::work::clock::Nanos;

/// How often a registration is repeated.
pub const PERIOD: Duration = Duration::from_secs(30);
/// First wait after a connection that could not be made or was lost.
pub const BACK_OFF: Duration = Duration::from_millis(200);
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
            Self::Up { next } => Some(*next),
        }
    }

    /// What time asks for.
    pub fn due(&mut self, now: Nanos) -> Step {
        match *self {
            Self::Down { again, waited } if again <= now => {
                *self = Self::Connecting { waited };
                Step::Connect
            }
            Self::Up { next } if next <= now => {
                *self = Self::Up { next: now + PERIOD };
                Step::Register
            }
            Self::Down { .. } | Self::Connecting { .. } | Self::Up { .. } => Step::Nothing,
        }
    }

    /// The topics have changed.
    pub fn changed(&mut self, now: Nanos) {
        if let Self::Up { next } = self {
            *next = now;
        }
    }

    /// The connection stands.
    pub fn connected(&mut self, now: Nanos) {
        *self = Self::Up { next: now };
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
        assert_eq!((join.due(ms(100)), join.next()), (Step::Register, Some(ms(30_100))));
        assert_eq!((join.due(ms(30_099)), join.due(ms(30_100))), (Step::Nothing, Step::Register));
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
