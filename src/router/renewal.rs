//! Hosts with options that change while the router runs: a URL was corrected, or a server has a new
//! address.
//!
//! Invariant: the options that a host was made with hold until the source's answer about the host
//! changes. The router does not forget which server a host is.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::host::Host;
use super::options::HostOptions;
use super::pool::Pool;
use super::routing::Inner;

/// How often the source is read for all hosts.
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(5);

impl Inner {
    /// Reads the source for every host, and makes new pools for those that are reached in another
    /// way now. The old pools end as their connections are given back. This blocks, since the
    /// source may read a file.
    pub(super) fn renew_hosts(&self) {
        let Some(source) = &self.options.host_source else {
            return;
        };
        let mut renewed = self.options_seen.lock();
        // `Router::close` sets `closed` and then lists the pools under this lock. A pool that is
        // made later would stay open.
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        for host in self.hosts.load().values() {
            let Some(now) = source.options_of(host.name.as_str()) else {
                continue;
            };
            let before = renewed.last.insert(host.name.clone(), now.clone());
            if before.is_some_and(|before| !now.reaches_as(&before))
                && !now.reaches_as(&host.options)
            {
                self.replace(host, now);
                renewed.former.retain(|pool| pool.strong_count() > 0);
                renewed
                    .former
                    .extend(host.pools().iter().map(Arc::downgrade));
            }
        }
    }

    /// The pools of all hosts, and the replaced ones that are still in use.
    pub(super) fn pools(&self) -> Vec<Arc<Pool>> {
        let renewed = self.options_seen.lock();
        let hosts = self.hosts.load();
        let now = hosts.values().flat_map(|host| host.pools());
        now.chain(renewed.former.iter().filter_map(Weak::upgrade))
            .collect()
    }

    fn replace(&self, former: &Arc<Host>, now: HostOptions) {
        let connect = now.connect.for_host_of(&former.options.connect);
        let options = HostOptions {
            connect,
            replicas: now.replicas,
            ..former.options.clone()
        };
        self.peers.add(&options.name, &options.connect);
        let host = Arc::new(Host::new(
            &options,
            &self.options,
            self.limit.as_ref(),
            &self.peers,
        ));
        tracing::info!(host = %options.name, to = %options.connect, "is reached in another way \
            from now on");
        self.hosts.rcu(|hosts| {
            let mut hosts = HashMap::clone(hosts);
            hosts.insert(options.name.clone(), host.clone());
            hosts
        });
        former
            .pools()
            .iter()
            .chain(&former.look_up_pools())
            .for_each(|pool| pool.retire());
    }
}
