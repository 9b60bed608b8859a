//! Asynchronous sends: over the client's loop, many at once, each with exactly one outcome.
//!
//! The calling thread packs, waits for room and writes the request to the loop; answers, time-outs and retries are the
//! loop's. Nothing here blocks the loop: callbacks run on the serve lane.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3
//! client/src/main/java/org/apache/rocketmq/client/impl/MQClientAPIImpl.java (sendMessageAsync, onExceptionImpl)

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Attempt, Error, Stage};
use crate::model::Message;
use crate::rocketmq::port::{Answer, Ask, CallError, Target};
use crate::rocketmq::route::PublishQueue;
use crate::work::budget::Charge;

use super::callbacks::Callback;
use super::outcome::{Receipt, SendError};
use super::parcel::Parcel;
use super::permits::Permit;
use super::retry::{self, Budget, may_retry};
use super::send::{Core, Producer, attempt, receipt, stored};
use super::ticket::{Cell, Outcome, Ticket};
use super::topic::Topic;

impl Producer {
    /// Sends without waiting for the answer; the ticket brings it. Waits only for a route that is not known yet and for
    /// room when `in_flight` is used up, at most `send_deadline`.
    ///
    /// Retries after a lost connection or a missing answer, never after a broker's refusal.
    ///
    /// # Errors
    /// [`SendError`] with the message if nothing was sent; [`Error::Overloaded`] if no room came in time.
    pub fn send_async(&self, message: Message) -> Result<Ticket, Box<SendError>> {
        let cell = Cell::new();
        let ticket = Ticket::new(Arc::clone(&cell));
        self.launch(message, Finish::Ticket(cell)).map(|()| ticket)
    }

    /// As [`send_async`](Self::send_async), but hands the outcome to `done`: exactly once, on one of the client's serving
    /// threads, where the callbacks of a producer run one after the other.
    ///
    /// # Errors
    /// As [`send_async`](Self::send_async); `done` is then not called.
    pub fn send_then(
        &self,
        message: Message,
        done: impl FnOnce(Result<Receipt, Box<SendError>>) + Send + 'static,
    ) -> Result<(), Box<SendError>> {
        self.launch(message, Finish::Callback(Box::new(done)))
    }

    fn launch(&self, message: Message, finish: Finish) -> Result<(), Box<SendError>> {
        match self.ready(&message) {
            Ok(ready) => Flight::start(self.core(), message, ready, finish),
            Err(cause) => Err(SendError::new(message, cause)),
        }
    }

    /// Everything that may wait, on the caller's thread.
    fn ready(&self, message: &Message) -> Result<Ready, Error> {
        let core = self.core();
        core.is_open()?;
        core.callbacks.schedule(core.shared.lane());
        let begun = Instant::now();
        let parcel = Parcel::pack(message, &core.settings, core.shared.clock().wall_ms())?;
        let topic = core.topics.find(message.topic(), &core.shared);
        let first = topic.choose(&core.shared, &core.settings, None, begun + core.settings.send_deadline)?;
        let wait = core.settings.send_deadline.saturating_sub(begun.elapsed());
        let permit = core.permits.take(message.body().len(), wait).ok_or(Error::Overloaded { what: "in_flight" })?;
        let charge = core.shared.budget().charge(message.body().len() as u64);
        Ok(Ready { parcel, topic, first, permit, charge, begun })
    }
}

struct Ready {
    parcel: Parcel,
    topic: Arc<Topic>,
    first: PublishQueue,
    permit: Permit,
    charge: Charge,
    begun: Instant,
}

enum Finish {
    Ticket(Arc<Cell>),
    Callback(Callback),
}

/// One send on its way.
struct Flight {
    core: Arc<Core>,
    topic: Arc<Topic>,
    message: Message,
    parcel: Parcel,
    /// A send on its way takes part in the client's memory.
    _charge: Charge,
    begun: Instant,
    state: Mutex<State>,
}

/// What changes while it is on its way. Lock: a leaf, never held over a call.
struct State {
    budget: Budget,
    attempts: Vec<Attempt>,
    /// Gone once the outcome is told.
    finish: Option<(Finish, Permit)>,
}

impl Flight {
    fn start(core: &Arc<Core>, message: Message, ready: Ready, finish: Finish) -> Result<(), Box<SendError>> {
        let budget = Budget::new(core.settings.send_deadline, core.settings.async_retries);
        let state = State { budget, attempts: Vec::new(), finish: Some((finish, ready.permit)) };
        let flight = Arc::new(Self {
            core: Arc::clone(core),
            topic: ready.topic,
            message,
            parcel: ready.parcel,
            _charge: ready.charge,
            begun: ready.begun,
            state: Mutex::new(state),
        });
        flight.go(ready.first).map_err(|error| {
            // Nothing is on its way: the caller hears it now, and nobody later.
            let told = flight.state().finish.take();
            drop(told);
            SendError::new(flight.message.clone(), error.into_error("SEND_MESSAGE"))
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one attempt. An error means that it was not made.
    fn go(self: &Arc<Self>, to: PublishQueue) -> Result<(), CallError> {
        let spent = self.begun.elapsed();
        let until = self.state().budget.attempt(spent);
        let Some(until) = until else { return Err(CallError::Timeout { waited: spent }) };
        let timeout = until.saturating_sub(spent).min(self.core.settings.attempt_limit);
        let request = self.parcel.request(&self.core.settings, &to);
        let ask = Ask::Send { request: &request, body: self.parcel.body(self.message.body()) };
        let (flight, asked) = (Arc::clone(self), to.clone());
        let done = Box::new(move |answer| flight.answered(asked, spent, answer));
        self.core.shared.caller().start(Target::Broker(&to.addr), &ask, timeout, done)
    }

    /// Thread: the loop.
    fn answered(self: Arc<Self>, to: PublishQueue, asked: Duration, answer: Result<Answer, CallError>) {
        let error = match answer.and_then(stored) {
            Ok((sent, status)) => return self.finish(Ok(receipt(sent, to.queue, status, &self.parcel))),
            Err(error) => error,
        };
        let failed = attempt(&to, self.begun.elapsed().saturating_sub(asked), &error);
        let again = failed.code.is_none() && may_retry(&failed) && !matches!(error, CallError::Closed);
        let left = {
            let mut state = self.state();
            state.attempts.push(failed);
            state.budget.attempts > 0
        };
        if again && left {
            // The queue is chosen anew, so it exists on the broker that is asked (Java keeps the old one's number).
            if let Some(next) = self.topic.choose_known(&to.queue.broker) {
                match self.go(next.clone()) {
                    Ok(()) => return,
                    Err(error) => self.state().attempts.push(attempt(&next, Duration::ZERO, &error)),
                }
            }
        }
        self.fail();
    }

    fn fail(&self) {
        let attempts = std::mem::take(&mut self.state().attempts);
        let stored = retry::stored(&attempts);
        let cause = Error::Send { topic: self.topic.name.to_string(), attempts, stored };
        self.finish(Err(SendError::new(self.message.clone(), cause)));
    }

    /// Tells the outcome, once.
    fn finish(&self, outcome: Outcome) {
        let Some((finish, permit)) = self.state().finish.take() else { return };
        match finish {
            Finish::Ticket(cell) => {
                drop(permit);
                cell.fulfil(outcome);
            }
            Finish::Callback(done) => self.core.callbacks.push(self.core.shared.lane(), done, outcome, permit),
        }
    }
}

impl Drop for Flight {
    /// A send whose answer can no longer come has an outcome too.
    fn drop(&mut self) {
        let unfinished = self.state().finish.is_some();
        if unfinished {
            self.state().attempts.push(Attempt {
                broker: String::new(),
                stage: Stage::Wait,
                took: self.begun.elapsed(),
                code: None,
                detail: "the client was shut down before the answer came".to_owned(),
            });
            self.fail();
        }
    }
}
