//! Questions about what is stored: ends of queues, times, single messages (codes 12, 29, 30, 31, 32, 33).
//!
//! Called by `command.rs` and the direct port.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/processor/{AdminBrokerProcessor,QueryMessageProcessor}.java

use super::dispatch::{Dispatcher, Refusal};
use super::store::Boundary;
use crate::model::QueueOffset;
use crate::wire::frame::Frame;
use crate::wire::remoting::codes::answer;
use crate::wire::remoting::offset::{QueueRequest, SearchOffsetRequest};
use crate::wire::remoting::query::QueryMessageRequest;

/// Most messages one query by key gives.
pub const BY_KEY_MAX: usize = 64;
/// The same for a query by unique id, whatever the client asks for.
const BY_UNIQUE_KEY: usize = 32;

impl Dispatcher {
    /// One past the last offset of a queue (30); 0 for an unknown one.
    pub fn max_offset(&self, request: &QueueRequest<'_>) -> i64 {
        self.queue_bounds(&request.topic, request.queue_id).1
    }

    /// The first offset of a queue (31); 0 for an unknown one.
    pub fn min_offset(&self, request: &QueueRequest<'_>) -> i64 {
        self.queue_bounds(&request.topic, request.queue_id).0
    }

    /// First offset and end of a queue; zeros for an unknown one.
    pub fn queue_bounds(&self, topic: &str, queue: i32) -> (i64, i64) {
        self.store.find_queue(topic, queue).map_or((0, 0), |queue| {
            let (min, max) = self.store.bounds(&queue);
            (min.0, max.0)
        })
    }

    /// When the first message of a queue was stored (32); -1 if there is none.
    pub fn earliest_ms(&self, request: &QueueRequest<'_>) -> i64 {
        let (min, _) = self.queue_bounds(&request.topic, request.queue_id);
        self.stored_at(&request.topic, request.queue_id, min).unwrap_or(-1)
    }

    /// When the message at an offset was stored.
    pub(super) fn stored_at(&self, topic: &str, queue: i32, offset: i64) -> Option<i64> {
        let queue = self.store.find_queue(topic, queue)?;
        self.store.entry(&queue, QueueOffset(offset)).map(|entry| entry.time_ms)
    }

    /// The offset of a time (29): the first message stored at or after it, or with `UPPER` the last at or before it.
    pub fn offset_by_time(&self, request: &SearchOffsetRequest<'_>) -> i64 {
        let upper = request.boundary_type.as_deref().is_some_and(|kind| kind.eq_ignore_ascii_case("UPPER"));
        let boundary = if upper { Boundary::Upper } else { Boundary::Lower };
        self.store
            .find_queue(&request.topic, request.queue_id)
            .map_or(0, |queue| self.store.offset_by_time(&queue, request.timestamp_ms, boundary).0)
    }

    /// One message by its place in the log (33). The place is checked: any number is safe.
    ///
    /// # Errors
    /// SYSTEM_ERROR if no message starts there.
    pub fn view_message(&self, offset: i64) -> Result<Frame, Refusal> {
        let found = u64::try_from(offset).ok().and_then(|at| self.store.record_at(at));
        found.ok_or_else(|| Refusal::new(answer::SYSTEM_ERROR, format!("can not find message by the offset, {offset}")))
    }

    /// Messages by a word of their keys or by their unique id (12).
    ///
    /// # Errors
    /// QUERY_NOT_FOUND.
    pub fn query_by_key(&self, request: &QueryMessageRequest<'_>) -> Result<Vec<Frame>, Refusal> {
        let wished = match request.unique_key {
            Some(true) => BY_UNIQUE_KEY,
            Some(false) | None => usize::try_from(request.max_messages).unwrap_or(0).min(BY_KEY_MAX),
        };
        let QueryMessageRequest { topic, key, begin_ms, end_ms, .. } = request;
        let found = self.store.by_key(topic, key, wished, *begin_ms, *end_ms);
        if found.is_empty() {
            return Err(Refusal::new(answer::QUERY_NOT_FOUND, "can not find message, maybe time range not correct"));
        }
        Ok(found)
    }
}
