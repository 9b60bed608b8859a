//! What waits to be written to one connection, in order: bytes of its own and frames that somebody else keeps.
//!
//! Bytes are appended next to each other, so that a turn's sends leave in one write; frames go out from where they lie.
//! A frame that was begun is finished before anything behind it, or the connection ends.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

use crate::wire::frame::Frame;

/// Pieces that leave in one call: the answers to four pulls of 32 messages and more. Each call wakes the peer, and costs as
/// much as the bytes of 20 messages.
const PIECES: usize = 160;
/// An empty buffer keeps this much.
const KEPT_BYTES: usize = 64 << 10;
/// Written bytes are cut off the front of the buffer once they are this many.
const WASTE_BYTES: usize = 256 << 10;

#[derive(Debug, Default)]
pub(super) struct Output {
    /// The bytes of all `Own` pieces, those before `written` gone out already.
    bytes: Vec<u8>,
    written: usize,
    pieces: VecDeque<Piece>,
    waiting: usize,
    /// Of what waits, the bytes that are in memory for its sake: not those of a mapped segment.
    memory: usize,
}

#[derive(Debug)]
enum Piece {
    /// So many of the bytes.
    Own(usize),
    /// A frame, and how much of it has gone out.
    Frame(Frame, usize),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Own(len) => *len,
            Self::Frame(frame, written) => frame.len() - written,
        }
    }
}

/// How a flush ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flushed {
    /// Bytes that went out.
    pub wrote: usize,
    /// Calls it took.
    pub calls: usize,
}

impl Output {
    /// Bytes that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Memory that goes once what waits has been written.
    pub fn memory(&self) -> usize {
        self.memory
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        self.waiting += bytes.len();
        self.memory += bytes.len();
        match self.pieces.back_mut() {
            Some(Piece::Own(len)) => *len += bytes.len(),
            Some(Piece::Frame(..)) | None => self.pieces.push_back(Piece::Own(bytes.len())),
        }
    }

    pub fn push_frame(&mut self, frame: &Frame) {
        if !frame.is_empty() {
            self.waiting += frame.len();
            self.memory += memory_of(frame);
            self.pieces.push_back(Piece::Frame(frame.clone(), 0));
        }
    }

    /// Writes until nothing waits or `to` takes no more.
    ///
    /// # Errors
    /// Those of `to`, `WouldBlock` and `Interrupted` excepted; and `WriteZero`.
    pub fn flush(&mut self, to: &mut impl Write) -> io::Result<Flushed> {
        let mut done = Flushed { wrote: 0, calls: 0 };
        while self.waiting > 0 {
            done.calls += 1;
            match self.write_once(to) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.advance(n);
                    done.wrote += n;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_once(&self, to: &mut impl Write) -> io::Result<usize> {
        let mut own = self.bytes.get(self.written..).unwrap_or_default();
        if let (Some(Piece::Own(len)), 1) = (self.pieces.front(), self.pieces.len()) {
            return to.write(own.get(..*len).unwrap_or(own));
        }
        let mut slices: [IoSlice<'_>; PIECES] = std::array::from_fn(|_| IoSlice::new(&[]));
        let mut used = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(match piece {
                Piece::Own(len) => {
                    let (now, later) = own.split_at((*len).min(own.len()));
                    own = later;
                    now
                }
                Piece::Frame(frame, written) => frame.bytes().get(*written..).unwrap_or_default(),
            });
            used += 1;
        }
        to.write_vectored(slices.get(..used).unwrap_or_default())
    }

    fn advance(&mut self, mut n: usize) {
        self.waiting = self.waiting.saturating_sub(n);
        while n > 0 {
            let Some(front) = self.pieces.front_mut() else { break };
            let done = front.len().min(n);
            n -= done;
            match front {
                Piece::Own(len) => {
                    *len -= done;
                    self.written += done;
                    self.memory -= done;
                }
                Piece::Frame(frame, written) => {
                    *written += done;
                    if *written == frame.len() {
                        self.memory -= memory_of(frame);
                    }
                }
            }
            if front.len() == 0 {
                self.pieces.pop_front();
            }
        }
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
            self.written = 0;
        } else if self.written >= WASTE_BYTES && self.written * 2 >= self.bytes.len() {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }
}

/// What a waiting frame keeps in memory: its own bytes, or nothing if they lie in a mapped file.
fn memory_of(frame: &Frame) -> usize {
    if frame.held_bytes() > 0 { frame.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time, then blocks once.
    struct Slow {
        got: Vec<u8>,
        step: usize,
        open: bool,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.open = !self.open;
            if !self.open {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let n = bytes.len().min(self.step);
            self.got.extend_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            self.write(&bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn bytes_and_frames_leave_in_order_however_little_the_peer_takes() {
        for step in [1, 2, 3, 7, 1000] {
            let (mut output, mut want) = (Output::default(), Vec::new());
            let mut slow = Slow { got: Vec::new(), step, open: false };
            for round in 0..50u8 {
                let bytes = vec![round; usize::from(round % 5)];
                output.push(&bytes);
                want.extend_from_slice(&bytes);
                if round % 3 == 0 {
                    let frame = Frame::from(vec![100 + round; usize::from(round % 4) * 3]);
                    output.push_frame(&frame);
                    want.extend_from_slice(frame.bytes());
                }
                output.flush(&mut slow).unwrap();
            }
            while output.waiting() > 0 {
                output.flush(&mut slow).unwrap();
            }
            assert_eq!(slow.got, want, "step {step}");
            assert_eq!(output.memory(), 0, "step {step}");
            assert!(output.bytes.is_empty() && output.pieces.is_empty());
        }
    }

    #[test]
    fn sends_of_one_turn_leave_in_one_call() {
        let mut output = Output::default();
        (0..100).for_each(|_| output.push(b"request"));
        let mut got = Vec::new();
        assert_eq!(output.flush(&mut got).unwrap(), Flushed { wrote: 700, calls: 1 });
    }
}
