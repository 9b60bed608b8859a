//! A heap of deadlines: what is due when. Pure; the loop asks it how long it may sleep and what has come due.
//!
//! A deadline is a value, not a closure, and is never cancelled: whoever gets one that no longer matters drops it. It
//! never reads a clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::clock::Nanos;

/// Deadlines by time; those of one moment come in the order in which they were armed.
#[derive(Debug, Clone)]
pub struct Deadlines<T> {
    heap: BinaryHeap<Reverse<(Nanos, u64, T)>>,
    armed: u64,
}

impl<T: Copy + Ord> Deadlines<T> {
    /// No deadlines.
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), armed: 0 }
    }

    /// `what` comes due at `at`.
    pub fn arm(&mut self, at: Nanos, what: T) {
        self.heap.push(Reverse((at, self.armed, what)));
        self.armed += 1;
    }

    /// When the next deadline comes due.
    pub fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes the earliest deadline that has come due by `now`.
    pub fn due(&mut self, now: Nanos) -> Option<T> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((.., what))| what)
    }

    /// Forgets all of them, and keeps the room they had.
    pub fn clear(&mut self) {
        self.heap.clear();
    }

    /// How many are armed.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// True if none is armed.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

impl<T: Copy + Ord> Default for Deadlines<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_in_order_of_time_then_of_arming() {
        let mut deadlines = Deadlines::new();
        for (at, what) in [(30, 'c'), (10, 'z'), (20, 'b'), (10, 'a')] {
            deadlines.arm(Nanos(at), what);
        }
        assert_eq!(deadlines.next(), Some(Nanos(10)));
        assert_eq!(deadlines.due(Nanos(9)), None);
        let due: Vec<char> = std::iter::from_fn(|| deadlines.due(Nanos(25))).collect();
        assert_eq!(due, ['z', 'a', 'b']);
        assert_eq!((deadlines.len(), deadlines.next()), (1, Some(Nanos(30))));
    }
}
