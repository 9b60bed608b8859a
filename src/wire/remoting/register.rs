//! Brokers at a name server: registering (103), leaving (104), asking whether a registration is up to date (322), and a
//! sign of life (904).

use std::borrow::Cow;

use super::header::header;

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
