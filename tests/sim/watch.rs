//! What must come true once the faults have ended, and what must be true at any time of the members' own view.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass::Assigned;
use windlass::internals::wire::remoting::pull::PullRequest;
use windlass::internals::work::clock::Nanos;

use crate::ledger::{Ledger, Place};
use crate::network::{Kind, Weather, Who};
use crate::process::GROUP;
use crate::world::{Event, Reach, World};

/// How often is looked.
const EVERY: Duration = Duration::from_millis(500);
/// One rebalance interval, and what asking and giving up take.
const AGREED: Duration = Duration::from_secs(26);
/// Silent members are gone from every list after this much calm: 120 s, the broker's scan, a client's interval.
const LISTED: Duration = Duration::from_secs(190);
/// A queue that has an owner is pulled again within this time: the longest pull and the longest pause after it.
const PULLED: Duration = Duration::from_secs(40);
/// Everything is delivered and committed after this much calm.
const SETTLED: Duration = Duration::from_secs(600);
/// The least that is watched.
const LEAST: Duration = Duration::from_secs(75);

#[derive(Debug, Default)]
pub struct Watch {
    pulls: BTreeMap<(Who, Place), Nanos>,
    agreed_since: Option<Nanos>,
    owners_checked: bool,
}

impl Watch {
    /// A pull went out.
    pub fn pulled(&mut self, who: Who, pull: &PullRequest<'_>, now: Nanos) {
        self.pulls.insert((who, (Arc::from(&*pull.topic), pull.queue_id)), now);
    }
}

type Owned = Vec<(Who, Vec<Assigned>)>;

impl World {
    pub fn look(&mut self) {
        self.after(EVERY, Event::Look);
        let owned = self.owned();
        for (who, assigned) in &owned {
            let mut queues: Vec<_> = assigned.iter().map(|claim| &claim.queue).collect();
            queues.dedup();
            if queues.len() != assigned.len() {
                self.fail(format!("{who:?} owns a queue twice: {assigned:?}"));
            }
        }
        match self.calm_since {
            None if self.now >= Nanos::ZERO + self.plan.calm => self.calm_down(),
            None => {}
            Some(since) => self.look_in_calm(since, &owned),
        }
    }

    /// The faults end. Somebody must be there.
    fn calm_down(&mut self) {
        self.note(20, || "--- calm".to_owned());
        self.calm_since = Some(self.now);
        self.net.weather = Weather::CALM;
        self.disk.fail_at(u64::MAX / 2, windlass::internals::disk::Fault::Error);
        self.names_are(Reach::Answers);
        if self.broker.as_ref().is_some_and(|broker| broker.store.read_only().is_some()) {
            self.stop_broker(false);
        }
        if self.clients.iter().all(|slot| slot.process.as_ref().is_none_or(|process| process.is_leaving())) {
            let free = self.clients.iter().position(|slot| slot.process.is_none());
            match free {
                Some(member) => self.join(member),
                None => self.calm_since = None,
            }
        }
    }

    fn owned(&mut self) -> Owned {
        let (now, mut owned) = (self.now, Vec::new());
        for (at, slot) in self.clients.iter_mut().enumerate() {
            if let Some(process) = &mut slot.process {
                owned.push((Who { kind: Kind::Client(at), life: slot.life }, process.assigned(now)));
            }
        }
        owned
    }

    fn look_in_calm(&mut self, since: Nanos, owned: &Owned) {
        let calm = self.now.since(since);
        if self.broker.is_none() {
            return;
        }
        self.look_at_members(calm);
        let agreed = self.watch.agreed_since.is_some_and(|since| self.now.since(since) >= AGREED);
        if agreed {
            let checked = self.check_owners(owned);
            self.check(checked);
            self.watch.owners_checked = true;
        }
        if calm > PULLED {
            let checked = self.check_pulls(since, owned);
            self.check(checked);
        }
        let open = self.what_is_open();
        match open {
            None if agreed && calm > LEAST => self.finished = true,
            Some(open) if calm > SETTLED => self.fail(format!("after {} s of calm {open}", calm.as_secs())),
            None | Some(_) => {}
        }
    }

    /// Whether the broker lists exactly the members that run.
    fn look_at_members(&mut self, calm: Duration) {
        let mut running: Vec<String> = Vec::new();
        for slot in &self.clients {
            running.extend(slot.process.as_ref().map(|process| process.client_id.clone()));
        }
        let Some(broker) = &self.broker else { return };
        let mut listed: Vec<String> =
            broker.dispatcher.consumer_list(GROUP).unwrap_or_default().iter().map(|id| id.to_string()).collect();
        running.sort();
        listed.sort();
        if listed == running {
            self.watch.agreed_since.get_or_insert(self.now);
        } else {
            self.watch.agreed_since = None;
            if calm > LISTED {
                self.fail(format!(
                    "after {} s of calm the broker lists {listed:?}, but {running:?} run",
                    calm.as_secs()
                ));
            }
        }
    }

    /// Every queue has exactly one owner.
    fn check_owners(&self, owned: &Owned) -> Result<(), String> {
        for (topic, queue) in self.group_queues() {
            let owners: Vec<Who> = owned
                .iter()
                .filter(|(_, assigned)| {
                    assigned.iter().any(|claim| claim.queue.topic == topic && claim.queue.id == queue)
                })
                .map(|(who, _)| *who)
                .collect();
            if owners.len() != 1 {
                return Err(format!("{topic}/{queue} has the owners {owners:?}: {owned:?}"));
            }
        }
        Ok(())
    }

    fn group_queues(&self) -> Vec<Place> {
        let topics = [(crate::process::TOPIC.to_owned(), self.plan.queues as i32), (format!("%RETRY%{GROUP}"), 1)];
        topics.iter().flat_map(|(topic, queues)| (0..*queues).map(move |id| (Arc::from(topic.as_str()), id))).collect()
    }

    /// No queue has stopped: each is pulled, or waits for handlers.
    fn check_pulls(&self, since: Nanos, owned: &Owned) -> Result<(), String> {
        for (who, assigned) in owned {
            for claim in assigned {
                let place = (claim.queue.topic.clone(), claim.queue.id);
                let pulled = self.watch.pulls.get(&(*who, place)).copied().unwrap_or(Nanos::ZERO).max(since);
                let waits = claim
                    .waits
                    .as_deref()
                    .is_some_and(|waits| waits.starts_with("handlers") || waits.starts_with("memory"))
                    && claim.held > 0;
                let young = self.watch.agreed_since.is_none_or(|agreed| self.now.since(agreed) < PULLED);
                if self.now.since(pulled) > PULLED && !waits && !young {
                    return Err(format!("{who:?} has not pulled for {:?}: {claim:?}", self.now.since(pulled)));
                }
            }
        }
        Ok(())
    }

    /// What is not as it should be in the end.
    fn what_is_open(&self) -> Option<String> {
        let broker = self.broker.as_ref()?;
        if !self.producer.role.is_done() {
            return Some("the producer has not sent everything".to_owned());
        }
        let open = self.ledger.open();
        if !open.is_empty() {
            let places: Vec<_> = open.iter().map(|id| (*id, self.ledger.places_of(*id))).collect();
            return Some(format!(
                "these messages were acknowledged and are neither finished nor dead letters: {places:?}"
            ));
        }
        for place in self.ledger.places() {
            let end = self.ledger.log.queues.get(&place).map_or(0, Vec::len) as i64;
            let committed = Ledger::committed(&broker.dispatcher, &place).unwrap_or(0);
            if committed != end {
                return Some(format!("{}/{} ends at {end} and is committed at {committed}", place.0, place.1));
            }
        }
        None
    }
}
