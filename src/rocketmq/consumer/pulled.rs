//! What one pull brought: a frame and the index of its messages. Made by the pull, shared by everything that holds one
//! of the messages, gone with the last of them.

use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::consume::chunk::Batch;
use crate::model::{Queue, QueueOffset};
use crate::wire::frame::{Frame, FrameOwner};
use crate::wire::remoting::record::Record;
use crate::work::budget::{Budget, Charge};
use crate::work::sync::{Mutex, locked};

/// The messages of one pull answer that passed the subscription, in the order of their offsets.
#[derive(Debug)]
pub struct Pulled {
    /// Where they were pulled from: the retry topic's queue for a redelivered message.
    pub queue: Queue,
    /// True if that is the consumer's own group's retry topic.
    pub own_retry: bool,
    /// What the records are in: the answer's body.
    pub frame: Frame,
    /// Index of the messages.
    pub records: Records,
    /// Lowest offset of the queue when the broker answered.
    pub min: QueueOffset,
    /// One past its highest.
    pub max: QueueOffset,
}

impl Pulled {
    /// No messages.
    pub fn nothing(queue: Queue) -> Self {
        let none = QueueOffset(0);
        let frame = Frame::from(Vec::new());
        Self { queue, own_retry: false, frame, records: Records::default(), min: none, max: none }
    }
}

/// Less than this is not worth a copy.
const THIN_BYTES: usize = 16 << 10;

impl Pulled {
    /// A copy of the messages at `places` alone, charged to `budget`. `None` if they need a quarter or more of what they
    /// keep alive, or that is little.
    pub fn excerpt(&self, places: Range<u32>, budget: &Budget) -> Option<Self> {
        let (frame, held) = (self.frame.bytes(), self.frame.held_bytes());
        let mut records = self.records.get(places.start as usize..places.end as usize)?.to_vec();
        let needed: usize = records.iter().map(|record| record.len as usize).sum();
        if held < THIN_BYTES || needed.saturating_mul(4) >= held {
            return None;
        }
        let mut bytes = Vec::with_capacity(needed);
        for record in &mut records {
            let at = u32::try_from(bytes.len()).ok()?;
            bytes.extend_from_slice(record.bytes(frame));
            record.at = at;
        }
        let owner = Excerpt { _charge: budget.charge(bytes.capacity() as u64), bytes };
        let frame = Frame::new(Arc::new(owner), 0..needed);
        let (queue, records) = (self.queue.clone(), records.into());
        Some(Self { queue, own_retry: self.own_retry, frame, records, min: self.min, max: self.max })
    }
}

/// The bytes of an excerpt, and their share of the client's memory budget.
struct Excerpt {
    bytes: Vec<u8>,
    _charge: Charge,
}

impl FrameOwner for Excerpt {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

/// An index that goes back to where it came from, to be filled again.
#[derive(Debug, Default)]
pub struct Records {
    list: Vec<Record>,
    home: Option<Arc<Indexes>>,
}

impl Records {
    /// To fill it.
    pub fn list(&mut self) -> &mut Vec<Record> {
        &mut self.list
    }
}

impl From<Vec<Record>> for Records {
    /// An index that stays nowhere.
    fn from(list: Vec<Record>) -> Self {
        Self { list, home: None }
    }
}

impl Deref for Records {
    type Target = [Record];
    fn deref(&self) -> &[Record] {
        &self.list
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            self.list.clear();
            let mut rest = locked(&home.rest);
            if rest.len() < KEPT {
                rest.push(std::mem::take(&mut self.list));
            }
        }
    }
}

/// Where indexes rest between pulls: a list and not a channel, which would cost a program 12 kB of its own.
#[derive(Debug)]
pub struct Indexes {
    rest: Mutex<Vec<Vec<Record>>>,
}

/// Indexes that are kept, as many as frames: 80 bytes a message, 400 KiB at 32 messages a pull.
const KEPT: usize = 160;
/// An index that has grown beyond this is not kept.
const KEPT_RECORDS: usize = 1024;

impl Indexes {
    /// None yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { rest: Mutex::new(Vec::with_capacity(KEPT)) })
    }

    /// An empty one.
    pub fn take(self: &Arc<Self>) -> Records {
        let list = locked(&self.rest).pop();
        let list = list.filter(|list| list.capacity() <= KEPT_RECORDS).unwrap_or_default();
        Records { list, home: Some(Arc::clone(self)) }
    }
}

impl Batch for Pulled {
    fn len(&self) -> usize {
        self.records.len()
    }

    fn offset(&self, at: usize) -> QueueOffset {
        QueueOffset(self.records.get(at).map_or(-1, |record| record.queue_offset))
    }

    fn bytes(&self, at: usize) -> u64 {
        self.records.get(at).map_or(0, |record| u64::from(record.body_len))
    }
}
