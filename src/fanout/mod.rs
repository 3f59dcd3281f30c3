//! Many shards at once: a statement on every shard, on some, for a list of IDs or keys; many rows to insert; and the
//! newest rows of many keys together.
//!
//! Each host is worked through beside the others, on a few connections (the width), each with a few statements on their
//! way (the depth), so that one that is slow or dead holds up only its own shards. One connection to a host is waited
//! for; the others are used if they are free, and never more than half of the pool.
//!
//! Invariant: a shard's failure is that shard's result and ends nothing else ([`Partial`] has what succeeded,
//! and names the rest); and every shard asked for gives exactly one result.

mod batch;
mod crew;
mod gather;
mod ids;
mod insert;
mod keys;
mod outbox;
mod params;
mod partial;
mod pipeline;

pub use gather::{Gather, Shards};
pub use ids::{ByIds, MissingIds};
pub use insert::{Columns, InsertMany, Inserted};
pub use keys::{ByKeys, Page};
pub use partial::{Failed, Partial};
