//! A migration of one shard that runs outside transactions: CREATE INDEX CONCURRENTLY and the like.
//!
//! A second connection holds the shard during that time, and commits the record. Before the
//! statement the attempt is recorded, so that the next run after a crash knows that an index of the
//! name, valid or not, is ours.
//!
//! The connection that holds the shard has neither a snapshot nor a transaction number. CREATE
//! INDEX CONCURRENTLY would wait for the snapshot. The slot of an online move, for any shard of the
//! host, would wait for the transaction number, while the index waits for the slot.
//!
//! Invariant: an index that is not ours is neither dropped nor counted as done, and neither is one
//! that another text of the file has begun. No invalid index is left if it can be avoided. While a
//! server still works for a client that has disconnected, no second attempt starts.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::steps::{Step, record};
use super::transaction::{HOLD, Outcome, begin, judge};
use crate::pg::{quote_ident, quote_literal};
use crate::schema::control::lock::{MIGRATION, SPACE, WORK, is_true};
use crate::schema::control::script::Repeatable;
use crate::schema::fleet::fault::ShardFault;
use crate::schema::fleet::session::settle;
use crate::shard::ShardId;

/// The shard, and what is run there.
pub(super) struct Alone<'a> {
    pub(super) shard: ShardId,
    pub(super) schema: &'a str,
    pub(super) step: &'a Step,
    /// For the shard's row.
    pub(super) lock_timeout: Duration,
    /// For the statement: no session waits behind it, but it waits for others' transactions.
    pub(super) patience: Duration,
}

/// Whether an attempt at a migration was begun and has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    No,
    /// It was begun with the present text.
    ThisText,
    /// It was begun with another text: the file was edited since. Its remains are ours, but are not
    /// the wanted result.
    OtherText,
}

impl Alone<'_> {
    /// Runs the step on `client`, while `guard` holds the shard.
    ///
    /// Locks: the guard holds [`MIGRATION`] of the shard, shared, to the end, and a fence tries
    /// again during that time; SHARE UPDATE EXCLUSIVE on the table, behind which no reader or
    /// writer waits.
    ///
    /// # Errors
    /// When a connection is lost. The next run finds the attempt.
    pub(super) async fn run(
        &self,
        client: &Client,
        guard: &Client,
    ) -> Result<Outcome, tokio_postgres::Error> {
        match self.hold(guard).await {
            Ok(true) => {}
            Ok(false) => {
                guard.batch_execute("ROLLBACK").await?;
                return Ok(Outcome::Failed(ShardFault::Moving(None)));
            }
            Err(error) => {
                guard.batch_execute("ROLLBACK").await?;
                return Ok(judge(&error, None, HOLD));
            }
        }
        settle(client).await?;
        // The server's process holds this lock for as long as it runs the statement, even if its
        // client has disconnected. It is tried, not waited for: pgshard never takes it exclusively,
        // and another program that does must not delay the work.
        let work = format!(
            "SET lock_timeout = '{}ms'; SELECT pg_catalog.pg_try_advisory_lock_shared({SPACE}, \
                {WORK})",
            self.patience.as_millis().max(1)
        );
        client.batch_execute(&work).await?;
        let outcome = self.attempt(client).await;
        client
            .batch_execute(&format!(
                "SELECT pg_catalog.pg_advisory_unlock_shared({SPACE}, {WORK})"
            ))
            .await?;
        let outcome = outcome?;
        if !matches!(outcome, Outcome::Done) {
            guard.batch_execute("ROLLBACK").await?;
            return Ok(outcome);
        }
        self.record(guard).await
    }

    /// Writes the record, if the shard is still served here, and ends the guard's transaction. The
    /// lock keeps the shard from being fenced, but not from being taken away by
    /// `pgshard moves repair`.
    ///
    /// Locks: the shard's row FOR SHARE, until the commit right after; waits for it no longer than
    /// the lock timeout.
    async fn record(&self, guard: &Client) -> Result<Outcome, tokio_postgres::Error> {
        let shard = self.shard;
        let served = format!(
            "SELECT true FROM pgshard.shard WHERE shard_id = {shard} AND state = 'serving' FOR \
                SHARE"
        );
        let (doing, error) = match guard.simple_query(&served).await {
            Ok(answer) if is_true(&answer) => {
                let record = format!("{}; COMMIT", record(shard, std::slice::from_ref(self.step)));
                match guard.batch_execute(&record).await {
                    Ok(()) => return Ok(Outcome::Done),
                    Err(error) => ("record the migrations", error),
                }
            }
            Ok(_) => {
                guard.batch_execute("ROLLBACK").await?;
                return Ok(Outcome::Failed(ShardFault::Moving(None)));
            }
            Err(error) => (HOLD, error),
        };
        guard.batch_execute("ROLLBACK").await?;
        Ok(judge(&error, None, doing))
    }

    /// Holds the shard until the guard's transaction ends. Returns false if it is not served here,
    /// or a move has claimed it.
    ///
    /// Locks: as [`Alone::run`]; waits for a fence that is being set, no longer than the lock
    /// timeout.
    async fn hold(&self, guard: &Client) -> Result<bool, tokio_postgres::Error> {
        let shard = self.shard.as_i32();
        let lock = format!("SELECT pg_catalog.pg_advisory_xact_lock_shared({MIGRATION}, {shard})");
        guard
            .batch_execute(&format!("{}; {lock}", begin(self.lock_timeout)))
            .await?;
        // A statement of its own sees a fence that committed while the lock was waited for. A
        // simple query is used, since an extended one leaves a portal in the transaction, which has
        // a snapshot.
        let sql = format!(
            "SELECT EXISTS (SELECT FROM pgshard.shard WHERE shard_id = {shard} AND state = \
                'serving')
                AND NOT EXISTS (SELECT FROM pgshard.move
                                WHERE shard_id = {shard} AND phase NOT IN ('kept', 'completed', \
                                'aborted'))"
        );
        Ok(is_true(&guard.simple_query(&sql).await?))
    }

    async fn attempt(&self, client: &Client) -> Result<Outcome, tokio_postgres::Error> {
        if let Some(Repeatable::Index(index)) = &self.step.outside {
            match self.read_index_state(client, index).await? {
                (Some(_), Begun::No) => {
                    let words =
                        format!("there is already an index {index}, which no migration has begun");
                    return Ok(Outcome::Failed(self.fault(words)));
                }
                (Some(true), Begun::ThisText) => return Ok(Outcome::Done),
                (Some(_), Begun::ThisText | Begun::OtherText) => {
                    if let Err(error) = self.drop_index(client, index).await {
                        return self.outcome_of_refusal(error);
                    }
                }
                (None, _) => {}
            }
        }
        self.note_begun(client, true).await?;
        let Err(error) = client.batch_execute(&self.step.sql).await else {
            return Ok(Outcome::Done);
        };
        let outcome = self.outcome_of_refusal(error)?;
        if let Some(Repeatable::Index(index)) = &self.step.outside
            && self.read_index_state(client, index).await?.0 == Some(false)
            && self.drop_index(client, index).await.is_err()
        {
            // The attempt stays recorded as begun, so that the next one drops the index.
            return Ok(outcome);
        }
        self.note_begun(client, false).await?;
        Ok(outcome)
    }

    /// The meaning of the server's refusal; an error without one is a lost connection.
    fn outcome_of_refusal(
        &self,
        error: tokio_postgres::Error,
    ) -> Result<Outcome, tokio_postgres::Error> {
        if error.as_db_error().is_none() {
            Err(error)
        } else {
            Ok(judge(&error, Some(self.step), "run it"))
        }
    }

    fn fault(&self, words: String) -> ShardFault {
        ShardFault::Migration {
            migration: self.step.recorded.name.clone(),
            line: None,
            words,
        }
    }

    /// Whether there is an index of the name, and whether it is valid; and whether an attempt at
    /// this migration was begun.
    async fn read_index_state(
        &self,
        client: &Client,
        index: &str,
    ) -> Result<(Option<bool>, Begun), tokio_postgres::Error> {
        let sql =
            "SELECT (SELECT i.indisvalid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_index i ON \
                i.indexrelid = c.oid
                JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND \
                c.relname = $2),
            (SELECT checksum FROM pgshard.migration_attempt WHERE shard_id = $3 AND name = $4 AND \
            begun)";
        let (shard, name) = (self.shard.as_i32(), &self.step.recorded.name);
        let rows = client
            .query_typed(
                sql,
                &[
                    (&self.schema, Type::TEXT),
                    (&index, Type::TEXT),
                    (&shard, Type::INT4),
                    (name, Type::TEXT),
                ],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Ok((None, Begun::No));
        };
        let begun = match row.try_get::<_, Option<String>>(1)? {
            None => Begun::No,
            Some(checksum) if checksum == self.step.recorded.checksum => Begun::ThisText,
            Some(_) => Begun::OtherText,
        };
        Ok((row.try_get(0)?, begun))
    }

    /// Locks: SHARE UPDATE EXCLUSIVE on the table; waits for the transactions that use it.
    async fn drop_index(&self, client: &Client, index: &str) -> Result<(), tokio_postgres::Error> {
        let name = format!("{}.{}", quote_ident(self.schema), quote_ident(index));
        client
            .batch_execute(&format!("DROP INDEX CONCURRENTLY IF EXISTS {name}"))
            .await
    }

    async fn note_begun(&self, client: &Client, begun: bool) -> Result<(), tokio_postgres::Error> {
        let recorded = &self.step.recorded;
        let (name, checksum) = (
            quote_literal(&recorded.name),
            quote_literal(&recorded.checksum),
        );
        let sql = format!(
            "INSERT INTO pgshard.migration_attempt (shard_id, name, checksum, begun) VALUES ({}, \
                {name}, {checksum},
             {begun})
             ON CONFLICT (shard_id) DO UPDATE SET name = excluded.name, checksum = \
             excluded.checksum,
                 begun = excluded.begun, message = NULL, tried_at = clock_timestamp()",
            self.shard
        );
        client.batch_execute(&sql).await
    }
}
