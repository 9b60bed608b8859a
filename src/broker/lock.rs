//! Locks on queues for ordered consumption (codes 41 and 42): who may consume a queue, for how long.
//!
//! The dispatcher calls this under rank 1. It never blocks, never looks at topics or members, and is never saved: a
//! restart frees every lock. A lock does not gate pulls or commits; it only serialises clients that ask for it.
//!
//! Source: apache/rocketmq@rocketmq-all-4.9.3 broker/src/main/java/org/apache/rocketmq/broker/client/rebalance/RebalanceLockManager.java

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::dispatch::Dispatcher;
use crate::model::Queue;
use crate::work::clock::Nanos;

/// How long a lock lives after it was last asked for.
pub const LIVES: Duration = Duration::from_secs(60);

/// The locks of every group.
#[derive(Debug, Default)]
pub struct Locks {
    groups: HashMap<Arc<str>, HashMap<Queue, Held>>,
}

#[derive(Debug)]
struct Held {
    client: Arc<str>,
    until: Nanos,
}

impl Locks {
    /// Takes or renews those of `queues` that are free, lapsed or `client`'s own; gives back the ones it now holds.
    pub fn lock(&mut self, group: &str, client: &str, queues: Vec<Queue>, now: Nanos) -> Vec<Queue> {
        if queues.is_empty() {
            return queues;
        }
        let held = match self.groups.get_mut(group) {
            Some(held) => held,
            None => self.groups.entry(group.into()).or_default(),
        };
        let client: Arc<str> = client.into();
        let until = now + LIVES;
        let mut granted = queues;
        granted.retain(|queue| match held.get_mut(queue) {
            Some(lock) if *lock.client == *client || lock.until <= now => {
                *lock = Held { client: client.clone(), until };
                true
            }
            Some(_) => false,
            None => {
                held.insert(queue.clone(), Held { client: client.clone(), until });
                true
            }
        });
        granted
    }

    /// Gives up those of `queues` that `client` holds; others' locks stay.
    pub fn unlock(&mut self, group: &str, client: &str, queues: &[Queue]) {
        let Some(held) = self.groups.get_mut(group) else { return };
        for queue in queues {
            if held.get(queue).is_some_and(|lock| *lock.client == *client) {
                held.remove(queue);
            }
        }
        if held.is_empty() {
            self.groups.remove(group);
        }
    }

    /// True while any member of the group holds a lock: a broker of 5.x takes such a group for an ordered one.
    pub fn any_live(&self, group: &str, now: Nanos) -> bool {
        self.groups.get(group).is_some_and(|held| held.values().any(|lock| now < lock.until))
    }

    /// Forgets what has lapsed, so that foreign queue names cannot gather.
    pub fn sweep(&mut self, now: Nanos) {
        self.groups.retain(|_, held| {
            held.retain(|_, lock| now < lock.until);
            !held.is_empty()
        });
    }
}

impl Dispatcher {
    /// Locks queues (code 41); those that are now the client's.
    pub fn lock(&self, group: &str, client: &str, queues: Vec<Queue>) -> Vec<Queue> {
        let now = self.clock.now();
        self.locks.lock().lock(group, client, queues, now)
    }

    /// Unlocks queues (code 42).
    pub fn unlock(&self, group: &str, client: &str, queues: &[Queue]) {
        self.locks.lock().unlock(group, client, queues);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(id: i32) -> Queue {
        Queue::new("t", "b", id)
    }

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    /// E-097.
    #[test]
    fn free_own_and_lapsed_locks_are_granted_and_others_are_not() {
        let mut locks = Locks::default();
        assert_eq!(locks.lock("g", "a", vec![queue(0), queue(1)], at(0)), [queue(0), queue(1)]);
        assert_eq!(locks.lock("g", "b", vec![queue(1), queue(2)], at(1)), [queue(2)]);
        assert_eq!(locks.lock("g", "a", vec![queue(1)], at(30)), [queue(1)], "own: renewed");
        assert_eq!(locks.lock("g", "b", vec![queue(0), queue(1)], at(60)), [queue(0)], "0 lapsed, 1 was renewed");
        assert_eq!(locks.lock("other", "b", vec![queue(1)], at(60)), [queue(1)], "groups do not share locks");
        assert_eq!(locks.lock("g", "b", vec![], at(60)), []);
    }

    /// E-098.
    #[test]
    fn only_the_holder_unlocks() {
        let mut locks = Locks::default();
        locks.lock("g", "a", vec![queue(0)], at(0));
        locks.unlock("g", "b", &[queue(0)]);
        assert_eq!(locks.lock("g", "b", vec![queue(0)], at(1)), []);
        locks.unlock("g", "a", &[queue(0), queue(7)]);
        assert_eq!(locks.lock("g", "b", vec![queue(0)], at(1)), [queue(0)]);
    }

    #[test]
    fn lapsed_locks_do_not_mark_a_group_ordered_and_are_forgotten() {
        let mut locks = Locks::default();
        locks.lock("g", "a", vec![queue(0)], at(0));
        assert!(locks.any_live("g", at(59)) && !locks.any_live("g", at(60)) && !locks.any_live("h", at(0)));
        locks.sweep(at(60));
        assert!(locks.groups.is_empty());
    }
}
