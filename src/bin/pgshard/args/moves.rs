//! `pgshard move` and `pgshard moves`.

use std::num::NonZeroUsize;
use std::time::Duration;

use clap::{Args as ArgGroup, Subcommand, ValueEnum};
use jiff::Timestamp;
use pgshard::mover::{Failpoint, FenceAt, IdentityPolicy, Mode, Options, Rollback, Unaudited};

use super::pace::{AuditPace, ForTests, Pace};
use crate::values;

/// Move shards to another host, while the application works
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Where the source has wal_level = logical (from PostgreSQL 19 on: replica), a shard stays open \
while it is copied, and is closed for \
some \
milliseconds at the end; elsewhere, and with --mode blocking, it is closed while it is copied. Its \
callers \
wait, and go on at the target. Before the source has decided, whatever goes wrong leaves the shard \
where \
it was; afterwards it is at the target. Any machine with the config can go on with a move that was \
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
    /// Print what would be done, and stop
    #[arg(long)]
    pub(crate) plan: bool,
    /// With --plan: every statement that would run, of every shard
    #[arg(long, requires = "plan")]
    pub(crate) sql: bool,
    /// How the rows get across [default: online if all sources can decode their WAL (wal_level),
    /// else blocking, and the plan gives the reason]
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<MoveMode>,
    /// Do all but the fence, then wait for `pgshard moves continue`; the source serves, the target
    /// follows
    #[arg(long, conflicts_with = "at")]
    pub(crate) hold: bool,
    /// Do all but the fence, then wait until this time: 22:30 (local, the next one), or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    pub(crate) at: Option<Timestamp>,
    /// Online: keep the old copies as they are at the switch; no slot on the target, and no
    /// `moves rollback`
    #[arg(long, alias = "no-way-back")]
    pub(crate) no_reverse_replication: bool,
    /// Online: alter no table; refuse a table without a key, instead of lending it a replica
    /// identity until the end
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
    pub(crate) fn rollback(&self) -> Rollback {
        if self.no_reverse_replication {
            Rollback::Forgone
        } else {
            Rollback::Prepared
        }
    }

    /// What is done about tables without a key, whose changed rows no stream can identify.
    pub(crate) fn replica_identity(&self) -> IdentityPolicy {
        if self.no_replica_identity {
            IdentityPolicy::Keep
        } else {
            IdentityPolicy::Lend
        }
    }

    /// When the shards are fenced.
    pub(crate) fn fence_at(&self) -> FenceAt {
        match (self.hold, self.at) {
            (true, _) => FenceAt::OnRequest,
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

/// List the moves that are open or have kept old copies
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Examples:
  pgshard moves
  pgshard moves list --all
  pgshard moves list --json | jq -r '.moves[] | [.move, .shards, .phase]'")]
pub(crate) struct MovesList {
    /// Also those that were completed or aborted: all that ever left a host
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) wide: Wide,
}

/// Whether a table shortens what is long.
#[derive(Clone, Copy, Debug, Default, ArgGroup)]
pub(crate) struct Wide {
    /// Print whole IDs, times and lists, however wide the table becomes
    #[arg(long)]
    pub(crate) wide: bool,
}

/// One move, shard by shard
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Examples:
  pgshard moves show
  pgshard moves show 019e2c0a
  pgshard moves show 019e2c0a --json | jq '.shards[] | {shard, phase, last_error}'")]
pub(crate) struct MovesShow {
    /// The move [default: the only one there is]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) wide: Wide,
}

/// How far a move is, until it has ended: phases, rows, WAL that its source keeps, who is in the
/// way
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
From any machine; it only reads. A table on a terminal, else a line for each change; with --json \
an object a \
line. Ends with the move: exit code 0 if all of its shards are at the target, 1 if all were \
aborted, \
8 if only some were, 7 if no mover works on it any more.

Examples:
  pgshard moves watch
  pgshard moves watch 019e2c0a --json | jq 'select(.event == \"ended\")'")]
pub(crate) struct MovesWatch {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
}

/// Pause a move: nothing more is copied, nothing is fenced
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
From any machine. Its mover hears of it within two seconds, and finishes the chunks that are under \
way. Meanwhile the source keeps the WAL of new changes, or the target applies them. How much \
is shown by `pgshard moves watch`.

Examples:
  pgshard moves pause
  pgshard moves pause 019e2c0a && pgshard moves watch 019e2c0a")]
pub(crate) struct MovesPause {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
}

/// Continue a move that was paused, or is held before its fences
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Examples:
  pgshard moves continue
  pgshard moves continue 019e2c0a")]
pub(crate) struct MovesContinue {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
}

/// Stop the mover of a move, from any machine
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Like Ctrl-C on the mover's own machine: fences are taken back, decided shards are opened, every \
shard can be used, and \
the move can be resumed. Waits until no mover works on the move any more. Exit code 4: one \
still does after --wait-s.

Examples:
  pgshard moves stop
  pgshard moves stop 019e2c0a --wait-s 300")]
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

/// Resume a move that was interrupted, from any machine
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A mover that died is replaced at once; one that is paused, or out of reach, once its lease has \
ended, which \
takes ten seconds. A mover that works on the move is left alone: exit code 4, and who it is. \
`pgshard moves stop` \
asks it to stop.

Examples:
  pgshard moves resume
  pgshard moves resume 019e2c0a --max-pause-s 900
  pgshard moves stop 019e2c0a && pgshard moves resume 019e2c0a --max-rate 20MB")]
pub(crate) struct MovesGoOn {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) pace: Pace,
}

/// Undo a move: what is not decided stays where it was
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A mover that works on the move, on whatever machine, is asked to abort it, and waited for. A shard \
that was decided \
cannot be aborted, only resumed: its target may serve it already.

Examples:
  pgshard moves abort
  pgshard moves abort 019e2c0a --wait-s 300")]
pub(crate) struct MovesAbort {
    /// The move [default: the only one that is open]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// Shards undone at the same time
    #[arg(long, value_name = "COUNT", default_value = "2")]
    jobs: NonZeroUsize,
    /// Accepted as by the other commands; an abort never asks
    #[arg(short, long, hide = true)]
    yes: bool,
    #[command(flatten)]
    tests: ForTests,
}

impl MovesAbort {
    /// The mover's options.
    pub(crate) fn options(self) -> Options {
        self.tests.options().jobs(self.jobs.get())
    }
}

/// Take shards that a move has kept back to where they were, with all that was written since
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The old copies catch up with what was changed since, are compared, and take over; each shard is \
closed for \
milliseconds, as by the move itself. It is a move of its own: resume, abort or take it back in turn.

Possible for as long as the move is kept and its reverse replication is open: the column `back` of \
`pgshard moves`.

Examples:
  pgshard moves rollback
  pgshard moves rollback 019e2c0a --yes")]
pub(crate) struct MovesRollback {
    /// The move [default: the only one whose old copies are kept]
    pub(crate) id: Option<String>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) pace: Pace,
}

/// Compare what a move has brought with its old copies, where the move's own audit was broken off
/// or left something out
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
The snapshots of the move's end are lost by then. So it can only name the tables that are the same \
on both hosts now, and those that differ although they have not been written to since. A table \
that \
was \
written to since is named as not audited. Exit code 6 if something differs, 8 if something could \
not \
be audited.

Examples:
  pgshard moves audit
  pgshard moves audit 019e2c0a --max-rate 50MB --audit-max-s 3600")]
pub(crate) struct MovesAudit {
    /// The move [default: the only one whose old copies are kept]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) pace: AuditPace,
}

/// Keep old copies up to date, so that a rollback is quick; runs until it is stopped
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Without it the new hosts keep the WAL that a rollback would need. It can be killed at any time; \
the next one continues. It finds new moves by itself. Run it under systemd, or next to the \
application.

Examples:
  pgshard moves feed
  pgshard moves feed --max-wal 50GiB --json")]
pub(crate) struct MovesFeed {
    /// The move [default: all whose old copies are kept]
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) limit: BackLimit,
    /// For pgshard's own tests: how long a lease outlives the process that feeds
    #[arg(
        long,
        hide = true,
        env = "PGSHARD_LEASE_MS",
        value_name = "MS",
        default_value_t = 10_000
    )]
    pub(crate) lease_ms: u64,
}

/// How much a reverse replication may cost.
#[derive(Debug, ArgGroup)]
pub(crate) struct BackLimit {
    /// How much WAL a new host may keep for a rollback; beyond that, the rollback is given up
    #[arg(long, value_name = "BYTES", default_value = "10GiB", value_parser = values::bytes)]
    pub(crate) max_wal: u64,
}

impl BackLimit {
    /// The mover's options.
    pub(crate) fn options(self) -> Options {
        Options::default().reverse_wal_max(self.max_wal)
    }
}

/// Drop the old copies that a move has kept; cannot be undone
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
Refuses (exit code 4) what its audit found to differ, and what was not audited: --unaudited \
overrules it. The move \
cannot be taken back afterwards.

Ctrl-C ends it between two shards (exit code 130) and names those whose old copies are left; a \
second one ends it at once. The same command drops the rest.

Examples:
  pgshard moves complete
  pgshard moves complete 019e2c0a --yes
  pgshard moves complete --all")]
pub(crate) struct MovesComplete {
    /// The move [default: the only one whose old copies are kept]
    pub(crate) id: Option<String>,
    /// Every move whose old copies are kept, one after the other
    #[arg(long, conflicts_with = "id")]
    pub(crate) all: bool,
    /// Also the old copies of shards whose move was not audited, or whose audit found a difference:
    /// they may be the only right ones
    #[arg(long)]
    unaudited: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// For pgshard's own tests
    #[arg(long, hide = true, env = "PGSHARD_FAILPOINT", value_parser = Failpoint::parse)]
    failpoint: Option<Failpoint>,
}

impl MovesComplete {
    /// The mover's options.
    pub(crate) fn options(self) -> Options {
        let unaudited = if self.unaudited {
            Unaudited::Dropped
        } else {
            Unaudited::Kept
        };
        Options::default()
            .unaudited(unaudited)
            .failpoint(self.failpoint)
    }
}

/// Have one host serve a shard that two hosts serve, or none, after a host has lost data
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
For use after a fail-over that lost commits, a restored backup, an empty disk, or with a host that \
is permanently gone. \
Reads what every host knows of the shard, and shows what can be done about it, which rows the \
shard may then lack, and where those are. It drops no row.

It does what is safe: a host stands down if another has the shard by a later epoch, and a target \
that has lost the open of a decided shard opens it again. Where a repair would give up rows that a \
host has, or may have, it does nothing (exit code 4) until --give-up names that host. \
Such a host must not come back as it was. A host that answers, even with an error, is not gone: it \
may serve the shard. It is given up only if --fenced confirms that no application reaches it.

Examples:
  pgshard moves repair 7 --plan
  pgshard moves repair 7 --give-up db2")]
pub(crate) struct MovesRepair {
    /// The shard
    pub(crate) shard: String,
    /// Only show what is known and what would be done
    #[arg(long)]
    pub(crate) plan: bool,
    /// Give up what this host has of the shard; may be said more than once
    #[arg(long, value_name = "HOST")]
    pub(crate) give_up: Vec<String>,
    /// This host, which --give-up names, answers, and has been fenced off: no application reaches
    /// it any more; can be repeated
    #[arg(long, value_name = "HOST")]
    pub(crate) fenced: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// For pgshard's own tests
    #[arg(long, hide = true, env = "PGSHARD_FAILPOINT", value_parser = Failpoint::parse)]
    pub(crate) failpoint: Option<Failpoint>,
}

/// Put right what dead moves left: late fences, shards decided but not opened, slots and schemas
/// that are no longer needed
#[derive(Debug, ArgGroup)]
#[command(after_help = "\
A move that can be resumed is never touched, nor an old copy that is kept.

Examples:
  pgshard moves gc
  pgshard moves gc --max-wal 50GiB --json | jq .cleaned")]
pub(crate) struct MovesGc {
    #[command(flatten)]
    pub(crate) limit: BackLimit,
}
