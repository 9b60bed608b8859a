//! Stores that something has damaged: torn tails, zeroed and missing files, another version, a real full file system;
//! and the committed sample of the format, which every later version must read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::tests::{Ears, bodies, drain, host, message, open, small};
use super::*;
use crate::disk::{Disk, Fault, FaultyDisk, Files};

/// A store of about four segments, and how many messages are in it.
fn filled(flushed: bool) -> (FaultyDisk, i64) {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small());
    let queue = store.queue("t", 0);
    let mut sent = 0;
    while store.log_end() < 3 * 4096 + 2000 {
        store.append(&queue, &message(format!("message {sent}").as_bytes(), b"TAGS\x01a\x02UNIQ_KEY\x01u"), 0).unwrap();
        sent += 1;
        if flushed && sent % 10 == 0 {
            store.flush_step().unwrap();
        }
    }
    if flushed {
        store.flush_step().unwrap();
        store.segment_step(0);
        store.flush_step().unwrap();
    }
    (disk, sent)
}

fn try_open(disk: &FaultyDisk, options: Options) -> (Result<(Store, Recovered), OpenError>, Arc<Ears>) {
    let ears = Arc::new(Ears::default());
    (Store::open(Arc::new(disk.after_kill()), options, 0, ears.clone()), ears)
}

fn count(store: &Store) -> i64 {
    drain(store, &store.queue("t", 0)).len() as i64
}

/// Zeroes a part of a file.
fn zero(disk: &FaultyDisk, name: &str, from: usize, to: usize) {
    let mut bytes = disk.read(name).unwrap();
    bytes[from..to].fill(0);
    disk.write(name, &bytes).unwrap();
}

#[test]
fn c_075_recovery_starts_at_the_checkpoint_and_finds_the_same_without_it() {
    let (disk, sent) = filled(true);
    for garbage in [None, Some(b"".as_slice()), Some(b"garbage that is no checkpoint at all")] {
        let after = disk.after_kill();
        match garbage {
            Some(bytes) => after.write("CHECKPOINT", bytes).unwrap(),
            None => after.remove("CHECKPOINT").unwrap(),
        }
        let (opened, _) = try_open(&after, small());
        let (store, recovered) = opened.unwrap();
        assert_eq!((count(&store), recovered.scanned), (sent, 4), "{garbage:?}");
    }
    let (opened, _) = try_open(&disk, small());
    let (store, recovered) = opened.unwrap();
    assert_eq!((count(&store), recovered.scanned), (sent, 1));
}

#[test]
fn c_076_only_whole_records_count() {
    let (disk, sent) = filled(false);
    let name = "log/00000000000000012288";
    let bytes = disk.read(name).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    // The last record with its final 64 bytes zeroed; with its properties zeroed and their length right.
    for lost in [64, 20, 1] {
        let after = disk.after_kill();
        zero(&after, name, end - lost, end);
        let (opened, ears) = try_open(&after, small());
        let (store, _) = opened.unwrap();
        assert_eq!(count(&store), sent - 1, "{lost} bytes lost");
        let events = ears.events.lock().unwrap().clone();
        assert!(events.iter().any(|event| matches!(event, Event::TailCut { bytes, .. } if *bytes > 0)), "{events:?}");
    }
    // A damaged record in the middle, below the durable mark: refused by name, and given up only when told to.
    let (disk, sent) = filled(true);
    let after = disk.after_kill();
    after.remove("CHECKPOINT").unwrap();
    after.flip("log/00000000000000004096", 700, 1);
    let (opened, _) = try_open(&after, small());
    let error = opened.err().unwrap();
    assert!(
        matches!(&error, OpenError::Damaged { file, at, .. } if file == "log/00000000000000004096" && *at < 4096 + 700),
        "{error}"
    );
    let (opened, ears) = try_open(&after, small().repair(true));
    let (store, _) = opened.unwrap();
    assert!(count(&store) > 20 && count(&store) < sent);
    assert!(matches!(ears.events.lock().unwrap().last(), Some(Event::Repaired { .. })));
    // With its checkpoint the complete segment is not read at the start; the one message is missed when it is read.
    let after = disk.after_kill();
    after.flip("log/00000000000000004096", 700, 1);
    let (opened, ears) = try_open(&after, small());
    let (store, _) = opened.unwrap();
    assert_eq!(count(&store), sent - 1, "the messages behind it are served");
    assert!(matches!(ears.events.lock().unwrap().last(), Some(Event::Damaged { .. })));
}

#[test]
fn c_077_empty_and_short_log_files() {
    // [full, 0 bytes]: what was made ahead and never used.
    let (disk, sent) = filled(true);
    let after = disk.after_kill();
    after.write("log/00000000000000016384", b"").unwrap();
    let (opened, _) = try_open(&after, small());
    assert_eq!(count(&opened.unwrap().0), sent);
    // The last one with messages is empty, but they were durable: refused.
    let after = disk.after_kill();
    after.write("log/00000000000000012288", b"").unwrap();
    let (opened, _) = try_open(&after, small());
    assert!(matches!(opened, Err(OpenError::Damaged { file, .. }) if file == "log/00000000000000012288"));
    // [0 bytes, full], with and without a checkpoint.
    for caches in [true, false] {
        let after = disk.after_kill();
        after.write("log/00000000000000000000", b"").unwrap();
        if !caches {
            after.remove("CHECKPOINT").unwrap();
        }
        let (opened, _) = try_open(&after, small());
        assert!(matches!(opened, Err(OpenError::Damaged { file, .. }) if file == "log/00000000000000000000"));
    }
    // [full, half]: half of what is durable is gone, or half of what is not.
    for flushed in [true, false] {
        let (disk, sent) = filled(flushed);
        let after = disk.after_kill();
        after.truncate("log/00000000000000012288", 1000).unwrap();
        let (opened, ears) = try_open(&after, small());
        match opened {
            Err(error) => assert!(flushed && matches!(error, OpenError::Damaged { .. }), "{error}"),
            Ok((store, _)) => {
                assert!(!flushed && count(&store) < sent && count(&store) > sent - 15);
                store.append(&store.queue("t", 0), &message(b"next", b""), 0).unwrap();
                drop(ears);
            }
        }
    }
    // A complete segment in the middle is missing.
    for caches in [true, false] {
        let after = disk.after_kill();
        after.remove("log/00000000000000004096").unwrap();
        if !caches {
            after.remove("CHECKPOINT").unwrap();
        }
        let (opened, _) = try_open(&after, small());
        assert!(matches!(opened, Err(OpenError::Damaged { .. })), "caches {caches}");
    }
}

/// Whatever file of the log is gone: refused by its name if what was durable is gone with it, else told.
#[test]
fn a_segment_that_somebody_has_removed_is_never_passed_over_in_silence() {
    let (disk, sent) = filled(true);
    let all: Vec<String> = disk.list("log").unwrap().into_iter().map(|file| format!("log/{}", file.name)).collect();
    assert_eq!(all.len(), 5, "the last one is made ahead: {all:?}");
    for (at, name) in all.iter().enumerate() {
        for keep_next in [true, false] {
            let after = disk.after_kill();
            after.remove(name).unwrap();
            if !keep_next && at != 4 {
                after.remove(&all[4]).unwrap();
            }
            let (opened, ears) = try_open(&after, small());
            match (at, opened) {
                // As if retention had taken it, but for the word.
                (0, Ok((store, _))) => {
                    assert!(count(&store) < sent);
                    let events = ears.events.lock().unwrap().clone();
                    assert_eq!(events.first(), Some(&Event::Gone { first: 0, segments: 1 }));
                }
                (1..=3, Err(OpenError::Damaged { file, .. })) => assert_eq!(file, *name, "next kept {keep_next}"),
                (4, Ok((store, _))) => assert_eq!(count(&store), sent),
                (at, other) => panic!("{at}: {:?}", other.map(|(_, recovered)| recovered)),
            }
        }
    }
    // What nobody has called durable is missed all the same.
    let (disk, _) = filled(false);
    let after = disk.after_kill();
    after.remove("log/00000000000000012288").unwrap();
    after.write("log/00000000000000016384", &[0; 64]).unwrap();
    let (opened, ears) = try_open(&after, small());
    assert!(opened.is_ok());
    let events = ears.events.lock().unwrap().clone();
    assert!(events.iter().any(|event| matches!(event, Event::TailCut { at: 12_288, bytes: 4096, .. })), "{events:?}");
    // A checkpoint that names no complete segment knows what was durable too.
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small());
    store.append(&store.queue("t", 0), &message(b"one", b""), 0).unwrap();
    store.flush_step().unwrap();
    store.segment_step(0);
    drop(store);
    let after = disk.after_kill();
    after.remove("log/00000000000000000000").unwrap();
    let (opened, _) = try_open(&after, small());
    assert!(matches!(opened, Err(OpenError::Damaged { file, .. }) if file == "log/00000000000000000000"));
}

/// META says a version and nothing else: that it cannot be synced (want of a descriptor, say) costs no message.
#[test]
fn a_meta_that_cannot_be_synced_is_told_and_stops_nothing() {
    let disk = FaultyDisk::new();
    let ears = Arc::new(Ears::default());
    let (store, _) = Store::open(Arc::new(disk.clone()), small(), 0, ears.clone()).unwrap();
    store.append(&store.queue("t", 0), &message(b"kept", b""), 0).unwrap();
    disk.remove("META").unwrap();
    store.flush_step().unwrap();
    let events = ears.events.lock().unwrap().clone();
    assert!(matches!(events.as_slice(), [Event::CacheFailed { what: "META", .. }]), "{events:?}");
    assert!(store.read_only().is_none());
    drop(store);
    let (opened, _) = try_open(&disk, small());
    assert_eq!(count(&opened.unwrap().0), 1);
}

/// Behind a kill the new epoch has to be written before anything else: with no byte left the store does not open, says
/// why and where, and has lost nothing once there is room.
#[test]
fn a_disk_without_a_byte_left_is_named_by_who_cannot_open() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small());
    store.append(&store.queue("t", 0), &message(b"kept", b""), 0).unwrap();
    store.flush_step().unwrap();
    drop(store);
    // Whichever call it is that writes the checkpoint.
    let refused = (0..50).find_map(|call| {
        let after = disk.after_kill();
        after.fail_at(call, Fault::Error);
        let opened = Store::open(Arc::new(after.clone()), small(), 0, Arc::new(Unwatched));
        let error = opened.err()?.to_string();
        error.contains("CHECKPOINT").then_some((error, after))
    });
    let (text, after) = refused.unwrap();
    let place = (&after as &dyn Disk).place();
    let why = text.strip_prefix(&format!("writing CHECKPOINT in {place}: ")).unwrap_or_else(|| panic!("{text}"));
    assert!(!why.is_empty() && !why.contains("event"), "{text}");
    let (opened, _) = try_open(&after, small());
    assert_eq!(count(&opened.unwrap().0), 1);
}

/// Bytes stored in files that have no name any more are lost at the next start: who is told so can send elsewhere.
#[cfg(unix)]
#[test]
fn a_store_whose_directory_is_removed_refuses_and_says_so() {
    let root = std::env::temp_dir().join(format!("windlass-gone-{}", std::process::id()));
    let ears = Arc::new(Ears::default());
    let (store, _) = Store::open(Arc::new(Files::new(&root)), small(), 0, ears.clone()).unwrap();
    let queue = store.queue("t", 0);
    store.append(&queue, &message(b"kept", b""), 0).unwrap();
    store.flush_step().unwrap();
    std::fs::remove_dir_all(&root).unwrap();
    store.append(&queue, &message(b"into nothing", b""), 0).unwrap();
    store.flush_step().unwrap();
    store.segment_step(i64::MAX / 2);
    let refused = store.append(&queue, &message(b"refused", b""), 0);
    assert!(matches!(refused, Err(AppendError::ReadOnly { .. })), "{refused:?}");
    let events = ears.events.lock().unwrap().clone();
    let told = events.iter().filter(|event| matches!(event, Event::SyncFailed { .. })).count();
    assert_eq!(told, 1, "{events:?}");
}

#[test]
fn a_directory_of_another_version_is_refused_untouched() {
    let (disk, _) = filled(true);
    let mut meta = disk.read("META").unwrap();
    meta[5] = 2;
    let sum = crc32c::crc32c(&meta[..60]).to_be_bytes();
    meta[60..].copy_from_slice(&sum);
    disk.write("META", &meta).unwrap();
    let before = disk.contents();
    let opened = Store::open(Arc::new(disk.after_kill()), small(), 0, Arc::new(Unwatched));
    assert!(matches!(opened, Err(OpenError::Version { found: 2, .. })));
    assert_eq!(disk.contents(), before);
}

#[test]
fn bytes_of_a_used_segment_are_never_taken_for_messages() {
    let disk = FaultyDisk::new();
    let options = small().retain_segments(2);
    let (store, _) = open(&disk, options.clone());
    let queue = store.queue("t", 0);
    for n in 0..300 {
        store.append(&queue, &message(format!("{n:050}").as_bytes(), b""), 0).unwrap();
        if n % 5 == 0 {
            store.flush_step().unwrap();
            store.segment_step(0);
            let want = drain(&store, &queue);
            let ears = Arc::new(Ears::default());
            let (again, _) = Store::open(Arc::new(disk.after_kill()), options.clone(), 0, ears.clone()).unwrap();
            assert_eq!(drain(&again, &again.queue("t", 0)), want, "after {n}");
            assert_eq!(ears.events.lock().unwrap().len(), 0, "old bytes are no torn tail");
        }
    }
    assert!(disk.list("log").unwrap().iter().any(|file| file.name.starts_with(".spare-")) || disk.calls() > 300);
}

/// Mounts a small file system of memory; `None` where this process may not.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(mib: u32) -> Option<Self> {
        let path = std::env::temp_dir().join(format!("windlass-tmpfs-{}", std::process::id()));
        std::fs::create_dir_all(&path).ok()?;
        let size = format!("size={mib}m");
        let mount =
            std::process::Command::new("mount").args(["-t", "tmpfs", "-o", &size, "windlass"]).arg(&path).output();
        if mount.is_ok_and(|done| done.status.success()) {
            return Some(Self(path));
        }
        let _ = std::fs::remove_dir(&path);
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).output();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn c_072_s_19_a_real_full_file_system() {
    let Some(mounted) = Mounted::tmpfs(32) else {
        eprintln!("SKIPPED c_072_s_19_a_real_full_file_system: this process may not mount a tmpfs");
        return;
    };
    let options = Options::durable().segments(1 << 20, 8 << 20);
    let disk = Arc::new(Files::new(mounted.0.join("store")));
    let (store, _) = Store::open(disk, options, 0, Arc::new(Unwatched)).unwrap();
    let queue = store.queue("t", 0);
    let body = vec![b'x'; 60_000];
    let mut sent = 0i64;
    let refused = loop {
        match store.append(&queue, &message(&body, b""), 0) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    let place = mounted.0.join("store").display().to_string();
    assert!(matches!(&refused, AppendError::Full { place: named, .. } if *named == place), "{refused:?}");
    store.flush_step().unwrap();
    assert_eq!(drain(&store, &queue).len() as i64, sent);
    // Room comes back: by retention, as for any operator who waits, here by a smaller neighbour going.
    assert!(store.append(&queue, &message(&body, b""), 0).is_err());
    let grown = std::process::Command::new("mount").args(["-o", "remount,size=64m"]).arg(&mounted.0).output();
    assert!(grown.unwrap().status.success());
    store.segment_step(2000);
    store.append(&queue, &message(&body, b""), 0).unwrap();
    drop(store);
}

/// Where the committed sample is.
fn sample_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/store-v1")
}

/// Settings of the sample: its files are small.
fn sample_options() -> Options {
    Options::durable().segments(1024, 1024).flush(Flush::Sync).mapped_bytes(0)
}

/// Writes what the sample holds. The sample was made by this; the test only reads it, so that a change of the format
/// cannot pass unseen.
fn write_sample(store: &Store) {
    let (orders, bills) = (store.queue("orders", 0), store.queue("bills", 3));
    let ipv6 = std::net::SocketAddr::from(([0u16, 0, 0, 0, 0, 0, 0, 1], 10911));
    for n in 0..8i64 {
        let properties = format!("TAGS\x01paid\x02KEYS\x01order-{n} all\x02UNIQ_KEY\x01{n:032X}");
        let new = NewMessage {
            born_ms: 1_700_000_000_000 + n,
            born_host: if n == 2 { ipv6 } else { host() },
            flag: n as i32,
            reconsume_times: (n % 2) as i32,
            ..message(b"sample body", properties.as_bytes())
        };
        store.append(&orders, &new, 1_700_000_001_000 + n).unwrap();
    }
    let delayed = store.queue(crate::model::names::SCHEDULE_TOPIC, 0);
    let later = store.append(&delayed, &message(b"later", b"DELAY\x011"), 1_700_000_002_000).unwrap();
    let members = [
        Member::Message(&bills, message(b"first of two", b"")),
        Member::Message(&bills, message(b"second of two", b"")),
        Member::Mark(Mark::DelayDelivered { level_queue: 0, offset: later.queue_offset.0 }),
    ];
    store.append_group(&members, 1_700_000_003_000, &mut Vec::new()).unwrap();
    store.append(&store.queue("gone", 0), &message(b"gone", b""), 1_700_000_003_000).unwrap();
    store.delete_topic("gone", 1_700_000_004_000).unwrap();
    store.append_mark(Mark::HalfResolved { offset: 0 }, 1_700_000_004_000).unwrap();
    store.append_mark(Mark::OffsetSnapshot(b"{}"), 1_700_000_004_000).unwrap();
    store.flush_step().unwrap();
    store.segment_step(1_700_000_004_000);
}

/// A copy of a directory of files in memory.
fn copied(from: &Path) -> FaultyDisk {
    let disk = FaultyDisk::new();
    for dir in ["", "log", "idx"] {
        for file in Files::new(from).list(dir).unwrap() {
            let name = if dir.is_empty() { file.name.clone() } else { format!("{dir}/{}", file.name) };
            disk.write(&name, &std::fs::read(from.join(&name)).unwrap()).unwrap();
        }
    }
    disk
}

#[test]
fn the_committed_sample_of_the_format_is_read_and_written_byte_for_byte() {
    if std::env::var_os("WINDLASS_WRITE_SAMPLE").is_some() {
        std::fs::create_dir_all(sample_dir()).unwrap();
        let disk = Arc::new(Files::new(sample_dir()));
        let (store, _) = Store::open(disk, sample_options(), 1_700_000_000_000, Arc::new(Unwatched)).unwrap();
        write_sample(&store);
        drop(store);
        std::fs::remove_file(sample_dir().join("LOCK")).unwrap();
    }
    let sample = copied(&sample_dir());
    assert!(sample.contents().len() >= 5, "the sample is not there");

    // What is written today is what was written then.
    let fresh = FaultyDisk::new();
    let (store, _) =
        Store::open(Arc::new(fresh.clone()), sample_options(), 1_700_000_000_000, Arc::new(Unwatched)).unwrap();
    write_sample(&store);
    drop(store);
    assert_eq!(fresh.contents(), sample.contents());

    // And it says what it said, with and without its caches.
    for caches in [true, false] {
        let disk = sample.after_kill();
        if !caches {
            disk.remove("CHECKPOINT").unwrap();
        }
        let (store, recovered) = open(&disk, sample_options());
        assert_eq!(recovered.cut_bytes, 0);
        let orders = store.queue("orders", 0);
        let want: Vec<_> = (0..8).map(|offset| (offset, b"sample body".to_vec())).collect();
        assert_eq!(drain(&store, &orders), want);
        let bills: Vec<_> = drain(&store, &store.queue("bills", 3)).into_iter().map(|(_, body)| body).collect();
        assert_eq!(bills, [b"first of two".to_vec(), b"second of two".to_vec()]);
        assert_eq!(bodies(&store.by_key("orders", "order-5", 9, 0, i64::MAX)), [b"sample body".to_vec()]);
        assert_eq!(store.by_key("orders", "all", 99, 0, i64::MAX).len(), 8);
        let entry = store.entry(&orders, QueueOffset(2)).unwrap();
        let third = store.record_at(entry.physical).unwrap();
        let record = keys::record(third.bytes()).unwrap();
        assert_eq!((entry.physical, entry.time_ms, record.flag), (448, 1_700_000_001_002, 2));
        assert!(record.born_host(third.bytes()).is_ipv6());
        let delayed = store.queue(crate::model::names::SCHEDULE_TOPIC, 0);
        let due = store.entry(&delayed, QueueOffset(0)).unwrap();
        assert_eq!((due.time_ms, due.is_due_time()), (1_700_000_003_000, true));
        assert_eq!((store.delay_position(0).0, store.halves_resolved_through().0), (1, 1));
        assert!(drain(&store, &store.queue("gone", 0)).is_empty());
        assert_eq!(store.offset_snapshot().as_deref(), Some(b"{}".as_slice()));
    }
}
