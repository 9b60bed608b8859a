//! The core's open requests: what each was for, until when it may be answered, and which ticket it has.
//!
//! `core.rs` puts a request in when it asks, takes it out when the answer or the deadline comes, and gives what it was for
//! to the part concerned. Nothing here sends anything or reads a clock.

use std::collections::VecDeque;

use super::core::{Alarm, Purpose, Timer};
use super::port::Ticket;
use crate::net::Out;
use crate::work::clock::Nanos;
use crate::work::deadlines::Deadlines;

/// A request that has not been answered.
pub(super) struct Call {
    pub purpose: Purpose,
    /// When it is out of time.
    pub deadline: Nanos,
    /// When it was sent.
    pub asked: Nanos,
}

/// Deadlines of answered requests that are kept before all of them are thrown out, beside four for each open request.
const DEAD_MOST: usize = 64;

/// Open requests by ticket: slot and generation, so that a late answer to an old one cannot match.
#[derive(Default)]
pub(super) struct Calls {
    slots: Vec<(u32, Option<Call>)>,
    free: VecDeque<u32>,
    deadlines: Deadlines<Ticket>,
    alarm: Alarm,
    open: usize,
}

impl Calls {
    /// Notes a request; its ticket comes back with the answer.
    pub fn insert(&mut self, call: Call, out: &mut Out<Timer>) -> Ticket {
        let slot = self.free.pop_front().unwrap_or_else(|| {
            self.slots.push((0, None));
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        if self.deadlines.len() > DEAD_MOST + 4 * self.open {
            self.sweep();
        }
        let deadline = call.deadline;
        let mut ticket = Ticket(u64::from(slot));
        if let Some((generation, place)) = self.slots.get_mut(slot as usize) {
            *generation = generation.wrapping_add(1);
            *place = Some(call);
            ticket = Ticket(u64::from(*generation) << 32 | u64::from(slot));
        }
        self.open += 1;
        self.deadlines.arm(deadline, ticket);
        self.alarm.at(deadline, Timer::Calls, out);
        ticket
    }

    /// The request of this ticket, which is over; `None` if it is over already.
    pub fn take(&mut self, ticket: Ticket) -> Option<Call> {
        let slot = ticket.0 as u32;
        let (generation, place) = self.slots.get_mut(slot as usize)?;
        if u64::from(*generation) != ticket.0 >> 32 {
            return None;
        }
        let call = place.take()?;
        self.free.push_back(slot);
        self.open -= 1;
        Some(call)
    }

    fn is_open(&self, ticket: Ticket) -> bool {
        self.slots
            .get(ticket.0 as u32 as usize)
            .is_some_and(|(generation, place)| place.is_some() && u64::from(*generation) == ticket.0 >> 32)
    }

    /// The next request that has run out of time. Requests that were answered leave their deadlines behind; they are
    /// passed over here, and thrown out together once they are the most.
    pub fn overdue(&mut self, now: Nanos) -> Option<Ticket> {
        while let Some(ticket) = self.deadlines.due(now) {
            if self.is_open(ticket) {
                return Some(ticket);
            }
        }
        None
    }

    /// The timer has come: it is armed for the next deadline.
    pub fn rearm(&mut self, now: Nanos, out: &mut Out<Timer>) {
        self.alarm.rang(now);
        if self.deadlines.len() > DEAD_MOST + 4 * self.open {
            self.sweep();
        }
        if let Some(next) = self.deadlines.next() {
            self.alarm.at(next, Timer::Calls, out);
        }
    }

    fn sweep(&mut self) {
        self.deadlines.clear();
        for (slot, (generation, place)) in self.slots.iter().enumerate() {
            if let Some(call) = place {
                self.deadlines.arm(call.deadline, Ticket(u64::from(*generation) << 32 | slot as u64));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(deadline: u64) -> Call {
        Call { purpose: Purpose::Bury, deadline: Nanos(deadline), asked: Nanos(0) }
    }

    #[test]
    fn b029_a_ticket_is_answered_once_and_an_old_one_never_matches() {
        let (mut calls, mut out) = (Calls::default(), Out::new());
        let first = calls.insert(call(5), &mut out);
        assert!(calls.take(first).is_some() && calls.take(first).is_none());
        let second = calls.insert(call(9), &mut out);
        assert_ne!(first, second);
        assert!(calls.take(first).is_none() && calls.is_open(second));
    }

    #[test]
    fn b026_requests_run_out_of_time_at_their_deadline_and_answered_ones_do_not() {
        let (mut calls, mut out) = (Calls::default(), Out::new());
        let tickets: Vec<Ticket> = (0..300).map(|at| calls.insert(call(10 + at), &mut out)).collect();
        for ticket in &tickets[..299] {
            calls.take(*ticket);
        }
        assert_eq!(calls.overdue(Nanos(308)), None);
        calls.rearm(Nanos(308), &mut out);
        assert_eq!(calls.deadlines.len(), 1);
        assert_eq!(calls.overdue(Nanos(309)), Some(tickets[299]));
        calls.take(tickets[299]);
        for _ in 0..300 {
            let ticket = calls.insert(call(400), &mut out);
            calls.take(ticket);
        }
        calls.rearm(Nanos(310), &mut out);
        assert!(calls.deadlines.len() <= DEAD_MOST + 1, "deadlines of answered requests do not pile up");
    }
}
