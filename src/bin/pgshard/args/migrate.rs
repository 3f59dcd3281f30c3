//! `pgshard migrate` as clap sees it.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ArgGroup, Subcommand};
use pgshard::schema::migrate::{Canary, Pace};

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    New(MigrateNew),
    Status(MigrateStatus),
    Wait(MigrateWait),
    Plan(MigratePlan),
    Up(MigrateUp),
    Retry(MigrateRetry),
    Resolve(MigrateResolve),
    Backfill(MigrateBackfill),
}

/// Write the next migration's file, with comments on what it can contain
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Examples:
  pgshard migrate new add_captions
  $EDITOR \"$(pgshard migrate new add_captions)\"")]
pub(crate) struct MigrateNew {
    /// What the migration is called: a-z A-Z 0-9 _ -
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Show which migrations have run in which shards
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A pending shard lacks the migration, a changed one ran another text of it, a failed one tried it \
without success. The exit code is 0 when every shard of the cluster has every file, and 8 when \
not: \
shards that no host says it serves are named and count as well, and so do hosts that do not \
answer. \
It takes one query a host, however many shards there are.

Examples:
  pgshard migrate status
  pgshard migrate status --json | jq '.migrations[] | {name, pending}'")]
pub(crate) struct MigrateStatus {}

/// Wait until a migration has run in every shard
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The exit code is 0 once every shard of the cluster has it, by the hosts' own word (of a migration \
that runs once per host: every host); 8 when the time is over, with the shards that lack it, those \
that no host says it serves and the hosts that do not answer; 4 when shards have run another text \
than the file's. It only reads, and asks every two seconds at most. Applications have the same as \
`Router::wait_for_migration`.

Examples:
  pgshard migrate wait --for 0007_captions && systemctl restart app
  pgshard migrate wait --timeout-s 60")]
pub(crate) struct MigrateWait {
    /// The name of its file, with or without .sql [default: every file of the folder]
    #[arg(long = "for", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// How long to wait; with 0 it is asked once
    #[arg(
        long,
        alias = "timeout",
        value_name = "SECONDS",
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(0..=86_400),
    )]
    pub(crate) timeout_s: u64,
}

/// What `up` would run where, and what it would leave alone; changes nothing
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The exit code is 4 if `up` would refuse.

Examples:
  pgshard migrate plan
  pgshard migrate plan --sql
  pgshard migrate plan --only 0-255 --json")]
pub(crate) struct MigratePlan {
    /// Print the files that would run as a whole
    #[arg(long)]
    pub(crate) sql: bool,
    #[command(flatten)]
    pub(crate) target: MigrateTarget,
}

/// Run the migrations that shards lack, while the application works
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Each shard has a transaction of its own, and waits for a lock for --lock-timeout-ms at most: then \
it is put off, and tried again after a growing pause, so that no session queues behind a busy \
table. A shard that fails is named and the others continue; a shard that a move has claimed waits \
for the end of the move; shards that no host serves are named. The exit code is then 8. \
Doing it again does only what is left. Nothing is run anywhere if a file was edited or taken away \
after it was run, or put in before one that was run: exit code 4.

In a file {shard} stands for the name of the shard's schema, in strings too \
('{shard}.photos'::regclass), and {shard_id} for its number; {{shard}} is the text {shard} itself. \
Shards that are not there yet are made by `pgshard bootstrap`, with all migrations.

Examples:
  pgshard migrate up --canary 1%
  pgshard migrate up --only 0-255 --host db3
  pgshard migrate up --json | tail -n 1 | jq '.hosts | map_values(.failed)'")]
pub(crate) struct MigrateUp {
    /// Begin with so many shards, such as 8 or 1%; the others follow only if none of them failed
    #[arg(long, value_name = "COUNT", value_parser = canary)]
    pub(crate) canary: Option<Canary>,
    #[command(flatten)]
    pub(crate) target: MigrateTarget,
    #[command(flatten)]
    pub(crate) pace: MigratePace,
}

/// Run what is pending, only in the shards that failed
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Which shards have failed, and with what, `pgshard migrate status` says; the hosts keep it. Shards \
that were \
not tried, because of a canary or an interrupt, are left to `up`.

Examples:
  pgshard migrate retry
  pgshard migrate retry --only 17 --lock-timeout-ms 1000")]
pub(crate) struct MigrateRetry {
    #[command(flatten)]
    pub(crate) target: MigrateTarget,
    #[command(flatten)]
    pub(crate) pace: MigratePace,
}

/// Record that a migration was done by hand, that its file was edited, or that it is undone
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Only records are written, never tables. --applied is for shards that lack the file, and all that \
comes \
before it has run there. --accept-edit is for shards that ran the file before it was edited: its \
text \
as it is now counts as what they ran; shards that have not run it run the new text with `up`. \
--not-applied is for shards that were restored from before it ran: `up` runs it again. Where \
that cannot be true of a shard that is asked for, nothing is written anywhere: exit code 4. A \
shard \
that a move has claimed waits for the end of the move: exit code 8.

Examples:
  pgshard migrate resolve 0007_captions --accept-edit --plan
  pgshard migrate resolve 0007_captions --applied --only 17
  pgshard migrate resolve 0007_captions --not-applied --only 17")]
#[command(
    group = clap::ArgGroup::new("resolution")
        .required(true)
        .args(["applied", "accept_edit", "not_applied"]),
)]
pub(crate) struct MigrateResolve {
    /// The name of its file, with or without .sql
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// What it does was done by hand
    #[arg(long)]
    pub(crate) applied: bool,
    /// Accept what ran as equal to the file's present text
    #[arg(long)]
    pub(crate) accept_edit: bool,
    /// What it had done is gone, as after a restore from an older dump; the last one that ran first
    #[arg(long)]
    pub(crate) not_applied: bool,
    /// Only show what would be recorded on which host
    #[arg(long)]
    pub(crate) plan: bool,
    #[command(flatten)]
    pub(crate) target: MigrateTarget,
}

/// Run a statement over a table's rows in every shard, a range of keys at a time
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The statement says {shard} for the shard's schema, {shard_id} for its number, and {low} and {high} \
for \
the first and the last key of a range, both of them in it. Each range is a transaction, short, \
with the \
record of how far it is; the record is a row of the shard itself and moves with it. So each range \
is run once, whatever process is killed. A range has as many keys as take --range-ms. Rows that \
were added since \
it was \
begun, with higher keys, are not gone through: let the application write them as they should be \
first.

Shards that move in the meantime are continued on their new host. A shard that fails is named and \
the others continue: exit code 8; run it again for what is left. A statement that was edited \
since it \
was begun is refused: exit code 4. The first backfill makes the table pgshard_backfill in each \
shard, as a migration would. After that, shards that were moved can no longer be rolled back.

Examples:
  pgshard migrate backfill backfills/0001_captions.sql --table photos
  pgshard migrate backfill --name likes --table photos --sql \\
    'UPDATE {shard}.photos SET likes = 0 WHERE id BETWEEN {low} AND {high}'
  pgshard migrate backfill --status")]
#[command(group = clap::ArgGroup::new("what").required(true).args(["file", "sql", "status"]))]
pub(crate) struct MigrateBackfill {
    /// A file with one statement
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The statement
    #[arg(long, value_name = "SQL", requires = "name")]
    pub(crate) sql: Option<String>,
    /// What it is recorded as [default: the file's name without .sql]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The table whose keys make the ranges
    #[arg(long, value_name = "TABLE", required_unless_present = "status")]
    pub(crate) table: Option<String>,
    /// The column of the keys: not null, with an index [default: the first of the primary key]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) key: Option<String>,
    /// Only show the progress of backfills, or with --name of one
    #[arg(long, conflicts_with_all = ["table", "key", "only"])]
    pub(crate) status: bool,
    /// These shards only, such as 17 or 0-255,300 [default: all]
    #[arg(long, value_name = "SHARDS")]
    pub(crate) only: Option<String>,
    /// Shards of one host at the same time
    #[arg(long, value_name = "COUNT", default_value = "2")]
    pub(crate) jobs: NonZeroUsize,
    /// Ranges on all hosts at the same time
    #[arg(long, value_name = "COUNT", default_value = "16")]
    pub(crate) max_jobs: NonZeroUsize,
    /// How long a range should take; its rows are locked that long
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 200,
        value_parser = clap::value_parser!(u64).range(1..=10_000),
    )]
    pub(crate) range_ms: u64,
    /// Wait while a standby, or another client that streams from the host, is further behind than
    /// this
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = crate::values::bytes)]
    pub(crate) max_lag: u64,
    /// At most so many rows a second on each host [default: no limit]
    #[arg(long, value_name = "ROWS")]
    pub(crate) rows_per_s: Option<NonZeroU64>,
    /// How long to wait for a lock
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..=60_000),
    )]
    pub(crate) lock_timeout_ms: u64,
    /// How long to keep trying a shard that is busy or closed, or a host that does not answer
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(0..=86_400),
    )]
    pub(crate) patience_s: u64,
}

impl MigrateBackfill {
    pub(crate) fn pace(&self) -> pgshard::schema::backfill::Pace {
        pgshard::schema::backfill::Pace::default()
            .range(Duration::from_millis(self.range_ms))
            .lag_max(self.max_lag)
            .rows_per_second_max(self.rows_per_s)
            .width(self.jobs)
            .max_concurrency(self.max_jobs)
            .lock_timeout(Duration::from_millis(self.lock_timeout_ms))
            .patience(Duration::from_secs(self.patience_s))
    }
}

/// Which shards, on which hosts.
#[derive(Debug, ArgGroup)]
pub(crate) struct MigrateTarget {
    /// These shards only, such as 17 or 0-255,300 [default: all]
    #[arg(long, value_name = "SHARDS")]
    pub(crate) only: Option<String>,
    /// This host only; can be repeated [default: all hosts]
    #[arg(long = "host", value_name = "HOST")]
    pub(crate) hosts: Vec<String>,
}

/// How many shards at a time, and how patiently.
#[derive(Debug, ArgGroup)]
pub(crate) struct MigratePace {
    /// Shards of one host at the same time
    #[arg(long, value_name = "COUNT", default_value = "4")]
    pub(crate) jobs: NonZeroUsize,
    /// Shards of all hosts at the same time
    #[arg(long, value_name = "COUNT", default_value = "64")]
    pub(crate) max_jobs: NonZeroUsize,
    /// How long to wait for a lock, while the application's statements wait behind us
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..=60_000),
    )]
    pub(crate) lock_timeout_ms: u64,
    /// How long to keep trying a busy shard, before it counts as failed
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(0..=86_400),
    )]
    pub(crate) patience_s: u64,
}

impl MigratePace {
    pub(crate) fn pace(&self) -> Pace {
        Pace::default()
            .width(self.jobs)
            .max_concurrency(self.max_jobs)
            .lock_timeout(Duration::from_millis(self.lock_timeout_ms))
            .patience(Duration::from_secs(self.patience_s))
    }
}

/// `8` or `1%`.
fn canary(text: &str) -> Result<Canary, String> {
    let mistake = || "a number of shards, such as 8, or a part of them, such as 1%".to_owned();
    match text.strip_suffix('%') {
        Some(percent) => match percent.parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Canary::Percent(percent)),
            _ => Err(mistake()),
        },
        None => text.parse().map(Canary::Shards).map_err(|_| mistake()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canaries_are_shards_or_a_host() {
        assert_eq!(
            canary("8"),
            Ok(Canary::Shards(NonZeroUsize::new(8).unwrap()))
        );
        assert_eq!(canary("0.5%"), Ok(Canary::Percent(0.5)));
        for text in ["0", "", "%", "-1", "101%", "0%", "NaN%", "a"] {
            assert!(canary(text).is_err(), "{text}");
        }
    }
}
