//! What a seed decides before anything happens: settings, how the network behaves, and which faults come when.

use std::time::Duration;

use windlass::StartFrom;
use windlass::broker::Flush;

use crate::network::Weather;
use crate::rng::Rng;

/// A fault, or a change of members. Sites are numbered: each has a broker with a name server and a disk.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// A member starts, if this one does not run.
    Join(usize),
    /// A member leaves in order.
    Leave(usize),
    /// A member's process is killed; its connections are closed by its system.
    Kill(usize),
    /// A member's machine is gone: nobody is told.
    Vanish(usize),
    /// A member is paused by its user, and resumed later.
    Pause(usize),
    /// A broker's process is killed now.
    KillBroker(usize),
    /// A disk stops at a changing call soon to come, and with it the broker.
    StopDisk(usize),
    /// A call of the disk fails; the broker is restarted later.
    FailDisk(usize),
    /// A broker's machine loses power.
    PowerCut(usize),
    /// ... as soon as it has acknowledged a message.
    CutAtAck(usize),
    /// Some connections are cut.
    Cut,
    /// Some connections go silent, and nobody is told.
    Silence,
    /// Some connections end for the broker only: the member goes on to believe in them.
    HalfOpen,
    /// Some connections carry nothing for a while.
    Stall,
    /// A broker forgets a member whose connection goes on.
    Forget(usize),
    /// A member's heartbeats are lost for a while, and nothing else.
    Mute(usize),
    /// A name server accepts and never answers, for a while.
    NamesSilent(usize),
    /// A name server refuses connections, for a while.
    NamesRefuse(usize),
    /// A member is told of other name servers, one of which may not exist.
    NamesReplaced(usize),
    /// Handlers of one member are slow for a while.
    SlowHandlers(usize),
}

/// How handlers behave, each in a thousand.
#[derive(Clone, Copy, Debug)]
pub struct Handling {
    /// Finish on another thread, later.
    pub detached: u64,
    /// Block their worker.
    pub blocking: u64,
    /// Longest time of either, in milliseconds.
    pub most_ms: u64,
    /// Ask for a redelivery.
    pub retry: u64,
    /// Give up the message.
    pub dead: u64,
    /// Panic.
    pub panic: u64,
}

/// What is sent, each in a thousand.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// Messages with a delay level.
    pub delayed: u64,
    /// Messages with a compressed body.
    pub compressed: u64,
    /// Sends that are batches.
    pub batches: u64,
}

/// A consumer group.
#[derive(Clone, Copy, Debug)]
pub struct GroupPlan {
    pub name: &'static str,
    /// Only some of the tags.
    pub filtered: bool,
    pub start_from: StartFrom,
    /// Pulls carry the subscription.
    pub post_subscription: bool,
}

/// What two tags of a filtered group are; the third one of all has the same hash as the first of these.
pub const WANTED: &str = "Aa || C";
const TAGS: [&str; 4] = ["Aa", "BB", "C", ""];

/// A message's tag.
pub fn tag_of(id: u32) -> &'static str {
    TAGS[id as usize % TAGS.len()]
}

impl GroupPlan {
    /// True if a message is the group's business.
    pub fn wants(&self, id: u32) -> bool {
        !self.filtered || matches!(tag_of(id), "Aa" | "C")
    }
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub sites: usize,
    pub groups: Vec<GroupPlan>,
    pub members: usize,
    pub queues: u64,
    pub messages: u32,
    pub gap_ms: u64,
    pub sending: Sending,
    pub flush: Flush,
    pub delay_scale: f64,
    pub memory_budget: u64,
    pub queue_messages: u64,
    pub pull_batch: u32,
    pub batch: u32,
    pub batch_wait: Duration,
    pub consume_timeout: Duration,
    pub max_redeliveries: u32,
    pub drain: bool,
    pub handling: Handling,
    pub weather: Weather,
    /// Answers to pulls that are damaged on their way, in a thousand.
    pub damage: u64,
    /// Messages that no broker can read from its disk again.
    pub unreadable: Vec<u32>,
    /// Requests that get an answer of long ago beside their own, in a thousand.
    pub ghosts: u64,
    /// When the faults end, after the start.
    pub calm: Duration,
    pub faults: Vec<(Duration, Fault)>,
}

impl Plan {
    pub fn of(rng: &mut Rng) -> Self {
        let calm = Duration::from_secs(if rng.chance(120) { rng.between(130, 260) } else { rng.between(20, 80) });
        let weather = match rng.below(5) {
            0 => Weather::CALM,
            1 => Weather { latency: (100, 20_000), slow_ms: 500, slow: 50, lost: 0 },
            2 | 3 => Weather { latency: (50, 5000), slow_ms: 8000, slow: 20, lost: 20 },
            _ => Weather { latency: (50, 50_000), slow_ms: 2000, slow: 100, lost: 60 },
        };
        let handling = Handling {
            detached: rng.pick(&[0, 200, 800]),
            blocking: rng.pick(&[0, 50, 300]),
            most_ms: rng.pick(&[5, 200, 3000, 12_000]),
            retry: rng.pick(&[0, 50, 300]),
            dead: rng.pick(&[0, 20]),
            panic: rng.pick(&[0, 30]),
        };
        let sending = Sending {
            delayed: rng.pick(&[0, 60]),
            compressed: rng.pick(&[0, 0, 300]),
            batches: rng.pick(&[0, 0, 300]),
        };
        let sites = if rng.chance(350) { 2 } else { 1 };
        let groups = Self::groups(rng);
        let members = rng.between(groups.len() as u64, 2 + groups.len() as u64) as usize;
        let messages = rng.between(30, 100) as u32;
        let unreadable = if rng.chance(150) { rng.between(1, 6) } else { 0 };
        let mut plan = Self {
            sites,
            groups,
            members,
            queues: rng.between(1, if sites == 2 { 3 } else { 6 }),
            messages,
            gap_ms: rng.pick(&[20, 300, 2000]),
            sending,
            flush: rng.pick(&[Flush::Async, Flush::Async, Flush::Sync]),
            delay_scale: rng.pick(&[0.001, 0.01, 0.1]),
            memory_budget: rng.pick(&[2000, 64 << 20]),
            queue_messages: rng.pick(&[1, 5, 1000]),
            pull_batch: rng.pick(&[1, 4, 32]),
            batch: rng.pick(&[1, 1, 3, 8]),
            batch_wait: Duration::from_millis(rng.pick(&[0, 0, 0, 50])),
            consume_timeout: Duration::from_secs(rng.pick(&[4, 60, 900])),
            max_redeliveries: rng.pick(&[1, 3, 16]) as u32,
            drain: rng.chance(300),
            handling,
            weather,
            damage: rng.pick(&[0, 0, 0, 50, 300]),
            unreadable: (0..unreadable).map(|_| rng.between(1, u64::from(messages)) as u32).collect(),
            ghosts: rng.pick(&[0, 0, 30]),
            calm,
            faults: Vec::new(),
        };
        plan.make_faults(rng);
        plan
    }

    fn groups(rng: &mut Rng) -> Vec<GroupPlan> {
        let names = ["members", "others"];
        let count = if rng.chance(250) { 2 } else { 1 };
        let of = |name: &&'static str| GroupPlan {
            name,
            filtered: rng.chance(300),
            start_from: if rng.chance(300) { StartFrom::Last } else { StartFrom::First },
            post_subscription: rng.chance(100),
        };
        names.iter().take(count).map(of).collect()
    }

    /// The group of a member.
    pub fn group_of(&self, member: usize) -> usize {
        member % self.groups.len()
    }

    fn make_faults(&mut self, rng: &mut Rng) {
        for group in 0..self.groups.len() {
            self.faults.push((Duration::ZERO, Fault::Join(group)));
        }
        let until = self.calm.as_millis() as u64;
        for member in 0..self.members {
            let at = rng.millis(0, until.min(60_000) / 2);
            self.faults.push((at, Fault::Join(member)));
        }
        let count = if rng.chance(100) { 0 } else { rng.between(3, 18) };
        for _ in 0..count {
            let at = rng.millis(200, until);
            let (member, site) = (rng.below(self.members as u64) as usize, rng.below(self.sites as u64) as usize);
            let fault = match rng.below(27) {
                0 | 1 => Fault::Join(member),
                2 => Fault::Leave(member),
                3 => Fault::Kill(member),
                4 => Fault::Vanish(member),
                5 => Fault::KillBroker(site),
                6 => Fault::StopDisk(site),
                7 => Fault::FailDisk(site),
                8 | 18 => Fault::PowerCut(site),
                19 => {
                    // A member that is gone again before the others have given it its share.
                    self.faults.push((at, Fault::Join(member)));
                    let soon = at + rng.millis(20, 1500);
                    self.faults.push((soon, Fault::Kill(member)));
                    continue;
                }
                9 | 10 => Fault::Cut,
                11 => Fault::Silence,
                12 | 16 | 17 => Fault::Stall,
                13 => Fault::NamesSilent(site),
                14 => Fault::NamesRefuse(site),
                20 => Fault::CutAtAck(site),
                21 => Fault::HalfOpen,
                22 | 23 => Fault::Forget(member),
                24 => Fault::Mute(member),
                25 => Fault::NamesReplaced(member),
                26 => Fault::Pause(member),
                _ => Fault::SlowHandlers(member),
            };
            self.faults.push((at, fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }
}
