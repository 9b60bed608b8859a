//! The RocketMQ client.

pub mod consumer;
pub mod producer;
