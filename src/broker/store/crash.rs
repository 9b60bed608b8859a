//! Crashes at every call of the disk: a fixed load runs until the n-th changing call stops the disk, for every n; what
//! a kill and what power cuts leave is opened and held against the ledger of what was appended and acknowledged.
//!
//! # Are these tests honest?
//!
//! A check that never fails proves nothing. Each line below was one edit of the library; beside it stands what failed:
//! tests of this file, of `damage.rs` and `lives.rs` by name, or how many of 60 seeds of
//! `many_lives_hold_exactly_what_was_appended_and_kept` (`STORE_FROM` and `STORE_SEEDS` choose others). Whoever changes
//! recovery, sealing, checkpoints or retention tries them again.
//!
//! | edit | caught by |
//! |---|---|
//! | the chain of records is not checked | `records_of_a_lost_life_do_not_follow` |
//! | a torn group is kept | 10 seeds |
//! | a torn tail is not cut | 13 seeds |
//! | the envelope's sum is not checked | S-17, C-076 |
//! | the body's sum is not checked | S-17 |
//! | a flush is reported before it is synced | S-1, S-2, S-6, S-19, 58 seeds |
//! | a checkpoint carries marks that are not durable | S-11, 33 seeds |
//! | a checkpoint carries deletions that are not durable | 8 seeds |
//! | an index leaves out a topic whose deletion is not durable | 4 seeds |
//! | sums of an index file are not checked | `a_flipped_bit_of_an_index_file`, `index.rs` |
//! | the directory is not synced with a new segment | S-1, S-2, S-6, S-11, 38 seeds |
//! | the length of a new segment is not synced | S-1, S-2, S-6, S-11, S-19, 60 seeds |
//! | the directory is not synced behind a replaced cache; nor its bytes before | 12 seeds; 41 seeds |
//! | the same in `atomic_file::save` | C-078 |
//! | the end that a recovery found is not synced | S-1, S-6, S-19, 5 seeds |
//! | a scanned segment is not synced before its index is written | S-1, S-19, 15 seeds |
//! | a clean end is believed without a look behind it | `records_of_a_lost_life_do_not_follow`, 3 seeds |
//! | a step retires before it writes its checkpoint, and does not ask whether one has the marks | seed 22 alone |
//! | a retired file that cannot be removed leaves a hole | seed 750 alone |
//! | the chain from segment to segment, or epochs, not checked | none: own positions and sums within a segment find it |
//! | the directory is not synced at the renaming of a spare | 4 of 240 seeds: 91, 142, 151, 175 |
//! | a segment goes before its floors are durable | none: the checkpoint knows the floors too |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::tests::{Ears, bodies, drain, message, open, small};
use super::*;
use crate::disk::{Disk, Fault, FaultyDisk};

/// One appended message.
#[derive(Clone, Debug)]
struct Entered {
    topic: &'static str,
    queue: i32,
    offset: i64,
    body: Vec<u8>,
    end: u64,
    group: u64,
}

/// What was appended, in the order of the log, and what is known of it.
#[derive(Default)]
struct Ledger {
    entered: Vec<Entered>,
    /// Everything below was reported durable.
    durable: u64,
    delivered: i64,
    resolved: Vec<i64>,
    /// Topics whose deletion was reported, with the end of the log then.
    deleted: Vec<(&'static str, u64)>,
    /// An append was cut short: it may be there or not.
    unknown: bool,
}

const TOPICS: [(&str, i32); 4] = [("orders", 0), ("orders", 1), ("bills", 0), ("gone", 0)];

/// Runs the load until it is over or the disk has stopped.
fn load(store: &Store, ledger: &mut Ledger, rounds: u64) {
    for round in 0..rounds {
        let now = round as i64;
        let (topic, id) = TOPICS[(round % 4) as usize];
        let body = format!("round {round} {}", "x".repeat((round % 7 * 30) as usize)).into_bytes();
        let queue = store.queue(topic, id);
        let done = match round % 5 {
            4 => {
                let members = [
                    Member::Message(&queue, message(&body, b"KEYS\x01k\x02TAGS\x01a")),
                    Member::Message(&queue, message(&body, b"")),
                    Member::Mark(Mark::DelayDelivered { level_queue: 2, offset: now }),
                ];
                let mut out = Vec::new();
                let done = store.append_group(&members, now, &mut out);
                if done.is_ok() {
                    ledger.delivered = now + 1;
                }
                done.map(|()| vec![out[0], out[1]])
            }
            _ => store.append(&queue, &message(&body, b"UNIQ_KEY\x01u"), now).map(|done| vec![done]),
        };
        match done {
            Ok(done) => ledger.entered.extend(done.iter().map(|done| Entered {
                topic,
                queue: id,
                offset: done.queue_offset.0,
                body: body.clone(),
                end: done.end,
                group: round,
            })),
            Err(_) => {
                ledger.unknown = true;
                return;
            }
        }
        if round % 11 == 10 {
            if store.append_mark(Mark::HalfResolved { offset: now }, now).is_err() {
                return;
            }
            ledger.resolved.push(now);
        }
        if round == 23 {
            if store.delete_topic("gone", now).is_err() {
                ledger.unknown = true;
                return;
            }
            ledger.deleted.push(("gone", store.log_end()));
        }
        if round % 3 == 2 {
            if store.flush_step().is_err() {
                return;
            }
            ledger.durable = ledger.durable.max(store.durable());
        }
        if round % 6 == 5 {
            store.segment_step(now * 1000);
        }
    }
}

/// Messages with their offsets, by topic and queue.
type Contents = BTreeMap<(String, i32), Vec<(i64, Vec<u8>)>>;

/// Every message that is there, by queue.
fn contents(store: &Store) -> Contents {
    let all = store.queues().into_iter().map(|queue| ((queue.topic().to_string(), queue.id()), drain(store, &queue)));
    all.filter(|(_, messages)| !messages.is_empty()).collect()
}

/// Holds what is there against the ledger. `kept`: what must be there at least, by log position.
fn check(store: &Store, ledger: &Ledger, kept: u64, what: &str) {
    let found = contents(store);
    let gone = |entered: &Entered| {
        ledger
            .deleted
            .iter()
            .any(|(topic, end)| *topic == entered.topic && entered.end <= *end && *end <= store.log_end())
    };
    // S-3: dense, and each what it says it is (drain checks topic and queue).
    for ((topic, queue), messages) in &found {
        let handle = store.queue(topic, *queue);
        let (min, max) = store.bounds(&handle);
        let offsets: Vec<i64> = messages.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets, (min.0..max.0).collect::<Vec<_>>(), "{what}: {topic}/{queue}");
    }
    let has = |entered: &Entered| {
        let messages = found.get(&(entered.topic.to_owned(), entered.queue));
        messages.is_some_and(|messages| messages.contains(&(entered.offset, entered.body.clone())))
    };
    // S-1, S-2, S-6: what was acknowledged is there, byte for byte; what is there is a prefix of the log.
    let mut cut = false;
    for (at, entered) in ledger.entered.iter().enumerate().filter(|(_, entered)| !gone(entered)) {
        let there = has(entered);
        assert!(there || entered.end > kept, "{what}: lost {entered:?}, kept {kept}");
        assert!(!(there && cut), "{what}: {entered:?} is there, but something before it is not");
        cut |= !there;
        // S-5: a group is there as a whole or not at all.
        for other in ledger.entered.iter().skip(at + 1).filter(|other| other.group == entered.group) {
            assert_eq!(has(other), there, "{what}: group {} was torn", entered.group);
        }
    }
    // S-4: nothing is there that was not sent. The one that was cut short may be there.
    let known = ledger.entered.iter().filter(|entered| !gone(entered)).count();
    let there: usize = found.values().map(Vec::len).sum();
    assert!(there <= known + if ledger.unknown { 2 } else { 0 }, "{what}: {there} messages, {known} sent");
    // S-11: the mark of a delivery is there exactly if the message delivered with it is.
    let last_group = ledger.entered.iter().filter(|entered| entered.group % 5 == 4);
    let delivered = last_group.filter(|entered| gone(entered) || has(entered)).map(|entered| entered.group as i64 + 1);
    if !ledger.unknown {
        assert_eq!(store.delay_position(2).0, delivered.max().unwrap_or(0), "{what}: deliveries");
    }
}

/// Opens what a crash left, checks it, and checks that opening it again changes nothing and loses nothing.
fn survives(disk: &FaultyDisk, ledger: &Ledger, kept: u64, what: &str) {
    let (store, _) = open(disk, small());
    check(&store, ledger, kept, what);
    let before = contents(&store);
    let end = store.log_end();
    drop(store);
    let mut files = disk.contents();
    files.remove("CHECKPOINT");

    // S-14: recovering what was recovered changes no file but the checkpoint.
    let (store, _) = open(disk, small());
    assert_eq!((contents(&store), store.log_end()), (before.clone(), end), "{what}: second recovery");
    drop(store);
    let mut again = disk.contents();
    again.remove("CHECKPOINT");
    assert_eq!(again, files, "{what}: second recovery changed a file");

    // S-7, S-8: what was cut never comes back, also when the next crash comes before or after an append.
    let (store, _) = open(disk, small());
    let queue = store.queue("orders", 0);
    let max = store.bounds(&queue).1;
    let done = store.append(&queue, &message(b"after", b""), 1 << 40).unwrap();
    assert!(done.queue_offset == max && done.physical >= end + 32, "{what}: the next append went to {done:?}");
    drop(store);
    for after in [disk.after_kill(), disk.after_power_cut(end)] {
        let (store, _) = open(&after, small());
        let mut found = contents(&store);
        let messages = found.entry(("orders".into(), 0)).or_default();
        if messages.last().is_some_and(|(_, body)| body == b"after") {
            messages.pop();
        }
        found.retain(|_, messages| !messages.is_empty());
        assert_eq!(found, before, "{what}: after another crash");
    }
}

#[test]
fn s_1_to_s_8_a_crash_at_every_call_loses_nothing_acknowledged_and_invents_nothing() {
    let mut n = 0;
    loop {
        let disk = FaultyDisk::new();
        disk.fail_at(n, Fault::Stop);
        let mut ledger = Ledger::default();
        let opened = Store::open(Arc::new(disk.clone()), small(), 0, Arc::new(Unwatched));
        if let Ok((store, _)) = &opened {
            load(store, &mut ledger, 60);
        }
        let all = ledger.entered.last().map_or(0, |last| last.end);
        survives(&disk.after_kill(), &ledger, all, &format!("kill at call {n}"));
        for seed in 0..2 {
            let what = format!("power cut at call {n}, seed {seed}");
            survives(&disk.after_power_cut(n * 31 + seed), &ledger, ledger.durable, &what);
        }
        if !disk.stopped() {
            break;
        }
        n += 1;
    }
    assert!(n > 150, "only {n} calls were tried");
}

#[test]
fn s_6_a_crash_at_every_call_of_a_recovery_loses_nothing_either() {
    let disk = FaultyDisk::new();
    let mut ledger = Ledger::default();
    let (store, _) = open(&disk, small());
    load(&store, &mut ledger, 50);
    drop(store);
    for (case, crashed) in [disk.after_kill(), disk.after_power_cut(3), disk.after_power_cut(8)].into_iter().enumerate()
    {
        let kept = if case == 0 { ledger.entered.last().unwrap().end } else { ledger.durable };
        let mut n = 0;
        loop {
            let again = crashed.after_kill();
            again.fail_at(n, Fault::Stop);
            let opened = Store::open(Arc::new(again.clone()), small(), 0, Arc::new(Unwatched));
            let done = opened.is_ok();
            drop(opened);
            survives(&again.after_kill(), &ledger, kept, &format!("case {case}: kill at call {n} of the recovery"));
            for seed in 0..2 {
                let what = format!("case {case}: power cut at call {n} of the recovery, seed {seed}");
                survives(&again.after_power_cut(n * 7 + seed), &ledger, ledger.durable, &what);
            }
            if done && !again.stopped() {
                break;
            }
            n += 1;
        }
        assert!(n > 3, "only {n} calls were tried");
    }
}

#[test]
fn s_19_a_failing_call_anywhere_costs_no_acknowledged_message_and_never_the_process() {
    for fault in [Fault::Error, Fault::Short, Fault::NoSpace] {
        let mut n = 0;
        loop {
            let disk = FaultyDisk::new();
            disk.fail_at(n, fault);
            let mut ledger = Ledger::default();
            let calls = if let Ok((store, _)) = Store::open(Arc::new(disk.clone()), small(), 0, Arc::new(Unwatched)) {
                load(&store, &mut ledger, 60);
                store.segment_step(1_000_000);
                // What was shown stays readable whatever failed.
                let shown = contents(&store);
                for entered in ledger.entered.iter().filter(|entered| entered.end <= ledger.durable) {
                    let gone = ledger.deleted.iter().any(|(topic, _)| *topic == entered.topic);
                    let messages = shown.get(&(entered.topic.to_owned(), entered.queue));
                    let there = messages.is_some_and(|all| all.contains(&(entered.offset, entered.body.clone())));
                    assert!(gone || there, "{fault:?} at call {n}: {entered:?} is not shown");
                }
                disk.calls()
            } else {
                u64::MAX
            };
            let kept = ledger.entered.last().map_or(0, |last| last.end).min(ledger.durable);
            survives(&disk.after_kill(), &ledger, kept, &format!("{fault:?} at call {n}"));
            if calls <= n {
                break;
            }
            n += 1;
        }
    }
}

#[test]
fn s_2_under_async_a_power_cut_leaves_a_prefix() {
    let options = small().flush(Flush::Async);
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, options.clone());
    let mut ledger = Ledger::default();
    load(&store, &mut ledger, 60);
    for seed in 0..200 {
        let after = disk.after_power_cut(seed);
        let ears = Arc::new(Ears::default());
        let (store, _) = Store::open(Arc::new(after), options.clone(), 0, ears).unwrap();
        check(&store, &ledger, ledger.durable, &format!("seed {seed}"));
    }
}

#[test]
fn s_15_s_16_caches_may_be_deleted_in_any_combination_and_are_not_needed_to_be_read() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small());
    let mut ledger = Ledger::default();
    load(&store, &mut ledger, 60);
    let (want, end) = (contents(&store), store.log_end());
    let marks = (store.delay_position(2), store.halves_resolved_through(), store.half_resolved(QueueOffset(21)));
    let keys = bodies(&store.by_key("orders", "u", 100, 0, i64::MAX));
    drop(store);
    let indexes: Vec<String> = disk.list("idx").unwrap().into_iter().map(|file| format!("idx/{}", file.name)).collect();
    assert!(indexes.len() > 2 && keys.len() > 5);
    for mask in 0..1usize << (indexes.len().min(5) + 1) {
        let after = disk.after_kill();
        if mask & 1 == 1 {
            after.remove("CHECKPOINT").unwrap();
        }
        for (at, name) in indexes.iter().enumerate().filter(|(at, _)| mask >> (at + 1) & 1 == 1) {
            after.remove(name).unwrap();
            assert!(at < 6);
        }
        let (store, recovered) = open(&after, small());
        assert_eq!((contents(&store), store.log_end()), (want.clone(), end), "mask {mask:b}");
        let found = (store.delay_position(2), store.halves_resolved_through(), store.half_resolved(QueueOffset(21)));
        assert_eq!(found, marks, "mask {mask:b}");
        assert_eq!(bodies(&store.by_key("orders", "u", 100, 0, i64::MAX)), keys, "mask {mask:b}");
        if mask == 0 {
            assert!(recovered.scanned <= 2, "{} segments were scanned", recovered.scanned);
        }
    }
    // S-16: with its caches, a start reads only the segments that are not complete.
    let after = disk.after_kill();
    let (store, recovered) = open(&after, small());
    let sealed = store.log_end() / 4096;
    let read = after.bytes_read();
    let whole = read.iter().filter(|(name, bytes)| name.starts_with("log/") && **bytes > 64).count();
    // The one behind the end was made ahead; it is looked at to know that it is empty.
    assert!(whole <= recovered.scanned + 1 && (whole as u64) < sealed, "{read:?}");
}

#[test]
fn s_17_a_flipped_bit_is_never_served() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small());
    let mut ledger = Ledger::default();
    load(&store, &mut ledger, 60);
    store.flush_step().unwrap();
    store.segment_step(1);
    store.flush_step().unwrap();
    assert!(store.close());
    drop(store);
    let (store, _) = open(&disk.after_kill(), small());
    let want = contents(&store);
    drop(store);
    let mut reported = 0;
    for (name, bytes) in disk.contents().iter().filter(|(name, _)| name.starts_with("log/")) {
        for at in (0..bytes.len()).step_by(83) {
            for keep_caches in [true, false] {
                let after = disk.after_kill();
                after.flip(name, at, 0x20);
                if !keep_caches {
                    let _ = after.remove("CHECKPOINT");
                }
                let ears = Arc::new(Ears::default());
                let opened = Store::open(Arc::new(after), small(), 0, ears.clone());
                let Ok((store, _)) = opened else {
                    reported += 1;
                    continue;
                };
                let found = contents(&store);
                for ((topic, queue), messages) in &found {
                    let sent = |(offset, body): &(i64, Vec<u8>)| {
                        ledger.entered.iter().any(|entered| {
                            (entered.topic, entered.queue, entered.offset) == (topic.as_str(), *queue, *offset)
                                && entered.body == *body
                        })
                    };
                    assert!(messages.iter().all(sent), "{name} byte {at}: a flip was served");
                }
                let events = ears.events.lock().unwrap().len();
                assert!(found == want || events > 0, "{name} byte {at}: messages went without a word");
                reported += events;
            }
        }
    }
    assert!(reported > 50, "{reported}");
}

#[test]
fn s_15_a_flipped_bit_of_an_index_file_changes_no_answer() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small());
    let mut ledger = Ledger::default();
    load(&store, &mut ledger, 60);
    store.flush_step().unwrap();
    store.segment_step(1_000_000);
    assert!(store.close());
    drop(store);
    let answers = |store: &Store| (contents(store), bodies(&store.by_key("orders", "u", 100, 0, i64::MAX)));
    let (store, _) = open(&disk.after_kill(), small());
    let want = answers(&store);
    drop(store);
    let files: Vec<_> = disk.contents().into_iter().filter(|(name, _)| name.starts_with("idx/")).collect();
    assert!(files.len() > 2);
    for (name, bytes) in files {
        for at in (0..bytes.len()).step_by(5) {
            let after = disk.after_kill();
            after.flip(&name, at, 0x10);
            let (store, _) = open(&after, small());
            assert_eq!(answers(&store), want, "{name} byte {at}");
        }
    }
}

#[test]
fn s_18_a_second_process_fails_before_it_changes_a_byte() {
    let disk = FaultyDisk::new();
    let (store, _) = open(&disk, small());
    store.append(&store.queue("t", 0), &message(b"m", b""), 0).unwrap();
    let (before, calls) = (disk.contents(), disk.calls());
    let second = Store::open(Arc::new(disk.clone()), small(), 0, Arc::new(Unwatched));
    assert!(matches!(second, Err(OpenError::InUse { .. })));
    assert_eq!((disk.contents(), disk.calls() - calls), (before, 1), "only the directory itself may be made");
    drop(store);
    open(&disk, small());
}

#[test]
fn s_18_a_closed_store_gives_its_directory_free_and_changes_nothing_any_more() {
    let disk = FaultyDisk::new();
    let options = small().retain_segments(1);
    let (store, _) = open(&disk, options.clone());
    let queue = store.queue("t", 0);
    for _ in 0..60 {
        store.append(&queue, &message(&[b'x'; 150], b""), 0).unwrap();
        store.flush_step().unwrap();
    }
    let (known, min) = (drain(&store, &queue), store.log_min());
    assert!(store.close());
    let (next, _) = open(&disk, small());
    let (before, calls) = (disk.contents(), disk.calls());
    store.segment_step(1 << 40);
    store.flush_step().unwrap();
    assert!(matches!(store.append(&queue, &message(b"late", b""), 0), Err(AppendError::Closed)));
    assert!(matches!(store.delete_topic("t", 0), Err(AppendError::Closed)));
    assert!(store.close());
    assert_eq!((disk.contents(), disk.calls()), (before, calls), "it changed the other's directory");
    assert_eq!((drain(&store, &queue), store.log_min()), (known, min), "what it knows it still reads");
    drop(store);
    assert!(matches!(
        Store::open(Arc::new(disk.clone()), small(), 0, Arc::new(Unwatched)),
        Err(OpenError::InUse { .. })
    ));
    drop(next);
}

#[test]
fn a_failed_sync_makes_the_store_read_only_for_good() {
    let disk = FaultyDisk::new();
    let ears = Arc::new(Ears::default());
    let (store, _) = Store::open(Arc::new(disk.clone()), small(), 0, ears.clone()).unwrap();
    let queue = store.queue("t", 0);
    let done = store.append(&queue, &message(b"first", b""), 0).unwrap();
    disk.fail_at(0, Fault::Error);
    assert!(matches!(store.flush_step(), Err(DurableError::Failed { .. })));
    assert!(matches!(store.append(&queue, &message(b"second", b""), 0), Err(AppendError::ReadOnly { .. })));
    assert!(matches!(store.flush_step(), Err(DurableError::Failed { .. })), "never as if it could succeed now");
    let waited = store.wait_durable(done.end, Duration::from_secs(10));
    assert!(matches!(waited, Err(DurableError::Failed { .. })));
    assert!(store.read_only().is_some() && !store.close());
    assert!(matches!(ears.events.lock().unwrap().as_slice(), [Event::SyncFailed { .. }]));
    assert_eq!(store.bounds(&queue).1.0, 0, "what is not durable is not shown");
}

#[test]
fn s_11_a_checkpoint_knows_no_mark_that_the_disk_may_lose() {
    let mut lost = 0;
    for seed in 0..40 {
        let disk = FaultyDisk::new();
        let (store, _) = open(&disk, small());
        let queue = store.queue("orders", 0);
        store.append(&queue, &message(b"kept", b""), 0).unwrap();
        store.flush_step().unwrap();
        let members = [
            Member::Message(&queue, message(b"due", b"")),
            Member::Mark(Mark::DelayDelivered { level_queue: 2, offset: 4 }),
        ];
        store.append_group(&members, 0, &mut Vec::new()).unwrap();
        assert!(store.shared.save_checkpoint(None));
        drop(store);
        let (store, _) = open(&disk.after_power_cut(seed), small());
        let there = store.bounds(&store.queue("orders", 0)).1.0 == 2;
        assert_eq!(store.delay_position(2).0, if there { 5 } else { 0 }, "seed {seed}");
        lost += u32::from(!there);
    }
    assert!(lost > 0, "no cut took the group");
}
