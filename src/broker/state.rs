//! Topics, groups and offsets on the disk: `config/*.json`, in the shapes Apache's brokers and tools know.
//!
//! A change is written before it is acknowledged, so that it outlives the process; the disk is made to keep it later, on
//! a thread that may wait ([`Dispatcher::sync_state`]). Offsets are written every few seconds: a crash repeats messages,
//! it never loses one.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 broker/src/main/java/org/apache/rocketmq/broker/BrokerPathConfigHelper.java

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::dispatch::Dispatcher;
use super::groups::GroupSettings;
use super::topics::Topic;
use crate::disk::{Disk, atomic_file};
use crate::model::SortedMap;
use crate::wire::json;
use crate::wire::remoting::group::{GroupConfigBody, GroupTableBody};
use crate::wire::remoting::topics::{DataVersion, TopicConfigBody, TopicTableBody};
use crate::work::pace::Pace;
use crate::work::sync::{Mutex, locked};

const DIR: &str = "config";
const TOPICS: &str = "config/topics.json";
const GROUPS: &str = "config/subscriptionGroup.json";
const OFFSETS: &str = "config/consumerOffset.json";
const VALUES: &str = "config/kvConfig.json";
const FILES: [&str; 4] = [TOPICS, GROUPS, OFFSETS, VALUES];

/// Where state is saved, and what has been.
#[derive(Default)]
pub struct Saved {
    disk: Option<Arc<dyn Disk>>,
    offset_changes: AtomicU64,
    files: [Versions; FILES.len()],
    /// One writer at a time, from the look at a table until its file is in place: else two could write into one file, or
    /// the older look could win. Held over short unsynced writes; no other lock is held by those who wait for it.
    writing: Mutex<()>,
    syncing: AtomicBool,
    /// No saving before a successful load.
    loaded: AtomicBool,
}

/// How often a file was written, and which of these versions the disk keeps.
#[derive(Default)]
struct Versions {
    written: AtomicU64,
    synced: AtomicU64,
}

impl Versions {
    fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire) == self.written.load(Ordering::Acquire)
    }
}

impl Saved {
    fn versions(&self, name: &str) -> Option<&Versions> {
        FILES.iter().zip(&self.files).find(|(file, _)| **file == name).map(|(_, versions)| versions)
    }

    /// State in files of this disk.
    pub fn on(disk: Arc<dyn Disk>) -> Self {
        Self { disk: Some(disk), ..Self::default() }
    }

    /// State that ends with the process.
    pub fn nowhere() -> Self {
        Self::default()
    }
}

json::body! {
    #[derive(Debug, Default)]
    struct OffsetsFile {
        data_version: DataVersion = "dataVersion";
        offset_table: SortedMap<String, SortedMap<i32, i64>> = "offsetTable";
    }
}

json::body! {
    #[derive(Debug, Default)]
    struct ValuesFile {
        table: SortedMap<String, SortedMap<String, String>> = "configTable";
    }
}

fn parse<T: json::Item>(bytes: &[u8]) -> Option<T> {
    json::read("state file", bytes).ok()
}

impl Dispatcher {
    /// Takes over what was saved. A file that cannot be read is put aside and its backup is used.
    pub(super) fn restore(&self) {
        if let Some(disk) = &self.saved.disk {
            let disk = &**disk;
            if let Err(error) = disk.make_dir(DIR) {
                log::error!(target: "windlass::broker", "no directory for state files: dir={DIR} error={error}");
            }
            if let Some(file) = self.load::<TopicTableBody>(disk, TOPICS) {
                let mut topics = self.topics.lock();
                topics.restore_version(file.data_version.into());
                for (name, body) in file.topics {
                    topics.put(Topic::from_body(&name, body));
                }
            }
            if let Some(file) = self.load::<GroupTableBody>(disk, GROUPS) {
                let mut groups = self.groups.lock();
                groups.restore_version(file.data_version.into());
                for (name, body) in file.groups {
                    groups.put(GroupSettings::from(GroupConfigBody { group_name: name, ..body }));
                }
            }
            if let Some(file) = self.load::<OffsetsFile>(disk, OFFSETS) {
                let mut offsets = self.offsets.lock();
                for (key, queues) in file.offset_table {
                    offsets.restore(&key, queues.into_iter().collect());
                }
            }
            if let Some(names) = &self.names
                && let Some(file) = self.load::<ValuesFile>(disk, VALUES)
            {
                names.restore_values(file.table);
            }
        }
        self.restore_topics_of_the_log();
        // Asked before the table is locked: the store has locks of a higher rank, and is slow enough not to be called
        // under one of ours.
        let ends: HashMap<(String, i32), i64> = self.ends_of_committed();
        let end = |topic: &str, queue: i32| ends.get(&(topic.to_owned(), queue)).copied().unwrap_or(0);
        let lowered = self.offsets.lock().clamp(end);
        if lowered > 0 {
            log::warn!(target: "windlass::broker", "committed offsets beyond their queue's end lowered: count={lowered}");
        }
        self.saved.loaded.store(true, Ordering::Release);
        self.restore_delays();
    }

    fn ends_of_committed(&self) -> HashMap<(String, i32), i64> {
        let mut keys = Vec::new();
        for (key, queues) in self.offsets.lock().entries() {
            let Some((topic, _)) = key.split_once('@') else { continue };
            keys.extend(queues.keys().map(|queue| (topic.to_owned(), *queue)));
        }
        keys.into_iter()
            .map(|(topic, queue)| {
                let (_, end) = self.queue_bounds(&topic, queue);
                ((topic, queue), end)
            })
            .collect()
    }

    /// A topic that has messages exists, whatever the file says: the log is the truth.
    fn restore_topics_of_the_log(&self) {
        for queue in self.store.queues() {
            let needed = queue.id() + 1;
            let mut topics = self.topics.lock();
            let known = topics.find(queue.topic()).map(|topic| (**topic).clone());
            match known {
                Some(topic) if topic.read_queues >= needed || topic.write_queues >= needed => {}
                // Fewer queues on purpose hide messages; that is the topic's business.
                Some(_) => {}
                None => {
                    let most = self.store.topic_queues(queue.topic()).iter().map(|queue| queue.id() + 1).max();
                    topics.put(Topic::new(queue.topic().clone(), most.unwrap_or(needed).max(needed), 6));
                }
            }
        }
    }

    fn load<T: json::Item>(&self, disk: &dyn Disk, name: &str) -> Option<T> {
        match atomic_file::load(disk, name, self.clock.wall_ms(), parse::<T>) {
            Ok(loaded) => {
                for aside in &loaded.put_aside {
                    log::error!(target: "windlass::broker", "state file cannot be read, put aside: file={aside}");
                }
                // What a process that was killed has written the disk need not have kept.
                if let (Some(versions), true) = (self.saved.versions(name), loaded.value.is_some()) {
                    versions.written.fetch_add(1, Ordering::AcqRel);
                }
                loaded.value
            }
            Err(error) => {
                log::error!(target: "windlass::broker", "state file cannot be opened: file={name} error={error}");
                None
            }
        }
    }

    pub(super) fn save_topics(&self) {
        if self.saves() {
            let _turn = locked(&self.saved.writing);
            self.write(TOPICS, &self.topic_bodies());
        }
    }

    pub(super) fn save_groups(&self) {
        if self.saves() {
            let _turn = locked(&self.saved.writing);
            self.write(GROUPS, &self.group_bodies());
        }
    }

    /// Writes the values of the name server.
    pub(super) fn save_values(&self) {
        if self.saves()
            && let Some(names) = &self.names
        {
            let _turn = locked(&self.saved.writing);
            self.write(VALUES, &ValuesFile { table: names.all_values() });
        }
    }

    /// All topics with their version, as files and name servers take them.
    pub fn topic_bodies(&self) -> TopicTableBody {
        let topics = self.topics.lock();
        let table = topics.all().map(|topic| (topic.name.to_string(), TopicConfigBody::from(&**topic))).collect();
        TopicTableBody { data_version: topics.version().into(), topics: table, ..TopicTableBody::default() }
    }

    /// All groups with their version, as files and tools take them.
    pub fn group_bodies(&self) -> GroupTableBody {
        let groups = self.groups.lock();
        let table = groups.all().map(|group| (group.name.to_string(), GroupConfigBody::from(&**group))).collect();
        GroupTableBody { data_version: groups.version().into(), groups: table, ..GroupTableBody::default() }
    }

    /// Writes the offsets if they have changed since they were last written.
    pub fn save_offsets(&self) {
        if !self.saves() {
            return;
        }
        let _turn = locked(&self.saved.writing);
        let (file, changes) = {
            let offsets = self.offsets.lock();
            let changes = offsets.changes();
            if changes == self.saved.offset_changes.load(Ordering::Acquire) {
                return;
            }
            let table = offsets
                .entries()
                .into_iter()
                .map(|(key, queues)| (key, queues.iter().map(|(id, at)| (*id, *at)).collect()))
                .collect();
            (OffsetsFile { offset_table: table, ..OffsetsFile::default() }, changes)
        };
        if self.write(OFFSETS, &file) {
            self.saved.offset_changes.store(changes, Ordering::Release);
        }
    }

    /// Makes the disk keep what has been written. Waits for it: not for a loop.
    pub fn sync_state(&self) {
        let Some(disk) = &self.saved.disk else { return };
        if self.saved.syncing.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut kept = Vec::new();
        for (name, versions) in FILES.iter().zip(&self.saved.files) {
            let written = versions.written.load(Ordering::Acquire);
            match disk.sync(name) {
                Ok(()) => kept.push((versions, written)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => not_kept("synced", name, &error),
            }
        }
        match disk.sync_dir(DIR) {
            // A version that was written meanwhile stays to be synced.
            Ok(()) => {
                kept.into_iter().for_each(|(versions, written)| versions.synced.store(written, Ordering::Release))
            }
            Err(error) => not_kept("synced", DIR, &error),
        }
        self.saved.syncing.store(false, Ordering::Release);
    }

    /// True if [`Dispatcher::sync_state`] has something to do and is not at it.
    pub fn is_unsynced(&self) -> bool {
        !self.saved.syncing.load(Ordering::Acquire) && !self.saved.files.iter().all(Versions::is_synced)
    }

    fn saves(&self) -> bool {
        self.saved.disk.is_some() && self.saved.loaded.load(Ordering::Acquire)
    }

    /// Nothing is written from now on: the directory is about to belong to somebody else.
    pub(super) fn close_state(&self) {
        self.saved.loaded.store(false, Ordering::Release);
    }

    /// Replaces a file; the newest one that the disk keeps stays as its backup, so that a power cut leaves one of them. A
    /// failure keeps what was there.
    fn write(&self, name: &str, file: &impl json::Item) -> bool {
        let (Some(disk), Some(versions)) = (&self.saved.disk, self.saved.versions(name)) else { return false };
        let is_synced = versions.is_synced();
        let replace = || {
            let fresh = format!("{name}.tmp");
            disk.write(&fresh, &json::to_vec(file))?;
            if is_synced {
                match disk.rename(name, &format!("{name}.bak")) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    Ok(()) | Err(_) => {}
                }
            }
            disk.rename(&fresh, name)?;
            versions.written.fetch_add(1, Ordering::AcqRel);
            Ok(())
        };
        let written = replace();
        match written {
            Ok(()) => true,
            Err(error) => {
                not_kept("saved", name, &error);
                false
            }
        }
    }
}
/// A state file that could not be written or synced; with a full disk that is every few moments.
fn not_kept(what: &str, name: &str, error: &io::Error) {
    static PACE: Pace = Pace::new();
    if let Some(times) = PACE.tell() {
        log::warn!(target: "windlass::broker", "state not {what}: file={name} error={error} times={times}");
    }
}
