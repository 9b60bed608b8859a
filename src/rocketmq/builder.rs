//! How a client is built: every setting with its default and bounds, checked before anything starts.
//!
//! `Client::builder()` gives a [`ClientBuilder`]; the embedded broker's direct clients go by the same settings. It starts
//! nothing but by `Client::start`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::caller;
use super::client::Client;
use super::settings::{Settings, Timing};
use super::socket;
use crate::consume::pool::WORKERS;
use crate::error::{ConfigError, StartError, in_range, time_in_range};
use crate::work::clock::Clock;

/// Builds a [`Client`]. Every setter takes and returns it.
#[derive(Clone, Default)]
#[must_use = "nothing runs until `build`"]
pub struct ClientBuilder {
    name_servers: Vec<String>,
    workers: Option<usize>,
    memory_budget: Option<u64>,
    instance: Option<String>,
    ip: Option<IpAddr>,
    map_address: Option<super::settings::MapAddress>,
    timing: Timing,
    clock: Option<Clock>,
}

impl ClientBuilder {
    /// The name servers, each `host:port`; a text with `;` or `,` between them counts as several. No default.
    pub fn name_servers<T: Into<String>>(mut self, list: impl IntoIterator<Item = T>) -> Self {
        self.name_servers = list.into_iter().flat_map(|text| split_list(&text.into())).collect();
        self
    }

    /// Threads that run the handlers of all consumers of this client. Default 20, allowed 1 to 1000 (Java's
    /// `consumeThreadMin`, there per consumer).
    pub fn workers(mut self, threads: usize) -> Self {
        self.workers = Some(threads);
        self
    }

    /// Bytes that everything fetched and not finished, and all queued sends, of this client's consumers and producers may
    /// take. Default 256 MiB, at least 1 MiB. Once they are used up, a queue is pulled only while it holds nothing or less
    /// than its fair share, so that no queue stops for good. The client therefore never holds more than this plus 256 KiB
    /// for each queue and one frame for each connection.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.memory_budget = Some(bytes);
        self
    }

    /// The part of the client id after the address (Java's `instanceName`). Default: the process id, `#` and a random
    /// number. Two live members of a group must never have the same client id. Must not be blank.
    pub fn instance(mut self, name: impl Into<String>) -> Self {
        self.instance = Some(name.into());
        self
    }

    /// The address in the client id (Java's `clientIP`). Default: the one that this machine would send from.
    pub fn client_ip(mut self, ip: IpAddr) -> Self {
        self.ip = Some(ip);
        self
    }

    /// Maps every broker address that a name server gives to the one to connect to: for clusters behind a tunnel or a
    /// container bridge. Default: none. Runs on the client's loop, so it must not block.
    pub fn map_address(mut self, map: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.map_address = Some(Arc::new(map));
        self
    }

    /// How long one request may wait for its answer. Default 3 s, allowed 1 ms to 1 h (Java's `mqClientApiTimeout`).
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.timing.request = timeout;
        self
    }

    /// How long making a connection may take. Default 3 s, allowed 1 ms to 1 h.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timing.connect = timeout;
        self
    }

    /// How often name servers are asked for the routes of the topics in use. Default 30 s, allowed 10 ms to 24 h (Java's `pollNameServerInterval`).
    pub fn route_interval(mut self, interval: Duration) -> Self {
        self.timing.routes = interval;
        self
    }

    /// How often brokers get a heartbeat. Default 30 s, allowed 10 ms to 100 s: brokers forget a member after 120 s of
    /// silence (Java's `heartbeatBrokerInterval`).
    pub fn heartbeat_interval(mut self, interval: Duration) -> Self {
        self.timing.heartbeat = interval;
        self
    }

    /// How often the assignment of queues is checked even if nothing seems to have changed. Default 20 s, allowed 10 ms to 24 h.
    pub fn rebalance_interval(mut self, interval: Duration) -> Self {
        self.timing.rebalance = interval;
        self
    }

    /// How long a broker may hold a pull that finds nothing, and how long we wait for its answer. Default 15 s and 30 s,
    /// allowed 0 to 1 h; the second must be longer than the first (Java's `brokerSuspendMaxTimeMillis` and
    /// `consumerTimeoutMillisWhenSuspend`).
    pub fn pull_hold(mut self, hold: Duration, timeout: Duration) -> Self {
        self.timing.hold = hold;
        self.timing.pull = timeout;
        self
    }

    /// Where the time comes from: a test clock, shared with an embedded broker. Default: the system's.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = Some(clock.into());
        self
    }

    /// Changes any interval, for tests.
    #[doc(hidden)]
    pub fn timing(mut self, change: impl FnOnce(&mut Timing)) -> Self {
        change(&mut self.timing);
        self
    }

    /// Checks the settings and starts the threads. Nothing goes over the network yet.
    ///
    /// # Errors
    /// [`StartError::Config`] names the setting; [`StartError::Io`] if the system refuses threads.
    pub fn build(self) -> Result<Client, StartError> {
        check_servers(&self.name_servers)?;
        let settings = self.settings()?;
        let servers = settings.name_servers.clone();
        Client::start(settings, |start| {
            let link = Arc::new(socket::Known::default());
            let seed = start.seed;
            let lanes = caller::SocketCaller::lanes(start);
            let port = socket::SocketPort::new(start, Arc::clone(&link), lanes.clone(), servers, seed);
            let caller = caller::SocketCaller::new(start, link, lanes);
            (Box::new(port), Arc::new(caller))
        })
    }

    /// The settings, checked.
    pub(crate) fn settings(self) -> Result<Settings, ConfigError> {
        let timing = self.timing;
        check(&timing)?;
        let instance = match self.instance {
            Some(name) if name.trim().is_empty() => return Err(bad("instance", &name, "a name")),
            Some(name) => name,
            None => format!("{}#{}", std::process::id(), random()),
        };
        Ok(Settings {
            name_servers: self.name_servers,
            workers: in_range("workers", self.workers, WORKERS, 1..=1000)?,
            memory_budget: in_range("memory_budget", self.memory_budget, 256 << 20, 1 << 20..=u64::MAX)?,
            instance,
            ip: self.ip.unwrap_or_else(own_ip),
            map_address: self.map_address,
            timing,
            clock: self.clock.unwrap_or_default(),
        })
    }
}

/// A list of name servers that can be used.
pub(super) fn check_servers(list: &[String]) -> Result<(), ConfigError> {
    if list.is_empty() {
        return Err(bad("name_servers", "", "at least one host:port"));
    }
    let unusable = |addr: &&String| {
        addr.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
    };
    match list.iter().find(unusable) {
        Some(addr) => Err(bad("name_servers", addr, "host:port")),
        None => Ok(()),
    }
}

/// The intervals that have setters.
fn check(timing: &Timing) -> Result<(), ConfigError> {
    let (ms, second) = (Duration::from_millis, Duration::from_secs(1));
    for (field, value, least, most) in [
        ("request_timeout", timing.request, ms(1), 3600 * second),
        ("connect_timeout", timing.connect, ms(1), 3600 * second),
        ("route_interval", timing.routes, ms(10), 86_400 * second),
        ("heartbeat_interval", timing.heartbeat, ms(10), 100 * second),
        ("rebalance_interval", timing.rebalance, ms(10), 86_400 * second),
        ("pull_hold", timing.pull, ms(1), 3600 * second),
    ] {
        time_in_range(field, Some(value), value, least..=most)?;
    }
    if timing.pull <= timing.hold {
        let value = format!("{:?}, {:?}", timing.hold, timing.pull);
        return Err(bad("pull_hold", &value, "a timeout above the hold time"));
    }
    Ok(())
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("name_servers", &self.name_servers).finish_non_exhaustive()
    }
}

pub(super) fn bad(field: &'static str, value: &str, allowed: &str) -> ConfigError {
    ConfigError { field, value: value.to_owned(), allowed: allowed.to_owned() }
}

pub(super) fn split_list(text: &str) -> Vec<String> {
    text.split([';', ',']).map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// A number that no other process on any machine is likely to have; the hasher's keys come from the system.
pub(super) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u64(COUNT.fetch_add(1, Ordering::Relaxed));
    hasher.finish()
}

/// The address this machine sends from. Connecting a UDP socket sends nothing.
fn own_ip() -> IpAddr {
    let asked = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).and_then(|()| socket.local_addr()));
    asked.as_ref().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), SocketAddr::ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_out_of_its_range_is_named_and_nothing_is_started() {
        let field = |builder: ClientBuilder| match builder.build() {
            Err(StartError::Config(error)) => error.field,
            other => panic!("{other:?}"),
        };
        let good = || Client::builder().name_servers(["127.0.0.1:9876"]);
        assert_eq!(field(Client::builder()), "name_servers");
        assert_eq!(field(Client::builder().name_servers(["nowhere"])), "name_servers");
        assert_eq!(field(good().workers(0)), "workers");
        assert_eq!(field(good().memory_budget(1)), "memory_budget");
        assert_eq!(field(good().instance(" ")), "instance");
        let (zero, year) = (Duration::ZERO, Duration::from_secs(365 * 86_400));
        for wrong in [zero, year, Duration::MAX] {
            assert_eq!(field(good().request_timeout(wrong)), "request_timeout");
            assert_eq!(field(good().connect_timeout(wrong)), "connect_timeout");
            assert_eq!(field(good().route_interval(wrong)), "route_interval");
            assert_eq!(field(good().heartbeat_interval(wrong)), "heartbeat_interval");
            assert_eq!(field(good().rebalance_interval(wrong)), "rebalance_interval");
            assert_eq!(field(good().pull_hold(wrong, wrong)), "pull_hold");
        }
    }

    #[test]
    fn c025_a_pull_that_gives_up_before_the_broker_does_is_refused() {
        let builder = Client::builder().name_servers(["127.0.0.1:9876"]);
        let built = builder.pull_hold(Duration::from_secs(15), Duration::from_secs(10)).build();
        assert!(matches!(built, Err(StartError::Config(error)) if error.field == "pull_hold"));
    }

    #[test]
    fn b001_b002_two_clients_of_one_process_have_different_ids() {
        let id = || Client::builder().name_servers(["127.0.0.1:9876"]).settings().unwrap().client_id();
        let (one, two) = (id(), id());
        assert_ne!(one, two);
        assert!(one.contains(&format!("@{}#", std::process::id())), "{one}");
        let named = Client::builder().client_ip([10, 0, 0, 5].into()).instance("a").settings().unwrap();
        assert_eq!(named.client_id(), "10.0.0.5@a");
    }

    #[test]
    fn a_list_may_be_one_text() {
        let builder = Client::builder().name_servers(["a:1;b:2", " c:3 "]);
        assert_eq!(builder.name_servers, ["a:1", "b:2", "c:3"]);
    }
}
