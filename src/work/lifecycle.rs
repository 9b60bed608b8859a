//! The life of something with threads: running, stopping once, stopped; and how one deadline for a stop is divided.
//!
//! Clients, consumers and brokers hold one each. It starts and joins nothing itself.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

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

/// How the time of one stop is divided: handlers may run until the first moment; what follows them (commit, unlock,
/// unregister, close) has until the second.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StopPlan {
    /// Until then what runs may finish.
    pub handlers_until: Instant,
    /// Until then everything has to have ended.
    pub end: Instant,
}

impl StopPlan {
    /// Divides `total`, counted from `now`: the last fifth, but at most a second, is kept for what follows the handlers.
    pub fn new(now: Instant, total: Duration) -> Self {
        let kept = (total / 5).min(Duration::from_secs(1));
        let end = now.checked_add(total).unwrap_or_else(|| now + Duration::from_secs(86_400));
        Self { handlers_until: end.checked_sub(kept).unwrap_or(now).max(now), end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_last_fifth_or_second_is_kept() {
        let now = Instant::now();
        let of = |ms| {
            let plan = StopPlan::new(now, Duration::from_millis(ms));
            ((plan.handlers_until - now).as_millis(), (plan.end - now).as_millis())
        };
        assert_eq!([of(0), of(1000), of(30_000)], [(0, 0), (800, 1000), (29_000, 30_000)]);
    }
}
