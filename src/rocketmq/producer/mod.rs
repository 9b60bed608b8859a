//! Producers of the RocketMQ client.
//!
//! `builder` and `settings` make one; `send` is a synchronous call, `send_async` one over the loop, `batch` several
//! messages in one, `writer` one topic with everything worked out before. They share `parcel` (a message ready to go
//! out: `check`, `unique`), `topic` (its queues: `choice`) and `attempts` (the loop of one call: `retry`). `outcome` is
//! what users get.

mod attempts;
mod batch;
mod builder;
mod callbacks;
mod check;
mod choice;
mod outcome;
mod parcel;
mod permits;
mod retry;
mod send;
mod send_async;
mod settings;
mod ticket;
mod topic;
mod unique;
mod writer;

pub use builder::ProducerBuilder;
pub use outcome::{BatchError, BatchReceipt, OffsetId, Receipt, SendError, SendStatus};
pub use send::Producer;
pub use ticket::{Ticket, WaitError};
pub use unique::MessageId;
pub use writer::TopicWriter;
