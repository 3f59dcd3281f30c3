//! A host: its server, the standbys of that, and the lookups of who owns its shards.

use std::ops::Deref;
use std::sync::Arc;

use super::endpoint::Endpoint;
use super::options::{HostOptions, Options};
use super::ownership_lookup::OwnershipLookups;
use super::peers::Peers;
use super::pool::{ConnectionLimit, Pool};
use super::replica::{Replicas, Standby};
use super::standby_state::Why;

/// It dereferences to its primary.
pub(super) struct Host {
    primary: Arc<Endpoint>,
    pub(super) replicas: Arc<Replicas>,
    pub(super) ownership_lookups: OwnershipLookups,
}

impl Host {
    /// Makes the pools; no connection is opened.
    pub(super) fn new(
        host: &HostOptions,
        options: &Options,
        limit: Option<&ConnectionLimit>,
        peers: &Arc<Peers>,
    ) -> Host {
        Host {
            primary: Arc::new(Endpoint::new(host, options, limit, peers)),
            replicas: Arc::new(Replicas::new(host, options, limit, peers)),
            ownership_lookups: OwnershipLookups::new(),
        }
    }

    /// Its pool, and those of its standbys.
    pub(super) fn pools(&self) -> Vec<Arc<Pool>> {
        let standbys = self.replicas.endpoints().map(Endpoint::pool);
        std::iter::once(self.primary.pool())
            .chain(standbys)
            .cloned()
            .collect()
    }

    /// The pools for lookups and claims, its own and those of its standbys.
    pub(super) fn look_up_pools(&self) -> Vec<Arc<Pool>> {
        let standbys = self.replicas.endpoints().map(Endpoint::look_ups);
        [self.primary.look_ups(), self.primary.claims()]
            .into_iter()
            .chain(standbys)
            .cloned()
            .collect()
    }

    /// Chooses a standby for one read; see [`Replicas::choose`].
    pub(super) async fn standby(&self, position: Option<u64>) -> Result<Arc<Standby>, Why> {
        self.replicas.choose(&self.primary, position).await
    }
}

impl Deref for Host {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.primary
    }
}
