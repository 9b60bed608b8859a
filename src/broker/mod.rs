//! The embedded broker and name server.
//!
//! [`Broker`] starts one in this process: [`Broker::ephemeral`] for a test, [`Broker::open`] for one that keeps its
//! messages. It speaks RocketMQ's remoting protocol to unmodified clients and `mqadmin`; [`Broker::client`] gives a client of
//! the same process that needs no socket. Not supported: transactions, SQL92 filters, replication.

mod admin;
mod command;
mod delay;
mod deliver;
mod dispatch;
mod drain;
mod fault;
mod group;
mod groups;
mod hold;
mod lock;
mod members;
mod names;
mod node;
mod offset;
mod plain;
#[cfg(test)]
mod promises_tests;
mod pull;
mod query;
mod reply;
mod send;
mod send_back;
mod server;
mod session;
mod settings;
mod state;
mod stats;
pub(crate) mod store;
#[cfg(test)]
mod tests;
mod tools_command;
mod topics;
#[cfg(test)]
mod turn_tests;

// What `embedded.rs` joins to a client.
#[allow(unused_imports)]
pub(crate) use self::{
    command::{Face, handle, write_members_changed},
    dispatch::{Dispatcher, FLUSH_WAIT, Refusal},
    fault::Fault,
    node::Guest,
    plain::{Plain, PlainStored, PlainTopic},
    pull::{HeldPull, PullReply, Pulled},
    reply::Reply,
    send::{SendReply, Sender, Sent},
    session::{Delivery, Outbox, Outlet, Session, SessionId, Ticket},
};

/// What the simulation drives: the role and the dispatcher behind it, without sockets and threads.
pub(crate) mod inside {
    pub use super::dispatch::{Alarm, Dispatcher, Parts, Refusal, Watcher};
    pub use super::send::{SendReply, Sender, Sent};
    pub use super::server::{Mailbox, Post, Server, Timer};
    pub use super::session::{Delivery, Outbox, Outlet, Session, SessionId, Ticket};
    pub use super::settings::Settings;
    pub use super::state::Saved;
    pub use super::topics::Topic;
}

pub use fault::Op;
pub use node::{Broker, Builder};
pub use settings::Compat;
pub use store::Flush;
