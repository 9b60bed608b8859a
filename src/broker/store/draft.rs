//! A record as far as it can be made without the append lock: laid out in a buffer of its thread, its body summed, its
//! keys hashed. The append fills in offsets, time and the last sum, and copies it.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use super::append::{Appended, IndexBy, NewMessage};
use super::event::AppendError;
use super::format::{ALIGN, BODY_TOP, ENVELOPE, Mark, SUMMED_FROM, key_hash, record_len};
use super::keys;
use super::queue::StoreQueue;
use crate::error::WireError;
use crate::wire::remoting::properties::Properties;
use crate::wire::remoting::record::NewRecord;

/// A thread keeps its buffer for laying out records up to this size.
const KEEP_SCRATCH: usize = 1024 * 1024;

/// Buffers of a thread, so that laying out a message allocates nothing.
#[derive(Default)]
pub(super) struct Scratch {
    pub bytes: Vec<u8>,
    properties: Vec<u8>,
    pub keys: Vec<u64>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = const { Cell::new(Scratch { bytes: Vec::new(), properties: Vec::new(), keys: Vec::new() }) };
}

/// One record as far as it can be made without the lock.
pub(super) struct Draft<'a> {
    pub queue: Option<&'a Arc<StoreQueue>>,
    pub mark: Option<Mark<'a>>,
    pub body: &'a [u8],
    /// Envelope and what stands before the body, in the scratch buffer.
    pub head: Range<usize>,
    /// What stands behind the body, in the scratch buffer.
    pub tail: Range<usize>,
    pub payload: usize,
    pub flags: u16,
    pub tag: i32,
    pub keys: Range<usize>,
    pub done: Appended,
}

impl Draft<'_> {
    /// Bytes of the record, padding included.
    pub fn record_len(&self) -> usize {
        record_len(self.payload)
    }
}

impl Scratch {
    /// This thread's buffer. Whoever takes it while it is taken gets a new one.
    pub fn take() -> Self {
        SCRATCH.take()
    }

    /// Lays a message out.
    pub fn message<'a>(
        &mut self,
        queue: &'a Arc<StoreQueue>,
        new: &NewMessage<'a>,
        max_body: usize,
    ) -> Result<Draft<'a>, AppendError> {
        let [first, second] = new.properties;
        let joined = !second.is_empty();
        if joined {
            self.properties.clear();
            self.properties.extend_from_slice(first);
            if !first.is_empty() && first.last() != Some(&2) {
                self.properties.push(2);
            }
            self.properties.extend_from_slice(second);
        }
        if new.body.len() > max_body {
            return Err(AppendError::TooLong { what: "body", len: new.body.len(), max: max_body });
        }
        let body_sum = crc32fast::hash(new.body);
        let record = NewRecord {
            topic: queue.topic().as_bytes(),
            body: new.body,
            properties: if joined { &self.properties } else { first },
            queue_id: queue.id(),
            flag: new.flag,
            sys_flag: new.sys_flag,
            born_ms: new.born_ms,
            born_host: new.born_host,
            store_host: new.store_host,
            reconsume_times: new.reconsume_times,
            prepared_offset: new.prepared_offset,
            body_crc: Some(body_sum & 0x7FFF_FFFF),
        };
        let start = begin(&mut self.bytes);
        let before = record.encode_around(&mut self.bytes).map_err(too_long)?;
        let middle = start + ENVELOPE + before;
        let end = self.bytes.len();
        let payload = end - start - ENVELOPE + new.body.len();
        // Zeros up to the next record are part of what is copied, but of no sum.
        self.pad(payload);

        let first_key = self.keys.len();
        let found = &mut self.keys;
        let tag = match new.index {
            IndexBy::Known { tag, keys: known } => {
                found.extend(known.iter().map(|key| key_hash(queue.key_seed, key)));
                tag
            }
            IndexBy::Properties => {
                let text = if joined { &self.properties } else { first };
                keys::tag_and_keys(Properties::new(text), |key| found.push(key_hash(queue.key_seed, key)))
            }
        };
        Ok(Draft {
            queue: Some(queue),
            mark: None,
            body: new.body,
            head: start..middle,
            tail: middle..end,
            payload,
            flags: if body_sum >> 31 == 1 { BODY_TOP } else { 0 },
            tag,
            keys: first_key..self.keys.len(),
            done: Appended::default(),
        })
    }

    /// Lays a mark out.
    pub fn mark<'a>(&mut self, mark: Mark<'a>) -> Draft<'a> {
        let start = begin(&mut self.bytes);
        let middle = self.bytes.len();
        mark.write(&mut self.bytes);
        let end = self.bytes.len();
        let payload = end - middle;
        self.pad(payload);
        Draft {
            queue: None,
            mark: Some(mark),
            body: &[],
            head: start..middle,
            tail: middle..end,
            payload,
            flags: 0,
            tag: 0,
            keys: 0..0,
            done: Appended::default(),
        }
    }

    /// Zeros from the end of a payload to the next record.
    fn pad(&mut self, payload: usize) {
        let padding = record_len(payload) - ENVELOPE - payload;
        self.bytes.extend_from_slice([0; ALIGN].get(..padding).unwrap_or_default());
    }

    /// Keeps the buffer for this thread's next record.
    pub fn give_back(mut self) {
        if self.bytes.capacity() > KEEP_SCRATCH {
            return;
        }
        self.bytes.clear();
        self.keys.clear();
        SCRATCH.set(self);
    }
}

/// Begins a record with an empty envelope, and answers where. Its sum begins at a multiple of 8: it takes words, and what
/// lies before the first whole one byte by byte.
fn begin(bytes: &mut Vec<u8>) -> usize {
    let start = (bytes.len() + SUMMED_FROM).next_multiple_of(ALIGN) - SUMMED_FROM;
    bytes.resize(start + ENVELOPE, 0);
    start
}

fn too_long(error: WireError) -> AppendError {
    match error {
        WireError::TooLong { what, len, max } => AppendError::TooLong { what, len, max },
        _ => AppendError::TooLong { what: "record", len: 0, max: 0 },
    }
}
