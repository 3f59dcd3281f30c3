//! One host in the state of one moment: a snapshot that is held without a lock, and reads through
//! it.
//!
//! Invariant: between two reads the session holds no lock on any table, so that no session waits
//! for an audit for longer than one read takes. Each read runs within a savepoint that is rolled
//! back, which releases its locks and keeps the snapshot.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio_postgres::SimpleQueryMessage;

use crate::map::HostName;
use crate::mover::control::hosts::Hosts;
use crate::mover::control::journal::{Hold, SessionPurpose};
use crate::mover::control::session::Session;
use crate::mover::copy::verify::set_workers;
use crate::mover::definition::digest::CatalogDigest;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::pg::quote_literal;

/// The snapshot of a transaction. READ ONLY, or a later INSERT of ours would be refused for being
/// late.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY";

/// A host that does not take its snapshot back within this time gets its session closed.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(1);

/// A table as the snapshot sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredTable {
    /// Stays the same, whatever the table's name is.
    pub(super) oid: u32,
    /// The file of its rows. TRUNCATE, and whatever rewrites a table, changes it.
    pub(super) file: u32,
}

/// A session with a snapshot.
pub(crate) struct Side {
    pub(super) session: Session,
    /// The OID of the schema. Its name changes with the open.
    pub(super) schema: u32,
    /// When the snapshot was taken.
    taken: OnceLock<Instant>,
}

impl Side {
    /// A session that is ready to take a snapshot in one round trip, of a host that has this
    /// schema, and to hold it for this long.
    ///
    /// Locks: none.
    pub(crate) fn open<'a>(
        hosts: &'a Hosts,
        host: &'a HostName,
        hold: Hold,
        schema: &'a str,
        bound: Duration,
    ) -> BoxFuture<'a, Result<Side, Error>> {
        Box::pin(async move {
            let session = session(hosts, host, hold, bound).await?;
            let missing = || Error::Stuck {
                shard: hold.shard,
                observed: format!("host {host} has no schema {schema}"),
            };
            let schema = facts::schema_oid(&session, schema)
                .await?
                .ok_or_else(missing)?;
            // This warms the session up: the statements that matter are then run for the second
            // time.
            let warm = format!("{BEGIN}; SELECT pg_current_snapshot(); ROLLBACK");
            session
                .batch("setting up the audit's session", &warm)
                .await?;
            Ok(Side {
                session,
                schema,
                taken: OnceLock::new(),
            })
        })
    }

    /// Takes the snapshot: one round trip.
    ///
    /// Locks: none. Holds back VACUUM on its host until the session ends.
    ///
    /// # Cancel safety
    /// If dropped, the side is useless.
    pub(crate) async fn take(&self) -> Result<(), Error> {
        let sql = format!("{BEGIN}; SELECT pg_current_snapshot()");
        self.session
            .batch("taking the audit's snapshot", &sql)
            .await?;
        let _ = self.taken.set(Instant::now());
        Ok(())
    }

    /// When the snapshot was taken, if it was.
    pub(crate) fn taken(&self) -> Option<Instant> {
        self.taken
            .get()
            .copied()
            .filter(|_| !self.session.client.is_closed())
    }

    /// Another session with the same snapshot.
    ///
    /// Locks: none.
    pub(super) async fn another(
        &self,
        hosts: &Hosts,
        hold: Hold,
        bound: Duration,
    ) -> Result<Side, Error> {
        let what = "sharing the audit's snapshot";
        let session = session(hosts, &self.session.host, hold, bound).await?;
        let row = self
            .session
            .row(what, "SELECT pg_export_snapshot()", &[])
            .await?;
        let name: String = row.get(0)?;
        session
            .batch(
                what,
                &format!("{BEGIN}; SET TRANSACTION SNAPSHOT {}", quote_literal(&name)),
            )
            .await?;
        Ok(Side {
            session,
            schema: self.schema,
            taken: self.taken.clone(),
        })
    }

    /// Gives up the snapshot, and returns the session to the spare ones.
    pub(super) async fn give_back(self, hosts: &Hosts) {
        let ended = self
            .session
            .batch("giving up the audit's snapshot", "ROLLBACK");
        if let Ok(Ok(())) = tokio::time::timeout(GIVEN_UP_WITHIN, ended).await {
            hosts.give_back(self.session).await;
        }
    }

    /// The tables of the schema as the snapshot sees them, by name.
    ///
    /// Locks: ACCESS SHARE on catalogs, until the read is ended.
    pub(super) async fn tables(
        &self,
        until: Instant,
    ) -> Result<BTreeMap<String, StoredTable>, Error> {
        let what = "reading the tables";
        let sql = "SELECT c.relname::text, c.oid, c.relfilenode FROM pg_depend d JOIN pg_class c \
            ON c.oid = d.objid
            WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = $1 AND d.classid = \
            'pg_class'::regclass
                AND c.relkind = 'r' AND c.relpersistence = 'p'";
        self.begin(until).await?;
        let rows = self.session.rows(what, sql, &[&self.schema]).await?;
        self.end().await?;
        rows.iter()
            .map(|row| {
                Ok((
                    row.get(0)?,
                    StoredTable {
                        oid: row.get(1)?,
                        file: row.get(2)?,
                    },
                ))
            })
            .collect()
    }

    /// Whether the schema's definition is what the snapshot sees; the session is another one of the
    /// same host. False does not prove a change: changes of any publication there count, too.
    ///
    /// Locks: ACCESS SHARE on catalogs, for two statements.
    pub(super) async fn is_unaltered(&self, now: &Session, until: Instant) -> Result<bool, Error> {
        let what = "looking whether the definition was altered";
        self.begin(until).await?;
        let digest = CatalogDigest::take(self.session.client.client(), self.schema).await;
        self.end().await?;
        let digest = digest.map_err(|error| self.session.failed(what, error))?;
        digest
            .is_same(now.client.client())
            .await
            .map_err(|error| now.failed(what, error))
    }

    /// Begins a read with statements that end at this time at the latest.
    pub(super) async fn begin(&self, until: Instant) -> Result<(), Error> {
        self.session
            .batch("beginning a look", &Self::begin_sql(until))
            .await
    }

    /// Begins to read so many bytes of one table. Returns its present name, in SQL; `None` if it no
    /// longer exists.
    pub(super) async fn begin_table(
        &self,
        table: StoredTable,
        bytes: u64,
        until: Instant,
    ) -> Result<Option<String>, Error> {
        // Both functions use the present catalogs, not the snapshot: a renamed table is found under
        // its new name.
        let sql = format!(
            "{}; {}; SELECT CASE WHEN pg_relation_filenode({oid}) IS NOT NULL THEN \
                {oid}::regclass::text END",
            Self::begin_sql(until),
            set_workers(bytes),
            oid = table.oid
        );
        self.value("looking for a table", &sql).await
    }

    /// Ends the reading of a table. Returns the file of its rows at the time it was read.
    pub(super) async fn end_table(&self, table: StoredTable) -> Result<Option<u32>, Error> {
        // The file is read while the lock is held, so that it cannot have changed since the read.
        let sql = format!("SELECT pg_relation_filenode({}); {END}", table.oid);
        Ok(self
            .value("ending a look", &sql)
            .await?
            .and_then(|file| file.parse().ok()))
    }

    /// Ends a read, even one that has failed.
    pub(super) async fn end(&self) -> Result<(), Error> {
        self.session.batch("ending a look", END).await
    }

    fn begin_sql(until: Instant) -> String {
        let left = until
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1));
        format!(
            "SAVEPOINT look; SET LOCAL statement_timeout = {}",
            left.as_millis().min(i32::MAX as u128)
        )
    }

    /// The single value that these statements give.
    async fn value(&self, what: &'static str, sql: &str) -> Result<Option<String>, Error> {
        let answer = self
            .session
            .client
            .simple_query(sql)
            .await
            .map_err(|error| self.session.failed(what, error))?;
        Ok(answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }))
    }
}

/// A session of an audit. A paused mover must not hold back VACUUM for longer than a working one
/// may.
async fn session(
    hosts: &Hosts,
    host: &HostName,
    hold: Hold,
    bound: Duration,
) -> Result<Session, Error> {
    let session = hosts.open(host).await?.for_shard(hold.shard);
    session.sign(hold, SessionPurpose::Audit).await?;
    let idle = (bound.as_millis() + 1000).min(i32::MAX as u128);
    let sql = format!("SET idle_in_transaction_session_timeout = {idle}");
    session
        .batch("setting up the audit's session", &sql)
        .await?;
    Ok(session)
}

/// Releases the locks of the read. The savepoint is released too, or they would pile up.
const END: &str = "ROLLBACK TO SAVEPOINT look; RELEASE SAVEPOINT look";
