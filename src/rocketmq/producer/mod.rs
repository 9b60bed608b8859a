//! Producers of the RocketMQ client.
