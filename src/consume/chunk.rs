//! Messages on their way from the process queue to a handler: a batch, a stretch of it, what a worker has in hand, and
//! what failed. Data only; the process queue moves it.

use std::sync::Arc;

use super::listener::{Marks, Outcome};
use super::stretch::StretchKey;
use crate::model::QueueOffset;

/// Messages fetched together, in one place (a frame and its index). The queue asks it for offsets and sizes only.
///
/// Offsets ascend; one that is negative or known already is passed over.
pub trait Batch: Send + Sync + 'static {
    /// How many messages.
    fn len(&self) -> usize;
    /// True if there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Offset of the message at `at`, which is below [`len`](Self::len).
    fn offset(&self, at: usize) -> QueueOffset;
    /// Bytes that the message at `at` counts against the queue's limit.
    fn bytes(&self, at: usize) -> u64;
}

/// Which of a queue's claims something belongs to: a number that is never used twice in a process. Whatever carries an
/// older one comes too late and is ignored.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Epoch(pub u64);

/// Which posting of a claim's token something belongs to; a token that was taken back is of an older one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Generation(pub(super) u32);

/// Names what one handler has in hand of one batch, until it is finished or given up for stuck.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RunKey {
    pub(super) at: u32,
    pub(super) generation: u32,
}

/// A stretch of one batch.
#[derive(Debug)]
pub struct Part<B> {
    /// The batch.
    pub batch: Arc<B>,
    /// Place of the first message in the batch.
    pub from: u32,
    /// One past the place of the last.
    pub to: u32,
    /// How often these messages have been delivered here before without a trip to the broker.
    pub attempt: u32,
    /// Offset of the first message; with `dense` the others follow one by one.
    pub(super) first: i64,
    pub(super) dense: bool,
    /// What they count against the queue's limit together: known since they were put, when the index was warm.
    pub(super) bytes: u64,
    pub(super) run: RunKey,
}

impl<B> Clone for Part<B> {
    fn clone(&self) -> Self {
        Self { batch: self.batch.clone(), ..*self }
    }
}

impl<B> Part<B> {
    /// How many messages.
    pub fn len(&self) -> u32 {
        self.to.saturating_sub(self.from)
    }

    /// True if there is none, which the queue never hands out.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<B: Batch> Part<B> {
    pub(super) const NO_RUN: RunKey = RunKey { at: u32::MAX, generation: 0 };

    /// Offset of the message at `at` of the batch.
    pub(super) fn offset(&self, at: u32) -> i64 {
        if self.dense {
            self.first.saturating_add(i64::from(at.saturating_sub(self.from)))
        } else {
            self.batch.offset(at as usize).0
        }
    }

    /// Cuts the first `most` messages off. `None` if there are no more than that.
    pub(super) fn cut(&mut self, most: u32) -> Option<Self> {
        if self.len() <= most {
            return None;
        }
        let middle = self.from.saturating_add(most);
        let mut head = self.clone();
        head.to = middle;
        head.bytes = (self.from..middle).map(|at| self.batch.bytes(at as usize)).fold(0, u64::saturating_add);
        self.bytes = self.bytes.saturating_sub(head.bytes);
        self.first = self.offset(middle);
        self.from = middle;
        Some(head)
    }
}

/// What a worker has in hand: one stretch, or several if the consumer gathers over the borders of fetches.
#[derive(Debug)]
pub struct Chunk<B> {
    /// The claim it was taken from.
    pub epoch: Epoch,
    pub(super) first: Part<B>,
    /// Empty, and then not allocated, unless the consumer gathers.
    pub(super) more: Vec<Part<B>>,
    /// The token that this worker still owns; `None` once it was posted again.
    pub(super) token: Option<Generation>,
    /// If it is for several calls: which stretch of the claim. `None`: for one.
    pub(super) stretch: Option<StretchKey>,
}

impl<B> Chunk<B> {
    /// Its stretches, in the order of their offsets.
    pub fn parts(&self) -> impl Iterator<Item = &Part<B>> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Its first stretch; there always is one.
    pub fn first(&self) -> &Part<B> {
        &self.first
    }

    /// How many messages.
    pub fn len(&self) -> u32 {
        self.parts().map(Part::len).fold(0, u32::saturating_add)
    }

    /// True if there is none, which the queue never hands out.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if it is for several calls of the handler.
    pub fn is_stretch(&self) -> bool {
        self.stretch.is_some()
    }

    /// The stretch of the message at `place`, and its place in that stretch's batch.
    pub fn at(&self, place: u32) -> Option<(&Part<B>, usize)> {
        let mut before = place;
        for part in self.parts() {
            if before < part.len() {
                return Some((part, part.from.saturating_add(before) as usize));
            }
            before = before.saturating_sub(part.len());
        }
        None
    }
}

impl<B: Batch> Chunk<B> {
    /// Leaves the first `messages`, of its first part, in hand: the others were recalled.
    pub(super) fn keep(&mut self, messages: u32) {
        if let Some(kept) = self.first.cut(messages) {
            self.first = kept;
        }
    }
}

/// What was said about the messages of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct Verdicts<'a> {
    /// Marks by place in the chunk; `None` if there cannot be any.
    pub marks: Option<&'a Marks>,
    /// What becomes of the unmarked.
    pub rest: Outcome,
}

impl Verdicts<'_> {
    /// Everything is done, nothing was marked.
    pub const DONE: Self = Self { marks: None, rest: Outcome::Done };

    pub(super) fn all_done(&self, messages: u32) -> bool {
        self.marks.map_or(self.rest == Outcome::Done, |marks| marks.all_done(messages, self.rest))
    }
}

/// A message that is neither done nor in a handler's hand: it has to go to the retry or dead-letter topic, or be
/// delivered here again. Until then it holds the commit point back.
#[derive(Debug)]
pub struct Failed<B> {
    /// The claim it belongs to.
    pub epoch: Epoch,
    /// Its batch.
    pub batch: Arc<B>,
    /// Its place in the batch.
    pub at: u32,
    /// Its offset.
    pub offset: QueueOffset,
    /// How often it has been delivered here before without a trip to the broker: what its reconsume times have to be
    /// raised by.
    pub attempt: u32,
    /// What the handler said: never [`Outcome::Done`].
    pub outcome: Outcome,
    /// Why, if the handler said so.
    pub reason: Option<String>,
    /// True if no handler said anything: it was in hand for longer than the consume time-out.
    pub stuck: bool,
}
