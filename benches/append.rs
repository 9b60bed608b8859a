//! Appending to the store, as a ratio to a floor program of the same format: the same sums and copies into memory that
//! is there, without lock, index, offsets or file. `cargo bench --bench append [-- --gate]`.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "ratio/mod.rs"]
mod ratio;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ratio::{Counting, Gate, allocations};
use windlass::internals::disk::{Disk, Files};
use windlass::internals::store::{Event, Flush, IndexBy, NewMessage, Options, Store, StoreQueue, Unwatched, Watch};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PROPERTIES: &[u8] =
    b"UNIQ_KEY\x017F0000010D2418B4AAC2265E3D4A0001\x02WAIT\x01true\x02TAGS\x01paid\x02KEYS\x01order-4711\x02";
const KEYS: [&[u8]; 2] = [b"7F0000010D2418B4AAC2265E3D4A0001", b"order-4711"];
const TOPIC: &str = "bench-topic";

fn host() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 10911))
}

fn wall_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

fn message(body: &[u8]) -> NewMessage<'_> {
    NewMessage {
        body,
        properties: [PROPERTIES, b""],
        index: IndexBy::Known { tag: 7, keys: &KEYS },
        flag: 0,
        sys_flag: 0,
        born_ms: 1,
        born_host: host(),
        store_host: host(),
        reconsume_times: 0,
        prepared_offset: 0,
    }
}

/// A store on the file system of the temporary directory whose steps are run by hand, between what is timed: a burst
/// of appends then meets pages that are there, as it does behind `wl-segment`, and no disk's speed.
struct Stepped {
    store: Store,
    queue: Arc<StoreQueue>,
}

/// Bytes of log that a burst may fill.
const BURST: usize = 8 << 20;

impl Stepped {
    fn new(flush: Flush) -> Self {
        let disk: Arc<dyn Disk> = Arc::new(Files::temporary().expect("a temporary directory"));
        let options =
            Options::durable().flush(flush).segments(64 << 20, 64 << 20).retain_segments(3).populate_bytes(16 << 20);
        let (store, _) = Store::open(disk, options, wall_ms(), Arc::new(Unwatched)).expect("a new store");
        let stepped = Self { queue: store.queue(TOPIC, 0), store };
        stepped.prepare();
        stepped
    }

    fn prepare(&self) {
        self.store.flush_step().expect("a sync");
        self.store.segment_step(wall_ms());
    }

    fn append(&self, body: &[u8], times: usize) {
        for _ in 0..times {
            self.store.append(&self.queue, &message(body), wall_ms()).expect("an append");
        }
    }
}

/// The floor: sums, head and copies of the format into 64 MiB that are mapped and touched, round and round.
struct Floor {
    memory: Vec<u8>,
    at: usize,
    offset: i64,
    prev: u32,
}

impl Floor {
    fn new() -> Self {
        Self { memory: vec![1; 64 << 20], at: 0, offset: 0, prev: 0 }
    }

    fn append(&mut self, body: &[u8]) {
        let body_crc = crc32fast::hash(body);
        let behind = 1 + TOPIC.len() + 2 + PROPERTIES.len();
        let payload = 88 + body.len() + behind;
        let len = (32 + payload).next_multiple_of(8);
        if self.at + len > self.memory.len() {
            self.at = 0;
        }
        let mut head = [0u8; 120];
        head[0..4].copy_from_slice(b"WLR1");
        head[4..8].copy_from_slice(&(payload as u32).to_be_bytes());
        head[16..24].copy_from_slice(&(self.at as u64).to_be_bytes());
        head[24..28].copy_from_slice(&self.prev.to_be_bytes());
        head[32..36].copy_from_slice(&(payload as u32).to_be_bytes());
        head[40..44].copy_from_slice(&body_crc.to_be_bytes());
        head[52..60].copy_from_slice(&self.offset.to_be_bytes());
        head[88..96].copy_from_slice(&wall_ms().to_be_bytes());
        let record = &mut self.memory[self.at..self.at + len];
        record[120..120 + body.len()].copy_from_slice(body);
        let tail = &mut record[120 + body.len()..];
        tail[0] = TOPIC.len() as u8;
        tail[1..1 + TOPIC.len()].copy_from_slice(TOPIC.as_bytes());
        tail[1 + TOPIC.len()..3 + TOPIC.len()].copy_from_slice(&(PROPERTIES.len() as u16).to_be_bytes());
        tail[3 + TOPIC.len()..behind].copy_from_slice(PROPERTIES);
        let sum = crc32c::crc32c_append(crc32c::crc32c(&head[12..]), &tail[..behind]);
        head[8..12].copy_from_slice(&sum.to_be_bytes());
        record[..120].copy_from_slice(&head);
        self.prev = sum;
        self.at += len;
        self.offset += 1;
    }
}

/// What comes before each burst, untimed, and the burst.
type Burst<'a> = (&'a dyn Fn(), &'a mut dyn FnMut(usize));

/// Medians over the rounds of nanoseconds per message, and of the ratios of each but the first to the first.
fn bursts(times: usize, programs: &mut [Burst<'_>]) -> (Vec<f64>, Vec<f64>) {
    let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); programs.len()];
    for round in 0..15 {
        for step in 0..programs.len() {
            let at = if round % 2 == 0 { step } else { programs.len() - 1 - step };
            let (prepare, run) = &mut programs[at];
            prepare();
            let began = Instant::now();
            run(times);
            rounds[at].push(began.elapsed().as_nanos() as f64 / times as f64);
        }
    }
    let ratios = rounds
        .iter()
        .skip(1)
        .map(|own| ratio::median(own.iter().zip(&rounds[0]).map(|(own, floor)| own / floor).collect()));
    let ratios = ratios.collect();
    (rounds.into_iter().map(ratio::median).collect(), ratios)
}

fn against_the_floor(gate: &mut Gate) {
    // The floor of a small message is little more than its head: there the offsets and the index show.
    // The aim for 1 KiB is 2.0; the limits leave room for a neighbour on the machine.
    for (size, limit) in [(128, 4.5), (1024, 2.6), (10_240, 1.8)] {
        let body = vec![b'x'; size];
        let times = BURST / (size + 300);
        let mut floor = Floor::new();
        let (asynchronous, unsynced) = (Stepped::new(Flush::Async), Stepped::new(Flush::None));
        let (nanos, ratios) = bursts(
            times,
            &mut [
                (&|| (), &mut |times| (0..times).for_each(|_| floor.append(&body))),
                (&|| asynchronous.prepare(), &mut |times| asynchronous.append(&body, times)),
                (&|| unsynced.prepare(), &mut |times| unsynced.append(&body, times)),
            ],
        );
        let note = format!("floor {:.0}, async {:.0}, none {:.0} ns", nanos[0], nanos[1], nanos[2]);
        gate.at_most(&format!("append {size} B, Flush::Async, to the floor"), ratios[0], limit, &note);
        gate.at_most(&format!("append {size} B, Flush::None, to the floor"), ratios[1], limit, "");

        unsynced.prepare();
        let counted = allocations(|| unsynced.append(&body, times));
        // The index in memory grows by doubling, and keys come in pieces of thousands.
        gate.at_most(&format!("allocations per append of {size} B"), counted as f64 / times as f64, 0.01, "");
    }
}

fn two_threads() {
    let body = vec![b'x'; 1024];
    let stepped = Stepped::new(Flush::None);
    let other = stepped.store.queue(TOPIC, 1);
    let times = BURST / 2 / 1300;
    let run = |queues: &[&Arc<StoreQueue>]| {
        stepped.prepare();
        let began = Instant::now();
        std::thread::scope(|scope| {
            for queue in queues {
                scope.spawn(|| {
                    for _ in 0..times {
                        stepped.store.append(queue, &message(&body), wall_ms()).expect("an append");
                    }
                });
            }
        });
        began.elapsed().as_nanos() as f64 / (times * queues.len()) as f64
    };
    let ratios = (0..11).map(|_| run(&[&stepped.queue, &other]) / run(&[&stepped.queue])).collect();
    println!("append 1 KiB by two threads: {:.2} of the time per message of one", ratio::median(ratios));
}

/// Counts flushes.
#[derive(Default)]
struct Flushes(AtomicU64);

impl Watch for Flushes {
    fn grew(&self, _queue: &Arc<StoreQueue>) {}
    fn durable(&self, _to: u64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn event(&self, _event: Event) {}
}

fn group_commit(gate: &mut Gate) {
    let flushes = Arc::new(Flushes::default());
    let disk: Arc<dyn Disk> = Arc::new(Files::temporary().expect("a temporary directory"));
    let (store, _) =
        Store::open(disk, Options::durable().flush(Flush::Sync), wall_ms(), flushes.clone()).expect("a new store");
    let threads = store.start_threads(Arc::new(wall_ms)).expect("two threads");
    let queue = store.queue(TOPIC, 0);
    let (senders, each) = (64, 60);
    let body = vec![b'x'; 1024];
    let began = Instant::now();
    let mut waits: Vec<Duration> = std::thread::scope(|scope| {
        let sender = || {
            scope.spawn(|| {
                let mut waits = Vec::new();
                for _ in 0..each {
                    let from = Instant::now();
                    let done = store.append(&queue, &message(&body), wall_ms()).expect("an append");
                    store.wait_durable(done.end, Duration::from_secs(30)).expect("a sync");
                    waits.push(from.elapsed());
                }
                waits
            })
        };
        let running: Vec<_> = (0..senders).map(|_| sender()).collect();
        running.into_iter().flat_map(|sender| sender.join().expect("a sender")).collect()
    });
    let syncs = flushes.0.load(Ordering::Relaxed);
    let mean_sync = began.elapsed().as_secs_f64() / syncs as f64;
    waits.sort();
    let p99 = waits[waits.len() * 99 / 100].as_secs_f64() / mean_sync;
    let note = format!("{:.2} ms each", mean_sync * 1000.0);
    gate.at_least("appends per sync, 64 senders", (senders * each) as f64 / syncs as f64, 24.0, &note);
    println!("p99 of a synchronous send: {p99:.1} syncs");
    threads.stop(Instant::now() + Duration::from_secs(30));
}

fn main() {
    let mut gate = Gate::from_args();
    against_the_floor(&mut gate);
    two_threads();
    group_commit(&mut gate);
    gate.finish();
}
