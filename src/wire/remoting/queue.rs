//! A queue as it stands in bodies: Java's `MessageQueue`.

use crate::model::Queue;
use crate::wire::json::body;

body! {
    /// A queue.
    #[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
    pub struct QueueBody {
        /// Name of the broker.
        broker_name: String = "brokerName";
        /// Its id, from 0.
        queue_id: i32 = "queueId";
        /// Topic.
        topic: String = "topic";
    }
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
