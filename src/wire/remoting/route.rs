//! Routes: which brokers have a topic (105), the brokers of the cluster (106), all topics (206).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::header::header;
use crate::model::SortedMap;
use crate::wire::json::{maybe_truth, nullable, number};

header! {
    /// Asks for the brokers and queues of a topic (105).
    pub struct RouteRequest<'a> {
        /// Topic.
        topic: Cow<'a, str> = "topic";
        /// The answer must be JSON as everybody reads it (4.9.4 on).
        standard_json: Option<bool> = "acceptStandardJsonOnly";
    }
}

/// The brokers and queues of a topic.
///
/// Source: apache/rocketmq@rocketmq-all-5.3.3
/// remoting/src/main/java/org/apache/rocketmq/remoting/protocol/route/TopicRouteData.java
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteBody {
    /// The brokers.
    #[serde(rename = "brokerDatas", deserialize_with = "nullable")]
    pub brokers: Vec<BrokerBody>,
    /// Legacy: filter servers by broker address. 4.9.3 may leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_server_table: Option<SortedMap<String, Vec<String>>>,
    /// Queues of an ordered topic, `broker:queues;...`; if there, it alone says where to send to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order_topic_conf: Option<String>,
    /// Its queues, one entry a broker.
    #[serde(rename = "queueDatas", deserialize_with = "nullable")]
    pub queues: Vec<QueuesBody>,
    /// Queues of a static topic (5.x), unread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_queue_mapping_by_broker: Option<serde_json::Value>,
}

/// A broker's name and addresses.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BrokerBody {
    /// `host:port` by broker id; 0 is the master.
    #[serde(deserialize_with = "nullable")]
    pub broker_addrs: SortedMap<i64, String>,
    /// Name.
    #[serde(deserialize_with = "nullable")]
    pub broker_name: String,
    /// Cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// A replica may act as master (5.x).
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_truth")]
    pub enable_acting_master: Option<bool>,
    /// Zone (5.x).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone_name: Option<String>,
}

/// A topic's queues on one broker.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QueuesBody {
    /// Name of the broker.
    #[serde(deserialize_with = "nullable")]
    pub broker_name: String,
    /// See [`super::codes::perm`].
    #[serde(deserialize_with = "number")]
    pub perm: i32,
    /// Queues to pull from: 0 up to this.
    #[serde(deserialize_with = "number")]
    pub read_queue_nums: i32,
    /// Legacy.
    #[serde(deserialize_with = "number")]
    pub topic_sys_flag: i32,
    /// Queues to send to: 0 up to this.
    #[serde(deserialize_with = "number")]
    pub write_queue_nums: i32,
}

/// The brokers of every cluster.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterBody {
    /// By name.
    #[serde(deserialize_with = "nullable")]
    pub broker_addr_table: SortedMap<String, BrokerBody>,
    /// Names of brokers by cluster.
    #[serde(deserialize_with = "nullable")]
    pub cluster_addr_table: SortedMap<String, Vec<String>>,
}

/// A list of topics.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TopicListBody {
    /// Broker to ask for more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_addr: Option<String>,
    /// The topics.
    #[serde(deserialize_with = "nullable")]
    pub topic_list: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json::{read, to_vec};

    #[test]
    fn old_and_new_form_of_a_route_read_the_same() {
        let old = br#"{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"b-a","cluster":"C1"}],
            "queueDatas":[{"brokerName":"b-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#;
        let new = br#"{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"b\u002da",
            "cluster":"C1"}],"queueDatas":[{"brokerName":"b-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}],}"#;
        let route = read::<RouteBody>("route", old).unwrap();
        assert_eq!(read("route", new), Ok(route.clone()));
        assert_eq!(route.brokers[0].broker_addrs.get(&1).map(String::as_str), Some("10.0.0.2:10911"));
        assert_eq!(read("route", &to_vec(&route)), Ok(route));
        let reference = br#"{"brokerDatas":[{"$ref":"$.brokerDatas[0]"}],"queueDatas":null,"@type":"x.Y"}"#;
        assert_eq!(read::<RouteBody>("route", reference).unwrap().brokers.len(), 1);
    }
}
