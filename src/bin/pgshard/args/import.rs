//! `pgshard import`.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ArgGroup, Subcommand};
use pgshard::ShardCount;
use pgshard::id::Epoch;
use pgshard::import::separate::{PathChange, SeparateRequest};
use pgshard::import::{ChangeRequest, Choices, KeyName, TableName};

use crate::values;

#[derive(Debug, Subcommand)]
pub(crate) enum ImportCommand {
    Assess(ImportAssess),
    Keys(ImportKeys),
    Separate(ImportSeparate),
}

/// Can this database be brought into shards, and what has to be changed first?
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Reads only, in one session that cannot write. It reads catalogs and statistics, and follows at \
most a thousand rows along each foreign key. Each table gets a decision, each obstacle a remedy.

The role needs SELECT on the tables, and pg_read_all_stats to see the statements of others. \
Passwords come from PGPASSWORD, ~/.pgpass or a service file, never from the url.

The exit code is 0 if an import is possible, 1 if something has to be changed first, and 4 if it \
is impossible.

Examples:
  pgshard import assess postgres://app@db.internal/app --key users.id
  pgshard import assess service=app --key users.id --statements postgresql.log
  pgshard import assess service=app --key users.id --html report.html
  pgshard import assess service=app --key users.id --stays audit_log --by follows.follower_id
  pgshard import assess service=app --key users.id --json | jq -r '.obstacles[].id'")]
pub(crate) struct ImportAssess {
    /// The url of the database, without a password
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// The key: the column that the rows of one user, customer or tenant have in common, in its own
    /// table
    #[arg(long, value_name = "TABLE.COLUMN")]
    pub(crate) key: KeyName,
    /// A log of PostgreSQL (text, CSV or JSON), or a file with a statement on each line
    /// [default: pg_stat_statements]
    #[arg(long, value_name = "FILE")]
    pub(crate) statements: Option<PathBuf>,
    /// A table that is not to be imported; may be repeated
    #[arg(long, value_name = "TABLE")]
    pub(crate) stays: Vec<TableName>,
    /// A table that each host is to get; may be repeated
    #[arg(long, value_name = "TABLE")]
    pub(crate) reference: Vec<TableName>,
    /// The column that says to which key the rows of its table belong, where there are several or
    /// none was found; may be repeated
    #[arg(long, value_name = "TABLE.COLUMN")]
    pub(crate) by: Vec<KeyName>,
    /// Write the report as a page for a browser, too
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// How many shards there will be
    #[arg(long, value_name = "N", default_value = "4096", value_parser = values::shard_count)]
    pub(crate) shards: ShardCount,
    /// How many hosts there will be
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=64),
    )]
    pub(crate) hosts: u16,
    /// The epoch of the shards' IDs: a time, or Unix milliseconds [default: the config's, else
    /// 2026-01-01]
    #[arg(long, value_name = "TIME", value_parser = values::epoch)]
    pub(crate) epoch: Option<Epoch>,
}

/// The database, the key, and what was decided about tables.
#[derive(Debug, ArgGroup)]
pub(crate) struct Imported {
    /// The url of the database, without a password
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// The key, as for `import assess`
    #[arg(long, value_name = "TABLE.COLUMN")]
    key: KeyName,
    /// A table that is not to be imported; may be repeated
    #[arg(long, value_name = "TABLE")]
    stays: Vec<TableName>,
    /// A table that each host is to get; may be repeated
    #[arg(long, value_name = "TABLE")]
    reference: Vec<TableName>,
    /// The column that shows to which key the rows of its table belong; may be repeated
    #[arg(long, value_name = "TABLE.COLUMN")]
    by: Vec<KeyName>,
    /// How long a step may wait for other sessions; they never wait for it for long
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 3600,
        value_parser = clap::value_parser!(u64).range(0..=604_800),
    )]
    max_wait_s: u64,
}

impl Imported {
    fn request(&self) -> ChangeRequest {
        let choices = Choices::default()
            .stays(self.stays.clone())
            .references(self.reference.clone())
            .by(self.by.clone());
        ChangeRequest::new(self.key.clone())
            .choices(choices)
            .wait_max(Duration::from_secs(self.max_wait_s))
    }
}

/// Give each table the key, while the application works
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A table that reaches the key by foreign keys gets it as a column, which triggers fill and keep, \
then a backfill by ranges; NOT NULL; and a unique index with the primary key and the key, as its \
replica identity. A table that has the column gets what is missing.

No statement of the application waits for longer than about 0.2 s. A run that was interrupted is \
continued by the next, and --undo takes everything back; the schema pgshard_import has the record.

The role must own the tables; the application may have another. A key may then only be changed in \
a transaction that is READ COMMITTED. Tables that are partitioned, inherit, or have no primary \
key are refused. If tables have triggers, the role must be allowed to set \
session_replication_role, so that these do not fire while rows are filled.

The exit code is 0 if each table has the key, 8 if rows without a key or long transactions are in \
the way, 4 if something has to be changed first; of --check 1 if something is missing, 6 if a row \
has another key than the row that it refers to.

Examples:
  pgshard import keys service=app --key users.id --plan
  pgshard import keys service=app --key users.id --table likes --column likes=owner_id
  pgshard import keys service=app --key users.id --check
  pgshard import keys service=app --key users.id --undo")]
pub(crate) struct ImportKeys {
    #[command(flatten)]
    pub(crate) imported: Imported,
    /// Only this table, and those on its path to the key; may be repeated
    #[arg(long, value_name = "TABLE")]
    table: Vec<TableName>,
    /// The name of a table's new column [default: from the key, such as user_id for users.id]; may
    /// be repeated
    #[arg(long, value_name = "TABLE=NAME", value_parser = values::table_column)]
    column: Vec<(TableName, String)>,
    /// How many rows are filled in a second at most
    #[arg(long, value_name = "ROWS", default_value = "20000")]
    max_rows: NonZeroU32,
    /// Show the steps, with their SQL and locks, and change nothing
    #[arg(long, group = "what")]
    pub(crate) plan: bool,
    /// Show what is missing, and compare all rows; change nothing
    #[arg(long, group = "what")]
    pub(crate) check: bool,
    /// Take everything back
    #[arg(long, group = "what")]
    pub(crate) undo: bool,
}

impl ImportKeys {
    /// What is to be changed.
    pub(crate) fn request(&self) -> ChangeRequest {
        self.imported
            .request()
            .tables(self.table.clone())
            .columns(self.column.clone())
            .rows_per_second(self.max_rows)
    }
}

/// Put the imported tables into a schema of their own, while the application works
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Four steps: an empty schema, with the rights of the former one; search_path with the new schema \
before the former one, for the database and for each role with a setting of its own (--plan shows \
each ALTER DATABASE and ALTER ROLE … IN DATABASE); a wait until the sessions have ended that began \
before, which are named; then all tables move in one transaction, with their indexes, sequences \
and statistics, in short tries: no statement of the application waits for longer than 0.2 s.

Renew the application's sessions to let the wait end: restart it, or RECONNECT in PgBouncer. A \
session's own SET, and options in a connection string, cannot be seen: change them first. \
--keep-search-path leaves search_path to you, and waits for no session. From the second step on, \
CREATE without a schema creates in the new one.

Refused by name, with everything as it was: foreign keys, views, rules, policies, inheritance, \
triggers and bound functions between imported tables and others; functions that name the former \
schema. Their texts are searched, and so is pg_stat_statements, for a warning; statements that are \
put together at run time, and those of the application, cannot all be found: leave the schema out \
of them.

A run that was interrupted is continued by the next, and --undo takes everything back, each \
search_path too. The role must own the tables, may create schemas, and may set search_path: of \
the database as its owner, of another role as a superuser or with CREATEROLE. It needs \
pg_read_all_stats to see when sessions began.

The exit code is 0 if the tables are in their schema, 8 if sessions or transactions of others last \
too long, 4 if something has to be changed first; of --check 1 if something is missing.

Examples:
  pgshard import separate service=app --key users.id --schema app --plan
  pgshard import separate service=app --key users.id --schema app --max-wait-s 86400
  pgshard import separate service=app --key users.id --schema app --check
  pgshard import separate service=app --key users.id --schema app --undo")]
pub(crate) struct ImportSeparate {
    #[command(flatten)]
    pub(crate) imported: Imported,
    /// The new schema
    #[arg(long, value_name = "NAME")]
    schema: String,
    /// Leave search_path to you: each session has the new schema in it
    #[arg(long)]
    keep_search_path: bool,
    /// Show the steps, with their SQL and locks, and change nothing
    #[arg(long, group = "what")]
    pub(crate) plan: bool,
    /// Show what is missing; change nothing
    #[arg(long, group = "what")]
    pub(crate) check: bool,
    /// Take everything back
    #[arg(long, group = "what")]
    pub(crate) undo: bool,
}

impl ImportSeparate {
    /// What is to be separated.
    pub(crate) fn request(&self) -> SeparateRequest {
        let search_path = if self.keep_search_path {
            PathChange::Kept
        } else {
            PathChange::Set
        };
        SeparateRequest::new(self.imported.key.clone(), &self.schema)
            .change(self.imported.request())
            .search_path(search_path)
    }
}
