//! Nouns: names, queues, outgoing messages, tags. No bytes, no sockets, no clock.

pub mod message;
pub mod names;
pub mod queue;
pub mod sort;
pub mod sorted;
pub mod tags;

pub use message::{DelayLevel, Message};
pub use queue::{Queue, QueueOffset, StartFrom};
pub use sorted::{SortedMap, SortedSet};
