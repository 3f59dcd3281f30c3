//! IDs that do not come from a shard: for a row that has no shard yet (a user: the ID determines
//! the shard), and for things outside a database (log events, file names). Each kind is an
//! [`IdSource`] in a file of its own, with its layout; [`Scheme`] decodes their IDs. `docs/ids.md`
//! compares them.
//!
//! Invariant: a source that promises unique IDs returns an error with the reason before it gives
//! one twice.

pub mod clock;
pub mod flake;
pub mod lease;
mod process;
mod random;
pub mod scheme;
pub mod simpleflake;
pub mod snowflake;
pub mod tickets;
mod ticks;
pub mod uuid7;
mod versions;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

pub use clock::{Clock, SystemClock};
pub use flake::Flake;
pub use lease::{LeaseStore, WorkerLeases};
pub use scheme::Scheme;
pub use simpleflake::Simpleflake;
pub use snowflake::Snowflake;
pub use tickets::Tickets;
pub use ticks::Later;
pub use uuid7::Uuid7;

/// The most IDs that [`IdSource::next_many`] gives at once.
pub const BATCH_MAX: usize = 100_000;

/// Something that gives IDs. Shared by reference: every source may be used by many tasks at the
/// same time.
pub trait IdSource: Send + Sync {
    /// One ID. Its `Display` is how it is written down.
    type Id: Copy + Eq + Ord + Display + Send;
    /// Why there is none.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The next ID.
    ///
    /// # Errors
    /// When the source cannot give one that is certainly new within its limits of time.
    ///
    /// # Cancel safety
    /// Nothing is given twice. An ID that was taken for a future that is dropped is never given at
    /// all.
    fn next(&self) -> impl Future<Output = Result<Self::Id, Self::Error>> + Send;

    /// Exactly `count` IDs, `0..=BATCH_MAX`, for bulk loads. Cheaper than one by one.
    ///
    /// # Errors
    /// As [`IdSource::next`], and when `count` is above [`BATCH_MAX`]. IDs that were taken before
    /// it failed are never given at all.
    ///
    /// # Cancel safety
    /// As [`IdSource::next`].
    fn next_many(
        &self,
        count: usize,
    ) -> impl Future<Output = Result<Vec<Self::Id>, Self::Error>> + Send;
}

/// Why a source in this process gives no ID.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The clock is behind the last ID, or has stopped, for longer than the source may wait.
    #[error(
        "the clock is {by_ms} ms behind the last ID or the lease's start, and the limit of waiting \
            is {limit_ms} ms: set this machine's clock right"
    )]
    ClockBehind {
        /// By how much.
        by_ms: u64,
        /// How long a source waits.
        limit_ms: u128,
    },
    /// The clock is outside what the layout can hold.
    #[error(
        "the clock says {unix_ms} ms after 1970, which the layout cannot hold: it begins at \
            {first_ms} and ends at {last_ms}"
    )]
    OutOfRange {
        /// The clock.
        unix_ms: u64,
        /// The first millisecond of the layout.
        first_ms: i64,
        /// Its last.
        last_ms: i64,
    },
    /// The lease on the worker number has ended, and no new one was granted.
    #[error("no worker number is leased, and none could be leased")]
    NoLease(#[source] Arc<lease::Error>),
    /// The lease was renewed again and again, and had always ended already.
    #[error(
        "the lease on the worker number ends faster than it is used: its length is {length_ms} ms"
    )]
    LeaseTooShort {
        /// The length.
        length_ms: u128,
    },
    /// The worker number was given to the process that forked this one, which still uses it.
    #[error(
        "the worker number is that of the process that forked this one: make a source with another \
            number"
    )]
    Forked,
    /// The call requested more IDs than a source gives at once.
    #[error("{count} IDs at once are more than {BATCH_MAX}: ask several times")]
    BatchTooLarge {
        /// How many were requested.
        count: usize,
    },
}

/// How long a source waits by default for a clock that stepped back.
pub const WAIT_MAX: Duration = Duration::from_secs(1);

fn check_batch(count: usize) -> Result<(), Error> {
    if count > BATCH_MAX {
        Err(Error::BatchTooLarge { count })
    } else {
        Ok(())
    }
}

/// The snippets of the manual.
#[cfg(doctest)]
#[doc = include_str!("../../docs/ids.md")]
struct Manual;
