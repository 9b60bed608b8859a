//! Giving queues up: on rebalance, on unsubscribing, when a broker corrects an offset, and when a consumer stops (D12).
//!
//! Always in the same order: no new pull, what is only cached is dropped, what runs finishes until its time is over,
//! progress is committed and acknowledged, the claim is gone. A consumer that stops leaves its group once its queues are
//! gone; one deadline holds for all of it.

use std::sync::Arc;
use std::time::Duration;

use super::claim::Stage;
use super::group::{ConsumerId, ConsumerReport, GroupStage};
use super::outcome::CommitError;
use super::pull::Pull;
use super::pulled::Pulled;
use crate::consume::chunk::Epoch;
use crate::consume::claim::Claim as Work;
use crate::consume::progress::Progress;
use crate::model::QueueOffset;
use crate::net::Out;
use crate::net::answer::Giver;
use crate::rocketmq::core::{Core, Ending, Reports, Timer};
use crate::rocketmq::events::Event;
use crate::work::clock::Nanos;

/// The last commit of a claim is tried again after this.
const COMMIT_AGAIN: Duration = Duration::from_millis(200);
/// What a claim that is taken away still gets after its handlers' time, to commit.
const COMMIT_TIME: Duration = Duration::from_secs(3);

/// A claim that is given up.
pub(in crate::rocketmq) struct Giving {
    pub work: Arc<Work<Pulled>>,
    pub progress: Progress,
    pub why: Why,
    pub step: Step,
    /// Then it is gone, committed or not.
    pub end: Nanos,
    /// Messages whose handlers had not finished.
    pub unfinished: u64,
    /// Failed commits in a row.
    pub failures: u32,
    /// Why the last commit failed.
    pub error: Option<CommitError>,
}

/// Why a claim is given up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::rocketmq) enum Why {
    /// It is another member's, or its topic is not subscribed any more.
    Revoked,
    /// Its consumer stops.
    Stopped,
    /// The broker has corrected its offset; it is claimed again there.
    Corrected(QueueOffset),
}

/// How far giving up has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::rocketmq) enum Step {
    /// Handlers finish, until then.
    Handlers(Nanos),
    /// The last commit is on its way.
    Commit,
    /// It failed and is sent again then.
    Again(Nanos),
}

/// What handlers get of the time of a stop: the last fifth, but at most a second, is kept for what follows them.
fn handlers_time(most: Duration) -> Duration {
    most.saturating_sub((most / 5).min(Duration::from_secs(1)))
}

impl Core {
    /// Gives a claim up: handlers have until `until`, all of it is over at `end`.
    pub(in crate::rocketmq) fn give_up(
        &mut self,
        epoch: Epoch,
        why: Why,
        until: Nanos,
        end: Nanos,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        match &mut claim.stage {
            // Nothing was pulled: the answer that is on its way finds no claim.
            Stage::Locating(_) => self.gone(epoch, now, out),
            Stage::Giving(giving) => {
                // A stop does not wait longer than it may for what is given up already.
                if let Step::Handlers(handlers) = &mut giving.step {
                    *handlers = (*handlers).min(until);
                }
                if why == Why::Stopped {
                    giving.why = why;
                }
                claim.wake_at(until, out);
            }
            Stage::Active(active) => {
                let drain = self.groups.get(&claim.group).is_some_and(|group| group.spec.settings.drain);
                let (work, progress, pull) = (Arc::clone(&active.work), active.progress, active.pull);
                work.queue().stop(drain && why == Why::Stopped);
                claim.stage = Stage::Giving(Giving {
                    work,
                    progress,
                    why,
                    step: Step::Handlers(until),
                    end,
                    unfinished: 0,
                    failures: 0,
                    error: None,
                });
                claim.wake_at(until, out);
                if let Pull::Out(ticket) = pull {
                    self.forget(ticket, out);
                }
                self.claim_news(epoch, now, out);
            }
        }
    }

    /// The broker says that the offset of a pull lies outside of what it holds (B-084).
    ///
    /// Results that come later count for nothing, so that they cannot undo the correction: no waiting for handlers. What
    /// has failed before is still handed on.
    pub(in crate::rocketmq) fn correct(&mut self, epoch: Epoch, to: QueueOffset, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Some(active) = claim.active() else { return };
        let from = active.next;
        let (id, group, queue) = (claim.group, Arc::clone(&claim.group_name), claim.queue.clone());
        self.tell(id, Event::OffsetCorrected { group, queue, from, to });
        self.give_up(epoch, Why::Corrected(to), now, Nanos::MAX, now, out);
        self.handlers_done(epoch, now, out);
    }

    /// Nothing of the claim runs any more, or its time is over: the last commit.
    pub(in crate::rocketmq) fn handlers_done(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Stage::Giving(giving) = &mut claim.stage else { return };
        if !matches!(giving.step, Step::Handlers(_)) {
            return;
        }
        let (point, unfinished) = giving.work.queue().close();
        giving.unfinished = unfinished;
        giving.step = Step::Commit;
        giving.progress.saw(point);
        self.giving_committed(epoch, now, out);
    }

    /// Sends the last commit if one is needed and none is on its way; else the claim is gone.
    pub(in crate::rocketmq) fn giving_committed(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Stage::Giving(giving) = &mut claim.stage else { return };
        if matches!(giving.step, Step::Handlers(_)) || giving.progress.is_under_way() {
            return;
        }
        if let Why::Corrected(to) = giving.why
            && giving.progress.seen() != to
        {
            giving.progress = Progress::new(to, None);
        }
        if giving.progress.is_settled() {
            self.gone(epoch, now, out);
        } else if giving.failures > 0 {
            let again = now + COMMIT_AGAIN;
            giving.step = Step::Again(again);
            let at = again.min(giving.end);
            claim.wake_at(at, out);
        } else {
            self.commit_last(epoch, now, out);
        }
    }

    fn commit_last(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Stage::Giving(giving) = &mut claim.stage else { return };
        giving.step = Step::Commit;
        let (offset, end) = (giving.progress.send(false), giving.end);
        claim.wake_at(end, out);
        if let Some(offset) = offset {
            self.start_commit(epoch, offset, now, out);
        }
    }

    pub(in crate::rocketmq) fn giving_due(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        self.claim_news(epoch, now, out);
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Stage::Giving(giving) = &mut claim.stage else { return };
        // A handler that blocks keeps no other message of the claim waiting.
        giving.work.overdue(now);
        let (step, end) = (giving.step, giving.end);
        match step {
            Step::Handlers(until) if until <= now => self.handlers_done(epoch, now, out),
            Step::Handlers(until) => claim.wake_at(until, out),
            Step::Commit | Step::Again(_) if end <= now => self.gone(epoch, now, out),
            Step::Again(at) if at <= now => self.commit_last(epoch, now, out),
            Step::Again(at) => claim.wake_at(at.min(end), out),
            Step::Commit => claim.wake_at(end, out),
        }
    }

    /// The claim is over.
    fn gone(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.remove(&epoch) else { return };
        let id = claim.group;
        let Stage::Giving(giving) = claim.stage else {
            self.claim_ended(id, now, out);
            return;
        };
        let tally = giving.work.queue().tally();
        let committed = giving.progress.acknowledged();
        let failed = giving.progress.is_behind();
        if let Some(group) = self.groups.get_mut(&id) {
            group.report.add(&tally);
            group.report.unfinished += giving.unfinished;
            if let Some(committed) = committed {
                group.report.committed.insert(claim.queue.clone(), committed);
            }
            if failed && giving.why == Why::Stopped {
                // What is on its way now counts for more than what an earlier attempt came to.
                let why = giving.error.filter(|_| !giving.progress.is_under_way()).unwrap_or(CommitError::OutOfTime);
                group.report.failed_commits.push((claim.queue.clone(), why));
            }
        }
        if let Why::Corrected(to) = giving.why {
            self.claim_at(id, claim.queue, to, committed, now, out);
            return;
        }
        let (group, queue, unfinished) = (claim.group_name, claim.queue, giving.unfinished);
        self.tell(id, Event::Revoked { group, queue, committed, unfinished });
        self.claim_ended(id, now, out);
    }

    /// One claim less: a group that stops and has none left leaves its brokers.
    fn claim_ended(&mut self, id: ConsumerId, now: Nanos, out: &mut Out<Timer>) {
        if self.claims.values().any(|claim| claim.group == id) {
            return;
        }
        let Some(group) = self.groups.get_mut(&id) else { return };
        let GroupStage::Stopping { end, answers } = &mut group.stage else { return };
        let (end, answers) = (*end, std::mem::take(answers));
        group.stage = GroupStage::Leaving { end, waiting: 0, answers };
        let Some(group) = self.groups.remove(&id) else { return };
        let waiting = self.leave(None, Some(&group), Some(end.since(now)), now, out);
        self.groups.insert(id, group);
        if let Some(group) = self.groups.get_mut(&id)
            && let GroupStage::Leaving { waiting: left, .. } = &mut group.stage
        {
            *left = waiting;
        }
        if waiting == 0 {
            self.group_ended(id, now, out);
        }
    }

    /// A broker has answered that the group is left, or will not.
    pub(in crate::rocketmq) fn left(&mut self, id: ConsumerId, now: Nanos, out: &mut Out<Timer>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let GroupStage::Leaving { waiting, .. } = &mut group.stage else { return };
        *waiting = waiting.saturating_sub(1);
        if *waiting == 0 {
            self.group_ended(id, now, out);
        }
    }

    fn group_ended(&mut self, id: ConsumerId, now: Nanos, out: &mut Out<Timer>) {
        let Some(group) = self.groups.remove(&id) else { return };
        group.spec.consumer.close();
        log::info!(target: "windlass::group", "consumer has stopped: group={} finished={} dropped={} unfinished={}",
            group.spec.group, group.report.finished, group.report.dropped, group.report.unfinished);
        if let GroupStage::Stopping { answers, .. } | GroupStage::Leaving { answers, .. } = group.stage {
            for answer in answers {
                // Whoever asked may have given up.
                let _ = answer.give(group.report.clone());
            }
        }
        if let Some(ending) = &mut self.ending {
            ending.reports.push((Arc::clone(&group.spec.group), group.report));
            self.end_if_empty(now, out);
        }
    }

    pub(in crate::rocketmq) fn revoke_topic(&mut self, id: ConsumerId, topic: &str, now: Nanos, out: &mut Out<Timer>) {
        let epochs: Vec<Epoch> = self
            .claims
            .values()
            .filter(|claim| claim.group == id && &*claim.queue.topic == topic)
            .map(|claim| claim.epoch)
            .collect();
        for epoch in epochs {
            self.revoke(epoch, now, out);
        }
    }

    /// Gives a queue up that is another member's now, or nobody's.
    pub(in crate::rocketmq) fn revoke(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        let group = self.claims.get(&epoch).and_then(|claim| self.groups.get(&claim.group));
        let Some(wait) = group.map(|group| group.spec.settings.revoke_wait) else { return };
        let until = now + wait;
        self.give_up(epoch, Why::Revoked, until, until + COMMIT_TIME, now, out);
    }

    pub(in crate::rocketmq) fn stop_group(
        &mut self,
        id: ConsumerId,
        most: Duration,
        answer: Option<Giver<ConsumerReport>>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let (until, end) = (now + handlers_time(most), now + most);
        match &mut group.stage {
            GroupStage::Stopping { end: before, answers } | GroupStage::Leaving { end: before, answers, .. } => {
                answers.extend(answer);
                if end >= *before {
                    return;
                }
                // Its client, say, has less time than it was given: the nearer deadline holds for all of it.
                *before = end;
            }
            GroupStage::Running => group.stage = GroupStage::Stopping { end, answers: answer.into_iter().collect() },
        }
        self.ending_alarm.at(end, Timer::Ending, out);
        let epochs: Vec<Epoch> =
            self.claims.values().filter(|claim| claim.group == id).map(|claim| claim.epoch).collect();
        for epoch in epochs {
            self.give_up(epoch, Why::Stopped, until, end, now, out);
        }
        self.claim_ended(id, now, out);
    }

    pub(in crate::rocketmq) fn shutdown(
        &mut self,
        most: Duration,
        answer: Giver<Reports>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        if let Some(ending) = &mut self.ending {
            ending.answers.push(answer);
            return;
        }
        self.ending = Some(Ending { answers: vec![answer], reports: Vec::new() });
        let groups: Vec<ConsumerId> = self.groups.keys().copied().collect();
        for id in groups {
            self.stop_group(id, most, None, now, out);
        }
        self.end_if_empty(now, out);
    }

    /// Whatever still stops is out of time.
    pub(in crate::rocketmq) fn ending_due(&mut self, now: Nanos, out: &mut Out<Timer>) {
        self.ending_alarm.rang(now);
        let late = |end: Nanos| end <= now;
        let groups: Vec<ConsumerId> = self
            .groups
            .values()
            .filter(|group| match &group.stage {
                GroupStage::Running => false,
                GroupStage::Stopping { end, .. } | GroupStage::Leaving { end, .. } => late(*end),
            })
            .map(|group| group.id)
            .collect();
        for id in groups {
            let epochs: Vec<Epoch> =
                self.claims.values().filter(|claim| claim.group == id).map(|claim| claim.epoch).collect();
            for epoch in epochs {
                // What has not been closed yet is closed now: what is unfinished is counted.
                self.handlers_done(epoch, now, out);
                self.gone(epoch, now, out);
            }
            self.group_ended(id, now, out);
        }
        let ends = self.groups.values().filter_map(|group| match &group.stage {
            GroupStage::Running => None,
            GroupStage::Stopping { end, .. } | GroupStage::Leaving { end, .. } => Some(*end),
        });
        if let Some(next) = ends.min() {
            self.ending_alarm.at(next, Timer::Ending, out);
        }
    }

    /// Once every consumer has stopped, the client ends.
    fn end_if_empty(&mut self, now: Nanos, out: &mut Out<Timer>) {
        if !self.groups.is_empty() || self.ending.is_none() {
            return;
        }
        let producers: Vec<Arc<str>> = std::mem::take(&mut self.producers).into_keys().collect();
        for group in producers {
            self.leave(Some(&group), None, None, now, out);
        }
        let Some(ending) = &mut self.ending else { return };
        for answer in std::mem::take(&mut ending.answers) {
            let _ = answer.give(ending.reports.clone());
        }
        self.port.close(out);
        out.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d12_the_last_fifth_or_second_is_kept() {
        let of = |ms| handlers_time(Duration::from_millis(ms)).as_millis();
        assert_eq!([of(0), of(1000), of(30_000)], [0, 800, 29_000]);
        assert!(handlers_time(Duration::MAX) < Duration::MAX);
    }
}
