//! The world: a virtual clock, a queue of events, and everything that happens at them. One event at a time; whatever a
//! seed decides, it decides through the one generator, in the order of events.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use windlass::broker::Flush;
use windlass::internals::consume::pool::Worker;
use windlass::internals::disk::FaultyDisk;
use windlass::internals::net::handle::without_loop;
use windlass::internals::net::role::Why;
use windlass::internals::net::{Change, Conn};
use windlass::internals::wire::remoting::codes::request;
use windlass::internals::wire::remoting::command::Command;
use windlass::internals::wire::remoting::header::ReadHeader;
use windlass::internals::wire::remoting::pull::PullRequest;
use windlass::internals::work::clock::Nanos;
use windlass::{Outcome, TestClock};

use crate::handler::{self, Job, Verdict};
use crate::ledger::{Delivered, Ledger};
use crate::network::{Fate, Kind, Network, Who};
use crate::node::{Act, Arrival};
use crate::plan::{Fault, Plan};
use crate::process::{BROKER_PORT, BrokerProcess, ClientProcess, NAMES_PORT, TOPIC, addr, elsewhere};
use crate::producer::Producer;
use crate::rng::Rng;
use crate::watch::Watch;

/// Events that the tail of a failed run shows.
const TAIL: usize = 150;
/// More than this is a run that does not get on.
const MOST_EVENTS: u64 = 400_000;
/// How long a connection attempt that nobody answers takes.
const CONNECT: Duration = Duration::from_secs(3);
/// Workers of a client at the same time.
const WORKERS: u32 = 3;

pub enum Event {
    Turn(Who),
    Arrive(Who, Arrival),
    Work(Who),
    Lane(Who),
    Finish(u64),
    Flush(u32),
    Segment(u32),
    Fault(Fault),
    /// The broker's process comes back.
    Boot {
        power_cut: bool,
    },
    /// The name server behaves again.
    NamesBack,
    SlowEnd(usize),
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

#[derive(Default)]
pub struct Slot {
    pub life: u32,
    pub process: Option<ClientProcess>,
    slow: bool,
}

pub struct World {
    pub rng: Rng,
    pub clock: TestClock,
    pub now: Nanos,
    pub plan: Plan,
    pub net: Network,
    pub broker: Option<BrokerProcess>,
    pub broker_life: u32,
    pub disk: FaultyDisk,
    host: Reach,
    /// A call of the disk will fail, or has failed.
    pub disk_fails: bool,
    names: Reach,
    pub producer: crate::node::Node<Producer>,
    pub clients: Vec<Slot>,
    jobs: BTreeMap<u64, Job>,
    pub ledger: Ledger,
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
        let producer = Producer::new(
            Rng::new(seed ^ 0xABCD),
            clock.clock(),
            TOPIC,
            plan.queues,
            addr(BROKER_PORT),
            plan.messages,
            plan.gap_ms,
        );
        let (inbox, handle) = without_loop();
        assert!(handle.post(()).is_ok());
        let mut net = Network::new();
        net.weather = plan.weather;
        Self {
            clients: (0..plan.members).map(|_| Slot::default()).collect(),
            rng,
            clock,
            now: Nanos::ZERO,
            net,
            broker: None,
            broker_life: 0,
            disk: FaultyDisk::new(),
            host: Reach::Answers,
            disk_fails: false,
            names: Reach::Answers,
            producer: crate::node::Node::new(producer, inbox),
            jobs: BTreeMap::new(),
            ledger: Ledger::default(),
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
        self.boot(false);
        if let Some(broker) = &self.broker {
            broker.make_topic(&self.plan);
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
            Event::Flush(life) => self.flush(life),
            Event::Segment(life) => self.segment(life),
            Event::Fault(fault) => self.fault(fault),
            Event::Boot { power_cut } => self.boot(power_cut),
            Event::NamesBack => self.names = Reach::Answers,
            Event::SlowEnd(member) => self.clients[member].slow = false,
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
                Kind::Broker => self.broker.as_mut().and_then(|it| asked(&mut it.node, now, jitter)),
                Kind::Producer => asked(&mut self.producer, now, jitter),
                Kind::Client(at) => self.clients[at].process.as_mut().and_then(|it| asked(&mut it.node, now, jitter)),
            };
            if let Some(at) = asked {
                self.at(at, Event::Turn(who));
            }
            self.follow_threads(who);
        }
        if self.disk.stopped() && self.broker.is_some() {
            self.stop_broker(false);
        }
    }

    fn follow_threads(&mut self, who: Who) {
        let (mut work, mut lane, mut flush) = (false, false, false);
        match who.kind {
            Kind::Broker => {
                if let Some(it) = &mut self.broker {
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
            self.after(late, Event::Flush(who.life));
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
        let broker = self.broker.iter().map(|_| Who { kind: Kind::Broker, life: self.broker_life });
        let clients = self.clients.iter().enumerate().filter(|(_, slot)| slot.process.is_some());
        let clients = clients.map(|(at, slot)| Who { kind: Kind::Client(at), life: slot.life });
        broker.chain([Who { kind: Kind::Producer, life: 0 }]).chain(clients)
    }

    pub fn lives(&self, who: Who) -> bool {
        match who.kind {
            Kind::Broker => self.broker.is_some() && self.broker_life == who.life,
            Kind::Producer => true,
            Kind::Client(at) => self.clients[at].process.is_some() && self.clients[at].life == who.life,
        }
    }

    pub fn client(&mut self, who: Who) -> Option<&mut ClientProcess> {
        let Kind::Client(at) = who.kind else { return None };
        let slot = self.clients.get_mut(at)?;
        slot.process.as_mut().filter(|_| slot.life == who.life)
    }

    fn arrive(&mut self, who: Who, arrival: Arrival) {
        if !self.lives(who) {
            return;
        }
        if let Arrival::Change(conn, Change::Closed { .. } | Change::Failed { .. }) = &arrival {
            self.net.ended((who, *conn));
        }
        match who.kind {
            Kind::Broker => drop(self.broker.as_mut().map(|it| it.node.arrive(arrival))),
            Kind::Producer => self.producer.arrive(arrival),
            Kind::Client(_) => drop(self.client(who).map(|it| it.node.arrive(arrival))),
        }
    }

    fn turn(&mut self, who: Who) {
        if !self.lives(who) {
            return;
        }
        let now = self.now;
        let acts = match who.kind {
            Kind::Broker => self.broker.as_mut().and_then(|it| turn(&mut it.node, now)),
            Kind::Producer => turn(&mut self.producer, now),
            Kind::Client(_) => self.client(who).and_then(|it| turn(&mut it.node, now)),
        };
        for act in acts.unwrap_or_default() {
            self.act(who, act);
        }
        match who.kind {
            Kind::Broker => self.see_broker(),
            Kind::Producer => {
                let acknowledged = std::mem::take(&mut self.producer.role.acknowledged);
                self.ledger.acknowledged.extend(acknowledged);
            }
            Kind::Client(_) => {}
        }
    }

    /// Holds what the broker has done against the ledger.
    fn see_broker(&mut self) {
        let Some(broker) = &self.broker else { return };
        if self.disk.stopped() {
            return;
        }
        let seen = self.ledger.log.refresh(&broker.store);
        let seen = seen.and_then(|()| self.ledger.check_commits(&broker.dispatcher));
        self.check(seen);
    }

    fn act(&mut self, who: Who, act: Act) {
        match act {
            Act::Connect(conn, to) => self.connect(who, conn, to),
            Act::Send(conn, bytes) => self.send(who, conn, &bytes),
            Act::Close(conn) => {
                self.note((2, conn.0), || format!("{who:?} closes {}", conn.0));
                let fate = self.net.close((who, conn), self.now, &mut self.rng);
                if let Fate::Arrives(at, far, conn) = fate {
                    self.at(at, Event::Arrive(far, Arrival::Change(conn, Change::Closed { why: Why::Peer })));
                }
            }
            Act::Stop => self.ended(who),
        }
    }

    fn connect(&mut self, who: Who, conn: Conn, to: std::net::SocketAddr) {
        let listener = usize::from(to.port() == NAMES_PORT);
        let reach = match (self.host, listener) {
            (Reach::Answers, 1) => self.names,
            (reach, _) => reach,
        };
        self.note((3, conn.0, listener), || format!("{who:?} connects {} to {to}: {reach:?}", conn.0));
        let refused = |kind: io::ErrorKind| Arrival::Change(conn, Change::Failed { error: kind.into() });
        match (reach, &mut self.broker) {
            (Reach::Answers, Some(broker)) => {
                let far = (Who { kind: Kind::Broker, life: self.broker_life }, broker.node.next_conn());
                let [there, back] = self.net.link((who, conn), far, listener, self.now, &mut self.rng);
                let peer = std::net::SocketAddr::from(([10, 0, 1, 1], 40_000 + conn.0 as u16));
                let accepted = Change::Accepted { listener, peer, local: to };
                self.at(there, Event::Arrive(far.0, Arrival::Change(far.1, accepted)));
                self.at(back, Event::Arrive(who, Arrival::Change(conn, Change::Connected { local: peer })));
            }
            (Reach::Dark, _) if self.rng.chance(500) || self.host == Reach::Dark => {
                self.after(CONNECT, Event::Arrive(who, refused(io::ErrorKind::TimedOut)));
            }
            (Reach::Dark, Some(broker)) => {
                // Taken by the system of a process that does not read.
                let far = (Who { kind: Kind::Broker, life: self.broker_life }, broker.node.next_conn());
                let [_, back] = self.net.link((who, conn), far, listener, self.now, &mut self.rng);
                self.net
                    .find(|link| link.ends[0].who == who && link.ends[0].conn == conn)
                    .into_iter()
                    .for_each(|id| self.net.silence(id));
                let local = addr(1);
                self.at(back, Event::Arrive(who, Arrival::Change(conn, Change::Connected { local })));
            }
            _ => {
                let late = self.rng.micros(100, 3000);
                self.after(late, Event::Arrive(who, refused(io::ErrorKind::ConnectionRefused)));
            }
        }
    }

    fn send(&mut self, who: Who, conn: Conn, bytes: &[u8]) {
        let Some(content) = bytes.get(4..) else { return };
        let told = u32::from_be_bytes(bytes[..4].try_into().unwrap_or_default()) as usize;
        if told != content.len() {
            return self.fail(format!("{who:?} sends a frame of {} bytes that says {told}", content.len()));
        }
        let loses = self.calm_since.is_none();
        let fate = self.net.send((who, conn), self.now, loses, &mut self.rng);
        let Ok(command) = Command::read(content) else {
            return self.fail(format!("{who:?} sends a frame that cannot be read"));
        };
        let (code, answer, opaque) = (command.code, command.is_answer(), command.opaque);
        if code == request::PULL_MESSAGE
            && !answer
            && let Ok(pull) = PullRequest::read(&command.fields)
        {
            self.watch.pulled(who, &pull, self.now);
        }
        self.note((1, conn.0, code, answer, content), || {
            let name =
                if answer { "answers".to_owned() } else { format!("asks {}", request::name(code).unwrap_or("?")) };
            let fields: Vec<String> =
                command.fields.iter().map(|(name, value)| format!("{}={}", name.lossy(), value.lossy())).collect();
            format!(
                "{who:?} {name} code={code} opaque={opaque} conn={} bytes={} {fate:?} {}",
                conn.0,
                content.len(),
                fields.join(" ")
            )
        });
        match fate {
            Fate::Arrives(at, far, far_conn) => {
                self.at(at, Event::Arrive(far, Arrival::Frame(far_conn, content.to_vec())));
            }
            // A system answers for a process that is gone; one that is dark says nothing.
            Fate::Lost if !self.net.knows((who, conn)) && self.host == Reach::Answers => {
                let why = Why::Io(io::ErrorKind::ConnectionReset.into());
                let late = self.rng.millis(0, 20);
                self.after(late, Event::Arrive(who, Arrival::Change(conn, Change::Closed { why })));
            }
            Fate::Lost => {}
        }
    }

    /// Both ends of these connections hear of their end.
    pub fn cut(&mut self, links: Vec<u64>) {
        for id in links {
            for (at, who, conn) in self.net.cut(id, self.now, &mut self.rng) {
                let why = Why::Io(io::ErrorKind::ConnectionReset.into());
                self.at(at, Event::Arrive(who, Arrival::Change(conn, Change::Closed { why })));
            }
        }
    }

    fn flush(&mut self, life: u32) {
        if life != self.broker_life {
            return;
        }
        let Some(broker) = &self.broker else { return };
        let done = broker.flush();
        if let Some(broker) = &mut self.broker {
            broker.flush_asked = false;
        }
        self.note((5, done), || format!("flush: {done}"));
        self.see_broker();
    }

    fn segment(&mut self, life: u32) {
        if life != self.broker_life {
            return;
        }
        let Some(broker) = &self.broker else { return };
        broker.store.segment_step(self.clock.clock().wall_ms());
        let next = self.rng.millis(100, 1000);
        self.after(next, Event::Segment(life));
    }

    fn lane(&mut self, who: Who) {
        if !self.lives(who) {
            return;
        }
        let lane = match who.kind {
            Kind::Broker => self.broker.as_mut().map(|it| (&mut it.lane_asked, it.lane.clone())),
            Kind::Client(_) => self.client(who).map(|it| (&mut it.lane_asked, it.lane.clone())),
            Kind::Producer => None,
        };
        let Some((asked, lane)) = lane else { return };
        *asked = false;
        let ran = elsewhere(|| lane.run_next());
        self.note((6, ran), || format!("{who:?} ran a job of its lane"));
    }

    fn next_token(&mut self, who: Who) -> Option<(windlass::internals::consume::pool::Token, usize)> {
        let depth = self.depth as usize;
        let client = self.client(who)?;
        client.workers_asked -= 1;
        Some((client.pool.try_next()?, depth))
    }

    /// A handler has these in hand.
    pub fn begin(&mut self, who: Who, messages: &[Delivered]) {
        for what in messages {
            self.note((7, what.id, what.offset, what.times, what.attempt), || {
                format!(
                    "{who:?} handles id={} {}/{}/{} times={} attempt={}",
                    what.id, what.topic, what.queue, what.offset, what.times, what.attempt
                )
            });
            let begun = self.ledger.begin(what);
            self.check(begun);
        }
    }

    /// What becomes of so many messages; how long the handler blocks; whether it panics.
    pub fn decide(&mut self, who: Who, messages: usize) -> (Vec<Verdict>, Option<Duration>, bool) {
        let slow = matches!(who.kind, Kind::Client(at) if self.clients[at].slow);
        let (handling, calm) = (self.plan.handling, self.calm_since.is_some());
        let most = if slow {
            20_000
        } else if calm {
            handling.most_ms.min(500)
        } else {
            handling.most_ms
        };
        let rng = &mut self.rng;
        let verdicts = (0..messages).map(|_| {
            let outcome = if rng.chance(handling.retry) {
                Outcome::Retry
            } else if rng.chance(handling.dead) {
                Outcome::DeadLetter
            } else {
                Outcome::Done
            };
            let later = rng.chance(if slow { 700 } else { handling.detached }).then(|| rng.millis(0, most));
            Verdict { outcome, later }
        });
        let verdicts = verdicts.collect();
        let block = self.rng.chance(handling.blocking).then(|| self.rng.millis(0, most));
        (verdicts, block, self.rng.chance(handling.panic))
    }

    pub fn end(&mut self, who: Who, what: &Delivered, outcome: Outcome) {
        let alive = self.lives(who);
        self.note((8, what.id, what.offset, alive), || {
            format!(
                "{who:?} has handled id={} {}/{}/{}: {outcome:?}{}",
                what.id,
                what.topic,
                what.queue,
                what.offset,
                if alive { "" } else { ", dead" }
            )
        });
        self.ledger.end(what, alive && outcome == Outcome::Done);
    }

    pub fn finish_later(&mut self, job: Job, later: Duration) {
        self.last += 1;
        let number = self.last;
        self.jobs.insert(number, job);
        self.after(later, Event::Finish(number));
    }

    fn finish(&mut self, number: u64) {
        let Some(job) = self.jobs.remove(&number) else { return };
        self.end(job.who, &job.what, job.outcome);
        job.detached.finish(job.outcome, None);
    }
}

fn asked<R: windlass::internals::net::Role>(
    node: &mut crate::node::Node<R>,
    now: Nanos,
    jitter: Duration,
) -> Option<Nanos> {
    let at = node.wants()?.max(now) + jitter;
    if node.wakes.is_some_and(|wakes| wakes <= at) {
        return None;
    }
    node.wakes = Some(at);
    Some(at)
}

/// `None`: not the turn that was asked for last.
fn turn<R: windlass::internals::net::Role>(node: &mut crate::node::Node<R>, now: Nanos) -> Option<Vec<Act>> {
    if node.wakes != Some(now) {
        return None;
    }
    node.wakes = None;
    Some(node.turn(now))
}

impl World {
    pub(crate) fn reach(&mut self, host: Reach) {
        self.host = host;
    }

    pub(crate) fn names_are(&mut self, names: Reach) {
        self.names = names;
    }

    pub(crate) fn slow(&mut self, member: usize) {
        self.clients[member].slow = true;
    }
}
