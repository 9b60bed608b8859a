//! A claim: one queue that is ours for a while, from finding out where to start until it is given up.
//!
//! The core owns every claim and keys it by its epoch; whatever carries an older epoch finds no claim and is dropped
//! (D32). Pulling is `pull.rs`, committing `commit.rs`, giving up `revoke.rs`.
//!
//! Source: apache/rocketmq@rocketmq-all-4.9.3
//! client/src/main/java/org/apache/rocketmq/client/impl/consumer/RebalancePushImpl.java (`computePullFromWhere`)

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use super::group::{Assigned, ConsumerId};
use super::pull::{Damaged, Pull};
use super::pulled::Pulled;
use super::revoke::Giving;
use crate::consume::chunk::Epoch;
use crate::consume::claim::{Bell, Claim as Work};
use crate::consume::progress::Progress;
use crate::consume::queue::{ProcessQueue, SETTLED};
use crate::model::{Queue, QueueOffset, StartFrom, names};
use crate::net::{Handle, Out};
use crate::rocketmq::core::{Alarm, Command, Core, Purpose, Timer};
use crate::rocketmq::events::{Event, PauseReason, TOLD_EVERY};
use crate::rocketmq::port::{Answer, Ask, CallError, Target, Ticket};
use crate::wire::remoting::codes::{answer, request};
use crate::wire::remoting::offset::{OffsetAnswer, QueryOffsetRequest, QueueRequest, SearchOffsetRequest};
use crate::work::clock::Nanos;

/// One queue that is ours.
pub struct Claim {
    pub(in crate::rocketmq) epoch: Epoch,
    pub(in crate::rocketmq) group: ConsumerId,
    pub(in crate::rocketmq) group_name: Arc<str>,
    pub(in crate::rocketmq) queue: Queue,
    pub(in crate::rocketmq) stage: Stage,
    pub(in crate::rocketmq) alarm: Alarm,
    /// Starts in a row that could not be found out.
    failures: u32,
    /// When the last good answer for it came, or what it waited for was told; see `watch.rs`.
    pub(in crate::rocketmq) heard: Nanos,
    /// How often its silence has been told.
    pub(in crate::rocketmq) silences: u32,
}

/// How far the life of a claim has come.
pub(in crate::rocketmq) enum Stage {
    /// Where to start is being found out.
    Locating(Locating),
    /// It is pulled.
    Active(Active),
    /// It is given up: handlers finish, progress is committed.
    Giving(Giving),
}

/// Where to start is being found out.
pub(in crate::rocketmq) enum Locating {
    /// The broker has been asked.
    Asked,
    /// It is asked again then.
    Waiting(Nanos),
}

/// A claim that is pulled.
pub(in crate::rocketmq) struct Active {
    /// The process queue and its handlers.
    pub work: Arc<Work<Pulled>>,
    /// Where the next pull starts.
    pub next: QueueOffset,
    /// Up to where answers have been taken in.
    pub taken: QueueOffset,
    pub pull: Pull,
    /// When the last pull went out.
    pub asked_at: Nanos,
    /// Answers in a row that came at once, brought nothing and led nowhere.
    pub standing: u32,
    /// Failed pulls in a row.
    pub failures: u32,
    /// Of them, those for which the broker was there: it refused, or broke off.
    pub refusals: u32,
    pub progress: Progress,
    /// The broker does not hold what was before this claim: if it holds a later offset than was ever asked for, somebody
    /// else has gone on here.
    pub known: bool,
    pub footing: Footing,
    /// Failed commits in a row.
    pub commit_failures: u32,
    /// Id of the broker that should be pulled from.
    pub suggested: i64,
    pub damaged: Damaged,
    /// What was told of a pause that lasts.
    pub paused: Paused,
    /// When stuck handlers are looked for next.
    pub expire: Nanos,
    /// When memory of messages that wait is looked at next.
    pub thin: Nanos,
    /// How often it was looked at since messages came last.
    pub looks: u32,
}

/// Whether a queue that is pulled may have been another member's for a while.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::rocketmq) enum Footing {
    /// No.
    Sure,
    /// Its broker's connection was lost, and with it perhaps the queue. Nothing is committed before the broker has said
    /// where the group stands.
    Unsure,
    /// It was asked.
    Asked,
}

/// What was told of a claim's pause: its reason is told once, another one again, and its end once.
#[derive(Debug, Default)]
pub(in crate::rocketmq) struct Paused {
    why: Option<PauseReason>,
    /// An end has to be told.
    open: bool,
}

impl Paused {
    /// It is paused for `why`; true if that has to be told. Handlers and memory take turns: they count as one reason.
    pub fn is_news(&mut self, why: &PauseReason) -> bool {
        use PauseReason::{Asked, Budget, Full, NoBroker};
        let told = match (&self.why, why) {
            (Some(Full(_) | Budget), Full(_) | Budget) | (Some(Asked), Asked) | (Some(NoBroker), NoBroker) => true,
            (None | Some(Full(_) | Budget | Asked | NoBroker), _) => false,
        };
        if !told {
            (self.why, self.open) = (Some(why.clone()), true);
        }
        !told
    }

    /// The reason that was told is over, but the queue is not pulled yet.
    pub fn reason_ended(&mut self) {
        self.why = None;
    }

    /// True while what was told is why it waits.
    pub fn is_told(&self) -> bool {
        self.why.is_some()
    }

    /// The queue is pulled; true if that has to be told.
    pub fn ended(&mut self) -> bool {
        self.why = None;
        std::mem::take(&mut self.open)
    }
}

/// The bell of a claim: a small command for the loop.
struct ClaimBell {
    handle: Handle<Command>,
    epoch: Epoch,
}

impl Bell for ClaimBell {
    fn ring(&self) -> bool {
        self.handle.post_own(Command::Bell(self.epoch)).is_ok()
    }
}

impl Claim {
    pub(in crate::rocketmq) fn active(&mut self) -> Option<&mut Active> {
        match &mut self.stage {
            Stage::Active(active) => Some(active),
            Stage::Locating(_) | Stage::Giving(_) => None,
        }
    }

    /// Has [`Core::claim_due`] called at `at`.
    pub(in crate::rocketmq) fn wake_at(&mut self, at: Nanos, out: &mut Out<Timer>) {
        self.alarm.at(at, Timer::Claim(self.epoch), out);
    }

    pub(super) fn describe(&self) -> Assigned {
        let queue = self.queue.clone();
        match &self.stage {
            Stage::Locating(_) => Assigned {
                queue,
                next: None,
                finished: None,
                committed: None,
                held: 0,
                waits: Some("start offset".to_owned()),
            },
            Stage::Active(active) => Assigned {
                queue,
                next: Some(active.next),
                finished: Some(active.work.queue().progress()),
                committed: active.progress.acknowledged(),
                held: active.work.queue().held_messages(),
                waits: active.pull.waits(),
            },
            Stage::Giving(giving) => Assigned {
                queue,
                next: None,
                finished: Some(giving.progress.seen()),
                committed: giving.progress.acknowledged(),
                held: giving.work.queue().held_messages(),
                waits: Some("given up".to_owned()),
            },
        }
    }
}

/// Epochs are never used twice in a process, so that clients in one process cannot mix them up either.
fn next_epoch() -> Epoch {
    use std::sync::atomic::{AtomicU64, Ordering};
    static EPOCHS: AtomicU64 = AtomicU64::new(1);
    Epoch(EPOCHS.fetch_add(1, Ordering::Relaxed))
}

impl Core {
    /// The queue is ours from now on.
    pub(in crate::rocketmq) fn claim(&mut self, group: ConsumerId, queue: Queue, now: Nanos, out: &mut Out<Timer>) {
        if let Some(epoch) = self.new_claim(group, queue, now) {
            self.locate(epoch, now, out);
        }
    }

    fn new_claim(&mut self, group: ConsumerId, queue: Queue, now: Nanos) -> Option<Epoch> {
        let group_name = Arc::clone(&self.groups.get(&group)?.spec.group);
        let epoch = next_epoch();
        let stage = Stage::Locating(Locating::Asked);
        let claim = Claim {
            epoch,
            group,
            group_name,
            queue,
            stage,
            alarm: Alarm::default(),
            failures: 0,
            heard: now,
            silences: 0,
        };
        self.claims.insert(epoch, claim);
        Some(epoch)
    }

    /// The queue is ours again and starts at an offset that is known, which the broker may not have.
    pub(in crate::rocketmq) fn claim_at(
        &mut self,
        group: ConsumerId,
        queue: Queue,
        at: QueueOffset,
        stored: Option<QueueOffset>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        if let Some(epoch) = self.new_claim(group, queue, now) {
            self.start_at(epoch, at, stored, now, out);
            if let Some(active) = self.claims.get_mut(&epoch).and_then(Claim::active) {
                active.known = stored == Some(at);
            }
        }
    }

    /// Asks where the group stands in the queue: its own store if it has one, else the broker.
    pub(in crate::rocketmq) fn locate(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        claim.stage = Stage::Locating(Locating::Asked);
        if !self.load_own(epoch, now, out) {
            self.ask_stored_offset(epoch, None, now, out);
        }
    }

    /// Asks the broker where the group stands in the queue. `zero`: whether a young queue of which it has nothing stands
    /// at 0 (brokers before 5.0 always say so).
    pub(super) fn ask_stored_offset(&mut self, epoch: Epoch, zero: Option<bool>, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.get(&epoch) else { return };
        let (queue, group) = (claim.queue.clone(), Arc::clone(&claim.group_name));
        let fields = QueryOffsetRequest {
            consumer_group: (&*group).into(),
            topic: (&*queue.topic).into(),
            queue_id: queue.id,
            set_zero_if_not_found: zero,
            broker_name: Some((&*queue.broker).into()),
        };
        let ask = Ask::of(request::QUERY_CONSUMER_OFFSET, &fields);
        self.ask_for_start(epoch, &queue, &ask, Purpose::StoredOffset(epoch), now, out);
    }

    fn ask_for_start(
        &mut self,
        epoch: Epoch,
        queue: &Queue,
        ask: &Ask<'_>,
        purpose: Purpose,
        now: Nanos,
        out: &mut Out<Timer>,
    ) -> Option<Ticket> {
        let addr = self.route(&queue.topic).and_then(|route| route.pull_addr(&queue.broker, 0)).map(|(addr, _)| addr);
        let Some(addr) = addr.cloned() else {
            self.start_not_answered(epoch, &CallError::NoAddress { of: queue.broker.to_string() }, now, out);
            return None;
        };
        let timeout = self.context.settings.timing.offset;
        Some(self.ask(Target::Broker(&addr), ask, purpose, timeout, now, out))
    }

    /// Only "not found" means that there is no offset (D10); anything else keeps the queue unstarted.
    pub(in crate::rocketmq) fn stored_offset_answered(
        &mut self,
        epoch: Epoch,
        result: Result<Answer, CallError>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let result = result.and_then(|answer| answer.header::<OffsetAnswer>()).and_then(offset);
        if self.claims.get_mut(&epoch).is_some_and(|claim| claim.active().is_some()) {
            return self.stands_at(epoch, result.ok(), now, out);
        }
        match result {
            Ok(offset) => {
                // A broker answers 0 for a young queue of which it has no offset at all. What the group's own store does
                // not have is for that not stored either.
                let stored = Some(offset).filter(|offset| offset.0 > 0 && self.own_store(epoch).is_none());
                self.start_at(epoch, offset, stored, now, out);
            }
            Err(error) if error.code() == Some(answer::QUERY_NOT_FOUND) => self.start_anew(epoch, now, out),
            Err(error) => self.start_not_answered(epoch, &error, now, out),
        }
    }

    /// A broker had forgotten us and has us again: while it had not, its other members had our queues.
    pub(super) fn ask_where_we_stand(&mut self, addr: &str, now: Nanos, out: &mut Out<Timer>) {
        for epoch in self.claims_of_master(addr) {
            self.is_sure(epoch, now, out);
        }
    }

    /// False if the claim may be another member's by now. Asks where the group stands as soon as its broker knows us.
    pub(super) fn is_sure(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) -> bool {
        let Some(claim) = self.claims.get(&epoch) else { return false };
        let Stage::Active(active) = &claim.stage else { return false };
        if active.footing != Footing::Unsure {
            return active.footing == Footing::Sure;
        }
        let (topic, broker) = (Arc::clone(&claim.queue.topic), Arc::clone(&claim.queue.broker));
        let master = self.route(&topic).and_then(|route| route.master(&broker));
        let knows_us = master.and_then(|master| self.brokers.get(master)).is_some_and(|broker| broker.has > 0);
        if knows_us {
            if let Some(active) = self.claims.get_mut(&epoch).and_then(Claim::active) {
                active.footing = Footing::Asked;
            }
            self.ask_stored_offset(epoch, Some(false), now, out);
        }
        false
    }

    /// The connection to a broker is lost.
    pub(in crate::rocketmq) fn unsure_of(&mut self, addr: &str) {
        for epoch in self.claims_of_master(addr) {
            if self.own_store(epoch).is_none()
                && let Some(active) = self.claims.get_mut(&epoch).and_then(Claim::active)
            {
                active.footing = Footing::Unsure;
            }
        }
    }

    fn claims_of_master(&self, addr: &str) -> Vec<Epoch> {
        let there = |claim: &&Claim| {
            let master = self.route(&claim.queue.topic).and_then(|route| route.master(&claim.queue.broker));
            master.is_some_and(|master| **master == *addr)
        };
        self.claims.values().filter(there).map(|claim| claim.epoch).collect()
    }

    /// The group stands at `stored` in a queue of ours that we may have lost meanwhile; `None`: that was not to be found
    /// out. Where others have finished more than we have asked for we go on behind them: our own way there would deliver
    /// all of it again, and take the group's offset back.
    fn stands_at(&mut self, epoch: Epoch, stored: Option<QueueOffset>, now: Nanos, out: &mut Out<Timer>) {
        let Some(active) = self.claims.get_mut(&epoch).and_then(Claim::active) else { return };
        // A connection that was lost once more since then makes it unsure again.
        if std::mem::replace(&mut active.footing, Footing::Sure) == Footing::Unsure {
            active.footing = Footing::Unsure;
            return;
        }
        match stored.filter(|stored| active.known && *stored > active.next) {
            Some(stored) => self.correct(epoch, stored, now, out),
            None => self.progress_moved(now, out),
        }
    }

    /// The group has no offset in the queue: what it was told to start from counts.
    fn start_anew(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.get(&epoch) else { return };
        let queue = claim.queue.clone();
        let Some(group) = self.groups.get(&claim.group) else { return };
        let is_new = group
            .topics
            .get(&queue.topic)
            .and_then(|subscribed| subscribed.first_seen.as_ref())
            .is_some_and(|seen| !seen.contains(&queue));
        let start = start_policy(group.spec.settings.start_from, &queue.topic, is_new);
        let (topic, broker_name) = ((&*queue.topic).into(), Some((&*queue.broker).into()));
        match start {
            Start::At(offset) => self.start_at(epoch, offset, None, now, out),
            Start::End => {
                let fields = QueueRequest { topic, queue_id: queue.id, committed: None, broker_name };
                let ask = Ask::of(request::GET_MAX_OFFSET, &fields);
                self.ask_for_start(epoch, &queue, &ask, Purpose::StartOffset(epoch), now, out);
            }
            Start::Time(timestamp_ms) => {
                let fields =
                    SearchOffsetRequest { topic, queue_id: queue.id, timestamp_ms, boundary_type: None, broker_name };
                let ask = Ask::of(request::SEARCH_OFFSET_BY_TIMESTAMP, &fields);
                self.ask_for_start(epoch, &queue, &ask, Purpose::StartOffset(epoch), now, out);
            }
        }
    }

    pub(in crate::rocketmq) fn start_offset_answered(
        &mut self,
        epoch: Epoch,
        result: Result<Answer, CallError>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        match result.and_then(|answer| answer.header::<OffsetAnswer>()).and_then(offset) {
            Ok(offset) => self.start_at(epoch, offset, None, now, out),
            Err(error) => self.start_not_answered(epoch, &error, now, out),
        }
    }

    fn start_not_answered(&mut self, epoch: Epoch, error: &CallError, now: Nanos, out: &mut Out<Timer>) {
        if matches!(error, CallError::NoAddress { .. } | CallError::Connect { .. })
            && let Some(topic) = self.claims.get(&epoch).map(|claim| Arc::clone(&claim.queue.topic))
        {
            self.route_doubted(&topic, now, out);
        }
        self.not_located(epoch, &error.to_string(), now, out);
    }

    /// Where the claim starts could not be found out: it is asked for again, and told now and then.
    pub(super) fn not_located(&mut self, epoch: Epoch, detail: &str, now: Nanos, out: &mut Out<Timer>) {
        let retry = self.context.settings.timing.retry;
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        if !matches!(claim.stage, Stage::Locating(_)) {
            return;
        }
        claim.stage = Stage::Locating(Locating::Waiting(now + retry));
        claim.wake_at(now + retry, out);
        claim.failures = claim.failures.saturating_add(1);
        if claim.failures % TOLD_EVERY == 1 {
            let (group, queue) = (Arc::clone(&claim.group_name), claim.queue.clone());
            let id = claim.group;
            self.tell(id, Event::StartFailed { group, queue, detail: detail.to_owned() });
        }
    }

    /// Pulling begins at `at`; `stored` is what is known to be committed.
    pub(super) fn start_at(
        &mut self,
        epoch: Epoch,
        at: QueueOffset,
        stored: Option<QueueOffset>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        if !matches!(claim.stage, Stage::Locating(_)) {
            return;
        }
        let Some(group) = self.groups.get(&claim.group) else { return };
        let queue = ProcessQueue::new(epoch, at, group.spec.settings.claim);
        let bell = ClaimBell { handle: self.context.handle.clone(), epoch };
        let active = Active {
            work: Work::new(queue, Arc::clone(&group.spec.consumer), Box::new(bell)),
            next: at,
            taken: at,
            pull: Pull::Due,
            asked_at: now,
            standing: 0,
            failures: 0,
            refusals: 0,
            // An offset that the broker does not have is committed at once: else a group that has seen nothing yet
            // would start at another place after a restart.
            progress: Progress::new(at, stored),
            known: true,
            footing: Footing::Sure,
            commit_failures: 0,
            suggested: 0,
            damaged: Damaged::No,
            paused: Paused::default(),
            expire: now,
            thin: now + SETTLED,
            looks: 0,
        };
        claim.stage = Stage::Active(active);
        (claim.heard, claim.silences) = (now, 0);
        let (id, event) = (
            claim.group,
            Event::Assigned { group: Arc::clone(&claim.group_name), queue: claim.queue.clone(), from: at },
        );
        self.tell(id, event);
        if stored.is_none() {
            self.progress_moved(now, out);
        }
        let round = self.rounds.next();
        self.commit_alarm.at(round, Timer::Commits, out);
        self.pull(epoch, now, out);
    }

    /// Something of a claim is due, or may be.
    pub(in crate::rocketmq) fn claim_due(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        claim.alarm.rang(now);
        match &claim.stage {
            Stage::Locating(Locating::Waiting(until)) if *until <= now => self.locate(epoch, now, out),
            Stage::Locating(Locating::Waiting(until)) => {
                let until = *until;
                claim.wake_at(until, out);
            }
            Stage::Locating(Locating::Asked) => {}
            Stage::Active(_) => self.active_due(epoch, now, out),
            Stage::Giving(_) => self.giving_due(epoch, now, out),
        }
    }
}

fn offset(answer: OffsetAnswer) -> Result<QueueOffset, CallError> {
    // A negative offset is never asked for (C-045).
    if answer.offset < 0 {
        return Err(CallError::Refused { code: 0, remark: format!("offset {}", answer.offset) });
    }
    Ok(QueueOffset(answer.offset))
}

/// Where a group without an offset starts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Start {
    At(QueueOffset),
    End,
    Time(i64),
}

/// The table of start offsets. A retry topic always starts at its first message, also by time, where Java skips what
/// waits in it (L3); and so does a queue that came to the topic while the group was running (L5).
fn start_policy(from: StartFrom, topic: &str, is_new: bool) -> Start {
    let first = Start::At(QueueOffset(0));
    if is_new || topic.starts_with(names::RETRY_PREFIX) {
        return first;
    }
    match from {
        StartFrom::First => first,
        StartFrom::Last => Start::End,
        StartFrom::Time(time) => Start::Time(match time.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(_) => 0,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn b149_b152_start_offsets_follow_the_table_and_retry_topics_start_at_their_first_message() {
        let time = StartFrom::Time(UNIX_EPOCH + Duration::from_millis(5));
        let first = Start::At(QueueOffset(0));
        assert_eq!(start_policy(StartFrom::Last, "t", false), Start::End);
        assert_eq!(start_policy(StartFrom::First, "t", false), first);
        assert_eq!(start_policy(time, "t", false), Start::Time(5));
        for from in [StartFrom::Last, StartFrom::First, time] {
            assert_eq!(start_policy(from, "%RETRY%g", false), first);
            assert_eq!(start_policy(from, "t", true), first, "L5");
        }
    }

    #[test]
    fn a_pause_is_told_once_for_each_reason_and_its_end_once() {
        use PauseReason::{Asked, Budget, Full, NoBroker};
        let mut paused = Paused::default();
        assert!(!paused.ended(), "nothing was told");
        assert!(paused.is_news(&Asked) && !paused.is_news(&Asked));
        assert!(paused.is_news(&NoBroker) && !paused.is_news(&NoBroker), "resumed, but its broker has gone");
        assert!(paused.is_told());
        paused.reason_ended();
        assert!(!paused.is_told() && paused.is_news(&NoBroker), "gone once more");
        assert!(paused.is_news(&Full("limit of bytes")) && !paused.is_news(&Budget) && !paused.is_news(&Full("")));
        assert!(paused.ended() && !paused.ended() && !paused.is_told());
    }

    #[test]
    fn c045_a_negative_offset_is_no_offset() {
        assert!(offset(OffsetAnswer { offset: -1 }).is_err());
        assert_eq!(offset(OffsetAnswer { offset: 0 }), Ok(QueueOffset(0)));
    }
}
