//! `pgshard top`.

use clap::Args as ArgGroup;

/// The busiest and largest shards, the slowest statements, and sessions that block others
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Reads every host twice and shows what happened in between. Statements come from the extension \
pg_stat_statements, without literals and summed over all shards, with {shard} in the place of the \
schema; hosts without the extension are named. Counters of rows reach PostgreSQL's statistics up \
to \
a second late. The monitoring role of `pgshard rights --for monitor` is enough.

Examples:
  pgshard top
  pgshard top --interval-s 60 --limit 20
  pgshard top --json | jq '.statements[0]'")]
pub(crate) struct Top {
    /// For how long to count
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..=3600),
    )]
    pub(crate) interval_s: u64,
    /// How many rows each list has at most
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 10,
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    pub(crate) limit: u16,
}
