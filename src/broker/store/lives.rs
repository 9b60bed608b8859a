//! One store through many lives: from a seed it is opened, filled, fails, is killed or loses its power, and is opened
//! again, eight times over. Segments hold several blocks of the disk and are recycled, so that groups tear in the
//! middle, old bytes lie where new records come, and what a cut left behind its end is still there.
//!
//! The rule is exact: after each opening there is what was appended and ends at or below the end of the log, is not
//! older than its beginning, and was not deleted; nothing else, nothing twice, nothing that was cut before. See
//! `crash.rs` for the edits that make these tests fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tests::{Ears, drain, message};
use super::*;
use crate::disk::{Disk, Fault, FaultyDisk};

const SEGMENT: u64 = 16_384;
const TOPICS: [(&str, i32); 5] = [("orders", 0), ("orders", 1), ("bills", 0), ("gone", 0), ("gone", 3)];

struct Coin(u64);

impl Coin {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// One thing that was appended.
struct Entered {
    what: What,
    /// Where it stands; 0 for marks.
    physical: u64,
    /// End of the log behind it and its whole group.
    end: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum What {
    Message { topic: &'static str, queue: i32, offset: i64, body: Vec<u8> },
    Delivered { level: i32, offset: i64 },
    Resolved(i64),
    Deleted(&'static str),
}

/// A queue's messages with their offsets.
type Contents = BTreeMap<(String, i32), Vec<(i64, Vec<u8>)>>;

/// What the test knows of the store, over all lives.
struct Lives {
    seed: u64,
    coin: Coin,
    options: Options,
    disk: FaultyDisk,
    log: Vec<Entered>,
    durable: u64,
    now_ms: i64,
    /// Numbers bodies, so that no two messages are alike.
    sent: u64,
    torn: u32,
}

impl Lives {
    fn new(seed: u64) -> Self {
        let mut coin = Coin(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let first = if coin.one_in(2) { SEGMENT } else { 4096 };
        let flush = if coin.one_in(2) { Flush::Sync } else { Flush::Async };
        let options = Options::durable().segments(first, SEGMENT).flush(flush).mapped_bytes(2 * SEGMENT);
        let kept = [0, 3, 5][coin.below(3) as usize];
        let options = options.retain_segments(kept);
        Self { seed, coin, options, disk: FaultyDisk::new(), log: Vec::new(), durable: 0, now_ms: 0, sent: 0, torn: 0 }
    }

    fn body(&mut self) -> Vec<u8> {
        self.sent += 1;
        // Few sizes: records of one life then often begin where those of another did.
        let len = [30, 30, 200, 1900, 1900, 3900][self.coin.below(6) as usize];
        let mut body = format!("{} {} ", self.seed, self.sent).into_bytes();
        body.resize(len, b'x');
        body
    }

    /// Appends, flushes and so on until the life ends or the disk stops.
    fn live(&mut self, store: &Store) {
        for _ in 0..20 + self.coin.below(60) {
            self.now_ms += 1 + self.coin.below(400) as i64;
            let ok = match self.coin.below(20) {
                0..=7 => self.append(store, 1, 0),
                8..=11 => {
                    let (messages, marks) = (1 + self.coin.below(5), self.coin.below(3));
                    self.append(store, messages, marks)
                }
                12 => self.append(store, 0, 1),
                13 if self.coin.one_in(3) => self.delete(store),
                13..=15 => store.flush_step().is_ok(),
                16..=17 => {
                    store.segment_step(self.now_ms);
                    true
                }
                _ => true,
            };
            self.durable = self.durable.max(store.durable());
            if !ok && self.disk.stopped() {
                return;
            }
        }
    }

    fn append(&mut self, store: &Store, messages: u64, marks: u64) -> bool {
        let bodies: Vec<Vec<u8>> = (0..messages).map(|_| self.body()).collect();
        let queues: Vec<_> = bodies.iter().map(|_| TOPICS[self.coin.below(TOPICS.len() as u64) as usize]).collect();
        let handles: Vec<_> = queues.iter().map(|(topic, id)| store.queue(topic, *id)).collect();
        let marks: Vec<Mark<'_>> = (0..marks)
            .map(|_| match self.coin.below(2) {
                0 => Mark::DelayDelivered { level_queue: self.coin.below(3) as i32, offset: self.sent as i64 },
                _ => Mark::HalfResolved { offset: self.coin.below(40) as i64 },
            })
            .collect();
        let mut done = Vec::new();
        let ok = if let ([body], [queue], []) = (bodies.as_slice(), handles.as_slice(), marks.as_slice()) {
            store.append(queue, &message(body, b"KEYS\x01k"), self.now_ms).map(|one| done.push(one)).is_ok()
        } else {
            let members: Vec<Member<'_>> = handles
                .iter()
                .zip(&bodies)
                .map(|(queue, body)| Member::Message(queue, message(body, b"TAGS\x01a")))
                .chain(marks.iter().map(|mark| Member::Mark(*mark)))
                .collect();
            store.append_group(&members, self.now_ms, &mut done).is_ok()
        };
        let what = queues
            .into_iter()
            .zip(bodies)
            .map(|((topic, queue), body)| What::Message { topic, queue, offset: 0, body })
            .chain(marks.iter().map(|mark| match mark {
                Mark::DelayDelivered { level_queue, offset } => {
                    What::Delivered { level: *level_queue, offset: *offset }
                }
                Mark::HalfResolved { offset } => What::Resolved(*offset),
                other => panic!("{other:?}"),
            }));
        for (mut what, done) in what.zip(&done) {
            if let What::Message { offset, .. } = &mut what {
                *offset = done.queue_offset.0;
            }
            self.log.push(Entered { what, physical: done.physical, end: done.end });
        }
        ok
    }

    fn delete(&mut self, store: &Store) -> bool {
        let ok = store.delete_topic("gone", self.now_ms).is_ok();
        if ok {
            self.log.push(Entered { what: What::Deleted("gone"), physical: 0, end: store.log_end() });
        }
        ok
    }

    /// What must be there if the log ends at `end`, and the next offset of each queue.
    fn expected(&self, min: u64) -> (Contents, BTreeMap<(String, i32), i64>) {
        let mut contents = Contents::new();
        let mut next = BTreeMap::new();
        for entered in &self.log {
            match &entered.what {
                What::Message { topic, queue, offset, body } => {
                    let key = (topic.to_string(), *queue);
                    next.insert(key.clone(), offset + 1);
                    if entered.physical >= min {
                        contents.entry(key).or_default().push((*offset, body.clone()));
                    }
                }
                What::Deleted(gone) => {
                    contents.retain(|(topic, _), _| topic != gone);
                    next.retain(|(topic, _), _| topic != gone);
                }
                What::Delivered { .. } | What::Resolved(_) => {}
            }
        }
        (contents, next)
    }

    /// Opens what the end of a life left, and holds it against what is known. `kept`: what must be there at least.
    fn open(&mut self, kept: u64, life: u32) -> Option<Store> {
        let what = format!("seed {}, life {life}", self.seed);
        let ears = Arc::new(Ears::default());
        let opened = Store::open(Arc::new(self.disk.clone()), self.options.clone(), self.now_ms, ears.clone());
        let (store, recovered) = match opened {
            Ok(opened) => opened,
            Err(_) if self.disk.stopped() => return None,
            Err(error) => panic!("{what}: does not open: {error}"),
        };
        let end = store.log_end();
        assert!(end >= kept, "{what}: the log ends at {end}, kept {kept}");
        let cut = self.log.iter().filter(|entered| entered.end > end).count();
        self.torn += u32::from(cut > 0 && recovered.cut_bytes > 0);
        self.log.retain(|entered| entered.end <= end);
        self.check(&store, &what);
        assert!(
            !ears
                .events
                .lock()
                .unwrap()
                .iter()
                .any(|event| matches!(event, Event::Damaged { .. } | Event::Repaired { .. })),
            "{what}: {:?}",
            ears.events.lock().unwrap()
        );
        self.durable = store.durable();
        Some(store)
    }

    fn check(&self, store: &Store, what: &str) {
        let (contents, next) = self.expected(store.log_min());
        let mut found = Contents::new();
        for queue in store.queues() {
            let key = (queue.topic().to_string(), queue.id());
            let (min, max) = store.bounds(&queue);
            let messages = drain(store, &queue);
            let offsets: Vec<i64> = messages.iter().map(|(offset, _)| *offset).collect();
            assert_eq!(offsets, (min.0..max.0).collect::<Vec<_>>(), "{what}: {key:?} is not dense");
            assert_eq!(max.0, next.get(&key).copied().unwrap_or(0), "{what}: {key:?} goes on elsewhere");
            if !messages.is_empty() {
                found.insert(key, messages);
            }
        }
        assert!(found == contents, "{what}: {}", difference(&found, &contents));
        for level in 0..3 {
            let delivered = self.log.iter().filter_map(|entered| match &entered.what {
                What::Delivered { level: of, offset } if *of == level => Some(offset + 1),
                _ => None,
            });
            assert_eq!(store.delay_position(level).0, delivered.max().unwrap_or(0), "{what}: level {level}");
        }
        for offset in 0..40 {
            let resolved = self.log.iter().any(|entered| entered.what == What::Resolved(offset));
            assert_eq!(store.half_resolved(QueueOffset(offset)), resolved, "{what}: half {offset}");
        }
    }

    fn run(&mut self, lives: u32) {
        let mut kept = 0;
        for life in 0..lives {
            // The disk may stop already while the store is being opened.
            let early = self.coin.one_in(6);
            if early {
                self.disk.fail_at(self.coin.below(12), Fault::Stop);
            }
            let opened = self.open(kept, life);
            if let Some(store) = &opened {
                match self.coin.below(8) {
                    0..=3 => self.disk.fail_at(self.coin.below(120), Fault::Stop),
                    4 => self.disk.fail_at(self.coin.below(120), Fault::Short),
                    5 => self.disk.fail_at(self.coin.below(120), Fault::Error),
                    _ => {}
                }
                self.live(store);
                if self.coin.one_in(4) {
                    store.close();
                }
                kept = self.durable.max(store.durable());
            }
            // A start that was cut short tells nothing new; what it left of the log is known after the next one.
            let known = opened.is_some();
            drop(opened);
            if self.coin.one_in(3) {
                if known {
                    kept = kept.max(self.log.last().map_or(0, |last| last.end));
                }
                self.disk = self.disk.after_kill();
            } else {
                // What only a kill has left may go with the power.
                kept = self.durable;
                self.disk = self.disk.after_power_cut(self.coin.below(1 << 40));
            }
        }
        let store = self.open(kept, lives).unwrap();
        let end = store.log_end();
        drop(store);
        // What was cut is gone for good: nothing of it is met a second time, and no cache is needed.
        self.disk = self.disk.after_kill();
        let (_, recovered) =
            Store::open(Arc::new(self.disk.clone()), self.options.clone(), 0, Arc::new(Unwatched)).unwrap();
        assert_eq!((recovered.cut_bytes, recovered.log_end), (0, end), "seed {}: cut twice", self.seed);
    }
}

fn difference(found: &Contents, wanted: &Contents) -> String {
    let mut out = String::new();
    for (key, messages) in wanted {
        let there = found.get(key).cloned().unwrap_or_default();
        for message in messages.iter().filter(|message| !there.contains(message)) {
            out += &format!("{key:?} misses {} ({}); ", message.0, text(&message.1));
        }
    }
    for (key, messages) in found {
        let known = wanted.get(key).cloned().unwrap_or_default();
        for message in messages.iter().filter(|message| !known.contains(message)) {
            out += &format!("{key:?} has {} ({}); ", message.0, text(&message.1));
        }
    }
    out
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).trim_end_matches('x').to_owned()
}

/// How many seeds a run of the tests takes, and where they begin: `STORE_SEEDS`, `STORE_FROM`.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let from = number("STORE_FROM").unwrap_or(0);
    from..from + number("STORE_SEEDS").unwrap_or(usual)
}

#[test]
fn s_1_to_s_14_many_lives_hold_exactly_what_was_appended_and_kept() {
    let (mut torn, mut failed) = (0, Vec::new());
    for seed in seeds(100) {
        let run = std::panic::catch_unwind(|| {
            let mut lives = Lives::new(seed);
            lives.run(8);
            lives.torn
        });
        match run {
            Ok(cut) => torn += cut,
            Err(_) => failed.push(seed),
        }
    }
    assert!(failed.is_empty(), "{} seeds failed: {failed:?}", failed.len());
    assert!(torn > 0, "no log was cut");
}

/// After an orderly end, a life appends six records and loses its power before any sync; the next one appends records
/// of the same sizes over what is left. Where the first blocks were lost and later ones kept, records of the lost
/// life stand right behind the new ones, at the place that they name, in the same epoch: only the chain tells them.
#[test]
fn s_7_records_of_a_lost_life_do_not_follow_the_records_that_took_their_place() {
    let options = Options::durable().segments(4 * SEGMENT, 4 * SEGMENT);
    let open =
        |disk: &FaultyDisk| Store::open(Arc::new(disk.clone()), options.clone(), 0, Arc::new(Unwatched)).unwrap();
    let fill = |store: &Store, life: &str, count: usize, now_ms: i64| {
        let queue = store.queue("t", 0);
        for number in 0..count {
            let body = format!("{life} {number} {}", "x".repeat(3000 + 40 * number)).into_bytes();
            store.append(&queue, &message(&body, b""), now_ms).unwrap();
        }
    };
    let mut stale = 0;
    for seed in 0..60 {
        let disk = FaultyDisk::new();
        let (store, _) = open(&disk);
        fill(&store, "first", 2, 1);
        store.flush_step().unwrap();
        assert!(store.close());
        drop(store);
        let (store, recovered) = open(&disk);
        assert!(recovered.clean);
        fill(&store, "lost", 6, 2);
        drop(store);
        let disk = disk.after_power_cut(seed);
        let (store, recovered) = open(&disk);
        let before = drain(&store, &store.queue("t", 0)).len();
        // Some or all of the lost life's places are taken again.
        fill(&store, "third", 1 + (seed as usize % 3), 3);
        let wanted = drain(&store, &store.queue("t", 0));
        let end = store.log_end();
        let bytes = disk.read("log/00000000000000000000").unwrap();
        let behind = bytes.get(usize::try_from(end).unwrap()..).and_then(format::Envelope::read);
        stale += u32::from(recovered.clean && before == 2 && behind.is_some_and(|found| found.offset == end));
        drop(store);
        let (store, recovered) = open(&disk.after_kill());
        assert_eq!((drain(&store, &store.queue("t", 0)), recovered.log_end), (wanted, end), "seed {seed}");
    }
    assert!(stale > 3, "only {stale} cuts left a record where the next one goes");
}
