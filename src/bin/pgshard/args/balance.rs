//! `pgshard rebalance` and `pgshard drain`.

use std::time::Duration;

use clap::Args as ArgGroup;
use pgshard::rebalance::Options;

use super::{MoveMode, Pace};

/// Move shards so that each host has its share
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Shows every host before and after, and asks for confirmation. A host's share is its weight in the \
config relative to the others'; max_shards, max_bytes and [rebalance] there are never violated. \
Nothing is moved while the fullest host is within the threshold. Moves run in waves: one group of \
shards out of a host, \
and one in.

A second run finishes moves that were interrupted, then makes a new plan from what the hosts have. \
Ctrl-C ends the running wave in order, and prints the command that continues.

Examples:
  pgshard rebalance --plan
  pgshard rebalance --by bytes --max-moves 100
  pgshard rebalance --by writes --sample-s 60 --threshold 5%
  pgshard rebalance --by 'sql:SELECT count(*) FROM {shard}.photos' --plan")]
pub(crate) struct Rebalance {
    #[command(flatten)]
    pub(crate) measure: Measure,
    /// The most moves; the most useful ones come first
    #[arg(long, value_name = "COUNT")]
    pub(crate) max_moves: Option<usize>,
    /// How far over its share the fullest host may be before anything is moved
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = Percent(Options::THRESHOLD * 100.0),
        value_parser = percent,
    )]
    pub(crate) threshold: Percent,
    #[command(flatten)]
    pub(crate) doing: Doing,
}

/// Move all shards off a host
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
They go where they leave the other hosts most even; shards of other hosts stay. A shard that is \
pinned to the host in the config must be let go first. The old copies stay on the host until \
`pgshard moves complete`, or are dropped at once with --complete; then `pgshard host remove` takes \
it out of the config.

Examples:
  pgshard drain db1 --plan
  pgshard drain db1 --yes --complete && pgshard host remove db1 --yes")]
pub(crate) struct Drain {
    /// The host
    #[arg(value_name = "HOST")]
    pub(crate) host: String,
    #[command(flatten)]
    pub(crate) measure: Measure,
    #[command(flatten)]
    pub(crate) doing: Doing,
}

/// What is spread evenly.
#[derive(Debug, ArgGroup)]
pub(crate) struct Measure {
    /// What to spread: count, bytes, writes, or sql:SELECT with one number a shard
    #[arg(long, value_name = "WHAT", default_value = "bytes", value_parser = by)]
    pub(crate) by: By,
    /// With --by writes: how long to count the rows written
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=86_400),
    )]
    pub(crate) sample_s: u64,
}

impl Measure {
    /// How long to count.
    pub(crate) fn sample(&self) -> Duration {
        Duration::from_secs(self.sample_s)
    }
}

/// How a plan is run.
#[derive(Debug, ArgGroup)]
pub(crate) struct Doing {
    /// Print every move with its reason, and stop
    #[arg(long)]
    pub(crate) plan: bool,
    /// Drop each wave's old copies once its shards are served by their targets; cannot be undone
    #[arg(long)]
    pub(crate) complete: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// How the rows get across [default: online if the host that a wave leaves can decode its
    /// WAL (wal_level), else blocking]
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<MoveMode>,
    /// The most groups that leave one host at the same time, and the most that come to one
    #[arg(long, value_name = "COUNT", default_value = "1")]
    pub(crate) groups_per_host: std::num::NonZeroUsize,
    /// The most shards that go from one host to another in one wave
    #[arg(long, value_name = "COUNT", default_value = "16")]
    pub(crate) group_size: std::num::NonZeroUsize,
    #[command(flatten)]
    pub(crate) pace: Pace,
}

/// What a shard weighs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// 1 each.
    Count,
    /// Its size.
    Bytes,
    /// Rows written in a while.
    Writes,
    /// What this query says.
    Sql(String),
}

impl By {
    /// The name in tables and JSON.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            By::Count => "count",
            By::Bytes => "bytes",
            By::Writes => "writes",
            By::Sql(_) => "sql",
        }
    }
}

/// `count`, `bytes`, `writes`, `sql:…`.
pub(crate) fn by(text: &str) -> Result<By, String> {
    match (text, text.strip_prefix("sql:")) {
        ("count", _) => Ok(By::Count),
        ("bytes", _) => Ok(By::Bytes),
        ("writes", _) => Ok(By::Writes),
        (_, Some(sql)) if sql.contains("{shard}") => {
            Ok(By::Sql(sql.trim().trim_end_matches(';').to_owned()))
        }
        (_, Some(_)) => Err(
            "the query must name {shard}, as in sql:SELECT count(*) FROM {shard}.photos".to_owned(),
        ),
        _ => Err("none of count, bytes, writes, sql:SELECT …".to_owned()),
    }
}

/// Percent, as given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Percent(pub(crate) f64);

impl std::fmt::Display for Percent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// `5%` or `5`.
fn percent(text: &str) -> Result<Percent, String> {
    let number = text
        .trim_end_matches('%')
        .trim_end()
        .parse()
        .ok()
        .filter(|number| (0.0..=1000.0).contains(number));
    number
        .map(Percent)
        .ok_or_else(|| "not a percentage such as 5%".to_owned())
}
