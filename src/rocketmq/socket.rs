//! The port over sockets, on the loop: addresses to connections, requests to frames, frames to answers.
//!
//! The core calls it through [`Port`]. One connection to an address, made when it is needed; names are resolved on the
//! serve lane. It never decides to ask again: it says what became of each request, once.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use super::client::Start;
use super::core::{Command as CoreCommand, Timer};
use super::name_servers::NameServers;
use super::port::{Answer, Arrival, Ask, CallError, News, Peer, Port, Target, Ticket};
use crate::error::WireError;
use crate::model::SortedMap;
use crate::net::correlation::Correlation;
use crate::net::lane::Lanes;
use crate::net::resolve::Resolver;
use crate::net::{Change, Conn, FrameBuf, Handle, Out, Why};
use crate::wire::remoting::codes::answer;
use crate::wire::remoting::command::{Codec, Command, Head, VERSION_BINARY, write};
use crate::work::clock::Nanos;
use crate::work::ranks::{Rank, Ranked};

/// Requests that may wait for one name to be resolved; the lane answers within seconds.
const WAITING_FOR_NAME: usize = 1024;

/// The codec byte of a binary header.
const BINARY: u8 = 1;
/// Where the opaque stands in a frame with a binary header: behind length, codec and header length, code, language and
/// version.
const BINARY_OPAQUE_AT: usize = 4 + 4 + 2 + 1 + 2;

/// What is known of the peer at an address, for the loop and for callers. Lock: rank 1, for a look-up only.
#[derive(Debug)]
pub struct Known {
    versions: Ranked<SortedMap<Arc<str>, i32>>,
}

impl Default for Known {
    fn default() -> Self {
        Self { versions: Ranked::new(Rank::Tables, SortedMap::new()) }
    }
}

impl Known {
    /// The form in which requests to `addr` go out: JSON until it has said a version that reads the binary one (D7).
    pub fn codec(&self, addr: &str) -> Codec {
        match self.versions.lock().get(addr) {
            Some(version) if *version >= VERSION_BINARY => Codec::Binary,
            Some(_) | None => Codec::Json,
        }
    }

    fn set(&self, addr: &Arc<str>, version: i32) {
        self.versions.lock().insert(Arc::clone(addr), version);
    }

    fn forget(&self, addr: &str) {
        self.versions.lock().remove(addr);
    }
}

/// See the head of this file.
pub struct SocketPort {
    handle: Handle<CoreCommand>,
    resolver: Resolver,
    known: Arc<Known>,
    /// The callers' connections: swept here, since callers may stay away.
    lanes: Lanes,
    silent_calls: u32,
    servers: NameServers,
    links: SortedMap<Arc<str>, Link>,
    conns: SortedMap<Conn, Line>,
    pending: Correlation<Ticket>,
    /// Where the answer to a ticket is awaited.
    tickets: HashMap<Ticket, (Conn, i32)>,
    arrivals: VecDeque<Arrival>,
    /// Connections that get no new requests: their peer goes away, or no route names its address. Closed when nothing
    /// waits on them.
    draining: Vec<Conn>,
    /// Opaques of one-way requests.
    oneways: i32,
}

/// One connection.
struct Line {
    addr: Arc<str>,
    /// Time-outs in a row without a frame in between.
    silent: u32,
    connected: bool,
    /// Its peer goes away.
    leaving: bool,
}

/// The way to one address.
struct Link {
    state: State,
    /// It has been connected before.
    again: bool,
    /// It is known that it cannot be reached.
    down: bool,
}

enum State {
    /// Nothing is open.
    Idle,
    /// The lane resolves its name. Requests wait as frames whose opaque is still to be set.
    Resolving(Vec<(Option<Ticket>, Vec<u8>)>),
    /// A connection is there or being made.
    Open(Conn),
}

impl SocketPort {
    /// A port without connections.
    pub fn new(start: &Start<'_>, known: Arc<Known>, lanes: Lanes, servers: Vec<String>, seed: u64) -> Self {
        Self {
            handle: start.handle.clone(),
            resolver: Resolver::new(start.lane.clone()),
            known,
            lanes,
            silent_calls: start.settings.timing.silent_calls.max(1),
            servers: NameServers::new(servers, seed),
            links: SortedMap::new(),
            conns: SortedMap::new(),
            pending: Correlation::new(),
            tickets: HashMap::new(),
            arrivals: VecDeque::new(),
            draining: Vec::new(),
            oneways: 0,
        }
    }

    fn fail(&mut self, ticket: Ticket, error: CallError) {
        self.arrivals.push_back(Arrival::Answer { ticket, result: Err(error) });
    }

    fn address(&self, to: Target<'_>) -> Option<Arc<str>> {
        match to {
            Target::Broker(addr) => Some(Arc::clone(addr)),
            Target::NameServer => self.servers.chosen().map(Into::into),
        }
    }

    /// Where a request goes, and its connection if there is one already. `None`: nowhere, and the ticket has failed.
    fn way(
        &mut self,
        ticket: Option<Ticket>,
        to: Target<'_>,
        out: &mut Out<Timer>,
    ) -> Option<(Arc<str>, Option<Conn>)> {
        let Some(addr) = self.address(to) else {
            if let Some(ticket) = ticket {
                self.fail(ticket, CallError::NoAddress { of: "a name server".into() });
            }
            return None;
        };
        let conn = match self.link(&addr).state {
            State::Open(conn) => Some(conn),
            State::Idle => self.taken_back(&addr).or_else(|| self.open(&addr, out)),
            State::Resolving(_) => None,
        };
        Some((addr, conn))
    }

    /// The connection to an address that no route named for a while and some route does again: beside a second one the
    /// broker would list this client twice, and members that ask different brokers would not agree on who has what.
    fn taken_back(&mut self, addr: &Arc<str>) -> Option<Conn> {
        let line = |conn: &Conn| self.conns.get(conn).filter(|line| line.addr == *addr && !line.leaving);
        let (at, connected) =
            self.draining.iter().enumerate().find_map(|(at, conn)| Some((at, line(conn)?.connected)))?;
        let conn = self.draining.swap_remove(at);
        let link = self.link(addr);
        link.state = State::Open(conn);
        link.again |= connected;
        Some(conn)
    }

    fn submit(&mut self, ticket: Option<Ticket>, to: Target<'_>, ask: &Ask<'_>, out: &mut Out<Timer>) {
        let Some((addr, conn)) = self.way(ticket, to, out) else { return };
        match conn {
            Some(conn) => self.send(conn, &addr, ticket, out, |codec, opaque, bytes| {
                ask.encode(codec, opaque, ticket.is_none(), bytes).map_err(CallError::from)
            }),
            None => {
                let mut frame = Vec::new();
                let encoded = ask.encode(Codec::Json, 0, ticket.is_none(), &mut frame).map(|()| frame);
                self.wait(&addr, ticket, encoded);
            }
        }
    }

    fn link(&mut self, addr: &Arc<str>) -> &mut Link {
        self.links.get_or_insert_with(Arc::clone(addr), || Link { state: State::Idle, again: false, down: false })
    }

    /// Opens the way to an address; `None`: its name has to be resolved first.
    fn open(&mut self, addr: &Arc<str>, out: &mut Out<Timer>) -> Option<Conn> {
        if let Ok(socket) = addr.parse::<SocketAddr>() {
            return Some(self.connect(addr, socket, out));
        }
        self.link(addr).state = State::Resolving(Vec::new());
        let (name, handle) = (Arc::clone(addr), self.handle.clone());
        self.resolver.resolve(addr, move |found| {
            let result = match found {
                Ok(found) => found.into_iter().next().ok_or_else(|| "the name has no address".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            // Lost only if the inbox is full: the requests' deadlines then end the wait.
            let _ = handle.post_own(CoreCommand::News(News::Resolved { addr: name, result }));
        });
        None
    }

    fn connect(&mut self, addr: &Arc<str>, socket: SocketAddr, out: &mut Out<Timer>) -> Conn {
        let conn = out.connect(socket);
        self.conns.insert(conn, Line { addr: Arc::clone(addr), silent: 0, connected: false, leaving: false });
        self.link(addr).state = State::Open(conn);
        conn
    }

    /// Keeps a request until the name of its address is resolved.
    fn wait(&mut self, addr: &Arc<str>, ticket: Option<Ticket>, frame: Result<Vec<u8>, WireError>) {
        let busy = match (&mut self.link(addr).state, frame) {
            (_, Err(error)) => CallError::Wire(error),
            (State::Resolving(waiting), Ok(frame)) if waiting.len() < WAITING_FOR_NAME => {
                waiting.push((ticket, frame));
                return;
            }
            (State::Resolving(_) | State::Idle | State::Open(_), Ok(_)) => CallError::Busy { what: "name resolution" },
        };
        if let Some(ticket) = ticket {
            self.fail(ticket, busy);
        }
    }

    fn send(
        &mut self,
        conn: Conn,
        addr: &Arc<str>,
        ticket: Option<Ticket>,
        out: &mut Out<Timer>,
        encode: impl FnOnce(Codec, i32, &mut Vec<u8>) -> Result<(), CallError>,
    ) {
        let codec = self.known.codec(addr);
        let Some(ticket) = ticket else {
            self.oneways = self.oneways.wrapping_add(1);
            let opaque = self.oneways;
            out.send(conn, |bytes| {
                if let Err(error) = encode(codec, opaque, bytes) {
                    log::warn!(target: "windlass::net", "one-way request not written: addr={addr} error={error}");
                }
            });
            return;
        };
        let Ok(opaque) = self.pending.insert(conn, ticket) else {
            self.fail(ticket, CallError::Busy { what: "the table of requests" });
            return;
        };
        let mut written = Ok(());
        out.send(conn, |bytes| written = encode(codec, opaque, bytes));
        match written {
            Ok(()) => {
                self.tickets.insert(ticket, (conn, opaque));
            }
            Err(error) => {
                self.pending.take(conn, opaque);
                self.fail(ticket, error);
            }
        }
    }

    fn resolved(&mut self, addr: &Arc<str>, result: Result<SocketAddr, String>, out: &mut Out<Timer>) {
        let state = std::mem::replace(&mut self.link(addr).state, State::Idle);
        let State::Resolving(waiting) = state else {
            self.link(addr).state = state;
            return;
        };
        let socket = match result {
            Ok(socket) => socket,
            Err(detail) => {
                self.servers.failed(addr);
                for ticket in waiting.into_iter().filter_map(|(ticket, _)| ticket) {
                    self.fail(ticket, CallError::Connect { to: addr.to_string(), detail: detail.clone() });
                }
                let first = !std::mem::replace(&mut self.link(addr).down, true);
                self.arrivals.push_back(Arrival::Down { addr: Arc::clone(addr), why: detail, lost: false, first });
                return;
            }
        };
        let conn = self.connect(addr, socket, out);
        for (ticket, frame) in waiting {
            self.send(conn, addr, ticket, out, |_, opaque, bytes| Ok(append(&frame, opaque, bytes)?));
        }
    }

    /// The connection has ended: everything that waited on it is answered, once.
    fn ended(&mut self, conn: Conn, why: &str, quiet: bool) {
        let Some(Line { addr, connected, .. }) = self.conns.remove(&conn) else { return };
        self.draining.retain(|draining| *draining != conn);
        for (_, ticket) in self.pending.drain(conn) {
            self.tickets.remove(&ticket);
            let error = if connected {
                CallError::Disconnected { detail: why.to_owned() }
            } else {
                CallError::Connect { to: addr.to_string(), detail: why.to_owned() }
            };
            self.fail(ticket, error);
        }
        // An older connection's end is nothing to the one that has taken its place (C-030).
        let current = matches!(self.links.get(&addr), Some(Link { state: State::Open(open), .. }) if *open == conn);
        if current {
            self.link(&addr).state = State::Idle;
            self.known.forget(&addr);
            if !quiet {
                self.servers.failed(&addr);
                let first = !std::mem::replace(&mut self.link(&addr).down, true);
                self.arrivals.push_back(Arrival::Down { addr, why: why.to_owned(), lost: connected, first });
            }
        }
    }

    /// Sends nothing new on the address's connection; it is closed once nothing waits on it.
    fn retire(&mut self, addr: &Arc<str>, out: &mut Out<Timer>) {
        let Some(link) = self.links.get_mut(addr) else { return };
        if let State::Open(conn) = link.state {
            link.state = State::Idle;
            self.draining.push(conn);
            self.close_if_drained(conn, out);
        }
    }

    fn close_if_drained(&mut self, conn: Conn, out: &mut Out<Timer>) {
        if self.draining.contains(&conn) && !self.tickets.values().any(|(at, _)| *at == conn) {
            self.draining.retain(|draining| *draining != conn);
            out.close(conn);
        }
    }

    fn answered(&mut self, conn: Conn, code: i32, opaque: i32, frame: FrameBuf, out: &mut Out<Timer>) {
        // An unknown opaque is the late answer to something given up: normal.
        let Some(ticket) = self.pending.take(conn, opaque) else { return };
        self.tickets.remove(&ticket);
        if code == answer::GO_AWAY
            && let Some(line) = self.conns.get_mut(&conn)
        {
            // Others in flight on it may still be answered; the next request opens a new one (B-033).
            line.leaving = true;
            let addr = Arc::clone(&line.addr);
            if matches!(self.links.get(&addr), Some(Link { state: State::Open(open), .. }) if *open == conn) {
                self.retire(&addr, out);
            }
        }
        self.close_if_drained(conn, out);
        self.arrivals.push_back(Arrival::Answer { ticket, result: Ok(Answer::Frame(frame)) });
    }
}

/// Appends a frame that was written ahead, with its opaque set.
fn append(frame: &[u8], opaque: i32, out: &mut Vec<u8>) -> Result<(), WireError> {
    let content = frame.get(4..).unwrap_or_default();
    if content.first() == Some(&BINARY) {
        let at = out.len() + BINARY_OPAQUE_AT;
        out.extend_from_slice(frame);
        if let Some(place) = out.get_mut(at..at + 4) {
            place.copy_from_slice(&opaque.to_be_bytes());
        }
        return Ok(());
    }
    let command = Command::read(content)?;
    write(out, Codec::Json, &Head { opaque, ..command.head() }, &command.fields, command.body)
}

impl Port for SocketPort {
    fn ask(&mut self, ticket: Ticket, to: Target<'_>, ask: &Ask<'_>, _now: Nanos, out: &mut Out<Timer>) {
        self.submit(Some(ticket), to, ask, out);
    }

    fn tell(&mut self, to: Target<'_>, ask: &Ask<'_>, _now: Nanos, out: &mut Out<Timer>) {
        self.submit(None, to, ask, out);
    }

    fn forget(&mut self, ticket: Ticket, late: bool, out: &mut Out<Timer>) {
        let Some((conn, opaque)) = self.tickets.remove(&ticket) else {
            for link in self.links.values_mut() {
                if let State::Resolving(waiting) = &mut link.state {
                    waiting.retain(|(waits, _)| *waits != Some(ticket));
                }
            }
            return;
        };
        self.pending.take(conn, opaque);
        let Some(line) = self.conns.get_mut(&conn) else { return };
        line.silent += u32::from(late);
        if late {
            // A name server is asked rarely: the next question is for another one.
            self.servers.failed(&line.addr);
        }
        // One slow call closes nothing; a peer that says nothing at all is not there (C-026, C-027).
        if line.silent >= self.silent_calls {
            out.close(conn);
            self.ended(conn, "no answer to several requests", false);
        } else {
            self.close_if_drained(conn, out);
        }
    }

    fn reply(&mut self, to: Peer, write: &mut dyn FnMut(&mut Vec<u8>), out: &mut Out<Timer>) {
        out.send(Conn(to.0), |bytes| write(bytes));
    }

    fn poll(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }

    fn name_servers(&self) -> usize {
        self.servers.list().len()
    }

    fn set_name_servers(&mut self, list: Vec<String>, _now: Nanos, out: &mut Out<Timer>) {
        for gone in self.servers.replace(list) {
            self.retire(&gone.into(), out);
        }
    }

    fn ask_written(&mut self, ticket: Option<Ticket>, to: Target<'_>, frame: Vec<u8>, out: &mut Out<Timer>) {
        let Some((addr, conn)) = self.way(ticket, to, out) else { return };
        match conn {
            Some(conn) => self.send(conn, &addr, ticket, out, |_, opaque, bytes| Ok(append(&frame, opaque, bytes)?)),
            None => self.wait(&addr, ticket, Ok(frame)),
        }
    }

    fn version(&mut self, addr: &Arc<str>, version: i32) {
        self.known.set(addr, version);
    }

    fn connection(&mut self, conn: Conn, change: Change, _now: Nanos, _out: &mut Out<Timer>) {
        match change {
            Change::Connected { local } => {
                let Some(line) = self.conns.get_mut(&conn) else { return };
                line.connected = true;
                let addr = Arc::clone(&line.addr);
                let link = self.link(&addr);
                link.down = false;
                let again = std::mem::replace(&mut link.again, true);
                log::debug!(target: "windlass::net", "connected: addr={addr} local={local} again={again}");
                self.arrivals.push_back(Arrival::Up { addr, again });
            }
            Change::Failed { error } => self.ended(conn, &error.to_string(), false),
            Change::Closed { why } => {
                let quiet = matches!(why, Why::Asked | Why::Idle);
                self.ended(conn, &format!("{why:?}"), quiet);
            }
            // This loop listens to nobody.
            Change::Accepted { .. } => {}
        }
    }

    fn frame(&mut self, conn: Conn, frame: FrameBuf, _now: Nanos, out: &mut Out<Timer>) {
        if let Some(line) = self.conns.get_mut(&conn) {
            line.silent = 0;
        }
        let mut command = Command::empty();
        match command.fill(&frame) {
            Ok(()) if command.is_answer() => {
                let (code, opaque) = (command.code, command.opaque);
                self.answered(conn, code, opaque, frame, out);
            }
            Ok(()) => self.arrivals.push_back(Arrival::Request { from: Peer(conn.0), frame }),
            Err(error) => {
                log::warn!(target: "windlass::net", "a frame that is no command: conn={} error={error}", conn.0);
                out.close(conn);
                self.ended(conn, &error.to_string(), false);
            }
        }
    }

    fn news(&mut self, news: News, _now: Nanos, out: &mut Out<Timer>) {
        match news {
            News::Resolved { addr, result } => self.resolved(&addr, result, out),
            // Of the direct form.
            News::Answered { ticket, result } => self.arrivals.push_back(Arrival::Answer { ticket, result }),
            News::Request { frame } => self.arrivals.push_back(Arrival::Request { from: Peer(0), frame }),
        }
    }

    fn retain(&mut self, keep: &dyn Fn(&str) -> bool, out: &mut Out<Timer>) {
        let servers = self.servers.list();
        let gone: Vec<Arc<str>> = self
            .links
            .keys()
            .filter(|addr| !keep(addr) && !servers.iter().any(|server| **server == ***addr))
            .cloned()
            .collect();
        for addr in gone {
            self.retire(&addr, out);
            // Addresses come from peers, who may name new ones for ever. One that is being resolved goes the next time.
            if matches!(self.links.get(&addr), Some(Link { state: State::Idle, .. })) {
                self.links.remove(&addr);
            }
        }
    }

    fn tidy(&mut self) {
        self.lanes.sweep();
    }

    fn close(&mut self, out: &mut Out<Timer>) {
        for conn in self.conns.keys() {
            out.close(*conn);
        }
    }
}
