//! Offsets of one's own (D34): a consumer whose progress is kept in the user's [`OffsetStore`], the brokers' copy behind it.
//!
//! `claim.rs` comes here to find out where a queue starts and `commit.rs` when progress has moved. What the core wants of
//! a store is gathered over a turn and becomes one job of the serve lane for each consumer; the answer comes back by the
//! inbox and is dropped if its claim is gone (D32). The core never calls a store itself; one that panics has failed.

use std::sync::Arc;
use std::time::Duration;

use super::claim::Stage;
use super::group::ConsumerId;
use super::outcome::CommitError;
use crate::consume::chunk::Epoch;
use crate::consume::progress::{OffsetStore, OffsetStoreError};
use crate::model::{Queue, QueueOffset};
use crate::net::{Handle, Out};
use crate::rocketmq::core::{Command, Core, Timer};
use crate::work::clock::Nanos;
use crate::work::fence::fenced;

/// Why a store was not asked: the serve lane has no room.
const NOT_ASKED: &str = "was not asked: too much waits";
/// How long a serve thread waits for a place in the inbox if its own places are taken; the loop looks at it every turn.
const POST: Duration = Duration::from_secs(10);

/// Why a store has not done what it was asked.
type StoreFailure = Arc<dyn std::error::Error + Send + Sync>;

/// What a store has answered.
pub enum Stored {
    /// Where the group stands in a claim's queue.
    Loaded {
        /// The claim.
        epoch: Epoch,
        /// `Ok(None)`: the store has nothing.
        result: Result<Option<QueueOffset>, StoreFailure>,
    },
    /// Whether progress is kept.
    Kept {
        /// The claims whose progress it was.
        epochs: Vec<Epoch>,
        /// As the store says.
        result: Result<(), StoreFailure>,
    },
}

/// Progress that waits for the end of the turn.
#[derive(Default)]
pub struct Keeping {
    due: Vec<Due>,
}

/// That of one consumer.
struct Due {
    of: ConsumerId,
    store: Arc<dyn OffsetStore>,
    epochs: Vec<Epoch>,
    progress: Vec<(Queue, QueueOffset)>,
}

/// Brings a store's answer to the loop. Thread: a serve thread, which may wait.
fn bring(handle: &Handle<Command>, answer: Stored) {
    if let Err(refused) = handle.post_own(Command::Stored(answer)) {
        // Only a loop that has ended takes nothing at all: then nobody waits for it.
        let _ = handle.post_within(refused.into_command(), POST);
    }
}

/// Calls the user's code; a panic is its error.
fn answered<T>(call: impl FnOnce() -> Result<T, OffsetStoreError>) -> Result<T, StoreFailure> {
    match fenced(call) {
        Ok(result) => result.map_err(Arc::from),
        Err(text) => Err(in_words(&format!("panicked: {text}"))),
    }
}

/// What is no error of the store's own.
fn in_words(text: &str) -> StoreFailure {
    OffsetStoreError::from(text).into()
}

impl Core {
    /// The store that keeps the progress of this claim, if it is not kept by the brokers.
    pub(super) fn own_store(&self, epoch: Epoch) -> Option<&Arc<dyn OffsetStore>> {
        self.groups.get(&self.claims.get(&epoch)?.group)?.spec.offsets.as_ref()
    }

    /// Asks the store where the group stands in the claim's queue. Without one it returns false.
    pub(super) fn load_own(&mut self, epoch: Epoch, now: Nanos, out: &mut Out<Timer>) -> bool {
        let Some(store) = self.own_store(epoch).cloned() else { return false };
        let Some(queue) = self.claims.get(&epoch).map(|claim| claim.queue.clone()) else { return false };
        let handle = self.context.handle.clone();
        let asked = self.context.lane.user(move || {
            let result = answered(|| store.load(&queue));
            bring(&handle, Stored::Loaded { epoch, result });
        });
        if asked.is_err() {
            self.own_loaded(epoch, Err(in_words(NOT_ASKED)), now, out);
        }
        true
    }

    /// Notes that the progress of a claim, which counts as under way, goes to its store at the end of the turn.
    pub(super) fn keep_own(&mut self, epoch: Epoch, offset: QueueOffset) {
        let Some(store) = self.own_store(epoch).cloned() else { return };
        let Some(claim) = self.claims.get(&epoch) else { return };
        let (of, progress) = (claim.group, (claim.queue.clone(), offset));
        match self.keeping.due.iter_mut().find(|due| due.of == of) {
            Some(due) => {
                due.epochs.push(epoch);
                due.progress.push(progress);
            }
            None => self.keeping.due.push(Due { of, store, epochs: vec![epoch], progress: vec![progress] }),
        }
    }

    /// The end of a turn: one job for each consumer whose progress waits.
    pub(in crate::rocketmq) fn keep_all(&mut self, now: Nanos, out: &mut Out<Timer>) {
        while let Some(Due { store, epochs, progress, of: _ }) = self.keeping.due.pop() {
            let (handle, of) = (self.context.handle.clone(), epochs.clone());
            let asked = self.context.lane.user(move || {
                let result = answered(|| store.store(&progress));
                bring(&handle, Stored::Kept { epochs: of, result });
            });
            if asked.is_err() {
                self.stored(Stored::Kept { epochs, result: Err(in_words(NOT_ASKED)) }, now, out);
            }
        }
    }

    /// A store has answered.
    pub(in crate::rocketmq) fn stored(&mut self, answer: Stored, now: Nanos, out: &mut Out<Timer>) {
        match answer {
            Stored::Loaded { epoch, result } => self.own_loaded(epoch, result, now, out),
            Stored::Kept { epochs, result } => {
                for epoch in epochs {
                    self.own_kept(epoch, &result, now, out);
                }
            }
        }
    }

    fn own_loaded(
        &mut self,
        epoch: Epoch,
        result: Result<Option<QueueOffset>, StoreFailure>,
        now: Nanos,
        out: &mut Out<Timer>,
    ) {
        match result {
            // A negative offset is never asked for (C-045).
            Ok(Some(offset)) if offset.0 < 0 => {
                self.not_located(epoch, &format!("the offset store: {offset}"), now, out)
            }
            Ok(Some(offset)) => self.start_at(epoch, offset, Some(offset), now, out),
            Ok(None) => self.ask_stored_offset(epoch, None, now, out),
            Err(source) => self.not_located(epoch, &CommitError::Store { source }.to_string(), now, out),
        }
    }

    fn own_kept(&mut self, epoch: Epoch, result: &Result<(), StoreFailure>, now: Nanos, out: &mut Out<Timer>) {
        if let Err(source) = result {
            self.commit_ended(epoch, Err(CommitError::Store { source: Arc::clone(source) }), now, out);
            return;
        }
        let Some(claim) = self.claims.get_mut(&epoch) else { return };
        let progress = match &mut claim.stage {
            Stage::Active(active) => &mut active.progress,
            Stage::Giving(giving) => &mut giving.progress,
            Stage::Locating(_) => return,
        };
        progress.stored();
        // The broker's copy follows; its answer ends the commit, so that no two overtake each other (D11).
        if let Some(offset) = progress.acknowledged() {
            self.send_commit(epoch, offset, now, out);
        }
    }
}
