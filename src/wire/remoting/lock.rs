//! Locks of queues for ordered consumption: codes 41 and 42, which have no header of their own but two bodies.

use serde::{Deserialize, Serialize};

use super::queue::QueueBody;
use crate::wire::json::{maybe_truth, nullable};

/// Which queues to lock (41) or unlock (42).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LockBody {
    /// Id of the client.
    #[serde(deserialize_with = "nullable")]
    pub client_id: String,
    /// Its group.
    #[serde(deserialize_with = "nullable")]
    pub consumer_group: String,
    /// The queues.
    #[serde(deserialize_with = "nullable")]
    pub mq_set: Vec<QueueBody>,
    /// Do not ask the broker's replicas (5.x).
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_truth")]
    pub only_this_broker: Option<bool>,
}

/// Which of them are locked now.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct LockedBody {
    /// The queues.
    #[serde(rename = "lockOKMQSet", deserialize_with = "nullable")]
    pub locked: Vec<QueueBody>,
}
