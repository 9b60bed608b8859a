//! The push consumer: its builder with every setting, and what the user holds of a running one.
//!
//! `client.push_consumer(group)` gives the builder. Handlers run on the client's workers; pulls, assignment and commits
//! are the core's business.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::assign::{Assign, Averaging};
use super::delivery::Batch;
use super::group::{Assigned, ConsumerHandle, ConsumerReport, ConsumerSpec};
use super::handler::{Code, Handler, Listener};
use super::pulled::Pulled;
use super::settings::Wanted;
use crate::consume::claim::Consumer;
use crate::consume::listener::IntoOutcome;
use crate::consume::pool::Pool;
use crate::consume::progress::OffsetStore;
use crate::error::{ConfigError, Error, StartError};
use crate::model::StartFrom;
use crate::rocketmq::client::Client;
use crate::rocketmq::events::{Event, Observer};

/// How long a consumer that is dropped without `shutdown` waits for its running handlers.
const DROP_WAIT: Duration = Duration::from_secs(1);

/// Builds a [`PushConsumer`]: concurrent, clustering. Every setter takes and returns it; the bounds are checked by
/// [`start`](Self::start), which changes nothing if one of them is broken.
#[must_use = "nothing runs until `start`"]
pub struct PushConsumerBuilder {
    client: Client,
    wanted: Wanted,
    code: Option<Code>,
    assign: Arc<dyn Assign>,
    observer: Option<Arc<dyn Observer>>,
    offsets: Option<Arc<dyn OffsetStore>>,
}

impl PushConsumerBuilder {
    pub(in crate::rocketmq) fn new(client: Client, group: String) -> Self {
        let wanted = Wanted { group, ..Wanted::default() };
        Self { client, wanted, code: None, assign: Arc::new(Averaging), observer: None, offsets: None }
    }

    /// Subscribes to a topic. `tags` is `*` for all messages, or tags joined by `||`. Call it once for each topic; for the
    /// same topic the last call counts. The group's retry topic is always subscribed as well. All members of a group must
    /// have the same subscriptions. Default: none.
    pub fn subscribe(mut self, topic: impl Into<String>, tags: impl Into<String>) -> Self {
        self.wanted.subscriptions.push((topic.into(), tags.into()));
        self
    }

    /// Where a queue starts for which the group has no committed offset. Default [`StartFrom::Last`] (Java's
    /// `consumeFromWhere` and `consumeTimestamp`).
    pub fn start_from(mut self, start: StartFrom) -> Self {
        self.wanted.start_from = start;
        self
    }

    /// The most messages that one call of the handler gets, and how long a smaller batch waits for more to arrive. Default
    /// 1 and zero, allowed 1 to 1024 (Java's `consumeMessageBatchMaxSize`) and 0 to 60 s. With a wait of zero a batch
    /// never holds messages of two pulls, as in Java; with a longer wait it may.
    pub fn batch(mut self, messages: u32, wait: Duration) -> Self {
        self.wanted.batch = Some(messages);
        self.wanted.wait = Some(wait);
        self
    }

    /// How often a message is redelivered before the broker makes it a dead letter; it is delivered once more than this in
    /// all.
    /// Default 16, allowed 0 to `i32::MAX` (Java's `maxReconsumeTimes`, whose -1 means 16).
    pub fn max_redeliveries(mut self, times: u32) -> Self {
        self.wanted.max_redeliveries = Some(times);
        self
    }

    /// Most messages asked for in one pull. Default 32, allowed 1 to 1024 (Java's `pullBatchSize`). Brokers answer with
    /// 32 at most, and 256 KiB, unless they are set otherwise.
    pub fn pull_batch_size(mut self, messages: u32) -> Self {
        self.wanted.pull_batch_size = Some(messages);
        self
    }

    /// Most bytes asked for in one pull. Default 256 KiB, allowed 1 KiB to 15 MiB (Java's `pullBatchSizeInBytes`). Only
    /// brokers from 5.0 on know it.
    pub fn pull_batch_bytes(mut self, bytes: u32) -> Self {
        self.wanted.pull_batch_bytes = Some(bytes);
        self
    }

    /// Pause between an answer that brought messages and the next pull of its queue. Default zero, allowed up to
    /// 65 535 ms (Java's `pullInterval`).
    pub fn pull_interval(mut self, pause: Duration) -> Self {
        self.wanted.pull_interval = Some(pause);
        self
    }

    /// Pause after a pull that failed. Default 1 s, allowed 10 ms to 60 s (Java's `pullTimeDelayMillsWhenException`). It
    /// grows only while the broker cannot be reached, to 5 s at most.
    pub fn pull_retry_delay(mut self, pause: Duration) -> Self {
        self.wanted.pull_retry_delay = Some(pause);
        self
    }

    /// Whether every pull carries the tags, which then win over those the broker has from the heartbeat. Default false
    /// (Java's `postSubscriptionWhenPull`).
    pub fn post_subscription(mut self, post: bool) -> Self {
        self.wanted.post_subscription = post;
        self
    }

    /// A queue that holds more unfinished messages than this is not pulled. Default 1000, allowed 1 to 65 535 (Java's
    /// `pullThresholdForQueue`).
    pub fn queue_messages(mut self, messages: u64) -> Self {
        self.wanted.queue_messages = Some(messages);
        self
    }

    /// A queue that holds more whole MiB of unfinished bodies than this is not pulled. Default 100, allowed 1 to 1024
    /// (Java's `pullThresholdSizeForQueue`). The client's memory budget holds besides.
    pub fn queue_mebibytes(mut self, mebibytes: u64) -> Self {
        self.wanted.queue_mebibytes = Some(mebibytes);
        self
    }

    /// As [`queue_messages`](Self::queue_messages), for all queues of one topic together. Default: no limit,
    /// allowed 1 to 6 553 500 (Java's `pullThresholdForTopic`).
    pub fn topic_messages(mut self, messages: u64) -> Self {
        self.wanted.topic_messages = Some(messages);
        self
    }

    /// As [`queue_mebibytes`](Self::queue_mebibytes), for all queues of one topic together. Default: no limit,
    /// allowed 1 to 102 400 (Java's `pullThresholdSizeForTopic`).
    pub fn topic_mebibytes(mut self, mebibytes: u64) -> Self {
        self.wanted.topic_mebibytes = Some(mebibytes);
        self
    }

    /// A queue is not pulled while its newest fetched message is further than this from its oldest unfinished one. That
    /// bounds what is delivered again after a crash. Default 2000 offsets, allowed 1 to 65 535 (Java's `consumeConcurrentlyMaxSpan`).
    pub fn max_span(mut self, offsets: u64) -> Self {
        self.wanted.max_span = Some(offsets);
        self
    }

    /// A message whose handler has not returned after this time is sent back for redelivery, with delay level 3 (10 s), and
    /// what the handler returns later is ignored. Default 15 min, allowed 100 ms to 24 h (Java's `consumeTimeout`, in minutes).
    pub fn consume_timeout(mut self, timeout: Duration) -> Self {
        self.wanted.consume_timeout = Some(timeout);
        self
    }

    /// How long to wait for running handlers when a queue moves to another member, so that what they finish can still be
    /// committed. Default 1 s, allowed 0 to 20 s. The other member may already have started meanwhile.
    pub fn revoke_wait(mut self, wait: Duration) -> Self {
        self.wanted.revoke_wait = Some(wait);
        self
    }

    /// Whether a shutdown first delivers the messages that are fetched but not handled yet. Default false: they are
    /// dropped without being committed, and delivered again later, to this or another member.
    pub fn drain_on_shutdown(mut self, drain: bool) -> Self {
        self.wanted.drain = drain;
        self
    }

    /// Most bytes that a compressed body may inflate to. Default 16 MiB, allowed 1 KiB to 1 GiB. A message above it goes
    /// to the dead letters.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.wanted.max_body = Some(bytes);
        self
    }

    /// How the members of the group share queues. Default [`Averaging`] (Java's `allocateMessageQueueStrategy`). Every
    /// member must use the same.
    pub fn assign(mut self, strategy: impl Assign) -> Self {
        self.assign = Arc::new(strategy);
        self
    }

    /// Is told of [`Event`](crate::Event)s: queues assigned and revoked, pauses, dead letters, failed commits. Default:
    /// nobody. Events are logged in any case.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Keeps the group's progress in `store` instead of with the brokers, whose copy then only mirrors it. Default: the
    /// brokers keep it (Java's `offsetStore`). Every member of the group must use the same store. `examples/sqlite_offsets`
    /// keeps it in an SQLite file, beside what the messages have changed.
    pub fn offset_store(mut self, store: impl OffsetStore + 'static) -> Self {
        self.offsets = Some(Arc::new(store));
        self
    }

    /// Handles the messages: a closure that several workers may run at the same time. It returns nothing (done), an
    /// [`Outcome`](crate::Outcome), or a `Result` of either, of which an error means retry. One of `handler`,
    /// [`listener`](Self::listener) and [`handler_factory`](Self::handler_factory) has to be set; the last call counts.
    pub fn handler<F, R>(mut self, handler: F) -> Self
    where
        F: Fn(&Batch<'_>) -> R + Send + Sync + 'static,
        R: IntoOutcome,
    {
        self.code = Some(Code::shared(handler));
        self
    }

    /// Handles the messages: as [`handler`](Self::handler), for a type that implements [`Listener`].
    pub fn listener(mut self, listener: impl Listener) -> Self {
        self.code = Some(Code::shared(move |batch: &Batch<'_>| listener.on_batch(batch)));
        self
    }

    /// Handles the messages: as [`handler`](Self::handler), but each worker thread has a closure of its own, which `factory`
    /// makes on that thread from the worker's number. Neither the closure nor its state needs to be `Send`. It is made
    /// anew after a panic, and dropped on its own thread when the consumer ends.
    pub fn handler_factory<M, F, R>(mut self, factory: M) -> Self
    where
        M: Fn(usize) -> F + Send + Sync + 'static,
        F: FnMut(&Batch<'_>) -> R + 'static,
        R: IntoOutcome,
    {
        self.code = Some(Code::per_worker(factory));
        self
    }

    /// Checks the settings and joins the group. An unknown topic is no error: the consumer waits for it.
    ///
    /// # Errors
    /// [`StartError::Config`] names the setting; [`StartError::GroupInUse`] if this client has a consumer of the group;
    /// [`StartError::Io`] if the system refuses threads; [`StartError::Closed`]. Nothing was started then.
    pub fn start(self) -> Result<PushConsumer, StartError> {
        let settings = self.wanted.check()?;
        let code = self.code.ok_or_else(|| ConfigError {
            field: "handler",
            value: String::new(),
            allowed: "a handler, a listener or a handler factory".into(),
        })?;
        let shared = self.client.shared();
        let group: Arc<str> = settings.group.as_str().into();
        let (events, observer, named) = (shared.events().clone(), self.observer.clone(), Arc::clone(&group));
        let handler = Handler {
            code,
            budget: shared.budget().clone(),
            max_body: settings.max_body,
            report: Box::new(move |queue, detail| {
                let event = Event::HandlerFailed { group: Arc::clone(&named), queue: queue.clone(), detail };
                events.emit(observer.as_ref().as_slice(), event);
            }),
        };
        let pool = shared.pool()?;
        let consumer = Consumer::new(Box::new(handler), Arc::clone(&pool), shared.clock().clone());
        let (assign, observer, offsets) = (self.assign, self.observer, self.offsets);
        let spec = ConsumerSpec { group, settings, assign, observer, offsets, consumer: Arc::clone(&consumer) };
        let handle = shared.start_consumer(spec)?;
        Ok(PushConsumer { handle, consumer, pool, _client: self.client })
    }
}

impl fmt::Debug for PushConsumerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushConsumerBuilder").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

/// A running consumer. Dropping it stops it and gives running handlers up to a second to finish;
/// [`shutdown`](Self::shutdown) lets you choose the time and returns a report.
#[must_use = "a consumer that is dropped stops"]
pub struct PushConsumer {
    handle: ConsumerHandle,
    consumer: Arc<Consumer<Pulled>>,
    pool: Arc<Pool>,
    /// The client lives as long as its consumers.
    _client: Client,
}

impl PushConsumer {
    /// Its group.
    pub fn group(&self) -> &str {
        self.handle.group()
    }

    /// Stops pulling `topic`. Messages that are already fetched are still handled, and its queues stay assigned to this
    /// member. Nothing happens if the topic is not subscribed.
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn pause(&self, topic: &str) -> Result<(), Error> {
        self.handle.pause(Some(topic))
    }

    /// Starts pulling `topic` again.
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn resume(&self, topic: &str) -> Result<(), Error> {
        self.handle.resume(Some(topic))
    }

    /// Stops pulling all topics (Java's `suspend`); see [`pause`](Self::pause).
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn pause_all(&self) -> Result<(), Error> {
        self.handle.pause(None)
    }

    /// Starts pulling again, except topics that were paused by name (Java's `resume`).
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn resume_all(&self) -> Result<(), Error> {
        self.handle.resume(None)
    }

    /// Subscribes to another topic, or to the same one with other tags. Its queues are assigned soon after.
    ///
    /// # Errors
    /// `Config`, `Closed`, `Overloaded`.
    pub fn subscribe(&self, topic: &str, tags: &str) -> Result<(), Error> {
        self.handle.subscribe(topic, tags)
    }

    /// Ends the subscription of a topic: the progress of its queues is committed, then they are given up.
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn unsubscribe(&self, topic: &str) -> Result<(), Error> {
        self.handle.unsubscribe(topic)
    }

    /// The queues that are assigned to this member now, and how far each is.
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn assigned(&self) -> Result<Vec<Assigned>, Error> {
        self.handle.assigned()
    }

    /// Stops the consumer within `most`: no more pulls, running handlers finish, progress is committed, and the consumer
    /// leaves its group. The last fifth of the time, at most one second, is kept for the steps after the handlers.
    ///
    /// Called from inside a handler it only starts the shutdown, since it cannot wait for that handler, and returns an
    /// empty report. A second call waits for the first one to end, by the earlier of the two deadlines, and returns an
    /// empty report too.
    pub fn shutdown(&self, most: Duration) -> ConsumerReport {
        if self.pool.is_worker() {
            self.handle.begin_shutdown(most);
            return ConsumerReport::default();
        }
        let report = self.handle.shutdown(most);
        self.consumer.close();
        report
    }
}

impl Drop for PushConsumer {
    fn drop(&mut self) {
        self.shutdown(DROP_WAIT);
        self.consumer.close();
    }
}

impl fmt::Debug for PushConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushConsumer").field("group", &self.group()).finish_non_exhaustive()
    }
}
