//! Many shards at once: a statement on every shard, on some, for a list of IDs or keys; many rows
//! to insert; and the first rows of many keys together, in an order.
//!
//! All hosts are worked through at the same time, each on a few connections (the width) with a few
//! statements on their way on each (the depth). So a host that is slow or dead holds up only its
//! own shards. A call waits for one connection to a host. It uses others if they are free, and
//! never more than half of the pool.
//!
//! Invariant: a shard's failure is that shard's result and ends nothing else ([`Partial`] has what
//! succeeded, and names the rest). Every requested shard gives exactly one result.

mod batch;
mod gather;
mod host_jobs;
mod host_task;
mod ids;
mod insert;
mod job;
mod keys;
mod merged;
mod params;
mod partial;
mod pipeline;
mod results;
mod rows;
mod values;

pub use gather::{Gather, Shards};
pub use ids::{ByIds, MissingIds};
pub use insert::{Columns, InsertMany, Inserted};
pub use keys::ByKeys;
pub use merged::MergedRows;
pub use partial::{Failed, Partial};
pub use rows::RowStreams;
pub use values::Values;
