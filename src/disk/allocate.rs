//! Gives a file its blocks before anything is stored into it. One of the two files that may use `unsafe`.
//!
//! Called when a segment is made. `set_len` would make a hole, and storing into a mapped hole of a full disk is a
//! signal that ends the process; here a full disk is an error that names itself.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

/// Makes `file` at least `len` bytes long, every block of it allocated. What it holds stays.
///
/// # Errors
/// What the file system said, `StorageFull` among it; the file may be longer than before but is not mapped by anyone.
pub(super) fn allocate(file: &File, len: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let size = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        loop {
            // SAFETY: the descriptor is open for as long as `file` is borrowed; the call touches no memory of ours.
            if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => break,
                _ => return Err(error),
            }
        }
    }
    write_zeros(file, len)
}

/// Lets the system drop what it keeps of a range of the file in memory, as far as that has been written. A hint.
#[cfg(target_os = "linux")]
pub(super) fn give_cache_back(file: &File, from: usize, len: usize) {
    use std::os::fd::AsRawFd;
    if let (Ok(from), Ok(len)) = (libc::off_t::try_from(from), libc::off_t::try_from(len)) {
        // SAFETY: the descriptor is open for as long as `file` is borrowed; the call touches no memory of ours.
        let _ = unsafe { libc::posix_fadvise(file.as_raw_fd(), from, len, libc::POSIX_FADV_DONTNEED) };
    }
}

/// For file systems that refuse to allocate: zeros from the present end on. Blocks below it are taken to be there.
fn write_zeros(file: &File, len: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    const CHUNK: usize = 64 * 1024;
    let mut file = file;
    let mut at = file.seek(SeekFrom::End(0))?;
    while at < len {
        let part = usize::try_from(len - at).unwrap_or(CHUNK).min(CHUNK);
        file.write_all(&[0; CHUNK][..part])?;
        at += part as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_stays_and_the_rest_is_zeros_by_either_way() {
        let dir = std::env::temp_dir().join(format!("windlass-allocate-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (name, way) in [("a", allocate as fn(&File, u64) -> io::Result<()>), ("b", write_zeros)] {
            let path = dir.join(name);
            std::fs::write(&path, b"head").unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            way(&file, 70_000).unwrap();
            way(&file, 10).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!((bytes.len(), &bytes[..4]), (70_000, b"head".as_slice()), "{name}");
            assert!(bytes[4..].iter().all(|byte| *byte == 0), "{name}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
