//! A byte budget that many threads charge: live frames, inflated bodies, queued sends (design D14).
//!
//! It counts and tells; it never blocks and never frees anything. Who is told "over the limit" stops asking for more:
//! the pull is gated, not the message.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::ranks::{Rank, Ranked};

/// Bytes in use against a limit. Cheap to clone; all clones count together.
#[derive(Clone)]
pub struct Budget {
    shared: Arc<Shared>,
}

type Wake = Arc<dyn Fn() + Send + Sync>;

struct Shared {
    used: AtomicU64,
    limit: u64,
    /// True while somebody waits for `used` to fall to the limit.
    awaited: AtomicBool,
    wakers: Ranked<Vec<Wake>>,
}

impl Budget {
    /// A budget of `limit` bytes, none used.
    pub fn new(limit: u64) -> Self {
        let wakers = Ranked::new(Rank::Budget, Vec::new());
        Self { shared: Arc::new(Shared { used: AtomicU64::new(0), limit, awaited: AtomicBool::new(false), wakers }) }
    }

    /// Counts `bytes` until the answer is dropped, whether or not they fit: for what has already arrived.
    pub fn charge(&self, bytes: u64) -> Charge {
        self.shared.used.fetch_add(bytes, Ordering::SeqCst);
        Charge { budget: self.clone(), bytes }
    }

    /// Counts `bytes` if they fit below the limit.
    pub fn try_charge(&self, bytes: u64) -> Option<Charge> {
        let grown = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.shared.limit);
        self.shared.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, grown).ok()?;
        Some(Charge { budget: self.clone(), bytes })
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.shared.used.load(Ordering::SeqCst)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.shared.limit
    }

    /// True while the bytes in use are below the limit.
    pub fn has_room(&self) -> bool {
        self.used() < self.shared.limit
    }

    /// True while the bytes in use are at least twice the limit: connections stop reading.
    pub fn is_exhausted(&self) -> bool {
        self.used() >= self.shared.limit.saturating_mul(2)
    }

    /// Has the wakers of [`on_room`](Self::on_room) called once the bytes in use fall below the limit. True if they
    /// already are: then nothing will be called, go on.
    pub fn await_room(&self) -> bool {
        self.shared.awaited.store(true, Ordering::SeqCst);
        // Looked at again after the flag is up: a release that saw no flag has been counted by now.
        self.has_room() && self.shared.awaited.swap(false, Ordering::SeqCst)
    }

    /// `wake` is called, on the thread that releases, each time room that was awaited is there.
    pub fn on_room(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.shared.wakers.lock().push(Arc::new(wake));
    }

    fn release(&self, bytes: u64) {
        let before = self.shared.used.fetch_sub(bytes, Ordering::SeqCst);
        let has_room = before.saturating_sub(bytes) < self.shared.limit;
        if has_room && self.shared.awaited.load(Ordering::SeqCst) && self.shared.awaited.swap(false, Ordering::SeqCst) {
            let wakers = self.shared.wakers.lock().clone();
            for wake in wakers {
                wake();
            }
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget({} of {} bytes)", self.used(), self.limit())
    }
}

/// Bytes counted in a [`Budget`]; given back when dropped.
#[must_use = "the bytes are given back when this is dropped"]
pub struct Charge {
    budget: Budget,
    bytes: u64,
}

impl Charge {
    /// The bytes counted.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts `bytes` instead, whether or not they fit.
    pub fn resize(&mut self, bytes: u64) {
        if bytes >= self.bytes {
            self.budget.shared.used.fetch_add(bytes - self.bytes, Ordering::SeqCst);
        } else {
            self.budget.release(self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn bytes_are_given_back_once_and_only_what_fits_is_granted() {
        let budget = Budget::new(100);
        let first = budget.try_charge(60);
        assert!(first.is_some() && budget.try_charge(41).is_none());
        let mut over = budget.charge(150);
        assert!(budget.is_exhausted() && !budget.has_room());
        over.resize(10);
        assert_eq!(budget.used(), 70);
        drop((first, over));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn awaited_room_is_announced_once() {
        let budget = Budget::new(100);
        let woken = Arc::new(AtomicU32::new(0));
        let count = woken.clone();
        budget.on_room(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        assert!(budget.await_room(), "there is room already");
        let (first, second) = (budget.charge(90), budget.charge(90));
        assert!(!budget.await_room());
        drop(first);
        drop(second);
        drop(budget.charge(200));
        assert_eq!(woken.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn only_room_that_is_there_ends_the_wait_for_it_and_room_that_was_there_is_not_announced() {
        let budget = Budget::new(100);
        let woken = Arc::new(AtomicU32::new(0));
        let count = woken.clone();
        budget.on_room(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let held = budget.charge(99);
        assert!(budget.await_room());
        drop(budget.charge(100));
        assert_eq!(woken.load(Ordering::SeqCst), 0, "nobody waits");
        let (more, over) = (budget.charge(1), budget.charge(1));
        assert!(!budget.await_room());
        drop(over);
        assert_eq!(woken.load(Ordering::SeqCst), 0, "used up to the last byte");
        drop(more);
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        drop(held);
    }
}
