//! The table of queues: from topic and id to the handle. Looked at once per handle; appends and reads by handle never
//! come here.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Options;
use super::index::{Directory, Row};
use super::queue::{Entry, Run, StoreQueue};
use super::segments::Segment;

use crate::model::SortedMap;

/// All queues, and where deleted topics were deleted.
pub(super) struct Queues {
    table: RwLock<Table>,
    options: Options,
}

#[derive(Default)]
struct Table {
    topics: HashMap<Arc<str>, SortedMap<i32, Arc<StoreQueue>>>,
    born: SortedMap<Arc<str>, u64>,
}

fn add_live(to: &mut Vec<Arc<StoreQueue>>, queues: &SortedMap<i32, Arc<StoreQueue>>) {
    for queue in queues.values() {
        if !queue.is_deleted() {
            to.push(Arc::clone(queue));
        }
    }
}

impl Queues {
    pub fn new(options: Options) -> Self {
        Self { table: RwLock::default(), options }
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle of a queue, made if there is none.
    pub fn get(&self, topic: &str, id: i32) -> Arc<StoreQueue> {
        if let Some(known) = self.find(topic, id) {
            return known;
        }
        let mut table = self.write();
        let key = table.topics.get_key_value(topic).map_or_else(|| Arc::from(topic), |(key, _)| Arc::clone(key));
        let queues = table.topics.entry(Arc::clone(&key)).or_default();
        match queues.get(&id) {
            Some(known) if !known.is_deleted() => Arc::clone(known),
            Some(_) | None => {
                let queue = Arc::new(StoreQueue::new(key, id, self.options.delay_of(topic, id)));
                queues.insert(id, Arc::clone(&queue));
                queue
            }
        }
    }

    /// The handle of a queue, if there is one.
    pub fn find(&self, topic: &str, id: i32) -> Option<Arc<StoreQueue>> {
        self.read().topics.get(topic)?.get(&id).filter(|queue| !queue.is_deleted()).cloned()
    }

    /// Every queue of a topic that there is a handle of, by id.
    pub fn of_topic(&self, topic: &str) -> Vec<Arc<StoreQueue>> {
        let table = self.read();
        let mut found = Vec::new();
        if let Some(queues) = table.topics.get(topic) {
            add_live(&mut found, queues);
        }
        found
    }

    pub fn all(&self) -> Vec<Arc<StoreQueue>> {
        let table = self.read();
        let mut found = Vec::new();
        table.topics.values().for_each(|queues| add_live(&mut found, queues));
        found
    }

    /// Records of the topic at or below this position belong to a topic of that name that was deleted.
    pub fn born(&self, topic: &str) -> u64 {
        self.read().born.get(topic).copied().unwrap_or(0)
    }

    /// Where topics were deleted, as far as the log up to `end` says it.
    pub fn born_below(&self, end: u64) -> SortedMap<Arc<str>, u64> {
        self.read().born.iter().filter(|(_, at)| **at < end).map(|(topic, at)| (Arc::clone(topic), *at)).collect()
    }

    pub fn set_born(&self, born: SortedMap<Arc<str>, u64>) {
        self.write().born = born;
    }

    /// Recovery found that the log ends here: what a file knows of things behind it is not so.
    pub fn forget_above(&self, end: u64) {
        let mut table = self.write();
        table.born.retain(|_, at| *at < end);
        for queue in table.topics.values().flat_map(SortedMap::values) {
            let mut index = queue.index();
            if index.floor_at >= end {
                index.floor_at = 0;
            }
        }
    }

    /// Lets every handle of the topic refuse appends, for the record at this position.
    pub fn mark_deleted(&self, topic: &str, at: u64) {
        for queue in self.of_topic(topic) {
            queue.deleted_at.store(at, Ordering::Release);
        }
    }

    /// Takes the deleted handles of a topic out of the table, after the mark at this position.
    pub fn forget_deleted(&self, topic: &str, at: u64) {
        let mut table = self.write();
        if let Some(queues) = table.topics.get_mut(topic) {
            queues.retain(|_, queue| !queue.is_deleted());
            if queues.is_empty() {
                table.topics.remove(topic);
            }
        }
        let born = table.born.get_or_default(topic.into());
        *born = (*born).max(at);
    }

    /// Recovery met the deletion of a topic.
    pub fn replay_deletion(&self, topic: &str, at: u64) {
        self.mark_deleted(topic, at);
        self.forget_deleted(topic, at);
    }

    /// Recovery met a message. False if its offset does not follow the one before.
    pub fn replay(&self, topic: &str, id: i32, offset: i64, entry: Entry) -> (bool, Arc<StoreQueue>) {
        let queue = self.get(topic, id);
        let follows = queue.index().replay(offset, entry);
        (follows, queue)
    }

    /// Recovery met the mark that says where a queue without messages goes on.
    pub fn replay_floor(&self, topic: &str, id: i32, next: i64, at: u64) {
        let queue = self.get(topic, id);
        let mut index = queue.index();
        index.floor_at = index.floor_at.max(at);
        if index.runs.is_empty() && index.entries.is_empty() {
            index.first = index.first.max(next);
        }
    }

    /// Recovery takes a complete segment over by its index file.
    pub fn adopt(&self, segment: &Arc<Segment>, directory: &Directory) {
        for (at, topic) in &directory.deletions {
            self.replay_deletion(topic, *at);
        }
        for row in &directory.rows {
            if self.born(&row.topic) >= segment.limit() {
                continue;
            }
            let queue = self.get(&row.topic, row.queue);
            let mut index = queue.index();
            if index.first != row.first {
                index.runs.clear();
            }
            index.runs.push_back(run_of(row, segment));
            index.first = row.first + i64::from(row.count);
        }
    }

    /// Lets queues find their entries of a segment in its index file, and forgets the copies in memory.
    pub fn take_runs(&self, segment: &Arc<Segment>, rows: &[Row]) {
        for row in rows {
            if self.born(&row.topic) >= segment.limit() {
                continue;
            }
            let Some(queue) = self.find(&row.topic, row.queue) else { continue };
            let mut index = queue.index();
            // Entries of it may have been retired meanwhile; then nothing points there any more.
            if index.entries.front().is_some_and(|entry| entry.physical < segment.limit()) {
                index.runs.push_back(run_of(row, segment));
                index.forget_below(segment.limit());
            }
        }
    }

    /// A rebuilt index file may have its queues at other places.
    pub fn refresh_runs(&self, segment: &Arc<Segment>, rows: &[Row]) {
        for row in rows {
            if let Some(queue) = self.find(&row.topic, row.queue) {
                let mut index = queue.index();
                let known = index.runs.iter_mut().find(|run| Arc::ptr_eq(&run.segment, segment));
                if let Some(run) = known.filter(|run| run.first == row.first) {
                    run.position = row.position;
                }
            }
        }
    }

    /// After recovery: every queue appends behind its last message.
    pub fn set_next_offsets(&self) {
        for queue in self.all() {
            let next = queue.index().max(u64::MAX);
            queue.next.store(next, Ordering::Relaxed);
        }
    }
}

fn run_of(row: &Row, segment: &Arc<Segment>) -> Run {
    Run { first: row.first, count: row.count, position: row.position, segment: Arc::clone(segment) }
}
