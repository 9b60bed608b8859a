//! The sockets of one loop: listening ones, and the table of connections with who is to be read and who to be written.
//!
//! The reactor feeds it system events, actions of the role and due checks; it answers with changes, which the reactor
//! hands to the role. It knows no role, and calls nothing but a closure for whole frames.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use log::{debug, info};
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};

use super::buffer::{FrameBuf, FramePool};
use super::connection::{Connection, Phase, ReadEnd, Reading};
use super::counters::Counters;
use super::inbound::{Flow, STAGE_BYTES};
use super::reactor::{Settings, first_listener_token};
use super::role::{Change, Conn, Notice, Out, Why};
use crate::work::clock::Nanos;
use crate::work::deadlines::Deadlines;
use crate::work::pace::Pace;

/// Connections that spoke another protocol.
static FOREIGN: Pace = Pace::new();

/// Connections accepted from one listener in one turn; the rest follow in the next.
const ACCEPTS: usize = 64;

/// What the table wants the role to hear, in order.
pub(super) enum Heard {
    Change(Conn, Change),
    Notice(Notice),
}

/// What a time-out of the table is about.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Check {
    /// Time-outs of one connection.
    Conn(Conn),
    /// This listener's pause is over.
    Accept(usize),
}

pub(super) struct Connections {
    registry: Registry,
    settings: Settings,
    pool: Arc<FramePool>,
    counters: Arc<Counters>,
    table: HashMap<u64, Connection, BuildHasherDefault<ConnHasher>>,
    listeners: Vec<Listener>,
    stage: Vec<u8>,
    ready: VecDeque<Conn>,
    dirty: Vec<Conn>,
    /// Those that do not read until the budget has room.
    starved: Vec<Conn>,
    /// Memory of all unfinished frames.
    held: u64,
    /// Memory of all that waits to be written.
    unwritten: u64,
    begun: u64,
    checks: Deadlines<Check>,
    /// For the reactor to take: what the role is to hear.
    pub heard: VecDeque<Heard>,
}

struct Listener {
    socket: TcpListener,
    ready: bool,
    paused: bool,
}

/// Connection numbers are dense already; they are only spread over the table.
#[derive(Default)]
struct ConnHasher(u64);

impl Hasher for ConnHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte) ^ self.0));
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Connections {
    /// # Errors
    /// The system's, when a listening socket cannot be registered.
    pub fn new(
        registry: Registry,
        mut settings: Settings,
        pool: Arc<FramePool>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let mut listeners = Vec::new();
        for (number, socket) in std::mem::take(&mut settings.listeners).into_iter().enumerate() {
            socket.set_nonblocking(true)?;
            let mut socket = TcpListener::from_std(socket);
            registry.register(&mut socket, first_listener_token(number), Interest::READABLE)?;
            listeners.push(Listener { socket, ready: false, paused: false });
        }
        Ok(Self {
            registry,
            settings,
            pool,
            counters,
            table: HashMap::default(),
            listeners,
            stage: vec![0; STAGE_BYTES],
            ready: VecDeque::new(),
            dirty: Vec::new(),
            starved: Vec::new(),
            held: 0,
            unwritten: 0,
            begun: 0,
            checks: Deadlines::new(),
            heard: VecDeque::new(),
        })
    }

    /// True if the next poll must not wait: somebody has not had all of his share, or the role has not heard everything.
    pub fn is_busy(&self) -> bool {
        !self.ready.is_empty()
            || !self.dirty.is_empty()
            || !self.heard.is_empty()
            || self.listeners.iter().any(|listener| listener.ready && !listener.paused)
    }

    /// True while anything waits to be written.
    pub fn has_output(&self) -> bool {
        self.table.values().any(|connection| connection.output.waiting() > 0)
    }

    /// Connections that are there or being made, those that only write their rest included.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    // ---- what the system says ----

    /// A listener has somebody waiting.
    pub fn listener_event(&mut self, number: usize) {
        if let Some(listener) = self.listeners.get_mut(number) {
            listener.ready = true;
        }
    }

    /// A connection has something.
    pub fn event(&mut self, conn: Conn, event: &Event, now: Nanos) {
        let Some(connection) = self.table.get_mut(&conn.0) else { return };
        if connection.phase == Phase::Connecting {
            if event.is_writable() || event.is_error() || event.is_read_closed() {
                self.finish_connecting(conn, now);
            }
            return self.mark_readable(conn, event);
        }
        if event.is_writable() && connection.output.waiting() > 0 {
            self.mark_dirty(conn);
        }
        self.mark_readable(conn, event);
    }

    fn mark_readable(&mut self, conn: Conn, event: &Event) {
        let Some(connection) = self.table.get_mut(&conn.0) else { return };
        let ended = event.is_read_closed() || event.is_error() || event.is_write_closed();
        connection.ended |= ended;
        connection.readable |= ended || event.is_readable();
        self.queue_read(conn);
    }

    /// Puts a connection on the ready list, if it may and has something to read.
    fn queue_read(&mut self, conn: Conn) {
        let Some(connection) = self.table.get_mut(&conn.0) else { return };
        let may = connection.phase == Phase::Open
            && connection.readable
            && !connection.queued
            && connection.output.waiting() <= self.settings.output_pause;
        if may {
            connection.queued = true;
            self.ready.push_back(conn);
        }
    }

    fn mark_dirty(&mut self, conn: Conn) {
        if let Some(connection) = self.table.get_mut(&conn.0).filter(|connection| !connection.dirty) {
            connection.dirty = true;
            self.dirty.push(conn);
        }
    }

    // ---- accepting and connecting ----

    /// Accepts who waits.
    pub fn accept<T>(&mut self, now: Nanos, out: &mut Out<T>) {
        for number in 0..self.listeners.len() {
            for _ in 0..ACCEPTS {
                let Some(listener) = self.listeners.get_mut(number).filter(|it| it.ready && !it.paused) else { break };
                match listener.socket.accept() {
                    Ok((stream, peer)) => self.accepted(number, stream, peer, now, out),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => listener.ready = false,
                    Err(error) if is_about_one_peer(&error) => {}
                    Err(error) => self.pause_accepting(number, error, now),
                }
            }
        }
    }

    fn accepted<T>(&mut self, listener: usize, stream: TcpStream, peer: SocketAddr, now: Nanos, out: &mut Out<T>) {
        self.counters.accepts.bump();
        let Ok(local) = stream.local_addr() else { return };
        let conn = out.next_conn();
        if let Err(error) = self.add(conn, stream, Phase::Open, now) {
            debug!(target: "windlass::net", "accepted and lost: peer={peer} error={error}");
            return;
        }
        self.heard.push_back(Heard::Change(conn, Change::Accepted { listener, peer, local }));
    }

    fn pause_accepting(&mut self, number: usize, error: io::Error, now: Nanos) {
        let pause = self.settings.accept_pause;
        if let Some(listener) = self.listeners.get_mut(number) {
            listener.paused = true;
        }
        self.checks.arm(now + pause, Check::Accept(number));
        self.heard.push_back(Heard::Notice(Notice::AcceptPaused { listener: number, error, pause }));
    }

    /// Begins to connect.
    pub fn connect(&mut self, conn: Conn, addr: SocketAddr, now: Nanos) {
        let begun = TcpStream::connect(addr).and_then(|stream| self.add(conn, stream, Phase::Connecting, now));
        if let Err(error) = begun {
            self.heard.push_back(Heard::Change(conn, Change::Failed { error }));
        }
    }

    fn add(&mut self, conn: Conn, mut stream: TcpStream, phase: Phase, now: Nanos) -> io::Result<()> {
        // A broker's and a client's messages are whole when they are written: waiting for more would only delay them.
        stream.set_nodelay(true)?;
        // Both directions, once: the first writable event says that it is connected.
        self.registry.register(&mut stream, Token(conn.0 as usize), Interest::READABLE | Interest::WRITABLE)?;
        self.table.insert(conn.0, Connection::new(stream, phase, now));
        self.arm_check(conn);
        Ok(())
    }

    fn finish_connecting(&mut self, conn: Conn, now: Nanos) {
        let Some(connection) = self.table.get_mut(&conn.0) else { return };
        match connection.connected() {
            None => {}
            Some(Ok(local)) => {
                connection.phase = Phase::Open;
                connection.active = now;
                if connection.output.waiting() > 0 {
                    self.mark_dirty(conn);
                }
                self.arm_check(conn);
                self.heard.push_back(Heard::Change(conn, Change::Connected { local }));
            }
            Some(Err(error)) => self.failed(conn, error),
        }
    }

    fn failed(&mut self, conn: Conn, error: io::Error) {
        self.remove(conn);
        self.heard.push_back(Heard::Change(conn, Change::Failed { error }));
    }

    // ---- reading ----

    /// How many connections are to be read in this turn.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Reads the connection that has waited longest for its share of this turn; whole frames go to `each`.
    pub fn read_next(&mut self, now: Nanos, mut each: impl FnMut(Conn, FrameBuf) -> Flow) {
        let Some(conn) = self.ready.pop_front() else { return };
        let Some(connection) = self.table.get_mut(&conn.0) else { return };
        connection.queued = false;
        if connection.phase != Phase::Open || connection.output.waiting() > self.settings.output_pause {
            return;
        }
        let mut share = self.settings.turn_bytes;
        if self.settings.budget.as_ref().is_some_and(|budget| budget.is_exhausted()) {
            // A frame that was begun is finished all the same: its memory cannot be let go otherwise.
            let Some(rest) = connection.inbound.rest() else { return self.starve(conn) };
            share = share.min(rest);
        }
        let counters = self.counters.clone();
        let mut frames = 0;
        let with = Reading {
            stage: &mut self.stage,
            cutter: self.settings.cutter,
            pool: &self.pool,
            counters: &counters,
            share,
            now,
        };
        let end = connection.read(with, &mut |frame| {
            frames += 1;
            counters.frames_in.bump();
            each(conn, frame)
        });
        self.count_held(conn, frames > 0);
        match end {
            ReadEnd::Empty | ReadEnd::Stopped => {}
            ReadEnd::ShareUsed => self.queue_read(conn),
            ReadEnd::Over(why) => self.over(conn, why),
        }
        self.shed_inbound();
    }

    fn count_held(&mut self, conn: Conn, began_anew: bool) {
        let Some(connection) = self.table.get_mut(&conn.0) else { return };
        let held = connection.inbound.held();
        if held > 0 && (connection.held == 0 || began_anew) {
            self.begun += 1;
            connection.begun = self.begun;
        }
        self.held = self.held + held as u64 - connection.held as u64;
        connection.held = held;
    }

    /// Ends the connections with the newest unfinished frames until the others fit.
    fn shed_inbound(&mut self) {
        while self.held > self.settings.inbound_limit {
            let unfinished = self.table.iter().filter(|(_, connection)| connection.held > 0);
            let Some((newest, _)) = unfinished.max_by_key(|(_, connection)| connection.begun) else { return };
            self.over(Conn(*newest), Why::InboundFull);
        }
    }

    fn starve(&mut self, conn: Conn) {
        if self.starved.is_empty() {
            self.heard.push_back(Heard::Notice(Notice::ReadingPaused));
        }
        self.starved.push(conn);
    }

    /// Lets connections read again once the budget has room; else it has been asked to ring when it has.
    pub fn feed_starved(&mut self) {
        let Some(budget) = self.settings.budget.as_ref().filter(|_| !self.starved.is_empty()) else { return };
        if !budget.await_room() {
            return;
        }
        for conn in std::mem::take(&mut self.starved) {
            self.queue_read(conn);
        }
        self.heard.push_back(Heard::Notice(Notice::ReadingResumed));
    }

    // ---- writing ----

    /// Appends to what waits for a connection.
    pub fn send<T>(&mut self, conn: Conn, out: &Out<T>, bytes: Range<usize>, frames: Range<usize>) {
        let Some(connection) = self.table.get_mut(&conn.0) else { return };
        if connection.phase == Phase::Closing {
            return;
        }
        self.counters.sends.bump();
        connection.output.push(out.bytes(bytes));
        for frame in out.frames(frames) {
            connection.output.push_frame(frame);
        }
        let (waiting, phase) = (connection.output.waiting(), connection.phase);
        self.count_unwritten(conn);
        if waiting > self.settings.output_limit {
            self.over(conn, Why::OutputFull);
        } else if phase == Phase::Open {
            self.mark_dirty(conn);
        }
    }

    /// Writes what this turn has brought.
    pub fn flush(&mut self, now: Nanos) {
        while let Some(conn) = self.dirty.pop() {
            self.flush_one(conn, now);
        }
        self.shed_output();
    }

    fn count_unwritten(&mut self, conn: Conn) {
        let Some(connection) = self.table.get_mut(&conn.0) else { return };
        let memory = connection.output.memory();
        self.unwritten = self.unwritten + memory as u64 - connection.unwritten as u64;
        connection.unwritten = memory;
    }

    /// Ends the connections for which most waits until the others fit.
    fn shed_output(&mut self) {
        while self.unwritten > self.settings.output_total {
            let Some((slowest, _)) = self.table.iter().max_by_key(|(_, connection)| connection.unwritten) else {
                return;
            };
            let slowest = Conn(*slowest);
            // One that only writes its rest goes without a word.
            self.over(slowest, Why::OutputFull);
        }
    }

    fn flush_one(&mut self, conn: Conn, now: Nanos) {
        let Some(connection) = self.table.get_mut(&conn.0) else { return };
        connection.dirty = false;
        let flushed = connection.flush(&self.counters, now);
        self.count_unwritten(conn);
        let Some(connection) = self.table.get(&conn.0) else { return };
        match flushed {
            Err(error) => self.over(conn, Why::Io(error)),
            Ok(true) => {
                self.arm_check(conn);
                // It may have fallen below the mark at which it stopped reading.
                self.queue_read(conn);
            }
            Ok(false) if connection.phase == Phase::Closing => drop(self.remove(conn)),
            Ok(false) => self.queue_read(conn),
        }
    }

    // ---- the end ----

    /// The role lets go of a connection: what waits is still written.
    pub fn close(&mut self, conn: Conn) {
        let Some(connection) = self.table.get_mut(&conn.0) else { return };
        match connection.phase {
            Phase::Closing => return,
            Phase::Open if connection.output.waiting() > 0 => {
                connection.phase = Phase::Closing;
                // The write that follows has its time-out.
                self.mark_dirty(conn);
            }
            Phase::Open | Phase::Connecting => drop(self.remove(conn)),
        }
        self.heard.push_back(Heard::Change(conn, Change::Closed { why: Why::Asked }));
    }

    /// A connection is over: it is gone, and the role hears of it unless it has let go already.
    fn over(&mut self, conn: Conn, why: Why) {
        let Some(connection) = self.remove(conn) else { return };
        if connection.phase == Phase::Closing {
            return;
        }
        if let Why::Wire(error) = &why
            && let Some(times) = FOREIGN.tell()
        {
            let peer = connection.stream.peer_addr().map_or_else(|_| "?".to_owned(), |peer| peer.to_string());
            info!(target: "windlass::net", "closed, not this protocol: peer={peer} error={error} times={times}");
        }
        self.heard.push_back(Heard::Change(conn, Change::Closed { why }));
    }

    fn remove(&mut self, conn: Conn) -> Option<Connection> {
        let mut connection = self.table.remove(&conn.0)?;
        self.held -= connection.held as u64;
        self.unwritten -= connection.unwritten as u64;
        if let Err(error) = self.registry.deregister(&mut connection.stream) {
            debug!(target: "windlass::net", "deregistering failed: error={error}");
        }
        Some(connection)
    }

    // ---- time-outs ----

    /// When a connection's next time-out passes, if nothing happens until then; and what it means.
    fn next_timeout(&self, connection: &Connection) -> Option<(Nanos, Why)> {
        let settings = &self.settings;
        if connection.phase == Phase::Connecting {
            return Some((connection.active + settings.connect_timeout, Why::Io(io::ErrorKind::TimedOut.into())));
        }
        let stalled = connection.stalled.map(|since| (since + settings.write_timeout, Why::WriteStalled));
        let idle = settings.idle_timeout.map(|most| (connection.active + most, Why::Idle));
        stalled.into_iter().chain(idle).min_by_key(|(at, _)| *at)
    }

    fn arm_check(&mut self, conn: Conn) {
        let Some(connection) = self.table.get(&conn.0) else { return };
        let Some((at, _)) = self.next_timeout(connection) else { return };
        if at < connection.check {
            self.checks.arm(at, Check::Conn(conn));
            if let Some(connection) = self.table.get_mut(&conn.0) {
                connection.check = at;
            }
        }
    }

    /// When the next time-out may have passed.
    pub fn next_check(&self) -> Option<Nanos> {
        self.checks.next()
    }

    /// Ends what has been silent, stalled or connecting for too long.
    pub fn run_checks(&mut self, now: Nanos) {
        while let Some(check) = self.checks.due(now) {
            self.check(check, now);
        }
    }

    fn check(&mut self, check: Check, now: Nanos) {
        match check {
            Check::Accept(number) => {
                if let Some(listener) = self.listeners.get_mut(number) {
                    listener.paused = false;
                }
            }
            Check::Conn(conn) => {
                let Some(connection) = self.table.get_mut(&conn.0).filter(|it| it.check <= now) else { return };
                connection.check = Nanos::MAX;
                let connecting = connection.phase == Phase::Connecting;
                let Some(connection) = self.table.get(&conn.0) else { return };
                match self.next_timeout(connection) {
                    Some((at, _)) if at <= now && connecting => self.failed(conn, io::ErrorKind::TimedOut.into()),
                    Some((at, why)) if at <= now => self.over(conn, why),
                    Some(_) | None => self.arm_check(conn),
                }
            }
        }
    }
}

/// True if accepting failed for the peer's sake: the next one may be fine.
fn is_about_one_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, NetworkDown, TimedOut};
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable, PermissionDenied};
    matches!(
        error.kind(),
        ConnectionAborted
            | ConnectionRefused
            | ConnectionReset
            | Interrupted
            | NetworkDown
            | NetworkUnreachable
            | HostUnreachable
            | PermissionDenied
            | TimedOut
    )
}
