//! `pgshard lookups`.

use clap::{Args as ArgGroup, Subcommand, ValueEnum};
use pgshard::lookups::Step;

#[derive(Debug, Subcommand)]
pub(crate) enum LookupsCommand {
    Migration(LookupsMigration),
    Status(LookupsStatus),
    Build(LookupsBuild),
    Check(LookupsCheck),
    Repair(LookupsRepair),
    Suspend(LookupsSuspend),
    Sweep(LookupsSweep),
}

/// Print a shard migration that makes a look-up, or changes what its trigger does
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The look-up is that of the config, [lookups.NAME]. Reads no host. Add the file to the shard \
migrations after the one that creates the table, and run `pgshard migrate up`. Where an \
application writes to the table already, begin with create-recording: rows that it does not claim \
are recorded. Deploy the application that claims, run `pgshard lookups build` until it lists no \
duplicates, add the migration that enforces, and build again.

Examples:
  pgshard lookups migration emails > migrations/0002_emails.sql
  pgshard lookups migration emails --step create-recording > migrations/0007_emails.sql
  pgshard lookups migration emails --step enforce > migrations/0009_emails_enforced.sql")]
pub(crate) struct LookupsMigration {
    /// The look-up's name in the config
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// What the migration does
    #[arg(long, value_name = "STEP", default_value = "create")]
    pub(crate) step: MigrationStep,
}

/// What a migration of a look-up does.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum MigrationStep {
    /// Tables and trigger: a row whose value was not claimed is refused (SH003)
    Create,
    /// Tables and trigger: such a row is recorded
    CreateRecording,
    /// Such a row is refused from now on
    Enforce,
    /// Such a row is recorded from now on; after `pgshard lookups suspend`
    Record,
}

impl From<MigrationStep> for Step {
    fn from(step: MigrationStep) -> Step {
        match step {
            MigrationStep::Create => Step::Create,
            MigrationStep::CreateRecording => Step::CreateRecording,
            MigrationStep::Enforce => Step::Enforce,
            MigrationStep::Record => Step::Record,
        }
    }
}

/// Which look-ups there are, whether `find` answers, and which applications do not claim
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Reads only. A look-up is recording while one of its shards is. The exit code is 1 when a look-up \
of the config is not complete in every shard.

Examples:
  pgshard lookups status
  pgshard lookups status --json | jq '.lookups.emails.writers'")]
pub(crate) struct LookupsStatus {}

/// Give every row of a look-up its entry, and make the look-up complete
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Rows that were there before the look-up have no entry yet, nor have those that were written \
without a claim while it is recording. Writers may continue. A shard that is done is not read \
again, so an interrupted run is repeated. Keys that have one value are listed and left as they \
are, and the exit code is 1: change all but one, and build again. When there are none, and no \
shard is recording, `find` answers.

Examples:
  pgshard lookups build emails
  pgshard lookups build emails --json | jq '.duplicates'")]
pub(crate) struct LookupsBuild {
    /// The look-up's name in the config
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Compare every row of a look-up with its entry
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Reads only; writers may continue. Every row should have its entry, except after a host has lost \
commits, a shard was restored from a backup, or a trigger was disabled. The exit code is 1 when a \
row has none, or two keys have one value.

Examples:
  pgshard lookups check emails
  pgshard lookups check emails --json | jq '.missing, .duplicates'")]
pub(crate) struct LookupsCheck {
    /// The look-up's name in the config
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Compare every row of a look-up with its entry, and put back what is missing
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Writers may continue, and `find` answers as it did before: use `pgshard lookups suspend` first if \
no answer may be wrong meanwhile. Keys that have one value are listed and left as they are, and \
the exit code is 1.

Examples:
  pgshard lookups repair emails")]
pub(crate) struct LookupsRepair {
    /// The look-up's name in the config
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Make `find` refuse, so that a look-up may be made recording again
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
For an application that does not claim and must write again. Rows are refused (SH003) until the \
migration of `--step record` has run. `pgshard lookups build` undoes it.

Examples:
  pgshard lookups suspend emails
  pgshard lookups migration emails --step record > migrations/0010_emails_recorded.sql
  pgshard migrate up")]
pub(crate) struct LookupsSuspend {
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
