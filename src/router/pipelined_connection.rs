//! A connection to a host that carries statements of several shards at a time, one behind the
//! other.
//!
//! Invariant: a caller that holds such a connection waits for nothing that needs another one. A
//! statement that met a move is given back as [`Ran::Again`], and
//! [`Shard::query`](super::Shard::query) runs it once the connection is given back. A connection
//! that still awaits an answer never goes back to its pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::Router;
use super::bound::OtherType;
use super::error::Error;
use super::host::Host;
use super::lease::Lease;
use super::next::{Answers, ConnectionKind, Effect, Link, Step, TryHistory, after_statement};
use super::outcome::Outcome;
use super::pool_slots::Use;
use super::reach::Reach;
use super::sql::{Naming, ShardStatement, Sql};
use super::statement_class::StatementClass;
use super::statements::Prepare;
use crate::map::HostName;
use crate::shard::ShardId;

/// How a statement on a pipelined connection ended.
pub(crate) enum Ran {
    /// With its rows, or with an error that another try would not change.
    Done(Result<Vec<Row>, Error>),
    /// It has had no effect. It is to be run again in the way that handles moves.
    Again,
}

/// A connection that several statements share. Cheap to clone; goes back to its pool with the last
/// clone.
#[derive(Clone)]
pub(crate) struct PipelinedConnection(Arc<SharedConnection>);

struct SharedConnection {
    router: Router,
    host: Arc<Host>,
    lease: Option<Lease>,
    /// Statements with an answer that is awaited.
    awaited: AtomicUsize,
    /// The session may remember a signpost, or is lost, or has had a cancel request. The
    /// connection does not go back to its pool, and nothing more is sent on it.
    spoiled: AtomicBool,
    /// A statement was cancelled.
    cancelled: AtomicBool,
}

impl Router {
    /// Borrows one to the host that serves this shard now; waits for it as long as any other call.
    pub(crate) async fn pipelined_connection(
        &self,
        shard: ShardId,
    ) -> Result<PipelinedConnection, Error> {
        let place = self.inner().place(shard)?;
        let lease = place.lease(shard, Use::Longer).await?;
        Ok(PipelinedConnection::new(self, place.host, lease))
    }

    /// The same, but only if the host's pool has a connection that no call uses or waits for.
    pub(crate) async fn pipelined_connection_if_free(
        &self,
        shard: ShardId,
    ) -> Option<PipelinedConnection> {
        let place = self.inner().place(shard).ok()?;
        let lease = place.host.lease_if_free().await?;
        Some(PipelinedConnection::new(self, place.host, lease))
    }

    /// How many such connections a call may have to the host of this shard: half of the pool, so
    /// that one call never takes all connections.
    pub(crate) fn pipelined_connections_max(&self, shard: ShardId) -> usize {
        self.inner()
            .place(shard)
            .map_or(1, |place| (place.host.pool_size() / 2).max(1))
    }

    /// The types of a statement's parameters on a shard. `None` when the statement may not be
    /// pipelined, or the server refuses it.
    pub(crate) async fn parameter_types(
        &self,
        shard: ShardId,
        sql: &Sql,
    ) -> Result<Option<Vec<Type>>, Error> {
        if !may_be_pipelined(sql) {
            return Ok(None);
        }
        let connection = self.pipelined_connection(shard).await?;
        let naming = connection.0.host.naming(self.prefix());
        let rendered = ShardStatement::new(sql, naming, shard);
        connection.0.awaited.fetch_add(1, Ordering::Relaxed);
        let types = connection.0.lease().session().prepare(rendered).await;
        connection.0.awaited.fetch_sub(1, Ordering::Relaxed);
        if types.as_ref().is_err_and(|failed| {
            failed.lost(&connection.0.lease().session().connection) || failed.may_be_remembered()
        }) {
            connection.0.spoiled.store(true, Ordering::Relaxed);
        }
        Ok(types.ok().flatten())
    }
}

impl PipelinedConnection {
    fn new(router: &Router, host: Arc<Host>, mut lease: Lease) -> PipelinedConnection {
        lease.set_unsettled();
        let shared = SharedConnection {
            router: router.clone(),
            host,
            lease: Some(lease),
            awaited: AtomicUsize::new(0),
            spoiled: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
        };
        PipelinedConnection(Arc::new(shared))
    }

    /// Whether the statement is prepared here for this shard, so that it is cheaper here than
    /// elsewhere.
    pub(crate) fn has(&self, shard: ShardId, sql: &Sql) -> bool {
        self.0
            .lease()
            .session()
            .has(ShardStatement::new(sql, self.0.naming(), shard))
    }

    pub(crate) fn host(&self) -> &HostName {
        &self.0.host.name
    }

    /// Whether several statements may be on their way at a time.
    pub(crate) fn can_pipeline(&self) -> bool {
        self.0.lease().session().can_pipeline()
    }

    /// Prepares the statement here, so that [`PipelinedConnection::query`] sends it as soon as it
    /// is polled. That also reports what is wrong with it.
    pub(crate) async fn prepare(&self, shard: ShardId, reach: Reach, sql: &Sql) {
        let shared = &*self.0;
        if self.may_run(shard, reach, sql) {
            let rendered = ShardStatement::new(sql, shared.naming(), shard);
            shared.awaited.fetch_add(1, Ordering::Relaxed);
            let _ = shared.lease().session().prepare(rendered).await;
            shared.awaited.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether this statement may be pipelined, and this connection leads to this shard's host, and
    /// that can do what the call is for.
    fn may_run(&self, shard: ShardId, reach: Reach, sql: &Sql) -> bool {
        let shared = &*self.0;
        let here = shared
            .router
            .inner()
            .place_for(shard, reach)
            .is_ok_and(|place| place.host.name == shared.host.name);
        let caught = !self.can_pipeline() && shared.awaited.load(Ordering::Relaxed) > 0;
        here && !caught
            && reach.fits(sql)
            && may_be_pipelined(sql)
            && !shared.spoiled.load(Ordering::Relaxed)
    }

    /// Sends a statement behind those that are on their way, and waits for its rows.
    ///
    /// # Cancel safety
    /// The statement may have taken effect when its future is dropped; the connection is closed
    /// with its last clone.
    pub(crate) async fn query(
        &self,
        (shard, reach): (ShardId, Reach),
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
    ) -> Ran {
        let shared = &*self.0;
        let only_reads = shared.router.only_reads(sql);
        if !self.may_run(shard, reach, sql) {
            return Ran::Again;
        }
        let began = Instant::now();
        shared.awaited.fetch_add(1, Ordering::Relaxed);
        let rendered = ShardStatement::new(sql, shared.naming(), shard);
        let ran = shared
            .lease()
            .session()
            .run(rendered, params, Prepare::Once, false)
            .await;
        shared.awaited.fetch_sub(1, Ordering::Relaxed);
        let count = |outcome| {
            shared
                .host
                .metrics
                .request(&shared.host.name, began.elapsed(), outcome)
        };
        let failed = match ran {
            Ok(rows) => {
                count(Outcome::Ok);
                return Ran::Done(Ok(rows));
            }
            Err(failed) => failed,
        };
        let link = failed.link(&shared.lease().session().connection);
        if link == Link::Lost {
            shared.host.circuit.doubt();
        }
        if link == Link::Lost || failed.may_be_remembered() || failed.is_unexpected() {
            shared.spoiled.store(true, Ordering::Relaxed);
        }
        // A statement that was cancelled for another one's sake is not to blame.
        let cancelled = shared.cancelled.load(Ordering::Relaxed)
            && failed.error.code() == Some(&SqlState::QUERY_CANCELED);
        let blameless = cancelled || is_other_type(&failed.error);
        let effect = Effect {
            may_write: !only_reads,
            repeatable: sql.class().repeatable(),
        };
        let observed = failed.observed(ConnectionKind::Shared { blameless }, link, effect);
        match after_statement(TryHistory::nothing(0), observed, Answers::default()) {
            Step::Retry(_) | Step::Query(_) => Ran::Again,
            Step::End(end) => {
                let error = failed.ended(end, shard, shared.host.name.clone());
                count(Outcome::of(&error));
                Ran::Done(Err(error))
            }
        }
    }

    /// From now on, a statement that is cancelled on this connection is run again: it was not the
    /// caller who wanted that.
    pub(crate) fn set_cancelled(&self) {
        self.0.spoiled.store(true, Ordering::Relaxed);
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// The error of a statement that reached its time limit.
    pub(crate) fn timed_out(&self, shard: ShardId, limit: Duration, may_have_run: bool) -> Error {
        let shared = &*self.0;
        self.set_cancelled();
        shared
            .host
            .metrics
            .request(&shared.host.name, limit, Outcome::Timeout);
        let late = shared
            .router
            .shard(shard)
            .map(|shard| shard.timed_out(limit, may_have_run));
        late.unwrap_or_else(|error| error)
    }

    /// Sends the server a cancel request for the statement that it is running.
    pub(crate) async fn cancel(&self) {
        let session = self.0.lease().session();
        let _ = session.connection.cancel().await;
    }
}

fn may_be_pipelined(sql: &Sql) -> bool {
    matches!(sql.class(), StatementClass::Read | StatementClass::Write) && !sql.asks_about_names()
}

/// Whether a value was bound for another shard's type.
fn is_other_type(error: &tokio_postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(|cause| cause.is::<OtherType>())
}

impl SharedConnection {
    fn naming(&self) -> Naming<'_> {
        self.host.naming(self.router.prefix())
    }

    fn lease(&self) -> &Lease {
        self.lease
            .as_ref()
            .expect("a pipelined connection has its lease until it is dropped")
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        if let Some(mut lease) = self.lease.take()
            && self.awaited.load(Ordering::Relaxed) == 0
            && !self.spoiled.load(Ordering::Relaxed)
        {
            lease.set_settled();
        }
    }
}
