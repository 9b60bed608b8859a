//! Frame buffers that go home: a bounded pool of byte buffers for frames that have been read.
//!
//! The loop and the call lanes take buffers; whoever holds the frame last gives it back by dropping it, on any thread.
//! A buffer is never handed out while anybody can still see the frame it held. Nothing here blocks or reads a socket.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::wire::frame::FrameOwner;
use crate::work::budget::{Budget, Charge};
use crate::work::sync::atomic::{AtomicU64, Ordering};
use crate::work::sync::{Mutex, locked};

/// The sizes of buffers that are kept, and how many of each: requests and small answers; pulls of a few messages; whole
/// pulls, of which four queues hold 132 when their handlers are behind. 27 MiB at most. A larger frame's buffer is not kept.
const CLASSES: [(usize, usize); 3] = [(4 << 10, 256), (64 << 10, 160), (512 << 10, 32)];

/// A buffer for a frame starts with at most this many bytes beyond what is recycled, and grows as bytes arrive: a length
/// that a peer has announced never sizes an allocation.
const FIRST_BYTES: usize = 64 << 10;

/// Keeps buffers between frames. Shared by a loop and its lanes.
pub struct FramePool {
    classes: [Mutex<Vec<Vec<u8>>>; CLASSES.len()],
    budget: Option<Budget>,
    made: AtomicU64,
}

impl FramePool {
    /// An empty pool. With a budget, the capacity of every live frame is charged to it.
    pub fn new(budget: Option<Budget>) -> Arc<Self> {
        Arc::new(Self { classes: Default::default(), budget, made: AtomicU64::new(0) })
    }

    /// Buffers made so far because none was there.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// A buffer for a frame of `len` bytes, which may have room for fewer at first. See [`FrameBuf::room`].
    pub(super) fn take(self: &Arc<Self>, len: usize) -> FrameBuf {
        let kept = class_of(len).and_then(|class| self.classes.get(class)).and_then(|kept| locked(kept).pop());
        let bytes = kept.unwrap_or_else(|| {
            self.made.fetch_add(1, Ordering::Relaxed);
            // Small frames fit a small buffer exactly, so that it is of use to every small frame that follows.
            vec![0; if len <= CLASSES[0].0 { CLASSES[0].0 } else { len.min(FIRST_BYTES) }]
        });
        let charge = self.budget.as_ref().map(|budget| budget.charge(bytes.len() as u64));
        FrameBuf { bytes, end: 0, len, pool: Some(Arc::clone(self)), charge }
    }

    fn give_back(&self, bytes: Vec<u8>) {
        // A buffer below its class's size grows when it gets a frame that needs more.
        let Some(class) = class_of(bytes.len()) else { return };
        let (Some((_, most)), Some(kept)) = (CLASSES.get(class), self.classes.get(class)) else { return };
        let mut kept = locked(kept);
        if kept.len() < *most {
            kept.push(bytes);
        }
    }
}

/// The smallest class whose buffers hold `len` bytes.
fn class_of(len: usize) -> Option<usize> {
    CLASSES.iter().position(|(size, _)| len <= *size)
}

impl fmt::Debug for FramePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FramePool").field("made", &self.made()).finish_non_exhaustive()
    }
}

/// The content of one frame, without its length word, in a buffer of its own that goes home when it is dropped.
///
/// Unique: turn it into a shared [`Frame`](crate::wire::frame::Frame) to hand out parts of it.
pub struct FrameBuf {
    /// All of it has been written at least once; what lies behind `end` is left over from earlier frames.
    bytes: Vec<u8>,
    /// Bytes of the frame that have arrived.
    end: usize,
    /// Bytes of the frame.
    len: usize,
    pool: Option<Arc<FramePool>>,
    charge: Option<Charge>,
}

impl FrameBuf {
    /// Where the next bytes of the frame go; empty once the frame is whole. Grows the buffer when it is full: by as much
    /// as has arrived, so that memory follows the bytes that came, never the length that was announced.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.end == self.bytes.len() && self.end < self.len {
            let more = self.end.max(FIRST_BYTES).min(self.len - self.end);
            self.bytes.reserve_exact(more);
            self.bytes.resize(self.end + more, 0);
            if let Some(charge) = &mut self.charge {
                charge.resize(self.bytes.len() as u64);
            }
        }
        let until = self.len.min(self.bytes.len());
        self.bytes.get_mut(self.end..until).unwrap_or_default()
    }

    /// Notes that the first `n` bytes of the room have been written.
    pub(super) fn filled(&mut self, n: usize) {
        self.end = (self.end + n).min(self.len);
    }

    /// Bytes of the frame that have not arrived.
    pub(super) fn missing(&self) -> usize {
        self.len - self.end
    }

    /// True once every byte has arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.missing() == 0
    }

    /// The memory it occupies.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

impl Deref for FrameBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.end).unwrap_or_default()
    }
}

impl FrameOwner for FrameBuf {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn capacity(&self) -> usize {
        FrameBuf::capacity(self)
    }
}

impl FrameBuf {
    /// A frame outside any pool whose bytes are charged to `budget`, for simulations.
    pub fn charged(bytes: Vec<u8>, budget: &Budget) -> Self {
        let mut frame = Self::from(bytes);
        frame.charge = Some(budget.charge(frame.len as u64));
        frame
    }
}

impl From<Vec<u8>> for FrameBuf {
    /// A frame outside any pool, for simulations and tests.
    fn from(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self { bytes, end: len, len, pool: None, charge: None }
    }
}

impl From<FrameBuf> for crate::wire::frame::Frame {
    fn from(buf: FrameBuf) -> Self {
        let len = buf.len();
        Self::new(Arc::new(buf), 0..len)
    }
}

impl fmt::Debug for FrameBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameBuf({} of {} bytes)", self.end, self.len)
    }
}

impl Drop for FrameBuf {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.give_back(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use super::*;
    use crate::wire::frame::Frame;

    fn whole(pool: &Arc<FramePool>, byte: u8) -> FrameBuf {
        let mut buf = pool.take(8);
        if let Some(room) = buf.room().get_mut(..8) {
            room.fill(byte);
        }
        buf.filled(8);
        buf
    }

    /// A frame shared by two threads goes home once, after both; whoever takes a buffer meanwhile never sees it change.
    #[test]
    fn loom_a_buffer_goes_home_once_and_never_while_it_is_seen() {
        loom::model(|| {
            let pool = FramePool::new(None);
            let frame = Frame::from(whole(&pool, 1));
            let shared = frame.clone();
            let worker = loom::thread::spawn(move || {
                assert!(shared.bytes().iter().all(|byte| *byte == 1));
                drop(shared);
            });
            let next = whole(&pool, 2);
            assert!(frame.bytes().iter().all(|byte| *byte == 1));
            drop(frame);
            let other = whole(&pool, 3);
            assert!(next.iter().all(|byte| *byte == 2) && other.iter().all(|byte| *byte == 3));
            worker.join().unwrap();
            drop((next, other));
            let kept: usize = pool.classes.iter().map(|class| locked(class).len()).sum();
            assert_eq!(kept as u64, pool.made());
        });
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn whole(pool: &Arc<FramePool>, len: usize) -> FrameBuf {
        let mut buf = pool.take(len);
        while !buf.is_whole() {
            let n = buf.room().len();
            buf.filled(n);
        }
        buf
    }

    #[test]
    fn a_buffer_serves_frames_of_its_class_and_the_pool_is_bounded() {
        let pool = FramePool::new(None);
        for len in [10, 4096, 0, 100] {
            assert_eq!(whole(&pool, len).len(), len);
        }
        assert_eq!(pool.made(), 1);
        drop((whole(&pool, 40_000), whole(&pool, 300_000)));
        drop((whole(&pool, 64_000), whole(&pool, 500_000)));
        assert_eq!(pool.made(), 3);
        drop((0..1000).map(|_| whole(&pool, 10)).collect::<Vec<_>>());
        drop((0..100).map(|_| whole(&pool, 600_000)).collect::<Vec<_>>());
        let kept: Vec<usize> = pool.classes.iter().map(|class| locked(class).len()).collect();
        assert_eq!(kept, [256, 1, 1]);
    }

    #[test]
    fn live_frames_are_charged_to_the_budget() {
        let budget = Budget::new(1 << 20);
        let pool = FramePool::new(Some(budget.clone()));
        let frame = whole(&pool, 200_000);
        assert!((200_000..400_000).contains(&budget.used()), "{}", budget.used());
        let shared = crate::wire::frame::Frame::from(frame);
        let part = shared.slice(10..20);
        drop(shared);
        assert!(budget.used() > 0 && part.len() == 10);
        drop(part);
        assert_eq!(budget.used(), 0);
    }
}
