//! Replaces a file as a whole, under a lock, and only if it is still the one that was read.
//!
//! Invariant: whenever the power fails or the process is killed, the file is the old one or the new
//! one.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{StoreError, whole};

/// How long to wait for another process that publishes.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// How long to wait before looking at a lock again.
const LOCK_POLL: Duration = Duration::from_millis(5);

pub(crate) fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl Fn(io::Error) -> StoreError + 'a {
    move |source| StoreError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

/// What changes whenever a file is written or another takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    file: (u64, u64),
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            file: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The file, open and locked. Publishing replaces the file, and with it the lock: a process that
/// waited holds the lock of a file that is no longer there, and starts over with the one that is.
pub(crate) fn lock(target: &Path) -> Result<File, StoreError> {
    let failed_to_lock = failed("lock", target);
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        // Open for writing, though we only read: NFS locks for writing need it, and a file that was
        // made read-only is not ours to replace.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(target)
            .map_err(failed("open", target))?;
        let held = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(error)) => return Err(failed_to_lock(error)),
        };
        if held {
            let (ours, there) = (file.metadata(), fs::metadata(target));
            let (ours, there) = (
                ours.map_err(&failed_to_lock)?,
                there.map_err(&failed_to_lock)?,
            );
            if Stamp::of(&ours).file == Stamp::of(&there).file {
                return Ok(file);
            }
        }
        if Instant::now() >= deadline {
            let holders = file
                .metadata()
                .map(|metadata| holders(&metadata))
                .unwrap_or_default();
            return Err(StoreError::Locked {
                path: target.to_owned(),
                waited: LOCK_WAIT,
                holders,
            });
        }
        if !held {
            std::thread::sleep(LOCK_POLL);
        }
    }
}

/// The processes of this machine that have locked a file, as `/proc/locks` names them. Those of
/// other machines that share it are not there.
fn holders(metadata: &Metadata) -> Vec<String> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut holders: Vec<String> = locked_by(&locks, metadata.ino())
        .map(
            |pid| match fs::read_to_string(format!("/proc/{pid}/comm")) {
                Ok(name) => format!("process {pid} ({})", name.trim()),
                Err(_) => format!("process {pid}"),
            },
        )
        .collect();
    holders.dedup();
    holders
}

/// The holder of a `flock` on an inode: `1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF`. A line
/// with `->` waits. The device is not compared: with overlays it is not that of the file.
fn locked_by(locks: &str, inode: u64) -> impl Iterator<Item = u32> {
    locks.lines().filter_map(move |line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, place, ..] = words[..] else {
            return None;
        };
        let ours = place.rsplit(':').next()?.parse() == Ok(inode);
        ours.then(|| pid.parse().ok()).flatten()
    })
}

/// Replaces the file by one with this text. Returns `false`, and does nothing, when the file is not
/// the one seen any more.
pub(crate) fn write_over(
    target: &Path,
    old: &File,
    seen: Stamp,
    text: &str,
) -> Result<bool, StoreError> {
    let failed_to_write = failed("write the new file beside", target);
    let new = whole::beside(target, text).map_err(&failed_to_write)?;
    let metadata = old.metadata().map_err(failed("read", target))?;
    whole::keep_owner_and_mode(new.as_file(), &metadata).map_err(&failed_to_write)?;
    // Here already, since it takes its time: an edit should not have that long between the look and
    // the new name.
    new.as_file().sync_all().map_err(&failed_to_write)?;
    if fs::metadata(target).map(|now| Stamp::of(&now)).ok() != Some(seen) {
        return Ok(false);
    }
    whole::replace(new, target).map_err(failed("replace", target))?;
    Ok(true)
}

/// Runs a call to the file system on a thread of its own, because it blocks.
pub(super) async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(call).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a runtime that shuts down cancels the call, and it ends this task next.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_lock_is_named() {
        let locks = [
            "1: FLOCK  ADVISORY  WRITE 11 08:01:7 0 EOF",
            "1: -> FLOCK  ADVISORY  WRITE 12 08:01:7 0 EOF",
            "2: POSIX  ADVISORY  WRITE 13 08:01:7 0 EOF",
            "3: FLOCK  ADVISORY  WRITE 14 08:01:77 0 EOF",
        ]
        .join("\n");
        assert_eq!(locked_by(&locks, 7).collect::<Vec<_>>(), [11]);

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgshard.toml");
        fs::write(&path, "").unwrap();
        let file = lock(&path).unwrap();
        let named = holders(&file.metadata().unwrap()).join(", ");
        assert!(
            named.contains(&format!("process {} (", std::process::id())),
            "{named}"
        );
    }

    #[test]
    fn an_edit_under_the_publication_is_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgshard.toml");
        fs::write(&path, "before").unwrap();
        let file = lock(&path).unwrap();
        let seen = Stamp::of(&file.metadata().unwrap());
        fs::write(folder.path().join("saved"), "saved meanwhile").unwrap();
        fs::rename(folder.path().join("saved"), &path).unwrap();
        assert!(!write_over(&path, &file, seen, "ours").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "saved meanwhile");
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "the temporary file is gone"
        );
    }
}
