//! Ranked locks: a debug build checks that a thread takes locks only upward in rank; a release build pays nothing.
//!
//! Every lock that may be held while another is taken is a [`Ranked`]. A leaf lock inside one file, under which nothing
//! else is ever locked, may stay a plain mutex. No lock is held over I/O or user code; this file does not check that.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::sync::{Condvar, Mutex, MutexGuard, locked};

/// The order in which locks may be nested; a thread that holds one may take only a higher one.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum Rank {
    /// Topics, groups, routes, lanes: what other threads look up.
    Tables = 1,
    /// One process queue.
    ProcessQueue = 2,
    /// The append of the store.
    StoreAppend = 3,
    /// A byte budget.
    Budget = 4,
}

/// A mutex with a [`Rank`]. A poisoned one is entered: no user code runs under it.
#[derive(Debug)]
pub struct Ranked<T> {
    rank: Rank,
    mutex: Mutex<T>,
}

impl<T> Ranked<T> {
    /// A lock of `rank` around `value`.
    pub fn new(rank: Rank, value: T) -> Self {
        Self { rank, mutex: Mutex::new(value) }
    }

    /// Waits for the lock. In a debug build a thread that already holds a lock of this rank or above panics.
    pub fn lock(&self) -> RankedGuard<'_, T> {
        let held = Held::take(self.rank);
        RankedGuard { guard: locked(&self.mutex), held }
    }

    /// The value, if nobody else can reach the lock.
    #[cfg(not(loom))]
    pub fn get_mut(&mut self) -> &mut T {
        self.mutex.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The lock of a [`Ranked`], held until it is dropped.
pub struct RankedGuard<'a, T> {
    // Dropped in this order: the lock is free before the rank is given back.
    guard: MutexGuard<'a, T>,
    held: Held,
}

impl<'a, T> RankedGuard<'a, T> {
    /// Gives the lock back, waits for `condvar`, takes the lock again. Wakes for no reason now and then.
    pub fn wait(self, condvar: &Condvar) -> Self {
        let Self { guard, held } = self;
        let guard = condvar.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
        Self { guard, held }
    }

    /// As [`wait`](Self::wait), for at most `most`.
    pub fn wait_for(self, condvar: &Condvar, most: Duration) -> Self {
        let Self { guard, held } = self;
        let (guard, _) = condvar.wait_timeout(guard, most).unwrap_or_else(|poisoned| poisoned.into_inner());
        Self { guard, held }
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// One place on this thread's stack of held ranks; nothing in a release build.
struct Held {
    #[cfg(debug_assertions)]
    rank: Rank,
    // Given back by the thread that took it only.
    _not_send: std::marker::PhantomData<*const ()>,
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::RefCell<Vec<Rank>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Held {
    #[cfg(debug_assertions)]
    fn take(rank: Rank) -> Self {
        HELD.with_borrow_mut(|held| {
            let highest = held.iter().max().copied();
            assert!(highest.is_none_or(|highest| highest < rank), "lock of rank {rank:?} taken under {highest:?}");
            held.push(rank);
        });
        Self { rank, _not_send: std::marker::PhantomData }
    }

    #[cfg(not(debug_assertions))]
    fn take(_rank: Rank) -> Self {
        Self { _not_send: std::marker::PhantomData }
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| {
            if let Some(at) = held.iter().rposition(|rank| *rank == self.rank) {
                held.remove(at);
            }
        });
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn locks_nest_upward() {
        let (tables, queue) = (Ranked::new(Rank::Tables, 1), Ranked::new(Rank::ProcessQueue, 2));
        for _ in 0..2 {
            let low = tables.lock();
            let high = queue.lock();
            assert_eq!((*low, *high), (1, 2));
        }
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_lock_taken_downward_is_found() {
        let (tables, queue) = (Ranked::new(Rank::Tables, ()), Ranked::new(Rank::ProcessQueue, ()));
        let high = queue.lock();
        let downward = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(tables.lock())));
        assert!(downward.is_err());
        drop(high);
        drop(tables.lock());
    }

    #[test]
    fn a_poisoned_lock_is_entered() {
        let lock = Ranked::new(Rank::Tables, 7);
        let poisoned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("on purpose");
        }));
        assert!(poisoned.is_err());
        assert_eq!(*lock.lock(), 7);
    }
}
