//! The command line as clap sees it: definitions and help, no decisions.

mod balance;
mod host;

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ArgGroup, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use jiff::Timestamp;
use pgshard::ShardCount;
use pgshard::id::Epoch;
use pgshard::idgen::Scheme;
use pgshard::idgen::tickets::{Layout, TicketName};
use pgshard::mover::{Failpoint, FenceAt, Leases, Mode, Options};
use pgshard::schema::bootstrap::Request;

mod migrate;

pub(crate) use migrate::{MigrateCommand, MigrateTarget};

use crate::exit::Exit;
use crate::values;

pub(crate) use balance::{By, Doing, Drain, Measure, Rebalance};
pub(crate) use host::{HostAdd, HostCommand};

/// Shard PostgreSQL: thousands of logical shards on a few servers.
///
/// A shard is a PostgreSQL schema; the shard of a key is key mod N; an ID carries its shard. pgshard.toml names the
/// servers (hosts) and which shards each serves.
#[derive(Debug, Parser)]
#[command(
    name = "pgshard",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  pgshard init --hosts 2             write pgshard.toml, then put your servers into it
  pgshard bootstrap                  create the shards on them
  pgshard check                      is everything as the config says?
  pgshard locate --key 31341         where is user 31341?",
    after_long_help = format!("\
Examples:
  pgshard init --hosts 2             write pgshard.toml, then put your servers into it
  pgshard bootstrap                  create the shards on them
  pgshard check                      is everything as the config says?
  pgshard locate --key 31341         where is user 31341?

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
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) config: Option<PathBuf>,
    /// Write data as JSON, one object a line, for scripts
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// When to use colour; auto heeds NO_COLOR
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Global options")]
    pub(crate) color: Color,
    /// Log more on stderr: -v info, -vv debug, -vvv trace
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Global options")]
    pub(crate) verbose: u8,
    /// No progress and no notes on stderr, only errors and warnings
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Global options")]
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
    Bootstrap(Bootstrap),
    /// Run the application's shard migrations, or see which shards have them
    Migrate {
        #[command(subcommand)]
        command: MigrateCommand,
    },
    Locate(Locate),
    /// Take IDs apart, put them together, find those of a span of time
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
    /// Show the shard map, compare it, make it anew from the hosts, take it to a database and back
    Map {
        #[command(subcommand)]
        command: MapCommand,
    },
    Sql(Sql),
    Move(Move),
    /// What became of moves: list them, resume, abort, complete, clean up
    Moves {
        #[command(subcommand)]
        command: Option<MovesCommand>,
    },
    Rebalance(Rebalance),
    Drain(Drain),
    /// Add servers, remove them, see how they are
    Host {
        #[command(subcommand)]
        command: HostCommand,
    },
    Demo(Demo),
    /// Throwaway local PostgreSQL servers and a config for them
    Dev {
        #[command(subcommand)]
        command: DevCommand,
    },
    Completions(Completions),
    Man(Man),
}

/// Write a commented pgshard.toml to begin with
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Examples:
  pgshard init                       two hosts, 4096 shards
  pgshard init --hosts 3 --shards 2048
  pgshard --config etc/app.toml init")]
pub(crate) struct Init {
    /// How many hosts to write down; the shards are spread evenly over them
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) hosts: u16,
    /// N, the number of shards, 1 to 8192. It cannot be changed once bootstrapped: take far more than hosts
    #[arg(long, value_name = "N", default_value = "4096", value_parser = values::shard_count)]
    pub(crate) shards: ShardCount,
    /// Overwrite a file that is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// Are config, map and hosts as they should be, and do they agree?
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Reads only. All hosts are asked at the same time, each has its connect_timeout to answer (5 s where its
url says nothing). Every finding has a remedy. The exit code is 1 if anything is off; notices are not.

Examples:
  pgshard check
  pgshard check --ddl
  pgshard check --json | jq -r '.findings[] | [.severity, .host, .shard, .message] | @tsv'")]
pub(crate) struct Check {
    /// Compare what the shards are made of with each other, too: tables, columns, indexes, functions and all
    #[arg(long)]
    pub(crate) ddl: bool,
}

/// Create what the hosts lack: control schema, shards, ID functions, migrations
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Doing it again does only what is left. All hosts are read, whichever are written to, so that no
shard is ever made a second time. A shard that fails is named and the others go on; the exit code
is then 8.

Examples:
  pgshard bootstrap
  pgshard bootstrap --host db3 --jobs 8
  pgshard bootstrap --json | tail -n 1 | jq '.hosts | map_values(.failed)'")]
pub(crate) struct Bootstrap {
    /// Write to this host only; can be repeated [default: all hosts]
    #[arg(long = "host", value_name = "HOST")]
    pub(crate) hosts: Vec<String>,
    /// Connections to each host
    #[arg(long, value_name = "COUNT", default_value_t = Request::WIDTH)]
    pub(crate) jobs: NonZeroUsize,
    /// This host certainly holds no shard: create shards even if it cannot be read; can be repeated
    #[arg(long, value_name = "HOST")]
    pub(crate) assume_empty: Vec<String>,
}

/// Where is a key or an ID: shard, schema, host, and for an ID its time and sequence
#[derive(Debug, ArgGroup)]
#[group(required = true, multiple = false)]
#[command(after_help = "\
No database is asked: the answer is the config's shard map.

Examples:
  pgshard locate --key 31341
  pgshard locate --key ann@x.org
  pgshard locate --id 11637205501278089 --json | jq -r .host")]
pub(crate) struct Locate {
    /// A sharding key, normally a user ID, of the kind that [cluster] key names
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub(crate) key: Option<String>,
    /// An ID made by next_id(), signed or unsigned
    #[arg(long, value_name = "ID", allow_negative_numbers = true, value_parser = values::id)]
    pub(crate) id: Option<i64>,
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
No database and no config are needed. The time of a shard's ID is known only with the epoch: from
--epoch, else from the config if there is one. A snowflake's epoch is --epoch, else Twitter's.

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
    /// Of tickets: how many residues there are [default: 16]
    #[arg(long, value_name = "STRIDE", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) stride: Option<u32>,
    /// Of tickets: how many in a row are one host's [default: 8192]
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
                let (stride, run) = (self.stride.unwrap_or(default.stride), self.run.unwrap_or(default.run));
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
  pgshard id range --from 2026-11-01T08:00:00Z --to 2026-11-01T09:00:00Z --epoch 2011-01-01 --json")]
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
    /// The zero of the IDs' clock, a time or Unix milliseconds [default: the config's, if there is one]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = values::epoch)]
    pub(crate) epoch: Option<Epoch>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TicketsCommand {
    Create(TicketsCreate),
    Status(TicketsStatus),
    Next(TicketsNext),
}

/// Make hosts give tickets of a name, each with a residue of its own
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Hosts take turns in the numbers, a run each: those of a host are ticket / run modulo stride = its residue,
so that hosts need not know of each other when they give one. Runs are as long as the largest N, so that
key mod N reaches every shard; --stride 2 --run 1 is odd and even. All hosts of the config record whose each residue is, so all must answer.
Doing it again changes nothing. To add a host, name it; it begins where the others are.

A host that is lost for ever is taken out of the config. Its residue stays taken, unless another
takes it over: --replace, with a --start above every ticket that the lost one may have given.
A host restored from a backup needs a --start, too, before it serves.

Examples:
  pgshard tickets create users
  pgshard tickets create users --hosts db3
  pgshard tickets create users --hosts db4 --replace db2 --start 5000000")]
pub(crate) struct TicketsCreate {
    /// What the tickets are called, such as users
    #[arg(value_name = "NAME")]
    pub(crate) name: TicketName,
    /// The hosts that give them [default: all hosts]
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    pub(crate) hosts: Vec<String>,
    /// How many hosts there can ever be [default: 16]
    #[arg(long, value_name = "STRIDE", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) stride: Option<u32>,
    /// How many tickets in a row are one host's, N or more [default: 8192]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) run: Option<u32>,
    /// No ticket below; hosts that are past it stay where they are
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) start: Option<i64>,
    /// The host whose residue is taken over, lost for ever
    #[arg(long, value_name = "HOST", requires = "start")]
    pub(crate) replace: Option<String>,
}

/// Which host gives which tickets, and the last of each
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Reads only. The exit code is 1 when a host does not answer.

Examples:
  pgshard tickets status
  pgshard tickets status --json | jq '.hosts.db1.names.users.last'")]
pub(crate) struct TicketsStatus {}

/// Take tickets
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A ticket that was taken is never given again, used or not. Hosts that are down are passed over.

Examples:
  pgshard tickets next users
  pgshard tickets next users -n 1000 --json | jq -r '.tickets[]'")]
pub(crate) struct TicketsNext {
    /// What the tickets are called
    #[arg(value_name = "NAME")]
    pub(crate) name: TicketName,
    /// How many
    #[arg(short = 'n', long, value_name = "COUNT", default_value = "1")]
    pub(crate) count: NonZeroUsize,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkersCommand {
    Install(WorkersInstall),
    Status(WorkersStatus),
}

/// Make the table of leases on a host, once
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
All generators whose IDs must differ lease from the same host; the schema is pgshard_workers, and the
role needs CREATE on the database. Doing it again changes nothing.

Examples:
  pgshard workers install --host db1")]
pub(crate) struct WorkersInstall {
    /// The host that keeps the leases
    #[arg(long, value_name = "HOST")]
    pub(crate) host: String,
}

/// Which worker numbers are held, and for how long
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Reads only. A number is kept for its holder until its lease ends; whoever gets it next makes IDs of
later milliseconds than its ceiling.

Examples:
  pgshard workers status --host db1
  pgshard workers status --host db1 --json | jq '.spaces | map_values(map(select(.held)) | length)'")]
pub(crate) struct WorkersStatus {
    /// The host that keeps the leases
    #[arg(long, value_name = "HOST")]
    pub(crate) host: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MapCommand {
    Show(MapShow),
    Diff(MapDiff),
    History(MapHistory),
    Rebuild(MapRebuild),
    Import(MapImport),
    Export(MapExport),
}

/// Which host serves which shards, as the map says, as a list and drawn
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Each cell is a shard. With --by the hosts are asked, and the fuller a cell, the heavier its shard.
--svg writes the same as a picture.

Examples:
  pgshard map show
  pgshard map show --by bytes
  pgshard map show --by writes --sample-s 60 --svg shards.svg
  pgshard map show --json | jq '.hosts | map_values(.count)'")]
pub(crate) struct MapShow {
    /// Ask the hosts, and show what each shard weighs: bytes, writes, or sql:SELECT with one number a shard
    #[arg(long, value_name = "WHAT", value_parser = balance::by)]
    pub(crate) by: Option<By>,
    /// With --by writes: how long to count the rows written
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) sample_s: u64,
    /// Write the picture into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// What is different between the map and what the hosts say, another config, or an earlier version
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Without OTHER the hosts are asked which shards they serve; `pgshard map rebuild` publishes that. Earlier
versions are there where the map is kept in PostgreSQL: the newest thousand.

Examples:
  pgshard map diff
  pgshard map diff /backup/pgshard.toml --json | jq '.changes | length'
  pgshard map diff --from 12 --to 15")]
pub(crate) struct MapDiff {
    /// Another config, whose map is taken as the newer [default: what the hosts say]
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
Where the map is kept in PostgreSQL: the newest thousand are there. The config file keeps none; put it
under version control.

Examples:
  pgshard map history
  pgshard map history -n 100 --json | jq -r '.versions[] | [.version, .published_at, .reason] | @tsv'")]
pub(crate) struct MapHistory {
    /// How many, the newest first
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) count: u16,
}

/// Bring the map of a config file into the database of this config
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The config in use names the database: [map] store = \"postgres\" and its url. Tables are made where there are
none. Where a map is kept already, the newer placements of the file are taken into it, each by its epoch,
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

/// Print the map as the [map] section of a config file
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Examples:
  pgshard map export > map.toml")]
pub(crate) struct MapExport {}

/// Make the map anew from what the hosts say, and publish it
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The hosts are the truth, the map is a hint. Shows what changes and asks. A host that does not answer
keeps the shards that it has in the map. Nothing is published when somebody else published meanwhile.

Examples:
  pgshard map rebuild
  pgshard map rebuild --yes --json")]
pub(crate) struct MapRebuild {
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// Run a query on all shards, or on some
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
{shard} stands for the shard's schema. The query runs in a READ ONLY transaction on each shard,
eight shards of a host at a time. With --json each shard is one line, written as soon as it is
there; every bigint in it is a string, since it may be an ID. Shards that fail are named, and the
exit code is 8, or 1 if none answered.

Examples:
  pgshard sql 'SELECT count(*) FROM {shard}.users'
  pgshard sql 'SELECT id, title FROM {shard}.photos ORDER BY id DESC LIMIT 3' --shards 0-15,300
  pgshard sql 'SELECT max(id) FROM {shard}.users' --json | jq -r '[.shard, .rows[0].max] | @tsv'")]
pub(crate) struct Sql {
    /// SELECT, WITH, VALUES or TABLE
    pub(crate) query: String,
    /// The shards, such as 17 or 0-255,300 [default: all]
    #[arg(long, value_name = "SHARDS")]
    pub(crate) shards: Option<String>,
}

/// Move shards to another host, while the application works
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Where the source has wal_level = logical, a shard stays open while it is copied, and is closed for some
milliseconds at the end; elsewhere, and with --mode blocking, it is closed while it is copied. Its callers
wait, and go on at the target. Before the source has decided, whatever goes wrong leaves the shard where
it was; afterwards it is at the target. Any machine with the config can go on with a move that was
interrupted: `pgshard moves resume`.

Examples:
  pgshard move 17 --to db2 --plan
  pgshard move 0-255,300 --to db3 --yes
  pgshard move 0-255 --to db3 --yes --max-rate 20MB --at 03:30
  pgshard move 17 --to db2 --yes --json | tail -n 1 | jq .pause_ms")]
pub(crate) struct Move {
    /// The shards, like 17 or 0-255,300, from whatever hosts
    pub(crate) shards: String,
    /// The host to move them to
    #[arg(long, value_name = "HOST")]
    pub(crate) to: String,
    /// Print exactly what would run, and stop
    #[arg(long)]
    pub(crate) plan: bool,
    /// How the rows get across [default: online if all sources have wal_level = logical, else blocking]
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<MoveMode>,
    /// Do all but the fence, then wait for `pgshard moves continue`; the source serves, the target follows
    #[arg(long, conflicts_with = "at")]
    pub(crate) hold: bool,
    /// Do all but the fence, then wait until then: 22:30 (local time, the next one), or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    pub(crate) at: Option<Timestamp>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) pace: Pace,
}

impl Move {
    /// When the shards are fenced.
    pub(crate) fn fence_at(&self) -> FenceAt {
        match (self.hold, self.at) {
            (true, _) => FenceAt::Told,
            (false, Some(at)) => FenceAt::Time(at),
            (false, None) => FenceAt::Ready,
        }
    }
}

/// How the rows of a move get across.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MoveMode {
    /// The shard is copied while it is open, and closed for the last changes
    Online,
    /// The shard is closed while it is copied
    Blocking,
}

impl From<MoveMode> for Mode {
    fn from(mode: MoveMode) -> Mode {
        match mode {
            MoveMode::Online => Mode::Online,
            MoveMode::Blocking => Mode::Blocking,
        }
    }
}

/// How hard a mover works.
#[derive(Debug, ArgGroup)]
pub(crate) struct Pace {
    /// Shards moved at the same time
    #[arg(long, value_name = "COUNT", default_value = "2")]
    pub(crate) jobs: NonZeroUsize,
    /// How long a fence may wait for transactions that hold locks on the shard; all its callers wait with it
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) fence_budget_ms: u64,
    /// How often to try the fence before giving up
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) fence_attempts: u32,
    /// How long a shard may be closed while it is copied; then the source serves again
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) max_pause_s: u64,
    /// Online: the most that is copied in a second, of all shards together, such as 20MB [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = values::rate)]
    pub(crate) max_rate: Option<NonZeroU64>,
    /// Online: fence no shard while the target is further behind
    #[arg(long, value_name = "MS", default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) max_lag_ms: u64,
    /// Online: the most WAL that a source may have to keep for the move; past it the move is aborted
    #[arg(long, value_name = "BYTES", default_value = "10GiB", value_parser = values::bytes)]
    pub(crate) max_wal: u64,
    /// For pgshard's own tests
    #[arg(long, hide = true, env = "PGSHARD_FAILPOINT", value_parser = Failpoint::parse)]
    pub(crate) failpoint: Option<Failpoint>,
    /// For pgshard's own tests: how long lease and fence outlive the mover
    #[arg(long, hide = true, env = "PGSHARD_LEASE_MS", value_name = "MS", default_value_t = 10_000)]
    pub(crate) lease_ms: u64,
}

impl Pace {
    /// The mover's options.
    pub(crate) fn options(self) -> Options {
        Options {
            jobs: self.jobs.get(),
            barrier_budget: Duration::from_millis(self.fence_budget_ms),
            fence_attempts: self.fence_attempts,
            pause_max: Duration::from_secs(self.max_pause_s),
            rate_max: self.max_rate,
            lag_max: Duration::from_millis(self.max_lag_ms),
            wal_max: self.max_wal,
            failpoint: self.failpoint,
            leases: Leases::of(Duration::from_millis(self.lease_ms)),
            ..Options::default()
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum MovesCommand {
    List(MovesList),
    Show(MovesShow),
    Watch(MovesWatch),
    Pause(MovesPause),
    Continue(MovesContinue),
    Resume(MovesGoOn),
    Abort(MovesAbort),
    Complete(MovesComplete),
    Gc(MovesGc),
}

/// Every move that is open, or whose old copies are kept
#[derive(Debug, ArgGroup)]
pub(crate) struct MovesList {}

/// One move, shard by shard
#[derive(Debug, ArgGroup)]
pub(crate) struct MovesShow {
    /// The move [default: the only one there is]
    pub(crate) id: Option<String>,
}

/// How far a move is, until it has ended: phases, rows, WAL that its source keeps, who is in the way
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
From any machine; it only reads. A table on a terminal, else a line for each change; with --json an object a
line. Ends with the move: exit code 0 if all of its shards are at the target, 1 if it was aborted, 8 if some
were, 7 if nobody works on it any more.")]
pub(crate) struct MovesWatch {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
}

/// Have a move stand still: nothing more is copied, nothing is fenced
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
From any machine. Its mover hears it within two seconds, and finishes the pieces that are under way. The source
keeps the log of what is changed, or the target applies it: watch how much with `pgshard moves watch`.")]
pub(crate) struct MovesPause {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
}

/// Let a move go on that was paused, or is held before its fences
#[derive(Debug, ArgGroup)]
pub(crate) struct MovesContinue {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
}

/// Go on with a move that was interrupted, from any machine
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A mover that died is replaced at once; one that is paused, or out of reach, once its lease has ended, which
takes ten seconds. A mover that still works on the shard is left alone.")]
pub(crate) struct MovesGoOn {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) pace: Pace,
}

/// Undo a move: what is not decided stays where it was
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A shard that was decided cannot be aborted, only resumed: its target may serve it already.")]
pub(crate) struct MovesAbort {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) pace: Pace,
}

/// Drop the old copies that a move has kept; cannot be undone
#[derive(Debug, ArgGroup)]
pub(crate) struct MovesComplete {
    /// The move [default: the only one whose old copies are kept]
    pub(crate) id: Option<String>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// Put right what dead moves left: fences past their deadline, shards decided but not opened, schemas of moves that ended
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A move that can be resumed is never touched, nor an old copy that is kept.")]
pub(crate) struct MovesGc {}

/// The whole story on throwaway servers, in under a minute: bootstrap, writers, moves, a kill, an audit
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Needs PostgreSQL's programs (see `pgshard dev up --help`), and no config. Exit code 1 if a single row is
lost, doubled or misplaced, or a writer has seen a single error.")]
pub(crate) struct Demo {
    /// How many servers
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=16))]
    pub(crate) hosts: u16,
    /// N, the number of shards
    #[arg(long, value_name = "N", default_value = "256", value_parser = values::shard_count)]
    pub(crate) shards: ShardCount,
    /// How many shards are moved under the writers
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) moves: u16,
    /// How many writers work without pause
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) writers: u16,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DevCommand {
    Up(DevUp),
    Down(DevDown),
    Status(DevStatus),
}

/// Start local PostgreSQL servers, and write a config for them
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The servers run until `pgshard dev down`. Doing it again changes nothing: servers that run go on,
the config and the migrations that are there stay. PGSHARD_PG_BIN names the folder of PostgreSQL's
programs where they are not found. For development only: nobody needs a password.

Examples:
  pgshard dev up --hosts 3 --shards 256
  pgshard --config pgshard-dev/pgshard.toml bootstrap
  psql \"$(pgshard dev up --json | jq -r .hosts.db1.url)\"")]
pub(crate) struct DevUp {
    /// How many servers
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) hosts: u16,
    /// N, the number of shards, 1 to 8192, for a config that is not there yet
    #[arg(long, value_name = "N", default_value = "256", value_parser = values::shard_count)]
    pub(crate) shards: ShardCount,
    #[command(flatten)]
    pub(crate) folder: DevFolder,
}

/// Stop the local servers and remove them with their data
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Only servers that `pgshard dev up` made are touched. The config and the migrations stay.

Examples:
  pgshard dev down
  pgshard dev down --dir /var/tmp/trial --yes")]
pub(crate) struct DevDown {
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) folder: DevFolder,
}

/// Which local servers there are, and whether they run
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Examples:
  pgshard dev status
  pgshard dev status --json | jq '.hosts | map_values(.running)'")]
pub(crate) struct DevStatus {
    #[command(flatten)]
    pub(crate) folder: DevFolder,
}

#[derive(Debug, ArgGroup)]
pub(crate) struct DevFolder {
    /// Where the servers, the config and the migrations are
    #[arg(long, value_name = "DIR", default_value = "pgshard-dev")]
    pub(crate) dir: PathBuf,
}

/// Print a script that completes pgshard's commands and flags in a shell
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Examples:
  pgshard completions bash > /etc/bash_completion.d/pgshard
  pgshard completions zsh > \"${fpath[1]}/_pgshard\"
  pgshard completions fish > ~/.config/fish/completions/pgshard.fish")]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}

/// Print the manual page, or write those of all commands
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Examples:
  pgshard man | man -l -
  pgshard man --out /usr/local/share/man/man1")]
pub(crate) struct Man {
    /// Write the pages of all commands into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
