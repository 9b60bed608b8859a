//! A broker in this process: how it is set up, started, watched and stopped.
//!
//! What users hold. It binds the listeners, opens the store, runs the loop on thread `wl-broker`, and ends all of it in
//! order. What a broker does stands in the other files of this room.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::dispatch::{Dispatcher, Parts, Watcher};
use super::fault::{Fault, Op};
use super::server::{Mailbox, Post, Server};
use super::settings::{Compat, Settings};
use super::state::Saved;
use super::store::{Flush, Options, Store, Threads};
use super::topics::{MOST_QUEUES, PERM_READ, PERM_WRITE, Topic};
use crate::disk::{Disk, Files};
use crate::error::{ConfigError, Error, StartError};
use crate::model::names;
use crate::net::{Handle, Reactor, Settings as NetSettings};
use crate::work::clock::{Clock, after};
use crate::work::lifecycle::Lifecycle;
use crate::work::serve::Lane;
use crate::work::sync::locked;
use crate::work::threads::{Thread, spawn};

/// Memory that answers may take until slow peers have read them: more than a hundred of the largest pulls.
const OUTPUT_TOTAL: u64 = 256 << 20;
/// How long [`Broker`]'s drop waits for its threads.
const DROP_WAIT: Duration = Duration::from_secs(5);

/// Settings of a broker that is not started yet. Made by [`Broker::ephemeral`] and [`Broker::open`].
#[derive(Clone, Debug)]
#[must_use = "nothing runs until `start`"]
pub struct Builder {
    dir: Option<PathBuf>,
    settings: Settings,
    clock: Clock,
    topics: Vec<(String, u32)>,
    listen: String,
    names_listen: String,
    join: Vec<String>,
    flush: Option<Flush>,
    repair: bool,
    retain_for: Option<Duration>,
    retain_bytes: Option<u64>,
}

impl Builder {
    fn new(dir: Option<PathBuf>) -> Self {
        Self {
            dir,
            settings: Settings::default(),
            clock: Clock::system(),
            topics: Vec::new(),
            listen: "127.0.0.1:0".into(),
            names_listen: "127.0.0.1:0".into(),
            join: Vec::new(),
            flush: None,
            repair: false,
            retain_for: None,
            retain_bytes: None,
        }
    }

    /// Creates a topic at the start unless it exists, with this many queues, 1 to 65 536. May be called for several topics.
    /// Default: none; a topic is created by the first send to it.
    pub fn topic(mut self, name: impl Into<String>, queues: u32) -> Self {
        self.topics.push((name.into(), queues));
        self
    }

    /// The clock that delay levels, holds and expiry read. Default: the system's.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// Factor on all delay levels: with 0.001 the 10 s before the first redelivery become 10 ms. Default 1, allowed 0 to
    /// 1000.
    pub fn delay_scale(mut self, factor: f64) -> Self {
        self.settings.delay_scale = factor;
        self
    }

    /// Where the broker listens, `host:port`. Default `127.0.0.1:0`: a port of the system's choice, see
    /// [`Broker::broker_addr`]. A host of all zeros listens on every interface; clients are then told the address they
    /// came through (Java: `listenPort`, `brokerIP1`).
    pub fn listen(mut self, addr: impl Into<String>) -> Self {
        self.listen = addr.into();
        self
    }

    /// Where the name server listens, `host:port`. Default `127.0.0.1:0`. Without effect if [`Builder::join`] is used.
    pub fn name_server_listen(mut self, addr: impl Into<String>) -> Self {
        self.names_listen = addr.into();
        self
    }

    /// Registers with the name server at `host:port`, ours or Apache's, instead of being one. May be repeated for
    /// several name servers. Default: none.
    pub fn join(mut self, addr: impl Into<String>) -> Self {
        self.join.push(addr.into());
        self
    }

    /// The broker's name, of the characters a topic may have. Default `broker-a` (Java: `brokerName`).
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.settings.broker = name.into();
        self
    }

    /// The cluster's name, of the characters a topic may have. Default `DefaultCluster` (Java: `brokerClusterName`).
    pub fn cluster(mut self, name: impl Into<Arc<str>>) -> Self {
        self.settings.cluster = name.into();
        self
    }

    /// Which of Apache's releases to behave like where they differ. Default [`Compat::V5`].
    pub fn compat(mut self, compat: Compat) -> Self {
        self.settings.compat = compat;
        self
    }

    /// When messages are made durable. Default [`Flush::Async`], [`Flush::None`] for an ephemeral broker (Java:
    /// `flushDiskType`).
    pub fn flush(mut self, flush: Flush) -> Self {
        self.flush = Some(flush);
        self
    }

    /// Whether a send to an unknown topic makes it (Java: `autoCreateTopicEnable`). Default true.
    pub fn auto_create(mut self, topics: bool) -> Self {
        self.settings.auto_create_topics = topics;
        self
    }

    /// Whether a heartbeat or pull of an unknown group makes it (Java: `autoCreateSubscriptionGroup`). Default true.
    pub fn auto_create_groups(mut self, groups: bool) -> Self {
        self.settings.auto_create_groups = groups;
        self
    }

    /// Longest body in bytes, or in the 4.9 profile longest record. Default 4 MiB, allowed 1 KiB to 15 MiB (Java:
    /// `maxMessageSize`).
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_message_bytes = bytes;
        self
    }

    /// Where a group without a committed offset starts: at a queue's first message as long as at most this many bytes of
    /// log have been written since that message, whatever the consumer's `start_from` says. Apache's brokers do the same
    /// for young topics. Default 1 GiB, any value; 0: only in a queue without messages; `u64::MAX`: always.
    pub fn young_bytes(mut self, bytes: u64) -> Self {
        self.settings.young_bytes = bytes;
        self
    }

    /// How long messages are kept. Whole segments of the log go, each so long after its last message. Default 72 hours,
    /// any value; zero: for ever (Java: `fileReservedTime`).
    pub fn retain_for(mut self, time: Duration) -> Self {
        self.retain_for = Some(time);
        self
    }

    /// How many bytes of log are kept; above it the oldest segments go. Default 4 GiB, any value; 0: no limit.
    pub fn retain_bytes(mut self, bytes: u64) -> Self {
        self.retain_bytes = Some(bytes);
        self
    }

    /// Opens a store even if it is damaged in a part that was durable, and gives up everything that follows the damage.
    /// Default false: such a store is refused with [`StartError::Store`].
    pub fn repair(mut self, repair: bool) -> Self {
        self.repair = repair;
        self
    }

    /// Starts the broker. It takes connections when this returns.
    ///
    /// # Errors
    /// [`StartError::Config`] for a setting, [`StartError::Listen`] for an address that cannot be listened on,
    /// [`StartError::StoreInUse`] and [`StartError::Store`] for a store that may not be opened, [`StartError::Io`] for a
    /// directory that cannot be used and threads that the system refuses.
    pub fn start(self) -> Result<Broker, StartError> {
        self.check()?;
        let mut listeners = vec![bind("listen", &self.listen)?];
        let listens = local(&listeners)?;
        let joins = self.join.iter().map(|addr| resolve("join", addr)).collect::<Result<Vec<_>, _>>()?;
        let mut names_addr = joins.first().copied();
        if joins.is_empty() {
            let listener = bind("name_server_listen", &self.names_listen)?;
            names_addr =
                Some(listener.local_addr().map_err(|error| io("asking for the name server's address", error))?);
            listeners.push(listener);
        }
        let mut settings = self.settings.clone();
        settings.listens = listens;
        let watcher = Watcher::new(self.flush == Some(Flush::Sync));
        let (store, saved) = self.open_store(&watcher)?;
        let mailbox = Arc::new(Mailbox::default());
        let dispatcher = Dispatcher::new(Parts {
            settings,
            clock: self.clock.clone(),
            store: store.clone(),
            watcher,
            saved,
            names: joins.is_empty(),
            alarm: mailbox.clone(),
        });
        let mut changed = false;
        for (name, queues) in &self.topics {
            if dispatcher.topic(name).is_ok() {
                continue;
            }
            changed = true;
            let queues = i32::try_from(*queues).unwrap_or(MOST_QUEUES);
            let topic = Topic::new(name.as_str(), queues, PERM_READ | PERM_WRITE);
            dispatcher.set_topic(topic).map_err(|refusal| ConfigError {
                field: "topic",
                value: name.clone(),
                allowed: refusal.remark,
            })?;
        }
        if changed {
            // Once for all of them: each time writes down every topic.
            dispatcher.topics_changed();
        }
        let lane = Lane::start().map_err(|error| io("starting threads", error))?;
        let unused = lane.clone();
        // A start that fails leaves no thread behind.
        let failed = |doing, error| {
            unused.close_unused();
            io(doing, error)
        };
        let net = NetSettings { listeners, output_total: OUTPUT_TOTAL, ..NetSettings::default() };
        let server = Server::new(dispatcher.clone(), mailbox.clone(), Some(lane.clone()), joins);
        let mut handle = None;
        let mut reactor = Reactor::new(net, self.clock.clone(), |given| {
            mailbox.attach(given.clone());
            handle = Some(given.clone());
            server
        })
        .map_err(|error| failed("starting the loop", error))?;
        let Some(handle) = handle else { return Err(StartError::Closed) };
        // Threads come last: whatever fails before them leaves nothing that runs or holds the directory.
        let clock = self.clock.clone();
        let threads = store
            .start_threads(Arc::new(move || clock.wall_ms()))
            .map_err(|error| failed("starting threads", error))?;
        let spawned = spawn("wl-broker", move || {
            mailbox.belongs_to_this_thread();
            // Its end is logged; peers see their connections closed.
            let _ended = reactor.run();
        });
        let thread = spawned.map_err(|error| {
            threads.stop(after(DROP_WAIT));
            failed("starting threads", error)
        })?;
        // The loop sleeps until something happens: this is the first thing.
        let _never_full = handle.post_own(Post::Look);
        let running = Running { handle, thread, lane, threads: Mutex::new(Some(threads)) };
        Ok(Broker { dispatcher, running, names_addr, life: Lifecycle::new(), guests: Mutex::default() })
    }

    fn check(&self) -> Result<(), ConfigError> {
        let refuse = |field, value: String, allowed: &str| Err(ConfigError { field, value, allowed: allowed.into() });
        let Settings { delay_scale, max_message_bytes, broker, cluster, .. } = &self.settings;
        if !(0.0..=1000.0).contains(delay_scale) {
            return refuse("delay_scale", delay_scale.to_string(), "0 to 1000");
        }
        if !(1 << 10..=15 << 20).contains(max_message_bytes) {
            return refuse("max_message_bytes", max_message_bytes.to_string(), "1 KiB to 15 MiB");
        }
        for (field, name) in [("name", broker), ("cluster", cluster)] {
            if let Err(error) = names::check_topic(name) {
                return refuse(field, name.to_string(), &error.allowed);
            }
        }
        for (name, queues) in &self.topics {
            names::check_topic(name)?;
            if *queues == 0 || i64::from(*queues) > i64::from(MOST_QUEUES) {
                return refuse("topic", queues.to_string(), "1 to 65536 queues");
            }
        }
        Ok(())
    }

    fn open_store(&self, watcher: &Arc<Watcher>) -> Result<(Store, Saved), StartError> {
        let (disk, ephemeral): (Arc<dyn Disk>, bool) = match &self.dir {
            Some(dir) => (Arc::new(Files::new(dir.clone())), false),
            None => {
                let files = Files::temporary().map_err(|error| io("making a temporary directory", error))?;
                (Arc::new(files), true)
            }
        };
        let mut options = if ephemeral { Options::ephemeral() } else { Options::durable() };
        options = options.max_body(self.settings.max_message_bytes).repair(self.repair);
        options = options.delay_scale(self.settings.delay_scale);
        if let Some(flush) = self.flush {
            options = options.flush(flush);
        }
        if let Some(time) = self.retain_for {
            options = options.retain_for(time);
        }
        if let Some(bytes) = self.retain_bytes {
            options = options.retain_bytes(bytes);
        }
        let (store, _recovered) = Store::open(disk.clone(), options, self.clock.wall_ms(), watcher.clone())?;
        let saved = if ephemeral { Saved::nowhere() } else { Saved::on(disk) };
        Ok((store, saved))
    }
}

/// A broker and name server in this process.
///
/// Unmodified RocketMQ clients connect to it by [`Broker::name_server_addr`]. Dropping it stops it.
///
/// Threads: `wl-broker` (the loop), `wl-flush`, `wl-segment`, and two to four `wl-serve-N`.
#[must_use = "a broker that is dropped stops"]
pub struct Broker {
    dispatcher: Arc<Dispatcher>,
    running: Running,
    names_addr: Option<SocketAddr>,
    life: Lifecycle,
    /// A leaf lock.
    guests: Mutex<Vec<Weak<dyn Guest>>>,
}

/// A client of this process, which has to stop before the broker does.
pub(crate) trait Guest: Send + Sync {
    /// Stops it. Called under no lock.
    fn stop(&self);
}

struct Running {
    handle: Handle<Post>,
    thread: Thread,
    lane: Lane,
    threads: Mutex<Option<Threads>>,
}

impl Broker {
    /// A broker in a temporary directory, on free ports: its messages are gone when it is dropped.
    pub fn ephemeral() -> Builder {
        Builder::new(None)
    }

    /// A broker that keeps its messages in `dir`, which is made if it is absent.
    pub fn open(dir: impl Into<PathBuf>) -> Builder {
        Builder::new(Some(dir.into()))
    }

    /// Where the name server is: this broker's own, or the first one it joined.
    pub fn name_server_addr(&self) -> SocketAddr {
        reachable(self.names_addr.unwrap_or_else(|| self.dispatcher.settings().listens))
    }

    /// Where the broker is.
    pub fn broker_addr(&self) -> SocketAddr {
        reachable(self.dispatcher.settings().listens)
    }

    /// For tests: the next `times` requests of this kind are not carried out, but answered with SYSTEM_ERROR.
    pub fn fail_next(&self, op: Op, times: u32) {
        self.dispatcher.faults.set(op, Fault::Refuse, times);
    }

    /// For tests: the next `times` requests of this kind are carried out, but their answers are lost.
    pub fn lose_next(&self, op: Op, times: u32) {
        self.dispatcher.faults.set(op, Fault::LoseAnswer, times);
    }

    /// How many messages a topic holds; 0 for an unknown one.
    pub fn topic_len(&self, topic: &str) -> u64 {
        let queues = self.dispatcher.topic(topic).map_or(0, |topic| topic.read_queues.max(topic.write_queues));
        let held = (0..queues).map(|queue| {
            let (min, max) = self.dispatcher.queue_bounds(topic, queue);
            u64::try_from(max - min).unwrap_or(0)
        });
        held.sum()
    }

    /// Waits until the group has committed everything in the topics it consumes, its retry topic included, and no message
    /// for these topics waits in a delay level. A group that has neither members nor commits yet counts as not drained.
    ///
    /// # Errors
    /// [`Error::NotDrained`] if that is not so after `timeout` of real time; it says what is left.
    pub fn wait_drained(&self, group: &str, timeout: Duration) -> Result<(), Error> {
        if self.dispatcher.wait_drained(group, timeout) {
            return Ok(());
        }
        let left = self.dispatcher.not_drained(group);
        if left.is_empty() {
            return Ok(());
        }
        Err(Error::NotDrained { group: group.to_owned(), left, waited: timeout })
    }

    /// Stops: no new requests, registrations ended, sockets closed, everything acknowledged on the disk. The second call
    /// does nothing. Once it has returned `Ok` another broker can have the directory, also while clients of
    /// [`Broker::client`] live on: what they ask ends with [`Error::Closed`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if a thread has not ended within `timeout`, [`Error::Store`] if the disk did not take the end of
    /// the log; the directory is free when this broker and its clients have been dropped then.
    pub fn shutdown(&self, timeout: Duration) -> Result<(), Error> {
        let deadline = after(timeout);
        let late = || Error::Timeout { request: "shutdown", addr: None, waited: timeout };
        if !self.life.begin_stop() {
            return if self.life.wait_stopped(deadline) { Ok(()) } else { Err(late()) };
        }
        let guests = std::mem::take(&mut *locked(&self.guests));
        for guest in guests.iter().filter_map(Weak::upgrade) {
            guest.stop();
        }
        let mut in_time = true;
        if self.running.handle.post_own(Post::Stop).is_err() {
            self.running.handle.stop();
        }
        in_time &= self.running.thread.join_by(deadline);
        self.dispatcher.save_offsets();
        self.dispatcher.close_state();
        self.dispatcher.sync_state();
        if let Some(threads) = locked(&self.running.threads).take() {
            in_time &= threads.stop(deadline);
        }
        in_time &= self.running.lane.close(deadline);
        self.life.stopped();
        match self.dispatcher.store().read_only() {
            _ if in_time => Ok(()),
            Some(why) => Err(Error::Store { what: format!("the store took nothing more before it was closed: {why}") }),
            None => Err(late()),
        }
    }

    /// Stops `guest` before this broker stops.
    pub(crate) fn add_guest(&self, guest: Weak<dyn Guest>) {
        let mut guests = locked(&self.guests);
        guests.retain(|known| known.strong_count() > 0);
        guests.push(guest);
    }

    /// The dispatcher, for clients of this process.
    pub(crate) fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.dispatcher
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Err(error) = self.shutdown(DROP_WAIT) {
            log::warn!(target: "windlass::broker", "broker dropped before it had stopped: error={error}");
        }
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (names, broker) = (self.name_server_addr(), self.broker_addr());
        f.debug_struct("Broker").field("name_server", &names).field("broker", &broker).finish_non_exhaustive()
    }
}

/// A host of all zeros, as one that can be connected to from here.
fn reachable(addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() { SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), addr.port()) } else { addr }
}

fn resolve(field: &'static str, addr: &str) -> Result<SocketAddr, ConfigError> {
    let unusable = || ConfigError { field, value: addr.to_owned(), allowed: "host:port that can be resolved".into() };
    let mut found = addr.to_socket_addrs().map_err(|_| unusable())?;
    found.next().ok_or_else(unusable)
}

fn bind(setting: &'static str, addr: &str) -> Result<TcpListener, StartError> {
    let addr = resolve(setting, addr)?;
    TcpListener::bind(addr).map_err(|source| StartError::Listen { setting, addr, source })
}

fn local(listeners: &[TcpListener]) -> Result<SocketAddr, StartError> {
    let listener = listeners.first().ok_or(StartError::Closed)?;
    listener.local_addr().map_err(|error| io("asking for the broker's address", error))
}

fn io(doing: &str, source: std::io::Error) -> StartError {
    StartError::Io { doing: doing.to_owned(), source }
}
