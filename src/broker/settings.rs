//! What a broker can be told before it starts, and which of Apache's releases it behaves like.
//!
//! The builder in `node.rs` fills [`Settings`]; the dispatcher reads them and never changes them.

use std::net::SocketAddr;
use std::sync::Arc;

/// Which of Apache's releases is imitated where they differ.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Compat {
    /// 4.9.3: announces version 399.
    V4,
    /// 5.3.3: announces version 479.
    #[default]
    V5,
}

impl Compat {
    /// The version number in every answer.
    ///
    /// Source: apache/rocketmq@rocketmq-all-5.3.3 common/src/main/java/org/apache/rocketmq/common/MQVersion.java
    pub fn version(self) -> i32 {
        match self {
            Self::V4 => 399,
            Self::V5 => 479,
        }
    }

    /// The version's name, for tools.
    pub fn version_name(self) -> &'static str {
        match self {
            Self::V4 => "V4_9_3",
            Self::V5 => "V5_3_3",
        }
    }

    /// The answer to a name, number or id that cannot be right.
    pub fn invalid_parameter(self) -> i32 {
        match self {
            Self::V4 => 1,
            Self::V5 => 29,
        }
    }
}

/// Settings of a broker and its name server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Profile.
    pub compat: Compat,
    /// Cluster name.
    pub cluster: Arc<str>,
    /// Broker name.
    pub broker: Arc<str>,
    /// The address that clients connect to; a host of all zeros: whatever they came through.
    pub listens: SocketAddr,
    /// Sends may make topics.
    pub auto_create_topics: bool,
    /// Heartbeats and pulls may make groups.
    pub auto_create_groups: bool,
    /// Largest body (V5) or record (V4), bytes.
    pub max_message_bytes: usize,
    /// Factor on all delay levels: 0.001 makes level 1 a millisecond.
    pub delay_scale: f64,
    /// A queue of a group without an offset is young, and starts at 0, while at most this many bytes of the log lie
    /// behind its first message.
    pub young_bytes: u64,
    /// Most bytes of messages in one pull answer; the first message is always taken.
    pub pull_bytes: usize,
    /// Most messages in one pull answer, whatever the client asks for.
    pub pull_messages: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            compat: Compat::V5,
            cluster: "DefaultCluster".into(),
            broker: "broker-a".into(),
            listens: SocketAddr::from(([127, 0, 0, 1], 10911)),
            auto_create_topics: true,
            auto_create_groups: true,
            max_message_bytes: 4 << 20,
            delay_scale: 1.0,
            young_bytes: 1 << 30,
            pull_bytes: 256 << 10,
            pull_messages: 32,
        }
    }
}

impl Settings {
    /// The broker's own names, for the tables.
    pub fn own(&self) -> super::topics::OwnNames<'_> {
        super::topics::OwnNames { cluster: &self.cluster, broker: &self.broker }
    }
}
