//! A push consumer as a member of its group: restarts, members that come and go, brokers that go and come back, answers
//! that are lost, on the embedded broker over sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use peer::{Caller, PATIENCE};
use windlass::broker::{Broker, Op};
use windlass::{Batch, Client, ClientBuilder, Event, PushConsumer, StartFrom, TestClock};

fn broker() -> Broker {
    Broker::ephemeral().delay_scale(0.001).topic("orders", 4).start().unwrap()
}

fn builder(broker: &Broker) -> ClientBuilder {
    Client::builder().name_servers([broker.name_server_addr().to_string()]).workers(4)
}

fn client(broker: &Broker) -> Client {
    builder(broker).build().unwrap()
}

/// A handler that tells the bodies.
fn telling(told: Sender<Vec<u8>>) -> impl Fn(&Batch<'_>) + Send + Sync + 'static {
    move |batch| {
        for message in batch {
            let _ = told.send(message.body().to_vec());
        }
    }
}

/// Stores a message in a queue of `topic`.
fn store(caller: &mut Caller, topic: &str, queue: usize, tag: &str, body: &str) {
    let (queue, properties) = (queue.to_string(), format!("TAGS\u{1}{tag}\u{2}"));
    let fields = [
        ("a", "PG"),
        ("b", topic),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", queue.as_str()),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", properties.as_str()),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    assert_eq!(caller.ask(310, &fields, body.as_bytes()).code, 0);
}

/// Stores messages round the four queues of `orders`.
fn send(broker: &Broker, bodies: impl IntoIterator<Item = String>) {
    let mut caller = Caller::connect(broker.broker_addr());
    for (at, body) in bodies.into_iter().enumerate() {
        store(&mut caller, "orders", at % 4, "t", &body);
    }
}

fn numbered(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|at| at.to_string())
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn events() -> (impl Fn(&Event) + Send + Sync + 'static, Receiver<Event>) {
    let (sender, receiver): (Sender<Event>, _) = unbounded();
    let tell = move |event: &Event| {
        let _ = sender.send(event.clone());
    };
    (tell, receiver)
}

fn wait_for(events: &Receiver<Event>, name: &str) -> Event {
    let end = Instant::now() + PATIENCE;
    loop {
        match events.recv_deadline(end) {
            Ok(event) if event.name() == name => return event,
            Ok(_) => {}
            Err(_) => panic!("no event {name}"),
        }
    }
}

/// How often each body was handled.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<String, u32>>>);

impl Seen {
    fn start(&self, client: &Client, group: &str) -> PushConsumer {
        let seen = Arc::clone(&self.0);
        client
            .push_consumer(group)
            .subscribe("orders", "*")
            .start_from(StartFrom::First)
            .handler(move |batch| {
                for message in batch {
                    let body = String::from_utf8_lossy(message.body()).into_owned();
                    *seen.lock().unwrap().entry(body).or_default() += 1;
                }
            })
            .start()
            .unwrap()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn repeated(&self) -> Vec<(String, u32)> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|(_, times)| **times != 1)
            .map(|(body, times)| (body.clone(), *times))
            .collect()
    }
}

/// Queues of `orders` that are pulled.
fn orders(consumer: &PushConsumer) -> usize {
    consumer.assigned().unwrap().iter().filter(|at| &*at.queue.topic == "orders" && at.next.is_some()).count()
}

#[test]
fn b246_restarts_neither_repeat_nor_leave_out() {
    let broker = broker();
    let seen = Seen::default();
    for round in 0..4 {
        let client = client(&broker);
        let consumer = seen.start(&client, "steady");
        send(&broker, (0..100).map(|at| format!("{round}-{at}")));
        // Stopped in the middle of it: what is cached comes again in the next round, what was finished does not.
        until("a part of it", || seen.len() >= round * 100 + 30);
        let report = consumer.shutdown(Duration::from_secs(5));
        assert!(report.is_clean(), "{report:?}");
        client.shutdown(Duration::from_secs(5)).into_result().unwrap();
    }
    let client = client(&broker);
    let _consumer = seen.start(&client, "steady");
    until("all of it", || seen.len() == 400);
    broker.wait_drained("steady", PATIENCE).unwrap();
    assert_eq!(seen.repeated(), []);
}

#[test]
fn b147_two_members_share_and_the_one_that_stays_takes_over() {
    let broker = broker();
    let (one, two) = (client(&broker), client(&broker));
    let seen = Seen::default();
    let first = seen.start(&one, "pair");
    until("all four queues", || orders(&first) == 4);
    let second = seen.start(&two, "pair");
    until("two each", || orders(&first) == 2 && orders(&second) == 2);
    send(&broker, numbered(200));
    until("200 messages", || seen.len() == 200);
    assert!(second.shutdown(Duration::from_secs(5)).is_clean());
    until("all four queues again", || orders(&first) == 4);
    send(&broker, (200..300).map(|at| at.to_string()));
    until("300 messages", || seen.len() == 300);
    broker.wait_drained("pair", PATIENCE).unwrap();
    assert_eq!(seen.repeated(), []);
}

#[test]
fn b019_b262_after_a_restart_of_its_broker_a_consumer_goes_on_where_it_was() {
    let dir = std::env::temp_dir().join(format!("windlass-push-group-{}", std::process::id()));
    let open = |listen: &str, names: &str| {
        Broker::open(&dir).listen(listen).name_server_listen(names).topic("orders", 4).start().unwrap()
    };
    let broker = open("127.0.0.1:0", "127.0.0.1:0");
    let (listen, names) = (broker.broker_addr().to_string(), broker.name_server_addr().to_string());
    let client = Client::builder().name_servers([names.clone()]).workers(4).build().unwrap();
    let seen = Seen::default();
    let consumer = seen.start(&client, "loyal");
    send(&broker, numbered(50));
    until("50 messages", || seen.len() == 50);
    broker.wait_drained("loyal", PATIENCE).unwrap();
    broker.shutdown(PATIENCE).unwrap();
    drop(broker);
    let broker = open(&listen, &names);
    send(&broker, (50..100).map(|at| at.to_string()));
    until("100 messages", || seen.len() == 100);
    broker.wait_drained("loyal", PATIENCE).unwrap();
    assert_eq!(seen.repeated(), []);
    assert!(consumer.shutdown(Duration::from_secs(5)).is_clean());
    drop(client);
    drop(broker);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn c054_b058_b059_an_unsubscribed_topic_is_committed_and_left_and_the_other_goes_on() {
    let broker = Broker::ephemeral().topic("orders", 4).topic("others", 1).start().unwrap();
    let client = client(&broker);
    let (tell, events) = events();
    let (told, bodies) = unbounded();
    let consumer = client
        .push_consumer("fickle")
        .subscribe("orders", "*")
        .subscribe("others", "*")
        .start_from(StartFrom::First)
        .observer(tell)
        .handler(move |batch| {
            for message in batch {
                let _ = told.send(message.topic().to_owned());
            }
        })
        .start()
        .unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    store(&mut caller, "others", 0, "t", "one");
    assert_eq!(bodies.recv_timeout(PATIENCE).unwrap(), "others");
    consumer.unsubscribe("others").unwrap();
    let Event::Revoked { queue, committed, .. } = wait_for(&events, "revoked") else { panic!() };
    assert_eq!((&*queue.topic, committed.map(|at| at.0)), ("others", Some(1)));
    store(&mut caller, "others", 0, "t", "two");
    store(&mut caller, "orders", 0, "t", "three");
    assert_eq!(bodies.recv_timeout(PATIENCE).unwrap(), "orders");
    // Subscribed again, it goes on where it was left (B-057: without waiting for any interval).
    consumer.subscribe("others", "*").unwrap();
    assert_eq!(bodies.recv_timeout(PATIENCE).unwrap(), "others");
}

#[test]
fn b060_a_paused_topic_is_pulled_again_when_it_is_resumed() {
    let broker = broker();
    let client = client(&broker);
    let seen = Seen::default();
    let consumer = seen.start(&client, "lazy");
    until("four pulls", || {
        let assigned = consumer.assigned().unwrap();
        assigned.iter().filter(|at| &*at.queue.topic == "orders" && at.waits.is_none()).count() == 4
    });
    consumer.pause("orders").unwrap();
    // One pull of each queue may be on its way already; what it brings is handled.
    send(&broker, numbered(4));
    until("what was on its way", || seen.len() == 4);
    until("no pull is out", || {
        let assigned = consumer.assigned().unwrap();
        assigned.iter().filter(|at| &*at.queue.topic == "orders").all(|at| at.waits.as_deref() == Some("paused"))
    });
    send(&broker, (4..20).map(|at| at.to_string()));
    assert_eq!(seen.len(), 4);
    consumer.resume("orders").unwrap();
    until("the rest", || seen.len() == 20);
}

#[test]
fn b053_a_topic_that_appears_later_is_consumed_from_its_first_message() {
    let broker = broker();
    let client = client(&broker);
    let (tell, events) = events();
    let (told, bodies) = unbounded();
    let _consumer =
        client.push_consumer("early").subscribe("tomorrow", "*").observer(tell).handler(telling(told)).start().unwrap();
    wait_for(&events, "route failed");
    store(&mut Caller::connect(broker.broker_addr()), "tomorrow", 0, "t", "first");
    assert_eq!(bodies.recv_timeout(PATIENCE).unwrap(), b"first");
}

#[test]
fn b080_tags_are_compared_again_where_only_hashes_were() {
    let broker = broker();
    let client = client(&broker);
    let (told, bodies) = unbounded();
    let _consumer = client
        .push_consumer("tagged")
        .subscribe("orders", "Aa")
        .start_from(StartFrom::First)
        .handler(telling(told))
        .start()
        .unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    // "BB" has the hash of "Aa".
    for (tag, body) in [("BB", "no"), ("other", "no"), ("Aa", "yes"), ("BB", "no")] {
        store(&mut caller, "orders", 0, tag, body);
    }
    assert_eq!(bodies.recv_timeout(PATIENCE).unwrap(), b"yes");
    // Over what was filtered progress goes on as well (C-052).
    broker.wait_drained("tagged", PATIENCE).unwrap();
    assert!(bodies.try_recv().is_err());
}

#[test]
fn b086_lost_and_refused_answers_stop_no_queue() {
    let broker = broker();
    let client = builder(&broker).pull_hold(Duration::from_millis(300), Duration::from_millis(900)).build().unwrap();
    let (told, bodies) = unbounded();
    let _consumer = client
        .push_consumer("tough")
        .subscribe("orders", "*")
        .start_from(StartFrom::First)
        .pull_retry_delay(Duration::from_millis(20))
        .handler(telling(told))
        .start()
        .unwrap();
    broker.fail_next(Op::Pull, 3);
    send(&broker, numbered(10));
    broker.lose_next(Op::Pull, 2);
    send(&broker, numbered(10));
    for _ in 0..20 {
        bodies.recv_timeout(PATIENCE).unwrap();
    }
    broker.wait_drained("tough", PATIENCE).unwrap();
}

#[test]
fn c049_commits_that_fail_are_told_and_repeated() {
    let broker = broker();
    let client = client(&broker);
    let (tell, events) = events();
    let consumer = client
        .push_consumer("forgetful")
        .subscribe("orders", "*")
        .start_from(StartFrom::First)
        .observer(tell)
        .handler(|_| ())
        .start()
        .unwrap();
    until("queues are ours", || !consumer.assigned().unwrap().is_empty());
    broker.fail_next(Op::Commit, 6);
    send(&broker, numbered(40));
    wait_for(&events, "commit failed");
    broker.wait_drained("forgetful", PATIENCE).unwrap();
}

#[test]
fn d11_progress_reaches_the_broker_without_being_asked_for() {
    // A test clock: nothing but the core's own deadlines moves anything.
    let clock = TestClock::new();
    let broker = Broker::ephemeral().clock(&clock).topic("orders", 1).start().unwrap();
    let client = builder(&broker).clock(&clock).build().unwrap();
    let (told, bodies) = unbounded();
    let _consumer = client
        .push_consumer("clocked")
        .subscribe("orders", "*")
        .start_from(StartFrom::First)
        .handler(telling(told))
        .start()
        .unwrap();
    send(&broker, numbered(1));
    until("the message", || {
        clock.advance(Duration::from_millis(100));
        bodies.try_recv().is_ok()
    });
    until("its commit", || {
        clock.advance(Duration::from_millis(100));
        broker.wait_drained("clocked", Duration::from_millis(1)).is_ok()
    });
}

#[test]
fn b088_d14_a_small_byte_budget_slows_and_never_stops() {
    let broker = broker();
    let mut caller = Caller::connect(broker.broker_addr());
    let body = "x".repeat(100 << 10);
    for at in 0..60 {
        store(&mut caller, "orders", at % 4, "t", &format!("{at} {body}"));
    }
    let client = builder(&broker).memory_budget(1 << 20).build().unwrap();
    let seen = Seen::default();
    let _consumer = seen.start(&client, "frugal");
    until("all of it", || seen.len() == 60);
    broker.wait_drained("frugal", PATIENCE).unwrap();
    assert_eq!(seen.repeated(), []);
}

#[test]
fn c062_a_handler_that_outlasts_the_stop_is_counted_and_its_message_comes_again_once() {
    let broker = broker();
    let client = client(&broker);
    let (open, gate) = crossbeam_channel::bounded::<()>(0);
    let (told, calls) = unbounded();
    let consumer = client
        .push_consumer("slow")
        .subscribe("orders", "*")
        .start_from(StartFrom::First)
        .handler(move |_| {
            let _ = told.send(());
            let _ = gate.recv();
        })
        .start()
        .unwrap();
    store(&mut Caller::connect(broker.broker_addr()), "orders", 0, "t", "long");
    calls.recv_timeout(PATIENCE).unwrap();
    let begun = Instant::now();
    let report = consumer.shutdown(Duration::from_millis(400));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!((report.unfinished, report.finished, report.is_clean()), (1, 0, false), "{report:?}");
    drop(open);
    let seen = Seen::default();
    let _successor = seen.start(&client, "slow");
    until("the message", || seen.len() == 1);
    broker.wait_drained("slow", PATIENCE).unwrap();
    assert_eq!((seen.repeated(), broker.topic_len("%RETRY%slow")), (vec![], 0));
}

#[test]
fn a_second_consumer_of_a_group_in_one_client_is_refused_and_the_first_goes_on() {
    let broker = broker();
    let client = client(&broker);
    let seen = Seen::default();
    let first = seen.start(&client, "twice");
    let second = client.push_consumer("twice").subscribe("orders", "*").handler(|_| ()).start();
    assert!(matches!(second, Err(windlass::StartError::GroupInUse { group }) if group == "twice"), "B-004");
    send(&broker, numbered(8));
    until("8 messages", || seen.len() == 8);
    assert!(first.shutdown(Duration::from_secs(5)).is_clean());
    // Once it has stopped the group may run again.
    let again = seen.start(&client, "twice");
    assert!(again.shutdown(Duration::from_secs(5)).is_clean());
    let report = client.shutdown(Duration::from_secs(5));
    assert!(report.is_clean(), "{report:?}");
    assert!(client.push_consumer("late").subscribe("orders", "*").handler(|_| ()).start().is_err());
}
