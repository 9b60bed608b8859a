//! Topics of a broker: creating (17), deleting (215, 216), looking at one (351) and at its queues (202).

use std::borrow::Cow;

use super::header::header;

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
