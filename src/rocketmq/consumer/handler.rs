//! The user's handler, whatever its shape, as the consume room sees it: bodies are inflated before it is called, what it
//! returns becomes an outcome, what went wrong is reported.

use std::any::Any;
use std::fmt::Display;
use std::sync::Arc;

use super::delivery::{Batch, Body, Inflated};
use super::pulled::Pulled;
use crate::consume::claim::{Hand, Listen};
use crate::consume::listener::{IntoOutcome, Mark, Outcome};
use crate::error::WireError;
use crate::model::Queue;
use crate::wire::compress;
use crate::wire::remoting::record::Record;
use crate::work::budget::Budget;

/// A handler as a type of its own, for when its state deserves a name. Where a closure is enough, use
/// [`PushConsumerBuilder::handler`](crate::PushConsumerBuilder::handler).
pub trait Listener: Send + Sync + 'static {
    /// Handles a batch. Several workers may call it at the same time. The outcome applies to the messages that were not
    /// marked; a panic counts as [`Outcome::Retry`].
    fn on_batch(&self, batch: &Batch<'_>) -> Outcome;
}

impl<L: Listener + ?Sized> Listener for Box<L> {
    fn on_batch(&self, batch: &Batch<'_>) -> Outcome {
        (**self).on_batch(batch)
    }
}

impl<L: Listener + ?Sized> Listener for Arc<L> {
    fn on_batch(&self, batch: &Batch<'_>) -> Outcome {
        (**self).on_batch(batch)
    }
}

/// Takes the text of an error that a handler returned.
pub type Failed<'a> = dyn FnMut(&dyn Display) + 'a;
/// A handler for all workers.
pub type SharedCode = dyn Fn(&Batch<'_>, &mut Failed<'_>) -> Outcome + Send + Sync;
/// A handler of one worker.
pub type WorkerCode = dyn FnMut(&Batch<'_>, &mut Failed<'_>) -> Outcome;
/// Makes the handler of a worker from its number.
pub type MakeCode = dyn Fn(usize) -> Box<WorkerCode> + Send + Sync;

/// User code in one of its shapes.
pub enum Code {
    /// One for all workers.
    Shared(Box<SharedCode>),
    /// One for each worker, made on its thread.
    PerWorker(Box<MakeCode>),
}

impl Code {
    /// A closure that runs on several workers at a time.
    pub fn shared<F, R>(handler: F) -> Self
    where
        F: Fn(&Batch<'_>) -> R + Send + Sync + 'static,
        R: IntoOutcome,
    {
        Self::Shared(Box::new(move |batch, failed| handler(batch).into_outcome(failed)))
    }

    /// Closures that stay on their workers.
    pub fn per_worker<M, F, R>(factory: M) -> Self
    where
        M: Fn(usize) -> F + Send + Sync + 'static,
        F: FnMut(&Batch<'_>) -> R + 'static,
        R: IntoOutcome,
    {
        Self::PerWorker(Box::new(move |worker| {
            let mut handler = factory(worker);
            Box::new(move |batch, failed| handler(batch).into_outcome(failed))
        }))
    }
}

/// Told that a handler panicked or returned an error: on which queue, in its words.
pub type Report = Box<dyn Fn(&Queue, String) + Send + Sync>;

/// See the head of this file.
pub struct Handler {
    /// User code.
    pub code: Code,
    /// What inflated bodies are charged to.
    pub budget: Budget,
    /// Most bytes that a compressed body may inflate to.
    pub max_body: usize,
    /// Told of panics and errors.
    pub report: Report,
}

impl Handler {
    /// Inflates what is compressed. What does not inflate is marked as a dead letter and not shown. Nothing is allocated
    /// if nothing is compressed.
    fn bodies(&self, hand: Hand<'_, Pulled>) -> Vec<Body> {
        let records = || {
            hand.places().filter_map(|place| {
                let (part, at) = hand.chunk.at(place)?;
                Some((place, &part.batch, part.batch.records.get(at)?))
            })
        };
        if !records().any(|(_, _, record)| record.is_compressed()) {
            return Vec::new();
        }
        let body = |(place, pulled, record): (u32, &Arc<Pulled>, &Record)| {
            if !record.is_compressed() {
                return Body::Plain;
            }
            match inflate(pulled, record, self.max_body) {
                Ok(bytes) => {
                    let charge = self.budget.charge(bytes.capacity() as u64);
                    Body::Inflated(Arc::new(Inflated { bytes, _charge: charge }))
                }
                Err(error) => {
                    hand.marks.reason(place, format!("body cannot be inflated: {error}"));
                    hand.marks.set(place, Mark::Outcome(Outcome::DeadLetter));
                    Body::Unreadable
                }
            }
        };
        records().map(body).collect()
    }
}

/// The body of one message, inflated.
fn inflate(pulled: &Pulled, record: &Record, ceiling: usize) -> Result<Vec<u8>, WireError> {
    let (mut bytes, body) = (Vec::new(), record.body(pulled.frame.bytes()));
    match compress::Kind::of_flag(record.sys_flag)? {
        Some(kind) => compress::inflate(kind, body, ceiling, &mut bytes)?,
        None => bytes.extend_from_slice(body),
    }
    Ok(bytes)
}

impl Listen<Pulled> for Handler {
    fn local(&self, worker: usize) -> Box<dyn Any> {
        match &self.code {
            Code::Shared(_) => Box::new(()),
            Code::PerWorker(make) => Box::new(make(worker)),
        }
    }

    fn handle(&self, hand: Hand<'_, Pulled>, local: &mut dyn Any) -> Outcome {
        let bodies = self.bodies(hand);
        let batch = Batch::new(hand, &bodies);
        if batch.is_empty() {
            return Outcome::DeadLetter;
        }
        let mut failed = |error: &dyn Display| (self.report)(batch.queue(), error.to_string());
        match &self.code {
            Code::Shared(handler) => handler(&batch, &mut failed),
            Code::PerWorker(_) => match local.downcast_mut::<Box<WorkerCode>>() {
                Some(handler) => handler(&batch, &mut failed),
                None => Outcome::Retry,
            },
        }
    }

    fn panicked(&self, hand: Hand<'_, Pulled>, message: &str) {
        (self.report)(&hand.chunk.first().batch.queue, format!("panicked: {message}"));
    }
}
