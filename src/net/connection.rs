//! One socket of the loop, connecting or accepted: reads until it is empty or has had its share, writes what waits.
//!
//! Used by the table of connections only. It calls no role; whole frames go to a closure. mio is edge-triggered: a
//! connection that stops before the socket is empty stays `readable` and has to be put on the ready list.

use std::io::{self, IoSliceMut, Read};
use std::sync::Arc;

use mio::net::TcpStream;

use super::buffer::{FrameBuf, FramePool};
use super::counters::Counters;
use super::inbound::{Flow, Inbound};
use super::output::Output;
use super::role::Why;
use crate::wire::frame::Cutter;
use crate::work::clock::Nanos;

/// A read that brings less than was asked for has emptied the socket: the next bytes are a new edge. On Windows mio
/// announces again only after a read that would block.
const SHORT_READ_IS_LAST: bool = cfg!(unix);

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The system is still connecting.
    Connecting,
    /// Both ends talk.
    Open,
    /// The role has let go of it; what waits is still written.
    Closing,
}

pub(super) struct Connection {
    pub stream: TcpStream,
    pub phase: Phase,
    pub inbound: Inbound,
    pub output: Output,
    /// An edge has announced bytes that have not all been read.
    pub readable: bool,
    /// The peer has closed or reset: read on until the end is seen.
    pub ended: bool,
    /// It stands on the list of those to be read.
    pub queued: bool,
    /// It stands on the list of those to be written.
    pub dirty: bool,
    /// When a byte last went either way; when connecting began.
    pub active: Nanos,
    /// Since when the peer has taken none of what waits.
    pub stalled: Option<Nanos>,
    /// When its next check is armed.
    pub check: Nanos,
    /// Memory of its unfinished frame, as counted in the table's sum.
    pub held: usize,
    /// When its unfinished frame began, in the order of all.
    pub begun: u64,
    /// Memory of what waits to be written, as counted in the table's sum.
    pub unwritten: usize,
}

/// What a read needs beside the connection.
pub(super) struct Reading<'a> {
    pub stage: &'a mut [u8],
    pub cutter: Cutter,
    pub pool: &'a Arc<FramePool>,
    pub counters: &'a Counters,
    /// Bytes it may read now.
    pub share: usize,
    pub now: Nanos,
}

/// How a read ended.
#[derive(Debug)]
pub(super) enum ReadEnd {
    /// The socket is empty.
    Empty,
    /// The share is used up, or the receiver of the frames wants a pause; there may be more.
    ShareUsed,
    /// The receiver of the frames wants no more.
    Stopped,
    /// The connection is over.
    Over(Why),
}

impl Connection {
    pub fn new(stream: TcpStream, phase: Phase, now: Nanos) -> Self {
        Self {
            stream,
            phase,
            inbound: Inbound::default(),
            output: Output::default(),
            readable: false,
            ended: false,
            queued: false,
            dirty: false,
            active: now,
            stalled: None,
            check: Nanos::MAX,
            held: 0,
            begun: 0,
            unwritten: 0,
        }
    }

    /// Reads what is there, at most its share, and gives whole frames to `each`.
    pub fn read(&mut self, with: Reading<'_>, each: &mut impl FnMut(FrameBuf) -> Flow) -> ReadEnd {
        let Reading { stage, cutter, pool, counters, share, now } = with;
        let mut taken = 0;
        let kept = self.inbound.take_kept();
        if !kept.is_empty() {
            match self.inbound.take_in(kept.len(), &kept, cutter, pool, each) {
                Ok(Flow::Go) => {}
                Ok(Flow::Pause) => return ReadEnd::ShareUsed,
                Ok(Flow::Stop) => return ReadEnd::Stopped,
                Err(error) => return ReadEnd::Over(Why::Wire(error)),
            }
        }
        while taken < share {
            counters.reads.bump();
            let (read, offered) = read_once(&mut self.stream, &mut self.inbound, stage, share - taken);
            let n = match read {
                Ok(0) => return ReadEnd::Over(Why::Peer),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return ReadEnd::Empty;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return ReadEnd::Over(Why::Io(error)),
            };
            taken += n;
            self.active = now;
            match self.inbound.take_in(n, stage, cutter, pool, each) {
                Ok(Flow::Go) => {}
                Ok(Flow::Pause) => return ReadEnd::ShareUsed,
                Ok(Flow::Stop) => return ReadEnd::Stopped,
                Err(error) => return ReadEnd::Over(Why::Wire(error)),
            }
            if n < offered && SHORT_READ_IS_LAST && !self.ended {
                self.readable = false;
                return ReadEnd::Empty;
            }
        }
        ReadEnd::ShareUsed
    }

    /// Writes what waits, as far as the socket takes it. True if anything still waits.
    ///
    /// # Errors
    /// The system's.
    pub fn flush(&mut self, counters: &Counters, now: Nanos) -> io::Result<bool> {
        let done = self.output.flush(&mut self.stream)?;
        for _ in 0..done.calls {
            counters.writes.bump();
        }
        let waits = self.output.waiting() > 0;
        if done.wrote > 0 {
            self.active = now;
        }
        self.stalled = match (waits, done.wrote > 0) {
            (false, _) => None,
            (true, true) => Some(now),
            (true, false) => Some(self.stalled.unwrap_or(now)),
        };
        Ok(waits)
    }

    /// What became of connecting: `None` while it goes on.
    pub fn connected(&mut self) -> Option<io::Result<std::net::SocketAddr>> {
        match self.stream.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return Some(Err(error)),
        }
        let ends = self.stream.peer_addr().and_then(|peer| Ok((peer, self.stream.local_addr()?)));
        match ends {
            // A free port of this machine can be connected to itself when nobody listens there.
            Ok((peer, local)) if peer == local => Some(Err(io::ErrorKind::ConnectionRefused.into())),
            Ok((_, local)) => Some(Ok(local)),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => None,
            Err(error) => Some(Err(error)),
        }
    }
}

/// One read into the rest of the unfinished frame and the stage behind it, at most `share` bytes; and how many bytes
/// there was room for.
fn read_once(
    stream: &mut TcpStream,
    inbound: &mut Inbound,
    stage: &mut [u8],
    share: usize,
) -> (io::Result<usize>, usize) {
    let Some(room) = inbound.room() else {
        let most = stage.len().min(share);
        return (stream.read(stage.get_mut(..most).unwrap_or_default()), most);
    };
    let direct = room.len().min(share);
    let staged = (share - direct).min(stage.len());
    let (room, stage) = (room.get_mut(..direct).unwrap_or_default(), stage.get_mut(..staged).unwrap_or_default());
    (stream.read_vectored(&mut [IoSliceMut::new(room), IoSliceMut::new(stage)]), direct + staged)
}
