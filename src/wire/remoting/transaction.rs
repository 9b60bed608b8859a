//! Transactions: ending one (37) and being asked how one ended (39).

use std::borrow::Cow;

use super::header::header;

/// How a transaction ended, as `commitOrRollback` says it.
pub mod outcome {
    /// Not known yet.
    pub const UNKNOWN: i32 = 0;
    /// Committed.
    pub const COMMIT: i32 = 8;
    /// Rolled back.
    pub const ROLLBACK: i32 = 12;
}

header! {
    /// Ends a transaction, one-way (37). The remark carries the error text of the local transaction.
    pub struct EndTransactionRequest<'a> {
        /// Topic (5.x).
        topic: Option<Cow<'a, str>> = "topic";
        /// Group of the producer.
        producer_group: Cow<'a, str> = "producerGroup";
        /// Queue offset of the half message.
        queue_offset: i64 = "tranStateTableOffset";
        /// Physical offset of the half message.
        physical_offset: i64 = "commitLogOffset";
        /// See [`outcome`].
        outcome: i32 = "commitOrRollback";
        /// The broker asked.
        from_check: bool = "fromTransactionCheck" else false;
        /// Unique id of the message.
        msg_id: Cow<'a, str> = "msgId";
        /// The transaction's id.
        transaction_id: Option<Cow<'a, str>> = "transactionId";
        /// Name of the broker that is meant; proxies need it.
        broker_name: Option<Cow<'a, str>> = "bname";
    }
}

header! {
    /// The broker asks how a transaction ended, one-way (39). The body is the half message as a record.
    pub struct CheckTransactionRequest<'a> {
        /// The half topic (5.x).
        topic: Option<Cow<'a, str>> = "topic";
        /// Queue offset of the half message's newest copy.
        queue_offset: i64 = "tranStateTableOffset";
        /// Physical offset of that copy.
        physical_offset: i64 = "commitLogOffset";
        /// Unique id of the message.
        msg_id: Option<Cow<'a, str>> = "msgId";
        /// The transaction's id.
        transaction_id: Option<Cow<'a, str>> = "transactionId";
        /// Offset id of that copy.
        offset_msg_id: Option<Cow<'a, str>> = "offsetMsgId";
        /// Name of the broker (5.x); to be given back.
        broker_name: Option<Cow<'a, str>> = "bname";
    }
}
