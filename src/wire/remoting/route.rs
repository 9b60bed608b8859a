//! Routes: which brokers have a topic (105), the brokers of the cluster (106), all topics (206).

use std::borrow::Cow;

use super::header::header;
use crate::model::SortedMap;
use crate::wire::json::{Value, body};

header! {
    /// Asks for the brokers and queues of a topic (105).
    pub struct RouteRequest<'a> {
        /// Topic.
        topic: Cow<'a, str> = "topic";
        /// The answer must be JSON as everybody reads it (4.9.4 on).
        standard_json: Option<bool> = "acceptStandardJsonOnly";
    }
}

body! {
    /// The brokers and queues of a topic.
    ///
    /// Source: apache/rocketmq@rocketmq-all-5.3.3
    /// remoting/src/main/java/org/apache/rocketmq/remoting/protocol/route/TopicRouteData.java
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct RouteBody {
        /// The brokers.
        brokers: Vec<BrokerBody> = "brokerDatas";
        /// Legacy: filter servers by broker address. 4.9.3 may leave it out.
        filter_server_table: Option<SortedMap<String, Vec<String>>> = "filterServerTable";
        /// Queues of an ordered topic, `broker:queues;...`; if there, it alone says where to send to.
        order_topic_conf: Option<String> = "orderTopicConf";
        /// Its queues, one entry a broker.
        queues: Vec<QueuesBody> = "queueDatas";
        /// Queues of a static topic (5.x), unread.
        topic_queue_mapping_by_broker: Option<Value> = "topicQueueMappingByBroker";
    }
}

body! {
    /// A broker's name and addresses.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct BrokerBody {
        /// `host:port` by broker id; 0 is the master.
        broker_addrs: SortedMap<i64, String> = "brokerAddrs";
        /// Name.
        broker_name: String = "brokerName";
        /// Cluster.
        cluster: Option<String> = "cluster";
        /// A replica may act as master (5.x).
        enable_acting_master: Option<bool> = "enableActingMaster";
        /// Zone (5.x).
        zone_name: Option<String> = "zoneName";
    }
}

body! {
    /// A topic's queues on one broker.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct QueuesBody {
        /// Name of the broker.
        broker_name: String = "brokerName";
        /// See [`super::codes::perm`].
        perm: i32 = "perm";
        /// Queues to pull from: 0 up to this.
        read_queue_nums: i32 = "readQueueNums";
        /// Legacy.
        topic_sys_flag: i32 = "topicSysFlag";
        /// Queues to send to: 0 up to this.
        write_queue_nums: i32 = "writeQueueNums";
    }
}

body! {
    /// The brokers of every cluster.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct ClusterBody {
        /// By name.
        broker_addr_table: SortedMap<String, BrokerBody> = "brokerAddrTable";
        /// Names of brokers by cluster.
        cluster_addr_table: SortedMap<String, Vec<String>> = "clusterAddrTable";
    }
}

body! {
    /// A list of topics.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct TopicListBody {
        /// Broker to ask for more.
        broker_addr: Option<String> = "brokerAddr";
        /// The topics.
        topic_list: Vec<String> = "topicList";
    }
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
