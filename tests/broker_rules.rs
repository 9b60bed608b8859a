//! Rules of the embedded broker that show beside the wire: what it logs, and what it costs while nothing happens.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use log::{LevelFilter, Log, Metadata, Record};
use peer::{Caller, PATIENCE};
use serde_json::{Value, json};
use windlass::broker::Broker;

/// Keeps the broker's warnings. One logger serves the process: tests tell theirs apart by the names in them.
struct Warnings(Mutex<Vec<String>>);

static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

impl Log for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "windlass::broker"
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) && record.level() <= log::Level::Warn {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

impl Warnings {
    fn of(&self, group: &str) -> Vec<String> {
        let all = self.0.lock().unwrap();
        all.iter().filter(|text| text.contains(&format!("group={group} "))).cloned().collect()
    }
}

fn heartbeat(caller: &mut Caller, client: &str, tags: &str, version: i64) {
    let body = json!({
        "clientID": client,
        "consumerDataSet": [{"groupName": "quarrel", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": false, "subscriptionDataSet": [
            {"topic": "orders", "subString": tags, "subVersion": version, "codeSet": [], "tagsSet": []}]}],
        "producerDataSet": [],
    });
    assert_eq!(caller.ask(34, &[], body.to_string().as_bytes()).code, 0);
}

/// What the broker takes for the group's subscription.
fn subscription(caller: &mut Caller) -> (String, i64) {
    let answer = caller.ask(203, &[("consumerGroup", "quarrel")], b"");
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    let orders = &body["subscriptionTable"]["orders"];
    (orders["subString"].as_str().unwrap().to_owned(), orders["subVersion"].as_i64().unwrap())
}

/// C-063.
#[test]
fn c063_members_that_subscribe_differently_are_told_of_and_the_newest_subscription_stays() {
    let _ours = log::set_logger(&WARNINGS).map(|()| log::set_max_level(LevelFilter::Warn));
    let broker = Broker::ephemeral().topic("orders", 1).start().unwrap();
    let [mut a, mut b] = [(); 2].map(|()| Caller::connect(broker.broker_addr()));
    heartbeat(&mut a, "a", "X", 100);
    assert_eq!(WARNINGS.of("quarrel").len(), 0);
    heartbeat(&mut b, "b", "Y", 200);
    let told = WARNINGS.of("quarrel");
    assert!(
        told.len() == 1 && ["topic=orders", "one=X", "other=Y"].iter().all(|fact| told[0].contains(fact)),
        "{told:?}"
    );
    for _ in 0..100 {
        heartbeat(&mut a, "a", "X", 100);
        assert_eq!(subscription(&mut b), ("Y".to_owned(), 200), "an older one takes nothing");
        heartbeat(&mut b, "b", "Y", 200);
        assert_eq!(subscription(&mut b), ("Y".to_owned(), 200));
    }
    let told = WARNINGS.of("quarrel").len();
    assert!((1..=10).contains(&told), "told {told} times for 200 heartbeats");
}

/// The broker's half of E-022: what Go's consumer fails over, and then finds.
#[test]
fn e022_a_missing_topic_has_no_route_until_somebody_makes_it() {
    let broker = Broker::ephemeral().start().unwrap();
    let (mut names, mut caller) = (Caller::connect(broker.name_server_addr()), Caller::connect(broker.broker_addr()));
    for _ in 0..2 {
        let answer = names.ask(105, &[("topic", "late")], b"");
        assert!(answer.code == 17 && answer.remark.is_some_and(|text| text.contains("late")), "asking makes nothing");
    }
    let fields = [
        ("topic", "late"),
        ("defaultTopic", "TBW102"),
        ("readQueueNums", "2"),
        ("writeQueueNums", "2"),
        ("perm", "6"),
        ("topicFilterType", "SINGLE_TAG"),
        ("topicSysFlag", "0"),
        ("order", "false"),
    ];
    assert_eq!(caller.ask(17, &fields, b"").code, 0);
    let answer = names.ask(105, &[("topic", "late")], b"");
    let route: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((answer.code, &route["queueDatas"][0]["readQueueNums"]), (0, &json!(2)));
}

/// What all threads of this process have cost so far.
#[cfg(target_os = "linux")]
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // Behind the name, which may hold anything: user and system time are the 12th and 13th word, in ticks of 10 ms.
    let words: Vec<u64> = stat.rsplit_once(')').unwrap().1.split_whitespace().map(|w| w.parse().unwrap_or(0)).collect();
    Duration::from_millis((words[11] + words[12]) * 10)
}

/// E-120. Alone in this process but for two tests that are over soon.
#[test]
#[cfg(target_os = "linux")]
fn e120_ten_thousand_held_pulls_cost_nothing_while_nothing_comes() {
    const PULLS: usize = 10_000;
    let broker = Broker::ephemeral().topic("quiet", 8).start().unwrap();
    let mut callers: Vec<Caller> = (0..20).map(|_| Caller::connect(broker.broker_addr())).collect();
    for number in 0..PULLS {
        let (group, queue) = (format!("g{}", number / 8), (number % 8).to_string());
        let fields = [
            ("consumerGroup", group.as_str()),
            ("topic", "quiet"),
            ("queueId", queue.as_str()),
            ("queueOffset", "0"),
            ("maxMsgNums", "32"),
            ("sysFlag", "6"),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", "600000"),
            ("subscription", "*"),
            ("subVersion", "0"),
        ];
        callers[number % 20].post(11, 0, &fields, b"");
    }
    // Behind all of them on each connection.
    for caller in &mut callers {
        assert_ne!(caller.ask(105, &[("topic", "quiet")], b"").code, 0, "the broker's port knows no routes");
    }
    let mut best = Duration::MAX;
    let end = Instant::now() + PATIENCE;
    // The other tests of this file cost something, too, while they last.
    while best > Duration::from_millis(20) && Instant::now() < end {
        let before = cpu();
        std::thread::sleep(Duration::from_secs(2));
        best = best.min(cpu() - before);
    }
    assert!(best <= Duration::from_millis(20), "{best:?} of 2 s");
    // They were held indeed.
    let message = [
        ("a", "P"),
        ("b", "quiet"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "3"),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", ""),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    let mut sender = Caller::connect(broker.broker_addr());
    assert_eq!(sender.ask(310, &message, b"x").code, 0);
    let with_queue_three: Vec<usize> = (0..20).filter(|at| (0..PULLS).any(|n| n % 20 == *at && n % 8 == 3)).collect();
    let answers: usize = with_queue_three
        .iter()
        .map(|at| {
            let mine = (0..PULLS).filter(|n| n % 20 == *at && n % 8 == 3).count();
            (0..mine).filter(|_| callers[*at].hear().is_ok_and(|answer| answer.code == 0)).count()
        })
        .sum();
    assert_eq!(answers, PULLS / 8);
}
