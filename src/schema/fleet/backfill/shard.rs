//! A backfill in one shard: its record, and one range of keys after the other.
//!
//! The record of the progress is a row in the shard itself, in the table [`TABLE`]. So whatever
//! takes the shard's rows to another place takes the record along: a move, its rollback, an old
//! copy that becomes the shard again, a restore.
//!
//! Invariant: a range and its record are one commit, made while the host serves the shard; so each
//! range is run once, whichever process runs it and however often it is killed.

use std::time::Duration;

use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::report::BackfillFault;
use super::text::Backfill;
use crate::pg::{Connection, quote_ident, quote_literal, state};
use crate::schema::fleet::fault::ShardFault;
use crate::schema::fleet::migrate::transaction::{self, Outcome};
use crate::schema::fleet::recipe::{error_message, passes};
use crate::shard::ShardId;

/// The table in a shard's schema that records the progress of backfills there.
pub(in crate::schema) const TABLE: &str = "pgshard_backfill";

/// A shard, and the backfill to run there.
pub(super) struct OnShard<'a> {
    pub(super) backfill: &'a Backfill,
    pub(super) schema: &'a str,
    pub(super) shard: ShardId,
    /// The limit for each lock.
    pub(super) lock_timeout: Duration,
    /// The limit for each statement.
    pub(super) statement_timeout: Duration,
}

/// The key's column and its type, as SQL.
#[derive(Clone, Debug)]
pub(super) struct Key {
    column: String,
    kind: String,
}

/// The result of a step in a shard. After any but the first three, nothing was changed.
pub(super) enum Step {
    /// The record exists, and the next range can be run.
    Started(Key),
    /// A range was run, and the server counted this many rows.
    Ran { rows: u64 },
    /// All ranges were run, by this call or before.
    Finished,
    /// The host does not serve the shard now.
    Elsewhere,
    /// Another session was in the way for a moment.
    Again(String),
    /// The range took too long.
    TooSlow(BackfillFault),
    /// It cannot be done.
    Failed(BackfillFault),
}

type Answer = Result<Step, tokio_postgres::Error>;

impl OnShard<'_> {
    /// Begins, or continues what was begun: creates the table and the record if they do not exist,
    /// and looks up the table's key.
    ///
    /// Locks: if the table is created, those of [`transaction::run`]; else those of
    /// [`OnShard::step`], except those on the table.
    ///
    /// # Errors
    /// When the connection is lost.
    pub(super) async fn start(&self, client: &Connection) -> Answer {
        let there = match self.table_exists(client).await? {
            None => return Ok(Step::Elsewhere),
            Some(there) => there,
        };
        if !there {
            // A shard that it cannot be run on is found before anything is made there, which would
            // end a rollback.
            match self.whole(client, self.can_run(client).await).await? {
                Step::Started(_) => {}
                step => return Ok(step),
            }
            match transaction::run(client, self.shard, &[], &self.table(), self.lock_timeout)
                .await?
            {
                Outcome::Done => {}
                Outcome::Again(fault) => return Ok(Step::Again(fault.to_string())),
                Outcome::Failed(ShardFault::Moving(_)) => {
                    let words =
                        "a move has claimed it; the table of its progress is created after \
                        the move"
                            .to_owned();
                    return Ok(Step::Again(words));
                }
                // If two commands create it at the same time, IF NOT EXISTS fails the slower one
                // with a unique violation, after the other has committed.
                Outcome::Failed(fault) | Outcome::Apart(fault) => {
                    return Ok(match self.table_exists(client).await? {
                        Some(true) => Step::Again(fault.to_string()),
                        _ => Step::Failed(BackfillFault::Unfit {
                            words: fault.to_string(),
                        }),
                    });
                }
            }
        }
        self.whole(client, self.begin_record(client).await).await
    }

    /// Whether the table of the progress exists; `None` if the host does not serve the shard.
    async fn table_exists(
        &self,
        client: &Connection,
    ) -> Result<Option<bool>, tokio_postgres::Error> {
        let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c
                JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = s.schema_name AND c.relname = $2 AND c.relkind = 'r')
            FROM pgshard.shard s WHERE s.shard_id = $1 AND s.state = 'serving'";
        let rows = client
            .query_typed(
                sql,
                &[(&self.shard.as_i32(), Type::INT4), (&TABLE, Type::TEXT)],
            )
            .await?;
        rows.first().map(|row| row.try_get(0)).transpose()
    }

    /// Runs the next range, of at most `keys` keys.
    ///
    /// Locks, until the commit that follows: the shard's row FOR SHARE, for which a fence waits;
    /// the row of the record; whatever the statement takes.
    ///
    /// # Errors
    /// When the connection is lost. The record shows whether the range was run.
    pub(super) async fn step(&self, client: &Connection, key: &Key, keys: i64) -> Answer {
        self.whole(client, self.range(client, key, keys).await)
            .await
    }

    /// The statement that creates the table. Locks: none here; [`OnShard::start`] names those of
    /// running it.
    fn table(&self) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {} (
                name text PRIMARY KEY,
                checksum text NOT NULL,
                done_to text,
                until text,
                rows bigint NOT NULL DEFAULT 0,
                batches bigint NOT NULL DEFAULT 0,
                started_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
                updated_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
                finished_at timestamptz)",
            self.of_shard(TABLE)
        )
    }

    fn of_shard(&self, name: &str) -> String {
        format!("{}.{}", quote_ident(self.schema), quote_ident(name))
    }

    /// Rolls back if the step did not commit, and judges its error.
    async fn whole(&self, client: &Connection, answer: Answer) -> Answer {
        let step = match answer {
            Ok(step @ (Step::Started(_) | Step::Ran { .. } | Step::Finished)) => return Ok(step),
            Ok(step) => step,
            Err(error) if client.is_closed() || error.as_db_error().is_none() => return Err(error),
            Err(error) => judge(&error, None),
        };
        client.batch_execute("ROLLBACK").await?;
        Ok(step)
    }

    /// Begins a transaction and holds the shard until its end, so a fence waits or is noticed.
    /// False: the shard is not served here. Rows that a policy hides from the role are an error, so
    /// that none is left out silently.
    async fn hold(&self, client: &Connection) -> Result<bool, tokio_postgres::Error> {
        let sql = format!(
            "BEGIN; SET LOCAL lock_timeout = '{}ms'; SET LOCAL statement_timeout = '{}ms';
             SET LOCAL row_security = off;
             SELECT true FROM pgshard.shard WHERE shard_id = {} AND state = 'serving' FOR SHARE",
            self.lock_timeout.as_millis().max(1),
            self.statement_timeout.as_millis().max(1),
            self.shard
        );
        Ok(client
            .simple_query(&sql)
            .await?
            .iter()
            .any(|answer| matches!(answer, SimpleQueryMessage::Row(_))))
    }

    /// Whether it can be run in the shard.
    async fn can_run(&self, client: &Connection) -> Answer {
        if !self.hold(client).await? {
            return Ok(Step::Elsewhere);
        }
        match self.key(client).await? {
            Ok(key) => client
                .batch_execute("COMMIT")
                .await
                .map(|()| Step::Started(key)),
            Err(words) => Ok(Step::Failed(BackfillFault::Unfit { words })),
        }
    }

    async fn begin_record(&self, client: &Connection) -> Answer {
        if !self.hold(client).await? {
            return Ok(Step::Elsewhere);
        }
        if let Some(words) = self.foreign_table(client).await? {
            return Ok(Step::Failed(BackfillFault::Unfit { words }));
        }
        let key = match self.key(client).await? {
            Ok(key) => key,
            Err(words) => return Ok(Step::Failed(BackfillFault::Unfit { words })),
        };
        // The backfill ends at the last key of now: the application already adds later rows in the
        // new form. ORDER BY names the table: its own name alone would be that of the text that is
        // selected, and 9 comes after 10 there.
        let sql = format!(
            "INSERT INTO {} (name, checksum, until) VALUES ({}, {}, (SELECT t.{column}::text FROM \
                {} t
             ORDER BY t.{column} DESC LIMIT 1)) ON CONFLICT (name) DO NOTHING; COMMIT",
            self.of_shard(TABLE),
            quote_literal(self.backfill.name()),
            quote_literal(self.backfill.checksum()),
            self.of_shard(self.backfill.table()),
            column = quote_ident(&key.column),
        );
        client.batch_execute(&sql).await?;
        Ok(Step::Started(key))
    }

    /// The reason for not using the table of the progress, if another role has created it: its
    /// triggers would run as our role. No other role can replace our own table.
    async fn foreign_table(
        &self,
        client: &Connection,
    ) -> Result<Option<String>, tokio_postgres::Error> {
        let sql = "SELECT pg_catalog.pg_get_userbyid(c.relowner)::text
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = $1 AND c.relname = $2 AND c.relowner <> n.nspowner
                AND c.relowner <> (SELECT u.oid FROM pg_catalog.pg_roles u WHERE u.rolname = \
                current_user)";
        let rows = client
            .query_typed(
                sql,
                &[(&self.schema as _, Type::TEXT), (&TABLE as _, Type::TEXT)],
            )
            .await?;
        let owner = rows
            .first()
            .map(|row| row.try_get::<_, String>(0))
            .transpose()?;
        Ok(owner.map(|owner| {
            format!("its table {TABLE} belongs to {owner}: drop it, and a backfill makes its own")
        }))
    }

    /// The column for the ranges; or why the table has no ranges by it.
    async fn key(&self, client: &Connection) -> Result<Result<Key, String>, tokio_postgres::Error> {
        let sql = "SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), \
            a.attnotnull,
                EXISTS (SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = \
                i.indexrelid
                        JOIN pg_catalog.pg_am m ON m.oid = x.relam
                        WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum AND i.indisvalid AND \
                        i.indpred IS NULL
                            AND m.amname = 'btree'), pg_catalog.row_security_active(c.oid), \
                            current_user::text
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            LEFT JOIN pg_catalog.pg_index p ON p.indrelid = c.oid AND p.indisprimary
            LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT \
            a.attisdropped
                AND CASE WHEN $3::text IS NULL THEN a.attnum = p.indkey[0] ELSE a.attname = $3 END
            WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')";
        let (table, column) = (self.backfill.table(), self.backfill.key());
        let asked = [
            (&self.schema as _, Type::TEXT),
            (&table as _, Type::TEXT),
            (&column as _, Type::TEXT),
        ];
        let rows = client.query_typed(sql, &asked).await?;
        let Some(row) = rows.first() else {
            return Ok(Err(format!("it has no table {table}")));
        };
        let Some(name) = row.try_get::<_, Option<String>>(0)? else {
            return Ok(Err(match column {
                Some(column) => format!("its table {table} has no column {column}"),
                None => format!("its table {table} has no primary key: name a column with --key"),
            }));
        };
        if !row.try_get::<_, bool>(2)? {
            return Ok(Err(format!(
                "its column {table}.{name} can be null, and rows with a null are in no range"
            )));
        }
        if !row.try_get::<_, bool>(3)? {
            return Ok(Err(format!(
                "its table {table} has no B-tree index that begins with {name}: each range would \
                    read all of it"
            )));
        }
        if row.try_get::<_, bool>(4)? {
            let role: String = row.try_get(5)?;
            return Ok(Err(format!(
                "its table {table} has row-level security for the role {role} too, and rows that a \
                    policy hides would be left out: give {role} BYPASSRLS, or take FORCE ROW LEVEL \
                    SECURITY from the table"
            )));
        }
        Ok(Ok(Key {
            column: name,
            kind: row.try_get(1)?,
        }))
    }

    async fn range(&self, client: &Connection, key: &Key, keys: i64) -> Answer {
        if !self.hold(client).await? {
            return Ok(Step::Elsewhere);
        }
        let (record, name) = (self.of_shard(TABLE), quote_literal(self.backfill.name()));
        let sql = format!(
            "SELECT checksum, done_to, until, finished_at IS NOT NULL FROM {record} WHERE name = \
                {name} FOR UPDATE"
        );
        let Some(row) = client.query_typed(&sql, &[]).await?.into_iter().next() else {
            return Ok(Step::Failed(BackfillFault::Unfit {
                words: "its record was deleted".to_owned(),
            }));
        };
        if row.try_get::<_, &str>(0)? != self.backfill.checksum() {
            return Ok(Step::Failed(BackfillFault::Edited));
        }
        let (done_to, until): (Option<String>, Option<String>) = (row.try_get(1)?, row.try_get(2)?);
        let is_finished: bool = row.try_get(3)?;
        let next = match until {
            Some(until) if !is_finished => {
                self.next(client, key, keys, done_to.as_deref(), &until)
                    .await?
            }
            _ => None,
        };
        let Some((low, high)) = next else {
            let end = "finished_at = coalesce(finished_at, pg_catalog.clock_timestamp())";
            client
                .batch_execute(&format!(
                    "UPDATE {record} SET {end} WHERE name = {name}; COMMIT"
                ))
                .await?;
            return Ok(Step::Finished);
        };
        let failed = |error| self.judge_range(client, error, &low, &high);
        let sql = self
            .backfill
            .render((self.schema, self.shard), &key.kind, &low, &high);
        let answers = match client.simple_query(&sql).await {
            Ok(answers) => answers,
            Err(error) => return failed(error),
        };
        let counted = answers.iter().filter_map(|answer| match answer {
            SimpleQueryMessage::CommandComplete(rows) => Some(*rows),
            _ => None,
        });
        let rows: u64 = counted.sum();
        let sql = format!(
            "UPDATE {record} SET done_to = {}, rows = rows + {rows}, batches = batches + 1,
                 updated_at = pg_catalog.clock_timestamp() WHERE name = {name}; COMMIT",
            quote_literal(&high)
        );
        match client.batch_execute(&sql).await {
            Ok(()) => Ok(Step::Ran { rows }),
            Err(error) => failed(error),
        }
    }

    fn judge_range(
        &self,
        client: &Connection,
        error: tokio_postgres::Error,
        low: &str,
        high: &str,
    ) -> Answer {
        if client.is_closed() || error.as_db_error().is_none() {
            return Err(error);
        }
        Ok(judge(&error, Some((low, high))))
    }

    /// The first and the last of the next keys; `None` if there are no more.
    async fn next(
        &self,
        client: &Connection,
        key: &Key,
        keys: i64,
        after: Option<&str>,
        until: &str,
    ) -> Result<Option<(String, String)>, tokio_postgres::Error> {
        let (column, kind) = (quote_ident(&key.column), &key.kind);
        let after =
            after.map(|after| format!("t.{column} > {}::{kind} AND ", quote_literal(after)));
        let after = after.unwrap_or_default();
        // As above: by the key, not by its text.
        let sql = format!(
            "WITH range AS MATERIALIZED (SELECT t.{column} AS key FROM {} t WHERE \
                {after}t.{column} <= {}::{kind}
                 ORDER BY t.{column} LIMIT {keys})
             SELECT (SELECT r.key::text FROM range r ORDER BY r.key LIMIT 1),
                 (SELECT r.key::text FROM range r ORDER BY r.key DESC LIMIT 1)",
            self.of_shard(self.backfill.table()),
            quote_literal(until)
        );
        let rows = client.query_typed(&sql, &[]).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        Ok(row.try_get::<_, Option<String>>(0)?.zip(row.try_get(1)?))
    }
}

/// What an error of the server means, from a range or from the statements around it.
fn judge(error: &tokio_postgres::Error, range: Option<(&str, &str)>) -> Step {
    let words = error_message(error);
    let refused = |code: &SqlState| [state::SHARD_MOVED, state::REFUSED].contains(&code.code());
    match error.code() {
        Some(code) if refused(code) => return Step::Elsewhere,
        Some(code) if passes(code) => return Step::Again(words),
        _ => {}
    }
    let fault = match range {
        Some((low, high)) => BackfillFault::Range {
            low: low.to_owned(),
            high: high.to_owned(),
            words,
        },
        None => BackfillFault::Unfit { words },
    };
    match error.code() {
        Some(&SqlState::QUERY_CANCELED) => Step::TooSlow(fault),
        _ => Step::Failed(fault),
    }
}
