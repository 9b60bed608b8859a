//! Topics of a broker: creating (17), deleting (215, 216), looking at one (351), at all (21) and at their queues (202),
//! how far a group is behind (208); and tables of texts (28, 219).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::header::header;
use super::queue::QueueBody;
use crate::model::SortedMap;
use crate::wire::json::{QueueTable, maybe_number, nullable, number, truth};

header! {
    /// Creates or changes a topic (17).
    pub struct CreateTopicRequest<'a> {
        /// Topic.
        topic: Cow<'a, str> = "topic";
        /// Legacy: `TBW102`, or the key of the cluster.
        default_topic: Cow<'a, str> = "defaultTopic" else Cow::Borrowed("");
        /// Queues to pull from.
        read_queues: i32 = "readQueueNums";
        /// Queues to send to.
        write_queues: i32 = "writeQueueNums";
        /// See [`super::codes::perm`].
        perm: i32 = "perm";
        /// `SINGLE_TAG` or `MULTI_TAG`.
        filter_type: Cow<'a, str> = "topicFilterType" else Cow::Borrowed("SINGLE_TAG");
        /// Legacy.
        sys_flag: Option<i32> = "topicSysFlag";
        /// The topic is ordered.
        order: bool = "order" else false;
        /// `+name=value` sets, `-name` deletes, joined by commas (5.x).
        attributes: Option<Cow<'a, str>> = "attributes";
    }
}

header! {
    /// Names a topic: deletes it (215, 216), asks for it (351) or for its queues (202).
    pub struct TopicRequest<'a> {
        /// Topic.
        topic: Cow<'a, str> = "topic";
        /// Cluster, of 216 alone (5.x).
        cluster_name: Option<Cow<'a, str>> = "clusterName";
        /// Static topics alone, though 5.3.3's tools write it with every 351 (5.x).
        logical: Option<bool> = "lo";
    }
}

header! {
    /// Asks how far a group is behind (208).
    pub struct ConsumeStatsRequest<'a> {
        /// Group.
        consumer_group: Cow<'a, str> = "consumerGroup";
        /// Only this topic.
        topic: Option<Cow<'a, str>> = "topic";
        /// Only these topics, each followed by `;` (5.x).
        topic_list: Option<Cow<'a, str>> = "topicList";
    }
}

/// How often a table has changed. Another one is newer if time or counter differ.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataVersion {
    /// Changes since the start.
    #[serde(deserialize_with = "number")]
    pub counter: i64,
    /// Of the controller (5.x).
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_number")]
    pub state_version: Option<i64>,
    /// Time of the last change, ms since 1970.
    #[serde(deserialize_with = "number")]
    pub timestamp: i64,
}

/// A topic of a broker.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicConfigBody {
    /// Attributes (5.x).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<SortedMap<String, String>>,
    /// The topic is ordered.
    #[serde(deserialize_with = "truth")]
    pub order: bool,
    /// See [`super::codes::perm`].
    #[serde(deserialize_with = "number")]
    pub perm: i32,
    /// Queues to pull from.
    #[serde(deserialize_with = "number")]
    pub read_queue_nums: i32,
    /// `SINGLE_TAG` or `MULTI_TAG`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_filter_type: Option<String>,
    /// Topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_name: Option<String>,
    /// Legacy.
    #[serde(deserialize_with = "number")]
    pub topic_sys_flag: i32,
    /// Queues to send to.
    #[serde(deserialize_with = "number")]
    pub write_queue_nums: i32,
}

/// Java's defaults.
impl Default for TopicConfigBody {
    fn default() -> Self {
        Self {
            attributes: None,
            order: false,
            perm: super::codes::perm::READ | super::codes::perm::WRITE,
            read_queue_nums: 16,
            topic_filter_type: Some("SINGLE_TAG".to_owned()),
            topic_name: None,
            topic_sys_flag: 0,
            write_queue_nums: 16,
        }
    }
}

/// Topics of a broker with their version (21, and inside 103).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicTableBody {
    /// Grows with every change.
    #[serde(deserialize_with = "nullable")]
    pub data_version: DataVersion,
    /// Of static topics (5.x).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mapping_data_version: Option<DataVersion>,
    /// By name.
    #[serde(rename = "topicConfigTable", deserialize_with = "nullable")]
    pub topics: SortedMap<String, TopicConfigBody>,
    /// Of static topics (5.x), unread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_queue_mapping_detail_map: Option<serde_json::Value>,
    /// Of static topics (5.x), unread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_queue_mapping_info_map: Option<serde_json::Value>,
}

/// A topic's queues (202).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicStatsBody {
    /// By queue.
    #[serde(rename = "offsetTable", deserialize_with = "nullable")]
    pub queues: QueueTable<QueueBody, QueueStatsBody>,
    /// Messages stored a second (5.x).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_put_tps: Option<f64>,
}

/// Where a queue stands.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QueueStatsBody {
    /// When its last message was stored, ms since 1970; 0: never.
    #[serde(deserialize_with = "number")]
    pub last_update_timestamp: i64,
    /// One past its last offset.
    #[serde(deserialize_with = "number")]
    pub max_offset: i64,
    /// Its first offset.
    #[serde(deserialize_with = "number")]
    pub min_offset: i64,
}

/// How far a group is behind (208).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConsumeStatsBody {
    /// Messages consumed a second.
    #[serde(deserialize_with = "nullable")]
    pub consume_tps: f64,
    /// By queue.
    #[serde(rename = "offsetTable", deserialize_with = "nullable")]
    pub queues: QueueTable<QueueBody, ProgressBody>,
}

/// How far a group is in a queue.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProgressBody {
    /// One past the queue's last offset.
    #[serde(deserialize_with = "number")]
    pub broker_offset: i64,
    /// The committed offset.
    #[serde(deserialize_with = "number")]
    pub consumer_offset: i64,
    /// When the message before it was stored, ms since 1970.
    #[serde(deserialize_with = "number")]
    pub last_timestamp: i64,
    /// From where it was pulled last (5.x).
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_number")]
    pub pull_offset: Option<i64>,
}

/// Texts by name (28, 219, and the answer to 103).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct TableBody {
    /// The table.
    #[serde(deserialize_with = "nullable")]
    pub table: SortedMap<String, String>,
}

/// Offsets by queue (220).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OffsetTableBody {
    /// The table.
    #[serde(rename = "offsetTable", deserialize_with = "nullable")]
    pub offsets: QueueTable<QueueBody, i64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json::{read, to_vec};

    #[test]
    fn a_table_by_queue_is_written_as_every_peer_reads_it() {
        let queue = QueueBody { broker_name: "b-a".into(), queue_id: 0, topic: "T".into() };
        let body = OffsetTableBody { offsets: [(queue, i64::MAX)].into_iter().collect() };
        let text = r#"{"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"T"}:9223372036854775807}}"#;
        assert_eq!(to_vec(&body), text.as_bytes());
        assert_eq!(read("offsets", text.as_bytes()), Ok(body));
    }
}
