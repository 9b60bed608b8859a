//! A consumer of the client: what it was started with, which topics it subscribes, how it is paused and stopped.
//!
//! [`ConsumerHandle`] is what the user's consumer holds; [`Group`] is the core's side of it. Its queues are the business
//! of `balance.rs`, `claim.rs` and `revoke.rs`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::assign::Assign;
use super::outcome::CommitError;
use super::pulled::Pulled;
use super::settings::PushSettings;
use crate::consume::claim::Consumer;
use crate::consume::progress::OffsetStore;
use crate::consume::queue::Tally;
use crate::error::{Error, StartError};
use crate::model::sort::sort_by;
use crate::model::tags::TagExpression;
use crate::model::{Queue, QueueOffset, SortedMap, SortedSet, names};
use crate::net::Out;
use crate::net::answer::{Giver, NoAnswer, pair};
use crate::rocketmq::client::Shared;
use crate::rocketmq::core::{Command, Core, Timer};
use crate::rocketmq::events::Observer;
use crate::work::clock::{Nanos, after};

/// Names one consumer of a client. Never used twice.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConsumerId(pub u64);

/// What a consumer is started with.
pub struct ConsumerSpec {
    /// Group.
    pub group: Arc<str>,
    /// Topics, tags, limits.
    pub settings: PushSettings,
    /// How members share queues.
    pub assign: Arc<dyn Assign>,
    /// Gets the group's events and the client's.
    pub observer: Option<Arc<dyn Observer>>,
    /// Keeps the progress; `None`: the brokers do.
    pub offsets: Option<Arc<dyn OffsetStore>>,
    /// The user's handler and the pool that runs it.
    pub consumer: Arc<Consumer<Pulled>>,
}

/// Something for one consumer.
pub enum Order {
    /// Pull no more of a topic, or of any; what is cached is still handled.
    Pause(Option<Arc<str>>),
    /// Pull again.
    Resume(Option<Arc<str>>),
    /// A further topic, or other tags.
    Subscribe(Arc<str>, TagExpression),
    /// One topic less.
    Unsubscribe(Arc<str>),
    /// Which queues are ours, and how far each is.
    Assigned(Giver<Vec<Assigned>>),
    /// Stop in order within this time.
    Stop {
        /// For all of it.
        most: Duration,
        /// Gets the report.
        answer: Giver<ConsumerReport>,
    },
}

/// A queue that is assigned to a consumer, and how far it is.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Assigned {
    /// The queue.
    pub queue: Queue,
    /// Where the next pull starts; `None` while the start is being found out.
    pub next: Option<QueueOffset>,
    /// Below this everything is finished.
    pub finished: Option<QueueOffset>,
    /// What the broker, or the consumer's own offset store, has acknowledged as committed.
    pub committed: Option<QueueOffset>,
    /// Messages that are fetched and not finished.
    pub held: u64,
    /// Why it is not being pulled; `None`: it is.
    pub waits: Option<String>,
}

/// What a consumer came to, when it has stopped.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct ConsumerReport {
    /// Messages whose handler finished them.
    pub finished: u64,
    /// Messages handed on to the retry topic.
    pub retried: u64,
    /// Messages handed on to the dead-letter topic by this client.
    pub dead_lettered: u64,
    /// Messages that were cached and dropped; they are uncommitted and come again.
    pub dropped: u64,
    /// Messages whose handlers had not finished in time; they come again.
    pub unfinished: u64,
    /// What the broker, or the consumer's own offset store, has acknowledged as committed, by queue; also of queues that
    /// were given up earlier.
    pub committed: BTreeMap<Queue, QueueOffset>,
    /// Queues whose last commit was not acknowledged, and why.
    pub failed_commits: Vec<(Queue, CommitError)>,
    /// The client's loop was too busy to say in time what the consumer came to, so that everything else here is empty.
    pub unknown: bool,
}

impl ConsumerReport {
    /// Every handler had finished and every commit was acknowledged.
    pub fn is_clean(&self) -> bool {
        !self.unknown && self.unfinished == 0 && self.failed_commits.is_empty()
    }

    /// Adds what one claim came to.
    pub(in crate::rocketmq) fn add(&mut self, tally: &Tally) {
        self.finished += tally.finished;
        self.retried += tally.sent_back;
        self.dead_lettered += tally.dead_lettered;
        self.dropped += tally.dropped;
    }
}

/// The user's end of a running consumer. Every method may be called from any thread.
pub struct ConsumerHandle {
    shared: Arc<Shared>,
    id: ConsumerId,
    group: Arc<str>,
}

/// How much longer than its deadline a stop is waited for, to get its report: the core ends it at the deadline, but a
/// loaded machine may run it late.
const GRACE: Duration = Duration::from_secs(5);

impl ConsumerHandle {
    pub(in crate::rocketmq) fn new(shared: Arc<Shared>, id: ConsumerId, group: Arc<str>) -> Self {
        Self { shared, id, group }
    }

    /// The group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Pulls no more of `topic`, or of any; what is cached is still handled.
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn pause(&self, topic: Option<&str>) -> Result<(), Error> {
        self.order(Order::Pause(topic.map(Into::into)))
    }

    /// Pulls again.
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn resume(&self, topic: Option<&str>) -> Result<(), Error> {
        self.order(Order::Resume(topic.map(Into::into)))
    }

    /// Subscribes a further topic, or an old one with other tags.
    ///
    /// # Errors
    /// `Config`, `Closed`, `Overloaded`.
    pub fn subscribe(&self, topic: &str, tags: &str) -> Result<(), Error> {
        names::check_topic(topic)?;
        self.order(Order::Subscribe(topic.into(), TagExpression::parse(tags)?))
    }

    /// Gives up a topic: its queues are committed and left.
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn unsubscribe(&self, topic: &str) -> Result<(), Error> {
        self.order(Order::Unsubscribe(topic.into()))
    }

    /// The queues that are ours.
    ///
    /// # Errors
    /// `Closed`, `Overloaded`.
    pub fn assigned(&self) -> Result<Vec<Assigned>, Error> {
        let (answer, answered) = pair();
        self.order(Order::Assigned(answer))?;
        answered.wait().map_err(|_| Error::Closed)
    }

    /// Stops in order within `most`. A second call gets an empty report once the first has ended.
    pub fn shutdown(&self, most: Duration) -> ConsumerReport {
        let (answer, answered) = pair();
        if self.order(Order::Stop { most, answer }).is_err() {
            return ConsumerReport::default();
        }
        let answer = answered.wait_until(after(most) + GRACE);
        answer.unwrap_or_else(|why| ConsumerReport { unknown: why == NoAnswer::Late, ..ConsumerReport::default() })
    }

    /// Starts the stop and does not wait: for `Drop` and for handlers that stop their own consumer.
    pub fn begin_shutdown(&self, most: Duration) {
        let (answer, _) = pair();
        // A client that has ended has stopped it already.
        let _ = self.order(Order::Stop { most, answer });
    }

    fn order(&self, order: Order) -> Result<(), Error> {
        self.shared.post(Command::Consumer(self.id, order))
    }
}

impl fmt::Debug for ConsumerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerHandle").field("group", &self.group).finish_non_exhaustive()
    }
}

/// The core's side of a consumer.
pub struct Group {
    pub(in crate::rocketmq) id: ConsumerId,
    pub(in crate::rocketmq) spec: ConsumerSpec,
    pub(in crate::rocketmq) topics: SortedMap<Arc<str>, Subscribed>,
    pub(in crate::rocketmq) stage: GroupStage,
    pub(in crate::rocketmq) report: ConsumerReport,
    paused: bool,
}

/// One subscribed topic.
pub(in crate::rocketmq) struct Subscribed {
    pub tags: TagExpression,
    pub paused: bool,
    /// Queues that were there when the topic was first seen; what comes later starts at its first message (L5).
    pub first_seen: Option<SortedSet<Queue>>,
    /// The members are being asked for.
    pub asking: bool,
    /// ... and have to be asked for again after that.
    pub again: bool,
    /// They could not be asked for, since no broker knew our present subscriptions.
    pub unasked: bool,
    /// When to look at the assignment again.
    pub due: Nanos,
    /// The last thing that kept the assignment from being made, told once.
    pub trouble: Option<String>,
    /// When the assignment was made last, or could have been for the first time.
    pub balanced: Nanos,
}

/// How far the life of a group has come.
pub(in crate::rocketmq) enum GroupStage {
    Running,
    /// Its queues are given up, then its brokers are told.
    Stopping {
        end: Nanos,
        answers: Vec<Giver<ConsumerReport>>,
    },
    /// Brokers are told; so many have not answered.
    Leaving {
        end: Nanos,
        waiting: usize,
        answers: Vec<Giver<ConsumerReport>>,
    },
}

impl Group {
    fn new(id: ConsumerId, spec: ConsumerSpec, now: Nanos) -> Self {
        let retry = names::retry_topic(&spec.group);
        let wanted = spec.settings.subscriptions.iter().map(|(topic, tags)| (topic.as_str(), tags.clone()));
        let topics = wanted
            .chain([(retry.as_str(), TagExpression::default())])
            .map(|(topic, tags)| (topic.into(), Subscribed::new(tags, now)))
            .collect();
        Self { id, topics, stage: GroupStage::Running, report: ConsumerReport::default(), paused: false, spec }
    }

    /// Its topics with their tags, the retry topic included.
    pub(in crate::rocketmq) fn topics(&self) -> impl Iterator<Item = (&Arc<str>, &TagExpression)> {
        self.topics.iter().map(|(topic, subscribed)| (topic, &subscribed.tags))
    }

    /// True once its brokers are told that it is left: heartbeats must not name it any more.
    pub(in crate::rocketmq) fn is_leaving(&self) -> bool {
        matches!(self.stage, GroupStage::Leaving { .. })
    }

    pub(in crate::rocketmq) fn is_running(&self) -> bool {
        matches!(self.stage, GroupStage::Running)
    }

    pub(in crate::rocketmq) fn is_paused(&self, topic: &str) -> bool {
        self.paused || self.topics.get(topic).is_some_and(|subscribed| subscribed.paused)
    }

    fn pause(&mut self, topic: Option<&Arc<str>>, paused: bool) {
        match topic {
            None => self.paused = paused,
            Some(topic) => {
                if let Some(subscribed) = self.topics.get_mut(topic) {
                    subscribed.paused = paused;
                }
            }
        }
    }
}

impl Subscribed {
    fn new(tags: TagExpression, now: Nanos) -> Self {
        Self {
            tags,
            paused: false,
            first_seen: None,
            asking: false,
            again: false,
            unasked: false,
            due: now,
            trouble: None,
            balanced: now,
        }
    }
}

impl Core {
    pub(in crate::rocketmq) fn start_group(
        &mut self,
        spec: ConsumerSpec,
        answer: Giver<Result<ConsumerId, StartError>>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let refused = if self.ending.is_some() {
            Some(StartError::Closed)
        } else if self.groups.values().any(|group| group.spec.group == spec.group) {
            Some(StartError::GroupInUse { group: spec.group.to_string() })
        } else {
            None
        };
        if let Some(error) = refused {
            let _ = answer.give(Err(error));
            return;
        }
        self.last_group += 1;
        let id = ConsumerId(self.last_group);
        let group = Group::new(id, spec, now);
        log::info!(target: "windlass::group", "consumer starts: group={} client={}", group.spec.group, self.context.client_id);
        let topics: Vec<Arc<str>> = group.topics.keys().cloned().collect();
        self.groups.insert(id, group);
        self.watch(now, out);
        let _ = answer.give(Ok(id));
        for topic in &topics {
            self.route_wanted(topic, None, now, out);
        }
        self.subscriptions_changed(now, out);
        self.rebalance_group(id, now, out);
    }

    pub(in crate::rocketmq) fn order(&mut self, id: ConsumerId, order: Order, now: Nanos, out: &mut Out<Timer>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        match order {
            Order::Pause(topic) => group.pause(topic.as_ref(), true),
            Order::Resume(topic) => {
                group.pause(topic.as_ref(), false);
                self.pull_all_of(id, now, out);
                self.rebalance_group(id, now, out);
            }
            Order::Subscribe(topic, tags) => {
                let fresh = Subscribed::new(tags.clone(), now);
                group.topics.get_or_insert_with(Arc::clone(&topic), || fresh).tags = tags;
                self.route_wanted(&topic, None, now, out);
                self.subscriptions_changed(now, out);
                self.rebalance_group(id, now, out);
            }
            Order::Unsubscribe(topic) => {
                if group.topics.remove(&topic).is_some() {
                    self.revoke_topic(id, &topic, now, out);
                    self.subscriptions_changed(now, out);
                }
            }
            Order::Assigned(answer) => {
                let _ = answer.give(self.assigned(id));
            }
            Order::Stop { most, answer } => self.stop_group(id, most, Some(answer), now, out),
        }
    }

    pub(in crate::rocketmq) fn is_subscribed(&self, topic: &str) -> bool {
        self.groups.values().any(|group| group.topics.contains_key(topic))
    }

    fn assigned(&self, id: ConsumerId) -> Vec<Assigned> {
        let mut assigned: Vec<Assigned> =
            self.claims.values().filter(|claim| claim.group == id).map(|claim| claim.describe()).collect();
        sort_by(&mut assigned, |left, right| left.queue.cmp(&right.queue));
        assigned
    }
}

#[cfg(test)]
pub(in crate::rocketmq) mod for_tests {
    use std::any::Any;

    use super::super::assign::Averaging;
    use super::super::settings::Wanted;
    use super::*;
    use crate::consume::claim::{Hand, Listen};
    use crate::consume::listener::Outcome;
    use crate::consume::pool::Pool;
    use crate::work::clock::Clock;

    /// Finishes everything.
    pub(in crate::rocketmq) struct Done;

    impl Listen<Pulled> for Done {
        fn local(&self, _worker: usize) -> Box<dyn Any> {
            Box::new(())
        }

        fn handle(&self, _hand: Hand<'_, Pulled>, _local: &mut dyn Any) -> Outcome {
            Outcome::Done
        }

        fn panicked(&self, _hand: Hand<'_, Pulled>, _message: &str) {}
    }

    /// A consumer of `group` whose handler is `listener`, run by `pool`.
    pub(in crate::rocketmq) fn spec(
        group: &str,
        subscriptions: &[(&str, &str)],
        listener: Box<dyn Listen<Pulled>>,
        pool: Arc<Pool>,
        clock: Clock,
    ) -> ConsumerSpec {
        let subscriptions = subscriptions.iter().map(|(topic, tags)| ((*topic).to_owned(), (*tags).to_owned()));
        let wanted = Wanted { group: group.to_owned(), subscriptions: subscriptions.collect(), ..Wanted::default() };
        let settings = wanted.check().unwrap();
        let consumer = Consumer::new(listener, pool, clock);
        ConsumerSpec {
            group: group.into(),
            settings,
            assign: Arc::new(Averaging),
            observer: None,
            offsets: None,
            consumer,
        }
    }

    /// A group whose handler is never called.
    pub(in crate::rocketmq) fn group(name: &str, subscriptions: &[(&str, &str)]) -> Group {
        let spec = spec(name, subscriptions, Box::new(Done), Pool::unmanned(), Clock::system());
        Group::new(ConsumerId(1), spec, Nanos::ZERO)
    }
}
