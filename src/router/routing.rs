//! Which host has a shard, as far as this router knows: the map, and what hosts have reported
//! since.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::error::{Error, PoolPhase};
use super::host::Host;
use super::host_options_seen::HostOptionsSeen;
use super::lease::Lease;
use super::lookup_tables::LookupTables;
use super::nesting;
use super::options::Options;
use super::peers::Peers;
use super::pool::ConnectionLimit;
use super::pool_slots::{Lane, Use};
use super::reach::Reach;
use super::sql::SqlCache;
use super::unrouted_calls::UnroutedCalls;
use crate::map::{Changes, HostName, Placement, ShardEpoch, ShardMap};
use crate::shard::{KeyKind, SchemaPrefix, ShardCount, ShardId};
use crate::store::Refresh;

/// How long the host source is not called again for a host that it did not know, since it may read
/// a file.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// What every handle of a router shares.
pub(super) struct Inner {
    pub(super) shards: ShardCount,
    pub(super) prefix: SchemaPrefix,
    pub(super) key: KeyKind,
    /// The hosts that the router was created with, and those found since. A host is never removed,
    /// because its pool is empty once it is unused. It is only replaced, when it is reached in
    /// another way.
    pub(super) hosts: ArcSwap<HashMap<HostName, Arc<Host>>>,
    /// The limit that the pools of all hosts share.
    pub(super) limit: Option<ConnectionLimit>,
    /// What hosts have recorded of each other.
    pub(super) peers: Arc<Peers>,
    /// The options, from which pools are made. Their hosts and map are those of the start.
    pub(super) options: Options,
    /// Hosts that the host source did not know, and when it was called.
    pub(super) unknown: Mutex<HashMap<String, Instant>>,
    pub(super) snapshot: ArcSwap<Snapshot>,
    pub(super) sql: SqlCache,
    pub(super) retry_for: Duration,
    /// For each shard, how many calls are delayed by a move, or are finding out whether they are.
    pub(super) waiting: Box<[AtomicU32]>,
    /// The task that follows a store's maps, and what makes the store look for a newer one.
    pub(super) follower: Mutex<Option<(AbortHandle, Refresh)>>,
    /// Statements and transactions that were run again.
    pub(super) retries: AtomicU64,
    /// Statements without a key that ran on an unsharded host, by their places in the program.
    pub(super) unrouted: UnroutedCalls,
    /// The tables of look-ups on an unsharded host, as they were found.
    pub(super) lookup_tables: LookupTables,
    pub(super) closed: AtomicBool,
    /// The last result of the host source.
    pub(super) options_seen: HostOptionsSeen,
    /// Wakes the task that calls the host source.
    pub(super) hosts_wanted: Arc<Notify>,
}

/// A map and the placements learned since. A try uses one snapshot: either the old one or the new,
/// never a mixture.
pub(super) struct Snapshot {
    pub(super) map: Arc<ShardMap>,
    /// Only placements that are newer than the map's, so at most N.
    learned: Changes,
}

/// Where one try of a statement goes.
pub(super) struct Place {
    pub(super) host: Arc<Host>,
    pub(super) epoch: ShardEpoch,
}

impl Place {
    /// Borrows a connection for a statement on `shard`.
    pub(super) async fn lease(&self, shard: ShardId, held_for: Use) -> Result<Lease, Error> {
        self.lease_of(Lane::Work, shard, held_for).await
    }

    /// The same, of a lane.
    pub(super) async fn lease_of(
        &self,
        lane: Lane,
        shard: ShardId,
        held_for: Use,
    ) -> Result<Lease, Error> {
        self.host
            .lease(lane, shard, held_for)
            .await
            .map_err(|error| match error {
                Error::PoolTimeout {
                    shard,
                    host,
                    phase: PoolPhase::Wait,
                    limit_ms,
                } if nesting::is_within(&host) => Error::PoolTimeout {
                    shard,
                    host,
                    phase: PoolPhase::WaitWithin,
                    limit_ms,
                },
                error => error,
            })
    }
}

impl Snapshot {
    pub(super) fn new(map: Arc<ShardMap>) -> Snapshot {
        Snapshot {
            map,
            learned: Changes::new(),
        }
    }

    fn placement(&self, shard: ShardId) -> Option<(&HostName, ShardEpoch)> {
        match self.learned.get(shard) {
            Some(placement) => Some((&placement.host, placement.epoch)),
            None => Some((self.map.host(shard)?, self.map.epoch(shard)?)),
        }
    }

    /// This snapshot with a new map. Learned placements that are not newer than the map's are
    /// dropped.
    fn with_map(&self, map: Arc<ShardMap>) -> Snapshot {
        let newer = |shard, placement: &Placement| {
            map.epoch(shard)
                .is_some_and(|epoch| epoch < placement.epoch)
        };
        let kept = self
            .learned
            .iter()
            .filter(|(shard, placement)| newer(*shard, placement));
        let learned = kept
            .map(|(shard, placement)| (shard, placement.clone()))
            .collect();
        Snapshot { map, learned }
    }

    /// This snapshot with one more placement, or `None` when that is no news.
    fn with(&self, shard: ShardId, placement: &Placement) -> Option<Snapshot> {
        if self.placement(shard)?.1 >= placement.epoch {
            return None;
        }
        let mut learned = self.learned.clone();
        learned.insert(shard, placement.clone());
        Some(Snapshot {
            map: self.map.clone(),
            learned,
        })
    }
}

impl Inner {
    /// Returns the host of this name. If the router does not know it, calls the host source.
    pub(super) fn host(&self, name: &str) -> Option<Arc<Host>> {
        match self.hosts.load().get(name) {
            Some(host) => Some(host.clone()),
            None => self.meet(name),
        }
    }

    /// Makes pools for a host that was added since the router was made.
    fn meet(&self, name: &str) -> Option<Arc<Host>> {
        let source = self.options.host_source.as_ref()?;
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        // Another call may have met the host while this one waited for the lock.
        if let Some(host) = self.hosts.load().get(name) {
            return Some(host.clone());
        }
        unknown.retain(|_, asked| asked.elapsed() < ASK_AGAIN);
        if unknown.contains_key(name) {
            return None;
        }
        let Some(options) = source.options_of(name) else {
            unknown.insert(name.to_owned(), Instant::now());
            return None;
        };
        self.peers.add(&options.name, &options.connect);
        let host = Arc::new(Host::new(
            &options,
            &self.options,
            self.limit.as_ref(),
            &self.peers,
        ));
        tracing::info!(host = name, "met a host that was added");
        self.hosts.rcu(|hosts| {
            let mut hosts = HashMap::clone(hosts);
            hosts.insert(options.name.clone(), host.clone());
            hosts
        });
        Some(host)
    }

    /// Where the next try of a statement goes.
    pub(super) fn place(&self, shard: ShardId) -> Result<Place, Error> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        let snapshot = self.snapshot.load();
        let (name, epoch) = snapshot.placement(shard).ok_or(Error::NoSuchShard {
            shard,
            shards: self.shards,
        })?;
        match self.host(name.as_str()) {
            Some(host) => Ok(Place { host, epoch }),
            None => Err(Error::UnknownHost {
                shard,
                host: name.to_string(),
            }),
        }
    }

    /// The same, if the host can do what the call is for.
    pub(super) fn place_for(&self, shard: ShardId, reach: Reach) -> Result<Place, Error> {
        let place = self.place(shard)?;
        let host = || place.host.name.clone();
        match (reach, place.host.options.layout.whole()) {
            (Reach::Keys, _)
            | (Reach::Shard, None)
            | (Reach::Host | Reach::KeysOfHost, Some(_)) => Ok(place),
            (Reach::Shard, Some(_)) => Err(Error::Unsharded {
                shard,
                host: host(),
                what: "the rows of one shard are not separate from all others",
                instead: "name the key (`by_key`) or the ID (`by_id`) in the statement, or run it \
                    for all shards at once (`all_shards`)",
            }),
            (Reach::Host | Reach::KeysOfHost, None) => Err(Error::LayoutChanged {
                shard,
                host: host(),
            }),
        }
    }

    /// Whether one unsharded host has all shards, as far as the router knows.
    pub(super) fn is_unsharded(&self) -> bool {
        // A cluster without such a host is known at a glance: this is asked by each fan-out.
        let hosts = self.hosts.load();
        let unsharded = hosts
            .values()
            .find(|host| host.options.layout.whole().is_some());
        let Some(host) = unsharded else {
            return false;
        };
        let snapshot = self.snapshot.load();
        let is_there = |shard| {
            let placed = snapshot.placement(shard);
            placed.is_some_and(|(name, _)| *name == host.name)
        };
        self.shards.iter().all(is_there)
    }

    /// The epoch at which the shard is served, as far as the router knows.
    pub(super) fn epoch(&self, shard: ShardId) -> Option<ShardEpoch> {
        self.snapshot
            .load()
            .placement(shard)
            .map(|(_, epoch)| epoch)
    }

    /// The name of the host that serves the shard, as far as the router knows.
    pub(super) fn host_name(&self, shard: ShardId) -> Option<HostName> {
        self.snapshot
            .load()
            .placement(shard)
            .map(|(name, _)| name.clone())
    }

    pub(super) fn set_map(&self, map: Arc<ShardMap>) -> Result<(), Error> {
        if map.shards() != self.shards {
            return Err(Error::OtherCluster {
                given: map.shards(),
                shards: self.shards,
            });
        }
        let before = self
            .snapshot
            .rcu(|snapshot| match map.version() < snapshot.map.version() {
                true => snapshot.clone(),
                false => Arc::new(snapshot.with_map(map.clone())),
            });
        if map.version() < before.map.version() {
            return Err(Error::OlderMap {
                given: map.version(),
                current: before.map.version(),
            });
        }
        super::metrics::map_version(map.version());
        Ok(())
    }

    /// Replaces the map with the one that a store has now, whatever its version. A map that was
    /// restored or edited by hand may have an earlier version, and the later ones will not be
    /// published again. Old placements in it cost a lookup: reports of hosts count if their epoch
    /// is larger, and signposts lead to the shard.
    pub(super) fn follow_map(&self, map: Arc<ShardMap>) -> Result<(), Error> {
        if map.shards() != self.shards {
            return Err(Error::OtherCluster {
                given: map.shards(),
                shards: self.shards,
            });
        }
        let version = map.version();
        let before = self
            .snapshot
            .rcu(|snapshot| Arc::new(snapshot.with_map(map.clone())));
        let before = before.map.version();
        if version < before {
            tracing::warn!(%version, %before, "the map that is kept now is of an earlier version");
        }
        super::metrics::map_version(version);
        Ok(())
    }

    /// Records a host's report about a shard that it serves.
    pub(super) fn learn(&self, shard: ShardId, placement: Placement) {
        self.snapshot
            .rcu(|snapshot| match snapshot.with(shard, &placement) {
                Some(newer) => Arc::new(newer),
                None => snapshot.clone(),
            });
    }
}

impl Inner {
    /// Ends the task that takes the maps of a store.
    pub(super) fn stop_following(&self) {
        if let Some((follower, _)) = self
            .follower
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            follower.abort();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop_following();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::MapVersion;
    use crate::pg::ConnectOptions;
    use crate::router::{HostOptions, HostSource, Router};
    use proptest::prelude::*;

    fn placement(host: u8, epoch: u32) -> Placement {
        Placement {
            host: HostName::new(&format!("db{host}")).unwrap(),
            epoch: ShardEpoch::new(epoch).unwrap(),
        }
    }

    fn map(epochs: &[u32]) -> Arc<ShardMap> {
        let shards = ShardCount::new(epochs.len() as u32).unwrap();
        let placements = shards
            .iter()
            .zip(epochs)
            .map(|(shard, epoch)| (shard, placement(0, *epoch)));
        Arc::new(ShardMap::new(MapVersion::FIRST, shards, placements).unwrap())
    }

    #[tokio::test]
    async fn a_host_that_nobody_knows_hides_no_other() {
        let connect = ConnectOptions::parse("postgres://app@127.0.0.1:1/app").unwrap();
        let host =
            move |name: &str| HostOptions::new(HostName::new(name).unwrap(), connect.clone(), 1);
        let mut options = Options::new(vec![host("db0")], map(&[1]));
        options.host_source = Some(HostSource::new(move |name| {
            (name == "added").then(|| host(name))
        }));
        let router = Router::new(options);
        assert!(router.inner().host("lost").is_none());
        assert!(router.inner().host("added").is_some());
    }

    #[derive(Debug, Clone)]
    enum News {
        Map([u32; 3]),
        Learned(u16, u32),
    }

    fn news() -> impl Strategy<Value = News> {
        prop_oneof![
            prop::array::uniform3(1u32..9).prop_map(News::Map),
            (0u16..3, 1u32..9).prop_map(|(shard, epoch)| News::Learned(shard, epoch)),
        ]
    }

    /// What a router learns, in any order: a version of the map, or a shard's placement at that
    /// version, as a host reports it. The versions were published one after the other, with epochs
    /// that grow.
    fn told() -> impl Strategy<Value = Vec<(bool, usize, u16)>> {
        prop::collection::vec((any::<bool>(), 0..12_usize, 0..3_u16), 1..40)
    }

    /// The maps of a cluster in the order of their versions: each moves one shard.
    fn history() -> Vec<Arc<ShardMap>> {
        let mut epochs = [1, 1, 1];
        let mut version = MapVersion::FIRST;
        let mut maps = vec![map(&epochs)];
        for at in 0..11 {
            epochs[at % 3] += 1;
            version = version.next();
            maps.push(Arc::new(map(&epochs).with_version(version)));
        }
        maps
    }

    fn inner(map: Arc<ShardMap>) -> crate::router::Router {
        crate::router::Router::new(Options::new(Vec::new(), map))
    }

    proptest! {
        /// Maps and answers of hosts come in any order, late and twice, from several threads: no
        /// request is ever sent to an older epoch than the one before it.
        #[test]
        fn never_back_to_an_older_epoch(first in told(), second in told()) {
            let maps = history();
            let router = inner(maps[0].clone());
            let tell = |told: Vec<(bool, usize, u16)>| {
                let mut seen = [0; 3];
                for (by_map, at, shard) in told {
                    let id = ShardId::new(shard).unwrap();
                    if by_map {
                        let _ = router.set_map(maps[at].clone());
                    } else {
                        router.inner().learn(id, maps[at].placement(id).unwrap());
                    }
                    let snapshot = router.inner().snapshot.load();
                    for shard in 0..3_u16 {
                        let (_, epoch) = snapshot.placement(ShardId::new(shard).unwrap()).unwrap();
                        let before = std::mem::replace(&mut seen[usize::from(shard)], epoch.get());
                        assert!(before <= epoch.get(), "shard {shard}: {before} and then {epoch}");
                    }
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| tell(first));
                tell(second);
            });
        }

        #[test]
        fn the_larger_epoch_counts(
            first in prop::array::uniform3(1u32..9),
            news in prop::collection::vec(news(), 0..20)
        ) {
            let mut snapshot = Snapshot::new(map(&first));
            let (mut of_map, mut learned) = (first, [0; 3]);
            for item in news {
                match item {
                    News::Map(epochs) => {
                        snapshot = snapshot.with_map(map(&epochs));
                        // What was learned is forgotten once a map has it.
                        for shard in 0..3 {
                            if learned[shard] <= epochs[shard] { learned[shard] = 0 }
                        }
                        of_map = epochs;
                    }
                    News::Learned(shard, epoch) => {
                        let at = usize::from(shard);
                        if epoch > of_map[at].max(learned[at]) { learned[at] = epoch }
                        let shard = ShardId::new(shard).unwrap();
                        if let Some(newer) = snapshot.with(shard, &placement(1, epoch)) {
                            snapshot = newer;
                        }
                    }
                }
                for shard in 0..3u16 {
                    let at = usize::from(shard);
                    let (host, epoch) = snapshot.placement(ShardId::new(shard).unwrap()).unwrap();
                    prop_assert_eq!(epoch.get(), of_map[at].max(learned[at]));
                    let expected = if learned[at] > of_map[at] { "db1" } else { "db0" };
                    prop_assert_eq!(host.as_str(), expected);
                }
                prop_assert!(snapshot.learned.iter().len() <= 3);
            }
        }
    }
}
