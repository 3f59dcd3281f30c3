//! From a config file to a [`Router`].

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::{Config, ConfigError, HostConfig, RouterConfig, SplitMap};
use crate::map::ShardMap;
use crate::router::{HostOptions, HostSource, Options, Router};
use crate::store::replace::Stamp;
use crate::store::{MapStore, StoreError};

/// Why there is no router.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The config cannot be read, or has mistakes.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The map cannot be read where the config keeps it.
    #[error("cannot follow the map")]
    Map(#[source] StoreError),
    /// The map gives the unsharded host some of the shards.
    #[error(transparent)]
    Split(#[from] SplitMap),
    /// The system has no thread for it.
    #[error("cannot start the thread that follows the map")]
    Thread(#[source] io::Error),
}

/// A router for the cluster of this config file. It follows the map, and takes what a move
/// publishes. It meets a host that was added to the file later when the first shard is there.
///
/// No host is connected to before it is needed, so that a host that is down does not keep the
/// program from starting. The database of a map that is kept in PostgreSQL may be away, too, if the
/// config names a `cache` and that has a copy.
///
/// The map is followed by a thread of its own, which ends when the last clone of the router is
/// dropped. So the router may outlive the runtime that called this, as one in a `static` does that
/// several `#[tokio::test]` share. Its connections end with the runtime that opened them, and the
/// next call opens others.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let router = pgshard::connect("pgshard.toml").await?;
/// let user = 31341_i64;
/// let insert = "INSERT INTO {shard}.photos (user_id, title) VALUES ($1, $2) RETURNING id";
/// let row = router.by_key(user).query_one(insert, &[&user, &"Prague"]).await?;
/// let id: i64 = row.get(0);
/// let select = "SELECT * FROM {shard}.photos WHERE id = $1";
/// let photo = router.by_id(id)?.query_one(select, &[&id]).await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// When the config or the map cannot be read.
///
/// # Cancel safety
/// Nothing is left behind when the future is dropped.
pub async fn connect(path: impl AsRef<Path>) -> Result<Router, ConnectError> {
    let config = Config::load(path)?;
    let (map_there, map) = oneshot::channel();
    let (router_there, following) = oneshot::channel();
    let store = config.map_store();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ConnectError::Thread)?;
    thread::Builder::new()
        .name("pgshard-map".to_owned())
        .spawn(move || runtime.block_on(follow(store, map_there, following)))
        .map_err(ConnectError::Thread)?;
    let Ok(map) = map.await else {
        // Only a panic of the store ends the thread without an answer.
        let error = io::Error::other("it ended before it had read the map");
        return Err(ConnectError::Thread(error));
    };
    let map = map.map_err(ConnectError::Map)?;
    config.check_map(&map)?;
    let router = Router::new(config.router_options(map));
    // Fails only where the thread has ended.
    let _ = router_there.send(router.clone());
    Ok(router)
}

/// Reads the map and follows it for the router that is made with it, until that one is gone. Ends
/// when [`connect`] is given up.
async fn follow(
    store: impl MapStore,
    mut map_there: oneshot::Sender<Result<Arc<ShardMap>, StoreError>>,
    router: oneshot::Receiver<Router>,
) {
    let read = tokio::select! {
        read = store.watch() => read,
        () = map_there.closed() => return,
    };
    let maps = match read {
        Ok(maps) => maps,
        Err(error) => {
            let _ = map_there.send(Err(error));
            return;
        }
    };
    if map_there.send(Ok(maps.current())).is_err() {
        return;
    }
    let Ok(router) = router.await else { return };
    let following = router.start_following(maps);
    drop(router);
    // The router ends the task when its last clone is dropped, or when it is to follow another
    // store.
    let _ = following.await;
}

impl Config {
    /// The options of a router of this cluster that begins with this map. The caller may change
    /// them before [`Router::new`].
    pub fn router_options(&self, map: Arc<ShardMap>) -> Options {
        let hosts = self
            .hosts
            .values()
            .map(|host| host.router_options(&self.router));
        let mut options = Options::new(hosts.collect(), map);
        options.prefix = self.cluster.prefix.clone();
        options.key = self.cluster.key;
        options.legacy_below = self.cluster.legacy_below;
        options.max_connections = self.router.max_connections;
        options.statement_timeout = self.router.statement_timeout;
        options.recycle = self.router.recycle;
        options.selects = self.router.selects;
        options.lookups = self.lookups.values().cloned().collect();
        let or_never = |limit: Duration| Some(limit).filter(|limit| !limit.is_zero());
        options.idle_timeout = self
            .router
            .idle_timeout
            .map_or(options.idle_timeout, or_never);
        options.max_lifetime = self
            .router
            .max_lifetime
            .map_or(options.max_lifetime, or_never);
        options.max_replica_lag = self
            .router
            .max_replica_lag
            .unwrap_or(options.max_replica_lag);
        options.replica_wait = self.router.replica_wait.unwrap_or(options.replica_wait);
        let file = Reread {
            path: self.path.clone(),
            last: Mutex::new(None),
        };
        options.host_source = Some(HostSource::new(move |name| file.host(name)));
        options
    }
}

/// The config file, read when it has changed.
struct Reread {
    path: PathBuf,
    last: Mutex<Option<(Stamp, Config)>>,
}

impl Reread {
    /// A file that cannot be read right now knows no host. The map's own watch reports what is
    /// wrong with the file.
    fn host(&self, name: &str) -> Option<HostOptions> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(&std::fs::metadata(&self.path).ok()?);
        if last.as_ref().is_none_or(|(seen, _)| *seen != stamp) {
            *last = Some((stamp, Config::load(&self.path).ok()?));
        }
        let (_, config) = last.as_ref()?;
        config
            .hosts
            .get(name)
            .map(|host| host.router_options(&config.router))
    }
}

impl HostConfig {
    fn router_options(&self, router: &RouterConfig) -> HostOptions {
        let connect = self.router_connect.as_ref().unwrap_or(&self.connect);
        let prepare = self.prepare.unwrap_or(router.prepare);
        let replicas = self.replicas.clone();
        HostOptions {
            prepare,
            replicas,
            layout: self.layout.clone(),
            unrouted: self.unrouted,
            ..HostOptions::new(self.name.clone(), connect.clone(), self.pool_size)
        }
    }
}
