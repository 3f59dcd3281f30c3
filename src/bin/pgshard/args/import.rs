//! `pgshard import`.

use std::path::PathBuf;

use clap::{Args as ArgGroup, Subcommand};
use pgshard::ShardCount;
use pgshard::id::Epoch;
use pgshard::import::{KeyName, TableName};

use crate::values;

#[derive(Debug, Subcommand)]
pub(crate) enum ImportCommand {
    Assess(ImportAssess),
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
