//! The process queue against the floor ring and an ordered map (performance row 3), in one run.
//!
//! States only: put, take, finish and watermark of 32 offsets at a time over a resident window, without lock and records,
//! against the cheapest ring that can tell a watermark, and against `BTreeMap`. Then the whole queue, with lock, batches,
//! counts and token, against itself with few resident messages.

#[path = "ratio/mod.rs"]
mod ratio;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use ratio::{Gate, allocations, interleaved};
use windlass::internals::consume::chunk::{Batch, Epoch, Generation, Verdicts};
use windlass::internals::consume::flow::Limits;
use windlass::internals::consume::queue::{ProcessQueue, Settings, Share};
use windlass::internals::consume::ring::{Ring, Slot};
use windlass::internals::model::QueueOffset;
use windlass::internals::work::clock::Nanos;

#[global_allocator]
static ALLOCATOR: ratio::Counting = ratio::Counting;

/// Offsets at a time, as a broker's answer brings them.
const BATCH: u32 = 32;
const FEW: i64 = 1 << 10;
const MANY: i64 = 1 << 20;

/// The floor: a bitmap of finished offsets, slot by offset modulo the length, watermark by trailing ones.
struct Floor {
    done: Vec<u64>,
    base: i64,
}

impl Floor {
    fn new(resident: i64) -> Self {
        Self { done: vec![0; (resident as usize * 2).next_power_of_two() / 64], base: 0 }
    }

    fn word(&self, offset: i64) -> usize {
        (offset as usize / 64) & (self.done.len() - 1)
    }

    fn finish(&mut self, offset: i64) {
        let word = self.word(offset);
        self.done[word] |= 1 << (offset as u64 % 64);
    }

    fn watermark(&mut self) -> i64 {
        loop {
            let (word, bit) = (self.word(self.base), self.base as u64 % 64);
            let ones = (self.done[word] >> bit).trailing_ones().min(64 - bit as u32);
            self.done[word] &= !(((1u128 << ones) - 1) as u64).checked_shl(bit as u32).unwrap_or(0);
            self.base += i64::from(ones);
            if u64::from(ones) + bit < 64 {
                return self.base;
            }
        }
    }
}

/// Finishes one batch that came `resident` offsets ago and puts the next; every second pair in the wrong order.
fn swapped(step: i64) -> i64 {
    (step ^ 1) * i64::from(BATCH)
}

fn floor(resident: i64) -> impl FnMut(u64) {
    let (mut ring, mut step) = (Floor::new(resident), 0);
    move |times| {
        for _ in 0..times {
            let from = swapped(step);
            for offset in from..from + i64::from(BATCH) {
                ring.finish(black_box(offset));
            }
            black_box(ring.watermark());
            step += 1;
        }
    }
}

fn states(resident: i64) -> impl FnMut(u64) {
    let (mut ring, mut step) = (Ring::default(), 0);
    let ahead = resident / i64::from(BATCH);
    for batch in 0..ahead {
        ring.put_run(batch * i64::from(BATCH), BATCH);
    }
    move |times| {
        for _ in 0..times {
            let from = black_box(swapped(step));
            ring.put_run((step + ahead) * i64::from(BATCH), BATCH);
            ring.turn_run(from, BATCH, Slot::Waiting, Slot::Taken);
            ring.settle_run(from, BATCH, Slot::Taken);
            black_box(ring.watermark());
            step += 1;
        }
    }
}

/// The same with each offset settled by itself, as marks do.
fn singly(resident: i64) -> impl FnMut(u64) {
    let (mut ring, mut step) = (Ring::default(), 0);
    let ahead = resident / i64::from(BATCH);
    for batch in 0..ahead {
        ring.put_run(batch * i64::from(BATCH), BATCH);
    }
    move |times| {
        for _ in 0..times {
            let from = black_box(swapped(step));
            ring.put_run((step + ahead) * i64::from(BATCH), BATCH);
            ring.turn_run(from, BATCH, Slot::Waiting, Slot::Taken);
            for offset in from..from + i64::from(BATCH) {
                ring.settle(offset, Slot::Taken);
            }
            black_box(ring.watermark());
            step += 1;
        }
    }
}

fn map(resident: i64) -> impl FnMut(u64) {
    let (mut map, mut step) = (BTreeMap::new(), 0);
    let ahead = resident / i64::from(BATCH);
    map.extend((0..ahead * i64::from(BATCH)).map(|offset| (offset, Slot::Waiting)));
    move |times| {
        for _ in 0..times {
            let (from, new) = (black_box(swapped(step)), (step + ahead) * i64::from(BATCH));
            map.extend((new..new + i64::from(BATCH)).map(|offset| (offset, Slot::Waiting)));
            for offset in from..from + i64::from(BATCH) {
                map.remove(&offset);
            }
            black_box(map.first_key_value());
            step += 1;
        }
    }
}

/// A batch with records of the size that an index entry has. All batches share one index, so that it is as warm as a
/// frame's that has just been indexed: what reading a resident frame costs is the handler's business, not the queue's.
struct Records {
    from: i64,
    index: Arc<Vec<[i64; 10]>>,
}

impl Batch for Records {
    fn len(&self) -> usize {
        self.index.len()
    }
    fn offset(&self, at: usize) -> QueueOffset {
        QueueOffset(self.from + self.index[at][0])
    }
    fn bytes(&self, at: usize) -> u64 {
        self.index[at][9] as u64
    }
}

fn records(index: &Arc<Vec<[i64; 10]>>, from: i64) -> Arc<Records> {
    Arc::new(Records { from, index: Arc::clone(index) })
}

fn one_index() -> Arc<Vec<[i64; 10]>> {
    Arc::new((0..i64::from(BATCH)).map(|offset| [offset, 0, 0, 0, 0, 0, 0, 0, 0, 1024]).collect())
}

/// The whole queue: put a batch, finish one that is in hand since `resident` messages, take the next.
fn whole(resident: i64) -> impl FnMut(u64) {
    let unlimited = Limits { messages: u64::MAX, mebibytes: u64::MAX, span: None };
    let settings = Settings { batch: BATCH, limits: unlimited, ..Settings::default() };
    let queue = ProcessQueue::new(Epoch(1), QueueOffset(0), settings);
    let (ahead, index) = (resident / i64::from(BATCH), one_index());
    let mut token: Option<Generation> = None;
    for batch in 0..ahead {
        let put = queue.put(
            &records(&index, batch * i64::from(BATCH)),
            QueueOffset((batch + 1) * i64::from(BATCH)),
            Nanos(1),
        );
        token = token.or(put.post);
    }
    let mut hand = token.and_then(|token| queue.take(token, Share::Keep { calls: 1 }, Nanos(1)).chunk);
    let mut step = ahead;
    // Batches are made ahead: their allocation belongs to the frame, not to the queue.
    let mut ready: Vec<_> = Vec::new();
    move |times| {
        for _ in 0..times {
            if ready.is_empty() {
                ready = (0..64).rev().map(|more| records(&index, (step + more) * i64::from(BATCH))).collect();
            }
            if let Some(batch) = ready.pop() {
                step += 1;
                queue.put(&batch, QueueOffset(step * i64::from(BATCH)), Nanos(1));
            }
            if let Some(chunk) = hand.take() {
                hand = queue.finish(chunk, Verdicts::DONE, true, Share::Keep { calls: 1 }, Nanos(1)).chunk;
            }
            black_box(queue.progress());
        }
    }
}

fn main() {
    let mut gate = Gate::from_args();
    let per_message = |nanos: f64| nanos / f64::from(BATCH);

    let many = interleaved(&mut [&mut floor(MANY), &mut states(MANY), &mut singly(MANY), &mut map(MANY)]);
    println!("per message at {MANY} resident: floor {:.2} ns", per_message(many.nanos[0]));
    let note = |nanos| format!("({:.2} ns)", per_message(nanos));
    gate.at_most("states, batches of 32 / floor", many.ratio[0], 2.0, &note(many.nanos[1]));
    println!("states, settled singly / floor: {:.2} {}", many.ratio[1], note(many.nanos[2]));
    gate.at_least("BTreeMap / states", many.nanos[3] / many.nanos[1], 20.0, &note(many.nanos[3]));

    let sizes = interleaved(&mut [&mut whole(FEW), &mut whole(MANY)]);
    gate.at_most("queue with lock and records, 2^20 / 2^10 resident", sizes.ratio[0], 1.5, &note(sizes.nanos[1]));
    println!("queue with lock and records at 2^10 resident: {:.2} ns per message", per_message(sizes.nanos[0]));

    let mut warm = whole(FEW);
    warm(1000);
    // 64 batches are made every 64 steps: their allocations are known and taken off.
    let index = one_index();
    let made = allocations(|| (0..64).map(|from| records(&index, from)).collect::<Vec<_>>());
    let own = allocations(|| warm(6400)) as f64 - made as f64 * 100.0;
    gate.at_most("allocations per batch in put, take and finish", own.max(0.0) / 6400.0, 0.01, "");
    gate.finish();
}
