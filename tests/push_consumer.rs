//! The push consumer against the embedded broker, over sockets: what is stored reaches a handler, what fails comes again,
//! what is finished is committed and nothing else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use peer::{Caller, PATIENCE};
use windlass::broker::Broker;
use windlass::{
    Batch, Client, DelayLevel, Delivery, Error, Event, Listener, Outcome, PushConsumerBuilder, StartError, StartFrom,
};

const QUEUES: usize = 4;

/// A broker with one topic on four queues, whose delays run a thousand times faster, and a client of it.
fn setup() -> (Broker, Client) {
    let broker = Broker::ephemeral().topic("orders", 4).delay_scale(0.001).start().unwrap();
    let client = client(&broker);
    (broker, client)
}

fn client(broker: &Broker) -> Client {
    Client::builder().name_servers([broker.name_server_addr().to_string()]).workers(4).build().unwrap()
}

fn group(client: &Client, name: &str) -> PushConsumerBuilder {
    client.push_consumer(name).subscribe("orders", "*").start_from(StartFrom::First)
}

/// Stores `count` messages with bodies `from`, `from + 1` ... round the queues.
fn store(broker: &Broker, from: usize, count: usize) {
    let mut caller = Caller::connect(broker.broker_addr());
    for body in from..from + count {
        let queue = (body % QUEUES).to_string();
        let fields = [
            ("a", "PG"),
            ("b", "orders"),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", queue.as_str()),
            ("f", "0"),
            ("g", "1700000000000"),
            ("h", "7"),
            ("i", "TAGS\u{1}paid\u{2}"),
            ("j", "0"),
            ("k", "false"),
            ("m", "false"),
        ];
        assert_eq!(caller.ask(310, &fields, body.to_string().as_bytes()).code, 0);
    }
}

fn number(delivery: &Delivery<'_>) -> usize {
    String::from_utf8(delivery.body().to_vec()).unwrap().parse().unwrap()
}

/// How often each body was delivered.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<usize, u32>>>);

impl Seen {
    fn saw(&self, delivery: &Delivery<'_>) -> u32 {
        let mut seen = self.0.lock().unwrap();
        let times = seen.entry(number(delivery)).or_default();
        *times += 1;
        *times
    }

    fn wait(&self, what: &str, done: impl Fn(&BTreeMap<usize, u32>) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(&self.0.lock().unwrap()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.0.lock().unwrap());
            std::thread::yield_now();
        }
    }
}

#[test]
fn every_message_is_handled_once_and_a_successor_goes_on_without_gap_or_repeat() {
    let (broker, client) = setup();
    store(&broker, 0, 200);
    let seen = Seen::default();
    for round in 1..=2 {
        let saw = seen.clone();
        let consumer = group(&client, "g")
            .batch(16, Duration::ZERO)
            .handler(move |batch| {
                batch.iter().for_each(|delivery| {
                    saw.saw(&delivery);
                })
            })
            .start()
            .unwrap();
        seen.wait("all of it", |seen| seen.len() == 200 * round);
        broker.wait_drained("g", PATIENCE).unwrap();
        let report = consumer.shutdown(Duration::from_secs(10));
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.finished, report.dropped), (200, 0));
        store(&broker, 200, if round == 1 { 200 } else { 0 });
    }
    assert!(seen.0.lock().unwrap().values().all(|times| *times == 1), "none twice");
}

#[test]
fn b124_b130_a_failed_message_comes_again_with_its_topic_and_one_more_redelivery() {
    let (broker, client) = setup();
    store(&broker, 0, 40);
    let (seen, seen_again) = (Seen::default(), Seen::default());
    let (saw, again) = (seen.clone(), seen_again.clone());
    let consumer = group(&client, "g")
        .handler(move |batch| {
            for delivery in batch {
                if delivery.redeliveries() == 0 {
                    assert_eq!(delivery.queue().topic.as_ref(), "orders");
                    saw.saw(&delivery);
                    if number(&delivery) % 4 == 3 {
                        delivery.retry(DelayLevel::new(1));
                        continue;
                    }
                } else {
                    assert_eq!((delivery.topic(), delivery.redeliveries()), ("orders", 1));
                    assert_eq!((delivery.queue().topic.as_ref(), delivery.tag()), ("%RETRY%g", Some("paid")));
                    again.saw(&delivery);
                }
                delivery.done();
            }
            Outcome::DeadLetter
        })
        .start()
        .unwrap();
    seen_again.wait("redelivered", |again| again.len() == 10);
    broker.wait_drained("g", PATIENCE).unwrap();
    let report = consumer.shutdown(Duration::from_secs(10));
    assert_eq!((report.finished, report.retried, report.dead_lettered), (40, 10, 0), "{report:?}");
    assert_eq!((seen.0.lock().unwrap().len(), broker.topic_len("%RETRY%g"), broker.topic_len("%DLQ%g")), (40, 10, 0));
}

#[test]
fn b126_too_many_failures_and_a_handlers_word_end_in_the_dead_letters() {
    let (broker, client) = setup();
    store(&broker, 0, 2);
    let (tell, events) = mpsc::channel();
    let tell = Mutex::new(tell);
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let _consumer = group(&client, "g")
        .max_redeliveries(2)
        .observer(move |event: &Event| {
            if let Event::DeadLetter { reason, .. } = event {
                tell.lock().unwrap().send(reason.clone()).unwrap();
            }
        })
        .handler(move |batch| {
            let delivery = batch.get(0).unwrap();
            if number(&delivery) == 0 {
                delivery.dead_letter("not a number of ours");
            } else {
                count.fetch_add(1, Ordering::SeqCst);
                delivery.retry(DelayLevel::new(1));
            }
        })
        .start()
        .unwrap();
    let reason = events.recv_timeout(PATIENCE).unwrap();
    assert_eq!(reason.as_deref(), Some("not a number of ours"));
    let deadline = Instant::now() + PATIENCE;
    while broker.topic_len("%DLQ%g") < 2 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    assert_eq!(calls.load(Ordering::SeqCst), 3, "two redeliveries: three deliveries in all");
}

/// What a panic may carry at its worst.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("dropped"));
    }
}

#[test]
fn b122_c083_a_panic_and_an_error_are_redelivered_and_told() {
    let (broker, client) = setup();
    store(&broker, 0, 20);
    let seen = Seen::default();
    let saw = seen.clone();
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let consumer = group(&client, "g")
        .observer(move |event: &Event| {
            if let Event::HandlerFailed { detail, .. } = event {
                tell.lock().unwrap().send(detail.clone()).unwrap();
            }
        })
        .handler(move |batch| {
            let delivery = batch.get(0).unwrap();
            let first = saw.saw(&delivery) == 1;
            if first && number(&delivery) == 3 {
                // As a panic, without its printed message.
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            if first && number(&delivery) == 7 {
                std::panic::resume_unwind(Box::new(Bomb));
            }
            if first && number(&delivery) == 5 { Err("no database") } else { Ok(()) }
        })
        .start()
        .unwrap();
    seen.wait("all again", |seen| seen.len() == 20 && [3, 5, 7].iter().all(|number| seen[number] == 2));
    broker.wait_drained("g", PATIENCE).unwrap();
    let mut details = [(); 3].map(|()| told.recv_timeout(PATIENCE).unwrap());
    details.sort();
    assert_eq!(details, ["no database", "panicked: no text", "panicked: on purpose"]);
    assert_eq!(consumer.shutdown(Duration::from_secs(10)).retried, 3);
}

#[test]
fn d13_detached_deliveries_hold_the_commit_point_until_they_are_finished_elsewhere() {
    let (broker, client) = setup();
    store(&broker, 0, 8);
    let (give, kept) = mpsc::channel();
    let give = Mutex::new(give);
    let consumer = group(&client, "g")
        .handler(move |batch| {
            for delivery in batch.detach() {
                give.lock().unwrap().send(delivery).unwrap();
            }
        })
        .start()
        .unwrap();
    let deliveries: Vec<_> = (0..8).map(|_| kept.recv_timeout(PATIENCE).unwrap()).collect();
    assert!(consumer.assigned().unwrap().iter().all(|queue| queue.finished.is_none_or(|offset| offset.0 == 0)));
    deliveries.into_iter().for_each(|delivery| delivery.done());
    broker.wait_drained("g", PATIENCE).unwrap();
    let report = consumer.shutdown(Duration::from_secs(10));
    assert_eq!((report.finished, report.unfinished, report.retried), (8, 0, 0), "{report:?}");
}

#[test]
fn d12_a_stop_from_inside_a_handler_only_begins_and_finishes_what_runs() {
    let (broker, client) = setup();
    let stop: Arc<Mutex<Option<Arc<windlass::PushConsumer>>>> = Arc::default();
    let (own, (tell, told)) = (stop.clone(), mpsc::channel());
    let tell = Mutex::new(tell);
    let consumer = group(&client, "g")
        .handler(move |_| {
            let own = own.lock().unwrap().clone();
            if let Some(consumer) = own {
                tell.lock().unwrap().send(consumer.shutdown(PATIENCE)).unwrap();
            }
        })
        .start()
        .unwrap();
    let consumer = Arc::new(consumer);
    *stop.lock().unwrap() = Some(consumer.clone());
    store(&broker, 0, 1);
    let report = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(report.finished, 0, "it did not wait for itself");
    consumer.shutdown(PATIENCE);
    broker.wait_drained("g", PATIENCE).unwrap();
    assert!(matches!(consumer.pause("orders"), Err(Error::Closed)) || consumer.assigned().is_err());
    *stop.lock().unwrap() = None;
}

struct Counter(AtomicU32);

impl Listener for Counter {
    fn on_batch(&self, batch: &Batch<'_>) -> Outcome {
        self.0.fetch_add(batch.len() as u32, Ordering::SeqCst);
        Outcome::Done
    }
}

#[test]
fn a_listener_and_state_of_each_worker_are_handlers_too() {
    let (broker, client) = setup();
    store(&broker, 0, 20);
    let error = broker.wait_drained("by-listener", Duration::from_millis(1)).unwrap_err().to_string();
    let begins = "group by-listener has not consumed everything within 1 ms: ";
    assert!(error.starts_with(begins), "nobody has consumed anything yet: {error}");
    let counter = Arc::new(Counter(AtomicU32::new(0)));
    let boxed: Box<dyn Listener> = Box::new(counter.clone());
    let first = group(&client, "by-listener").listener(boxed).start().unwrap();
    let sum = Arc::new(AtomicU32::new(0));
    let add = sum.clone();
    let second = group(&client, "by-factory")
        .handler_factory(move |worker| {
            assert!(worker < 4);
            let (mut own, add) = (std::rc::Rc::new(0), add.clone());
            move |batch| {
                *std::rc::Rc::make_mut(&mut own) += batch.len();
                add.fetch_add(batch.len() as u32, Ordering::SeqCst);
                Ok::<_, String>(Outcome::Done)
            }
        })
        .start()
        .unwrap();
    for name in ["by-listener", "by-factory"] {
        broker.wait_drained(name, PATIENCE).unwrap();
    }
    assert_eq!((counter.0.load(Ordering::SeqCst), sum.load(Ordering::SeqCst)), (20, 20));
    let reports = [first, second].map(|consumer| consumer.shutdown(PATIENCE));
    assert!(reports.iter().all(|report| report.finished == 20 && report.is_clean()), "{reports:?}");
}

#[test]
fn b054_b055_a_wrong_setting_starts_nothing_and_can_be_corrected() {
    let (_broker, client) = setup();
    let threads = client.threads();
    let field = |builder: PushConsumerBuilder| match builder.start() {
        Err(StartError::Config(error)) => error.field,
        other => panic!("{other:?}"),
    };
    let done = |_: &Batch<'_>| {};
    assert_eq!(field(group(&client, "g")), "handler");
    assert_eq!(field(group(&client, "DEFAULT_CONSUMER").handler(done)), "group");
    assert_eq!(field(group(&client, "g").handler(done).batch(1025, Duration::ZERO)), "batch");
    assert_eq!(field(group(&client, "g").handler(done).subscribe("orders", "||")), "tags");
    assert_eq!(client.threads(), threads);
    let first = group(&client, "g").handler(done).start().unwrap();
    let second = group(&client, "g").handler(done).start();
    assert!(matches!(second, Err(StartError::GroupInUse { .. })), "one consumer of a group in a client");
    first.shutdown(PATIENCE);
    drop(group(&client, "g").handler(done).start().unwrap());
}
