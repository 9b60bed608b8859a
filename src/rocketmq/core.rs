//! The client's core: a state machine on the loop that owns routes, heartbeats, groups, claims, pulls and commits.
//!
//! The loop calls it through [`Role`]; it asks through its [`Port`] and gets answers from it. It has no locks and never
//! blocks, runs no user code, and reads time only from its arguments. This file holds what all its parts share: commands,
//! timers, and which part an answer goes to. The parts are `lookup.rs`, `heartbeat.rs` and the files of `consumer`; requests
//! that are not answered yet are kept in `calls.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::calls::{Call, Calls};
use super::client::Context;
use super::consumer::claim::Claim;
use super::consumer::group::{ConsumerId, ConsumerReport, ConsumerSpec, Group, Order};
use super::consumer::offset::{Keeping, Stored};
use super::consumer::pull::Arrived;
use super::consumer::pulled::Indexes;
use super::consumer::sendback::SendBack;
use super::events::Event;
use super::heartbeat::Broker;
use super::lookup::Topic;
use super::port::{Answer, Arrival, Ask, CallError, Done, News, Peer, Port, Target, Ticket};
use super::route::Route;
use crate::consume::chunk::Epoch;
use crate::consume::progress::Rounds;
use crate::error::{Error, StartError};
use crate::model::SortedMap;
use crate::net::answer::Giver;
use crate::net::{Change, Conn, FrameBuf, Notice, Out, Role};
use crate::wire::remoting::codes::{answer, request};
use crate::wire::remoting::command::{Command as Frame, Head, write};
use crate::wire::remoting::header::NoFields;
use crate::work::clock::Nanos;

/// What each consumer of a client came to, by group.
pub type Reports = Vec<(Arc<str>, ConsumerReport)>;

/// What other threads want of the core.
pub enum Command {
    /// From the port's other threads.
    News(News),
    /// A producer wants a topic's route.
    Route {
        /// Topic.
        topic: Arc<str>,
        /// Gets the route.
        answer: Giver<Result<Arc<Route>, Error>>,
    },
    /// A producer group comes or goes.
    Producer {
        /// Group.
        group: Arc<str>,
        /// It comes.
        present: bool,
    },
    /// A consumer starts.
    Start {
        /// How.
        spec: Box<ConsumerSpec>,
        /// Gets its number.
        answer: Giver<Result<ConsumerId, StartError>>,
    },
    /// Something for one consumer.
    Consumer(ConsumerId, Order),
    /// A request of another thread, written as a whole frame.
    Call {
        /// Whom to ask; `None`: a name server.
        to: Option<Arc<str>>,
        /// The request; its opaque is still to be set.
        frame: Vec<u8>,
        /// For the answer.
        timeout: Duration,
        /// Gets the answer; `None`: one-way.
        done: Option<Done>,
    },
    /// A claim has news.
    Bell(Epoch),
    /// A user's own store of offsets has answered.
    Stored(Stored),
    /// The name servers are others now.
    NameServers(Vec<String>),
    /// The byte budget has room again.
    Room,
    /// End everything in order within this time.
    Shutdown {
        /// For all of it.
        most: Duration,
        /// Gets each consumer's report.
        answer: Giver<Reports>,
    },
}

/// What a deadline of the core means.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Timer {
    /// A request may have run out of time.
    Calls,
    /// A route may have to be asked for.
    Routes,
    /// A heartbeat may be due.
    Heartbeats,
    /// A rebalance may be due.
    Rebalance,
    /// A round of commits may be due.
    Commits,
    /// Something of a claim may be due.
    Claim(Epoch),
    /// Queues and topics of which nothing is heard are looked for.
    Watch,
    /// A failed message may have to be delivered again.
    SendBacks,
    /// A consumer that stops may be out of time.
    Ending,
    /// Answers are left to be taken in: nothing is due but another turn.
    Turn,
}

/// A deadline that is armed again and again: once for each time that comes nearer, never once for each change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alarm {
    armed: Option<Nanos>,
}

impl Alarm {
    /// Arms `timer` for `at` unless an earlier one is armed already.
    pub fn at(&mut self, at: Nanos, timer: Timer, out: &mut Out<Timer>) {
        if self.armed.is_none_or(|armed| at < armed) {
            self.armed = Some(at);
            out.arm(at, timer);
        }
    }

    /// The timer has come: [`at`](Self::at) arms it again, unless it was armed for a later moment than `now`.
    pub fn rang(&mut self, now: Nanos) {
        if self.armed.is_some_and(|armed| armed <= now) {
            self.armed = None;
        }
    }
}

/// What the core wanted with a request.
pub enum Purpose {
    /// A topic's route.
    Route {
        /// Topic.
        topic: Arc<str>,
        /// Name servers that have not been tried.
        left: usize,
    },
    /// A broker knows that we live.
    Heartbeat {
        /// Address.
        addr: Arc<str>,
        /// The version of all subscriptions in it.
        version: i64,
    },
    /// A group's members.
    Members {
        /// Group.
        group: ConsumerId,
        /// For this topic.
        topic: Arc<str>,
        /// Who was asked.
        addr: Arc<str>,
    },
    /// Where the group stands in a queue.
    StoredOffset(Epoch),
    /// Where a group without an offset starts.
    StartOffset(Epoch),
    /// Messages.
    Pull(Epoch),
    /// Progress.
    Commit(Epoch),
    /// A failed message is taken by its broker.
    SendBack(Box<SendBack>),
    /// A damaged record becomes a dead letter.
    Bury,
    /// A group is left.
    Leave(ConsumerId),
    /// Another thread's.
    Call(Done),
}

/// So many answers of one claim are taken in before the loop looks at its inbox again.
const ROUNDS: usize = 16;

/// See the head of this file.
pub struct Core {
    pub(super) context: Arc<Context>,
    pub(super) port: Box<dyn Port>,
    /// As they were given last.
    pub(super) name_servers: Vec<String>,
    calls: Calls,
    pub(super) topics: SortedMap<Arc<str>, Topic>,
    pub(super) route_alarm: Alarm,
    pub(super) brokers: SortedMap<Arc<str>, Broker>,
    pub(super) heartbeat_alarm: Alarm,
    /// Version of all subscriptions: grows with every change, as members compare it.
    pub(super) subscriptions: i64,
    pub(super) producers: SortedMap<Arc<str>, usize>,
    pub(super) groups: SortedMap<ConsumerId, Group>,
    pub(super) last_group: u64,
    pub(super) rebalance_alarm: Alarm,
    pub(super) watch_alarm: Alarm,
    pub(super) claims: SortedMap<Epoch, Claim>,
    /// Answers to pulls that are indexed and put once the turn's requests are written.
    pub(super) arrived: Vec<Arrived>,
    pub(super) indexes: Arc<Indexes>,
    pub(super) rounds: Rounds,
    pub(super) commit_alarm: Alarm,
    /// Progress for users' own stores.
    pub(super) keeping: Keeping,
    pub(super) send_backs: VecDeque<SendBack>,
    pub(super) send_backs_out: usize,
    /// Failed messages that will be delivered here again.
    pub(super) local_retries: VecDeque<(Nanos, SendBack)>,
    pub(super) send_back_alarm: Alarm,
    pub(super) ending: Option<Ending>,
    pub(super) ending_alarm: Alarm,
    /// For choices that should differ from client to client.
    pub(super) seed: u64,
}

/// The client is shutting down.
pub(super) struct Ending {
    pub(super) answers: Vec<Giver<Reports>>,
    pub(super) reports: Reports,
}

impl Core {
    /// A core that has nothing to do yet.
    pub fn new(context: Arc<Context>, port: Box<dyn Port>) -> Self {
        let (now, wall_ms) = (context.clock.now(), context.clock.wall_ms());
        let seed = crate::model::tags::java_hash(&context.client_id) as u32;
        Self {
            name_servers: context.settings.name_servers.clone(),
            context,
            port,
            calls: Calls::default(),
            topics: SortedMap::new(),
            route_alarm: Alarm::default(),
            brokers: SortedMap::new(),
            heartbeat_alarm: Alarm::default(),
            subscriptions: wall_ms,
            producers: SortedMap::new(),
            groups: SortedMap::new(),
            last_group: 0,
            rebalance_alarm: Alarm::default(),
            watch_alarm: Alarm::default(),
            claims: SortedMap::new(),
            arrived: Vec::new(),
            indexes: Indexes::new(),
            rounds: Rounds::new(now),
            commit_alarm: Alarm::default(),
            keeping: Keeping::default(),
            send_backs: VecDeque::new(),
            send_backs_out: 0,
            local_retries: VecDeque::new(),
            send_back_alarm: Alarm::default(),
            ending: None,
            ending_alarm: Alarm::default(),
            seed: u64::from(seed),
        }
    }

    /// Asks, and remembers what for.
    pub(super) fn ask(
        &mut self,
        to: Target<'_>,
        ask: &Ask<'_>,
        purpose: Purpose,
        timeout: Duration,
        now: Nanos,
        out: &mut Out<Timer>,
    ) -> Ticket {
        let ticket = self.calls.insert(Call { purpose, deadline: now + timeout, asked: now }, out);
        self.port.ask(ticket, to, ask, now, out);
        ticket
    }

    /// Gives up on a request; its answer, if one comes, is dropped.
    pub(super) fn forget(&mut self, ticket: Ticket, out: &mut Out<Timer>) {
        if self.calls.take(ticket).is_some() {
            self.port.forget(ticket, false, out);
        }
    }

    /// Tells an event that concerns a group to that group's observer.
    pub(super) fn tell(&self, group: ConsumerId, event: Event) {
        let observer = self.groups.get(&group).and_then(|group| group.spec.observer.as_ref());
        self.context.events.emit(observer.as_slice(), event);
    }

    /// Tells an event that concerns the whole client to every observer.
    pub(super) fn tell_all(&self, event: Event) {
        let observers: Vec<_> = self.groups.values().filter_map(|group| group.spec.observer.as_ref()).collect();
        self.context.events.emit(&observers, event);
    }

    /// The loop has ended though nobody has stopped it: every observer is told.
    pub(super) fn ended(&self, detail: String) {
        self.tell_all(Event::ClientEnded { detail });
    }

    /// Handles what has come until nothing more has.
    fn pump(&mut self, now: Nanos, out: &mut Out<Timer>) {
        while let Some(arrival) = self.port.poll() {
            match arrival {
                Arrival::Answer { ticket, result } => {
                    if let Some(call) = self.calls.take(ticket) {
                        self.answered(call.purpose, result, now, out);
                    }
                }
                Arrival::Request { from, frame } => self.requested(from, &frame, now, out),
                Arrival::Up { addr, again } => self.broker_up(&addr, again, now, out),
                Arrival::Down { addr, why, lost, first } => {
                    self.broker_down(&addr, lost, now, out);
                    if first {
                        self.tell_all(Event::ConnectionLost { addr, why });
                    }
                }
            }
        }
    }

    fn answered(&mut self, purpose: Purpose, result: Result<Answer, CallError>, now: Nanos, out: &mut Out<Timer>) {
        match purpose {
            Purpose::Route { topic, left } => self.route_answered(&topic, left, result, now, out),
            Purpose::Heartbeat { addr, version } => self.heartbeat_answered(&addr, version, result, now, out),
            Purpose::Members { group, topic, addr } => {
                self.members_answered(group, &topic, &addr, result, now, out);
            }
            Purpose::StoredOffset(epoch) => self.stored_offset_answered(epoch, result, now, out),
            Purpose::StartOffset(epoch) => self.start_offset_answered(epoch, result, now, out),
            Purpose::Pull(epoch) => self.pull_answered(epoch, result, now, out),
            Purpose::Commit(epoch) => self.commit_answered(epoch, result, now, out),
            Purpose::SendBack(back) => self.send_back_answered(*back, result, now, out),
            Purpose::Bury => {
                if let Err(error) = result.and_then(|answer| answer.done()) {
                    log::warn!(target: "windlass::pull", "damaged record not kept as a dead letter: error={error}");
                }
            }
            Purpose::Leave(group) => self.left(group, now, out),
            Purpose::Call(done) => done(result),
        }
    }

    fn overdue(&mut self, now: Nanos, out: &mut Out<Timer>) {
        while let Some(ticket) = self.calls.overdue(now) {
            if let Some(call) = self.calls.take(ticket) {
                self.port.forget(ticket, true, out);
                let waited = now.since(call.asked);
                self.answered(call.purpose, Err(CallError::Timeout { waited }), now, out);
            }
        }
        self.calls.rearm(now, out);
    }

    /// A broker asks something: of what is not served here it is told so.
    fn requested(&mut self, from: Peer, frame: &FrameBuf, now: Nanos, out: &mut Out<Timer>) {
        let Ok(command) = Frame::read(frame) else { return };
        if command.code == request::NOTIFY_CONSUMER_IDS_CHANGED {
            log::debug!(target: "windlass::rebalance", "a broker says that members have changed");
            let group = command.fields.find("consumerGroup").and_then(|value| value.text("consumerGroup").ok());
            self.members_changed(group.as_deref(), now, out);
        }
        if command.is_oneway() {
            return;
        }
        let name = request::name(command.code).unwrap_or("request");
        let remark = format!("request type {} ({name}) not supported", command.code);
        let head = Head::answer(answer::REQUEST_CODE_NOT_SUPPORTED, command.opaque).remark(&remark);
        let mut reply = |bytes: &mut Vec<u8>| {
            // Too short to be refused.
            let _ = write(bytes, command.codec, &head, &NoFields, &[]);
        };
        self.port.reply(from, &mut reply, out);
    }

    fn call(
        &mut self,
        to: Option<&Arc<str>>,
        frame: Vec<u8>,
        timeout: Duration,
        done: Option<Done>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let to = to.map_or(Target::NameServer, Target::Broker);
        let ticket = done.map(|done| {
            let call = Call { purpose: Purpose::Call(done), deadline: now + timeout, asked: now };
            self.calls.insert(call, out)
        });
        self.port.ask_written(ticket, to, frame, out);
    }
}

impl Role for Core {
    type Command = Command;
    type Timer = Timer;

    fn connection(&mut self, conn: Conn, change: Change, now: Nanos, out: &mut Out<Timer>) {
        self.port.connection(conn, change, now, out);
        self.pump(now, out);
    }

    fn frame(&mut self, conn: Conn, frame: FrameBuf, now: Nanos, out: &mut Out<Timer>) {
        self.port.frame(conn, frame, now, out);
        self.pump(now, out);
    }

    fn command(&mut self, command: Command, now: Nanos, out: &mut Out<Timer>) {
        match command {
            Command::News(news) => self.port.news(news, now, out),
            Command::Route { topic, answer } => self.route_wanted(&topic, Some(answer), now, out),
            Command::Producer { group, present } => self.producer(&group, present, now, out),
            Command::Start { spec, answer } => self.start_group(*spec, answer, now, out),
            Command::Consumer(group, order) => self.order(group, order, now, out),
            Command::Call { to, frame, timeout, done } => self.call(to.as_ref(), frame, timeout, done, now, out),
            Command::Bell(epoch) => self.claim_news(epoch, now, out),
            Command::Stored(answer) => self.stored(answer, now, out),
            Command::NameServers(list) => {
                self.name_servers.clone_from(&list);
                self.port.set_name_servers(list, now, out);
                self.ask_all_routes(now, out);
            }
            Command::Room => self.room(now, out),
            Command::Shutdown { most, answer } => self.shutdown(most, answer, now, out),
        }
        self.pump(now, out);
    }

    fn due(&mut self, timer: Timer, now: Nanos, out: &mut Out<Timer>) {
        match timer {
            Timer::Calls => self.overdue(now, out),
            Timer::Routes => self.routes_due(now, out),
            Timer::Heartbeats => self.heartbeats_due(now, out),
            Timer::Rebalance => self.rebalance_due(now, out),
            Timer::Commits => self.commits_due(now, out),
            Timer::Claim(epoch) => self.claim_due(epoch, now, out),
            Timer::Watch => self.watch_due(now, out),
            Timer::SendBacks => self.local_retries_due(now, out),
            Timer::Ending => self.ending_due(now, out),
            Timer::Turn => {}
        }
        self.pump(now, out);
    }

    fn settle(&mut self, now: Nanos, out: &mut Out<Timer>) {
        // In process a pull is answered at once, so that what is taken in brings the next answer with it.
        for _ in 0..ROUNDS {
            self.take_in(now, out);
            self.pump(now, out);
            if self.arrived.is_empty() {
                break;
            }
        }
        if !self.arrived.is_empty() {
            out.arm(now, Timer::Turn);
        }
        self.keep_all(now, out);
    }

    fn notice(&mut self, notice: Notice, now: Nanos, out: &mut Out<Timer>) {
        log::warn!(target: "windlass::net", "loop: notice={notice:?}");
        if matches!(notice, Notice::ReadingResumed) {
            self.room(now, out);
        }
        self.pump(now, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_armed_again_only_for_an_earlier_time() {
        let (mut alarm, mut out) = (Alarm::default(), Out::new());
        for at in [9, 9, 12, 5, 7] {
            alarm.at(Nanos(at), Timer::Routes, &mut out);
        }
        assert_eq!(out.actions().len(), 2);
        alarm.rang(Nanos(5));
        alarm.at(Nanos(12), Timer::Routes, &mut out);
        assert_eq!(out.actions().len(), 3);
    }
}
