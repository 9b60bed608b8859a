//! The watchdog: what no other part has told. A queue that has had no answer for longer than the longest pull takes, and
//! a topic whose assignment could not be looked at for two intervals, are reported as events whatever the reason is.
//!
//! Every wait of a claim has something that ends it, and every failure that lasts has an event of its own; this is for
//! what nobody thought of, and for reasons that follow each other so that none of them lasts. It looks and tells; it
//! never asks, pulls or gives up anything.

use std::sync::Arc;
use std::time::Duration;

use super::claim::{Claim, Stage};
use super::group::ConsumerId;
use super::pull::Pull;
use crate::consume::chunk::Epoch;
use crate::net::Out;
use crate::rocketmq::core::{Core, Timer};
use crate::rocketmq::events::Event;
use crate::work::clock::Nanos;

impl Core {
    /// From now on is looked at intervals.
    pub(in crate::rocketmq) fn watch(&mut self, now: Nanos, out: &mut Out<Timer>) {
        self.watch_alarm.at(now + self.context.settings.timing.watch, Timer::Watch, out);
    }

    pub(in crate::rocketmq) fn watch_due(&mut self, now: Nanos, out: &mut Out<Timer>) {
        self.watch_alarm.rang(now);
        self.watch_queues(now);
        self.watch_topics(now, out);
        // What a full lane has refused to tell.
        self.context.events.nudge();
        if !self.groups.is_empty() {
            self.watch(now, out);
        }
    }

    fn watch_queues(&mut self, now: Nanos) {
        let timing = &self.context.settings.timing;
        let least = timing.pull + timing.watch / 2;
        let mut silent: Vec<(ConsumerId, Event)> = Vec::new();
        for claim in self.claims.values_mut() {
            let Some(group) = self.groups.get(&claim.group) else { continue };
            let settings = &group.spec.settings.pull;
            if is_told(claim, now) {
                claim.heard = now;
                continue;
            }
            // Told again each time that it has lasted twice as long.
            let limit = (least + settings.interval + settings.retry_delay).saturating_mul(1 << claim.silences.min(16));
            let lasted = now.since(claim.heard);
            if lasted < limit {
                continue;
            }
            claim.silences = claim.silences.saturating_add(1);
            let waits = claim.describe().waits.unwrap_or_else(|| "answer to a pull".to_owned());
            let (group, queue) = (Arc::clone(&claim.group_name), claim.queue.clone());
            silent.push((claim.group, Event::NoAnswer { group, queue, lasted, waits }));
        }
        for (id, event) in silent {
            self.tell(id, event);
        }
    }

    fn watch_topics(&mut self, now: Nanos, out: &mut Out<Timer>) {
        let timing = &self.context.settings.timing;
        let limit = timing.rebalance.saturating_mul(2) + timing.request + timing.watch / 2;
        let mut late: Vec<(ConsumerId, Arc<str>, Duration)> = Vec::new();
        for group in self.groups.values_mut().filter(|group| group.is_running()) {
            let topics: Vec<Arc<str>> = group.topics.keys().cloned().collect();
            for topic in topics {
                let Some(subscribed) = group.topics.get_mut(&topic) else { continue };
                if self.topics.get(&topic).is_none_or(|topic| topic.route.is_none()) {
                    // Routes have an event of their own.
                    subscribed.balanced = now;
                }
                let lasted = now.since(subscribed.balanced);
                if lasted >= limit && subscribed.trouble.is_none() {
                    late.push((group.id, topic, lasted));
                }
            }
        }
        for (id, topic, lasted) in late {
            let why = format!("no broker has listed the members for {} s", lasted.as_secs());
            self.not_balanced(id, &topic, &why, now, out);
        }
    }

    /// A queue whose silence was told has had an answer.
    pub(super) fn heard_again(&mut self, epoch: Epoch) {
        let Some(claim) = self.claims.get(&epoch) else { return };
        let (id, group, queue) = (claim.group, Arc::clone(&claim.group_name), claim.queue.clone());
        self.tell(id, Event::Resumed { group, queue });
    }
}

/// It waits for a reason that is told as a pause, or for an end that is set.
fn is_told(claim: &Claim, now: Nanos) -> bool {
    match &claim.stage {
        Stage::Active(active) => {
            active.paused.is_told() || matches!(active.pull, Pull::Full(..) | Pull::Budget(_) | Pull::Paused)
        }
        Stage::Giving(giving) => now < giving.end,
        Stage::Locating(_) => false,
    }
}
