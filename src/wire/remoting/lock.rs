//! Locks of queues for ordered consumption: codes 41 and 42, which have no header of their own but two bodies.

use super::queue::QueueBody;
use crate::wire::json::body;

body! {
    /// Which queues to lock (41) or unlock (42).
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct LockBody {
        /// Id of the client.
        client_id: String = "clientId";
        /// Its group.
        consumer_group: String = "consumerGroup";
        /// The queues.
        mq_set: Vec<QueueBody> = "mqSet";
        /// Do not ask the broker's replicas (5.x).
        only_this_broker: Option<bool> = "onlyThisBroker";
    }
}

body! {
    /// Which of them are locked now.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct LockedBody {
        /// The queues.
        locked: Vec<QueueBody> = "lockOKMQSet";
    }
}
