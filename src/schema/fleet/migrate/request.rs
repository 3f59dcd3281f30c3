//! The request of a migration: what to run, where, and how fast.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;

use crate::map::HostName;
use crate::pg::ConnectOptions;
use crate::schema::control::Cluster;
use crate::schema::fleet::migrations::Migrations;
use crate::shard::ShardId;

/// What is to be migrated, and how.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The cluster, as the config has it.
    pub cluster: Cluster,
    /// Every host of the config. All are read, whichever are written to.
    pub hosts: Vec<(HostName, ConnectOptions)>,
    /// The hosts to write to; all if there is none.
    pub only_hosts: BTreeSet<HostName>,
    /// The shards to migrate; `None` for all.
    pub only_shards: Option<BTreeSet<ShardId>>,
    /// All that lack something, or only those that failed before.
    pub which: Which,
    /// The application's migrations.
    pub migrations: Migrations,
    /// The shards to begin with. If one of them fails, no other is touched.
    pub canary: Option<Canary>,
    /// How hard to work.
    pub pace: Pace,
}

impl Request {
    /// All shards of all hosts that lack something, without a canary, at the default pace.
    pub fn new(
        cluster: Cluster,
        hosts: Vec<(HostName, ConnectOptions)>,
        migrations: Migrations,
    ) -> Request {
        Request {
            cluster,
            hosts,
            only_hosts: BTreeSet::new(),
            only_shards: None,
            which: Which::Pending,
            migrations,
            canary: None,
            pace: Pace::default(),
        }
    }

    /// Whether a host is one of those to write to.
    pub(super) fn chooses(&self, host: &HostName) -> bool {
        self.only_hosts.is_empty() || self.only_hosts.contains(host)
    }
}

setters!(
    Request: only_hosts: BTreeSet<HostName>,
    only_shards: Option<BTreeSet<ShardId>>,
    which: Which,
    canary: Option<Canary>,
    pace: Pace,
);

/// Which shards are migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All that lack something.
    Pending,
    /// Those that lack something and failed the last time, by the hosts' own records.
    Failed,
}

/// How many shards to begin with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Canary {
    /// This many.
    Shards(NonZeroUsize),
    /// This percentage, rounded up.
    Percent(f64),
}

impl Canary {
    /// The canary's part of this many shards; at least one.
    pub(super) fn of(self, shards: usize) -> usize {
        match self {
            Canary::Shards(count) => count.get(),
            Canary::Percent(percent) => ((shards as f64 * percent / 100.0).ceil() as usize).max(1),
        }
    }
}

/// How hard it works.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Pace {
    /// How many shards of one host are migrated at the same time. Each takes a connection, and a
    /// second one while something runs without a transaction.
    pub width: NonZeroUsize,
    /// How many shards of all hosts are migrated at the same time.
    pub max_concurrency: NonZeroUsize,
    /// How long to wait for a lock, while the application's statements wait behind us.
    pub lock_timeout: Duration,
    /// For how long a busy shard is tried again before it counts as failed.
    pub patience: Duration,
}

impl Default for Pace {
    /// Four for each host, 64 in all, 100 ms for a lock, a minute for a shard.
    fn default() -> Pace {
        Pace {
            width: NonZeroUsize::new(4).expect("four is not zero"),
            max_concurrency: NonZeroUsize::new(64).expect("64 is not zero"),
            lock_timeout: Duration::from_millis(100),
            patience: Duration::from_secs(60),
        }
    }
}

setters!(
    Pace: width: NonZeroUsize,
    max_concurrency: NonZeroUsize,
    lock_timeout: Duration,
    patience: Duration,
);
