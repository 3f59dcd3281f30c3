//! What the hosts say, as all comparisons look at it.

use std::collections::BTreeMap;

use crate::map::{HostName, ShardEpoch};
use crate::schema::facts::{ControlFacts, HostFacts, ShardRow, ShardState, Survey};
use crate::schema::known::Known;
use crate::shard::ShardId;

pub(super) struct Hosts<'a> {
    pub(super) survey: &'a Survey,
    /// The hosts that have been bootstrapped.
    pub(super) controls: BTreeMap<&'a HostName, (&'a HostFacts, &'a ControlFacts)>,
    pub(super) known: Known<'a>,
}

impl<'a> Hosts<'a> {
    pub(super) fn rows(&self, shard: ShardId) -> impl Iterator<Item = (&'a HostName, &'a ShardRow)> {
        self.controls.iter().filter_map(move |(host, (_, control))| Some((*host, control.shards.get(&shard)?)))
    }

    /// Who says that it has given the shard away, at a later epoch than its owner knows: the epoch, the giver, and the
    /// receiver.
    pub(super) fn given_later(
        &self,
        shard: ShardId,
        served: ShardEpoch,
    ) -> Option<(ShardEpoch, &'a HostName, &'a HostName)> {
        let moved = self.rows(shard).filter(|(_, row)| row.state == ShardState::Moved && row.epoch > served);
        moved.filter_map(|(from, row)| Some((row.epoch, from, row.peer.as_ref()?))).max()
    }

    /// Who says that the shard is at an epoch to which no move can have led, by what the map and the others say.
    pub(super) fn jump(&self, shard: ShardId, in_map: ShardEpoch) -> Option<(ShardEpoch, &'a HostName)> {
        let mut epochs: Vec<(ShardEpoch, &'a HostName)> =
            self.rows(shard).map(|(host, row)| (row.epoch, host)).collect();
        epochs.sort_unstable();
        let (claimed, from) = epochs.pop()?;
        let others = epochs.last().map_or(in_map, |(epoch, _)| in_map.max(*epoch));
        claimed.jumps(others).then_some((claimed, from))
    }

    /// Whether a move is bringing a host a shard that another host has given to it, and whether everything is there.
    pub(super) fn brings(&self, shard: ShardId, from: &HostName, to: &HostName) -> Option<bool> {
        let brought = self.controls.get(to)?.1.incoming.get(&shard)?;
        let given = self.controls.get(from)?.1.shards.get(&shard)?;
        // If the giver no longer knows the move, it is unknown what the move has brought.
        Some(brought.ready && given.move_id.is_none_or(|id| id == brought.move_id))
    }

    pub(super) fn is_read(&self, host: &HostName) -> bool {
        matches!(self.survey.get(host), Some(Ok(_)))
    }
}
