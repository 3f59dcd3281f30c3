//! A server: its pools, and whether it can be reached.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::circuit::{Circuit, Down};
use super::error::{Error, LookUpError};
use super::lease::Lease;
use super::metrics::HostMetrics;
use super::opener::Opener;
use super::options::{HostOptions, Options, PrepareMode};
use super::peers::Peers;
use super::pool::{BorrowedConnection, ConnectionLimit, Pool, PoolOptions};
use super::pool_error::PoolError;
use super::pool_slots::{Lane, Use};
use super::session::Statements;
use super::sql::{Naming, ShardStatement, Sql};
use super::statements::Prepare;
use super::unnamed::LearnedTypes;
use crate::map::HostName;
use crate::pg::Lookout;
use crate::shard::{SchemaPrefix, ShardId};

/// The server of a host, or one of its standbys, which has the host's name.
pub(super) struct Endpoint {
    pub(super) name: HostName,
    /// The options that it was made from.
    pub(super) options: HostOptions,
    pool: Arc<Pool>,
    /// Connections for lookups only: a lookup must get through when every other connection waits
    /// for its answer.
    look_ups: Arc<Pool>,
    /// Connections for claims only: calls that hold every other connection may wait for them.
    claims: Arc<Pool>,
    pub(super) circuit: Arc<Circuit>,
    pub(super) metrics: HostMetrics,
}

impl Endpoint {
    /// How many connections there are for lookups. Two are enough: an answer takes well under a
    /// millisecond.
    const LOOK_UPS: usize = 2;

    /// How many connections there are for claims. A claim takes one for a statement at a time.
    const CLAIMS: usize = 4;

    /// Makes the pools; no connection is opened.
    pub(super) fn new(
        host: &HostOptions,
        options: &Options,
        limit: Option<&ConnectionLimit>,
        peers: &Arc<Peers>,
    ) -> Endpoint {
        let connect = || host.connect.clone();
        let circuit = Arc::new(Circuit::new(
            connect(),
            options.application_name.clone(),
            options.create_max,
        ));
        let learned = Arc::new(LearnedTypes::new());
        let statements = |max| match host.prepare {
            PrepareMode::Unnamed => Statements::Unnamed(learned.clone()),
            PrepareMode::Named => Statements::Named {
                max,
                learned: learned.clone(),
                room: Arc::default(),
            },
        };
        let opener = Opener {
            connect: connect(),
            key: options.key,
            layout: host.layout.clone(),
            legacy_below: options.legacy_below,
            shards: options.map.shards(),
            admitted: Arc::new(AtomicBool::new(false)),
            application_name: options.application_name.clone(),
            create_max: options.create_max,
            recycle_max: options.recycle_max,
            statements: statements(options.statements_per_connection),
            circuit: circuit.clone(),
            lookout: Arc::new(Lookout::new(
                host.name.clone(),
                connect(),
                options.application_name.clone(),
            )),
            peers: peers.clone(),
            ends: Arc::default(),
            recycle: options.recycle,
        };
        let waiting_max = options.waiters_per_host;
        let pool = |size, limit, opener| {
            Pool::new(
                PoolOptions {
                    host: &host.name,
                    size,
                    waiting_max,
                    limit,
                },
                options,
                opener,
            )
        };
        Endpoint {
            name: host.name.clone(),
            options: host.clone(),
            look_ups: pool(
                Self::LOOK_UPS,
                None,
                Opener {
                    statements: statements(8),
                    ..opener.clone()
                },
            ),
            claims: pool(Self::CLAIMS, None, opener.clone()),
            pool: pool(host.pool_size, limit, opener),
            circuit,
            metrics: HostMetrics::default(),
        }
    }

    /// Borrows a connection for a statement on `shard`.
    pub(super) async fn lease(
        &self,
        lane: Lane,
        shard: ShardId,
        held_for: Use,
    ) -> Result<Lease, Error> {
        let pool = match lane {
            Lane::Work => &self.pool,
            Lane::Claims => &self.claims,
        };
        if !self.circuit.is_open()
            && let Some(borrowed) = pool.borrow_idle(shard, held_for)
        {
            self.metrics.pool(&self.name, Duration::ZERO, true);
            return Ok(Lease::new(borrowed));
        }
        let began = Instant::now();
        let lease = Box::pin(self.connection(pool.get(Some(shard), held_for))).await;
        self.metrics
            .pool(&self.name, began.elapsed(), lease.is_ok());
        lease.map_err(|error| error.of_call(shard, self.name.clone()))
    }

    /// Borrows an idle connection, or opens one if there may be another. Does not wait until one is
    /// given back.
    pub(super) async fn lease_if_free(&self) -> Option<Lease> {
        self.circuit.pass().await.ok()?;
        tokio::select! {
            biased;
            got = self.pool.get_if_free() => match got? {
                Ok(borrowed) => Some(Lease::new(borrowed)),
                Err(error) => {
                    self.counted(error);
                    None
                }
            },
            _ = self.circuit.opened() => None,
        }
    }

    /// How the shards' schemas are named there.
    pub(super) fn naming<'a>(&'a self, prefix: &'a SchemaPrefix) -> Naming<'a> {
        Naming::new(&self.options.layout, prefix)
    }

    /// The most connections of the pool.
    pub(super) fn pool_size(&self) -> usize {
        self.pool.size()
    }

    /// The pool for statements.
    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The pool for lookups.
    pub(super) fn look_ups(&self) -> &Arc<Pool> {
        &self.look_ups
    }

    /// The pool for claims.
    pub(super) fn claims(&self) -> &Arc<Pool> {
        &self.claims
    }

    /// Borrows a connection for a lookup.
    pub(super) async fn control(&self) -> Result<Lease, LookUpError> {
        self.connection(self.look_ups.get(None, Use::Longer))
            .await
            .map_err(LookUpError::from)
    }

    /// Queries the control schema, or the server. A connection may have died while it was idle,
    /// which only its use shows; once the idle ones were tried, the next is new.
    pub(super) async fn query_control(
        &self,
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LookUpError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut lease = self.control().await?;
            let statement = ShardStatement::alone(sql);
            match lease.run(statement, params, Prepare::Once).await {
                Ok(rows) => return Ok(rows),
                Err(failed)
                    if failed.lost(&lease.session().connection) && tries <= Self::LOOK_UPS =>
                {
                    lease.discard();
                }
                Err(failed) => return Err(LookUpError::Statement(failed.error)),
            }
        }
    }

    /// Waits for a connection of a pool. Fails as soon as any call finds out that the host is out
    /// of reach.
    async fn connection(
        &self,
        getting: impl Future<Output = Result<BorrowedConnection, PoolError>>,
    ) -> Result<Lease, PoolError> {
        let down = |down: Down| PoolError::Down {
            cause: down.cause,
            again_in: down.again_in,
        };
        self.circuit.pass().await.map_err(down)?;
        // `biased`: where a connection is free, only the first branch is ever polled.
        tokio::select! {
            biased;
            got = getting => got.map(Lease::new).map_err(|error| self.counted(error)),
            found = self.circuit.opened() => Err(down(found)),
        }
    }

    /// Counts a connection that could not be opened, which opens the circuit.
    fn counted(&self, error: PoolError) -> PoolError {
        match error {
            PoolError::Connect(error) => PoolError::Connect(self.circuit.failed(error)),
            error => error,
        }
    }
}
