//! The values of the config that every host has recorded.

use crate::id::Epoch;
use crate::shard::{KeyKind, SchemaPrefix, ShardCount};

/// What may never differ between the hosts of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// N.
    pub shards: ShardCount,
    /// The zero of the IDs' clock.
    pub epoch: Epoch,
    /// The prefix of the names of the shards' schemas, before the number.
    pub schema_prefix: SchemaPrefix,
    /// How a key becomes a shard.
    pub key: KeyKind,
}
