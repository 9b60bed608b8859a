//! The dispatcher: everything a broker and its name server know and do, without sockets, threads or a clock of its own.
//!
//! One value, shared by the loop thread (`server.rs`), by clients of the same process on their own threads, and by a
//! simulation that drives it in one thread. One method per conversation, each in the file of that conversation; requests
//! and answers are typed. `command.rs` puts the wire's form around it.
//!
//! What it has to say to sessions outside an answer goes into the caller's [`Outbox`]. What has to happen later happens
//! in [`Dispatcher::turn`], which somebody calls by [`Dispatcher::next_due`] or after [`Alarm::ring`].
//!
//! Locks: each table has one of rank 1, and no two are held together. None is held over the store or a file.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::delay::Delays;
use super::fault::{Fault, Faults, Op};
use super::groups::Groups;
use super::hold::Holds;
use super::lock::Locks;
use super::members::Members;
use super::names::Names;
use super::offset::Offsets;
use super::pull::HeldPull;
use super::send::{SendReply, Waiting};
use super::session::{Delivery, Outbox, Session, SessionId};
use super::settings::Settings;
use super::state::Saved;
use super::stats::Counters;
use super::store::{Event, Store, StoreQueue, Watch};
use super::topics::Topics;
use crate::wire::remoting::codes::answer;
use crate::work::clock::{Clock, Nanos};
use crate::work::pace::Pace;
use crate::work::ranks::{Rank, Ranked};
use crate::work::sync::locked;

/// How often silent members, lapsed locks and dead brokers are looked for.
pub const SCAN: Duration = Duration::from_secs(10);
/// How often offsets are saved while they change.
pub const SAVE: Duration = Duration::from_secs(5);
/// Longest wait of a send for the disk; then it is answered with FLUSH_DISK_TIMEOUT.
pub const FLUSH_WAIT: Duration = Duration::from_secs(5);

/// A request that is not carried out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refusal {
    /// Response code.
    pub code: i32,
    /// What is wrong, for people.
    pub remark: String,
}

impl Refusal {
    /// A refusal by code and text.
    pub fn new(code: i32, remark: impl Into<String>) -> Self {
        Self { code, remark: remark.into() }
    }

    /// The answer to a request that this side does not know, in Apache's words.
    pub fn unsupported(code: i32) -> Self {
        let remark = format!(" request type {code} not supported");
        Self::new(answer::REQUEST_CODE_NOT_SUPPORTED, remark)
    }
}

/// Wakes whoever runs [`Dispatcher::turn`].
pub trait Alarm: Send + Sync {
    /// A turn is wanted: soon, or at a time that is earlier than the one it was asked for. Must not block and must not
    /// call the dispatcher. May be called by any thread.
    fn ring(&self);
}

/// The broker and name server of one process.
pub struct Dispatcher {
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) store: Store,
    pub(super) topics: Ranked<Topics>,
    pub(super) groups: Ranked<Groups>,
    pub(super) members: Ranked<Members>,
    pub(super) offsets: Ranked<Offsets>,
    pub(super) locks: Ranked<Locks>,
    pub(super) holds: Ranked<Holds<HeldPull>>,
    pub(super) delays: Ranked<Delays>,
    pub(super) waiting: Ranked<VecDeque<Waiting>>,
    pub(super) names: Option<Names>,
    pub(super) saved: Saved,
    pub(super) counters: Counters,
    pub(super) faults: Faults,
    pub(super) started_ms: i64,
    watcher: Arc<Watcher>,
    due: Ranked<Periods>,
    armed: AtomicU64,
    save_armed: AtomicBool,
    topics_changed: AtomicBool,
    /// Grows with every change of the topic table.
    pub(super) topics_generation: AtomicU64,
    next_session: AtomicU64,
}

/// When the periodic work is due.
#[derive(Debug)]
struct Periods {
    scan: Nanos,
    /// Only while something is unsaved: an idle broker is not woken for it.
    save: Option<Nanos>,
}

/// What the store tells, from any thread: kept until the next turn, or until the append that caused it is done.
#[derive(Default)]
pub struct Watcher {
    grown: Mutex<Vec<Arc<StoreQueue>>>,
    any: AtomicBool,
    flushed: AtomicBool,
    /// The flush thread makes messages visible, so queues grow outside any call of the dispatcher.
    rings: bool,
    alarm: OnceLock<Arc<dyn Alarm>>,
}

impl Watcher {
    /// A watcher; `sync`: messages become visible by the flush.
    pub fn new(sync: bool) -> Arc<Self> {
        Arc::new(Self { rings: sync, ..Self::default() })
    }

    fn ring(&self) {
        if let Some(alarm) = self.alarm.get() {
            alarm.ring();
        }
    }
}

impl Watch for Watcher {
    fn grew(&self, queue: &Arc<StoreQueue>) {
        locked(&self.grown).push(queue.clone());
        self.any.store(true, Ordering::Release);
        if self.rings {
            self.ring();
        }
    }

    fn durable(&self, _to: u64) {
        if self.rings {
            self.flushed.store(true, Ordering::Release);
            self.ring();
        }
    }

    fn event(&self, event: Event) {
        static CACHE: Pace = Pace::new();
        let times = match event {
            // Tried again with every segment step, as often as there are appends.
            Event::CacheFailed { .. } => CACHE.tell(),
            _ => Some(1),
        };
        if let Some(times) = times {
            log::warn!(target: "windlass::broker", "store: {event:?} times={times}");
        }
    }
}

/// What a dispatcher is made of.
pub struct Parts {
    /// Settings.
    pub settings: Settings,
    /// Time.
    pub clock: Clock,
    /// The open store.
    pub store: Store,
    /// The watcher the store was opened with.
    pub watcher: Arc<Watcher>,
    /// Topics, groups and offsets that were loaded, and where they are saved.
    pub saved: Saved,
    /// This process is a name server too.
    pub names: bool,
    /// Who calls [`Dispatcher::turn`].
    pub alarm: Arc<dyn Alarm>,
}

impl Dispatcher {
    /// A dispatcher over a store that is open. Loads what was saved; reads and writes nothing else.
    pub fn new(parts: Parts) -> Arc<Self> {
        let Parts { settings, clock, store, watcher, saved, names, alarm } = parts;
        // A second dispatcher over one watcher does not exist; the first alarm stays.
        let _first = watcher.alarm.set(alarm);
        let now = clock.now();
        let topics = Topics::built_in(settings.own(), settings.auto_create_topics);
        let delays = Delays::new(settings.delay_scale);
        let dispatcher = Self {
            topics: Ranked::new(Rank::Tables, topics),
            groups: Ranked::new(Rank::Tables, Groups::built_in()),
            members: Ranked::new(Rank::Tables, Members::default()),
            offsets: Ranked::new(Rank::Tables, Offsets::default()),
            locks: Ranked::new(Rank::Tables, Locks::default()),
            holds: Ranked::new(Rank::Tables, Holds::default()),
            delays: Ranked::new(Rank::Tables, delays),
            waiting: Ranked::new(Rank::Tables, VecDeque::new()),
            names: names.then(Names::default),
            saved,
            counters: Counters::default(),
            faults: Faults::default(),
            started_ms: clock.wall_ms(),
            watcher,
            due: Ranked::new(Rank::Tables, Periods { scan: now + SCAN, save: None }),
            // The first turn is due at once: it finds out when the next one is.
            armed: AtomicU64::new(0),
            save_armed: AtomicBool::new(false),
            topics_changed: AtomicBool::new(false),
            topics_generation: AtomicU64::new(0),
            next_session: AtomicU64::new(1),
            settings,
            clock,
            store,
        };
        dispatcher.restore();
        Arc::new(dispatcher)
    }

    /// A number for a session that no other has.
    pub fn session_id(&self) -> SessionId {
        SessionId(self.next_session.fetch_add(1, Ordering::Relaxed))
    }

    /// What a test wants to happen to a request of this kind; counts it.
    pub fn fault(&self, op: Op) -> Option<Fault> {
        self.faults.take(op)
    }

    /// The settings it runs by.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The clock it runs by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The store it writes to.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// A session is gone: its held pulls, memberships and registrations go with it.
    pub fn closed(&self, session: SessionId, out: &mut Outbox) {
        let dropped = self.holds.lock().closed(session);
        self.unwatch(&dropped);
        self.waiting.lock().retain(|waiting| waiting.session.id != session);
        let groups = self.members.lock().closed(session);
        for group in groups {
            self.notify(&group, out);
        }
        if let Some(names) = &self.names {
            names.closed(session);
        }
    }

    /// Does what is due: answers held pulls whose time is up or whose message came, sends whose bytes are on the disk,
    /// delivers delayed messages, drops the silent, saves offsets. Then [`Dispatcher::next_due`] says when to come again.
    pub fn turn(&self, out: &mut Outbox) {
        let now = self.clock.now();
        self.flushed(now, out);
        self.deliver_delayed();
        self.end_holds(now, out);
        let (scan, save) = {
            let mut due = self.due.lock();
            let (scan, save) = (now >= due.scan, due.save.is_some_and(|save| now >= save));
            if scan {
                due.scan = now + SCAN;
            }
            if save {
                due.save = None;
                self.save_armed.store(false, Ordering::Release);
            }
            (scan, save)
        };
        if scan {
            self.scan(now, out);
        }
        if save {
            self.save_offsets();
        }
        self.wake(out);
        // Everything that another thread arms from here on is earlier or is found below.
        self.armed.store(u64::MAX, Ordering::Release);
        if let Some(next) = self.next_due() {
            self.armed.fetch_min(next.0, Ordering::AcqRel);
        }
    }

    /// When the next [`Dispatcher::turn`] is wanted.
    pub fn wanted(&self) -> Nanos {
        Nanos(self.armed.load(Ordering::Acquire))
    }

    /// When [`Dispatcher::turn`] is wanted at the latest.
    pub fn next_due(&self) -> Option<Nanos> {
        let periods = {
            let due = self.due.lock();
            due.save.map_or(due.scan, |save| due.scan.min(save))
        };
        let mut next = Some(periods);
        let mut earlier = |at: Option<Nanos>| {
            if let Some(at) = at {
                next = next.map(|next| next.min(at));
            }
        };
        earlier(self.holds.lock().next_due());
        earlier(self.waiting.lock().front().map(|waiting| waiting.until));
        earlier(self.delays.lock().next_due_ms().map(|at| self.moment_of(at)));
        if self.watcher.any.load(Ordering::Acquire) || self.watcher.flushed.load(Ordering::Acquire) {
            earlier(Some(self.clock.now()));
        }
        next
    }

    /// The moment of the monotonic clock at which the wall clock will say `wall_ms`.
    fn moment_of(&self, wall_ms: i64) -> Nanos {
        let ahead = wall_ms.saturating_sub(self.clock.wall_ms());
        self.clock.now() + Duration::from_millis(u64::try_from(ahead).unwrap_or(0))
    }

    /// Something is due at `at`: rings if that is earlier than the turn that was asked for.
    pub(super) fn arm(&self, at: Nanos) {
        if self.armed.fetch_min(at.0, Ordering::AcqRel) > at.0 {
            self.watcher.ring();
        }
    }

    /// As [`Dispatcher::arm`], by the wall clock.
    pub(super) fn arm_ms(&self, wall_ms: i64) {
        self.arm(self.moment_of(wall_ms));
    }

    /// Offsets have changed: they are saved within [`SAVE`].
    pub(super) fn arm_save(&self) {
        if !self.save_armed.load(Ordering::Acquire) && !self.save_armed.swap(true, Ordering::AcqRel) {
            let at = self.clock.now() + SAVE;
            self.due.lock().save = Some(at);
            self.arm(at);
        }
    }

    /// Runs the pulls that wait for queues that have grown.
    pub(super) fn wake(&self, out: &mut Outbox) {
        // Looked at first: most sends have nobody to wake, and a swap waits for everything that was written before.
        while self.watcher.any.load(Ordering::Acquire) && self.watcher.any.swap(false, Ordering::AcqRel) {
            let grown = std::mem::take(&mut *locked(&self.watcher.grown));
            for queue in grown {
                self.wake_queue(&queue, out);
            }
        }
    }

    /// Answers sends that waited for the disk.
    fn flushed(&self, now: Nanos, out: &mut Outbox) {
        self.watcher.flushed.swap(false, Ordering::AcqRel);
        let durable = self.store.durable();
        let mut waiting = self.waiting.lock();
        while let Some(first) = waiting.front() {
            let timed_out = first.until <= now;
            if first.end > durable && !timed_out {
                break;
            }
            let Some(done) = waiting.pop_front() else { break };
            let code = if done.end > durable { answer::FLUSH_DISK_TIMEOUT } else { answer::SUCCESS };
            let ticket = done.ticket;
            let delivery = match done.reply {
                Some(reply) => Delivery::Stored { ticket, reply: SendReply { code, ..reply } },
                None => Delivery::Done { ticket, code },
            };
            out.push((done.session, delivery));
        }
    }

    /// The periodic look at who is silent.
    fn scan(&self, now: Nanos, out: &mut Outbox) {
        let silent = self.members.lock().silent(now);
        for session in silent {
            out.push((session.clone(), Delivery::Close));
            self.closed(session.id, out);
        }
        self.locks.lock().sweep(now);
        if let Some(names) = &self.names {
            names.sweep(now);
        }
    }

    /// True if messages become visible, and sends are answered, once the disk has them.
    pub fn is_sync(&self) -> bool {
        self.watcher.rings
    }

    /// Tells every member of a group that the members have changed, unless the group does not want to know.
    pub(super) fn notify(&self, group: &str, out: &mut Outbox) {
        let wanted = self.groups.lock().find(group).is_none_or(|settings| settings.notify);
        if !wanted {
            return;
        }
        let group: Arc<str> = group.into();
        let sessions: Vec<Arc<Session>> = self.members.lock().sessions(&group);
        out.extend(sessions.into_iter().map(|session| (session, Delivery::MembersChanged { group: group.clone() })));
    }

    /// The topic table has changed: it is saved at once, and other name servers are told in the next turn.
    pub(super) fn topics_changed(&self) {
        self.topics_generation.fetch_add(1, Ordering::AcqRel);
        self.topics_changed.store(true, Ordering::Release);
        self.save_topics();
    }

    /// True once after the topic table has changed: whoever registers this broker elsewhere does it again.
    pub fn take_topics_changed(&self) -> bool {
        self.topics_changed.swap(false, Ordering::AcqRel)
    }
}
