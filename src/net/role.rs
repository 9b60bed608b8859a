//! What a loop is for: the trait that a client core and a broker server implement, and what they answer with.
//!
//! A role is a state machine. It gets events with the time and writes actions into [`Out`]; it never touches a socket, a
//! thread or a clock, so that a simulation can drive it in one thread. `Reactor` performs the actions.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use super::buffer::FrameBuf;
use crate::error::WireError;
use crate::wire::frame::Frame;
use crate::work::clock::Nanos;

/// A connection of one loop. Numbers are never used again, so a stale one is harmless: what is sent to it is dropped.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Conn(pub u64);

/// What a connection did. Every connection ends with exactly one `Failed` or `Closed`; nothing follows it.
#[derive(Debug)]
pub enum Change {
    /// What [`Out::connect`] asked for is there. What was sent before now goes out.
    Connected {
        /// Our end.
        local: SocketAddr,
    },
    /// Somebody connected to a listening socket.
    Accepted {
        /// Its place in [`Settings::listeners`](super::reactor::Settings::listeners).
        listener: usize,
        /// Their end.
        peer: SocketAddr,
        /// Our end.
        local: SocketAddr,
    },
    /// No connection could be made, or not in time. Nothing was sent.
    Failed {
        /// What the system said; `TimedOut` after the connect time-out.
        error: io::Error,
    },
    /// It ended. What was sent and not yet written is lost.
    Closed {
        /// The reason.
        why: Why,
    },
}

/// Why a connection ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Why {
    /// The role asked for it.
    Asked,
    /// The peer closed it.
    Peer,
    /// The system reported an error.
    Io(io::Error),
    /// The bytes cannot be cut into frames: not this protocol, or a frame above the limit.
    Wire(WireError),
    /// Nothing was read or written for the idle time.
    Idle,
    /// The peer took none of what waits for it within the write time-out.
    WriteStalled,
    /// More waits to be written than may.
    OutputFull,
    /// Its unfinished frame was the newest when unfinished frames took more memory than they may.
    InboundFull,
}

/// Something a role should know that concerns no connection of its own.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice {
    /// Accepting pauses on this listener, since the system refused: it has run out of descriptors or memory.
    AcceptPaused {
        /// Its place among the listeners.
        listener: usize,
        /// What the system said.
        error: io::Error,
        /// After how long it goes on.
        pause: Duration,
    },
    /// Connections have stopped reading, since the byte budget is used up twice over.
    ReadingPaused,
    /// They read again.
    ReadingResumed,
}

/// What runs on a loop.
///
/// Every call gets `now`, the same for one turn, and the one [`Out`] of the loop. Whatever is called must return soon:
/// it may not wait for network, disk, names, other threads or user code.
pub trait Role {
    /// What other threads post through [`Handle`](super::handle::Handle).
    type Command: Send + 'static;
    /// What a deadline means. Deadlines are not cancelled; ignore one that no longer matters.
    type Timer: Copy + Ord + Send;

    /// A connection changed.
    fn connection(&mut self, conn: Conn, change: Change, now: Nanos, out: &mut Out<Self::Timer>);
    /// A whole frame arrived.
    fn frame(&mut self, conn: Conn, frame: FrameBuf, now: Nanos, out: &mut Out<Self::Timer>);
    /// Another thread posted a command.
    fn command(&mut self, command: Self::Command, now: Nanos, out: &mut Out<Self::Timer>);
    /// A deadline armed with [`Out::arm`] has come due.
    fn due(&mut self, timer: Self::Timer, now: Nanos, out: &mut Out<Self::Timer>);
    /// Once a turn, after the turn's writes: what can wait until the peers are busy again.
    fn settle(&mut self, now: Nanos, out: &mut Out<Self::Timer>);
    /// Something happened to the loop itself.
    fn notice(&mut self, notice: Notice, now: Nanos, out: &mut Out<Self::Timer>) {
        let _ = (notice, now, out);
    }
}

/// One thing that a role wants done. Ranges point into the [`Out`] that holds the action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<T> {
    /// Connect; the outcome comes as a [`Change`].
    Connect(Conn, SocketAddr),
    /// Send bytes, see [`Out::bytes`].
    Send(Conn, Range<usize>),
    /// Send bytes and behind them frames, see [`Out::bytes`] and [`Out::frames`].
    SendFrames(Conn, Range<usize>, Range<usize>),
    /// Close once what has been sent is written.
    Close(Conn),
    /// Call [`Role::due`] at this moment.
    Arm(Nanos, T),
    /// End the loop once what has been sent is written.
    Stop,
}

/// The actions of a role, in one arena that is used again: a request allocates nothing.
#[derive(Debug)]
pub struct Out<T> {
    bytes: Vec<u8>,
    frames: Vec<Frame>,
    actions: Vec<Action<T>>,
    closing: Vec<Conn>,
    conns: u64,
}

/// Above this much the arena is made smaller again after a turn.
const ARENA_BYTES: usize = 1 << 20;

impl<T> Out<T> {
    /// No actions.
    pub fn new() -> Self {
        Self { bytes: Vec::new(), frames: Vec::new(), actions: Vec::new(), closing: Vec::new(), conns: 0 }
    }

    /// Sends what `write` appends. It must only append: other bytes may stand before it.
    ///
    /// Dropped if the connection has ended; waits while it is being made.
    pub fn send(&mut self, conn: Conn, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        let end = self.bytes.len();
        if end > start {
            self.actions.push(Action::Send(conn, start..end));
        }
    }

    /// Sends what `write` appends and behind it `frames`, without copying them. The length word that `write` sets must
    /// count them.
    pub fn send_frames(&mut self, conn: Conn, write: impl FnOnce(&mut Vec<u8>), frames: &[Frame]) {
        let (start, first) = (self.bytes.len(), self.frames.len());
        write(&mut self.bytes);
        self.frames.extend_from_slice(frames);
        self.actions.push(Action::SendFrames(conn, start..self.bytes.len(), first..self.frames.len()));
    }

    /// Connects to `addr`. The outcome comes as a [`Change`]; sending may start at once.
    pub fn connect(&mut self, addr: SocketAddr) -> Conn {
        let conn = self.next_conn();
        self.actions.push(Action::Connect(conn, addr));
        conn
    }

    /// Closes a connection once what has been sent on it is written, or the write time-out passes. No frame of it comes
    /// from now on; [`Change::Closed`] does.
    pub fn close(&mut self, conn: Conn) {
        self.closing.push(conn);
        self.actions.push(Action::Close(conn));
    }

    /// Has [`Role::due`] called with `timer` at `at`, or soon if that is past.
    pub fn arm(&mut self, at: Nanos, timer: T) {
        self.actions.push(Action::Arm(at, timer));
    }

    /// Ends the loop once what has been sent is written, or half a second has passed.
    pub fn stop(&mut self) {
        self.actions.push(Action::Stop);
    }

    /// A number for a connection that somebody else makes: an accepted one, or one of a simulation.
    pub fn next_conn(&mut self) -> Conn {
        self.conns += 1;
        Conn(self.conns)
    }

    /// The actions since [`clear`](Self::clear), in order.
    pub fn actions(&self) -> &[Action<T>] {
        &self.actions
    }

    /// The bytes of a send.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// The frames of a send.
    pub fn frames(&self, range: Range<usize>) -> &[Frame] {
        self.frames.get(range).unwrap_or_default()
    }

    /// How many bytes have been sent since the last [`clear`](Self::clear), frames not counted.
    pub(super) fn sent_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets all actions; numbers of connections go on.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(ARENA_BYTES);
        self.frames.clear();
        self.actions.clear();
        self.closing.clear();
    }

    /// True if the role has asked for the end of `conn` since the last [`clear`](Self::clear).
    pub(super) fn is_closing(&self, conn: Conn) -> bool {
        self.closing.contains(&conn)
    }
}

impl<T> Default for Out<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_share_one_arena_and_keep_their_order() {
        let mut out = Out::<u8>::new();
        let conn = out.connect("127.0.0.1:1".parse().unwrap());
        out.send(conn, |bytes| bytes.extend_from_slice(b"one"));
        out.send(conn, |_| {});
        out.send_frames(conn, |bytes| bytes.extend_from_slice(b"head"), &[Frame::from(b"body".to_vec())]);
        out.arm(Nanos(7), 1);
        out.close(conn);
        let [_, Action::Send(_, one), Action::SendFrames(_, head, body), Action::Arm(Nanos(7), 1), Action::Close(_)] =
            out.actions()
        else {
            panic!("{:?}", out.actions());
        };
        assert_eq!((out.bytes(one.clone()), out.bytes(head.clone())), (b"one".as_slice(), b"head".as_slice()));
        assert_eq!(out.frames(body.clone()).first().map(Frame::bytes), Some(b"body".as_slice()));
        assert!(out.is_closing(conn));
        out.clear();
        assert!(out.actions().is_empty() && !out.is_closing(conn));
        assert_ne!(out.next_conn(), conn);
    }
}
