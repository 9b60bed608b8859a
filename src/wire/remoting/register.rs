//! Brokers at a name server: registering (103), leaving (104), asking whether a registration is up to date (322), and a
//! sign of life (904).

use std::borrow::Cow;

use super::header::header;
use super::topics::{TopicConfigBody, TopicTableBody};
use crate::error::WireError;
use crate::model::SortedMap;
use crate::wire::bytes::Cursor;
use crate::wire::checksum::body_crc;
use crate::wire::compress;
use crate::wire::frame::REMOTING_MAX;
use crate::wire::json::{self, body};

header! {
    /// A broker registers its topics (103).
    pub struct RegisterRequest<'a> {
        /// Name of the broker.
        broker_name: Cow<'a, str> = "brokerName";
        /// `host:port` at which clients reach it.
        broker_addr: Cow<'a, str> = "brokerAddr";
        /// Cluster.
        cluster_name: Cow<'a, str> = "clusterName";
        /// `host:port` for its replicas.
        ha_server_addr: Cow<'a, str> = "haServerAddr" else Cow::Borrowed("");
        /// 0: master.
        broker_id: i64 = "brokerId";
        /// The entry lives so long without a sign of life, in ms (5.x).
        heartbeat_timeout_ms: Option<i64> = "heartbeatTimeoutMillis";
        /// A replica may act as master (5.x).
        enable_acting_master: Option<bool> = "enableActingMaster";
        /// The body is compressed.
        compressed: bool = "compressed" else false;
        /// Checksum of the body, 0: unchecked.
        body_crc32: i32 = "bodyCrc32" else 0;
    }
}

header! {
    /// What a registered broker is told.
    pub struct RegisterAnswer<'a> {
        /// `host:port` of the master, for replicas.
        ha_server_addr: Option<Cow<'a, str>> = "haServerAddr";
        /// Address of the master, for replicas.
        master_addr: Option<Cow<'a, str>> = "masterAddr";
    }
}

header! {
    /// Names a broker: it leaves (104), or asks whether its registration is up to date (322).
    pub struct BrokerRequest<'a> {
        /// Name of the broker.
        broker_name: Cow<'a, str> = "brokerName";
        /// `host:port` at which clients reach it.
        broker_addr: Cow<'a, str> = "brokerAddr";
        /// Cluster.
        cluster_name: Cow<'a, str> = "clusterName";
        /// 0: master.
        broker_id: i64 = "brokerId";
    }
}

header! {
    /// Whether the broker must register again: answer to 322.
    pub struct DataVersionAnswer {
        /// It must.
        changed: bool = "changed";
    }
}

header! {
    /// A broker's sign of life (904, 5.x).
    pub struct BrokerHeartbeatRequest<'a> {
        /// Cluster.
        cluster_name: Cow<'a, str> = "clusterName";
        /// `host:port` at which clients reach it.
        broker_addr: Cow<'a, str> = "brokerAddr";
        /// Name of the broker.
        broker_name: Cow<'a, str> = "brokerName";
        /// 0: master.
        broker_id: Option<i64> = "brokerId";
        /// The entry lives so long without a sign of life, in ms.
        heartbeat_timeout_ms: Option<i64> = "heartbeatTimeoutMills";
    }
}

body! {
    /// What a broker registers (103). It may hold only the topic that changed: merge, never replace.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct RegisterBody {
        /// Legacy.
        filter_server_list: Vec<String> = "filterServerList";
        /// The topics.
        topics: TopicTableBody = "topicConfigSerializeWrapper";
    }
}

impl RegisterBody {
    /// Reads it, compressed if the header said so. `version`: the broker's, which decides what a compressed one holds.
    ///
    /// # Errors
    /// `BadChecksum` if `crc` is not 0 and not that of the bytes; `Json`, `Inflate`, lengths that do not fit.
    pub fn read(bytes: &[u8], request: &RegisterRequest<'_>) -> Result<Self, WireError> {
        // Compared as Java compares it, an i32 over the bytes as they came.
        let (stored, computed) = (request.body_crc32 as u32, body_crc(bytes));
        if stored != 0 && stored != computed {
            return Err(WireError::BadChecksum { stored, computed });
        }
        if !request.compressed {
            return json::read(WHAT, bytes);
        }
        let mut plain = Vec::new();
        compress::inflate(compress::Kind::Zlib, bytes, REMOTING_MAX as usize, &mut plain)?;
        Self::read_lines(&plain)
    }

    /// The inside of a compressed one: texts, each behind its length. What follows the filter servers (static topics,
    /// 5.x) is not read.
    fn read_lines(plain: &[u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(plain);
        let len = cursor.i32(WHAT)?;
        let data_version = json::read(WHAT, cursor.take_signed(WHAT, len)?)?;
        let count = cursor.i32(WHAT)?;
        let mut topics = SortedMap::new();
        for _ in 0..count {
            let len = cursor.i32(WHAT)?;
            let topic = read_line(cursor.text(WHAT, len)?)?;
            topics.insert(topic.topic_name.clone().unwrap_or_default(), topic);
        }
        let len = cursor.i32(WHAT)?;
        let filter_server_list = json::read(WHAT, cursor.take_signed(WHAT, len)?)?;
        Ok(Self { filter_server_list, topics: TopicTableBody { data_version, topics, ..TopicTableBody::default() } })
    }
}

const WHAT: &str = "registration";

/// A topic on one line: `name readQueues writeQueues perm filterType [attributes as JSON]`.
fn read_line(line: &str) -> Result<TopicConfigBody, WireError> {
    let mut items = line.splitn(6, ' ');
    let mut text = || items.next().ok_or(WireError::MissingField { field: WHAT });
    let number = |text: &str| text.parse().map_err(|_| WireError::BadNumber { field: WHAT });
    let name = text()?.to_owned();
    let (read_queue_nums, write_queue_nums, perm) = (number(text()?)?, number(text()?)?, number(text()?)?);
    let filter = text()?.to_owned();
    let attributes = items.next().map(|attributes| json::read(WHAT, attributes.as_bytes())).transpose()?;
    Ok(TopicConfigBody {
        attributes,
        perm,
        read_queue_nums,
        write_queue_nums,
        topic_filter_type: Some(filter),
        topic_name: Some(name),
        ..TopicConfigBody::default()
    })
}

/// For the fuzz target `bodies`.
#[doc(hidden)]
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz_lines(plain: &[u8]) {
    let _ = RegisterBody::read_lines(plain);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<u8> {
        let version = r#"{"counter":3,"stateVersion":0,"timestamp":1700000000000}"#;
        let topics = ["T1 4 8 6 SINGLE_TAG {\"message.type\":\"NORMAL\"}", "T2 1 1 4 SINGLE_TAG"];
        let text = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
        let count = 2u32.to_be_bytes().to_vec();
        // The last word counts the static topics of 5.x.
        [text(version), count, text(topics[0]), text(topics[1]), text("[]"), vec![0; 4]].concat()
    }

    #[test]
    fn a_compressed_registration_holds_lines() {
        let body = RegisterBody::read_lines(&lines()).unwrap();
        let topic = body.topics.topics.get("T1").unwrap();
        assert_eq!((topic.read_queue_nums, topic.write_queue_nums, topic.perm), (4, 8, 6));
        assert_eq!(topic.attributes.as_ref().map(SortedMap::len), Some(1));
        assert_eq!((body.topics.data_version.counter, body.topics.topics.len()), (3, 2));
        for end in 0..lines().len() - 4 {
            assert!(RegisterBody::read_lines(lines().get(..end).unwrap()).is_err(), "{end}");
        }
    }

    #[test]
    fn a_registration_with_a_wrong_sum_is_refused() {
        let request = |body_crc32| RegisterRequest {
            broker_name: "b".into(),
            broker_addr: "h:1".into(),
            cluster_name: "c".into(),
            ha_server_addr: "".into(),
            broker_id: 0,
            heartbeat_timeout_ms: None,
            enable_acting_master: None,
            compressed: false,
            body_crc32,
        };
        let body = json::to_vec(&RegisterBody::default());
        assert_eq!(RegisterBody::read(&body, &request(0)), Ok(RegisterBody::default()));
        assert_eq!(RegisterBody::read(&body, &request(body_crc(&body) as i32)), Ok(RegisterBody::default()));
        assert!(matches!(RegisterBody::read(&body, &request(1)), Err(WireError::BadChecksum { .. })));
    }
}
