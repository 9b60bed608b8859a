//! Looking at stored messages: by key (12) and by place in the log (33). Answers carry records, see [`super::record`].

use std::borrow::Cow;

use super::header::header;

header! {
    /// Asks for messages by key (12). The index knows hashes only: check the keys again.
    pub struct QueryMessageRequest<'a> {
        /// Topic.
        topic: Cow<'a, str> = "topic";
        /// Key, or unique id.
        key: Cow<'a, str> = "key";
        /// At most so many messages.
        max_messages: i32 = "maxNum";
        /// From this time, ms since 1970.
        begin_ms: i64 = "beginTimestamp";
        /// To this time, ms since 1970.
        end_ms: i64 = "endTimestamp";
        /// The key is a unique id.
        unique_key: Option<bool> = "_UNIQUE_KEY_QUERY";
        /// Name of the broker that is meant.
        broker_name: Option<Cow<'a, str>> = "bname";
    }
}

header! {
    /// How far the index is.
    pub struct QueryMessageAnswer {
        /// Store time of the last message in it.
        index_last_update_ms: i64 = "indexLastUpdateTimestamp";
        /// Physical offset of the last message in it.
        index_last_update_offset: i64 = "indexLastUpdatePhyoffset";
    }
}

header! {
    /// Asks for one message (33).
    pub struct ViewMessageRequest<'a> {
        /// Topic (5.x).
        topic: Option<Cow<'a, str>> = "topic";
        /// Physical offset in the broker's log.
        offset: i64 = "offset";
    }
}
