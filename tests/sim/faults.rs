//! Faults, and how they end: processes that die and come back, connections that break, names that are not answered.

use std::time::Duration;

use windlass::broker::Flush;
use windlass::internals::disk;

use crate::network::{Kind, Who};
use crate::plan::Fault;
use crate::process::{BrokerProcess, ClientProcess};
use crate::world::{Event, Reach, World};

impl World {
    pub fn fault(&mut self, fault: Fault) {
        if self.calm_since.is_some() {
            return;
        }
        self.note((10, format!("{fault:?}")), || format!("--- {fault:?}"));
        match fault {
            Fault::Join(member) => self.join(member),
            Fault::Leave(member) => drop(self.clients[member].process.as_mut().map(ClientProcess::leave)),
            Fault::Kill(member) => self.kill(member, true),
            Fault::Vanish(member) => self.kill(member, false),
            Fault::KillBroker => self.stop_broker(false),
            Fault::StopDisk => self.disk.fail_at(self.rng.below(40), disk::Fault::Stop),
            Fault::FailDisk => {
                let fault = self.rng.pick(&[disk::Fault::Error, disk::Fault::Short, disk::Fault::NoSpace]);
                self.disk.fail_at(self.rng.below(40), fault);
                self.disk_fails = true;
                let later = self.rng.millis(500, 10_000);
                self.after(later, Event::Fault(Fault::KillBroker));
            }
            Fault::PowerCut => self.stop_broker(true),
            Fault::Cut => {
                let links = self.some_links();
                self.cut(links);
            }
            Fault::Silence => self.some_links().into_iter().for_each(|id| self.net.silence(id)),
            Fault::Stall => {
                let until = self.now + self.rng.millis(500, 40_000);
                self.some_links().into_iter().for_each(|id| self.net.stall(id, until));
            }
            Fault::NamesSilent => self.names_away(Reach::Dark),
            Fault::NamesRefuse => self.names_away(Reach::Refuses),
            Fault::SlowHandlers(member) => {
                self.slow(member);
                let later = self.rng.millis(1000, 30_000);
                self.after(later, Event::SlowEnd(member));
            }
        }
    }

    fn some_links(&mut self) -> Vec<u64> {
        let all = self.net.find(|_| true);
        let share = self.rng.pick(&[200, 500, 1000]);
        all.into_iter().filter(|_| self.rng.chance(share)).collect()
    }

    fn names_away(&mut self, how: Reach) {
        self.names_are(how);
        let links = self.net.find(|link| link.listener == 1);
        match how {
            Reach::Dark => links.into_iter().for_each(|id| self.net.silence(id)),
            _ => self.cut(links),
        }
        let later = self.rng.millis(500, 60_000);
        self.after(later, Event::NamesBack);
    }

    pub fn join(&mut self, member: usize) {
        let slot = &mut self.clients[member];
        if slot.process.is_some() {
            return;
        }
        slot.life += 1;
        let who = Who { kind: Kind::Client(member), life: slot.life };
        // Now and then under the name it had before, which its broker may still hold for alive.
        let instance = if self.rng.chance(300) { format!("m{member}") } else { format!("m{member}#{}", slot.life) };
        let seed = self.rng.next();
        let process = ClientProcess::start(who, &instance, &self.plan, &self.clock.clock(), seed);
        self.clients[member].process = Some(process);
    }

    /// A member's process is gone. `told`: its system closes its connections.
    fn kill(&mut self, member: usize, told: bool) {
        if self.clients[member].process.take().is_none() {
            return;
        }
        let who = Who { kind: Kind::Client(member), life: self.clients[member].life };
        self.leave_links(who, told);
    }

    /// A process has ended by itself.
    pub fn ended(&mut self, who: Who) {
        if let Kind::Client(member) = who.kind {
            self.note((11, member), || format!("{who:?} has ended"));
            self.clients[member].process = None;
            self.leave_links(who, true);
        }
    }

    fn leave_links(&mut self, who: Who, told: bool) {
        let links = self.net.find(|link| link.ends.iter().any(|end| end.who == who));
        match told {
            true => self.cut(links),
            false => links.into_iter().for_each(|id| self.net.silence(id)),
        }
    }

    /// The broker's process ends at once, or its machine does.
    pub fn stop_broker(&mut self, power_cut: bool) {
        let Some(broker) = self.broker.take() else { return };
        self.note((12, power_cut), || format!("--- the broker is gone, power cut: {power_cut}"));
        let who = Who { kind: Kind::Broker, life: self.broker_life };
        drop(broker);
        self.disk = if power_cut { self.disk.after_power_cut(self.rng.next()) } else { self.disk.after_kill() };
        self.leave_links(who, !power_cut);
        self.reach(if power_cut { Reach::Dark } else { Reach::Refuses });
        let down = if self.rng.chance(700) { self.rng.millis(50, 3000) } else { self.rng.millis(3000, 40_000) };
        self.after(down, Event::Boot { power_cut });
    }

    /// The broker's process starts, on what its disk holds.
    pub fn boot(&mut self, power_cut: bool) {
        if self.broker.is_some() {
            return;
        }
        if self.broker_life > 0 && self.calm_since.is_none() && self.rng.chance(150) {
            // Recovery is cut short, too.
            self.disk.fail_at(self.rng.below(8), disk::Fault::Stop);
        }
        let opened = BrokerProcess::start(&self.disk, &self.plan, &self.clock.clock());
        let broker = match opened {
            Ok(broker) if !self.disk.stopped() => broker,
            opened if self.disk.stopped() || std::mem::take(&mut self.disk_fails) => {
                drop(opened);
                self.note(13, || "--- recovery was cut short".to_owned());
                self.disk = if power_cut { self.disk.after_power_cut(self.rng.next()) } else { self.disk.after_kill() };
                return self.after(Duration::from_millis(100), Event::Boot { power_cut });
            }
            Ok(_) => return,
            Err(error) => return self.fail(format!("the store does not open again: {error}")),
        };
        self.disk_fails = false;
        self.note(14, || "--- the broker has started".to_owned());
        self.broker_life += 1;
        let life = self.broker_life;
        // Connections of before are unknown to the machine that came back.
        let stale =
            self.net.find(|link| link.ends.iter().any(|end| end.who.kind == Kind::Broker && end.who.life < life));
        stale.into_iter().for_each(|id| drop(self.net.cut(id, self.now, &mut self.rng)));
        self.reach(Reach::Answers);
        let may_lose = power_cut && self.plan.flush != Flush::Sync;
        let reopened = self.ledger.reopened(&broker.store, may_lose);
        self.broker = Some(broker);
        self.check(reopened);
        self.after(Duration::from_millis(20), Event::Segment(life));
    }
}
