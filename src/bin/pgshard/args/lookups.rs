//! `pgshard lookups`.

use clap::{Args as ArgGroup, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum LookupsCommand {
    Migration(LookupsMigration),
    Status(LookupsStatus),
    Build(LookupsBuild),
    Sweep(LookupsSweep),
}

/// Print the shard migration that makes a look-up's tables and trigger
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The look-up is that of the config, [lookups.NAME]. Reads no host. Add the file to the shard \
migrations after the one that creates the table, and run `pgshard migrate up`. From then on a row \
whose value was not claimed is refused (SH003), so the application must claim before.

Examples:
  pgshard lookups migration emails > migrations/0007_lookup_emails.sql
  pgshard migrate up")]
pub(crate) struct LookupsMigration {
    /// The look-up's name in the config
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Which look-ups there are, and whether `find` answers for them
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Reads only. The exit code is 1 when a look-up of the config is not complete in every shard.

Examples:
  pgshard lookups status
  pgshard lookups status --json | jq '.lookups.emails.complete'")]
pub(crate) struct LookupsStatus {}

/// Give every row of a look-up its entry, and make the look-up complete
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Rows that were there before the look-up have no entry yet. Writers may continue. A shard that is \
done is not read again, so an interrupted run is repeated. Keys that have one value are listed and \
left as they are, and the exit code is 1: change all but one, and build again. When there are \
none, \
`find` answers.

Examples:
  pgshard lookups build emails
  pgshard lookups build emails --json | jq '.duplicates'")]
pub(crate) struct LookupsBuild {
    /// The look-up's name in the config
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Delete claims that were spent more than 24 hours ago
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Each row that is written with a claim leaves a small row in its shard, which a claimer needs for a \
day. Run this daily. It deletes in statements of 1000 rows at most, and may be interrupted.

Examples:
  pgshard lookups sweep
  pgshard lookups sweep --json | jq '.swept.emails'")]
pub(crate) struct LookupsSweep {}
