//! What is set for consumer groups: how often a message comes again, whether consuming is allowed at all.
//!
//! Heartbeats, pulls and send-backs ask it under rank 1 and make missing groups; code 200 sets, 207 deletes. Who is
//! *there* stands in `members.rs`.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/subscription/SubscriptionGroupManager.java

use std::collections::HashMap;
use std::sync::Arc;

use super::topics::Version;
use crate::model::names;
use crate::wire::remoting::group::GroupConfigBody;

/// Settings of one group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GroupSettings {
    /// Its name.
    pub name: Arc<str>,
    /// It may pull.
    pub consume_enable: bool,
    /// Carried for tools; without effect in Apache's brokers too.
    pub consume_from_min_enable: bool,
    /// It may broadcast.
    pub broadcast_enable: bool,
    /// It is consumed in order (5.x).
    pub orderly: bool,
    /// Queues of its retry topic; 0 or less: failed messages are dropped.
    pub retry_queues: i32,
    /// Redeliveries before a message is a dead letter.
    pub retry_max: i32,
    /// Carried for tools.
    pub broker_id: i64,
    /// Carried for tools.
    pub slow_broker_id: i64,
    /// Members are told when members change.
    pub notify: bool,
    /// Carried for tools (5.x).
    pub sys_flag: i32,
    /// Carried for tools (5.x), minutes.
    pub consume_timeout_minutes: i32,
}

impl GroupSettings {
    /// The settings of a group nobody has set anything for.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            consume_enable: true,
            consume_from_min_enable: true,
            broadcast_enable: true,
            orderly: false,
            retry_queues: 1,
            retry_max: 16,
            broker_id: 0,
            slow_broker_id: 1,
            notify: true,
            sys_flag: 0,
            consume_timeout_minutes: 15,
        }
    }
}

impl From<&GroupSettings> for GroupConfigBody {
    fn from(group: &GroupSettings) -> Self {
        Self {
            broker_id: group.broker_id,
            consume_broadcast_enable: group.broadcast_enable,
            consume_enable: group.consume_enable,
            consume_from_min_enable: group.consume_from_min_enable,
            consume_message_orderly: Some(group.orderly),
            consume_timeout_minute: Some(group.consume_timeout_minutes),
            group_name: group.name.to_string(),
            group_sys_flag: Some(group.sys_flag),
            notify_consumer_ids_changed_enable: group.notify,
            retry_max_times: group.retry_max,
            retry_queue_nums: group.retry_queues,
            which_broker_when_consume_slowly: group.slow_broker_id,
            ..Self::default()
        }
    }
}

impl From<GroupConfigBody> for GroupSettings {
    fn from(body: GroupConfigBody) -> Self {
        Self {
            name: body.group_name.into(),
            consume_enable: body.consume_enable,
            consume_from_min_enable: body.consume_from_min_enable,
            broadcast_enable: body.consume_broadcast_enable,
            orderly: body.consume_message_orderly.unwrap_or(false),
            retry_queues: body.retry_queue_nums,
            retry_max: body.retry_max_times,
            broker_id: body.broker_id,
            slow_broker_id: body.which_broker_when_consume_slowly,
            notify: body.notify_consumer_ids_changed_enable,
            sys_flag: body.group_sys_flag.unwrap_or(0),
            consume_timeout_minutes: body.consume_timeout_minute.unwrap_or(15),
        }
    }
}

/// The settings of every group.
#[derive(Debug, Default)]
pub struct Groups {
    table: HashMap<Arc<str>, Arc<GroupSettings>>,
    version: Version,
}

impl Groups {
    /// The groups every broker starts with.
    pub fn built_in() -> Self {
        let mut groups = Self::default();
        for name in [
            "TOOLS_CONSUMER",
            "FILTERSRV_CONSUMER",
            "SELF_TEST_C_GROUP",
            "CID_ONS-HTTP-PROXY",
            "CID_ONSAPI_PULL",
            "CID_ONSAPI_PERMISSION",
            "CID_ONSAPI_OWNER",
            "CID_RMQ_SYS_TRANS",
        ] {
            groups.put(GroupSettings { broadcast_enable: true, ..GroupSettings::new(name) });
        }
        groups
    }

    /// A group's settings, if it is known.
    pub fn find(&self, name: &str) -> Option<&Arc<GroupSettings>> {
        self.table.get(name)
    }

    /// All groups, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Arc<GroupSettings>> {
        self.table.values()
    }

    /// Which state this is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Takes the version a file had.
    pub fn restore_version(&mut self, version: Version) {
        self.version = version;
    }

    /// Adds or replaces without a change of version: for loading.
    pub fn put(&mut self, group: GroupSettings) {
        self.table.insert(group.name.clone(), Arc::new(group));
    }

    /// A group's settings, made when missing if groups may be made and the name is legal. Names of the broker's own
    /// groups are made always. The flag says whether it is new.
    pub fn find_or_create(&mut self, name: &str, auto_create: bool, now_ms: i64) -> Option<(Arc<GroupSettings>, bool)> {
        if let Some(group) = self.find(name) {
            return Some((group.clone(), false));
        }
        let own = name.starts_with("CID_RMQ_SYS_");
        let legal = !name.is_empty() && name.len() <= names::GROUP_MAX && names::is_legal(name);
        if !(legal && (auto_create || own)) {
            return None;
        }
        Some((self.change(GroupSettings::new(name), now_ms), true))
    }

    /// Creates or replaces (code 200).
    pub fn change(&mut self, group: GroupSettings, now_ms: i64) -> Arc<GroupSettings> {
        let group = Arc::new(group);
        self.table.insert(group.name.clone(), group.clone());
        self.version.step(now_ms);
        group
    }

    /// Deletes (code 207). False if there was none.
    pub fn delete(&mut self, name: &str, now_ms: i64) -> bool {
        let was = self.table.remove(name).is_some();
        if was {
            self.version.step(now_ms);
        }
        was
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E-122.
    #[test]
    fn groups_are_made_on_the_fly_if_that_is_allowed() {
        let mut groups = Groups::built_in();
        assert!(groups.find_or_create("g", false, 1).is_none());
        assert!(groups.find_or_create("CID_RMQ_SYS_x", false, 1).is_some());
        assert!(groups.find_or_create("TOOLS_CONSUMER", false, 1).is_some_and(|(_, new)| !new));
        let (group, new) = groups.find_or_create("g", true, 2).unwrap();
        assert_eq!((group.retry_queues, group.retry_max, group.notify, new), (1, 16, true, true));
        assert!(groups.find_or_create("g", true, 3).is_some_and(|(_, new)| !new));
        for bad in ["", "a b", &"g".repeat(256)] {
            assert!(groups.find_or_create(bad, true, 4).is_none(), "{bad:?}");
        }
        assert_eq!(groups.version(), Version { timestamp: 2, counter: 2 });
    }
}
