//! What a handler gets: a batch, its deliveries, and deliveries that leave it.
//!
//! Everything borrows from the pulled frames; iterating, reading and marking allocate nothing. A mark on a delivery wins
//! over the outcome that the handler returns for the rest.

use std::fmt;
use std::sync::Arc;

use super::pulled::Pulled;
use super::received::{self, OwnedMessage, PropertyIter, View, readers};
use crate::consume::claim::{Detached, Hand};
use crate::consume::listener::{Mark, Outcome};
use crate::model::{DelayLevel, Queue, QueueOffset};
use crate::wire::remoting::properties::names;
use crate::wire::remoting::record::Record;
use crate::work::budget::Charge;

/// A body that was compressed, and its share of the client's memory budget.
pub(super) struct Inflated {
    pub(super) bytes: Vec<u8>,
    pub(super) _charge: Charge,
}

/// What became of the body at one place of a batch.
pub(super) enum Body {
    /// Stored as it is read.
    Plain,
    /// Inflated.
    Inflated(Arc<Inflated>),
    /// It cannot be inflated: already on its way to the dead letters, not shown.
    Unreadable,
}

/// Messages of one queue, in the order of their offsets, for one call of a handler.
///
/// Iterate over it by reference. It is `Sync`: a handler may lend it to threads of its own for the time it runs. What a
/// handler does not mark has the outcome that the handler returns.
pub struct Batch<'a> {
    hand: Hand<'a, Pulled>,
    /// By place in this call; empty if no body of the batch was compressed.
    bodies: &'a [Body],
}

impl<'a> Batch<'a> {
    pub(super) fn new(hand: Hand<'a, Pulled>, bodies: &'a [Body]) -> Self {
        Self { hand, bodies }
    }

    /// How many messages.
    pub fn len(&self) -> usize {
        let hidden = self.bodies.iter().filter(|body| matches!(body, Body::Unreadable)).count();
        self.hand.places().len().saturating_sub(hidden)
    }

    /// True if there are no messages. A handler is never called with an empty batch.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The queue they were pulled from: the group's retry topic for redelivered messages, whose own
    /// [`topic`](Delivery::topic) may differ from one to the next.
    pub fn queue(&self) -> &Queue {
        &self.hand.chunk.first().batch.queue
    }

    /// Number of the worker that runs the handler, from 0.
    pub fn worker(&self) -> usize {
        self.hand.worker
    }

    /// The messages in the order of their offsets.
    pub fn iter(&self) -> Deliveries<'_> {
        Deliveries { batch: self, place: self.hand.from }
    }

    /// The message at `index`, from 0.
    pub fn get(&self, index: usize) -> Option<Delivery<'_>> {
        self.iter().nth(index)
    }

    /// Marks the messages up to and including the one at `index` as done: Java's `ackIndex`. An index beyond the end
    /// marks all. What follows has the outcome that the handler returns.
    pub fn done_through(&self, index: usize) {
        self.iter().take(index.saturating_add(1)).for_each(|delivery| delivery.done());
    }

    /// Takes every message out of the batch, to be finished on any thread at any time; what the handler returns no longer
    /// applies to them. One that is dropped unfinished is delivered again later. Messages that were taken out before are
    /// not in the list.
    pub fn detach(&self) -> Vec<DetachedDelivery> {
        self.iter().filter_map(|delivery| delivery.detach()).collect()
    }

    fn at(&self, place: u32) -> Option<Delivery<'_>> {
        let (part, at) = self.hand.chunk.at(place)?;
        let body = self.bodies.get(place.saturating_sub(self.hand.from) as usize).unwrap_or(&Body::Plain);
        let inflated = match body {
            Body::Plain => None,
            Body::Inflated(inflated) => Some(inflated),
            Body::Unreadable => return None,
        };
        let view = View {
            pulled: &part.batch,
            record: part.batch.records.get(at)?,
            inflated: inflated.map(|inflated| &*inflated.bytes),
            attempt: part.attempt,
        };
        Some(Delivery { hand: self.hand, place, view, inflated })
    }
}

impl<'b> IntoIterator for &'b Batch<'_> {
    type Item = Delivery<'b>;
    type IntoIter = Deliveries<'b>;

    fn into_iter(self) -> Deliveries<'b> {
        self.iter()
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.iter().next().map(|delivery| delivery.offset().0);
        write!(f, "Batch({}, {} from {first:?})", self.queue(), self.len())
    }
}

/// The messages of a [`Batch`].
#[derive(Debug)]
pub struct Deliveries<'b> {
    batch: &'b Batch<'b>,
    place: u32,
}

impl<'b> Iterator for Deliveries<'b> {
    type Item = Delivery<'b>;

    fn next(&mut self) -> Option<Delivery<'b>> {
        while self.place < self.batch.hand.to {
            let place = self.place;
            self.place = place.saturating_add(1);
            if let Some(delivery) = self.batch.at(place) {
                return Some(delivery);
            }
        }
        None
    }
}

/// One message in a handler's hand, borrowed from its batch.
#[derive(Clone, Copy)]
pub struct Delivery<'a> {
    hand: Hand<'a, Pulled>,
    place: u32,
    view: View<'a>,
    inflated: Option<&'a Arc<Inflated>>,
}

impl<'a> Delivery<'a> {
    readers!('a);

    fn view(&self) -> View<'a> {
        self.view
    }

    /// Finished, whatever the handler returns.
    pub fn done(&self) {
        self.hand.marks.set(self.place, Mark::Outcome(Outcome::Done));
    }

    /// To be delivered again: after the delay of `level`, or, with `None`, after a delay that grows with each redelivery.
    pub fn retry(&self, level: impl Into<Option<DelayLevel>>) {
        self.hand.marks.set(self.place, Mark::Outcome(retry(level.into())));
    }

    /// Moved to the group's dead-letter topic at once. The reason is for the event and the log; it is not stored.
    pub fn dead_letter(&self, reason: impl fmt::Display) {
        self.hand.marks.reason(self.place, reason.to_string());
        self.hand.marks.set(self.place, Mark::Outcome(Outcome::DeadLetter));
    }

    /// Takes it out of the batch, to be finished on any thread at any time. `None` if it has been taken out before.
    pub fn detach(&self) -> Option<DetachedDelivery> {
        let detached = self.hand.detach(self.place)?;
        Some(DetachedDelivery { detached, record: *self.view.record, inflated: self.inflated.cloned() })
    }

    /// A copy that owns its bytes, and holds no more than them.
    pub fn into_owned(self) -> OwnedMessage {
        OwnedMessage::from(self.view)
    }
}

impl fmt::Debug for Delivery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delivery({} at {})", self.queue(), self.offset())
    }
}

/// A message that was taken out of its batch. It is `Send` and may be kept as long as you like, but until it is finished it
/// keeps the whole frame it arrived in, and its queue's committed offset cannot pass it. Dropped unfinished, it is delivered
/// again later.
///
/// A result that comes after the queue was given to another member, or after the consume time-out, is ignored: the
/// message is delivered again then.
#[must_use = "a detached delivery that is dropped is delivered again later"]
pub struct DetachedDelivery {
    detached: Detached<Pulled>,
    record: Record,
    inflated: Option<Arc<Inflated>>,
}

impl DetachedDelivery {
    readers!('_);

    fn view(&self) -> View<'_> {
        let (pulled, _) = self.detached.message();
        let inflated = self.inflated.as_ref().map(|inflated| &*inflated.bytes);
        View { pulled, record: &self.record, inflated, attempt: self.detached.attempt() }
    }

    /// Finished.
    pub fn done(self) {
        self.detached.finish(Outcome::Done, None);
    }

    /// To be delivered again: after the delay of `level`, or, with `None`, after a delay that grows with each redelivery.
    pub fn retry(self, level: impl Into<Option<DelayLevel>>) {
        self.detached.finish(retry(level.into()), None);
    }

    /// Moved to the group's dead-letter topic at once. The reason is for the event and the log; it is not stored.
    pub fn dead_letter(self, reason: impl fmt::Display) {
        self.detached.finish(Outcome::DeadLetter, Some(reason.to_string()));
    }
}

impl fmt::Debug for DetachedDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DetachedDelivery({} at {})", self.queue(), self.offset())
    }
}

fn retry(level: Option<DelayLevel>) -> Outcome {
    level.map_or(Outcome::Retry, Outcome::RetryAfter)
}

#[cfg(test)]
#[cfg(not(loom))]
#[path = "delivery_tests.rs"]
mod tests;
