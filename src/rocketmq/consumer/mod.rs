//! Consumers of the RocketMQ client.

pub mod delivery;
pub mod handler;
pub mod pulled;
pub mod received;
pub mod settings;
