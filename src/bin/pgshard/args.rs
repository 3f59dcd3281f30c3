//! The command line as clap sees it: definitions and help, no decisions. Most verbs have a file of their own; this one
//! holds the command as a whole, `move` and `moves`.

mod balance;
mod cluster;
mod dev;
mod host;
mod id;
mod map;
mod migrate;
mod recover;
mod tickets;

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ArgGroup, Parser, Subcommand, ValueEnum};
use jiff::Timestamp;
use pgshard::mover::{Back, Failpoint, FenceAt, IdentityPolicy, Leases, Mode, Options, Unaudited, UnloggedRows};

use crate::exit::Exit;
use crate::values;

pub(crate) use balance::{By, Doing, Drain, Measure, Rebalance};
pub(crate) use cluster::{Bench, Bootstrap, Check, Init, Sql};
pub(crate) use dev::{Completions, ConformanceCommand, ConformanceServe, Demo, DevCommand, Man};
pub(crate) use host::{HostAdd, HostCommand};
pub(crate) use id::{IdCommand, IdDecode, IdEncode, Locate};
pub(crate) use map::{MapCommand, MapShow};
pub(crate) use migrate::{MigrateBackfill, MigrateCommand, MigrateTarget};
pub(crate) use recover::Recover;
pub(crate) use tickets::{
    TicketsCommand, TicketsCreate, WorkersCommand, WorkersHold, WorkersInstall, WorkersRelease, WorkersStatus,
};

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
    /// Show the shard map, compare it, rebuild it from the hosts, import it into a database, export it
    Map {
        #[command(subcommand)]
        command: MapCommand,
    },
    Sql(Sql),
    Bench(Bench),
    Move(Move),
    /// See what became of moves: list them, resume, abort, complete, clean up
    Moves {
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
    Man(Man),
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
    /// Do all but the fence, then wait until this time: 22:30 (local, the next one), or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    pub(crate) at: Option<Timestamp>,
    /// Online: keep the old copies as they are at the switch; no slot on the target, and no `moves rollback`
    #[arg(long, alias = "no-way-back")]
    pub(crate) no_reverse_replication: bool,
    /// Online: alter no table; refuse a table without a key, instead of lending it a replica identity until the end
    #[arg(long)]
    pub(crate) no_replica_identity: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) pace: Pace,
}

impl Move {
    /// Whether the shards can be taken back.
    pub(crate) fn back(&self) -> Back {
        if self.no_reverse_replication { Back::Forgone } else { Back::Prepared }
    }

    /// What is done about tables without a key, whose changed rows no stream can identify.
    pub(crate) fn replica_identity(&self) -> IdentityPolicy {
        if self.no_replica_identity { IdentityPolicy::Keep } else { IdentityPolicy::Lend }
    }

    /// When the shards are fenced.
    pub(crate) fn fence_at(&self) -> FenceAt {
        match (self.hold, self.at) {
            (true, _) => FenceAt::Go,
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

/// What unlogged tables have at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unlogged {
    // No help texts: clap would list them on every page that has the option.
    Rows,
    Empty,
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
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 300,
        value_parser = clap::value_parser!(u64).range(1..=86_400),
    )]
    pub(crate) max_pause_s: u64,
    /// Online: the most to copy in a second, all shards together, such as 20MB [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = values::rate)]
    pub(crate) max_rate: Option<NonZeroU64>,
    /// Online: fence no shard while the target is further behind
    #[arg(long, value_name = "MS", default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) max_lag_ms: u64,
    /// Online: the most WAL that a source may have to keep for the move; past it the move is aborted
    #[arg(long, value_name = "BYTES", default_value = "10GiB", value_parser = values::bytes)]
    pub(crate) max_wal: u64,
    /// Online: how long the audit at a move's end may hold back VACUUM on both hosts; what it has not compared by then
    /// is named. 0: no audit
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(0..=86_400),
    )]
    pub(crate) audit_max_s: u64,
    /// What unlogged tables have at the target: their rows, copied while the shard is closed, or nothing, as after a
    /// crash
    #[arg(long, value_name = "WHAT", default_value = "rows")]
    pub(crate) unlogged: Unlogged,
    /// For pgshard's own tests
    #[arg(long, hide = true, env = "PGSHARD_FAILPOINT", value_parser = Failpoint::parse)]
    pub(crate) failpoint: Option<Failpoint>,
    /// For pgshard's own tests: how long lease and fence outlive the mover
    #[arg(long, hide = true, env = "PGSHARD_LEASE_MS", value_name = "MS", default_value_t = 10_000)]
    pub(crate) lease_ms: u64,
    /// For pgshard's own tests: how much of a table is copied in one snapshot
    #[arg(long, hide = true, env = "PGSHARD_CHUNK_BYTES", value_name = "BYTES", default_value_t = 32 << 20)]
    pub(crate) chunk_bytes: u64,
    /// For pgshard's own tests: how long an open waits for the snapshot of its audit
    #[arg(long, hide = true, env = "PGSHARD_SNAPSHOT_MS", value_name = "MS", default_value_t = 50)]
    pub(crate) snapshot_ms: u64,
}

impl Pace {
    /// The mover's options.
    pub(crate) fn options(self) -> Options {
        Options::default()
            .jobs(self.jobs.get())
            .barrier_budget(Duration::from_millis(self.fence_budget_ms))
            .fence_attempts(self.fence_attempts)
            .pause_max(Duration::from_secs(self.max_pause_s))
            .rate_max(self.max_rate)
            .lag_max(Duration::from_millis(self.max_lag_ms))
            .wal_max(self.max_wal)
            .audit_max(Duration::from_secs(self.audit_max_s))
            .chunk_bytes(self.chunk_bytes)
            .snapshot_max(Duration::from_millis(self.snapshot_ms))
            .unlogged(match self.unlogged {
                Unlogged::Rows => UnloggedRows::Carried,
                Unlogged::Empty => UnloggedRows::Left,
            })
            .failpoint(self.failpoint)
            .leases(Leases::of(Duration::from_millis(self.lease_ms)))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum MovesCommand {
    List(MovesList),
    Show(MovesShow),
    Watch(MovesWatch),
    Pause(MovesPause),
    Continue(MovesContinue),
    Stop(MovesStop),
    Resume(MovesGoOn),
    Abort(MovesAbort),
    Rollback(MovesRollback),
    Audit(MovesAudit),
    Feed(MovesFeed),
    Complete(MovesComplete),
    Repair(MovesRepair),
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
line. Ends with the move: exit code 0 if all of its shards are at the target, 1 if all were aborted,
8 if only some were, 7 if nobody works on it any more.")]
pub(crate) struct MovesWatch {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
}

/// Pause a move: nothing more is copied, nothing is fenced
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
From any machine. Its mover hears of it within two seconds, and finishes the chunks that are under
way. Meanwhile the source keeps the WAL of new changes, or the target applies them. How much
is shown by `pgshard moves watch`.")]
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

/// Ask whoever works on a move to stop, from any machine
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Like Ctrl-C on the mover's own machine: fences are taken back, decided shards are opened, every shard can be used, and \
the move can be resumed. Waits until nobody works on the move any more. Exit code 4: somebody still does after \
--wait-s.

Examples:
  pgshard moves stop
  pgshard moves stop 019e2c0a-4f6e-7d31-9d1c-5a3b8c0f7e21 --wait-s 300")]
pub(crate) struct MovesStop {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) patience: Patience,
}

/// How long to wait for a mover that was asked to do something.
#[derive(Clone, Copy, Debug, ArgGroup)]
pub(crate) struct Patience {
    /// How long to wait until the mover has done what it was asked, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait_s: u32,
}

impl Patience {
    pub(crate) fn duration(self) -> Duration {
        Duration::from_secs(self.wait_s.into())
    }
}

/// Go on with a move that was interrupted, from any machine
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A mover that died is replaced at once; one that is paused, or out of reach, once its lease has ended, which
takes ten seconds. A mover that works on the move is left alone: exit code 4, and who it is. `pgshard moves stop`
asks it to stop.")]
pub(crate) struct MovesGoOn {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) pace: Pace,
}

/// Undo a move: what is not decided stays where it was
#[derive(Debug, ArgGroup)]
#[command(
    after_help = "A mover that works on the move, on whatever machine, is asked to abort it, and waited for. A shard \
                  that was decided cannot be aborted, only resumed: its target may serve it already."
)]
pub(crate) struct MovesAbort {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) patience: Patience,
    #[command(flatten)]
    pub(crate) pace: Pace,
}

/// Take shards that a move has kept back to where they were, with all that was written since
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The old copies catch up with what was changed since, are compared, and take over; each shard is closed for
milliseconds, as by the move itself. It is a move of its own: resume, abort or take it back in turn.

Possible for as long as the move is kept and its reverse replication is open: the column `back` of `pgshard moves`.")]
pub(crate) struct MovesRollback {
    /// The move [default: the only one whose old copies are kept]
    pub(crate) id: Option<String>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) pace: Pace,
}

/// Compare what a move has brought with its old copies, where the move's own audit was broken off or left something out
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The snapshots of the move's end are lost by then. So it can only name the tables that are the same
on both hosts now, and those that differ although nobody has written to them since. A table that was
written to since is named as not audited. Exit code 6 if something differs, 8 if something could not
be audited.")]
pub(crate) struct MovesAudit {
    /// The move [default: the only one whose old copies are kept]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) pace: Pace,
}

/// Keep old copies up to date, so that a rollback is quick; runs until it is stopped
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Without it the new hosts keep the WAL that a rollback would need. It can be killed at any time; the
next one goes on. It finds new moves by itself. Run it under systemd, or beside the application.")]
pub(crate) struct MovesFeed {
    /// The move [default: all whose old copies are kept]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) limit: BackLimit,
    /// For pgshard's own tests: how long a lease outlives the process that feeds
    #[arg(long, hide = true, env = "PGSHARD_LEASE_MS", value_name = "MS", default_value_t = 10_000)]
    pub(crate) lease_ms: u64,
}

/// How much a reverse replication may cost.
#[derive(Debug, ArgGroup)]
pub(crate) struct BackLimit {
    /// How much WAL a new host may keep for a rollback, in MiB; beyond that, the rollback is given up
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 10_240,
        value_parser = clap::value_parser!(u64).range(1..=1_048_576),
    )]
    pub(crate) max_wal_mib: u64,
}

impl BackLimit {
    /// The mover's options.
    pub(crate) fn options(self) -> Options {
        Options::default().back_wal_max(self.max_wal_mib << 20)
    }
}

/// Drop the old copies that a move has kept; cannot be undone
#[derive(Debug, ArgGroup)]
pub(crate) struct MovesComplete {
    /// The move [default: the only one whose old copies are kept]
    pub(crate) id: Option<String>,
    /// Also the old copies of shards whose move was not audited, or whose audit found a difference: they may be the
    /// only right ones
    #[arg(long)]
    unaudited: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

impl MovesComplete {
    /// The mover's options.
    pub(crate) fn options(&self) -> Options {
        let unaudited = if self.unaudited { Unaudited::Dropped } else { Unaudited::Kept };
        Options::default().unaudited(unaudited)
    }
}

/// Have one host serve a shard that two hosts serve, or none, after a host has lost data
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
For use after a fail-over that lost commits, a restored backup, an empty disk, or with a host that is gone for good. \
Asks every host what it knows of the shard, and says what each answers, what can be done about it, which rows the \
shard may then lack, and where those are. It drops no row.

It does what is safe: a host stands down if another has the shard by a later epoch, and a target that has lost the \
open of a decided shard opens it again. Where a repair would give up rows that a host has, or may have, it says so \
and does nothing (exit code 4) until --give-up names that host. Such a host must not come back as it was.

Examples:
  pgshard moves repair 7 --plan
  pgshard moves repair 7 --give-up db2")]
pub(crate) struct MovesRepair {
    /// The shard
    pub(crate) shard: String,
    /// Say what is known and what would be done, and stop
    #[arg(long)]
    pub(crate) plan: bool,
    /// Give up what this host has of the shard; may be said more than once
    #[arg(long, value_name = "HOST")]
    pub(crate) give_up: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// For pgshard's own tests
    #[arg(long, hide = true, env = "PGSHARD_FAILPOINT", value_parser = Failpoint::parse)]
    pub(crate) failpoint: Option<Failpoint>,
}

/// Put right what dead moves left: late fences, shards decided but not opened, slots and schemas that nobody needs
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A move that can be resumed is never touched, nor an old copy that is kept.")]
pub(crate) struct MovesGc {
    #[command(flatten)]
    pub(crate) limit: BackLimit,
}
