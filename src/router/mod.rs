//! The router: from a key or an ID to a connection that reaches its shard, also while shards move.
//!
//! - [`Router`] knows the map and the hosts; [`Shard`] runs SQL on one shard; [`Transaction`] is
//!   what a closure gets.
//! - [`Reads`] are statements that a standby may answer.
//! - `{shard}` in SQL is the shard's schema, `{shard_id}` its number ([`crate::pg::Template`]).
//!
//! # Moves
//!
//! A shard that is being moved is closed for some milliseconds, and afterwards it is elsewhere. The
//! router holds back statements that run into that and runs them again, [`Options::retry_for`] long
//! at most. The exceptions get a clear error instead: CALL, DO and all else that can commit before
//! its end ([`Error::NotRepeated`]), everything on a [`RawClient`], and a connection that is lost
//! while a writing statement or COMMIT is on its way.
//!
//! An error that a move can have caused (a missing name, for example) costs one query to the
//! shard's host before the application gets it.
//!
//! Invariant: the router never decides who serves a shard. It believes a host only about itself,
//! and the signpost on a host that no longer serves the shard refuses whatever a router sends there
//! by mistake.

mod abandoned;
mod answer;
mod bound;
mod call;
mod cancel_limits;
mod cause;
mod circuit;
mod cleaning;
mod cursors;
mod endpoint;
mod error;
mod executor;
mod from_row;
mod handle;
mod host;
mod host_options_seen;
mod lease;
mod lookup_problem;
mod lookup_tables;
mod metrics;
mod migrated;
mod nesting;
mod next;
mod next_ids;
mod opener;
mod options;
mod origin;
mod outcome;
mod ownership_lookup;
mod peers;
mod pipelined_connection;
mod pool;
mod pool_error;
mod pool_slots;
mod queries;
mod raw;
mod reach;
mod reads;
mod recover;
mod renewal;
mod replica;
mod routing;
mod running;
mod savepoint;
mod session;
mod session_effects;
mod shutdown;
mod slots;
mod sql;
mod stale;
mod standby_state;
mod statement_class;
mod statement_error;
mod statements;
mod stream;
mod target;
mod transaction;
mod unnamed;
mod unrouted;
mod unrouted_calls;
#[cfg(test)]
mod vectors;
mod whole_host;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::task::JoinHandle;

use self::host::Host;
use self::peers::Peers;
use self::pool::ConnectionLimit;
use self::routing::{Inner, Snapshot};
use self::sql::SqlCache;
use crate::id::Id;
use crate::map::{HostName, ShardMap};
use crate::shard::{Key, KeyKind, SchemaPrefix, ShardCount, ShardId};
use crate::store::MapWatch;
use crate::values::Definition;

pub(crate) use bound::Bound;
pub use cause::Cause;
pub(crate) use cursors::Cursors;
pub use error::{Error, Expected, HostDiffers, LookUpError, PoolPhase, Queue};
pub use executor::Executor;
pub use from_row::FromRow;
pub use handle::Shard;
pub use lookup_problem::LookupProblem;
pub(crate) use lookup_tables::{LookupTable, WholeHost};
pub use migrated::{Migrated, NotMigrated};
pub use options::{HostOptions, HostSource, Options, PrepareMode, Recycle, Selects, Unrouted};
pub(crate) use outcome::Outcome;
pub(crate) use pipelined_connection::{PipelinedConnection, Ran};
pub use pool::PoolState;
pub use raw::RawClient;
pub(crate) use reach::Reach;
pub use reads::{Position, PositionError, Reads};
pub use running::{Transaction, TransactionClient};
pub use sql::{Sql, SqlText};
pub use stream::{CopyOut, RowStream};
pub use transaction::TransactionBuilder;
pub use unrouted_calls::UnroutedCall;

/// Knows where the shards are and holds the connections. Cheap to clone: all clones are one router.
#[derive(Clone)]
pub struct Router(Arc<Inner>);

/// What a router has done about moves since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Lookups of owners on hosts. Concurrent callers share one.
    pub look_ups: u64,
    /// Statements and transactions that were run again.
    pub retries: u64,
}

impl Router {
    /// A router for these hosts. No connection is opened before it is needed.
    pub fn new(options: Options) -> Router {
        let limit = options.max_connections.map(ConnectionLimit::new);
        let peers = Arc::<Peers>::default();
        options
            .hosts
            .iter()
            .for_each(|host| peers.add(&host.name, &host.connect));
        let host = |host| Arc::new(Host::new(host, &options, limit.as_ref(), &peers));
        let hosts = options
            .hosts
            .iter()
            .map(|options| (options.name.clone(), host(options)));
        metrics::map_version(options.map.version());
        Router(Arc::new(Inner {
            shards: options.map.shards(),
            hosts: ArcSwap::from_pointee(hosts.collect()),
            limit,
            peers: peers.clone(),
            snapshot: ArcSwap::from_pointee(Snapshot::new(options.map.clone())),
            prefix: options.prefix.clone(),
            key: options.key,
            sql: SqlCache::new(),
            retry_for: options.retry_for,
            waiting: std::iter::repeat_with(AtomicU32::default)
                .take(options.map.shards().get() as usize)
                .collect(),
            options,
            unknown: Mutex::default(),
            follower: Mutex::new(None),
            retries: AtomicU64::new(0),
            unrouted: unrouted_calls::UnroutedCalls::default(),
            lookup_tables: lookup_tables::LookupTables::default(),
            closed: AtomicBool::new(false),
            options_seen: host_options_seen::HostOptionsSeen::default(),
            hosts_wanted: Arc::new(tokio::sync::Notify::new()),
        }))
    }

    /// The shard of a key: any integer type, or a text or UUID where the cluster's keys are those.
    /// No I/O, no allocation.
    ///
    /// A key of another kind than the cluster's is refused: every call on the handle gives
    /// [`Error::WrongKey`] before anything is sent. The shard number of such a handle means
    /// nothing; code that uses only the number calls [`Router::try_by_key`] instead.
    pub fn by_key<K: Key>(&self, key: K) -> Shard<'_> {
        Shard::of_key(self, self.0.shards.shard_of_key(key), K::KIND)
    }

    /// The shard of a key, or at once why it has none. No I/O, no allocation.
    ///
    /// # Errors
    /// [`Error::WrongKey`] when the cluster's keys are of another kind.
    pub fn try_by_key<K: Key>(&self, key: K) -> Result<Shard<'_>, Error> {
        let shard = self.by_key(key);
        shard.checked().map(|()| shard)
    }

    /// What the cluster's keys are.
    pub fn key_kind(&self) -> KeyKind {
        self.0.key
    }

    /// The shard that an ID names: a `bigint` as it is in the database, or an [`Id`]. No I/O, no
    /// allocation. Only the shard's bits count: an ID without a time (a number that never was an
    /// ID, most likely: a ticket, a key) names a shard too.
    ///
    /// # Errors
    /// [`Error::NoSuchId`] when the cluster does not have that shard, [`Error::LegacyId`] when the
    /// ID was made before there were shards ([`Options::legacy_below`]).
    pub fn by_id(&self, id: impl Into<Id>) -> Result<Shard<'_>, Error> {
        let id = id.into();
        let (shard, shards) = (id.shard(), self.0.shards);
        if let Some(legacy) = self.legacy(id.encode()) {
            return Err(legacy);
        }
        if shards.contains(shard) {
            Ok(Shard::new(self, shard, Reach::Keys))
        } else {
            let id = id.encode();
            Err(Error::NoSuchId { id, shard, shards })
        }
    }

    /// The error for an ID that was made before there were shards. IDs count as unsigned numbers:
    /// those of the shards are negative from 34.8 years after the epoch on.
    pub(crate) fn legacy(&self, id: i64) -> Option<Error> {
        let legacy_below = self.0.options.legacy_below;
        let is_legacy = id.cast_unsigned() < legacy_below.cast_unsigned();
        is_legacy.then_some(Error::LegacyId { id, legacy_below })
    }

    /// A shard by its number. No I/O, no allocation. On an unsharded host every call on the handle
    /// gives [`Error::Unsharded`]: the rows of one shard are not separate from all others there.
    ///
    /// # Errors
    /// [`Error::NoSuchShard`] when the cluster does not have it.
    pub fn shard(&self, shard: ShardId) -> Result<Shard<'_>, Error> {
        self.reaching(shard, Reach::Shard)
    }

    /// Whether one unsharded host has all shards, as far as the router knows: a call for all shards
    /// is one statement then.
    pub(crate) fn is_unsharded(&self) -> bool {
        self.0.is_unsharded()
    }

    /// The unsharded host, if it has all shards.
    pub(crate) fn unsharded_host(&self) -> Option<HostName> {
        let first = self
            .0
            .shards
            .iter()
            .next()
            .filter(|_| self.is_unsharded())?;
        self.0.host_name(first)
    }

    /// A shard by its number, for calls about these rows.
    pub(crate) fn reaching(&self, shard: ShardId, reach: Reach) -> Result<Shard<'_>, Error> {
        let shards = self.0.shards;
        if shards.contains(shard) {
            Ok(Shard::new(self, shard, reach))
        } else {
            Err(Error::NoSuchShard { shard, shards })
        }
    }

    /// N.
    pub fn shards_total(&self) -> ShardCount {
        self.0.shards
    }

    /// What the names of the shards' schemas begin with.
    pub fn prefix(&self) -> &SchemaPrefix {
        &self.0.prefix
    }

    /// The hosts that the router knows, sorted by name.
    pub fn hosts(&self) -> Vec<HostName> {
        let mut hosts: Vec<HostName> = self.0.hosts.load().keys().cloned().collect();
        hosts.sort_unstable();
        hosts
    }

    /// The map, without what hosts have reported since; [`Shard::host`] includes that.
    pub fn map(&self) -> Arc<ShardMap> {
        self.0.snapshot.load().map.clone()
    }

    /// Replaces the map. Placements that hosts have reported to the router are kept where they are
    /// newer.
    ///
    /// # Errors
    /// [`Error::OtherCluster`] when it has another number of shards, [`Error::OlderMap`] when it is
    /// of an earlier version; then the old one stays.
    pub fn set_map(&self, map: Arc<ShardMap>) -> Result<(), Error> {
        self.0.set_map(map)
    }

    /// Takes the current map of a store and every map that replaces it, whatever its version (a
    /// restored store has an earlier one). It also calls the [`HostSource`] for how the hosts are
    /// reached. This continues until the store is gone or the last clone of the router is dropped.
    /// A second call ends what the first one started. It also ends with the tokio runtime that this
    /// is called in; [`connect`](crate::connect) has a thread for it.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn follow(&self, maps: MapWatch) {
        drop(self.start_following(maps));
    }

    /// The same, with the task that does it.
    pub(crate) fn start_following(&self, mut maps: MapWatch) -> JoinHandle<()> {
        let inner = Arc::downgrade(&self.0);
        let refresh = maps.refresh();
        let hosts_wanted = self.0.hosts_wanted.clone();
        let task = tokio::spawn(async move {
            let mut map = maps.current();
            loop {
                let Some(router) = inner.upgrade() else {
                    return;
                };
                if let Err(error) = router.follow_map(map) {
                    tracing::warn!(%error, "a map was not taken; the old one stays");
                }
                drop(router);
                map = loop {
                    let Some(router) = inner.upgrade() else {
                        return;
                    };
                    // The source may read a file, so this must not run on a worker thread. If it
                    // panics, the next round calls it again.
                    let _ = tokio::task::spawn_blocking(move || router.renew_hosts()).await;
                    tokio::select! {
                        newer = maps.changed() => match newer {
                            Some(newer) => break newer,
                            None => return,
                        },
                        () = hosts_wanted.notified() => {}
                        () = tokio::time::sleep(renewal::RENEW_EVERY) => {}
                    }
                };
            }
        });
        let mut follower = self
            .0
            .follower
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((former, _)) = follower.replace((task.abort_handle(), refresh)) {
            former.abort();
        }
        drop(follower);
        task
    }

    /// Makes the store that the router [follows](Router::follow) check for a newer map at once, and
    /// calls the [`HostSource`] for the hosts. Call it on the signal that means "read your config
    /// again". Returns at once, and does nothing when the router follows no store.
    ///
    /// ```no_run
    /// # async fn example(router: pgshard::Router) -> std::io::Result<()> {
    /// use tokio::signal::unix::{SignalKind, signal};
    /// let mut hangups = signal(SignalKind::hangup())?;
    /// tokio::spawn(async move {
    ///     while hangups.recv().await.is_some() {
    ///         router.refresh_map();
    ///     }
    /// });
    /// # Ok(()) }
    /// ```
    pub fn refresh_map(&self) {
        if let Some((_, refresh)) = &*self
            .0
            .follower
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
        {
            refresh.now();
            self.0.hosts_wanted.notify_one();
        }
    }

    /// What the router has done about moves so far.
    pub fn stats(&self) -> Stats {
        Stats {
            look_ups: self
                .0
                .hosts
                .load()
                .values()
                .map(|host| host.ownership_lookups.lookup_count())
                .sum(),
            retries: self.0.retries.load(Ordering::Relaxed),
        }
    }

    /// Whether a statement is read-only, by the caller's declaration or by the options.
    pub(crate) fn only_reads(&self, sql: &Sql) -> bool {
        sql.only_reads(self.0.options.selects)
    }

    /// How long a call may take, unless it has a limit of its own.
    pub(crate) fn statement_timeout(&self) -> Option<Duration> {
        self.0.options.statement_timeout
    }

    /// Counts a call that has ended, for the host that serves its shard by now, and returns that
    /// host's name.
    pub(crate) fn count(
        &self,
        shard: ShardId,
        took: Duration,
        outcome: Outcome,
    ) -> Option<HostName> {
        let place = self.0.place(shard).ok()?;
        place.host.metrics.request(&place.host.name, took, outcome);
        Some(place.host.name.clone())
    }

    /// The look-up with this name.
    pub(crate) fn definition(&self, name: &str) -> Option<&Definition> {
        self.0.options.lookups.iter().find(|one| one.name == name)
    }

    fn inner(&self) -> &Inner {
        &self.0
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("hosts", &self.hosts())
            .field("map", &self.map().version())
            .finish_non_exhaustive()
    }
}
