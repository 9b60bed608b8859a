//! The synchronisation types of this crate: those of the standard library, or loom's when the crate is built with
//! `--cfg loom`, so that the hand-overs between threads can be explored exhaustively.
//!
//! Only what loom tests need goes through here; channels, parking and the mio loop never do.

#[cfg(loom)]
pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Atomics, from the same source as the locks.
pub mod atomic {
    #[cfg(loom)]
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    #[cfg(not(loom))]
    pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}

/// The guard of `mutex`, entered even if a thread panicked while it held it: no user code runs under a lock of this
/// crate, and each of them is consistent between any two statements.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
