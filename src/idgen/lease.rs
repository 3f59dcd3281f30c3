//! Leases on the worker numbers of [snowflakes](super::snowflake), kept in PostgreSQL.
//!
//! What may not break: every grant and renewal carries a **ceiling**, the last millisecond that the holder may put into an
//! ID, and the next grant of the number begins after it. This holds by the rows alone; no clock has to be right for it. That a
//! lease ends by the clock only decides when the number may go to somebody else.

use std::time::Duration;

use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::pg::{ConnectError, ConnectOptions, Connection};

/// How many worker numbers there are.
pub const WORKERS: u16 = 1024;

/// A worker number, granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The number, `0..=1023`.
    pub worker: u16,
    /// Who holds it.
    pub token: Uuid,
    /// The first Unix millisecond that an ID may have.
    pub floor_ms: u64,
    /// The last Unix millisecond that an ID may have.
    pub ceiling_ms: u64,
}

/// What a holder asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The holder's wall clock, Unix milliseconds.
    pub now_ms: u64,
    /// How far past it an ID may go.
    pub length: Duration,
    /// How long the number is kept for the holder; at least the length.
    pub keep: Duration,
}

/// What [`WorkerLeases::install`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The schema was made.
    Now,
    /// It was there.
    Before,
}

/// What the database knows of a worker number, see [`WorkerLeases::status`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    /// The IDs that differ from each other.
    pub space: String,
    /// The number, `0..=1023`.
    pub worker: u16,
    /// The last Unix millisecond that an ID of this number may have so far.
    pub ceiling_ms: u64,
    /// How long it is kept for its holder; `None` when it is free.
    pub left: Option<Duration>,
}

/// Why there is no lease.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// All numbers are held.
    #[error(
        "all {WORKERS} worker numbers of {space:?} are leased: stop generators, or use another space for other IDs"
    )]
    NoneFree {
        /// The space.
        space: String,
    },
    /// The table of leases is not there.
    #[error(
        "the database has no schema pgshard_workers: `pgshard workers install --host HOST` or WorkerLeases::install makes it"
    )]
    NotInstalled,
    /// The database cannot be reached.
    #[error("the database of the worker leases cannot be reached")]
    Connect(#[source] ConnectError),
    /// A statement failed.
    #[error("cannot {doing}")]
    Sql {
        /// What was being done.
        doing: &'static str,
        /// What the server or the driver says.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The database took too long.
    #[error("the database of the worker leases did not answer within {limit_ms} ms")]
    TimedOut {
        /// The limit.
        limit_ms: u128,
    },
}

/// Keeps leases. PostgreSQL does, and in tests a store in memory.
pub trait LeaseStore: Send + Sync + 'static {
    /// Grants a number that nobody holds.
    ///
    /// # Errors
    /// When all are held, or the store is out of reach.
    ///
    /// # Cancel safety
    /// When dropped, a number may be granted to nobody; it is free again when `keep` has passed.
    fn acquire(&self, token: Uuid, term: Term) -> impl Future<Output = Result<Grant, Error>> + Send;

    /// Renews a grant: the same with a later ceiling; `None` when the number is somebody else's by now.
    ///
    /// # Errors
    /// When the store is out of reach. The grant may be renewed or not, then.
    ///
    /// # Cancel safety
    /// When dropped, the grant may be renewed or not.
    fn renew(&self, grant: Grant, term: Term) -> impl Future<Output = Result<Option<Grant>, Error>> + Send;
}

/// The leases in one PostgreSQL database, in the schema `pgshard_workers`. Connects for each call: that is every few
/// seconds, and survives restarts of the server without care.
#[derive(Clone, Debug)]
pub struct WorkerLeases {
    connect: ConnectOptions,
    space: String,
}

const VERSION_1: &str = include_str!("../../migrations/workers/0001_workers.sql");
const PATIENCE: Duration = Duration::from_secs(10);
/// What is left is negative for a number that is free again.
const STATUS: &str = "SELECT space, worker, ceiling_ms,
    pg_catalog.floor(pg_catalog.date_part('epoch', expires_at - pg_catalog.clock_timestamp()) * 1000)::int8
    FROM pgshard_workers.lease ORDER BY space, worker";
/// "pgsh", and which.
const LOCK: &str = "SET LOCAL lock_timeout = '10s'; SELECT pg_advisory_xact_lock(1885827944, 1001)";

impl WorkerLeases {
    /// The leases of one space in this database. IDs of two spaces may be the same.
    pub fn new(connect: ConnectOptions, space: impl Into<String>) -> WorkerLeases {
        WorkerLeases { connect, space: space.into() }
    }

    /// Makes the schema `pgshard_workers` where it is not there. The role needs CREATE on the database.
    ///
    /// # Errors
    /// When the database is out of reach or refuses.
    ///
    /// # Cancel safety
    /// All or nothing: it is one transaction.
    pub async fn install(&self) -> Result<Installed, Error> {
        let sql = |source| Error::Sql { doing: "make the schema pgshard_workers", source };
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await.map_err(sql)?;
        transaction.batch_execute(LOCK).await.map_err(sql)?;
        let there = "SELECT to_regclass('pgshard_workers.lease') IS NOT NULL";
        if transaction.query_one(there, &[]).await.map_err(sql)?.get(0) {
            return Ok(Installed::Before);
        }
        transaction.batch_execute(VERSION_1).await.map_err(sql)?;
        transaction.commit().await.map_err(sql)?;
        Ok(Installed::Now)
    }

    /// Every worker number of every space that was ever leased, by space and number.
    ///
    /// # Errors
    /// When the database is out of reach, does not answer in time, or lacks the schema.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn status(connect: &ConnectOptions) -> Result<Vec<LeaseStatus>, Error> {
        let doing = "read the leases of worker numbers";
        let answer = async {
            let connection = connect.connect("pgshard workers").await.map_err(Error::Connect)?;
            connection.query(STATUS, &[]).await.map_err(|source| failure(doing, source))
        };
        let rows = tokio::time::timeout(PATIENCE, answer).await.map_err(|_| late())??;
        let status = |row: tokio_postgres::Row| LeaseStatus {
            space: row.get(0),
            worker: row.get::<_, i32>(1).unsigned_abs() as u16,
            ceiling_ms: row.get::<_, i64>(2).cast_unsigned(),
            left: u64::try_from(row.get::<_, i64>(3)).ok().map(Duration::from_millis),
        };
        Ok(rows.into_iter().map(status).collect())
    }

    async fn connection(&self) -> Result<Connection, Error> {
        self.connect.connect("pgshard workers").await.map_err(Error::Connect)
    }

    async fn row(
        &self,
        doing: &'static str,
        text: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<tokio_postgres::Row, Error> {
        let answer = async {
            let connection = self.connection().await?;
            connection.query_one(text, values).await.map_err(|source| failure(doing, source))
        };
        tokio::time::timeout(PATIENCE, answer).await.map_err(|_| late())?
    }
}

fn failure(doing: &'static str, source: tokio_postgres::Error) -> Error {
    match source.code().map(|code| code.code()) {
        Some("3F000" | "42P01" | "42883") => Error::NotInstalled,
        _ => Error::Sql { doing, source },
    }
}

fn late() -> Error {
    Error::TimedOut { limit_ms: PATIENCE.as_millis() }
}

fn bigint(ms: u128) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX / 4)
}

impl LeaseStore for WorkerLeases {
    async fn acquire(&self, token: Uuid, term: Term) -> Result<Grant, Error> {
        let (now, length, keep) =
            (bigint(term.now_ms.into()), bigint(term.length.as_millis()), bigint(term.keep.as_millis()));
        let text = "SELECT worker, floor_ms, ceiling_ms FROM pgshard_workers.acquire($1, $2, $3, $4, $5)";
        let row = self.row("lease a worker number", text, &[&self.space, &token, &now, &length, &keep]).await?;
        let worker = row.get::<_, Option<i32>>(0).and_then(|worker| u16::try_from(worker).ok());
        let worker = worker.ok_or_else(|| Error::NoneFree { space: self.space.clone() })?;
        let (floor_ms, ceiling_ms) = (row.get::<_, i64>(1).cast_unsigned(), row.get::<_, i64>(2).cast_unsigned());
        Ok(Grant { worker, token, floor_ms, ceiling_ms })
    }

    async fn renew(&self, grant: Grant, term: Term) -> Result<Option<Grant>, Error> {
        let (now, length, keep) =
            (bigint(term.now_ms.into()), bigint(term.length.as_millis()), bigint(term.keep.as_millis()));
        let worker = i32::from(grant.worker);
        let text = "SELECT pgshard_workers.renew($1, $2, $3, $4, $5, $6)";
        let values: [&(dyn ToSql + Sync); 6] = [&self.space, &worker, &grant.token, &now, &length, &keep];
        let ceiling: Option<i64> = self.row("renew the lease of a worker number", text, &values).await?.get(0);
        Ok(ceiling.map(|ceiling| Grant { ceiling_ms: ceiling.cast_unsigned(), ..grant }))
    }
}
