//! Frames: length-prefixed bytes cut off a stream, and the shared hold on one that has been cut.
//!
//! `net` cuts both protocols with [`Cutter`]; its recycled buffer and the store's mapped segment own what a [`Frame`]
//! points into. Nothing here reads a socket or copies bytes.

use std::ops::Range;
use std::sync::Arc;

use crate::error::WireError;

/// Longest RocketMQ frame, its length word not counted: 16 MiB with the word.
///
/// Source: apache/rocketmq@rocketmq-all-4.9.3
/// remoting/src/main/java/org/apache/rocketmq/remoting/netty/NettyDecoder.java
pub const REMOTING_MAX: u32 = 16 * 1024 * 1024 - 4;
/// Shortest RocketMQ frame, its length word not counted: the word with codec and header length.
pub const REMOTING_MIN: u32 = 4;

/// Who keeps the bytes of frames alive: a buffer that goes back to its pool when the last frame is dropped, or a mapped
/// segment.
pub trait FrameOwner: Send + Sync + 'static {
    /// All bytes it holds. They never change while a frame exists, apart from bytes behind every frame's end.
    fn bytes(&self) -> &[u8];
    /// How much memory it occupies on behalf of frames, in bytes; 0 if that memory is not on its frames' account.
    fn capacity(&self) -> usize;
}

impl FrameOwner for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn capacity(&self) -> usize {
        Vec::capacity(self)
    }
}

/// A range of bytes and a share in their owner. Cloning and slicing copy no bytes.
#[derive(Clone)]
pub struct Frame {
    owner: Arc<dyn FrameOwner>,
    start: usize,
    end: usize,
}

impl Frame {
    /// `range` of what `owner` holds; cut short where the owner ends.
    pub fn new(owner: Arc<dyn FrameOwner>, range: Range<usize>) -> Self {
        let end = range.end.min(owner.bytes().len());
        Self { owner, start: range.start.min(end), end }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.owner.bytes().get(self.start..self.end).unwrap_or_default()
    }

    /// A part of it, sharing the same owner; cut short where this frame ends.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = self.start.saturating_add(range.end).min(self.end);
        let start = self.start.saturating_add(range.start).min(end);
        Self { owner: Arc::clone(&self.owner), start, end }
    }

    /// How many bytes it spans.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True if it spans no byte.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The memory that this frame keeps alive, in bytes, shared with every other frame of the same owner.
    pub fn held_bytes(&self) -> usize {
        self.owner.capacity()
    }

    /// Makes this frame reach to the end of `later`, and tells how far behind its start `later` begins. `None`, and
    /// nothing changes, if `later` is of other memory, does not lie behind, or would make it longer than 32 bits tell.
    pub fn reach(&mut self, later: &Self) -> Option<u32> {
        if !self.shares_owner(later) || later.start < self.end {
            return None;
        }
        u32::try_from(later.end - self.start).ok()?;
        self.end = later.end;
        u32::try_from(later.start - self.start).ok()
    }

    /// Whether both keep the same memory alive.
    pub fn shares_owner(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.owner, &other.owner)
    }
}

impl From<Vec<u8>> for Frame {
    fn from(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self { owner: Arc::new(bytes), start: 0, end }
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frame").field("start", &self.start).field("end", &self.end).finish_non_exhaustive()
    }
}

/// Cuts a stream of `u32 length, content` into contents. Holds no bytes: whoever reads the stream keeps them.
#[derive(Clone, Copy, Debug)]
pub struct Cutter {
    /// Fewest bytes a frame may announce.
    pub min_len: u32,
    /// Most bytes a frame may announce. Above it the connection must be closed.
    pub max_len: u32,
}

impl Cutter {
    /// For RocketMQ's remoting protocol.
    pub const REMOTING: Self = Self { min_len: REMOTING_MIN, max_len: REMOTING_MAX };

    /// Length of the content that starts behind the length word at the front of `input`; `None`: fewer than four bytes.
    ///
    /// # Errors
    /// `FrameTooLong`, `FrameTooShort`: the stream cannot be followed any further.
    pub fn content_len(&self, input: &[u8]) -> Result<Option<usize>, WireError> {
        let Some(word) = input.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_be_bytes(*word);
        if len > self.max_len {
            return Err(WireError::FrameTooLong { len, max: self.max_len });
        }
        if len < self.min_len {
            return Err(WireError::FrameTooShort { len });
        }
        Ok(Some(len as usize))
    }

    /// The content of one whole frame off the front of `input` and how far to advance; `None`: feed more bytes.
    ///
    /// # Errors
    /// As [`Cutter::content_len`].
    pub fn cut<'a>(&self, input: &'a [u8]) -> Result<Option<(&'a [u8], usize)>, WireError> {
        let Some(len) = self.content_len(input)? else { return Ok(None) };
        let end = len + 4;
        Ok(input.get(4..end).map(|content| (content, end)))
    }
}

/// For the fuzz target `frame`: cutting the stream anywhere gives the same frames, and the same end. The first byte says
/// into how long pieces it is cut.
#[doc(hidden)]
#[cfg(any(test, fuzzing))]
pub fn fuzz_frame(bytes: &[u8], measure: crate::wire::Measure) {
    let Some((piece, stream)) = bytes.split_first() else { return };
    let cut_all = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut kept, mut found) = (Vec::new(), Vec::new());
        for piece in pieces {
            kept.extend_from_slice(piece);
            let mut at = 0;
            loop {
                match Cutter::REMOTING.cut(kept.get(at..).unwrap_or_default()) {
                    Ok(Some((content, used))) => {
                        assert_eq!(content.len() + 4, used);
                        found.push(content.to_vec());
                        at += used;
                    }
                    Ok(None) => break,
                    Err(error) => return (found, Err(error)),
                }
            }
            kept.drain(..at);
        }
        (found, Ok(kept))
    };
    let whole = cut_all(&mut std::iter::once(stream));
    assert_eq!(cut_all(&mut stream.chunks(usize::from(*piece).max(1))), whole, "in pieces of {piece}");
    let (left, right) = stream.split_at_checked(usize::from(*piece)).unwrap_or((stream, &[]));
    assert_eq!(cut_all(&mut [left, right].into_iter()), whole, "cut at {piece}");
    for content in &whole.0 {
        super::remoting::command::fuzz_command(content, measure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_cut_only_when_it_is_whole() {
        let cutter = Cutter { min_len: 1, max_len: 3 };
        for end in 0..7 {
            assert_eq!(cutter.cut([0, 0, 0, 3, 1, 2, 3].get(..end).unwrap()), Ok(None), "{end} bytes");
        }
        assert_eq!(cutter.cut(&[0, 0, 0, 3, 1, 2, 3, 9]), Ok(Some(([1u8, 2, 3].as_slice(), 7))));
        assert_eq!(cutter.cut(&[0, 0, 0, 4]), Err(WireError::FrameTooLong { len: 4, max: 3 }));
        assert_eq!(cutter.cut(&[0xFF; 4]), Err(WireError::FrameTooLong { len: u32::MAX, max: 3 }));
        assert_eq!(cutter.cut(&[0; 4]), Err(WireError::FrameTooShort { len: 0 }));
    }

    #[test]
    fn the_limit_is_javas() {
        assert_eq!(Cutter::REMOTING.content_len(&16_777_212u32.to_be_bytes()), Ok(Some(16_777_212)));
        assert!(Cutter::REMOTING.content_len(&16_777_213u32.to_be_bytes()).is_err());
        assert!(Cutter::REMOTING.content_len(&3u32.to_be_bytes()).is_err());
    }

    #[test]
    fn a_frame_reaches_over_what_lies_between_it_and_a_later_one_of_its_memory() {
        let all = Frame::from((0..10).collect::<Vec<u8>>());
        let mut first = all.slice(1..3);
        assert_eq!((first.reach(&all.slice(3..4)), first.reach(&all.slice(6..8))), (Some(2), Some(5)));
        assert_eq!(first.bytes(), [1, 2, 3, 4, 5, 6, 7]);
        for other in [all.slice(7..9), all.slice(0..1), Frame::from(vec![0; 20]).slice(9..10)] {
            assert_eq!(first.reach(&other), None);
        }
        assert_eq!(first.len(), 7);
    }

    #[test]
    fn slices_share_the_owner_and_never_leave_it() {
        let frame = Frame::from(vec![1, 2, 3, 4]);
        let part = frame.slice(1..3);
        assert_eq!((part.bytes(), part.len()), ([2u8, 3].as_slice(), 2));
        assert_eq!(part.slice(1..99).bytes(), [3]);
        assert!(part.slice(7..9).is_empty() && part.shares_owner(&frame));
        assert!(Frame::new(Arc::new(vec![0; 2]), 5..9).is_empty());
    }
}
