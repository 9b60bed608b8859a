//! What is looked at twice a second, and what must come true once the faults have ended.

use std::sync::Arc;
use std::time::Duration;

use windlass::Assigned;
use windlass::internals::work::clock::Nanos;

use crate::ledger::Place;
use crate::network::{Kind, Weather, Who};
use crate::process::{NAMES_PORT, addr, place_of};
use crate::world::{Event, Reach, World};

/// How often is looked.
const EVERY: Duration = Duration::from_millis(500);
/// One rebalance interval, and what asking and giving up take.
const AGREED: Duration = Duration::from_secs(26);
/// ... and with several brokers one interval of routes, and what a broker needs to register with the others' name servers.
const ROUTED: Duration = Duration::from_secs(26 + 30 + 12);
/// Silent members are gone from every list after this much calm: 120 s, the broker's scan, a client's interval.
const LISTED: Duration = Duration::from_secs(190);
/// Everything is delivered and committed after this much calm.
const SETTLED: Duration = Duration::from_secs(600);
/// The least that is watched.
const LEAST: Duration = Duration::from_secs(75);

#[derive(Debug, Default)]
pub struct Watch {
    agreed_since: Option<Nanos>,
}

/// Each member's queues as it sees them.
pub type Owned = Vec<(Who, Vec<Assigned>)>;

impl World {
    pub fn look(&mut self) {
        self.after(EVERY, Event::Look);
        let owned = self.owned();
        self.look_for_silence(&owned);
        self.look_at_talk();
        match self.calm_since {
            None if self.now >= Nanos::ZERO + self.plan.calm => self.calm_down(),
            None => {}
            Some(since) => self.look_in_calm(since, &owned),
        }
    }

    /// No queue is owned twice by one member, not even while it is being given up.
    pub fn see_client(&mut self, who: Who) {
        let now = self.now;
        let Some(client) = self.client(who) else { return };
        let assigned = client.assigned(now);
        let mut queues: Vec<_> = assigned.iter().map(|claim| &claim.queue).collect();
        queues.sort();
        queues.dedup();
        if queues.len() != assigned.len() {
            self.fail(format!("{who:?} owns a queue twice: {assigned:?}"));
        }
    }

    /// The faults end. Somebody of each group must be there.
    fn calm_down(&mut self) {
        self.note(20, || "--- calm".to_owned());
        self.calm_since = Some(self.now);
        self.net.weather = Weather::CALM;
        for at in 0..self.sites.len() {
            let site = &mut self.sites[at];
            site.disk.fail_at(u64::MAX / 2, windlass::internals::disk::Fault::Error);
            (site.names, site.cut_at_ack) = (Reach::Answers, false);
            if site.process.as_ref().is_some_and(|broker| broker.store.read_only().is_some()) {
                self.stop_broker(at, false);
            }
        }
        let servers: Vec<String> = (0..self.sites.len()).map(|site| addr(site, NAMES_PORT).to_string()).collect();
        for member in 0..self.clients.len() {
            self.clients[member].mute = false;
            self.resume(member);
            self.name_servers(member, servers.clone());
        }
        for group in 0..self.plan.groups.len() {
            let mine: Vec<usize> =
                (0..self.clients.len()).filter(|member| self.plan.group_of(*member) == group).collect();
            let stays =
                |member: &usize| self.clients[*member].process.as_ref().is_some_and(|process| !process.is_leaving());
            if mine.iter().any(stays) {
                continue;
            }
            match mine.iter().find(|member| self.clients[**member].process.is_none()) {
                Some(member) => self.join(*member),
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
        if self.sites.iter().any(|site| site.process.is_none()) {
            return;
        }
        self.look_at_members(calm);
        let most = if self.sites.len() > 1 { ROUTED } else { AGREED };
        let agreed = self.watch.agreed_since.is_some_and(|since| self.now.since(since) >= most);
        if agreed {
            let checked = self.check_owners(owned);
            self.check(checked);
        }
        match self.what_is_open() {
            None if agreed && calm > LEAST => self.finished = true,
            Some(open) if calm > SETTLED => self.fail(format!("after {} s of calm {open}", calm.as_secs())),
            None | Some(_) => {}
        }
    }

    /// Whether every broker lists exactly the members that run.
    fn look_at_members(&mut self, calm: Duration) {
        let mut agreed = true;
        for group in 0..self.plan.groups.len() {
            let mut running: Vec<String> = Vec::new();
            for (member, slot) in self.clients.iter().enumerate() {
                let process = slot.process.as_ref().filter(|_| self.plan.group_of(member) == group);
                running.extend(process.map(|process| process.client_id.clone()));
            }
            running.sort();
            for site in 0..self.sites.len() {
                let Some(broker) = &self.sites[site].process else { return };
                let listed = broker.dispatcher.consumer_list(self.plan.groups[group].name).unwrap_or_default();
                let mut listed: Vec<String> = listed.iter().map(|id| id.to_string()).collect();
                listed.sort();
                agreed &= listed == running;
                if listed != running && calm > LISTED {
                    let calm = calm.as_secs();
                    self.fail(format!("after {calm} s of calm broker {site} lists {listed:?}, but {running:?} run"));
                }
            }
        }
        match agreed {
            true => drop(self.watch.agreed_since.get_or_insert(self.now)),
            false => self.watch.agreed_since = None,
        }
    }

    /// Every queue has exactly one owner in each group.
    fn check_owners(&self, owned: &Owned) -> Result<(), String> {
        for (group, plan) in self.plan.groups.iter().enumerate() {
            for place in self.group_queues(plan.name) {
                let owns = |(who, assigned): &&(Who, Vec<Assigned>)| {
                    matches!(who.kind, Kind::Client(member) if self.plan.group_of(member) == group)
                        && assigned.iter().any(|claim| place_of(&claim.queue) == place)
                };
                let owners: Vec<Who> = owned.iter().filter(owns).map(|(who, _)| *who).collect();
                if owners.len() != 1 {
                    return Err(format!("{}: {place:?} has the owners {owners:?}: {owned:?}", plan.name));
                }
            }
        }
        Ok(())
    }

    fn group_queues(&self, group: &str) -> Vec<Place> {
        let topics = [(crate::process::TOPIC.to_owned(), self.plan.queues as i32), (format!("%RETRY%{group}"), 1)];
        let mut places = Vec::new();
        for site in 0..self.sites.len() {
            for (topic, queues) in &topics {
                places.extend((0..*queues).map(|queue| (site, Arc::from(topic.as_str()), queue)));
            }
        }
        places
    }

    /// What is not as it should be in the end.
    fn what_is_open(&self) -> Option<String> {
        if !self.producer.role.is_done() {
            return Some("the producer has not sent everything".to_owned());
        }
        for (group, plan) in self.plan.groups.iter().enumerate() {
            let open = self.ledger.open(group);
            if !open.is_empty() {
                let places: Vec<_> = open.iter().map(|id| (*id, self.ledger.places_of(*id))).collect();
                return Some(format!(
                    "these messages of {} were acknowledged and are neither finished nor dead letters: {places:?}",
                    plan.name
                ));
            }
            for place in self.ledger.places(group) {
                let end = self.ledger.copies(&place).len() as i64;
                let broker = self.sites[place.0].process.as_ref()?;
                let committed = self.ledger.committed(group, &broker.dispatcher, &place).unwrap_or(0);
                if committed != end {
                    return Some(format!("{}: {place:?} ends at {end} and is committed at {committed}", plan.name));
                }
            }
        }
        None
    }
}
