//! What a store does, seen through its public calls: offsets, reads, searches, segments, deletion, retention.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use super::*;
use crate::disk::{Fault, FaultyDisk, Files};
use crate::wire::frame::Frame;

/// Remembers what it hears.
#[derive(Default)]
pub(super) struct Ears {
    pub events: Mutex<Vec<Event>>,
    pub grown: Mutex<Vec<String>>,
}

impl Watch for Ears {
    fn grew(&self, queue: &Arc<StoreQueue>) {
        self.grown.lock().unwrap().push(format!("{queue:?}"));
    }
    fn durable(&self, _to: u64) {}
    fn event(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

pub(super) fn host() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 10911))
}

pub(super) fn message<'a>(body: &'a [u8], properties: &'a [u8]) -> NewMessage<'a> {
    NewMessage {
        body,
        properties: [properties, b""],
        index: IndexBy::Properties,
        flag: 0,
        sys_flag: 0,
        born_ms: 1,
        born_host: host(),
        store_host: host(),
        reconsume_times: 0,
        prepared_offset: 0,
    }
}

pub(super) fn small() -> Options {
    Options::durable().segments(4096, 4096).flush(Flush::Sync).mapped_bytes(8192)
}

pub(super) fn open(disk: &FaultyDisk, options: Options) -> (Store, Recovered) {
    Store::open(Arc::new(disk.clone()), options, 1000, Arc::new(Unwatched)).unwrap()
}

pub(super) fn bodies(frames: &[Frame]) -> Vec<Vec<u8>> {
    frames.iter().map(|frame| body(frame.bytes())).collect()
}

pub(super) fn body(record: &[u8]) -> Vec<u8> {
    keys::record(record).unwrap().body(record).to_vec()
}

/// Every message of a queue, read as a consumer would, with its offset.
pub(super) fn drain(store: &Store, queue: &StoreQueue) -> Vec<(i64, Vec<u8>)> {
    let mut all = Vec::new();
    let mut at = store.bounds(queue).0;
    loop {
        let found = store.read(queue, at, &Limits::default(), &All, Cold::Read);
        for frame in &found.frames {
            let record = keys::record(frame.bytes()).unwrap();
            assert_eq!((record.queue_id, record.topic(frame.bytes())), (queue.id(), queue.topic().as_bytes()));
            all.push((record.queue_offset, body(frame.bytes())));
        }
        if found.next == at || found.next >= found.max {
            return all;
        }
        at = found.next;
    }
}

#[test]
fn messages_come_back_in_order_with_dense_offsets_over_many_segments() {
    let disk = FaultyDisk::new();
    let (store, recovered) = open(&disk, small());
    assert!(recovered.clean);
    let queues = [store.queue("a", 0), store.queue("b", 7)];
    let mut want = [Vec::new(), Vec::new()];
    for n in 0..200i64 {
        let which = usize::from(n % 3 == 0);
        let text = format!("message {n} {}", "x".repeat((n % 50) as usize));
        let done = store.append(&queues[which], &message(text.as_bytes(), b""), n).unwrap();
        assert_eq!(done.queue_offset.0, want[which].len() as i64);
        want[which].push((done.queue_offset.0, text.into_bytes()));
        if n % 10 == 0 {
            store.flush_step().unwrap();
            store.segment_step(n);
        }
    }
    store.flush_step().unwrap();
    store.segment_step(1);
    for (queue, want) in queues.iter().zip(&want) {
        assert_eq!(&drain(&store, queue), want);
    }
    assert!(store.close());
    drop(store);
    let (store, recovered) = open(&disk, small());
    assert!(recovered.clean && recovered.scanned == 0);
    for (topic, id, want) in [("a", 0, &want[0]), ("b", 7, &want[1])] {
        assert_eq!(&drain(&store, &store.queue(topic, id)), want);
    }
    let again = store.append(&store.queue("a", 0), &message(b"again", b""), 5000).unwrap();
    assert_eq!(again.queue_offset.0, want[0].len() as i64);
}
