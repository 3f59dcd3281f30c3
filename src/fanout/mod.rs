//! Many shards at once: a statement on every shard, on some, or for a list of IDs.
//!
//! Each host is worked through beside the others, with a bounded number of shards in flight, so that one that is slow
//! or dead holds up only its own shards. What may not break: a shard's failure is that shard's result and ends nothing
//! else; and every shard asked for gives exactly one result.

mod gather;
mod ids;

pub use gather::{Gather, Shards};
pub use ids::ByIds;
