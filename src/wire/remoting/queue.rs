//! A queue as it stands in bodies: Java's `MessageQueue`.

use serde::{Deserialize, Serialize};

use crate::model::Queue;
use crate::wire::json::{nullable, number};

/// A queue.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct QueueBody {
    /// Name of the broker.
    #[serde(deserialize_with = "nullable")]
    pub broker_name: String,
    /// Its id, from 0.
    #[serde(deserialize_with = "number")]
    pub queue_id: i32,
    /// Topic.
    #[serde(deserialize_with = "nullable")]
    pub topic: String,
}

impl From<&Queue> for QueueBody {
    fn from(queue: &Queue) -> Self {
        Self { broker_name: queue.broker.to_string(), queue_id: queue.id, topic: queue.topic.to_string() }
    }
}

impl From<&QueueBody> for Queue {
    fn from(queue: &QueueBody) -> Self {
        Self::new(queue.topic.as_str(), queue.broker_name.as_str(), queue.queue_id)
    }
}
