//! Small state files that are replaced whole: after a crash at any point the old or the new content is found, never
//! neither. The broker's settings and offsets and the client's local files are kept so.
//!
//! The previous content stays beside it as `.bak`. What cannot be read is never deleted: it is put aside as
//! `.corrupt-<ms>` and the next older content is used.

use std::io;

use super::Disk;

/// Replaces `name` by `bytes`: temporary file, sync, old one to `.bak`, rename, sync of the directory.
///
/// # Errors
/// What the disk said; the old content, or at worst its `.bak`, is still there.
pub fn save(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<()> {
    let fresh = format!("{name}.tmp");
    disk.write(&fresh, bytes)?;
    disk.sync(&fresh)?;
    match disk.rename(name, &format!("{name}.bak")) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    disk.rename(&fresh, name)?;
    disk.sync_dir(dir_of(name))
}

/// Replaces `name` by `bytes` without keeping the old content; for files that can be made again from others.
///
/// # Errors
/// What the disk said.
pub fn replace(disk: &dyn Disk, name: &str, bytes: &[u8], durable: bool) -> io::Result<()> {
    let fresh = format!("{name}.tmp");
    disk.write(&fresh, bytes)?;
    if durable {
        disk.sync(&fresh)?;
    }
    disk.rename(&fresh, name)?;
    if durable {
        disk.sync_dir(dir_of(name))?;
    }
    Ok(())
}

/// What [`load`] found.
#[derive(Debug)]
pub struct Loaded<T> {
    /// The content, if there was any that could be read.
    pub value: Option<T>,
    /// True if it came from the `.bak`.
    pub from_backup: bool,
    /// Files that could not be read, under the names they have now.
    pub put_aside: Vec<String>,
}

/// The content of `name`, or of its `.bak` where that is missing or does not parse. Unreadable files are renamed to
/// `.corrupt-<now_ms>` so that no later save can overwrite them, or rotate them into the `.bak`.
pub fn load<T>(disk: &dyn Disk, name: &str, now_ms: i64, parse: impl Fn(&[u8]) -> Option<T>) -> io::Result<Loaded<T>> {
    let mut value = None;
    let mut read = |bytes: &[u8]| {
        value = parse(bytes);
        value.is_some()
    };
    let (from_backup, put_aside) = find(disk, name, now_ms, &mut read)?;
    Ok(Loaded { value, from_backup, put_aside })
}

/// Offers the contents to `read` until it takes one. Says whether it was the `.bak`, and what has been put aside.
fn find(
    disk: &dyn Disk,
    name: &str,
    now_ms: i64,
    read: &mut dyn FnMut(&[u8]) -> bool,
) -> io::Result<(bool, Vec<String>)> {
    let mut put_aside = Vec::new();
    for (candidate, from_backup) in [(name.to_owned(), false), (format!("{name}.bak"), true)] {
        let bytes = match disk.read(&candidate) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if read(&bytes) {
            return Ok((from_backup, put_aside));
        }
        let aside = format!("{candidate}.corrupt-{now_ms}");
        disk.rename(&candidate, &aside)?;
        put_aside.push(aside);
    }
    Ok((false, put_aside))
}

fn dir_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(dir, _)| dir)
}

#[cfg(all(test, feature = "broker"))]
mod tests {
    use super::*;
    use crate::disk::{Fault, FaultyDisk};

    fn parse(bytes: &[u8]) -> Option<u32> {
        std::str::from_utf8(bytes).ok()?.parse().ok()
    }

    #[test]
    fn c_078_s_9_a_save_cut_at_every_call_leaves_the_old_or_the_new_content() {
        for calls in 0..12 {
            for seed in 0..40 {
                let disk = FaultyDisk::new();
                disk.make_dir("config").unwrap();
                save(&disk, "config/o.json", b"1").unwrap();
                save(&disk, "config/o.json", b"2").unwrap();
                disk.fail_at(calls, Fault::Stop);
                let done = save(&disk, "config/o.json", b"3").is_ok();
                for after in [disk.after_kill(), disk.after_power_cut(seed)] {
                    let found = load(&after, "config/o.json", 7, parse).unwrap().value;
                    let allowed: &[u32] = if done { &[3] } else { &[2, 3] };
                    assert!(found.is_some_and(|value| allowed.contains(&value)), "call {calls} seed {seed}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn c_078_what_cannot_be_read_is_put_aside_and_the_backup_is_used_and_kept() {
        let disk = FaultyDisk::new();
        disk.make_dir("config").unwrap();
        save(&disk, "config/o.json", b"1").unwrap();
        save(&disk, "config/o.json", b"2").unwrap();
        disk.write("config/o.json", b"\0\0\0").unwrap();
        let loaded = load(&disk, "config/o.json", 7, parse).unwrap();
        assert_eq!((loaded.value, loaded.from_backup), (Some(1), true));
        assert_eq!(loaded.put_aside, ["config/o.json.corrupt-7"]);
        assert_eq!(disk.read("config/o.json.corrupt-7").unwrap(), b"\0\0\0");
        save(&disk, "config/o.json", b"3").unwrap();
        assert_eq!(disk.read("config/o.json.bak").unwrap(), b"1", "the good backup outlives the bad file");
        disk.write("config/o.json", b"").unwrap();
        disk.write("config/o.json.bak", b"x").unwrap();
        let loaded = load(&disk, "config/o.json", 8, parse).unwrap();
        assert_eq!((loaded.value, loaded.put_aside.len()), (None, 2));
    }
}
