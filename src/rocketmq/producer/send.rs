//! The synchronous producer: what users hold, and one call from the message to its receipt.
//!
//! Everything runs on the caller's thread: check, id, compression, choice of a queue, the round trip on a call lane (or
//! the append itself, on the direct port of an embedded broker). The client's loop is only asked for routes.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3
//! client/src/main/java/org/apache/rocketmq/client/impl/producer/DefaultMQProducerImpl.java

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Attempt, Error, StartError, Stored};
use crate::model::{Message, Queue, QueueOffset};
use crate::rocketmq::client::{Client, Shared};
use crate::rocketmq::port::{Answer, Ask, CallError, SendAnswer, Target};
use crate::rocketmq::route::PublishQueue;

use super::attempts::{World, run};
use super::callbacks::Callbacks;
use super::check;
use super::choice::by_key;
use super::outcome::{Receipt, SendError, SendStatus};
use super::parcel::Parcel;
use super::permits::Permits;
use super::settings::Settings;
use super::topic::{Topic, Topics};

/// Sends messages of one group. Cheap to clone; all clones are one producer, and any thread may send.
///
/// The last clone that is dropped takes the group out of the heartbeats; [`shutdown`](Self::shutdown) does so at once.
#[derive(Clone)]
pub struct Producer {
    pub(super) member: Arc<Member>,
}

/// What makes the group known: held by the clones of a producer and its writers, not by sends on their way. It keeps the
/// client running.
pub(super) struct Member {
    pub(super) core: Arc<Core>,
    _client: Client,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.core.close();
    }
}

/// What the clones of a producer, its writers and its sends on the way share.
pub(super) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) settings: Settings,
    pub(super) topics: Topics,
    pub(super) permits: Arc<Permits>,
    pub(super) callbacks: Arc<Callbacks>,
    closed: AtomicBool,
}

impl Core {
    pub(super) fn start(client: &Client, settings: Settings) -> Result<Producer, StartError> {
        let shared = Arc::clone(client.shared());
        shared.register_producer(&settings.group)?;
        let permits = Permits::new(settings.in_flight_messages, settings.in_flight_bytes);
        let (topics, callbacks) = (Topics::new(), Arc::default());
        let core = Self { shared, settings, topics, permits, callbacks, closed: AtomicBool::new(false) };
        Ok(Producer { member: Arc::new(Member { core: Arc::new(core), _client: client.clone() }) })
    }

    pub(super) fn is_open(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.shared.unregister_producer(&self.settings.group);
        }
    }
}

impl Producer {
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.member.core
    }

    /// Sends a message and waits until a broker has stored it: at most `send_deadline`, with as many attempts as
    /// `retries` allows, each on another broker than the one before if there is one.
    ///
    /// # Errors
    /// [`SendError`] gives the message back, lists every attempt and says whether a broker may have stored it.
    pub fn send(&self, message: Message) -> Result<Receipt, Box<SendError>> {
        self.sent(message, |_, _| Ok(None))
    }

    /// Sends to one queue, with one attempt: order within a queue survives only if nobody tries elsewhere.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`Error::NoQueue`] if the topic has no such queue that can be written.
    pub fn send_to_queue(&self, queue: &Queue, message: Message) -> Result<Receipt, Box<SendError>> {
        if *queue.topic != *message.topic() {
            return Err(SendError::new(message, Error::Message { reason: "the queue belongs to another topic" }));
        }
        self.sent(message, |topic, deadline| {
            topic.find(&self.core().shared, &self.core().settings, queue, deadline).map(Some)
        })
    }

    /// Sends to the queue that `key` picks among the topic's queues, with one attempt, so that messages of one key keep
    /// their order while the number of queues stays. Picks what Java's `SelectMessageQueueByHash` picks.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_by_key(&self, key: &str, message: Message) -> Result<Receipt, Box<SendError>> {
        self.sent(message, |topic, deadline| {
            let queues = topic.queues(&self.core().shared, &self.core().settings, deadline)?;
            let none = || Error::NoQueue { topic: topic.name.to_string(), queue: None, wanted: "write" };
            by_key(&queues, key).cloned().ok_or_else(none).map(Some)
        })
    }

    /// Sends without waiting for an answer: nobody says whether the message was stored. Waits for nothing but a route
    /// that is not known yet.
    ///
    /// # Errors
    /// As [`send`](Self::send), as far as it is known before the request is on its way.
    pub fn send_oneway(&self, message: Message) -> Result<(), Box<SendError>> {
        let core = self.core();
        let sent = core.is_open().and_then(|()| {
            let parcel = Parcel::pack(&message, &core.settings, core.shared.clock().wall_ms())?;
            let topic = core.topics.find(message.topic(), &core.shared);
            let deadline = Instant::now() + core.settings.send_deadline;
            let to = topic.choose(&core.shared, &core.settings, None, deadline)?;
            let request = parcel.request(&core.settings, &to);
            let ask = Ask::Send { request: &request, body: parcel.body(message.body()) };
            let told = core.shared.caller().tell(Target::Broker(&to.addr), &ask);
            told.map_err(|error| error.into_error(ask.name()))
        });
        sent.map_err(|cause| SendError::new(message, cause))
    }

    /// The queues of a topic that can be sent to, by broker name, then id: the same order in every process.
    ///
    /// # Errors
    /// [`Error::UnknownTopic`] if neither the topic nor the template has a route; what asking for it can end in.
    pub fn queues(&self, topic: &str) -> Result<Vec<Queue>, Error> {
        let core = self.core();
        core.is_open()?;
        check::topic(topic).map_err(|reason| Error::Message { reason })?;
        let deadline = Instant::now() + core.settings.send_deadline;
        let queues = core.topics.find(topic, &core.shared).queues(&core.shared, &core.settings, deadline)?;
        Ok(queues.iter().map(|known| known.queue.clone()).collect())
    }

    /// The group that was given.
    pub fn group(&self) -> &str {
        &self.core().settings.group
    }

    /// Ends the producer, whatever clones there are: later sends are refused with [`Error::Closed`]. Sends that are on
    /// their way end as they would have.
    pub fn shutdown(&self) {
        self.core().close();
    }

    /// One synchronous call. `fixed` names the queue if only one will do.
    fn sent(
        &self,
        message: Message,
        fixed: impl FnOnce(&Topic, Instant) -> Result<Option<PublishQueue>, Error>,
    ) -> Result<Receipt, Box<SendError>> {
        let core = self.core();
        let result = core.is_open().and_then(|()| {
            let parcel = Parcel::pack(&message, &core.settings, core.shared.clock().wall_ms())?;
            let topic = core.topics.find(message.topic(), &core.shared);
            let begun = Instant::now();
            let fixed = fixed(&topic, begun + core.settings.send_deadline)?;
            deliver(core, &topic, &parcel, message.body(), fixed, begun)
        });
        result.map_err(|cause| SendError::new(message, cause))
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Producer({})", self.group())
    }
}

/// Sends a parcel: with all attempts, or with one to a queue that is given.
pub(super) fn deliver(
    core: &Core,
    topic: &Topic,
    parcel: &Parcel,
    plain: &[u8],
    fixed: Option<PublishQueue>,
    begun: Instant,
) -> Result<Receipt, Error> {
    let retries = if fixed.is_some() { 0 } else { core.settings.retries };
    let mut call = Call { core, topic, parcel, plain, fixed, begun, closed: false };
    let done = run(&mut call, &core.settings, retries, &topic.name);
    let ((queue, sent), status) = done.map_err(|error| {
        topic.forget_template();
        match error {
            // Nobody can have it, and no later call will do better.
            Error::Send { stored: Stored::No, .. } if call.closed => Error::Closed,
            other => other,
        }
    })?;
    Ok(receipt(sent, queue, status, parcel))
}

/// One call as its attempts see it.
struct Call<'c> {
    core: &'c Core,
    topic: &'c Topic,
    parcel: &'c Parcel,
    plain: &'c [u8],
    fixed: Option<PublishQueue>,
    begun: Instant,
    /// The client has been shut down.
    closed: bool,
}

impl World for Call<'_> {
    type Queue = PublishQueue;
    type Stored = (Queue, SendAnswer);

    fn spent(&self) -> Duration {
        self.begun.elapsed()
    }

    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    fn choose(&mut self, avoid: Option<&str>, until: Duration) -> Result<PublishQueue, Error> {
        match &self.fixed {
            Some(queue) => Ok(queue.clone()),
            None => self.topic.choose(&self.core.shared, &self.core.settings, avoid, self.begun + until),
        }
    }

    fn attempt(&mut self, to: &PublishQueue, until: Duration) -> Result<((Queue, SendAnswer), SendStatus), Attempt> {
        let request = self.parcel.request(&self.core.settings, to);
        let ask = Ask::Send { request: &request, body: self.parcel.body(self.plain) };
        let answer = self.core.shared.caller().call(Target::Broker(&to.addr), &ask, self.begun + until);
        match answer.and_then(stored) {
            Ok((sent, status)) => Ok(((to.queue.clone(), sent), status)),
            Err(error) => {
                self.closed = matches!(error, CallError::Closed);
                Err(attempt(to, Duration::ZERO, &error))
            }
        }
    }
}

/// The answer to a send, and how safely the message is stored.
pub(super) fn stored(answer: Answer) -> Result<(SendAnswer, SendStatus), CallError> {
    let sent = answer.sent()?;
    let status = SendStatus::of_code(sent.code).unwrap_or(SendStatus::Stored);
    Ok((sent, status))
}

/// `asked` with the queue that the broker really took.
pub(super) fn receipt(sent: SendAnswer, asked: Queue, status: SendStatus, parcel: &Parcel) -> Receipt {
    Receipt {
        queue: Queue { id: sent.queue_id, ..asked },
        offset: QueueOffset(sent.queue_offset),
        status,
        message_id: parcel.id,
        offset_message_id: sent.id,
    }
}

/// A failed attempt, for the error's list.
pub(super) fn attempt(to: &PublishQueue, took: Duration, error: &CallError) -> Attempt {
    Attempt {
        broker: to.queue.broker.to_string(),
        stage: error.stage(),
        took,
        code: error.code(),
        detail: error.to_string(),
    }
}
