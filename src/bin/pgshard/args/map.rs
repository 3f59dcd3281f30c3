//! `pgshard map`.

use std::path::PathBuf;

use clap::{Args as ArgGroup, Subcommand, ValueEnum};

use super::balance::{self, By};

#[derive(Debug, Subcommand)]
pub(crate) enum MapCommand {
    Show(MapShow),
    Diff(MapDiff),
    History(MapHistory),
    Rebuild(MapRebuild),
    Import(MapImport),
    Export(MapExport),
}

/// Show which host serves which shards by the map, as a list and drawn
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Each cell is a shard. With --by the hosts are asked, and the fuller a cell, the heavier its shard. \
--svg writes the same as a picture.

Examples:
  pgshard map show
  pgshard map show --by bytes
  pgshard map show --by writes --sample-s 60 --svg shards.svg
  pgshard map show --json | jq '.hosts | map_values(.count)'")]
pub(crate) struct MapShow {
    /// Ask the hosts, and show what each shard weighs: bytes, writes, or sql:SELECT with one number
    /// a shard
    #[arg(long, value_name = "WHAT", value_parser = balance::by)]
    pub(crate) by: Option<By>,
    /// With --by writes: how long to count the rows written
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=86_400),
    )]
    pub(crate) sample_s: u64,
    /// Write the picture into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// Compare the map with the hosts, with another config, or with an earlier version
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Without OTHER the hosts are asked which shards they serve; `pgshard map rebuild` publishes that. \
Earlier \
versions are there where the map is kept in PostgreSQL: the newest thousand.

Examples:
  pgshard map diff
  pgshard map diff /backup/pgshard.toml --json | jq '.changes | length'
  pgshard map diff --from 12 --to 15")]
pub(crate) struct MapDiff {
    /// Another config, whose map is taken as the newer [default: the hosts' rows]
    #[arg(value_name = "OTHER")]
    pub(crate) other: Option<PathBuf>,
    /// The version to begin with, from the history
    #[arg(long, value_name = "VERSION", conflicts_with = "other")]
    pub(crate) from: Option<u64>,
    /// The version to end with [default: the map as it is]
    #[arg(long, value_name = "VERSION", requires = "from")]
    pub(crate) to: Option<u64>,
}

/// Which versions the map had: when, by whom and why each was published, and what it changed
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Where the map is kept in PostgreSQL: the newest thousand are there. The config file keeps none; \
put it \
under version control.

Examples:
  pgshard map history
  pgshard map history -n 100 --json | jq '.versions[] | {version, reason}'")]
pub(crate) struct MapHistory {
    /// How many, the newest first
    #[arg(
        short = 'n',
        long,
        value_name = "COUNT",
        default_value_t = 20,
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    pub(crate) count: u16,
}

/// Bring the map of a config file into the database of this config
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The config in use names the database: [map] store = \"postgres\" and its url. Tables are made \
where there are \
none. Where a map is kept already, the newer placements of the file are taken into it, each by its \
epoch, \
after showing them and asking; nothing newer is taken back. Doing it again changes nothing.

Examples:
  pgshard --config new.toml map import pgshard.toml")]
pub(crate) struct MapImport {
    /// A config that keeps its map in the file
    #[arg(value_name = "FROM")]
    pub(crate) from: PathBuf,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// Print the map for a config file, a proxy or a program
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
It is the map of this moment: a proxy that uses it does not see later moves until it gets the map \
again. pgdog \
is databases and sharded_schemas of a pgdog.toml, by each shard's schema; env is lines for a \
shell; both name \
addresses, and no password. --json is --format json.

Examples:
  pgshard map export > map.toml
  pgshard map export --format pgdog >> pgdog.toml
  pgshard map export --format json | jq '.hosts.db1.shards'
  eval \"$(pgshard map export --format env)\" && echo \"$PGSHARD_SHARDS\"")]
pub(crate) struct MapExport {
    /// What it is for
    #[arg(long, value_name = "FORMAT", default_value = "toml")]
    pub(crate) format: MapFormat,
}

/// For whom the map is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MapFormat {
    // No help texts: the page says what each is.
    Toml,
    Pgdog,
    Json,
    Env,
}

/// Rebuild the map from the hosts' rows, and publish it
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The hosts are the truth, the map is a hint. Shows what changes and asks for confirmation. A host \
that \
does not respond keeps the shards that it has in the map. Nothing is published if another map was \
published in the meantime.

Examples:
  pgshard map rebuild
  pgshard map rebuild --yes --json")]
pub(crate) struct MapRebuild {
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}
