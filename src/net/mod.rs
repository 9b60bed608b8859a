//! Sockets: one mio loop that calls a role, connections, correlation, call lanes.

pub mod answer;
mod blocking;
pub mod buffer;
mod connection;
mod connections;
pub mod correlation;
pub mod counters;
pub mod handle;
mod inbound;
pub mod lane;
mod output;
pub mod reactor;
pub mod resolve;
pub mod role;

pub use buffer::{FrameBuf, FramePool};
pub use handle::{Handle, PostError};
pub use reactor::{Reactor, Settings, Turn};
pub use role::{Action, Change, Conn, Notice, Out, Role, Why};

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
