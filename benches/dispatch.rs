//! A batch through token, worker, handler and finish: what it allocates, how many workers it wakes (performance row 2).
//!
//! The handler reads every delivery: offset, tag, body. Allocations are counted on one thread that does what loop and
//! worker do; wake-ups with four real workers and a loop that keeps a few batches ahead of them.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "ratio/mod.rs"]
mod ratio;
#[path = "stored/mod.rs"]
mod stored;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Instant;

use ratio::{Gate, allocations};
use stored::{BATCH, messages};
use windlass::internals::consume::chunk::Epoch;
use windlass::internals::consume::claim::{Bell, Claim, Consumer};
use windlass::internals::consume::pool::{Pool, Worker};
use windlass::internals::consume::queue::{ProcessQueue, Settings};
use windlass::internals::model::{Queue, QueueOffset};
use windlass::internals::rocketmq::consumer::delivery::Batch;
use windlass::internals::rocketmq::consumer::handler::{Code, Handler};
use windlass::internals::rocketmq::consumer::pulled::Pulled;
use windlass::internals::wire::frame::Frame;
use windlass::internals::wire::remoting::record::{Check, Record, index, patch};
use windlass::internals::work::budget::Budget;
use windlass::internals::work::clock::{Clock, Nanos};

#[global_allocator]
static ALLOCATOR: ratio::Counting = ratio::Counting;

/// One a batch, and now and then one for a token that is taken back from a worker that lost its core.
const WAKES: f64 = 1.05;
/// Batches that the loop is ahead of the workers.
const AHEAD: u64 = 8;

/// Rings by unparking the thread that plays the loop.
struct Unpark(Thread);

impl Bell for Unpark {
    fn ring(&self) -> bool {
        self.0.unpark();
        true
    }
}

/// A pull answer's body of 32 messages of 1 KiB, and its index.
fn answer() -> (Frame, Vec<Record>) {
    let (mut bytes, starts) = messages();
    for (offset, at) in (0..).zip(starts) {
        patch(&mut bytes[at..], offset, offset * 1200, 2);
    }
    let (mut records, mut damage) = (Vec::new(), Vec::new());
    index(&bytes, Check::Crc, &mut records, &mut damage);
    (Frame::from(bytes), records)
}

/// The `step`th answer: the same bytes, further offsets.
fn pulled(answer: &(Frame, Vec<Record>), queue: &Queue, step: i64) -> Arc<Pulled> {
    let mut records = answer.1.clone();
    records.iter_mut().for_each(|record| record.queue_offset += step * BATCH);
    let (min, max) = (QueueOffset(0), QueueOffset(i64::MAX));
    Arc::new(Pulled {
        queue: queue.clone(),
        own_retry: false,
        frame: answer.0.clone(),
        records: records.into(),
        min,
        max,
    })
}

fn claim(pool: &Arc<Pool>, batch: u32, handled: &Arc<AtomicU64>) -> Arc<Claim<Pulled>> {
    let handled = Arc::clone(handled);
    let code = Code::shared(move |batch: &Batch<'_>| {
        let mut bytes = 0;
        for delivery in batch {
            bytes += delivery.body().len() + delivery.tag().map_or(0, str::len);
            black_box(delivery.offset());
            delivery.done();
        }
        handled.fetch_add(batch.len() as u64, Ordering::Relaxed);
        black_box(bytes);
    });
    let handler = Handler { code, budget: Budget::new(1 << 30), max_body: 1 << 20, report: Box::new(|_, _| {}) };
    let consumer = Consumer::new(Box::new(handler), Arc::clone(pool), Clock::system());
    let settings = Settings { batch, ..Settings::default() };
    let queue = ProcessQueue::new(Epoch(1), QueueOffset(0), settings);
    Claim::new(queue, consumer, Box::new(Unpark(std::thread::current())))
}

/// Allocations per pulled batch on the way from the put to the commit point.
fn allocations_per_batch(batch: u32) -> f64 {
    let (pool, handled, answer) = (Pool::unmanned(), Arc::default(), answer());
    let (claim, queue) = (claim(&pool, batch, &handled), Queue::new("orders", "broker-a", 0));
    let mut worker = Worker::new(0);
    let (mut step, mut counted) = (0, 0);
    while step < 2000 {
        let batch = pulled(&answer, &queue, step);
        step += 1;
        let made = allocations(|| {
            claim.put(&batch, QueueOffset(step * BATCH), Nanos(1));
            drop(batch);
            while let Some(token) = pool.try_next() {
                token.run(&mut worker);
            }
            claim.queue().commit_point()
        });
        counted += if step > 1000 { made } else { 0 };
    }
    assert_eq!(claim.queue().progress(), QueueOffset(2000 * BATCH));
    counted as f64 / 1000.0
}

/// Wake-ups per pulled batch and messages per second with four workers.
fn wakes_per_batch(batch: u32, batches: i64) -> (f64, f64) {
    let (pool, handled, answer) = (Pool::start(4).unwrap(), Arc::new(AtomicU64::new(0)), answer());
    let (claim, queue) = (claim(&pool, batch, &handled), Queue::new("orders", "broker-a", 0));
    let from = Instant::now();
    for step in 0..batches {
        while claim.queue().held_messages() > AHEAD * BATCH as u64 {
            std::hint::spin_loop();
        }
        let pulled = pulled(&answer, &queue, step);
        claim.put(&pulled, QueueOffset((step + 1) * BATCH), Nanos(1));
    }
    while claim.queue().held_messages() > 0 {
        std::thread::yield_now();
    }
    let seconds = from.elapsed().as_secs_f64();
    let wakes = pool.wakes() as f64 / batches as f64;
    pool.stop(Instant::now() + std::time::Duration::from_secs(10));
    assert_eq!(handled.load(Ordering::Relaxed), (batches * BATCH) as u64);
    (wakes, (batches * BATCH) as f64 / seconds)
}

fn main() {
    let mut gate = Gate::from_args();
    for batch in [1, 32] {
        let made = allocations_per_batch(batch);
        gate.at_most(&format!("allocations per pulled batch from put to commit, handler batch {batch}"), made, 0.0, "");
        let (wakes, rate) = wakes_per_batch(batch, 20_000);
        gate.at_most(
            &format!("workers woken per pulled batch, handler batch {batch}"),
            wakes,
            WAKES,
            &format!("({:.2} M messages/s)", rate / 1e6),
        );
    }
    gate.finish();
}
