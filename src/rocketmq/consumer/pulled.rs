//! What one pull brought: a frame and the index of its messages. Made by the pull, shared by everything that holds one
//! of the messages, gone with the last of them.

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
    pub records: Vec<Record>,
    /// Lowest offset of the queue when the broker answered.
    pub min: QueueOffset,
    /// One past its highest.
    pub max: QueueOffset,
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
