//! May this queue fetch now? Pure rules over counts; the process queue and the role that pulls ask them.
//!
//! Java's limits are per queue and compare with *greater than*, so that a queue at its limit still fetches once more.
//! The client-wide budget gates the fetch, never the message.

/// What one queue has fetched and not finished: cached, in a handler's hand, or being sent back.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Held {
    /// Messages.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Highest offset fetched minus lowest unfinished one.
    pub span: u64,
}

/// How much one queue may hold before it stops fetching.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Most messages (Java's `pullThresholdForQueue`).
    pub messages: u64,
    /// Most whole MiB of bodies (Java's `pullThresholdSizeForQueue`).
    pub mebibytes: u64,
    /// Widest span of offsets (Java's `consumeConcurrentlyMaxSpan`); `None` for ordered consumption, which it does not
    /// concern.
    pub span: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { messages: 1000, mebibytes: 100, span: Some(2000) }
    }
}

/// Why a queue does not fetch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Full {
    /// More messages than its limit.
    Messages,
    /// More bytes than its limit.
    Bytes,
    /// Its slowest message is too far behind.
    Span,
}

impl Limits {
    /// The first limit that is exceeded, in Java's order.
    ///
    /// Source: apache/rocketmq@rocketmq-all-4.9.3
    /// client/src/main/java/org/apache/rocketmq/client/impl/consumer/DefaultMQPushConsumerImpl.java (`pullMessage`)
    pub fn exceeded(&self, held: Held) -> Option<Full> {
        if held.messages > self.messages {
            Some(Full::Messages)
        } else if held.bytes >> 20 > self.mebibytes {
            Some(Full::Bytes)
        } else if self.span.is_some_and(|most| held.span > most) {
            Some(Full::Span)
        } else {
            None
        }
    }
}

/// Whether the client's byte budget lets a queue fetch: always with nothing held (else two full queues could wait for
/// each other for ever), and otherwise while the total is under the limit or the queue under its fair share of it.
pub fn within_budget(held_bytes: u64, used: u64, limit: u64, queues: u64) -> bool {
    held_bytes == 0 || used < limit || held_bytes < limit / queues.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Held = Held { messages: 0, bytes: 0, span: 0 };

    #[test]
    fn b072_a_queue_fetches_at_its_limit_and_not_above() {
        let limits = Limits::default();
        assert_eq!(limits.exceeded(Held { messages: 1000, ..OPEN }), None);
        assert_eq!(limits.exceeded(Held { messages: 1001, ..OPEN }), Some(Full::Messages));
    }

    #[test]
    fn b073_bytes_count_in_whole_mebibytes() {
        let limits = Limits::default();
        assert_eq!(limits.exceeded(Held { bytes: (101 << 20) - 1, ..OPEN }), None);
        assert_eq!(limits.exceeded(Held { bytes: 101 << 20, ..OPEN }), Some(Full::Bytes));
    }

    #[test]
    fn b074_b113_the_span_is_exceeded_by_more_and_concerns_concurrent_consumption_only() {
        let ordered = Limits { span: None, ..Limits::default() };
        for (span, want) in [(2000, None), (2001, Some(Full::Span))] {
            assert_eq!(Limits::default().exceeded(Held { span, ..OPEN }), want);
            assert_eq!(ordered.exceeded(Held { span, ..OPEN }), None);
        }
    }

    #[test]
    fn b070_limits_are_looked_at_in_javas_order() {
        let all = Held { messages: 1 << 40, bytes: 1 << 40, span: 1 << 40 };
        assert_eq!(Limits::default().exceeded(all), Some(Full::Messages));
        assert_eq!(Limits::default().exceeded(Held { messages: 1, ..all }), Some(Full::Bytes));
    }

    #[test]
    fn b088_over_budget_only_queues_under_their_share_fetch_and_an_empty_one_always() {
        assert!(within_budget(0, 300, 256, 4));
        assert!(within_budget(63, 300, 256, 4) && !within_budget(64, 300, 256, 4));
        assert!(within_budget(200, 255, 256, 4));
        assert!(within_budget(0, u64::MAX, 0, 0) && !within_budget(1, 1, 0, 0));
    }
}
