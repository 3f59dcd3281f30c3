//! Remembers on which hosts a future holds the connection of a transaction. A call that waits in
//! vain for another connection to such a host has that in its error.

use std::sync::Arc;

use crate::map::HostName;

tokio::task_local! {
    /// The transactions that the current future runs in, within their closures. A task that it
    /// spawns is in none.
    static WITHIN: Arc<Within>;
}

struct Within {
    host: HostName,
    outer: Option<Arc<Within>>,
}

/// Runs the closure of a transaction on this host. It is boxed because the future of a transaction
/// within it is part of this one.
pub(super) fn within<F: Future>(host: &HostName, work: F) -> impl Future<Output = F::Output> {
    let within = Within {
        host: host.clone(),
        outer: WITHIN.try_with(Arc::clone).ok(),
    };
    WITHIN.scope(Arc::new(within), Box::pin(work))
}

/// Whether the current future runs in a transaction on this host.
pub(super) fn is_within(host: &HostName) -> bool {
    WITHIN
        .try_with(|within| within.is_on(host))
        .unwrap_or(false)
}

impl Within {
    fn is_on(&self, host: &HostName) -> bool {
        self.host == *host || self.outer.as_ref().is_some_and(|outer| outer.is_on(host))
    }
}
