//! The index file of a complete segment: which queues have messages in it and where, sorted by queue, and its keys,
//! sorted by hash. A cache: it is made again from the segment when it is missing or damaged.
//!
//! Layout, big-endian: a header of 96 bytes; the directory; the entries of 32 bytes each, queue by queue; blocks of
//! up to 255 keys of 16 bytes with a sum each. Header and directory have one sum each, every entry its own.

use std::io;
use std::sync::Arc;

use super::append::Key;
use super::format::{i32_at, i64_at, u16_at, u32_at, u64_at};
use super::queue::Entry;
use crate::disk::{Blob, Disk, atomic_file};

const MAGIC: u32 = 0x574C_5831;
const VERSION: u16 = 1;
const HEADER: usize = 96;
/// Bytes of an entry.
const ENTRY: usize = 32;
const KEY: usize = 16;
const KEYS_PER_BLOCK: usize = 255;
/// Bytes of a full block: its keys and their sum. The last one is shorter.
const KEY_BLOCK: usize = KEYS_PER_BLOCK * KEY + 4;

/// Name of the index file of the segment that starts here.
pub(super) fn name_of(start: u64) -> String {
    format!("idx/{start:020}")
}

/// One queue in the directory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Row {
    pub topic: Arc<str>,
    pub queue: i32,
    /// Queue offset of its first entry here.
    pub first: i64,
    pub count: u32,
    /// Number of its first entry among all entries here.
    pub position: u32,
}

/// What an index file says about its segment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct About {
    pub start: u64,
    pub end: u64,
    pub last_crc: u32,
    pub last_epoch: u32,
    pub earliest_ms: i64,
    pub latest_ms: i64,
}

/// What is read of an index file when a store is opened.
#[derive(Clone, Debug, Default)]
pub(super) struct Directory {
    pub rows: Vec<Row>,
    pub deletions: Vec<(u64, Arc<str>)>,
}

/// An index file that is open for reading by position.
pub(super) struct IndexFile {
    blob: Arc<dyn Blob>,
    pub about: About,
    entries_at: u64,
    keys_at: u64,
    keys: u32,
}

/// The pieces of an index file about to be written.
#[derive(Default)]
pub(super) struct Builder {
    rows: Vec<u8>,
    row_count: u32,
    entries: Vec<u8>,
    entry_count: u32,
}

impl Builder {
    /// Adds a queue with its entries in this segment.
    pub fn queue(&mut self, topic: &str, queue: i32, first: i64, entries: &[Entry]) {
        if entries.is_empty() {
            return;
        }
        let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        put_text(&mut self.rows, topic);
        self.rows.extend(queue.to_be_bytes());
        self.rows.extend(first.to_be_bytes());
        self.rows.extend(count.to_be_bytes());
        self.rows.extend(self.entry_count.to_be_bytes());
        self.row_count += 1;
        self.entry_count += count;
        self.entries.reserve(entries.len() * ENTRY);
        for (entry, offset) in entries.iter().zip(first..) {
            self.entries.extend(encode_entry(entry, offset));
        }
    }

    /// The whole file.
    pub fn finish(self, about: About, deletions: &[(u64, Arc<str>)], mut keys: Vec<Key>) -> Vec<u8> {
        keys.sort_unstable();
        let mut directory = self.rows;
        for (at, topic) in deletions {
            directory.extend(at.to_be_bytes());
            put_text(&mut directory, topic);
        }
        let mut head = Vec::with_capacity(HEADER);
        head.extend(MAGIC.to_be_bytes());
        head.extend(VERSION.to_be_bytes());
        head.extend([0; 2]);
        head.extend(about.start.to_be_bytes());
        head.extend(about.end.to_be_bytes());
        head.extend(about.last_crc.to_be_bytes());
        head.extend(about.last_epoch.to_be_bytes());
        head.extend(about.earliest_ms.to_be_bytes());
        head.extend(about.latest_ms.to_be_bytes());
        for number in [
            self.row_count,
            u32::try_from(deletions.len()).unwrap_or(0),
            u32::try_from(directory.len()).unwrap_or(u32::MAX),
            self.entry_count,
            u32::try_from(keys.len()).unwrap_or(u32::MAX),
            crc32c::crc32c(&directory),
        ] {
            head.extend(number.to_be_bytes());
        }
        head.resize(HEADER - 4, 0);
        head.extend(crc32c::crc32c(&head).to_be_bytes());
        let mut file = head;
        file.reserve(directory.len() + self.entries.len() + keys.len() * KEY + keys.len().div_ceil(KEYS_PER_BLOCK) * 4);
        file.extend(directory);
        file.extend(self.entries);
        for block in keys.chunks(KEYS_PER_BLOCK) {
            let start = file.len();
            for key in block {
                file.extend(key.hash.to_be_bytes());
                file.extend(key.at.to_be_bytes());
                file.extend(key.seconds.to_be_bytes());
            }
            let sum = crc32c::crc32c(file.get(start..).unwrap_or_default());
            file.extend(sum.to_be_bytes());
        }
        file
    }
}

/// Writes an index file in place of any older one.
pub(super) fn save(disk: &dyn Disk, start: u64, bytes: &[u8], durable: bool) -> io::Result<()> {
    atomic_file::replace(disk, &name_of(start), bytes, durable)
}

impl IndexFile {
    /// Opens the index of the segment that starts at `start`, if it is there, whole, and of the segment that ends at
    /// `end` with a record of this sum.
    pub fn open(disk: &dyn Disk, start: u64, end: u64, last_crc: u32) -> Option<(Self, Directory)> {
        let blob = disk.open(&name_of(start)).ok()?;
        let mut head = [0; HEADER];
        blob.read_at(0, &mut head).ok()?;
        let (covered, sum) = head.split_at(HEADER - 4);
        if u32_at(&head, 0)? != MAGIC || u16_at(&head, 4)? != VERSION || u32_at(sum, 0)? != crc32c::crc32c(covered) {
            return None;
        }
        let about = About {
            start: u64_at(&head, 8)?,
            end: u64_at(&head, 16)?,
            last_crc: u32_at(&head, 24)?,
            last_epoch: u32_at(&head, 28)?,
            earliest_ms: i64_at(&head, 32)?,
            latest_ms: i64_at(&head, 40)?,
        };
        let rows = u32_at(&head, 48)?;
        let deletions = u32_at(&head, 52)?;
        let directory_len = u32_at(&head, 56)?;
        let entries = u32_at(&head, 60)?;
        let keys = u32_at(&head, 64)?;
        let directory_sum = u32_at(&head, 68)?;
        let entries_at = HEADER as u64 + u64::from(directory_len);
        let keys_at = entries_at + u64::from(entries) * ENTRY as u64;
        let whole = keys_at + u64::from(keys) * KEY as u64 + u64::from(blocks_of(keys)) * 4;
        if about.start != start || about.end != end || about.last_crc != last_crc || blob.bytes() != whole {
            return None;
        }
        let mut bytes = vec![0; directory_len as usize];
        blob.read_at(HEADER as u64, &mut bytes).ok()?;
        if crc32c::crc32c(&bytes) != directory_sum {
            return None;
        }
        let directory = read_directory(&bytes, rows, deletions)?;
        Some((Self { blob, about, entries_at, keys_at, keys }, directory))
    }

    /// Reads entries by their number in the file; `first` is the queue offset of the first. `None` if the file cannot
    /// be read or an entry fails its sum.
    pub fn entries(&self, position: u32, first: i64, count: usize) -> Option<Vec<Entry>> {
        let mut bytes = vec![0; count * ENTRY];
        self.blob.read_at(self.entries_at + u64::from(position) * ENTRY as u64, &mut bytes).ok()?;
        bytes.chunks_exact(ENTRY).zip(first..).map(|(bytes, offset)| decode_entry(bytes, offset)).collect()
    }

    /// Every key with this hash. `None` if the file cannot be read or a block fails its sum.
    pub fn keys(&self, hash: u64) -> Option<Vec<Key>> {
        let (mut low, mut high) = (0, blocks_of(self.keys));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.block(middle)?.last()?.hash < hash {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut found = Vec::new();
        for number in low..blocks_of(self.keys) {
            let block = self.block(number)?;
            found.extend(block.iter().filter(|key| key.hash == hash));
            if block.last().is_none_or(|last| last.hash > hash) {
                break;
            }
        }
        Some(found)
    }

    /// Every key there is. `None` as for [`IndexFile::keys`].
    pub fn all_keys(&self) -> Option<Vec<Key>> {
        let mut found = Vec::new();
        for number in 0..blocks_of(self.keys) {
            found.extend(self.block(number)?);
        }
        Some(found)
    }

    fn block(&self, number: u32) -> Option<Vec<Key>> {
        let before = number as usize * KEYS_PER_BLOCK;
        let len = (self.keys as usize).saturating_sub(before).min(KEYS_PER_BLOCK) * KEY;
        let mut bytes = [0; KEY_BLOCK];
        let bytes = bytes.get_mut(..len + 4)?;
        self.blob.read_at(self.keys_at + u64::from(number) * KEY_BLOCK as u64, bytes).ok()?;
        let (keys, rest) = bytes.split_at(len);
        if u32_at(rest, 0)? != crc32c::crc32c(keys) {
            return None;
        }
        let key =
            |bytes: &[u8]| Some(Key { hash: u64_at(bytes, 0)?, at: u32_at(bytes, 8)?, seconds: u32_at(bytes, 12)? });
        keys.chunks_exact(KEY).map(key).collect()
    }
}

fn blocks_of(keys: u32) -> u32 {
    keys.div_ceil(KEYS_PER_BLOCK as u32)
}

fn read_directory(bytes: &[u8], rows: u32, deletions: u32) -> Option<Directory> {
    let mut directory = Directory::default();
    let mut at = 0;
    for _ in 0..rows {
        let topic = take_text(bytes, &mut at)?;
        directory.rows.push(Row {
            topic: topic.into(),
            queue: i32_at(bytes, at)?,
            first: i64_at(bytes, at + 4)?,
            count: u32_at(bytes, at + 12)?,
            position: u32_at(bytes, at + 16)?,
        });
        at += 20;
    }
    for _ in 0..deletions {
        let position = u64_at(bytes, at)?;
        at += 8;
        directory.deletions.push((position, take_text(bytes, &mut at)?.into()));
    }
    Some(directory)
}

fn encode_entry(entry: &Entry, offset: i64) -> [u8; ENTRY] {
    let mut out = [0; ENTRY];
    out[0..8].copy_from_slice(&entry.physical.to_be_bytes());
    out[8..12].copy_from_slice(&entry.size.to_be_bytes());
    out[12..16].copy_from_slice(&entry.tag.to_be_bytes());
    out[16..24].copy_from_slice(&entry.time_ms.to_be_bytes());
    out[24..28].copy_from_slice(&entry.flags.to_be_bytes());
    let sum = crc32c::crc32c_append(crc32c::crc32c(&out[..28]), &offset.to_be_bytes());
    out[28..32].copy_from_slice(&sum.to_be_bytes());
    out
}

fn decode_entry(bytes: &[u8], offset: i64) -> Option<Entry> {
    let sum = crc32c::crc32c_append(crc32c::crc32c(bytes.get(..28)?), &offset.to_be_bytes());
    (sum == u32_at(bytes, 28)?).then_some(Entry {
        physical: u64_at(bytes, 0)?,
        size: u32_at(bytes, 8)?,
        tag: i32_at(bytes, 12)?,
        time_ms: i64_at(bytes, 16)?,
        flags: u32_at(bytes, 24)?,
    })
}

/// Appends a text of at most 65535 bytes behind its length.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend(text.as_bytes());
}

/// Reads what [`put_text`] wrote and moves `at` behind it.
pub(super) fn take_text<'a>(bytes: &'a [u8], at: &mut usize) -> Option<&'a str> {
    let len = usize::from(u16_at(bytes, *at)?);
    let text = bytes.get(*at + 2..*at + 2 + len)?;
    *at += 2 + len;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::FaultyDisk;

    fn entry(n: u64) -> Entry {
        Entry { physical: n * 100 + 32, size: 90, tag: n as i32, time_ms: n as i64, flags: 0 }
    }

    fn sample(keys: u64) -> (FaultyDisk, About) {
        let disk = FaultyDisk::new();
        let about = About { start: 64, end: 4000, last_crc: 9, last_epoch: 2, earliest_ms: 1, latest_ms: 5 };
        let mut builder = Builder::default();
        builder.queue("a", 0, 7, &[entry(0), entry(2)]);
        builder.queue("b", 3, 0, &[entry(1)]);
        let keys = (0..keys).map(|n| Key { hash: n / 3, at: n as u32, seconds: 1 }).rev().collect();
        let bytes = builder.finish(about, &[(500, "old".into())], keys);
        save(&disk, 64, &bytes, true).unwrap();
        (disk, about)
    }

    #[test]
    fn what_was_written_is_found_by_queue_and_by_key() {
        let (disk, about) = sample(2000);
        let (file, directory) = IndexFile::open(&disk, 64, 4000, 9).unwrap();
        assert_eq!((file.about, directory.rows.len(), directory.deletions.len()), (about, 2, 1));
        let row = &directory.rows[0];
        assert_eq!((&*row.topic, row.first, row.count, row.position), ("a", 7, 2, 0));
        assert_eq!(file.entries(0, 7, 2), Some(vec![entry(0), entry(2)]));
        assert_eq!(file.entries(2, 0, 1), Some(vec![entry(1)]));
        assert_eq!(file.entries(2, 1, 1), None, "the sum covers the queue offset");
        for hash in [0, 84, 85, 666] {
            let want: Vec<u32> = (0..2000).filter(|n| u64::from(n / 3) == hash).collect();
            assert_eq!(file.keys(hash).unwrap().iter().map(|key| key.at).collect::<Vec<_>>(), want, "hash {hash}");
        }
        assert_eq!(file.keys(u64::MAX), Some(vec![]));
        assert_eq!(file.keys(700), Some(vec![]));
    }

    #[test]
    fn a_file_of_another_segment_or_with_a_flipped_bit_is_refused_or_found_out() {
        let (disk, _) = sample(10);
        assert!(IndexFile::open(&disk, 64, 4001, 9).is_none() && IndexFile::open(&disk, 64, 4000, 8).is_none());
        let len = disk.read(&name_of(64)).unwrap().len();
        for at in (0..len).filter(|at| *at < HEADER + 300 || at % 97 == 0) {
            let (disk, _) = sample(10);
            disk.flip(&name_of(64), at, 0x10);
            let found = IndexFile::open(&disk, 64, 4000, 9);
            let whole = found.is_some_and(|(file, _)| {
                file.entries(0, 7, 2).is_some() && file.entries(2, 0, 1).is_some() && file.keys(2).is_some()
            });
            assert!(!whole, "flip at {at} of {len}");
        }
    }
}
