//! What a store does, seen through its public calls: offsets, reads, searches, segments, deletion, retention.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use super::*;
use crate::disk::{FaultyDisk, Files};
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

fn texts(frames: &[Frame]) -> Vec<String> {
    bodies(frames).into_iter().map(|body| String::from_utf8(body).unwrap()).collect()
}

fn read(store: &Store, queue: &StoreQueue, from: i64) -> Found {
    store.read(queue, QueueOffset(from), &Limits::default(), &All, Cold::Read)
}

/// What waits for slow peers is counted by its own length: it must not keep the other queues' messages alive.
#[test]
fn an_answer_from_the_disk_keeps_little_more_alive_than_its_messages() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small().segments(65_536, 65_536).mapped_bytes(0));
    let queues: Vec<_> = (0..4).map(|id| store.queue("t", id)).collect();
    for n in 0..600 {
        store.append(&queues[n % 4], &message(&[b'x'; 500], b""), 0).unwrap();
    }
    store.flush_step().unwrap();
    store.segment_step(0);
    let cold = store.read(&queues[1], QueueOffset(0), &Limits::default(), &All, Cold::Refuse);
    assert_eq!(cold.status, Status::Cold);
    let frames = read(&store, &queues[1], 0).frames;
    let (mut kept, mut owners): (usize, Vec<&Frame>) = (0, Vec::new());
    for frame in &frames {
        if !owners.iter().any(|owner| owner.shares_owner(frame)) {
            (kept, owners) = (kept + frame.held_bytes(), [owners, vec![frame]].concat());
        }
    }
    let own: usize = frames.iter().map(Frame::len).sum();
    assert!(frames.len() >= 16 && kept <= own * 3 / 2, "{} frames, {own} bytes, {kept} kept", frames.len());
}

#[test]
fn reads_outside_the_queue_say_which_way_and_where_to_go_on() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, Options::ephemeral());
    let queue = store.queue("t", 0);
    let found = read(&store, &queue, 5);
    assert_eq!((found.status, found.next.0), (Status::Empty, 0));
    for n in 0..3 {
        store.append(&queue, &message(format!("{n}").as_bytes(), b""), 0).unwrap();
    }
    for (from, status, next) in [(3, Status::AtEnd, 3), (9, Status::BeyondEnd, 3), (-1, Status::BelowMin, 0)] {
        let found = read(&store, &queue, from);
        assert_eq!((found.status, found.next.0, found.min.0, found.max.0), (status, next, 0, 3), "from {from}");
    }
    assert_eq!(texts(&read(&store, &queue, 1).frames), ["1", "2"]);
}

#[test]
fn limits_and_filters_end_a_read_but_the_first_message_always_comes() {
    struct Tagged(i32);
    impl Filter for Tagged {
        fn entry(&self, tag: i32) -> bool {
            tag == self.0
        }
        fn record(&self, record: &[u8]) -> bool {
            !body(record).starts_with(b"no")
        }
    }
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, Options::ephemeral());
    let queue = store.queue("t", 0);
    for n in 0..100 {
        let tag: &[u8] = if n % 10 == 0 { b"TAGS\x01a" } else { b"TAGS\x01b" };
        let text = if n == 50 { "no".to_owned() } else { format!("{n}") };
        store.append(&queue, &message(text.as_bytes(), tag), 0).unwrap();
    }
    let limits = |messages, bytes, entries| Limits { messages, bytes, entries };
    let a = Tagged(crate::model::tags::java_hash("a"));
    let found = store.read(&queue, QueueOffset(0), &limits(3, 1 << 20, 1000), &a, Cold::Refuse);
    assert_eq!((texts(&found.frames), found.next.0), (vec!["0".to_owned(), "10".into(), "20".into()], 30));
    let found = store.read(&queue, QueueOffset(41), &limits(32, 1 << 20, 1000), &a, Cold::Refuse);
    assert_eq!(
        (texts(&found.frames), found.next.0),
        (vec!["60".to_owned(), "70".into(), "80".into(), "90".into()], 100)
    );
    let found = store.read(&queue, QueueOffset(1), &limits(32, 1 << 20, 5), &a, Cold::Refuse);
    assert_eq!((found.status, found.next.0), (Status::NoMatch, 6));
    let found = store.read(&queue, QueueOffset(0), &limits(32, 1, 1000), &All, Cold::Refuse);
    assert_eq!((found.frames.len(), found.next.0), (1, 1));
}

#[test]
fn c_073_search_by_time_over_segments_and_after_expiry() {
    let disk = FaultyDisk::new();
    // Segments of 512 bytes hold three messages each; older ones are read by position.
    let options = small().segments(512, 512).mapped_bytes(0);
    let (store, _) = open(&disk, options.clone());
    let queue = store.queue("t", 0);
    for ms in [10, 20, 20, 20, 30] {
        store.append(&queue, &message(b"m", b""), ms).unwrap();
    }
    store.flush_step().unwrap();
    let at = |store: &Store, ms| store.offset_by_time(&queue, ms, Boundary::Lower).0;
    for (ms, offset) in [(5, 0), (10, 0), (15, 1), (20, 1), (25, 4), (30, 4), (31, 5)] {
        assert_eq!(at(&store, ms), offset, "{ms} ms");
    }
    for (ms, offset) in [(5, 0), (10, 0), (15, 0), (20, 3), (25, 3), (30, 4), (31, 4)] {
        assert_eq!(store.offset_by_time(&queue, ms, Boundary::Upper).0, offset, "upper, {ms} ms");
    }
    for ms in 40..60 {
        store.append(&queue, &message(b"m", b""), ms).unwrap();
        store.flush_step().unwrap();
        store.segment_step(60);
    }
    for (ms, offset) in [(5, 0), (20, 1), (40, 5), (59, 24), (60, 25)] {
        assert_eq!(at(&store, ms), offset, "{ms} ms, cold");
    }
    drop(store);
    let (store, _) = open(&disk, options.retain_segments(2));
    let queue = store.queue("t", 0);
    store.segment_step(60);
    let (min, max) = store.bounds(&queue);
    assert!(min.0 > 5 && max.0 == 25);
    assert_eq!(store.offset_by_time(&queue, 5, Boundary::Lower), min);
    assert_eq!(read(&store, &queue, 0).status, Status::BelowMin);
}

#[test]
fn c_074_records_around_the_end_of_a_segment() {
    for more in [-8, -1, 0, 1, 8] {
        let disk = FaultyDisk::new();
        let (store, _) = open(&disk, small());
        let queue = store.queue("topic", 0);
        let mut sent = 0;
        // "topic", one property and 3 bytes of body: a stored message of 103 bytes.
        while store.log_end() < 3 * 4096 {
            let done = store.append(&queue, &message(b"abc", b"A\x01b\x02"), 0).unwrap();
            assert_eq!(done.queue_offset.0, sent);
            sent += 1;
        }
        let start = store.log_end() / 4096 * 4096;
        let left = (start + 4096 - store.log_end()) as i64 - format::END_RECORD as i64 - format::ENVELOPE as i64;
        let body = vec![b'x'; (left - 100 + more) as usize];
        let done = store.append(&queue, &message(&body, b"A\x01b\x02"), 0).unwrap();
        let fits = more <= 0;
        assert_eq!((done.queue_offset.0, done.physical < start + 4096), (sent, fits), "{more} more than the rest");
        let after = store.append(&queue, &message(b"after", b""), 0).unwrap();
        assert_eq!((after.queue_offset.0, after.physical >= start + 4096), (sent + 1, true));
        store.flush_step().unwrap();
        let want = drain(&store, &queue);
        assert_eq!(want.len() as i64, sent + 2);
        drop(store);
        let (store, _) = open(&disk.after_kill(), small());
        assert_eq!(drain(&store, &store.queue("topic", 0)), want, "{more} more than the rest, after a restart");
    }
}

#[test]
fn a_message_larger_than_a_segment_gets_a_larger_one() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small());
    let queue = store.queue("t", 0);
    for size in [10, 100_000, 10, 5_000, 10] {
        store.append(&queue, &message(&vec![b'x'; size], b""), 0).unwrap();
    }
    store.flush_step().unwrap();
    let sizes = |store: &Store| drain(store, &queue).iter().map(|(_, body)| body.len()).collect::<Vec<_>>();
    assert_eq!(sizes(&store), [10, 100_000, 10, 5_000, 10]);
    store.segment_step(0);
    drop(store);
    let (store, _) = open(&disk.after_kill(), small());
    let queue = store.queue("t", 0);
    assert_eq!(drain(&store, &queue).len(), 5);
    let error = store.append(&queue, &message(&vec![0; 5 << 20], b""), 0).unwrap_err();
    assert!(matches!(error, AppendError::TooLong { what: "body", .. }));
    let error = store.append(&queue, &message(b"", &vec![b'a'; 40_000]), 0).unwrap_err();
    assert!(matches!(error, AppendError::TooLong { what: "properties", .. }));
}

#[test]
fn c_071_under_sync_nothing_is_shown_before_it_is_durable() {
    let disk = FaultyDisk::new();
    let ears = Arc::new(Ears::default());
    let (store, _) = Store::open(Arc::new(disk.clone()), small(), 0, ears.clone()).unwrap();
    let queue = store.queue("t", 0);
    queue.watch();
    let done = store.append(&queue, &message(b"m", b"KEYS\x01k"), 0).unwrap();
    let waited = store.wait_durable(done.end, std::time::Duration::from_millis(1));
    assert_eq!(waited, Err(DurableError::Timeout));
    let shown = |store: &Store| {
        let queue = store.queue("t", 0);
        let found = read(store, &queue, 0);
        let by_key = store.by_key("t", "k", 9, 0, i64::MAX).len();
        (found.frames.len(), found.max.0, store.record_at(done.physical).is_some(), by_key)
    };
    assert_eq!((shown(&store), ears.grown.lock().unwrap().len()), ((0, 0, false, 0), 0));
    // Killed while the flush is blocked: whatever survives, every request says the same.
    for (after, there) in [(disk.after_kill(), true), (disk.after_power_cut(2), false)] {
        let (again, _) = open(&after, small());
        let (frames, max, by_position, by_key) = shown(&again);
        assert_eq!((frames == 1, max == 1, by_position, by_key == 1), (there, there, there, there));
    }
    store.flush_step().unwrap();
    assert_eq!((shown(&store), ears.grown.lock().unwrap().clone()), ((1, 1, true, 1), vec!["t/0".to_owned()]));
    assert_eq!(store.wait_durable(done.end, std::time::Duration::ZERO), Ok(()));
}

#[test]
fn c_072_a_full_disk_refuses_sends_by_name_and_recovers_by_itself() {
    let disk = FaultyDisk::new();
    let ears = Arc::new(Ears::default());
    let options = small().flush(Flush::Async);
    let (store, _) = Store::open(Arc::new(disk.clone()), options, 0, ears.clone()).unwrap();
    let queue = store.queue("t", 0);
    disk.set_capacity(Some(16 * 1024));
    let mut sent = 0i64;
    let refused = loop {
        match store.append(&queue, &message(&[b'x'; 200], b""), 0) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
        store.flush_step().unwrap();
        store.segment_step(0);
    };
    assert!(matches!(&refused, AppendError::Full { place, .. } if place == "memory"), "{refused:?}");
    assert!(sent > 30);
    assert!(store.append(&queue, &message(&[b'x'; 200], b""), 0).is_err(), "and again, at once");
    assert_eq!((store.bounds(&queue).1.0, drain(&store, &queue).len() as i64), (sent, sent), "reads go on");
    store.segment_step(1000);
    assert!(store.append(&queue, &message(&[b'x'; 200], b""), 0).is_err(), "still full");
    disk.set_capacity(None);
    store.segment_step(2000);
    store.append(&queue, &message(&[b'x'; 200], b""), 0).unwrap();
    let events = ears.events.lock().unwrap().clone();
    let fulls = events.iter().filter(|event| matches!(event, Event::Full { .. })).count();
    assert_eq!((fulls, events.contains(&Event::RoomAgain)), (1, true), "{events:?}");
}

#[test]
fn c_072_deleting_and_making_a_topic_while_others_send() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small().flush(Flush::None).segments(65_536, 65_536));
    let sender = store.clone();
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
    let sending = std::thread::spawn(move || {
        let mut gone = 0;
        let mut queue = sender.queue("t", 0);
        while !stopped.load(Ordering::Relaxed) {
            match sender.append(&queue, &message(b"m", b""), 0) {
                Ok(_) => drop(counted.fetch_add(1, Ordering::Relaxed)),
                Err(AppendError::QueueGone) => {
                    gone += 1;
                    queue = sender.queue("t", 0);
                }
                Err(other) => panic!("{other}"),
            }
        }
        gone
    });
    for round in 0..500 {
        // Now and then it is made sure that the other thread came by.
        let before = sent.load(Ordering::Relaxed);
        while round % 50 == 0 && sent.load(Ordering::Relaxed) == before {
            std::thread::yield_now();
        }
        store.delete_topic("t", 0).unwrap();
        drain(&store, &store.queue("t", 0));
        store.flush_step().unwrap();
        store.segment_step(0);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(sending.join().unwrap() > 0, "no send met a deleted topic");
    let left = drain(&store, &store.queue("t", 0));
    drop(store);
    let (store, _) = open(&disk.after_kill(), small());
    assert_eq!(drain(&store, &store.queue("t", 0)), left);
}

#[test]
fn s_10_a_deleted_topic_stays_deleted_and_begins_at_0_again() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small());
    let old = store.queue("t", 0);
    for _ in 0..60 {
        store.append(&old, &message(b"old", b"KEYS\x01k"), 0).unwrap();
    }
    store.flush_step().unwrap();
    store.segment_step(0);
    store.delete_topic("t", 0).unwrap();
    assert_eq!(store.append(&old, &message(b"old", b""), 0), Err(AppendError::QueueGone));
    let check = |store: &Store, news: usize| {
        store.flush_step().unwrap();
        let found = drain(store, &store.queue("t", 0));
        let want: Vec<_> = (0..news as i64).map(|offset| (offset, b"new".to_vec())).collect();
        assert_eq!((found, store.by_key("t", "k", 99, 0, i64::MAX).len()), (want, news));
    };
    check(&store, 0);
    let new = store.queue("t", 0);
    store.append(&new, &message(b"new", b"KEYS\x01k"), 0).unwrap();
    check(&store, 1);
    for caches in [true, false] {
        let after = disk.after_kill();
        if !caches {
            for file in after.list("idx").unwrap() {
                after.remove(&format!("idx/{}", file.name)).unwrap();
            }
            let _ = after.remove("CHECKPOINT");
        }
        let (store, _) = open(&after, small());
        check(&store, 1);
        store.append(&store.queue("t", 0), &message(b"new", b"KEYS\x01k"), 0).unwrap();
        check(&store, 2);
    }
}

#[test]
fn a_position_that_a_peer_names_is_checked_before_it_is_trusted() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small());
    let queue = store.queue("t", 0);
    let mut good = Vec::new();
    for n in 0..100 {
        good.push(store.append(&queue, &message(format!("{n}").as_bytes(), b""), 0).unwrap().physical);
        store.flush_step().unwrap();
        store.segment_step(0);
    }
    let mark = store.append_mark(Mark::HalfResolved { offset: 0 }, 0).unwrap();
    store.flush_step().unwrap();
    assert!(store.record_at(mark.physical).is_none(), "what the store says to itself is no message");
    for at in (0..store.log_end() + 100).chain([u64::MAX, u64::MAX - 31, 1 << 62]) {
        let found = store.record_at(at).map(|frame| texts(&[frame]));
        let want = good.iter().position(|known| *known == at).map(|n| vec![n.to_string()]);
        assert_eq!(found, want, "position {at}");
    }
}

/// E-062.
#[test]
fn keys_find_messages_newest_first_in_every_kind_of_segment() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small());
    let (t, other) = (store.queue("t", 0), store.queue("other", 0));
    for n in 0..120 {
        let text = format!("KEYS\x01k{} shared\x02UNIQ_KEY\x01u{n}", n % 3);
        let text = text.as_bytes();
        store.append(&t, &message(format!("{n}").as_bytes(), text), 1000 + n).unwrap();
        store.append(&other, &message(b"other", text), 1000 + n).unwrap();
        store.flush_step().unwrap();
        if n < 100 {
            store.segment_step(0);
        }
    }
    let check = |store: &Store| {
        let found = |key: &str, most, from, to| texts(&store.by_key("t", key, most, from, to));
        assert_eq!(found("k1", 3, 0, i64::MAX), ["118", "115", "112"]);
        assert_eq!(found("u7", 9, 0, i64::MAX), ["7"]);
        assert_eq!(found("shared", 1000, 0, i64::MAX).len(), 120);
        assert_eq!(found("k0", 99, 1003, 1009), ["9", "6", "3"]);
        assert!(found("k", 9, 0, i64::MAX).is_empty() && found("other", 9, 0, i64::MAX).is_empty());
    };
    check(&store);
    drop(store);
    let after = disk.after_kill();
    check(&open(&after, small()).0);
    let damaged = disk.after_kill();
    for file in damaged.list("idx").unwrap() {
        damaged.flip(&format!("idx/{}", file.name), file.len as usize - 20, 1);
    }
    check(&open(&damaged, small()).0);
}

#[test]
fn retention_takes_the_oldest_and_queues_keep_their_offsets() {
    let disk = FaultyDisk::new();
    let options = small().retain_segments(3);
    let ears = Arc::new(Ears::default());
    let (store, _) = Store::open(Arc::new(disk.clone()), options.clone(), 0, ears.clone()).unwrap();
    let (busy, quiet) = (store.queue("busy", 0), store.queue("quiet", 0));
    for _ in 0..5 {
        store.append(&quiet, &message(b"q", b""), 0).unwrap();
    }
    for n in 0..200 {
        store.append(&busy, &message(&[b'x'; 100], b""), n).unwrap();
        store.flush_step().unwrap();
        store.segment_step(n);
    }
    let bounds = |store: &Store, topic: &str| {
        let (min, max) = store.bounds(&store.queue(topic, 0));
        (min.0, max.0)
    };
    let (min, max) = bounds(&store, "busy");
    assert!(min > 100 && max == 200, "{min}..{max}");
    assert_eq!(bounds(&store, "quiet"), (5, 5), "all gone, but counting goes on");
    assert_eq!(read(&store, &quiet, 2).status, Status::BelowMin);
    assert!(disk.list("log").unwrap().len() <= 3 + 1 + 2, "retired segments are recycled or gone");
    assert_eq!(drain(&store, &busy).len() as i64, 200 - min);
    assert!(ears.events.lock().unwrap().iter().any(|event| matches!(event, Event::Retired { .. })));
    drop(store);
    for caches in [true, false] {
        let after = disk.after_kill();
        if !caches {
            let _ = after.remove("CHECKPOINT");
        }
        let (store, _) = open(&after, options.clone());
        assert_eq!((bounds(&store, "busy"), bounds(&store, "quiet")), ((min, max), (5, 5)), "caches {caches}");
        let next = store.append(&store.queue("quiet", 0), &message(b"q", b""), 0).unwrap();
        assert_eq!(next.queue_offset.0, 5);
    }
}

#[test]
fn delayed_messages_that_wait_keep_their_segment_until_the_hard_cap() {
    let disk = FaultyDisk::new();
    let ears = Arc::new(Ears::default());
    let options = small().retain_bytes(5 * 4096);
    let (store, _) = Store::open(Arc::new(disk.clone()), options, 0, ears.clone()).unwrap();
    let delayed = store.queue(crate::model::names::SCHEDULE_TOPIC, 4);
    let first = store.append(&delayed, &message(b"later", b""), 1000).unwrap();
    let entry = store.entry(&delayed, first.queue_offset);
    assert!(entry.is_none(), "not durable, not shown");
    store.flush_step().unwrap();
    let entry = store.entry(&delayed, first.queue_offset).unwrap();
    assert_eq!((entry.time_ms, entry.is_due_time()), (61_000, true));
    let busy = store.queue("busy", 0);
    let round = |count: i64| {
        for _ in 0..count {
            store.append(&busy, &message(&[b'x'; 100], b""), 1000).unwrap();
            store.flush_step().unwrap();
            store.segment_step(1000);
        }
        store.bounds(&busy).0.0
    };
    assert_eq!(round(120), 0, "the log is above its size, but the first segment holds what waits");
    assert_eq!(read(&store, &delayed, 0).frames.len(), 1);
    assert!(round(150) > 0, "above twice its size it goes");
    assert!(ears.events.lock().unwrap().contains(&Event::PinnedRetired { segment: 0 }));

    let second = store.append(&delayed, &message(b"later", b""), 1000).unwrap();
    let done = [
        Member::Message(&busy, message(b"delivered", b"")),
        Member::Mark(Mark::DelayDelivered { level_queue: 4, offset: second.queue_offset.0 }),
    ];
    store.append_group(&done, 61_000, &mut Vec::new()).unwrap();
    assert_eq!(store.delay_position(4).0, second.queue_offset.0 + 1);
}

/// E-139.
#[test]
fn store_times_never_go_back_a_little_but_follow_a_clock_that_jumps() {
    let disk = FaultyDisk::new();
    let ears = Arc::new(Ears::default());
    let (store, _) = Store::open(Arc::new(disk), small(), 0, ears.clone()).unwrap();
    let queue = store.queue("t", 0);
    let at = |now| store.append(&queue, &message(b"m", b""), now).unwrap().store_ms;
    assert_eq!([at(10_000), at(9_000), at(5_000), at(4_999), at(5_001)], [10_000, 10_000, 10_000, 4_999, 5_001]);
    assert_eq!(ears.events.lock().unwrap().as_slice(), [Event::ClockBack { ms: 5_001 }]);
}

#[test]
fn the_newest_snapshot_of_offsets_is_found_again() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small());
    assert_eq!(store.offset_snapshot(), None);
    for text in ["{\"a\":1}", "{\"a\":2}"] {
        store.append_mark(Mark::OffsetSnapshot(text.as_bytes()), 0).unwrap();
    }
    store.flush_step().unwrap();
    assert_eq!(store.offset_snapshot().as_deref(), Some(b"{\"a\":2}".as_slice()));
    assert!(store.close());
    drop(store);
    assert_eq!(open(&disk, small()).0.offset_snapshot().as_deref(), Some(b"{\"a\":2}".as_slice()));
}

#[test]
fn the_store_runs_on_real_files_mapped_and_plain_with_its_threads() {
    for plain in [false, true] {
        for flush in [Flush::Sync, Flush::Async, Flush::None] {
            let keeper = Files::temporary().unwrap();
            let root = keeper.place();
            let disk =
                || -> Arc<dyn Disk> { if plain { Arc::new(Files::plain(&root)) } else { Arc::new(Files::new(&root)) } };
            let options = Options::durable().flush(flush).segments(65_536, 262_144).mapped_bytes(262_144);
            let (store, _) = Store::open(disk(), options.clone(), 0, Arc::new(Unwatched)).unwrap();
            let threads = store.start_threads(Arc::new(|| 1000)).unwrap();
            let queue = store.queue("t", 0);
            let mut want = Vec::new();
            for n in 0..1500i64 {
                let text = format!("{n} {}", "x".repeat(700)).into_bytes();
                let done = store.append(&queue, &message(&text, b"KEYS\x01k"), 0).unwrap();
                if flush == Flush::Sync && n % 100 == 0 {
                    store.wait_durable(done.end, std::time::Duration::from_secs(20)).unwrap();
                }
                want.push((n, text));
            }
            if flush == Flush::Sync {
                store.wait_durable(store.log_end(), std::time::Duration::from_secs(20)).unwrap();
            }
            assert_eq!(drain(&store, &queue), want, "plain {plain} {flush:?}");
            assert!(threads.stop(std::time::Instant::now() + std::time::Duration::from_secs(20)));
            assert_eq!(store.append(&queue, &message(b"", b""), 0), Err(AppendError::Closed));
            drop((store, threads));
            let (store, recovered) = Store::open(disk(), options, 0, Arc::new(Unwatched)).unwrap();
            assert!(recovered.clean, "plain {plain} {flush:?}");
            assert_eq!(drain(&store, &store.queue("t", 0)), want, "plain {plain} {flush:?}, opened again");
        }
    }
}

/// The same where files are mapped: a mapping that was given up long before its segment was retired still shows the file,
/// and so does one that was made for reading from it.
#[test]
fn a_file_is_not_used_again_under_a_frame_whose_mapping_was_given_up() {
    for behind in [0, 700] {
        let options = Options::ephemeral().segments(65_536, 65_536).mapped_bytes(10 * 65_536).retain_segments(25);
        let options = if behind == 0 { options.mapped_bytes(0).retain_segments(6) } else { options };
        let (store, _) = Store::open(Arc::new(Files::temporary().unwrap()), options, 0, Arc::new(Unwatched)).unwrap();
        let queue = store.queue("t", 0);
        let mut held = Vec::new();
        for number in 0..2500 {
            let text = format!("{number} {}", "x".repeat(1000));
            store.append(&queue, &message(text.as_bytes(), b""), number).unwrap();
            store.flush_step().unwrap();
            // The newest message lies in the segment's own mapping; one that is 700 behind in a mapping for reading.
            let from = number - behind;
            if number % 50 == 0 && from >= 0 {
                let limits = Limits { messages: 1, ..Limits::default() };
                let found = store.read(&queue, QueueOffset(from), &limits, &All, Cold::Read);
                held.push((format!("{from} {}", "x".repeat(1000)), found));
            }
            store.segment_step(number);
        }
        assert!(store.log_min() > 10 * 65_536);
        for (text, found) in held {
            assert_eq!(bodies(&found.frames), [text.as_bytes()], "{behind} behind");
        }
    }
}

/// E-134: what a reader holds stays as it was, whatever becomes of its segment: retired, used again, written over.
#[test]
fn frames_outlive_the_segment_they_point_into() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small().retain_segments(2));
    let queue = store.queue("t", 0);
    let mut held = Vec::new();
    for number in 0..200 {
        let text = format!("{number} {}", "x".repeat(300));
        store.append(&queue, &message(text.as_bytes(), b""), number).unwrap();
        store.flush_step().unwrap();
        if number % 7 == 0 {
            held.push((text, read(&store, &queue, number)));
        }
        store.segment_step(number);
    }
    assert!(store.log_min() > 10 * 4096);
    for (text, found) in held {
        assert_eq!(bodies(&found.frames), [text.as_bytes()]);
    }
}
