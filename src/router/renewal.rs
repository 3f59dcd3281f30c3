//! Hosts that are reached otherwise than before: a URL that was corrected, a server that went elsewhere.
//!
//! Invariant: what the program that made the router said of a host holds until the source says something else than it
//! said before; and what is known of a host, which server it is, stays known.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::host::Host;
use super::options::HostOptions;
use super::pool::Pool;
use super::routing::Inner;
use crate::map::HostName;

/// How often the source is asked what it says of the hosts by now.
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(5);

/// What the source said last of each host, and what became of it.
#[derive(Default)]
pub(super) struct Said(Mutex<Renewed>);

#[derive(Default)]
struct Renewed {
    said: HashMap<HostName, HostOptions>,
    /// Pools of hosts as they were reached before. One is gone when nobody uses a connection of it any more.
    former: Vec<Weak<Pool>>,
}

impl Inner {
    /// Asks the source for every host, and makes new pools for those that are reached otherwise; the old ones end as
    /// their connections are given back. The source may read a file: this blocks.
    pub(super) fn renew_hosts(&self) {
        let Some(source) = &self.options.host_source else { return };
        let mut renewed = self.said.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever closes the router has looked for its pools, or waits for the lock.
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        for host in self.hosts.load().values() {
            let Some(now) = source.ask(host.name.as_str()) else { continue };
            let before = renewed.said.insert(host.name.clone(), now.clone());
            if before.is_some_and(|before| !now.reaches_as(&before)) && !now.reaches_as(&host.options) {
                self.replace(host, now);
                renewed.former.retain(|pool| pool.strong_count() > 0);
                renewed.former.extend(host.pools().iter().map(Arc::downgrade));
            }
        }
    }

    /// The pools of all hosts, and those that somebody still uses although the host is reached otherwise by now.
    pub(super) fn pools(&self) -> Vec<Arc<Pool>> {
        let renewed = self.said.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hosts = self.hosts.load();
        let now = hosts.values().flat_map(|host| host.pools());
        now.chain(renewed.former.iter().filter_map(Weak::upgrade)).collect()
    }

    fn replace(&self, former: &Arc<Host>, now: HostOptions) {
        let connect = now.connect.for_host_of(&former.options.connect);
        let options = HostOptions { connect, replicas: now.replicas, ..former.options.clone() };
        self.peers.add(&options.name, &options.connect);
        let host = Arc::new(Host::new(&options, &self.options, self.limit.as_ref(), &self.peers));
        tracing::info!(host = %options.name, to = %options.connect, "is reached otherwise from now on");
        self.hosts.rcu(|hosts| {
            let mut hosts = HashMap::clone(hosts);
            hosts.insert(options.name.clone(), host.clone());
            hosts
        });
        former.pools().iter().chain(&former.look_up_pools()).for_each(|pool| pool.retire());
    }
}
