//! Hosts that are reached otherwise than before: a URL that was corrected, a server that went elsewhere.
//!
//! Invariant: what the program that made the router said of a host holds until the source says something else than it
//! said before; and what is known of a host, which server it is, stays known.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::host::Host;
use super::options::HostOptions;
use super::routing::Inner;
use crate::map::HostName;

/// How often the source is asked what it says of the hosts by now.
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(5);

/// What the source said last of each host.
#[derive(Default)]
pub(super) struct Said(Mutex<HashMap<HostName, HostOptions>>);

impl Inner {
    /// Asks the source for every host, and makes new pools for those that are reached otherwise; the old ones end as
    /// their connections are given back. The source may read a file: this blocks.
    pub(super) fn renew_hosts(&self) {
        let Some(source) = &self.options.host_source else { return };
        let mut said = self.said.0.lock().unwrap_or_else(PoisonError::into_inner);
        for host in self.hosts.load().values() {
            let Some(now) = source.ask(host.name.as_str()) else { continue };
            let before = said.insert(host.name.clone(), now.clone());
            if before.is_some_and(|before| !now.reaches_as(&before)) && !now.reaches_as(&host.options) {
                self.replace(host, now);
            }
        }
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
