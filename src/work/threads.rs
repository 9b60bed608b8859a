//! Named threads that can be joined with a deadline. Everything in this crate that starts a thread does it here.
//!
//! A thread is never joined by itself, and one that does not end in time is left alone and reported.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use super::clock::after;

/// Linux keeps this many bytes of a thread's name.
const NAME_BYTES: usize = 15;

/// A thread that was started under a name.
pub struct Thread {
    name: String,
    handle: Mutex<Option<JoinHandle<()>>>,
    id: ThreadId,
    ended: Arc<Ended>,
}

#[derive(Default)]
struct Ended {
    flag: Mutex<bool>,
    changed: Condvar,
}

/// Raises the flag however the thread ends.
struct Raise(Arc<Ended>);

impl Drop for Raise {
    fn drop(&mut self) {
        *self.0.flag.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }
}

/// Starts `run` on a thread called `name` (`wl-...`, at most 15 bytes; a longer one is cut).
///
/// # Errors
/// The system's, if it refuses another thread.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    start(name, Box::new(run))
}

/// Boxed, so that what starts a thread is compiled once.
fn start(name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<Thread> {
    debug_assert!(name.len() <= NAME_BYTES && name.starts_with("wl-"), "thread name {name}");
    let name: String = name.chars().take(NAME_BYTES).collect();
    let ended = Arc::new(Ended::default());
    let raise = Raise(ended.clone());
    let handle = std::thread::Builder::new().name(name.clone()).spawn(move || {
        let _raise = raise;
        run();
    })?;
    let id = handle.thread().id();
    Ok(Thread { name, handle: Mutex::new(Some(handle)), id, ended })
}

impl Thread {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True on the thread itself.
    pub fn is_current(&self) -> bool {
        std::thread::current().id() == self.id
    }

    /// True once it has ended or is about to.
    pub fn has_ended(&self) -> bool {
        *self.ended.flag.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it has ended, at most until `deadline`. False if it has not, or if this is the thread itself.
    pub fn join_by(&self, deadline: Instant) -> bool {
        if self.is_current() {
            return false;
        }
        let mut ended = self.ended.flag.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            ended = self.ended.changed.wait_timeout(ended, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(ended);
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic of the thread has been reported by the panic hook; there is nothing to add.
        drop(handle.map(JoinHandle::join));
        true
    }

    /// As [`join_by`](Self::join_by), `most` from now.
    pub fn join_within(&self, most: Duration) -> bool {
        self.join_by(after(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_is_joined_by_its_deadline_and_never_by_itself() {
        let (go, wait) = mpsc::channel::<()>();
        let thread = Arc::new(
            spawn("wl-test-1", move || {
                let _ = wait.recv();
            })
            .unwrap(),
        );
        assert_eq!(thread.name(), "wl-test-1");
        assert!(!thread.join_by(Instant::now()));
        drop(go);
        assert!(thread.join_within(Duration::from_secs(10)) && thread.has_ended());
        assert!(thread.join_within(Duration::ZERO), "joining again is harmless");

        let (tell, told) = mpsc::channel();
        let (give, own) = mpsc::channel::<Arc<Thread>>();
        let other = Arc::new(
            spawn("wl-test-2", move || {
                let itself = own.recv().unwrap();
                tell.send(itself.join_within(Duration::from_secs(10))).unwrap();
            })
            .unwrap(),
        );
        give.send(other.clone()).unwrap();
        assert_eq!(told.recv(), Ok(false));
    }

    #[test]
    fn a_thread_that_panics_has_ended() {
        let thread = spawn("wl-test-3", || panic!("on purpose")).unwrap();
        assert!(thread.join_within(Duration::from_secs(10)));
    }
}
