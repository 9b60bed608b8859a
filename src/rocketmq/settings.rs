//! The settings of a client: what its builder has checked. Nothing changes after the start but the name servers.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::work::clock::Clock;
use crate::work::fence::fenced;

/// Replaces an address that a name server gives, `host:port`, by one that this process can reach.
pub type MapAddress = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// Every interval and limit of the core, so that tests can shrink them.
#[derive(Clone, Debug)]
pub struct Timing {
    /// For one request and its answer.
    pub request: Duration,
    /// For one connection.
    pub connect: Duration,
    /// A connection on which nothing happens for so long is closed.
    pub idle: Duration,
    /// Routes of all topics in use are asked for this often.
    pub routes: Duration,
    /// Brokers are told that we live this often.
    pub heartbeat: Duration,
    /// Assignments are looked at this often without a reason.
    pub rebalance: Duration,
    /// ... and again after so long if that could not be done, or a topic has no route yet.
    pub retry: Duration,
    /// How long a broker may hold a pull that finds nothing.
    pub hold: Duration,
    /// How long we wait for the answer to a pull. Above `hold`.
    pub pull: Duration,
    /// Pause after a failed pull.
    pub pull_retry: Duration,
    /// The longest that pause may become while a broker is unreachable.
    pub pull_retry_most: Duration,
    /// For asking and committing offsets, and for sending failed messages back.
    pub offset: Duration,
    /// A message that could not be sent back is delivered here again after so long.
    pub local_retry: Duration,
    /// How often is looked for queues of which nothing has been heard; half of it is also what they get beyond the
    /// longest pull before their silence is told.
    pub watch: Duration,
    /// How long a queue that is given up waits for its running handlers.
    pub revoke: Duration,
    /// So many time-outs in a row without a byte close a connection.
    pub silent_calls: u32,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(3),
            connect: Duration::from_secs(3),
            idle: Duration::from_secs(120),
            routes: Duration::from_secs(30),
            heartbeat: Duration::from_secs(30),
            rebalance: Duration::from_secs(20),
            retry: Duration::from_secs(1),
            hold: Duration::from_secs(15),
            pull: Duration::from_secs(30),
            pull_retry: Duration::from_secs(1),
            pull_retry_most: Duration::from_secs(5),
            offset: Duration::from_secs(5),
            local_retry: Duration::from_secs(5),
            watch: Duration::from_secs(10),
            revoke: Duration::from_secs(1),
            silent_calls: 3,
        }
    }
}

/// What a client was built with.
#[derive(Clone)]
pub struct Settings {
    /// Name servers, `host:port`.
    pub name_servers: Vec<String>,
    /// Threads that run handlers.
    pub workers: usize,
    /// Bytes for everything that has been fetched and not finished, and for queued sends.
    pub memory_budget: u64,
    /// The part of the client id behind the address.
    pub instance: String,
    /// The address that is part of the client id.
    pub ip: IpAddr,
    /// See [`MapAddress`].
    pub map_address: Option<MapAddress>,
    /// Intervals and limits.
    pub timing: Timing,
    /// Where the time comes from.
    pub clock: Clock,
}

impl Settings {
    /// The id by which brokers and other members know this client.
    pub fn client_id(&self) -> String {
        format!("{}@{}", self.ip, self.instance)
    }

    /// An address as this process reaches it.
    pub fn map(&self, addr: &str) -> String {
        let Some(map) = &self.map_address else { return addr.to_owned() };
        // It is the user's and runs on the loop.
        fenced(|| map(addr)).unwrap_or_else(|_| {
            log::error!(target: "windlass::route", "the mapping of addresses has panicked, not mapped: addr={addr}");
            addr.to_owned()
        })
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("name_servers", &self.name_servers)
            .field("workers", &self.workers)
            .field("memory_budget", &self.memory_budget)
            .field("client_id", &self.client_id())
            .finish_non_exhaustive()
    }
}
