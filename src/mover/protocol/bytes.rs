//! Numbers of bytes, in words.

use std::fmt;

/// A number of bytes, shown as people read it.
pub(crate) struct Bytes(pub(crate) i64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < 10 * 1024 => write!(f, "{bytes} B"),
            bytes if bytes < 10 * 1024 * 1024 => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{} MiB", bytes >> 20),
        }
    }
}
