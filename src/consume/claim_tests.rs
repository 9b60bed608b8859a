//! Claims run by real workers: panics, blocked handlers, tokens that are taken back, messages that leave their batch.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Condvar, Mutex, mpsc};
use std::time::Instant;

use super::*;
use crate::consume::chunk::Epoch;
use crate::consume::listener::Mark;
use crate::consume::queue::{Settings, TAKE_BACK};
use crate::work::clock::TestClock;

struct Offsets(Vec<i64>);

impl Batch for Offsets {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn offset(&self, at: usize) -> QueueOffset {
        QueueOffset(self.0[at])
    }
    fn bytes(&self, _at: usize) -> u64 {
        1
    }
}

fn batch(offsets: std::ops::Range<i64>) -> Arc<Offsets> {
    Arc::new(Offsets(offsets.collect()))
}

type Code = dyn Fn(Hand<'_, Offsets>, &mut dyn Any) -> Outcome + Send + Sync;

/// A listener made of a closure that gets a counter of its worker's calls.
struct Made {
    code: Box<Code>,
    locals: Arc<AtomicUsize>,
    panics: AtomicUsize,
}

/// State of one worker, counted while it lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Listen<Offsets> for Made {
    fn local(&self, _worker: usize) -> Box<dyn Any> {
        self.locals.fetch_add(1, Ordering::SeqCst);
        Box::new(Counted(self.locals.clone()))
    }

    fn handle(&self, hand: Hand<'_, Offsets>, local: &mut dyn Any) -> Outcome {
        (self.code)(hand, local)
    }

    fn panicked(&self, _hand: Hand<'_, Offsets>, message: &str) {
        assert!(message.contains("on purpose"));
        self.panics.fetch_add(1, Ordering::SeqCst);
    }
}

/// The loop's part: remembers that the bell rang and waits for it.
#[derive(Default)]
struct Rung(Mutex<bool>, Condvar);

impl Bell for Arc<Rung> {
    fn ring(&self) -> bool {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
        true
    }
}

impl Rung {
    fn wait(&self) {
        let mut rung = self.0.lock().unwrap();
        while !std::mem::take(&mut *rung) {
            rung = self.1.wait(rung).unwrap();
        }
    }
}

struct Setup {
    pool: Arc<Pool>,
    consumer: Arc<Consumer<Offsets>>,
    claim: Arc<Claim<Offsets>>,
    bell: Arc<Rung>,
    locals: Arc<AtomicUsize>,
}

fn setup(
    pool: Arc<Pool>,
    clock: Clock,
    settings: Settings,
    code: impl Fn(Hand<'_, Offsets>, &mut dyn Any) -> Outcome + Send + Sync + 'static,
) -> Setup {
    let locals = Arc::new(AtomicUsize::new(0));
    let made = Made { code: Box::new(code), locals: locals.clone(), panics: AtomicUsize::new(0) };
    let consumer = Consumer::new(Box::new(made), pool.clone(), clock);
    let bell = Arc::new(Rung::default());
    let queue = ProcessQueue::new(Epoch(1), QueueOffset(0), settings);
    let claim = Claim::new(queue, consumer.clone(), Box::new(bell.clone()));
    Setup { pool, consumer, claim, bell, locals }
}

fn offsets(hand: Hand<'_, Offsets>) -> Vec<i64> {
    hand.places().filter_map(|place| hand.chunk.at(place)).map(|(part, at)| part.batch.0[at]).collect()
}

const NOW: Nanos = Nanos(1);

/// A panic that no hook prints.
fn panic_quietly() -> ! {
    std::panic::resume_unwind(Box::new("on purpose"))
}

#[test]
fn c083_b122_a_panic_is_a_failed_message_and_the_pool_keeps_its_size() {
    let done = Arc::new(Mutex::new(BTreeMap::new()));
    let seen = done.clone();
    let calls = AtomicUsize::new(0);
    let settings = Settings { batch: 3, ..Settings::default() };
    let Setup { pool, claim, bell, .. } = setup(Pool::start(4).unwrap(), Clock::system(), settings, move |hand, _| {
        if calls.fetch_add(1, Ordering::SeqCst) % 3 == 2 {
            panic_quietly();
        }
        for offset in offsets(hand) {
            *seen.lock().unwrap().entry(offset).or_insert(0) += 1;
        }
        Outcome::Done
    });
    for from in (0..1000).step_by(20) {
        claim.put(&batch(from..from + 20), QueueOffset(from + 20), NOW);
    }
    // The loop of a client whose broker takes nothing back: every failed message is delivered here again.
    while claim.queue().progress() < QueueOffset(1000) {
        bell.wait();
        for failed in claim.queue().news(NOW).failed {
            assert_eq!(failed.outcome, Outcome::Retry);
            claim.again(failed, NOW);
        }
        claim.queue().commit_point();
    }
    let done = done.lock().unwrap();
    assert_eq!((done.len(), done.values().sum::<i32>()), (1000, 1000), "each succeeds once in the end");
    assert_eq!(pool.stop(Instant::now() + Duration::from_secs(30)), 0, "all four workers were alive");
}

#[test]
fn state_of_a_worker_is_made_anew_after_a_panic_and_dropped_on_its_thread_when_the_consumer_ends() {
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let Setup { pool, consumer, claim, bell, locals, .. } =
        setup(Pool::start(1).unwrap(), Clock::system(), Settings::default(), move |hand, local| {
            assert!(local.downcast_ref::<Counted>().is_some());
            tell.lock().unwrap().send(offsets(hand)).unwrap();
            if offsets(hand) == [1] {
                panic_quietly();
            }
            Outcome::Done
        });
    claim.put(&batch(0..3), QueueOffset(3), NOW);
    assert_eq!((0..3).flat_map(|_| told.recv().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    while claim.queue().news(NOW).failed.is_empty() {
        bell.wait();
    }
    assert_eq!(locals.load(Ordering::SeqCst), 1, "one state: the panicked one is gone");
    consumer.close();
    assert_eq!(pool.stop(Instant::now() + Duration::from_secs(30)), 0);
    assert_eq!(locals.load(Ordering::SeqCst), 0);
}

#[test]
fn c037_a_blocked_handler_holds_one_message_and_no_lock() {
    let test = TestClock::new();
    let (go, gate) = crossbeam_channel::bounded::<()>(0);
    let (tell, told) = crossbeam_channel::unbounded();
    let Setup { pool, claim, consumer, .. } =
        setup(Pool::start(2).unwrap(), test.clock(), Settings::default(), move |hand, _| {
            tell.send(offsets(hand)).unwrap();
            if offsets(hand) == [10] {
                let _ = gate.recv();
            }
            Outcome::Done
        });
    // The consumer learns that its handlers are fast, so that it would not share its token by itself.
    claim.put(&batch(0..10), QueueOffset(10), test.clock().now());
    for want in 0..10 {
        assert_eq!(told.recv().unwrap(), [want]);
    }
    while consumer.average().is_zero() || claim.queue().held_messages() > 0 {
        std::thread::yield_now();
    }
    claim.put(&batch(10..13), QueueOffset(13), test.clock().now());
    assert_eq!(told.recv().unwrap(), [10]);
    assert!(!claim.overdue(test.clock().now()));
    test.advance(TAKE_BACK);
    assert!(claim.overdue(test.clock().now()) && !claim.overdue(test.clock().now()));
    assert_eq!([told.recv().unwrap(), told.recv().unwrap()], [[11], [12]], "the other worker goes on");
    assert_eq!(claim.queue().stop(false), 0, "a stop waits for nothing");
    go.send(()).unwrap();
    while !claim.queue().ended() {
        std::thread::yield_now();
    }
    assert_eq!(claim.queue().close().0, QueueOffset(13));
    assert_eq!(pool.stop(Instant::now() + Duration::from_secs(30)), 0);
}

#[test]
fn b123_b134_the_time_a_handler_takes_changes_its_pace_and_nothing_else() {
    let test = TestClock::new();
    let clock = test.clone();
    let Setup { pool, claim, consumer, .. } =
        setup(Pool::unmanned(), test.clock(), Settings::default(), move |_, _| {
            clock.advance(Duration::from_secs(1000));
            Outcome::Done
        });
    let mut worker = Worker::new(0);
    claim.put(&batch(0..3), QueueOffset(3), NOW);
    while let Some(token) = pool.try_next() {
        token.run(&mut worker);
    }
    assert_eq!((claim.queue().progress(), consumer.average()), (QueueOffset(3), MOST_MEASURED));
}

#[test]
fn a_detached_message_may_outlive_its_handler_and_dropping_it_retries_it() {
    let (give, kept) = mpsc::channel();
    let give = Mutex::new(give);
    let settings = Settings { batch: 4, ..Settings::default() };
    let Setup { pool, claim, .. } = setup(Pool::unmanned(), Clock::system(), settings, move |hand, _| {
        hand.marks.set(3, Mark::Outcome(Outcome::Done));
        for place in 0..3 {
            give.lock().unwrap().send(hand.detach(place).unwrap()).unwrap();
            assert!(hand.detach(place).is_none());
        }
        Outcome::DeadLetter
    });
    claim.put(&batch(0..4), QueueOffset(4), NOW);
    pool.try_next().unwrap().run(&mut Worker::new(0));
    assert_eq!((claim.queue().held_messages(), claim.queue().news(NOW).failed.len()), (3, 0));
    let mut kept: Vec<_> = kept.try_iter().collect();
    kept.remove(1).finish(Outcome::DeadLetter, Some("why".into()));
    kept.remove(0).finish(Outcome::Done, None);
    drop(kept);
    let failed = claim.queue().news(NOW).failed;
    let facts: Vec<_> = failed.iter().map(|f| (f.offset.0, f.outcome, f.reason.as_deref())).collect();
    assert_eq!(facts, [(1, Outcome::DeadLetter, Some("why")), (2, Outcome::Retry, None)]);
    assert_eq!(claim.queue().progress(), QueueOffset(1));
}

#[test]
fn b135_claims_that_always_have_more_take_turns() {
    // One worker, two claims, handlers that take a slice each: the second claim does not wait for the first to be empty.
    let test = TestClock::new();
    let pool = Pool::unmanned();
    let order = Arc::new(Mutex::new(Vec::new()));
    let make = |name: i64| {
        let (clock, order) = (test.clone(), order.clone());
        setup(pool.clone(), test.clock(), Settings::default(), move |_, _| {
            clock.advance(SLICE);
            order.lock().unwrap().push(name);
            Outcome::Done
        })
    };
    let (first, second) = (make(1), make(2));
    first.claim.put(&batch(0..4), QueueOffset(4), NOW);
    second.claim.put(&batch(0..4), QueueOffset(4), NOW);
    let mut worker = Worker::new(0);
    while let Some(token) = pool.try_next() {
        token.run(&mut worker);
    }
    let order = order.lock().unwrap();
    assert_eq!(order.len(), 8);
    assert!(order[..4].contains(&1) && order[..4].contains(&2), "{order:?}");
}

#[test]
fn a_bell_that_cannot_be_rung_is_rung_again() {
    struct Deaf(AtomicUsize);
    impl Bell for Arc<Deaf> {
        fn ring(&self) -> bool {
            self.0.fetch_add(1, Ordering::SeqCst) > 0
        }
    }
    let Setup { pool, consumer, .. } =
        setup(Pool::unmanned(), Clock::system(), Settings::default(), |_, _| Outcome::Done);
    let deaf = Arc::new(Deaf(AtomicUsize::new(0)));
    let queue = ProcessQueue::new(Epoch(2), QueueOffset(0), Settings::default());
    let claim = Claim::new(queue, consumer, Box::new(deaf.clone()));
    claim.put(&batch(0..2), QueueOffset(2), NOW);
    while let Some(token) = pool.try_next() {
        token.run(&mut Worker::new(0));
    }
    assert_eq!((deaf.0.load(Ordering::SeqCst), claim.queue().news(NOW).moved), (2, true));
}

/// Real workers, several claims, a loop that puts, hands on, delivers again and takes tokens back, handlers that are
/// quick, slow, failing: every message is finished, none twice without having failed, and no claim stops.
#[test]
fn c043_no_claim_stops_whatever_workers_and_loop_do_at_the_same_time() {
    const MESSAGES: i64 = 3000;
    for seed in 1..=6_u64 {
        let mut state = seed;
        let mut below = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let pool = Pool::start(3).unwrap();
        let setups: Vec<_> = (0..5)
            .map(|_| {
                let settings = Settings { batch: 1 + below(20) as u32, ..Settings::default() };
                let done = Arc::new(Mutex::new(BTreeMap::<i64, u32>::new()));
                let count = done.clone();
                let setup = setup(pool.clone(), Clock::system(), settings, move |hand, _| {
                    let offsets = offsets(hand);
                    match offsets[0] % 97 {
                        0 => std::thread::yield_now(),
                        1 => std::thread::sleep(TAKE_BACK + Duration::from_millis(1)),
                        2 if hand.chunk.first().attempt == 0 => return Outcome::Retry,
                        _ => {}
                    }
                    let mut done = count.lock().unwrap();
                    offsets.into_iter().for_each(|offset| *done.entry(offset).or_default() += 1);
                    Outcome::Done
                });
                (setup, done)
            })
            .collect();
        let (mut next, clock) = (vec![0; setups.len()], Clock::system());
        let mut full = vec![false; setups.len()];
        let deadline = Instant::now() + Duration::from_secs(60);
        let finished = |setup: &Setup| setup.claim.queue().progress() == QueueOffset(MESSAGES);
        while !setups.iter().all(|(setup, _)| finished(setup)) {
            assert!(Instant::now() < deadline, "a claim stopped, seed {seed}");
            let at = below(setups.len() as u64) as usize;
            let (setup, now) = (&setups[at].0, clock.now());
            if next[at] < MESSAGES && !full[at] {
                let to = (next[at] + 1 + below(40) as i64).min(MESSAGES);
                full[at] = setup.claim.put(&batch(next[at]..to), QueueOffset(to), now).full.is_some();
                next[at] = to;
            }
            if std::mem::take(&mut *setup.bell.0.lock().unwrap()) {
                let news = setup.claim.queue().news(now);
                full[at] &= !news.rearm;
                for failed in news.failed {
                    if below(2) == 0 {
                        setup.claim.again(failed, now)
                    } else {
                        assert!(setup.claim.queue().handed_on(&failed))
                    }
                }
                setup.claim.queue().commit_point();
            }
            setup.claim.overdue(now);
        }
        assert_eq!(pool.stop(Instant::now() + Duration::from_secs(30)), 0);
        for (setup, done) in &setups {
            assert_eq!((setup.claim.queue().held_messages(), setup.claim.queue().held_bytes()), (0, 0), "seed {seed}");
            assert_eq!(setup.consumer.pace.blocked.load(Ordering::SeqCst), 0, "seed {seed}");
            let (done, tally) = (done.lock().unwrap(), setup.claim.queue().tally());
            assert!(done.values().all(|times| *times == 1), "seed {seed}");
            assert_eq!(done.len() as u64 + tally.sent_back, MESSAGES as u64, "seed {seed}");
        }
    }
}
