//! The store itself: where the map is, how it is followed, and the copy on disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::copy::Copy;
use super::session::Session;
use crate::map::{MapVersion, ShardMap};
use crate::pg::ConnectOptions;
use crate::shard::ShardCount;
use crate::store::{MapStore, PublishError, StoreError};

/// How a watch learns that the map has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Follow {
    /// By LISTEN on a connection of its own, which also polls.
    #[default]
    Listening,
    /// By asking at every poll interval only, over a connection that is opened for it. For servers
    /// with few connections to spare, and for a pooler in transaction mode, through which LISTEN
    /// hears nothing.
    Polling,
}

/// Keeps the map in the schema `pgshard_map` of one database; a database has the map of one
/// cluster. `pgshard map import` makes the schema, or [`PostgresStore::install`].
///
/// A watch holds one connection; loading and publishing open one each time.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    pub(super) connect: Arc<ConnectOptions>,
    pub(super) shards: ShardCount,
    copy: Option<Copy>,
    pub(super) follow: Follow,
    pub(super) poll_interval: Duration,
    pub(super) reason: Arc<str>,
}

/// A map, and whether it is the one that is kept.
#[derive(Debug)]
pub struct Loaded {
    /// The map.
    pub map: ShardMap,
    /// Why it is the copy on disk; `None` when it is the database's.
    pub stale: Option<StoreError>,
}

/// What [`PostgresStore::install`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Installed {
    /// There was no map; the one given is kept now.
    Created,
    /// There was one. It stays.
    Kept(ShardMap),
}

impl PostgresStore {
    /// How often a watch polls the database by default. Notifications arrive immediately; this is
    /// for those that got lost.
    pub const POLL_INTERVAL: Duration = Duration::from_secs(5);

    /// A store in this database, for a cluster of this many shards. Nothing is connected yet.
    pub fn new(connect: ConnectOptions, shards: ShardCount) -> PostgresStore {
        let (follow, poll_interval) = (Follow::default(), Self::POLL_INTERVAL);
        PostgresStore {
            connect: Arc::new(connect),
            shards,
            copy: None,
            follow,
            poll_interval,
            reason: "".into(),
        }
    }

    /// The same store that keeps a copy of the map in this file, for a start while the database is
    /// away.
    #[must_use]
    pub fn with_copy(self, path: impl Into<PathBuf>) -> PostgresStore {
        PostgresStore {
            copy: Some(Copy::new(path.into(), self.shards)),
            ..self
        }
    }

    /// The same store with this poll interval, give or take a quarter; at most once a millisecond.
    #[must_use]
    pub fn with_poll_interval(self, interval: Duration) -> PostgresStore {
        PostgresStore {
            poll_interval: interval.max(Duration::from_millis(1)),
            ..self
        }
    }

    /// The same store that learns of changes in this way.
    #[must_use]
    pub fn with_follow(self, follow: Follow) -> PostgresStore {
        PostgresStore { follow, ..self }
    }

    /// The same store that records this reason with what it publishes, a command line for example.
    #[must_use]
    pub fn with_reason(self, reason: impl Into<Arc<str>>) -> PostgresStore {
        PostgresStore {
            reason: reason.into(),
            ..self
        }
    }

    /// The database.
    pub fn database(&self) -> &ConnectOptions {
        &self.connect
    }

    /// The file of the copy.
    pub fn copy_path(&self) -> Option<&Path> {
        self.copy.as_ref().map(Copy::path)
    }

    /// Makes the tables where they are missing, and keeps this map where there is none. Two calls
    /// at the same time wait for each other.
    ///
    /// # Errors
    /// When the database is unreachable, or the role may not create schemas there, or the stored
    /// map is of another cluster.
    ///
    /// # Cancel safety
    /// All or nothing.
    pub async fn install(&self, map: &ShardMap) -> Result<Installed, StoreError> {
        let mut session = Session::open(&self.connect, None).await?;
        if session.install(map, &self.reason).await? {
            return Ok(Installed::Created);
        }
        Ok(Installed::Kept(session.map(self.shards).await?))
    }

    /// Keeps these placements in place of what is kept now, for when that cannot be read as a map,
    /// or nothing is kept. Returns the map. Its version is the next after the one kept. If there is
    /// none, or none can follow it, it is the next after the newest map of the history that can be
    /// read.
    ///
    /// # Errors
    /// When the database is unreachable, when its tables are of another format, and
    /// [`PublishError::Conflict`] when another process has published in between.
    ///
    /// # Cancel safety
    /// When dropped, the map may be published or not; nothing between.
    pub async fn mend(&self, map: &ShardMap) -> Result<ShardMap, PublishError> {
        let session = Session::open(&self.connect, None).await?;
        let was = session.kept_version().await?;
        let last = |version: &MapVersion| version.get() >= i64::MAX.unsigned_abs();
        let version = match was.filter(|was| !last(was)) {
            Some(was) => was.next(),
            None => session
                .last_readable(self.shards)
                .await?
                .map_or(MapVersion::FIRST, |map| map.version().next()),
        };
        let map = map.with_version(version);
        match session.publish(was, &map, &self.reason).await? {
            (true, _) => Ok(map),
            (false, found) => {
                let none = MapVersion::new(0);
                Err(PublishError::Conflict {
                    expected: was.unwrap_or(none),
                    found: found.unwrap_or(none),
                })
            }
        }
    }

    /// The map as it is stored now; while the database is unreachable, the copy on disk.
    ///
    /// # Errors
    /// As [`MapStore::load`], when there is no copy.
    ///
    /// # Cancel safety
    /// Reads only: may be dropped at any time.
    pub async fn load_or_copy(&self) -> Result<Loaded, StoreError> {
        let error = match self.load().await {
            Ok(map) => return Ok(Loaded { map, stale: None }),
            Err(error) => error,
        };
        match self.copied(&error).await {
            Some(map) => Ok(Loaded {
                map,
                stale: Some(error),
            }),
            None => Err(error),
        }
    }

    /// The copy on disk, if this error is one for which it may be used.
    pub(super) async fn copied(&self, error: &StoreError) -> Option<ShardMap> {
        let copy = self.copy.as_ref().filter(|_| error.is_unreachable())?;
        let path = copy.path().display();
        match copy.read().await {
            Ok(map) => {
                let error = error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    "the map's database cannot be asked: version {} is taken from the copy {path}",
                    map.version()
                );
                Some(map)
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the copy of the map {path} cannot be used"
                );
                None
            }
        }
    }

    /// Writes the database's map to the copy.
    pub(super) async fn keep_copy(&self, map: &Arc<ShardMap>) {
        let Some(copy) = &self.copy else { return };
        if let Err(error) = copy.write(map, &self.connect).await {
            // The map itself is all right; only a start while the database is away would miss this
            // one.
            let (error, path) = (&error as &dyn std::error::Error, copy.path().display());
            tracing::warn!(
                error,
                "version {} of the map is not in the copy {path}",
                map.version()
            );
        }
    }
}
