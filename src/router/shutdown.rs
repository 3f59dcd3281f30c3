//! Closing a router, and the state of its pools.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;

use super::Router;
use super::host::Host;
use super::pool::PoolState;

impl Router {
    /// Closes the router and all its clones: a call that requests a connection from now on, or
    /// waits for one, gets [`Error::Closed`](super::Error::Closed). Calls and transactions that
    /// have a connection may continue for as long as `limit`. Then their connections are closed,
    /// and their errors show whether what was on its way may have run. Returns how many connections
    /// were closed in this way. Connections to a host's address before its URL was corrected count
    /// too.
    ///
    /// A router that is dropped closes its connections too, but waits for no call.
    ///
    /// # Cancel safety
    /// The router stays closed, but connections that are in use are not ended.
    pub async fn close(&self, limit: Duration) -> usize {
        let inner = self.inner();
        inner.closed.store(true, Ordering::SeqCst);
        inner.stop_following();
        let pools = inner.pools();
        let hosts: Vec<Arc<Host>> = inner.hosts.load().values().cloned().collect();
        pools.iter().for_each(|pool| pool.close());
        let unused = join_all(pools.iter().map(|pool| pool.unused()));
        let cut = match tokio::time::timeout(limit, unused).await {
            Ok(_) => 0,
            Err(_) => pools.iter().map(|pool| pool.cut()).sum(),
        };
        // A call that continued may have needed a lookup until now.
        for pool in hosts.iter().flat_map(|host| host.look_up_pools()) {
            pool.close();
            pool.cut();
        }
        cut
    }

    /// How many connections each pool has, and how many calls wait; sorted by host. A pool is made
    /// when the router first hears of its host, and opens no connection before one is needed.
    pub fn pools(&self) -> Vec<PoolState> {
        let hosts = self.inner().hosts.load();
        let of_host = |host: &Arc<Host>| {
            host.pools()
                .into_iter()
                .map(|pool| pool.state(&host.name))
                .collect::<Vec<_>>()
        };
        let mut pools: Vec<PoolState> = hosts.values().flat_map(of_host).collect();
        pools.sort_by(|one, other| one.host.cmp(&other.host));
        pools
    }
}
