//! Look-ups: from a value to its key, unique over all shards.
//!
//! [`Lookup`] finds the key of a value, [`Claiming`] writes values that belong to one key.
//! [`migration`] is what makes a look-up's tables in the shards; [`Lookup::build`] gives the rows
//! that are there their entries.
//!
//! On an unsharded host the table itself is the look-up: `unsharded` reads it, and its own unique
//! index keeps the values unique.
//!
//! Invariant: of all claims on a value only the one in its entry can still be used, so an entry
//! leads to every committed row ([the protocol](../../docs/model.md)).

mod answer;
mod build;
mod changes;
mod claimer;
mod claiming;
mod claims;
mod compare;
mod lookup;
mod metrics;
mod migration;
#[cfg(test)]
mod model;
mod parameter;
mod statements;
mod states;
mod sweep;
mod table;
mod unsharded;

pub use crate::values::{Definition, Fold, Hash, Value, Values};
pub use build::{Built, Duplicate};
pub use changes::Writer;
pub use claiming::Claiming;
pub use compare::{Compared, Missing};
pub use lookup::Lookup;
pub use migration::{Step, migration};
pub use states::{ShardState, State};
