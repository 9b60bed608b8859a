//! The real disk: a directory of the file system, its segments mapped, or written by position where mapping is not
//! wanted (file systems that copy on write may fail inside an allocated file, which a mapping reports by a signal).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(feature = "broker")]
use super::Backing;
#[cfg(feature = "broker")]
use super::allocate::allocate;
use super::lock_file::{self, Held, LockError};
#[cfg(feature = "broker")]
use super::mapped::{NoFile, Region};
use super::{Blob, Disk, Listed};
use crate::model::sort::sort;

/// A directory of the file system.
pub struct Files {
    root: PathBuf,
    #[cfg_attr(not(feature = "broker"), allow(dead_code))]
    mapped: bool,
    /// The directory goes when this is dropped.
    temporary: bool,
    /// The system cannot bring pages in so that they can be touched safely.
    #[cfg_attr(not(feature = "broker"), allow(dead_code))]
    no_views: AtomicBool,
    /// Directories that were made here, kept open: a process that has run out of descriptors must still be able to sync
    /// them, since a sync that fails is final for a store. A leaf lock.
    dirs: Mutex<Vec<(String, Arc<File>)>>,
}

impl Files {
    /// The directory at `root`, made when the store is opened. Segments are mapped.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self::at(root.into(), true, false)
    }

    /// As [`Files::new`], but segments are written by position before their bytes can be read. Slower; for file systems
    /// that copy on write.
    pub fn plain(root: impl Into<PathBuf>) -> Self {
        Self::at(root.into(), false, false)
    }

    /// A new directory under the system's temporary one, removed when this is dropped.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn temporary() -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let name = format!("windlass-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let root = std::env::temp_dir().join(name);
            match fs::create_dir(&root) {
                Ok(()) => return Ok(Self::at(root, true, true)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn at(root: PathBuf, mapped: bool, temporary: bool) -> Self {
        Self { root, mapped, temporary, no_views: AtomicBool::new(false), dirs: Mutex::new(Vec::new()) }
    }

    fn dirs(&self) -> MutexGuard<'_, Vec<(String, Arc<File>)>> {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if self.temporary {
            // Removing a tree takes descriptors, and there may be none but those that are kept here; an empty directory
            // goes without any.
            self.dirs().clear();
            // Nobody can be told any more, and the system clears its temporary directory itself.
            let _ = fs::remove_dir_all(&self.root).or_else(|_| fs::remove_dir(&self.root));
        }
    }
}

impl Disk for Files {
    fn place(&self) -> String {
        self.root.display().to_string()
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        let path = self.path(dir);
        fs::create_dir_all(&path)?;
        // Elsewhere a directory cannot be opened as a file.
        #[cfg(unix)]
        {
            let open = Arc::new(File::open(&path)?);
            let mut dirs = self.dirs();
            dirs.retain(|(name, _)| name != dir);
            dirs.push((dir.to_owned(), open));
        }
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Listed>> {
        let entries = match fs::read_dir(self.path(dir)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let meta = entry.metadata()?;
            if let (true, Ok(name)) = (meta.is_file(), entry.file_name().into_string()) {
                found.push(Listed { name, len: meta.len() });
            }
        }
        sort(&mut found);
        Ok(found)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(name))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn Blob>> {
        let file = File::open(self.path(name))?;
        let len = file.metadata()?.len();
        Ok(Arc::new(OpenFile { file, len }))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        fs::write(self.path(name), bytes)
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        // Windows syncs only what is open for writing.
        File::options().read(true).write(true).open(self.path(name))?.sync_all()
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let kept = self.dirs().iter().find(|(name, _)| name == dir).map(|(_, open)| Arc::clone(open));
        match kept {
            Some(open) => sync_open_directory(&open),
            None => sync_directory(&self.path(dir)),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        File::options().write(true).open(self.path(name))?.set_len(len)
    }

    #[cfg(feature = "broker")]
    fn allocate(&self, name: &str, len: u64, kept: usize) -> io::Result<Arc<Region>> {
        let path = self.path(name);
        let made = !path.exists();
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        if let Err(error) = allocate(&file, len) {
            // A half made file is of no use, and its blocks are what everybody else is short of.
            if made {
                let _ = fs::remove_file(&path);
            }
            return Err(error);
        }
        let size = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if self.mapped {
            let backing = file.try_clone()?;
            return Ok(Arc::new(Region::of_file(&file, size, kept, Box::new(Mapped { file: backing }))?));
        }
        let mut content = vec![0; kept.min(size)];
        read_exact_at(&file, 0, &mut content)?;
        Ok(Arc::new(Region::of_memory_kept(size, &content, kept, Box::new(Positioned { file }))?))
    }

    #[cfg(feature = "broker")]
    fn map(&self, name: &str) -> io::Result<Arc<Region>> {
        let file = File::open(self.path(name))?;
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if self.mapped {
            return Ok(Arc::new(Region::of_file_read_only(&file, len, Box::new(NoFile))?));
        }
        let mut content = vec![0; len];
        read_exact_at(&file, 0, &mut content)?;
        Ok(Arc::new(Region::of_memory(len, &content, true, Box::new(NoFile))?))
    }

    #[cfg(feature = "broker")]
    fn view(&self, name: &str) -> Option<Arc<Region>> {
        if !self.mapped || self.no_views.load(Ordering::Relaxed) {
            return None;
        }
        let region = self.map(name).ok()?;
        // An old kernel, or another system, does not know how.
        let can = region.bring_in(0..1);
        self.no_views.store(!can, Ordering::Relaxed);
        can.then_some(region)
    }

    fn lock(&self, name: &str) -> Result<Held, LockError> {
        lock_file::lock(&self.path(name))
    }
}

struct OpenFile {
    file: File,
    len: u64,
}

impl Blob for OpenFile {
    fn bytes(&self) -> u64 {
        self.len
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        read_exact_at(&self.file, at, into)
    }
}

/// A mapped file: the kernel has the bytes as soon as they are stored.
#[cfg(feature = "broker")]
struct Mapped {
    file: File,
}

#[cfg(feature = "broker")]
impl Backing for Mapped {
    fn written(&self, _at: usize, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn sync_range(&self, region: &Region, from: usize, to: usize) -> io::Result<()> {
        region.flush_pages(from, to)?;
        // macOS: msync reaches the drive's cache only; sync_all asks for F_FULLFSYNC there.
        #[cfg(target_vendor = "apple")]
        self.file.sync_all()?;
        Ok(())
    }

    fn sync_len(&self, _region: &Region) -> io::Result<()> {
        self.file.sync_all()
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

/// A file written by position: the region is a copy of it.
#[cfg(feature = "broker")]
struct Positioned {
    file: File,
}

#[cfg(feature = "broker")]
impl Backing for Positioned {
    fn written(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        write_all_at(&self.file, at as u64, bytes)
    }

    fn sync_range(&self, _region: &Region, _from: usize, _to: usize) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_len(&self, _region: &Region) -> io::Result<()> {
        self.file.sync_all()
    }
}

#[cfg(unix)]
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// # Errors
/// The system's; `NotFound` if somebody has removed the directory, which its open handle outlives.
#[cfg(unix)]
fn sync_open_directory(dir: &File) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    if dir.metadata()?.nlink() == 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the directory was removed"));
    }
    dir.sync_all()
}

#[cfg(not(unix))]
fn sync_open_directory(_dir: &File) -> io::Result<()> {
    Ok(())
}

/// Elsewhere a directory cannot be opened as a file; names are the file system's own affair there.
#[cfg(not(unix))]
fn sync_directory(_path: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn read_exact_at(file: &File, at: u64, into: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, at)
}

#[cfg(all(unix, feature = "broker"))]
fn write_all_at(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut at: u64, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        let read = std::os::windows::fs::FileExt::seek_read(file, into, at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        into = into.get_mut(read..).unwrap_or_default();
        at += read as u64;
    }
    Ok(())
}

#[cfg(all(windows, feature = "broker"))]
fn write_all_at(file: &File, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
        bytes = bytes.get(written..).unwrap_or_default();
        at += written as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was put into large pages is there after they were given back, and what comes then as well.
    #[cfg(feature = "broker")]
    fn region_of_both_sorts_of_pages(disk: &Files) {
        let region = disk.allocate("large", 6 << 20, 0).unwrap();
        region.make_large(0);
        region.populate(0..6 << 20);
        let mut writer = region.writer().unwrap();
        let half = vec![7; 3 << 20];
        assert!(writer.put(&half) && writer.publish().is_ok());
        for from in [5 << 20, 3 << 20, 1000, 0, 7 << 20] {
            region.make_small(from).unwrap();
        }
        assert!(writer.put(&half) && writer.publish().is_ok());
        assert!(region.bytes().len() == 6 << 20 && region.bytes().iter().all(|byte| *byte == 7));
        region.sync_range(0, 6 << 20).unwrap();
        assert!(disk.read("large").unwrap() == region.bytes());
    }

    #[cfg(feature = "broker")]
    #[test]
    fn a_region_keeps_its_content_over_reopening_mapped_or_plain() {
        for plain in [false, true] {
            let dir = Files::temporary().unwrap();
            let disk = if plain { Files::plain(&dir.root) } else { Files::new(&dir.root) };
            let region = disk.allocate("seg", 8192, 0).unwrap();
            let mut writer = region.writer().unwrap();
            assert!(writer.put(b"hello") && writer.publish().is_ok());
            region.populate(0..5000);
            region.make_large(0);
            region.sync_len().unwrap();
            region.sync_range(0, 5).unwrap();
            drop((region, writer));
            region_of_both_sorts_of_pages(&disk);
            let again = disk.allocate("seg", 16_384, 5).unwrap();
            assert_eq!((again.bytes(), again.capacity()), (b"hello".as_slice(), 16_384), "plain {plain}");
            let whole = disk.map("seg").unwrap();
            assert_eq!(&whole.bytes()[..6], b"hello\0");
            let mut part = [0; 3];
            disk.open("seg").unwrap().read_at(1, &mut part).unwrap();
            assert_eq!(&part, b"ell");
        }
    }

    /// A sync that fails is final for a store, so none may fail for want of a descriptor: what is synced again and again
    /// is open from the start. A directory that somebody removed is not a synced one.
    #[cfg(unix)]
    #[test]
    fn a_directory_that_was_made_is_synced_by_its_own_handle_and_its_removal_is_an_error() {
        let disk = Files::temporary().unwrap();
        disk.make_dir("log").unwrap();
        let aside = disk.root.join("aside");
        fs::rename(disk.root.join("log"), &aside).unwrap();
        disk.sync_dir("log").unwrap();
        assert_eq!(disk.sync_dir("idx").unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::remove_dir(&aside).unwrap();
        assert_eq!(disk.sync_dir("log").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_temporary_directory_goes_with_its_owner() {
        let disk = Files::temporary().unwrap();
        let root = disk.root.clone();
        disk.write("a", b"x").unwrap();
        assert_eq!(disk.list("").unwrap(), [Listed { name: "a".into(), len: 1 }]);
        drop(disk);
        assert!(!root.exists());
    }
}
