//! Damage to the messages of a pull's answer, where it can be noticed: a body, a length or a magic number.

use windlass::internals::wire::remoting::record::{Check, Record, index};

use crate::producer::id_of;
use crate::rng::Rng;

fn records(body: &[u8]) -> Vec<Record> {
    let (mut records, mut damage) = (Vec::new(), Vec::new());
    index(body, Check::Crc, &mut records, &mut damage);
    records
}

/// Where the body of a record starts.
fn body_at(record: &Record, bytes: &[u8]) -> usize {
    record.body(bytes).as_ptr() as usize - bytes.as_ptr() as usize
}

/// Makes these messages unreadable, always in the same way; the offsets of those that are there.
pub fn with_unreadable(bytes: &mut [u8], ids: &[u32]) -> Vec<i64> {
    let mut offsets = Vec::new();
    if ids.is_empty() {
        return offsets;
    }
    for record in records(bytes) {
        let id = id_of(&record, bytes);
        if !ids.contains(&id) {
            continue;
        }
        offsets.push(record.queue_offset);
        let at = match id % 3 {
            0 => record.at as usize + 4,
            1 => record.at as usize,
            _ => body_at(&record, bytes),
        };
        bytes[at] ^= 0x55;
    }
    offsets
}

/// Damages one message somehow; the offsets of those that cannot be read because of it.
pub fn damaged(bytes: &mut [u8], rng: &mut Rng) -> Vec<i64> {
    let before = records(bytes);
    if before.is_empty() {
        return Vec::new();
    }
    let record = &before[rng.below(before.len() as u64) as usize];
    let at = match rng.below(4) {
        0 => record.at as usize + rng.below(4) as usize,
        1 => record.at as usize + 4 + rng.below(4) as usize,
        _ => body_at(record, bytes) + rng.below(u64::from(record.body_len)) as usize,
    };
    bytes[at] ^= 1 << rng.below(8);
    let after: Vec<i64> = records(bytes).iter().map(|record| record.queue_offset).collect();
    before.iter().map(|record| record.queue_offset).filter(|offset| !after.contains(offset)).collect()
}
