//! Row 11: a send of 1 KiB over the direct port, acknowledged, against a floor that only copies and sums the same
//! format; allocations per send. Row 12: from a send to the handler, in one process: the rate, what each thread spends on
//! a message and how often it sleeps, allocations of all threads.
//!
//! `--gate` makes a missed target exit 1; `--handler` measures row 12 only.

// A bench that cannot go on ends.
#![allow(clippy::unwrap_used)]

#[path = "ratio/mod.rs"]
mod ratio;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ratio::{Counting, Gate, allocations, allocations_everywhere, interleaved};
use windlass::broker::{Broker, Flush};
use windlass::{Outcome, StartFrom};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BODY: usize = 1024;
const TOPIC: &str = "orders";
/// What is gated. The row's aim is 2.0; the floor does no dispatch, no choice of a queue, no id and no flush, and has no
/// second thread that syncs and makes pages, so a neighbour on the machine shows in the ratio.
const LIMIT: f64 = 3.5;
/// Bytes of log that are kept while sends are measured.
const RETAINED: u64 = 256 << 20;
const HANDLED: u64 = 400_000;
/// The sender is never further ahead of the handler. If all of it are messages of one of the four queues they span four
/// times as much of the log, which has to be mapped still: what is cold is read at another pace, and what is older than
/// that is retired unconsumed.
const AHEAD: u64 = 16_000;
/// A handler that makes no progress for so long has missed messages.
const STALL: Duration = Duration::from_secs(60);
/// Between two looks at the handler's progress.
const STRIDE: u64 = 1_000;
/// Sleeps of loop and worker together, for a message: 0.01 to 0.09 measured, the more the faster the machine.
const SLEEPS: f64 = 0.2;
/// Of all threads, for a message: 0.30 to 0.52 measured.
const ALLOCATIONS: f64 = 1.0;
const LONE: usize = 3_000;

fn main() {
    let mut gate = Gate::from_args();
    let dir = std::env::temp_dir().join(format!("windlass-bench-{}", std::process::id()));
    if !std::env::args().any(|arg| arg == "--handler") {
        let broker = Broker::open(&dir).topic(TOPIC, 4).flush(Flush::Async).retain_bytes(RETAINED).start().unwrap();
        let client = broker.client().unwrap();
        let producer = client.producer("bench").start().unwrap();
        let writer = producer.topic(TOPIC).unwrap();
        let body = vec![b'x'; BODY];
        // Until segments come round again, as in a broker that has run for a while.
        for _ in 0..2 * RETAINED / BODY as u64 {
            writer.send(&body).unwrap();
        }
        let made = allocations(|| (0..100_000).for_each(|_| drop(writer.send(&body).unwrap())));
        // The index in memory grows by doubling and by pieces of 4 096 keys.
        gate.at_most("allocations per embedded send", made as f64 / 100_000.0, 0.002, "");

        let mut floor = Floor::new(&dir.join("floor"));
        let (mut of_floor, mut of_send) = (Cpu::default(), Cpu::default());
        let measured =
            interleaved(&mut [&mut |n| of_floor.of(n, || (0..n).for_each(|_| floor.append(&body))), &mut |n| {
                of_send.of(n, || (0..n).for_each(|_| drop(writer.send(&body).unwrap())))
            }]);
        let note = format!(
            "floor {:.0} ns, send {:.0} ns, spread {:.0} %",
            measured.nanos[0],
            measured.nanos[1],
            measured.spread[0] * 100.0
        );
        gate.at_most("embedded send of 1 KiB / floor of its format", measured.ratio[0], LIMIT, &note);
        let (floor, send) = (of_floor.each(), of_send.each());
        println!("CPU of the sender's thread / floor: {:.2} floor {floor:.0} ns, send {send:.0} ns", send / floor);
        client.shutdown(Duration::from_secs(5));
    }
    produce_to_handler(&dir.join("second"), &mut gate);
    let _ = std::fs::remove_dir_all(&dir);
    gate.finish();
}

/// Row 12: one thread sends, one handles. The rate is reported, what can be counted is gated.
fn produce_to_handler(dir: &std::path::Path, gate: &mut Gate) {
    let broker = Broker::open(dir).topic(TOPIC, 4).flush(Flush::Async).retain_bytes(RETAINED).start().unwrap();
    let client = broker.client_with(windlass::Client::builder().workers(1)).unwrap();
    let handled = Arc::new(AtomicU64::new(0));
    let count = handled.clone();
    let consumer = client
        .push_consumer("handlers")
        .subscribe(TOPIC, "*")
        .start_from(StartFrom::First)
        .handler(move |batch| {
            count.fetch_add(batch.len() as u64, Ordering::Relaxed);
            Outcome::Done
        })
        .start()
        .unwrap();
    let writer = client.producer("bench").start().unwrap().topic(TOPIC).unwrap();
    let body = vec![b'x'; BODY];
    let wait_for = |least: u64| {
        let begun = Instant::now();
        while handled.load(Ordering::Relaxed) < least {
            assert!(begun.elapsed() < STALL, "messages are missing");
            std::thread::yield_now();
        }
    };
    let through = |messages: u64| {
        let before = handled.load(Ordering::Relaxed);
        for sent in 0..messages {
            if sent % STRIDE == 0 {
                wait_for((before + sent).saturating_sub(AHEAD));
            }
            writer.send(&body).unwrap();
        }
        wait_for(before + messages);
    };
    // Until segments come round again, as above.
    through(2 * RETAINED / BODY as u64);
    let (spent, made, begun) = (Spent::now(), allocations_everywhere(), Instant::now());
    through(HANDLED);
    let (took, made, spent) = (begun.elapsed(), allocations_everywhere() - made, Spent::now().since(&spent));
    println!(
        "embedded produce to handler: {:.0} msg/s (wanted 2 500 000), {:.0} ns of CPU a message",
        HANDLED as f64 / took.as_secs_f64(),
        spent.0.values().map(|[cpu, _]| *cpu).sum::<u64>() as f64 / HANDLED as f64
    );
    for (thread, [cpu, sleeps]) in spent.0.iter().filter(|(_, [cpu, _])| *cpu >= HANDLED) {
        println!("  {thread:<12}{:>6} ns, {:.4} sleeps", cpu / HANDLED, *sleeps as f64 / HANDLED as f64);
    }
    gate.at_most("allocations from send to handler", made as f64 / HANDLED as f64, ALLOCATIONS, "a message");
    let sleeps: u64 = ["wl-io", "wl-work-0"].iter().filter_map(|name| spent.0.get(*name)).map(|spent| spent[1]).sum();
    gate.at_most("sleeps of loop and worker", sleeps as f64 / HANDLED as f64, SLEEPS, "a message");
    one_at_a_time(&writer, &body, &handled);
    drop(consumer);
    client.shutdown(Duration::from_secs(5));
}

/// CPU of the calling thread for one unit of what it does, which neighbours on the machine disturb less than time. They
/// still do where they take the memory of the log's pages, which then come anew.
#[derive(Default)]
struct Cpu(u64, u64);

impl Cpu {
    fn of(&mut self, units: u64, work: impl FnOnce()) {
        let before = thread_nanos();
        work();
        self.0 += thread_nanos() - before;
        self.1 += units;
    }

    fn each(&self) -> f64 {
        self.0 as f64 / self.1.max(1) as f64
    }
}

#[allow(unsafe_code)]
fn thread_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, which lives here.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(code, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The first number of a `schedstat`: time on a processor.
fn nanos(schedstat: &str) -> u64 {
    schedstat.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// CPU nanoseconds of each thread and how often it went to sleep; nothing where there is no /proc.
struct Spent(BTreeMap<String, [u64; 2]>);

impl Spent {
    fn now() -> Self {
        let mut spent = BTreeMap::<String, [u64; 2]>::new();
        for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let status = read("status");
            let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let [cpu, all] = spent.entry(read("comm").trim().to_owned()).or_default();
            *cpu += nanos(&read("schedstat"));
            *all += sleeps.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        Self(spent)
    }

    fn since(mut self, before: &Self) -> Self {
        for (name, [cpu, sleeps]) in &mut self.0 {
            let [cpu_then, sleeps_then] = before.0.get(name).copied().unwrap_or_default();
            (*cpu, *sleeps) = (cpu.saturating_sub(cpu_then), sleeps.saturating_sub(sleeps_then));
        }
        self
    }
}

/// From the send of a message to the end of its handler, when nothing else is on its way.
fn one_at_a_time(writer: &windlass::TopicWriter, body: &[u8], handled: &AtomicU64) {
    let mut waits: Vec<u128> = Vec::new();
    for _ in 0..LONE {
        std::thread::sleep(Duration::from_micros(300));
        let (before, begun) = (handled.load(Ordering::Relaxed), Instant::now());
        writer.send(body).unwrap();
        while handled.load(Ordering::Relaxed) == before {
            std::thread::yield_now();
        }
        waits.push(begun.elapsed().as_micros());
    }
    waits.sort_unstable();
    let [p50, p99] = [50, 99].map(|percent| waits[waits.len() * percent / 100]);
    println!("one message at a time to its handler: p50 {p50} us, p99 {p99} us");
}

/// Writes the store's format into one mapped file, over and over: an envelope of 32 bytes, a record as RocketMQ stores
/// it, an index entry of 32 bytes; three sums. No lock, no queue, no flush, pages that are there.
struct Floor {
    map: memmap2::MmapMut,
    at: usize,
    number: u64,
    check: u32,
    index: Vec<[u8; 32]>,
}

const SEGMENT: usize = 64 << 20;
const ENVELOPE: usize = 32;
const FIXED: usize = 91;

impl Floor {
    fn new(path: &std::path::Path) -> Self {
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path).unwrap();
        file.set_len(SEGMENT as u64).unwrap();
        #[allow(unsafe_code)]
        // SAFETY: the file was made here and nobody else opens it.
        let mut map = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
        map.fill(1);
        Self { map, at: 0, number: 0, check: 0, index: Vec::with_capacity(1 << 16) }
    }

    fn append(&mut self, body: &[u8]) {
        let properties: &[u8] = b"UNIQ_KEY\x017F0000010001ABCDEF0100000000AAAA\x02WAIT\x01true\x02";
        let payload = FIXED + body.len() + TOPIC.len() + properties.len();
        let total = (ENVELOPE + payload).next_multiple_of(8);
        if self.at + total > SEGMENT {
            self.at = 0;
        }
        let sum = crc32fast::hash(body);
        let slot = &mut self.map[self.at..self.at + total];
        let (envelope, record) = slot.split_at_mut(ENVELOPE);
        let (head, rest) = record.split_at_mut(84 + 4);
        put(head, 0, &(payload as u32).to_be_bytes());
        put(head, 4, &0xDAA3_20A7_u32.to_be_bytes());
        put(head, 8, &(sum & 0x7FFF_FFFF).to_be_bytes());
        put(head, 12, &0_u32.to_be_bytes());
        put(head, 16, &0_u32.to_be_bytes());
        put(head, 20, &self.number.to_be_bytes());
        put(head, 28, &(self.at as u64).to_be_bytes());
        put(head, 36, &0_u32.to_be_bytes());
        put(head, 40, &self.number.to_be_bytes());
        put(head, 48, &0x7F00_0001_0000_0000_u64.to_be_bytes());
        put(head, 56, &self.number.to_be_bytes());
        put(head, 64, &0x7F00_0001_0000_2A9F_u64.to_be_bytes());
        put(head, 72, &0_u32.to_be_bytes());
        put(head, 76, &0_u64.to_be_bytes());
        put(head, 84, &(body.len() as u32).to_be_bytes());
        let (stored, tail) = rest.split_at_mut(body.len());
        stored.copy_from_slice(body);
        tail[0] = TOPIC.len() as u8;
        put(tail, 1, TOPIC.as_bytes());
        put(tail, 1 + TOPIC.len(), &(properties.len() as u16).to_be_bytes());
        put(tail, 3 + TOPIC.len(), properties);
        put(envelope, 0, &0x574C_5231_u32.to_le_bytes());
        put(envelope, 4, &(payload as u32).to_le_bytes());
        put(envelope, 12, &1_u32.to_le_bytes());
        put(envelope, 16, &(self.at as u64).to_le_bytes());
        put(envelope, 24, &u64::from(self.check).to_le_bytes());
        let check = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&envelope[12..]), head), tail);
        put(envelope, 8, &check.to_le_bytes());
        self.check = check;
        let mut entry = [0; 32];
        put(&mut entry, 0, &(self.at as u64).to_le_bytes());
        put(&mut entry, 8, &(payload as u32).to_le_bytes());
        put(&mut entry, 16, &self.number.to_le_bytes());
        let own = crc32c::crc32c(&entry[..28]);
        put(&mut entry, 28, &own.to_le_bytes());
        if self.index.len() == self.index.capacity() {
            self.index.clear();
        }
        self.index.push(entry);
        self.at += total;
        self.number += 1;
    }
}

fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    into[at..at + bytes.len()].copy_from_slice(bytes);
}
