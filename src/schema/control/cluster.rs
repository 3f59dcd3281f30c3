//! What the config says of the cluster, and every host has recorded.

use crate::id::Epoch;
use crate::shard::{KeyKind, SchemaPrefix, ShardCount};

/// What may never differ between the hosts of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// N.
    pub shards: ShardCount,
    /// The zero of the IDs' clock.
    pub epoch: Epoch,
    /// What stands before a shard's number in the name of its schema.
    pub schema_prefix: SchemaPrefix,
    /// How a key becomes a shard.
    pub key: KeyKind,
}
