//! Decides what to run where, from the facts of all hosts. Pure.
//!
//! Invariant: if any of the requested shards or hosts has run what the folder does not have,
//! nothing is run anywhere. The set of shards comes from the hosts, not from the map.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::request::{Canary, Request, Which};
use crate::map::{HostName, ShardEpoch, print_shards};
use crate::schema::control::id_functions::ID_FUNCTIONS;
use crate::schema::fleet::fault::{HostFault, ShardFault};
use crate::schema::fleet::migrations::{Migrations, Pending};
use crate::schema::survey::facts::{ControlFacts, HostFacts, ShardRow, ShardState, Survey};
use crate::schema::survey::host_records::HostRecords;
use crate::schema::survey::ownership::Statement;
use crate::schema::survey::refusal::{Refusal, pending_in_shards};
use crate::shard::ShardId;

/// What is to be run where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// By host, without those that could not be read.
    pub hosts: BTreeMap<HostName, HostPlan>,
}

/// What is to be run on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPlan {
    /// The first once-per-host migration to run.
    pub(super) host_from: usize,
    pub(super) shards: BTreeMap<ShardId, Pending>,
    /// How many shards lack nothing.
    pub unchanged: usize,
    /// The shards that lack something and are left alone, each with the reason.
    pub left: BTreeMap<ShardId, ShardFault>,
    /// Why nothing is run on the host.
    pub fault: Option<HostFault>,
}

impl Plan {
    /// Whether nothing is run because a file was edited, removed or inserted.
    pub fn is_refused(&self) -> bool {
        self.hosts.values().any(|host| {
            matches!(
                host.fault,
                Some(HostFault::Drift(_) | HostFault::Refused(_))
            )
        })
    }

    /// The moves that can be rolled back now and no longer once this has run, each with its shards:
    /// a migrated shard is not what its old copy was made from.
    pub fn ends_rollbacks(&self, survey: &Survey) -> BTreeMap<Uuid, Vec<ShardId>> {
        let controls = survey
            .values()
            .filter_map(|facts| facts.as_ref().ok()?.control.as_ref());
        let mut ended: BTreeMap<Uuid, Vec<ShardId>> = BTreeMap::new();
        for (shard, way) in controls.flat_map(|control| &control.open_rollbacks) {
            if self
                .hosts
                .get(&way.target)
                .is_some_and(|host| host.fault.is_none() && host.shards.contains_key(shard))
            {
                ended.entry(way.id).or_default().push(*shard);
            }
        }
        ended
    }

    /// The shards of the canary: spread evenly over all that are to be migrated, host by host.
    pub(super) fn canary(&self, canary: Canary) -> BTreeSet<ShardId> {
        let all: Vec<ShardId> = self
            .hosts
            .values()
            .flat_map(|host| host.shards.keys().copied())
            .collect();
        let count = canary.of(all.len()).min(all.len());
        (0..count).map(|at| all[at * all.len() / count]).collect()
    }
}

/// Shards of a host that lack the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Group<'a> {
    /// The migrations that they lack, in order.
    pub lacking: Vec<&'a str>,
    /// The shards.
    pub shards: Vec<ShardId>,
}

impl HostPlan {
    /// Whether a shard is here and lacks something.
    pub(super) fn lacks(&self, shard: ShardId) -> bool {
        self.fault.is_some() || self.shards.contains_key(&shard) || self.left.contains_key(&shard)
    }

    /// How many shards are to be migrated.
    pub fn to_do(&self) -> usize {
        self.shards.len() + self.left.len()
    }

    /// The once-per-host migrations to run, in order.
    pub fn once<'a>(&self, migrations: &'a Migrations) -> Vec<&'a str> {
        migrations
            .of_hosts()
            .skip(self.host_from)
            .map(|one| one.name())
            .collect()
    }

    /// The shards to migrate; those that lack the same are together.
    pub fn groups<'a>(&self, migrations: &'a Migrations) -> Vec<Group<'a>> {
        let mut groups: BTreeMap<Pending, Vec<ShardId>> = BTreeMap::new();
        for (shard, pending) in &self.shards {
            groups.entry(*pending).or_default().push(*shard);
        }
        let names = |pending: Pending| {
            let own = ID_FUNCTIONS[pending.own_from..].iter().map(|own| own.name);
            own.chain(migrations.iter().skip(pending.from).map(|one| one.name()))
                .collect()
        };
        groups
            .into_iter()
            .map(|(pending, shards)| Group {
                lacking: names(pending),
                shards,
            })
            .collect()
    }
}

/// What is to be run where, by the facts of the hosts.
pub fn plan(request: &Request, survey: &Survey) -> Plan {
    let mut plan = Plan::default();
    let known = HostRecords::of(
        request
            .hosts
            .iter()
            .map(|(name, _)| (name, facts_of(survey, name))),
    );
    for (name, facts) in survey.iter().filter(|(name, _)| request.chooses(name)) {
        let Ok(facts) = facts else { continue };
        let of_host = match (
            pending_in_shards(facts, &request.cluster, name),
            &facts.control,
        ) {
            (Err(refusals), _) => HostPlan {
                fault: Some(HostFault::Refused(refusals)),
                ..HostPlan::default()
            },
            (Ok(versions), Some(control)) if versions.is_empty() => {
                host_plan(request, survey, name, control)
            }
            (Ok(_), control) => {
                let emptied = known.missing_shards(name).filter(|_| control.is_none());
                let fault = emptied.map_or(HostFault::NotBootstrapped, |(shards, by)| {
                    HostFault::Refused(vec![Refusal::Emptied {
                        host: name.clone(),
                        by: by.clone(),
                        shards,
                    }])
                });
                HostPlan {
                    fault: Some(fault),
                    ..HostPlan::default()
                }
            }
        };
        plan.hosts.insert(name.clone(), of_host);
    }
    if plan
        .hosts
        .values()
        .any(|host| matches!(host.fault, Some(HostFault::Drift(_))))
    {
        for host in plan.hosts.values_mut() {
            host.fault.get_or_insert(HostFault::Withheld);
        }
    }
    plan
}

fn host_plan(
    request: &Request,
    survey: &Survey,
    name: &HostName,
    control: &ControlFacts,
) -> HostPlan {
    let migrations = &request.migrations;
    let mut plan = HostPlan::default();
    let mut drifts: BTreeMap<String, Vec<ShardId>> = BTreeMap::new();
    match migrations.pending_on_host(&control.host_migrations) {
        Ok(from) => plan.host_from = from,
        Err(found) => drifts.extend(
            found
                .iter()
                .map(|drift| (format!("{drift} ({})", drift.remedy()), Vec::new())),
        ),
    }
    let mut lacks = BTreeMap::new();
    for set in &control.applied {
        let verdict = migrations.pending(&set.migrations);
        lacks.extend(set.shards.iter().map(|shard| (*shard, verdict.clone())));
    }
    let nothing = migrations.pending(&[]);
    let everything = Pending {
        own_from: ID_FUNCTIONS.len(),
        from: migrations.iter().len(),
    };
    let wanted = |shard: &ShardId| {
        request
            .only_shards
            .as_ref()
            .is_none_or(|only| only.contains(shard))
    };
    for (shard, row) in control
        .shards
        .iter()
        .filter(|(shard, row)| row.state.is_owner() && wanted(shard))
    {
        let pending = match lacks.get(shard).unwrap_or(&nothing) {
            Ok(pending) => *pending,
            Err(found) => {
                for drift in found {
                    drifts
                        .entry(format!("{drift} ({})", drift.remedy()))
                        .or_default()
                        .push(*shard);
                }
                continue;
            }
        };
        if request.which == Which::Failed && !control.attempts.contains_key(shard) {
            continue;
        }
        if pending == everything {
            plan.unchanged += 1;
        } else if let Some(fault) = standing_back(control, survey, name, *shard, row) {
            plan.left.insert(*shard, fault);
        } else {
            plan.shards.insert(*shard, pending);
        }
    }
    if !drifts.is_empty() {
        let said = drifts
            .into_iter()
            .map(|(drift, shards)| match shards.len() {
                0 => format!("the host: {drift}"),
                1 => format!("shard {}: {drift}", shards[0]),
                _ => format!("shards {}: {drift}", print_shards(shards)),
            });
        plan.fault = Some(HostFault::Drift(said.collect()));
    }
    plan
}

/// Why a shard that a host owns is left alone: a move is at work, or another host owns it now.
pub(super) fn standing_back(
    control: &ControlFacts,
    survey: &Survey,
    host: &HostName,
    shard: ShardId,
    row: &ShardRow,
) -> Option<ShardFault> {
    if row.state == ShardState::Fenced || control.moving.contains(&shard) {
        return Some(ShardFault::Moving(control.open_moves.get(&shard).cloned()));
    }
    let later = later_owner(survey, host, shard, row.epoch);
    later.map(|(host, epoch)| ShardFault::ServedElsewhere { host, epoch })
}

/// The requested shards that no host serves, so that nothing is run in them. If only some hosts, or
/// only failed shards, were requested, there are none.
pub(super) fn unserved(request: &Request, survey: &Survey) -> BTreeMap<ShardId, ShardFault> {
    if !request.only_hosts.is_empty() || request.which == Which::Failed {
        return BTreeMap::new();
    }
    let known = HostRecords::of(
        request
            .hosts
            .iter()
            .map(|(name, _)| (name, facts_of(survey, name))),
    );
    let controls = || {
        survey
            .iter()
            .filter_map(|(name, facts)| Some((name, facts.as_ref().ok()?.control.as_ref()?)))
    };
    let served: BTreeSet<ShardId> = controls()
        .flat_map(|(_, control)| {
            control
                .shards
                .iter()
                .filter(|(_, row)| row.state.is_owner())
                .map(|(shard, _)| *shard)
        })
        .collect();
    let silent: Vec<&str> = request
        .hosts
        .iter()
        .filter(|(name, _)| facts_of(survey, name).is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    let reason = |shard: ShardId| {
        let incoming =
            controls().find_map(|(name, control)| Some((name, control.incoming.get(&shard)?)));
        match (incoming, known.lost(shard)) {
            (Some((host, incoming)), _) => Some(format!(
                "{} has given it to {host}, which has not opened it yet",
                incoming.source
            )),
            (None, Some(Statement { owner, by, .. })) if known.names(owner) => Some(format!(
                "{by} knows that it was on {owner}, which no longer knows it"
            )),
            (None, Some(Statement { owner, by, .. })) => Some(format!(
                "{by} knows that it was on {owner}, which the config does not name"
            )),
            (None, None) if silent.is_empty() => None,
            (None, None) => Some(format!("{} could not be asked", silent.join(", "))),
        }
    };
    let wanted = |shard: &ShardId| {
        request
            .only_shards
            .as_ref()
            .is_none_or(|only| only.contains(shard))
    };
    let missed = request
        .cluster
        .shards
        .iter()
        .filter(|shard| wanted(shard) && !served.contains(shard));
    missed
        .map(|shard| {
            (
                shard,
                ShardFault::Unserved {
                    reason: reason(shard),
                },
            )
        })
        .collect()
}

fn facts_of<'a>(survey: &'a Survey, name: &HostName) -> Option<&'a HostFacts> {
    survey.get(name).and_then(|facts| facts.as_ref().ok())
}

/// Another host that owns the shard, and rightly.
fn later_owner(
    survey: &Survey,
    here: &HostName,
    shard: ShardId,
    since: ShardEpoch,
) -> Option<(HostName, ShardEpoch)> {
    survey
        .iter()
        .filter(|(name, _)| *name != here)
        .find_map(|(name, facts)| {
            let row = facts.as_ref().ok()?.control.as_ref()?.shards.get(&shard)?;
            (row.state.is_owner() && row.epoch >= since).then(|| (name.clone(), row.epoch))
        })
}
