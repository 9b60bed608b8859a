//! Producers of the RocketMQ client.

mod check;
mod choice;
mod retry;
mod unique;

pub use unique::MessageId;
