//! What happens to a client, told to who wants to know: assignments, pauses, damage, failed commits, lost connections.
//!
//! The core and the workers emit [`Event`]s; an [`Observer`] gets them on a serve lane, one after the other, never on the
//! loop. Every event is logged as well, so that nothing is silent without an observer.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::consumer::outcome::CommitError;
use crate::model::{Queue, QueueOffset};
use crate::work::serve::Lane;
use crate::work::sync::{Mutex, locked};

/// Events that may wait for slow observers. What comes beyond is counted and told as [`Event::Missed`].
const WAITING_EVENTS: usize = 1024;
/// Events told in one job of the lane, so that observers do not keep a lane's thread for ever.
const EVENTS_PER_JOB: usize = 64;

/// A failure that repeats is told the first time and then each time that it has happened so often again.
pub(super) const TOLD_EVERY: u32 = 20;

/// Something that happened. Its text form is for logs; new kinds may be added.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The group's queue is ours and is pulled from `from` on.
    Assigned {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
        /// Where pulling starts.
        from: QueueOffset,
    },
    /// The queue is another member's now, or was given up.
    Revoked {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
        /// What the broker has acknowledged as committed.
        committed: Option<QueueOffset>,
        /// Messages whose handlers had not finished in time; they will be delivered again.
        unfinished: u64,
    },
    /// The queue is not pulled for a reason that is not over soon; told again if another reason takes its place.
    Paused {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
        /// Why.
        why: PauseReason,
    },
    /// The queue is pulled again.
    Resumed {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
    },
    /// Messages were in handlers for longer than the consume time-out and have been sent back.
    Stuck {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
        /// How many.
        messages: u32,
    },
    /// A pull of the queue failed; it is tried again.
    PullFailed {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
        /// Why.
        detail: String,
        /// Failures in a row, this one included.
        times: u32,
    },
    /// The queue has had no good answer from its broker for longer than a pull may take, for whatever reason. Told again
    /// each time the silence has lasted twice as long. [`Resumed`](Self::Resumed) follows the next good answer.
    NoAnswer {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
        /// For how long.
        lasted: Duration,
        /// What it waits for now.
        waits: String,
    },
    /// A stored message could not be read twice over and was given up.
    DamagedRecord {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
        /// Its offset.
        offset: QueueOffset,
        /// Where it stands in the broker's log, if that could be read.
        physical: Option<i64>,
        /// Its size as stored, if that could be read.
        size: Option<u32>,
        /// Its first bytes, 64 at most.
        head: Vec<u8>,
        /// True if the broker was asked to keep it as a dead letter.
        dead_lettered: bool,
    },
    /// A message has gone to the group's dead-letter topic, or the broker was told to put it there.
    DeadLetter {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
        /// Its offset.
        offset: QueueOffset,
        /// Why, in the handler's words if it gave any.
        reason: Option<String>,
    },
    /// A failed message could not be handed to the broker; it is delivered here again.
    SendBackFailed {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
        /// Its offset.
        offset: QueueOffset,
        /// Why.
        detail: String,
    },
    /// A commit failed; it will be repeated.
    CommitFailed {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
        /// What was to be committed.
        offset: QueueOffset,
        /// Why.
        error: CommitError,
        /// In a row.
        times: u32,
    },
    /// The broker has corrected the offset of a pull, which was outside the range it holds.
    OffsetCorrected {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
        /// What was asked for.
        from: QueueOffset,
        /// Where it goes on.
        to: QueueOffset,
    },
    /// The offset a queue starts at cannot be found out; it is tried again.
    StartFailed {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
        /// Why.
        detail: String,
    },
    /// The name server has no route for the topic, or none answered; it is tried again.
    RouteFailed {
        /// Topic.
        topic: Arc<str>,
        /// Why.
        detail: String,
    },
    /// The members of a group could not be listed, or do not name us yet. The present queues are kept.
    NotBalanced {
        /// Group.
        group: Arc<str>,
        /// Topic.
        topic: Arc<str>,
        /// Why.
        detail: String,
    },
    /// A broker refuses the group's subscription: another member subscribes to other topics or other tags.
    SubscriptionDiffers {
        /// Group.
        group: Arc<str>,
        /// Topic.
        topic: Arc<str>,
        /// What the broker says.
        detail: String,
    },
    /// A connection ended or could not be made; it is made again when it is needed.
    ConnectionLost {
        /// Whose.
        addr: Arc<str>,
        /// Why.
        why: String,
    },
    /// A broker does not acknowledge this client's heartbeats. Nothing is pulled from it until it does; a heartbeat is sent
    /// every second.
    HeartbeatFailed {
        /// Whose.
        addr: Arc<str>,
        /// Why.
        detail: String,
    },
    /// A handler panicked or returned an error; its messages are tried again.
    HandlerFailed {
        /// Group.
        group: Arc<str>,
        /// The queue.
        queue: Queue,
        /// What it said.
        detail: String,
    },
    /// The client's loop has ended although nobody stopped it: nothing is pulled, committed or sent any more. That is a bug
    /// of this library, or the system refuses to poll; restart the process, or at least make a new client.
    ClientEnded {
        /// Why.
        detail: String,
    },
    /// Some events were not told because observers are too slow.
    Missed {
        /// How many.
        events: u64,
    },
}

/// Why a queue is not pulled.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum PauseReason {
    /// More is cached than its limit of messages, bytes or span allows.
    Full(&'static str),
    /// The client's byte budget is used up.
    Budget,
    /// The user has paused it.
    Asked,
    /// Its broker has no address in the route.
    NoBroker,
}

impl fmt::Display for PauseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(what) => what,
            Self::Budget => "memory budget",
            Self::Asked => "asked",
            Self::NoBroker => "no broker address",
        })
    }
}

impl Event {
    /// A short name of its kind, as the command line prints it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Assigned { .. } => "assigned",
            Self::Revoked { .. } => "revoked",
            Self::Paused { .. } => "paused",
            Self::Resumed { .. } => "resumed",
            Self::Stuck { .. } => "stuck",
            Self::PullFailed { .. } => "pull failed",
            Self::NoAnswer { .. } => "no answer",
            Self::DamagedRecord { .. } => "damaged record",
            Self::DeadLetter { .. } => "dead letter",
            Self::SendBackFailed { .. } => "send-back failed",
            Self::CommitFailed { .. } => "commit failed",
            Self::OffsetCorrected { .. } => "offset corrected",
            Self::StartFailed { .. } => "start failed",
            Self::RouteFailed { .. } => "route failed",
            Self::NotBalanced { .. } => "not balanced",
            Self::SubscriptionDiffers { .. } => "subscription differs",
            Self::ConnectionLost { .. } => "connection lost",
            Self::HeartbeatFailed { .. } => "heartbeat failed",
            Self::HandlerFailed { .. } => "handler failed",
            Self::ClientEnded { .. } => "client ended",
            Self::Missed { .. } => "missed",
        }
    }

    /// The group it concerns; `None`: the whole client.
    pub fn group(&self) -> Option<&str> {
        match self {
            Self::Assigned { group, .. }
            | Self::Revoked { group, .. }
            | Self::Paused { group, .. }
            | Self::Resumed { group, .. }
            | Self::Stuck { group, .. }
            | Self::PullFailed { group, .. }
            | Self::NoAnswer { group, .. }
            | Self::DamagedRecord { group, .. }
            | Self::DeadLetter { group, .. }
            | Self::SendBackFailed { group, .. }
            | Self::CommitFailed { group, .. }
            | Self::OffsetCorrected { group, .. }
            | Self::StartFailed { group, .. }
            | Self::NotBalanced { group, .. }
            | Self::SubscriptionDiffers { group, .. }
            | Self::HandlerFailed { group, .. } => Some(group),
            Self::RouteFailed { .. }
            | Self::ConnectionLost { .. }
            | Self::HeartbeatFailed { .. }
            | Self::ClientEnded { .. }
            | Self::Missed { .. } => None,
        }
    }

    /// The queue it concerns, if it is one.
    pub fn queue(&self) -> Option<&Queue> {
        match self {
            Self::Assigned { queue, .. }
            | Self::Revoked { queue, .. }
            | Self::Paused { queue, .. }
            | Self::Resumed { queue, .. }
            | Self::Stuck { queue, .. }
            | Self::PullFailed { queue, .. }
            | Self::NoAnswer { queue, .. }
            | Self::DamagedRecord { queue, .. }
            | Self::DeadLetter { queue, .. }
            | Self::SendBackFailed { queue, .. }
            | Self::CommitFailed { queue, .. }
            | Self::OffsetCorrected { queue, .. }
            | Self::StartFailed { queue, .. }
            | Self::HandlerFailed { queue, .. } => Some(queue),
            Self::RouteFailed { .. }
            | Self::NotBalanced { .. }
            | Self::SubscriptionDiffers { .. }
            | Self::ConnectionLost { .. }
            | Self::HeartbeatFailed { .. }
            | Self::ClientEnded { .. }
            | Self::Missed { .. } => None,
        }
    }

    fn level(&self) -> log::Level {
        match self {
            Self::Assigned { .. } | Self::Revoked { .. } => log::Level::Info,
            Self::Paused { .. } | Self::Resumed { .. } => log::Level::Debug,
            Self::DamagedRecord { .. }
            | Self::DeadLetter { .. }
            | Self::SendBackFailed { .. }
            | Self::ClientEnded { .. } => log::Level::Error,
            Self::Stuck { .. }
            | Self::PullFailed { .. }
            | Self::CommitFailed { .. }
            | Self::OffsetCorrected { .. }
            | Self::StartFailed { .. }
            | Self::RouteFailed { .. }
            | Self::NoAnswer { .. }
            | Self::NotBalanced { .. }
            | Self::SubscriptionDiffers { .. }
            | Self::ConnectionLost { .. }
            | Self::HeartbeatFailed { .. }
            | Self::HandlerFailed { .. }
            | Self::Missed { .. } => log::Level::Warn,
        }
    }
}

struct Or<'a, T>(&'a Option<T>);

impl<T: fmt::Display> fmt::Display for Or<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("none"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        f.write_str(":")?;
        if let Some(group) = self.group() {
            write!(f, " group={group}")?;
        }
        if let Some(queue) = self.queue() {
            write!(f, " queue={queue}")?;
        }
        match self {
            Self::Assigned { from, .. } => write!(f, " from={from}"),
            Self::Revoked { committed, unfinished, .. } => {
                write!(f, " committed={} unfinished={unfinished}", Or(committed))
            }
            Self::Paused { why, .. } => write!(f, " why={why}"),
            Self::Resumed { .. } => Ok(()),
            Self::Stuck { messages, .. } => write!(f, " messages={messages}"),
            Self::PullFailed { detail, times, .. } => write!(f, " times={times} detail={detail}"),
            Self::NoAnswer { lasted, waits, .. } => write!(f, " lasted_s={} waits={waits}", lasted.as_secs()),
            Self::DamagedRecord { offset, physical, size, dead_lettered, .. } => {
                write!(f, " offset={offset} physical={} size={} dead_lettered={dead_lettered}", Or(physical), Or(size))
            }
            Self::DeadLetter { offset, reason, .. } => write!(f, " offset={offset} reason={}", Or(reason)),
            Self::SendBackFailed { offset, detail, .. } => write!(f, " offset={offset} detail={detail}"),
            Self::CommitFailed { offset, error, times, .. } => {
                write!(f, " offset={offset} times={times} detail={error}")
            }
            Self::OffsetCorrected { from, to, .. } => write!(f, " from={from} to={to}"),
            Self::StartFailed { detail, .. } | Self::HandlerFailed { detail, .. } => write!(f, " detail={detail}"),
            Self::RouteFailed { topic, detail }
            | Self::NotBalanced { topic, detail, .. }
            | Self::SubscriptionDiffers { topic, detail, .. } => write!(f, " topic={topic} detail={detail}"),
            Self::ConnectionLost { addr, why } => write!(f, " addr={addr} why={why}"),
            Self::ClientEnded { detail } => write!(f, " detail={detail}"),
            Self::HeartbeatFailed { addr, detail } => write!(f, " addr={addr} detail={detail}"),
            Self::Missed { events } => write!(f, " events={events}"),
        }
    }
}

/// Is told about events. Every closure `Fn(&Event)` is an observer.
///
/// Events are told one after the other, on a thread of this library. An observer may block, but later events then wait, and
/// once 1024 are waiting further ones are only counted ([`Event::Missed`]). A panic of an observer is caught.
pub trait Observer: Send + Sync + 'static {
    /// Something has happened.
    fn event(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync + 'static> Observer for F {
    fn event(&self, event: &Event) {
        self(event);
    }
}

/// Brings events from the loop and the workers to observers. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    shared: Arc<Waiting>,
    lane: Lane,
}

/// Who is to be told what.
type Due = (Arc<dyn Observer>, Arc<Event>);

struct Waiting {
    /// A list and not a channel: nobody waits for it, and each kind of channel costs a program 12 kB.
    events: Mutex<VecDeque<Due>>,
    /// A job of the lane is on its way to the observers.
    telling: AtomicBool,
    missed: AtomicU64,
}

impl Events {
    /// Events told on `lane`.
    pub fn new(lane: Lane) -> Self {
        let events = Mutex::new(VecDeque::new());
        let shared = Waiting { events, telling: AtomicBool::new(false), missed: AtomicU64::new(0) };
        Self { shared: Arc::new(shared), lane }
    }

    /// Logs an event and tells it to `observers`. Never blocks.
    pub fn emit(&self, observers: &[&Arc<dyn Observer>], event: Event) {
        log::log!(target: "windlass::events", event.level(), "{event}");
        if observers.is_empty() {
            return;
        }
        let event = Arc::new(event);
        for observer in observers {
            let mut waiting = locked(&self.shared.events);
            if waiting.len() < WAITING_EVENTS {
                waiting.push_back((Arc::clone(observer), Arc::clone(&event)));
            } else {
                self.shared.missed.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.tell();
    }

    /// Tells what still waits because the lane was full when it happened.
    pub fn nudge(&self) {
        if !self.is_told() {
            self.tell();
        }
    }

    /// True if no event waits: a moment old.
    fn is_told(&self) -> bool {
        locked(&self.shared.events).is_empty()
    }

    fn tell(&self) {
        if self.shared.telling.swap(true, Ordering::AcqRel) {
            return;
        }
        let events = self.clone();
        // A refused job leaves its events waiting; the next event tries again.
        if self.lane.user(move || events.told()).is_err() {
            self.shared.telling.store(false, Ordering::Release);
        }
    }

    /// Tells some of what waits. Thread: a serve lane.
    fn told(&self) {
        let _again = Again(self);
        for _ in 0..EVENTS_PER_JOB {
            let next = locked(&self.shared.events).pop_front();
            let Some((observer, event)) = next else { break };
            observer.event(&event);
            let events = self.shared.missed.swap(0, Ordering::Relaxed);
            if events > 0 {
                observer.event(&Event::Missed { events });
            }
        }
    }

    /// Waits until everything emitted so far has been told, at most until `deadline`.
    pub fn drained(&self, deadline: std::time::Instant) -> bool {
        while self.shared.telling.load(Ordering::Acquire) || !self.is_told() {
            if std::time::Instant::now() >= deadline {
                return false;
            }
            self.tell();
            std::thread::park_timeout(Duration::from_millis(1));
        }
        true
    }
}

/// Looks again after telling, also when an observer has panicked.
struct Again<'a>(&'a Events);

impl Drop for Again<'_> {
    fn drop(&mut self) {
        self.0.shared.telling.store(false, Ordering::Release);
        if !self.0.is_told() {
            self.0.tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;
    use std::time::Instant;

    fn lost(addr: &str) -> Event {
        Event::ConnectionLost { addr: addr.into(), why: "peer closed".into() }
    }

    #[test]
    fn observers_are_told_in_order_and_a_panic_of_theirs_stops_nothing() {
        let events = Events::new(Lane::start().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&seen);
        let observer: Arc<dyn Observer> = Arc::new(move |event: &Event| {
            let Event::ConnectionLost { addr, .. } = event else { return };
            told.lock().unwrap().push(addr.to_string());
            assert_ne!(&**addr, "1", "on purpose");
        });
        for addr in ["0", "1", "2", "3"] {
            events.emit(&[&observer], lost(addr));
        }
        assert!(events.drained(Instant::now() + Duration::from_secs(10)));
        assert_eq!(*seen.lock().unwrap(), ["0", "1", "2", "3"]);
    }

    #[test]
    fn what_observers_cannot_take_is_counted() {
        let events = Events::new(Lane::start().unwrap());
        let (open, gate) = bounded::<()>(0);
        let (tell, told) = bounded(4096);
        let observer: Arc<dyn Observer> = Arc::new(move |event: &Event| {
            let _ = gate.recv();
            let _ = tell.send(event.clone());
        });
        for at in 0..WAITING_EVENTS + 100 {
            events.emit(&[&observer], lost(&at.to_string()));
        }
        drop(open);
        assert!(events.drained(Instant::now() + Duration::from_secs(10)));
        let missed: u64 =
            told.try_iter().map(|event| if let Event::Missed { events } = event { events } else { 0 }).sum();
        assert!((98..=100).contains(&missed), "{missed}");
    }

    #[test]
    fn an_event_names_what_where() {
        let event = Event::Revoked {
            group: "g".into(),
            queue: Queue::new("t", "b", 3),
            committed: Some(QueueOffset(7)),
            unfinished: 1,
        };
        assert_eq!(event.to_string(), "revoked: group=g queue=t/b/3 committed=7 unfinished=1");
        assert_eq!((event.group(), event.queue().map(|queue| queue.id)), (Some("g"), Some(3)));
        assert_eq!(lost("a:1").to_string(), "connection lost: addr=a:1 why=peer closed");
    }

    #[test]
    fn a_failure_that_lasts_is_logged_as_loud_as_its_first_time() {
        for times in [1, 2, 20, 21, 22] {
            let (group, queue) = ("g".into(), Queue::new("t", "b", 0));
            let event = Event::PullFailed { group, queue, detail: String::new(), times };
            assert_eq!(event.level(), log::Level::Warn, "whoever emits it has left most of them out");
        }
    }
}
