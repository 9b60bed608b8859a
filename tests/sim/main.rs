//! The seeded simulation: clients, broker, store, disk and network in one thread, from one seed, on a clock that jumps
//! from event to event. See `README.md` beside this file.
//!
//! `SIM_SEED=n` runs one seed and shows its last events, `SIM_SEEDS=n` runs that many from `SIM_FROM` on.

#![cfg(feature = "broker")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod carry;
mod damage;
mod faults;
mod handler;
mod ledger;
mod network;
mod node;
mod plan;
mod process;
mod producer;
mod rng;
mod silence;
mod talk;
mod watch;
mod world;

use world::{Report, run};

/// Seeds of a plain `cargo test`.
const SEEDS: u64 = 100;

/// Seeds beyond those that have found something; they are run as well.
const FOUND: [u64; 5] = [5714, 6467, 6823, 6868, 10_020];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn show(report: &Report) -> String {
    let Report { seed, failure, plan, tail, .. } = report;
    let failure = failure.as_deref().unwrap_or("nothing is wrong");
    format!(
        "seed {seed}: {failure}\n{plan:#?}\n{}\nseed {seed}: {failure}\nrun it again: SIM_SEED={seed} cargo test --test sim",
        tail.join("\n")
    )
}

/// Runs so many seeds, half of them on another thread: worlds share nothing. What fails is said at once.
fn failing(from: u64, seeds: u64) -> Vec<Report> {
    let one = |seed| {
        let report = run(seed, false);
        if let Some(failure) = &report.failure {
            println!("seed {seed}: {failure}");
        }
        report
    };
    let half = |odd: u64| {
        let mine = (from..from + seeds).filter(move |seed| seed % 2 == odd);
        mine.map(one).filter(|report| report.failure.is_some()).collect::<Vec<_>>()
    };
    let mut failed = std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        let mut failed = half(0);
        failed.extend(other.join().unwrap());
        failed
    });
    failed.sort_by_key(|report| report.seed);
    failed
}

#[test]
fn promises_hold_whatever_the_seed() {
    if let Some(seed) = number("SIM_SEED") {
        let report = run(seed, true);
        println!("{}", show(&report));
        println!(
            "{} events, {} ms, {} deliveries, {} acknowledged",
            report.events, report.virtual_ms, report.deliveries, report.acknowledged
        );
        assert!(report.failure.is_none());
        return;
    }
    let (from, seeds) = (number("SIM_FROM").unwrap_or(0), number("SIM_SEEDS").unwrap_or(SEEDS));
    let mut failed = failing(from, seeds);
    if number("SIM_SEEDS").is_none() {
        failed.extend(FOUND.iter().flat_map(|seed| failing(*seed, 1)));
    }
    if let Some(first) = failed.first() {
        println!("{}", show(&run(first.seed, true)));
        panic!("{} of {seeds} seeds failed, the first is {}", failed.len(), first.seed);
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 14, 15, 92] {
        let (first, second) = (run(seed, false), run(seed, true));
        assert_eq!((first.hash, first.events), (second.hash, second.events), "seed {seed}");
    }
}
