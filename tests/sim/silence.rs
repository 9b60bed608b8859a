//! No silent stop (promise 2), at any time: every queue is being pulled, waits for a stated reason, or was reported.
//! What a member says of its queues is held against what it sends and what it tells its observer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass::internals::work::clock::Nanos;
use windlass::{Assigned, Event};

use crate::ledger::Place;
use crate::network::{Kind, Who};
use crate::process::{LEAVE, place_of, site_of};
use crate::watch::Owned;
use crate::world::World;

/// How exactly times are seen: the world looks twice a second, and events take their way over a lane.
const SEEN: Duration = Duration::from_millis(1000);
/// The longest pull.
const PULL: Duration = Duration::from_secs(31);
/// The longest pause after one.
const PAUSE: Duration = Duration::from_millis(6500);
/// A request of a start offset, and the pause behind it.
const START: Duration = Duration::from_millis(6500);
/// A heartbeat, and the pause behind it.
const HEARTBEAT: Duration = Duration::from_millis(5500);
/// A queue that is given up: its handlers, its last commit.
const GIVEN_UP: Duration = Duration::from_millis(5000);
/// A pause for handlers or memory is told when it lasts.
const LONG: Duration = Duration::from_secs(3);
/// Nothing was answered for this long and nothing was said of it.
const NOTHING: Duration = Duration::from_secs(36);
/// Members are asked for this often, and one such question may fail.
const BALANCED: Duration = Duration::from_secs(25);
/// A broker that does not know a member of which it has a connection is told with the next heartbeat at the latest.
const UNKNOWN: Duration = Duration::from_secs(34);

/// Why a queue is not pulled, as the member says it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Wait {
    Pulled,
    Pause,
    Handlers,
    Memory,
    User,
    Heartbeat,
    Start,
    GivenUp,
}

impl Wait {
    fn of(claim: &Assigned) -> Result<Self, String> {
        let Some(waits) = claim.waits.as_deref() else { return Ok(Self::Pulled) };
        Ok(match waits {
            "a pause after a pull" => Self::Pause,
            "memory budget" => Self::Memory,
            "paused" => Self::User,
            "heartbeat" => Self::Heartbeat,
            "start offset" => Self::Start,
            "given up" => Self::GivenUp,
            _ if waits.starts_with("handlers") => Self::Handlers,
            _ => return Err(format!("a queue waits for a reason that the simulation does not know: {claim:?}")),
        })
    }
}

/// What an event was about.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Subject {
    Queue(Place),
    Broker(usize),
    Topic(Arc<str>),
    /// Anything but that a queue is ours, or resumed.
    Trouble,
}

#[derive(Debug, Default)]
pub struct Silence {
    claims: BTreeMap<(Who, Place), Claim>,
    told: BTreeMap<(Who, Subject), Nanos>,
    since: BTreeMap<Who, Nanos>,
    unknown: BTreeMap<(Who, usize), Nanos>,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    wait: Wait,
    since: Nanos,
    born: Nanos,
    /// Since when nothing of the queue is held; the last handler may have been slow.
    empty: Option<Nanos>,
}

impl Silence {
    fn told(&self, who: Who, subject: Subject) -> Nanos {
        self.told.get(&(who, subject)).copied().unwrap_or(Nanos::ZERO)
    }

    pub fn gone(&mut self, who: Who) {
        self.claims.retain(|(of, _), _| *of != who);
        self.told.retain(|(of, _), _| *of != who);
        self.unknown.retain(|(of, _), _| *of != who);
    }
}

impl World {
    /// A member has told its observer something.
    pub fn told(&mut self, who: Who, event: &Event) {
        let (Kind::Client(member), now) = (who.kind, self.now) else { return };
        self.note((9, event.name()), || format!("{who:?} tells: {event}"));
        if let Some(queue) = event.queue() {
            let place = place_of(queue);
            self.silence.told.insert((who, Subject::Queue(place.clone())), now);
            match event {
                Event::DamagedRecord { offset, .. } => {
                    let group = self.plan.group_of(member);
                    let given_up = self.ledger.given_up(group, &place, offset.0);
                    self.check(given_up);
                }
                Event::OffsetCorrected { .. } => self.talk.corrected(who, &place),
                Event::Missed { .. } => self.fail("events were missed"),
                _ => {}
            }
        }
        match event {
            Event::ConnectionLost { addr, .. } | Event::HeartbeatFailed { addr, .. } => {
                if let Some(site) = addr.parse().ok().as_ref().and_then(site_of) {
                    self.silence.told.insert((who, Subject::Broker(site)), now);
                }
            }
            Event::RouteFailed { topic, .. }
            | Event::NotBalanced { topic, .. }
            | Event::SubscriptionDiffers { topic, .. } => {
                self.silence.told.insert((who, Subject::Topic(topic.clone())), now);
            }
            _ => {}
        }
        if !matches!(event, Event::Assigned { .. } | Event::Resumed { .. } | Event::Revoked { .. }) {
            self.silence.told.insert((who, Subject::Trouble), now);
        }
    }

    pub fn look_for_silence(&mut self, owned: &Owned) {
        let seen: Vec<_> =
            owned.iter().flat_map(|(who, claims)| claims.iter().map(|claim| (*who, place_of(&claim.queue)))).collect();
        self.silence.claims.retain(|key, _| seen.contains(key));
        for (who, claims) in owned {
            self.silence.since.entry(*who).or_insert(self.now);
            for claim in claims {
                let looked = self.look_at_claim(*who, claim);
                self.check(looked);
            }
            let looked = self.look_at_balance(*who);
            self.check(looked);
            for site in 0..self.sites.len() {
                let looked = self.look_whether_known(*who, site);
                self.check(looked);
            }
        }
        let told = self.ledger.check_told(self.now);
        self.check(told);
    }

    fn look_at_claim(&mut self, who: Who, claim: &Assigned) -> Result<(), String> {
        let (now, place, wait) = (self.now, place_of(&claim.queue), Wait::of(claim)?);
        let new = Claim { wait, since: now, born: now, empty: None };
        let known = self.silence.claims.entry((who, place.clone())).or_insert(new);
        if known.wait != wait {
            (known.wait, known.since) = (wait, now);
            if wait == Wait::Start {
                known.born = now;
            }
        }
        known.empty = (claim.held == 0).then(|| known.empty.unwrap_or(now));
        let Claim { since, born, empty, .. } = *known;
        let (pulled, good) = self.talk.pulls(who, &place);
        let pulled = pulled.unwrap_or(born).max(born);
        let told = self.silence.told(who, Subject::Queue(place.clone()));
        let broker = self.silence.told(who, Subject::Broker(place.0));
        let lasts = |most: Duration| now.since(since) > most;
        let after = |told: Nanos, at: Nanos| told + SEEN >= at;
        let leaves = self.client(who).is_some_and(|client| client.is_leaving());
        let fine = match wait {
            Wait::Pulled => now.since(pulled.max(since)) <= PULL || leaves,
            Wait::Pause => now.since(pulled.max(since)) <= PAUSE || after(told, since),
            Wait::Handlers | Wait::Memory => match empty {
                Some(empty) => now.since(since.max(pulled).max(empty)) <= SEEN,
                None => now.since(since.max(pulled)) <= LONG || after(told, pulled),
            },
            Wait::User => matches!(who.kind, Kind::Client(at) if self.clients[at].paused) || !lasts(SEEN),
            Wait::Heartbeat => {
                let known = self.talk.known_since(who, place.0).unwrap_or(Nanos::ZERO);
                now.since(since.max(known)) <= HEARTBEAT || after(broker, known)
            }
            Wait::Start => !lasts(START) || after(told, since),
            Wait::GivenUp if leaves => !lasts(LEAVE + SEEN),
            Wait::GivenUp => !lasts(GIVEN_UP) || after(told, since),
        };
        if !fine {
            return Err(format!("{who:?} has stopped in silence for {:?}: {claim:?}", now.since(since)));
        }
        let good = good.unwrap_or(born).max(born);
        let topic = self.silence.told(who, Subject::Topic(place.1.clone()));
        let reported = [told, broker, topic].into_iter().any(|told| after(told, good));
        let waits = matches!(wait, Wait::Handlers | Wait::Memory | Wait::User | Wait::GivenUp);
        if now.since(good.max(since.min(good + NOTHING))) > NOTHING && !reported && !waits && !leaves {
            return Err(format!("{who:?} got nothing for {:?} and said nothing: {claim:?}", now.since(good)));
        }
        Ok(())
    }

    /// A member looks at its assignment at intervals, or says why it cannot.
    fn look_at_balance(&mut self, who: Who) -> Result<(), String> {
        let now = self.now;
        if self.client(who).is_none_or(|client| client.is_leaving()) {
            return Ok(());
        }
        let since = self.silence.since.get(&who).copied().unwrap_or(now);
        let seen = self.talk.members_seen(who).unwrap_or(since).max(since);
        let told = self.silence.told(who, Subject::Trouble);
        if now.since(seen) > BALANCED && told + SEEN < seen {
            return Err(format!("{who:?} has not looked for members for {:?}", now.since(seen)));
        }
        Ok(())
    }

    /// A broker that is there and has a member's connection knows the member.
    fn look_whether_known(&mut self, who: Who, site: usize) -> Result<(), String> {
        let (now, Kind::Client(member)) = (self.now, who.kind) else { return Ok(()) };
        let group = self.plan.groups[self.plan.group_of(member)].name;
        let lossy = self.calm_since.is_none() && (self.net.weather.lost > 0 || self.clients[member].mute);
        let line = self.talk.line_to(who, site).filter(|conn| self.net.is_healthy((who, *conn), now));
        let Some(client) = self.client(who).filter(|client| !client.is_leaving()) else { return Ok(()) };
        let id = client.client_id.clone();
        let Some(broker) = self.sites[site].process.as_ref().filter(|_| line.is_some() && !lossy) else {
            self.silence.unknown.remove(&(who, site));
            return Ok(());
        };
        let listed = broker.dispatcher.consumer_list(group).unwrap_or_default().iter().any(|listed| **listed == *id);
        if listed {
            self.silence.unknown.remove(&(who, site));
            return Ok(());
        }
        let since = *self.silence.unknown.entry((who, site)).or_insert(now);
        if now.since(since) > UNKNOWN {
            return Err(format!("broker {site} has not known {who:?} for {:?}", now.since(since)));
        }
        Ok(())
    }
}
