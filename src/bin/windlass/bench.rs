//! `windlass bench`: measures this client, or the head-room of whatever broker it is given, and prints one JSON line.
//!
//! Modes, letters and line are those of `tests/live/PeerBench.java`, so that one driver runs both in turn; `ceiling` is
//! the smallest client that does the same work (`ceiling.rs`). The clock starts behind route, connection and warm-up.

mod ceiling;
mod figures;
mod frame;
mod load;

use crate::{Cluster, Ended};
use clap::ValueEnum;

#[derive(clap::Args)]
pub struct Arguments {
    /// What to measure.
    #[arg(value_enum)]
    mode: Mode,
    /// Of `ceiling`: whose ceiling.
    #[arg(value_enum, default_value = "drain")]
    of: Of,
    #[command(flatten)]
    cluster: Cluster,
    /// The topic. Sends make it if the broker lets them.
    #[arg(short = 't')]
    topic: String,
    /// Bytes of a body.
    #[arg(short = 's', default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=4 << 20))]
    size: u32,
    /// Messages in all.
    #[arg(short = 'q', default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Threads that send (default 1), or handlers that run at once (default 20).
    #[arg(short = 'w', value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Messages of one batch (default 32), or of one handler call (default 1).
    #[arg(short = 'b', value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: Option<u16>,
    /// Requests in flight: of `async` (default 16) and of a ceiling of sends (default 1).
    #[arg(short = 'f', value_parser = clap::value_parser!(u16).range(1..=4096))]
    in_flight: Option<u16>,
    /// Messages per second of `latency`.
    #[arg(short = 'r', default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// The group. Default: one that is new.
    #[arg(short = 'g')]
    group: Option<String>,
    /// Tags joined by `||`, or `*`.
    #[arg(short = 'x', default_value = "*")]
    tags: String,
    /// Of `ceiling`: headers as JSON instead of binary. The client itself goes by the broker's version.
    #[arg(short = 'k', default_value_t = false, action = clap::ArgAction::Set)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Synchronous sends from `-w` threads.
    Send,
    /// Synchronous sends of `-b` messages each from `-w` threads.
    Batch,
    /// Asynchronous sends, `-f` in flight.
    Async,
    /// A push consumer over what is stored.
    Drain,
    /// End to end at `-r` messages per second.
    Latency,
    /// One raw socket that does the work of `drain`, `send` or `batch`.
    Ceiling,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Of {
    Drain,
    Send,
    Batch,
}

impl Arguments {
    fn group(&self) -> String {
        self.group.clone().unwrap_or_else(|| format!("bench-{}", figures::unique()))
    }

    /// Bytes that do not compress, the same in every run.
    fn body(&self) -> Vec<u8> {
        let mut state = 7u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..self.size).map(|_| next()).collect()
    }
}

/// True if every message was sent, or seen.
pub fn run(arguments: Arguments) -> Result<bool, Ended> {
    if arguments.json && arguments.mode != Mode::Ceiling {
        return Err(Ended::Misuse("-k true is for `ceiling`: the client takes the form that the broker reads".into()));
    }
    match arguments.mode {
        Mode::Send | Mode::Batch => load::send(&arguments),
        Mode::Async => load::send_async(&arguments),
        Mode::Drain => load::drain(&arguments),
        Mode::Latency => load::latency(&arguments),
        Mode::Ceiling => ceiling::run(&arguments),
    }
}
