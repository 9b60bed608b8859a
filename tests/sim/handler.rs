//! The handlers of all members: what they do to a message is decided by the seed. One that blocks its worker runs the
//! world meanwhile, so that everything else goes on while its token is taken.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use windlass::internals::consume::claim::{Detached, Hand, Listen};
use windlass::internals::consume::listener::Mark;
use windlass::internals::rocketmq::consumer::pulled::Pulled;
use windlass::{Assigned, Outcome};

use crate::ledger::Delivered;
use crate::network::{Kind, Who};
use crate::process::{place_of, site_named};
use crate::producer::id_of;
use crate::world::{Event, World, run_until};

/// Handlers that block inside each other.
const DEEPEST: u32 = 3;

thread_local! {
    static WORLD: RefCell<Option<Rc<RefCell<World>>>> = const { RefCell::new(None) };
}

/// Makes `world` the one that this thread's handlers see.
pub fn enter(world: Option<Rc<RefCell<World>>>) {
    WORLD.with(|place| *place.borrow_mut() = world);
}

fn world() -> Rc<RefCell<World>> {
    WORLD.with(|place| place.borrow().clone()).unwrap()
}

/// A message that left its batch.
pub struct Job {
    pub who: Who,
    pub group: usize,
    pub what: Delivered,
    pub outcome: Outcome,
    pub detached: Detached<Pulled>,
}

/// What becomes of one message.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    pub outcome: Outcome,
    pub later: Option<Duration>,
}

pub struct Handler {
    pub who: Who,
    pub group: usize,
}

impl Listen<Pulled> for Handler {
    fn local(&self, _worker: usize) -> Box<dyn Any> {
        Box::new(())
    }

    fn handle(&self, hand: Hand<'_, Pulled>, _local: &mut dyn Any) -> Outcome {
        let world = world();
        let messages: Vec<Delivered> = hand.places().filter_map(|place| delivered(&hand, place)).collect();
        let (verdicts, block, panics) = {
            let mut world = world.borrow_mut();
            world.begin(self.who, self.group, &messages);
            world.decide(self.who, messages.len())
        };
        if let Some(block) = block {
            let deep = {
                let mut world = world.borrow_mut();
                world.depth += 1;
                world.depth > DEEPEST
            };
            if !deep {
                let until = world.borrow().now + block;
                run_until(&world, until);
            }
            world.borrow_mut().depth -= 1;
        }
        let mut world = world.borrow_mut();
        for ((place, what), verdict) in hand.places().zip(&messages).zip(&verdicts) {
            if panics {
                world.end(self.who, self.group, what, Outcome::Retry);
                continue;
            }
            match verdict.later {
                Some(later) => {
                    if let Some(detached) = hand.detach(place) {
                        let job = Job {
                            who: self.who,
                            group: self.group,
                            what: what.clone(),
                            outcome: verdict.outcome,
                            detached,
                        };
                        world.finish_later(job, later);
                    }
                }
                None => {
                    world.end(self.who, self.group, what, verdict.outcome);
                    hand.marks.set(place, Mark::Outcome(verdict.outcome));
                }
            }
        }
        drop(world);
        if panics {
            // As a panic, without the hook's text on the terminal.
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        Outcome::Done
    }

    fn panicked(&self, _hand: Hand<'_, Pulled>, _message: &str) {}
}

fn delivered(hand: &Hand<'_, Pulled>, place: u32) -> Option<Delivered> {
    let (part, at) = hand.chunk.at(place)?;
    let record = part.batch.records.get(at)?;
    let queue = &part.batch.queue;
    Some(Delivered {
        epoch: hand.chunk.epoch.0,
        attempt: part.attempt,
        place: (site_named(&queue.broker), queue.topic.clone(), queue.id),
        offset: record.queue_offset,
        id: id_of(record, part.batch.frame.bytes()),
        times: record.reconsume_times,
    })
}

impl World {
    /// A handler has these in hand.
    pub fn begin(&mut self, who: Who, group: usize, messages: &[Delivered]) {
        for what in messages {
            let place = &what.place;
            self.note((7, what.id, place.0, place.2, what.offset, what.times, what.attempt), || {
                format!(
                    "{who:?} handles id={} {place:?} {} times={} attempt={}",
                    what.id, what.offset, what.times, what.attempt
                )
            });
            let begun = self.ledger.begin(group, what);
            self.check(begun);
        }
        if let Some(first) = messages.first() {
            self.check_owned(who, first);
        }
    }

    /// What is handled is of a queue that is not being given up.
    fn check_owned(&mut self, who: Who, what: &Delivered) {
        let (now, drains) = (self.now, self.plan.drain);
        let Some(client) = self.client(who) else { return };
        let leaves = client.is_leaving();
        let ours = |claim: &Assigned| place_of(&claim.queue) == what.place;
        let claims = client.assigned(now);
        let given_up =
            claims.iter().filter(|claim| ours(claim)).all(|claim| claim.waits.as_deref() == Some("given up"));
        if given_up && !(leaves && drains) {
            self.fail(format!("{who:?} handles {what:?}, but gives that queue up: {claims:?}"));
        }
    }

    /// What becomes of so many messages; how long the handler blocks; whether it panics.
    pub fn decide(&mut self, who: Who, messages: usize) -> (Vec<Verdict>, Option<Duration>, bool) {
        let slow = matches!(who.kind, Kind::Client(at) if self.clients[at].slow);
        let (handling, calm) = (self.plan.handling, self.calm_since.is_some());
        let most = if slow {
            20_000
        } else if calm {
            handling.most_ms.min(500)
        } else {
            handling.most_ms
        };
        let rng = &mut self.rng;
        let verdicts = (0..messages).map(|_| {
            let outcome = if rng.chance(handling.retry) {
                Outcome::Retry
            } else if rng.chance(handling.dead) {
                Outcome::DeadLetter
            } else {
                Outcome::Done
            };
            let later = rng.chance(if slow { 700 } else { handling.detached }).then(|| rng.millis(0, most));
            Verdict { outcome, later }
        });
        let verdicts = verdicts.collect();
        let block = self.rng.chance(handling.blocking).then(|| self.rng.millis(0, most));
        (verdicts, block, self.rng.chance(handling.panic))
    }

    pub fn end(&mut self, who: Who, group: usize, what: &Delivered, outcome: Outcome) {
        let alive = self.lives(who);
        self.note((8, what.id, what.offset, alive), || {
            let dead = if alive { "" } else { ", dead" };
            format!("{who:?} has handled id={} {:?} {}: {outcome:?}{dead}", what.id, what.place, what.offset)
        });
        self.ledger.end(group, what, alive && outcome == Outcome::Done);
    }

    fn finish_later(&mut self, job: Job, later: Duration) {
        let number = self.number();
        self.jobs.insert(number, job);
        self.after(later, Event::Finish(number));
    }
}
