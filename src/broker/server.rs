//! The loop's role: sockets of the broker and the name server in front of one dispatcher, on thread `wl-broker`.
//!
//! A frame is read, handed to `command.rs`, and answered in the form it came in. What the dispatcher has to say to other
//! sessions goes straight to their connections, or to the outlet of a client in this process. What has to wait for the
//! disk runs on the serve lane.
//!
//! Two listeners, one dispatcher: the listener a connection came through says which requests it may make.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;

use super::command::{self, Face};
use super::dispatch::{Alarm, Dispatcher};
use super::names::command::{write_register, write_unregister};
use super::names::join::{Join, Step};
use super::reply::Reply;
use super::session::{Delivery, Outbox, Outlet, Session, SessionId, Ticket};
use crate::disk::mapped::fetch;
use crate::net::{Change, Conn, FrameBuf, Handle, Notice, Out, Role, Why};
use crate::wire::remoting::codes::answer;
use crate::wire::remoting::command::Command;
use crate::work::clock::Nanos;
use crate::work::fence::fenced;
use crate::work::pace::Pace;
use crate::work::serve::Lane;
use crate::work::sync::locked;

/// The listener of the broker in the reactor's settings; the name server's, if there is one, comes second.
pub const BROKER_LISTENER: usize = 0;

/// Of the loop's notices so many in a row are told once.
const NOTICE_EVERY: u64 = 100;

/// What other threads post to the loop.
#[derive(Debug)]
pub enum Post {
    /// Look at the mailbox and run a turn of the dispatcher.
    Look,
    /// End registrations, then the loop.
    Stop,
}

/// What a deadline means.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Timer {
    /// A turn of the dispatcher.
    Turn,
    /// One of the registrations with other name servers.
    Join(usize),
}

/// What other threads have for sessions of this loop. Bounded by what waits there: a held pull, a send that waits for
/// the disk and a cold read each have at most one answer; notices of members are kept once per session and group.
#[derive(Default)]
pub struct Mailbox {
    /// A leaf lock.
    waiting: Mutex<VecDeque<(SessionId, Mail)>>,
    looked_for: AtomicBool,
    owner: OnceLock<ThreadId>,
    handle: OnceLock<Handle<Post>>,
}

/// One thing for a session.
enum Mail {
    Delivery(Delivery),
    Reply(Ticket, Reply),
}

impl Mailbox {
    fn reply(&self, session: SessionId, ticket: Ticket, reply: Reply) {
        locked(&self.waiting).push_back((session, Mail::Reply(ticket, reply)));
        self.look();
    }

    /// The loop that empties it.
    pub fn attach(&self, handle: Handle<Post>) {
        // There is one loop per mailbox.
        let _first = self.handle.set(handle);
    }

    /// Called once by the loop's thread.
    pub fn belongs_to_this_thread(&self) {
        let _first = self.owner.set(std::thread::current().id());
    }

    fn look(&self) {
        if self.owner.get() == Some(&std::thread::current().id()) || self.looked_for.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(handle) = self.handle.get() {
            // A full inbox holds other posts, after each of which the mailbox is looked at too.
            let _full_or_closed = handle.post_own(Post::Look);
        }
    }
}

impl Outlet for Mailbox {
    fn deliver(&self, session: SessionId, delivery: Delivery) {
        {
            let mut waiting = locked(&self.waiting);
            if let Delivery::MembersChanged { group } = &delivery {
                let known = |(other, mail): &(SessionId, Mail)| {
                    let same = |same: &Arc<str>| same == group && *other == session;
                    matches!(mail, Mail::Delivery(Delivery::MembersChanged { group }) if same(group))
                };
                if waiting.iter().any(known) {
                    return;
                }
            }
            waiting.push_back((session, Mail::Delivery(delivery)));
        }
        self.look();
    }
}

impl Alarm for Mailbox {
    fn ring(&self) {
        self.look();
    }
}

struct Peer {
    session: Arc<Session>,
    face: Face,
}

struct Joined {
    addr: SocketAddr,
    /// Our end of its connection says at which address we are reached.
    session: Option<Session>,
    state: Join,
    conn: Option<Conn>,
}

/// The answer to a request, also if it fails by a bug: that must not take the others along, nor leave its own peer
/// waiting. Tables are consistent between any two statements.
fn guarded(code: i32, answer: impl FnOnce() -> Reply) -> Reply {
    fenced(answer).unwrap_or_else(|panic| {
        log::error!(target: "windlass::broker", "request failed by a bug: code={code} panic={panic}");
        Reply::refused(answer::SYSTEM_ERROR, "the broker failed on this request")
    })
}

/// The role.
pub struct Server {
    dispatcher: Arc<Dispatcher>,
    mailbox: Arc<Mailbox>,
    /// None in a simulation, which has no other threads: jobs then run in place.
    lane: Option<Lane>,
    peers: HashMap<Conn, Peer>,
    conns: HashMap<SessionId, Conn>,
    joins: Vec<Joined>,
    outbox: Outbox,
    armed: Nanos,
    opaque: i32,
    notices: u64,
}

impl Server {
    /// A server that registers with the name servers at `joins`.
    pub fn new(dispatcher: Arc<Dispatcher>, mailbox: Arc<Mailbox>, lane: Option<Lane>, joins: Vec<SocketAddr>) -> Self {
        let now = dispatcher.clock().now();
        let joins =
            joins.into_iter().map(|addr| Joined { addr, session: None, state: Join::new(now), conn: None }).collect();
        Self {
            dispatcher,
            mailbox,
            lane,
            peers: HashMap::new(),
            conns: HashMap::new(),
            joins,
            outbox: Vec::new(),
            armed: Nanos::MAX,
            opaque: 0,
            notices: 0,
        }
    }

    fn accepted(&mut self, conn: Conn, listener: usize, peer: SocketAddr, local: SocketAddr) {
        let id = self.dispatcher.session_id();
        let session = Arc::new(Session { id, peer, local, outlet: self.mailbox.clone() });
        let face = if listener == BROKER_LISTENER { Face::Broker } else { Face::Names };
        self.conns.insert(id, conn);
        self.peers.insert(conn, Peer { session, face });
    }

    fn ended(&mut self, conn: Conn, now: Nanos, out: &mut Out<Timer>) {
        if let Some(peer) = self.peers.remove(&conn) {
            self.conns.remove(&peer.session.id);
            self.dispatcher.closed(peer.session.id, &mut self.outbox);
            return self.hand_on(out);
        }
        let Some(at) = self.join_of(conn) else { return };
        if let Some(joined) = self.joins.get_mut(at) {
            joined.conn = None;
            joined.state.lost(now);
            log::warn!(target: "windlass::broker", "no connection to name server: addr={}", joined.addr);
        }
        self.register(at, now, out);
    }

    fn join_of(&self, conn: Conn) -> Option<usize> {
        self.joins.iter().position(|joined| joined.conn == Some(conn))
    }

    fn request(&mut self, conn: Conn, frame: &FrameBuf, out: &mut Out<Timer>) {
        let mut command = Command::empty();
        if command.fill(frame).is_err() {
            static ODD: Pace = Pace::new();
            let (peer, bytes) = (self.peers.get(&conn).map(|peer| peer.session.peer), frame.len());
            if let Some(times) = ODD.tell() {
                log::warn!(
                    target: "windlass::broker",
                    "frame cannot be read, connection closed: peer={peer:?} bytes={bytes} times={times}"
                );
            }
            out.close(conn);
            return;
        }
        if command.is_answer() {
            self.answered(conn, &command);
            return;
        }
        let Some(peer) = self.peers.get(&conn) else { return };
        let ticket = Ticket { opaque: command.opaque, code: command.code, codec: command.codec };
        let (dispatcher, outbox) = (&self.dispatcher, &mut self.outbox);
        let reply = guarded(command.code, || command::handle(dispatcher, &peer.session, peer.face, &command, outbox));
        let (silent, session) = (command.is_oneway(), peer.session.id);
        match reply {
            _ if silent => {}
            Reply::Later => {}
            Reply::Cold(pull) => {
                let job = move |dispatcher: &Dispatcher| Reply::Pull(dispatcher.pull_cold(&pull));
                self.on_the_lane(conn, session, ticket, job, out);
            }
            Reply::Job(job) => self.on_the_lane(conn, session, ticket, job, out),
            reply => self.write(conn, ticket, &reply, out),
        }
    }

    fn write(&self, conn: Conn, ticket: Ticket, reply: &Reply, out: &mut Out<Timer>) {
        let version = self.dispatcher.settings().compat.version();
        let head = |bytes: &mut Vec<u8>| {
            let Err(error) = reply.write(ticket, version, bytes) else { return };
            log::error!(target: "windlass::broker", "answer cannot be written: code={} error={error}", ticket.code);
            // A refusal is short: it always can be.
            let refused = Reply::refused(answer::SYSTEM_ERROR, "the answer is longer than a frame may be");
            let _short = refused.write(ticket, version, bytes);
        };
        match reply.frames() {
            [] => out.send(conn, head),
            frames if reply.fits() => {
                // They are copied to the socket at the end of the turn, one after the other.
                frames.iter().for_each(|frame| fetch(frame.bytes()));
                out.send_frames(conn, head, frames);
            }
            // What follows a refusal would be taken for the next frame.
            _ => out.send(conn, |bytes| {
                let refused = Reply::refused(answer::SYSTEM_ERROR, "the messages are longer than a frame may be");
                let _short = refused.write(ticket, version, bytes);
            }),
        }
    }

    /// Runs what may have to wait for the disk where that stops nobody else.
    fn on_the_lane(
        &self,
        conn: Conn,
        session: SessionId,
        ticket: Ticket,
        job: impl FnOnce(&Dispatcher) -> Reply + Send + 'static,
        out: &mut Out<Timer>,
    ) {
        let dispatcher = self.dispatcher.clone();
        let job = move || guarded(ticket.code, || job(&dispatcher));
        let Some(lane) = &self.lane else { return self.write(conn, ticket, &job(), out) };
        let mailbox = self.mailbox.clone();
        let run = move || mailbox.reply(session, ticket, job());
        if let Err(refused) = lane.own(run) {
            static BUSY: Pace = Pace::new();
            if let Some(times) = BUSY.tell() {
                let code = ticket.code;
                log::warn!(target: "windlass::broker", "no room on the serve lane: code={code} {refused:?} times={times}");
            }
            let reply = Reply::refused(answer::SYSTEM_BUSY, "[OVERLOAD]system busy, too many reads from the disk");
            self.write(conn, ticket, &reply, out);
        }
    }

    /// Hands on what the dispatcher has to say.
    fn hand_on(&mut self, out: &mut Out<Timer>) {
        loop {
            let mut outbox = std::mem::take(&mut self.outbox);
            if outbox.is_empty() {
                self.outbox = outbox;
                return;
            }
            for (session, delivery) in outbox.drain(..) {
                match self.conns.get(&session.id).copied() {
                    Some(conn) => self.deliver(conn, delivery, out),
                    None => session.outlet.deliver(session.id, delivery),
                }
            }
            // Nothing is put into the outbox meanwhile; its memory is kept.
            self.outbox = outbox;
        }
    }

    fn deliver(&mut self, conn: Conn, delivery: Delivery, out: &mut Out<Timer>) {
        match delivery {
            Delivery::MembersChanged { group } => {
                self.opaque = self.opaque.wrapping_add(1);
                let (opaque, version) = (self.opaque, self.dispatcher.settings().compat.version());
                out.send(conn, |bytes| command::write_members_changed(opaque, version, &group, bytes));
            }
            Delivery::Pulled { ticket, reply } => self.write(conn, ticket, &Reply::Pull(reply), out),
            Delivery::Stored { ticket, reply } => self.write(conn, ticket, &Reply::Send(reply), out),
            Delivery::Done { ticket, code } => self.write(conn, ticket, &Reply::came_back(code), out),
            Delivery::Close => out.close(conn),
        }
    }

    /// What other threads had for sessions of this loop.
    fn empty_mailbox(&mut self, out: &mut Out<Timer>) {
        self.mailbox.looked_for.store(false, Ordering::Release);
        let waiting = std::mem::take(&mut *locked(&self.mailbox.waiting));
        for (session, mail) in waiting {
            let Some(conn) = self.conns.get(&session).copied() else { continue };
            match mail {
                Mail::Delivery(delivery) => self.deliver(conn, delivery, out),
                Mail::Reply(ticket, reply) => self.write(conn, ticket, &reply, out),
            }
        }
    }

    fn turn(&mut self, out: &mut Out<Timer>) {
        self.empty_mailbox(out);
        self.dispatcher.turn(&mut self.outbox);
        self.hand_on(out);
        if self.dispatcher.is_unsynced() {
            let dispatcher = self.dispatcher.clone();
            match &self.lane {
                // One that is full takes it at a later turn: the flag stays.
                Some(lane) => drop(lane.own(move || dispatcher.sync_state())),
                None => dispatcher.sync_state(),
            }
        }
    }

    fn register(&mut self, at: usize, now: Nanos, out: &mut Out<Timer>) {
        let Some(joined) = self.joins.get_mut(at) else { return };
        match joined.state.due(now) {
            Step::Nothing => {}
            Step::Connect => joined.conn = Some(out.connect(joined.addr)),
            Step::Register => {
                let (Some(conn), Some(session)) = (joined.conn, &joined.session) else { return };
                self.opaque = self.opaque.wrapping_add(1);
                let (opaque, dispatcher) = (self.opaque, &self.dispatcher);
                out.send(conn, |bytes| write_register(dispatcher, session, opaque, bytes));
            }
            Step::Close => {
                log::warn!(target: "windlass::broker", "name server does not answer, connecting again: addr={}", joined.addr);
                if let Some(conn) = joined.conn.take() {
                    out.close(conn);
                }
                return self.register(at, now, out);
            }
        }
        if let Some(next) = self.joins.get(at).and_then(|joined| joined.state.next()) {
            out.arm(next, Timer::Join(at));
        }
    }

    fn answered(&mut self, conn: Conn, command: &Command<'_>) {
        let Some(joined) = self.joins.iter_mut().find(|joined| joined.conn == Some(conn)) else { return };
        joined.state.answered();
        if command.code != answer::SUCCESS {
            let (addr, code) = (joined.addr, command.code);
            log::warn!(target: "windlass::broker", "registration refused: name-server={addr} code={code}");
        }
    }

    fn stop(&mut self, out: &mut Out<Timer>) {
        for joined in &self.joins {
            if let (Some(conn), Some(session)) = (joined.conn, &joined.session) {
                self.opaque = self.opaque.wrapping_add(1);
                let (opaque, dispatcher) = (self.opaque, &self.dispatcher);
                out.send(conn, |bytes| write_unregister(dispatcher, session, opaque, bytes));
            }
        }
        out.stop();
    }
}

impl Role for Server {
    type Command = Post;
    type Timer = Timer;

    fn connection(&mut self, conn: Conn, change: Change, now: Nanos, out: &mut Out<Timer>) {
        match change {
            Change::Accepted { listener, peer, local } => self.accepted(conn, listener, peer, local),
            Change::Connected { local } => {
                let Some(at) = self.join_of(conn) else { return };
                let (id, outlet) = (self.dispatcher.session_id(), self.mailbox.clone());
                if let Some(joined) = self.joins.get_mut(at) {
                    joined.session = Some(Session { id, peer: joined.addr, local, outlet });
                    joined.state.connected(now);
                }
                self.register(at, now, out);
            }
            Change::Closed { why: why @ (Why::InboundFull | Why::OutputFull | Why::WriteStalled) } => {
                static GIVEN_UP: Pace = Pace::new();
                let peer = self.peers.get(&conn).map(|peer| peer.session.peer);
                if let Some(times) = GIVEN_UP.tell() {
                    log::warn!(target: "windlass::broker", "peer given up: peer={peer:?} why={why:?} times={times}");
                }
                self.ended(conn, now, out);
            }
            Change::Failed { .. } | Change::Closed { .. } => self.ended(conn, now, out),
        }
    }

    fn frame(&mut self, conn: Conn, frame: FrameBuf, _now: Nanos, out: &mut Out<Timer>) {
        self.request(conn, &frame, out);
        self.hand_on(out);
    }

    fn command(&mut self, post: Post, now: Nanos, out: &mut Out<Timer>) {
        match post {
            Post::Look => {
                // The first look is what starts the registrations.
                for at in 0..self.joins.len() {
                    if self.joins.get(at).is_some_and(|joined| joined.state.is_new()) {
                        self.register(at, now, out);
                    }
                }
                self.turn(out);
            }
            Post::Stop => self.stop(out),
        }
    }

    fn due(&mut self, timer: Timer, now: Nanos, out: &mut Out<Timer>) {
        match timer {
            Timer::Turn => {
                self.armed = Nanos::MAX;
                self.turn(out);
            }
            Timer::Join(at) => self.register(at, now, out),
        }
    }

    /// A broker that accepts nobody must say why; it tries again ten times a second, so not every time.
    fn notice(&mut self, notice: Notice, _now: Nanos, _out: &mut Out<Timer>) {
        self.notices += 1;
        if self.notices % NOTICE_EVERY == 1 {
            log::error!(target: "windlass::broker", "loop: notice={notice:?} times={}", self.notices);
        }
    }

    fn settle(&mut self, now: Nanos, out: &mut Out<Timer>) {
        if self.dispatcher.take_topics_changed() {
            for at in 0..self.joins.len() {
                if let Some(joined) = self.joins.get_mut(at) {
                    joined.state.changed(now);
                }
                self.register(at, now, out);
            }
        }
        let wanted = self.dispatcher.wanted();
        if wanted < self.armed {
            self.armed = wanted;
            out.arm(wanted, Timer::Turn);
        }
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
