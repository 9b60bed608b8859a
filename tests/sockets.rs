//! What a broker's port bears: other protocols, any opaque, peers that do not read, and many of them.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use peer::{Caller, PATIENCE};
use windlass::broker::Broker;

/// GET_MAX_OFFSET: a small question with a small answer.
fn ask(caller: &mut Caller) {
    assert_eq!(caller.ask(30, &[("topic", "t"), ("queueId", "0")], b"").code, 0);
}

/// C-017: whatever speaks another protocol is closed at once, and a parallel client goes on.
#[test]
fn other_protocols_are_closed_and_nobody_else_notices() {
    let broker = Broker::ephemeral().topic("t", 1).start().unwrap();
    let mut good = Caller::connect(broker.broker_addr());
    let foreign: [&[u8]; 5] = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0x03, 0x00, 0x00, 0x2F, 0x2A, 0xE0],
        &[0x16, 0x03, 0x01, 0x02, 0x00],
        &[0xFF; 4],
    ];
    for addr in [broker.broker_addr(), broker.name_server_addr()] {
        for bytes in foreign {
            let mut caller = Caller::connect(addr);
            caller.write(bytes).unwrap();
            assert!(caller.hear().is_err(), "{bytes:?}");
            ask(&mut good);
        }
    }
}

/// C-021: an opaque is any number, and comes back as it was.
#[test]
fn an_opaque_of_any_value_comes_back() {
    let broker = Broker::ephemeral().topic("t", 1).start().unwrap();
    for binary in [false, true] {
        let mut caller = Caller::connect(broker.broker_addr());
        caller.binary = binary;
        for opaque in [0, i32::MAX, i32::MIN, -1] {
            caller.opaque = opaque.wrapping_sub(1);
            // `ask` passes over every answer that has another opaque.
            ask(&mut caller);
            assert_eq!(caller.opaque, opaque);
        }
    }
}

/// Who asks for much and reads nothing is left alone at some point; the others are served, and once it reads, all comes.
#[test]
fn a_peer_that_does_not_read_its_answers_hurts_nobody() {
    let broker = Broker::ephemeral().topic("t", 1).start().unwrap();
    let mut good = Caller::connect(broker.broker_addr());
    let mut greedy = Caller::connect(broker.broker_addr());
    let body = vec![7; 100_000];
    let fields = |queue| {
        [("a", "PG"), ("b", "t"), ("c", "TBW102"), ("d", "1"), ("e", queue), ("f", "0"), ("g", "1700000000000")]
            .into_iter()
            .chain([("h", "7"), ("i", ""), ("j", "0"), ("k", "false"), ("m", "false")])
            .collect::<Vec<_>>()
    };
    assert_eq!(good.ask(310, &fields("0"), &body).code, 0);
    let pull = [
        ("consumerGroup", "G"),
        ("topic", "t"),
        ("queueId", "0"),
        ("queueOffset", "0"),
        ("maxMsgNums", "1"),
        ("sysFlag", "4"),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", "0"),
        ("subscription", "*"),
        ("subVersion", "0"),
    ];
    // 60 MB of answers: more than sockets and the broker's own patience (16 MiB) hold.
    const PULLS: usize = 600;
    let asked: Vec<i32> = (0..PULLS).map(|_| greedy.post(11, 0, &pull, b"")).collect();
    for _ in 0..20 {
        ask(&mut good);
    }
    for opaque in asked {
        let answer = greedy.answer_to(opaque);
        assert!(answer.code == 0 && answer.body.len() > body.len(), "{}", answer.code);
    }
    assert!(greedy.heard.is_empty());
}

/// Many connections cost no threads, and the end of each is noticed.
#[cfg(target_os = "linux")]
#[test]
fn connections_cost_no_threads() {
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.starts_with("wl-broker")).count()
    };
    let broker = Broker::ephemeral().topic("t", 1).start().unwrap();
    let before = threads();
    let mut callers: Vec<Caller> = (0..500).map(|_| Caller::connect(broker.broker_addr())).collect();
    callers.iter_mut().for_each(ask);
    // Other tests of this file start and stop brokers of their own beside this one.
    assert!(threads() <= before + 8, "{} threads, {before} before", threads());
    drop(callers);
    ask(&mut Caller::connect(broker.broker_addr()));
    broker.shutdown(Duration::from_secs(10)).unwrap();
}

/// A broker that stops ends the connections of its clients.
#[test]
fn a_stopped_broker_ends_its_connections() {
    let broker = Broker::ephemeral().topic("t", 1).start().unwrap();
    let mut idle = TcpStream::connect(broker.broker_addr()).unwrap();
    idle.set_read_timeout(Some(PATIENCE)).unwrap();
    broker.shutdown(Duration::from_secs(10)).unwrap();
    assert!(!matches!(idle.read(&mut [0; 1]), Ok(1..)));
}

/// C-050: offsets of a new group that are stored at the same time are all kept.
#[test]
fn c050_first_offsets_of_a_group_that_come_at_the_same_time_are_all_kept() {
    const THREADS: usize = 16;
    let broker = Broker::ephemeral().topic("t", THREADS as u32).start().unwrap();
    let mut sender = Caller::connect(broker.broker_addr());
    for queue in 0..THREADS {
        let fields = [("a", "p"), ("b", "t"), ("c", "TBW102"), ("d", "4"), ("e", &queue.to_string()), ("f", "0")];
        let rest = [("g", "1700000000000"), ("h", "0"), ("i", ""), ("j", "0"), ("k", "false")];
        assert_eq!(sender.ask(310, &[&fields[..], &rest].concat(), b"x").code, 0);
    }
    // A pull makes the group; nobody has committed for it yet.
    for round in 0..100 {
        let group = format!("G{round}");
        let of = [("consumerGroup", &*group), ("topic", "t"), ("queueId", "0"), ("queueOffset", "0"), ("sysFlag", "4")];
        let rest = [("maxMsgNums", "1"), ("commitOffset", "0"), ("suspendTimeoutMillis", "0"), ("subscription", "*")];
        assert_eq!(sender.ask(11, &[&of[..], &rest, &[("subVersion", "0")]].concat(), b"").code, 0);
    }
    let together = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for queue in 0..THREADS {
            let (broker, together) = (&broker, &together);
            scope.spawn(move || {
                let mut caller = Caller::connect(broker.broker_addr());
                for round in 0..100 {
                    let group = format!("G{round}");
                    let queue = queue.to_string();
                    let of = [("consumerGroup", &*group), ("topic", "t"), ("queueId", &*queue)];
                    together.wait();
                    assert_eq!(caller.ask(15, &[&of[..], &[("commitOffset", "1")]].concat(), b"").code, 0);
                    together.wait();
                    let stored = caller.ask(14, &of, b"");
                    assert_eq!((stored.code, stored.field("offset")), (0, "1"), "round {round} queue {queue}");
                }
            });
        }
    });
}
