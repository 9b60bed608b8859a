//! Row 15: from `Broker::open` on an empty directory to ready, against exec and exit of an empty process, in turn; and the
//! anonymous memory of a process that holds one broker. Printed beside it: a whole life of broker, client, consumer and
//! producer with one message (E-136 wants 5 ms to ready and 20 ms for all of it).
//!
//! `--gate` makes a missed target exit 1.

// A bench that cannot go on ends.
#![allow(clippy::unwrap_used)]

#[path = "ratio/mod.rs"]
mod ratio;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use ratio::{Gate, median};
use windlass::broker::Broker;
use windlass::{Batch, Message, StartFrom};

const STARTS: usize = 50;
const LIMIT: f64 = 4.0;
const ANONYMOUS_MIB: f64 = 8.0;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("--empty") => return,
        Some("--hold") => return hold(),
        _ => {}
    }
    let mut gate = Gate::from_args();
    let own = std::env::current_exe().unwrap();
    let (mut processes, mut starts, mut first_sends) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..STARTS {
        let begun = Instant::now();
        assert!(Command::new(&own).arg("--empty").status().unwrap().success());
        processes.push(ms(begun.elapsed()));
        let dir = fresh(number);
        let begun = Instant::now();
        let broker = Broker::open(&dir).start().unwrap();
        starts.push(ms(begun.elapsed()));
        let client = broker.client().unwrap();
        client.producer("p").start().unwrap().topic("t").unwrap().send(b"first").unwrap();
        first_sends.push(ms(begun.elapsed()));
        client.shutdown(Duration::from_secs(5));
        drop(broker);
        std::fs::remove_dir_all(&dir).unwrap();
    }
    let (process, start) = (median(processes), median(starts.clone()));
    starts.sort_by(f64::total_cmp);
    let note = format!(
        "start {start:.2} ms (p95 {:.2} ms), empty process {process:.2} ms, first send acknowledged after {:.2} ms",
        starts[STARTS * 95 / 100],
        median(first_sends)
    );
    gate.at_most("Broker::open to ready / empty process", start / process, LIMIT, &note);
    println!("start, send, receive, stop in process: {:.2} ms", median((0..STARTS).map(|_| whole_life()).collect()));
    let held = Command::new(&own).arg("--hold").output().unwrap();
    let kib: f64 = String::from_utf8_lossy(&held.stdout).trim().parse().unwrap();
    gate.at_most("RssAnon of a process with one broker, MiB", kib / 1024.0, ANONYMOUS_MIB, "");
    gate.finish();
}

/// One message from a broker that is started for it to a handler, and the end of both.
fn whole_life() -> f64 {
    let begun = Instant::now();
    let broker = Broker::ephemeral().topic("t", 1).start().unwrap();
    let client = broker.client().unwrap();
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let handler = move |_: &Batch<'_>| {
        let _gone_if_told_twice = tell.send(());
    };
    let consumer = client.push_consumer("g").subscribe("t", "*").start_from(StartFrom::First).handler(handler);
    let consumer = consumer.start().unwrap();
    client.producer("p").start().unwrap().send(Message::new("t", "first")).unwrap();
    told.recv().unwrap();
    assert!(consumer.shutdown(Duration::from_secs(5)).is_clean());
    client.shutdown(Duration::from_secs(5));
    drop((consumer, client, broker));
    ms(begun.elapsed())
}

/// Opens a broker and prints what it holds in anonymous memory, in KiB.
fn hold() {
    let dir = fresh(STARTS);
    let broker = Broker::open(&dir).start().unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    println!("{}", line.and_then(|rest| rest.split_whitespace().next()).unwrap_or("0"));
    drop(broker);
    let _ = std::fs::remove_dir_all(&dir);
}

fn fresh(number: usize) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("windlass-startup-{}-{number}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
