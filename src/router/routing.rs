//! Which host a shard is on, as far as this router knows: the map, and what hosts have said since.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::task::AbortHandle;

use super::error::Error;
use super::host::Host;
use super::sql::SqlCache;
use crate::map::{Changes, HostName, Placement, ShardEpoch, ShardMap};
use crate::shard::{KeyKind, SchemaPrefix, ShardCount, ShardId};
use crate::store::Refresh;

/// What every handle of a router shares.
pub(super) struct Inner {
    pub(super) shards: ShardCount,
    pub(super) prefix: SchemaPrefix,
    pub(super) key: KeyKind,
    pub(super) hosts: HashMap<HostName, Arc<Host>>,
    pub(super) snapshot: ArcSwap<Snapshot>,
    pub(super) sql: SqlCache,
    pub(super) retry_for: Duration,
    /// The task that follows a store's maps, and what makes the store look.
    pub(super) follower: Mutex<Option<(AbortHandle, Refresh)>>,
    /// Statements and transactions that were run again.
    pub(super) retries: AtomicU64,
}

/// A map and the placements learned since. A try uses one snapshot: either the old one or the new, never a mixture.
pub(super) struct Snapshot {
    pub(super) map: Arc<ShardMap>,
    /// Only newer than the map, so at most N.
    learned: Changes,
}

/// Where one try of a statement goes.
pub(super) struct Place {
    pub(super) host: Arc<Host>,
    pub(super) epoch: ShardEpoch,
}

impl Snapshot {
    pub(super) fn new(map: Arc<ShardMap>) -> Snapshot {
        Snapshot { map, learned: Changes::new() }
    }

    fn placement(&self, shard: ShardId) -> Option<(&HostName, ShardEpoch)> {
        match self.learned.get(shard) {
            Some(placement) => Some((&placement.host, placement.epoch)),
            None => Some((self.map.host(shard)?, self.map.epoch(shard)?)),
        }
    }

    /// The same knowledge under a new map: what the map knows as well or better is dropped.
    fn with_map(&self, map: Arc<ShardMap>) -> Snapshot {
        let newer = |shard, placement: &Placement| map.epoch(shard).is_some_and(|epoch| epoch < placement.epoch);
        let kept = self.learned.iter().filter(|(shard, placement)| newer(*shard, placement));
        let learned = kept.map(|(shard, placement)| (shard, placement.clone())).collect();
        Snapshot { map, learned }
    }

    /// With one more placement, or `None` when that is no news.
    fn with(&self, shard: ShardId, placement: &Placement) -> Option<Snapshot> {
        if self.placement(shard)?.1 >= placement.epoch {
            return None;
        }
        let mut learned = self.learned.clone();
        learned.insert(shard, placement.clone());
        Some(Snapshot { map: self.map.clone(), learned })
    }
}

impl Inner {
    pub(super) fn host(&self, name: &str) -> Option<&Arc<Host>> {
        self.hosts.get(name)
    }

    /// Where the next try of a statement goes.
    pub(super) fn place(&self, shard: ShardId) -> Result<Place, Error> {
        let snapshot = self.snapshot.load();
        let (name, epoch) = snapshot.placement(shard).ok_or(Error::NoSuchShard { shard, shards: self.shards })?;
        match self.hosts.get(name) {
            Some(host) => Ok(Place { host: host.clone(), epoch }),
            None => Err(Error::UnknownHost { shard, host: name.to_string() }),
        }
    }

    /// The name of the host that the router takes to serve the shard.
    pub(super) fn host_name(&self, shard: ShardId) -> Option<HostName> {
        self.snapshot.load().placement(shard).map(|(name, _)| name.clone())
    }

    pub(super) fn set_map(&self, map: Arc<ShardMap>) -> Result<(), Error> {
        if map.shards() != self.shards {
            return Err(Error::OtherCluster { given: map.shards(), shards: self.shards });
        }
        self.snapshot.rcu(|snapshot| snapshot.with_map(map.clone()));
        Ok(())
    }

    /// Takes in what a host has said of itself.
    pub(super) fn learn(&self, shard: ShardId, placement: Placement) {
        self.snapshot.rcu(|snapshot| match snapshot.with(shard, &placement) {
            Some(newer) => Arc::new(newer),
            None => snapshot.clone(),
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some((follower, _)) = self.follower.lock().unwrap_or_else(PoisonError::into_inner).take() {
            follower.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::MapVersion;
    use proptest::prelude::*;

    fn placement(host: u8, epoch: u32) -> Placement {
        Placement { host: HostName::new(&format!("db{host}")).unwrap(), epoch: ShardEpoch::new(epoch).unwrap() }
    }

    fn map(epochs: &[u32]) -> Arc<ShardMap> {
        let shards = ShardCount::new(epochs.len() as u32).unwrap();
        let placements = shards.iter().zip(epochs).map(|(shard, epoch)| (shard, placement(0, *epoch)));
        Arc::new(ShardMap::new(MapVersion::FIRST, shards, placements).unwrap())
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

    proptest! {
        #[test]
        fn the_larger_epoch_counts(first in prop::array::uniform3(1u32..9), news in prop::collection::vec(news(), 0..20)) {
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
                        if let Some(newer) = snapshot.with(ShardId::new(shard).unwrap(), &placement(1, epoch)) {
                            snapshot = newer;
                        }
                    }
                }
                for shard in 0..3u16 {
                    let at = usize::from(shard);
                    let (host, epoch) = snapshot.placement(ShardId::new(shard).unwrap()).unwrap();
                    prop_assert_eq!(epoch.get(), of_map[at].max(learned[at]));
                    prop_assert_eq!(host.as_str(), if learned[at] > of_map[at] { "db1" } else { "db0" });
                }
                prop_assert!(snapshot.learned.iter().len() <= 3);
            }
        }
    }
}
