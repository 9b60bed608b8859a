//! `windlass broker`: the embedded broker as a program.

use crate::Ended;
use crate::stop::Stop;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use windlass::broker::Broker;

/// Longest orderly end; what is stored is safe before it anyway.
const STOP: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("names").required(true).args(["name_server_listen", "join"]))]
pub struct Arguments {
    /// Where the broker listens; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// Run a name server too, here.
    #[arg(long, value_name = "HOST:PORT")]
    name_server_listen: Option<String>,
    /// Register with a name server that runs elsewhere, ours or Apache's; several joined by `;`.
    #[arg(long, value_name = "HOST:PORT")]
    join: Option<String>,
    /// The broker's name.
    #[arg(long, default_value = "broker-a")]
    name: String,
    /// The cluster's name.
    #[arg(long, default_value = "DefaultCluster")]
    cluster: String,
    /// Keep messages here. Without it the directory is temporary and gone at the end.
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
}

/// Prints one line `ready name-server=H:P broker=H:P` when both accept, and ends at SIGINT or SIGTERM.
pub fn run(arguments: Arguments) -> Result<bool, Ended> {
    let stop = Stop::new(None)?;
    let mut builder = match arguments.store {
        Some(dir) => Broker::open(dir),
        None => Broker::ephemeral(),
    };
    builder = builder.listen(arguments.listen).name(arguments.name).cluster(arguments.cluster);
    if let Some(addr) = arguments.name_server_listen {
        builder = builder.name_server_listen(addr);
    }
    for addr in arguments.join.iter().flat_map(|list| list.split([';', ','])) {
        builder = builder.join(addr.trim());
    }
    let broker = builder.start()?;
    let names = arguments.join.unwrap_or_else(|| broker.name_server_addr().to_string());
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready name-server={names} broker={}", broker.broker_addr())?;
    out.flush()?;
    drop(out);
    stop.wait();
    broker.shutdown(STOP).map_err(Ended::from)?;
    Ok(true)
}
