//! A connection to one host, with a mover's settings and errors that name host and shard.

use std::borrow::Cow;
use std::time::Instant;

use futures_util::future::BoxFuture;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::types::{ToSql, Type};

use crate::map::HostName;
use crate::pg::{Connection, state};
use crate::schema::{Cluster, RecordedCluster, control};
use crate::shard::ShardId;

use crate::mover::control::row::{AnsweredRow, Question};
use crate::mover::definition::ddl::Statement;
use crate::mover::protocol::error::Error;

/// Lock waits end before other sessions queue behind them for long. If a mover's machine is gone,
/// its transactions last half a minute at most. The text form of values is the same on every host,
/// and transactions have the isolation that the steps rely on, whatever the settings of hosts and
/// roles. A session may wait for hours, and so may a transaction. JIT is off, because a digest of a
/// large table would begin with compiling, on both hosts.
///
/// Commits are synchronous. Otherwise a crash of the source could lose a takeover or an un-fence
/// after the target's copy was dropped; the former mover would have its lease back, and could give
/// the shard away to a target that has nothing.
pub(super) const SETTINGS: &str = "
    SET lock_timeout = '2s'; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = \
    '15min';
    SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off;
    SET default_transaction_deferrable = off;
    SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4;
    SET search_path = pg_catalog; SET row_security = off; SET client_min_messages = warning;
    SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; SET \
    extra_float_digits = 1;
    SET jit = off; SET bytea_output = 'hex'; SET xmloption = content; SET \
    standard_conforming_strings = on;
    SET quote_all_identifiers = off; SET backslash_quote = safe_encoding;
    SET lc_monetary = 'C'; SET array_nulls = on;
    SELECT set_config('idle_session_timeout', '0', false) WHERE \
    current_setting('idle_session_timeout', true) <> '0';
    SELECT set_config('transaction_timeout', '0', false) WHERE \
    current_setting('transaction_timeout', true) <> '0';
    SELECT set_config('synchronous_commit', 'on', false) WHERE \
    current_setting('synchronous_commit') IN ('off',
        'local')";

/// Returns whether the session is in no transaction (there the time of its transaction is that of
/// the statement), and undoes what was set in it. Prepared statements stay: the client has closed
/// its own, but for those by which it looks up types.
const UNDO: &str = "
    SELECT pg_catalog.now() OPERATOR(pg_catalog.=) pg_catalog.statement_timestamp();
    SET statement_timeout = 0; SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; CLOSE ALL; UNLISTEN *;
    DISCARD TEMP; DISCARD SEQUENCES; RESET ALL; SELECT pg_catalog.pg_advisory_unlock_all();";

/// One connection of a mover.
pub(crate) struct Session {
    pub(crate) host: HostName,
    /// The shard that errors name.
    pub(crate) shard: Option<ShardId>,
    /// Whether the role may read the tokens of moves, which one that only watches may not.
    pub(crate) reads_tokens: bool,
    /// When it was opened.
    pub(super) opened: Instant,
    /// How many have used it, with the present one.
    pub(super) uses: u32,
    pub(crate) client: Connection,
}

impl Session {
    /// Checks that the host is the one that bootstrap gave this name, belongs to the cluster, and
    /// has a control schema that a mover can work with. If two names were exchanged, the journal of
    /// one host would be read as that of the other, and what a move has just built would look like
    /// the remains of a dead one. With another prefix the schemas of all shards and old copies
    /// would seem to be gone, and with another N some shards. Returns [`Session::reads_tokens`].
    pub(super) async fn check(&self, cluster: Option<&Cluster>) -> Result<bool, Error> {
        let what = "asking the host for its name";
        let present = self
            .row(
                what,
                "SELECT to_regclass('pgshard.cluster') IS NOT NULL",
                &[],
            )
            .await?;
        if !present.get::<_, bool>(0)? {
            return Ok(true);
        }
        let sql = "SELECT host_name, (SELECT max(version) FROM pgshard.control_migration),
                coalesce((SELECT pg_catalog.has_column_privilege(c.oid, 'open_token', 'SELECT')
                    FROM pg_catalog.pg_class c WHERE c.oid = to_regclass('pgshard.move')), true),
                shards, epoch_ms, schema_prefix, key_kind, legacy_below
            FROM pgshard.cluster";
        let rows = self.rows(what, sql, &[]).await?;
        let Some(row) = rows.first() else {
            return Ok(true);
        };
        let (name, version): (String, Option<i32>) = (row.get(0)?, row.get(1)?);
        if name != self.host.as_str() {
            return Err(Error::OtherHost {
                host: self.host.clone(),
                name,
            });
        }
        let (shards, epoch_ms) = (row.get(3)?, row.get(4)?);
        let (schema_prefix, key_kind) = (row.get(5)?, row.get(6)?);
        let recorded = RecordedCluster {
            shards,
            epoch_ms,
            schema_prefix,
            host_name: name,
            key_kind,
            legacy_below: row.get(7)?,
        };
        if let Some(source) =
            cluster.and_then(|cluster| recorded.differences(cluster, &self.host).into_iter().next())
        {
            return Err(Error::OtherCluster {
                host: self.host.clone(),
                source: Box::new(source),
            });
        }
        match version {
            Some(version) if version < control::VERSION => Err(Error::ControlOld {
                host: self.host.clone(),
                version,
            }),
            Some(version) if version > control::VERSION => Err(Error::ControlNewer {
                host: self.host.clone(),
                version,
            }),
            _ => row.get(2),
        }
    }

    /// Undoes what was set in the session. Returns false if it is in a transaction, or cannot be
    /// used any more.
    pub(super) async fn undo(&self) -> bool {
        let said = self
            .client
            .simple_query(&[UNDO, SETTINGS].concat())
            .await
            .unwrap_or_default();
        let first = said.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        first == Some("t")
    }

    /// The same session, working on one shard.
    pub(crate) fn for_shard(mut self, shard: ShardId) -> Session {
        self.shard = Some(shard);
        self
    }

    pub(crate) fn row<'a>(
        &'a self,
        what: &'static str,
        sql: &'a str,
        params: &'a [&'a (dyn ToSql + Sync)],
    ) -> BoxFuture<'a, Result<AnsweredRow, Error>> {
        Box::pin(async move {
            let row = self
                .client
                .query_one(sql, params)
                .await
                .map_err(|error| self.failed(what, error))?;
            Ok(AnsweredRow::new(row, self.question(what)))
        })
    }

    /// As [`row`](Session::row); `None` where the server does not provide a function in the
    /// question. Not for use in a transaction.
    pub(crate) async fn row_if_provided(
        &self,
        what: &'static str,
        sql: &str,
    ) -> Result<Option<AnsweredRow>, Error> {
        match self.client.query_one(sql, &[]).await {
            Ok(row) => Ok(Some(AnsweredRow::new(row, self.question(what)))),
            Err(error) if state::is_not_provided(&error) => Ok(None),
            Err(error) => Err(self.failed(what, error)),
        }
    }

    pub(crate) fn rows<'a>(
        &'a self,
        what: &'static str,
        sql: &'a str,
        params: &'a [&'a (dyn ToSql + Sync)],
    ) -> BoxFuture<'a, Result<Vec<AnsweredRow>, Error>> {
        Box::pin(async move {
            let rows = self
                .client
                .query(sql, params)
                .await
                .map_err(|error| self.failed(what, error))?;
            Ok(AnsweredRow::all(rows, self.question(what)))
        })
    }

    /// As [`rows`](Session::rows), in one round trip instead of two, where every round trip counts:
    /// the caller gives the types of the parameters, so that the server need not be queried for
    /// them.
    pub(crate) async fn typed_rows(
        &self,
        what: &'static str,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<AnsweredRow>, Error> {
        let rows = self
            .client
            .query_typed(sql, params)
            .await
            .map_err(|error| self.failed(what, error))?;
        Ok(AnsweredRow::all(rows, self.question(what)))
    }

    pub(crate) fn execute<'a>(
        &'a self,
        what: &'static str,
        sql: &'a str,
        params: &'a [&'a (dyn ToSql + Sync)],
    ) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            self.client
                .execute(sql, params)
                .await
                .map_err(|error| self.failed(what, error))
        })
    }

    /// Statements without parameters, in one message.
    pub(crate) fn batch<'a>(
        &'a self,
        what: &'static str,
        sql: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.client
                .batch_execute(sql)
                .await
                .map_err(|error| self.failed(what, error))
        })
    }

    /// Makes everything durable that is committed on this server by now, in whatever session.
    ///
    /// Locks: none. Writes a message of a few bytes to the WAL, which no stream of ours requests,
    /// and waits for the disk, and for the synchronous standbys if there are any.
    pub(crate) async fn flush(&self, what: &'static str) -> Result<(), Error> {
        let sql = "SET LOCAL synchronous_commit = on; SELECT pg_logical_emit_message(true, \
            'pgshard', '')";
        self.batch(what, &format!("BEGIN; {sql}; COMMIT")).await
    }

    /// Runs one statement that was composed of another host's answers. It is sent in such a way
    /// that the server refuses a text with several statements: an expression from a catalog is a
    /// part of the statement, and must not end it.
    pub(crate) async fn statement(
        &self,
        what: impl Into<Cow<'static, str>>,
        sql: &str,
    ) -> Result<(), Error> {
        self.client
            .query_typed(sql, &[])
            .await
            .map(drop)
            .map_err(|error| self.failed(what, error))
    }

    /// Runs a statement that builds a part of a schema, in a transaction that has begun with
    /// [`preamble`](crate::schema::catalog::preamble), under the `search_path` that it needs.
    pub(crate) async fn make(
        &self,
        what: impl Into<Cow<'static, str>>,
        statement: &Statement,
    ) -> Result<(), Error> {
        let what = what.into();
        let Some((before, after)) = &statement.path else {
            return self.statement(what, &statement.sql).await;
        };
        self.statement(what.clone(), before).await?;
        self.statement(what.clone(), &statement.sql).await?;
        self.statement(what, after).await
    }

    /// Lets the server's own parser refuse a text that is more than one statement. Nothing is run.
    ///
    /// Locks: ACCESS SHARE on the tables of a query when it is analyzed, for the transaction; none
    /// for a statement that changes a definition.
    pub(crate) async fn is_one_statement(
        &self,
        what: &'static str,
        sql: &str,
    ) -> Result<(), Error> {
        self.client
            .prepare(sql)
            .await
            .map(drop)
            .map_err(|error| self.failed(what, error))
    }

    fn question(&self, what: &'static str) -> Question {
        Question {
            host: self.host.clone(),
            shard: self.shard,
            what,
        }
    }

    /// The error with host, shard and what was being done. A refusal of the control schema is its
    /// own kind.
    pub(crate) fn failed(
        &self,
        what: impl Into<Cow<'static, str>>,
        source: tokio_postgres::Error,
    ) -> Error {
        match (source.as_db_error(), self.shard) {
            (Some(refused), Some(shard)) if refused.code().code() == state::REFUSED => {
                Error::Superseded {
                    host: self.host.clone(),
                    shard,
                    reason: refused.message().to_owned(),
                }
            }
            _ => Error::Database {
                host: self.host.clone(),
                shard: self.shard,
                what: what.into(),
                source,
            },
        }
    }
}
