//! How a call over many shards fails: with what succeeded, and the rest by name.

use std::fmt;

use crate::router::Error;
use crate::shard::ShardId;

/// Some shards did not give what was wanted of them. What the others gave is here all the same.
///
/// `T` is what the call would have given; `W` is how the caller named what he wanted of a shard: IDs, keys, or places
/// in a list.
#[derive(Debug)]
pub struct Partial<T, W> {
    /// What the other shards gave.
    pub done: T,
    /// The shards that failed, sorted; at least one.
    pub failed: Vec<Failed<W>>,
    /// How many shards the call was for.
    pub shards: usize,
}

/// A shard that failed.
#[derive(Debug)]
pub struct Failed<W> {
    /// The shard.
    pub shard: ShardId,
    /// What was wanted of it.
    pub wanted: Vec<W>,
    /// Why there is nothing of it.
    pub error: Error,
}

impl<T, W> Partial<T, W> {
    /// Whether the same call for what failed may well succeed later, and nothing of that has taken effect.
    pub fn is_retryable(&self) -> bool {
        self.failed.iter().all(|failed| failed.error.is_retryable())
    }

    /// What was wanted of the shards that failed: what a second call would be for.
    pub fn wanted(&self) -> impl Iterator<Item = &W> {
        self.failed.iter().flat_map(|failed| &failed.wanted)
    }

    /// `Ok` if nothing failed.
    pub(super) fn check(self) -> Result<T, Self> {
        if self.failed.is_empty() { Ok(self.done) } else { Err(self) }
    }
}

impl<T, W> fmt::Display for Partial<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, shards) = (self.failed.len(), self.shards);
        write!(f, "{failed} of {shards} shards failed")?;
        match self.failed.first() {
            Some(first) => write!(f, "; the first is shard {}", first.shard),
            None => Ok(()),
        }
    }
}

impl<T: fmt::Debug, W: fmt::Debug> std::error::Error for Partial<T, W> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.failed.first().map(|first| &first.error as _)
    }
}

/// The first failure alone, for callers that want all or nothing.
impl<T, W> From<Partial<T, W>> for Error {
    fn from(mut partial: Partial<T, W>) -> Error {
        partial.failed.swap_remove(0).error
    }
}
