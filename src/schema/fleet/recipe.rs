//! The SQL that makes a new shard, and what a failure of it means.

use std::fmt::Write;

use tokio_postgres::error::{ErrorPosition, SqlState};

use super::fault::ShardFault;
use super::migrations::{Migrations, Pending};
use super::session::RESET;
use crate::map::ShardEpoch;
use crate::pg::{cause, quote_ident, quote_literal, state};
use crate::schema::control::Cluster;
use crate::schema::control::id_functions::ID_FUNCTIONS;
use crate::schema::control::lock;
use crate::shard::ShardId;

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

/// `BEGIN`, and the lock that shows that work is in progress, also that of a client that has
/// disconnected in the middle of a message.
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
        let own = ID_FUNCTIONS[self.pending.own_from..].iter();
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
        let own = ID_FUNCTIONS[self.pending.own_from..]
            .iter()
            .map(crate::schema::control::id_functions::IdFunctions::recorded);
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

/// What is done when the row of a shard is written, as messages name it.
pub(in crate::schema) const WRITE_ROW: &str = "write the shard's row";

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

/// What failed while a shard was made, and the error of the driver.
pub(in crate::schema) struct Failure {
    pub(in crate::schema) fault: ShardFault,
    pub(in crate::schema) error: Option<tokio_postgres::Error>,
}

impl Failure {
    /// For a statement around the files.
    pub(in crate::schema) fn at(doing: &'static str) -> impl Fn(tokio_postgres::Error) -> Failure {
        move |error| Failure {
            fault: ShardFault::Statement {
                doing,
                words: error_message(&error),
            },
            error: Some(error),
        }
    }

    /// For a file.
    pub(in crate::schema) fn of(name: &str, text: &str, error: tokio_postgres::Error) -> Failure {
        let (migration, line, words) = (name.to_owned(), line(&error, text), error_message(&error));
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

/// The message of the server, or of the driver where the server sent none.
pub(in crate::schema) fn error_message(error: &tokio_postgres::Error) -> String {
    error
        .as_db_error()
        .map_or_else(|| cause::chain(error), cause::server_message)
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
