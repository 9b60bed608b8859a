//! A mapped file of fixed length that one writer fills from the front while any number of readers look at what it has
//! published. The store's segments are such regions; pulled messages are ranges of them.
//!
//! Hands out slices and takes copies, never pointers. One of the two files that may use `unsafe`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::Backing;
use crate::wire::frame::FrameOwner;

/// A page of the larger sort, in bytes. Linux maps files at multiples of it where it is of use.
const LARGE_PAGE: usize = 2 << 20;

/// Most bytes that are asked for ahead of an append: what the processor can wait for at once.
const FETCH_AHEAD: usize = 2048;

/// Most bytes of each piece of memory that are asked for before they are read.
#[cfg(target_arch = "x86_64")]
const FETCH_FRONT: usize = 4096;

/// A fixed range of memory, behind it a file or nothing, of which a growing front part is readable.
pub struct Region {
    map: MmapRaw,
    /// Bytes below it are readable and never change again; bytes above it belong to the one writer.
    published: AtomicUsize,
    writer_taken: AtomicBool,
    backing: Box<dyn Backing>,
}

impl Region {
    /// Maps a file of at least `len` bytes for writing; its first `kept` bytes are readable.
    ///
    /// The caller keeps two promises: every block of the file is allocated (a store into a hole of a full disk is a
    /// signal), and no other process changes or cuts the file (the directory's lock is held).
    pub(super) fn of_file(file: &File, len: usize, kept: usize, backing: Box<dyn Backing>) -> io::Result<Self> {
        let map = MmapOptions::new().len(len).map_raw(file)?;
        Ok(Self::new(map, kept, false, backing))
    }

    /// Maps a whole file for reading.
    pub(super) fn of_file_read_only(file: &File, len: usize, backing: Box<dyn Backing>) -> io::Result<Self> {
        if len == 0 {
            return Self::of_memory(0, &[], true, backing);
        }
        let map = MmapOptions::new().len(len).map_raw_read_only(file)?;
        Ok(Self::new(map, len, true, backing))
    }

    /// Memory without a file, beginning with `content`, all of which is readable.
    pub(super) fn of_memory(
        len: usize,
        content: &[u8],
        read_only: bool,
        backing: Box<dyn Backing>,
    ) -> io::Result<Self> {
        let mut map = MmapOptions::new().len(len.max(content.len()).max(1)).map_anon()?;
        if let Some(front) = map.get_mut(..content.len()) {
            front.copy_from_slice(content);
        }
        Ok(Self::new(map.into(), content.len(), read_only, backing))
    }

    /// As [`Region::of_memory`], but of `content` only the first `kept` bytes are readable.
    pub(super) fn of_memory_kept(
        len: usize,
        content: &[u8],
        kept: usize,
        backing: Box<dyn Backing>,
    ) -> io::Result<Self> {
        let region = Self::of_memory(len, content, false, backing)?;
        region.published.store(kept.min(content.len()), Ordering::Release);
        Ok(region)
    }

    fn new(map: MmapRaw, kept: usize, read_only: bool, backing: Box<dyn Backing>) -> Self {
        let kept = kept.min(map.len());
        Self { map, published: AtomicUsize::new(kept), writer_taken: AtomicBool::new(read_only), backing }
    }

    /// How many bytes it has room for.
    pub fn capacity(&self) -> usize {
        self.map.len()
    }

    /// What has been published.
    pub fn bytes(&self) -> &[u8] {
        let end = self.published.load(Ordering::Acquire);
        // SAFETY: `end` never exceeds the mapping's length (`new`, `Writer::publish`). Bytes below `published` are
        // written by nobody: the only `Writer` refuses positions below it, `published` only grows, and by the promise
        // of `of_file` no other process changes the file. The mapping lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), end) }
    }

    /// The one writer; `None` while another exists, and always for a region that is read only.
    pub fn writer(self: &Arc<Self>) -> Option<Writer> {
        if self.writer_taken.swap(true, Ordering::AcqRel) {
            return None;
        }
        Some(Writer { end: self.published.load(Ordering::Acquire), region: Arc::clone(self) })
    }

    /// Makes the published bytes of this range durable. Blocks.
    pub fn sync_range(&self, from: usize, to: usize) -> io::Result<()> {
        self.backing.sync_range(self, from, to.min(self.bytes().len()))
    }

    /// Makes the file's length and allocation durable, once after it was made. Blocks.
    pub fn sync_len(&self) -> io::Result<()> {
        self.backing.sync_len(self)
    }

    /// Brings the pages of this range into memory, writable, so that appends meet no page fault. Only a hint.
    pub fn populate(&self, range: Range<usize>) {
        let end = range.end.min(self.map.len());
        if range.start >= end {
            return;
        }
        #[cfg(target_os = "linux")]
        {
            let page = range.start & !4095;
            // An old kernel refuses; then appends fault the pages in, which is only slower.
            let _ = self.map.advise_range(memmap2::Advice::PopulateWrite, page, end - page);
        }
    }

    /// Brings the pages of this range into memory for reading. False if the system cannot, or cannot say whether it can:
    /// to touch a page that cannot be read is a signal. Blocks.
    pub fn bring_in(&self, range: Range<usize>) -> bool {
        let end = range.end.min(self.map.len());
        #[cfg(target_os = "linux")]
        {
            let page = range.start & !4095;
            page < end && self.map.advise_range(memmap2::Advice::PopulateRead, page, end - page).is_ok()
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = end;
            false
        }
    }

    /// Asks for pages of 2 MiB from `from` on, which file system and kernel may have for parts of a file that were not
    /// touched before. One costs a fraction of the 512 small ones that it takes the place of, but is written to the disk
    /// as a whole whatever was changed. Only a hint.
    pub fn make_large(&self, from: usize) {
        #[cfg(target_os = "linux")]
        if self.backing.file().is_some() {
            let from = from.next_multiple_of(LARGE_PAGE);
            if let Some(len) = self.map.len().checked_sub(from).filter(|len| *len > 0) {
                let _ = self.map.advise_range(memmap2::Advice::HugePage, from, len);
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = from;
    }

    /// Small pages from `from` on: what is there is written, given back to the system, and comes in anew when it is
    /// asked for. For a log that has become slow, of which a large page would be written for each message. Blocks.
    ///
    /// # Errors
    /// What the system said to the write, which it says once only: a sync that comes later does not hear of it.
    pub fn make_small(&self, from: usize) -> io::Result<()> {
        let from = from & !(LARGE_PAGE - 1);
        let (Some(file), Some(len)) = (self.backing.file(), self.map.len().checked_sub(from)) else { return Ok(()) };
        self.flush_pages(from, from + len)?;
        #[cfg(target_os = "linux")]
        if len > 0 && self.map.advise_range(memmap2::Advice::NoHugePage, from, len).is_ok() {
            // SAFETY: the mapping is a shared one of a file (`Backing::file`), so it only forgets where its pages are;
            // whatever comes next, also what happens meanwhile, finds their bytes in the file.
            let _ = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, len) };
            super::allocate::give_cache_back(file, from, len);
        }
        let _ = file;
        Ok(())
    }

    /// Flushes the pages of a mapped file. For backings.
    pub(super) fn flush_pages(&self, from: usize, to: usize) -> io::Result<()> {
        if to <= from { Ok(()) } else { self.map.flush_range(from, to - from) }
    }
}

impl FrameOwner for Region {
    fn bytes(&self) -> &[u8] {
        Region::bytes(self)
    }

    fn capacity(&self) -> usize {
        // Its pages belong to the file's cache; a frame into it costs its holder nothing.
        0
    }
}

/// Asks for memory that is about to be read, all of it at once, while nobody waits for it. Only a hint; of long bytes the
/// front, behind which the processor sees by itself what comes next.
pub fn fetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes.len().min(FETCH_FRONT)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = bytes.as_ptr().wrapping_add(line);
        // SAFETY: a prefetch reads and changes nothing that a program sees, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// The right to fill a region. There is at most one for a region at any time.
pub struct Writer {
    region: Arc<Region>,
    end: usize,
}

impl Writer {
    /// The region it fills.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where the next byte goes.
    pub fn end(&self) -> usize {
        self.end
    }

    /// How many bytes still fit.
    pub fn left(&self) -> usize {
        self.region.map.len() - self.end
    }

    /// Puts bytes behind what was put before; false, and nothing is put, if they do not fit. Readers see them only
    /// after [`Writer::publish`].
    pub fn put(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.left() {
            return false;
        }
        // SAFETY: `end + bytes.len()` lies within the mapping, checked above. `end` is at or above `published`, so no
        // reader's slice covers the target; only one `Writer` exists for a region and `put` needs it exclusively.
        unsafe {
            let target = self.region.map.as_mut_ptr().add(self.end);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
        self.end += bytes.len();
        true
    }

    /// Makes everything put so far readable.
    ///
    /// # Errors
    /// A disk without mappings may fail to write here; nothing becomes readable then, and what was put is forgotten.
    pub fn publish(&mut self) -> io::Result<()> {
        let from = self.region.published.load(Ordering::Relaxed);
        // SAFETY: `from..end` lies within the mapping and was initialised by `put`; only this writer could change it,
        // and it is borrowed exclusively while the slice lives.
        let new = unsafe { std::slice::from_raw_parts(self.region.map.as_ptr().add(from), self.end - from) };
        if let Err(error) = self.region.backing.written(from, new) {
            self.end = from;
            return Err(error);
        }
        self.region.published.store(self.end, Ordering::Release);
        self.fetch_ahead(self.end - from);
        Ok(())
    }

    /// Asks for the memory of the next `len` bytes while nobody waits for it: the lock that an append gives up waits for
    /// all of its stores, and memory that was never in a cache is what those wait for.
    fn fetch_ahead(&self, len: usize) {
        #[cfg(target_arch = "x86_64")]
        for line in (0..len.min(FETCH_AHEAD)).step_by(64) {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            let at = self.region.map.as_ptr().wrapping_add(self.end + line);
            // SAFETY: a prefetch reads and changes nothing that a program sees, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = len;
    }

    /// Forgets what was put since the last publication.
    pub fn take_back(&mut self) {
        self.end = self.region.published.load(Ordering::Relaxed);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.region.writer_taken.store(false, Ordering::Release);
    }
}

/// For memory that no file stands behind.
pub(super) struct NoFile;

impl Backing for NoFile {
    fn written(&self, _at: usize, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn sync_range(&self, _region: &Region, _from: usize, _to: usize) -> io::Result<()> {
        Ok(())
    }

    fn sync_len(&self, _region: &Region) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(len: usize) -> Arc<Region> {
        Arc::new(Region::of_memory(len, b"ab", false, Box::new(NoFile)).unwrap())
    }

    #[test]
    fn readers_see_only_what_was_published_and_it_never_changes() {
        let region = region(8);
        let mut writer = region.writer().unwrap();
        let before = region.bytes();
        assert!(writer.put(b"cd") && region.bytes() == b"ab");
        writer.take_back();
        assert!(writer.put(b"xy") && writer.publish().is_ok());
        assert_eq!((before, region.bytes(), writer.left()), (b"ab".as_slice(), b"abxy".as_slice(), 4));
        assert!(!writer.put(b"12345") && region.bytes() == b"abxy");
    }

    #[test]
    fn there_is_one_writer_at_a_time_and_none_for_a_read_only_region() {
        let region = region(8);
        let first = region.writer().unwrap();
        assert!(region.writer().is_none());
        drop(first);
        assert!(region.writer().is_some());
        let fixed = Arc::new(Region::of_memory(0, b"ab", true, Box::new(NoFile)).unwrap());
        assert!(fixed.writer().is_none() && fixed.bytes() == b"ab");
    }
}
