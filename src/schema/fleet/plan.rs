//! Decides what bootstrap has to do on a host, from the facts of all hosts. Pure.
//!
//! Invariant: a shard is created only where the map puts it, only if it never moved (epoch 1), if
//! no host has a record of it (no row in any state, no move that brings it), if every host of the
//! config has been read, and if no schema has its name. An empty second copy of a shard would take
//! writes that belong to the first. A shard that any host has a record of is created again only if
//! an operator declares that its host's rows are permanently lost.
//!
//! The reasons: a map can be stale, edited by hand, or from a backup. A row `moved` shows that the
//! shard exists; a host that is down may have it; a shard with a later epoch was somewhere. A host
//! that certainly never had a shard can be assumed empty, for the first set-up of a cluster while
//! one of its servers does not exist yet.
//!
//! Invariant: no migration is run anywhere while any of the hosts that are written to has run what
//! the folder does not have: then an operator who has edited a file finds one shard that differs,
//! not thousands.

use std::collections::{BTreeMap, BTreeSet};

use super::fault::ShardFault;
use super::migrations::{Drift, Migrations, Pending};
use crate::map::{HostName, ShardEpoch};
use crate::pg::ConnectOptions;
use crate::schema::control::Cluster;
use crate::schema::control::damage::{Damage, damages};
use crate::schema::control::id_functions::UNFINISHED;
use crate::schema::control::shape;
use crate::schema::survey::facts::{ControlFacts, HostFacts, ShardState};
use crate::schema::survey::host_records::HostRecords;
use crate::schema::survey::ownership::Statement;
use crate::schema::survey::refusal::{Refusal, pending};
use crate::shard::{SchemaPrefix, ShardId, WholeSchema};

/// A host of the config, with the shards that the map places there.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name.
    pub name: HostName,
    /// How to reach it.
    pub connect: ConnectOptions,
    /// Its shards, each with the epoch that the map has.
    pub shards: Vec<(ShardId, ShardEpoch)>,
}

/// What is to be done on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::schema) struct HostPlan {
    /// The control migrations to run.
    pub(in crate::schema) control: Vec<i32>,
    /// The damage of the control schema to repair.
    pub(in crate::schema) damaged: Vec<Damage>,
    /// The first once-per-host migration to run.
    pub(in crate::schema) host_from: usize,
    /// The remains of shards that an earlier bootstrap was making, to be dropped first.
    pub(in crate::schema) unfinished: BTreeSet<ShardId>,
    /// The shards to create.
    pub(in crate::schema) create: Vec<(ShardId, ShardEpoch)>,
    /// The shards that are served here and lack migrations.
    pub(in crate::schema) migrate: Vec<(ShardId, Pending)>,
    /// How many shards lack nothing.
    pub(in crate::schema) unchanged: usize,
    /// The shards that must be left as they are.
    pub(in crate::schema) refused: BTreeMap<ShardId, ShardFault>,
    /// On an unsharded host that serves nothing yet: since when it serves all shards.
    pub(in crate::schema) serve_all: Option<(WholeSchema, ShardEpoch)>,
}

/// What the hosts know about the shards, independent of the map.
pub(in crate::schema) struct Knowledge<'a> {
    by_shard: BTreeMap<ShardId, Vec<(&'a HostName, ShardRecord<'a>)>>,
    /// The hosts that could not be read and were not declared empty.
    unread: Vec<HostName>,
    /// The hosts that others know and the config does not name.
    absent: Vec<HostName>,
    known: HostRecords<'a>,
    /// Hosts with rows that are permanently lost, as an operator has declared.
    lost: &'a BTreeSet<HostName>,
    /// Whether a shard or a host has run what the folder does not have.
    drifted: bool,
}

enum ShardRecord<'a> {
    Row(ShardState, ShardEpoch, Option<&'a HostName>),
    Incoming(&'a HostName),
}

impl<'a> Knowledge<'a> {
    /// Gathers the facts of the hosts that could be read.
    pub(in crate::schema) fn of(
        hosts: impl IntoIterator<Item = (&'a HostName, Option<&'a HostFacts>)>,
        assume_empty: &BTreeSet<HostName>,
        lost: &'a BTreeSet<HostName>,
    ) -> Knowledge<'a> {
        let hosts: Vec<_> = hosts.into_iter().collect();
        let known = HostRecords::of(hosts.iter().copied());
        let absent = known
            .absent()
            .into_keys()
            .filter(|host| !lost.contains(*host))
            .cloned()
            .collect();
        let mut knowledge = Knowledge {
            by_shard: BTreeMap::new(),
            unread: Vec::new(),
            absent,
            known,
            lost,
            drifted: false,
        };
        for (host, facts) in hosts {
            let Some(facts) = facts else {
                // If a host had shards, it cannot be declared to have none.
                let assume_empty = assume_empty.contains(host) && !knowledge.known.had_shards(host);
                if !assume_empty && !lost.contains(host) {
                    knowledge.unread.push(host.clone());
                }
                continue;
            };
            for control in facts.control.iter() {
                for (shard, row) in &control.shards {
                    let known = ShardRecord::Row(row.state, row.epoch, row.peer.as_ref());
                    knowledge
                        .by_shard
                        .entry(*shard)
                        .or_default()
                        .push((host, known));
                }
                for (shard, incoming) in &control.incoming {
                    let known = ShardRecord::Incoming(&incoming.source);
                    knowledge
                        .by_shard
                        .entry(*shard)
                        .or_default()
                        .push((host, known));
                }
            }
        }
        knowledge
    }

    /// The same, with what must be withheld: these are the hosts that are written to.
    pub(in crate::schema) fn with_drift<'b>(
        mut self,
        written_to: impl IntoIterator<Item = &'b HostFacts>,
        migrations: &Migrations,
    ) -> Knowledge<'a> {
        self.drifted = written_to
            .into_iter()
            .filter_map(|facts| facts.control.as_ref())
            .any(|control| {
                // What a moved shard had does not matter any longer.
                let owned = |shard: &ShardId| {
                    control
                        .shards
                        .get(shard)
                        .is_some_and(|row| row.state.is_owner())
                };
                let mut of_shards = control
                    .applied
                    .iter()
                    .filter(|set| set.shards.iter().any(owned));
                of_shards.any(|set| migrations.pending(&set.migrations).is_err())
                    || migrations
                        .pending_on_host(&control.host_migrations)
                        .is_err()
            });
        self
    }

    /// Whether there is a host of this name, or any host that answers knows that there was one.
    pub(in crate::schema) fn has_heard_of(&self, host: &HostName) -> bool {
        self.known.names(host) || self.known.had_shards(host) || self.known.is_recorded(host)
    }

    /// The owner of a shard other than this host, the one with the largest epoch.
    fn owner_besides(&self, shard: ShardId, here: &HostName) -> Option<ShardFault> {
        let known = self.by_shard.get(&shard)?.iter();
        let owners = known.filter_map(|(host, known)| match known {
            ShardRecord::Row(state, epoch, _) if state.is_owner() && *host != here => {
                Some((*epoch, *host))
            }
            _ => None,
        });
        owners
            .max()
            .map(|(epoch, host)| ShardFault::ServedElsewhere {
                host: host.clone(),
                epoch,
            })
    }

    /// Why a shard that has no row on this host may not be created there.
    fn forbids(&self, shard: ShardId, here: &HostName, epoch: ShardEpoch) -> Option<ShardFault> {
        if let Some(fault) = self.owner_besides(shard, here) {
            return Some(fault);
        }
        // A move that brings the shard is more precise than the row `moved` of the host that it
        // left.
        let known = self.by_shard.get(&shard).into_iter().flatten();
        let fault = known.map(|(host, known)| match known {
            ShardRecord::Incoming(source) => ShardFault::Arriving {
                host: (*host).clone(),
                source_host: (*source).clone(),
            },
            ShardRecord::Row(_, epoch, peer) => ShardFault::Moved {
                host: (*host).clone(),
                peer: peer.cloned(),
                epoch: *epoch,
            },
        });
        let fault = fault.min_by_key(|fault| matches!(fault, ShardFault::Moved { .. }));
        if fault.is_some() {
            return fault;
        }
        match self.known.lost(shard) {
            Some(Statement { owner, by, .. }) if !self.lost.contains(owner) => {
                let (host, by, named) = (owner.clone(), by.clone(), self.known.names(owner));
                return Some(ShardFault::Lost { host, by, named });
            }
            Some(_) => {}
            None if epoch > ShardEpoch::FIRST => return Some(ShardFault::Unknown { epoch }),
            None => {}
        }
        let (unread, absent) = (self.unread.clone(), self.absent.clone());
        if !unread.is_empty() {
            return Some(ShardFault::Unread { hosts: unread });
        }
        (!absent.is_empty()).then_some(ShardFault::Absent { hosts: absent })
    }

    /// The epoch with which a shard is created. It is later than any record of it, so that the new
    /// shard is not mistaken for the lost one.
    fn first_epoch(&self, shard: ShardId, in_map: ShardEpoch) -> ShardEpoch {
        self.known
            .lost(shard)
            .map_or(in_map, |last| last.epoch.max(in_map))
    }

    /// Why a host with an empty database is left alone.
    fn emptied(&self, host: &HostName, facts: &HostFacts) -> Option<Refusal> {
        if facts.control.is_some() || self.lost.contains(host) {
            return None;
        }
        let (shards, by) = self.known.missing_shards(host)?;
        Some(Refusal::Emptied {
            host: host.clone(),
            by: by.clone(),
            shards,
        })
    }
}

/// Decides what to do on a host.
///
/// # Errors
/// Every reason why nothing may be done there.
pub(in crate::schema) fn plan(
    host: &Host,
    facts: &HostFacts,
    knowledge: &Knowledge<'_>,
    cluster: &Cluster,
    migrations: &Migrations,
) -> Result<HostPlan, Vec<Refusal>> {
    let control = facts.control.clone().unwrap_or_default();
    let versions = pending(facts, cluster, &host.name)?;
    if let Some(refusal) = knowledge.emptied(&host.name, facts) {
        return Err(vec![refusal]);
    }
    let host_from = migrations
        .pending_on_host(&control.host_migrations)
        .map_err(|drifts| {
            let refusal = |drift: &Drift| Refusal::HostMigrations {
                said: drift.to_string(),
                remedy: drift.remedy(),
            };
            drifts.iter().map(refusal).collect::<Vec<_>>()
        })?;
    let mut plan = HostPlan {
        control: versions,
        damaged: mendable(&control),
        host_from,
        ..HostPlan::default()
    };
    if let Some(schema) = cluster.whole(&host.name) {
        plan.host_from = migrations.of_hosts().len();
        return whole_plan(
            host,
            facts,
            knowledge,
            (schema, &cluster.schema_prefix),
            plan,
        );
    }
    // Judged once for each set of migrations, not once for each of thousands of shards.
    let mut lacks = BTreeMap::new();
    for set in &control.applied {
        let verdict = migrations.pending(&set.migrations);
        lacks.extend(set.shards.iter().map(|shard| (*shard, verdict.clone())));
    }
    let (nothing, everything) = (
        migrations.pending(&[]),
        Pending {
            own_from: crate::schema::control::id_functions::ID_FUNCTIONS.len(),
            from: migrations.iter().len(),
        },
    );
    let of_unfinished = control
        .applied
        .iter()
        .filter(|set| set.migrations.iter().any(|one| one.name == UNFINISHED));
    let unfinished = of_unfinished.flat_map(|set| set.shards.iter().copied());
    plan.unfinished = unfinished
        .filter(|shard| !control.shards.contains_key(shard))
        .collect();
    for (shard, epoch) in &host.shards {
        let schema = cluster.schema_prefix.schema(*shard);
        let has_schema = facts.schemas.contains(&schema);
        let refused = match control.shards.get(shard) {
            None => match knowledge.forbids(*shard, &host.name, *epoch) {
                Some(fault) => Some(fault),
                None if has_schema && !plan.unfinished.contains(shard) => {
                    Some(ShardFault::SchemaTaken { schema })
                }
                None => {
                    plan.create
                        .push((*shard, knowledge.first_epoch(*shard, *epoch)));
                    None
                }
            },
            Some(row) if row.state == ShardState::Moved => Some(ShardFault::Moved {
                host: host.name.clone(),
                peer: row.peer.clone(),
                epoch: row.epoch,
            }),
            Some(_) if !has_schema => Some(ShardFault::SchemaGone { schema }),
            Some(row) => match lacks.get(shard).unwrap_or(&nothing) {
                Err(drifts) => Some(ShardFault::Drift(drifts.clone())),
                Ok(pending) if *pending == everything => {
                    plan.unchanged += 1;
                    None
                }
                Ok(_) if row.state == ShardState::Fenced || control.moving.contains(shard) => {
                    Some(ShardFault::Moving(control.open_moves.get(shard).cloned()))
                }
                Ok(pending) => {
                    let elsewhere = knowledge.owner_besides(*shard, &host.name);
                    if elsewhere.is_none() {
                        plan.migrate.push((*shard, *pending));
                    }
                    elsewhere
                }
            },
        };
        plan.refused.extend(refused.map(|fault| (*shard, fault)));
    }
    if knowledge.drifted {
        let withheld = plan.create.drain(..).map(|(shard, _)| shard);
        let withheld = withheld.chain(plan.migrate.drain(..).map(|(shard, _)| shard));
        plan.refused
            .extend(withheld.map(|shard| (shard, ShardFault::Withheld)));
        plan.host_from = migrations.of_hosts().len();
        plan.unfinished.clear();
    }
    // This comes before anything is written: otherwise a role that may not create schemas would
    // fail at the first shard.
    if !plan.create.is_empty() && !facts.server.may_create {
        let (role, database) = (facts.server.role.clone(), facts.server.database.clone());
        return Err(vec![Refusal::MayNotCreate { role, database }]);
    }
    Ok(plan)
}

/// The same on an unsharded host: it serves all shards that the map places there, if no other host
/// has a record of one. No migration is run there, and no schema is created.
fn whole_plan(
    host: &Host,
    facts: &HostFacts,
    knowledge: &Knowledge<'_>,
    (schema, prefix): (&WholeSchema, &SchemaPrefix),
    mut plan: HostPlan,
) -> Result<HostPlan, Vec<Refusal>> {
    let Some(control) = &facts.control else {
        let of_shard = |name: &&String| prefix.shard(name).is_some();
        if let Some(found) = facts.schemas.iter().find(of_shard) {
            let (schema, found) = (schema.to_string(), found.clone());
            return Err(vec![Refusal::HasShards { schema, found }]);
        }
        plan.offer_all(host, knowledge, schema);
        return Ok(plan);
    };
    match &control.whole {
        Some(_) => plan.unchanged = host.shards.len(),
        None => plan.offer_all(host, knowledge, schema),
    }
    Ok(plan)
}

impl HostPlan {
    /// Lets an unsharded host serve all shards that the map places there, if it may have them.
    fn offer_all(&mut self, host: &Host, knowledge: &Knowledge<'_>, schema: &WholeSchema) {
        for (shard, epoch) in &host.shards {
            let fault = knowledge.forbids(*shard, &host.name, *epoch);
            self.refused.extend(fault.map(|fault| (*shard, fault)));
        }
        if !host.shards.is_empty() && self.refused.is_empty() {
            self.serve_all = Some((schema.clone(), ShardEpoch::FIRST));
        }
    }
}

/// The damage of the control schema that bootstrap can repair. `check` reports what is to be done
/// by hand.
fn mendable(control: &ControlFacts) -> Vec<Damage> {
    let of_tables = control
        .shape
        .as_ref()
        .map(shape::damages)
        .unwrap_or_default();
    let all = control
        .installed
        .as_ref()
        .map(damages)
        .unwrap_or_default()
        .into_iter()
        .chain(of_tables);
    all.filter(|damage| damage.by_hand.is_none()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::migrations::tests::migrations;
    use super::*;
    use crate::schema::survey::refusal::tests::cluster;
    use crate::schema::tables::{epoch, host, shard, survey_of};

    /// What is decided about shard 0, which the map puts on db1 at this epoch.
    fn planned(at: u32, hosts: &[(&str, &str)], assume_empty: &[&str]) -> String {
        let survey = survey_of(hosts);
        let assume_empty = assume_empty.iter().map(|name| host(name)).collect();
        let nobody = BTreeSet::new();
        let said = survey
            .iter()
            .map(|(host, facts)| (host, facts.as_ref().ok()));
        let knowledge = Knowledge::of(said, &assume_empty, &nobody);
        let knowledge = knowledge.with_drift(
            survey.values().filter_map(|facts| facts.as_ref().ok()),
            &migrations(&[]).unwrap(),
        );
        let connect = ConnectOptions::parse("host=x user=x dbname=x").unwrap();
        let here = Host {
            name: host("db1"),
            connect,
            shards: vec![(shard(0), epoch(at))],
        };
        let facts = survey["db1"].as_ref().unwrap();
        let folder = migrations(&[("0001_a.sql", "select {shard}.a()")]).unwrap();
        let plan = plan(&here, facts, &knowledge, &cluster(), &folder).unwrap();
        match (
            plan.create.first(),
            plan.migrate.first(),
            plan.refused.get(&shard(0)),
        ) {
            (Some((_, at)), None, None) => format!("create at {at}"),
            (None, Some(_), None) => "migrate".to_owned(),
            (None, None, Some(fault)) => fault.to_string(),
            (None, None, None) => "nothing".to_owned(),
            _ => panic!("both done and refused"),
        }
    }

    #[test]
    fn a_shard_is_created_only_when_nobody_can_know_it() {
        for (at, hosts, assume_empty, expected) in [
            (
                1,
                vec![("db1", "empty"), ("db2", "empty")],
                vec![],
                "create at 1",
            ),
            (
                1,
                vec![("db1", ""), ("db2", "1 serving 1")],
                vec![],
                "create at 1",
            ),
            (
                1,
                vec![("db1", ""), ("db2", "down")],
                vec![],
                "db2 could not be asked whether it serves it",
            ),
            (
                1,
                vec![("db1", ""), ("db2", "down")],
                vec!["db2"],
                "create at 1",
            ),
            (
                2,
                vec![("db1", ""), ("db2", "")],
                vec![],
                "the map says that it has moved before (epoch 2), but no host knows it",
            ),
            (
                1,
                vec![("db1", ""), ("db2", "0 serving 1")],
                vec!["db2"],
                "db2 serves it (epoch 1)",
            ),
            (
                1,
                vec![("db1", ""), ("db2", "0 fenced 4 db3")],
                vec![],
                "db2 serves it (epoch 4)",
            ),
            (
                1,
                vec![("db1", ""), ("db2", "0 moved 2 db3"), ("db3", "")],
                vec![],
                "db2 says that it has moved to db3 (epoch 2)",
            ),
            (
                1,
                vec![("db1", "0 incoming 2 db2"), ("db2", "0 moved 2 db1")],
                vec![],
                "a move is bringing it from db2 to db1",
            ),
            (
                1,
                vec![("db1", "0 moved 2 db2"), ("db2", "down")],
                vec![],
                "db1 says that it has moved to db2 (epoch 2)",
            ),
            (
                1,
                vec![("db1", "0 serving 1"), ("db2", "down")],
                vec![],
                "migrate",
            ),
            (
                1,
                vec![("db1", "0 serving 3"), ("db2", "0 moved 3 db1")],
                vec![],
                "migrate",
            ),
            (
                1,
                vec![("db1", "0 serving 1"), ("db2", "0 serving 2")],
                vec![],
                "db2 serves it (epoch 2)",
            ),
            (
                1,
                vec![("db1", "0 fenced 1 db2")],
                vec![],
                "a move away from here is at work, and migrations wait for it",
            ),
            (
                1,
                vec![("db1", "0 serving 1, 0 moving")],
                vec![],
                "a move away from here is at work, and migrations wait for it",
            ),
            // What others remember, about a host that answers and about one that the config does
            // not name.
            (
                1,
                vec![("db1", ""), ("db2", "0 knows db1 1")],
                vec![],
                "db2 knows that it was on db1, which no longer knows it",
            ),
            (
                1,
                vec![("db1", ""), ("db2", "0 knows db9 1")],
                vec![],
                "db1 knows that it was on db9, which the config does not name",
            ),
            (
                1,
                vec![("db1", ""), ("db2", "1 knows db9 1")],
                vec![],
                "db9 could not be asked whether it serves it: other hosts know it, and the config \
                    does not name it",
            ),
            (
                1,
                vec![("db1", ""), ("db2", "1 knows db3 1"), ("db3", "down")],
                vec!["db3"],
                "db3 could not be asked whether it serves it",
            ),
        ] {
            assert_eq!(
                planned(at, &hosts, &assume_empty),
                expected,
                "{at} {hosts:?}"
            );
        }
    }
}
