//! Files that are written whole, or not at all: the config, the copy of a map, what commands write.
//!
//! Invariant: whenever the disk is full, the power fails or the process is killed, the file is the
//! old one or the new one.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use tempfile::{Builder, NamedTempFile};

/// Whether a file that is there may be overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// It may. It keeps its owner and mode, and a symbolic link still leads to it.
    Allowed,
    /// It is an error.
    Refused,
}

/// Writes a file: a new one next to it takes its name when all of it is on the disk. A device or a
/// pipe is written into. Blocks.
///
/// # Errors
/// `AlreadyExists` where the file, or a symbolic link of its name, exists and may not be
/// overwritten. Otherwise the file system's error; a file that is read-only to this process is not
/// replaced either.
pub fn write(path: &Path, text: &str, overwrite: Overwrite) -> io::Result<()> {
    let old = match (path.symlink_metadata(), overwrite) {
        (Ok(_), Overwrite::Refused) => return Err(ErrorKind::AlreadyExists.into()),
        (Ok(_), Overwrite::Allowed) => Some(fs::metadata(path)?),
        (Err(_), _) => None,
    };
    match old {
        // A device or a pipe, such as /dev/stdout, cannot be replaced.
        Some(old) if !old.is_file() => OpenOptions::new()
            .write(true)
            .open(path)?
            .write_all(text.as_bytes()),
        Some(old) => {
            // A file that was made read-only is not to be replaced.
            OpenOptions::new().write(true).open(path)?;
            let target = fs::canonicalize(path)?;
            let new = beside(&target, text)?;
            keep_owner_and_mode(new.as_file(), &old)?;
            replace(new, &target)
        }
        // The process's umask takes from these rights what it takes from other files'.
        None => put(
            beside_with(path, text, 0o666)?,
            |new| new.persist_noclobber(path),
            path,
        ),
    }
}

/// A new file with this text in the folder of another, which no other user may read yet. It is
/// removed when it is dropped.
pub(super) fn beside(path: &Path, text: &str) -> io::Result<NamedTempFile> {
    beside_with(path, text, 0o600)
}

fn beside_with(path: &Path, text: &str, mode: u32) -> io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    builder
        .prefix(".pgshard-")
        .suffix(".tmp")
        .permissions(Permissions::from_mode(mode));
    let mut new = builder.tempfile_in(folder(path))?;
    new.write_all(text.as_bytes())?;
    Ok(new)
}

/// Gives a file the name of another, which it replaces.
pub(super) fn replace(new: NamedTempFile, path: &Path) -> io::Result<()> {
    put(new, |new| new.persist(path), path)
}

/// Gives a file its name, and both to the disk.
fn put<E: Into<io::Error>>(
    new: NamedTempFile,
    name: impl FnOnce(NamedTempFile) -> Result<File, E>,
    path: &Path,
) -> io::Result<()> {
    new.as_file().sync_all()?;
    name(new).map_err(Into::into)?;
    // Without this a power failure could bring the old file back, after the new one was reported.
    File::open(folder(path))?.sync_all()
}

fn folder(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Only root may give a file away; every user may give it to a group of their own. Where it cannot
/// keep its group, another must not read what that one could.
pub(super) fn keep_owner_and_mode(new: &File, old: &Metadata) -> io::Result<()> {
    let ours = new.metadata()?;
    let mut mode = old.mode() & 0o7777;
    if (ours.uid(), ours.gid()) != (old.uid(), old.gid()) {
        let both = fchown(new, Some(old.uid()), Some(old.gid()));
        if both.is_err() && ours.gid() != old.gid() && fchown(new, None, Some(old.gid())).is_err() {
            mode &= !0o070;
            tracing::warn!(
                "the file's group {} could not be kept: the group's rights are taken away",
                old.gid()
            );
        }
    }
    new.set_permissions(Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_through_its_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        write(&file, "first", Overwrite::Refused).unwrap();
        assert_eq!(
            write(&file, "no", Overwrite::Refused).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        let before = fs::metadata(&file).unwrap().ino();
        write(&link, "second", Overwrite::Allowed).unwrap();
        let after = fs::metadata(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "second");
        assert_eq!(after.mode() & 0o7777, 0o640);
        assert_ne!(after.ino(), before, "it was replaced, and not written into");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            2,
            "nothing else is left"
        );
    }

    #[test]
    fn a_dangling_link_and_a_folder_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("nowhere", &link).unwrap();
        assert_eq!(
            write(&link, "", Overwrite::Refused).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        assert_eq!(
            write(&link, "", Overwrite::Allowed).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        assert!(write(folder.path(), "", Overwrite::Allowed).is_err());
    }
}
