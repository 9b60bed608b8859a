//! What a member has to change when queues or members of a topic change: a pure decision over sorted inputs.
//!
//! The core asks it after a member list came in and carries the plan out. It never talks to anybody, and where an input
//! is missing or does not name us, the plan is to change nothing.

use super::assign::Assign;
use crate::model::queue::java_order;
use crate::model::sort::sort_by;
use crate::model::{Queue, SortedSet};

/// What to do with one topic's queues.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Plan {
    /// Nothing can be decided; the present queues are kept.
    Keep(Reason),
    /// Give up `revoke`, take on `claim`; both empty if all is as it should be.
    Change {
        /// Queues that are another member's now, or are gone.
        revoke: Vec<Queue>,
        /// Queues that are ours now.
        claim: Vec<Queue>,
    },
}

/// Why a topic's queues are kept as they are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// No route, or a route without readable queues.
    NoQueues,
    /// The broker listed no member at all.
    NoMembers,
    /// Our own id is not among the members: the broker has not had our heartbeat. Heartbeat it and ask again soon.
    NotListed,
}

/// Decides what changes for the member `own`, who holds `held` of the topic's queues.
///
/// `queues` and `members` may come in any order, and queues with repeats. A member that is listed twice counts twice: a
/// broker keeps members by connection and lists one of whom an old connection is still open (its end was lost on the
/// way, or is still to be handled) once for each, for up to 120 s. Java's members share by the list as it is, so whoever
/// is listed twice takes both shares, or one of them would be nobody's.
///
/// Source: apache/rocketmq@rocketmq-all-4.9.3
/// broker/src/main/java/org/apache/rocketmq/broker/client/ConsumerGroupInfo.java (`getAllClientId`)
pub fn plan(rule: &dyn Assign, queues: &[Queue], members: &[String], own: &str, held: &[Queue]) -> Plan {
    let queues: Vec<Queue> = queues.iter().cloned().collect::<SortedSet<_>>().into_iter().collect();
    if queues.is_empty() {
        return Plan::Keep(Reason::NoQueues);
    }
    let mut members = members.to_vec();
    sort_by(&mut members, |left, right| java_order(left, right));
    if members.is_empty() {
        return Plan::Keep(Reason::NoMembers);
    }
    let places: Vec<usize> = (0..members.len()).filter(|at| members.get(*at).is_some_and(|it| it == own)).collect();
    if places.is_empty() {
        return Plan::Keep(Reason::NotListed);
    }
    // A topic may have 65 536 queues: no list is walked for each of another.
    let have: SortedSet<&Queue> = held.iter().collect();
    let wanted: SortedSet<Queue> = places.into_iter().flat_map(|at| rule.assign(&queues, &members, at)).collect();
    Plan::Change {
        revoke: held.iter().filter(|queue| !wanted.contains(*queue)).cloned().collect(),
        claim: wanted.iter().filter(|queue| !have.contains(queue)).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::assign::Averaging;
    use super::*;

    fn queues(ids: &[i32]) -> Vec<Queue> {
        ids.iter().map(|id| Queue::new("T", "a", *id)).collect()
    }

    fn names(members: &[&str]) -> Vec<String> {
        members.iter().map(|member| (*member).to_owned()).collect()
    }

    fn planned(all: &[i32], members: &[&str], own: &str, held: &[i32]) -> Plan {
        plan(&Averaging, &queues(all), &names(members), own, &queues(held))
    }

    #[test]
    fn b140_inputs_are_sorted_as_java_sorts_them_before_they_are_shared() {
        let plan = planned(&[3, 0, 2, 1, 1], &["c2", "c1"], "c1", &[]);
        assert_eq!(plan, Plan::Change { revoke: vec![], claim: queues(&[0, 1]) });
        // U+FF61 sorts behind every surrogate pair in Java, before it by code point.
        let strange = vec![Queue::new("T", "\u{FF61}", 0), Queue::new("T", "\u{1F600}", 0)];
        let plan = super::plan(&Averaging, &strange, &names(&["a", "b"]), "a", &[]);
        assert_eq!(plan, Plan::Change { revoke: vec![], claim: vec![Queue::new("T", "\u{1F600}", 0)] });
        let plan = super::plan(&Averaging, &queues(&[0, 1]), &names(&["\u{FF61}", "\u{1F600}"]), "\u{1F600}", &[]);
        assert_eq!(plan, Plan::Change { revoke: vec![], claim: queues(&[0]) });
    }

    /// An old connection of `me` has not ended yet for the broker; Java's `you` is the third of three then.
    #[test]
    fn a_member_that_is_listed_twice_takes_both_shares_as_the_others_expect() {
        let listed = ["you", "me", "me"];
        let (mine, yours) = (planned(&[0, 1, 2, 3, 4, 5, 6, 7], &listed, "me", &[]), Averaging);
        assert_eq!(mine, Plan::Change { revoke: vec![], claim: queues(&[0, 1, 2, 3, 4, 5]) });
        let sorted = names(&["me", "me", "you"]);
        assert_eq!(yours.assign(&queues(&[0, 1, 2, 3, 4, 5, 6, 7]), &sorted, 2), queues(&[6, 7]));
    }

    #[test]
    fn only_differences_change() {
        assert_eq!(planned(&[0, 1], &["me"], "me", &[0, 1]), Plan::Change { revoke: vec![], claim: vec![] });
        let plan = planned(&[0, 1, 2, 3], &["me", "you"], "me", &[1, 2, 3]);
        assert_eq!(plan, Plan::Change { revoke: queues(&[2, 3]), claim: queues(&[0]) });
    }

    #[test]
    fn b144_missing_queues_or_members_keep_the_present_queues() {
        assert_eq!(planned(&[], &["me"], "me", &[0]), Plan::Keep(Reason::NoQueues));
        assert_eq!(planned(&[0], &[], "me", &[0]), Plan::Keep(Reason::NoMembers));
    }

    #[test]
    fn b145_not_being_listed_keeps_the_present_queues() {
        assert_eq!(planned(&[0], &["you"], "me", &[0]), Plan::Keep(Reason::NotListed));
    }

    /// Each list walked for each queue of another would be four thousand million comparisons.
    #[test]
    fn a_topic_of_the_most_queues_is_planned_without_comparing_each_with_each() {
        let half: Vec<i32> = (0..1 << 15).collect();
        let all: Vec<i32> = (0..1 << 16).collect();
        let Plan::Change { revoke, claim } = planned(&all, &["me"], "me", &half) else { panic!("kept") };
        assert_eq!((revoke.len(), claim.len()), (0, 1 << 15));
    }
}
