//! Bytes only: no socket, clock, thread or log. Everything here is pure and fuzzed.
#![deny(clippy::indexing_slicing)]

pub mod bytes;
pub mod checksum;
pub mod compress;
pub mod frame;
pub mod json;
pub mod remoting;
