//! The values of the config that every host has recorded.

use crate::id::Epoch;
use crate::map::HostName;
use crate::shard::{KeyKind, Layout, SchemaPrefix, ShardCount, WholeSchema};

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
    /// IDs below this were made before there were shards, and name none. 0: there are no such IDs.
    pub legacy_below: i64,
    /// The host that keeps all shards in one schema, if the cluster has one.
    pub unsharded: Option<UnshardedHost>,
}

/// A host that serves all shards from one schema of ordinary tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnshardedHost {
    /// Its name in the config.
    pub host: HostName,
    /// The schema.
    pub schema: WholeSchema,
}

impl Cluster {
    /// How a host keeps its shards, by the config.
    pub fn layout(&self, host: &str) -> Layout {
        match &self.unsharded {
            Some(whole) if whole.host.as_str() == host => Layout::Unsharded(whole.schema.clone()),
            _ => Layout::Sharded,
        }
    }

    /// The schema of all shards on this host, if it is the unsharded one.
    pub fn whole(&self, host: &HostName) -> Option<&WholeSchema> {
        let whole = self.unsharded.as_ref()?;
        (whole.host == *host).then_some(&whole.schema)
    }
}
