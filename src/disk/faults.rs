//! A disk in memory that fails on purpose: at its n-th changing call it errs, writes half, is full, or stops for good.
//!
//! It keeps beside every file what would survive a power cut, so that a test can ask for the directory as a killed
//! process leaves it ([`FaultyDisk::after_kill`]) or as a power cut does ([`FaultyDisk::after_power_cut`]): any subset
//! of the unsynced 4 KiB blocks lost, unsynced lengths and names old or new. Tests and the simulation use it; it is
//! never part of a running broker.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::lock_file::{Held, LockError};
use super::mapped::{NoFile, Region};
use super::{Backing, Blob, Disk, Listed};

use crate::model::{SortedMap, SortedSet};

const BLOCK: usize = 4096;

/// How a call fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// It does nothing and reports an input-output error; later calls work.
    Error,
    /// A write does its first half and reports an error; other calls as `Error`.
    Short,
    /// What needs space is refused for want of it; other calls work.
    NoSpace,
    /// It and every later call do nothing: the process or the machine is gone.
    Stop,
}

/// A directory in memory, shared by its clones.
#[derive(Clone)]
pub struct FaultyDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Default)]
struct State {
    files: Vec<Content>,
    names: SortedMap<String, usize>,
    dirs: SortedSet<String>,
    /// What a power cut leaves of the names, and the changes since, in order.
    durable_names: SortedMap<String, usize>,
    pending: Vec<NameChange>,
    locked: SortedSet<String>,
    calls: u64,
    fail: Option<(u64, Fault)>,
    stopped: bool,
    capacity: Option<u64>,
    syncs: u64,
    reads: SortedMap<String, u64>,
}

#[derive(Clone, Default)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
}

#[derive(Clone)]
enum NameChange {
    Link(String, usize),
    Unlink(String),
    Rename(String, String),
}

/// What one call may do.
enum Verdict {
    Go,
    Half,
}

impl Default for FaultyDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl FaultyDisk {
    /// An empty directory that does not fail.
    pub fn new() -> Self {
        Self { state: Arc::default() }
    }

    /// Lets the `n`-th changing call from now, counted from 0, fail.
    pub fn fail_at(&self, n: u64, fault: Fault) {
        let mut state = self.state();
        state.fail = Some((state.calls + n, fault));
    }

    /// How many changing calls there have been.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// How many syncs of file contents there have been.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Bytes that have been read of each file by any call.
    pub fn bytes_read(&self) -> SortedMap<String, u64> {
        self.state().reads.clone()
    }

    /// True once a call met [`Fault::Stop`].
    pub fn stopped(&self) -> bool {
        self.state().stopped
    }

    /// Room for all files together, in bytes; `None`: no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// The directory as a new process finds it when this one is killed now: everything written is there.
    pub fn after_kill(&self) -> Self {
        let mut state = self.state().clone();
        state.restart();
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// The directory as it is found after a power cut now. `seed` chooses what of the unsynced survives.
    pub fn after_power_cut(&self, seed: u64) -> Self {
        let mut state = self.state().clone();
        let mut coin = Coin(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let kept = if state.pending.is_empty() { 0 } else { coin.below(state.pending.len() + 1) };
        for change in state.pending.clone().into_iter().take(kept) {
            change.apply(&mut state.durable_names);
        }
        state.names = state.durable_names.clone();
        for content in &mut state.files {
            content.cut(&mut coin);
        }
        state.restart();
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Every file with its content, for comparisons.
    pub fn contents(&self) -> SortedMap<String, Vec<u8>> {
        let state = self.state();
        state.names.iter().filter_map(|(name, at)| Some((name.clone(), state.files.get(*at)?.now.clone()))).collect()
    }

    /// Changes one byte of a file behind everybody's back.
    pub fn flip(&self, name: &str, at: usize, mask: u8) {
        let mut state = self.state();
        if let Ok(content) = state.content_mut(name)
            && let (Some(now), durable) = (content.now.get_mut(at), content.durable.get_mut(at))
        {
            *now ^= mask;
            if let Some(durable) = durable {
                *durable = *now;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn restart(&mut self) {
        self.pending.clear();
        self.durable_names = self.names.clone();
        self.locked.clear();
        self.calls = 0;
        self.fail = None;
        self.stopped = false;
        self.syncs = 0;
        self.reads.clear();
    }

    /// Counts a changing call and says how far it may go. `needs_space`: it can fail for want of it.
    fn call(&mut self, needs_space: bool) -> io::Result<Verdict> {
        let number = self.calls;
        self.calls += 1;
        if self.stopped {
            return Err(io::Error::other("the disk has stopped"));
        }
        match self.fail {
            Some((at, fault)) if at == number => match fault {
                Fault::Error => Err(io::Error::other("failed on purpose")),
                Fault::Short => Ok(Verdict::Half),
                Fault::NoSpace if needs_space => Err(io::ErrorKind::StorageFull.into()),
                Fault::NoSpace => Ok(Verdict::Go),
                Fault::Stop => {
                    self.stopped = true;
                    Err(io::Error::other("the disk has stopped"))
                }
            },
            _ => Ok(Verdict::Go),
        }
    }

    /// As [`State::call`] for what cannot be done by halves.
    fn whole_call(&mut self) -> io::Result<()> {
        match self.call(false)? {
            Verdict::Go => Ok(()),
            Verdict::Half => Err(io::Error::other("failed on purpose")),
        }
    }

    fn at(&self, name: &str) -> io::Result<usize> {
        if self.stopped {
            return Err(io::Error::other("the disk has stopped"));
        }
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn content(&self, name: &str) -> io::Result<&Content> {
        let at = self.at(name)?;
        self.files.get(at).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn content_mut(&mut self, name: &str) -> io::Result<&mut Content> {
        let at = self.at(name)?;
        self.files.get_mut(at).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn make(&mut self, name: &str) -> usize {
        let at = self.files.len();
        self.files.push(Content::default());
        self.change(NameChange::Link(name.to_owned(), at));
        at
    }

    fn change(&mut self, change: NameChange) {
        change.clone().apply(&mut self.names);
        self.pending.push(change);
    }

    /// Whether `more` bytes beyond what is there now fit.
    fn room(&self, more: u64) -> io::Result<()> {
        let Some(capacity) = self.capacity else { return Ok(()) };
        let used: u64 =
            self.names.values().filter_map(|at| self.files.get(*at)).map(|file| file.now.len() as u64).sum();
        if used + more > capacity { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn note_read(&mut self, name: &str, bytes: usize) {
        *self.reads.get_or_default(name.to_owned()) += bytes as u64;
    }
}

impl NameChange {
    fn apply(self, names: &mut SortedMap<String, usize>) {
        match self {
            Self::Link(name, at) => {
                names.insert(name, at);
            }
            Self::Unlink(name) => {
                names.remove(&name);
            }
            Self::Rename(from, to) => {
                if let Some(at) = names.remove(&from) {
                    names.insert(to, at);
                }
            }
        }
    }

    fn within(&self, dir: &str) -> bool {
        let (Self::Link(name, _) | Self::Unlink(name) | Self::Rename(_, name)) = self;
        dir_of(name) == dir
    }
}

impl Content {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if self.now.len() < end {
            self.now.resize(end, 0);
        }
        if let Some(part) = self.now.get_mut(at..end) {
            part.copy_from_slice(bytes);
        }
    }

    /// Makes the blocks that `from..to` touches durable, as far as the durable length goes.
    fn sync(&mut self, from: usize, to: usize) {
        let (start, end) =
            (from / BLOCK * BLOCK, to.next_multiple_of(BLOCK).min(self.now.len()).min(self.durable.len()));
        if start < end
            && let (Some(now), Some(durable)) = (self.now.get(start..end), self.durable.get_mut(start..end))
        {
            durable.copy_from_slice(now);
        }
    }

    fn cut(&mut self, coin: &mut Coin) {
        if self.now == self.durable {
            return;
        }
        let len = if coin.below(2) == 0 { self.durable.len() } else { self.now.len() };
        let mut left = vec![0; len];
        for start in (0..len).step_by(BLOCK) {
            let end = (start + BLOCK).min(len);
            let source = if coin.below(2) == 0 { &self.durable } else { &self.now };
            let there = source.get(start..end.min(source.len())).unwrap_or_default();
            if let Some(block) = left.get_mut(start..start + there.len()) {
                block.copy_from_slice(there);
            }
        }
        self.durable.clone_from(&left);
        self.now = left;
    }
}

impl Disk for FaultyDisk {
    fn place(&self) -> String {
        "memory".to_owned()
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        let mut state = self.state();
        state.whole_call()?;
        state.dirs.insert(dir.to_owned());
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Listed>> {
        let state = self.state();
        if state.stopped {
            return Err(io::Error::other("the disk has stopped"));
        }
        let of = |(name, at): (&String, &usize)| {
            let inner = if dir.is_empty() { name.as_str() } else { name.strip_prefix(dir)?.strip_prefix('/')? };
            if inner.contains('/') {
                return None;
            }
            Some(Listed { name: inner.to_owned(), len: state.files.get(*at)?.now.len() as u64 })
        };
        Ok(state.names.iter().filter_map(of).collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut state = self.state();
        let bytes = state.content(name)?.now.clone();
        state.note_read(name, bytes.len());
        Ok(bytes)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn Blob>> {
        let state = self.state();
        let (at, len) = (state.at(name)?, state.content(name)?.now.len() as u64);
        Ok(Arc::new(OpenFile { disk: self.clone(), name: name.to_owned(), at, len }))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let verdict = state.call(true)?;
        state.room(bytes.len() as u64)?;
        let half = bytes.get(..bytes.len() / 2).unwrap_or_default();
        let (bytes, short) = if matches!(verdict, Verdict::Half) { (half, true) } else { (bytes, false) };
        let at = match state.names.get(name) {
            Some(at) => *at,
            None => state.make(name),
        };
        if let Some(content) = state.files.get_mut(at) {
            content.now = bytes.to_vec();
        }
        if short { Err(io::Error::other("wrote half on purpose")) } else { Ok(()) }
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.whole_call()?;
        state.syncs += 1;
        let content = state.content_mut(name)?;
        content.durable = content.now.clone();
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let mut state = self.state();
        state.whole_call()?;
        let (ours, others) = std::mem::take(&mut state.pending).into_iter().partition(|change| change.within(dir));
        state.pending = others;
        let ours: Vec<NameChange> = ours;
        for change in ours {
            change.apply(&mut state.durable_names);
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.at(from)?;
        state.whole_call()?;
        state.change(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.at(name)?;
        state.whole_call()?;
        state.change(NameChange::Unlink(name.to_owned()));
        Ok(())
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.whole_call()?;
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        state.content_mut(name)?.now.resize(len, 0);
        Ok(())
    }

    fn allocate(&self, name: &str, len: u64, kept: usize) -> io::Result<Arc<Region>> {
        let mut state = self.state();
        if matches!(state.call(true)?, Verdict::Half) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let size = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let held = state.names.get(name).and_then(|at| state.files.get(*at)).map_or(0, |file| file.now.len());
        state.room(size.saturating_sub(held) as u64)?;
        let at = match state.names.get(name) {
            Some(at) => *at,
            None => state.make(name),
        };
        let Some(content) = state.files.get_mut(at) else { return Err(io::ErrorKind::NotFound.into()) };
        if content.now.len() < size {
            content.now.resize(size, 0);
        }
        let bytes = content.now.clone();
        drop(state);
        let backing = Box::new(Remembered { disk: self.clone(), at });
        Ok(Arc::new(Region::of_memory_kept(size, &bytes, kept, backing)?))
    }

    fn map(&self, name: &str) -> io::Result<Arc<Region>> {
        let bytes = self.read(name)?;
        Ok(Arc::new(Region::of_memory(bytes.len(), &bytes, true, Box::new(NoFile))?))
    }

    fn lock(&self, name: &str) -> Result<Held, LockError> {
        let mut state = self.state();
        if !state.locked.insert(name.to_owned()) {
            return Err(LockError::Taken { pid: Some(std::process::id()) });
        }
        Ok(Held::new(Unlock { disk: self.clone(), name: name.to_owned() }))
    }
}

struct Unlock {
    disk: FaultyDisk,
    name: String,
}

impl Drop for Unlock {
    fn drop(&mut self) {
        self.disk.state().locked.remove(&self.name);
    }
}

struct OpenFile {
    disk: FaultyDisk,
    name: String,
    at: usize,
    len: u64,
}

impl Blob for OpenFile {
    fn bytes(&self) -> u64 {
        self.len
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let start = usize::try_from(at).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = start.saturating_add(into.len());
        let bytes = state.files.get(self.at).and_then(|file| file.now.get(start..end));
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        state.note_read(&self.name, into.len());
        Ok(())
    }
}

/// A region's file: what is published is written, what is synced is durable.
struct Remembered {
    disk: FaultyDisk,
    at: usize,
}

impl Backing for Remembered {
    fn written(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let verdict = state.call(false)?;
        let Some(content) = state.files.get_mut(self.at) else { return Err(io::ErrorKind::NotFound.into()) };
        match verdict {
            Verdict::Go => content.put(at, bytes),
            Verdict::Half => {
                content.put(at, bytes.get(..bytes.len() / 2).unwrap_or_default());
                return Err(io::Error::other("wrote half on purpose"));
            }
        }
        Ok(())
    }

    fn sync_range(&self, _region: &Region, from: usize, to: usize) -> io::Result<()> {
        let mut state = self.disk.state();
        state.whole_call()?;
        state.syncs += 1;
        if let Some(content) = state.files.get_mut(self.at) {
            content.sync(from, to);
        }
        Ok(())
    }

    fn sync_len(&self, _region: &Region) -> io::Result<()> {
        let mut state = self.disk.state();
        state.whole_call()?;
        if let Some(content) = state.files.get_mut(self.at) {
            let len = content.now.len();
            content.durable.resize(len, 0);
            content.sync(0, len);
        }
        Ok(())
    }
}

fn dir_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// A small generator: the same seed, the same disk.
struct Coin(u64);

impl Coin {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % n.max(1) as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_keeps_what_was_written_and_a_power_cut_only_what_was_synced() {
        let disk = FaultyDisk::new();
        disk.write("a", b"old").unwrap();
        disk.sync("a").unwrap();
        disk.sync_dir("").unwrap();
        disk.write("a", b"new").unwrap();
        disk.write("b", b"b").unwrap();
        assert_eq!(disk.after_kill().read("b").unwrap(), b"b");
        let (mut olds, mut news, mut without) = (0, 0, 0);
        for seed in 0..100 {
            let after = disk.after_power_cut(seed);
            match after.read("a").unwrap().as_slice() {
                b"old" => olds += 1,
                b"new" => news += 1,
                other => panic!("seed {seed}: {other:?}"),
            }
            without += usize::from(after.read("b").is_err());
        }
        assert!(olds > 10 && news > 10 && without > 10, "{olds} {news} {without}");
    }

    #[test]
    fn blocks_of_a_region_survive_only_when_synced() {
        let disk = FaultyDisk::new();
        let region = disk.allocate("s", 16_384, 0).unwrap();
        region.sync_len().unwrap();
        disk.sync_dir("").unwrap();
        let mut writer = region.writer().unwrap();
        assert!(writer.put(&[1; 8192]) && writer.publish().is_ok());
        region.sync_range(0, 4096).unwrap();
        let mut lost = 0;
        for seed in 0..40 {
            let bytes = disk.after_power_cut(seed).read("s").unwrap();
            assert!(bytes.len() == 16_384 && bytes[..4096] == [1; 4096], "seed {seed}");
            lost += usize::from(bytes[4096] == 0);
        }
        assert!(lost > 5 && lost < 35, "{lost}");
    }

    #[test]
    fn faults_come_at_their_call_and_once() {
        let disk = FaultyDisk::new();
        disk.fail_at(1, Fault::Short);
        disk.write("a", b"1234").unwrap();
        assert!(disk.write("a", b"5678").is_err());
        assert_eq!(disk.read("a").unwrap(), b"56");
        disk.fail_at(0, Fault::NoSpace);
        assert_eq!(disk.allocate("s", 10, 0).err().unwrap().kind(), io::ErrorKind::StorageFull);
        disk.set_capacity(Some(8));
        assert_eq!(disk.allocate("s", 10, 0).err().unwrap().kind(), io::ErrorKind::StorageFull);
        disk.set_capacity(None);
        assert!(disk.allocate("s", 10, 0).is_ok());
        disk.fail_at(0, Fault::Stop);
        assert!(disk.sync("a").is_err() && disk.sync("a").is_err() && disk.read("a").is_err() && disk.stopped());
    }
}
