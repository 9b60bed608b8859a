//! The processes of the simulation: a broker over its disk, and clients. Both are the library's own roles with everything
//! around them that production starts threads for: lanes and pools without threads, steps of the store on demand.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
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
use windlass::{Assigned, Averaging, ConsumerReport, Event, Observer, Queue};

use crate::handler::Handler;
use crate::ledger::Place;
use crate::network::Who;
use crate::node::Node;
use crate::plan::{GroupPlan, Plan, WANTED};

pub const BROKER_PORT: u16 = 10911;
pub const NAMES_PORT: u16 = 9876;
pub const TOPIC: &str = "orders";
/// How long a client that leaves in order takes at most.
pub const LEAVE: Duration = Duration::from_secs(10);

/// An address of a site's machine.
pub fn addr(site: usize, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + site as u8], port))
}

/// A name server that does not exist.
pub fn nowhere() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 200], NAMES_PORT))
}

/// Whose address that is.
pub fn site_of(addr: &SocketAddr) -> Option<usize> {
    let std::net::IpAddr::V4(ip) = addr.ip() else { return None };
    let [10, 0, 0, host] = ip.octets() else { return None };
    (host as usize).checked_sub(1)
}

/// A broker's name.
pub fn broker_name(site: usize) -> &'static str {
    ["broker-a", "broker-b"][site]
}

/// The site of a broker by its name.
pub fn site_named(name: &str) -> usize {
    usize::from(name == broker_name(1))
}

/// A queue as the ledger names it.
pub fn place_of(queue: &Queue) -> Place {
    (site_named(&queue.broker), queue.topic.clone(), queue.id)
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
    pub fn start(site: usize, disk: &FaultyDisk, plan: &Plan, clock: &Clock) -> Result<Self, OpenError> {
        let watcher = Watcher::new(plan.flush == Flush::Sync);
        let options = Options::durable().flush(plan.flush).segments(16 << 10, 64 << 10).delay_scale(plan.delay_scale);
        let disk: Arc<FaultyDisk> = Arc::new(disk.clone());
        let (store, _) = Store::open(disk.clone(), options, clock.wall_ms(), watcher.clone())?;
        let mailbox = Arc::new(Mailbox::default());
        let settings = BrokerSettings {
            broker: broker_name(site).into(),
            listens: addr(site, BROKER_PORT),
            delay_scale: plan.delay_scale,
            ..BrokerSettings::default()
        };
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
        // Each broker is known to the name servers of the others.
        let joins = (0..plan.sites).filter(|other| *other != site).map(|other| addr(other, NAMES_PORT)).collect();
        let (inbox, handle) = without_loop();
        mailbox.attach(handle.clone());
        mailbox.belongs_to_this_thread();
        let server = Server::new(dispatcher.clone(), mailbox, Some(lane.clone()), joins);
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
    /// What it has told its observer.
    pub events: Arc<Mutex<Vec<Event>>>,
    /// When it was told to leave.
    pub leaves: Option<Nanos>,
    pub id: Option<ConsumerId>,
    pub handle: Handle<Command>,
    started: Taker<Result<ConsumerId, windlass::StartError>>,
    left: Option<Taker<Reports>>,
    pub workers_asked: u32,
    pub lane_asked: bool,
}

impl ClientProcess {
    pub fn start(who: Who, group: usize, instance: &str, plan: &Plan, clock: &Clock, seed: u64) -> Self {
        let timing = Timing::default();
        let settings = Settings {
            name_servers: (0..plan.sites).map(|site| addr(site, NAMES_PORT).to_string()).collect(),
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
        let charged = budget.clone();
        let context = Context::new(settings, lane.clone(), budget.clone(), handle.clone());
        let client_id = context.client_id.to_string();
        let room = handle.clone();
        budget.on_room(move || drop(room.post_own(Command::Room)));
        let consumer = Consumer::new(Box::new(Handler { who, group }), pool.clone(), clock.clone());
        let events = Arc::new(Mutex::new(Vec::new()));
        let told = events.clone();
        let observer: Arc<dyn Observer> = Arc::new(move |event: &Event| told.lock().unwrap().push(event.clone()));
        let spec = ConsumerSpec {
            group: plan.groups[group].name.into(),
            settings: push_settings(plan, &plan.groups[group]),
            assign: Arc::new(Averaging),
            observer: Some(observer),
            offsets: None,
            consumer,
        };
        let (answer, started) = pair();
        assert!(handle.post(Command::Start { spec: Box::new(spec), answer }).is_ok());
        let mut node = Node::new(Core::new(context, Box::new(port)), inbox);
        node.budget = Some(charged);
        Self {
            node,
            pool,
            lane,
            client_id,
            events,
            leaves: None,
            id: None,
            handle,
            started,
            left: None,
            workers_asked: 0,
            lane_asked: false,
        }
    }

    /// Its queues, as it sees them.
    pub fn assigned(&mut self, now: Nanos) -> Vec<Assigned> {
        let (answer, answered) = pair();
        self.order(Order::Assigned(answer), now);
        answered.poll().unwrap_or_default()
    }

    /// Something its user wants of the consumer.
    pub fn order(&mut self, order: Order, now: Nanos) {
        if self.id.is_none() {
            self.id = self.started.poll().map(Result::unwrap);
        }
        if let Some(id) = self.id {
            self.node.ask(Command::Consumer(id, order), now);
        }
    }

    /// Leaves in order.
    pub fn leave(&mut self, now: Nanos) {
        if self.left.is_none() {
            self.leaves = Some(now);
            let (answer, left) = pair();
            assert!(self.handle.post(Command::Shutdown { most: LEAVE, answer }).is_ok());
            self.left = Some(left);
        }
    }

    pub fn is_leaving(&self) -> bool {
        self.left.is_some()
    }
}

fn push_settings(plan: &Plan, group: &GroupPlan) -> PushSettings {
    let limits = Limits { messages: plan.queue_messages, mebibytes: 100, span: Some(2000) };
    let pull = PullSettings {
        batch: plan.pull_batch,
        batch_bytes: 256 << 10,
        interval: Duration::ZERO,
        retry_delay: Duration::from_secs(1),
        post_subscription: group.post_subscription,
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
    let tags = if group.filtered { TagExpression::parse(WANTED).unwrap() } else { TagExpression::default() };
    PushSettings {
        group: group.name.to_owned(),
        subscriptions: vec![(TOPIC.to_owned(), tags)],
        start_from: group.start_from,
        pull,
        claim,
        max_redeliveries: plan.max_redeliveries,
        revoke_wait: Duration::from_secs(1),
        drain: plan.drain,
        max_body: 1 << 20,
    }
}
