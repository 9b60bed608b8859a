//! Files: mapping, allocation, atomic replacement, lock files, and a disk that fails on purpose.
//!
//! The store asks everything of a [`Disk`]: a directory of named files, real ([`Files`]) or in memory and failing on
//! purpose ([`FaultyDisk`]), so that the same code runs in production, in crash tests and in the one-thread simulation.
//! Nothing here knows what the files mean, holds a lock over a call of another room, or starts a thread.

#[cfg(feature = "broker")]
mod allocate;
pub mod atomic_file;
#[cfg(feature = "broker")]
pub mod faults;
mod files;
pub mod lock_file;
#[cfg(feature = "broker")]
pub mod mapped;

use std::io;
use std::sync::Arc;

#[cfg(feature = "broker")]
pub use faults::{Fault, FaultyDisk};
pub use files::Files;
pub use lock_file::{Held, LockError};
#[cfg(feature = "broker")]
pub use mapped::{Region, Writer};

/// One file of a directory.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Listed {
    /// Its name within that directory.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
}

/// A directory of files, addressed by names relative to it with `/` between parts.
///
/// No call makes anything durable but those named `sync`: new names need `sync_dir`, contents and lengths `sync`.
pub trait Disk: Send + Sync + 'static {
    /// Where it is, for messages to people.
    fn place(&self) -> String;
    /// Makes a directory and its parents; nothing happens if it is there.
    fn make_dir(&self, dir: &str) -> io::Result<()>;
    /// The files of a directory, ordered by name; none if the directory is absent.
    fn list(&self, dir: &str) -> io::Result<Vec<Listed>>;
    /// All of a file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// A file for reading by position.
    fn open(&self, name: &str) -> io::Result<Arc<dyn Blob>>;
    /// Makes or replaces a file with these bytes.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Makes a file's contents and length durable.
    fn sync(&self, name: &str) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    /// Gives a file another name, replacing what had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Cuts a file to `len` bytes. It must not be mapped.
    fn truncate(&self, name: &str, len: u64) -> io::Result<()>;
    /// A file of `len` bytes whose every block is allocated, mapped for writing, with its first `kept` bytes readable.
    /// It is made if it is absent, and lengthened if it is shorter; what it holds stays.
    #[cfg(feature = "broker")]
    fn allocate(&self, name: &str, len: u64, kept: usize) -> io::Result<Arc<Region>>;
    /// A whole file, mapped for reading only.
    #[cfg(feature = "broker")]
    fn map(&self, name: &str) -> io::Result<Arc<Region>>;
    /// The same for reads that must not block: only where [`Region::bring_in`] can say that a page cannot be read, which
    /// is a signal otherwise. `None`: read by position.
    #[cfg(feature = "broker")]
    fn view(&self, _name: &str) -> Option<Arc<Region>> {
        None
    }
    /// Takes the exclusive lock that this file stands for, until the answer is dropped.
    fn lock(&self, name: &str) -> Result<Held, LockError>;
}

/// A file that is read by position.
pub trait Blob: Send + Sync + 'static {
    /// Its length when it was opened.
    fn bytes(&self) -> u64;
    /// Fills `into` from position `at`.
    ///
    /// # Errors
    /// What the file system said, or `UnexpectedEof` if the file ends before.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
}

/// What stands behind a region: how its bytes come to a medium.
#[cfg(feature = "broker")]
pub(crate) trait Backing: Send + Sync + 'static {
    /// Called before `bytes`, which begin at `at`, become readable: a disk without mappings writes them here.
    fn written(&self, at: usize, bytes: &[u8]) -> io::Result<()>;
    /// Makes the readable bytes of a range durable.
    fn sync_range(&self, region: &Region, from: usize, to: usize) -> io::Result<()>;
    /// Makes the file's length and allocation durable.
    fn sync_len(&self, region: &Region) -> io::Result<()>;
    /// The file of which the region is a shared mapping; `None` if it is memory of its own.
    fn file(&self) -> Option<&std::fs::File> {
        None
    }
}
