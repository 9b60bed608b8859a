//! The world: a virtual clock, a queue of events, and everything that happens at them. One event at a time; whatever a
//! seed decides, it decides through the one generator, in the order of events. What roles do is carried out in
//! `carry.rs`, what handlers do in `handler.rs`.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use windlass::TestClock;
use windlass::broker::Flush;
use windlass::internals::consume::pool::{Token, Worker};
use windlass::internals::disk::FaultyDisk;
use windlass::internals::net::handle::without_loop;
use windlass::internals::net::{Conn, Role};
use windlass::internals::work::clock::Nanos;

use crate::handler::{self, Job};
use crate::ledger::Ledger;
use crate::network::{Kind, Network, Who};
use crate::node::{Arrival, Node};
use crate::plan::{Fault, Plan};
use crate::process::{BROKER_PORT, BrokerProcess, ClientProcess, addr, elsewhere};
use crate::producer::Producer;
use crate::rng::Rng;
use crate::silence::Silence;
use crate::talk::Talk;
use crate::watch::Watch;

/// Events that the tail of a failed run shows.
const TAIL: usize = 150;
/// More than this is a run that does not get on.
const MOST_EVENTS: u64 = 600_000;
/// Workers of a client at the same time.
const WORKERS: u32 = 3;

pub enum Event {
    Turn(Who),
    Arrive(Who, Arrival),
    Work(Who),
    Lane(Who),
    Finish(u64),
    Flush(Who),
    Segment(Who),
    Fault(Fault),
    /// A broker's process comes back.
    Boot {
        site: usize,
        power_cut: bool,
    },
    /// A name server behaves again.
    NamesBack(usize),
    SlowEnd(usize),
    MuteEnd(usize),
    Resume(usize),
    /// An answer of long ago to a request that is open.
    Ghost(Who, Conn, i32),
    Look,
}

/// How a peer that is not there is noticed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reach {
    Answers,
    Refuses,
    /// Nobody answers at all.
    Dark,
}

/// One machine with a broker, its name server and its disk.
pub struct Site {
    pub life: u32,
    pub process: Option<BrokerProcess>,
    pub disk: FaultyDisk,
    pub host: Reach,
    pub names: Reach,
    /// A call of the disk will fail, or has failed.
    pub disk_fails: bool,
    /// Power goes with the next acknowledged message.
    pub cut_at_ack: bool,
}

/// One client's place.
#[derive(Default)]
pub struct Slot {
    pub life: u32,
    pub process: Option<ClientProcess>,
    pub slow: bool,
    /// Its heartbeats are lost.
    pub mute: bool,
    /// The name servers that it was told of last, and when.
    pub names: Option<(Vec<String>, Nanos)>,
    pub paused: bool,
}

pub struct World {
    pub rng: Rng,
    pub clock: TestClock,
    pub now: Nanos,
    pub plan: Plan,
    pub net: Network,
    pub sites: Vec<Site>,
    pub producer: Node<Producer>,
    pub clients: Vec<Slot>,
    pub jobs: BTreeMap<u64, Job>,
    pub ledger: Ledger,
    pub talk: Talk,
    pub silence: Silence,
    pub watch: Watch,
    pub calm_since: Option<Nanos>,
    pub failure: Option<String>,
    pub finished: bool,
    pub depth: u32,
    events: BTreeMap<(Nanos, u64), Event>,
    last: u64,
    log: Log,
}

/// What has happened: a hash of all of it, and the last of it in words if it is recorded.
struct Log {
    hash: DefaultHasher,
    events: u64,
    record: bool,
    tail: VecDeque<String>,
}

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    pub seed: u64,
    pub hash: u64,
    pub events: u64,
    pub virtual_ms: u64,
    pub deliveries: u64,
    pub acknowledged: usize,
    pub failure: Option<String>,
    pub tail: Vec<String>,
    pub plan: Plan,
}

/// Runs one seed to its end.
pub fn run(seed: u64, record: bool) -> Report {
    let world = Rc::new(RefCell::new(World::new(seed, record)));
    handler::enter(Some(world.clone()));
    world.borrow_mut().begin_run();
    run_until(&world, Nanos::MAX);
    handler::enter(None);
    let mut world = world.borrow_mut();
    // Deliveries end before what they belong to.
    world.jobs.clear();
    Report {
        seed,
        hash: world.log.hash.finish(),
        events: world.log.events,
        virtual_ms: world.now.as_ms(),
        deliveries: world.ledger.deliveries,
        acknowledged: world.ledger.acknowledged.len(),
        failure: world.failure.take(),
        tail: world.log.tail.drain(..).collect(),
        plan: world.plan.clone(),
    }
}

/// Lets things happen until `until`, or until the run is over. Handlers that block call it too.
pub fn run_until(world: &Rc<RefCell<World>>, until: Nanos) {
    loop {
        let event = world.borrow_mut().next_event(until);
        match event {
            None => return,
            Some(Event::Work(who)) => {
                let token = world.borrow_mut().next_token(who);
                if let Some((token, worker)) = token {
                    // User code runs here, which looks at the world itself.
                    token.run(&mut Worker::new(worker));
                }
            }
            Some(event) => world.borrow_mut().happen(event),
        }
        world.borrow_mut().follow();
    }
}

impl World {
    fn new(seed: u64, record: bool) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::of(&mut rng);
        let clock = TestClock::new();
        let brokers = (0..plan.sites).map(|site| addr(site, BROKER_PORT));
        let producer = Producer::new(Rng::new(seed ^ 0xABCD), clock.clock(), brokers, &plan);
        let (inbox, handle) = without_loop();
        assert!(handle.post(()).is_ok());
        let mut net = Network::new();
        net.weather = plan.weather;
        let site = |_| Site {
            life: 0,
            process: None,
            disk: FaultyDisk::new(),
            host: Reach::Answers,
            names: Reach::Answers,
            disk_fails: false,
            cut_at_ack: false,
        };
        Self {
            clients: (0..plan.members).map(|_| Slot::default()).collect(),
            rng,
            clock,
            now: Nanos::ZERO,
            net,
            sites: (0..plan.sites).map(site).collect(),
            producer: Node::new(producer, inbox),
            jobs: BTreeMap::new(),
            ledger: Ledger::new(&plan.groups, plan.sites),
            talk: Talk::default(),
            silence: Silence::default(),
            watch: Watch::default(),
            calm_since: None,
            failure: None,
            finished: false,
            depth: 0,
            events: BTreeMap::new(),
            last: 0,
            log: Log { hash: DefaultHasher::new(), events: 0, record, tail: VecDeque::new() },
            plan,
        }
    }

    fn begin_run(&mut self) {
        for site in 0..self.sites.len() {
            self.boot(site, false);
            if let Some(broker) = &self.sites[site].process {
                broker.make_topic(&self.plan);
            }
        }
        for (at, fault) in self.plan.faults.clone() {
            self.at(Nanos::ZERO + at, Event::Fault(fault));
        }
        self.at(Nanos::ZERO, Event::Look);
        self.follow();
    }

    pub fn at(&mut self, at: Nanos, event: Event) {
        self.last += 1;
        self.events.insert((at.max(self.now), self.last), event);
    }

    pub fn after(&mut self, delay: Duration, event: Event) {
        self.at(self.now + delay, event);
    }

    pub fn fail(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.failure.get_or_insert(text);
    }

    pub fn check(&mut self, result: Result<(), String>) {
        if let Err(text) = result {
            self.fail(text);
        }
    }

    /// A number that was not used before.
    pub fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Notes what happens: `key` goes into the hash, the text into the tail.
    pub fn note(&mut self, key: impl Hash, text: impl FnOnce() -> String) {
        (self.now.0, key).hash(&mut self.log.hash);
        if self.log.record {
            let line = format!("{:>12.6} {}", self.now.0 as f64 / 1e9, text());
            if self.log.tail.len() == TAIL {
                self.log.tail.pop_front();
            }
            self.log.tail.push_back(line);
        }
    }

    fn next_event(&mut self, until: Nanos) -> Option<Event> {
        if self.failure.is_some() || self.finished {
            return None;
        }
        let (at, _) = *self.events.keys().next()?;
        if at > until {
            self.move_to(until);
            return None;
        }
        self.log.events += 1;
        if self.log.events > MOST_EVENTS {
            self.fail("too many events: something turns in circles");
        }
        self.move_to(at);
        self.events.pop_first().map(|(_, event)| event)
    }

    fn move_to(&mut self, at: Nanos) {
        if at > self.now {
            self.clock.advance(at.since(self.now));
            self.now = at;
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Turn(who) => self.turn(who),
            Event::Arrive(who, arrival) => self.arrive(who, arrival),
            Event::Work(_) => {}
            Event::Lane(who) => self.lane(who),
            Event::Finish(number) => self.finish(number),
            Event::Flush(who) => self.flush(who),
            Event::Segment(who) => self.segment(who),
            Event::Fault(fault) => self.fault(fault),
            Event::Boot { site, power_cut } => self.boot(site, power_cut),
            Event::NamesBack(site) => self.sites[site].names = Reach::Answers,
            Event::SlowEnd(member) => self.clients[member].slow = false,
            Event::MuteEnd(member) => self.clients[member].mute = false,
            Event::Resume(member) => self.resume(member),
            Event::Ghost(who, conn, opaque) => self.ghost(who, conn, opaque),
            Event::Look => self.look(),
        }
    }

    /// Asks for the turns, workers and lanes that what has just happened wants.
    fn follow(&mut self) {
        let whos: Vec<Who> = self.whos().collect();
        for who in whos {
            let now = self.now;
            let jitter = self.rng.micros(5, 300);
            let asked = match who.kind {
                Kind::Broker(site) => self.sites[site].process.as_mut().and_then(|it| asked(&mut it.node, now, jitter)),
                Kind::Producer => asked(&mut self.producer, now, jitter),
                Kind::Client(at) => self.clients[at].process.as_mut().and_then(|it| asked(&mut it.node, now, jitter)),
            };
            if let Some(at) = asked {
                self.at(at, Event::Turn(who));
            }
            self.follow_threads(who);
        }
        for site in 0..self.sites.len() {
            if self.sites[site].disk.stopped() && self.sites[site].process.is_some() {
                self.stop_broker(site, false);
            }
        }
    }

    fn follow_threads(&mut self, who: Who) {
        let (mut work, mut lane, mut flush) = (false, false, false);
        match who.kind {
            Kind::Broker(site) => {
                if let Some(it) = &mut self.sites[site].process {
                    lane = !it.lane.is_quiet() && !std::mem::replace(&mut it.lane_asked, true);
                    flush =
                        it.store.durable() < it.store.log_end() && !it.flush_asked && it.store.read_only().is_none();
                    it.flush_asked |= flush;
                }
            }
            Kind::Client(at) => {
                if let Some(it) = &mut self.clients[at].process {
                    work = !it.pool.is_quiet() && it.workers_asked < WORKERS;
                    it.workers_asked += u32::from(work);
                    lane = !it.lane.is_quiet() && !std::mem::replace(&mut it.lane_asked, true);
                }
            }
            Kind::Producer => {}
        }
        if flush {
            let late = match self.plan.flush {
                Flush::Sync if self.rng.chance(800) => self.rng.millis(1, 8),
                Flush::Sync => self.rng.millis(8, 400),
                _ => self.rng.millis(150, 250),
            };
            self.after(late, Event::Flush(who));
        }
        if work {
            let late = if self.rng.chance(50) { self.rng.millis(1, 100) } else { self.rng.micros(5, 500) };
            self.after(late, Event::Work(who));
        }
        if lane {
            let late = self.rng.micros(20, 5000);
            self.after(late, Event::Lane(who));
        }
    }

    fn whos(&self) -> impl Iterator<Item = Who> + use<'_> {
        let brokers = self.sites.iter().enumerate().filter(|(_, site)| site.process.is_some());
        let brokers = brokers.map(|(at, site)| Who { kind: Kind::Broker(at), life: site.life });
        let clients = self.clients.iter().enumerate().filter(|(_, slot)| slot.process.is_some());
        let clients = clients.map(|(at, slot)| Who { kind: Kind::Client(at), life: slot.life });
        brokers.chain([Who { kind: Kind::Producer, life: 0 }]).chain(clients)
    }

    pub fn lives(&self, who: Who) -> bool {
        match who.kind {
            Kind::Broker(site) => self.sites[site].process.is_some() && self.sites[site].life == who.life,
            Kind::Producer => true,
            Kind::Client(at) => self.clients[at].process.is_some() && self.clients[at].life == who.life,
        }
    }

    pub fn client(&mut self, who: Who) -> Option<&mut ClientProcess> {
        let Kind::Client(at) = who.kind else { return None };
        let slot = self.clients.get_mut(at)?;
        slot.process.as_mut().filter(|_| slot.life == who.life)
    }

    fn flush(&mut self, who: Who) {
        let Kind::Broker(site) = who.kind else { return };
        if !self.lives(who) {
            return;
        }
        let Some(broker) = &mut self.sites[site].process else { return };
        let done = broker.flush();
        broker.flush_asked = false;
        self.note((5, done), || format!("{who:?} flush: {done}"));
        self.see_broker(site);
    }

    fn segment(&mut self, who: Who) {
        let (Kind::Broker(site), true) = (who.kind, self.lives(who)) else { return };
        let Some(broker) = &self.sites[site].process else { return };
        broker.store.segment_step(self.clock.clock().wall_ms());
        let next = self.rng.millis(100, 1000);
        self.after(next, Event::Segment(who));
    }

    fn lane(&mut self, who: Who) {
        if !self.lives(who) {
            return;
        }
        let lane = match who.kind {
            Kind::Broker(site) => self.sites[site].process.as_mut().map(|it| (&mut it.lane_asked, it.lane.clone())),
            Kind::Client(_) => self.client(who).map(|it| (&mut it.lane_asked, it.lane.clone())),
            Kind::Producer => None,
        };
        let Some((asked, lane)) = lane else { return };
        *asked = false;
        let ran = elsewhere(|| lane.run_next());
        self.note((6, ran), || format!("{who:?} ran a job of its lane"));
        let told = self.client(who).map(|client| std::mem::take(&mut *client.events.lock().unwrap()));
        for event in told.unwrap_or_default() {
            self.told(who, &event);
        }
    }

    fn next_token(&mut self, who: Who) -> Option<(Token, usize)> {
        let depth = self.depth as usize;
        let client = self.client(who)?;
        client.workers_asked -= 1;
        Some((client.pool.try_next()?, depth))
    }

    fn finish(&mut self, number: u64) {
        let Some(job) = self.jobs.remove(&number) else { return };
        self.end(job.who, job.group, &job.what, job.outcome);
        job.detached.finish(job.outcome, None);
    }
}

fn asked<R: Role>(node: &mut Node<R>, now: Nanos, jitter: Duration) -> Option<Nanos> {
    let at = node.wants()?.max(now) + jitter;
    if node.wakes.is_some_and(|wakes| wakes <= at) {
        return None;
    }
    node.wakes = Some(at);
    Some(at)
}
