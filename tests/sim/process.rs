//! The processes of the simulation: a broker over its disk, and clients. Both are the library's own roles with everything
//! around them that production starts threads for: lanes and pools without threads, steps of the store on demand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use windlass::broker::Flush;
use windlass::internals::broker::{
    Dispatcher, Mailbox, Parts, Post, Saved, Server, Settings as BrokerSettings, Topic, Watcher,
};
use windlass::internals::consume::claim::Consumer;
use windlass::internals::consume::flow::Limits;
use windlass::internals::consume::pool::Pool;
use windlass::internals::consume::queue::Settings as ClaimSettings;
use windlass::internals::disk::FaultyDisk;
use windlass::internals::model::tags::TagExpression;
use windlass::internals::net::Handle;
use windlass::internals::net::answer::{Taker, pair};
use windlass::internals::net::handle::without_loop;
use windlass::internals::rocketmq::caller::SocketCaller;
use windlass::internals::rocketmq::client::{Context, Start};
use windlass::internals::rocketmq::consumer::group::{ConsumerId, ConsumerSpec, Order};
use windlass::internals::rocketmq::consumer::settings::{PullSettings, PushSettings};
use windlass::internals::rocketmq::core::{Command, Core};
use windlass::internals::rocketmq::settings::{Settings, Timing};
use windlass::internals::rocketmq::socket::{Known, SocketPort};
use windlass::internals::store::{OpenError, Options, Store};
use windlass::internals::work::budget::Budget;
use windlass::internals::work::clock::{Clock, Nanos};
use windlass::internals::work::serve::Lane;
use windlass::{Assigned, Averaging, ConsumerReport, StartFrom};

use crate::handler::Handler;
use crate::network::Who;
use crate::node::Node;
use crate::plan::Plan;

pub const BROKER_PORT: u16 = 10911;
pub const NAMES_PORT: u16 = 9876;
pub const TOPIC: &str = "orders";
pub const GROUP: &str = "members";
/// How long a client that leaves in order takes at most.
pub const LEAVE: Duration = Duration::from_secs(10);

pub fn addr(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

pub struct BrokerProcess {
    pub node: Node<Server>,
    pub dispatcher: Arc<Dispatcher>,
    pub store: Store,
    pub lane: Lane,
    pub lane_asked: bool,
    pub flush_asked: bool,
}

impl BrokerProcess {
    /// Opens what is on the disk and starts.
    pub fn start(disk: &FaultyDisk, plan: &Plan, clock: &Clock) -> Result<Self, OpenError> {
        let watcher = Watcher::new(plan.flush == Flush::Sync);
        let options = Options::durable().flush(plan.flush).segments(16 << 10, 64 << 10).delay_scale(plan.delay_scale);
        let disk: Arc<FaultyDisk> = Arc::new(disk.clone());
        let (store, _) = Store::open(disk.clone(), options, clock.wall_ms(), watcher.clone())?;
        let mailbox = Arc::new(Mailbox::default());
        let settings =
            BrokerSettings { listens: addr(BROKER_PORT), delay_scale: plan.delay_scale, ..BrokerSettings::default() };
        let dispatcher = Dispatcher::new(Parts {
            settings,
            clock: clock.clone(),
            store: store.clone(),
            watcher,
            saved: Saved::on(disk),
            names: true,
            alarm: mailbox.clone(),
        });
        let lane = Lane::unmanned();
        let (inbox, handle) = without_loop();
        mailbox.attach(handle.clone());
        mailbox.belongs_to_this_thread();
        let server = Server::new(dispatcher.clone(), mailbox, Some(lane.clone()), Vec::new());
        assert!(handle.post_own(Post::Look).is_ok());
        Ok(Self { node: Node::new(server, inbox), dispatcher, store, lane, lane_asked: false, flush_asked: false })
    }

    /// Makes the topic, once in the life of the disk.
    pub fn make_topic(&self, plan: &Plan) {
        self.dispatcher.put_topic(Topic::new(TOPIC, plan.queues as i32, 6)).unwrap();
    }

    /// As `wl-flush` does it.
    pub fn flush(&self) -> bool {
        elsewhere(|| self.store.flush_step().is_ok())
    }
}

/// Runs what production runs on another thread: some code asks which thread it is on. The caller waits, so that there is
/// still only one thing happening at a time.
pub fn elsewhere<T: Send>(job: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(job).join()).unwrap()
}

/// Each consumer's group and report.
type Reports = Vec<(Arc<str>, ConsumerReport)>;

pub struct ClientProcess {
    pub node: Node<Core>,
    pub pool: Arc<Pool>,
    pub lane: Lane,
    pub client_id: String,
    pub id: Option<ConsumerId>,
    pub handle: Handle<Command>,
    started: Taker<Result<ConsumerId, windlass::Error>>,
    left: Option<Taker<Reports>>,
    pub workers_asked: u32,
    pub lane_asked: bool,
}

impl ClientProcess {
    pub fn start(who: Who, instance: &str, plan: &Plan, clock: &Clock, seed: u64) -> Self {
        let timing = Timing::default();
        let settings = Settings {
            name_servers: vec![addr(NAMES_PORT).to_string()],
            workers: 1,
            memory_budget: plan.memory_budget,
            instance: instance.to_owned(),
            ip: [10, 0, 1, 1].into(),
            map_address: None,
            timing,
            clock: clock.clone(),
        };
        let (lane, budget, pool) = (Lane::unmanned(), Budget::new(settings.memory_budget), Pool::unmanned());
        let (inbox, handle) = without_loop();
        let start = Start { handle: &handle, lane: &lane, clock, budget: &budget, settings: &settings, seed };
        let port = SocketPort::new(
            &start,
            Arc::new(Known::default()),
            SocketCaller::lanes(&start),
            settings.name_servers.clone(),
            seed,
        );
        let context = Context::new(settings, lane.clone(), budget.clone(), handle.clone());
        let client_id = context.client_id.to_string();
        let room = handle.clone();
        budget.on_room(move || drop(room.post_own(Command::Room)));
        let consumer = Consumer::new(Box::new(Handler { who }), pool.clone(), clock.clone());
        let spec = ConsumerSpec {
            group: GROUP.into(),
            settings: push_settings(plan),
            assign: Arc::new(Averaging),
            observer: None,
            offsets: None,
            consumer,
        };
        let (answer, started) = pair();
        assert!(handle.post(Command::Start { spec: Box::new(spec), answer }).is_ok());
        let node = Node::new(Core::new(context, Box::new(port)), inbox);
        Self { node, pool, lane, client_id, id: None, handle, started, left: None, workers_asked: 0, lane_asked: false }
    }

    /// Its queues, as it sees them.
    pub fn assigned(&mut self, now: Nanos) -> Vec<Assigned> {
        if self.id.is_none() {
            self.id = self.started.poll().map(Result::unwrap);
        }
        let Some(id) = self.id else { return Vec::new() };
        let (answer, answered) = pair();
        self.node.ask(Command::Consumer(id, Order::Assigned(answer)), now);
        answered.poll().unwrap_or_default()
    }

    /// Leaves in order.
    pub fn leave(&mut self) {
        if self.left.is_none() {
            let (answer, left) = pair();
            assert!(self.handle.post(Command::Shutdown { most: LEAVE, answer }).is_ok());
            self.left = Some(left);
        }
    }

    pub fn is_leaving(&self) -> bool {
        self.left.is_some()
    }
}

fn push_settings(plan: &Plan) -> PushSettings {
    let limits = Limits { messages: plan.queue_messages, mebibytes: 100, span: Some(2000) };
    let pull = PullSettings {
        batch: plan.pull_batch,
        batch_bytes: 256 << 10,
        interval: Duration::ZERO,
        retry_delay: Duration::from_secs(1),
        post_subscription: false,
        limits,
        topic_messages: None,
        topic_mebibytes: None,
    };
    let claim = ClaimSettings {
        batch: plan.batch,
        wait: plan.batch_wait,
        running: u32::MAX,
        limits,
        timeout: plan.consume_timeout,
    };
    PushSettings {
        group: GROUP.to_owned(),
        subscriptions: vec![(TOPIC.to_owned(), TagExpression::default())],
        start_from: StartFrom::First,
        pull,
        claim,
        max_redeliveries: plan.max_redeliveries,
        revoke_wait: Duration::from_secs(1),
        drain: plan.drain,
        max_body: 1 << 20,
    }
}
