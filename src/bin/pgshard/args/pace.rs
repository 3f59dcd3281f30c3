//! How hard a mover works, and how long it waits.

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use clap::{Args as ArgGroup, ValueEnum};
use pgshard::mover::{Failpoint, Leases, Options, UnloggedRows};

use crate::values;

/// What unlogged tables have at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnloggedTables {
    // No help texts: clap would list them on every page that has the option.
    Rows,
    Empty,
}

/// How hard a mover works.
#[derive(Clone, Debug, ArgGroup)]
pub(crate) struct Pace {
    /// Shards moved at the same time
    #[arg(long, value_name = "COUNT", default_value = "2")]
    pub(crate) jobs: NonZeroUsize,
    /// How long a fence may wait for transactions that hold locks on the shard; all its callers
    /// wait with it
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..=60_000),
    )]
    pub(crate) fence_budget_ms: u64,
    /// How often to try the fence before giving up
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..=10_000),
    )]
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
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 250,
        value_parser = clap::value_parser!(u64).range(1..=60_000),
    )]
    pub(crate) max_lag_ms: u64,
    /// Online: the most WAL that a source may have to keep for the move; past it the move is
    /// aborted
    #[arg(long, value_name = "BYTES", default_value = "10GiB", value_parser = values::bytes)]
    pub(crate) max_wal: u64,
    /// Online: how long the audit at a move's end may hold back VACUUM on both hosts; what it has
    /// not compared by then is named. 0: no audit
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(0..=86_400),
    )]
    pub(crate) audit_max_s: u64,
    /// What unlogged tables have at the target: their rows, copied while the shard is closed, or
    /// nothing, as after a crash
    #[arg(long, value_name = "WHAT", default_value = "rows")]
    pub(crate) unlogged: UnloggedTables,
    #[command(flatten)]
    pub(crate) tests: ForTests,
}

/// For pgshard's own tests.
#[derive(Clone, Debug, ArgGroup)]
pub(crate) struct ForTests {
    /// For pgshard's own tests
    #[arg(long, hide = true, env = "PGSHARD_FAILPOINT", value_parser = Failpoint::parse)]
    failpoint: Option<Failpoint>,
    /// For pgshard's own tests: how long lease and fence outlive the mover
    #[arg(
        long,
        hide = true,
        env = "PGSHARD_LEASE_MS",
        value_name = "MS",
        default_value_t = 10_000
    )]
    lease_ms: u64,
    /// For pgshard's own tests: how much of a table is copied in one snapshot at the most
    #[arg(long, hide = true, env = "PGSHARD_CHUNK_BYTES", value_name = "BYTES")]
    chunk_bytes: Option<u64>,
    /// For pgshard's own tests: how long an open waits for the snapshot of its audit
    #[arg(
        long,
        hide = true,
        env = "PGSHARD_SNAPSHOT_MS",
        value_name = "MS",
        default_value_t = 50
    )]
    snapshot_ms: u64,
}

impl ForTests {
    /// The mover's options, as far as tests choose them.
    pub(super) fn options(self) -> Options {
        let options = Options::default();
        let chunk_bytes = self.chunk_bytes.unwrap_or(options.chunk_bytes);
        options
            .chunk_bytes(chunk_bytes)
            .snapshot_max(Duration::from_millis(self.snapshot_ms))
            .failpoint(self.failpoint)
            .leases(Leases::of(Duration::from_millis(self.lease_ms)))
    }
}

/// How hard an audit works.
#[derive(Debug, ArgGroup)]
pub(crate) struct AuditPace {
    /// Shards compared at the same time
    #[arg(long, value_name = "COUNT", default_value = "2")]
    jobs: NonZeroUsize,
    /// The most to read in a second, all shards together, such as 20MB [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = values::rate)]
    max_rate: Option<NonZeroU64>,
    /// How long the audit may hold back VACUUM on both hosts; what it has not compared by then is
    /// named
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..=86_400),
    )]
    audit_max_s: u64,
    #[command(flatten)]
    tests: ForTests,
}

impl AuditPace {
    /// The mover's options.
    pub(crate) fn options(self) -> Options {
        let audit_max = Duration::from_secs(self.audit_max_s);
        self.tests
            .options()
            .jobs(self.jobs.get())
            .rate_max(self.max_rate)
            .audit_max(audit_max)
    }
}

impl Pace {
    /// The mover's options.
    pub(crate) fn options(self) -> Options {
        self.tests
            .options()
            .jobs(self.jobs.get())
            .barrier_budget(Duration::from_millis(self.fence_budget_ms))
            .fence_attempts(self.fence_attempts)
            .pause_max(Duration::from_secs(self.max_pause_s))
            .rate_max(self.max_rate)
            .lag_max(Duration::from_millis(self.max_lag_ms))
            .wal_max(self.max_wal)
            .audit_max(Duration::from_secs(self.audit_max_s))
            .unlogged(match self.unlogged {
                UnloggedTables::Rows => UnloggedRows::Carried,
                UnloggedTables::Empty => UnloggedRows::Left,
            })
    }
}
