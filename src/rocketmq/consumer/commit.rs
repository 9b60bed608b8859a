//! Committing progress: rounds of acknowledged commits, one on its way per queue (D11).
//!
//! When and what is `consume::progress`; this file sends and reads the answers. A commit that fails stops neither
//! pulling nor rebalancing: it is tried again in the next round. Progress that a user keeps himself goes through
//! `offset.rs` first.

use std::sync::Arc;

use super::claim::Stage;
use super::outcome::CommitError;
use super::pulled::Pulled;
use crate::consume::chunk::Epoch;
use crate::consume::progress::Round;
use crate::model::QueueOffset;
use crate::net::Out;
use crate::rocketmq::core::{Core, Purpose, Timer};
use crate::rocketmq::events::{Event, TOLD_EVERY};
use crate::rocketmq::port::{Answer, Ask, CallError, Target};
use crate::wire::remoting::codes::request;
use crate::wire::remoting::offset::UpdateOffsetRequest;
use crate::work::clock::Nanos;

impl Core {
    /// Some claim's progress has moved, or has to be committed again.
    pub(in crate::rocketmq) fn progress_moved(&mut self, now: Nanos, out: &mut Out<Timer>) {
        self.rounds.moved(now);
        let next = self.rounds.next();
        self.commit_alarm.at(next, Timer::Commits, out);
    }

    pub(in crate::rocketmq) fn commits_due(&mut self, now: Nanos, out: &mut Out<Timer>) {
        self.commit_alarm.rang(now);
        if let Some(round) = self.rounds.due(now) {
            let epochs: Vec<Epoch> = self.claims.keys().copied().collect();
            for epoch in epochs {
                self.commit(epoch, round == Round::Full, now, out);
            }
        }
        if !self.claims.is_empty() {
            let next = self.rounds.next();
            self.commit_alarm.at(next, Timer::Commits, out);
        }
    }

    fn commit(&mut self, epoch: Epoch, full: bool, now: Nanos, out: &mut Out<Timer>) {
        if !self.is_sure(epoch, now, out) {
            return;
        }
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let queue = claim.queue.clone();
        let Some(active) = claim.active() else { return };
        let (work, taken) = (&active.work, active.taken);
        if work.queue().held_messages() == 0 && work.queue().progress() < taken {
            // What the last answers brought was all filtered, but came while something was still held. Nothing is now,
            // so that progress goes on over it without waiting for the next answer (C-052).
            work.put(&Arc::new(Pulled::nothing(queue)), taken, now);
        }
        active.progress.saw(work.queue().commit_point());
        if let Some(offset) = active.progress.send(full) {
            self.start_commit(epoch, offset, now, out);
        }
    }

    /// Begins to commit an offset that counts as under way.
    pub(super) fn start_commit(&mut self, epoch: Epoch, offset: QueueOffset, now: Nanos, out: &mut Out<Timer>) {
        if self.own_store(epoch).is_some() {
            self.keep_own(epoch, offset);
        } else {
            self.send_commit(epoch, offset, now, out);
        }
    }

    /// Writes an offset that counts as under way to its broker.
    pub(super) fn send_commit(&mut self, epoch: Epoch, offset: QueueOffset, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.get(&epoch) else { return };
        let (queue, group) = (claim.queue.clone(), Arc::clone(&claim.group_name));
        let fields = UpdateOffsetRequest {
            consumer_group: (&*group).into(),
            topic: (&*queue.topic).into(),
            queue_id: queue.id,
            commit_offset: offset.0,
            broker_name: Some((&*queue.broker).into()),
        };
        // Slaves store no offsets (B-045).
        let Some(master) = self.route(&queue.topic).and_then(|route| route.master(&queue.broker)).cloned() else {
            let error = CallError::NoAddress { of: queue.broker.to_string() };
            self.commit_answered(epoch, Err(error), now, out);
            return;
        };
        let ask = Ask::of(request::UPDATE_CONSUMER_OFFSET, &fields);
        let timeout = self.context.settings.timing.offset;
        self.ask(Target::Broker(&master), &ask, Purpose::Commit(epoch), timeout, now, out);
    }

    pub(in crate::rocketmq) fn commit_answered(
        &mut self,
        epoch: Epoch,
        result: Result<Answer, CallError>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let result = result.and_then(|answer| answer.done());
        let Some(queue) = self.claims.get(&epoch).map(|claim| claim.queue.clone()) else { return };
        if result.as_ref().is_err_and(|error| error.code().is_none()) {
            self.route_doubted(&queue.topic, now, out);
        }
        self.commit_ended(epoch, result.map_err(|error| CommitError::of_call(error, queue.broker)), now, out);
    }

    /// The commit of a claim is over: stored, or why not.
    pub(super) fn commit_ended(
        &mut self,
        epoch: Epoch,
        result: Result<(), CommitError>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let (progress, failures) = match &mut claim.stage {
            Stage::Active(active) => (&mut active.progress, &mut active.commit_failures),
            Stage::Giving(giving) => (&mut giving.progress, &mut giving.failures),
            Stage::Locating(_) => return,
        };
        // What a user's own store has is stored, whatever becomes of the broker's copy; a later round writes that again.
        let stored = result.is_ok() || progress.is_stored();
        progress.answered(stored);
        let result = result.map_err(|error| if stored { CommitError::Copy(Box::new(error)) } else { error });
        let offset = progress.seen();
        *failures = if result.is_ok() { 0 } else { failures.saturating_add(1) };
        let times = *failures;
        let (id, group, queue) = (claim.group, Arc::clone(&claim.group_name), claim.queue.clone());
        match &mut claim.stage {
            Stage::Giving(giving) => {
                giving.error = result.as_ref().err().cloned();
                self.giving_committed(epoch, now, out);
            }
            Stage::Active(_) if !stored => self.progress_moved(now, out),
            Stage::Active(active) => active.known = true,
            Stage::Locating(_) => {}
        }
        if let Err(error) = result
            && (times == 1 || times % TOLD_EVERY == 0)
        {
            self.tell(id, Event::CommitFailed { group, queue, offset, error, times });
        }
    }
}
