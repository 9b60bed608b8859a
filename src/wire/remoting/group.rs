//! Membership: heartbeats (34), leaving (35), the members of a group (38) and word of a change (40), a check of a
//! subscription (46), a look at the connections of groups (203, 204), and the groups themselves (200, 201, 207).

use std::borrow::Cow;

use super::header::header;
use super::topics::DataVersion;
use crate::model::SortedMap;
use crate::wire::json::{Value, body, text_enum};

header! {
    /// Leaves one or both groups (35). The broker goes by the connection.
    pub struct UnregisterRequest<'a> {
        /// Id of the client.
        client_id: Cow<'a, str> = "clientID";
        /// Producer group to leave.
        producer_group: Option<Cow<'a, str>> = "producerGroup";
        /// Consumer group to leave.
        consumer_group: Option<Cow<'a, str>> = "consumerGroup";
    }
}

header! {
    /// Names a consumer group: asks for its members (38) or connections (203), or says that they have changed (40).
    pub struct ConsumerGroupRequest<'a> {
        /// Group.
        consumer_group: Cow<'a, str> = "consumerGroup";
        /// Name of the broker that is meant; proxies need it.
        broker_name: Option<Cow<'a, str>> = "bname";
    }
}

header! {
    /// Asks for the connections of a producer group (204).
    pub struct ProducerGroupRequest<'a> {
        /// Group.
        producer_group: Cow<'a, str> = "producerGroup";
    }
}

header! {
    /// What the answer to a heartbeat says beside its version (5.1.3 on).
    pub struct HeartbeatAnswer {
        /// The broker takes heartbeats without subscriptions.
        supports_v2: Option<bool> = "IS_SUPPORT_HEART_BEAT_V2";
        /// The subscription differs from what the broker knew; only for heartbeats with a fingerprint.
        sub_changed: Option<bool> = "IS_SUB_CHANGE";
    }
}

header! {
    /// Deletes a group (207). 4.9.x reads one flag, 5.x the other: write both.
    pub struct DeleteGroupRequest<'a> {
        /// Group.
        group: Cow<'a, str> = "groupName";
        /// With its offsets (5.x).
        clean_offset: Option<bool> = "cleanOffset";
        /// With its offsets (4.9.x).
        remove_offset: Option<bool> = "removeOffset";
    }
}

text_enum! {
    /// Where a group without a committed offset starts.
    pub enum ConsumeFrom {
        /// After the last message.
        LastOffset = "CONSUME_FROM_LAST_OFFSET",
        /// Deprecated.
        LastOffsetAndFromMinWhenBootFirst = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        /// Deprecated.
        MinOffset = "CONSUME_FROM_MIN_OFFSET",
        /// Deprecated.
        MaxOffset = "CONSUME_FROM_MAX_OFFSET",
        /// At the first message.
        FirstOffset = "CONSUME_FROM_FIRST_OFFSET",
        /// At the first message after a time.
        Timestamp = "CONSUME_FROM_TIMESTAMP",
    }
}

text_enum! {
    /// Who of a group gets a message.
    pub enum MessageModel {
        /// Every member.
        Broadcasting = "BROADCASTING",
        /// One member.
        Clustering = "CLUSTERING",
    }
}

text_enum! {
    /// How a group takes messages.
    pub enum ConsumeType {
        /// Lite pull.
        Actively = "CONSUME_ACTIVELY",
        /// Push.
        Passively = "CONSUME_PASSIVELY",
        /// Pop (5.x).
        Pop = "CONSUME_POP",
    }
}

body! {
    /// Who a client is, what it produces and subscribes (34).
    ///
    /// Source: apache/rocketmq@rocketmq-all-5.3.3
    /// remoting/src/main/java/org/apache/rocketmq/remoting/protocol/heartbeat/HeartbeatData.java
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct HeartbeatBody {
        /// Id of the client.
        client_id: String = "clientID";
        /// Its consumer groups.
        consumers: Vec<ConsumerBody> = "consumerDataSet";
        /// Other than 0: changes with the content, and the subscriptions may be left out next time (5.1.3 on).
        heartbeat_fingerprint: Option<i32> = "heartbeatFingerprint";
        /// Its producer groups.
        producers: Vec<ProducerBody> = "producerDataSet";
        /// The subscriptions are left out (5.1.3 on).
        without_sub: Option<bool> = "withoutSub";
    }
}

body! {
    /// A consumer group of a client.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct ConsumerBody {
        /// Where it starts.
        consume_from_where: Option<ConsumeFrom> = "consumeFromWhere";
        /// How it takes messages.
        consume_type: Option<ConsumeType> = "consumeType";
        /// Group.
        group_name: String = "groupName";
        /// Who gets a message.
        message_model: Option<MessageModel> = "messageModel";
        /// What it subscribes.
        subscriptions: Vec<SubscriptionBody> = "subscriptionDataSet";
        /// Legacy.
        unit_mode: bool = "unitMode";
    }
}

body! {
    /// A producer group of a client.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct ProducerBody {
        /// Group.
        group_name: String = "groupName";
    }
}

body! {
    /// A subscription of one topic.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct SubscriptionBody {
        /// Legacy.
        class_filter_mode: bool = "classFilterMode";
        /// Hashes of the tags. Never to be trusted: compute them (D28).
        code_set: Vec<i32> = "codeSet";
        /// `TAG` or `SQL92`; absent: `TAG`.
        expression_type: Option<String> = "expressionType";
        /// The expression.
        sub_string: Option<String> = "subString";
        /// Grows when the subscription changes.
        sub_version: i64 = "subVersion";
        /// The tags; empty: all.
        tags_set: Vec<String> = "tagsSet";
        /// Topic.
        topic: String = "topic";
    }
}

body! {
    /// The members of a group (38).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct ConsumerListBody {
        /// Their client ids.
        client_ids: Vec<String> = "consumerIdList";
    }
}

body! {
    /// A subscription to be checked (46).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct CheckClientBody {
        /// Id of the client.
        client_id: String = "clientId";
        /// Its group.
        group: String = "group";
        /// Namespace.
        namespace: Option<String> = "namespace";
        /// The subscription.
        subscription_data: SubscriptionBody = "subscriptionData";
    }
}

body! {
    /// Connections and subscriptions of a consumer group (203).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct ConsumerConnectionBody {
        /// Its connections.
        connections: Vec<ConnectionBody> = "connectionSet";
        /// Where it starts.
        consume_from_where: Option<ConsumeFrom> = "consumeFromWhere";
        /// How it takes messages.
        consume_type: Option<ConsumeType> = "consumeType";
        /// Who gets a message.
        message_model: Option<MessageModel> = "messageModel";
        /// Subscriptions by topic.
        subscriptions: SortedMap<String, SubscriptionBody> = "subscriptionTable";
    }
}

body! {
    /// Connections of a producer group (204).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct ProducerConnectionBody {
        /// Its connections.
        connections: Vec<ConnectionBody> = "connectionSet";
    }
}

body! {
    /// A client's connection.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct ConnectionBody {
        /// `host:port` it comes from.
        client_addr: String = "clientAddr";
        /// Id of the client.
        client_id: String = "clientId";
        /// Its language by name.
        language: Option<String> = "language";
        /// Its version.
        version: i32 = "version";
    }
}

body! {
    /// A group of a broker (200, 201).
    #[derive(Clone, Debug, PartialEq)]
    pub struct GroupConfigBody {
        /// Attributes (5.x).
        attributes: Option<SortedMap<String, String>> = "attributes";
        /// Legacy.
        broker_id: i64 = "brokerId";
        /// May consume by broadcasting.
        consume_broadcast_enable: bool = "consumeBroadcastEnable";
        /// May consume at all.
        consume_enable: bool = "consumeEnable";
        /// Legacy.
        consume_from_min_enable: bool = "consumeFromMinEnable";
        /// Ordered pop (5.x).
        consume_message_orderly: Option<bool> = "consumeMessageOrderly";
        /// Pop (5.x).
        consume_timeout_minute: Option<i32> = "consumeTimeoutMinute";
        /// Group.
        group_name: String = "groupName";
        /// How long redeliveries wait (5.x), unread.
        group_retry_policy: Option<Value> = "groupRetryPolicy";
        /// Legacy (5.x).
        group_sys_flag: Option<i32> = "groupSysFlag";
        /// Tell members when others come and go.
        notify_consumer_ids_changed_enable: bool = "notifyConsumerIdsChangedEnable";
        /// Redeliveries before a message is a dead letter.
        retry_max_times: i32 = "retryMaxTimes";
        /// Queues of the retry topic.
        retry_queue_nums: i32 = "retryQueueNums";
        /// Subscriptions the broker insists on (5.x), unread.
        subscription_data_set: Option<Value> = "subscriptionDataSet";
        /// Id of the replica for who is behind.
        which_broker_when_consume_slowly: i64 = "whichBrokerWhenConsumeSlowly";
    }
}

/// Java's defaults.
impl Default for GroupConfigBody {
    fn default() -> Self {
        Self {
            attributes: None,
            broker_id: 0,
            consume_broadcast_enable: true,
            consume_enable: true,
            consume_from_min_enable: true,
            consume_message_orderly: None,
            consume_timeout_minute: None,
            group_name: String::new(),
            group_retry_policy: None,
            group_sys_flag: None,
            notify_consumer_ids_changed_enable: true,
            retry_max_times: 16,
            retry_queue_nums: 1,
            subscription_data_set: None,
            which_broker_when_consume_slowly: 1,
        }
    }
}

body! {
    /// All groups of a broker (201).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct GroupTableBody {
        /// Grows with every change.
        data_version: DataVersion = "dataVersion";
        /// What groups may not do (5.x), unread.
        forbidden_table: Option<Value> = "forbiddenTable";
        /// By name.
        groups: SortedMap<String, GroupConfigBody> = "subscriptionGroupTable";
    }
}

body! {
    /// Groups by name (300).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct GroupListBody {
        /// The groups.
        group_list: Vec<String> = "groupList";
    }
}
