//! What one look has found, and what follows from it and the looks before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pgshard::ShardId;
use pgshard::map::{HostName, ShardMap};
use pgshard::mover::{Entry, MoveId, Progress, StreamProgress};
use pgshard::pg::cause::chain;
use pgshard::schema::{Finding, HostFacts, Severity};
use pgshard::store::postgres::Publication;

use super::super::moves::{Rate, among};
use super::super::survey::{Host, SurveyResult};
use crate::failure::Failure;

/// What is shown until the next look.
pub(super) struct Snapshot {
    /// When the look ended.
    pub(super) at: Timestamp,
    /// When the open moves were read, which is more often.
    pub(super) moves_at: Timestamp,
    pub(super) gathered: Arc<SurveyResult>,
    /// The map that was read last, and when, if it cannot be read now.
    pub(super) map_before: Option<Arc<(Timestamp, ShardMap)>>,
    /// When each host answered last.
    pub(super) heard: BTreeMap<HostName, Timestamp>,
    /// Rows written a second, of shards that were measured twice on one host.
    pub(super) writes: Arc<BTreeMap<ShardId, f64>>,
    /// The versions of the map, newest first; empty where the store keeps none.
    pub(super) history: Arc<Vec<Publication>>,
    /// The open moves, looked at more often than the rest.
    pub(super) open: Vec<OpenMove>,
    /// What hosts keep for rollbacks.
    pub(super) reverse_streams: Arc<Vec<StreamProgress>>,
}

/// A move that is under way.
#[derive(Clone)]
pub(super) struct OpenMove {
    pub(super) progress: Arc<Progress>,
    pub(super) rate: Option<Rate>,
}

/// A shard as its host describes it.
pub(super) struct Weight {
    pub(super) bytes: u64,
    /// Rows written a second.
    pub(super) writes: Option<f64>,
}

impl Snapshot {
    /// How long ago the look ended.
    pub(super) fn age(&self) -> Duration {
        Timestamp::now().duration_since(self.at).unsigned_abs()
    }

    /// The host with this name, if it answered.
    pub(super) fn host(&self, name: &HostName) -> Option<&Host> {
        self.gathered.hosts.get(name)
    }

    /// The host's own facts.
    pub(super) fn facts(&self, name: &HostName) -> Option<&HostFacts> {
        self.gathered.survey.get(name)?.as_ref().ok()
    }

    /// Whether the host did not answer.
    pub(super) fn is_silent(&self, name: &HostName) -> bool {
        self.host(name).is_none_or(|host| !host.is_read())
    }

    /// Why a host has no facts.
    pub(super) fn why_silent(&self, name: &HostName) -> String {
        match self.gathered.survey.get(name) {
            Some(Err(error)) => chain(error),
            _ => "it did not answer in time".to_owned(),
        }
    }

    /// Every finding, the worst first.
    pub(super) fn findings(&self) -> Vec<&Finding> {
        self.gathered.findings.iter().collect()
    }

    /// The worst finding of each shard that has one.
    pub(super) fn worst(&self) -> BTreeMap<ShardId, Severity> {
        let mut worst: BTreeMap<ShardId, Severity> = BTreeMap::new();
        for finding in self.findings() {
            for shard in &finding.shards {
                worst.entry(*shard).or_insert(finding.severity);
            }
        }
        worst
    }

    /// What the shards weigh by the hosts that own them.
    pub(super) fn weights(&self) -> BTreeMap<ShardId, Weight> {
        let mut weights = BTreeMap::new();
        for (_, measures) in self
            .gathered
            .hosts
            .values()
            .filter_map(|host| host.measured.as_ref())
        {
            for (shard, measure) in measures {
                weights.insert(
                    *shard,
                    Weight {
                        bytes: measure.bytes,
                        writes: self.writes.get(shard).copied(),
                    },
                );
            }
        }
        weights
    }

    /// The map that had this version, or the next one before it.
    pub(super) fn version(&self, version: u64) -> Option<&Publication> {
        self.history
            .iter()
            .find(|publication| publication.map.version().get() <= version)
    }

    /// The map to show: the one that is kept; where it cannot be read, the one that was read last,
    /// and when.
    pub(super) fn map_shown(&self) -> Option<(&ShardMap, Option<Timestamp>)> {
        let before = || self.map_before.as_deref().map(|(at, map)| (map, Some(*at)));
        self.map().map(|map| (map, None)).or_else(before)
    }

    /// The map that is kept.
    pub(super) fn map(&self) -> Option<&ShardMap> {
        self.gathered.map.as_ref()
    }

    /// The move with this ID, or the only one with an ID that begins so.
    ///
    /// # Errors
    /// As for the commands, when there is no such move, several are meant, or a host that was
    /// silent may have another.
    pub(super) fn move_named(&self, text: &str) -> Result<MoveId, Failure> {
        let silent = self
            .gathered
            .hosts
            .iter()
            .filter(|(_, host)| !host.is_read());
        among(
            text,
            &self.gathered.entries,
            silent.map(|(name, _)| (name, self.why_silent(name))),
        )
    }

    /// The journals' entries of one move, by shards.
    pub(super) fn entries_of(&self, id: MoveId) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = self
            .gathered
            .entries
            .iter()
            .filter(|entry| entry.id == id)
            .collect();
        entries.sort_by_key(|entry| entry.shard);
        entries
    }

    /// The journals' entries of one shard, the newest move first.
    pub(super) fn moves_of(&self, shard: ShardId) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = self
            .gathered
            .entries
            .iter()
            .filter(|entry| entry.shard == shard)
            .collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.created_at));
        entries
    }
}
