//! Topics of a broker: creating (17), deleting (215, 216), looking at one (351), at all (21) and at their queues (202),
//! how far a group is behind (208); and tables of texts (28, 219).

use std::borrow::Cow;

use super::header::header;
use super::queue::QueueBody;
use crate::model::SortedMap;
use crate::wire::json::{QueueTable, Value, body};

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

body! {
    /// How often a table has changed. Another one is newer if time or counter differ.
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
    pub struct DataVersion {
        /// Changes since the start.
        counter: i64 = "counter";
        /// Of the controller (5.x).
        state_version: Option<i64> = "stateVersion";
        /// Time of the last change, ms since 1970.
        timestamp: i64 = "timestamp";
    }
}

body! {
    /// A topic of a broker.
    #[derive(Clone, Debug, PartialEq)]
    pub struct TopicConfigBody {
        /// Attributes (5.x).
        attributes: Option<SortedMap<String, String>> = "attributes";
        /// The topic is ordered.
        order: bool = "order";
        /// See [`super::codes::perm`].
        perm: i32 = "perm";
        /// Queues to pull from.
        read_queue_nums: i32 = "readQueueNums";
        /// `SINGLE_TAG` or `MULTI_TAG`.
        topic_filter_type: Option<String> = "topicFilterType";
        /// Topic.
        topic_name: Option<String> = "topicName";
        /// Legacy.
        topic_sys_flag: i32 = "topicSysFlag";
        /// Queues to send to.
        write_queue_nums: i32 = "writeQueueNums";
    }
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

body! {
    /// Topics of a broker with their version (21, and inside 103).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct TopicTableBody {
        /// Grows with every change.
        data_version: DataVersion = "dataVersion";
        /// Of static topics (5.x).
        mapping_data_version: Option<DataVersion> = "mappingDataVersion";
        /// By name.
        topics: SortedMap<String, TopicConfigBody> = "topicConfigTable";
        /// Of static topics (5.x), unread.
        topic_queue_mapping_detail_map: Option<Value> = "topicQueueMappingDetailMap";
        /// Of static topics (5.x), unread.
        topic_queue_mapping_info_map: Option<Value> = "topicQueueMappingInfoMap";
    }
}

body! {
    /// A topic's queues (202).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct TopicStatsBody {
        /// By queue.
        queues: QueueTable<QueueBody, QueueStatsBody> = "offsetTable";
        /// Messages stored a second (5.x).
        topic_put_tps: Option<f64> = "topicPutTps";
    }
}

body! {
    /// Where a queue stands.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct QueueStatsBody {
        /// When its last message was stored, ms since 1970; 0: never.
        last_update_timestamp: i64 = "lastUpdateTimestamp";
        /// One past its last offset.
        max_offset: i64 = "maxOffset";
        /// Its first offset.
        min_offset: i64 = "minOffset";
    }
}

body! {
    /// How far a group is behind (208).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct ConsumeStatsBody {
        /// Messages consumed a second.
        consume_tps: f64 = "consumeTps";
        /// By queue.
        queues: QueueTable<QueueBody, ProgressBody> = "offsetTable";
    }
}

body! {
    /// How far a group is in a queue.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct ProgressBody {
        /// One past the queue's last offset.
        broker_offset: i64 = "brokerOffset";
        /// The committed offset.
        consumer_offset: i64 = "consumerOffset";
        /// When the message before it was stored, ms since 1970.
        last_timestamp: i64 = "lastTimestamp";
        /// From where it was pulled last (5.x).
        pull_offset: Option<i64> = "pullOffset";
    }
}

body! {
    /// Texts by name (28, 219, and the answer to 103).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct TableBody {
        /// The table.
        table: SortedMap<String, String> = "table";
    }
}

body! {
    /// Offsets by queue (220).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct OffsetTableBody {
        /// The table.
        offsets: QueueTable<QueueBody, i64> = "offsetTable";
    }
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
