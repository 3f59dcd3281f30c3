//! Backfills: a statement over the rows of a table in every shard, one range of keys after the
//! other, while the application works.
//!
//! Each range is a short transaction, which also writes the record of the progress; it has as many
//! rows as fit in the time that a range should take. It waits when standbys fall behind, and keeps
//! to a rate. If a shard moves meanwhile, the work goes on at its new host; if one fails, it is
//! named, and the others go on. A second run does only what is left.
//!
//! Invariant: each range is run once. If the statement was edited after its beginning, it is not
//! run.

mod host;
mod read;
pub(in crate::schema) mod shard;
mod text;
mod throttle;

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use uuid::Uuid;

use super::fault::HostFault;
use crate::map::{HostName, print_shards};
use crate::pg::ConnectOptions;
use crate::schema::control::Cluster;
use crate::shard::ShardId;

pub use read::{HostProgress, Progress, progress};
pub use text::{Backfill, BackfillMistake};

/// The application name of sessions.
const APPLICATION: &str = "pgshard migrate backfill";

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
    pub rows_a_second: Option<NonZeroU64>,
    /// How many shards of one host are worked on at the same time; each takes a connection.
    pub width: NonZeroUsize,
    /// How many ranges run at the same time on all hosts.
    pub width_in_all: NonZeroUsize,
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
            rows_a_second: None,
            width: NonZeroUsize::new(2).expect("two is not zero"),
            width_in_all: NonZeroUsize::new(16).expect("16 is not zero"),
            lock_timeout: Duration::from_millis(100),
            patience: Duration::from_secs(60),
        }
    }
}

setters!(
    Pace: range: Duration,
    lag_max: u64,
    rows_a_second: Option<NonZeroU64>,
    width: NonZeroUsize,
    width_in_all: NonZeroUsize,
    lock_timeout: Duration,
    patience: Duration,
);

/// Why a shard is not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackfillFault {
    /// No host that answers says that it serves the shard.
    #[error("no host says that it serves it{}", asked(silent))]
    Unserved {
        /// The hosts that could not be asked.
        silent: Vec<String>,
    },
    /// It moved to a host that is not in the config.
    #[error("it has moved to {host}, which is not in the config")]
    Absent {
        /// The host.
        host: HostName,
    },
    /// A move has closed it for longer than the patience lasts.
    #[error("a move has closed it, and it has not opened again")]
    Moving,
    /// Another session was in the way each time, until the patience was over.
    #[error("busy: {words}")]
    Busy {
        /// What the last try failed with.
        words: String,
    },
    /// The ranges cannot be formed over this table and column.
    #[error("{words}")]
    Unfit {
        /// Why not.
        words: String,
    },
    /// The statement failed over a range; nothing of that range is left.
    #[error("the range from {low} to {high} failed: {words}")]
    Range {
        /// Its first key.
        low: String,
        /// Its last key.
        high: String,
        /// The server's error.
        words: String,
    },
    /// It was begun with another statement in the meantime.
    #[error("it was begun with another statement, table or key")]
    Edited,
    /// Its host does not answer.
    #[error("{reason}")]
    Host {
        /// The host's fault.
        reason: String,
    },
    /// So many shards had failed before any was done that the rest was not tried.
    #[error("not tried: the {failed} shards before it failed")]
    NotTried {
        /// How many.
        failed: usize,
    },
}

/// Which hosts could not be asked, where there are some.
fn asked(silent: &[String]) -> String {
    if silent.is_empty() {
        String::new()
    } else {
        format!(": {} could not be asked", silent.join(", "))
    }
}

impl BackfillFault {
    /// What to do.
    pub fn remedy(&self) -> &'static str {
        match self {
            BackfillFault::Unserved { .. } => {
                "run `pgshard check`; then run the same command again"
            }
            BackfillFault::Absent { .. } => {
                "add the host to the config; then run the same command again"
            }
            BackfillFault::Moving => "see `pgshard moves list`; then run the same command again",
            BackfillFault::Busy { .. } | BackfillFault::Host { .. } => "run the same command again",
            BackfillFault::Unfit { .. } => {
                "name a table and a column that every shard has, with an index"
            }
            BackfillFault::Range { .. } => {
                "correct those rows and run the same command again, or begin a backfill with \
                                            another statement under another name"
            }
            BackfillFault::Edited => REMEDY_EDITED,
            BackfillFault::NotTried { .. } => {
                "look at the faults of those shards; then run the same command again"
            }
        }
    }
}

/// What to do when the statement differs from the one that was begun.
const REMEDY_EDITED: &str = "restore the statement; or give the new one a name of its \
    own: it then begins at the first key again";

/// Why nothing is run on any host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackfillError {
    /// Shards have begun it with another statement, table or key.
    #[error(
        "{name} was begun with another statement, table or key in the shards {}",
        print_shards(shards.iter().copied())
    )]
    Edited {
        /// The backfill.
        name: String,
        /// The shards.
        shards: Vec<ShardId>,
    },
}

impl BackfillError {
    /// What to do.
    pub fn remedy(&self) -> &'static str {
        match self {
            BackfillError::Edited { .. } => REMEDY_EDITED,
        }
    }
}

/// Something that happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A host was read.
    Planned {
        /// The host.
        host: &'a HostName,
        /// How many of its shards are to be done.
        to_do: usize,
        /// How many are done already.
        unchanged: usize,
    },
    /// A move can no longer be rolled back, because the table of the progress is created in its
    /// shards.
    EndsWayBack {
        /// The move.
        move_id: Uuid,
        /// The shards.
        shards: Vec<ShardId>,
    },
    /// A range was run.
    RangeDone {
        /// The host.
        host: &'a HostName,
        /// The shard.
        shard: ShardId,
        /// How many rows the statement has touched.
        rows: u64,
    },
    /// Work on a host waits until its standbys have caught up.
    Throttled {
        /// The host.
        host: &'a HostName,
        /// How far the slowest is behind.
        bytes: u64,
    },
    /// A host has standbys whose lag the role is not allowed to see.
    LagHidden {
        /// The host.
        host: &'a HostName,
    },
    /// A shard is done.
    ShardDone {
        /// The host.
        host: &'a HostName,
        /// The shard.
        shard: ShardId,
        /// The rows of this run.
        rows: u64,
    },
    /// Work on a shard has ended without success.
    ShardFailed {
        /// The host.
        host: &'a HostName,
        /// The shard.
        shard: ShardId,
        /// Why.
        fault: &'a BackfillFault,
    },
}

/// Is called with each event, while it happens.
pub type Observer<'a> = &'a (dyn Fn(Event<'_>) + Sync);

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The shards that this run has finished.
    pub done: BTreeSet<ShardId>,
    /// How many were finished before.
    pub unchanged: usize,
    /// The shards in which there is a record of it, finished or not: this run has made it, or an
    /// earlier one.
    pub begun: BTreeSet<ShardId>,
    /// How many rows the statement has touched in this run.
    pub rows: u64,
    /// The shards that are not finished, each with the reason.
    pub left: BTreeMap<ShardId, BackfillFault>,
    /// The hosts that could not be read.
    pub silent: BTreeMap<HostName, HostFault>,
}

impl Report {
    /// Whether every shard that was asked for is finished.
    pub fn is_complete(&self) -> bool {
        self.left.is_empty()
    }
}

/// Runs the ranges that are left, in all shards.
///
/// # Errors
/// When shards have begun it with another statement, table or key. Then nothing was run.
///
/// # Cancel safety
/// Dropping the future closes the connections. A range that is running takes effect whole or not at
/// all; run it again for the rest.
pub fn backfill<'a>(
    request: &'a Request,
    observer: Observer<'a>,
) -> BoxFuture<'a, Result<Report, BackfillError>> {
    Box::pin(async move {
        let is_wanted = |shard: &ShardId| {
            request
                .only_shards
                .as_ref()
                .is_none_or(|only| only.contains(shard))
        };
        let read = read_settled(request, is_wanted).await;
        let own = |all: &[Progress]| {
            all.iter()
                .find(|one| one.name == request.backfill.name())
                .cloned()
        };
        let (mut to_do, mut edited, mut report) = (
            BTreeMap::<HostName, Vec<ShardId>>::new(),
            Vec::new(),
            Report::default(),
        );
        let (mut served, mut unchanged) = (BTreeSet::new(), BTreeMap::<&HostName, usize>::new());
        for (host, read) in &read {
            let read = match read {
                Ok(read) => read,
                Err(fault) => {
                    report.silent.insert(host.clone(), fault.clone());
                    continue;
                }
            };
            for (shard, all) in read.shards.iter().filter(|(shard, _)| is_wanted(shard)) {
                // Each shard counts once: it may have moved between two readings.
                if !served.insert(*shard) {
                    continue;
                }
                match own(all) {
                    Some(one) if one.checksum != request.backfill.checksum() => edited.push(*shard),
                    Some(one) if one.finished => *unchanged.entry(host).or_default() += 1,
                    _ => to_do.entry(host.clone()).or_default().push(*shard),
                }
            }
        }
        if !edited.is_empty() {
            edited.sort_unstable();
            return Err(BackfillError::Edited {
                name: request.backfill.name().to_owned(),
                shards: edited,
            });
        }
        let silent: Vec<String> = report.silent.keys().map(ToString::to_string).collect();
        for shard in request
            .cluster
            .shards
            .iter()
            .filter(|shard| is_wanted(shard) && !served.contains(shard))
        {
            report.left.insert(
                shard,
                BackfillFault::Unserved {
                    silent: silent.clone(),
                },
            );
        }
        report.unchanged = unchanged.values().sum();
        tell(&read, &to_do, &unchanged, observer);
        let work = host::Work::new(request, to_do, report, observer);
        let of_host = request
            .hosts
            .iter()
            .flat_map(|host| std::iter::repeat_n(host, request.pace.width.get()));
        join_all(of_host.map(|(host, connect)| work.work(host, connect))).await;
        Ok(work.report())
    })
}

/// The progress everywhere. A shard that no host owns for a moment, between two hosts, is waited
/// for.
async fn read_settled(
    request: &Request,
    is_wanted: impl Fn(&ShardId) -> bool,
) -> BTreeMap<HostName, Result<HostProgress, HostFault>> {
    let mut tries = 0;
    loop {
        let read = read::progress_in(&request.cluster, &request.hosts).await;
        let owned: BTreeSet<ShardId> = read
            .values()
            .flatten()
            .flat_map(|host| host.shards.keys().copied())
            .collect();
        let misses = request
            .cluster
            .shards
            .iter()
            .any(|shard| is_wanted(&shard) && !owned.contains(&shard));
        tries += 1;
        if !misses || tries == SETTLES || read.values().any(Result::is_err) {
            return read;
        }
        tokio::time::sleep(SETTLE).await;
    }
}

/// How often the hosts are asked when a shard is between two hosts, and the pause after each time.
const SETTLES: usize = 5;
const SETTLE: Duration = Duration::from_millis(200);

/// Reports what there is to do, and which moves can no longer be rolled back because of it.
fn tell(
    read: &BTreeMap<HostName, Result<HostProgress, HostFault>>,
    to_do: &BTreeMap<HostName, Vec<ShardId>>,
    unchanged: &BTreeMap<&HostName, usize>,
    observer: Observer<'_>,
) {
    let answered = || {
        read.iter()
            .filter_map(|(host, read)| Some((host, read.as_ref().ok()?)))
    };
    let without: BTreeSet<ShardId> = answered()
        .flat_map(|(host, read)| {
            to_do
                .get(host)
                .into_iter()
                .flatten()
                .filter(|shard| read.without.contains(shard))
        })
        .copied()
        .collect();
    let mut ended: BTreeMap<Uuid, Vec<ShardId>> = BTreeMap::new();
    for (shard, way) in answered()
        .flat_map(|(_, read)| &read.open_ways)
        .filter(|(shard, _)| without.contains(shard))
    {
        ended.entry(*way).or_default().push(*shard);
    }
    for (move_id, shards) in ended {
        observer(Event::EndsWayBack { move_id, shards });
    }
    for (host, _) in answered() {
        let to_do = to_do.get(host).map_or(0, Vec::len);
        observer(Event::Planned {
            host,
            to_do,
            unchanged: unchanged.get(host).copied().unwrap_or(0),
        });
    }
}
