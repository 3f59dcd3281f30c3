//! A connection to one host, with a mover's settings and errors that name host and shard.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_postgres::types::{ToSql, Type};

use crate::map::HostName;
use crate::pg::{ConnectOptions, Connection, state};
use crate::schema::control;
use crate::shard::ShardId;

use crate::mover::control::row::{AnsweredRow, Question};
use crate::mover::protocol::error::Error;

/// The hosts of the cluster, by name.
#[derive(Clone, Debug)]
pub struct Hosts(Arc<BTreeMap<HostName, ConnectOptions>>);

impl Hosts {
    /// The hosts of a config.
    pub fn new(hosts: impl IntoIterator<Item = (HostName, ConnectOptions)>) -> Hosts {
        Hosts(Arc::new(hosts.into_iter().collect()))
    }

    /// Their names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &HostName> {
        self.0.keys()
    }

    /// How a host is reached.
    pub(crate) fn options(&self, host: &HostName) -> Result<&ConnectOptions, Error> {
        self.0.get(host).ok_or_else(|| Error::UnknownHost { host: host.clone() })
    }

    pub(crate) async fn open(&self, host: &HostName) -> Result<Session, Error> {
        let connected = self.options(host)?.connect("pgshard mover").await;
        let client = connected.map_err(|source| Error::Connect { host: host.clone(), source })?;
        let session = Session { host: host.clone(), shard: None, client };
        session.batch("the mover's settings", SETTINGS).await?;
        session.check().await?;
        Ok(session)
    }
}

/// Lock waits end before anybody queues behind them for long. A mover whose machine is gone holds its transactions for
/// half a minute at most. Texts of values are the same on every host, and transactions are what the steps take them
/// for, whatever the settings of hosts and roles. Nothing is compiled: a digest of a large table would begin with that,
/// on both hosts.
///
/// Commits are synchronous: if a takeover or an un-fence was lost in a crash of the source after the target's copy was
/// dropped, the former mover, with its lease back, could give the shard away to a target that has nothing.
const SETTINGS: &str = "
    SET lock_timeout = '2s'; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = '15min';
    SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off;
    SET default_transaction_deferrable = off;
    SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4;
    SET search_path = pg_catalog; SET row_security = off; SET client_min_messages = warning;
    SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; SET extra_float_digits = 1;
    SET jit = off; SET bytea_output = 'hex'; SET xmloption = content; SET standard_conforming_strings = on;
    SET lc_monetary = 'C';
    SET array_nulls = on;
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') IN ('off',
        'local')";

/// One connection of a mover.
pub(crate) struct Session {
    pub(crate) host: HostName,
    /// The shard that errors name.
    pub(crate) shard: Option<ShardId>,
    pub(crate) client: Connection,
}

impl Session {
    /// That the host is the one that bootstrap gave this name, and has the control schema that a mover works with. With
    /// two names exchanged, the journal of the one would be taken for that of the other, and what a move has just built
    /// for what a dead one has left.
    async fn check(&self) -> Result<(), Error> {
        let what = "asking the host for its name";
        let present = self.row(what, "SELECT to_regclass('pgshard.cluster') IS NOT NULL", &[]).await?;
        if !present.get::<_, bool>(0)? {
            return Ok(());
        }
        let sql = "SELECT host_name, (SELECT max(version) FROM pgshard.control_migration) FROM pgshard.cluster";
        let rows = self.rows(what, sql, &[]).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        let (name, version): (String, Option<i32>) = (row.get(0)?, row.get(1)?);
        if name != self.host.as_str() {
            return Err(Error::OtherHost { host: self.host.clone(), name });
        }
        match version {
            Some(version) if version < control::VERSION => Err(Error::ControlOld { host: self.host.clone(), version }),
            _ => Ok(()),
        }
    }

    /// The same session, working on one shard.
    pub(crate) fn for_shard(mut self, shard: ShardId) -> Session {
        self.shard = Some(shard);
        self
    }

    pub(crate) async fn row(
        &self,
        what: &'static str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<AnsweredRow, Error> {
        let row = self.client.query_one(sql, params).await.map_err(|error| self.failed(what, error))?;
        Ok(AnsweredRow::new(row, self.question(what)))
    }

    pub(crate) async fn rows(
        &self,
        what: &'static str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<AnsweredRow>, Error> {
        let rows = self.client.query(sql, params).await.map_err(|error| self.failed(what, error))?;
        Ok(AnsweredRow::all(rows, self.question(what)))
    }

    /// As [`rows`](Session::rows), in one round trip instead of two, where every one counts: the types of the
    /// parameters are told, not asked for.
    pub(crate) async fn typed_rows(
        &self,
        what: &'static str,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<AnsweredRow>, Error> {
        let rows = self.client.query_typed(sql, params).await.map_err(|error| self.failed(what, error))?;
        Ok(AnsweredRow::all(rows, self.question(what)))
    }

    pub(crate) async fn execute(
        &self,
        what: &'static str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        self.client.execute(sql, params).await.map_err(|error| self.failed(what, error))
    }

    /// Statements without parameters, in one message.
    pub(crate) async fn batch(&self, what: &'static str, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await.map_err(|error| self.failed(what, error))
    }

    /// One statement that was put together from what another host says. Sent so that the server refuses a text with
    /// several: what a catalog says of an expression is a part of a statement, and must not end it.
    pub(crate) async fn statement(&self, what: &'static str, sql: &str) -> Result<(), Error> {
        self.client.query_typed(sql, &[]).await.map(drop).map_err(|error| self.failed(what, error))
    }

    /// Refuses a text that is more than one statement, by the server's own parser. Nothing runs.
    ///
    /// Locks: those that a query's tables get when it is analyzed, ACCESS SHARE, for the transaction; none for what
    /// changes a definition.
    pub(crate) async fn is_one_statement(&self, what: &'static str, sql: &str) -> Result<(), Error> {
        self.client.prepare(sql).await.map(drop).map_err(|error| self.failed(what, error))
    }

    fn question(&self, what: &'static str) -> Question {
        Question { host: self.host.clone(), shard: self.shard, what }
    }

    /// The error with host, shard and what was being done. A refusal of the control schema is its own kind.
    pub(crate) fn failed(&self, what: &'static str, source: tokio_postgres::Error) -> Error {
        match (source.as_db_error(), self.shard) {
            (Some(refused), Some(shard)) if refused.code().code() == state::REFUSED => {
                Error::Superseded { host: self.host.clone(), shard, reason: refused.message().to_owned() }
            }
            _ => Error::Database { host: self.host.clone(), shard: self.shard, what, source },
        }
    }
}
