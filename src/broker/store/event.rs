//! What a store reports: errors of its operations, events that nobody asked for, and the trait through which the broker
//! hears of them.

use std::fmt;
use std::sync::Arc;

use super::queue::StoreQueue;
use crate::error::{ConfigError, StartError};

/// Hears what happens in a store. Called on whatever thread it happens on, never under a lock of the store; must not
/// block and must not call back into an append.
pub trait Watch: Send + Sync + 'static {
    /// A queue that somebody watches has messages to show that it had not before.
    fn grew(&self, queue: &Arc<StoreQueue>);
    /// Everything below this position of the log is durable.
    fn durable(&self, to: u64);
    /// Something an operator should know.
    fn event(&self, event: Event);
}

/// Hears nothing.
pub struct Unwatched;

impl Watch for Unwatched {
    fn grew(&self, _queue: &Arc<StoreQueue>) {}
    fn durable(&self, _to: u64) {}
    fn event(&self, _event: Event) {}
}

/// Something an operator should know.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// Recovery gave up what did not chain above the durable mark: the torn tail of a crash.
    TailCut {
        /// Where the log ends now.
        at: u64,
        /// Bytes given up.
        bytes: u64,
        /// Segments given up whole.
        segments: usize,
    },
    /// Recovery was told to repair, and gave up what follows a damage below the durable mark.
    Repaired {
        /// Where the damage is.
        at: u64,
        /// Bytes given up, the damaged record among them.
        bytes: u64,
    },
    /// A record failed its sums when it was read, and was not served.
    Damaged {
        /// Its topic.
        topic: Arc<str>,
        /// Its queue.
        queue: i32,
        /// Its offset there.
        offset: i64,
        /// Its position in the log.
        physical: u64,
    },
    /// An index file was missing or damaged and has been made anew from its segment.
    IndexRebuilt {
        /// Start of the segment.
        segment: u64,
    },
    /// No segment can be made; sends are refused once the active one is full.
    Full {
        /// The directory.
        place: String,
        /// What the system said.
        detail: String,
    },
    /// A segment could be made again.
    RoomAgain,
    /// A sync failed, or the directory is gone: the store is read only until it is opened again.
    SyncFailed {
        /// The directory.
        place: String,
        /// What the system said.
        detail: String,
    },
    /// Something beside the log could not be written; it will be tried again.
    CacheFailed {
        /// What.
        what: &'static str,
        /// What the system said.
        detail: String,
    },
    /// The clock went back by more than 5 s; store times follow it.
    ClockBack {
        /// By how much.
        ms: i64,
    },
    /// Segments went by age, size or number.
    Retired {
        /// Where the log begins now.
        log_min: u64,
        /// Segments that went.
        segments: usize,
    },
    /// The oldest segments that the checkpoint names are not there: they were retired in the moment before a crash, or
    /// somebody has removed their files.
    Gone {
        /// Start of the first.
        first: u64,
        /// How many.
        segments: usize,
    },
    /// Undelivered delayed or unresolved half messages went, because the log is twice as large as it may be.
    PinnedRetired {
        /// Start of the segment they were in.
        segment: u64,
    },
}

/// Why a message was not appended. Nothing of it is stored, except after `ReadOnly`, where it is not known.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum AppendError {
    /// No room on the disk.
    Full {
        /// The directory.
        place: String,
        /// What the system said.
        detail: String,
    },
    /// A write or sync has failed before; the store takes nothing any more.
    ReadOnly {
        /// The directory.
        place: String,
        /// What the system said then.
        detail: String,
    },
    /// A part is longer than it may be.
    TooLong {
        /// Which part.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The topic has been deleted; ask for the queue again.
    QueueGone,
    /// The store has been closed.
    Closed,
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { place, detail } => write!(f, "no room for another segment in {place}: {detail}"),
            Self::ReadOnly { place, detail } => write!(f, "store in {place} is read only since an error: {detail}"),
            Self::TooLong { what, len, max } => write!(f, "{what} of {len} bytes, at most {max} allowed"),
            Self::QueueGone => f.write_str("the queue's topic has been deleted"),
            Self::Closed => f.write_str("the store is closed"),
        }
    }
}

impl std::error::Error for AppendError {}

/// Why waiting for durability ended without it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DurableError {
    /// Not in time; the message may or may not survive.
    Timeout,
    /// A sync failed; the message may or may not survive.
    Failed {
        /// What the system said.
        detail: String,
    },
}

/// Why a store was not opened. Nothing in the directory was changed, apart from what recovery had already made final.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// A setting is out of range.
    Config(ConfigError),
    /// Somebody else has the directory.
    InUse {
        /// The directory.
        place: String,
        /// The holder's process id, if it could be read.
        pid: Option<u32>,
    },
    /// The directory was written by a version that this one does not know.
    Version {
        /// The directory.
        place: String,
        /// Its format version.
        found: u16,
    },
    /// The log is damaged below its durable mark.
    Damaged {
        /// The file.
        file: String,
        /// Position in the log.
        at: u64,
        /// What is wrong.
        what: String,
    },
    /// The file system refused.
    Io {
        /// What we were doing.
        doing: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::InUse { place, pid: Some(pid) } => write!(f, "store in {place} is in use by process {pid}"),
            Self::InUse { place, pid: None } => write!(f, "store in {place} is in use by another process"),
            Self::Version { place, found } => write!(f, "store in {place} has the unknown format version {found}"),
            Self::Damaged { file, at, what } => {
                write!(f, "store is damaged below its durable mark: {what} at position {at} in {file}")
            }
            Self::Io { doing, source } => write!(f, "{doing}: {source}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Config(error) => Some(error),
            Self::InUse { .. } | Self::Version { .. } | Self::Damaged { .. } => None,
        }
    }
}

impl From<ConfigError> for OpenError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<OpenError> for StartError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Config(error) => Self::Config(error),
            OpenError::Io { doing, source } => Self::Io { doing, source },
            OpenError::InUse { place, pid } => Self::StoreInUse { dir: place, pid },
            other @ (OpenError::Version { .. } | OpenError::Damaged { .. }) => Self::Store { what: other.to_string() },
        }
    }
}

/// `Io` with what we were doing.
pub(super) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> OpenError {
    let doing = doing.into();
    move |source| OpenError::Io { doing, source }
}
