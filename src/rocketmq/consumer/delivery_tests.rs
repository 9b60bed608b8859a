//! What a handler sees of encoded records, through a claim that is run as a worker runs it.

use std::sync::Mutex;

use super::super::handler::{Code, Handler};
use super::*;
use crate::consume::chunk::Epoch;
use crate::consume::claim::{Bell, Claim, Consumer};
use crate::consume::pool::{Pool, Worker};
use crate::consume::queue::{ProcessQueue, Settings};
use crate::model::names::retry_topic;
use crate::wire::frame::Frame;
use crate::wire::remoting::properties;
use crate::wire::remoting::record::{Check, NewRecord, index, patch};
use crate::work::budget::Budget;
use crate::work::clock::{Clock, Nanos};

struct NoBell;

impl Bell for NoBell {
    fn ring(&self) -> bool {
        true
    }
}

/// A message to be: topic, body, properties, sysFlag.
struct Stored(&'static str, Vec<u8>, Vec<(&'static str, &'static str)>, i32);

fn plain(body: &str) -> Stored {
    Stored("t", body.into(), vec![], 0)
}

fn pulled(topic: &str, own_retry: bool, stored: &[Stored]) -> Arc<Pulled> {
    let mut bytes = Vec::new();
    for (offset, Stored(topic, body, pairs, flag)) in (0..).zip(stored) {
        let mut text = Vec::new();
        pairs.iter().for_each(|(name, value)| properties::push(&mut text, name, value));
        let at = bytes.len();
        let record = NewRecord {
            topic: topic.as_bytes(),
            body,
            properties: &text,
            queue_id: 0,
            flag: 9,
            sys_flag: *flag,
            born_ms: 1000,
            born_host: "10.0.0.1:1".parse().unwrap(),
            store_host: "10.0.0.2:10911".parse().unwrap(),
            reconsume_times: 2,
            prepared_offset: 0,
            body_crc: None,
        };
        record.encode_into(&mut bytes).unwrap();
        patch(&mut bytes[at..], offset, 4096 + offset, 2000);
    }
    let (mut records, mut damage) = (Vec::new(), Vec::new());
    index(&bytes, Check::Crc, &mut records, &mut damage);
    assert!(damage.is_empty());
    let queue = Queue::new(topic, "broker-a", 0);
    let (min, max) = (QueueOffset(0), QueueOffset(100));
    Arc::new(Pulled { queue, own_retry, frame: Frame::from(bytes), records: records.into(), min, max })
}

/// Runs a handler over what was pulled, in batches of 32, and returns its claim and what was reported.
fn run(code: Code, pulled: &Arc<Pulled>) -> (Arc<Claim<Pulled>>, Vec<String>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let handler = Handler {
        code,
        budget: Budget::new(1 << 20),
        max_body: 1 << 16,
        report: Box::new(move |queue, text| tell.lock().unwrap().push(format!("{queue}: {text}"))),
    };
    let pool = Pool::unmanned();
    let consumer = Consumer::new(Box::new(handler), pool.clone(), Clock::system());
    let queue = ProcessQueue::new(Epoch(1), QueueOffset(0), Settings { batch: 32, ..Settings::default() });
    let claim = Claim::new(queue, consumer, Box::new(NoBell));
    claim.put(pulled, QueueOffset(pulled.records.len() as i64), Nanos(1));
    while let Some(token) = pool.try_next() {
        token.run(&mut Worker::new(0));
    }
    let told = std::mem::take(&mut *told.lock().unwrap());
    (claim, told)
}

fn failed(claim: &Claim<Pulled>) -> Vec<(i64, Outcome, Option<String>)> {
    claim.queue().news(Nanos(1)).failed.into_iter().map(|f| (f.offset.0, f.outcome, f.reason)).collect()
}

fn levels(level: i32) -> DelayLevel {
    DelayLevel::new(level).unwrap()
}

#[test]
fn a_delivery_reads_what_was_stored() {
    let pairs = vec![("TAGS", "paid"), ("KEYS", "7 order-7"), ("UNIQ_KEY", "0A00"), ("mine", "x")];
    let pulled = pulled("t", false, &[Stored("t", b"body".to_vec(), pairs, 0), plain("")]);
    let (claim, told) = run(
        Code::shared(|batch| {
            assert_eq!((batch.len(), batch.queue().to_string().as_str()), (2, "t/broker-a/0"));
            let first = batch.get(0).unwrap();
            assert_eq!((first.topic(), first.tag(), first.body()), ("t", Some("paid"), &b"body"[..]));
            assert_eq!((first.keys().collect::<Vec<_>>(), first.property("mine")), (vec!["7", "order-7"], Some("x")));
            assert_eq!((first.unique_key(), &*first.message_id()), (Some("0A00"), "0A00"));
            assert_eq!(
                (first.born_ms(), first.stored_ms(), first.redeliveries(), first.flag_bits()),
                (1000, 2000, 2, 9)
            );
            assert_eq!((first.born_host().port(), first.store_host().port()), (1, 10911));
            assert_eq!((first.queue_min(), first.queue_max()), (QueueOffset(0), QueueOffset(100)), "B-083");
            assert_eq!(
                first.properties().map(|(name, _)| name).collect::<Vec<_>>(),
                ["TAGS", "KEYS", "UNIQ_KEY", "mine"]
            );
            let second = batch.get(1).unwrap();
            assert_eq!((second.offset(), second.tag(), second.body()), (QueueOffset(1), None, &b""[..]));
            assert_eq!(second.message_id(), second.offset_message_id(), "without a unique key it is the offset id");
            let bodies: Vec<&[u8]> = batch.iter().map(|delivery| delivery.body()).collect();
            assert_eq!(bodies, [&b"body"[..], b""]);
            let owned = first.into_owned();
            assert_eq!((owned.body(), owned.tag(), owned.offset()), (&b"body"[..], Some("paid"), QueueOffset(0)));
        }),
        &pulled,
    );
    assert_eq!((claim.queue().progress(), told), (QueueOffset(2), vec![]));
}

#[test]
fn b130_c061_a_redelivered_message_shows_its_original_topic() {
    let retry = retry_topic("g");
    let original = |topic| Stored(topic, vec![], vec![("RETRY_TOPIC", "orders")], 0);
    for (topic, own_retry, stored, want) in [
        (retry.as_str(), true, original("%RETRY%g"), "orders"),
        (retry.as_str(), true, plain(""), "%RETRY%g"),
        ("t", false, original("t"), "t"),
    ] {
        let pulled = pulled(topic, own_retry, &[stored]);
        let name = topic.to_owned();
        let (claim, _) = run(
            Code::shared(move |batch| {
                let delivery = batch.get(0).unwrap();
                assert_eq!((delivery.topic(), &*delivery.queue().topic), (want, &*name));
            }),
            &pulled,
        );
        assert_eq!(claim.queue().progress(), QueueOffset(1), "{want}");
    }
}

#[test]
fn b121_b124_marks_win_over_the_outcome() {
    let five: Vec<_> = ["a", "b", "c", "d", "e"].map(plain).into();
    let (claim, _) = run(
        Code::shared(|batch| {
            for delivery in batch {
                match delivery.body() {
                    b"a" => delivery.done(),
                    b"b" => delivery.retry(levels(5)),
                    b"c" => delivery.dead_letter("unreadable"),
                    b"d" => delivery.retry(None),
                    _ => {}
                }
            }
            Outcome::Retry
        }),
        &pulled("t", false, &five),
    );
    let dead = (2, Outcome::DeadLetter, Some("unreadable".to_owned()));
    let retried = |offset, outcome| (offset, outcome, None);
    let want =
        [retried(1, Outcome::RetryAfter(levels(5))), dead, retried(3, Outcome::Retry), retried(4, Outcome::Retry)];
    assert_eq!(failed(&claim), want);

    let (claim, _) = run(
        Code::shared(|batch| {
            batch.done_through(1);
            Outcome::RetryAfter(levels(1))
        }),
        &pulled("t", false, &five),
    );
    assert_eq!((claim.queue().progress(), failed(&claim).len()), (QueueOffset(2), 3));
}

#[test]
fn b122_an_error_retries_what_is_unmarked_and_its_text_is_reported() {
    let (claim, told) = run(
        Code::shared(|batch| {
            batch.done_through(0);
            Err::<(), _>("no database")
        }),
        &pulled("t", false, &["a", "b"].map(plain)),
    );
    assert_eq!((failed(&claim), told), (vec![(1, Outcome::Retry, None)], vec!["t/broker-a/0: no database".to_owned()]));
}

#[test]
fn a_factory_makes_state_that_need_not_be_send() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tell = seen.clone();
    let code = Code::per_worker(move |worker| {
        let mut count = std::rc::Rc::new(0);
        let tell = tell.clone();
        move |batch| {
            *std::rc::Rc::make_mut(&mut count) += batch.len();
            tell.lock().unwrap().push((worker, *count));
        }
    });
    run(code, &pulled("t", false, &["a", "b"].map(plain)));
    assert_eq!(*seen.lock().unwrap(), [(0, 2)]);
}

#[test]
fn detached_deliveries_are_send_and_finish_later() {
    let (give, kept) = std::sync::mpsc::channel();
    let give = Mutex::new(give);
    let code = Code::shared(move |batch| {
        assert_eq!(batch.get(1).unwrap().detach().map(|one| one.body().to_vec()), Some(b"b".to_vec()));
        for delivery in batch.detach() {
            give.lock().unwrap().send(delivery).unwrap();
        }
    });
    let (claim, _) = run(code, &pulled("t", false, &["a", "b", "c"].map(plain)));
    assert_eq!(failed(&claim), [(1, Outcome::Retry, None)], "dropped without a word");
    let rest: Vec<_> = kept.try_iter().collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for delivery in rest {
                match delivery.body() {
                    b"a" => delivery.done(),
                    _ => delivery.dead_letter("late"),
                }
            }
        });
    });
    assert_eq!(failed(&claim), [(2, Outcome::DeadLetter, Some("late".to_owned()))]);
    assert_eq!(claim.queue().progress(), QueueOffset(1));
}

#[cfg(feature = "zlib")]
#[test]
fn d9_bodies_are_inflated_and_what_does_not_inflate_is_a_dead_letter() {
    use crate::wire::compress::{Kind, deflate};
    let zlib = |body: &[u8]| {
        let mut out = Vec::new();
        deflate(Kind::Zlib, 5, body, &mut out).unwrap();
        out
    };
    let flag = crate::wire::remoting::codes::sys_flag::COMPRESSED | Kind::Zlib.flag();
    let stored = [
        Stored("t", zlib(b"packed"), vec![], flag),
        Stored("t", b"no zlib".to_vec(), vec![], flag),
        Stored("t", zlib(&[7; 1 << 17]), vec![], flag),
        plain("plain"),
    ];
    let (claim, _) = run(
        Code::shared(|batch| {
            let bodies: Vec<_> = batch.iter().map(|delivery| delivery.body().to_vec()).collect();
            assert_eq!((batch.len(), bodies), (2, vec![b"packed".to_vec(), b"plain".to_vec()]));
            assert_eq!(batch.get(1).unwrap().offset(), QueueOffset(3));
            assert_eq!(batch.get(0).unwrap().into_owned().body(), b"packed");
        }),
        &pulled("t", false, &stored),
    );
    let failed = failed(&claim);
    assert_eq!(
        failed.iter().map(|f| (f.0, f.1)).collect::<Vec<_>>(),
        [(1, Outcome::DeadLetter), (2, Outcome::DeadLetter)]
    );
    assert!(failed.iter().all(|f| f.2.as_ref().unwrap().contains("cannot be inflated")));
    assert_eq!(claim.queue().progress(), QueueOffset(1), "held until they are in the dead letters, and no longer");

    let (claim, _) = run(
        Code::shared(|_| -> Outcome { panic!("never shown") }),
        &pulled("t", false, &[Stored("t", b"no zlib".to_vec(), vec![], flag)]),
    );
    assert_eq!(claim.queue().news(Nanos(1)).failed.len(), 1);
}

#[test]
fn d21_what_waits_alone_of_a_large_frame_is_copied_out_and_charged() {
    let budget = Budget::new(1 << 20);
    let stored: Vec<_> = (0..32).map(|number| Stored("t", vec![number; 1024], vec![("mine", "x")], 0)).collect();
    let whole = pulled("t", false, &stored);
    assert!(whole.excerpt(0..8, &budget).is_none(), "a quarter");
    assert!(whole.excerpt(31..33, &budget).is_none(), "no such place");
    let few = whole.excerpt(30..32, &budget).unwrap();
    assert!(few.frame.held_bytes() < 3000 && budget.used() == few.frame.held_bytes() as u64);
    for (kept, was) in few.records.iter().zip(&whole.records[30..]) {
        assert_eq!(kept.bytes(few.frame.bytes()), was.bytes(whole.frame.bytes()));
        assert_eq!((kept.queue_offset, kept.physical_offset), (was.queue_offset, was.physical_offset));
        assert_eq!(kept.properties(few.frame.bytes()).find("mine"), Some("x"));
    }
    drop(few);
    assert_eq!(budget.used(), 0);
    assert!(pulled("t", false, &stored[..8]).excerpt(0..1, &budget).is_none(), "little to win");
}
