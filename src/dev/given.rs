//! Files below a server's directory, which was given to the user that the server runs as.
//!
//! Where we are root, that user is another one, and may have created anything there in the
//! meantime: a symbolic link to a file of ours, a pipe without a writer. So every step of the way
//! is opened without following links, and only a file is read. Files there are written as that
//! user: [`Account::write`](super::privileges::Account::write).

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

/// More bytes than any file that is read whole can have.
const WHOLE_MAX: u64 = 64 << 10;
/// More of a log than any message shows.
const LOG_MAX: u64 = 1 << 20;

/// The text of the small file at this path below a server's directory.
pub(super) fn read(server: &Path, way: &str) -> io::Result<String> {
    let mut text = String::new();
    open(server, way)?
        .take(WHOLE_MAX)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// Whether there is such a file.
pub(super) fn exists(server: &Path, way: &str) -> io::Result<bool> {
    match open(server, way) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// How long a log is: 0 where there is none.
pub(super) fn length(server: &Path, way: &str) -> u64 {
    open(server, way)
        .and_then(|log| log.metadata())
        .map_or(0, |facts| facts.len())
}

/// A log's text from this place on, or only its end if it is long.
pub(super) fn log_from(server: &Path, way: &str, start: u64) -> String {
    let end = length(server, way);
    let start = start.max(end.saturating_sub(LOG_MAX));
    let read = || {
        let mut log = open(server, way)?;
        log.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        log.take(LOG_MAX).read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// Opens a file for reading. The server's directory itself is in a directory of ours, where no
/// other user creates links.
fn open(server: &Path, way: &str) -> io::Result<File> {
    let folder = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Without NONBLOCK the opening of a pipe waits for a writer.
    let file = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = openat(CWD, server, folder, Mode::empty()).map_err(explain_errno)?;
    let mut steps = Path::new(way).components().peekable();
    while let Some(step) = steps.next() {
        let Component::Normal(name) = step else {
            return Err(ErrorKind::InvalidInput.into());
        };
        let flags = if steps.peek().is_some() { folder } else { file };
        at = openat(&at, name, flags, Mode::empty()).map_err(explain_errno)?;
    }
    let file = File::from(at);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a file"))
    }
}

/// Replaces the system's message if a link is in the way: that is about levels or directories.
fn explain_errno(errno: Errno) -> io::Error {
    match errno {
        Errno::LOOP | Errno::MLINK | Errno::NOTDIR => io::Error::other(
            "a symbolic link, or something else that pgshard did not put there, stands in the way",
        ),
        errno => errno.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn files_are_read_and_links_and_pipes_are_not() {
        let (server, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (server, secret) = (server.path(), outside.path().join("secret"));
        fs::create_dir(server.join("data")).unwrap();
        fs::write(server.join("data/file"), "text").unwrap();
        fs::write(&secret, "hunter2").unwrap();
        symlink(&secret, server.join("data/link")).unwrap();
        symlink(outside.path(), server.join("folder")).unwrap();
        let pipe = std::process::Command::new("mkfifo")
            .arg(server.join("log"))
            .status()
            .unwrap();
        assert!(pipe.success());
        assert_eq!(read(server, "data/file").unwrap(), "text");
        assert!(exists(server, "data/file").unwrap() && !exists(server, "data/none").unwrap());
        assert_eq!(
            (
                length(server, "data/file"),
                log_from(server, "data/file", 2)
            ),
            (4, "xt".to_owned())
        );
        for way in [
            "data/link",
            "folder/secret",
            "log",
            "data",
            "data/../data/file",
            "/etc/passwd",
        ] {
            assert!(
                read(server, way).is_err() && exists(server, way).is_err(),
                "{way}"
            );
            assert_eq!(
                (length(server, way), log_from(server, way, 0)),
                (0, String::new()),
                "{way}"
            );
        }
        assert!(
            read(server, "data/link")
                .unwrap_err()
                .to_string()
                .contains("symbolic link")
        );
    }
}
