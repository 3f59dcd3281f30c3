//! [`ShardMap`]: a placement for every shard.

use std::fmt;

use super::changes::{Change, Changes};
use super::placement::{HostName, MapVersion, Placement, ShardEpoch};
use super::ranges::print_ranges;
use crate::shard::{ShardCount, ShardId};

/// What keeps placements from being a map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// A shard has no host.
    #[error("shard {shard} has no host")]
    Unplaced {
        /// The shard.
        shard: ShardId,
    },
    /// A shard has two hosts.
    #[error("shard {shard} is placed twice, on {first} and on {second}")]
    PlacedTwice {
        /// The shard.
        shard: ShardId,
        /// Where it was placed first.
        first: HostName,
        /// Where it was placed again.
        second: HostName,
    },
    /// A shard number that the cluster does not have.
    #[error("shard {shard} does not exist: the cluster has {shards} shards, 0 to \
        {}", shards.get() - 1)]
    OutOfRange {
        /// The shard.
        shard: ShardId,
        /// N.
        shards: ShardCount,
    },
    /// More hosts than a map can distinguish.
    #[error("a map can name at most {max} hosts", max = ShardMap::HOSTS_MAX)]
    TooManyHosts,
}

/// All placements of a cluster at one version. Immutable: a change makes a new map.
///
/// Six bytes a shard (48 KiB for 8192 shards) plus the host names, whatever the ranges look like.
#[derive(Clone, PartialEq, Eq)]
pub struct ShardMap {
    version: MapVersion,
    /// Sorted by name, each the host of at least one shard.
    hosts: Box<[HostName]>,
    /// By shard: its host, as an index into `hosts`.
    host_of: Box<[u16]>,
    /// By shard.
    epochs: Box<[ShardEpoch]>,
}

impl ShardMap {
    /// The largest number of hosts in one map. There are at most 8192 shards, and a host without
    /// any is in no map.
    pub const HOSTS_MAX: usize = 8192;

    /// A map of these placements.
    ///
    /// # Errors
    /// Everything that is wrong, in the order of the shards: a shard without a host or with two, or
    /// one that the cluster does not have.
    pub fn new(
        version: MapVersion,
        shards: ShardCount,
        placements: impl IntoIterator<Item = (ShardId, Placement)>,
    ) -> Result<ShardMap, Vec<MapError>> {
        let mut slots: Vec<Option<Placement>> = vec![None; usize::from(shards.get())];
        let mut errors = Vec::new();
        for (shard, placement) in placements {
            match slots.get_mut(shard.index()) {
                None => errors.push(MapError::OutOfRange { shard, shards }),
                Some(Some(first)) => errors.push(MapError::PlacedTwice {
                    shard,
                    first: first.host.clone(),
                    second: placement.host,
                }),
                Some(slot) => *slot = Some(placement),
            }
        }
        for (shard, slot) in shards.iter().zip(&slots) {
            if slot.is_none() {
                errors.push(MapError::Unplaced { shard });
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let slots: Vec<Placement> = slots.into_iter().flatten().collect();
        // Neighbours are usually on one host. Then a handful of names is sorted and looked up,
        // instead of thousands.
        let mut hosts: Vec<HostName> = Vec::new();
        for placement in &slots {
            if hosts.last() != Some(&placement.host) {
                hosts.push(placement.host.clone());
            }
        }
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.len() > Self::HOSTS_MAX {
            return Err(vec![MapError::TooManyHosts]);
        }
        let mut last = 0;
        let mut index = |host: &HostName| {
            if hosts[last] != *host {
                last = hosts
                    .binary_search(host)
                    .expect("every host of a slot was collected");
            }
            last as u16
        };
        let host_of = slots
            .iter()
            .map(|placement| index(&placement.host))
            .collect();
        let epochs = slots.iter().map(|placement| placement.epoch).collect();
        Ok(ShardMap {
            version,
            hosts: hosts.into(),
            host_of,
            epochs,
        })
    }

    /// The map's version.
    pub fn version(&self) -> MapVersion {
        self.version
    }

    /// N.
    pub fn shards(&self) -> ShardCount {
        ShardCount::new(self.host_of.len() as u32).expect("a map is made from a ShardCount")
    }

    /// The hosts that serve at least one shard, sorted by name.
    pub fn hosts(&self) -> &[HostName] {
        &self.hosts
    }

    /// The host that serves a shard; `None` when the cluster does not have that shard.
    pub fn host(&self, shard: ShardId) -> Option<&HostName> {
        Some(&self.hosts[usize::from(*self.host_of.get(shard.index())?)])
    }

    /// The epoch of a shard's placement; `None` when the cluster does not have that shard.
    pub fn epoch(&self, shard: ShardId) -> Option<ShardEpoch> {
        self.epochs.get(shard.index()).copied()
    }

    /// Host and epoch of a shard; `None` when the cluster does not have that shard.
    pub fn placement(&self, shard: ShardId) -> Option<Placement> {
        Some(Placement {
            host: self.host(shard)?.clone(),
            epoch: self.epoch(shard)?,
        })
    }

    /// Every shard with its host and epoch, in the order of the shards.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (ShardId, &HostName, ShardEpoch)> {
        let host = |index: &u16| &self.hosts[usize::from(*index)];
        self.shards()
            .iter()
            .zip(self.host_of.iter().zip(&self.epochs))
            .map(move |(s, (h, e))| (s, host(h), *e))
    }

    /// The shards that a host serves, in order.
    pub fn shards_on(&self, host: &HostName) -> impl Iterator<Item = ShardId> {
        self.iter()
            .filter(move |(_, on, _)| *on == host)
            .map(|(shard, ..)| shard)
    }

    /// A host's placements in the notation of the config: `"0-2047, 3000@2"`.
    pub fn ranges(&self, host: &HostName) -> String {
        print_ranges(
            self.iter()
                .filter(|(_, on, _)| *on == host)
                .map(|(shard, _, epoch)| (shard, epoch)),
        )
    }

    /// The changes in `newer`: every shard with another host or epoch, in order.
    ///
    /// # Panics
    /// When the maps have different numbers of shards: they are then not maps of one cluster.
    pub fn diff(&self, newer: &ShardMap) -> Vec<Change> {
        assert_eq!(
            self.shards(),
            newer.shards(),
            "maps of one cluster have the same number of shards"
        );
        let pairs = self.iter().zip(newer.iter());
        let changed =
            pairs.filter(|((_, host, epoch), (_, host2, epoch2))| (host, epoch) != (host2, epoch2));
        changed
            .map(|((shard, host, epoch), (_, host2, epoch2))| Change {
                shard,
                from: Placement {
                    host: host.clone(),
                    epoch,
                },
                to: Placement {
                    host: host2.clone(),
                    epoch: epoch2,
                },
            })
            .collect()
    }

    /// The map with these placements taken in, and the next version. A placement is taken where its
    /// epoch is larger than the map's, so movers that publish side by side never undo each other's
    /// result. When no placement is newer, the map that is returned is the same, and so is its
    /// version.
    #[must_use]
    pub fn merged(&self, changes: &Changes) -> ShardMap {
        let newer = |(shard, to): &(ShardId, &Placement)| {
            self.epoch(*shard).is_some_and(|mine| mine < to.epoch)
        };
        if !changes.iter().any(|change| newer(&change)) {
            return self.clone();
        }
        let merged = self
            .iter()
            .map(|(shard, host, epoch)| match changes.get(shard) {
                Some(to) if to.epoch > epoch => (shard, to.clone()),
                _ => (
                    shard,
                    Placement {
                        host: host.clone(),
                        epoch,
                    },
                ),
            });
        ShardMap::new(self.version.next(), self.shards(), merged)
            .expect("a merge places each shard of a map once")
    }

    /// The same placements under another version.
    #[must_use]
    pub fn with_version(&self, version: MapVersion) -> ShardMap {
        ShardMap {
            version,
            ..self.clone()
        }
    }
}

impl fmt::Debug for ShardMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("ShardMap");
        out.field("version", &self.version.get());
        for host in &self.hosts {
            out.field(host.as_str(), &self.ranges(host));
        }
        out.finish()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::map::parse_ranges;
    use proptest::prelude::*;

    /// Any map of up to 40 shards on up to 4 hosts.
    pub(crate) fn any_map() -> impl Strategy<Value = ShardMap> {
        prop::collection::vec((0u8..4, 1u32..4), 1..40).prop_map(|slots| {
            let shards = ShardCount::new(slots.len() as u32).unwrap();
            let placements = shards
                .iter()
                .zip(slots)
                .map(|(shard, (host, epoch))| (shard, place(host, epoch)));
            ShardMap::new(MapVersion::FIRST, shards, placements).unwrap()
        })
    }

    fn place(host: u8, epoch: u32) -> Placement {
        Placement {
            host: HostName::new(&format!("db{host}")).unwrap(),
            epoch: ShardEpoch::new(epoch).unwrap(),
        }
    }

    fn changes(list: &[Change]) -> Changes {
        list.iter()
            .map(|change| (change.shard, change.to.clone()))
            .collect()
    }

    proptest! {
        #[test]
        fn printed_ranges_parse_to_the_same_map(map in any_map()) {
            let mut placements = Vec::new();
            for host in map.hosts() {
                for item in parse_ranges(&map.ranges(host), map.shards()).unwrap() {
                    let placement = Placement { host: host.clone(), epoch: item.epoch };
                    placements.extend(item.shards().map(|shard| (shard, placement.clone())));
                }
            }
            prop_assert_eq!(ShardMap::new(map.version(), map.shards(), placements).unwrap(), map);
        }

        #[test]
        fn merging_the_diff_gives_the_newer_map(
            (old, moves) in (any_map(), prop::collection::vec((0u16..40, 0u8..4), 0..9))
        ) {
            let shards = old.shards();
            let moved: Changes = moves.into_iter().filter_map(|(shard, host)| {
                let shard = shards.shard(shard)?;
                Some((shard, place(host, old.epoch(shard)?.next().get())))
            }).collect();
            let new = old.merged(&moved);
            let diff = old.diff(&new);
            prop_assert_eq!(old.merged(&changes(&diff)), new.clone());
            prop_assert_eq!(diff.is_empty(), old.version() == new.version());
            prop_assert_eq!(new.merged(&changes(&new.diff(&old))), new, "an older placement never \
                wins");
        }

        #[test]
        fn merging_is_the_same_in_any_order(
            map in any_map(),
            a in (0u16..40, 0u8..4, 1u32..9),
            b in (0u16..40, 0u8..4, 1u32..9)
        ) {
            // Two movers: same shard with the same epoch cannot happen, one epoch is given out
            // once.
            prop_assume!(a.0 != b.0 || a.2 != b.2);
            let one = |(shard, host, epoch)| {
                Changes::from_iter([(ShardId::new(shard).unwrap(), place(host, epoch))])
            };
            let ab = map.merged(&one(a)).merged(&one(b)).with_version(MapVersion::FIRST);
            let ba = map.merged(&one(b)).merged(&one(a)).with_version(MapVersion::FIRST);
            prop_assert_eq!(ab, ba);
        }
    }

    #[test]
    fn all_that_is_wrong_is_said() {
        let shard = |n| ShardId::new(n).unwrap();
        let shards = ShardCount::new(3).unwrap();
        let placements = [
            (shard(0), place(0, 1)),
            (shard(0), place(1, 1)),
            (shard(7), place(0, 1)),
        ];
        let errors = ShardMap::new(MapVersion::FIRST, shards, placements).unwrap_err();
        let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "shard 0 is placed twice, on db0 and on db1",
                "shard 7 does not exist: the cluster has 3 shards, 0 to 2",
                "shard 1 has no host",
                "shard 2 has no host",
            ]
        );
    }

    #[test]
    fn a_map_of_8192_shards_costs_kilobytes() {
        let placements = ShardCount::MAX
            .iter()
            .map(|shard| (shard, place((shard.get() % 4) as u8, 1)));
        let map = ShardMap::new(MapVersion::FIRST, ShardCount::MAX, placements).unwrap();
        let bytes =
            size_of_val(&*map.host_of) + size_of_val(&*map.epochs) + size_of_val(&*map.hosts);
        assert!(bytes < 50 * 1024, "{bytes} bytes");
    }
}
