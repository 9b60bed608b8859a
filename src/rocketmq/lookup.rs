//! The core's routes: which topics are in use, when their routes are asked for, who waits for one.
//!
//! Every topic is asked for on its own, so that one that fails stops no other. It never chooses a queue.

use std::sync::Arc;
use std::time::Duration;

use super::core::{Core, Purpose, Timer};
use super::events::Event;
use super::port::{Answer, Ask, CallError, Target};
use super::route::{Route, RouteCell, all_addrs};
use crate::error::Error;
use crate::model::names;
use crate::net::Out;
use crate::net::answer::Giver;
use crate::wire::json;
use crate::wire::remoting::codes::{answer, request};
use crate::wire::remoting::route::{RouteBody, RouteRequest};
use crate::work::clock::Nanos;

/// A topic that somebody uses.
pub struct Topic {
    cell: Arc<RouteCell>,
    /// The latest route.
    pub(super) route: Option<Arc<Route>>,
    asking: bool,
    /// When to ask next.
    due: Nanos,
    /// Failures in a row.
    failures: u32,
    waiting: Vec<Giver<Result<Arc<Route>, Error>>>,
}

impl Core {
    /// Somebody needs the route of `topic`, which is in use from now on. With `answer` it is asked for even if one is
    /// known.
    pub(super) fn route_wanted(
        &mut self,
        topic: &Arc<str>,
        answer: Option<Giver<Result<Arc<Route>, Error>>>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let routes = &self.context.routes;
        let entry = self.topics.get_or_insert_with(Arc::clone(topic), || Topic {
            cell: routes.cell(topic),
            route: None,
            asking: false,
            due: now,
            failures: 0,
            waiting: Vec::new(),
        });
        let wanted = answer.is_some() || entry.route.is_none();
        entry.waiting.extend(answer);
        if wanted {
            self.ask_route(topic, now, out);
        }
    }

    /// A queue's broker cannot be found or does not answer: its route may have changed.
    pub(super) fn route_doubted(&mut self, topic: &Arc<str>, now: Nanos, out: &mut Out<Timer>) {
        let soon = now + self.context.settings.timing.retry;
        if let Some(entry) = self.topics.get_mut(topic) {
            entry.due = entry.due.min(soon);
            let due = entry.due;
            self.route_alarm.at(due, Timer::Routes, out);
        }
    }

    pub(super) fn route(&self, topic: &str) -> Option<&Arc<Route>> {
        self.topics.get(topic)?.route.as_ref()
    }

    pub(super) fn ask_all_routes(&mut self, now: Nanos, out: &mut Out<Timer>) {
        let topics: Vec<Arc<str>> = self.topics.keys().cloned().collect();
        for topic in topics {
            self.ask_route(&topic, now, out);
        }
    }

    pub(super) fn routes_due(&mut self, now: Nanos, out: &mut Out<Timer>) {
        self.route_alarm.rang(now);
        let due: Vec<Arc<str>> =
            self.topics.iter().filter(|(_, topic)| topic.due <= now).map(|(name, _)| Arc::clone(name)).collect();
        for topic in due {
            self.ask_route(&topic, now, out);
        }
        if let Some(next) = self.topics.values().filter(|topic| !topic.asking).map(|topic| topic.due).min() {
            self.route_alarm.at(next, Timer::Routes, out);
        }
    }

    fn ask_route(&mut self, topic: &Arc<str>, now: Nanos, out: &mut Out<Timer>) {
        let left = self.port.name_servers().saturating_sub(1);
        let Some(entry) = self.topics.get_mut(topic) else { return };
        if !std::mem::replace(&mut entry.asking, true) {
            self.send_route_request(topic, left, now, out);
        }
    }

    fn send_route_request(&mut self, topic: &Arc<str>, left: usize, now: Nanos, out: &mut Out<Timer>) {
        let fields = RouteRequest { topic: (&**topic).into(), standard_json: Some(true) };
        let purpose = Purpose::Route { topic: Arc::clone(topic), left };
        let whole = self.context.settings.timing.request;
        // One that keeps silent leaves time for the others within what a single one may take: a send waits no longer.
        let servers = u32::try_from(self.port.name_servers()).unwrap_or(u32::MAX).max(1);
        let timeout = if left > 0 { whole / servers } else { whole };
        let ask = Ask::of(request::GET_ROUTEINFO_BY_TOPIC, &fields);
        self.ask(Target::NameServer, &ask, purpose, timeout, now, out);
    }

    pub(super) fn route_answered(
        &mut self,
        topic: &Arc<str>,
        left: usize,
        result: Result<Answer, CallError>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        let read = result.and_then(|answer| answer.read(|command| json::read::<RouteBody>("route", command.body)));
        match read {
            Ok(found) => self.route_found(topic, &found, now, out),
            // Another name server may know better, or be alive: the port has moved on to it.
            Err(error) if error.code().is_none() && left > 0 => {
                self.send_route_request(topic, left - 1, now, out);
            }
            Err(error) => self.route_failed(topic, &error, now, out),
        }
    }

    fn route_found(&mut self, topic: &Arc<str>, data: &RouteBody, now: Nanos, out: &mut Out<Timer>) {
        let settings = &self.context.settings;
        let route = Arc::new(Route::build(topic, data, |addr| settings.map(addr)));
        let every = settings.timing.routes;
        let Some(entry) = self.topics.get_mut(topic) else { return };
        (entry.asking, entry.failures, entry.due) = (false, 0, now + every);
        let due = entry.due;
        let changed = entry.cell.store(Arc::clone(&route));
        let before = entry.route.replace(Arc::clone(&route));
        for waiting in std::mem::take(&mut entry.waiting) {
            // Whoever waited may have given up.
            let _ = waiting.give(Ok(Arc::clone(&route)));
        }
        self.route_alarm.at(due, Timer::Routes, out);
        if changed {
            log::debug!(target: "windlass::route", "route changed: topic={topic} queues={}", route.subscribe.len());
            self.routes_changed(now, out);
            if let Some(before) = before {
                self.pulls_moved(&before, &route, now, out);
            }
            self.topic_changed(topic, now, out);
        }
    }

    fn route_failed(&mut self, topic: &Arc<str>, error: &CallError, now: Nanos, out: &mut Out<Timer>) {
        let timing = &self.context.settings.timing;
        let (retry, routes) = (timing.retry, timing.routes);
        let subscribed = self.is_subscribed(topic);
        let unknown = error.code() == Some(answer::TOPIC_NOT_EXIST);
        if unknown {
            self.topic_missing(topic);
        }
        let Some(entry) = self.topics.get_mut(topic) else { return };
        entry.asking = false;
        let pause = if unknown {
            missing_pause(topic, subscribed, entry.failures, retry, routes)
        } else {
            backoff(retry, entry.failures, retry.saturating_mul(5))
        };
        entry.due = now + pause.min(routes);
        let due = entry.due;
        let first = entry.failures == 0;
        entry.failures = entry.failures.saturating_add(1);
        for waiting in std::mem::take(&mut entry.waiting) {
            let error = match error {
                CallError::Refused { .. } if unknown => Error::UnknownTopic { topic: topic.to_string() },
                CallError::Connect { .. } | CallError::NoAddress { .. } | CallError::Disconnected { .. } => {
                    Error::NoNameServer { tried: self.name_servers.clone(), detail: error.to_string() }
                }
                other => other.clone().into_error("GET_ROUTEINFO_BY_TOPIC"),
            };
            let _ = waiting.give(Err(error));
        }
        self.route_alarm.at(due, Timer::Routes, out);
        // A retry topic comes into being with the group's first heartbeat, so that is no news.
        if first && subscribed && !(unknown && topic.starts_with(names::RETRY_PREFIX)) {
            self.tell_all(Event::RouteFailed { topic: Arc::clone(topic), detail: error.to_string() });
        }
    }

    /// Brokers come and go with routes.
    fn routes_changed(&mut self, now: Nanos, out: &mut Out<Timer>) {
        let addrs = all_addrs(self.topics.values().filter_map(|topic| topic.route.as_deref()));
        self.port.retain(&|addr| addrs.contains_key(addr), out);
        self.brokers_are(&addrs, now, out);
    }
}

/// When a topic that no name server knows is looked for again.
///
/// A consumer that was started before the first producer waits a second at most, and mostly less, for a topic that has
/// come into being. A retry topic that its brokers do not make by themselves may never come. Producers ask when they send.
fn missing_pause(topic: &str, subscribed: bool, failures: u32, retry: Duration, routes: Duration) -> Duration {
    match subscribed {
        true if topic.starts_with(names::RETRY_PREFIX) => backoff(retry / 10, failures, retry.saturating_mul(5)),
        true => backoff(retry / 10, failures, retry),
        false => routes,
    }
}

/// `first`, doubled for every failure after the first, at most `most`.
pub(super) fn backoff(first: Duration, failures: u32, most: Duration) -> Duration {
    first.saturating_mul(1 << failures.min(16)).min(most.max(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b053_a_consumer_waits_a_second_at_most_for_a_topic_that_has_come() {
        let (second, routes) = (Duration::from_secs(1), Duration::from_secs(30));
        let pauses = |topic, subscribed| -> Vec<u128> {
            let pause = |failures| missing_pause(topic, subscribed, failures, second, routes).as_millis();
            [0, 1, 2, 3, 4, 5, 6, 100, u32::MAX].map(pause).to_vec()
        };
        assert_eq!(pauses("t", true), [100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000]);
        assert_eq!(pauses("%RETRY%g", true), [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        assert_eq!(pauses("t", false), [30_000; 9]);
    }
}
