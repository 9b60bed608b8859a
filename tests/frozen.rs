//! A process that is stopped for longer than its requests may take and then goes on: what has been answered meanwhile
//! counts as answered.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use peer::PATIENCE;
use peer::queue::{TOPIC, cluster, commits, pulled, pulls, record};
use windlass::{Client, StartFrom};

/// Where the consumer of the other process finds its cluster.
const NAMES: &str = "WINDLASS_TEST_FROZEN_NAMES";
/// A pull is held for so long, and given up after twice the time.
const HOLD: Duration = Duration::from_secs(1);

/// Ends with the test.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Other {
    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap().success());
    }
}

/// The other process: does nothing unless this file's test has started it.
#[test]
fn consumer() {
    let Ok(names) = std::env::var(NAMES) else { return };
    let client = Client::builder().name_servers([names]).workers(1).pull_hold(HOLD, HOLD * 2).build().unwrap();
    let consumer =
        client.push_consumer("G").subscribe(TOPIC, "*").start_from(StartFrom::First).handler(|_| ()).start().unwrap();
    // Killed by the test.
    std::thread::sleep(PATIENCE * 3);
    drop(consumer);
}

#[test]
fn what_was_answered_while_a_process_was_stopped_is_answered() {
    let stopped = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&stopped);
    let peer = cluster(move |request, _| {
        if request.code != 11 || request.field("topic") != TOPIC || request.field("queueOffset") != "0" {
            return None;
        }
        // Answered while the other process is stopped, well before its deadline.
        while !answers.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        Some(pulled(0, 1, 1, record(0, b"m0")))
    });
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "consumer"]).env(NAMES, peer.text()).stdout(Stdio::null());
    let other = Other(command.spawn().unwrap());
    peer.wait("a pull", |seen| !pulls(seen).is_empty());
    other.signal("-STOP");
    stopped.store(true, Ordering::SeqCst);
    // Longer than the pull may take.
    std::thread::sleep(HOLD * 3);
    other.signal("-CONT");
    peer.wait("the message's offset", |seen| commits(seen).contains(&1));
    let offsets: Vec<i64> = pulls(&peer.seen()).into_iter().map(|(at, _)| at).collect();
    assert_eq!(&offsets[..2], [0, 1], "it was asked for again: {offsets:?}");
}
