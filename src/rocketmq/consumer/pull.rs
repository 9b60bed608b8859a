//! Pulling: one request per claim at a time, what its answer brings, and what stops the next one for how long.
//!
//! A claim that is pulled is always in one of the states of `Pull`, each of which names what it waits for and has
//! something that ends it: no queue stops silently. Answers are read at once, so that the next request can go out; their
//! messages are indexed and put in `intake.rs`, after the turn's writes.
//!
//! Source: apache/rocketmq@rocketmq-all-4.9.3
//! client/src/main/java/org/apache/rocketmq/client/impl/consumer/DefaultMQPushConsumerImpl.java (`pullMessage`)

use std::sync::Arc;
use std::time::Duration;

use super::claim::{Active, Claim, Stage};
use super::group::ConsumerId;
use super::pull_answer::{Frames, going_on, opened};
use super::settings::PullSettings;
use crate::consume::chunk::Epoch;
use crate::consume::flow::{Full, within_budget};
use crate::consume::queue::SETTLED;
use crate::model::QueueOffset;
use crate::net::Out;
use crate::rocketmq::core::{Core, Purpose, Timer};
use crate::rocketmq::events::{Event, PauseReason, TOLD_EVERY};
use crate::rocketmq::lookup::backoff;
use crate::rocketmq::port::{Answer, Ask, CallError, Target, Ticket};
use crate::rocketmq::route::Route;
use crate::wire::frame::Frame;
use crate::wire::remoting::codes::{answer, pull_flag};
use crate::wire::remoting::pull::{PullAnswer, PullRequest};
use crate::work::clock::Nanos;

/// A broker that throttles is asked again after this.
///
/// Source: apache/rocketmq@rocketmq-all-5.3.3
/// client/src/main/java/org/apache/rocketmq/client/impl/consumer/DefaultMQPushConsumerImpl.java
const THROTTLED: Duration = Duration::from_millis(20);
/// A pause that lasts this long is told as an event.
const LONG_PAUSE: Duration = Duration::from_secs(1);
/// A claim that holds messages is looked at after this, and then less and less often: for handlers that do not return
/// and bells that were not heard.
const LOOK: Duration = Duration::from_millis(20);
/// The longest time between two looks.
const LOOK_MOST: Duration = Duration::from_millis(640);

/// Refused or broken pulls in a row after which a new connection, or a heartbeat, is no reason to pull at once: it would
/// only be the next to break.
const AT_ONCE: u32 = 2;

/// Answers in a row that came at once, brought nothing and led nowhere, after which the next pull waits: a broker that
/// holds no pull would be asked as fast as the network goes.
const STANDING: u32 = 4;
/// An answer came at once if it came within this, or within half the time that the pull may be held for.
const AT_ONCE_MOST: Duration = Duration::from_millis(100);
/// The longest wait between pulls that stand still.
const STANDING_MOST: Duration = Duration::from_secs(1);
/// How often such answers are told: the first time, and each time that there are as many again.
const STANDING_TOLD: u32 = 60;

/// What the next pull of a claim waits for.
#[derive(Clone, Copy, Debug)]
pub(in crate::rocketmq) enum Pull {
    /// Nothing: it is asked for in this turn.
    Due,
    /// The answer.
    Out(Ticket),
    /// A moment.
    Until(Nanos),
    /// Handlers, since then.
    Full(Full, Nanos),
    /// Memory, since then.
    Budget(Nanos),
    /// The user.
    Paused,
    /// The broker's acknowledgement of our subscription.
    Unknown,
}

impl Pull {
    /// In words, for who looks; `None`: it is being pulled.
    pub(in crate::rocketmq) fn waits(&self) -> Option<String> {
        match self {
            Self::Due | Self::Out(_) => None,
            Self::Until(_) => Some("a pause after a pull".to_owned()),
            Self::Full(full, _) => Some(format!("handlers: {}", limit(*full))),
            Self::Budget(_) => Some("memory budget".to_owned()),
            Self::Paused => Some("paused".to_owned()),
            Self::Unknown => Some("heartbeat".to_owned()),
        }
    }
}

/// Whether a topic's queues together hold more than they may.
fn topic_full(settings: &PullSettings, (messages, bytes): (u64, u64)) -> Option<Full> {
    if settings.topic_messages.is_some_and(|most| messages > most) {
        Some(Full::Messages)
    } else if settings.topic_mebibytes.is_some_and(|most| bytes >> 20 > most) {
        Some(Full::Bytes)
    } else {
        None
    }
}

fn limit(full: Full) -> &'static str {
    match full {
        Full::Messages => "limit of messages",
        Full::Bytes => "limit of bytes",
        Full::Span => "limit of the span of offsets",
    }
}

/// What is known of damaged records of a claim (D8).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::rocketmq) enum Damaged {
    /// Nothing.
    No,
    /// The record at this offset was, and is pulled once more.
    Again(QueueOffset),
    /// One was given up; messages are pulled one by one until a good one comes.
    Stepping,
}

/// An answer whose messages are still to be taken in.
pub(in crate::rocketmq) struct Arrived {
    pub epoch: Epoch,
    /// What was asked for.
    pub asked: QueueOffset,
    /// Where the next pull starts.
    pub next: QueueOffset,
    pub header: PullAnswer,
    pub frames: Frames,
}

impl Core {
    /// Sends the next pull of a claim if nothing forbids it; else notes what it waits for.
    pub(in crate::rocketmq) fn pull(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        let queues = self.claims.len() as u64;
        let of_topic = self.held_of_topic(epoch);
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Stage::Active(active) = &mut claim.stage else { return };
        // Never a second one (B-071): nobody who comes here has one out.
        debug_assert!(!matches!(active.pull, Pull::Out(_)), "{:?}", claim.queue);
        let Some(group) = self.groups.get(&claim.group).filter(|group| group.is_running()) else { return };
        if group.is_paused(&claim.queue.topic) {
            active.pull = Pull::Paused;
            if active.paused.is_news(&PauseReason::Asked) {
                let (group, queue) = (Arc::clone(&claim.group_name), claim.queue.clone());
                let id = claim.group;
                self.tell(id, Event::Paused { group, queue, why: PauseReason::Asked });
            }
            return;
        }
        let since = match active.pull {
            Pull::Full(_, since) | Pull::Budget(since) => since,
            Pull::Due | Pull::Out(_) | Pull::Until(_) | Pull::Paused | Pull::Unknown => now,
        };
        let full = active.work.queue().room().or_else(|| topic_full(&group.spec.settings.pull, of_topic));
        if let Some(full) = full {
            active.pull = Pull::Full(full, since);
            self.look_again(epoch, now, out);
            return;
        }
        let (budget, held) = (&self.context.budget, active.work.queue().held_bytes());
        if !within_budget(held, budget.used(), budget.limit(), queues) && !budget.await_room() {
            active.pull = Pull::Budget(since);
            self.look_again(epoch, now, out);
            return;
        }
        self.send_pull(epoch, now, out);
    }

    /// Messages and bytes that the claims of a topic hold together, if that is limited (B-155).
    fn held_of_topic(&self, epoch: Epoch) -> (u64, u64) {
        let Some(claim) = self.claims.get(&epoch) else { return (0, 0) };
        let Some(group) = self.groups.get(&claim.group) else { return (0, 0) };
        if group.spec.settings.pull.topic_messages.is_none() && group.spec.settings.pull.topic_mebibytes.is_none() {
            return (0, 0);
        }
        let of_topic = |other: &&Claim| other.group == claim.group && other.queue.topic == claim.queue.topic;
        self.claims.values().filter(of_topic).fold((0, 0), |(messages, bytes), other| match &other.stage {
            Stage::Active(active) => {
                (messages + active.work.queue().held_messages(), bytes + active.work.queue().held_bytes())
            }
            Stage::Locating(_) | Stage::Giving(_) => (messages, bytes),
        })
    }

    fn send_pull(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        let timing = &self.context.settings.timing;
        let (hold, timeout, retry) = (timing.hold, timing.pull, timing.pull_retry);
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Stage::Active(active) = &mut claim.stage else { return };
        let queue = claim.queue.clone();
        let route = self.topics.get(&queue.topic).and_then(|topic| topic.route.as_ref());
        let Some(addr) = route.and_then(|route| route.pull_addr(&queue.broker, active.suggested)) else {
            active.pull = Pull::Until(now + retry);
            let news = active.paused.is_news(&PauseReason::NoBroker);
            claim.wake_at(now + retry, out);
            if news {
                let (id, group) = (claim.group, Arc::clone(&claim.group_name));
                self.tell(id, Event::Paused { group, queue: queue.clone(), why: PauseReason::NoBroker });
            }
            self.route_doubted(&queue.topic, now, out);
            return;
        };
        let addr = Arc::clone(addr.0);
        let sub_version = self.brokers.get(&addr).map_or(0, |broker| broker.has);
        if sub_version != self.subscriptions {
            // A heartbeat is on its way, or due soon; its answer pulls (C-034).
            active.pull = Pull::Unknown;
            active.paused.reason_ended();
            return;
        }
        let Some(group) = self.groups.get(&claim.group) else { return };
        let settings = &group.spec.settings.pull;
        let subscription = settings.post_subscription.then(|| group.topics.get(&queue.topic)).flatten();
        let posted = subscription.map_or(0, |_| pull_flag::SUBSCRIPTION);
        let name = Arc::clone(&claim.group_name);
        let request = PullRequest {
            consumer_group: (&*name).into(),
            topic: (&*queue.topic).into(),
            queue_id: queue.id,
            queue_offset: active.next.0,
            max_messages: match active.damaged {
                Damaged::Stepping => 1,
                Damaged::No | Damaged::Again(_) => i32::try_from(settings.batch).unwrap_or(i32::MAX),
            },
            // Offsets are committed by requests of their own, which are acknowledged: one that came with a pull could
            // overtake them (D11).
            sys_flag: pull_flag::SUSPEND | posted,
            commit_offset: 0,
            suspend_ms: i64::try_from(hold.as_millis()).unwrap_or(i64::MAX),
            subscription: subscription.map(|subscribed| subscribed.tags.text().into()),
            sub_version,
            expression_type: Some("TAG".into()),
            max_bytes: i32::try_from(settings.batch_bytes).ok(),
            request_source: None,
            proxy_forward_client_id: None,
            broker_name: Some((&*queue.broker).into()),
        };
        let ticket = self.ask(Target::Broker(&addr), &Ask::Pull(&request), Purpose::Pull(epoch), timeout, now, out);
        self.pulled(epoch, ticket, now);
    }

    /// A pull is on its way.
    fn pulled(&mut self, epoch: Epoch, ticket: Ticket, now: Nanos) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Stage::Active(active) = &mut claim.stage else { return };
        let before = std::mem::replace(&mut active.pull, Pull::Out(ticket));
        active.asked_at = now;
        if matches!(before, Pull::Full(..) | Pull::Budget(_) | Pull::Paused) {
            claim.heard = now;
        }
        if active.paused.ended() {
            let (id, group, queue) = (claim.group, Arc::clone(&claim.group_name), claim.queue.clone());
            self.tell(id, Event::Resumed { group, queue });
        }
    }

    pub(in crate::rocketmq) fn pull_answered(
        &mut self,
        epoch: Epoch,
        result: Result<Answer, CallError>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Some(settings) = self.groups.get(&claim.group).map(|group| &group.spec.settings.pull) else { return };
        let (batch, interval) = (settings.batch, settings.interval);
        let at_once = AT_ONCE_MOST.min(self.context.settings.timing.hold / 2);
        let Stage::Active(active) = &mut claim.stage else { return };
        active.pull = Pull::Due;
        let asked = active.next;
        match result.and_then(opened).and_then(|answer| going_on(answer, asked)) {
            Ok((answer::PULL_OFFSET_MOVED, header, _)) => {
                self.correct(epoch, QueueOffset(header.next_begin_offset.max(0)), now, out);
            }
            Ok((code, header, frames)) => {
                claim.heard = now;
                let was_silent = std::mem::take(&mut claim.silences) > 0;
                (active.failures, active.refusals) = (0, 0);
                active.suggested = header.suggest_broker_id;
                // A step back would deliver again what has been delivered, without end.
                let next = asked.max(QueueOffset(header.next_begin_offset));
                active.next = next;
                // What has come counts before it is put: the limits end where Java's end (B-072).
                let limits = active.work.queue().settings().limits;
                let come: usize = frames.all().iter().map(Frame::len).sum();
                let room = active.work.queue().held_messages() + u64::from(batch) <= limits.messages
                    && (active.work.queue().held_bytes() + come as u64) >> 20 < limits.mebibytes;
                let waiting = room && active.damaged == Damaged::No && next.0 < header.max_offset;
                let stands = next == asked && frames.all().is_empty() && now.since(active.asked_at) < at_once;
                active.standing = if stands { active.standing.saturating_add(1) } else { 0 };
                let standing = active.standing;
                if standing > STANDING {
                    self.stand(epoch, standing - STANDING, now, out);
                } else if code == answer::SUCCESS && !interval.is_zero() {
                    self.wait(epoch, now + interval, out);
                } else if waiting {
                    // More is there: the broker works on it while this answer is indexed. If nothing is, the small
                    // request would only delay the handlers (D23).
                    self.pull(epoch, now, out);
                }
                self.arrived.push(Arrived { epoch, asked, next, header, frames });
                if was_silent {
                    self.heard_again(epoch);
                }
            }
            Err(error) => self.pull_failed(epoch, &error, now, out),
        }
    }

    /// The broker answers at once and with nothing, for the `times`-th time more than it may.
    fn stand(&mut self, epoch: Epoch, times: u32, now: Nanos, out: &mut Out<Timer>) {
        self.wait(epoch, now + backoff(THROTTLED, times - 1, STANDING_MOST), out);
        if times != 1 && !times.is_multiple_of(STANDING_TOLD) {
            return;
        }
        let Some(claim) = self.claims.get(&epoch) else { return };
        let (id, group, queue) = (claim.group, Arc::clone(&claim.group_name), claim.queue.clone());
        let detail = "answered at once, without messages and at the same offset".to_owned();
        self.tell(id, Event::PullFailed { group, queue, detail, times });
    }

    /// Pulls that wait at an address which their broker has left are asked for at its new one, and not only when the old
    /// one has not answered in time (C-031).
    pub(in crate::rocketmq) fn pulls_moved(&mut self, before: &Route, after: &Route, now: Nanos, out: &mut Out<Timer>) {
        let moved = |claim: &Claim| match &claim.stage {
            Stage::Active(Active { pull: Pull::Out(ticket), suggested, .. }) if claim.queue.topic == after.topic => {
                let (broker, id) = (&*claim.queue.broker, *suggested);
                let (old, _) = before.pull_addr(broker, id)?;
                let stays = after.addrs().into_iter().any(|(name, _, addr)| **name == *broker && addr == old);
                (!stays && after.pull_addr(broker, id).is_some()).then_some((claim.epoch, *ticket))
            }
            Stage::Active(_) | Stage::Locating(_) | Stage::Giving(_) => None,
        };
        let moved: Vec<(Epoch, Ticket)> = self.claims.values().filter_map(moved).collect();
        for (epoch, ticket) in moved {
            self.forget(ticket, out);
            if let Some(active) = self.claims.get_mut(&epoch).and_then(Claim::active) {
                active.pull = Pull::Due;
            }
            self.pull(epoch, now, out);
        }
    }

    fn wait(&mut self, epoch: Epoch, until: Nanos, out: &mut Out<Timer>) {
        if let Some(claim) = self.claims.get_mut(&epoch)
            && let Stage::Active(active) = &mut claim.stage
        {
            active.pull = Pull::Until(until);
            claim.wake_at(until, out);
        }
    }

    fn pull_failed(&mut self, epoch: Epoch, error: &CallError, now: Nanos, out: &mut Out<Timer>) {
        let most = self.context.settings.timing.pull_retry_most;
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Some(group) = self.groups.get(&claim.group) else { return };
        let retry = group.spec.settings.pull.retry_delay;
        let Stage::Active(active) = &mut claim.stage else { return };
        let before = active.failures;
        active.failures = before.saturating_add(1);
        if !matches!(error, CallError::Connect { .. } | CallError::NoAddress { .. } | CallError::Timeout { .. }) {
            active.refusals = active.refusals.saturating_add(1);
        }
        let suggested = std::mem::take(&mut active.suggested);
        let pause = match error.code() {
            Some(answer::FLOW_CONTROL) => THROTTLED,
            // Not done: the next connection is asked at once.
            Some(answer::GO_AWAY) if before == 0 => Duration::ZERO,
            Some(_) => retry,
            None => backoff(retry, before, most),
        };
        let (queue, id, name) = (claim.queue.clone(), claim.group, Arc::clone(&claim.group_name));
        self.wait(epoch, now + pause, out);
        let route = self.route(&queue.topic);
        let addr = route.and_then(|route| route.pull_addr(&queue.broker, suggested)).map(|(addr, _)| Arc::clone(addr));
        let detail = error.to_string();
        match error.code() {
            Some(
                code @ (answer::SUBSCRIPTION_NOT_EXIST
                | answer::SUBSCRIPTION_NOT_LATEST
                | answer::SUBSCRIPTION_GROUP_NOT_EXIST),
            ) => {
                // Once is a broker that was restarted; again and again is another member that subscribes other things,
                // each of which the broker takes for the group's (B-036): answering that at once would be a storm.
                match addr {
                    Some(addr) if before == 0 => self.broker_forgot_us(&addr, now, out),
                    Some(addr) => self.remind(&addr, now, out),
                    None => {}
                }
                if code == answer::SUBSCRIPTION_NOT_EXIST && before % TOLD_EVERY == 1 {
                    let topic = Arc::clone(&queue.topic);
                    self.tell(id, Event::SubscriptionDiffers { group: name, topic, detail });
                } else if before % TOLD_EVERY == 1 {
                    self.tell(id, Event::PullFailed { group: name, queue, detail, times: before + 1 });
                }
            }
            Some(answer::FLOW_CONTROL | answer::GO_AWAY) => {}
            Some(_) => {
                self.route_doubted(&queue.topic, now, out);
                if before % TOLD_EVERY == 0 {
                    self.tell(id, Event::PullFailed { group: name, queue, detail, times: before + 1 });
                }
            }
            None => {
                self.route_doubted(&queue.topic, now, out);
                // Once may be a connection that has ended, which is told as such; silence and nonsense are not.
                let at_once = matches!(error, CallError::Wire(_) | CallError::Timeout { .. });
                if before % TOLD_EVERY == u32::from(!at_once) {
                    self.tell(id, Event::PullFailed { group: name, queue, detail, times: before + 1 });
                }
            }
        }
    }

    /// A broker has acknowledged our subscriptions: whatever waited for that, or for the broker, goes on. `anew`: it had
    /// none of us before.
    pub(in crate::rocketmq) fn broker_knows_us(
        &mut self,
        addr: &Arc<str>,
        anew: bool,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let waiting: Vec<Epoch> = self
            .claims
            .values_mut()
            .filter_map(|claim| {
                let (epoch, queue) = (claim.epoch, claim.queue.clone());
                let active = claim.active()?;
                let waits = match active.pull {
                    Pull::Unknown => true,
                    // A broker that comes up is asked at once; not one that is up and breaks off each time.
                    Pull::Until(_) => active.failures > 0 && active.refusals <= AT_ONCE,
                    Pull::Due | Pull::Out(_) | Pull::Full(..) | Pull::Budget(_) | Pull::Paused => false,
                };
                let route = self.topics.get(&queue.topic)?.route.as_ref()?;
                let at = route.pull_addr(&queue.broker, active.suggested)?.0;
                (waits && at == addr).then_some(epoch)
            })
            .collect();
        if anew {
            self.ask_where_we_stand(addr, now, out);
        }
        for epoch in waiting {
            self.pull(epoch, now, out);
        }
        self.rebalance_acknowledged(anew, now, out);
    }

    /// A topic's route has changed: a queue whose broker was not in it, or has become another, finds a broker that knows
    /// us already, whose acknowledgement will not come again.
    pub(in crate::rocketmq) fn pull_unknown(&mut self, topic: &str, now: Nanos, out: &mut Out<Timer>) {
        let waiting: Vec<Epoch> = self
            .claims
            .values_mut()
            .filter(|claim| *claim.queue.topic == *topic)
            .filter_map(|claim| {
                let epoch = claim.epoch;
                matches!(claim.active()?.pull, Pull::Unknown).then_some(epoch)
            })
            .collect();
        for epoch in waiting {
            self.pull(epoch, now, out);
        }
    }

    /// The user has resumed a consumer, or its subscription has changed.
    pub(in crate::rocketmq) fn pull_all_of(&mut self, group: ConsumerId, now: Nanos, out: &mut Out<Timer>) {
        let epochs: Vec<Epoch> =
            self.claims.values().filter(|claim| claim.group == group).map(|claim| claim.epoch).collect();
        for epoch in epochs {
            let paused = self.claims.get_mut(&epoch).and_then(|claim| claim.active()).map(|active| active.pull);
            if matches!(paused, Some(Pull::Paused)) {
                self.pull(epoch, now, out);
            }
        }
    }

    /// Memory has become free.
    pub(in crate::rocketmq) fn room(&mut self, now: Nanos, out: &mut Out<Timer>) {
        let waiting: Vec<Epoch> = self
            .claims
            .values_mut()
            .filter_map(|claim| {
                let epoch = claim.epoch;
                matches!(claim.active()?.pull, Pull::Budget(_)).then_some(epoch)
            })
            .collect();
        for epoch in waiting {
            self.pull(epoch, now, out);
        }
    }

    /// A claim has news: a bell was rung.
    pub(in crate::rocketmq) fn claim_news(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let work = match &claim.stage {
            Stage::Active(active) => Arc::clone(&active.work),
            Stage::Giving(giving) => Arc::clone(&giving.work),
            Stage::Locating(_) => return,
        };
        let news = work.queue().news(now);
        if let Some(at) = news.gather_until {
            claim.wake_at(at, out);
        }
        if news.moved {
            self.progress_moved(now, out);
        }
        for failed in news.failed {
            self.send_back(epoch, &work, failed, now, out);
        }
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        match &mut claim.stage {
            Stage::Active(active) if news.rearm && matches!(active.pull, Pull::Full(..)) => self.pull(epoch, now, out),
            Stage::Giving(_) if news.ended => self.handlers_done(epoch, now, out),
            Stage::Active(_) | Stage::Giving(_) | Stage::Locating(_) => {}
        }
    }

    /// Something of a claim that is pulled is due, or may be.
    pub(in crate::rocketmq) fn active_due(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Stage::Active(active) = &mut claim.stage else { return };
        let work = Arc::clone(&active.work);
        work.gathered(now);
        work.overdue(now);
        work.stir();
        active.looks = active.looks.saturating_add(1);
        if active.thin <= now {
            active.thin = now + SETTLED;
            let budget = &self.context.budget;
            work.queue().thin(now, |pulled, places| pulled.excerpt(places, budget));
        }
        if active.expire <= now {
            let (stuck, next) = work.queue().expire(now);
            active.expire = next.map_or(now + work.queue().settings().timeout / 4, |next| next.max(now));
            if stuck > 0 {
                let (id, group, queue) = (claim.group, Arc::clone(&claim.group_name), claim.queue.clone());
                self.tell(id, Event::Stuck { group, queue, messages: stuck });
            }
        }
        self.claim_news(epoch, now, out);
        self.tell_long_pause(epoch, now);
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Stage::Active(active) = &mut claim.stage else { return };
        match active.pull {
            Pull::Until(until) if until <= now => self.pull(epoch, now, out),
            Pull::Until(until) => claim.wake_at(until, out),
            // The bell or the budget may have been missed.
            Pull::Full(..) | Pull::Budget(_) => self.pull(epoch, now, out),
            // What is due waits for this turn's intake, which may change where it starts.
            Pull::Due | Pull::Out(_) | Pull::Paused | Pull::Unknown => {}
        }
        self.look_again(epoch, now, out);
    }

    /// While messages are held their handlers are looked after. A queue that holds none and is full all the same waits
    /// for others of its topic, which ring no bell of its.
    pub(in crate::rocketmq) fn look_again(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Stage::Active(active) = &claim.stage else { return };
        if active.work.queue().held_messages() > 0 {
            let pause = backoff(LOOK, active.looks, LOOK_MOST);
            claim.wake_at(now + pause, out);
        } else if matches!(active.pull, Pull::Full(..)) {
            claim.wake_at(now + LOOK, out);
        }
    }

    fn tell_long_pause(&mut self, epoch: Epoch, now: Nanos) {
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let Stage::Active(active) = &mut claim.stage else { return };
        let (why, since) = match active.pull {
            Pull::Full(full, since) => (PauseReason::Full(limit(full)), since),
            Pull::Budget(since) => (PauseReason::Budget, since),
            Pull::Due | Pull::Out(_) | Pull::Until(_) | Pull::Paused | Pull::Unknown => return,
        };
        if now.since(since) < LONG_PAUSE || !active.paused.is_news(&why) {
            return;
        }
        let (id, group, queue) = (claim.group, Arc::clone(&claim.group_name), claim.queue.clone());
        self.tell(id, Event::Paused { group, queue, why });
    }
}
