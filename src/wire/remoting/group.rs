//! Membership: heartbeats (34), leaving (35), the members of a group (38) and word of a change (40), a look at the
//! connections of groups (203, 204), and the groups themselves (200, 201, 207).

use std::borrow::Cow;

use super::header::header;

header! {
    /// Leaves one or both groups (35). The broker goes by the connection.
    pub struct UnregisterRequest<'a> {
        /// Id of the client.
        client_id: Cow<'a, str> = "clientID";
        /// Producer group to leave.
        producer_group: Option<Cow<'a, str>> = "producerGroup";
        /// Consumer group to leave.
        consumer_group: Option<Cow<'a, str>> = "consumerGroup";
    }
}

header! {
    /// Names a consumer group: asks for its members (38) or connections (203), or says that they have changed (40).
    pub struct ConsumerGroupRequest<'a> {
        /// Group.
        consumer_group: Cow<'a, str> = "consumerGroup";
        /// Name of the broker that is meant; proxies need it.
        broker_name: Option<Cow<'a, str>> = "bname";
    }
}

header! {
    /// Asks for the connections of a producer group (204).
    pub struct ProducerGroupRequest<'a> {
        /// Group.
        producer_group: Cow<'a, str> = "producerGroup";
    }
}

header! {
    /// What the answer to a heartbeat says beside its version (5.1.3 on).
    pub struct HeartbeatAnswer {
        /// The broker takes heartbeats without subscriptions.
        supports_v2: Option<bool> = "IS_SUPPORT_HEART_BEAT_V2";
        /// The subscription differs from what the broker knew; only for heartbeats with a fingerprint.
        sub_changed: Option<bool> = "IS_SUB_CHANGE";
    }
}

header! {
    /// Deletes a group (207). 4.9.x reads one flag, 5.x the other: both are written.
    pub struct DeleteGroupRequest<'a> {
        /// Group.
        group: Cow<'a, str> = "groupName";
        /// With its offsets (5.x).
        clean_offset: bool = "cleanOffset" else false;
        /// With its offsets (4.9.x).
        remove_offset: bool = "removeOffset" else false;
    }
}
