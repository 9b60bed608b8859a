//! Which queues of a topic a member gets. Every member computes its share alone from the same sorted inputs, so the
//! rules must be Java's to the letter. `rebalance.rs` calls it; nothing here knows the core or a clock.
//!
//! Source: apache/rocketmq@rocketmq-all-4.9.3
//! client/src/main/java/org/apache/rocketmq/client/consumer/rebalance/AllocateMessageQueueAveragely.java

use crate::model::Queue;

/// A rule by which the members of a group share a topic's queues (Java's `AllocateMessageQueueStrategy`).
///
/// All members of a group must use the same rule.
pub trait Assign: Send + Sync + 'static {
    /// The name that brokers and tools see.
    fn name(&self) -> &str;

    /// What the member at position `own` of `members` gets of `queues`; both are sorted as Java sorts them, and `own`
    /// lies within `members`. A member can be listed twice for a while, after a connection that ended without the
    /// broker's knowledge; it is asked for each of its positions then and takes all of them.
    ///
    /// Runs on the client's loop: it must not block. If it panics the group keeps the queues it has, and an event tells.
    fn assign(&self, queues: &[Queue], members: &[String], own: usize) -> Vec<Queue>;
}

/// Even, contiguous shares; the first members get one more where it does not come out even (Java's default).
#[derive(Clone, Copy, Debug, Default)]
pub struct Averaging;

impl Assign for Averaging {
    fn name(&self) -> &str {
        "AVG"
    }

    fn assign(&self, queues: &[Queue], members: &[String], own: usize) -> Vec<Queue> {
        let (from, to) = average(queues.len(), members.len(), own);
        queues.get(from..to).unwrap_or_default().to_vec()
    }
}

/// The share `[from, to)` of member `own` of `members` in `queues` queues; empty for surplus members.
fn average(queues: usize, members: usize, own: usize) -> (usize, usize) {
    if members == 0 || own >= members {
        return (0, 0);
    }
    let (share, rest) = (queues / members, queues % members);
    let size = share + usize::from(own < rest);
    let from = own * share + own.min(rest);
    (from, from + size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(queues: usize, members: usize) -> Vec<Vec<i32>> {
        let all: Vec<Queue> = (0..queues).map(|id| Queue::new("T", "b-a", id as i32)).collect();
        let names: Vec<String> = (0..members).map(|member| format!("c{member}")).collect();
        (0..members)
            .map(|own| Averaging.assign(&all, &names, own).into_iter().map(|queue| queue.id).collect())
            .collect()
    }

    #[test]
    fn b141_averaging_shares_as_javas_table() {
        assert_eq!(shares(8, 3), [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]]);
        assert_eq!(shares(5, 2), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(shares(4, 4), [vec![0], vec![1], vec![2], vec![3]]);
        assert_eq!(shares(2, 3), [vec![0], vec![1], vec![]]);
    }

    #[test]
    fn c053_surplus_members_get_nothing() {
        assert_eq!(shares(4, 6), [vec![0], vec![1], vec![2], vec![3], vec![], vec![]]);
        assert_eq!(shares(10, 4), [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7], vec![8, 9]]);
    }

    #[test]
    fn every_queue_has_exactly_one_owner() {
        for queues in 0..40 {
            for members in 1..20 {
                let mut all: Vec<i32> = shares(queues, members).concat();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..queues as i32), "{queues} queues, {members} members");
            }
        }
        assert_eq!(average(4, 0, 0), (0, 0));
        assert_eq!(average(4, 2, 2), (0, 0));
    }
}
