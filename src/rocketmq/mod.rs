//! The RocketMQ client: what users hold (`client`, `consumer::push`, `producer`), the core that runs on the loop (`core` and
//! the files it names), and the port to brokers and name servers (`port`, with `socket` and `caller` over TCP).
//!
//! The embedded broker's own clients have another form of the port (`embedded.rs`); nothing here knows of it.

pub mod builder;
pub mod caller;
mod calls;
pub mod client;
pub mod consumer;
pub mod core;
pub mod events;
pub mod heartbeat;
pub mod lookup;
pub mod name_servers;
pub mod port;
pub mod producer;
pub mod route;
pub mod settings;
pub mod socket;

pub use builder::ClientBuilder;
pub use client::{Client, ShutdownReport};
pub use consumer::group::{Assigned, ConsumerReport};
pub use events::{Event, Observer, PauseReason};

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
