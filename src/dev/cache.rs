//! Things that take a second to make and are the same for every server, kept between runs in
//! `pgshard-cache-UID` among the temporary files: the templates of data directories, and copies of
//! programs.
//!
//! Every entry is made once, under a lock, in a directory of its own that is renamed when it is
//! ready, so that processes working side by side never see half of one.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use sha2::{Digest, Sha256};

use super::error::Error;

/// The folder that holds all entries.
pub(super) struct Cache {
    directory: PathBuf,
}

impl Cache {
    /// Opens the folder in `parent`, made if it is missing.
    pub(super) fn open(parent: &Path) -> Result<Cache, Error> {
        let us = rustix::process::geteuid().as_raw();
        let directory = parent.join(format!("pgshard-cache-{us}"));
        match fs::DirBuilder::new().mode(0o755).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::io("create", &directory)(error));
            }
            _ => {}
        }
        // Any user can guess the name, and may have created the directory.
        let facts = fs::symlink_metadata(&directory).map_err(Error::io("look at", &directory))?;
        if facts.is_dir() && facts.uid() == us {
            Ok(Cache { directory })
        } else {
            Err(Error::NotOurs { path: directory })
        }
    }

    /// The entry of this name and these keys (what it depends on), made by `build` into an empty
    /// directory if there is none, or if files of it are missing: `/tmp` is swept on many machines.
    pub(super) fn entry<E: From<Error>>(
        &self,
        name: &str,
        keys: &[&str],
        build: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<PathBuf, E> {
        let digest = Sha256::digest(keys.join("\0"));
        let hash: String = digest
            .iter()
            .take(6)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let place = self.directory.join(format!("{name}-{hash}"));
        let count = self.directory.join(format!("{name}-{hash}.count"));
        if is_whole(&place, &count) {
            used(&count);
            return Ok(place);
        }
        let _lock = lock(&self.directory.join(format!("{name}-{hash}.lock")))?;
        if is_whole(&place, &count) {
            return Ok(place);
        }
        // Removes what a killed builder left. While we hold the lock, no other builder is at work.
        let prefix = format!("building-{name}-{hash}-");
        for entry in fs::read_dir(&self.directory)
            .map_err(Error::io("read", &self.directory))?
            .flatten()
        {
            if entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(prefix.as_bytes())
            {
                fs::remove_dir_all(entry.path()).map_err(Error::io("remove", &entry.path()))?;
            }
        }
        let building = tempfile::Builder::new()
            .prefix(&prefix)
            .tempdir_in(&self.directory);
        let building = building.map_err(Error::io("create a directory in", &self.directory))?;
        build(building.path())?;
        let files = files_in(building.path()).map_err(Error::io("read", building.path()))?;
        match fs::remove_dir_all(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &place)(error).into());
            }
            _ => {}
        }
        fs::rename(building.keep(), &place).map_err(Error::io("rename a directory to", &place))?;
        fs::write(&count, files.to_string()).map_err(Error::io("write", &count))?;
        Ok(place)
    }

    /// Removes entries with names that begin so, except the `kept` that were used last and those
    /// that were used within `in_use`.
    pub(super) fn keep_last_used(
        &self,
        name: &str,
        kept: usize,
        in_use: Duration,
    ) -> Result<(), Error> {
        let read = fs::read_dir(&self.directory).map_err(Error::io("read", &self.directory))?;
        let mut counts: Vec<(SystemTime, PathBuf)> = read
            .flatten()
            .filter(|entry| {
                entry
                    .file_name()
                    .as_encoded_bytes()
                    .starts_with(name.as_bytes())
            })
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "count"))
            .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
            .collect();
        counts.sort();
        let old = |used: &SystemTime| used.elapsed().is_ok_and(|since| since > in_use);
        let beyond = counts.len().saturating_sub(kept);
        for (_, count) in counts.iter().take(beyond).filter(|(used, _)| old(used)) {
            // Without its count an entry is not complete, so that no process uses half of one.
            // Another process may remove the same.
            for removed in [
                fs::remove_file(count),
                fs::remove_dir_all(count.with_extension("")),
            ] {
                match removed {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(Error::io("remove", count)(error));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Notes that an entry is used now, for [`Cache::keep_last_used`]. A failure shortens its life, and
/// nothing else.
fn used(count: &Path) {
    if let Ok(file) = File::options().append(true).open(count) {
        let _ = file.set_modified(SystemTime::now());
    }
}

/// Locks a file, made if it is missing, until the value is dropped.
pub(super) fn lock(path: &Path) -> Result<File, Error> {
    const WAIT: Duration = Duration::from_secs(120);
    let file = File::options()
        .create(true)
        .append(true)
        .open(path)
        .map_err(Error::io("open", path))?;
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if started.elapsed() < WAIT => {
                std::thread::sleep(Duration::from_millis(20))
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Locked {
                    path: path.to_owned(),
                    waited_s: WAIT.as_secs(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", path)(error)),
        }
    }
}

fn is_whole(place: &Path, count: &Path) -> bool {
    let expected = fs::read_to_string(count)
        .ok()
        .and_then(|text| text.parse::<u64>().ok());
    expected.is_some() && files_in(place).ok() == expected
}

fn files_in(directory: &Path) -> io::Result<u64> {
    let mut files = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        files += if entry.file_type()?.is_dir() {
            files_in(&entry.path())?
        } else {
            1
        };
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn make(cache: &Cache, builds: &AtomicUsize) -> PathBuf {
        let build = |place: &Path| {
            builds.fetch_add(1, Ordering::SeqCst);
            fs::create_dir(place.join("inner")).unwrap();
            fs::write(place.join("inner/file"), "text").unwrap();
            Ok(())
        };
        cache.entry::<Error>("thing", &["1", "2"], build).unwrap()
    }

    #[test]
    fn made_once_side_by_side_and_again_when_swept() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache {
            directory: folder.path().to_owned(),
        };
        let builds = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| make(&cache, &builds));
            }
        });
        assert_eq!(builds.load(Ordering::SeqCst), 1);
        let place = make(&cache, &builds);
        fs::remove_file(place.join("inner/file")).unwrap();
        assert_eq!(make(&cache, &builds), place);
        assert!(place.join("inner/file").is_file());
        assert_eq!(builds.load(Ordering::SeqCst), 2);
        assert_ne!(
            cache
                .entry("thing", &["12"], |_| Ok::<_, Error>(()))
                .unwrap(),
            place
        );
    }

    #[test]
    fn what_a_killed_builder_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache {
            directory: folder.path().to_owned(),
        };
        let place = cache.entry("thing", &[], |_| Ok::<_, Error>(())).unwrap();
        let name = place.file_name().unwrap().to_str().unwrap();
        let left = folder.path().join(format!("building-{name}-x"));
        fs::create_dir(&left).unwrap();
        fs::remove_dir(&place).unwrap();
        cache.entry("thing", &[], |_| Ok::<_, Error>(())).unwrap();
        assert!(!left.exists() && place.is_dir());
    }

    /// The one that was used last is kept among those that are not in use.
    #[test]
    fn entries_that_were_not_used_for_longest_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache {
            directory: folder.path().to_owned(),
        };
        let entry = |name: &str| {
            let place = cache.entry(name, &[], |_| Ok::<_, Error>(())).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            place
        };
        let (first, second) = (entry("thing-1"), entry("thing-2"));
        let (third, other) = (entry("thing-3"), entry("another"));
        entry("thing-1");
        cache
            .keep_last_used("thing", 1, Duration::from_secs(600))
            .unwrap();
        assert!([&first, &second, &third].iter().all(|place| place.exists()));
        cache.keep_last_used("thing", 1, Duration::ZERO).unwrap();
        let left = [&first, &second, &third, &other].map(|place| place.exists());
        assert_eq!(left, [true, false, false, true]);
        assert!(entry("thing-2").exists(), "and is made again");
    }

    #[test]
    fn a_failed_build_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache {
            directory: folder.path().to_owned(),
        };
        assert!(cache.entry("thing", &[], |_| Err(Error::NoUser)).is_err());
        let left = fs::read_dir(folder.path())
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().is_dir())
            .count();
        assert_eq!(left, 0);
    }
}
