//! What roles do, carried out: turns, connections, frames and where they get lost, damaged or doubled.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use windlass::internals::net::role::Why;
use windlass::internals::net::{Change, Conn, Role};
use windlass::internals::wire::remoting::codes::request;
use windlass::internals::wire::remoting::command::{Command, Head, write};
use windlass::internals::work::clock::Nanos;

use crate::damage::{damaged, with_unreadable};
use crate::network::{Fate, Kind, Who};
use crate::node::{Act, Arrival, Node};
use crate::process::{NAMES_PORT, addr, site_of};
use crate::world::{Event, Reach, World};

/// How long a connection attempt that nobody answers takes.
const CONNECT: Duration = Duration::from_secs(3);
/// Where the generation of a client's opaque begins; see `net::correlation`.
const GENERATION: u32 = 20;

impl World {
    pub fn arrive(&mut self, who: Who, arrival: Arrival) {
        if !self.lives(who) {
            return;
        }
        match &arrival {
            Arrival::Change(conn, Change::Closed { .. } | Change::Failed { .. }) => {
                self.net.ended((who, *conn));
                self.talk.line_ended(who, *conn);
            }
            Arrival::Change(conn, Change::Connected { .. }) => self.talk.line_is_up(who, *conn, self.now),
            Arrival::Change(_, Change::Accepted { .. }) => {}
            Arrival::Frame(conn, content) => self.hears(who, *conn, content),
        }
        match who.kind {
            Kind::Broker(site) => drop(self.sites[site].process.as_mut().map(|it| it.node.arrive(arrival))),
            Kind::Producer => self.producer.arrive(arrival),
            Kind::Client(_) => drop(self.client(who).map(|it| it.node.arrive(arrival))),
        }
    }

    pub fn turn(&mut self, who: Who) {
        if !self.lives(who) {
            return;
        }
        let now = self.now;
        let acts = match who.kind {
            Kind::Broker(site) => self.sites[site].process.as_mut().and_then(|it| turn(&mut it.node, now)),
            Kind::Producer => turn(&mut self.producer, now),
            Kind::Client(_) => self.client(who).and_then(|it| turn(&mut it.node, now)),
        };
        let acts = acts.unwrap_or_default();
        let mut ends = acts.iter().any(|act| matches!(act, Act::Stop));
        for act in acts {
            if ends && matches!(act, Act::Close(_) | Act::Stop) {
                self.check_left(who);
                ends = false;
            }
            self.act(who, act);
        }
        match who.kind {
            Kind::Broker(site) => self.see_broker(site),
            Kind::Producer => self.see_producer(),
            Kind::Client(_) => self.see_client(who),
        }
    }

    fn see_producer(&mut self) {
        let acknowledged = std::mem::take(&mut self.producer.role.acknowledged);
        for (site, id) in acknowledged {
            self.ledger.acknowledged.insert((site, id));
            if std::mem::take(&mut self.sites[site].cut_at_ack) && self.calm_since.is_none() {
                self.stop_broker(site, true);
            }
        }
    }

    /// Holds what a broker has done against the ledger.
    pub fn see_broker(&mut self, at: usize) {
        let site = &self.sites[at];
        let Some(broker) = site.process.as_ref().filter(|_| !site.disk.stopped()) else { return };
        let seen = self.ledger.refresh(at, &broker.store);
        let seen = seen.and_then(|()| self.ledger.check_commits(at, &broker.dispatcher, self.now));
        self.check(seen);
    }

    fn act(&mut self, who: Who, act: Act) {
        match act {
            Act::Connect(conn, to) => self.connect(who, conn, to),
            Act::Send(conn, bytes) => self.send(who, conn, &bytes),
            Act::Close(conn) => {
                self.note((2, conn.0), || format!("{who:?} closes {}", conn.0));
                self.talk.line_ended(who, conn);
                let fate = self.net.close((who, conn), self.now, &mut self.rng);
                if let Fate::Arrives(at, far, conn) = fate {
                    self.at(at, Event::Arrive(far, Arrival::Change(conn, Change::Closed { why: Why::Peer })));
                }
            }
            Act::Stop => self.ended(who),
        }
    }

    fn connect(&mut self, who: Who, conn: Conn, to: SocketAddr) {
        let listener = usize::from(to.port() == NAMES_PORT);
        let site = site_of(&to).filter(|site| *site < self.sites.len());
        let reach = match site.map(|site| (self.sites[site].host, listener, self.sites[site].names)) {
            Some((Reach::Answers, 1, names)) => names,
            Some((host, _, _)) => host,
            None => Reach::Refuses,
        };
        self.note((3, conn.0, listener), || format!("{who:?} connects {} to {to}: {reach:?}", conn.0));
        if let (Some(site), 0) = (site, listener) {
            self.talk.line_asked(who, conn, site);
        }
        let refused = |kind: io::ErrorKind| Arrival::Change(conn, Change::Failed { error: kind.into() });
        // What a process sees of its own end: brokers are known by the machine's address.
        let host = match who.kind {
            Kind::Broker(site) => addr(site, 1).ip(),
            Kind::Producer | Kind::Client(_) => [10, 0, 1, 1].into(),
        };
        let peer = SocketAddr::from((host, 40_000 + conn.0 as u16));
        let far = site.and_then(|site| {
            let place = &mut self.sites[site];
            let node = &mut place.process.as_mut()?.node;
            let dark = place.host == Reach::Dark;
            Some((Who { kind: Kind::Broker(site), life: place.life }, node, dark))
        });
        match (reach, far) {
            (Reach::Answers, Some((far, node, _))) => {
                let far = (far, node.next_conn());
                if let (Kind::Client(at), 0) = (who.kind, listener) {
                    let id = self.clients[at].process.as_ref().map(|it| it.client_id.clone());
                    self.talk.holds(far.0, far.1, id.unwrap_or_default());
                }
                let [there, back] = self.net.link((who, conn), far, listener, self.now, &mut self.rng);
                let accepted = Change::Accepted { listener, peer, local: to };
                self.at(there, Event::Arrive(far.0, Arrival::Change(far.1, accepted)));
                self.at(back, Event::Arrive(who, Arrival::Change(conn, Change::Connected { local: peer })));
            }
            // Taken by the system of a process that does not read.
            (Reach::Dark, Some((far, node, false))) if self.rng.chance(500) => {
                let far = (far, node.next_conn());
                let [_, back] = self.net.link((who, conn), far, listener, self.now, &mut self.rng);
                let near = |link: &crate::network::Link| link.ends[0].who == who && link.ends[0].conn == conn;
                self.net.find(near).into_iter().for_each(|id| self.net.silence(id));
                self.at(back, Event::Arrive(who, Arrival::Change(conn, Change::Connected { local: peer })));
            }
            (Reach::Dark, _) => self.after(CONNECT, Event::Arrive(who, refused(io::ErrorKind::TimedOut))),
            (Reach::Answers | Reach::Refuses, _) => {
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
        let mut fate = self.net.send((who, conn), self.now, loses, &mut self.rng);
        let Ok(command) = Command::read(content) else {
            return self.fail(format!("{who:?} sends a frame that cannot be read"));
        };
        let (code, answer, opaque) = (command.code, command.is_answer(), command.opaque);
        if let Kind::Client(at) = who.kind
            && !answer
        {
            let asked = self.asks(who, conn, &command);
            self.check(asked);
            if code == request::HEART_BEAT && self.clients[at].mute {
                fate = Fate::Lost;
            }
            if self.rng.chance(self.plan.ghosts) && loses {
                let late = self.rng.millis(0, 40);
                self.after(late, Event::Ghost(who, conn, opaque));
            }
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
                let content = if answer { self.on_the_way(far, far_conn, &command, content) } else { content.to_vec() };
                self.at(at, Event::Arrive(far, Arrival::Frame(far_conn, content)));
            }
            // A system answers for a process that is gone; one that is dark says nothing.
            Fate::Lost if !self.net.knows((who, conn)) && self.hosts_answer() => {
                let why = Why::Io(io::ErrorKind::ConnectionReset.into());
                let late = self.rng.millis(0, 20);
                self.after(late, Event::Arrive(who, Arrival::Change(conn, Change::Closed { why })));
            }
            Fate::Lost => {}
        }
    }

    fn hosts_answer(&self) -> bool {
        self.sites.iter().all(|site| site.host == Reach::Answers)
    }

    /// What becomes of an answer on its way: that to a pull may be damaged, and holds what its broker cannot read.
    fn on_the_way(&mut self, who: Who, conn: Conn, command: &Command<'_>, content: &[u8]) -> Vec<u8> {
        let (Kind::Client(member), Some(place)) = (who.kind, self.talk.pulled_by(who, conn, command.opaque)) else {
            return content.to_vec();
        };
        if command.body.is_empty() {
            return content.to_vec();
        }
        let group = self.plan.group_of(member);
        let (mut content, body) = (content.to_vec(), content.len() - command.body.len());
        if *place.1 == *crate::process::TOPIC {
            for offset in with_unreadable(&mut content[body..], &self.plan.unreadable) {
                self.ledger.damaged(group, &place, offset);
            }
        }
        if self.calm_since.is_none() && self.rng.chance(self.plan.damage) {
            for offset in damaged(&mut content[body..], &mut self.rng) {
                self.ledger.damaged(group, &place, offset);
            }
        }
        content
    }

    /// An answer of long ago reaches a request that is open, or one that was.
    pub fn ghost(&mut self, who: Who, conn: Conn, opaque: i32) {
        let Some((code, content)) = self.talk.ghost(who, conn, opaque) else { return };
        let Ok(command) = Command::read(&content) else { return };
        let old = (opaque as u32).wrapping_sub(1 << GENERATION) as i32;
        let mut bytes = Vec::new();
        let head = Head { opaque: old, ..command.head() };
        if write(&mut bytes, command.codec, &head, &command.fields, command.body).is_err() {
            return;
        }
        self.note((15, opaque), || format!("{who:?} gets an old answer code={code} opaque={old} conn={}", conn.0));
        if let Some(client) = self.client(who) {
            client.node.arrive(Arrival::Frame(conn, bytes.split_off(4)));
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

    /// Only the broker hears of these connections' end.
    pub fn half_open(&mut self, links: Vec<u64>) {
        for id in links {
            self.net.silence(id);
            let Some((who, conn)) = self.net.end(id, 1) else { continue };
            let why = Why::Io(io::ErrorKind::ConnectionReset.into());
            self.after(Duration::from_millis(1), Event::Arrive(who, Arrival::Change(conn, Change::Closed { why })));
        }
    }
}

/// `None`: not the turn that was asked for last.
fn turn<R: Role>(node: &mut Node<R>, now: Nanos) -> Option<Vec<Act>> {
    if node.wakes != Some(now) {
        return None;
    }
    node.wakes = None;
    Some(node.turn(now))
}
