//! What the system refuses: a start that finds no descriptors fails with what it was told, and leaves nothing behind.

#![cfg(target_os = "linux")]
// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use windlass::broker::Broker;
use windlass::{Client, Message, StartError};

/// Set for the process in which the limit holds.
const INSIDE: &str = "WINDLASS_TEST_DESCRIPTORS";

fn entries(of: &str) -> usize {
    fs::read_dir(of).unwrap().count()
}

/// Temporary directories of this process's brokers.
fn directories(under: &Path) -> usize {
    let own = format!("windlass-{}-", std::process::id());
    let names = fs::read_dir(under).unwrap().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().starts_with(&own)).count()
}

/// Takes every descriptor but `left`.
fn taken(left: usize) -> Vec<File> {
    let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    files.truncate(files.len() - left);
    files
}

/// The limit is the process's, so this test runs once more in a process of its own.
#[test]
fn a_start_without_descriptors_is_an_error_and_leaves_nothing_behind() {
    let name = "a_start_without_descriptors_is_an_error_and_leaves_nothing_behind";
    if std::env::var_os(INSIDE).is_none() {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"ulimit -n 64; exec "$0" "$@""#]).arg(std::env::current_exe().unwrap());
        let output = shell.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let scratch = Broker::ephemeral().start().unwrap();
    let under = std::env::temp_dir();
    let durable = under.join(format!("windlass-scarce-{}", std::process::id()));
    scratch.shutdown(Duration::from_secs(10)).unwrap();
    drop(scratch);
    let before = (entries("/proc/self/fd"), entries("/proc/self/task"), directories(&under));
    let (mut refused, mut started) = ([0; 3], [0; 3]);
    for left in 0..24 {
        for kind in 0..3 {
            let others = taken(left);
            let begun: Result<Box<dyn std::any::Any>, StartError> = match kind {
                0 => Broker::ephemeral().topic("t", 1).start().map(|broker| Box::new(broker) as _),
                1 => Broker::open(&durable).topic("t", 1).start().map(|broker| Box::new(broker) as _),
                _ => Client::builder().name_servers(["127.0.0.1:1"]).build().map(|client| Box::new(client) as _),
            };
            match begun {
                Ok(running) => {
                    started[kind] += 1;
                    drop(running);
                }
                Err(error) => {
                    refused[kind] += 1;
                    assert!(matches!(error, StartError::Io { .. } | StartError::Listen { .. }), "{error:?}");
                    assert!(error.is_retryable(), "{error:?}");
                }
            }
            drop(others);
            let now = (entries("/proc/self/fd"), entries("/proc/self/task"), directories(&under));
            assert_eq!(now, before, "kind {kind} with {left} left");
        }
    }
    assert!(refused.iter().all(|times| *times > 0), "{refused:?}");
    assert!(started.iter().all(|times| *times > 0), "{started:?}");
    // What the refused starts left of the store is one.
    let broker = Broker::open(&durable).topic("t", 1).start().unwrap();
    let producer = broker.client().unwrap().producer("p").start().unwrap();
    producer.send(Message::new("t", "x")).unwrap();
    drop((producer, broker));
    fs::remove_dir_all(&durable).unwrap();
}
