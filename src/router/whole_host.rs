//! The unsharded host of a router, and the tables of look-ups there.

use std::sync::Arc;

use super::Router;
use super::lookup_tables::{LookupTable, WholeHost};
use crate::shard::ShardId;

impl Router {
    /// The unsharded host that serves the shard, if one does.
    pub(crate) fn whole_host(&self, shard: ShardId) -> Option<WholeHost> {
        let place = self.inner().place(shard).ok()?;
        let schema = place.host.options.layout.whole()?.clone();
        Some(WholeHost {
            name: place.host.name.clone(),
            schema,
            epoch: place.epoch,
        })
    }

    /// The look-up's table on this host, if it was found.
    pub(crate) fn lookup_table(&self, lookup: &str, host: &WholeHost) -> Option<Arc<LookupTable>> {
        self.inner().lookup_tables.get(lookup, host)
    }

    /// Keeps what was found of the look-up's table on this host.
    pub(crate) fn set_lookup_table(&self, lookup: &str, host: WholeHost, table: Arc<LookupTable>) {
        self.inner().lookup_tables.set(lookup, host, table);
    }
}
