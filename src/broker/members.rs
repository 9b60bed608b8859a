//! Who is there: members of consumer groups and producers, by connection, and what each group subscribes to.
//!
//! `group.rs` feeds it from heartbeats, unregistrations, closed connections and the scan for silent members; `pull.rs`
//! asks it for subscriptions. It sends nothing: whoever changes a group is told, and tells the group.
//!
//! Source: apache/rocketmq@rocketmq-all-4.9.3 broker/src/main/java/org/apache/rocketmq/broker/client/ConsumerManager.java

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::session::{Session, SessionId};
use crate::model::sort::sort;
use crate::model::tags::{TagExpression, java_hash};
use crate::model::{SortedMap, SortedSet};
use crate::wire::remoting::command::Language;
use crate::wire::remoting::group::{
    ConsumeFrom, ConsumeType, ConsumerBody, HeartbeatBody, MessageModel, SubscriptionBody,
};
use crate::work::clock::Nanos;

/// A member that has not sent a heartbeat for this long is dropped.
pub const SILENT: Duration = Duration::from_secs(120);

/// What a consumer says of itself in a heartbeat.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Manner {
    /// Push or pull.
    pub consume_type: Option<ConsumeType>,
    /// Who of the group gets a message.
    pub model: Option<MessageModel>,
    /// Where a new group starts.
    pub from_where: Option<ConsumeFrom>,
}

/// One topic of a group's subscription.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Subscription {
    /// The topic.
    pub topic: Arc<str>,
    /// The expression as it was sent.
    pub text: String,
    /// `TAG` or `SQL92`.
    pub kind: String,
    /// Grows when the expression changes.
    pub version: i64,
    /// Hashes of the tags it lets through, sorted; empty: all. Computed here: what clients send is wrong in some of them.
    pub hashes: Arc<[i32]>,
}

impl Subscription {
    /// Reads a subscription as a client sent it.
    pub fn new(topic: &str, text: &str, kind: Option<&str>, version: i64) -> Self {
        let kind = kind.filter(|kind| !kind.is_empty()).unwrap_or("TAG");
        Self {
            topic: topic.into(),
            text: text.to_owned(),
            kind: kind.to_owned(),
            version,
            hashes: tag_hashes(text).unwrap_or_default(),
        }
    }

    /// True if it filters by an SQL expression.
    pub fn is_sql(&self) -> bool {
        self.kind != "TAG"
    }
}

/// Hashes of the tags of an expression, sorted: an expression may have many thousand tags, and each of them would be
/// compared with each message. Empty for "everything"; `None` if it has separators but no tag.
pub fn tag_hashes(text: &str) -> Option<Arc<[i32]>> {
    let expression = TagExpression::parse(text).ok()?;
    let mut hashes: Vec<i32> = expression.tags().iter().map(|tag| java_hash(tag)).collect();
    sort(&mut hashes);
    Some(hashes.into())
}

/// One connection in a group.
#[derive(Clone)]
pub struct Member {
    /// The client's own name for itself.
    pub client: Arc<str>,
    /// The connection.
    pub session: Arc<Session>,
    /// The client's language.
    pub language: Language,
    /// The version it announces.
    pub version: i32,
    /// Its last heartbeat.
    pub seen: Nanos,
}

/// A group with at least one member.
#[derive(Default)]
pub struct Group {
    members: SortedMap<SessionId, Member>,
    subscriptions: HashMap<Arc<str>, Subscription>,
    manner: Manner,
    fingerprint: i32,
    /// Whose heartbeat the subscriptions are from.
    subscribed_by: Option<SessionId>,
    /// How often members have taken them from each other.
    quarrels: u32,
}

impl Group {
    /// Its members, in the order in which they came.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// What it subscribes to.
    pub fn subscriptions(&self) -> &HashMap<Arc<str>, Subscription> {
        &self.subscriptions
    }

    /// How it consumes.
    pub fn manner(&self) -> &Manner {
        &self.manner
    }
}

/// What a heartbeat says of one consumer group.
pub struct Beat {
    /// The group.
    pub group: String,
    /// How it consumes.
    pub manner: Manner,
    /// All its topics; `None`: a heartbeat of the second form that leaves them out, the old ones stay.
    pub subscriptions: Option<Vec<Subscription>>,
    /// The fingerprint of the second form; 0: the first form.
    pub fingerprint: i32,
}

impl Beat {
    /// What a heartbeat says of one of its groups.
    pub fn new(heartbeat: &HeartbeatBody, consumer: &ConsumerBody) -> Self {
        let fingerprint = heartbeat.heartbeat_fingerprint.unwrap_or(0);
        let left_out = heartbeat.without_sub == Some(true) && fingerprint != 0;
        Self {
            group: consumer.group_name.clone(),
            manner: Manner {
                consume_type: consumer.consume_type,
                model: consumer.message_model,
                from_where: consumer.consume_from_where,
            },
            subscriptions: (!left_out).then(|| consumer.subscriptions.iter().map(Subscription::from).collect()),
            fingerprint,
        }
    }
}

impl From<&SubscriptionBody> for Subscription {
    fn from(body: &SubscriptionBody) -> Self {
        let text = body.sub_string.as_deref().unwrap_or("*");
        Self::new(&body.topic, text, body.expression_type.as_deref(), body.sub_version)
    }
}

impl From<&Subscription> for SubscriptionBody {
    fn from(subscription: &Subscription) -> Self {
        let tags = TagExpression::parse(&subscription.text).unwrap_or_default();
        Self {
            code_set: subscription.hashes.to_vec(),
            expression_type: Some(subscription.kind.clone()),
            sub_string: Some(subscription.text.clone()),
            sub_version: subscription.version,
            tags_set: tags.tags().to_vec(),
            topic: subscription.topic.to_string(),
            ..Self::default()
        }
    }
}

/// What a heartbeat changed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Changed {
    /// A connection or a topic came or went: the members must be told.
    pub members_or_topics: bool,
    /// The fingerprint differs from the group's last one.
    pub fingerprint: bool,
}

/// Everyone who is there.
#[derive(Default)]
pub struct Members {
    groups: HashMap<Arc<str>, Group>,
    producers: HashMap<Arc<str>, HashMap<SessionId, Member>>,
}

impl Members {
    /// A group that has a live member.
    pub fn group(&self, group: &str) -> Option<&Group> {
        self.groups.get(group)
    }

    /// All groups that have live members.
    pub fn groups(&self) -> impl Iterator<Item = (&Arc<str>, &Group)> {
        self.groups.iter()
    }

    /// The live members of a producer group.
    pub fn producers(&self, group: &str) -> impl Iterator<Item = &Member> {
        self.producers.get(group).into_iter().flat_map(HashMap::values)
    }

    /// The sessions of a group's members.
    pub fn sessions(&self, group: &str) -> Vec<Arc<Session>> {
        let sessions = |group: &Group| group.members().map(|member| member.session.clone()).collect();
        self.groups.get(group).map(sessions).unwrap_or_default()
    }

    /// A consumer's heartbeat. The subscriptions of the last one stand for the whole group, as on Apache's broker: two
    /// members with different topics take them from each other.
    pub fn consumer(&mut self, beat: Beat, member: Member) -> Changed {
        let group = match self.groups.get_mut(beat.group.as_str()) {
            Some(group) => group,
            None => self.groups.entry(beat.group.as_str().into()).or_default(),
        };
        let session = member.session.id;
        let mut changed = Changed {
            members_or_topics: group.members.insert(session, member).is_none(),
            fingerprint: beat.fingerprint == 0 || beat.fingerprint != group.fingerprint,
        };
        group.fingerprint = beat.fingerprint;
        group.manner = beat.manner;
        if let Some(subscriptions) = beat.subscriptions {
            group.warn_of_quarrel(&beat.group, session, &subscriptions);
            group.subscribed_by = Some(session);
            changed.members_or_topics |= group.subscribe(subscriptions);
        }
        changed
    }

    /// A producer's heartbeat.
    pub fn producer(&mut self, group: &str, member: Member) {
        if let Some(members) = self.producers.get_mut(group) {
            members.insert(member.session.id, member);
        } else {
            self.producers.insert(group.into(), HashMap::from([(member.session.id, member)]));
        }
    }

    /// A connection leaves a consumer group. True if it was a member.
    pub fn leave(&mut self, group: &str, session: SessionId) -> bool {
        let Some(entry) = self.groups.get_mut(group) else { return false };
        let was = entry.members.remove(&session).is_some();
        if entry.members.is_empty() {
            self.groups.remove(group);
        }
        was
    }

    /// A connection leaves a producer group.
    pub fn leave_producers(&mut self, group: &str, session: SessionId) {
        if let Some(members) = self.producers.get_mut(group) {
            members.remove(&session);
            if members.is_empty() {
                self.producers.remove(group);
            }
        }
    }

    /// A connection is gone: the consumer groups it was in.
    pub fn closed(&mut self, session: SessionId) -> Vec<Arc<str>> {
        self.producers.retain(|_, members| {
            members.remove(&session);
            !members.is_empty()
        });
        let mine =
            self.groups.iter().filter(|(_, group)| group.members.contains_key(&session)).map(|(name, _)| name.clone());
        let groups: Vec<Arc<str>> = mine.collect();
        for group in &groups {
            self.leave(group, session);
        }
        groups
    }

    /// Connections that have been silent too long; their owner closes them, which ends their memberships.
    pub fn silent(&self, now: Nanos) -> Vec<Arc<Session>> {
        let mut silent = SortedMap::new();
        let mut look = |member: &Member| {
            if now >= member.seen + SILENT {
                silent.insert(member.session.id, member.session.clone());
            }
        };
        self.groups.values().for_each(|group| group.members.values().for_each(&mut look));
        self.producers.values().for_each(|members| members.values().for_each(&mut look));
        silent.into_values().collect()
    }
}

impl Group {
    /// Members whose subscriptions differ take them from each other: a user's mistake that nothing else shows. The first
    /// time is logged, then each time their number has doubled.
    fn warn_of_quarrel(&mut self, group: &str, session: SessionId, wanted: &[Subscription]) {
        let another = self.subscribed_by.is_some_and(|by| by != session && self.members.contains_key(&by));
        let known = |topic: &Arc<str>| self.subscriptions.get(topic).map(|subscription| &subscription.text);
        let differs =
            another.then(|| wanted.iter().find(|wanted| known(&wanted.topic) != Some(&wanted.text))).flatten();
        let Some(differs) = differs else { return };
        self.quarrels += 1;
        if self.quarrels.is_power_of_two() {
            let (topic, theirs, times) = (&differs.topic, &differs.text, self.quarrels);
            let ours = self.subscriptions.get(topic).map_or("none", |subscription| &subscription.text);
            log::warn!(
                target: "windlass::broker",
                "members of one group subscribe differently: group={group} topic={topic} one={ours} other={theirs} times={times}"
            );
        }
    }

    /// Takes a whole set of subscriptions. True if a topic came or went; a newer version alone is no such change.
    fn subscribe(&mut self, subscriptions: Vec<Subscription>) -> bool {
        let mut changed = false;
        let before = self.subscriptions.len();
        // A heartbeat may be as long as a frame: no topic is compared with all others.
        let topics: SortedSet<&str> = subscriptions.iter().map(|wanted| &*wanted.topic).collect();
        self.subscriptions.retain(|topic, _| topics.contains(&**topic));
        changed |= self.subscriptions.len() != before;
        for wanted in subscriptions {
            match self.subscriptions.get_mut(&wanted.topic) {
                // One client sends version 0 for ever, so an equal version with another text is taken too.
                Some(known) if wanted.version > known.version => *known = wanted,
                Some(known) if wanted.version == known.version && wanted.text != known.text => *known = wanted,
                Some(_) => {}
                None => {
                    self.subscriptions.insert(wanted.topic.clone(), wanted);
                    changed = true;
                }
            }
        }
        changed
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::broker::session::{Delivery, Outlet};

    pub struct Nowhere;

    impl Outlet for Nowhere {
        fn deliver(&self, _: SessionId, _: Delivery) {}
    }

    pub fn session(id: u64) -> Arc<Session> {
        let addr = std::net::SocketAddr::from(([127, 0, 0, 1], 1000));
        Arc::new(Session { id: SessionId(id), peer: addr, local: addr, outlet: Arc::new(Nowhere) })
    }

    fn member(id: u64, seconds: u64) -> Member {
        Member {
            client: format!("c{id}").into(),
            session: session(id),
            language: Language::JAVA,
            version: 479,
            seen: Nanos(seconds * 1_000_000_000),
        }
    }

    fn beat(topics: &[(&str, i64)]) -> Beat {
        let subscriptions =
            topics.iter().map(|(topic, version)| Subscription::new(topic, "*", None, *version)).collect();
        Beat { group: "g".into(), manner: Manner::default(), subscriptions: Some(subscriptions), fingerprint: 0 }
    }

    /// E-064, E-066, E-067.
    #[test]
    fn connections_and_topics_are_changes_and_versions_are_not() {
        let mut members = Members::default();
        assert!(members.consumer(beat(&[("t", 1)]), member(1, 0)).members_or_topics, "a new member");
        assert!(!members.consumer(beat(&[("t", 1)]), member(1, 1)).members_or_topics);
        assert!(!members.consumer(beat(&[("t", 2)]), member(1, 2)).members_or_topics, "a higher version alone");
        assert_eq!(members.group("g").unwrap().subscriptions()["t"].version, 2);
        assert!(members.consumer(beat(&[("t", 2), ("u", 1)]), member(1, 3)).members_or_topics);
        assert!(members.consumer(beat(&[("u", 1)]), member(1, 4)).members_or_topics, "a topic went");
        assert!(!members.group("g").unwrap().subscriptions().contains_key("t"));
        members.consumer(beat(&[("u", 0)]), member(1, 5));
        assert_eq!(members.group("g").unwrap().subscriptions()["u"].version, 1, "lower versions are ignored");
        let other =
            |version| Beat { subscriptions: Some(vec![Subscription::new("u", "a", None, version)]), ..beat(&[]) };
        members.consumer(other(0), member(1, 6));
        assert_eq!(members.group("g").unwrap().subscriptions()["u"].text, "*");
        members.consumer(other(1), member(1, 7));
        assert_eq!(members.group("g").unwrap().subscriptions()["u"].text, "a", "some clients' versions never grow");
    }

    /// A heartbeat may be as long as a frame: what it costs grows with its length, not with the square of it.
    #[test]
    fn a_heartbeat_of_many_topics_compares_none_with_all_others() {
        let topics: Vec<String> = (0..200_000).map(|topic| format!("t{topic}")).collect();
        let many: Vec<(&str, i64)> = topics.iter().map(|topic| (topic.as_str(), 1)).collect();
        let mut members = Members::default();
        members.consumer(beat(&many), member(1, 0));
        assert!(!members.consumer(beat(&many), member(1, 1)).members_or_topics);
        assert_eq!(members.group("g").unwrap().subscriptions().len(), 200_000);
    }

    /// E-065, E-068, E-069, E-150.
    #[test]
    fn members_leave_by_connection() {
        let mut members = Members::default();
        for id in [1, 2, 3] {
            members.consumer(beat(&[("t", 1)]), member(id, 0));
            members.producer("p", member(id, 0));
        }
        assert_eq!(members.sessions("g").len(), 3);
        assert!(members.leave("g", SessionId(1)) && !members.leave("g", SessionId(1)));
        members.leave_producers("p", SessionId(1));
        assert_eq!((members.sessions("g").len(), members.producers("p").count()), (2, 2));
        assert_eq!(members.closed(SessionId(2)), ["g".into()]);
        assert_eq!(members.closed(SessionId(3)), ["g".into()]);
        assert!(members.groups.is_empty() && members.producers.is_empty(), "what has nobody is forgotten");
    }

    /// E-070.
    #[test]
    fn silence_of_two_minutes_ends_a_membership() {
        let mut members = Members::default();
        members.consumer(beat(&[("t", 1)]), member(1, 0));
        members.consumer(beat(&[("t", 1)]), member(2, 60));
        members.producer("p", member(1, 0));
        members.producer("p", member(3, 0));
        members.producer("p", member(4, 60));
        assert!(members.silent(Nanos(119_999_999_999)).is_empty());
        let silent = members.silent(Nanos(120_000_000_000));
        assert_eq!(silent.iter().map(|session| session.id.0).collect::<Vec<_>>(), [1, 3]);
    }

    /// E-072.
    #[test]
    fn a_heartbeat_without_subscriptions_keeps_the_old_ones() {
        let mut members = Members::default();
        members.consumer(Beat { fingerprint: 7, ..beat(&[("t", 1)]) }, member(1, 0));
        let second = Beat { fingerprint: 7, subscriptions: None, ..beat(&[]) };
        let changed = members.consumer(second, member(1, 1));
        assert_eq!(changed, Changed { members_or_topics: false, fingerprint: false });
        assert!(members.group("g").unwrap().subscriptions().contains_key("t"));
        assert!(members.consumer(Beat { fingerprint: 8, ..beat(&[("t", 1)]) }, member(1, 2)).fingerprint);
    }

    /// E-055.
    #[test]
    fn expressions_are_read_as_java_reads_them() {
        for all in ["*", "", " "] {
            assert!(tag_hashes(all).unwrap().is_empty(), "{all:?}");
        }
        assert_eq!(*tag_hashes("b || a ||").unwrap(), [java_hash("a"), java_hash("b")]);
        assert!(tag_hashes("||").is_none());
    }
}
