//! Makes shards on one connection: many in one transaction and one message, or one alone to find
//! which statement fails. Nobody knows the shards yet, so there is nobody to wait for.
//!
//! Invariant: a shard is made whole or not at all. Its row in `pgshard.shard` is written by the
//! transaction that makes its schema, and is written first, so that a second bootstrap stops there.

use std::fmt::Write;

use tokio_postgres::Client;
use tokio_postgres::error::{ErrorPosition, SqlState};
use uuid::Uuid;

use super::apart;
use super::fault::ShardFault;
use super::migrations::{Migrations, Pending};
use super::session::{RESET, settle};
use crate::map::ShardEpoch;
use crate::pg::{cause, quote_ident, quote_literal, state};
use crate::schema::control::Cluster;
use crate::schema::control::lock;
use crate::schema::control::own::OWN;
use crate::shard::ShardId;

/// How often a shard is tried when it fails for a temporary reason, such as a deadlock over
/// something that shards share.
const TRIES: usize = 3;

/// What the SQL is composed from.
#[derive(Clone, Copy)]
pub(in crate::schema) struct Recipe<'a> {
    pub(in crate::schema) cluster: &'a Cluster,
    pub(in crate::schema) migrations: &'a Migrations,
    /// What a new shard lacks: everything.
    pub(in crate::schema) pending: Pending,
}

/// A shard and the epoch that its row is written with.
pub(in crate::schema) type Placed = (ShardId, ShardEpoch);

/// How long a statement may wait for a lock. These commits do not wait for the disk; the last one
/// of the host does, and makes the others durable with it.
pub(in crate::schema) const LOCAL: &str =
    "SET LOCAL synchronous_commit = off; SET LOCAL lock_timeout = '10s';";

/// `BEGIN`, and the lock that tells of the work, also of one whose client has gone away in the
/// middle of a message.
pub(in crate::schema) fn begin_work() -> String {
    format!("BEGIN; {LOCAL} {};\n", lock::AT_WORK)
}

impl Recipe<'_> {
    /// `BEGIN` and the rows of the shards.
    pub(in crate::schema) fn begin(&self, shards: &[Placed]) -> String {
        let mut sql = begin_work();
        sql.push_str("INSERT INTO pgshard.shard (shard_id, schema_name, state, epoch) VALUES ");
        list(&mut sql, shards, |sql, (shard, epoch)| {
            let schema = quote_literal(&self.cluster.schema_prefix.schema(*shard));
            let _ = write!(sql, "({shard}, {schema}, 'serving', {epoch})");
        });
        sql.push(';');
        sql
    }

    /// The migrations of a shard, each with its name and what is run after it: the session state
    /// that one of the application's leaves must not affect the next.
    pub(in crate::schema) fn migrations(
        &self,
        shard: ShardId,
    ) -> impl Iterator<Item = (&str, String, &'static str)> {
        let schema = self.cluster.schema_prefix.schema(shard);
        let own = OWN[self.pending.own_from..].iter();
        let own = own.map(move |own| (own.name, own.render(self.cluster, shard), ""));
        let theirs = self.migrations.iter().skip(self.pending.from);
        own.chain(theirs.map(move |migration| {
            (
                migration.name(),
                migration.render_for_new(&schema, shard),
                RESET,
            )
        }))
    }

    /// The size in bytes of the SQL for a new shard, without what the shard's name adds.
    pub(in crate::schema) fn size(&self) -> usize {
        self.migrations
            .iter()
            .skip(self.pending.from)
            .map(super::migrations::Migration::size)
            .sum()
    }

    pub(in crate::schema) fn create_schema(&self, shard: ShardId) -> String {
        format!(
            "CREATE SCHEMA {};",
            quote_ident(&self.cluster.schema_prefix.schema(shard))
        )
    }

    /// The SQL that records which migrations the shards have now.
    pub(in crate::schema) fn record(&self, shards: &[Placed]) -> String {
        let own = OWN[self.pending.own_from..]
            .iter()
            .map(crate::schema::control::own::Own::recorded);
        let theirs = self
            .migrations
            .iter()
            .skip(self.pending.from)
            .map(super::migrations::Migration::recorded);
        let recorded: Vec<_> = own.chain(theirs).collect();
        if recorded.is_empty() {
            return String::new();
        }
        let mut sql = String::from(
            "INSERT INTO pgshard.shard_migration (shard_id, name, checksum) SELECT s, n, c FROM \
                (VALUES ",
        );
        list(&mut sql, shards, |sql, (shard, _)| {
            let _ = write!(sql, "({shard})");
        });
        sql.push_str(") AS shards(s), (VALUES ");
        list(&mut sql, &recorded, |sql, one| {
            let _ = write!(
                sql,
                "({}, {})",
                quote_literal(&one.name),
                quote_literal(&one.checksum)
            );
        });
        sql.push_str(") AS migrations(n, c);");
        sql
    }
}

fn list<T>(sql: &mut String, items: &[T], mut write: impl FnMut(&mut String, &T)) {
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            sql.push_str(", ");
        }
        write(sql, item);
    }
}

/// Makes many shards in one transaction. Returns false if it was rolled back: something is wrong
/// with at least one of them.
///
/// # Errors
/// When the connection is lost. The transaction was then either committed as a whole or not at all.
pub(in crate::schema) async fn run_many(
    client: &Client,
    recipe: &Recipe<'_>,
    shards: &[Placed],
) -> Result<bool, tokio_postgres::Error> {
    // The steps are run for all shards, one after the other, not shard by shard: looking up a
    // function by name reads all functions of that name in all schemas, and creating one
    // invalidates what was read. So the thousands of next_id() are read once for each batch, not
    // once for each shard.
    let mut sql = String::new();
    for (shard, _) in shards {
        sql.push_str(&recipe.create_schema(*shard));
    }
    let mut rest: Vec<_> = shards
        .iter()
        .map(|(shard, _)| recipe.migrations(*shard))
        .collect();
    loop {
        let step: Vec<_> = rest.iter_mut().filter_map(Iterator::next).collect();
        if step.is_empty() {
            break;
        }
        for (_, text, after) in step {
            // A text may end in a comment, or without its semicolon.
            let _ = write!(sql, "{text}\n;\n{after}");
            if !after.is_empty() {
                sql.push_str(LOCAL);
            }
        }
    }
    let (begin, record) = (recipe.begin(shards), recipe.record(shards));
    settle(client).await?;
    match client
        .batch_execute(&format!("{begin}\n{sql}{record}COMMIT"))
        .await
    {
        Ok(()) => Ok(true),
        Err(error) if client.is_closed() => Err(error),
        Err(_) => client.batch_execute("ROLLBACK").await.map(|()| false),
    }
}

pub(in crate::schema) const WRITE_ROW: &str = "write the shard's row";

/// The result of making one shard alone.
pub(in crate::schema) enum Alone {
    /// It is done.
    Done {
        /// Locks on objects, before the commit.
        locks: i64,
    },
    /// It is done, file by file.
    Apart,
    /// It was there already: the server had still been reading the last message of a bootstrap that
    /// was killed. A later run sees what that one left to do.
    There,
    /// It was rolled back.
    Failed(ShardFault),
}

/// Makes one shard in a transaction of its own, or file by file if that fails because a commit is
/// needed in between. Tries a few times if it fails for a temporary reason.
///
/// # Errors
/// When the connection is lost. A transaction was then either committed as a whole or not at all.
pub(in crate::schema) async fn run_alone(
    client: &Client,
    recipe: &Recipe<'_>,
    shard: Placed,
) -> Result<Alone, tokio_postgres::Error> {
    let (mut is_apart, maker) = (false, Uuid::new_v4());
    for attempt in 1.. {
        let outcome = match is_apart {
            false => transaction(client, recipe, shard)
                .await
                .map(|locks| Alone::Done { locks }),
            true => apart::make(client, recipe, shard, maker)
                .await
                .map(|()| Alone::Apart),
        };
        let failure = match outcome {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        if client.is_closed()
            && let Some(error) = failure.error
        {
            return Err(error);
        }
        client.batch_execute("ROLLBACK").await?;
        let code = failure.error.as_ref().and_then(|error| error.code());
        if !is_apart && code.is_some_and(wants_commit) {
            is_apart = true;
            continue;
        }
        if is_apart {
            match apart::clear(client, recipe.cluster, shard.0, Some(maker)).await {
                Ok(()) => {}
                Err(error) if client.is_closed() => return Err(error),
                // The first failure says more. What is left has the mark, and the next bootstrap
                // drops it.
                Err(_) => return Ok(Alone::Failed(failure.fault)),
            }
        }
        let at_row = matches!(
            failure.fault,
            ShardFault::Statement {
                doing: WRITE_ROW,
                ..
            }
        );
        if at_row && code == Some(&SqlState::UNIQUE_VIOLATION) {
            return Ok(Alone::There);
        }
        if !code.is_some_and(passes) || attempt >= TRIES {
            return Ok(Alone::Failed(failure.fault));
        }
    }
    unreachable!("the loop ends at its last attempt")
}

/// Deadlocks and the like, and `tuple concurrently updated`: two shards' migrations that touch what
/// they share.
pub(in crate::schema) fn passes(code: &SqlState) -> bool {
    state::is_transient(code) || *code == SqlState::INTERNAL_ERROR
}

/// Whether a file fails because those before it are not committed: a value that was added to an
/// enumeration cannot be used yet, and a table cannot be altered while deferred constraints are
/// still to be checked.
pub(in crate::schema) fn wants_commit(code: &SqlState) -> bool {
    [
        SqlState::UNSAFE_NEW_ENUM_VALUE_USAGE,
        SqlState::OBJECT_IN_USE,
    ]
    .contains(code)
}

pub(in crate::schema) struct Failure {
    fault: ShardFault,
    error: Option<tokio_postgres::Error>,
}

impl Failure {
    /// For a statement around the files.
    pub(in crate::schema) fn at(doing: &'static str) -> impl Fn(tokio_postgres::Error) -> Failure {
        move |error| Failure {
            fault: ShardFault::Statement {
                doing,
                words: words(&error),
            },
            error: Some(error),
        }
    }

    /// For a file.
    pub(in crate::schema) fn of(name: &str, text: &str, error: tokio_postgres::Error) -> Failure {
        let (migration, line, words) = (name.to_owned(), line(&error, text), words(&error));
        Failure {
            fault: ShardFault::Migration {
                migration,
                line,
                words,
            },
            error: Some(error),
        }
    }
}

async fn transaction(client: &Client, recipe: &Recipe<'_>, placed: Placed) -> Result<i64, Failure> {
    let (shard, _) = placed;
    settle(client).await.map_err(Failure::at("begin"))?;
    client
        .batch_execute(&recipe.begin(&[placed]))
        .await
        .map_err(Failure::at(WRITE_ROW))?;
    client
        .batch_execute(&recipe.create_schema(shard))
        .await
        .map_err(Failure::at("create the schema"))?;
    for (name, text, after) in recipe.migrations(shard) {
        client
            .batch_execute(&text)
            .await
            .map_err(|error| Failure::of(name, &text, error))?;
        client
            .batch_execute(&format!("{after}{LOCAL}"))
            .await
            .map_err(Failure::at("reset the session"))?;
    }
    client
        .batch_execute(&recipe.record(&[placed]))
        .await
        .map_err(Failure::at("record the migrations"))?;
    let count = "SELECT count(*) FROM pg_catalog.pg_locks WHERE pid = pg_catalog.pg_backend_pid()";
    let row = client.query_one(count, &[]).await;
    let locks = row
        .and_then(|row| row.try_get(0))
        .map_err(Failure::at("count the locks"))?;
    client
        .batch_execute("COMMIT")
        .await
        .map_err(Failure::at("commit"))?;
    Ok(locks)
}

pub(in crate::schema) fn words(error: &tokio_postgres::Error) -> String {
    error
        .as_db_error()
        .map_or_else(|| cause::chain(error), cause::words)
}

/// The line of the migration that the server points at.
pub(in crate::schema) fn line(error: &tokio_postgres::Error, text: &str) -> Option<usize> {
    match error.as_db_error()?.position()? {
        ErrorPosition::Original(at) => {
            let before = text.chars().take((*at as usize).saturating_sub(1));
            Some(before.filter(|c| *c == '\n').count() + 1)
        }
        ErrorPosition::Internal { .. } => None,
    }
}
