//! The handlers of all members: what they do to a message is decided by the seed. One that blocks its worker runs the
//! world meanwhile, so that everything else goes on while its token is taken.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use windlass::Outcome;
use windlass::internals::consume::claim::{Detached, Hand, Listen};
use windlass::internals::consume::listener::Mark;
use windlass::internals::rocketmq::consumer::pulled::Pulled;

use crate::ledger::Delivered;
use crate::network::Who;
use crate::producer::id_of;
use crate::world::{World, run_until};

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
            world.begin(self.who, &messages);
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
                world.end(self.who, what, Outcome::Retry);
                continue;
            }
            match verdict.later {
                Some(later) => {
                    if let Some(detached) = hand.detach(place) {
                        let job = Job { who: self.who, what: what.clone(), outcome: verdict.outcome, detached };
                        world.finish_later(job, later);
                    }
                }
                None => {
                    world.end(self.who, what, verdict.outcome);
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
    Some(Delivered {
        epoch: hand.chunk.epoch.0,
        attempt: part.attempt,
        topic: part.batch.queue.topic.clone(),
        queue: part.batch.queue.id,
        offset: record.queue_offset,
        id: id_of(record.body(part.batch.frame.bytes())),
        times: record.reconsume_times,
    })
}
