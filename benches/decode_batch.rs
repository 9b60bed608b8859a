//! Indexing a pulled frame against programs that walk the same records by hand, trusting every length.
//! Targets: with the body's sum at most 1.4x / 1.2x / 1.1x at 100 B / 1 KiB / 10 KiB; no allocation once the index has
//! its capacity. `cargo bench --bench decode_batch -- --gate`.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::hint::black_box;
use std::net::SocketAddr;

use windlass::internals::wire::compress::{Kind, deflate, inflate};
use windlass::internals::wire::remoting::record::{Check, NewRecord, Record, index, patch};

#[path = "ratio/mod.rs"]
mod ratio;

#[global_allocator]
static ALLOCATOR: ratio::Counting = ratio::Counting;

fn main() {
    let mut gate = ratio::Gate::from_args();
    for (size, limit) in [(0, 1.6), (100, 1.4), (1024, 1.2), (10 * 1024, 1.1)] {
        let bytes = batch(32, size, "127.0.0.1:10911", "orders");
        against_floor(&mut gate, &format!("32 of {size} B with sum"), &bytes, Check::Crc, limit);
        // The sum aside, a message is 6 ns: the checks of hostile lengths show.
        against_floor(&mut gate, &format!("32 of {size} B"), &bytes, Check::Lengths, 1.6);
    }
    for (name, bytes) in [
        ("32 of 1 KiB from IPv6", batch(32, 1024, "[::1]:10911", "orders")),
        ("32 of 1 KiB of a long topic", batch(32, 1024, "127.0.0.1:10911", &"t".repeat(130))),
        ("256 of 1 KiB", batch(256, 1024, "127.0.0.1:10911", "orders")),
    ] {
        report(name, &bytes);
    }
    compressed();
    gate.finish();
}

fn batch(count: usize, size: usize, host: &str, topic: &str) -> Vec<u8> {
    let host: SocketAddr = host.parse().expect("an address");
    let body: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
    let mut out = Vec::new();
    for at in 0..count as i64 {
        let from = out.len();
        NewRecord {
            topic: topic.as_bytes(),
            body: &body,
            properties: b"UNIQ_KEY\x010A0000051267251A8A1D0000002A0001\x02TAGS\x01paid\x02WAIT\x01true\x02",
            queue_id: 3,
            flag: 0,
            sys_flag: 0,
            born_ms: 1_700_000_000_000,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_offset: 0,
            body_crc: None,
        }
        .encode_into(&mut out)
        .expect("a record");
        patch(&mut out[from..], at, at * 200, 1_700_000_000_001);
    }
    out
}

fn i32_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(*bytes[at..].first_chunk().expect("a word"))
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(*bytes[at..].first_chunk().expect("a word"))
}

/// What a record is by hand: the same numbers, the same places, IPv4 and short topics taken for granted.
#[derive(Clone, Copy)]
#[allow(dead_code)]
struct Plain {
    offsets: [i64; 5],
    numbers: [i32; 8],
    topic_len: u16,
    properties_len: u16,
}

fn floor(bytes: &[u8], sum: bool, out: &mut Vec<Plain>) {
    let mut at = 0;
    while at < bytes.len() {
        let record = &bytes[at..];
        let len = i32_at(record, 0) as usize;
        let body_len = i32_at(record, 84) as usize;
        let topic_len = usize::from(record[88 + body_len]);
        let properties_at = 88 + body_len + 1 + topic_len;
        let properties_len = u16::from_be_bytes([record[properties_at], record[properties_at + 1]]);
        let crc = i32_at(record, 8);
        if sum && (crc32fast::hash(&record[88..88 + body_len]) & 0x7FFF_FFFF) as i32 != crc {
            return;
        }
        out.push(Plain {
            offsets: [
                i64_at(record, 20),
                i64_at(record, 28),
                i64_at(record, 40),
                i64_at(record, 56),
                i64_at(record, 76),
            ],
            numbers: [
                at as i32,
                len as i32,
                body_len as i32,
                crc,
                i32_at(record, 12),
                i32_at(record, 16),
                i32_at(record, 36),
                i32_at(record, 72),
            ],
            topic_len: topic_len as u16,
            properties_len,
        });
        at += len;
    }
}

fn against_floor(gate: &mut ratio::Gate, name: &str, bytes: &[u8], check: Check, limit: f64) {
    let (mut plain, mut records, mut damage): (Vec<Plain>, Vec<Record>, _) = (Vec::new(), Vec::new(), Vec::new());
    floor(bytes, true, &mut plain);
    index(bytes, check, &mut records, &mut damage);
    assert_eq!((plain.len(), records.len(), damage.len()), (32, 32, 0));
    let allocations = ratio::allocations(|| {
        records.clear();
        index(bytes, check, &mut records, &mut damage);
    });
    let measured = ratio::interleaved(&mut [
        &mut |n| {
            (0..n).for_each(|_| {
                plain.clear();
                floor(black_box(bytes), check == Check::Crc, &mut plain);
                black_box(&plain);
            })
        },
        &mut |n| {
            (0..n).for_each(|_| {
                records.clear();
                index(black_box(bytes), check, &mut records, &mut damage);
                black_box(&records);
            })
        },
    ]);
    let (ours, floor) = (measured.nanos[1] / 32.0, measured.nanos[0] / 32.0);
    let note = format!("{ours:.1} ns a message against {floor:.1} ns, spread {:.2}", measured.spread[0]);
    gate.at_most(&format!("{name}: ratio to the index floor"), measured.ratio[0], limit, &note);
    gate.at_most(&format!("{name}: allocations"), allocations as f64, 0.0, "");
}

fn report(name: &str, bytes: &[u8]) {
    let (mut records, mut damage) = (Vec::new(), Vec::new());
    index(bytes, Check::Crc, &mut records, &mut damage);
    let count = records.len() as f64;
    let mut run = |check| {
        let measured = ratio::interleaved(&mut [&mut |n| {
            (0..n).for_each(|_| {
                records.clear();
                index(black_box(bytes), check, &mut records, &mut damage);
                black_box(&records);
            })
        }]);
        measured.nanos[0] / count
    };
    let (lengths, sums) = (run(Check::Lengths), run(Check::Crc));
    println!("{name}: {lengths:.1} ns a message, {sums:.1} ns with its sum");
}

/// Reported: inflating a body of 4 KiB into a buffer that has its capacity.
fn compressed() {
    let body: Vec<u8> = (0..4096u32).map(|at| b'a' + (at * at / 97 % 17) as u8).collect();
    for kind in [Kind::Zlib, Kind::Lz4] {
        let mut bytes = Vec::new();
        if deflate(kind, 5, &body, &mut bytes).is_err() {
            continue;
        }
        let mut out = Vec::with_capacity(8192);
        let measured = ratio::interleaved(&mut [&mut |n| {
            (0..n).for_each(|_| {
                out.clear();
                inflate(kind, black_box(&bytes), 1 << 20, &mut out).expect("it inflates");
            })
        }]);
        println!("4 KiB inflated by {kind:?} from {} B: {:.0} ns", bytes.len(), measured.nanos[0]);
    }
}
