//! Leases on the worker numbers of [snowflakes](super::snowflake), kept in PostgreSQL.
//!
//! Invariant: every grant and renewal carries a **ceiling**, the last millisecond that the holder may put into an
//! ID, and the next grant of the number begins after it. This holds by the rows alone; no clock has to be right for it. That a
//! lease ends by the clock only decides when the number may go to somebody else. A table that may have gone back in time, because its server
//! was restored, promoted or restarted, grants nothing until the longest lease has ended of which it may have lost the row.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::IsolationLevel;
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
    /// It was there, and is of this version now.
    Upgraded,
    /// It was there.
    Before,
}

/// Whether other generators may hold numbers of which a new table knows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// There were never any.
    Nobody,
    /// Some may lease from another table, or from one that is lost: nothing is granted until their leases have ended.
    Perhaps,
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
    /// The table may have gone back in time, and numbers may be held of which it knows nothing.
    #[error(
        "no worker number is leased for {left_ms} ms more: the database of the leases was restarted, restored, promoted or made anew, \
         and may have lost who holds one"
    )]
    OnHold {
        /// Until leases that may be lost have ended, in milliseconds.
        left_ms: u64,
    },
    /// The table of leases is of an older version.
    #[error(
        "the schema pgshard_workers is of an older pgshard: `pgshard workers install --host HOST` upgrades it, while it serves"
    )]
    Outdated,
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

/// What makes each version out of the one before it.
const VERSIONS: [&str; 2] = [
    include_str!("../../migrations/workers/0001_workers.sql"),
    include_str!("../../migrations/workers/0002_restored.sql"),
];
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

    /// Makes the schema `pgshard_workers` where it is not there, and brings one of an earlier version up to date while it serves. The role
    /// needs CREATE on the database. A table that is new grants nothing for two minutes, unless there is nobody elsewhere.
    ///
    /// # Errors
    /// When the database is out of reach or refuses.
    ///
    /// # Cancel safety
    /// All or nothing: it is one transaction.
    pub async fn install(&self, elsewhere: Elsewhere) -> Result<Installed, Error> {
        let sql = |source| Error::Sql { doing: "make the schema pgshard_workers", source };
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await.map_err(sql)?;
        transaction.batch_execute(LOCK).await.map_err(sql)?;
        let there = "SELECT to_regclass('pgshard_workers.version') IS NOT NULL";
        let there: bool = transaction.query_one(there, &[]).await.and_then(|row| row.try_get(0)).map_err(sql)?;
        let before: i32 = match there {
            false => 0,
            true => {
                let version = "SELECT version FROM pgshard_workers.version";
                transaction.query_one(version, &[]).await.and_then(|row| row.try_get(0)).map_err(sql)?
            }
        };
        for version in VERSIONS.iter().skip(usize::try_from(before).unwrap_or(0)) {
            transaction.batch_execute(version).await.map_err(sql)?;
        }
        if !there && elsewhere == Elsewhere::Perhaps {
            transaction.execute("SELECT pgshard_workers.hold(NULL)", &[]).await.map_err(sql)?;
        }
        transaction.commit().await.map_err(sql)?;
        Ok(match usize::try_from(before) {
            Ok(0) => Installed::Now,
            Ok(before) if before < VERSIONS.len() => Installed::Upgraded,
            _ => Installed::Before,
        })
    }

    /// Grants no number in any space for so long from now on, or for the longest lease that was ever asked for: after the
    /// table's rows were restored, or while generators still lease from another table. Renewals go on. Gives until when.
    ///
    /// # Errors
    /// When the database is out of reach, does not answer in time, or lacks the schema.
    ///
    /// # Cancel safety
    /// The hold may stand or not.
    pub async fn hold(connect: &ConnectOptions, length: Option<Duration>) -> Result<Timestamp, Error> {
        let leases = WorkerLeases::new(connect.clone(), "");
        let length = length.map(|length| bigint(length.as_millis()));
        let text = "SELECT pgshard_workers.hold($1)";
        let doing = "hold the leases of worker numbers";
        let row = leases.row(doing, text, &[&length]).await?;
        row.try_get(0).map_err(|source| failure(doing, source))
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
            let mut connection = self.connection().await?;
            let sql = |source| failure(doing, source);
            // Whatever the database's default: under an older snapshot, generators that start together would end each other.
            let transaction = connection.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
            let transaction = transaction.start().await.map_err(sql)?;
            let row = transaction.query_one(text, values).await.map_err(sql)?;
            transaction.commit().await.map_err(sql)?;
            Ok(row)
        };
        tokio::time::timeout(PATIENCE, answer).await.map_err(|_| late())?
    }
}

fn failure(doing: &'static str, source: tokio_postgres::Error) -> Error {
    match source.code().map(|code| code.code()) {
        Some("3F000" | "42P01" | "42883") => Error::NotInstalled,
        Some("42703") => Error::Outdated,
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
        let text = "SELECT worker, floor_ms, ceiling_ms, wait_ms FROM pgshard_workers.acquire($1, $2, $3, $4, $5)";
        let row = self.row("lease a worker number", text, &[&self.space, &token, &now, &length, &keep]).await?;
        if let Some(left_ms) = row.get::<_, Option<i64>>(3) {
            return Err(Error::OnHold { left_ms: left_ms.unsigned_abs() });
        }
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
