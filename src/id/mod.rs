//! 64-bit IDs that carry their shard: [`Id`], the [`Epoch`] they count from, and [`IdRange`]s for
//! spans of time.
//!
//! Pure values, no I/O. Invariant: the layout. IDs are in customers' tables and URLs; a bit that
//! moves makes every one of them point elsewhere.
//!
//! ```
//! use pgshard::id::Id;
//! let id = Id::decode(11637205501278089);
//! assert_eq!((id.ms(), id.shard().get(), id.seq()), (1387263000, 1341, 905));
//! assert_eq!(id.encode(), 11637205501278089);
//! ```

mod epoch;
mod layout;
mod range;

pub use epoch::{Epoch, EpochError};
pub use layout::{Id, MS_BITS, MS_MAX, SEQ_BITS, SEQ_MAX, SHARD_BITS};
pub use range::{IdRange, RangeError};
