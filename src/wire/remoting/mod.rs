//! RocketMQ remoting protocol: header and body of each conversation.
//!
//! [`command`] reads and writes what every frame starts with; one file per conversation holds its typed request, answer
//! and bodies; `record` and `properties` are the stored message.

pub mod codes;
pub mod command;
mod fields;
pub mod header;
mod scan;
