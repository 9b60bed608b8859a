//! Faults, and how they end: processes that die and come back, connections that break, names that are not answered.

use std::time::Duration;

use windlass::broker::Flush;
use windlass::internals::disk;
use windlass::internals::net::Conn;
use windlass::internals::rocketmq::consumer::group::Order;
use windlass::internals::rocketmq::core::Command;
use windlass::internals::rocketmq::port::Ask;
use windlass::internals::wire::remoting::codes::request;
use windlass::internals::wire::remoting::command::Codec;
use windlass::internals::wire::remoting::group::UnregisterRequest;

use crate::network::{Kind, Link, Who};
use crate::node::Arrival;
use crate::plan::Fault;
use crate::process::{BrokerProcess, ClientProcess, NAMES_PORT, addr, nowhere};
use crate::world::{Event, Reach, World};

impl World {
    pub fn fault(&mut self, fault: Fault) {
        if self.calm_since.is_some() {
            return;
        }
        self.note((10, format!("{fault:?}")), || format!("--- {fault:?}"));
        match fault {
            Fault::Join(member) => self.join(member),
            Fault::Leave(member) => {
                let now = self.now;
                if let Some(process) = &mut self.clients[member].process {
                    process.leave(now);
                }
            }
            Fault::Kill(member) => self.kill(member, true),
            Fault::Vanish(member) => self.kill(member, false),
            Fault::Pause(member) => self.pause(member),
            Fault::KillBroker(site) => self.stop_broker(site, false),
            Fault::StopDisk(site) => self.sites[site].disk.fail_at(self.rng.below(40), disk::Fault::Stop),
            Fault::FailDisk(site) => {
                let fault = self.rng.pick(&[disk::Fault::Error, disk::Fault::Short, disk::Fault::NoSpace]);
                self.sites[site].disk.fail_at(self.rng.below(40), fault);
                self.sites[site].disk_fails = true;
                let later = self.rng.millis(500, 10_000);
                self.after(later, Event::Fault(Fault::KillBroker(site)));
            }
            Fault::PowerCut(site) => self.stop_broker(site, true),
            Fault::CutAtAck(site) => self.sites[site].cut_at_ack = true,
            Fault::Cut => {
                let links = self.some_links();
                self.cut(links);
            }
            Fault::Silence => self.some_links().into_iter().for_each(|id| self.net.silence(id)),
            Fault::HalfOpen => {
                let links = self.some_links();
                self.half_open(links);
            }
            Fault::Stall => {
                let until = self.now + self.rng.millis(500, 40_000);
                self.some_links().into_iter().for_each(|id| self.net.stall(id, until));
            }
            Fault::Forget(member) => self.forget(member),
            Fault::Mute(member) => {
                self.clients[member].mute = true;
                let later = self.rng.millis(1000, 180_000);
                self.after(later, Event::MuteEnd(member));
            }
            Fault::NamesSilent(site) => self.names_away(site, Reach::Dark),
            Fault::NamesRefuse(site) => self.names_away(site, Reach::Refuses),
            Fault::NamesReplaced(member) => self.replace_names(member),
            Fault::SlowHandlers(member) => {
                self.clients[member].slow = true;
                let later = self.rng.millis(1000, 30_000);
                self.after(later, Event::SlowEnd(member));
            }
        }
    }

    fn pause(&mut self, member: usize) {
        let (now, slot) = (self.now, &mut self.clients[member]);
        if let Some(process) = &mut slot.process {
            slot.paused = true;
            process.order(Order::Pause(None), now);
            let later = self.rng.millis(100, 20_000);
            self.after(later, Event::Resume(member));
        }
    }

    pub fn resume(&mut self, member: usize) {
        let (now, slot) = (self.now, &mut self.clients[member]);
        slot.paused = false;
        if let Some(process) = &mut slot.process {
            process.order(Order::Resume(None), now);
        }
    }

    /// A broker is told that a member has left, on the member's own connection: as by a client of the same name.
    fn forget(&mut self, member: usize) {
        let who = Who { kind: Kind::Client(member), life: self.clients[member].life };
        let group = self.plan.groups[self.plan.group_of(member)].name;
        let Some(id) = self.client(who).map(|client| client.client_id.clone()) else { return };
        let fields = UnregisterRequest {
            client_id: id.as_str().into(),
            producer_group: None,
            consumer_group: Some(group.into()),
        };
        let mut bytes = Vec::new();
        Ask::of(request::UNREGISTER_CLIENT, &fields).encode(Codec::Json, 1, true, &mut bytes).unwrap();
        let content = bytes.split_off(4);
        for site in 0..self.sites.len() {
            let far: Option<(Who, Conn)> = self.talk.line_to(who, site).and_then(|conn| self.net.far((who, conn)));
            if let Some((far, conn)) = far {
                self.after(Duration::from_micros(1), Event::Arrive(far, Arrival::Frame(conn, content.clone())));
            }
        }
    }

    fn replace_names(&mut self, member: usize) {
        let mut servers: Vec<String> = (0..self.sites.len()).map(|site| addr(site, NAMES_PORT).to_string()).collect();
        if servers.len() > 1 && self.rng.chance(500) {
            servers.remove(self.rng.below(2) as usize);
        }
        if self.rng.chance(500) {
            servers.insert(self.rng.below(servers.len() as u64 + 1) as usize, nowhere().to_string());
        }
        self.name_servers(member, servers);
    }

    /// A member's user names other name servers.
    pub fn name_servers(&mut self, member: usize, servers: Vec<String>) {
        let slot = &mut self.clients[member];
        if let Some(process) = &slot.process {
            slot.names = Some((servers.clone(), self.now));
            drop(process.handle.post(Command::NameServers(servers)));
        }
    }

    fn some_links(&mut self) -> Vec<u64> {
        let all = self.net.find(|_| true);
        let share = self.rng.pick(&[200, 500, 1000]);
        all.into_iter().filter(|_| self.rng.chance(share)).collect()
    }

    fn names_away(&mut self, site: usize, how: Reach) {
        self.sites[site].names = how;
        let here = |link: &Link| link.listener == 1 && link.ends[1].who.kind == Kind::Broker(site);
        let links = self.net.find(here);
        match how {
            Reach::Dark => links.into_iter().for_each(|id| self.net.silence(id)),
            _ => self.cut(links),
        }
        let later = self.rng.millis(500, 60_000);
        self.after(later, Event::NamesBack(site));
    }

    pub fn join(&mut self, member: usize) {
        let slot = &mut self.clients[member];
        if slot.process.is_some() {
            return;
        }
        slot.life += 1;
        (slot.paused, slot.names) = (false, None);
        let who = Who { kind: Kind::Client(member), life: slot.life };
        // Now and then under the name it had before, which its broker may still hold for alive.
        let instance = if self.rng.chance(300) { format!("m{member}") } else { format!("m{member}#{}", slot.life) };
        let (seed, group) = (self.rng.next(), self.plan.group_of(member));
        let process = ClientProcess::start(who, group, &instance, &self.plan, &self.clock.clock(), seed);
        self.clients[member].process = Some(process);
    }

    /// A member's process is gone. `told`: its system closes its connections.
    fn kill(&mut self, member: usize, told: bool) {
        if self.clients[member].process.take().is_none() {
            return;
        }
        let who = Who { kind: Kind::Client(member), life: self.clients[member].life };
        self.gone(who, told);
    }

    /// A process has ended by itself.
    pub fn ended(&mut self, who: Who) {
        if let Kind::Client(member) = who.kind {
            self.note((11, member), || format!("{who:?} has ended"));
            self.clients[member].process = None;
            self.gone(who, true);
        }
    }

    fn gone(&mut self, who: Who, told: bool) {
        self.leave_links(who, told);
        self.talk.gone(who);
        self.silence.gone(who);
        if let Kind::Client(member) = who.kind {
            self.ledger.told_no_more(self.plan.group_of(member));
        }
    }

    fn leave_links(&mut self, who: Who, told: bool) {
        let links = self.net.find(|link| link.ends.iter().any(|end| end.who == who));
        match told {
            true => self.cut(links),
            false => links.into_iter().for_each(|id| self.net.silence(id)),
        }
    }

    /// A broker's process ends at once, or its machine does.
    pub fn stop_broker(&mut self, at: usize, power_cut: bool) {
        let (site, seed) = (&mut self.sites[at], power_cut.then(|| self.rng.next()));
        let Some(broker) = site.process.take() else { return };
        let who = Who { kind: Kind::Broker(at), life: site.life };
        drop(broker);
        site.disk = seed.map_or_else(|| site.disk.after_kill(), |seed| site.disk.after_power_cut(seed));
        site.host = if power_cut { Reach::Dark } else { Reach::Refuses };
        site.cut_at_ack = false;
        self.talk.gone(who);
        self.note((12, at, power_cut), || format!("--- broker {at} is gone, power cut: {power_cut}"));
        self.leave_links(who, !power_cut);
        let down = if self.rng.chance(700) { self.rng.millis(50, 3000) } else { self.rng.millis(3000, 40_000) };
        self.after(down, Event::Boot { site: at, power_cut });
    }

    /// A broker's process starts, on what its disk holds.
    pub fn boot(&mut self, at: usize, power_cut: bool) {
        let site = &mut self.sites[at];
        if site.process.is_some() {
            return;
        }
        if site.life > 0 && self.calm_since.is_none() && self.rng.chance(150) {
            // Recovery is cut short, too.
            site.disk.fail_at(self.rng.below(8), disk::Fault::Stop);
        }
        let opened = BrokerProcess::start(at, &site.disk, &self.plan, &self.clock.clock());
        let broker = match opened {
            Ok(broker) if !site.disk.stopped() => broker,
            opened if site.disk.stopped() || std::mem::take(&mut site.disk_fails) => {
                drop(opened);
                let seed = power_cut.then(|| self.rng.next());
                site.disk = seed.map_or_else(|| site.disk.after_kill(), |seed| site.disk.after_power_cut(seed));
                self.note((13, at), || format!("--- recovery of broker {at} was cut short"));
                return self.after(Duration::from_millis(100), Event::Boot { site: at, power_cut });
            }
            Ok(_) => return,
            Err(error) => return self.fail(format!("the store of broker {at} does not open again: {error}")),
        };
        site.disk_fails = false;
        site.life += 1;
        let (life, may_lose) = (site.life, power_cut && self.plan.flush != Flush::Sync);
        self.note((14, at), || format!("--- broker {at} has started"));
        // Connections of before are unknown to the machine that came back.
        let stale =
            self.net.find(|link| link.ends.iter().any(|end| end.who.kind == Kind::Broker(at) && end.who.life < life));
        stale.into_iter().for_each(|id| drop(self.net.cut(id, self.now, &mut self.rng)));
        self.sites[at].host = Reach::Answers;
        let reopened = self.ledger.reopened(at, &broker.store, may_lose);
        self.sites[at].process = Some(broker);
        self.check(reopened);
        self.after(Duration::from_millis(20), Event::Segment(Who { kind: Kind::Broker(at), life }));
    }
}
