//! How other threads reach a loop: a bounded inbox and a bell that rings once per burst.
//!
//! Handles post; only the loop takes, or a simulation that stands in for one ([`without_loop`]). Posting never blocks, but
//! for [`Handle::post_within`]. The library's own threads, whose posts must not be lost, have places of their own that
//! callers cannot fill.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, TrySendError, bounded};

use super::counters::Counters;
use crate::work::sync::atomic::{AtomicBool, Ordering, fence};

/// Commands of callers that may wait. A caller who finds them all taken is told so; his call was not begun.
pub const CALLERS_PLACES: usize = 4096;
/// Commands of the library's own threads that may wait: workers' and lanes' results, at most a few per thread.
pub const OWN_PLACES: usize = 1024;

/// Posts commands to a loop. Cheap to clone.
pub struct Handle<C> {
    shared: Arc<Shared<C>>,
}

impl<C> Clone for Handle<C> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

struct Shared<C> {
    callers: Sender<C>,
    own: Sender<C>,
    waiting: Arc<Waiting<C>>,
    ringer: Arc<Ringer>,
    counters: Arc<Counters>,
}

/// What has been posted and not been taken. Both ends know it: the channel keeps what nobody will take until the last
/// handle goes, and whoever waits for its answer would not hear that the loop has ended.
struct Waiting<C> {
    callers: Receiver<C>,
    own: Receiver<C>,
    ended: AtomicBool,
}

impl<C> Waiting<C> {
    /// The next command: the own threads' first.
    fn take(&self) -> Option<C> {
        self.own.try_recv().or_else(|_| self.callers.try_recv()).ok()
    }

    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.clear();
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Drops what waits, whose takers learn of it by that.
    fn clear(&self) {
        while self.take().is_some() {}
    }
}

/// A command that was not taken, given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostError<C> {
    /// Too many wait. Nothing was begun.
    Full(C),
    /// The loop has ended.
    Closed(C),
}

impl<C> PostError<C> {
    /// The command.
    pub fn into_command(self) -> C {
        match self {
            Self::Full(command) | Self::Closed(command) => command,
        }
    }
}

impl<C> Handle<C> {
    /// Posts a caller's command.
    ///
    /// # Errors
    /// [`PostError`] with the command.
    pub fn post(&self, command: C) -> Result<(), PostError<C>> {
        self.send(&self.shared.callers, command)
    }

    /// Posts a caller's command; waits up to `most` for a place.
    ///
    /// # Errors
    /// [`PostError`] with the command.
    pub fn post_within(&self, command: C, most: Duration) -> Result<(), PostError<C>> {
        if self.shared.waiting.has_ended() {
            return Err(PostError::Closed(command));
        }
        self.shared.callers.send_timeout(command, most).map_err(|error| match error {
            SendTimeoutError::Timeout(command) => PostError::Full(command),
            SendTimeoutError::Disconnected(command) => PostError::Closed(command),
        })?;
        self.posted();
        Ok(())
    }

    /// Posts a command of one of the library's own threads, which callers cannot crowd out. It overtakes theirs.
    ///
    /// # Errors
    /// [`PostError`] with the command.
    pub fn post_own(&self, command: C) -> Result<(), PostError<C>> {
        self.send(&self.shared.own, command)
    }

    /// Ends the loop after its current turn and what has been sent.
    pub fn stop(&self) {
        self.shared.ringer.stop.store(true, Ordering::SeqCst);
        self.shared.ringer.ring();
    }

    /// What the loop has done so far.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.shared.counters
    }

    fn send(&self, to: &Sender<C>, command: C) -> Result<(), PostError<C>> {
        if self.shared.waiting.has_ended() {
            return Err(PostError::Closed(command));
        }
        to.try_send(command).map_err(|error| match error {
            TrySendError::Full(command) => PostError::Full(command),
            TrySendError::Disconnected(command) => PostError::Closed(command),
        })?;
        self.posted();
        Ok(())
    }

    /// A command has been put down.
    fn posted(&self) {
        // Its fence stands between the command and the look at `ended`, as that of `Waiting::end` does the other way round:
        // either the loop's end finds the command, or this finds that it has come too late for that.
        self.shared.ringer.ring();
        if self.shared.waiting.has_ended() {
            self.shared.waiting.clear();
        }
    }
}

/// Wakes the loop if it sleeps.
pub(super) struct Ringer {
    pub bell: Bell,
    pub stop: AtomicBool,
    /// None: whoever takes the commands looks by himself.
    waker: Option<mio::Waker>,
    counters: Arc<Counters>,
}

impl Ringer {
    pub fn new(waker: mio::Waker, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self { bell: Bell::new(), stop: AtomicBool::new(false), waker: Some(waker), counters })
    }

    /// Has the loop look again at everything, if it sleeps or is about to.
    pub fn ring(&self) {
        if self.bell.must_ring() {
            self.counters.rings.bump_shared();
            if let Some(Err(error)) = self.waker.as_ref().map(mio::Waker::wake) {
                log::error!(target: "windlass::net", "cannot wake the loop: error={error}");
            }
        }
    }

    pub fn must_stop(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// The loop's end of the inbox. Dropping it drops what waits, and from then on every command comes back.
pub struct Inbox<C>(Arc<Waiting<C>>);

impl<C> Inbox<C> {
    /// An inbox and the handle that posts to it.
    pub(super) fn new(ringer: Arc<Ringer>, counters: Arc<Counters>) -> (Self, Handle<C>) {
        let ((callers, from_callers), (own, from_own)) = (bounded(CALLERS_PLACES), bounded(OWN_PLACES));
        let waiting = Arc::new(Waiting { callers: from_callers, own: from_own, ended: AtomicBool::new(false) });
        let shared = Arc::new(Shared { callers, own, waiting: waiting.clone(), ringer, counters });
        (Self(waiting), Handle { shared })
    }

    /// The next command: the own threads' first.
    pub fn take(&self) -> Option<C> {
        self.0.take()
    }

    /// True if no command waits: a moment old.
    pub fn is_empty(&self) -> bool {
        self.0.own.is_empty() && self.0.callers.is_empty()
    }
}

impl<C> Drop for Inbox<C> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// An inbox and its handle without a loop: a simulation drives the role and takes the commands itself.
pub fn without_loop<C>() -> (Inbox<C>, Handle<C>) {
    let counters = Arc::new(Counters::default());
    let ringer = Ringer { bell: Bell::new(), stop: AtomicBool::new(false), waker: None, counters: counters.clone() };
    Inbox::new(Arc::new(ringer), counters)
}

/// The agreement between a sleeper and those who bring it work: no work is left lying, and a burst rings once.
///
/// The sleeper says that it is about to sleep, and then looks once more. Who brings work puts it down, and then looks
/// whether anybody sleeps. The fences order each side's two steps, so that at least one of them sees the other's.
pub(super) struct Bell {
    asleep: AtomicBool,
}

impl Bell {
    pub fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// The sleeper's first step; he looks for work after it and before he sleeps.
    pub fn doze(&self) {
        // Swapped, not stored: loom orders only read-modify-writes among threads, and it costs the same.
        self.asleep.swap(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The sleeper is up again, or has found work and will not sleep.
    pub fn awake(&self) {
        self.asleep.swap(false, Ordering::SeqCst);
    }

    /// For who has put work down: true if he has to wake the sleeper. Only one of a burst has to.
    pub fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use loom::sync::{Arc, Mutex, Notify};

    /// Two posters and a sleeper: every command is taken, and nobody sleeps over one.
    #[test]
    fn loom_no_command_is_slept_over() {
        // Three switches at awkward moments are enough for every known way to get this wrong; all of them take hours.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = Arc::new((Bell::new(), Mutex::new(Vec::new()), Notify::new(), AtomicUsize::new(0)));
            let posters: Vec<_> = (0..2)
                .map(|number| {
                    let shared = shared.clone();
                    loom::thread::spawn(move || {
                        let (bell, inbox, waker, rings) = &*shared;
                        inbox.lock().unwrap().push(number);
                        if bell.must_ring() {
                            rings.fetch_add(1, SeqCst);
                            waker.notify();
                        }
                    })
                })
                .collect();
            let (bell, inbox, waker, rings) = &*shared;
            let (mut taken, mut slept) = (0, 0);
            while taken < 2 {
                bell.doze();
                if inbox.lock().unwrap().is_empty() {
                    // A lost ring would leave this thread here for ever, which loom reports.
                    waker.wait();
                    slept += 1;
                }
                bell.awake();
                taken += std::mem::take(&mut *inbox.lock().unwrap()).len();
            }
            for poster in posters {
                poster.join().unwrap();
            }
            assert!(rings.load(SeqCst) <= slept + 2);
        });
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn inbox<C>() -> (mio::Poll, Inbox<C>, Handle<C>, Arc<Ringer>) {
        let poll = mio::Poll::new().unwrap();
        let counters = Arc::new(Counters::default());
        let ringer = Ringer::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap(), counters.clone());
        let (inbox, handle) = Inbox::new(ringer.clone(), counters);
        (poll, inbox, handle, ringer)
    }

    #[test]
    fn own_threads_find_a_place_when_callers_have_taken_all_of_theirs() {
        let (_poll, inbox, handle, _) = inbox();
        let taken = (0..).take_while(|number| handle.post(*number).is_ok()).count();
        assert_eq!(taken, CALLERS_PLACES);
        assert_eq!(handle.post(7), Err(PostError::Full(7)));
        assert_eq!(handle.post_within(7, Duration::from_millis(1)), Err(PostError::Full(7)));
        assert_eq!(handle.post_own(99), Ok(()));
        assert_eq!((inbox.take(), inbox.take()), (Some(99), Some(0)));
        drop(inbox);
        assert_eq!(handle.post(7), Err(PostError::Closed(7)));
    }

    #[test]
    fn what_an_ended_loop_has_not_taken_is_dropped_at_once() {
        let (_poll, inbox, handle, _) = inbox::<Arc<()>>();
        let command = Arc::new(());
        handle.post(command.clone()).unwrap();
        handle.post_own(command.clone()).unwrap();
        drop(inbox);
        assert_eq!(Arc::strong_count(&command), 1);
        for refused in [handle.post(command.clone()), handle.post_within(command.clone(), Duration::from_secs(1))] {
            assert!(matches!(refused, Err(PostError::Closed(_))));
        }
        // Whoever was between his look and his post.
        handle.shared.callers.send(command.clone()).unwrap();
        handle.posted();
        assert_eq!(Arc::strong_count(&command), 1);
    }

    #[test]
    fn a_burst_rings_once_and_only_a_sleeper() {
        let (_poll, inbox, handle, ringer) = inbox();
        handle.post(1).unwrap();
        assert_eq!(handle.counters().rings.value(), 0, "the loop is awake");
        ringer.bell.doze();
        (0..10).for_each(|number| handle.post(number).unwrap());
        assert_eq!(handle.counters().rings.value(), 1);
        assert!(!inbox.is_empty());
    }
}
