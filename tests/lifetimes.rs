//! What starts and stops leaves nothing behind: threads, descriptors, members. One test, because it counts what the whole
//! process has.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(all(feature = "broker", target_os = "linux"))]

use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use windlass::broker::Broker;
use windlass::{Client, Message, StartFrom};

const PATIENCE: Duration = Duration::from_secs(20);

/// Threads and descriptors of this process.
fn counted() -> [usize; 2] {
    ["/proc/self/task", "/proc/self/fd"].map(|of| std::fs::read_dir(of).unwrap().count())
}

/// What the descriptors are.
fn descriptors() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map_while(Result::ok);
    let mut links: Vec<String> = entries
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .map(|link| link.display().to_string())
        .collect();
    links.sort_unstable();
    links
}

/// Waits until no more is there than before: the system takes its time over a closed socket.
fn back_to(before: [usize; 2], what: &str) {
    let end = Instant::now() + PATIENCE;
    loop {
        let now = counted();
        if now.iter().zip(before).all(|(now, before)| *now <= before) {
            return;
        }
        assert!(
            Instant::now() < end,
            "{what}: threads and descriptors {before:?} before, {now:?} after: {:?}",
            descriptors()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn consume_one(client: &Client, n: usize) {
    let (told, seen) = unbounded();
    let consumer = client
        .push_consumer("G")
        .subscribe("orders", "*")
        .start_from(StartFrom::First)
        .handler(move |batch| {
            for message in batch {
                let _ = told.send(String::from_utf8_lossy(message.body()).into_owned());
            }
        })
        .start()
        .unwrap();
    let producer = client.producer("P").start().unwrap();
    producer.send(Message::new("orders", n.to_string())).unwrap();
    assert_eq!(seen.recv_timeout(PATIENCE).unwrap(), n.to_string(), "each round consumes its own message, once");
    // The stop commits, so that the next round does not see this message again.
    assert!(consumer.shutdown(PATIENCE).is_clean());
}

#[test]
fn c081_c082_whatever_starts_and_stops_leaves_nothing_behind() {
    let broker = Broker::ephemeral().topic("orders", 2).start().unwrap();
    let socket = || Client::builder().name_servers([broker.name_server_addr().to_string()]).workers(3).build().unwrap();
    let mut n = 0;
    let mut next = || {
        n += 1;
        n
    };
    // The first ones of each kind start threads of the broker that stay.
    for client in [socket(), broker.client().unwrap()] {
        consume_one(&client, next());
        client.shutdown(PATIENCE).into_result().unwrap();
    }
    let before = counted();
    // C-082: the same group again and again, in one client and in new ones.
    let client = socket();
    for _ in 0..50 {
        consume_one(&client, next());
    }
    client.shutdown(PATIENCE).into_result().unwrap();
    drop(client);
    back_to(before, "one client");
    for round in 0..50 {
        let client = if round % 2 == 0 { socket() } else { broker.client().unwrap() };
        consume_one(&client, next());
        if round % 3 == 0 {
            client.shutdown(PATIENCE).into_result().unwrap();
        }
    }
    back_to(before, "a client each");
    // C-081: clones of one client; the last one that goes ends it, as does a stop of any.
    let client = socket();
    let clones: Vec<Client> = (0..10).map(|_| client.clone()).collect();
    let producer = client.producer("P").start().unwrap();
    drop((client, clones));
    producer.send(Message::new("orders", "by the last user")).unwrap();
    drop(producer);
    back_to(before, "the last clone");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..6 {
                    let client = socket();
                    client.producer("P").start().unwrap().send(Message::new("orders", "x")).unwrap();
                    client.shutdown(PATIENCE).into_result().unwrap();
                }
            });
        }
    });
    back_to(before, "eight threads");
}
