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

    /// Subscribes a topic, with tags: `*` for all, or tags joined by `||`. May be called for several topics; for the
    /// same topic the last call counts. The group's retry topic is subscribed by itself. Every member of a group must
    /// subscribe the same.
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

    /// Most messages for one call of the handler, and how long fewer than that wait for more. Default 1 and zero, allowed
    /// 1 to 1024 (Java's `consumeMessageBatchMaxSize`) and 0 to 60 s. With a wait of zero a batch ends where a pull
    /// ended, as in Java; with more it gathers over several pulls.
    pub fn batch(mut self, messages: u32, wait: Duration) -> Self {
        self.wanted.batch = Some(messages);
        self.wanted.wait = Some(wait);
        self
    }

    /// How often a message is redelivered before the broker makes it a dead letter: so many plus one deliveries in all.
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

    /// The queues of one topic together are not pulled while they hold more unfinished messages than this. Default off,
    /// allowed 1 to 6 553 500 (Java's `pullThresholdForTopic`).
    pub fn topic_messages(mut self, messages: u64) -> Self {
        self.wanted.topic_messages = Some(messages);
        self
    }

    /// The queues of one topic together are not pulled while they hold more MiB of unfinished bodies than this. Default
    /// off, allowed 1 to 102 400 (Java's `pullThresholdSizeForTopic`).
    pub fn topic_mebibytes(mut self, mebibytes: u64) -> Self {
        self.wanted.topic_mebibytes = Some(mebibytes);
        self
    }

    /// A queue whose newest message is further than this from its oldest unfinished one is not pulled: what comes again
    /// after a crash is bounded by it. Default 2000 offsets, allowed 1 to 65 535 (Java's `consumeConcurrentlyMaxSpan`).
    pub fn max_span(mut self, offsets: u64) -> Self {
        self.wanted.max_span = Some(offsets);
        self
    }

    /// A message that a handler has had for longer than this is handed to the retry topic, with delay level 3, and the
    /// handler's own result is ignored. Default 15 min, allowed 100 ms to 24 h (Java's `consumeTimeout`, in minutes).
    pub fn consume_timeout(mut self, timeout: Duration) -> Self {
        self.wanted.consume_timeout = Some(timeout);
        self
    }

    /// How long a queue that is given to another member waits for its running handlers, so that what they finish is
    /// committed. Default 1 s, allowed 0 to 20 s. The new member may have started meanwhile.
    pub fn revoke_wait(mut self, wait: Duration) -> Self {
        self.wanted.revoke_wait = Some(wait);
        self
    }

    /// Whether a shutdown also delivers what is cached. Default false: it is dropped, uncommitted, and comes again
    /// elsewhere.
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

    /// Who is told what happens: queues assigned and revoked, pauses, dead letters, failed commits. Default nobody; all
    /// of it is logged in any case.
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

    /// What handles the messages: a closure that runs on several workers at a time. It may return nothing (done), an
    /// `Outcome`, or a `Result` of either, whose error retries.
    pub fn handler<F, R>(mut self, handler: F) -> Self
    where
        F: Fn(&Batch<'_>) -> R + Send + Sync + 'static,
        R: IntoOutcome,
    {
        self.code = Some(Code::shared(handler));
        self
    }

    /// What handles the messages: a type, or a box of one.
    pub fn listener(mut self, listener: impl Listener) -> Self {
        self.code = Some(Code::shared(move |batch: &Batch<'_>| listener.on_batch(batch)));
        self
    }

    /// What handles the messages: a closure for each worker, made on it by `factory` from its number. Neither it nor its
    /// state need be `Send`; after a panic it is made anew, and it is dropped on its worker when the consumer ends.
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

/// A running consumer. Dropping it stops it, with a second for its running handlers; [`shutdown`](Self::shutdown) tells
/// what came of it.
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

    /// Pulls no more of `topic`; what is cached is still handled, and the queues stay ours.
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn pause(&self, topic: &str) -> Result<(), Error> {
        self.handle.pause(Some(topic))
    }

    /// Pulls `topic` again.
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn resume(&self, topic: &str) -> Result<(), Error> {
        self.handle.resume(Some(topic))
    }

    /// Pulls nothing any more (Java's `suspend`).
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn pause_all(&self) -> Result<(), Error> {
        self.handle.pause(None)
    }

    /// Pulls everything again (Java's `resume`).
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn resume_all(&self) -> Result<(), Error> {
        self.handle.resume(None)
    }

    /// Subscribes a further topic, or an old one with other tags. Its queues are assigned at once.
    ///
    /// # Errors
    /// `Config`, `Closed`, `Overloaded`.
    pub fn subscribe(&self, topic: &str, tags: &str) -> Result<(), Error> {
        self.handle.subscribe(topic, tags)
    }

    /// Gives a topic up: its queues' progress is committed and they are left.
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn unsubscribe(&self, topic: &str) -> Result<(), Error> {
        self.handle.unsubscribe(topic)
    }

    /// The queues that are ours now, and how far each is.
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn assigned(&self) -> Result<Vec<Assigned>, Error> {
        self.handle.assigned()
    }

    /// Stops in order within `most`: no more pulls, running handlers finish, progress is committed, the group is left.
    /// The last fifth of the time, a second at most, is kept for what follows the handlers.
    ///
    /// Called from inside a handler it only begins the stop, which would otherwise wait for that handler, and the report
    /// is empty. A call after another has the stop's end to wait for, whose deadline is the nearer of both, and an empty
    /// report as well.
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
