//! The client that users hold: a cheap clone of a handle on one loop, one pool and one set of lanes.
//!
//! `builder.rs` checks the settings; [`Client`] starts the threads, makes producers and consumers and stops them.
//! What other threads of this room share is [`Shared`]. Nothing here decides what goes over the wire.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::builder::{ClientBuilder, bad, check_servers, random, split_list};
use super::consumer::group::{ConsumerHandle, ConsumerReport, ConsumerSpec};
use super::consumer::push::PushConsumerBuilder;
use super::core::{Command, Core};
use super::events::Events;
use super::port::{Caller, Port};
use super::route::{Route, RouteCell, Routes};
use super::settings::Settings;
use crate::consume::pool::Pool;
use crate::error::{Error, StartError};
use crate::model::{Queue, QueueOffset, names};
use crate::net::answer::{NoAnswer, pair};
use crate::net::{self, FramePool, Handle, PostError, Reactor};
use crate::work::budget::Budget;
use crate::work::clock::{Clock, after};
use crate::work::lifecycle::Lifecycle;
use crate::work::ranks::{Rank, Ranked};
use crate::work::serve::Lane;
use crate::work::threads::{self, Thread};

/// How long a client that is dropped without `shutdown` tries to end in order.
const DROP_WAIT: Duration = Duration::from_secs(1);
/// Threads of the serve lane at start.
const LANE_THREADS: usize = 2;

/// What loop, lanes and callers of one client have in common.
pub struct Context {
    /// As the client was built.
    pub settings: Settings,
    /// How brokers know this client.
    pub client_id: Arc<str>,
    /// Where the time comes from.
    pub clock: Clock,
    /// To observers.
    pub events: Events,
    /// For what blocks.
    pub lane: Lane,
    /// Bytes in use.
    pub budget: Budget,
    /// What is known of topics.
    pub routes: Routes,
    /// To the loop.
    pub handle: Handle<Command>,
}

impl Context {
    /// What the core of a client with these settings works with.
    pub fn new(settings: Settings, lane: Lane, budget: Budget, handle: Handle<Command>) -> Arc<Self> {
        Arc::new(Self {
            client_id: settings.client_id().into(),
            clock: settings.clock.clone(),
            events: Events::new(lane.clone()),
            lane,
            budget,
            routes: Routes::new(),
            handle,
            settings,
        })
    }
}

/// What a port is made from.
pub struct Start<'a> {
    /// To the loop.
    pub handle: &'a Handle<Command>,
    /// For what blocks.
    pub lane: &'a Lane,
    /// Where the time comes from.
    pub clock: &'a Clock,
    /// Bytes in use.
    pub budget: &'a Budget,
    /// As the client was built.
    pub settings: &'a Settings,
    /// Something random.
    pub seed: u64,
}

/// What the handles of one client share. Thread: any.
pub struct Shared {
    /// See [`Context`].
    pub context: Arc<Context>,
    caller: Arc<dyn Caller>,
    pool: OnceLock<Arc<Pool>>,
    making_pool: Ranked<()>,
    life: Lifecycle,
    io: Ranked<Option<Thread>>,
}

impl Shared {
    /// The blocking half of the port.
    pub(crate) fn caller(&self) -> &Arc<dyn Caller> {
        &self.caller
    }

    /// Where the time comes from.
    pub(crate) fn clock(&self) -> &Clock {
        &self.context.clock
    }

    /// Bytes in use.
    pub(crate) fn budget(&self) -> &Budget {
        &self.context.budget
    }

    /// For callbacks of the user.
    pub(crate) fn lane(&self) -> &Lane {
        &self.context.lane
    }

    /// To observers.
    pub(crate) fn events(&self) -> &Events {
        &self.context.events
    }

    /// The cell in which a topic's route is kept up to date once [`route`](Self::route) has asked for it.
    pub(crate) fn route_cell(&self, topic: &str) -> Arc<RouteCell> {
        self.context.routes.cell(topic)
    }

    /// A topic's route: the known one, or what a name server says within the time. The topic is in use from then on.
    ///
    /// # Errors
    /// `UnknownTopic` if no name server knows it; `NoNameServer`, `Timeout`, `Closed`.
    pub(crate) fn route(&self, topic: &str, deadline: Instant) -> Result<Arc<Route>, Error> {
        if let Some(route) = self.route_cell(topic).load() {
            return Ok(route);
        }
        self.fresh_route(topic, deadline)
    }

    /// As [`route`](Self::route), but asks even if a route is known.
    ///
    /// # Errors
    /// As [`route`](Self::route).
    pub(crate) fn fresh_route(&self, topic: &str, deadline: Instant) -> Result<Arc<Route>, Error> {
        let begun = Instant::now();
        let (answer, answered) = pair();
        self.post(Command::Route { topic: topic.into(), answer })?;
        answered.wait_until(deadline).unwrap_or_else(|error| {
            Err(match error {
                NoAnswer::Late => {
                    Error::Timeout { request: "GET_ROUTEINFO_BY_TOPIC", addr: None, waited: begun.elapsed() }
                }
                NoAnswer::Lost => Error::Closed,
            })
        })
    }

    /// The producer group is in every heartbeat from now on.
    ///
    /// # Errors
    /// `Config`, `Closed`, `Overloaded`.
    pub(crate) fn register_producer(&self, group: &str) -> Result<(), StartError> {
        names::check_group(group)?;
        self.try_post(Command::Producer { group: group.into(), present: true }).map_err(not_started)
    }

    /// The producer group is in no heartbeat any more, and brokers are told so.
    pub(crate) fn unregister_producer(&self, group: &str) {
        // A client that has ended has told them already.
        let _ = self.post(Command::Producer { group: group.into(), present: false });
    }

    /// Starts a consumer.
    ///
    /// # Errors
    /// `GroupInUse`, `Closed`, `Overloaded`.
    pub(crate) fn start_consumer(self: &Arc<Self>, spec: ConsumerSpec) -> Result<ConsumerHandle, StartError> {
        let (answer, answered) = pair();
        let group = Arc::clone(&spec.group);
        self.try_post(Command::Start { spec: Box::new(spec), answer }).map_err(not_started)?;
        let id = answered.wait().map_err(|_| StartError::Closed)??;
        Ok(ConsumerHandle::new(Arc::clone(self), id, group))
    }

    /// The threads that run handlers; started when the first consumer wants them.
    ///
    /// # Errors
    /// `Io` if the system refuses threads.
    pub(crate) fn pool(&self) -> Result<Arc<Pool>, StartError> {
        let _one = self.making_pool.lock();
        if let Some(pool) = self.pool.get() {
            return Ok(Arc::clone(pool));
        }
        let pool = Pool::start(self.context.settings.workers)
            .map_err(|source| StartError::Io { doing: "starting the workers".into(), source })?;
        Ok(Arc::clone(self.pool.get_or_init(|| pool)))
    }

    /// Hands the loop a command.
    ///
    /// # Errors
    /// `Overloaded`, `Closed`.
    pub(crate) fn post(&self, command: Command) -> Result<(), Error> {
        self.try_post(command).map_err(|error| not_started(error).into())
    }

    fn try_post(&self, command: Command) -> Result<(), PostError<()>> {
        self.context.handle.post(command).map_err(|error| match error {
            PostError::Full(_) => PostError::Full(()),
            PostError::Closed(_) => PostError::Closed(()),
        })
    }

    fn shutdown(&self, most: Duration) -> ShutdownReport {
        let (begun, deadline) = (Instant::now(), after(most));
        if self.pool.get().is_some_and(|pool| pool.is_worker()) {
            // A handler that stops its own client only begins it: nobody can wait for himself (D12).
            let (answer, _) = pair();
            let _ = self.post(Command::Shutdown { most, answer });
            return ShutdownReport::default();
        }
        if !self.life.begin_stop() {
            self.life.wait_stopped(deadline);
            return ShutdownReport::default();
        }
        let (answer, answered) = pair();
        let mut report = ShutdownReport::default();
        if self.post(Command::Shutdown { most, answer }).is_ok() {
            match answered.wait_until(deadline + LATE) {
                Ok(consumers) => report.consumers = consumers,
                Err(_) => report.unended.push("wl-io".to_owned()),
            }
        }
        self.context.handle.stop();
        self.caller.close();
        let end = (Instant::now() + GRACE).max(deadline);
        if let Some(pool) = self.pool.get() {
            let left = pool.stop(end);
            report.unended.extend((0..left).map(|_| "wl-work".to_owned()));
        }
        let io = self.io.lock().take();
        if let Some(io) = io
            && !io.is_current()
            && !io.join_by(end)
        {
            report.unended.push(io.name().to_owned());
        }
        self.context.events.drained(end);
        if !self.context.lane.close(end) {
            report.unended.push("wl-serve".to_owned());
        }
        self.life.stopped();
        report.took = begun.elapsed();
        report
    }
}

/// Why the loop has not begun what it was told.
fn not_started(error: PostError<()>) -> StartError {
    match error {
        PostError::Full(()) => StartError::Overloaded { what: "the client's inbox" },
        PostError::Closed(()) => StartError::Closed,
    }
}

/// The core ends a shutdown at its deadline, but a loaded machine may run it late.
const LATE: Duration = Duration::from_secs(5);
/// What threads still get after the deadline of a shutdown, to see that it is over.
const GRACE: Duration = Duration::from_millis(100);

/// A client of a RocketMQ cluster. Cheap to clone; all clones are the same client. Its consumers and producers hold a clone
/// each; when the last clone is dropped the client stops.
///
/// Threads: one loop, two to four for work that blocks, and the workers from the first consumer on.
#[derive(Clone)]
pub struct Client {
    running: Arc<Running>,
}

struct Running(Arc<Shared>);

/// A handle that does not keep its client alive.
#[derive(Clone)]
#[cfg(feature = "broker")]
pub(crate) struct WeakClient(std::sync::Weak<Running>);

#[cfg(feature = "broker")]
impl WeakClient {
    /// The client, if it has not been stopped by its last handle's end.
    pub(crate) fn upgrade(&self) -> Option<Client> {
        self.0.upgrade().map(|running| Client { running })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.life.is_running() {
            self.0.shutdown(DROP_WAIT);
        }
    }
}

/// What a client's loop and workers have done so far: for benches, which gate it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Whole frames that the loop has read.
    pub frames: u64,
    /// System calls of the loop: polls, reads, writes.
    pub calls: [u64; 3],
    /// Times that another thread had to wake the loop.
    pub rings: u64,
    /// Times that a sleeping worker was woken.
    pub wakes: u64,
}

impl Counted {
    /// Of this client, up to now.
    pub fn of(client: &Client) -> Self {
        let shared = client.shared();
        let counters = shared.context.handle.counters();
        Self {
            frames: counters.frames_in.value(),
            calls: [counters.polls.value(), counters.reads.value(), counters.writes.value()],
            rings: counters.rings.value(),
            wakes: shared.pool.get().map_or(0, |pool| pool.wakes()),
        }
    }
}

/// Makes both halves of a client's port.
type MakePort<'a> = dyn FnOnce(&Start<'_>) -> (Box<dyn Port>, Arc<dyn Caller>) + 'a;

impl Client {
    /// A builder with every setting at its default.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A client of the name servers in the environment variable `NAMESRV_ADDR`; all else at its default.
    ///
    /// # Errors
    /// [`StartError::Config`] if it is not set or not a list of `host:port`; [`StartError::Io`] if the system refuses threads.
    pub fn from_env() -> Result<Self, StartError> {
        let list =
            std::env::var("NAMESRV_ADDR").map_err(|_| bad("NAMESRV_ADDR", "", "host:port, several joined by ;"))?;
        Self::builder().name_servers([list]).build()
    }

    /// Starts the threads of a client whose port `make` makes.
    pub(crate) fn start(
        settings: Settings,
        make: impl FnOnce(&Start<'_>) -> (Box<dyn Port>, Arc<dyn Caller>),
    ) -> Result<Self, StartError> {
        Self::start_boxed(settings, Box::new(make))
    }

    /// Boxed, so that what starts a client is compiled once.
    fn start_boxed(settings: Settings, make: Box<MakePort<'_>>) -> Result<Self, StartError> {
        let no_threads = |source| StartError::Io { doing: "starting the client".into(), source };
        let lane = Lane::start().map_err(no_threads)?;
        let unused = lane.clone();
        // A start that fails leaves no thread behind.
        let failed = move |source| {
            unused.close_unused();
            no_threads(source)
        };
        let (clock, budget) = (settings.clock.clone(), Budget::new(settings.memory_budget));
        let net = net::Settings {
            connect_timeout: settings.timing.connect,
            idle_timeout: Some(settings.timing.idle),
            budget: Some(budget.clone()),
            ..net::Settings::default()
        };
        let mut made = None;
        let mut reactor = Reactor::new(net, clock.clone(), |handle| {
            let start =
                Start { handle, lane: &lane, clock: &clock, budget: &budget, settings: &settings, seed: random() };
            let (port, caller) = make(&start);
            let context = Context::new(settings.clone(), lane.clone(), budget.clone(), handle.clone());
            made = Some((Arc::clone(&context), caller));
            Core::new(context, port)
        })
        .map_err(&failed)?;
        let Some((context, caller)) = made else { return Err(StartError::Closed) };
        let room = context.handle.clone();
        budget.on_room(move || {
            // A full inbox is looked through before the loop sleeps; the core looks for room then, too.
            let _ = room.post_own(Command::Room);
        });
        let io = threads::spawn("wl-io", move || {
            if let Err(detail) = reactor.run() {
                reactor.role().ended(detail);
            }
        })
        .map_err(&failed)?;
        let shared = Arc::new(Shared {
            context,
            caller,
            pool: OnceLock::new(),
            making_pool: Ranked::new(Rank::Tables, ()),
            life: Lifecycle::new(),
            io: Ranked::new(Rank::Tables, Some(io)),
        });
        Ok(Self { running: Arc::new(Running(shared)) })
    }

    /// What the producers and consumers of this client share.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.running.0
    }

    /// A handle that does not keep this client alive.
    #[cfg(feature = "broker")]
    pub(crate) fn downgrade(&self) -> WeakClient {
        WeakClient(Arc::downgrade(&self.running))
    }

    /// Builds a push consumer of this group: concurrent, its progress kept by the brokers, its queues shared with the
    /// group's other members.
    pub fn push_consumer(&self, group: impl Into<String>) -> PushConsumerBuilder {
        PushConsumerBuilder::new(self.clone(), group.into())
    }

    /// How brokers and other members know this client: `address@instance`.
    pub fn id(&self) -> &str {
        &self.shared().context.client_id
    }

    /// Replaces the list of name servers. A server that is no longer listed still answers the requests it has; all later
    /// requests go to the new list.
    ///
    /// # Errors
    /// `Config` if the list is empty or one of it is no `host:port`, and nothing has changed; `Closed`, `Overloaded`.
    pub fn set_name_servers<T: Into<String>>(&self, list: impl IntoIterator<Item = T>) -> Result<(), Error> {
        let list: Vec<String> = list.into_iter().flat_map(|text| split_list(&text.into())).collect();
        check_servers(&list)?;
        self.shared().post(Command::NameServers(list))
    }

    /// How many threads this client has at least: loop, lane and, once a consumer has been started, workers.
    pub fn threads(&self) -> usize {
        1 + LANE_THREADS + self.shared().pool.get().map_or(0, |_| self.shared().context.settings.workers)
    }

    /// Stops every consumer and producer, all within `deadline`: no new pulls, running handlers finish, messages that were
    /// fetched and not handled are dropped (see `drain_on_shutdown`), progress is committed, the groups are left, the
    /// connections closed. The last fifth of the time, at most one second, is kept for the steps after the handlers.
    ///
    /// All clones of the client are stopped. A second call waits for the first and returns an empty report. Called from
    /// inside a handler it only starts the shutdown, and returns an empty report.
    pub fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        self.shared().shutdown(deadline)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// What a shutdown came to.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Each consumer's group and report.
    pub consumers: Vec<(Arc<str>, ConsumerReport)>,
    /// Names of threads that had not ended at the deadline.
    pub unended: Vec<String>,
    /// How long it took.
    pub took: Duration,
}

impl ShutdownReport {
    /// Nothing was left over: no handler was still running, every commit was acknowledged, every thread has ended.
    pub fn is_clean(&self) -> bool {
        self.unended.is_empty() && self.consumers.iter().all(|(_, report)| report.is_clean())
    }

    /// The report as a result, if all you want to know is whether the shutdown was clean.
    ///
    /// # Errors
    /// `Timeout` if a handler or a thread had not ended; otherwise `Commit` if the progress of a queue is not committed. The
    /// report itself says more.
    pub fn into_result(self) -> Result<(), Error> {
        let ended = self.unended.is_empty() && self.consumers.iter().all(|(_, report)| report.unfinished == 0);
        if ended {
            let mut failed = self.consumers.into_iter().flat_map(|(_, report)| report.failed_commits);
            return failed.next().map_or(Ok(()), |(_, error)| Err(error.into()));
        }
        Err(Error::Timeout { request: "shutdown", addr: None, waited: self.took })
    }

    /// Committed offsets by queue, over all consumers.
    pub fn committed(&self) -> impl Iterator<Item = (&Queue, QueueOffset)> {
        self.consumers.iter().flat_map(|(_, report)| report.committed.iter().map(|(queue, offset)| (queue, *offset)))
    }
}

/// The pool of frame buffers that lanes use beside the loop's own.
pub(crate) fn frame_pool(budget: &Budget) -> Arc<FramePool> {
    FramePool::new(Some(budget.clone()))
}

#[cfg(test)]
mod tests {
    use super::super::events::Event;
    use super::super::port::Done;
    use super::*;

    #[test]
    fn a_loop_that_ends_by_itself_is_told_and_leaves_no_caller_waiting() {
        let client = Client::builder().name_servers(["127.0.0.1:1"]).workers(1).build().unwrap();
        let (tell, told) = crossbeam_channel::unbounded();
        let observer = move |event: &Event| drop(tell.send(event.clone()));
        let consumer =
            client.push_consumer("g").subscribe("t", "*").observer(observer).handler(|_| {}).start().unwrap();
        let done: Done = Box::new(|_| panic!("on purpose"));
        let (to, timeout) = (Some("no address".into()), Duration::from_secs(3));
        client.shared().post(Command::Call { to, frame: Vec::new(), timeout, done: Some(done) }).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        let mut event = told.recv_deadline(end).unwrap();
        while event.name() != "client ended" {
            event = told.recv_deadline(end).unwrap();
        }
        assert_eq!(event.to_string(), "client ended: detail=panic: on purpose");
        while client.shared().post(Command::Room).is_ok() {
            assert!(Instant::now() < end);
            std::thread::yield_now();
        }
        assert!(matches!(consumer.assigned(), Err(Error::Closed)));
        assert!(client.shutdown(Duration::from_secs(5)).consumers.is_empty());
    }

    #[test]
    fn a_stop_that_a_busy_loop_has_not_answered_in_time_is_not_called_clean() {
        let client = Client::builder().name_servers(["127.0.0.1:1"]).workers(1).build().unwrap();
        let consumer = client.push_consumer("g").subscribe("t", "*").handler(|_| {}).start().unwrap();
        let ((go, wait), (tell, told)) = (crossbeam_channel::bounded::<()>(0), crossbeam_channel::bounded(1));
        let done: Done = Box::new(move |_| {
            tell.send(()).unwrap();
            let _ = wait.recv();
        });
        let (to, timeout) = (Some("no address".into()), Duration::from_secs(3));
        client.shared().post(Command::Call { to, frame: Vec::new(), timeout, done: Some(done) }).unwrap();
        told.recv_timeout(Duration::from_secs(60)).unwrap();
        let report = consumer.shutdown(Duration::ZERO);
        assert!(report.unknown && !report.is_clean(), "{report:?}");
        drop(go);
        assert!(client.shutdown(Duration::from_secs(10)).unended.is_empty());
    }
}
