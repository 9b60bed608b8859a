//! When a command must end: a signal, its own deadline, or its work being done. Every command waits here and nowhere else.

use crossbeam_channel::{Receiver, Sender, bounded};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Why a command ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Why {
    /// What was asked for is done.
    Done,
    /// SIGINT or SIGTERM.
    Signal,
    /// `--timeout` is over.
    Timeout,
}

/// Waits for the first reason to end. Made once, at the start of a command: `--timeout` counts from here.
pub struct Stop {
    told: Receiver<Why>,
    tell: Sender<Why>,
    signalled: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

/// Tells a [`Stop`]; of several words the first counts.
#[derive(Clone)]
pub struct Tell(Sender<Why>);

impl Tell {
    /// From any thread, never blocks.
    pub fn done(&self) {
        let _full_means_told = self.0.try_send(Why::Done);
    }
}

impl Stop {
    /// Takes over SIGINT and SIGTERM, and SIGXFSZ so that a limit on files is an error. A second signal ends the process at once with exit code 1: an orderly end that
    /// hangs must not need SIGKILL.
    pub fn new(timeout: Option<Duration>) -> io::Result<Self> {
        let signalled = Arc::new(AtomicBool::new(false));
        let (tell, told) = bounded(1);
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, 1, Arc::clone(&signalled))?;
            flag::register(signal, Arc::clone(&signalled))?;
        }
        // A file that may not grow any further is an error of that write, not the end of the process.
        #[cfg(unix)]
        flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
        let from_signals = tell.clone();
        std::thread::Builder::new().name("wl-signals".into()).spawn(move || {
            for _signal in signals.forever() {
                let _full_means_told = from_signals.try_send(Why::Signal);
            }
        })?;
        Ok(Self { told, tell, signalled, deadline: timeout.and_then(|span| Instant::now().checked_add(span)) })
    }

    /// For the thread that knows when the work is done.
    pub fn tell(&self) -> Tell {
        Tell(self.tell.clone())
    }

    /// Blocks until there is a reason.
    pub fn wait(&self) -> Why {
        self.wait_but(Duration::ZERO)
    }

    /// Blocks until there is a reason, of `--timeout` all but `last`.
    pub fn wait_but(&self, last: Duration) -> Why {
        match self.deadline.map(|deadline| deadline.checked_sub(last).unwrap_or(deadline)) {
            Some(deadline) => self.told.recv_deadline(deadline).unwrap_or(Why::Timeout),
            None => self.told.recv().unwrap_or(Why::Done),
        }
    }

    /// A reason if there is one by now.
    pub fn now(&self) -> Option<Why> {
        if self.signalled.load(Ordering::Relaxed) {
            return Some(Why::Signal);
        }
        self.left().is_some_and(|left| left.is_zero()).then_some(Why::Timeout)
    }

    /// What `--timeout` leaves; `None` without one.
    pub fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// What was told, for a `select` beside other channels.
    pub fn told(&self) -> &Receiver<Why> {
        &self.told
    }
}
