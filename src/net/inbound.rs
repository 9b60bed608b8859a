//! Bytes of one connection on their way to frames: the frame that is being filled, and the cutting of what was read.
//!
//! Used by the loop's connections and by the call lanes. Bytes are read straight into the unfinished frame, and behind
//! it into a stage that any connection may use, since nothing stays there. It reads no socket.

use std::sync::Arc;

use super::buffer::{FrameBuf, FramePool};
use crate::error::WireError;
use crate::wire::frame::Cutter;

/// What one read may bring beyond the frame that is being filled.
pub(super) const STAGE_BYTES: usize = 16 << 10;

/// What has arrived of the frame that is not whole yet.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    word: [u8; 4],
    word_len: usize,
    frame: Option<FrameBuf>,
    /// What was read and not cut yet, at most a stage: the receiver of frames wanted a pause. Empty otherwise.
    kept: Vec<u8>,
}

/// Whether the receiver of frames wants more of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Go,
    /// Not now: what has been read is kept and cut when the connection is read again.
    Pause,
    /// No more of them: the rest is dropped.
    Stop,
}

impl Inbound {
    /// Where the next bytes belong, if their frame is known; the stage comes behind it.
    pub fn room(&mut self) -> Option<&mut [u8]> {
        self.frame.as_mut().map(FrameBuf::room)
    }

    /// How many bytes the unfinished frame still wants; `None` between two frames.
    pub fn rest(&self) -> Option<usize> {
        self.frame.as_ref().map(FrameBuf::missing)
    }

    /// What a pause has left uncut, to be taken in before anything else is read.
    pub fn take_kept(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.kept)
    }

    /// True between two frames.
    pub fn is_between(&self) -> bool {
        self.word_len == 0 && self.frame.is_none() && self.kept.is_empty()
    }

    /// Memory of the unfinished frame.
    pub fn held(&self) -> usize {
        self.frame.as_ref().map_or(0, FrameBuf::capacity)
    }

    /// Takes in `n` bytes that were read into the room and, beyond its length, into `stage`; gives whole frames to
    /// `each`, until it wants a pause or no more.
    ///
    /// # Errors
    /// The bytes cannot be cut any further; the connection must be closed.
    pub fn take_in(
        &mut self,
        n: usize,
        stage: &[u8],
        cutter: Cutter,
        pool: &Arc<FramePool>,
        each: &mut impl FnMut(FrameBuf) -> Flow,
    ) -> Result<Flow, WireError> {
        let mut staged = n;
        let mut flow = Flow::Go;
        if let Some(frame) = &mut self.frame {
            let direct = frame.room().len().min(n);
            frame.filled(direct);
            staged -= direct;
            flow = self.hand_on(each);
        }
        let mut rest = stage.get(..staged).unwrap_or(stage);
        while flow == Flow::Go && !rest.is_empty() {
            rest = if self.frame.is_some() { self.fill(rest) } else { self.begin(rest, cutter, pool)? };
            flow = self.hand_on(each);
        }
        if flow == Flow::Pause {
            self.kept.extend_from_slice(rest);
        }
        Ok(flow)
    }

    /// Gives the frame to `each` if it is whole.
    fn hand_on(&mut self, each: &mut impl FnMut(FrameBuf) -> Flow) -> Flow {
        self.frame.take_if(|frame| frame.is_whole()).map_or(Flow::Go, each)
    }

    /// Takes the length word off the front of `input`, as far as it is there.
    fn begin<'a>(&mut self, input: &'a [u8], cutter: Cutter, pool: &Arc<FramePool>) -> Result<&'a [u8], WireError> {
        let wants = (self.word.len() - self.word_len).min(input.len());
        let (now, rest) = input.split_at(wants);
        if let Some(to) = self.word.get_mut(self.word_len..self.word_len + wants) {
            to.copy_from_slice(now);
        }
        self.word_len += wants;
        if let Some(len) = cutter.content_len(self.word.get(..self.word_len).unwrap_or_default())? {
            self.word_len = 0;
            self.frame = Some(pool.take(len));
        }
        Ok(rest)
    }

    /// Moves what belongs to the unfinished frame off the front of `input`.
    fn fill<'a>(&mut self, input: &'a [u8]) -> &'a [u8] {
        let Some(frame) = &mut self.frame else { return input };
        let room = frame.room();
        let fits = room.len().min(input.len());
        let (now, rest) = input.split_at(fits);
        if let Some(to) = room.get_mut(..fits) {
            to.copy_from_slice(now);
        }
        frame.filled(fits);
        rest
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Feeds `bytes` in pieces as a socket would: into the room first, then into the stage.
    fn feed(inbound: &mut Inbound, pool: &Arc<FramePool>, mut bytes: &[u8], got: &mut Vec<Vec<u8>>) {
        while !bytes.is_empty() {
            let direct = match inbound.room() {
                Some(room) => {
                    let fits = room.len().min(bytes.len());
                    room[..fits].copy_from_slice(&bytes[..fits]);
                    fits
                }
                None => 0,
            };
            let staged = (bytes.len() - direct).min(STAGE_BYTES);
            let stage = bytes[direct..direct + staged].to_vec();
            let mut each = |frame: FrameBuf| {
                got.push(frame.to_vec());
                Flow::Go
            };
            inbound.take_in(direct + staged, &stage, Cutter::REMOTING, pool, &mut each).unwrap();
            bytes = &bytes[direct + staged..];
        }
    }

    fn framed(content: &[u8]) -> Vec<u8> {
        [(content.len() as u32).to_be_bytes().as_slice(), content].concat()
    }

    /// C-018: any cutting of the stream yields the same frames in the same order.
    #[test]
    fn two_frames_cut_at_every_place_are_the_same_two_frames() {
        let header =
            br#"{"code":0,"flag":1,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":399}"#;
        let content = |body: &[u8]| [(header.len() as u32).to_be_bytes().as_slice(), header, body].concat();
        let want = vec![content(b""), content(b"abc")];
        let stream = want.iter().flat_map(|content| framed(content)).collect::<Vec<u8>>();
        let pool = FramePool::new(None);
        for cut in 0..=stream.len() {
            let (mut inbound, mut got) = (Inbound::default(), Vec::new());
            feed(&mut inbound, &pool, &stream[..cut], &mut got);
            feed(&mut inbound, &pool, &stream[cut..], &mut got);
            assert_eq!(got, want, "cut at {cut}");
            assert!(inbound.is_between());
        }
        let (mut inbound, mut got) = (Inbound::default(), Vec::new());
        stream.iter().for_each(|byte| feed(&mut inbound, &pool, &[*byte], &mut got));
        assert_eq!(got, want);
    }

    #[test]
    fn frames_of_every_size_class_arrive_whole_in_pieces_of_any_size() {
        let pool = FramePool::new(None);
        let sizes = [4, 4096, 4097, 65_536, 65_537, 300_000, 524_288, 900_000];
        let frames: Vec<Vec<u8>> =
            sizes.iter().map(|size| (0..*size).map(|i| (i * 7 + size) as u8).collect()).collect();
        let stream = frames.iter().flat_map(|frame| framed(frame)).collect::<Vec<u8>>();
        for piece in [1000, 16_384, 99_999, stream.len()] {
            let (mut inbound, mut got) = (Inbound::default(), Vec::new());
            stream.chunks(piece).for_each(|piece| feed(&mut inbound, &pool, piece, &mut got));
            assert!(got == frames, "pieces of {piece}");
        }
    }

    #[test]
    fn an_announced_length_allocates_nothing_beyond_what_came() {
        let pool = FramePool::new(None);
        let (mut inbound, mut got) = (Inbound::default(), Vec::new());
        feed(&mut inbound, &pool, &16_000_000u32.to_be_bytes(), &mut got);
        assert!(inbound.held() <= 64 << 10, "{}", inbound.held());
        feed(&mut inbound, &pool, &[1; 100_000], &mut got);
        assert!(inbound.held() <= 200_000 + (64 << 10), "{}", inbound.held());
    }

    #[test]
    fn a_foreign_first_word_is_an_error_and_allocates_nothing() {
        let pool = FramePool::new(None);
        for word in [b"PRI ", b"GET ", b"\x03\x00\x00\x2F", b"\x16\x03\x01\x02", b"\xFF\xFF\xFF\xFF"] {
            let mut inbound = Inbound::default();
            let mut each = |_| Flow::Go;
            assert!(inbound.take_in(4, word, Cutter::REMOTING, &pool, &mut each).is_err());
        }
        assert_eq!(pool.made(), 0);
    }

    #[test]
    fn a_pause_keeps_what_was_read_and_loses_no_byte_of_it() {
        let pool = FramePool::new(None);
        let want: Vec<Vec<u8>> = (4..40u8).map(|len| vec![len; usize::from(len)]).collect();
        let stream = want.iter().flat_map(|content| framed(content)).collect::<Vec<u8>>();
        for piece in [1, 7, 100, stream.len()] {
            let (mut inbound, mut got) = (Inbound::default(), Vec::new());
            for bytes in stream.chunks(piece) {
                let mut waits = bytes.to_vec();
                loop {
                    // what a connection does: the room first, then the stage
                    let direct = inbound.room().map_or(0, |room| {
                        let fits = room.len().min(waits.len());
                        room[..fits].copy_from_slice(&waits[..fits]);
                        fits
                    });
                    let mut each = |frame: FrameBuf| {
                        got.push(frame.to_vec());
                        Flow::Pause
                    };
                    inbound.take_in(waits.len(), &waits[direct..], Cutter::REMOTING, &pool, &mut each).unwrap();
                    waits = inbound.take_kept();
                    if waits.is_empty() {
                        break;
                    }
                }
            }
            assert_eq!(got, want, "pieces of {piece}");
            assert!(inbound.is_between());
        }
    }

    #[test]
    fn nothing_is_handed_on_after_stop() {
        let pool = FramePool::new(None);
        let stream = [framed(b"1111"), framed(b"2222")].concat();
        let (mut inbound, mut got) = (Inbound::default(), 0);
        let mut each = |_| {
            got += 1;
            Flow::Stop
        };
        assert_eq!(inbound.take_in(stream.len(), &stream, Cutter::REMOTING, &pool, &mut each), Ok(Flow::Stop));
        assert_eq!(got, 1);
    }
}
