//! Making the log durable: one step that syncs everything appended so far, whoever runs it, and the tickets of those
//! who wait for it.
//!
//! `wl-flush` runs the step ([`super::threads`]); a simulation runs it itself. Only one thread at a time may. A sync
//! that fails is final: the store takes nothing any more, and the same bytes are never synced again as if that could
//! help.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use super::event::{DurableError, Event};
use super::{Flush, Shared, Store};
use crate::work::sync::locked;

/// Who waits for the flush, and what wakes it.
#[derive(Default)]
pub(super) struct Flusher {
    gate: Mutex<Gate>,
    /// The flushing thread waits here.
    wake: Condvar,
    /// Those who wait for durability do here.
    done: Condvar,
    dirty: AtomicBool,
    hurried: AtomicBool,
}

#[derive(Default)]
struct Gate {
    /// Appends since the last flush began, under `Flush::Sync`.
    tickets: usize,
    /// The flush waits until there are as many.
    target: usize,
    stop: bool,
    failed: Option<String>,
}

impl Flusher {
    /// Under `Flush::Sync`: one more append waits.
    pub fn ticket(&self) {
        let mut gate = locked(&self.gate);
        gate.tickets += 1;
        if gate.tickets == 1 || gate.tickets == gate.target {
            self.wake.notify_one();
        }
    }

    /// Under `Flush::Async`: the log has grown to `end`.
    pub fn appended(&self, end: u64, durable: u64, flush_bytes: u64) {
        let first = !self.dirty.load(Ordering::SeqCst) && !self.dirty.swap(true, Ordering::SeqCst);
        let much = end.saturating_sub(durable) > flush_bytes
            && !self.hurried.load(Ordering::Relaxed)
            && !self.hurried.swap(true, Ordering::Relaxed);
        if first || much {
            let _gate = locked(&self.gate);
            self.wake.notify_one();
        }
    }

    /// Ends the flushing thread's waiting for good.
    pub fn stop(&self) {
        locked(&self.gate).stop = true;
        self.wake.notify_all();
    }

    /// Waits until there is something to flush. False: stop.
    pub fn wait_for_work(&self, flush: Flush, every: Duration, last: &LastSync) -> bool {
        match flush {
            Flush::Sync => self.gather(last),
            Flush::Async | Flush::None => {
                let mut gate = locked(&self.gate);
                while !gate.stop && !self.dirty.load(Ordering::SeqCst) {
                    gate = self.wake.wait(gate).unwrap_or_else(std::sync::PoisonError::into_inner);
                }
                let until = Instant::now() + every;
                loop {
                    let left = until.saturating_duration_since(Instant::now());
                    if gate.stop || left.is_zero() || self.hurried.load(Ordering::Relaxed) {
                        return !gate.stop;
                    }
                    gate = self.wake.wait_timeout(gate, left).unwrap_or_else(std::sync::PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Waits for a first ticket, then for as many as the last sync released, at most a quarter of its time: one sync
    /// then serves every sender that is on its way.
    fn gather(&self, last: &LastSync) -> bool {
        let mut gate = locked(&self.gate);
        while !gate.stop && gate.tickets == 0 {
            gate = self.wake.wait(gate).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        let until = Instant::now() + last.took / 4;
        gate.target = last.released;
        while !gate.stop && gate.tickets < gate.target {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            gate = self.wake.wait_timeout(gate, left).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        gate.target = 0;
        !gate.stop
    }

    /// Called as a flush begins: how many tickets it serves.
    fn begin(&self) -> usize {
        self.dirty.store(false, Ordering::SeqCst);
        self.hurried.store(false, Ordering::Relaxed);
        std::mem::take(&mut locked(&self.gate).tickets)
    }

    fn release(&self) {
        // The lock orders this after a waiter's look at the durable mark, so that none sleeps through it.
        drop(locked(&self.gate));
        self.done.notify_all();
    }

    fn fail(&self, detail: String) {
        locked(&self.gate).failed = Some(detail);
        self.done.notify_all();
    }
}

/// What the flushing thread remembers of its last sync.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastSync {
    pub took: Duration,
    pub released: usize,
}

impl Store {
    /// Everything below this position of the log is durable (under `Flush::None`: has been seen by a flush step).
    pub fn durable(&self) -> u64 {
        self.shared.durable.load(Ordering::SeqCst)
    }

    /// Blocks until everything below `end` is durable.
    ///
    /// # Errors
    /// `Timeout`, or `Failed` once a sync has failed; in both cases the message may or may not survive.
    pub fn wait_durable(&self, end: u64, most: Duration) -> Result<(), DurableError> {
        let shared = &*self.shared;
        let until = Instant::now() + most;
        let mut gate = locked(&shared.flusher.gate);
        loop {
            if shared.durable.load(Ordering::SeqCst) >= end {
                return Ok(());
            }
            if let Some(detail) = &gate.failed {
                return Err(DurableError::Failed { detail: detail.clone() });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(DurableError::Timeout);
            }
            gate = shared.flusher.done.wait_timeout(gate, left).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Makes durable what has been appended so far, and shows it under `Flush::Sync`. Blocks on the disk. Only one
    /// thread at a time may call it: `wl-flush`, or a simulation.
    ///
    /// # Errors
    /// What the system said; the store is read only from then on.
    pub fn flush_step(&self) -> Result<(), DurableError> {
        self.shared.flush_step().map(|_| ())
    }
}

impl Shared {
    /// Answers how many tickets it served.
    pub(super) fn flush_step(&self) -> Result<usize, DurableError> {
        let released = self.flusher.begin();
        let (to, marks) = {
            let tail = self.tail.lock();
            if let Some(detail) = tail.read_only.clone() {
                return Err(DurableError::Failed { detail });
            }
            (self.log_end.load(Ordering::SeqCst), tail.marks.clone())
        };
        let from = self.durable.load(Ordering::SeqCst);
        if from >= to {
            return Ok(released);
        }
        if self.options.flush != Flush::None
            && let Err(error) = self.sync_log(from, to)
        {
            let detail = error.to_string();
            self.take_no_more(&detail);
            return Err(DurableError::Failed { detail });
        }
        *locked(&self.durable_marks) = marks;
        self.durable.store(to, Ordering::SeqCst);
        self.flusher.release();
        self.show_grown(to);
        self.watch.durable(to);
        if !self.begun.swap(true, Ordering::SeqCst) {
            self.save_checkpoint(None);
        }
        self.segment_signal.raise_if(self.sealing_waits());
        Ok(released)
    }

    /// The store is read only from now on, and everybody who waits for durability hears why. Told once.
    pub(super) fn take_no_more(&self, detail: &str) {
        if self.tail.lock().read_only.replace(detail.to_owned()).is_some() {
            return;
        }
        self.flusher.fail(detail.to_owned());
        self.watch.event(Event::SyncFailed { place: self.disk.place(), detail: detail.to_owned() });
    }

    fn sync_log(&self, from: u64, to: u64) -> std::io::Result<()> {
        for segment in self.segments.all() {
            if segment.limit() <= from || segment.start >= to {
                continue;
            }
            // What is not durable yet is always mapped.
            let Some(region) = segment.region() else { continue };
            if !segment.len_synced.load(Ordering::Acquire) {
                region.sync_len()?;
                self.disk.sync_dir("log")?;
                // A store is opened without it as well, and the next segment tries again: no reason to take no more.
                if let Err(error) = self.sync_meta() {
                    self.watch.event(Event::CacheFailed { what: "META", detail: error.to_string() });
                }
                segment.len_synced.store(true, Ordering::Release);
            }
            let first = usize::try_from(from.saturating_sub(segment.start)).unwrap_or(usize::MAX);
            let last = usize::try_from(to.min(segment.limit()) - segment.start).unwrap_or(usize::MAX);
            region.sync_range(first, last)?;
        }
        Ok(())
    }

    /// Tells the watchers of queues that became visible up to `to`.
    fn show_grown(&self, to: u64) {
        if self.options.flush != Flush::Sync {
            return;
        }
        loop {
            let mut tail = self.tail.lock();
            if tail.growing.front().is_none_or(|(end, _)| *end > to) {
                return;
            }
            let Some((_, queue)) = tail.growing.pop_front() else { return };
            drop(tail);
            if queue.is_watched() {
                self.watch.grew(&queue);
            }
        }
    }
}
