//! Numbers of the protocol: requests, answers, flag bits, permissions.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3
//! remoting/src/main/java/org/apache/rocketmq/remoting/protocol/{RequestCode,ResponseCode}.java

macro_rules! codes {
    ($(#[$meta:meta])* $name_of:ident: $($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        $($(#[$doc])* pub const $name: i32 = $code;)*
        $(#[$meta])*
        pub fn $name_of(code: i32) -> Option<&'static str> {
            match code {
                $($code => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

/// What one side asks of the other.
pub mod request {
    codes! {
        /// The request's name in the protocol, for logs and errors; `None` for a number we do not know.
        name:
        /// A message, long field names.
        SEND_MESSAGE = 10;
        /// Stored messages of one queue from an offset.
        PULL_MESSAGE = 11;
        /// Messages by key.
        QUERY_MESSAGE = 12;
        /// The committed offset of a group in a queue.
        QUERY_CONSUMER_OFFSET = 14;
        /// Commits an offset.
        UPDATE_CONSUMER_OFFSET = 15;
        /// Creates or changes a topic.
        UPDATE_AND_CREATE_TOPIC = 17;
        /// Creates or changes several topics (5.3 on).
        UPDATE_AND_CREATE_TOPIC_LIST = 18;
        /// All topics of a broker.
        GET_ALL_TOPIC_CONFIG = 21;
        /// Changes a broker's settings.
        UPDATE_BROKER_CONFIG = 25;
        /// A broker's settings.
        GET_BROKER_CONFIG = 26;
        /// A broker's figures.
        GET_BROKER_RUNTIME_INFO = 28;
        /// The offset of a time.
        SEARCH_OFFSET_BY_TIMESTAMP = 29;
        /// One past the last offset of a queue.
        GET_MAX_OFFSET = 30;
        /// The first offset of a queue.
        GET_MIN_OFFSET = 31;
        /// When the first message of a queue was stored.
        GET_EARLIEST_MSG_STORETIME = 32;
        /// One message by its place in the log.
        VIEW_MESSAGE_BY_ID = 33;
        /// Who a client is, what it produces and subscribes.
        HEART_BEAT = 34;
        /// A client leaves a group.
        UNREGISTER_CLIENT = 35;
        /// A failed message goes to the retry or dead-letter topic.
        CONSUMER_SEND_MSG_BACK = 36;
        /// Ends a transaction.
        END_TRANSACTION = 37;
        /// The members of a group.
        GET_CONSUMER_LIST_BY_GROUP = 38;
        /// The broker asks a producer how a transaction ended.
        CHECK_TRANSACTION_STATE = 39;
        /// The broker says that the members of a group have changed.
        NOTIFY_CONSUMER_IDS_CHANGED = 40;
        /// Locks queues for ordered consumption.
        LOCK_BATCH_MQ = 41;
        /// Unlocks queues.
        UNLOCK_BATCH_MQ = 42;
        /// All committed offsets.
        GET_ALL_CONSUMER_OFFSET = 43;
        /// All offsets of delay levels.
        GET_ALL_DELAY_OFFSET = 45;
        /// Checks a subscription by expression.
        CHECK_CLIENT_CONFIG = 46;
        /// Sets a key of the name server's table.
        PUT_KV_CONFIG = 100;
        /// Reads a key of the name server's table.
        GET_KV_CONFIG = 101;
        /// Deletes a key of the name server's table.
        DELETE_KV_CONFIG = 102;
        /// A broker registers its topics with a name server.
        REGISTER_BROKER = 103;
        /// A broker leaves a name server.
        UNREGISTER_BROKER = 104;
        /// The brokers and queues of a topic.
        GET_ROUTEINFO_BY_TOPIC = 105;
        /// The brokers of the cluster.
        GET_BROKER_CLUSTER_INFO = 106;
        /// Creates or changes a group.
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200;
        /// All groups of a broker.
        GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201;
        /// First and last offsets of a topic's queues.
        GET_TOPIC_STATS_INFO = 202;
        /// Connections and subscriptions of a group.
        GET_CONSUMER_CONNECTION_LIST = 203;
        /// Connections of a producer group.
        GET_PRODUCER_CONNECTION_LIST = 204;
        /// Takes the write permission from a broker's topics.
        WIPE_WRITE_PERM_OF_BROKER = 205;
        /// All topics a name server knows.
        GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206;
        /// Deletes a group.
        DELETE_SUBSCRIPTIONGROUP = 207;
        /// How far a group is behind.
        GET_CONSUME_STATS = 208;
        /// Deletes a topic from a broker.
        DELETE_TOPIC_IN_BROKER = 215;
        /// Deletes a topic from a name server.
        DELETE_TOPIC_IN_NAMESRV = 216;
        /// Registers one topic (5.x).
        REGISTER_TOPIC_IN_NAMESRV = 217;
        /// A namespace of the name server's table.
        GET_KVLIST_BY_NAMESPACE = 219;
        /// The broker sets a client's offsets.
        RESET_CONSUMER_CLIENT_OFFSET = 220;
        /// The broker asks a client for its offsets.
        GET_CONSUMER_STATUS_FROM_CLIENT = 221;
        /// Resets a group's offsets.
        INVOKE_BROKER_TO_RESET_OFFSET = 222;
        /// Asks a group's members for their offsets.
        INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223;
        /// The topics of a cluster.
        GET_TOPICS_BY_CLUSTER = 224;
        /// Creates or changes several groups (5.3 on).
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225;
        /// Which groups consume a topic.
        QUERY_TOPIC_CONSUME_BY_WHO = 300;
        /// The times a group has reached.
        QUERY_CONSUME_TIME_SPAN = 303;
        /// System topics a name server knows.
        GET_SYSTEM_TOPIC_LIST_FROM_NS = 304;
        /// System topics of a broker.
        GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305;
        /// Removes index files nobody needs.
        CLEAN_EXPIRED_CONSUMEQUEUE = 306;
        /// What a consumer is doing.
        GET_CONSUMER_RUNNING_INFO = 307;
        /// Offsets a group would have to be set to.
        QUERY_CORRECTION_OFFSET = 308;
        /// Has a consumer handle one message now.
        CONSUME_MESSAGE_DIRECTLY = 309;
        /// A message, one-letter field names.
        SEND_MESSAGE_V2 = 310;
        /// Topics of units.
        GET_UNIT_TOPIC_LIST = 311;
        /// Copies a group's offsets.
        CLONE_GROUP_OFFSET = 314;
        /// One figure of a broker.
        VIEW_BROKER_STATS_DATA = 315;
        /// Removes topics nobody needs.
        CLEAN_UNUSED_TOPIC = 316;
        /// How far all groups are behind.
        GET_BROKER_CONSUME_STATS = 317;
        /// Changes a name server's settings.
        UPDATE_NAMESRV_CONFIG = 318;
        /// A name server's settings.
        GET_NAMESRV_CONFIG = 319;
        /// Several messages of one topic.
        SEND_BATCH_MESSAGE = 320;
        /// Entries of a consume queue.
        QUERY_CONSUME_QUEUE = 321;
        /// Whether a registration is up to date.
        QUERY_DATA_VERSION = 322;
        /// Checks a half message again.
        RESUME_CHECK_HALF_MESSAGE = 323;
        /// A reply, long field names.
        SEND_REPLY_MESSAGE = 324;
        /// A reply, one-letter field names.
        SEND_REPLY_MESSAGE_V2 = 325;
        /// The broker hands a reply to who asked.
        PUSH_REPLY_MESSAGE_TO_CLIENT = 326;
        /// Gives the write permission back to a broker's topics.
        ADD_WRITE_PERM_OF_BROKER = 327;
        /// All producers of a broker (5.x).
        GET_ALL_PRODUCER_INFO = 328;
        /// Removes old log files (5.x).
        DELETE_EXPIRED_COMMITLOG = 329;
        /// Topics a group consumes (5.x).
        QUERY_TOPICS_BY_CONSUMER = 343;
        /// A group's subscription (5.x).
        QUERY_SUBSCRIPTION_BY_CONSUMER = 345;
        /// One topic of a broker (5.x).
        GET_TOPIC_CONFIG = 351;
        /// One group of a broker (5.x).
        GET_SUBSCRIPTIONGROUP_CONFIG = 352;
        /// As `PULL_MESSAGE`, by a lite pull consumer (5.x).
        LITE_PULL_MESSAGE = 361;
        /// Takes a timer message back (5.3.2 on).
        RECALL_MESSAGE = 370;
        /// Which queues a member has (5.x).
        QUERY_ASSIGNMENT = 400;
        /// How members of a group consume (5.x).
        SET_MESSAGE_REQUEST_MODE = 401;
        /// A broker's sign of life (5.x).
        BROKER_HEARTBEAT = 904;
    }
}

/// What an answer says.
pub mod answer {
    codes! {
        /// The answer's name in the protocol, for logs and errors; `None` for a number we do not know.
        name:
        /// Done.
        SUCCESS = 0;
        /// Anything unexpected; 4.9.x also for failed access control and bad names.
        SYSTEM_ERROR = 1;
        /// Overload or flow control: elsewhere, or later.
        SYSTEM_BUSY = 2;
        /// Unknown request.
        REQUEST_CODE_NOT_SUPPORTED = 3;
        /// Stored; flush not confirmed in time.
        FLUSH_DISK_TIMEOUT = 10;
        /// Stored; no replica.
        SLAVE_NOT_AVAILABLE = 11;
        /// Stored; replica late.
        FLUSH_SLAVE_TIMEOUT = 12;
        /// The message breaks a rule.
        MESSAGE_ILLEGAL = 13;
        /// Disk full, replica, or shutting down.
        SERVICE_NOT_AVAILABLE = 14;
        /// The request lacks a field that the proxy needs.
        VERSION_NOT_SUPPORTED = 15;
        /// Permission bits or access control forbid it.
        NO_PERMISSION = 16;
        /// No such topic here.
        TOPIC_NOT_EXIST = 17;
        /// The topic exists.
        TOPIC_EXIST_ALREADY = 18;
        /// No new message.
        PULL_NOT_FOUND = 19;
        /// Nothing in this range passes the filter: pull on from the next offset at once.
        PULL_RETRY_IMMEDIATELY = 20;
        /// The offset is outside the queue: take the one given.
        PULL_OFFSET_MOVED = 21;
        /// No such offset, message or key.
        QUERY_NOT_FOUND = 22;
        /// The expression cannot be parsed.
        SUBSCRIPTION_PARSE_FAILED = 23;
        /// The broker has had no heartbeat of this group or topic.
        SUBSCRIPTION_NOT_EXIST = 24;
        /// The request's subscription is newer than the broker's.
        SUBSCRIPTION_NOT_LATEST = 25;
        /// The group is unknown and may not be created.
        SUBSCRIPTION_GROUP_NOT_EXIST = 26;
        /// No compiled expression.
        FILTER_DATA_NOT_EXIST = 27;
        /// The compiled expression is old.
        FILTER_DATA_NOT_LATEST = 28;
        /// A field has a value that makes no sense (5.x).
        INVALID_PARAMETER = 29;
        /// Another unit's message.
        NO_BUYER_ID = 204;
        /// Another unit's message.
        NOT_IN_CURRENT_UNIT = 205;
        /// No member of the group is connected.
        CONSUMER_NOT_ONLINE = 206;
        /// A member did not answer in time.
        CONSUME_MSG_TIMEOUT = 207;
        /// No such message.
        NO_MESSAGE = 208;
        /// The group consumes by broadcasting (5.x).
        BROADCAST_CONSUMPTION = 213;
        /// Flow control (5.x).
        FLOW_CONTROL = 215;
        /// A static topic's queue has moved (5.x).
        NOT_LEADER_FOR_QUEUE = 501;
        /// Not allowed in this state (5.x).
        ILLEGAL_OPERATION = 604;
        /// The server shuts down: send it again over a new connection (5.2 on).
        GO_AWAY = 1500;
    }

    /// Whether a send with this answer has been stored: done, or stored with a doubt about flush or replica.
    pub fn is_stored(code: i32) -> bool {
        matches!(code, SUCCESS | FLUSH_DISK_TIMEOUT | SLAVE_NOT_AVAILABLE | FLUSH_SLAVE_TIMEOUT)
    }
}

/// Bits of a command's `flag`.
pub mod flag {
    /// The command is an answer.
    pub const ANSWER: i32 = 1;
    /// The request must not be answered, not even with an error.
    pub const ONEWAY: i32 = 2;
}

/// Bits of a stored or sent message's `sysFlag`. Others are kept as they are.
///
/// Source: apache/rocketmq@rocketmq-all-5.3.3 common/src/main/java/org/apache/rocketmq/common/sysflag/MessageSysFlag.java
pub mod sys_flag {
    /// The body is compressed.
    pub const COMPRESSED: i32 = 0x001;
    /// The tag is a set of tags.
    pub const MULTI_TAGS: i32 = 0x002;
    /// Mask of the three transaction values.
    pub const TRANSACTION: i32 = 0x00C;
    /// A half message.
    pub const TRANSACTION_PREPARED: i32 = 0x004;
    /// A committed message.
    pub const TRANSACTION_COMMIT: i32 = 0x008;
    /// A message rolled back.
    pub const TRANSACTION_ROLLBACK: i32 = 0x00C;
    /// The born host has 16 bytes.
    pub const BORN_HOST_V6: i32 = 0x010;
    /// The store host has 16 bytes.
    pub const STORE_HOST_V6: i32 = 0x020;
    /// The record's body is a batch that the reader must take apart (5.x).
    pub const NEED_UNWRAP: i32 = 0x040;
    /// The record's body is a batch (5.x).
    pub const INNER_BATCH: i32 = 0x080;
    /// Where the compression type starts.
    pub const COMPRESSION_SHIFT: u32 = 8;
    /// Mask of the compression type.
    pub const COMPRESSION: i32 = 0x700;
}

/// Bits of a pull request's `sysFlag`.
///
/// Source: apache/rocketmq@rocketmq-all-5.3.3 common/src/main/java/org/apache/rocketmq/common/sysflag/PullSysFlag.java
pub mod pull_flag {
    /// `commitOffset` is meant.
    pub const COMMIT_OFFSET: i32 = 1;
    /// Hold the request until there is something.
    pub const SUSPEND: i32 = 2;
    /// The subscription is in the request.
    pub const SUBSCRIPTION: i32 = 4;
    /// Legacy.
    pub const CLASS_FILTER: i32 = 8;
    /// By a lite pull consumer.
    pub const LITE_PULL: i32 = 16;
}

/// Bits of a topic's permission.
pub mod perm {
    /// A template that topics made by themselves copy.
    pub const INHERIT: i32 = 1;
    /// May be sent to.
    pub const WRITE: i32 = 2;
    /// May be pulled from.
    pub const READ: i32 = 4;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_for_logs() {
        assert_eq!(request::name(310), Some("SEND_MESSAGE_V2"));
        assert_eq!(answer::name(21), Some("PULL_OFFSET_MOVED"));
        assert_eq!((request::name(9), answer::name(9)), (None, None));
        assert!(answer::is_stored(12) && !answer::is_stored(13));
    }
}
