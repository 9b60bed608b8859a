//! The table of pending calls: insert and take with 1 to 100 000 others in flight, against an array slot (the floor) and
//! a hash map. Gated: ratios and allocations, never nanoseconds.

#[path = "ratio/mod.rs"]
mod ratio;

use std::collections::{HashMap, VecDeque};
use std::hint::black_box;

use windlass::internals::net::Conn;
use windlass::internals::net::correlation::Correlation;

#[global_allocator]
static COUNTING: ratio::Counting = ratio::Counting;

const CONN: Conn = Conn(7);

/// The least that can be done: a slot from a free list, and back.
fn array_slot(in_flight: usize) -> impl FnMut(u64) {
    let mut slots: Vec<Option<(Conn, u64)>> = vec![None; in_flight + 1];
    let mut free: VecDeque<usize> = (0..=in_flight).collect();
    free.drain(..in_flight);
    move |calls| {
        for call in 0..calls {
            let Some(slot) = free.pop_front() else { return };
            slots[slot] = Some((CONN, call));
            black_box(slots[black_box(slot)].take());
            free.push_back(slot);
        }
    }
}

fn table(in_flight: usize) -> impl FnMut(u64) {
    let mut table = Correlation::new();
    for call in 0..in_flight as u64 {
        let _ = table.insert(CONN, call);
    }
    move |calls| {
        for call in 0..calls {
            if let Ok(opaque) = table.insert(CONN, call) {
                black_box(table.take(CONN, black_box(opaque)));
            }
        }
    }
}

fn hash_map(in_flight: usize) -> impl FnMut(u64) {
    let mut map: HashMap<i32, (Conn, u64)> = (0..in_flight as i32).map(|opaque| (-1 - opaque, (CONN, 0))).collect();
    let mut next = 0i32;
    move |calls| {
        for call in 0..calls {
            next = next.wrapping_add(1) & i32::MAX;
            map.insert(next, (CONN, call));
            black_box(map.remove(&black_box(next)));
        }
    }
}

fn main() {
    let mut gate = ratio::Gate::from_args();
    for in_flight in [1, 1_000, 100_000] {
        let (mut slot, mut ours, mut map) = (array_slot(in_flight), table(in_flight), hash_map(in_flight));
        let measured = ratio::interleaved(&mut [&mut slot, &mut ours, &mut map]);
        let [floor, nanos, map_nanos] = measured.nanos[..] else { continue };
        println!("in flight {in_flight}: array slot {floor:.1} ns, table {nanos:.1} ns, hash map {map_nanos:.1} ns");
        gate.at_most(&format!("correlate/{in_flight}/table to array slot"), measured.ratio[0], 6.0, "");
        gate.at_most(&format!("correlate/{in_flight}/table to hash map"), nanos / map_nanos, 1.0, "");
        gate.at_most(
            &format!("correlate/{in_flight}/allocations in 10 000 calls"),
            ratio::allocations(|| ours(10_000)) as f64,
            0.0,
            "",
        );
    }
    gate.finish();
}
