//! What the comparisons use: the cluster by its config, and the facts of all hosts.

use std::collections::BTreeMap;

use crate::map::{HostName, ShardEpoch};
use crate::schema::control::Cluster;
use crate::schema::survey::facts::{ControlFacts, HostFacts, ShardRow, Survey};
use crate::schema::survey::host_records::HostRecords;
use crate::schema::survey::ownership::{Ownership, Statement, settle};
use crate::shard::ShardId;

/// The hosts of the config.
pub(super) struct Hosts<'a> {
    pub(super) cluster: &'a Cluster,
    survey: &'a Survey,
    /// The hosts that have been bootstrapped.
    pub(super) controls: BTreeMap<&'a HostName, &'a ControlFacts>,
    pub(super) known: HostRecords<'a>,
}

/// A shard, and where the map has it.
#[derive(Clone, Copy)]
pub(super) struct InMap<'a> {
    pub(super) shard: ShardId,
    pub(super) host: &'a HostName,
    pub(super) epoch: ShardEpoch,
}

/// What a move has brought to a host that has not opened the shard.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Brought {
    Everything,
    /// Something is missing, or it is unknown whether it is.
    Less,
}

impl<'a> Hosts<'a> {
    pub(super) fn new(survey: &'a Survey, cluster: &'a Cluster) -> Hosts<'a> {
        let controls = survey
            .iter()
            .filter_map(|(host, facts)| Some((host, facts.as_ref().ok()?.control.as_ref()?)));
        Hosts {
            cluster,
            survey,
            controls: controls.collect(),
            known: HostRecords::of_survey(survey),
        }
    }

    /// The facts of a host; none if it could not be read.
    pub(super) fn facts(&self, host: &HostName) -> Option<&'a HostFacts> {
        self.survey.get(host)?.as_ref().ok()
    }

    /// The facts of the hosts that know a shard.
    fn rows(&self, shard: ShardId) -> impl Iterator<Item = (&'a HostName, &'a ShardRow)> {
        self.controls
            .iter()
            .filter_map(move |(host, control)| Some((*host, control.shards.get(&shard)?)))
    }

    /// Who serves a shard.
    pub(super) fn ownership(&self, shard: ShardId) -> Ownership<'a> {
        settle(
            self.rows(shard)
                .filter_map(|(by, row)| Statement::of(by, row)),
        )
    }

    /// The hosts that report the shard at an epoch to which no move can have led, by the map and
    /// the others.
    pub(super) fn jump(
        &self,
        InMap {
            shard,
            epoch: in_map,
            ..
        }: InMap<'_>,
    ) -> Option<(ShardEpoch, &'a HostName)> {
        let mut epochs: Vec<(ShardEpoch, &'a HostName)> = self
            .rows(shard)
            .map(|(host, row)| (row.epoch, host))
            .collect();
        epochs.sort_unstable();
        let (claimed, from) = epochs.pop()?;
        let others = epochs
            .last()
            .map_or(in_map, |(epoch, _)| in_map.max(*epoch));
        claimed.jumps(others).then_some((claimed, from))
    }

    /// What a move has brought of a shard to the host that it was given to; nothing if none is
    /// bringing it there.
    pub(super) fn brought(&self, shard: ShardId, given: Statement<'_>) -> Option<Brought> {
        let incoming = self.controls.get(given.owner)?.incoming.get(&shard)?;
        let row = self.controls.get(given.by)?.shards.get(&shard)?;
        // If the giver no longer knows the move, it is unknown what the move has brought.
        let is_whole = incoming.ready && row.move_id.is_none_or(|id| id == incoming.move_id);
        Some(if is_whole {
            Brought::Everything
        } else {
            Brought::Less
        })
    }

    /// Whether a host's journal has a move of the shard away from there that is at work or has
    /// stopped halfway.
    pub(super) fn is_moving(&self, host: &HostName, shard: ShardId) -> bool {
        self.controls
            .get(host)
            .is_some_and(|control| control.moving.contains(&shard))
    }
}
