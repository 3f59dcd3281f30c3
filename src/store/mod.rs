//! Where the shard map is kept: [`MapStore`], in memory, in the config file, or in PostgreSQL.
//!
//! Invariant: a store publishes with compare-and-swap on the version: of two publishers that
//! started from the same map, one gets a conflict. A map that cannot be read is never handed out in
//! place of one that could.

mod diagnostic;
mod file;
mod folders;
mod map_edit;
pub(crate) mod map_text;
mod memory;
pub mod postgres;
pub(crate) mod replace;
pub(crate) mod section;
#[cfg(test)]
pub(crate) mod testing;
mod watch;
pub mod whole;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::BoxFuture;

pub use diagnostic::Diagnostic;
pub(crate) use diagnostic::Findings;
pub use file::FileStore;
pub use memory::MemoryStore;
pub use postgres::PostgresStore;
pub use watch::{MapSender, MapWatch, Refresh};

use crate::map::{Changes, MapVersion, ShardMap};
use crate::pg;
use crate::shard::ShardCount;

/// Keeps the shard map of a cluster. The trait is object-safe: its users hold an
/// `Arc<dyn MapStore>`.
pub trait MapStore: fmt::Debug + Send + Sync {
    /// The map as it is kept now.
    ///
    /// # Errors
    /// When it cannot be read or is no map.
    ///
    /// # Cancel safety
    /// Reads only: may be dropped at any time.
    fn load(&self) -> BoxFuture<'_, Result<ShardMap, StoreError>>;

    /// Replaces the map of version `expected` by `map`, which must have a larger version. Use
    /// [`publish_merged`] to publish single placements while other processes do so too.
    ///
    /// # Errors
    /// [`PublishError::Conflict`] when the map kept is not of that version. After every error the
    /// map kept stays as it was.
    ///
    /// # Cancel safety
    /// When dropped, the map may be published or not; nothing between.
    fn publish<'a>(
        &'a self,
        expected: MapVersion,
        map: &'a ShardMap,
    ) -> BoxFuture<'a, Result<(), PublishError>>;

    /// Follows the map: the current one, then every one that replaces it. A map that cannot be read
    /// is skipped, and the one before it is kept; [`MapWatch::last_error`] has the reason. Must be
    /// called inside a tokio runtime.
    ///
    /// # Errors
    /// When the map cannot be read now.
    ///
    /// # Cancel safety
    /// Reads only: may be dropped at any time.
    fn watch(&self) -> BoxFuture<'_, Result<MapWatch, StoreError>>;
}

/// Why a store cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system refuses.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried: `read`, `lock` …
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file holds no map, or a wrong one.
    #[error("{}", all(diagnostics))]
    Text {
        /// Every mistake, in the order of the text.
        diagnostics: Vec<Diagnostic>,
    },
    /// Another process holds the lock on the file.
    #[error(
        "{} is being published by another process{}; gave up after {} s",
        path.display(),
        if holders.is_empty() { String::new() } else { format!(", {}", holders.join(", ")) },
        waited.as_secs()
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// How long we waited.
        waited: Duration,
        /// The processes that hold the lock, each with its ID, where this machine can find them.
        holders: Vec<String>,
    },
    /// The file was edited each time we were about to replace it.
    #[error("{} changes faster than it can be published; try again", path.display())]
    Unsteady {
        /// The file.
        path: PathBuf,
    },
    /// The map could not be read back after it was written into the file's text. The file was not
    /// changed.
    #[error(
        "the map cannot be written into {}: {}",
        path.display(),
        if diagnostics.is_empty() {
            "it would read as another".to_owned()
        } else {
            all(diagnostics)
        }
    )]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What would be wrong with the file; a host that `[hosts]` does not have, most likely.
        diagnostics: Vec<Diagnostic>,
    },
    /// The map's database cannot be reached.
    #[error("the map's database is out of reach")]
    Connect {
        /// Why.
        source: Box<pg::ConnectError>,
    },
    /// The map's database took too long.
    #[error(
        "cannot {doing} in {to}: no answer within {} s{}",
        limit.as_secs(),
        if holders.is_empty() {
            String::new()
        } else {
            format!("; in its way: {}", holders.join("; "))
        }
    )]
    TimedOut {
        /// What was tried.
        doing: &'static str,
        /// `user@address/database`.
        to: String,
        /// The limit.
        limit: Duration,
        /// The sessions that hold a lock it waits for, with their process IDs, if the server could
        /// list them.
        holders: Vec<String>,
    },
    /// The map's database refuses.
    #[error("cannot {doing} in {to}")]
    Sql {
        /// What was tried.
        doing: &'static str,
        /// `user@address/database`.
        to: String,
        /// The error of the server or the driver.
        source: tokio_postgres::Error,
    },
    /// The tables of the map are not there.
    #[error(
        "{to} has no schema pgshard_map: `pgshard map import` brings a map there, `pgshard map \
            rebuild` one of what the hosts say"
    )]
    NotInstalled {
        /// `user@address/database`.
        to: String,
    },
    /// The tables are there, and no map is in them.
    #[error(
        "{to} keeps no map: `pgshard map import` brings one there, `pgshard map rebuild` one of \
            what the hosts say"
    )]
    NoMap {
        /// `user@address/database`.
        to: String,
    },
    /// The map kept is of a cluster with another number of shards.
    #[error(
        "{to} keeps a map of {kept} shards, the config says {config}: it is the map of another \
            cluster"
    )]
    OtherShards {
        /// `user@address/database`.
        to: String,
        /// N of the map kept.
        kept: i32,
        /// N of the config.
        config: ShardCount,
    },
    /// The tables hold what no pgshard writes.
    #[error("what {to} keeps is not a map, and `pgshard map rebuild` replaces it: {what}")]
    Damaged {
        /// `user@address/database`.
        to: String,
        /// What is wrong with it.
        what: String,
    },
}

fn all(diagnostics: &[Diagnostic]) -> String {
    let texts: Vec<String> = diagnostics.iter().map(ToString::to_string).collect();
    texts.join("\n")
}

impl StoreError {
    /// Whether the same call can succeed a moment later.
    pub fn is_retryable(&self) -> bool {
        match self {
            StoreError::Locked { .. } | StoreError::Unsteady { .. } => true,
            // With some settings of the server, one of two statements on the map's row has to be
            // repeated.
            StoreError::Sql { source, .. } => source.code().is_some_and(pg::state::is_conflict),
            _ => false,
        }
    }

    /// Whether the map's database is unreachable. Only then may a copy replace it; any answer takes
    /// precedence over a copy.
    pub fn is_unreachable(&self) -> bool {
        match self {
            StoreError::Connect { .. } | StoreError::TimedOut { .. } => true,
            StoreError::Sql { source, .. } => source.code().is_none_or(pg::state::is_transient),
            _ => false,
        }
    }

    /// The former name of [`StoreError::is_unreachable`].
    #[doc(hidden)]
    #[deprecated(note = "renamed to is_unreachable")]
    pub fn is_away(&self) -> bool {
        self.is_unreachable()
    }
}

/// Why a map was not published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Another process has published.
    #[error("the map is at version {found}, not at {expected} any more: load it and merge again")]
    Conflict {
        /// The version that was to be replaced.
        expected: MapVersion,
        /// The version found in its place.
        found: MapVersion,
    },
    /// The version of the map is not larger than that of the one it replaces.
    #[error("a map that replaces version {expected} cannot have version {given}")]
    NotNewer {
        /// The version that was to be replaced.
        expected: MapVersion,
        /// The version of the map given.
        given: MapVersion,
    },
    /// The map is of a cluster with another number of shards.
    #[error("the map is of {given} shards, the cluster has {kept}")]
    OtherCluster {
        /// N of the map kept.
        kept: ShardCount,
        /// N of the map given.
        given: ShardCount,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl PublishError {
    /// Whether the same intention can succeed a moment later.
    pub fn is_retryable(&self) -> bool {
        match self {
            PublishError::Conflict { .. } => true,
            PublishError::Store(error) => error.is_retryable(),
            PublishError::NotNewer { .. } | PublishError::OtherCluster { .. } => false,
        }
    }
}

/// How often [`publish_merged`] starts over. In every round one process has published, so this many
/// movers can publish at the same moment and each gets through.
const MERGE_ATTEMPTS: u32 = 64;

/// Publishes placements while other processes do so too: loads the map, merges each placement with
/// an epoch larger than the map's, publishes the result, and starts over when another process was
/// faster. Returns the resulting map. Nothing is published when no placement is newer.
///
/// # Errors
/// The store's, and [`PublishError::Conflict`] when others were faster 64 times in a row.
///
/// # Cancel safety
/// When dropped, the placements may be published or not. Calling it again is harmless.
pub async fn publish_merged(
    store: &dyn MapStore,
    changes: &Changes,
) -> Result<ShardMap, PublishError> {
    let mut attempt = 1;
    loop {
        let kept = store.load().await?;
        let merged = kept.merged(changes);
        if merged.version() == kept.version() {
            return Ok(kept);
        }
        match store.publish(kept.version(), &merged).await {
            Ok(()) => return Ok(merged),
            Err(error) if attempt == MERGE_ATTEMPTS || !error.is_retryable() => return Err(error),
            Err(error) => tracing::debug!(attempt, %error, "publishing the map again"),
        }
        attempt += 1;
        // Publishers that met once do not meet again in step.
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..10_000))).await;
    }
}

/// What every store checks before it replaces `kept`.
fn check_replaceable(
    kept: &ShardMap,
    expected: MapVersion,
    map: &ShardMap,
) -> Result<(), PublishError> {
    if kept.version() != expected {
        Err(PublishError::Conflict {
            expected,
            found: kept.version(),
        })
    } else if map.shards() != kept.shards() {
        Err(PublishError::OtherCluster {
            kept: kept.shards(),
            given: map.shards(),
        })
    } else if map.version() <= expected {
        Err(PublishError::NotNewer {
            expected,
            given: map.version(),
        })
    } else {
        Ok(())
    }
}
