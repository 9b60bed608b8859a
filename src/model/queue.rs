//! A queue of a topic on a broker, and positions in it. Every room speaks of these; nothing here knows a protocol.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// Position in one queue, counted in messages; a queue's first message has offset 0.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct QueueOffset(pub i64);

impl QueueOffset {
    /// The position after this one.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for QueueOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One queue of a topic on one broker (Java's `MessageQueue`).
///
/// Ordered as every member of a group must order queues to agree on an assignment: by topic, then by broker name, both
/// as Java compares strings (UTF-16 code units), then by id.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Queue {
    /// Topic, as on the wire.
    pub topic: Arc<str>,
    /// Broker name.
    pub broker: Arc<str>,
    /// Queue id, from 0.
    pub id: i32,
}

impl Queue {
    /// A queue by its three parts.
    pub fn new(topic: impl Into<Arc<str>>, broker: impl Into<Arc<str>>, id: i32) -> Self {
        Self { topic: topic.into(), broker: broker.into(), id }
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.topic, self.broker, self.id)
    }
}

impl Ord for Queue {
    fn cmp(&self, other: &Self) -> Ordering {
        java_order(&self.topic, &other.topic)
            .then_with(|| java_order(&self.broker, &other.broker))
            .then_with(|| self.id.cmp(&other.id))
    }
}

impl PartialOrd for Queue {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The order of Java's `String.compareTo`: by UTF-16 code units. It differs from byte order only where a character
/// beyond U+FFFF meets one from U+E000 to U+FFFF.
pub fn java_order(left: &str, right: &str) -> Ordering {
    left.encode_utf16().cmp(right.encode_utf16())
}

/// Where a group that has no committed offset starts in a queue (Java's `ConsumeFromWhere`).
///
/// A committed offset always wins. A RocketMQ broker answers offset 0 for a young topic, so `Last` starts there too.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum StartFrom {
    /// After the last message (Java's `CONSUME_FROM_LAST_OFFSET`, and its default).
    #[default]
    Last,
    /// At the first message (`CONSUME_FROM_FIRST_OFFSET`).
    First,
    /// At the first message stored at or after this time (`CONSUME_FROM_TIMESTAMP`).
    Time(SystemTime),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_ordered_as_java_orders_strings() {
        // U+FF61 is one code unit above every surrogate, U+1F600 starts with the surrogate D83D.
        let (plane0, plane1) = (Queue::new("t", "\u{FF61}", 0), Queue::new("t", "\u{1F600}", 0));
        assert!(plane1 < plane0, "UTF-16 order, not code point order");
        assert!(Queue::new("a", "z", 9) < Queue::new("b", "a", 0));
        assert!(Queue::new("a", "b", 2) < Queue::new("a", "b", 10));
    }
}
