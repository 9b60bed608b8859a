//! Heartbeats, leaving, and who is in a group (codes 34, 35, 38; 40 goes out).
//!
//! Called by `command.rs` and the direct port. The tables are `members.rs` (who is there) and `groups.rs` (settings).
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/processor/ClientManageProcessor.java

use std::sync::Arc;

use super::dispatch::{Dispatcher, Refusal};
use super::groups::GroupSettings;
use super::members::{Beat, Group, Member};
use super::session::{Outbox, Session};
use super::settings::Compat;
use crate::model::names;
use crate::model::sort::sort;
use crate::wire::remoting::codes::answer;
use crate::wire::remoting::command::Language;
use crate::wire::remoting::group::HeartbeatBody;

impl Dispatcher {
    /// Takes a heartbeat: makes groups and their retry topics, registers, tells the members of what changed. True if a
    /// subscription of the second heartbeat form has changed.
    pub fn heartbeat(
        &self,
        session: &Arc<Session>,
        (language, version): (Language, i32),
        heartbeat: &HeartbeatBody,
        out: &mut Outbox,
    ) -> bool {
        let member = Member {
            client: heartbeat.client_id.as_str().into(),
            session: session.clone(),
            language,
            version,
            seen: self.clock.now(),
        };
        let (mut sub_changed, mut new_groups, mut new_topics) = (false, false, false);
        for consumer in &heartbeat.consumers {
            let (beat, group) = (Beat::new(heartbeat, consumer), &*consumer.group_name);
            match self.find_or_create(group) {
                Some((settings, new)) => {
                    new_groups |= new;
                    new_topics |= self.has_new_retry_topic(group, &settings);
                }
                // 5.x leaves a group that may not be made out; 4.9.x registers its members all the same.
                None if self.settings.compat == Compat::V5 => continue,
                None => {}
            }
            let changed = self.members.lock().consumer(beat, member.clone());
            sub_changed |= changed.fingerprint;
            if changed.members_or_topics {
                self.notify(group, out);
            }
        }
        // Each file is written once, before the heartbeat is answered, however many groups it names.
        if new_groups {
            self.save_groups();
        }
        if new_topics {
            self.topics_changed();
        }
        let mut members = self.members.lock();
        for producer in &heartbeat.producers {
            members.producer(&producer.group_name, member.clone());
        }
        sub_changed
    }

    /// Makes a group's retry topic if it wants one. True if it was not there; the caller says so to the file of topics.
    fn has_new_retry_topic(&self, group: &str, settings: &GroupSettings) -> bool {
        let name = names::retry_topic(group);
        let mut topics = self.topics.lock();
        if settings.retry_queues <= 0 || topics.find(&name).is_some() {
            return false;
        }
        topics.create_for_group(&name, settings.retry_queues, self.clock.wall_ms());
        true
    }

    /// A group's settings, made when missing if that is allowed, and whether they are new and to be saved.
    fn find_or_create(&self, group: &str) -> Option<(Arc<GroupSettings>, bool)> {
        let now_ms = self.clock.wall_ms();
        self.groups.lock().find_or_create(group, self.settings.auto_create_groups, now_ms)
    }

    /// A client leaves its groups. The connection counts, not the name the client gives.
    pub fn unregister(
        &self,
        session: &Arc<Session>,
        producer_group: Option<&str>,
        consumer_group: Option<&str>,
        out: &mut Outbox,
    ) {
        if let Some(group) = producer_group.filter(|group| !group.is_empty()) {
            self.members.lock().leave_producers(group, session.id);
        }
        if let Some(group) = consumer_group.filter(|group| !group.is_empty()) {
            let left = self.members.lock().leave(group, session.id);
            if left {
                self.notify(group, out);
            }
        }
    }

    /// The clients of a group, sorted; one that has two connections is named twice.
    ///
    /// # Errors
    /// SYSTEM_ERROR if nobody is there.
    pub fn consumer_list(&self, group: &str) -> Result<Vec<Arc<str>>, Refusal> {
        let members = self.members.lock();
        let clients = |group: &Group| group.members().map(|member| member.client.clone()).collect();
        let mut clients: Vec<Arc<str>> = members.group(group).map(clients).unwrap_or_default();
        if clients.is_empty() {
            return Err(Refusal::new(answer::SYSTEM_ERROR, format!("no consumer for this group, {group}")));
        }
        sort(&mut clients);
        Ok(clients)
    }

    /// A group's settings; made when missing, if that is allowed.
    ///
    /// # Errors
    /// SUBSCRIPTION_GROUP_NOT_EXIST.
    pub(super) fn known_group(&self, group: &str) -> Result<Arc<GroupSettings>, Refusal> {
        let (settings, new) = self.find_or_create(group).ok_or_else(|| {
            let remark = format!("subscription group [{group}] does not exist");
            Refusal::new(answer::SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        })?;
        if new {
            self.save_groups();
        }
        Ok(settings)
    }
}
