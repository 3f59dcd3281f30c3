//! The shard map: which host serves which shard, as an immutable value with a version.
//!
//! Pure values, no I/O. Invariant: a [`ShardMap`] places every shard `0..N` exactly once, however
//! it was made. The map is never the fence: it is a hint that the hosts correct, so nothing here
//! may be used to decide who owns a shard.

mod changes;
mod limits;
mod placement;
mod ranges;
mod shard_map;

pub use changes::{Change, Changes};
pub use limits::HostLimits;
pub use placement::{HostName, HostNameError, MapVersion, Placement, ShardEpoch};
pub use ranges::{
    RangeItem, RangesError, RangesFault, parse_ranges, parse_shards, print_ranges, print_shards,
};
pub use shard_map::{MapError, ShardMap};
