//! The request of a backfill: what to run, where, and how fast.

use std::collections::BTreeSet;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use super::text::Backfill;
use crate::map::HostName;
use crate::pg::ConnectOptions;
use crate::schema::control::Cluster;
use crate::shard::ShardId;

/// The application name of sessions.
pub(super) const APPLICATION: &str = "pgshard migrate backfill";

/// What is run, where, and how fast.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The cluster, as the config has it.
    pub cluster: Cluster,
    /// Every host of the config, because a shard may move to any of them.
    pub hosts: Vec<(HostName, ConnectOptions)>,
    /// The shards; `None` for all.
    pub only_shards: Option<BTreeSet<ShardId>>,
    /// The statement and its table.
    pub backfill: Backfill,
    /// How fast.
    pub pace: Pace,
}

impl Request {
    /// In all shards, at the default pace.
    pub fn new(
        cluster: Cluster,
        hosts: Vec<(HostName, ConnectOptions)>,
        backfill: Backfill,
    ) -> Request {
        Request {
            cluster,
            hosts,
            only_shards: None,
            backfill,
            pace: Pace::default(),
        }
    }
}

setters!(Request: only_shards: Option<BTreeSet<ShardId>>, pace: Pace);

/// How fast the work goes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Pace {
    /// How long a range should take. Its rows are locked that long, and a fence waits for it.
    pub range: Duration,
    /// How far a standby, or any other receiver of a host's WAL, may be behind, in bytes.
    pub lag_max: u64,
    /// How many rows per second on each host; `None`: as many as possible.
    pub rows_per_second_max: Option<NonZeroU64>,
    /// How many shards of one host are worked on at the same time; each takes a connection.
    pub width: NonZeroUsize,
    /// How many ranges run at the same time on all hosts.
    pub max_concurrency: NonZeroUsize,
    /// How long to wait for a lock while rows of the range are locked.
    pub lock_timeout: Duration,
    /// How long a shard that is busy or closed, or a host that does not answer, is tried again.
    pub patience: Duration,
}

impl Default for Pace {
    /// 200 ms for a range, 64 MiB of lag, no rate, two shards per host, 16 in all, 100 ms for a
    /// lock, a minute of patience.
    fn default() -> Pace {
        Pace {
            range: Duration::from_millis(200),
            lag_max: 64 << 20,
            rows_per_second_max: None,
            width: NonZeroUsize::new(2).expect("two is not zero"),
            max_concurrency: NonZeroUsize::new(16).expect("16 is not zero"),
            lock_timeout: Duration::from_millis(100),
            patience: Duration::from_secs(60),
        }
    }
}

setters!(
    Pace: range: Duration,
    lag_max: u64,
    rows_per_second_max: Option<NonZeroU64>,
    width: NonZeroUsize,
    max_concurrency: NonZeroUsize,
    lock_timeout: Duration,
    patience: Duration,
);
