//! Files that commands write: whole, or not at all where there was none.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Whether a file that is there may be overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overwrite {
    /// It may.
    Allowed,
    /// It is an error.
    Refused,
}

/// Writes a file. One that was made and could not be filled, as on a full disk, is removed: it would stand in the way
/// of the next try.
pub(crate) fn write(path: &Path, text: &str, overwrite: Overwrite) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true);
    let was_there = path.symlink_metadata().is_ok();
    match overwrite {
        Overwrite::Allowed => options.create(true).truncate(true),
        Overwrite::Refused => options.create_new(true),
    };
    let mut file = options.open(path)?;
    let written = file.write_all(text.as_bytes());
    if written.is_err() && !was_there {
        // The first error says why there is none.
        let _ = fs::remove_file(path);
    }
    written
}
