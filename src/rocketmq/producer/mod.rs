//! Producers of the RocketMQ client.

mod attempts;
mod check;
mod choice;
mod outcome;
mod retry;
mod settings;
mod unique;

pub use outcome::{OffsetId, Receipt, SendError, SendStatus};
pub use unique::MessageId;
