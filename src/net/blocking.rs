//! One blocking socket of the call lanes: writes a request, reads until its answer, within a deadline.
//!
//! Lent to one caller at a time by `lane.rs`. It is used again only while nothing stands half written or half read.

use std::io::{self, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::trace;

use super::buffer::{FrameBuf, FramePool};
use super::inbound::{Flow, Inbound};
use super::lane::{LaneError, LaneSettings};

/// What one read may bring beyond an answer that was begun: most answers whole.
const STAGE_BYTES: usize = 4 << 10;
/// A request buffer that has grown beyond this is made smaller again.
const KEPT_BYTES: usize = 64 << 10;
/// After so many calls in a row without an answer, and without any byte, the socket is given up.
const SILENT_CALLS: u32 = 3;

pub(super) struct Socket {
    stream: Arc<TcpStream>,
    inbound: Inbound,
    stage: Box<[u8]>,
    request: Vec<u8>,
    /// The next call's.
    opaque: i32,
    used: Instant,
    silent: u32,
    broken: bool,
    /// The time-outs that are set on the socket.
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
}

impl Socket {
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream: Arc::new(stream),
            inbound: Inbound::default(),
            stage: vec![0; STAGE_BYTES].into(),
            request: Vec::new(),
            opaque: 0,
            used: Instant::now(),
            silent: 0,
            broken: false,
            read_timeout: None,
            write_timeout: None,
        }
    }

    /// The socket itself, to shut it from outside.
    pub fn stream(&self) -> Arc<TcpStream> {
        self.stream.clone()
    }

    /// How long ago it was used.
    pub fn rested(&self) -> Duration {
        self.used.elapsed()
    }

    /// True if another call may use it.
    pub fn is_usable(&self) -> bool {
        !self.broken && self.silent < SILENT_CALLS
    }

    /// True if it is young enough, and the peer has not closed it, as far as can be told without a call.
    pub fn is_sound(&self, settings: &LaneSettings) -> bool {
        let rested = self.rested();
        rested <= settings.close_after && (rested <= settings.probe_after || self.is_open().unwrap_or(false))
    }

    fn is_open(&self) -> io::Result<bool> {
        self.stream.set_nonblocking(true)?;
        let peeked = self.stream.peek(&mut [0; 1]);
        self.stream.set_nonblocking(false)?;
        match peeked {
            Ok(bytes) => Ok(bytes > 0),
            Err(error) => Ok(error.kind() == io::ErrorKind::WouldBlock),
        }
    }

    /// Has `write` make the request; its opaque.
    pub fn prepare(&mut self, write: impl FnOnce(i32, &mut Vec<u8>)) -> i32 {
        let opaque = self.opaque;
        self.opaque = opaque.wrapping_add(1);
        self.request.clear();
        self.request.shrink_to(KEPT_BYTES);
        write(opaque, &mut self.request);
        opaque
    }

    /// True if nothing was made to send.
    pub fn has_no_request(&self) -> bool {
        self.request.is_empty()
    }

    /// The request as it was made, to send it on another socket.
    pub fn take_request(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.request)
    }

    /// Takes over a request that was made for another socket.
    pub fn adopt(&mut self, request: Vec<u8>, opaque: i32) {
        self.request = request;
        self.opaque = opaque.wrapping_add(1);
    }

    /// Sends the request and waits for the answer with its opaque.
    pub fn exchange(
        &mut self,
        opaque: i32,
        deadline: Instant,
        settings: &LaneSettings,
        pool: &Arc<FramePool>,
    ) -> Result<FrameBuf, LaneError> {
        let result = self.send(deadline).and_then(|()| self.receive(opaque, deadline, settings, pool));
        self.used = Instant::now();
        match &result {
            Ok(_) => self.silent = 0,
            // Nothing stands half written or half read: what comes late is dropped by its opaque.
            Err(LaneError::Late { written: true }) if self.inbound.is_between() => self.silent += 1,
            Err(_) => self.broken = true,
        }
        result
    }

    fn send(&mut self, deadline: Instant) -> Result<(), LaneError> {
        let mut written = 0;
        while let Some(rest) = self.request.get(written..).filter(|rest| !rest.is_empty()) {
            let Some(left) = left_until(deadline) else { return Err(LaneError::Late { written: false }) };
            if let Some(timeout) = timeout_for(left, self.write_timeout) {
                self.stream.set_write_timeout(Some(timeout)).map_err(|error| lost(error, false))?;
                self.write_timeout = Some(timeout);
            }
            match (&*self.stream).write(rest) {
                Ok(0) => return Err(lost(io::ErrorKind::WriteZero.into(), false)),
                Ok(n) => written += n,
                Err(error) if is_pause(&error) => {}
                // A peer that ends after a part of a request cannot have acted on it.
                Err(error) => return Err(lost(error, false)),
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        opaque: i32,
        deadline: Instant,
        settings: &LaneSettings,
        pool: &Arc<FramePool>,
    ) -> Result<FrameBuf, LaneError> {
        let mut answer = None;
        loop {
            let Some(left) = left_until(deadline) else { return Err(LaneError::Late { written: true }) };
            if let Some(timeout) = timeout_for(left, self.read_timeout) {
                self.stream.set_read_timeout(Some(timeout)).map_err(|error| lost(error, true))?;
                self.read_timeout = Some(timeout);
            }
            let n = match self.read_once() {
                Ok(0) => return Err(lost(io::ErrorKind::UnexpectedEof.into(), true)),
                Ok(n) => n,
                Err(error) if is_pause(&error) => continue,
                Err(error) => return Err(lost(error, true)),
            };
            self.silent = 0;
            let mut each = |frame: FrameBuf| {
                if (settings.opaque_of)(&frame) == Some(opaque) {
                    answer = Some(frame);
                } else {
                    trace!(target: "windlass::net", "late answer dropped: opaque={:?}", (settings.opaque_of)(&frame));
                }
                Flow::Go
            };
            self.inbound.take_in(n, &self.stage, settings.cutter, pool, &mut each).map_err(LaneError::Wire)?;
            if let Some(answer) = answer.take() {
                return Ok(answer);
            }
        }
    }

    fn read_once(&mut self) -> io::Result<usize> {
        match self.inbound.room() {
            None => (&*self.stream).read(&mut self.stage),
            Some(room) => (&*self.stream).read_vectored(&mut [IoSliceMut::new(room), IoSliceMut::new(&mut self.stage)]),
        }
    }
}

fn lost(error: io::Error, written: bool) -> LaneError {
    LaneError::Lost { error, written }
}

fn left_until(deadline: Instant) -> Option<Duration> {
    Some(deadline.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

/// True for a time-out of the socket or a signal: try again, as long as the deadline allows.
fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// The time-out to set on a socket so that it wakes in time, or nothing if the one it has will do: it may fall short of
/// what is left, and is then set anew; so calls with one time limit set it once.
fn timeout_for(left: Duration, set: Option<Duration>) -> Option<Duration> {
    if set.is_some_and(|set| set <= left && set * 4 >= left) {
        return None;
    }
    let short = if left > Duration::from_millis(20) { left - left / 8 } else { left };
    Some(short.max(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_is_set_once_for_calls_alike_and_never_beyond_what_is_left() {
        let ms = Duration::from_millis;
        let set = timeout_for(ms(3000), None);
        assert_eq!(set, Some(ms(2625)));
        assert_eq!(timeout_for(ms(2999), set), None);
        assert_eq!(timeout_for(ms(374), set), Some(ms(374) - ms(374) / 8));
        assert_eq!(timeout_for(ms(15), Some(ms(20))), Some(ms(15)));
        assert_eq!(timeout_for(Duration::from_nanos(1), None), Some(ms(1)));
        assert!(timeout_for(ms(3000), Some(ms(100))).is_some());
    }
}
