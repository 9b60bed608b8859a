//! Consumers of the RocketMQ client.
