//! Counters of a broker, for tools (code 28): what came in, what went out, how fast lately.
//!
//! Counted with atomics by whoever does it; read by `admin.rs`.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::remoting::message_id::{UniqueId, UniqueIds};

/// Counters since the start.
#[derive(Debug)]
pub struct Counters {
    put_messages: AtomicU64,
    put_bytes: AtomicU64,
    got_messages: AtomicU64,
    got_bytes: AtomicU64,
    sent_back: AtomicU64,
    queue_turn: AtomicU64,
    /// For messages whose sender gave no id.
    ids: UniqueIds,
}

impl Default for Counters {
    fn default() -> Self {
        let ids = UniqueIds::new(Ipv4Addr::LOCALHOST.into(), std::process::id(), 0x0B10_C4E5);
        Self {
            put_messages: AtomicU64::new(0),
            put_bytes: AtomicU64::new(0),
            got_messages: AtomicU64::new(0),
            got_bytes: AtomicU64::new(0),
            sent_back: AtomicU64::new(0),
            queue_turn: AtomicU64::new(0),
            ids,
        }
    }
}

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Totals {
    /// Messages stored for clients.
    pub put_messages: u64,
    /// Their body bytes.
    pub put_bytes: u64,
    /// Messages handed out.
    pub got_messages: u64,
    /// Their bytes.
    pub got_bytes: u64,
    /// Messages that came back.
    pub sent_back: u64,
}

impl Counters {
    pub(super) fn put(&self, messages: usize, bytes: usize) {
        self.put_messages.fetch_add(messages as u64, Ordering::Relaxed);
        self.put_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn got(&self, messages: usize, bytes: usize) {
        self.got_messages.fetch_add(messages as u64, Ordering::Relaxed);
        self.got_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn sent_back(&self) {
        self.sent_back.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that grows: for choosing queues in turn.
    pub(super) fn next_queue(&self) -> u64 {
        self.queue_turn.fetch_add(1, Ordering::Relaxed)
    }

    /// An id for a message whose sender gave none.
    pub(super) fn unique_id(&self, wall_ms: i64) -> UniqueId {
        self.ids.next(wall_ms)
    }

    /// The counters now.
    pub fn totals(&self) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            put_messages: read(&self.put_messages),
            put_bytes: read(&self.put_bytes),
            got_messages: read(&self.got_messages),
            got_bytes: read(&self.got_bytes),
            sent_back: read(&self.sent_back),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_add_up_and_ids_differ() {
        let counters = Counters::default();
        counters.put(3, 30);
        counters.got(2, 20);
        counters.sent_back();
        let totals = counters.totals();
        assert_eq!((totals.put_messages, totals.put_bytes), (3, 30));
        assert_eq!((totals.got_messages, totals.got_bytes, totals.sent_back), (2, 20, 1));
        assert_ne!(counters.unique_id(5), counters.unique_id(5));
        assert_ne!(counters.next_queue(), counters.next_queue());
    }
}
