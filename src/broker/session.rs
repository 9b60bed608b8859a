//! Who talks to the dispatcher: one session per connection, or per client of the same process.
//!
//! A session says where answers that come later go. The dispatcher keeps sessions in its tables (held pulls, members)
//! and never writes to a connection: what it wants to tell a session is a [`Delivery`] in the caller's [`Outbox`].

use std::net::SocketAddr;
use std::sync::Arc;

use super::pull::PullReply;
use super::send::SendReply;
use crate::wire::remoting::command::Codec;

/// A connection's number, never used twice in a process.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SessionId(pub u64);

/// One connection to the dispatcher.
pub struct Session {
    /// Its number.
    pub id: SessionId,
    /// Where it comes from: the born host of what it sends.
    pub peer: SocketAddr,
    /// Our end of it: the address that is known to reach us from there.
    pub local: SocketAddr,
    /// Takes what is for this session when another thread has it in hand.
    pub outlet: Arc<dyn Outlet>,
}

/// The way to a session from any thread.
pub trait Outlet: Send + Sync {
    /// Hands over; must not block and must not call the dispatcher.
    fn deliver(&self, session: SessionId, delivery: Delivery);
}

/// Which request a later answer belongs to, and in which form it is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ticket {
    /// The request's opaque.
    pub opaque: i32,
    /// The request's code.
    pub code: i32,
    /// The form of the request's header, which its answer has too.
    pub codec: Codec,
}

/// What the dispatcher tells a session outside the answer to its own call.
#[derive(Debug)]
pub enum Delivery {
    /// The members of this group have changed (code 40).
    MembersChanged {
        /// The group.
        group: Arc<str>,
    },
    /// The answer to a pull that was held.
    Pulled {
        /// Which.
        ticket: Ticket,
        /// The answer.
        reply: PullReply,
    },
    /// The answer to a send that waited for the disk.
    Stored {
        /// Which.
        ticket: Ticket,
        /// The answer.
        reply: SendReply,
    },
    /// The answer to what waited for the disk and has nothing to say but that it is done: a message that came back (36),
    /// a topic that was deleted.
    Done {
        /// Which.
        ticket: Ticket,
        /// 0, or FLUSH_DISK_TIMEOUT, which a client takes for a failure.
        code: i32,
    },
    /// The session has been silent for too long and is to be closed.
    Close,
}

/// What one call of the dispatcher has to say to sessions, in order. The caller hands each on.
pub type Outbox = Vec<(Arc<Session>, Delivery)>;
