//! `windlass`: the command line for people who look at queues. One file per command; this one parses and picks.
//!
//! Exit codes of every command: 0 done, 1 not all of it was done, 2 wrong use or a start that failed. Standard output
//! carries results alone; events, summaries, progress and logs (`RUST_LOG`) go to standard error.

mod bench;
mod broker;
mod consume;
mod moment;
mod output;
mod produce;
mod record;
mod stop;

use clap::{Args, Parser, Subcommand};
use std::process::ExitCode;
use windlass::{Error, StartError};

/// Runs an embedded RocketMQ broker, produces to, consumes from and measures this broker or an Apache RocketMQ cluster.
#[derive(Parser)]
#[command(name = "windlass", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure this client, or what a broker would bear; prints one JSON line.
    Bench(bench::Arguments),
    /// Run an embedded broker until SIGINT or SIGTERM.
    Broker(broker::Arguments),
    /// Store messages: lines of standard input, or a number of made ones.
    Produce(produce::Arguments),
    /// Consume a topic as a member of a group, and print one line per message.
    Consume(consume::Arguments),
}

/// Where the cluster is.
#[derive(Args)]
struct Cluster {
    /// Name servers, HOST:PORT, several joined by `;` or `,`. Without it the variable NAMESRV_ADDR is read.
    #[arg(short = 'n', long = "name-server", value_name = "HOST:PORT")]
    name_server: Option<String>,
}

impl Cluster {
    /// The name servers as a list.
    fn name_servers(&self) -> Result<Vec<String>, Ended> {
        let given = self.name_server.clone().or_else(|| std::env::var("NAMESRV_ADDR").ok()).unwrap_or_default();
        let list: Vec<String> =
            given.split([';', ',']).map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect();
        if list.is_empty() {
            return Err(Ended::Misuse("no name server: give -n HOST:PORT or set NAMESRV_ADDR".into()));
        }
        Ok(list)
    }
}

/// A command that could not do its work at all.
enum Ended {
    /// Wrong use, or a start that failed: exit code 2.
    Misuse(String),
    /// Exit code 1.
    Failed(String),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        match error {
            Error::Config(_) => Self::Misuse(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<StartError> for Ended {
    fn from(error: StartError) -> Self {
        Self::Misuse(error.to_string())
    }
}

impl From<std::io::Error> for Ended {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(match &cli.command {
        Command::Broker(_) => "warn",
        Command::Produce(_) | Command::Consume(_) | Command::Bench(_) => "off",
    }))
    .init();
    let ended = match cli.command {
        Command::Bench(arguments) => bench::run(arguments),
        Command::Broker(arguments) => broker::run(arguments),
        Command::Produce(arguments) => produce::run(arguments),
        Command::Consume(arguments) => consume::run(arguments),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(Ended::Failed(text)) => {
            output::note(&format!("windlass: {text}"));
            ExitCode::from(1)
        }
        Err(Ended::Misuse(text)) => {
            output::note(&format!("windlass: {text}"));
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_forms_scripts_use_parse() {
        Cli::command().debug_assert();
        for line in [
            "broker --listen 127.0.0.1:0 --name-server-listen 127.0.0.1:0",
            "broker --listen h:1 --join h:2 --name broker-b --cluster C --store /tmp/x",
            "produce -n h:1 -t T",
            "produce -n h:1 -t T --count 5 --size 10 --tag a --key k --property a=b --property c=d=e --queue b/3 --timeout 2.5 --json",
            "consume -n h:1 -t T -g G",
            "consume -n h:1 -t T -g G --tag a||b --from 2026-01-01T00:00:00Z --count 5 --timeout 1 --workers 2 --batch 9 --handler-ms 3 --outcome dead-letter --json",
            "bench send -n h:1 -t T -s 1024 -q 10 -w 2",
            "bench drain -n h:1 -t T -q 10 -w 2 -b 32 -g G -x a",
        ] {
            let words = std::iter::once("windlass").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
    }

    #[test]
    fn wrong_use_ends_with_2() {
        for line in [
            "broker --listen h:1",
            "broker --listen h:1 --join h:2 --name-server-listen h:3",
            "produce -t T --queue b",
            "produce -t T --size 5",
            "produce -t T --count 1 --size 18446744073709551615",
            "produce -t T --property novalue",
            "produce -t T --timeout 0",
            "consume -t T",
            "consume -t T -g G --outcome maybe",
            "consume -t T -g G --from soon",
            "consume -t T -g G --count 0",
            "bench fly -t T",
            "",
        ] {
            let words = std::iter::once("windlass").chain(line.split(' ').filter(|word| !word.is_empty()));
            let error = Cli::try_parse_from(words).err().map(|error| error.exit_code());
            assert_eq!(error, Some(2), "{line}");
        }
    }
}
