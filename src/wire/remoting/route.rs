//! Routes: which brokers have a topic (105), the brokers of the cluster (106), all topics (206).

use std::borrow::Cow;

use super::header::header;

header! {
    /// Asks for the brokers and queues of a topic (105).
    pub struct RouteRequest<'a> {
        /// Topic.
        topic: Cow<'a, str> = "topic";
        /// The answer must be JSON as everybody reads it (4.9.4 on).
        standard_json: Option<bool> = "acceptStandardJsonOnly";
    }
}
