//! The lane for what blocks: a few `wl-serve-N` threads that run bounded jobs, so that no loop ever waits.
//!
//! Name resolution, files, callbacks of the user, cold reads. The first thread takes only the library's own jobs, so
//! that callbacks that hang can not stop name resolution. Client and embedded broker have a lane each. A job that panics
//! ends alone. It never runs a job on the thread that brings it; a lane without threads runs none until a simulation
//! asks for it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select};
use log::{error, warn};

use super::clock::after;
use super::fence::fenced;
use super::threads::{Thread, spawn};

/// Jobs that may wait in each of the two channels. A loop that finds one full keeps the job or fails the call that
/// brought it; it never waits.
pub const WAITING_JOBS: usize = 1024;

/// How long the threads of a lane that nobody came to use may take to end. They have nothing to do.
const UNUSED: Duration = Duration::from_secs(5);
/// Threads at start: one for the library's own jobs, one for all.
const FIRST: usize = 2;

/// Most threads; the others are started when jobs wait and every thread is busy.
const MOST: usize = 4;

type Run = Box<dyn FnOnce() + Send>;

/// A lane of a few threads. Cheap to clone; the last clone's drop closes it without waiting.
#[derive(Clone)]
pub struct Lane {
    shared: Arc<Shared>,
}

struct Shared {
    own: Sender<Run>,
    user: Sender<Run>,
    work: Arc<Work>,
    threads: Mutex<Vec<Thread>>,
    /// Most threads.
    most: usize,
}

struct Work {
    own: Receiver<Run>,
    user: Receiver<Run>,
    busy: AtomicUsize,
    closed: AtomicBool,
    stop: Receiver<Run>,
    stopper: Mutex<Option<Sender<Run>>>,
}

/// A job that was not taken: too many wait, or the lane is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// [`WAITING_JOBS`] jobs of this kind wait already.
    Full,
    /// The lane has been closed.
    Closed,
}

impl Lane {
    /// A lane with its first two threads running.
    ///
    /// # Errors
    /// The system's, if it refuses threads.
    pub fn start() -> std::io::Result<Self> {
        let lane = Self::with_most(MOST);
        for _ in 0..FIRST {
            lane.grow().inspect_err(|_| lane.close_unused())?;
        }
        Ok(lane)
    }

    /// A lane without threads: a simulation runs its jobs by [`Lane::run_next`].
    pub fn unmanned() -> Self {
        Self::with_most(0)
    }

    fn with_most(most: usize) -> Self {
        let ((own, own_jobs), (user, user_jobs)) = (bounded(WAITING_JOBS), bounded(WAITING_JOBS));
        // Nothing is ever sent on it: dropping the sender is the signal. It is a channel of jobs like the others because
        // each kind of channel costs a program 12 kB.
        let (stopper, stop) = bounded(0);
        let work = Arc::new(Work {
            own: own_jobs,
            user: user_jobs,
            busy: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            stop,
            stopper: Mutex::new(Some(stopper)),
        });
        Self { shared: Arc::new(Shared { own, user, work, threads: Mutex::new(Vec::new()), most }) }
    }

    /// Runs one waiting job on the calling thread, the library's own first. False if none waits.
    pub fn run_next(&self) -> bool {
        let work = &self.shared.work;
        let Ok(job) = work.own.try_recv().or_else(|_| work.user.try_recv()) else { return false };
        work.run(job);
        true
    }

    /// True if no job waits: a moment old.
    pub fn is_quiet(&self) -> bool {
        self.shared.work.own.is_empty() && self.shared.work.user.is_empty()
    }

    /// Hands over a job of the library's own: it blocks for a bounded time and calls no user code.
    ///
    /// # Errors
    /// [`Refused`]; the job has been dropped.
    pub fn own(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Refused> {
        self.submit(&self.shared.own, Box::new(job))
    }

    /// Hands over a job that calls user code.
    ///
    /// # Errors
    /// [`Refused`]; the job has been dropped.
    pub fn user(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Refused> {
        self.submit(&self.shared.user, Box::new(job))
    }

    /// Takes no more jobs, drops those that wait, and waits for those that run, at most until `deadline`. False if a
    /// thread has not ended by then, or if this is one of the lane's own threads.
    pub fn close(&self, deadline: Instant) -> bool {
        self.shared.work.close();
        let threads = std::mem::take(&mut *self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner));
        // Every thread gets its chance before the verdict.
        threads.iter().filter(|thread| !thread.join_by(deadline)).count() == 0
    }

    /// Closes a lane that nobody came to use, as a start does that fails later on.
    pub fn close_unused(&self) {
        self.close(after(UNUSED));
    }

    fn submit(&self, to: &Sender<Run>, job: Run) -> Result<(), Refused> {
        let work = &self.shared.work;
        if work.closed.load(Ordering::SeqCst) {
            return Err(Refused::Closed);
        }
        to.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => Refused::Full,
            TrySendError::Disconnected(_) => Refused::Closed,
        })?;
        if work.closed.load(Ordering::SeqCst) {
            // Closed in between: nobody will take it.
            work.close();
            return Err(Refused::Closed);
        }
        // The thread that was started last may not have taken its job yet: at worst one thread too many is started,
        // up to the same bound.
        let short = work.busy.load(Ordering::SeqCst) + 1 >= self.threads() && self.threads() < self.shared.most;
        if let Some(error) = short.then(|| self.grow().err()).flatten() {
            warn!(target: "windlass::work", "serve lane stays at its size: error={error}");
        }
        Ok(())
    }

    fn threads(&self) -> usize {
        self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn grow(&self) -> std::io::Result<()> {
        let mut threads = self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let number = threads.len();
        if number >= self.shared.most || self.shared.work.closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let work = self.shared.work.clone();
        threads.push(spawn(&format!("wl-serve-{number}"), move || work.serve(number == 0))?);
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.work.close();
    }
}

impl Work {
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        drop(self.stopper.lock().unwrap_or_else(PoisonError::into_inner).take());
        // What waits is dropped here, so that whoever waits for its answer learns at once.
        while self.own.try_recv().is_ok() || self.user.try_recv().is_ok() {}
    }

    fn serve(&self, own_only: bool) {
        while let Some(job) = self.next(own_only) {
            self.run(job);
        }
    }

    fn run(&self, job: Run) {
        self.busy.fetch_add(1, Ordering::SeqCst);
        if fenced(job).is_err() {
            error!(target: "windlass::work", "a job of the serve lane panicked");
        }
        self.busy.fetch_sub(1, Ordering::SeqCst);
    }

    fn next(&self, own_only: bool) -> Option<Run> {
        let job = if own_only {
            select! { recv(self.own) -> job => job, recv(self.stop) -> _ => return None }
        } else {
            select! { recv(self.own) -> job => job, recv(self.user) -> job => job, recv(self.stop) -> _ => return None }
        };
        job.ok().filter(|_| !self.closed.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn hung_user_jobs_do_not_stop_own_jobs() {
        let lane = Lane::start().unwrap();
        let (go, wait) = crossbeam_channel::bounded::<()>(0);
        for _ in 0..20 {
            let wait = wait.clone();
            lane.user(move || {
                let _ = wait.recv();
            })
            .unwrap();
        }
        let (tell, told) = mpsc::channel();
        lane.own(move || tell.send(std::thread::current().name().map(str::to_owned)).unwrap()).unwrap();
        assert_eq!(told.recv_timeout(Duration::from_secs(10)).unwrap().as_deref(), Some("wl-serve-0"));
        assert!(lane.threads() <= MOST);
        drop(go);
        assert!(lane.close(soon()));
        assert_eq!(lane.own(|| {}), Err(Refused::Closed));
    }

    #[test]
    fn a_job_that_panics_ends_alone() {
        let lane = Lane::start().unwrap();
        for _ in 0..8 {
            lane.user(|| panic!("on purpose")).unwrap();
        }
        let (tell, told) = mpsc::channel();
        lane.user(move || tell.send(()).unwrap()).unwrap();
        assert!(told.recv_timeout(Duration::from_secs(10)).is_ok());
        assert!(lane.close(soon()));
    }

    #[test]
    fn the_number_of_waiting_jobs_is_bounded_and_they_are_dropped_at_close() {
        let lane = Lane::start().unwrap();
        let (go, wait) = crossbeam_channel::bounded::<()>(0);
        let alive = Arc::new(());
        let (begin, begun) = mpsc::channel();
        let mut refused = 0;
        for _ in 0..WAITING_JOBS + 10 {
            let (wait, alive, begin) = (wait.clone(), alive.clone(), begin.clone());
            let job = move || {
                begin.send(()).unwrap_or_default();
                drop((wait.recv(), alive));
            };
            refused += usize::from(lane.user(job) == Err(Refused::Full));
        }
        assert!((1..=10).contains(&refused), "{refused}");
        begun.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(!lane.close(Instant::now()), "jobs still run");
        assert!(Arc::strong_count(&alive) <= 1 + MOST);
        drop(go);
    }
}
