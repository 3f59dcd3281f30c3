//! How a call over many shards fails: the error has what succeeded, and names the rest.

use std::fmt;

use super::batch::Answers;
use crate::router::{Cause, Error};
use crate::shard::ShardId;

/// Some shards failed. What the others gave is kept here.
///
/// `T` is what the call would have given. `W` is how the caller named what it wanted of a shard:
/// IDs, keys, or places in a list.
#[derive(Clone, Debug)]
pub struct Partial<T, W> {
    /// What the other shards gave.
    pub done: T,
    /// The shards that failed, sorted; at least one.
    pub failed: Vec<Failed<W>>,
    /// How many shards the call was for.
    pub shards: usize,
    /// Whether the statement is declared as read-only.
    only_reads: bool,
}

/// A shard that failed.
#[derive(Clone, Debug)]
pub struct Failed<W> {
    /// The shard.
    pub shard: ShardId,
    /// What was wanted of it.
    pub wanted: Vec<W>,
    /// Why there is nothing of it.
    pub error: Error,
}

impl<T, W> Partial<T, W> {
    /// Whether the same call for what failed may succeed later, and nothing of that has taken
    /// effect.
    pub fn is_retryable(&self) -> bool {
        self.failed.iter().all(|failed| failed.error.is_retryable())
    }

    /// What was wanted of the shards that failed: what a second call would be for.
    pub fn wanted(&self) -> impl Iterator<Item = &W> {
        self.failed.iter().flat_map(|failed| &failed.wanted)
    }
}

/// The failures of a call, if there are any.
pub(super) struct Failures<W> {
    failed: Vec<Failed<W>>,
    only_reads: bool,
}

impl<W> Failures<W> {
    /// No failures yet, for the batch that gives these answers.
    pub(super) fn new(answers: &Answers<'_>) -> Failures<W> {
        Failures {
            failed: Vec::new(),
            only_reads: answers.only_reads(),
        }
    }

    pub(super) fn add(&mut self, shard: ShardId, wanted: Vec<W>, error: Error) {
        self.failed.push(Failed {
            shard,
            wanted,
            error,
        });
    }

    /// `Ok` if nothing failed on `shards` shards.
    pub(super) fn or<T>(mut self, done: T, shards: usize) -> Result<T, Partial<T, W>> {
        if self.failed.is_empty() {
            return Ok(done);
        }
        self.failed.sort_unstable_by_key(|failed| failed.shard);
        Err(Partial {
            done,
            failed: self.failed,
            shards,
            only_reads: self.only_reads,
        })
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

impl<T: fmt::Debug + 'static, W: fmt::Debug + 'static> Partial<T, W> {
    /// The `Partial` that an [`Error::Partial`] was made from, if its types are these: `?` keeps
    /// what is done.
    ///
    /// ```
    /// # use pgshard::fanout::{Inserted, Partial};
    /// # use pgshard::router::Error;
    /// fn places_left(error: &Error) -> Vec<usize> {
    ///     let partial = Partial::<Vec<Inserted>, usize>::of(error);
    ///     partial.map(|partial| partial.wanted().copied().collect()).unwrap_or_default()
    /// }
    /// ```
    pub fn of(error: &Error) -> Option<&Partial<T, W>> {
        match error {
            Error::Partial { source, .. } => source.downcast_ref(),
            _ => None,
        }
    }
}

/// For `?`: the error contains that the call was done in part, and what was done. A call for one
/// shard is either done or not, so it gives that shard's error.
impl<T, W> From<Partial<T, W>> for Error
where
    T: fmt::Debug + Send + Sync + 'static,
    W: fmt::Debug + Send + Sync + 'static,
{
    fn from(mut partial: Partial<T, W>) -> Error {
        if partial.shards == 1 {
            return partial.failed.swap_remove(0).error;
        }
        let (failed, shards) = (partial.failed.len(), partial.shards);
        let done = failed < shards && !partial.only_reads;
        Error::Partial {
            failed,
            shards,
            may_have_run: done
                || partial
                    .failed
                    .iter()
                    .any(|failed| failed.error.may_have_run()),
            application: partial
                .failed
                .iter()
                .all(|failed| failed.error.is_application()),
            retryable: !done && partial.is_retryable(),
            source: Cause::of_any(partial),
        }
    }
}
