//! Time as an argument: the system's clock, or a test's that moves only when it is told to.
//!
//! Every role, deadline and hold reads a [`Clock`]; nothing else asks the system for the time, except blocking sockets,
//! whose time-outs are real. It never sleeps.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment on a clock's monotonic scale: nanoseconds since that clock was made. Moments of two clocks do not compare.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The moment the clock was made.
    pub const ZERO: Self = Self(0);
    /// Later than anything that happens.
    pub const MAX: Self = Self(u64::MAX);

    /// `ms` milliseconds after the clock was made.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// Whole milliseconds since the clock was made.
    pub const fn as_ms(self) -> u64 {
        self.0 / 1_000_000
    }

    /// How long ago `earlier` was; nothing if it is later than `self`.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Nanos {
    type Output = Self;
    /// The moment `by` later, [`Nanos::MAX`] if that cannot be told.
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Nanos {
    type Output = Self;
    /// The moment `by` earlier, [`Nanos::ZERO`] at the least.
    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The longest that any call blocks, however long its caller would wait: more than that, some systems cannot tell.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// The moment `most` from now on the system's clock, for blocking waits; a year from now if that is further away.
pub fn after(most: Duration) -> Instant {
    Instant::now() + most.min(LONGEST)
}

/// A source of time: the system's clock, or a [`TestClock`]. Cheap to clone; all clones tell the same time.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System { start: Instant },
    Test(Arc<Hands>),
}

impl Clock {
    /// The system's monotonic and wall clocks.
    pub fn system() -> Self {
        Self(Source::System { start: Instant::now() })
    }

    /// Now, on the scale that never goes back.
    #[doc(hidden)]
    pub fn now(&self) -> Nanos {
        match &self.0 {
            Source::System { start } => Nanos(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            Source::Test(hands) => Nanos(hands.now.load(Ordering::SeqCst)),
        }
    }

    /// Now, in milliseconds since 1970, as messages carry it. May go back when the system's clock is set.
    pub fn wall_ms(&self) -> i64 {
        match &self.0 {
            Source::System { .. } => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
                i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
            }
            Source::Test(hands) => {
                let ms = i64::try_from(hands.now.load(Ordering::SeqCst) / 1_000_000).unwrap_or(i64::MAX);
                hands.wall_start_ms.saturating_add(ms)
            }
        }
    }

    /// True if time moves only by [`TestClock::advance`].
    pub fn is_test(&self) -> bool {
        matches!(self.0, Source::Test(_))
    }

    /// How long a thread may sleep for `deadline` to be met: nothing once it has passed, `None` for a test clock, whose
    /// time passes only by [`TestClock::advance`], which wakes who has registered.
    #[doc(hidden)]
    pub fn sleep_until(&self, deadline: Nanos) -> Option<Duration> {
        let now = self.now();
        if now >= deadline {
            return Some(Duration::ZERO);
        }
        match &self.0 {
            Source::System { .. } => Some(deadline.since(now)),
            Source::Test(_) => None,
        }
    }

    /// Calls `wake` after every [`TestClock::advance`] until the answer is dropped; never on a system clock.
    ///
    /// `wake` runs on the thread that advances, under no lock, and must be short: it rings a loop or a condition.
    #[doc(hidden)]
    pub fn on_advance(&self, wake: impl Fn() + Send + Sync + 'static) -> Registration {
        match &self.0 {
            Source::System { .. } => Registration { hands: Weak::new(), id: 0 },
            Source::Test(hands) => {
                let id = hands.next_id.fetch_add(1, Ordering::Relaxed);
                hands.wakers.lock().unwrap_or_else(PoisonError::into_inner).push((id, Arc::new(wake)));
                Registration { hands: Arc::downgrade(hands), id }
            }
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::System { .. } => f.write_str("Clock(system)"),
            Source::Test(_) => write!(f, "Clock(test, {:?})", self.now()),
        }
    }
}

impl From<&TestClock> for Clock {
    fn from(test: &TestClock) -> Self {
        test.clock()
    }
}

type Wake = Arc<dyn Fn() + Send + Sync>;

struct Hands {
    now: AtomicU64,
    wall_start_ms: i64,
    next_id: AtomicU64,
    /// A leaf lock: nothing is locked or called under it.
    wakers: Mutex<Vec<(u64, Wake)>>,
}

/// Keeps a waker of [`Clock::on_advance`] registered.
#[must_use = "the waker is forgotten when this is dropped"]
pub struct Registration {
    hands: Weak<Hands>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(hands) = self.hands.upgrade() {
            hands.wakers.lock().unwrap_or_else(PoisonError::into_inner).retain(|(id, _)| *id != self.id);
        }
    }
}

/// A clock for tests: time stands still until [`advance`](Self::advance).
///
/// One clock may be given to a client and an embedded broker together; delay levels, holds and client timers then read
/// only it. Cheap to clone; all clones move together.
#[derive(Clone)]
pub struct TestClock {
    hands: Arc<Hands>,
}

impl TestClock {
    /// A clock that stands at its start; its wall clock at 1 700 000 000 000 ms (14 November 2023).
    pub fn new() -> Self {
        Self::starting_at_ms(1_700_000_000_000)
    }

    /// A clock that stands at its start, with its wall clock at `wall_ms` milliseconds since 1970.
    pub fn starting_at_ms(wall_ms: i64) -> Self {
        Self {
            hands: Arc::new(Hands {
                now: AtomicU64::new(0),
                wall_start_ms: wall_ms,
                next_id: AtomicU64::new(0),
                wakers: Mutex::new(Vec::new()),
            }),
        }
    }

    /// Moves time forward by `by` and wakes everything that sleeps on this clock.
    ///
    /// Returns before what became due has been done: wait for its effect, not for a time.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.hands.now.fetch_add(by, Ordering::SeqCst);
        let wakers: Vec<Wake> = {
            let wakers = self.hands.wakers.lock().unwrap_or_else(PoisonError::into_inner);
            wakers.iter().map(|(_, wake)| wake.clone()).collect()
        };
        for wake in wakers {
            wake();
        }
    }

    /// The clock to hand to what is tested.
    pub fn clock(&self) -> Clock {
        Clock(Source::Test(self.hands.clone()))
    }

    /// How much time has been let pass.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.hands.now.load(Ordering::SeqCst))
    }
}

impl Default for TestClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TestClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TestClock({:?})", self.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn a_test_clock_moves_only_when_told_and_wakes_who_registered() {
        let test = TestClock::new();
        let clock = test.clock();
        let woken = Arc::new(AtomicU32::new(0));
        let count = woken.clone();
        let registration = clock.on_advance(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!((clock.now(), clock.wall_ms()), (Nanos::ZERO, 1_700_000_000_000));
        assert_eq!(clock.sleep_until(Nanos::from_ms(10)), None);
        test.advance(Duration::from_millis(10));
        assert_eq!((clock.now(), clock.wall_ms()), (Nanos::from_ms(10), 1_700_000_000_010));
        assert_eq!(clock.sleep_until(Nanos::from_ms(10)), Some(Duration::ZERO));
        drop(registration);
        test.advance(Duration::from_millis(1));
        assert_eq!(woken.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn the_system_clock_runs_forward() {
        let clock = Clock::system();
        let (first, second) = (clock.now(), clock.now());
        assert!(first <= second);
        assert!(clock.wall_ms() > 1_700_000_000_000);
        assert!(clock.sleep_until(second + Duration::from_secs(60)).is_some_and(|left| left > Duration::from_secs(50)));
        let _never = clock.on_advance(|| {});
    }

    #[test]
    fn a_wait_of_any_length_has_an_end_that_can_be_told() {
        assert!(after(Duration::MAX) > Instant::now() + Duration::from_secs(86_400));
        assert!(after(Duration::ZERO) <= Instant::now());
    }

    #[test]
    fn moments_saturate() {
        assert_eq!(Nanos(5) + Duration::MAX, Nanos::MAX);
        assert_eq!(Nanos(5).since(Nanos(9)), Duration::ZERO);
        assert_eq!(Nanos::from_ms(3) - Duration::from_secs(1), Nanos::ZERO);
    }
}
