//! A connection to a host on which statements of several shards are on their way at a time, one behind the other.
//!
//! Invariant: a lane holds a connection, so nothing that needs another one is waited for while it does. A
//! statement that met a move is given back as [`Ran::Again`], to be run by [`Shard::query`](super::Shard::query) once
//! the lane is gone. And a connection on which an answer is still awaited never goes back to its pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::Router;
use super::bound::OtherType;
use super::error::Error;
use super::host::Host;
use super::kind::Kind;
use super::outcome::Outcome;
use super::session::{Lease, Prepare};
use super::sql::{Rendered, Sql};
use super::stale::Met;
use crate::map::HostName;
use crate::pg::state;
use crate::shard::ShardId;

/// How long a request to cancel may take.
const CANCEL_MAX: Duration = Duration::from_secs(2);

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
    /// The session may remember a signpost, or is lost, or was asked to cancel something: it does not go back, and
    /// nothing more is sent there.
    spoiled: AtomicBool,
    /// A statement was cancelled.
    cancelled: AtomicBool,
}

impl Router {
    /// A lane to the host that serves this shard now; waits for a free connection as long as any other call.
    pub(crate) async fn lane(&self, shard: ShardId) -> Result<Lane, Error> {
        let place = self.inner().place(shard)?;
        let lease = place.lease(shard).await?;
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

    /// The types of a statement's parameters on a shard; the connection goes back. `None` where lanes will not do for
    /// it, or the server refuses it.
    pub(crate) async fn parameter_types(&self, shard: ShardId, sql: &Sql) -> Result<Option<Vec<Type>>, Error> {
        if !runs_on_lanes(sql) {
            return Ok(None);
        }
        let lane = self.lane(shard).await?;
        let rendered = Rendered::new(sql, self.prefix(), shard);
        lane.0.awaited.fetch_add(1, Ordering::Relaxed);
        let types = lane.0.lease().session().prepare(rendered).await;
        lane.0.awaited.fetch_sub(1, Ordering::Relaxed);
        if types
            .as_ref()
            .is_err_and(|failed| failed.lost(&lane.0.lease().session().connection) || failed.may_be_remembered())
        {
            lane.0.spoiled.store(true, Ordering::Relaxed);
        }
        Ok(types.ok().flatten())
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
            cancelled: AtomicBool::new(false),
        };
        Lane(Arc::new(held))
    }

    /// Whether the statement is prepared here for this shard, so that it is cheaper here than elsewhere.
    pub(crate) fn has(&self, shard: ShardId, sql: &Sql) -> bool {
        self.0.lease().session().has(Rendered::new(sql, self.0.router.prefix(), shard))
    }

    pub(crate) fn host(&self) -> &HostName {
        &self.0.host.name
    }

    /// Whether several statements may be on their way at a time.
    pub(crate) fn can_pipeline(&self) -> bool {
        self.0.lease().session().can_pipeline()
    }

    /// Prepares the statement here, so that [`Lane::query`] sends it at once when it is first polled. What is wrong
    /// with it is found out there.
    pub(crate) async fn prepare(&self, shard: ShardId, sql: &Sql) {
        let held = &*self.0;
        if self.may_run(shard, sql) {
            let rendered = Rendered::new(sql, held.router.prefix(), shard);
            held.awaited.fetch_add(1, Ordering::Relaxed);
            let _ = held.lease().session().prepare(rendered).await;
            held.awaited.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether a lane will do for this statement, and this lane for this shard.
    fn may_run(&self, shard: ShardId, sql: &Sql) -> bool {
        let held = &*self.0;
        let here = held.router.inner().place(shard).is_ok_and(|place| place.host.name == held.host.name);
        let caught = !self.can_pipeline() && held.awaited.load(Ordering::Relaxed) > 0;
        here && !caught && runs_on_lanes(sql) && !held.spoiled.load(Ordering::Relaxed)
    }

    /// Sends a statement behind those that are on their way, and waits for its rows.
    ///
    /// # Cancel safety
    /// The statement may have taken effect when its future is dropped; the connection is closed with the lane.
    pub(crate) async fn query(&self, shard: ShardId, sql: &Sql, params: &[&(dyn ToSql + Sync)]) -> Ran {
        let held = &*self.0;
        let only_reads = held.router.only_reads(sql);
        if !self.may_run(shard, sql) {
            return Ran::Again;
        }
        let began = Instant::now();
        held.awaited.fetch_add(1, Ordering::Relaxed);
        let rendered = Rendered::new(sql, held.router.prefix(), shard);
        let ran = held.lease().session().run(rendered, params, Prepare::Once, false).await;
        held.awaited.fetch_sub(1, Ordering::Relaxed);
        let count = |outcome| held.host.metrics.request(&held.host.name, began.elapsed(), outcome);
        let failed = match ran {
            Ok(rows) => {
                count(Outcome::Ok);
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
            count(Outcome::Cluster);
            return Ran::Done(Err(Error::ConnectionLost { shard, host, may_have_run: true, source: failed.error }));
        }
        if failed.may_be_remembered() {
            held.spoiled.store(true, Ordering::Relaxed);
        }
        // One that may not write may have become a standby. And one that was cancelled for another's sake is not to
        // blame.
        let cancelled =
            held.cancelled.load(Ordering::Relaxed) && failed.error.code() == Some(&SqlState::QUERY_CANCELED);
        if Met::of(&failed.error).is_some()
            || failed.may_be_outdated()
            || state::is_read_only(&failed.error)
            || is_other_type(&failed.error)
            || cancelled
        {
            return Ran::Again;
        }
        let error = Error::Statement { shard, host, source: failed.error };
        count(Outcome::of(&error));
        Ran::Done(Err(error))
    }

    /// What a statement says whose time is over, since `began`. From now on what is cancelled here is run again.
    pub(crate) fn timed_out(&self, shard: ShardId, limit: Duration, may_have_run: bool) -> Error {
        let held = &*self.0;
        held.spoiled.store(true, Ordering::Relaxed);
        held.cancelled.store(true, Ordering::Relaxed);
        held.host.metrics.request(&held.host.name, limit, Outcome::Timeout);
        let late = held.router.shard(shard).map(|shard| shard.timed_out(limit, may_have_run));
        late.unwrap_or_else(|error| error)
    }

    /// Asks the server to end the statement that it is at.
    pub(crate) async fn cancel(&self) {
        let session = self.0.lease().session();
        let _ = tokio::time::timeout(CANCEL_MAX, session.connection.cancel()).await;
    }
}

fn runs_on_lanes(sql: &Sql) -> bool {
    matches!(sql.kind(), Kind::Read | Kind::Write) && !sql.asks_about_names()
}

/// Whether a value was bound for another shard's type.
fn is_other_type(error: &tokio_postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(|cause| cause.is::<OtherType>())
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
