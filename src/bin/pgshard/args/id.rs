//! `pgshard locate`, `psql` and `id`.

use std::path::PathBuf;

use clap::{Args as ArgGroup, Subcommand, ValueEnum};
use jiff::Timestamp;
use pgshard::ShardId;
use pgshard::id::Epoch;
use pgshard::idgen::Scheme;
use pgshard::idgen::tickets::Layout;

use crate::values;

/// Where is a key or an ID: shard, schema, host, and for an ID its time and sequence
#[derive(Debug, ArgGroup)]
#[command(
    override_usage = "pgshard locate [OPTIONS] <--key <KEY>|--id <ID>|--keys <FILE>|--ids <FILE>>"
)]
#[command(
    group = clap::ArgGroup::new("sought")
        .required(true)
        .args(["key", "id", "keys", "ids", "word"])
)]
#[command(after_help = "\
No host is asked: the answer is the config's shard map, by the config's number of shards and kind \
of keys. --check asks the host. With --keys and --ids each line of the \
file, or of stdin, \
is answered as it comes: with --json by an object, else by itself, shard, schema and host, with \
tabs between them. A \
line that is wrong is named, and the exit code is 8, or 1 if no line was right.

Examples:
  pgshard locate --key 31341
  pgshard locate --key ann@x.org --check
  pgshard locate --id 11637205501278089 --json | jq -r .host
  pgshard locate --keys users.txt | cut -f 4 | sort | uniq -c
  psql -Atc 'SELECT id FROM users' | pgshard locate --keys - --json")]
pub(crate) struct Locate {
    /// A sharding key, normally a user ID, of the kind that [cluster] key names
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub(crate) key: Option<String>,
    /// An ID made by next_id(), signed or unsigned
    #[arg(long, value_name = "ID", allow_negative_numbers = true, value_parser = values::id)]
    pub(crate) id: Option<i64>,
    /// Many keys: a file with one on each line, or - for stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) keys: Option<PathBuf>,
    /// Many IDs, likewise
    #[arg(long, value_name = "FILE")]
    pub(crate) ids: Option<PathBuf>,
    /// Ask the host too: does it serve the shard, and has it recorded the same number of shards and
    /// kind of keys?
    #[arg(long, conflicts_with_all = ["keys", "ids"])]
    pub(crate) check: bool,
    /// What is given without saying whether it is a key or an ID, to answer with both commands
    #[arg(hide = true, allow_negative_numbers = true)]
    pub(crate) word: Option<String>,
}

/// Run psql on the host that serves a shard, with the shard's schema first in the search path
#[derive(Debug, ArgGroup)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["key", "id", "shard"]))]
#[command(after_help = "\
The hosts are asked which of them serves the shard. psql gets the config's role and TLS files by \
its environment, and \
the password by a file that only you can read and that is gone afterwards; nothing of it is in an \
argument. \
Transactions that you leave open there are in the way of moves. The exit code is psql's.

Examples:
  pgshard psql --key 31341
  pgshard psql --id 11637205501278089
  pgshard psql --shard 7 -- -c 'SELECT count(*) FROM photos'
  pgshard psql --shard 7 -- -X -v ON_ERROR_STOP=1 -f repair.sql")]
pub(crate) struct Psql {
    /// The shard of this sharding key
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub(crate) key: Option<String>,
    /// The shard of this ID, signed or unsigned
    #[arg(long, value_name = "ID", allow_negative_numbers = true, value_parser = values::id)]
    pub(crate) id: Option<i64>,
    /// This shard
    #[arg(long, value_name = "SHARD", value_parser = values::shard)]
    pub(crate) shard: Option<ShardId>,
    /// Arguments for psql
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) args: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum IdCommand {
    Decode(IdDecode),
    Encode(IdEncode),
    Range(IdRange),
}

/// What shard, time and sequence number an ID carries, or what an ID of another kind does
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
No database and no config are needed. The time of a shard's ID is known only with the epoch: from \
--epoch, else from the config if there is one; that of a snowflake without either counts from \
Twitter's epoch.

Examples:
  pgshard id decode 11637205501278089 --epoch 2011-01-01
  pgshard id decode -9203679173715945767 2217813737473025833 --json
  pgshard id decode --scheme snowflake 1541815603606036480
  pgshard id decode --scheme uuid7 017f22e2-79b0-7cc3-98c4-dc0c0c07398f")]
pub(crate) struct IdDecode {
    /// The IDs; numbers signed or unsigned
    #[arg(required = true, value_name = "ID", allow_negative_numbers = true)]
    pub(crate) ids: Vec<String>,
    /// What kind of IDs they are
    #[arg(long, value_name = "SCHEME", default_value = "shard")]
    pub(crate) scheme: IdScheme,
    /// With tickets: how many residues there are [default: 16]
    #[arg(long, value_name = "STRIDE", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) stride: Option<u32>,
    /// With tickets: how many in a row are one host's [default: 8192]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) run: Option<u32>,
    #[command(flatten)]
    pub(crate) epoch: EpochArg,
}

/// A kind of ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IdScheme {
    /// Made by a shard's next_id(): 41 bits of time, 13 of shard, 10 of sequence
    Shard,
    /// 41 bits of time, 10 of worker, 12 of sequence
    Snowflake,
    /// 64 bits of time, 48 of worker, 16 of sequence
    Flake,
    /// 41 bits of time, 22 random
    Simpleflake,
    /// UUID version 7
    Uuid7,
    /// From `pgshard tickets`
    Ticket,
}

impl IdDecode {
    /// The scheme with its stride.
    pub(crate) fn scheme(&self) -> Scheme {
        match self.scheme {
            IdScheme::Shard => Scheme::Shard,
            IdScheme::Snowflake => Scheme::Snowflake,
            IdScheme::Flake => Scheme::Flake,
            IdScheme::Simpleflake => Scheme::Simpleflake,
            IdScheme::Uuid7 => Scheme::Uuid7,
            IdScheme::Ticket => {
                let default = Layout::default();
                let (stride, run) = (
                    self.stride.unwrap_or(default.stride),
                    self.run.unwrap_or(default.run),
                );
                Scheme::Ticket(Layout { stride, run })
            }
        }
    }
}

/// The ID of a time, a shard and a sequence number
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Examples:
  pgshard id encode --ms 1387263000 --shard 1341 --seq 905
  pgshard id encode --time 2026-11-01T08:00:00Z --epoch 2011-01-01 --shard 7")]
pub(crate) struct IdEncode {
    /// The time, such as 2026-11-01T08:00:00Z; needs the epoch
    #[arg(long, value_name = "TIME", value_parser = values::time, required_unless_present = "ms")]
    pub(crate) time: Option<Timestamp>,
    /// Instead of the time: milliseconds since the epoch, below 2^41
    #[arg(long, value_name = "MS", conflicts_with_all = ["time", "epoch"])]
    pub(crate) ms: Option<u64>,
    /// The shard, 0 to 8191
    #[arg(long, value_name = "SHARD", value_parser = clap::value_parser!(u16).range(..=8191))]
    pub(crate) shard: u16,
    /// The value of the shard's sequence; modulo 1024 it is the ID's sequence number
    #[arg(long, value_name = "VALUE", default_value_t = 0)]
    pub(crate) seq: u64,
    #[command(flatten)]
    pub(crate) epoch: EpochArg,
}

/// The IDs of a span of time, for WHERE id BETWEEN min AND max
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The range holds the IDs of every shard. Times are RFC 3339, or days, which begin at midnight UTC.

Examples:
  pgshard id range --from 2026-11-01 --to 2026-11-08
  pgshard id range --from 2026-11-01T08:00:00Z --to 2026-11-01T09:00:00Z --json
  pgshard id range --from 2026-11-01 --to 2026-11-08 --epoch 2011-01-01")]
pub(crate) struct IdRange {
    /// The first instant of the span
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) from: Timestamp,
    /// The end of the span, not included
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub(crate) to: Timestamp,
    #[command(flatten)]
    pub(crate) epoch: EpochArg,
}

#[derive(Debug, ArgGroup)]
pub(crate) struct EpochArg {
    /// The zero of the IDs' clock, a time or Unix milliseconds [default: the config's, if there is
    /// one]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = values::epoch)]
    pub(crate) epoch: Option<Epoch>,
}
