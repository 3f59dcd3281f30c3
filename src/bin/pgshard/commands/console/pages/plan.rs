//! The output of `pgshard rebalance --plan`, from what was seen.

use std::collections::{BTreeMap, BTreeSet};

use pgshard::ShardId;
use pgshard::rebalance::{Options, Pace, Plan, plan, waves};

use super::super::super::measure::ShardWeight;
use super::super::super::rebalance::problem;
use super::super::route::Spread;
use super::super::snapshot::Snapshot;
use crate::args::By;

/// As `pgshard rebalance` runs a plan by default.
const PACE: Pace = Pace {
    groups_per_host: 1,
    shards_per_group: 16,
};

/// So long the command counts rows by default.
const SAMPLE_S: f64 = 10.0;

/// A plan, and how many waves it takes.
pub(in super::super) struct Planning {
    pub(in super::super) plan: Plan,
    pub(in super::super) by: By,
    pub(in super::super) waves: usize,
    /// The shards that open moves hold.
    pub(in super::super) stays: BTreeSet<ShardId>,
}

impl Planning {
    /// Plans. It needs the word of every host, as the command does.
    pub(in super::super) fn new(seen: &Snapshot, spread: Spread) -> Result<Planning, String> {
        let gathered = &seen.gathered;
        let config = gathered
            .config
            .as_ref()
            .ok_or("the config cannot be read")?;
        let mut weighed: BTreeMap<ShardId, ShardWeight> = BTreeMap::new();
        for (name, host) in &gathered.hosts {
            if !host.is_read() {
                return Err(format!(
                    "host {name} does not answer, and a plan needs the word of all"
                ));
            }
            let Some((_, measures)) = &host.measured else {
                return Err(format!("host {name} has not said what its shards weigh"));
            };
            for (shard, measure) in measures {
                let weight = match spread {
                    Spread::Count => 1,
                    Spread::Bytes => measure.bytes,
                    Spread::Writes => seen
                        .writes
                        .get(shard)
                        .map_or(0, |rate| (rate * SAMPLE_S).round() as u64),
                };
                let one = ShardWeight {
                    host: name.clone(),
                    weight,
                    bytes: measure.bytes,
                };
                if weighed.insert(*shard, one).is_some() {
                    return Err(format!("two hosts own shard {shard}"));
                }
            }
        }
        if spread == Spread::Writes && seen.writes.is_empty() {
            return Err("the rows written are known after the second look".to_owned());
        }
        let open = gathered
            .entries
            .iter()
            .filter(|entry| !entry.phase.is_ended());
        let stays: BTreeSet<ShardId> = open.map(|entry| entry.shard).collect();
        let problem = problem(config, &weighed, &stays, Options::default());
        let plan = plan(&problem).map_err(|error| error.to_string())?;
        let waves = waves(&problem, &plan.moves, PACE)
            .map_err(|error| error.to_string())?
            .len();
        let by = match spread {
            Spread::Count => By::Count,
            Spread::Bytes => By::Bytes,
            Spread::Writes => By::Writes,
        };
        Ok(Planning {
            plan,
            by,
            waves,
            stays,
        })
    }
}
