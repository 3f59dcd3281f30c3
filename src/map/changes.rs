//! Changes of single shards: by a move, or between two versions of the map.

use std::collections::BTreeMap;
use std::fmt;

use super::placement::Placement;
use crate::shard::ShardId;

/// One shard with different placements in two maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The shard.
    pub shard: ShardId,
    /// Its placement in the older map.
    pub from: Placement,
    /// Its placement in the newer map.
    pub to: Placement,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { shard, from, to } = self;
        write!(
            f,
            "shard {shard}: {} @{} -> {} @{}",
            from.host, from.epoch, to.host, to.epoch
        )
    }
}

/// New placements of some shards, at most one a shard: the one with the largest epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes(BTreeMap<ShardId, Placement>);

impl Changes {
    /// No change.
    pub fn new() -> Changes {
        Changes::default()
    }

    /// Adds a placement, unless a newer one of the same shard is there.
    pub fn insert(&mut self, shard: ShardId, to: Placement) {
        match self.0.get(&shard) {
            Some(had) if had.epoch >= to.epoch => {}
            _ => {
                self.0.insert(shard, to);
            }
        }
    }

    /// The new placement of a shard, if there is one.
    pub fn get(&self, shard: ShardId) -> Option<&Placement> {
        self.0.get(&shard)
    }

    /// The shards with their new placements, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (ShardId, &Placement)> {
        self.0.iter().map(|(shard, to)| (*shard, to))
    }

    /// Whether there is no change.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(ShardId, Placement)> for Changes {
    fn from_iter<I: IntoIterator<Item = (ShardId, Placement)>>(placements: I) -> Changes {
        let mut changes = Changes::new();
        for (shard, to) in placements {
            changes.insert(shard, to);
        }
        changes
    }
}
