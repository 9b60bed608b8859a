//! The life of something with threads: running, stopping once, stopped.
//!
//! Clients, consumers and brokers hold one each. It starts and joins nothing itself.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Where a life stands.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Phase {
    /// It takes work.
    Running,
    /// A stop has begun; what runs is finished, nothing new is taken.
    Stopping,
    /// Everything has ended.
    Stopped,
}

/// A life that goes from running over stopping to stopped, and never back.
#[derive(Debug)]
pub struct Lifecycle {
    phase: Mutex<Phase>,
    changed: Condvar,
}

impl Lifecycle {
    /// A life that runs.
    pub fn new() -> Self {
        Self { phase: Mutex::new(Phase::Running), changed: Condvar::new() }
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True until a stop begins.
    pub fn is_running(&self) -> bool {
        self.phase() == Phase::Running
    }

    /// Begins the stop. True for the first who does: he carries it out and calls [`stopped`](Self::stopped).
    pub fn begin_stop(&self) -> bool {
        self.reach(Phase::Stopping)
    }

    /// Notes that everything has ended and wakes who waits for it.
    pub fn stopped(&self) {
        self.reach(Phase::Stopped);
    }

    /// Waits until everything has ended, at most until `deadline`. False if it has not.
    pub fn wait_stopped(&self, deadline: Instant) -> bool {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        while *phase != Phase::Stopped {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            phase = self.changed.wait_timeout(phase, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn reach(&self, to: Phase) -> bool {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        let moves = *phase < to;
        if moves {
            *phase = to;
            self.changed.notify_all();
        }
        moves
    }
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_the_first_stop_counts_and_waiters_see_the_end() {
        let life = Lifecycle::new();
        assert!(life.is_running());
        assert!(life.begin_stop() && !life.begin_stop());
        assert!(!life.wait_stopped(Instant::now()));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| life.wait_stopped(Instant::now() + Duration::from_secs(10)));
            life.stopped();
            assert!(waiter.join().unwrap());
        });
        assert!(!life.begin_stop());
        assert_eq!(life.phase(), Phase::Stopped);
    }
}
