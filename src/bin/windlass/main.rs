//! `windlass`: the command line for people who look at queues. One file per command; this one parses and picks.
//!
//! Exit codes of every command: 0 done, 1 not all of it was done, 2 wrong use or a start that failed. Standard output
//! carries results alone; events, summaries, progress and logs (`RUST_LOG`) go to standard error.

mod broker;
mod moment;
mod stop;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use windlass::Error;

/// Runs an embedded RocketMQ broker, produces to, consumes from and measures this broker or an Apache RocketMQ cluster.
#[derive(Parser)]
#[command(name = "windlass", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run an embedded broker until SIGINT or SIGTERM.
    Broker(broker::Arguments),
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

impl From<std::io::Error> for Ended {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(match &cli.command {
        Command::Broker(_) => "warn",
    }))
    .init();
    let ended = match cli.command {
        Command::Broker(arguments) => broker::run(arguments),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(Ended::Failed(text)) => {
            eprintln!("windlass: {text}");
            ExitCode::from(1)
        }
        Err(Ended::Misuse(text)) => {
            eprintln!("windlass: {text}");
            ExitCode::from(2)
        }
    }
}
