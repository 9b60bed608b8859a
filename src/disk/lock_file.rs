//! The exclusive lock of a directory: a file whose advisory lock one process holds, with that process's id in it.
//!
//! Taken before anything else in the directory is read or changed; a second process fails without touching a byte.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// A lock that is held until this is dropped.
pub struct Held {
    _guard: Box<dyn Send + Sync>,
}

impl Held {
    /// Wraps whatever ends the lock when it is dropped.
    pub(super) fn new(guard: impl Send + Sync + 'static) -> Self {
        Self { _guard: Box::new(guard) }
    }
}

/// Why a lock was not taken.
#[derive(Debug)]
pub enum LockError {
    /// Another process, or this one elsewhere, has it.
    Taken {
        /// The holder's process id, if the file could be read.
        pid: Option<u32>,
    },
    /// The file system refused.
    Io(io::Error),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { pid: Some(pid) } => write!(f, "in use by process {pid}"),
            Self::Taken { pid: None } => f.write_str("in use by another process"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

/// Takes the lock that the file at `path` stands for, making the file if it is absent.
pub(super) fn lock(path: &Path) -> Result<Held, LockError> {
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(LockError::Io)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(LockError::Taken { pid });
        }
        Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
    }
    // Only now is the file ours to write. If writing fails the lock is held all the same; only the pid is not told.
    let _ = file
        .set_len(0)
        .and_then(|()| file.seek(SeekFrom::Start(0)))
        .and_then(|_| writeln!(file, "{}", std::process::id()));
    Ok(Held::new(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_holder_learns_who_has_it_and_changes_nothing() {
        let path = std::env::temp_dir().join(format!("windlass-lock-{}", std::process::id()));
        let held = lock(&path).unwrap();
        let before = std::fs::read(&path).unwrap();
        assert!(matches!(lock(&path), Err(LockError::Taken { pid: Some(pid) }) if pid == std::process::id()));
        assert_eq!(std::fs::read(&path).unwrap(), before);
        drop(held);
        assert!(lock(&path).is_ok());
        std::fs::remove_file(&path).unwrap();
    }
}
