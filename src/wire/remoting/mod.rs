//! RocketMQ remoting protocol: header and body of each conversation.
//!
//! [`command`] reads and writes what every frame starts with; one file per conversation holds its typed request, answer
//! and bodies; `record` and `properties` are the stored message.

pub mod batch;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod bodies;
pub mod codes;
pub mod command;
mod fields;
pub mod group;
pub mod header;
pub mod lock;
pub mod message_id;
pub mod offset;
pub mod properties;
pub mod pull;
pub mod query;
pub mod queue;
pub mod record;
pub mod register;
pub mod route;
mod scan;
pub mod send;
pub mod topics;
pub mod transaction;

pub(in crate::wire) use fields::push_escaped;
