//! What a look-up is about: its [`Definition`], the [`Value`]s, and their [`Hash`].
//!
//! Invariant: no I/O. Invariant: the form of a value and its hash never change: an entry in a shard
//! is found by them. The trigger in the shards computes the same hash in SQL
//! ([`Definition::hash_sql`]).

mod definition;
mod form;

pub use definition::{Definition, Fold};
pub(crate) use form::key_text;
pub use form::{Hash, Value, Values};
