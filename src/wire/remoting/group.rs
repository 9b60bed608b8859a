//! Membership: heartbeats (34), leaving (35), the members of a group (38) and word of a change (40), a check of a
//! subscription (46), a look at the connections of groups (203, 204), and the groups themselves (200, 201, 207).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::header::header;
use super::topics::DataVersion;
use crate::model::SortedMap;
use crate::wire::json::{maybe_number, maybe_truth, nullable, number, numbers, text_enum, truth};

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

/// Who a client is, what it produces and subscribes (34).
///
/// Source: apache/rocketmq@rocketmq-all-5.3.3
/// remoting/src/main/java/org/apache/rocketmq/remoting/protocol/heartbeat/HeartbeatData.java
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HeartbeatBody {
    /// Id of the client.
    #[serde(rename = "clientID", deserialize_with = "nullable")]
    pub client_id: String,
    /// Its consumer groups.
    #[serde(rename = "consumerDataSet", deserialize_with = "nullable")]
    pub consumers: Vec<ConsumerBody>,
    /// Other than 0: changes with the content, and the subscriptions may be left out next time (5.1.3 on).
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_number")]
    pub heartbeat_fingerprint: Option<i32>,
    /// Its producer groups.
    #[serde(rename = "producerDataSet", deserialize_with = "nullable")]
    pub producers: Vec<ProducerBody>,
    /// The subscriptions are left out (5.1.3 on).
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_truth")]
    pub without_sub: Option<bool>,
}

/// A consumer group of a client.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerBody {
    /// Where it starts.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "ConsumeFrom::lenient")]
    pub consume_from_where: Option<ConsumeFrom>,
    /// How it takes messages.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "ConsumeType::lenient")]
    pub consume_type: Option<ConsumeType>,
    /// Group.
    #[serde(deserialize_with = "nullable")]
    pub group_name: String,
    /// Who gets a message.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "MessageModel::lenient")]
    pub message_model: Option<MessageModel>,
    /// What it subscribes.
    #[serde(rename = "subscriptionDataSet", deserialize_with = "nullable")]
    pub subscriptions: Vec<SubscriptionBody>,
    /// Legacy.
    #[serde(deserialize_with = "truth")]
    pub unit_mode: bool,
}

/// A producer group of a client.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProducerBody {
    /// Group.
    #[serde(deserialize_with = "nullable")]
    pub group_name: String,
}

/// A subscription of one topic.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubscriptionBody {
    /// Legacy.
    #[serde(deserialize_with = "truth")]
    pub class_filter_mode: bool,
    /// Hashes of the tags. Never to be trusted: compute them (D28).
    #[serde(deserialize_with = "numbers")]
    pub code_set: Vec<i32>,
    /// `TAG` or `SQL92`; absent: `TAG`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression_type: Option<String>,
    /// The expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_string: Option<String>,
    /// Grows when the subscription changes.
    #[serde(deserialize_with = "number")]
    pub sub_version: i64,
    /// The tags; empty: all.
    #[serde(deserialize_with = "nullable")]
    pub tags_set: Vec<String>,
    /// Topic.
    #[serde(deserialize_with = "nullable")]
    pub topic: String,
}

/// The members of a group (38).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerListBody {
    /// Their client ids.
    #[serde(rename = "consumerIdList", deserialize_with = "nullable")]
    pub client_ids: Vec<String>,
}

/// A subscription to be checked (46).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CheckClientBody {
    /// Id of the client.
    #[serde(deserialize_with = "nullable")]
    pub client_id: String,
    /// Its group.
    #[serde(deserialize_with = "nullable")]
    pub group: String,
    /// Namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The subscription.
    #[serde(deserialize_with = "nullable")]
    pub subscription_data: SubscriptionBody,
}

/// Connections and subscriptions of a consumer group (203).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumerConnectionBody {
    /// Its connections.
    #[serde(rename = "connectionSet", deserialize_with = "nullable")]
    pub connections: Vec<ConnectionBody>,
    /// Where it starts.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "ConsumeFrom::lenient")]
    pub consume_from_where: Option<ConsumeFrom>,
    /// How it takes messages.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "ConsumeType::lenient")]
    pub consume_type: Option<ConsumeType>,
    /// Who gets a message.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "MessageModel::lenient")]
    pub message_model: Option<MessageModel>,
    /// Subscriptions by topic.
    #[serde(rename = "subscriptionTable", deserialize_with = "nullable")]
    pub subscriptions: SortedMap<String, SubscriptionBody>,
}

/// Connections of a producer group (204).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProducerConnectionBody {
    /// Its connections.
    #[serde(rename = "connectionSet", deserialize_with = "nullable")]
    pub connections: Vec<ConnectionBody>,
}

/// A client's connection.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConnectionBody {
    /// `host:port` it comes from.
    #[serde(deserialize_with = "nullable")]
    pub client_addr: String,
    /// Id of the client.
    #[serde(deserialize_with = "nullable")]
    pub client_id: String,
    /// Its language by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Its version.
    #[serde(deserialize_with = "number")]
    pub version: i32,
}

/// A group of a broker (200, 201).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GroupConfigBody {
    /// Attributes (5.x).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<SortedMap<String, String>>,
    /// Legacy.
    #[serde(deserialize_with = "number")]
    pub broker_id: i64,
    /// May consume by broadcasting.
    #[serde(deserialize_with = "truth")]
    pub consume_broadcast_enable: bool,
    /// May consume at all.
    #[serde(deserialize_with = "truth")]
    pub consume_enable: bool,
    /// Legacy.
    #[serde(deserialize_with = "truth")]
    pub consume_from_min_enable: bool,
    /// Ordered pop (5.x).
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_truth")]
    pub consume_message_orderly: Option<bool>,
    /// Pop (5.x).
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_number")]
    pub consume_timeout_minute: Option<i32>,
    /// Group.
    #[serde(deserialize_with = "nullable")]
    pub group_name: String,
    /// How long redeliveries wait (5.x), unread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_retry_policy: Option<serde_json::Value>,
    /// Legacy (5.x).
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_number")]
    pub group_sys_flag: Option<i32>,
    /// Tell members when others come and go.
    #[serde(deserialize_with = "truth")]
    pub notify_consumer_ids_changed_enable: bool,
    /// Redeliveries before a message is a dead letter.
    #[serde(deserialize_with = "number")]
    pub retry_max_times: i32,
    /// Queues of the retry topic.
    #[serde(deserialize_with = "number")]
    pub retry_queue_nums: i32,
    /// Subscriptions the broker insists on (5.x), unread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscription_data_set: Option<serde_json::Value>,
    /// Id of the replica for who is behind.
    #[serde(deserialize_with = "number")]
    pub which_broker_when_consume_slowly: i64,
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

/// All groups of a broker (201).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GroupTableBody {
    /// Grows with every change.
    #[serde(deserialize_with = "nullable")]
    pub data_version: DataVersion,
    /// What groups may not do (5.x), unread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forbidden_table: Option<serde_json::Value>,
    /// By name.
    #[serde(rename = "subscriptionGroupTable", deserialize_with = "nullable")]
    pub groups: SortedMap<String, GroupConfigBody>,
}

/// Groups by name (300).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GroupListBody {
    /// The groups.
    #[serde(deserialize_with = "nullable")]
    pub group_list: Vec<String>,
}
