//! Faults on demand: a test says which requests shall fail, the dispatcher lets them.
//!
//! `Broker::fail_next` and `Broker::lose_next` set them; `command.rs` and the direct port ask before and after a call.

use std::sync::atomic::{AtomicU32, Ordering};

/// A kind of request, for [`Broker::fail_next`](super::Broker::fail_next).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// Sends of all forms.
    Send,
    /// Pulls.
    Pull,
    /// Commits of offsets.
    Commit,
    /// Queries of committed offsets.
    Query,
    /// Heartbeats.
    Heartbeat,
    /// Failed messages that are sent back.
    SendBack,
    /// Locks on queues.
    Lock,
    /// Routes of the name server.
    Route,
}

/// What shall happen to a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// It is not carried out and answered with SYSTEM_ERROR.
    Refuse,
    /// It is carried out and not answered.
    LoseAnswer,
}

const OPS: usize = 8;

/// How many requests of each kind shall still fail.
#[derive(Debug, Default)]
pub struct Faults {
    refuse: [AtomicU32; OPS],
    lose: [AtomicU32; OPS],
}

impl Faults {
    /// The next `times` requests of this kind suffer `fault`.
    pub fn set(&self, op: Op, fault: Fault, times: u32) {
        let counters = match fault {
            Fault::Refuse => &self.refuse,
            Fault::LoseAnswer => &self.lose,
        };
        if let Some(counter) = counters.get(op as usize) {
            counter.store(times, Ordering::Release);
        }
    }

    /// Whether something shall happen to the next request of this kind.
    pub fn are_set(&self, op: Op) -> bool {
        let set = |counters: &[AtomicU32; OPS]| {
            counters.get(op as usize).is_some_and(|counter| counter.load(Ordering::Relaxed) > 0)
        };
        set(&self.refuse) || set(&self.lose)
    }

    /// What shall happen to this request; counts it.
    pub fn take(&self, op: Op) -> Option<Fault> {
        let takes = |counters: &[AtomicU32; OPS]| {
            let counter = counters.get(op as usize)?;
            if counter.load(Ordering::Relaxed) == 0 {
                return None;
            }
            counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).ok()
        };
        if takes(&self.refuse).is_some() {
            return Some(Fault::Refuse);
        }
        takes(&self.lose).map(|_| Fault::LoseAnswer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_fail_as_were_asked_for() {
        let faults = Faults::default();
        assert_eq!(faults.take(Op::Pull), None);
        faults.set(Op::Pull, Fault::Refuse, 2);
        faults.set(Op::Route, Fault::LoseAnswer, 1);
        assert_eq!((faults.take(Op::Pull), faults.take(Op::Pull)), (Some(Fault::Refuse), Some(Fault::Refuse)));
        assert_eq!((faults.take(Op::Pull), faults.take(Op::Send)), (None, None));
        assert_eq!((faults.take(Op::Route), faults.take(Op::Route)), (Some(Fault::LoseAnswer), None));
    }
}
