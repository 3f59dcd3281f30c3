//! The session that changes a database.

use std::pin::pin;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Json;

use super::blocker::Blocker;
use super::error::ChangeError;
use super::event::{ChangeEvent, Observer};
use crate::backoff::Backoff;
use crate::import::error::Error;
use crate::pg::{ConnectOptions, Connection, shown};

/// How long a statement waits for a lock. Whatever queues behind it waits no longer; deadlocks,
/// which the server looks for after a second, end here first.
const LOCK_MAX: &str = "100ms";

/// How long a statement in a transaction with locks may take: it only changes catalogs.
const SHORT_MAX: &str = "150ms";

/// Between tries the application gets on.
const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(100),
    max: Duration::from_secs(2),
    jitter: (0.5, 1.5),
};

/// No setting that a role was given changes what statements mean, and a client that has died is
/// noticed while a long statement runs.
const SETTINGS: &str = "SET lock_timeout = 0; SET statement_timeout = 0;
    SET idle_in_transaction_session_timeout = '60s'; SET client_connection_check_interval = '1s';
    SET default_transaction_isolation = 'read committed';
    SET default_transaction_read_only = off; SET default_transaction_deferrable = off;
    SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; SET extra_float_digits = 1;
    SET bytea_output = 'hex'; SET timezone = 'UTC'; SET row_security = on; SET jit = off";

/// The advisory lock of a command that changes a database: `pgsh`, `impo`.
const LOCK: (i32, i32) = (0x7067_7368, 0x696d_706f);

/// How often a statement that takes long is looked at, to see whether it waits for others.
const LOOK: Duration = Duration::from_secs(2);

/// How long a command waits for one that was killed: its session notices within seconds.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// A lock on tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::import) enum Mode {
    /// Conflicts with writes.
    ShareRowExclusive,
    /// Conflicts with writes and reads.
    AccessExclusive,
}

impl Mode {
    pub(in crate::import) fn sql(self) -> &'static str {
        match self {
            Mode::ShareRowExclusive => "SHARE ROW EXCLUSIVE",
            Mode::AccessExclusive => "ACCESS EXCLUSIVE",
        }
    }

    /// The modes of `pg_locks` that do not conflict with it.
    fn harmless(self) -> &'static str {
        match self {
            Mode::ShareRowExclusive => "'AccessShareLock', 'RowShareLock'",
            Mode::AccessExclusive => "''",
        }
    }
}

/// A session, which has the advisory lock.
pub(in crate::import) struct Session {
    connection: Connection,
    connect: ConnectOptions,
    name: &'static str,
    wait_max: Duration,
}

impl Session {
    /// Opens the session, and takes the advisory lock.
    pub(in crate::import) async fn open(
        connect: &ConnectOptions,
        name: &'static str,
        wait_max: Duration,
    ) -> Result<Session, ChangeError> {
        let connection = connect
            .connect(name)
            .await
            .map_err(|source| Error::Connect(Box::new(source)))?;
        let session = Session {
            connection,
            connect: connect.clone(),
            name,
            wait_max,
        };
        session.execute("prepare the session", SETTINGS).await?;
        session.lock().await?;
        Ok(session)
    }

    /// Takes the advisory lock. It is held as long as the session.
    async fn lock(&self) -> Result<(), ChangeError> {
        let (class, object) = LOCK;
        let begun = Instant::now();
        loop {
            let taken: Option<bool> = self
                .value(
                    "take the lock of import commands",
                    &format!("SELECT to_json(pg_try_advisory_lock({class}, {object}))"),
                )
                .await?;
            if taken == Some(true) {
                return Ok(());
            }
            let holder: Option<i32> = self
                .value(
                    "find the other import command",
                    &format!(
                        "SELECT to_json(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted
                            AND classid = {class} AND objid = {object} AND database =
                            (SELECT oid FROM pg_database WHERE datname = current_database())"
                    ),
                )
                .await?;
            if let (Some(pid), true) = (holder, begun.elapsed() > LOCK_WAIT) {
                return Err(ChangeError::Busy { pid });
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    pub(in crate::import) fn client(&self) -> &Client {
        self.connection.client()
    }

    /// How long a step waits for other sessions.
    pub(in crate::import) fn wait_max(&self) -> Duration {
        self.wait_max
    }

    /// Ends the session.
    pub(in crate::import) async fn finish(self) {
        self.connection.finish().await;
    }

    pub(in crate::import) async fn execute(
        &self,
        what: &str,
        sql: &str,
    ) -> Result<(), ChangeError> {
        let done = self.client().batch_execute(sql).await;
        done.map_err(|source| ChangeError::postgres(what, source))
    }

    /// The answers of a query, each a JSON value.
    pub(in crate::import) async fn values<T: DeserializeOwned>(
        &self,
        what: &str,
        sql: &str,
    ) -> Result<Vec<T>, ChangeError> {
        let failed = |source| ChangeError::postgres(what, source);
        let rows = self.client().query_typed(sql, &[]).await.map_err(failed)?;
        let value = |row: &tokio_postgres::Row| row.try_get(0).map(|Json(value): Json<T>| value);
        rows.iter().map(|row| value(row).map_err(failed)).collect()
    }

    /// The first answer of a query.
    pub(in crate::import) async fn value<T: DeserializeOwned>(
        &self,
        what: &str,
        sql: &str,
    ) -> Result<Option<T>, ChangeError> {
        let mut values = self.values(what, sql).await?;
        values.truncate(1);
        Ok(values.pop())
    }

    /// Does statements in one transaction that first locks tables, in as many short tries as it
    /// needs. No statement of the application waits for longer than [`LOCK_MAX`] and the changes.
    pub(in crate::import) async fn short(
        &self,
        what: &str,
        tables: &[(u32, String)],
        mode: Mode,
        statements: &[String],
        observer: Observer<'_>,
    ) -> Result<(), ChangeError> {
        let also = &[];
        let short = self.short_with(what, tables, mode, statements, also, observer);
        short.await
    }

    /// The same for statements that lock other relations, too, which no LOCK TABLE can have: so
    /// that those who have locks of them are named.
    pub(in crate::import) async fn short_with(
        &self,
        what: &str,
        tables: &[(u32, String)],
        mode: Mode,
        statements: &[String],
        also: &[u32],
        observer: Observer<'_>,
    ) -> Result<(), ChangeError> {
        let begun = Instant::now();
        let locked = tables.iter().map(|(oid, _)| *oid);
        let locked: Vec<u32> = locked.chain(also.iter().copied()).collect();
        let sql = transaction(tables, mode, statements);
        let mut pauses = 0;
        loop {
            let Err(source) = self.client().batch_execute(&sql).await else {
                return Ok(());
            };
            if !is_in_the_way(&source) {
                // The connection may be lost, and the transaction with it.
                let _ = self.client().batch_execute("ROLLBACK").await;
                return Err(ChangeError::postgres(what, source));
            }
            self.execute("end a try", "ROLLBACK").await?;
            let by = self.blockers(&locked, mode).await?;
            let what = what.to_owned();
            if begun.elapsed() > self.wait_max {
                return Err(ChangeError::Blocked { what, by });
            }
            if pauses > 0 && by.iter().any(Blocker::stays) {
                observer(ChangeEvent::Blocked { what, by });
            }
            tokio::time::sleep(PAUSES.pause(pauses)).await;
            pauses += 1;
        }
    }

    /// Runs a statement that does its work outside of transactions, with locks that no statement of
    /// the application waits for, and may take hours. While it waits for other transactions, they
    /// are reported.
    ///
    /// # Errors
    /// [`ChangeError::Blocked`] when it waited for longer than a step may; it was cancelled.
    pub(in crate::import) async fn long(
        &self,
        what: &str,
        sql: &str,
        observer: Observer<'_>,
    ) -> Result<(), ChangeError> {
        let pid: Option<i32> = self
            .value("read its process", "SELECT to_json(pg_backend_pid())")
            .await?;
        let mut statement = pin!(self.client().batch_execute(sql));
        let mut second = None;
        let mut waits_since: Option<Instant> = None;
        let mut last = Vec::new();
        loop {
            tokio::select! {
                done = &mut statement => return match done {
                    Err(source) if source.code() == Some(&SqlState::QUERY_CANCELED)
                        && waits_since.is_some_and(|since| since.elapsed() > self.wait_max) =>
                    {
                        Err(ChangeError::Blocked { what: what.to_owned(), by: last })
                    }
                    done => done.map_err(|source| ChangeError::postgres(what, source)),
                },
                () = tokio::time::sleep(LOOK) => {}
            }
            // The statement needs no second connection, so one that cannot be had is no error.
            let (Some(pid), Some(client)) = (pid, self.second(&mut second).await) else {
                continue;
            };
            let Ok(by) = waited_for(client, pid).await else {
                continue;
            };
            if by.is_empty() {
                waits_since = None;
                continue;
            }
            let since = *waits_since.get_or_insert_with(Instant::now);
            observer(ChangeEvent::Blocked {
                what: what.to_owned(),
                by: by.clone(),
            });
            last = by;
            if since.elapsed() > self.wait_max {
                let cancel = format!("SELECT pg_cancel_backend({pid})");
                // If it was lost, the next look tries again.
                let _ = client.batch_execute(&cancel).await;
            }
        }
    }

    /// A connection to look at this one's; opened again if it was lost.
    async fn second<'c>(&self, second: &'c mut Option<Connection>) -> Option<&'c Client> {
        if second.as_ref().is_none_or(|one| one.client().is_closed()) {
            *second = self.connect.connect(self.name).await.ok();
        }
        second.as_ref().map(Connection::client)
    }

    /// The sessions with locks on relations that conflict, those with the oldest transaction first.
    pub(in crate::import) async fn blockers(
        &self,
        relations: &[u32],
        mode: Mode,
    ) -> Result<Vec<Blocker>, ChangeError> {
        let oids: Vec<String> = relations.iter().map(u32::to_string).collect();
        let holders = format!(
            "a.pid <> pg_backend_pid() AND a.pid IN
                (SELECT l.pid FROM pg_locks l WHERE l.granted AND l.locktype = 'relation'
                    AND l.relation = ANY ('{{{}}}'::oid[]) AND l.mode NOT IN ({})
                    AND l.database = (SELECT oid FROM pg_database
                        WHERE datname = current_database()))",
            oids.join(","),
            mode.harmless()
        );
        let mut found: Vec<Blocker> = self
            .values("find who has locks", &sessions(&holders))
            .await?;
        // Writers come and go: what holds up a step is what stays.
        if found.iter().any(Blocker::stays) {
            found.retain(Blocker::stays);
        }
        Ok(found)
    }
}

/// The sessions for which a server's process waits, and prepared transactions, which have none.
async fn waited_for(client: &Client, pid: i32) -> Result<Vec<Blocker>, tokio_postgres::Error> {
    let sessions = sessions(&format!("a.pid = ANY (pg_blocking_pids({pid}))"));
    let sql = format!(
        "({sessions}) UNION ALL (SELECT json_build_object('pid', 0, 'role', p.owner,
            'application', '', 'open_s', extract(epoch FROM clock_timestamp() - p.prepared)::float8,
            'statement', 'PREPARE TRANSACTION ' || quote_literal(p.gid))
        FROM pg_prepared_xacts p WHERE p.database = current_database()
            AND 0 = ANY (pg_blocking_pids({pid})) ORDER BY p.prepared LIMIT 5)"
    );
    let rows = client.query_typed(&sql, &[]).await?;
    rows.iter()
        .map(|row| row.try_get(0).map(|Json(blocker)| blocker))
        .collect()
}

/// A query of [`Blocker`]s that fulfil a condition, those with the oldest transaction first.
fn sessions(condition: &str) -> String {
    format!(
        "SELECT json_build_object('pid', a.pid, 'role', coalesce(a.usename, ''),
            'application', coalesce(a.application_name, ''),
            'open_s', round(extract(epoch FROM clock_timestamp()
                - a.xact_start)::numeric, 1)::float8,
            'statement', coalesce({}, ''))
        FROM pg_stat_activity a WHERE {condition} ORDER BY a.xact_start NULLS LAST LIMIT 5",
        shown("a.query")
    )
}

/// A transaction that has a lock before it changes anything.
fn transaction(tables: &[(u32, String)], mode: Mode, statements: &[String]) -> String {
    let names: Vec<&str> = tables.iter().map(|(_, name)| name.as_str()).collect();
    // All locks together are waited for no longer than one.
    let mut sql = format!(
        "BEGIN; SET LOCAL lock_timeout = '{LOCK_MAX}'; SET LOCAL statement_timeout = '{LOCK_MAX}';
        LOCK TABLE {} IN {} MODE; SET LOCAL statement_timeout = '{SHORT_MAX}'",
        names.join(", "),
        mode.sql()
    );
    for statement in statements {
        sql.push_str(";\n");
        sql.push_str(statement);
    }
    sql.push_str(";\nCOMMIT");
    sql
}

/// Whether a statement failed because of another session, so that it is worth another try.
pub(in crate::import) fn is_in_the_way(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::QUERY_CANCELED,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
        ]
        .contains(code)
    })
}
