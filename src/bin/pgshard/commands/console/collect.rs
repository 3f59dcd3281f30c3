//! The one task that queries the hosts, for all viewers.
//!
//! Invariant: the hosts are queried once in the shortest time, however many viewers there are, and
//! not at all while there are none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use jiff::Timestamp;
use pgshard::ShardId;
use pgshard::config::{Config, ConfigStore};
use pgshard::map::HostName;
use pgshard::mover::{MoveId, Mover, StreamProgress};
use pgshard::pg::Sessions;
use pgshard::schema::{FactsError, HostFacts, Measure};
use pgshard::store::postgres::Publication;
use tokio::sync::{Notify, watch};

use super::super::moves::Meter;
use super::super::survey::{self, Clocks, Depth, Kept, SurveyResult, gather};
use super::snapshot::{OpenMove, Snapshot};
use crate::context;

/// How many versions of the map can be looked at.
const VERSIONS_MAX: usize = 100;

/// How many open moves are followed; the others are shown as their journals have them.
const FOLLOWED_MAX: usize = 8;

/// Between two looks at open moves.
const MOVES_EVERY: Duration = Duration::from_secs(2);

/// How often hosts are queried for their clocks and those of their shards' IDs. That opens two
/// sequences of each shard, and neither clock goes wrong from one look to the next.
const CLOCKS_EVERY: Duration = Duration::from_secs(60);

/// How old, in addition to the shortest time, an earlier answer may be for a page that then follows
/// by itself.
const STILL_GOOD: Duration = Duration::from_secs(2);

type Seen = Option<Arc<Snapshot>>;

/// The hosts as they were seen last, and the demand for them.
pub(super) struct Collector {
    demand: Arc<Demand>,
    seen: watch::Receiver<Seen>,
    floor: Duration,
    bound: Duration,
}

/// How many viewers there are, and whether a page was requested.
#[derive(Default)]
struct Demand {
    viewers: AtomicUsize,
    requested: AtomicBool,
    changed: Notify,
}

impl Demand {
    /// Waits for a viewer or a page.
    async fn arrives(&self) {
        while self.viewers.load(Ordering::Relaxed) == 0
            && !self.requested.swap(false, Ordering::Relaxed)
        {
            self.changed.notified().await;
        }
        self.requested.store(false, Ordering::Relaxed);
    }
}

/// A viewer, which is shown each new look until this is dropped.
pub(super) struct Viewer {
    demand: Arc<Demand>,
    pub(super) seen: watch::Receiver<Seen>,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.demand.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Collector {
    /// Begins the task, which waits until there is a viewer.
    pub(super) fn start(config: PathBuf, floor: Duration, bound: Duration) -> Collector {
        let demand = Arc::new(Demand::default());
        let (sender, seen) = watch::channel(None);
        let task = Task {
            config,
            floor,
            bound,
            demand: demand.clone(),
            meters: BTreeMap::new(),
            clocks: None,
            sessions: Sessions::new("pgshard console"),
        };
        tokio::spawn(task.run(sender));
        Collector {
            demand,
            seen,
            floor,
            bound,
        }
    }

    /// Follows the state of the hosts; `None` once there are so many viewers.
    pub(super) fn view(&self, viewers_max: usize) -> Option<Viewer> {
        let viewer = Viewer {
            demand: self.demand.clone(),
            seen: self.seen.clone(),
        };
        let before = self.demand.viewers.fetch_add(1, Ordering::Relaxed);
        self.demand.changed.notify_one();
        (before < viewers_max).then_some(viewer)
    }

    /// What was seen last. If that is too old, waits this long for something newer.
    pub(super) async fn now(&self, patience: Duration) -> Seen {
        let mut seen = self.seen.clone();
        let last = seen.borrow_and_update().clone();
        if last
            .as_ref()
            .is_some_and(|last| last.age() < self.floor + STILL_GOOD)
        {
            return last;
        }
        self.demand.requested.store(true, Ordering::Relaxed);
        self.demand.changed.notify_one();
        tokio::time::timeout(patience, seen.changed()).await.ok();
        seen.borrow().clone()
    }

    /// The same, with the patience for a whole look; `None` rather than something old, for a
    /// program that would take it for the current state.
    pub(super) async fn fresh(&self) -> Seen {
        let whole_look = self.bound * 4;
        let seen = self.now(whole_look).await;
        seen.filter(|seen| seen.age() < self.floor + STILL_GOOD + whole_look)
    }

    /// The shortest time between two looks.
    pub(super) fn floor(&self) -> Duration {
        self.floor
    }
}

struct Task {
    config: PathBuf,
    floor: Duration,
    bound: Duration,
    demand: Arc<Demand>,
    /// How fast each open move copies.
    meters: BTreeMap<MoveId, Meter>,
    /// The clocks that hosts have reported, and when they were queried.
    clocks: Option<(Instant, Clocks)>,
    sessions: Sessions,
}

impl Task {
    async fn run(mut self, sender: watch::Sender<Seen>) {
        let mut last: Seen = None;
        loop {
            self.demand.arrives().await;
            let began = Instant::now();
            let snapshot = Arc::new(self.collect_snapshot(last.as_deref()).await);
            sender.send_replace(Some(snapshot.clone()));
            last = Some(snapshot.clone());
            while let left = self.floor.saturating_sub(began.elapsed())
                && !left.is_zero()
            {
                tokio::time::sleep(left.min(MOVES_EVERY)).await;
                let is_watched = self.demand.viewers.load(Ordering::Relaxed) > 0;
                if left > MOVES_EVERY && is_watched && !snapshot.open.is_empty() {
                    sender.send_replace(Some(Arc::new(self.follow(&snapshot).await)));
                }
            }
        }
    }

    /// A whole look.
    async fn collect_snapshot(&mut self, last: Option<&Snapshot>) -> Snapshot {
        let (queried, kept) = self
            .clocks
            .take()
            .filter(|(queried, _)| queried.elapsed() < CLOCKS_EVERY)
            .unwrap_or((Instant::now(), Clocks::new()));
        let believed = last.map(|last| last.gathered.believed.clone());
        let kept = Kept {
            // A page shows that the config cannot be used, and nothing else.
            config: None,
            clocks: kept,
            believed: believed.unwrap_or_default(),
        };
        let gathered = gather(
            &self.config,
            self.bound,
            Depth::Pages,
            &kept,
            &self.sessions,
        )
        .await;
        let clock = |(name, facts): (&HostName, &Result<HostFacts, FactsError>)| {
            Some((name.clone(), facts.as_ref().ok()?.clock.clone()?))
        };
        self.clocks = Some((queried, gathered.survey.iter().filter_map(clock).collect()));
        let mut heard = last.map(|last| last.heard.clone()).unwrap_or_default();
        let at = Timestamp::now();
        heard.retain(|name, _| gathered.hosts.contains_key(name));
        let seen_at =
            |(name, host): (&HostName, &survey::Host)| Some((name.clone(), host.seen_at?));
        heard.extend(gathered.hosts.iter().filter_map(seen_at));
        let history = match &gathered.config {
            Some(config) => self.history(config, &gathered, last).await,
            None => Arc::default(),
        };
        let (open, reverse_streams) = self.moves(&gathered).await;
        let before = || {
            let last = last?;
            last.map_before
                .clone()
                .or_else(|| Some(Arc::new((last.at, last.map()?.clone()))))
        };
        Snapshot {
            at,
            moves_at: Timestamp::now(),
            map_before: if gathered.map.is_none() {
                before()
            } else {
                None
            },
            heard,
            writes: Arc::new(writes(&gathered, last)),
            history,
            open,
            reverse_streams: Arc::new(reverse_streams),
            gathered: Arc::new(gathered),
        }
    }

    /// The same with the current state of the open moves.
    async fn follow(&mut self, snapshot: &Snapshot) -> Snapshot {
        let open = match asking(&snapshot.gathered) {
            Some(mover) => self.open_moves(&mover, &snapshot.gathered).await,
            None => Vec::new(),
        };
        // The rest is from the look before, and as old as that.
        Snapshot {
            at: snapshot.at,
            moves_at: Timestamp::now(),
            open,
            map_before: snapshot.map_before.clone(),
            heard: snapshot.heard.clone(),
            writes: snapshot.writes.clone(),
            history: snapshot.history.clone(),
            reverse_streams: snapshot.reverse_streams.clone(),
            gathered: snapshot.gathered.clone(),
        }
    }

    async fn moves(&mut self, gathered: &SurveyResult) -> (Vec<OpenMove>, Vec<StreamProgress>) {
        let Some(mover) = asking(gathered) else {
            return (Vec::new(), Vec::new());
        };
        let streams =
            tokio::time::timeout(self.bound, mover.reverse_streams(gathered.entries.iter()));
        let streams = streams.await.unwrap_or_default();
        (self.open_moves(&mover, gathered).await, streams)
    }

    async fn open_moves(&mut self, mover: &Mover, gathered: &SurveyResult) -> Vec<OpenMove> {
        let open = gathered
            .entries
            .iter()
            .filter(|entry| !entry.phase.is_ended());
        let ids: BTreeSet<MoveId> = open.map(|entry| entry.id).collect();
        self.meters.retain(|id, _| ids.contains(id));
        // The newest: an ID begins with its time. At the same time, so that a host that has just
        // fallen silent holds up all of them for one limit, and not for one limit each.
        let bound = self.bound;
        let ask = |id| async move { tokio::time::timeout(bound, mover.progress(id)).await };
        let answers = join_all(ids.into_iter().rev().take(FOLLOWED_MAX).map(ask)).await;
        let mut moves = Vec::new();
        for progress in answers.into_iter().flatten().flatten() {
            let rate = self.meters.entry(progress.id).or_default().saw(&progress);
            moves.push(OpenMove {
                progress: Arc::new(progress),
                rate,
            });
        }
        moves
    }

    /// The versions of the map: read again once there is a new one.
    async fn history(
        &self,
        config: &Config,
        gathered: &SurveyResult,
        last: Option<&Snapshot>,
    ) -> Arc<Vec<Publication>> {
        let kept = last.map(|last| last.history.clone()).unwrap_or_default();
        let version = gathered.map.as_ref().map(pgshard::map::ShardMap::version);
        let newest = kept.first().map(|publication| publication.map.version());
        let ConfigStore::Postgres(store) = context::store(config) else {
            return Arc::default();
        };
        if version.is_some() && version == newest {
            return kept;
        }
        match tokio::time::timeout(self.bound, store.history(VERSIONS_MAX)).await {
            Ok(Ok(history)) => Arc::new(history),
            _ => kept,
        }
    }
}

/// A mover that queries the hosts that answered.
fn asking(gathered: &SurveyResult) -> Option<Mover> {
    let config = gathered.config.as_ref()?;
    let mut hosts = context::all_hosts(config);
    hosts.retain(|(name, _)| gathered.hosts.get(name).is_some_and(survey::Host::is_read));
    Some(survey::mover(config, hosts))
}

/// Rows written a second since the look before, of the shards that a host had then and has now.
fn writes(gathered: &SurveyResult, last: Option<&Snapshot>) -> BTreeMap<ShardId, f64> {
    let before = |name: &HostName| last?.gathered.hosts.get(name)?.measured.as_ref();
    let mut writes = BTreeMap::new();
    for (name, host) in &gathered.hosts {
        let (Some((at, now)), Some((earlier, then))) = (&host.measured, before(name)) else {
            continue;
        };
        let seconds = at.saturating_duration_since(*earlier).as_secs_f64();
        let rate = |shard: &ShardId, now: &Measure| {
            // A server that has reset its statistics counts from zero again.
            let written = now.writes.checked_sub(then.get(shard)?.writes)?;
            (seconds > 0.0).then(|| written as f64 / seconds)
        };
        writes.extend(
            now.iter()
                .filter_map(|(shard, measure)| Some((*shard, rate(shard, measure)?))),
        );
    }
    writes
}
