//! A connection to a host on which statements of several shards are on their way at a time, one behind the other.
//!
//! Invariant: a lane holds a connection, so nothing that needs another one is waited for while it does. A
//! statement that met a move is given back as [`Ran::Again`], to be run by [`Shard::query`](super::Shard::query) once
//! the lane is gone. And a connection on which an answer is still awaited never goes back to its pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Router;
use super::error::Error;
use super::host::Host;
use super::kind::Kind;
use super::session::{Lease, Prepare};
use super::sql::{Rendered, Sql};
use super::stale::Met;
use crate::pg::state;
use crate::shard::ShardId;

/// How a statement on a lane ended.
pub(crate) enum Ran {
    /// With its rows, or with an error that another try would not change.
    Done(Result<Vec<Row>, Error>),
    /// It has had no effect, and is worth the whole of what the router does about moves.
    Again,
}

/// A connection for many. Cheap to clone; goes back to its pool with the last clone.
#[derive(Clone)]
pub(crate) struct Lane(Arc<Held>);

struct Held {
    router: Router,
    host: Arc<Host>,
    lease: Option<Lease>,
    /// Statements whose answers are awaited.
    awaited: AtomicUsize,
    /// The session may remember a signpost, or is lost.
    spoiled: AtomicBool,
}

impl Router {
    /// A lane to the host that serves this shard now; waits for a free connection as long as any other call.
    pub(crate) async fn lane(&self, shard: ShardId) -> Result<Lane, Error> {
        let place = self.inner().place(shard)?;
        let lease = place.host.lease(shard).await?;
        Ok(Lane::new(self, place.host, lease))
    }

    /// A lane, if the host's pool has a connection that nobody uses or waits for.
    pub(crate) async fn lane_if_free(&self, shard: ShardId) -> Option<Lane> {
        let place = self.inner().place(shard).ok()?;
        let lease = place.host.lease_if_free().await?;
        Some(Lane::new(self, place.host, lease))
    }

    /// How many lanes to the host of this shard a call may have: half of the pool, so that one call is never all that
    /// the host has connections for.
    pub(crate) fn lanes_max(&self, shard: ShardId) -> usize {
        self.inner().place(shard).map_or(1, |place| (place.host.pool_size() / 2).max(1))
    }
}

impl Lane {
    fn new(router: &Router, host: Arc<Host>, mut lease: Lease) -> Lane {
        lease.set_unsettled();
        let held = Held {
            router: router.clone(),
            host,
            lease: Some(lease),
            awaited: AtomicUsize::new(0),
            spoiled: AtomicBool::new(false),
        };
        Lane(Arc::new(held))
    }

    /// Whether the statement is prepared here for this shard, so that it is cheaper here than elsewhere.
    pub(crate) fn has(&self, shard: ShardId, sql: &Sql) -> bool {
        self.0.lease().session().has(Rendered::new(sql, self.0.router.prefix(), shard))
    }

    /// Whether several statements may be on their way at a time.
    pub(crate) fn can_pipeline(&self) -> bool {
        self.0.lease().session().can_pipeline()
    }

    /// Sends a statement behind those that are on their way, and waits for its rows, no longer than
    /// [`Options::statement_timeout`](super::Options::statement_timeout).
    ///
    /// # Cancel safety
    /// The statement may have taken effect when its future is dropped; the connection is closed with the lane.
    pub(crate) async fn query(&self, shard: ShardId, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Ran {
        let held = &*self.0;
        let kind = sql.kind();
        let only_reads = sql.only_reads(held.router.inner().options.selects);
        let here = held.router.inner().place(shard).is_ok_and(|place| place.host.name == held.host.name);
        let caught = !self.can_pipeline() && held.awaited.load(Ordering::Relaxed) > 0;
        let of_lanes = matches!(kind, Kind::Read | Kind::Write) && !sql.asks_about_names();
        if !here || !of_lanes || caught || held.spoiled.load(Ordering::Relaxed) {
            return Ran::Again;
        }
        let began = Instant::now();
        held.awaited.fetch_add(1, Ordering::Relaxed);
        let rendered = Rendered::new(sql, held.router.prefix(), shard);
        let running = held.lease().session().run(rendered, params, Prepare::Once, false);
        let ran = match held.router.inner().options.statement_timeout {
            None => Ok(running.await),
            Some(limit) => tokio::time::timeout(limit, running).await.map_err(|_| limit),
        };
        let count = |succeeded| held.host.metrics.request(&held.host.name, began.elapsed(), succeeded);
        let ran = match ran {
            Ok(ran) => ran,
            // It stays among the awaited, so that it is cancelled with the lane.
            Err(limit) => {
                held.spoiled.store(true, Ordering::Relaxed);
                count(false);
                let late = held.router.shard(shard).map(|shard| shard.timed_out(limit, !only_reads));
                return Ran::Done(Err(late.unwrap_or_else(|error| error)));
            }
        };
        held.awaited.fetch_sub(1, Ordering::Relaxed);
        let failed = match ran {
            Ok(rows) => {
                count(true);
                return Ran::Done(Ok(rows));
            }
            Err(failed) => failed,
        };
        let host = held.host.name.clone();
        if failed.lost(&held.lease().session().connection) {
            held.spoiled.store(true, Ordering::Relaxed);
            held.host.circuit.doubt();
            if only_reads || !failed.sent {
                return Ran::Again;
            }
            count(false);
            return Ran::Done(Err(Error::ConnectionLost { shard, host, may_have_run: true, source: failed.error }));
        }
        if failed.may_be_remembered() {
            held.spoiled.store(true, Ordering::Relaxed);
        }
        // One that may not write may have become a standby.
        if Met::of(&failed.error).is_some() || failed.may_be_outdated() || state::is_read_only(&failed.error) {
            return Ran::Again;
        }
        count(false);
        Ran::Done(Err(Error::Statement { shard, host, source: failed.error }))
    }
}

impl Held {
    fn lease(&self) -> &Lease {
        self.lease.as_ref().expect("a lane holds its connection until it is dropped")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(mut lease) = self.lease.take()
            && self.awaited.load(Ordering::Relaxed) == 0
            && !self.spoiled.load(Ordering::Relaxed)
        {
            lease.set_settled();
        }
    }
}
