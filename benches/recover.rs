//! Opening a store of 64 MiB after a kill, as a ratio to the floor: reading and summing the same bytes once.
//! `cargo bench --bench recover [-- --gate]`.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "ratio/mod.rs"]
mod ratio;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ratio::Gate;
use windlass::internals::disk::{Disk, Files};
use windlass::internals::store::{Flush, IndexBy, NewMessage, Options, Store, Unwatched};

const SEGMENT: u64 = 64 << 20;

fn options() -> Options {
    Options::durable().flush(Flush::Async).segments(SEGMENT, SEGMENT)
}

/// Fills most of one segment with messages of 1 KiB and leaves it as a killed process does.
fn fill(disk: Arc<dyn Disk>) -> u64 {
    let (store, _) = Store::open(disk, options(), 0, Arc::new(Unwatched)).expect("a new store");
    let queues: Vec<_> = (0..16).map(|id| store.queue("bench", id)).collect();
    let body = vec![b'x'; 1024];
    let host = SocketAddr::from(([127, 0, 0, 1], 10911));
    let message = NewMessage {
        body: &body,
        properties: [b"UNIQ_KEY\x017F0000010D2418B4AAC2265E3D4A0001\x02TAGS\x01paid\x02", b""],
        index: IndexBy::Properties,
        flag: 0,
        sys_flag: 0,
        born_ms: 1,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_offset: 0,
    };
    for queue in queues.iter().cycle() {
        if store.log_end() + 4096 > SEGMENT {
            break;
        }
        store.append(queue, &message, 0).expect("an append");
    }
    store.flush_step().expect("a sync");
    store.log_end()
}

fn main() {
    let mut gate = Gate::from_args();
    let (mut nanos, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let keeper = Files::temporary().expect("a temporary directory");
        let root = keeper.place();
        let bytes = fill(Arc::new(Files::new(&root)));
        let began = Instant::now();
        let content = keeper.read("log/00000000000000000000").expect("the segment");
        std::hint::black_box(crc32fast::hash(&content[..bytes as usize]));
        let floor = began.elapsed();
        drop(content);
        let began = Instant::now();
        let disk: Arc<dyn Disk> = Arc::new(Files::new(&root));
        let (store, recovered) = Store::open(disk, options(), 0, Arc::new(Unwatched)).expect("a recovered store");
        let took = began.elapsed();
        assert_eq!((recovered.scanned, store.log_end()), (1, bytes));
        nanos.push(took.as_secs_f64() * 1000.0);
        ratios.push(took.as_secs_f64() / floor.as_secs_f64());
    }
    let note = format!("{:.0} ms", ratio::median(nanos));
    gate.at_most("recovering 64 MiB after a kill, to reading and summing them", ratio::median(ratios), 2.0, &note);
    gate.finish();
}
