//! What a seed decides before anything happens: settings, how the network behaves, and which faults come when.

use std::time::Duration;

use windlass::broker::Flush;

use crate::network::Weather;
use crate::rng::Rng;

/// A fault, or a change of members.
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
    /// The broker's process is killed now.
    KillBroker,
    /// The disk stops at a changing call soon to come, and with it the broker.
    StopDisk,
    /// A call of the disk fails; the broker is restarted later.
    FailDisk,
    /// The broker's machine loses power.
    PowerCut,
    /// Some connections are cut.
    Cut,
    /// Some connections go silent, and nobody is told.
    Silence,
    /// Some connections carry nothing for a while.
    Stall,
    /// The name server accepts and never answers, for a while.
    NamesSilent,
    /// The name server refuses connections, for a while.
    NamesRefuse,
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

#[derive(Clone, Debug)]
pub struct Plan {
    pub members: usize,
    pub queues: u64,
    pub messages: u32,
    pub gap_ms: u64,
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
    /// When the faults end, after the start.
    pub calm: Duration,
    pub faults: Vec<(Duration, Fault)>,
}

impl Plan {
    pub fn of(rng: &mut Rng) -> Self {
        let members = rng.between(1, 3) as usize;
        let calm = Duration::from_secs(rng.between(20, 80));
        let weather = match rng.below(5) {
            0 => Weather::CALM,
            1 => Weather { latency: (100, 20_000), slow_ms: 500, slow: 50, lost: 0 },
            2 | 3 => Weather { latency: (50, 5000), slow_ms: 8000, slow: 20, lost: 20 },
            _ => Weather { latency: (50, 50_000), slow_ms: 2000, slow: 100, lost: 60 },
        };
        let most_ms = rng.pick(&[5, 200, 3000, 12_000]);
        let handling = Handling {
            detached: rng.pick(&[0, 200, 800]),
            blocking: rng.pick(&[0, 50, 300]),
            most_ms,
            retry: rng.pick(&[0, 50, 300]),
            dead: rng.pick(&[0, 20]),
            panic: rng.pick(&[0, 30]),
        };
        let mut plan = Self {
            members,
            queues: rng.between(1, 6),
            messages: rng.between(30, 100) as u32,
            gap_ms: rng.pick(&[20, 300, 2000]),
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
            calm,
            faults: Vec::new(),
        };
        plan.make_faults(rng);
        plan
    }

    fn make_faults(&mut self, rng: &mut Rng) {
        let first = rng.below(self.members as u64) as usize;
        self.faults.push((Duration::ZERO, Fault::Join(first)));
        let quiet = rng.chance(100);
        let count = if quiet { 0 } else { rng.between(3, 18) };
        for member in 0..self.members {
            let at = rng.millis(0, self.calm.as_millis() as u64 / 2);
            self.faults.push((at, Fault::Join(member)));
        }
        for _ in 0..count {
            let at = rng.millis(200, self.calm.as_millis() as u64);
            let member = rng.below(self.members as u64) as usize;
            let fault = match rng.below(20) {
                0 | 1 => Fault::Join(member),
                2 => Fault::Leave(member),
                3 => Fault::Kill(member),
                4 => Fault::Vanish(member),
                5 => Fault::KillBroker,
                6 => Fault::StopDisk,
                7 => Fault::FailDisk,
                8 | 18 => Fault::PowerCut,
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
                13 => Fault::NamesSilent,
                14 => Fault::NamesRefuse,
                _ => Fault::SlowHandlers(member),
            };
            self.faults.push((at, fault));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }
}
