//! Leases on the worker numbers of [snowflakes](super::snowflake), kept in PostgreSQL.
//!
//! Invariant: every grant and renewal carries a **ceiling**, the last millisecond that the holder
//! may put into an ID, and the next grant of the number begins after it. A holder that releases a
//! number reports the last millisecond that it used, and the next grant begins after that. The rows
//! alone guarantee this; no clock has to be right for it. The end of a lease by the clock only
//! decides when the number may be granted to another holder. A table that may have lost rows,
//! because its server was restored, promoted or restarted, grants nothing until the longest lease
//! among those rows has ended. All holders of a space have one epoch, and a clock that is not far
//! from the server's.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{IsolationLevel, Row, Transaction};
use uuid::Uuid;

use super::versions::later;
use crate::id::Epoch;
use crate::pg::{ConnectError, ConnectOptions, Connection};

/// How many worker numbers there are.
pub const WORKERS: u16 = 1024;

/// How far a generator's clock may be from that of the database that grants the leases. The
/// functions in the database have the same number.
pub const CLOCK_OFF_MAX_MS: i64 = 10_000;

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

/// What a holder requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// What the milliseconds of the IDs count from: the same for all holders of a space.
    pub epoch: Epoch,
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

/// What [`WorkerLeases::take_back`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// It was held.
    Now,
    /// It was free.
    Before,
}

/// Whether other generators may hold numbers of which a new table knows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// There were never any.
    Nobody,
    /// Some may lease from another table, or from one that is lost. Nothing is granted until their
    /// leases have ended.
    Perhaps,
}

/// What the database knows of a worker number, see [`WorkerLeases::status`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    /// The space: its IDs differ from each other.
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
        "all {WORKERS} worker numbers of {space:?} are leased, or were used by a clock that was \
            ahead: stop generators, free what nobody holds by `pgshard workers release`, or use \
            another space for other IDs"
    )]
    NoneFree {
        /// The space.
        space: String,
    },
    /// The table may have gone back in time, and numbers may be held of which it knows nothing.
    #[error(
        "no worker number is leased for {left_ms} ms more: the database of the leases was \
            restarted, restored, promoted or replaced, and may have lost who holds one"
    )]
    OnHold {
        /// How long until leases that may be lost have ended, in milliseconds.
        left_ms: u64,
    },
    /// The IDs of the space have another epoch.
    #[error(
        "the IDs of {space:?} count from {recorded_ms} ms after 1970, and this generator's from \
            {asked_ms}: they would meet; give it that epoch, or another space"
    )]
    OtherEpoch {
        /// The space.
        space: String,
        /// The epoch of the first holders, Unix milliseconds.
        recorded_ms: i64,
        /// The epoch of this one, Unix milliseconds.
        asked_ms: i64,
    },
    /// This machine's clock or that of the database's server is wrong.
    #[error(
        "this machine's clock is {} ms {} that of the leases' database, and more than \
            {CLOCK_OFF_MAX_MS} ms are refused: set both by NTP (`chronyc makestep`), and start \
            again",
        .by_ms.unsigned_abs(), if *.by_ms < 0 { "behind" } else { "ahead of" }
    )]
    ClockOff {
        /// By how much it is ahead; negative where it is behind. Milliseconds.
        by_ms: i64,
    },
    /// The runtime ended during a request for a lease.
    #[error("the runtime of the task that asked for the lease has ended")]
    Ended,
    /// The table of leases is of an older version.
    #[error(
        "the schema pgshard_workers is of an older pgshard: `pgshard workers install --host HOST` \
            upgrades it, while it serves"
    )]
    Outdated,
    /// The table of leases is not there.
    #[error(
        "the database has no schema pgshard_workers: `pgshard workers install --host HOST` or \
            WorkerLeases::install makes it"
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
        /// The error of the server or the driver.
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

/// Keeps leases: in PostgreSQL, and in tests in memory.
pub trait LeaseStore: Send + Sync + 'static {
    /// Grants a free number; if the token was granted one before, the same.
    ///
    /// # Errors
    /// When all are held, the epoch or the clock is not that of the others, or the store is out of
    /// reach.
    ///
    /// # Cancel safety
    /// If the future is dropped, a number may have been granted. The next call with this token gets
    /// it; otherwise it stays unused until `keep` has passed.
    fn acquire(&self, token: Uuid, term: Term)
    -> impl Future<Output = Result<Grant, Error>> + Send;

    /// Renews a grant: the same with a later ceiling; `None` when another holder has the number by
    /// now.
    ///
    /// # Errors
    /// When the store is out of reach. The grant may be renewed or not, then.
    ///
    /// # Cancel safety
    /// When dropped, the grant may be renewed or not.
    fn renew(
        &self,
        grant: Grant,
        term: Term,
    ) -> impl Future<Output = Result<Option<Grant>, Error>> + Send;

    /// Releases a number after its holder has stopped making IDs, and made none past this Unix
    /// millisecond. Does nothing if another holder has it by now.
    ///
    /// # Errors
    /// When the store is out of reach.
    ///
    /// # Cancel safety
    /// When dropped, the number may be free or not.
    fn release(&self, grant: Grant, last_ms: u64)
    -> impl Future<Output = Result<(), Error>> + Send;
}

/// The leases in one PostgreSQL database, in the schema `pgshard_workers`. It connects for each
/// call: that is only every few seconds, and it survives restarts of the server.
#[derive(Clone, Debug)]
pub struct WorkerLeases {
    connect: ConnectOptions,
    space: String,
}

/// The scripts that make each version from the one before it.
const VERSIONS: [&str; 1] = [include_str!("../../migrations/workers/0001_workers.sql")];
const PATIENCE: Duration = Duration::from_secs(10);
/// The time that is left is negative for a number that is free again.
const STATUS: &str = "SELECT space, worker, ceiling_ms,
    pg_catalog.floor(pg_catalog.date_part('epoch', expires_at - pg_catalog.clock_timestamp()) * \
    1000)::int8
    FROM pgshard_workers.lease ORDER BY space, worker";
const VERSION: &str = "SELECT version FROM pgshard_workers.version";
/// The lock's key is the bytes "pgsh" and a number.
const LOCK: &str = "SET LOCAL lock_timeout = '10s'; SELECT pg_advisory_xact_lock(1885827944, 1001)";

impl WorkerLeases {
    /// The leases of one space in this database. IDs of two spaces may be the same.
    pub fn new(connect: ConnectOptions, space: impl Into<String>) -> WorkerLeases {
        WorkerLeases {
            connect,
            space: space.into(),
        }
    }

    /// Creates the schema `pgshard_workers` if it is missing, and upgrades one of an earlier
    /// version while it is in use. The role needs CREATE on the database. A new table grants
    /// nothing for two minutes, unless no lease can exist elsewhere.
    ///
    /// # Errors
    /// When the database is out of reach or refuses.
    ///
    /// # Cancel safety
    /// All or nothing: it is one transaction.
    pub async fn install(&self, elsewhere: Elsewhere) -> Result<Installed, Error> {
        let sql = |source| Error::Sql {
            doing: "make the schema pgshard_workers",
            source,
        };
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await.map_err(sql)?;
        transaction.batch_execute(LOCK).await.map_err(sql)?;
        let there = "SELECT to_regclass('pgshard_workers.version') IS NOT NULL";
        let there: bool = transaction
            .query_one(there, &[])
            .await
            .and_then(|row| row.try_get(0))
            .map_err(sql)?;
        let before: i32 = match there {
            false => 0,
            true => transaction
                .query_one(VERSION, &[])
                .await
                .and_then(|row| row.try_get(0))
                .map_err(sql)?,
        };
        for version in later(&VERSIONS, before) {
            transaction.batch_execute(version).await.map_err(sql)?;
        }
        if !there && elsewhere == Elsewhere::Perhaps {
            transaction
                .execute("SELECT pgshard_workers.hold(NULL)", &[])
                .await
                .map_err(sql)?;
        }
        transaction.commit().await.map_err(sql)?;
        Ok(match usize::try_from(before) {
            Ok(0) => Installed::Now,
            Ok(before) if before < VERSIONS.len() => Installed::Upgraded,
            _ => Installed::Before,
        })
    }

    /// Makes the database grant no number in any space for `length` from now on, or, without it,
    /// for the longest lease that was ever requested. Use it when the table's rows were restored,
    /// or while generators still lease from another table. Renewals continue. Returns the end of
    /// the hold.
    ///
    /// # Errors
    /// When the database is out of reach, does not answer in time, or lacks the schema.
    ///
    /// # Cancel safety
    /// The hold may or may not have been placed.
    pub async fn hold(
        connect: &ConnectOptions,
        length: Option<Duration>,
    ) -> Result<Timestamp, Error> {
        let leases = WorkerLeases::new(connect.clone(), "");
        let length = length.map(|length| bigint(length.as_millis()));
        let text = "SELECT pgshard_workers.hold($1)";
        let doing = "hold the leases of worker numbers";
        let row = leases.row(doing, text, &[&length]).await?;
        row.try_get(0).map_err(|source| failure(doing, source))
    }

    /// Releases a number before its lease ends, after its holder has died. Returns whether it was
    /// held. If the holder still runs, it continues until its lease ends, and the next holder
    /// begins after that. This is for leases of hours; leases of seconds end soon enough.
    ///
    /// # Errors
    /// When the database is out of reach, does not answer in time, or lacks the schema.
    ///
    /// # Cancel safety
    /// The number may be free or not.
    pub async fn take_back(&self, worker: u16) -> Result<Freed, Error> {
        let doing = "take a worker number back";
        let text = "SELECT pgshard_workers.take_back($1, $2)";
        let row = self
            .row(doing, text, &[&self.space, &i32::from(worker)])
            .await?;
        let held: bool = row.try_get(0).map_err(|source| failure(doing, source))?;
        Ok(if held { Freed::Now } else { Freed::Before })
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
            let connection = connect
                .connect("pgshard workers")
                .await
                .map_err(Error::Connect)?;
            let failed = |source| failure(doing, source);
            let version: i32 = connection
                .query_one(VERSION, &[])
                .await
                .and_then(|row| row.try_get(0))
                .map_err(failed)?;
            match usize::try_from(version) {
                Ok(version) if version >= VERSIONS.len() => {
                    connection.query(STATUS, &[]).await.map_err(failed)
                }
                _ => Err(Error::Outdated),
            }
        };
        let rows = tokio::time::timeout(PATIENCE, answer)
            .await
            .map_err(|_| late())??;
        let status = |row: &tokio_postgres::Row| {
            Ok(LeaseStatus {
                space: row.try_get(0)?,
                worker: row.try_get::<_, i32>(1)?.unsigned_abs() as u16,
                ceiling_ms: row.try_get::<_, i64>(2)?.cast_unsigned(),
                left: u64::try_from(row.try_get::<_, i64>(3)?)
                    .ok()
                    .map(Duration::from_millis),
            })
        };
        rows.iter()
            .map(status)
            .collect::<Result<_, _>>()
            .map_err(|source| failure(doing, source))
    }

    async fn connection(&self) -> Result<Connection, Error> {
        self.connect
            .connect("pgshard workers")
            .await
            .map_err(Error::Connect)
    }

    async fn row(
        &self,
        doing: &'static str,
        text: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<tokio_postgres::Row, Error> {
        self.query_alone(doing, async |transaction| {
            transaction.query_one(text, values).await
        })
        .await
    }

    /// Runs one query in a transaction, over a connection of its own.
    async fn query_alone(
        &self,
        doing: &'static str,
        ask: impl AsyncFnOnce(&Transaction<'_>) -> Result<Row, tokio_postgres::Error>,
    ) -> Result<Row, Error> {
        let answer = async {
            let mut connection = self.connection().await?;
            let sql = |source| failure(doing, source);
            // The isolation level does not depend on the database's default: under an older
            // snapshot, generators that start together would make each other fail.
            let transaction = connection
                .build_transaction()
                .isolation_level(IsolationLevel::ReadCommitted);
            let transaction = transaction.start().await.map_err(sql)?;
            let row = ask(&transaction).await.map_err(sql)?;
            transaction.commit().await.map_err(sql)?;
            Ok(row)
        };
        tokio::time::timeout(PATIENCE, answer)
            .await
            .map_err(|_| late())?
    }
}

/// The holder's wall clock now. The time that connecting took must not count as a difference of the
/// clocks.
fn now_ms(term: Term, begun: Instant) -> i64 {
    bigint(u128::from(term.now_ms) + begun.elapsed().as_millis())
}

fn failure(doing: &'static str, source: tokio_postgres::Error) -> Error {
    match source.code().map(|code| code.code()) {
        Some("3F000" | "42P01") => Error::NotInstalled,
        Some("42703" | "42883") => Error::Outdated,
        _ => Error::Sql { doing, source },
    }
}

fn late() -> Error {
    Error::TimedOut {
        limit_ms: PATIENCE.as_millis(),
    }
}

fn bigint(ms: u128) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX / 4)
}

impl Error {
    fn clock_off(by_ms: Option<i64>) -> Result<(), Error> {
        by_ms.map_or(Ok(()), |by_ms| Err(Error::ClockOff { by_ms }))
    }
}

fn column<'r, T: FromSql<'r>>(
    row: &'r Row,
    column: usize,
    doing: &'static str,
) -> Result<T, Error> {
    row.try_get(column).map_err(|source| failure(doing, source))
}

impl LeaseStore for WorkerLeases {
    async fn acquire(&self, token: Uuid, term: Term) -> Result<Grant, Error> {
        let (doing, begun) = ("lease a worker number", Instant::now());
        let (length, keep) = (
            bigint(term.length.as_millis()),
            bigint(term.keep.as_millis()),
        );
        let text = "SELECT worker, floor_ms, ceiling_ms, wait_ms, clock_off_ms, known_epoch_ms
            FROM pgshard_workers.acquire($1, $2, $3, $4, $5, $6)";
        let asked_ms = term.epoch.unix_ms();
        let row = self.query_alone(doing, async |transaction| {
            let now = now_ms(term, begun);
            transaction
                .query_one(
                    text,
                    &[&self.space, &token, &now, &length, &keep, &asked_ms],
                )
                .await
        });
        let row = row.await?;
        Error::clock_off(column(&row, 4, doing)?)?;
        if let Some(recorded_ms) = column::<Option<i64>>(&row, 5, doing)? {
            return Err(Error::OtherEpoch {
                space: self.space.clone(),
                recorded_ms,
                asked_ms,
            });
        }
        if let Some(left_ms) = column::<Option<i64>>(&row, 3, doing)? {
            return Err(Error::OnHold {
                left_ms: left_ms.unsigned_abs(),
            });
        }
        let worker =
            column::<Option<i32>>(&row, 0, doing)?.and_then(|worker| u16::try_from(worker).ok());
        let worker = worker.ok_or_else(|| Error::NoneFree {
            space: self.space.clone(),
        })?;
        let (floor, ceiling): (i64, i64) = (column(&row, 1, doing)?, column(&row, 2, doing)?);
        Ok(Grant {
            worker,
            token,
            floor_ms: floor.cast_unsigned(),
            ceiling_ms: ceiling.cast_unsigned(),
        })
    }

    async fn renew(&self, grant: Grant, term: Term) -> Result<Option<Grant>, Error> {
        let (doing, begun) = ("renew the lease of a worker number", Instant::now());
        let (length, keep) = (
            bigint(term.length.as_millis()),
            bigint(term.keep.as_millis()),
        );
        let worker = i32::from(grant.worker);
        let text =
            "SELECT ceiling_ms, clock_off_ms FROM pgshard_workers.keep($1, $2, $3, $4, $5, $6)";
        let row = self.query_alone(doing, async |transaction| {
            let now = now_ms(term, begun);
            transaction
                .query_one(
                    text,
                    &[&self.space, &worker, &grant.token, &now, &length, &keep],
                )
                .await
        });
        let row = row.await?;
        Error::clock_off(column(&row, 1, doing)?)?;
        let ceiling: Option<i64> = column(&row, 0, doing)?;
        Ok(ceiling.map(|ceiling| Grant {
            ceiling_ms: ceiling.cast_unsigned(),
            ..grant
        }))
    }

    async fn release(&self, grant: Grant, last_ms: u64) -> Result<(), Error> {
        let text = "SELECT pgshard_workers.release($1, $2, $3, $4)";
        let (worker, last) = (i32::from(grant.worker), bigint(last_ms.into()));
        self.row(
            "give a worker number back",
            text,
            &[&self.space, &worker, &grant.token, &last],
        )
        .await?;
        Ok(())
    }
}
