//! How much may be on its way at once: messages and bytes of asynchronous sends. Who finds no room waits with a deadline.
//!
//! Both kinds of room are taken together or not at all, and given back once, by drop, on every path.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::work::clock::after;

/// Room for asynchronous sends. Lock: a leaf, held for two comparisons.
#[derive(Debug)]
pub(super) struct Permits {
    most: Room,
    used: Mutex<Room>,
    freed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Room {
    messages: usize,
    bytes: usize,
}

/// Room that is taken. Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    from: Arc<Permits>,
    bytes: usize,
}

impl Permits {
    pub(super) fn new(messages: usize, bytes: usize) -> Arc<Self> {
        let most = Room { messages, bytes };
        Arc::new(Self { most, used: Mutex::new(Room::default()), freed: Condvar::new() })
    }

    /// Room for one message of `bytes`. `None` if none came within `wait`, or if it could never come.
    pub(super) fn take(self: &Arc<Self>, bytes: usize, wait: Duration) -> Option<Permit> {
        if bytes > self.most.bytes {
            return None;
        }
        let end = after(wait);
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        while used.messages >= self.most.messages || used.bytes > self.most.bytes - bytes {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            used = self.freed.wait_timeout(used, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        used.messages += 1;
        used.bytes += bytes;
        Some(Permit { from: self.clone(), bytes })
    }

    #[cfg(test)]
    fn used(&self) -> (usize, usize) {
        let used = *self.used.lock().unwrap();
        (used.messages, used.bytes)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut used = self.from.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.messages = used.messages.saturating_sub(1);
        used.bytes = used.bytes.saturating_sub(self.bytes);
        drop(used);
        // All of them: one that waits for many bytes must not swallow the wake-up of one that waits for few.
        self.from.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn c041_a_permit_comes_back_once_and_the_next_call_works() {
        let permits = Permits::new(2, MIB);
        let held: Vec<Permit> = (0..2).filter_map(|_| permits.take(10, Duration::ZERO)).collect();
        assert_eq!((held.len(), permits.used()), (2, (2, 20)));
        for _ in 0..50 {
            assert!(permits.take(10, Duration::ZERO).is_none());
        }
        drop(held);
        assert_eq!(permits.used(), (0, 0));
        assert!(permits.take(10, Duration::ZERO).is_some());
    }

    #[test]
    fn c042_both_kinds_of_room_or_none() {
        let permits = Permits::new(10, MIB);
        for _ in 0..100 {
            assert!(permits.take(2 * MIB, Duration::from_secs(60)).is_none(), "could never come, so it does not wait");
        }
        let small: Vec<Permit> = (0..10).filter_map(|_| permits.take(1, Duration::ZERO)).collect();
        assert_eq!((small.len(), permits.used()), (10, (10, 10)));
        assert!(permits.take(1, Duration::ZERO).is_none());
        drop(small);
        let _most = permits.take(MIB, Duration::ZERO).unwrap();
        assert!(permits.take(1, Duration::ZERO).is_none());
        assert_eq!(permits.used(), (1, MIB), "failing to get bytes takes no message either");
    }

    #[test]
    fn room_that_is_given_back_wakes_who_waits() {
        let permits = Permits::new(1, MIB);
        let held = permits.take(1, Duration::ZERO);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| permits.take(1, Duration::from_secs(60)).is_some());
            drop(held);
            assert!(waiting.join().unwrap());
        });
    }
}
