//! Offsets of groups and queues: codes 14, 15, 29, 30, 31 and 32.

use std::borrow::Cow;

use super::header::header;

header! {
    /// Asks for a group's committed offset in a queue (14).
    pub struct QueryOffsetRequest<'a> {
        /// Group.
        consumer_group: Cow<'a, str> = "consumerGroup";
        /// Topic of the queue.
        topic: Cow<'a, str> = "topic";
        /// The queue.
        queue_id: i32 = "queueId";
        /// False: never answer 0 for a young queue that has no committed offset (5.x).
        set_zero_if_not_found: Option<bool> = "setZeroIfNotFound";
        /// Name of the broker that is meant; proxies need it.
        broker_name: Option<Cow<'a, str>> = "bname";
    }
}

header! {
    /// Commits a group's offset in a queue (15).
    pub struct UpdateOffsetRequest<'a> {
        /// Group.
        consumer_group: Cow<'a, str> = "consumerGroup";
        /// Topic of the queue.
        topic: Cow<'a, str> = "topic";
        /// The queue.
        queue_id: i32 = "queueId";
        /// Offset of the first message that is not done.
        commit_offset: i64 = "commitOffset";
        /// Name of the broker that is meant; proxies need it.
        broker_name: Option<Cow<'a, str>> = "bname";
    }
}

header! {
    /// Asks for the offset of a time (29).
    pub struct SearchOffsetRequest<'a> {
        /// Topic of the queue.
        topic: Cow<'a, str> = "topic";
        /// The queue.
        queue_id: i32 = "queueId";
        /// Time in ms since 1970.
        timestamp_ms: i64 = "timestamp";
        /// `UPPER`: the last message at or before the time; anything else: the first at or after it (5.x).
        boundary_type: Option<Cow<'a, str>> = "boundaryType";
        /// Name of the broker that is meant; proxies need it.
        broker_name: Option<Cow<'a, str>> = "bname";
    }
}

header! {
    /// Asks for the last offset (30), the first (31) or the time of the first message (32) of a queue.
    pub struct QueueRequest<'a> {
        /// Topic of the queue.
        topic: Cow<'a, str> = "topic";
        /// The queue.
        queue_id: i32 = "queueId";
        /// Only what is safely stored; of 30 alone (5.x).
        committed: Option<bool> = "committed";
        /// Name of the broker that is meant; proxies need it.
        broker_name: Option<Cow<'a, str>> = "bname";
    }
}

header! {
    /// An offset: answer to 14, 29, 30 and 31.
    pub struct OffsetAnswer {
        /// The offset.
        offset: i64 = "offset";
    }
}

header! {
    /// A time: answer to 32.
    pub struct TimeAnswer {
        /// In ms since 1970, -1 if unknown.
        timestamp_ms: i64 = "timestamp";
    }
}
