//! The command line as clap sees it: definitions and help, no decisions. This file holds the
//! command as a whole.

mod balance;
mod cluster;
#[cfg(feature = "console")]
mod console;
mod dev;
mod host;
mod id;
mod import;
mod lookups;
mod map;
mod migrate;
mod moves;
mod pace;
mod recover;
#[cfg(test)]
mod remedies;
mod tickets;
mod top;

use std::path::PathBuf;

use clap::{Args as ArgGroup, Parser, Subcommand, ValueEnum};

use crate::exit::Exit;

pub(crate) use balance::{By, Doing, Drain, Measure, Rebalance};
pub(crate) use cluster::{Bench, Bootstrap, Check, Explain, Exporter, Init, Rights, Sql};
#[cfg(feature = "console")]
pub(crate) use console::Console;
pub(crate) use dev::{
    Completions, ConformanceCommand, ConformanceServe, Demo, DevCommand, JsonSchema, Man,
};
pub(crate) use host::{HostAdd, HostCommand};
pub(crate) use id::{IdCommand, IdDecode, IdEncode, Locate, Psql};
pub(crate) use import::{ImportAssess, ImportCommand, ImportKeys, ImportSeparate};
pub(crate) use lookups::LookupsCommand;
pub(crate) use map::{MapCommand, MapFormat, MapShow};
pub(crate) use migrate::{MigrateBackfill, MigrateCommand, MigrateTarget};
pub(crate) use moves::{Move, MoveMode, MovesCommand, MovesRepair, Wide};
pub(crate) use pace::Pace;
pub(crate) use recover::Recover;
pub(crate) use tickets::{
    TicketsCommand, TicketsCreate, WorkersCommand, WorkersHold, WorkersInstall, WorkersRelease,
    WorkersStatus,
};
pub(crate) use top::Top;

/// Shard PostgreSQL: thousands of logical shards on a few servers.
///
/// A shard is a PostgreSQL schema; the shard of a key is key mod N; an ID carries its shard.
/// pgshard.toml names the servers (hosts) and which shards each serves.
#[derive(Debug, Parser)]
#[command(
    name = "pgshard",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  pgshard init --hosts 2        write pgshard.toml; put your servers into it
  pgshard bootstrap             create the shards on them
  pgshard check                 compare every host with the config
  pgshard locate --key 31341    where is user 31341?
  pgshard moves                 which moves are open?
  pgshard explain host_emptied  explain a finding and its remedy",
    after_long_help = format!("\
Examples:
  pgshard init --hosts 2        write pgshard.toml; put your servers into it
  pgshard bootstrap             create the shards on them
  pgshard check                 compare every host with the config
  pgshard locate --key 31341    where is user 31341?
  pgshard moves                 which moves are open?
  pgshard explain host_emptied  explain a finding and its remedy

Environment:
  PGSHARD_CONFIG        the config, where --config is not given
  PGSHARD_LOG           what to log on stderr, such as info or pgshard=debug; else RUST_LOG
  NO_COLOR              no colour

{}", Exit::help())
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, ArgGroup)]
pub(crate) struct Global {
    /// The config file [default: $PGSHARD_CONFIG, else pgshard.toml in this folder]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Global options"
    )]
    pub(crate) config: Option<PathBuf>,
    /// Write data, and on stderr errors and notes, as JSON, one object a line, for scripts
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// When to use colour; auto heeds NO_COLOR
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        help_heading = "Global options"
    )]
    pub(crate) color: Color,
    /// Log more on stderr: -v info, -vv debug, -vvv trace
    #[arg(
        short,
        long,
        global = true,
        action = clap::ArgAction::Count,
        help_heading = "Global options",
    )]
    pub(crate) verbose: u8,
    /// No progress and no notes on stderr, only errors and warnings
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        help_heading = "Global options"
    )]
    pub(crate) quiet: bool,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Init(Init),
    Check(Check),
    Explain(Explain),
    Bootstrap(Bootstrap),
    Rights(Rights),
    /// Run the application's shard migrations, or see which shards have them
    Migrate {
        #[command(subcommand)]
        command: MigrateCommand,
    },
    Locate(Locate),
    Psql(Psql),
    /// Decode and encode IDs, find the IDs of a span of time
    Id {
        #[command(subcommand)]
        command: IdCommand,
    },
    /// Numbers for rows that have no shard yet, from sequences on several hosts
    Tickets {
        #[command(subcommand)]
        command: TicketsCommand,
    },
    /// Worker numbers of snowflake generators, leased from one host
    Workers {
        #[command(subcommand)]
        command: WorkersCommand,
    },
    /// Values that belong to one key over all shards, such as e-mail addresses
    Lookups {
        #[command(subcommand)]
        command: LookupsCommand,
    },
    /// Show the shard map, compare it, rebuild it from the hosts, import it into a database, export
    /// it
    Map {
        #[command(subcommand)]
        command: MapCommand,
    },
    /// Bring the tables of one database into shards
    Import {
        #[command(subcommand)]
        command: ImportCommand,
    },
    Sql(Sql),
    Bench(Bench),
    Move(Move),
    /// See what became of moves: list them, resume, abort, complete, clean up
    Moves {
        #[command(flatten)]
        wide: Wide,
        #[command(subcommand)]
        command: Option<MovesCommand>,
    },
    Recover(Recover),
    Rebalance(Rebalance),
    Drain(Drain),
    /// Add servers, remove them, see how they are
    Host {
        #[command(subcommand)]
        command: HostCommand,
    },
    Top(Top),
    Exporter(Exporter),
    #[cfg(feature = "console")]
    Console(Console),
    Demo(Demo),
    /// Throwaway local PostgreSQL servers and a config for them
    Dev {
        #[command(subcommand)]
        command: DevCommand,
    },
    /// Prove that a client in another language does what ours do
    Conformance {
        #[command(subcommand)]
        command: ConformanceCommand,
    },
    Completions(Completions),
    JsonSchema(JsonSchema),
    Man(Man),
}
