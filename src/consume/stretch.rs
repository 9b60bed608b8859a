//! How far a worker has come in a stretch of calls that it took at once, and the loop's right to take the rest back.
//!
//! A worker that expects brief calls takes messages for several of them under one lock. Each call but the first is begun
//! here without the lock; if one of them blocks after all, the loop recalls what was not begun, under the lock, and other
//! workers run it. A call is begun or recalled, never both: one word holds the stretch's number and the calls begun.

use crate::work::sync::atomic::{AtomicU64, Ordering};

/// See the head of this file. The stretch of a claim's token: there is one at a time that is not recalled.
#[derive(Debug)]
pub struct Stretch(AtomicU64);

/// Which stretch of a claim: later ones have other numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StretchKey(u32);

fn word(key: StretchKey, begun: u32) -> u64 {
    u64::from(key.0) << 32 | u64::from(begun)
}

impl Default for Stretch {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Stretch {
    /// A new stretch, its first call begun. What an older one had not begun must have been recalled or finished.
    ///
    /// Thread: under the process queue's lock.
    pub fn open(&self) -> StretchKey {
        let key = self.next();
        self.0.store(word(key, 1), Ordering::Release);
        key
    }

    /// Begins the call after the first `begun` ones. False if it was recalled.
    ///
    /// Thread: the worker that took the stretch.
    pub fn begin(&self, key: StretchKey, begun: u32) -> bool {
        let next = word(key, begun.saturating_add(1));
        self.0.compare_exchange(word(key, begun), next, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Lets the worker of stretch `key` begin no further call. Returns how many it has begun; `None` if that stretch was
    /// recalled before or another was opened since.
    ///
    /// Thread: under the process queue's lock.
    pub fn recall(&self, key: StretchKey) -> Option<u32> {
        let none = word(self.next(), 0);
        let found = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| (word >> 32 == u64::from(key.0)).then_some(none));
        found.ok().map(|word| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(u32::MAX))
    }

    fn next(&self) -> StretchKey {
        let key = u32::try_from(self.0.load(Ordering::Acquire) >> 32).unwrap_or(u32::MAX);
        StretchKey(key.wrapping_add(1))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_begun_or_recalled() {
        let stretch = Stretch::default();
        let first = stretch.open();
        assert!(stretch.begin(first, 1) && !stretch.begin(first, 1));
        assert_eq!((stretch.recall(first), stretch.begin(first, 2), stretch.recall(first)), (Some(2), false, None));
        let second = stretch.open();
        assert!(!stretch.begin(first, 2) && stretch.begin(second, 1));
        assert_eq!((stretch.recall(first), stretch.recall(second)), (None, Some(2)));
    }

    #[test]
    fn numbers_wrap() {
        let stretch = Stretch(AtomicU64::new(u64::MAX));
        let key = stretch.open();
        assert_eq!((key, stretch.begin(key, 1), stretch.recall(key)), (StretchKey(0), true, Some(2)));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    /// A worker goes through a stretch of three calls while the loop recalls it: together they account for each call
    /// once.
    #[test]
    fn loom_each_call_is_begun_or_recalled() {
        loom::model(|| {
            let (stretch, lock) = (Arc::new(Stretch::default()), Arc::new(Mutex::new(())));
            let key = stretch.open();
            let worker = {
                let stretch = stretch.clone();
                thread::spawn(move || (1..3).take_while(|begun| stretch.begin(key, *begun)).count() as u32 + 1)
            };
            let recalled = {
                let _held = lock.lock().unwrap();
                let recalled = stretch.recall(key);
                let next = stretch.open();
                assert_eq!(stretch.recall(next), Some(1));
                recalled
            };
            assert_eq!(worker.join().unwrap(), recalled.unwrap());
        });
    }
}
