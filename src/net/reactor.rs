//! The loop: one mio poll that calls a role. A value with [`turn`](Reactor::turn), not a thread's main function.
//!
//! Client core and broker server run on one each; whoever holds it runs it. A turn reads sockets, takes commands and due
//! deadlines, performs what the role wants, writes each connection once, and then lets the role settle. It never blocks
//! but in its poll, and runs no user code.

use std::io;
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::error;
use mio::{Events, Poll, Token, Waker};

use super::buffer::FramePool;
use super::connections::{Connections, Heard};
use super::counters::Counters;
use super::handle::{Handle, Inbox, Ringer};
use super::inbound::Flow;
use super::role::{Action, Conn, Out, Role};
use crate::wire::frame::Cutter;
use crate::work::budget::Budget;
use crate::work::clock::{Clock, Nanos, Registration};
use crate::work::deadlines::Deadlines;

/// Events taken from one poll; more wait for the next.
const EVENTS: usize = 256;
/// Commands taken in one turn, so that a flood of them does not starve the sockets.
const COMMANDS: usize = 1024;
/// Deadlines run in one turn, for the same reason.
const DUE: usize = 4096;
/// A poll that ends so much later than it should has been held up, and the sockets are looked at once more.
const LATE: Duration = Duration::from_millis(50);
/// How often in one turn a role may answer what its own actions caused: a connect that is refused at once may be
/// followed by another. What is left over waits for the next turn.
const ROUNDS: usize = 16;
/// What a role may have sent in one turn before the reading pauses until it is written: a few bytes of request may ask
/// for megabytes of answer, so that a share of requests is no measure of what its answers take.
const TURN_OUTPUT: usize = 4 << 20;
/// How long a loop that is stopped goes on to write what has been sent.
const LAST_WORDS: Duration = Duration::from_millis(500);

const WAKER: Token = Token(usize::MAX);

/// The token of a listener; they are counted down from the waker's, connections up from 1.
pub(super) fn first_listener_token(number: usize) -> Token {
    Token(usize::MAX - 1 - number)
}

/// What a loop may do, in bytes and time. These times are always real ones, also under a test clock.
#[derive(Debug)]
pub struct Settings {
    /// How frames are cut. Default: RocketMQ's, 16 MiB at most.
    pub cutter: Cutter,
    /// Sockets to accept from; [`Change::Accepted`](super::role::Change::Accepted) says which. Default: none.
    pub listeners: Vec<TcpListener>,
    /// Until when connecting has to have succeeded. Default 3 s.
    pub connect_timeout: Duration,
    /// How long neither end may be silent without being closed. Default 120 s; `None`: for ever.
    pub idle_timeout: Option<Duration>,
    /// How long a peer may take none of what waits for it. Default 30 s.
    pub write_timeout: Duration,
    /// While more bytes than this wait to be written to a connection, it is not read. Default 16 MiB.
    pub output_pause: usize,
    /// A connection for which more bytes than this wait is closed. Default 256 MiB.
    pub output_limit: usize,
    /// Memory that may wait to be written, all connections together; above it the one for which most waits is closed.
    /// Default: no limit but those of the single connections.
    pub output_total: u64,
    /// Memory that unfinished frames may take, all connections together; above it the newest is closed. Default 64 MiB.
    /// It counts their buffers. Resident may be more: while a buffer grows there is its successor too (24 MiB at the
    /// frame limit), up to 27 MiB of buffers are kept for the next frames, and the system's allocator keeps pieces that
    /// were outgrown. Measured with 200 connections that send parts of 16 MiB frames in turn: 85 to 110 MB, in
    /// short-lived peaks up to 140 MB.
    pub inbound_limit: u64,
    /// Counts the memory of live frames; at twice its limit connections stop reading. Default: none.
    pub budget: Option<Budget>,
    /// Bytes that one connection may read in a turn. Default 256 KiB.
    pub turn_bytes: usize,
    /// How long accepting pauses when the system refuses. Default 100 ms.
    pub accept_pause: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cutter: Cutter::REMOTING,
            listeners: Vec::new(),
            connect_timeout: Duration::from_secs(3),
            idle_timeout: Some(Duration::from_secs(120)),
            write_timeout: Duration::from_secs(30),
            output_pause: 16 << 20,
            output_limit: 256 << 20,
            output_total: u64::MAX,
            inbound_limit: 64 << 20,
            budget: None,
            turn_bytes: 256 << 10,
            accept_pause: Duration::from_millis(100),
        }
    }
}

/// What to do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Turn {
    /// Run another.
    Again,
    /// The loop has been stopped; drop it.
    Stopped,
}

/// A loop and its role.
pub struct Reactor<R: Role> {
    role: R,
    poll: Poll,
    events: Events,
    connections: Connections,
    inbox: Inbox<R::Command>,
    ringer: Arc<Ringer>,
    out: Out<R::Timer>,
    /// Actions in `out` that have been performed.
    performed: usize,
    deadlines: Deadlines<R::Timer>,
    clock: Clock,
    /// The time of sockets, whose peers live in real time even when a test moves the role's by hours.
    real: Clock,
    counters: Arc<Counters>,
    pool: Arc<FramePool>,
    last_words_until: Option<Instant>,
    /// What ended the loop beside a stop.
    broken: Option<String>,
    _on_advance: Registration,
}

impl<R: Role> Reactor<R> {
    /// A loop on its settings and clock; `make` gets the handle to it and makes its role.
    ///
    /// # Errors
    /// The system's, when it refuses a poll or a listening socket.
    pub fn new(settings: Settings, clock: Clock, make: impl FnOnce(&Handle<R::Command>) -> R) -> io::Result<Self> {
        let poll = Poll::new()?;
        let counters = Arc::new(Counters::default());
        let ringer = Ringer::new(Waker::new(poll.registry(), WAKER)?, counters.clone());
        let (inbox, handle) = Inbox::new(ringer.clone(), counters.clone());
        let on_advance = {
            let ringer = ringer.clone();
            clock.on_advance(move || ringer.ring())
        };
        if let Some(budget) = &settings.budget {
            let ringer = Arc::downgrade(&ringer);
            budget.on_room(move || ringer.upgrade().iter().for_each(|ringer| ringer.ring()));
        }
        let pool = FramePool::new(settings.budget.clone());
        let registry = poll.registry().try_clone()?;
        Ok(Self {
            role: make(&handle),
            connections: Connections::new(registry, settings, pool.clone(), counters.clone())?,
            poll,
            events: Events::with_capacity(EVENTS),
            inbox,
            ringer,
            out: Out::new(),
            performed: 0,
            deadlines: Deadlines::new(),
            real: if clock.is_test() { Clock::system() } else { clock.clone() },
            clock,
            counters,
            pool,
            last_words_until: None,
            broken: None,
            _on_advance: on_advance,
        })
    }

    /// Runs turns until the loop is stopped, behind a fence: a panic of the role, or a poll that fails, ends the loop and
    /// not the process. Drop it afterwards.
    ///
    /// # Errors
    /// Why it has ended though nobody has stopped it.
    pub fn run(&mut self) -> Result<(), String> {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.turn())) {
                Ok(Turn::Again) => {}
                Ok(Turn::Stopped) => return self.broken.take().map_or(Ok(()), Err),
                Err(panic) => {
                    let text = panic.downcast_ref::<&str>().copied();
                    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text");
                    error!(target: "windlass::net", "the loop has panicked and ends: panic={text}");
                    return Err(format!("panic: {text}"));
                }
            }
        }
    }

    /// Waits for something to happen and does all of it.
    pub fn turn(&mut self) -> Turn {
        if let Err(error) = self.wait() {
            error!(target: "windlass::net", "the loop cannot poll and ends: error={error}");
            self.broken = Some(format!("poll: {error}"));
            return Turn::Stopped;
        }
        let real = self.real.now();
        let now = if self.clock.is_test() { self.clock.now() } else { real };
        self.take_events(real);
        self.connections.accept(real, &mut self.out);
        self.tell(now);
        self.read(now, real);
        self.connections.run_checks(real);
        self.take_commands(now);
        self.run_due(now);
        self.perform(now, real);
        self.role.settle(now, &mut self.out);
        self.perform(now, real);
        self.verdict()
    }

    /// The role, for who holds the loop.
    pub fn role(&mut self) -> &mut R {
        &mut self.role
    }

    /// What the loop has done so far.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Where the loop's frames come from and go back to.
    pub fn pool(&self) -> &Arc<FramePool> {
        &self.pool
    }

    /// Connections that are there or being made.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Polls: for as long as nothing is due, or not at all if there is still something to do.
    fn wait(&mut self) -> io::Result<()> {
        self.ringer.bell.doze();
        // Everything below is looked at after dozing off: who brings more from now on rings.
        self.connections.feed_starved();
        // What one turn has left of deadlines is past, so that there is no sleep.
        let busy = self.performed < self.out.actions().len()
            || self.connections.is_busy()
            || !self.inbox.is_empty()
            || (self.ringer.must_stop() && self.last_words_until.is_none());
        let most = if busy { Some(Duration::ZERO) } else { self.sleep() };
        if most == Some(Duration::ZERO) {
            self.ringer.bell.awake();
        }
        let late = most.filter(|most| !most.is_zero()).map(|most| self.real.now() + most + LATE);
        let polled = self.poll_for(most);
        self.ringer.bell.awake();
        polled?;
        // Whoever was stopped or not given a processor finds deadlines passed whose answers have come: those first.
        if self.events.is_empty() && (most.is_none() || late.is_some_and(|late| self.real.now() > late)) {
            return self.poll_for(Some(Duration::ZERO));
        }
        Ok(())
    }

    fn poll_for(&mut self, most: Option<Duration>) -> io::Result<()> {
        self.counters.polls.bump();
        match self.poll.poll(&mut self.events, most) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.events.clear();
                Ok(())
            }
            other => other,
        }
    }

    fn sleep(&self) -> Option<Duration> {
        let due = self.deadlines.next().and_then(|at| self.clock.sleep_until(at));
        let check = self.connections.next_check().and_then(|at| self.real.sleep_until(at));
        let last = self.last_words_until.map(|until| until.saturating_duration_since(Instant::now()));
        [due, check, last].into_iter().flatten().min()
    }

    fn take_events(&mut self, real: Nanos) {
        for event in &self.events {
            let Token(token) = event.token();
            match usize::MAX - token {
                0 => {}
                above if above <= u16::MAX as usize => self.connections.listener_event(above - 1),
                _ => self.connections.event(Conn(token as u64), event, real),
            }
        }
    }

    /// Gives every ready connection its share.
    fn read(&mut self, now: Nanos, real: Nanos) {
        let Self { role, connections, out, .. } = self;
        for _ in 0..connections.ready() {
            if out.sent_bytes() > TURN_OUTPUT {
                return;
            }
            connections.read_next(real, |conn, frame| {
                role.frame(conn, frame, now, out);
                match out.is_closing(conn) {
                    true => Flow::Stop,
                    false if out.sent_bytes() > TURN_OUTPUT => Flow::Pause,
                    false => Flow::Go,
                }
            });
        }
    }

    fn take_commands(&mut self, now: Nanos) {
        for _ in 0..COMMANDS {
            let Some(command) = self.inbox.take() else { return };
            self.counters.commands.bump();
            self.role.command(command, now, &mut self.out);
        }
    }

    fn run_due(&mut self, now: Nanos) {
        for _ in 0..DUE {
            match self.deadlines.due(now) {
                None => return,
                Some(timer) => self.role.due(timer, now, &mut self.out),
            }
        }
    }

    /// Does what the role wants, writes, and tells it what came of it, until it wants nothing more.
    fn perform(&mut self, now: Nanos, real: Nanos) {
        for _ in 0..ROUNDS {
            self.act(real);
            self.connections.flush(real);
            self.tell(now);
            if self.performed == self.out.actions().len() {
                self.out.clear();
                self.performed = 0;
                return;
            }
        }
    }

    fn act(&mut self, real: Nanos) {
        while let Some(action) = self.out.actions().get(self.performed).cloned() {
            self.performed += 1;
            match action {
                Action::Connect(conn, addr) => self.connections.connect(conn, addr, real),
                Action::Send(conn, bytes) => self.connections.send(conn, &self.out, bytes, 0..0),
                Action::SendFrames(conn, bytes, frames) => self.connections.send(conn, &self.out, bytes, frames),
                Action::Close(conn) => self.connections.close(conn),
                Action::Arm(at, timer) => self.deadlines.arm(at, timer),
                Action::Stop => self.stop(),
            }
        }
    }

    /// Tells the role what its connections did.
    fn tell(&mut self, now: Nanos) {
        while let Some(heard) = self.connections.heard.pop_front() {
            match heard {
                Heard::Change(conn, change) => self.role.connection(conn, change, now, &mut self.out),
                Heard::Notice(notice) => self.role.notice(notice, now, &mut self.out),
            }
        }
    }

    fn stop(&mut self) {
        self.last_words_until.get_or_insert_with(|| Instant::now() + LAST_WORDS);
    }

    fn verdict(&mut self) -> Turn {
        if self.ringer.must_stop() {
            self.stop();
        }
        match self.last_words_until {
            Some(until) if !self.connections.has_output() || Instant::now() >= until => Turn::Stopped,
            Some(_) | None => Turn::Again,
        }
    }
}
