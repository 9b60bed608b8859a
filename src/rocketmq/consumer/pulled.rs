//! What one pull brought: a frame and the index of its messages. Made by the pull, shared by everything that holds one
//! of the messages, gone with the last of them.

use std::ops::Deref;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::consume::chunk::Batch;
use crate::model::{Queue, QueueOffset};
use crate::wire::frame::Frame;
use crate::wire::remoting::record::Record;

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

/// An index that goes back to where it came from, to be filled again.
#[derive(Debug, Default)]
pub struct Records {
    list: Vec<Record>,
    home: Option<Sender<Vec<Record>>>,
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
            // With enough of them at home this one is not kept.
            let _ = home.try_send(std::mem::take(&mut self.list));
        }
    }
}

/// Where indexes rest between pulls.
#[derive(Debug)]
pub struct Indexes {
    rest: Receiver<Vec<Record>>,
    home: Sender<Vec<Record>>,
}

/// Indexes that are kept, as many as frames: 80 bytes a message, 320 KiB at 32 messages a pull.
const KEPT: usize = 128;
/// An index that has grown beyond this is not kept.
const KEPT_RECORDS: usize = 1024;

impl Indexes {
    /// None yet.
    pub fn new() -> Self {
        let (home, rest) = bounded(KEPT);
        Self { rest, home }
    }

    /// An empty one.
    pub fn take(&self) -> Records {
        let list = self.rest.try_recv().ok().filter(|list| list.capacity() <= KEPT_RECORDS).unwrap_or_default();
        Records { list, home: Some(self.home.clone()) }
    }
}

impl Default for Indexes {
    fn default() -> Self {
        Self::new()
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
