//! What a loop has done so far, counted: system calls, frames, wake-ups. Benches gate these; nothing decides by them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one loop. Written by the thread that runs it (`rings` and `posts` by posters), read by anyone.
#[derive(Debug, Default)]
pub struct Counters {
    /// Calls of the system's poll.
    pub polls: Count,
    /// Reads of connections, those that found nothing included.
    pub reads: Count,
    /// Writes of connections, those that found no room included.
    pub writes: Count,
    /// Connections accepted.
    pub accepts: Count,
    /// Whole frames read.
    pub frames_in: Count,
    /// Pieces that a role has sent.
    pub sends: Count,
    /// Commands taken from the inbox.
    pub commands: Count,
    /// Times a poster had to wake the loop.
    pub rings: Count,
}

/// One counter.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// The value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds one, by the only thread that writes this counter.
    pub(super) fn bump(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Adds one, by any thread.
    pub(super) fn bump_shared(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
