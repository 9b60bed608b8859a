//! What is in handlers' hands, by who took it when. A slab: taking and finishing allocate nothing once it is warm.
//!
//! Used by the process queue under its lock. A run ends when all of its messages have left it, or when it is given up
//! for stuck; its key is of no use afterwards.

use std::time::Duration;

use super::chunk::{Batch, Part, RunKey};
use crate::work::clock::Nanos;

/// See the head of this file.
pub struct Runs<B> {
    slots: Vec<Entry<B>>,
    free: Vec<u32>,
}

struct Entry<B> {
    generation: u32,
    run: Option<Run<B>>,
}

struct Run<B> {
    part: Part<B>,
    since: Nanos,
    /// Messages that have not left.
    left: u32,
}

impl<B> Default for Runs<B> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<B: Batch> Runs<B> {
    /// How many there are.
    pub fn live(&self) -> u32 {
        u32::try_from(self.slots.len().saturating_sub(self.free.len())).unwrap_or(u32::MAX)
    }

    /// Notes that a handler has taken `part`.
    pub fn start(&mut self, part: &Part<B>, now: Nanos) -> RunKey {
        let run = Some(Run { part: part.clone(), since: now, left: part.len() });
        let free = self.free.pop();
        match free.and_then(|at| Some((at, self.slots.get_mut(at as usize)?))) {
            Some((at, entry)) => {
                entry.generation = entry.generation.wrapping_add(1);
                entry.run = run;
                RunKey { at, generation: entry.generation }
            }
            None => {
                let at = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
                self.slots.push(Entry { generation: 0, run });
                RunKey { at, generation: 0 }
            }
        }
    }

    /// True while the run has not ended.
    pub fn holds(&self, key: RunKey) -> bool {
        self.slots.get(key.at as usize).is_some_and(|entry| entry.generation == key.generation && entry.run.is_some())
    }

    /// Messages have left the run. Its reference to the batch ends with it: the caller has another.
    pub fn leave(&mut self, key: RunKey, messages: u32) {
        if !self.holds(key) {
            return;
        }
        let Some(entry) = self.slots.get_mut(key.at as usize) else { return };
        let Some(run) = entry.run.as_mut() else { return };
        run.left = run.left.saturating_sub(messages);
        if run.left == 0 {
            entry.run = None;
            self.free.push(key.at);
        }
    }

    /// Takes all but the first `begun` messages out of the run. `None` if there are no others or the run has ended.
    pub fn recall(&mut self, key: RunKey, begun: u32) -> Option<Part<B>> {
        if !self.holds(key) {
            return None;
        }
        let run = self.slots.get_mut(key.at as usize)?.run.as_mut()?;
        let head = run.part.cut(begun)?;
        let rest = std::mem::replace(&mut run.part, head);
        run.left = run.left.saturating_sub(rest.len());
        Some(rest)
    }

    /// When the oldest run started. Looks at all of them: for timers, not for the path of a message.
    pub fn oldest(&self) -> Option<Nanos> {
        self.slots.iter().filter_map(|entry| Some(entry.run.as_ref()?.since)).min()
    }

    /// Ends a run that has lasted longer than `timeout`, if there is one.
    pub fn expire(&mut self, now: Nanos, timeout: Duration) -> Option<Part<B>> {
        let late = |run: &mut Run<B>| now.since(run.since) > timeout;
        let (at, run) = self.slots.iter_mut().zip(0..).find_map(|(entry, at)| Some((at, entry.run.take_if(late)?)))?;
        self.free.push(at);
        Some(run.part)
    }
}
