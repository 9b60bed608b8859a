//! The RocketMQ client.

pub mod builder;
pub mod caller;
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
