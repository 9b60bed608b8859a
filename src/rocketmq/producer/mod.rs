//! Producers of the RocketMQ client.

mod attempts;
mod check;
mod choice;
mod outcome;
mod permits;
mod retry;
mod settings;
mod ticket;
mod unique;

pub use outcome::{OffsetId, Receipt, SendError, SendStatus};
pub use ticket::{Ticket, WaitError};
pub use unique::MessageId;
