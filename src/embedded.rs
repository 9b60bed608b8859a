//! The one file above the rooms: joins client and broker of one process without a socket between them (D33).
//!
//! [`Broker::client`] makes a client whose port is the broker's dispatcher. A send runs dispatch and append on the
//! sender's own thread; pulls run on the client's loop and get the log's own bytes by reference; a pull that has to wait
//! is answered by the append that brings its message (by the flush, under `Flush::Sync`), which puts the answer into the
//! client's inbox. What carries no load goes through the broker's codec as if it had come over a socket, so that a
//! request means one thing. Other brokers of the cluster are reached over sockets.

mod desk;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::broker::{
    Broker, Delivery, Dispatcher, Face, Fault, Guest, Op, Outbox, Outlet, Plain, PlainTopic, Pulled, Refusal, Reply,
    Sender as Origin, Session, Ticket as Slip, handle,
};
use crate::error::StartError;
use crate::net::answer::{NoAnswer, pair};
use crate::net::{Change, Conn, FrameBuf, Out};
use crate::rocketmq::builder::ClientBuilder;
use crate::rocketmq::caller::SocketCaller;
use crate::rocketmq::client::{Client, Start, WeakClient};
use crate::rocketmq::core::Timer;
use crate::rocketmq::port::{
    Answer, Arrival, Ask, CallError, Caller, Done, Express, Letter, News, Peer, Port, SendAnswer, Target, Ticket,
};
use crate::rocketmq::producer::OffsetId;
use crate::rocketmq::socket::{Known, SocketPort};
use crate::wire::remoting::codes::{answer, request};
use crate::wire::remoting::command::{Codec, Command, VERSION};
use crate::wire::remoting::pull::PullRequest;
use crate::wire::remoting::send::SendRequest;
use crate::work::clock::Nanos;
use crate::work::serve::Lane;

use self::desk::{Desk, Waits, framed, pulled, sent};

/// How long a broker that stops waits for each of its own clients.
const GUEST_STOP: Duration = Duration::from_secs(1);

impl Broker {
    /// A client in this process, without a socket between it and this broker. It has threads of its own, reads the
    /// broker's clock, and is stopped when the broker stops.
    ///
    /// # Errors
    /// [`StartError::Io`] if the system refuses threads.
    pub fn client(&self) -> Result<Client, StartError> {
        self.client_with(Client::builder())
    }

    /// As [`client`](Self::client), with settings of your own. Name servers and clock are the broker's.
    ///
    /// # Errors
    /// [`StartError::Config`] naming the setting; [`StartError::Io`] if the system refuses threads.
    pub fn client_with(&self, builder: ClientBuilder) -> Result<Client, StartError> {
        self.linked(builder).map(|(client, _)| client)
    }

    /// A client and its way to the dispatcher.
    fn linked(&self, builder: ClientBuilder) -> Result<(Client, Option<Arc<Link>>), StartError> {
        let dispatcher = Arc::clone(self.dispatcher());
        let servers = vec![self.name_server_addr().to_string()];
        let settings = builder.name_servers(&servers).clock(dispatcher.clock().clone()).settings()?;
        let mut made = None;
        let client = Client::start(settings, |start| {
            let link = Link::new(dispatcher, self.broker_addr(), start);
            made = Some(Arc::clone(&link));
            let known = Arc::new(Known::default());
            let lanes = SocketCaller::lanes(start);
            let others = SocketPort::new(start, Arc::clone(&known), lanes.clone(), servers, start.seed);
            let calls = SocketCaller::new(start, known, lanes);
            let caller = DirectCaller { link: Arc::clone(&link), others: calls };
            (Box::new(DirectPort { link, others, arrivals: VecDeque::new(), up: false }), Arc::new(caller))
        })?;
        if let Some(link) = &made {
            // Set once, here.
            let _first = link.client.set(client.downgrade());
            let guest: Arc<dyn Guest> = Arc::clone(link) as _;
            self.add_guest(Arc::downgrade(&guest));
        }
        Ok((client, made))
    }

    /// A client that reaches this broker through TCP, as one in another process does.
    ///
    /// # Errors
    /// As [`client`](Self::client).
    pub fn socket_client(&self) -> Result<Client, StartError> {
        let builder = Client::builder().clock(self.dispatcher().clock().clone());
        builder.name_servers([self.name_server_addr().to_string()]).build()
    }
}

/// The way from one client to the dispatcher, for its loop and its callers.
struct Link {
    dispatcher: Arc<Dispatcher>,
    session: Arc<Session>,
    desk: Arc<Desk>,
    lane: Lane,
    /// The broker's address as routes give it.
    own: Arc<str>,
    born_host: SocketAddr,
    store_host: SocketAddr,
    closed: AtomicBool,
    client: OnceLock<WeakClient>,
}

impl Guest for Link {
    fn stop(&self) {
        if let Some(client) = self.client.get().and_then(WeakClient::upgrade) {
            client.shutdown(GUEST_STOP);
        }
        // Whether its loop has ended or a handler still holds it up: the dispatcher hears no more of it.
        self.close();
    }
}

impl Link {
    fn new(dispatcher: Arc<Dispatcher>, local: SocketAddr, start: &Start<'_>) -> Arc<Self> {
        let desk = Arc::new(Desk::new(start.handle.clone()));
        let id = dispatcher.session_id();
        let born_host = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let session = Arc::new(Session { id, peer: born_host, local, outlet: desk.clone() });
        let store_host = dispatcher.reached_at(&session);
        Arc::new(Self {
            own: store_host.to_string().into(),
            dispatcher,
            session,
            desk,
            lane: start.lane.clone(),
            born_host,
            store_host,
            closed: AtomicBool::new(false),
            client: OnceLock::new(),
        })
    }

    /// Whether a request is for the dispatcher; others go over sockets.
    fn is_own(&self, to: Target<'_>) -> bool {
        match to {
            Target::NameServer => self.dispatcher.has_names(),
            Target::Broker(addr) => **addr == *self.own,
        }
    }

    /// Carries out a request on this thread. `None`: the answer comes later, to what `waits` gave; it is asked only then.
    fn carry(
        &self,
        to: Target<'_>,
        ask: &Ask<'_>,
        waits: &mut dyn FnMut() -> Waits,
    ) -> Option<Result<Answer, CallError>> {
        if self.closed.load(Ordering::Acquire) {
            return Some(Err(CallError::Closed));
        }
        let mut outbox = Outbox::new();
        let result = match ask {
            Ask::Send { request, body } => self.send(request, body, waits, &mut outbox),
            Ask::Pull(request) => self.pull(request, waits, &mut outbox),
            Ask::Other { .. } => self.other(to, ask, waits, &mut outbox),
        };
        hand_on(outbox);
        result
    }

    fn send(
        &self,
        request: &SendRequest<'_>,
        body: &[u8],
        waits: &mut dyn FnMut() -> Waits,
        outbox: &mut Outbox,
    ) -> Option<Result<Answer, CallError>> {
        let fault = self.dispatcher.fault(Op::Send);
        if fault == Some(Fault::Refuse) {
            return Some(Err(injected()));
        }
        let from = Origin { born_host: self.born_host, store_host: self.store_host, version: VERSION, wants_id: false };
        let done = match self.dispatcher.send(from, request, body, outbox) {
            Ok(done) => done,
            Err(refusal) => return Some(Err(refused(refusal))),
        };
        if fault == Some(Fault::LoseAnswer) {
            self.desk.put(request::SEND_MESSAGE_V2, waits());
            return None;
        }
        if self.dispatcher.is_sync() {
            let slip = self.desk.put(request::SEND_MESSAGE_V2, waits());
            if self.dispatcher.wait_for_disk(&self.session, slip, &done) {
                return None;
            }
            self.desk.take(slip);
        }
        Some(Ok(sent(&done.reply)))
    }

    fn pull(
        &self,
        request: &PullRequest<'_>,
        waits: &mut dyn FnMut() -> Waits,
        outbox: &mut Outbox,
    ) -> Option<Result<Answer, CallError>> {
        let fault = self.dispatcher.fault(Op::Pull);
        if fault == Some(Fault::Refuse) {
            return Some(Err(injected()));
        }
        // Before the dispatcher has it: an append may answer it before this call returns.
        let slip = self.desk.put(request::PULL_MESSAGE, waits());
        let answer = match self.dispatcher.pull(&self.session, slip, request, outbox) {
            Ok(Pulled::Now(reply)) => pulled(reply),
            Ok(Pulled::Held) => return None,
            Ok(Pulled::Cold(pull)) => {
                let (dispatcher, desk) = (Arc::clone(&self.dispatcher), Arc::clone(&self.desk));
                let session = self.session.id;
                let read = move || {
                    desk.deliver(session, Delivery::Pulled { ticket: slip, reply: dispatcher.pull_cold(&pull) })
                };
                match self.lane.own(read) {
                    Ok(()) => return None,
                    Err(_) => Err(CallError::Busy { what: "the serve lane" }),
                }
            }
            Err(refusal) => Err(refused(refusal)),
        };
        if fault == Some(Fault::LoseAnswer) {
            return None;
        }
        self.now(slip, answer)
    }

    /// Gives an answer that came at once to who asked, if he still waits.
    fn now(&self, slip: Slip, answer: Result<Answer, CallError>) -> Option<Result<Answer, CallError>> {
        match self.desk.take(slip) {
            Some(Waits::Done(done)) => {
                done(answer);
                None
            }
            Some(Waits::Core(_) | Waits::Thread(_) | Waits::Nobody) => Some(answer),
            // The session was dropped in between, and who waits has been told.
            None => None,
        }
    }

    /// As if it had come over a socket, without one.
    fn other(
        &self,
        to: Target<'_>,
        ask: &Ask<'_>,
        waits: &mut dyn FnMut() -> Waits,
        outbox: &mut Outbox,
    ) -> Option<Result<Answer, CallError>> {
        let mut frame = Vec::new();
        match ask.encode(Codec::Binary, 0, false, &mut frame) {
            Ok(()) => self.written(to, &frame, waits, outbox),
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Carries out a request that stands in a whole frame.
    fn written(
        &self,
        to: Target<'_>,
        frame: &[u8],
        waits: &mut dyn FnMut() -> Waits,
        outbox: &mut Outbox,
    ) -> Option<Result<Answer, CallError>> {
        let face = if matches!(to, Target::NameServer) { Face::Names } else { Face::Broker };
        let mut command = match Command::read(frame.get(4..).unwrap_or_default()) {
            Ok(command) => command,
            Err(error) => return Some(Err(error.into())),
        };
        let slip = self.desk.put(command.code, waits());
        command.opaque = slip.opaque;
        match handle(&self.dispatcher, &self.session, face, &command, outbox).finished(&self.dispatcher) {
            Reply::Later | Reply::Cold(_) => None,
            reply => self.now(slip, framed(&reply, slip, self.dispatcher.settings().compat.version())),
        }
    }

    fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut outbox = Outbox::new();
        self.dispatcher.closed(self.session.id, &mut outbox);
        hand_on(outbox);
        // What waits for the disk is in the log.
        self.desk.fail_all(&CallError::shut_down());
    }
}

/// Gives `waits` once.
fn once(waits: Waits) -> impl FnMut() -> Waits {
    let mut waits = Some(waits);
    move || waits.take().unwrap_or(Waits::Nobody)
}

/// Brings what the dispatcher has to say to those it is for.
fn hand_on(outbox: Outbox) {
    for (session, delivery) in outbox {
        session.outlet.deliver(session.id, delivery);
    }
}

fn refused(refusal: Refusal) -> CallError {
    CallError::Refused { code: refusal.code, remark: refusal.remark }
}

fn injected() -> CallError {
    CallError::Refused { code: answer::SYSTEM_ERROR, remark: "fault injected by this broker's owner".to_owned() }
}

/// The core's half. Thread: the client's loop.
struct DirectPort {
    link: Arc<Link>,
    others: SocketPort,
    arrivals: VecDeque<Arrival>,
    up: bool,
}

impl Port for DirectPort {
    fn ask(&mut self, ticket: Ticket, to: Target<'_>, ask: &Ask<'_>, now: Nanos, out: &mut Out<Timer>) {
        if !self.link.is_own(to) {
            return self.others.ask(ticket, to, ask, now, out);
        }
        if matches!(to, Target::Broker(_)) && !self.up {
            self.up = true;
            self.arrivals.push_back(Arrival::Up { addr: Arc::clone(&self.link.own), again: false });
        }
        let Some(result) = self.link.carry(to, ask, &mut once(Waits::Core(ticket))) else { return };
        match ask {
            // Not before the next turn: the core asks for more as soon as it has an answer, and would take in a whole
            // queue before it puts the first message.
            Ask::Pull(_) => self.link.desk.post(News::Answered { ticket, result }),
            Ask::Send { .. } | Ask::Other { .. } => self.arrivals.push_back(Arrival::Answer { ticket, result }),
        }
    }

    fn tell(&mut self, to: Target<'_>, ask: &Ask<'_>, now: Nanos, out: &mut Out<Timer>) {
        if !self.link.is_own(to) {
            return self.others.tell(to, ask, now, out);
        }
        drop(self.link.carry(to, ask, &mut once(Waits::Nobody)));
    }

    fn ask_written(&mut self, ticket: Option<Ticket>, to: Target<'_>, frame: Vec<u8>, out: &mut Out<Timer>) {
        if !self.link.is_own(to) {
            return self.others.ask_written(ticket, to, frame, out);
        }
        let waits = ticket.map_or(Waits::Nobody, Waits::Core);
        let mut outbox = Outbox::new();
        let result = self.link.written(to, &frame, &mut once(waits), &mut outbox);
        hand_on(outbox);
        if let (Some(ticket), Some(result)) = (ticket, result) {
            self.arrivals.push_back(Arrival::Answer { ticket, result });
        }
    }

    fn forget(&mut self, ticket: Ticket, late: bool, out: &mut Out<Timer>) {
        self.link.desk.forget(ticket);
        self.others.forget(ticket, late, out);
    }

    fn reply(&mut self, to: Peer, write: &mut dyn FnMut(&mut Vec<u8>), out: &mut Out<Timer>) {
        // The dispatcher asks nothing that it wants to have answered.
        if to != DISPATCHER {
            self.others.reply(to, write, out);
        }
    }

    fn poll(&mut self) -> Option<Arrival> {
        while let Some(news) = self.link.desk.late() {
            self.arrivals.extend(arrival(news));
        }
        self.arrivals.pop_front().or_else(|| self.others.poll())
    }

    fn name_servers(&self) -> usize {
        if self.link.dispatcher.has_names() { 1 } else { self.others.name_servers() }
    }

    fn set_name_servers(&mut self, list: Vec<String>, now: Nanos, out: &mut Out<Timer>) {
        self.others.set_name_servers(list, now, out);
    }

    fn version(&mut self, addr: &Arc<str>, version: i32) {
        self.others.version(addr, version);
    }

    fn connection(&mut self, conn: Conn, change: Change, now: Nanos, out: &mut Out<Timer>) {
        self.others.connection(conn, change, now, out);
    }

    fn frame(&mut self, conn: Conn, frame: FrameBuf, now: Nanos, out: &mut Out<Timer>) {
        self.others.frame(conn, frame, now, out);
    }

    fn news(&mut self, news: News, now: Nanos, out: &mut Out<Timer>) {
        match news {
            News::Resolved { .. } => self.others.news(news, now, out),
            News::Answered { .. } | News::Request { .. } => self.arrivals.extend(arrival(news)),
        }
    }

    fn retain(&mut self, keep: &dyn Fn(&str) -> bool, out: &mut Out<Timer>) {
        self.others.retain(keep, out);
    }

    fn tidy(&mut self) {
        self.others.tidy();
    }

    fn close(&mut self, out: &mut Out<Timer>) {
        self.link.close();
        self.others.close(out);
    }
}

/// Who the dispatcher is to the core.
const DISPATCHER: Peer = Peer(u64::MAX);

fn arrival(news: News) -> Option<Arrival> {
    match news {
        News::Answered { ticket, result } => Some(Arrival::Answer { ticket, result }),
        News::Request { frame } => Some(Arrival::Request { from: DISPATCHER, frame }),
        News::Resolved { .. } => None,
    }
}

/// The other threads' half.
struct DirectCaller {
    link: Arc<Link>,
    others: SocketCaller,
}

impl Caller for DirectCaller {
    fn call(&self, to: Target<'_>, ask: &Ask<'_>, deadline: Instant) -> Result<Answer, CallError> {
        if !self.link.is_own(to) {
            return self.others.call(to, ask, deadline);
        }
        let mut waiting = None;
        let carried = self.link.carry(to, ask, &mut || {
            let (giver, answered) = pair();
            waiting = Some(answered);
            Waits::Thread(giver)
        });
        match (carried, waiting) {
            (Some(result), _) => result,
            (None, None) => Err(CallError::Closed),
            (None, Some(answered)) => {
                let begun = Instant::now();
                answered.wait_until(deadline).unwrap_or_else(|error| match error {
                    NoAnswer::Late => Err(CallError::Timeout { waited: begun.elapsed() }),
                    NoAnswer::Lost => Err(CallError::shut_down()),
                })
            }
        }
    }

    fn start(&self, to: Target<'_>, ask: &Ask<'_>, timeout: Duration, done: Done) -> Result<(), CallError> {
        if !self.link.is_own(to) {
            return self.others.start(to, ask, timeout, done);
        }
        let mut done = Some(done);
        // What waits for the disk is answered by the broker within its own limit.
        let carried = self.link.carry(to, ask, &mut || done.take().map_or(Waits::Nobody, Waits::Done));
        if let (Some(result), Some(done)) = (carried, done) {
            done(result);
        }
        Ok(())
    }

    fn tell(&self, to: Target<'_>, ask: &Ask<'_>) -> Result<(), CallError> {
        if !self.link.is_own(to) {
            return self.others.tell(to, ask);
        }
        match self.link.carry(to, ask, &mut once(Waits::Nobody)) {
            // Over a socket nobody would hear of a refusal either.
            None | Some(Ok(_) | Err(CallError::Refused { .. })) => Ok(()),
            Some(Err(error)) => Err(error),
        }
    }

    fn express(&self, topic: &str) -> Option<Box<dyn Express>> {
        let way = self.link.dispatcher.plain_topic(topic, self.link.store_host)?;
        // Clients begin with different queues; the low half of the number does for that.
        let turn = AtomicU32::new(self.link.session.id.0 as u32);
        Some(Box::new(Way { link: Arc::clone(&self.link), topic: way, turn }))
    }

    fn close(&self) {
        self.link.close();
        self.others.close();
    }
}

/// A writer's own way to its topic.
struct Way {
    link: Arc<Link>,
    topic: PlainTopic,
    turn: AtomicU32,
}

impl Express for Way {
    fn broker(&self) -> &Arc<str> {
        self.topic.broker()
    }

    fn send(&self, letter: &Letter<'_>) -> Option<SendAnswer> {
        if self.link.closed.load(Ordering::Acquire) {
            return None;
        }
        let plain = Plain {
            body: letter.body,
            properties: letter.properties.as_bytes(),
            id: letter.id.as_bytes(),
            tag: letter.tag,
            now_ms: letter.now_ms,
            born_host: self.link.born_host,
        };
        let mut outbox = Outbox::new();
        let stored = self.topic.store(self.turn.fetch_add(1, Ordering::Relaxed), &plain, &mut outbox);
        hand_on(outbox);
        let stored = stored?;
        let id = OffsetId::of(self.link.store_host, stored.position);
        Some(SendAnswer { code: answer::SUCCESS, id, queue_id: stored.queue, queue_offset: stored.offset })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod link_tests;
