//! Measures two or more programs interleaved in one run and speaks in ratios: on shared machines an absolute time says
//! little, the ratio of two neighbours in time says a lot. Also counts allocations. Used by every bench that gates.

// Each bench compiles this file for itself and uses only a part of it.
#![allow(dead_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ROUNDS: usize = 11;
const ROUND: Duration = Duration::from_millis(15);

/// Of all threads but those that are left out.
static EVERYWHERE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LEFT_OUT: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    if !LEFT_OUT.try_with(Cell::get).unwrap_or(true) {
        EVERYWHERE.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts the allocations of each thread by itself. Install with `#[global_allocator]`.
pub struct Counting;

#[allow(unsafe_code)]
// SAFETY: every call goes to the system allocator unchanged; counting touches thread-local cells and an atomic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Allocations that this thread makes in `work`.
pub fn allocations<T>(work: impl FnOnce() -> T) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    black_box(work());
    ALLOCATIONS.with(Cell::get) - before
}

/// Allocations of all threads so far, but for those that were left out.
pub fn allocations_everywhere() -> u64 {
    EVERYWHERE.load(Ordering::Relaxed)
}

/// The calling thread plays the other end: what it allocates is not counted.
pub fn leave_out_this_thread() {
    LEFT_OUT.set(true);
}

/// One program under measurement: `run(n)` does its unit of work n times.
pub type Program<'a> = &'a mut dyn FnMut(u64);

/// Nanoseconds per unit of each program (medians of the rounds) and, for each but the first, the median and the spread
/// (upper minus lower quartile, over the median) of its ratio to the first within each round.
pub struct Measured {
    pub nanos: Vec<f64>,
    pub ratio: Vec<f64>,
    pub spread: Vec<f64>,
}

/// Measures the programs in turn, eleven rounds, the order reversed every second round; the first is the floor.
pub fn interleaved(programs: &mut [Program<'_>]) -> Measured {
    let counts: Vec<u64> = programs.iter_mut().map(calibrated).collect();
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); programs.len()];
    for round in 0..ROUNDS {
        let mut order: Vec<usize> = (0..programs.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let from = Instant::now();
            programs[at](counts[at]);
            rounds[at].push(from.elapsed().as_nanos() as f64 / counts[at] as f64);
        }
    }
    let (mut ratio, mut spread) = (Vec::new(), Vec::new());
    for own in rounds.iter().skip(1) {
        let mut ratios: Vec<f64> = own.iter().zip(&rounds[0]).map(|(own, floor)| own / floor).collect();
        ratios.sort_by(f64::total_cmp);
        ratio.push(ratios[ROUNDS / 2]);
        spread.push((ratios[ROUNDS * 3 / 4] - ratios[ROUNDS / 4]) / ratios[ROUNDS / 2]);
    }
    let nanos = rounds.into_iter().map(median).collect();
    Measured { nanos, ratio, spread }
}

fn calibrated(program: &mut Program<'_>) -> u64 {
    let mut count = 1;
    loop {
        let from = Instant::now();
        program(count);
        if from.elapsed() >= ROUND {
            return count;
        }
        count *= 2;
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Collects the figures of one bench; with `--gate` on the command line a missed target makes the process exit 1.
pub struct Gate {
    on: bool,
    missed: bool,
}

impl Gate {
    pub fn from_args() -> Self {
        Self { on: std::env::args().any(|arg| arg == "--gate"), missed: false }
    }

    /// Prints `name: value unit (at most limit)` and remembers a miss.
    pub fn at_most(&mut self, name: &str, value: f64, limit: f64, note: &str) {
        let miss = value > limit;
        self.missed |= miss;
        println!("{name}: {value:.2} (at most {limit}){} {note}", if miss { " MISSED" } else { "" });
    }

    /// Prints `name: value unit (at least limit)` and remembers a miss.
    pub fn at_least(&mut self, name: &str, value: f64, limit: f64, note: &str) {
        let miss = value < limit;
        self.missed |= miss;
        println!("{name}: {value:.2} (at least {limit}){} {note}", if miss { " MISSED" } else { "" });
    }

    /// Ends the bench.
    pub fn finish(self) {
        if self.on && self.missed {
            std::process::exit(1);
        }
    }
}
