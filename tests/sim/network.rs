//! The network: connections between processes. Within one direction of one connection bytes keep their order; everything
//! else may be late, overtake, be cut off, go silent, or refuse.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass::internals::net::Conn;
use windlass::internals::work::clock::Nanos;

use crate::rng::Rng;

/// A process by its role and number, and which of its lives.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Who {
    pub kind: Kind,
    pub life: u32,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// The broker of one site, with its name server.
    Broker(usize),
    Producer,
    Client(usize),
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub who: Who,
    pub conn: Conn,
    /// What was sent to it last arrives then: nothing that follows comes earlier.
    arrives: Nanos,
}

/// One connection. End 0 made it.
#[derive(Debug)]
pub struct Link {
    pub ends: [End; 2],
    /// The listener it goes to: 0 the broker, 1 the name server.
    pub listener: usize,
    /// Nothing comes through, and nobody is told.
    pub silent: bool,
    /// Everything sent before this arrives after it.
    stalled_until: Nanos,
    /// End 0 sends from then on.
    ready: Nanos,
}

/// How the network behaves.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// One way, in microseconds.
    pub latency: (u64, u64),
    /// Now and then a frame takes this many milliseconds more.
    pub slow_ms: u64,
    /// How often, in a thousand.
    pub slow: u64,
    /// Frames lost, in a thousand: the peer took a request and never answered it.
    pub lost: u64,
}

impl Weather {
    pub const CALM: Self = Self { latency: (100, 2000), slow_ms: 0, slow: 0, lost: 0 };
}

#[derive(Debug)]
pub struct Network {
    pub weather: Weather,
    links: BTreeMap<u64, Link>,
    by_end: BTreeMap<(Who, Conn), (u64, usize)>,
    last: u64,
}

/// What becomes of a frame.
#[derive(Debug, PartialEq)]
pub enum Fate {
    /// It arrives then at this end.
    Arrives(Nanos, Who, Conn),
    Lost,
}

impl Network {
    pub fn new() -> Self {
        Self { weather: Weather::CALM, links: BTreeMap::new(), by_end: BTreeMap::new(), last: 0 }
    }

    fn delay(&self, rng: &mut Rng) -> Duration {
        let (from, to) = self.weather.latency;
        let mut delay = rng.micros(from, to);
        if rng.chance(self.weather.slow) {
            delay += rng.millis(0, self.weather.slow_ms);
        }
        delay
    }

    /// A connection from one process to another; when its far end sees it, and its near end.
    pub fn link(
        &mut self,
        near: (Who, Conn),
        far: (Who, Conn),
        listener: usize,
        now: Nanos,
        rng: &mut Rng,
    ) -> [Nanos; 2] {
        self.last += 1;
        let there = now + self.delay(rng);
        let back = there + self.delay(rng);
        let end = |(who, conn), arrives| End { who, conn, arrives };
        let ends = [end(near, back), end(far, there)];
        self.links.insert(self.last, Link { ends, listener, silent: false, stalled_until: Nanos::ZERO, ready: back });
        self.by_end.insert(near, (self.last, 0));
        self.by_end.insert(far, (self.last, 1));
        [there, back]
    }

    /// Something sent from this end.
    pub fn send(&mut self, from: (Who, Conn), now: Nanos, loses: bool, rng: &mut Rng) -> Fate {
        let delay = self.delay(rng);
        let lost = loses && rng.chance(self.weather.lost);
        let Some((id, side)) = self.by_end.get(&from).copied() else { return Fate::Lost };
        let Some(link) = self.links.get_mut(&id) else { return Fate::Lost };
        if link.silent || lost {
            return Fate::Lost;
        }
        // A connection that is not there yet sends once it is.
        let starts = if side == 0 { now.max(link.ready) } else { now };
        let stalled = link.stalled_until;
        let far = &mut link.ends[1 - side];
        let at = (starts + delay).max(far.arrives + Duration::from_nanos(1)).max(stalled);
        far.arrives = at;
        Fate::Arrives(at, far.who, far.conn)
    }

    /// This end is closed in order: what was sent before arrives, then the end of it.
    pub fn close(&mut self, from: (Who, Conn), now: Nanos, rng: &mut Rng) -> Fate {
        let fate = self.send(from, now, false, rng);
        self.forget(from);
        fate
    }

    /// The connections that match.
    pub fn find(&self, matches: impl Fn(&Link) -> bool) -> Vec<u64> {
        self.links.iter().filter(|(_, link)| matches(link)).map(|(id, _)| *id).collect()
    }

    /// Both ends see an end of it, each after a while; what is on its way then is lost.
    pub fn cut(&mut self, id: u64, now: Nanos, rng: &mut Rng) -> Vec<(Nanos, Who, Conn)> {
        let Some(link) = self.links.remove(&id) else { return Vec::new() };
        let ends = link.ends;
        for end in &ends {
            self.by_end.remove(&(end.who, end.conn));
        }
        ends.iter().map(|end| (now + rng.millis(0, 20), end.who, end.conn)).collect()
    }

    pub fn silence(&mut self, id: u64) {
        if let Some(link) = self.links.get_mut(&id) {
            link.silent = true;
        }
    }

    pub fn stall(&mut self, id: u64, until: Nanos) {
        if let Some(link) = self.links.get_mut(&id) {
            link.stalled_until = until;
        }
    }

    /// One end of a connection.
    pub fn end(&self, id: u64, side: usize) -> Option<(Who, Conn)> {
        self.links.get(&id).map(|link| (link.ends[side].who, link.ends[side].conn))
    }

    /// The other end.
    pub fn far(&self, end: (Who, Conn)) -> Option<(Who, Conn)> {
        let (id, side) = self.by_end.get(&end)?;
        self.links.get(id).map(|link| (link.ends[1 - side].who, link.ends[1 - side].conn))
    }

    /// True if what is sent from this end now arrives soon, unless the weather loses it.
    pub fn is_healthy(&self, end: (Who, Conn), now: Nanos) -> bool {
        let link = self.by_end.get(&end).and_then(|(id, _)| self.links.get(id));
        link.is_some_and(|link| {
            let both = link.ends.iter().all(|end| self.by_end.contains_key(&(end.who, end.conn)));
            both && !link.silent && link.stalled_until <= now && link.ready <= now
        })
    }

    /// True if this end has a link at all.
    pub fn knows(&self, end: (Who, Conn)) -> bool {
        self.by_end.contains_key(&end)
    }

    fn forget(&mut self, end: (Who, Conn)) {
        let Some((id, _)) = self.by_end.remove(&end) else { return };
        let Some(link) = self.links.get(&id) else { return };
        // Gone once both ends are.
        if link.ends.iter().all(|end| !self.by_end.contains_key(&(end.who, end.conn))) {
            self.links.remove(&id);
        }
    }

    /// An end that was told of the link's end needs it no more.
    pub fn ended(&mut self, end: (Who, Conn)) {
        self.forget(end);
    }
}
