//! Which queue a message goes to: a pure choice over the publish queues of a route, which it never changes.
//!
//! `send.rs` calls it once per attempt. Routes order their queues by broker name and id before they come here, so the
//! same route always means the same order (a hash picks the same queue in every process).

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::model::Queue;
use crate::model::tags::java_hash;

/// What can be chosen: it is on some broker.
pub(super) trait OnBroker {
    /// The broker's name.
    fn broker(&self) -> &str;
}

impl OnBroker for Queue {
    fn broker(&self) -> &str {
        &self.broker
    }
}

/// Where the round robin over one topic's queues stands. Shared by all threads that send to the topic.
#[derive(Debug)]
pub(super) struct Cursor(AtomicU32);

impl Cursor {
    /// A cursor that starts anywhere, so that many young producers do not all begin with the first queue.
    pub(super) fn starting_at(any: u32) -> Self {
        Self(AtomicU32::new(any))
    }

    /// The next queue in turn. With `avoid`, the next one that is on another broker, if there is any.
    ///
    /// Source: apache/rocketmq@rocketmq-all-4.9.3
    /// client/src/main/java/org/apache/rocketmq/client/impl/producer/TopicPublishInfo.java
    pub(super) fn next<'q, Q: OnBroker>(&self, queues: &'q [Q], avoid: Option<&str>) -> Option<&'q Q> {
        let len = u32::try_from(queues.len()).ok().filter(|len| *len > 0)?;
        // The remainder is taken of an unsigned counter, so it stays an index when the counter wraps.
        let first = self.0.fetch_add(1, Relaxed).wrapping_add(1) % len;
        let Some(avoid) = avoid else { return queues.get(first as usize) };
        let turn = || (first as usize..queues.len()).chain(0..first as usize).filter_map(|at| queues.get(at));
        turn().find(|queue| queue.broker() != avoid).or_else(|| queues.get(first as usize))
    }
}

/// The queue that Java's hash selector takes for `key`: `|hash % n|`. The remainder comes before the absolute value,
/// because the smallest hash has none. Stable only while the number of queues is.
///
/// Source: apache/rocketmq@rocketmq-all-5.3.3
/// client/src/main/java/org/apache/rocketmq/client/producer/selector/SelectMessageQueueByHash.java
pub(super) fn by_key<'q, Q>(queues: &'q [Q], key: &str) -> Option<&'q Q> {
    let len = i32::try_from(queues.len()).ok().filter(|len| *len > 0)?;
    queues.get((java_hash(key) % len).unsigned_abs() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(parts: &[(&str, i32)]) -> Vec<Queue> {
        let mut queues: Vec<Queue> =
            parts.iter().flat_map(|(broker, n)| (0..*n).map(|id| Queue::new("t", *broker, id))).collect();
        queues.sort();
        queues
    }

    fn name(queue: Option<&Queue>) -> String {
        queue.map_or_else(String::new, |queue| format!("{}{}", queue.broker, queue.id))
    }

    #[test]
    fn b180_round_robin_takes_every_queue_in_turn() {
        let (all, cursor) = (queues(&[("a", 2), ("b", 2)]), Cursor::starting_at(7));
        let mut seen: Vec<String> = (0..8).map(|_| name(cursor.next(&all, None))).collect();
        assert_eq!(seen[..4], seen[4..]);
        seen.truncate(4);
        seen.sort();
        assert_eq!(seen, ["a0", "a1", "b0", "b1"]);
    }

    #[test]
    fn b180_a_retry_avoids_the_broker_before_unless_it_is_the_only_one() {
        let (all, cursor) = (queues(&[("a", 4), ("b", 1)]), Cursor::starting_at(0));
        for _ in 0..10 {
            assert_eq!(name(cursor.next(&all, Some("a"))), "b0");
            assert!(name(cursor.next(&all, Some("b"))).starts_with('a'));
        }
        let alone = queues(&[("a", 2)]);
        assert_ne!(name(cursor.next(&alone, Some("a"))), name(cursor.next(&alone, Some("a"))));
    }

    #[test]
    fn c035_a_wrapping_counter_stays_an_index() {
        for start in [u32::MAX - 1, i32::MAX as u32 - 1] {
            let (all, cursor) = (queues(&[("a", 3)]), Cursor::starting_at(start));
            for _ in 0..6 {
                assert!(cursor.next(&all, None).is_some(), "from {start}");
            }
        }
        assert!(Cursor::starting_at(0).next(&queues(&[]), None).is_none());
    }

    #[test]
    fn c035_the_hash_without_an_absolute_value_has_a_queue_too() {
        let key = "polygenelubricants";
        assert_eq!(java_hash(key), i32::MIN);
        assert_eq!(name(by_key(&queues(&[("a", 4)]), key)), "a0");
        assert_eq!(name(by_key(&queues(&[("a", 3)]), key)), "a2");
        assert!(by_key(&queues(&[]), key).is_none());
    }

    #[test]
    fn b198_choosing_leaves_the_route_as_it_was() {
        let all = queues(&[("a", 4), ("b", 4)]);
        let (before, cursor) = (all.clone(), Cursor::starting_at(3));
        for turn in 0..100 {
            let avoid = if turn % 2 == 0 { Some("a") } else { None };
            assert!(cursor.next(&all, avoid).is_some());
        }
        assert_eq!(all, before);
    }
}
