//! What everything that a mover does has in common: the hosts, the map's store, the options, the
//! observer, and whether to stop.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::map::HostName;
use crate::mover::control::hosts::Hosts;
use crate::mover::control::journal::Entry;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::options::{Observer, Options};
use crate::mover::protocol::state::Phase;
use crate::mover::protocol::throttle::Throttle;
use crate::shard::SchemaPrefix;
use crate::store::MapStore;

/// What a mover works with. A stop applies to all clones.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) hosts: Hosts,
    pub(crate) prefix: SchemaPrefix,
    pub(crate) store: Arc<dyn MapStore>,
    pub(crate) options: Arc<Options>,
    pub(crate) observer: Observer,
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) throttle: Throttle,
}

impl Context {
    /// The moves that the hosts know: all that are neither completed nor aborted, or one move in
    /// whatever phase. Sorted by move, then shard. Hosts that cannot be queried are named.
    pub(crate) async fn list(&self, id: Option<MoveId>) -> (Vec<Entry>, Vec<(HostName, Error)>) {
        let (mut entries, unknown) = self.list_all(id).await;
        if id.is_none() {
            entries
                .retain(|entry: &Entry| !matches!(entry.phase, Phase::Completed | Phase::Aborted));
        }
        (entries, unknown)
    }

    /// The same with those that have ended.
    pub(crate) async fn list_all(
        &self,
        id: Option<MoveId>,
    ) -> (Vec<Entry>, Vec<(HostName, Error)>) {
        let asked = self.hosts.names().map(|host| async move {
            let entries = async {
                let session = self.hosts.open(host).await?;
                let entries = session.entries_if_any(id).await?;
                self.hosts.give_back(session).await;
                Ok::<_, Error>(entries)
            };
            (host.clone(), entries.await)
        });
        let mut entries = Vec::new();
        let mut unknown = Vec::new();
        for (host, answer) in futures_util::future::join_all(asked).await {
            match answer {
                Ok(found) => entries.extend(found),
                Err(error) => unknown.push((host, error)),
            }
        }
        entries.sort_by_key(|entry| (entry.id, entry.shard));
        (entries, unknown)
    }

    /// Stops every run with this context, and with its clones.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }
}

/// One value for each host.
pub(crate) type ByHost<T> = BTreeMap<HostName, T>;

pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // The mover is gone without a stop: then only dropping this future ends it.
        std::future::pending::<()>().await;
    }
}
