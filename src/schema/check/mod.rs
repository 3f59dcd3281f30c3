//! Compares what hosts contain with what they should contain, and reports each difference as a
//! [`Finding`].
//!
//! [`check`] itself is pure: it compares a survey with the map and the config.
//! [`compare`](fn@compare) does so with the definitions of the shards, [`contents`](fn@contents)
//! with their rows, [`identities`] with the servers behind the addresses, and [`rebuild_map`]
//! derives a new map from the survey.
//!
//! The highest room of [`schema`](crate::schema): it may use all others, and none of them uses it.
//!
//! Invariant: every difference has a finding, and two hosts that serve one shard are an alarm.

use self::contradiction::without_contradicting;
use self::view::{Hosts, InMap};
use crate::map::ShardMap;
use crate::schema::control::Cluster;
use crate::schema::fleet::migrations::Migrations;
use crate::schema::survey::facts::Survey;

mod clock;
mod compare;
mod contents;
mod contradiction;
pub(in crate::schema) mod finding;
mod host;
mod identity;
mod migrations;
mod moves;
mod orphans;
mod rebuild;
mod records;
pub(in crate::schema) mod remedy;
mod security;
pub(in crate::schema) mod settings;
mod shard;
mod sources;
#[cfg(test)]
mod tests;
mod unserved;
mod view;

pub(crate) use compare::made_alike;
pub use compare::{DefinitionSurvey, Definitions, compare, definitions};
pub use contents::{Contents, HostShards, RowRules, contents};
pub(super) use contradiction::{jumped, went_back};
pub(crate) use finding::Findings;
pub use finding::{Finding, Severity};
pub use identity::{
    AcceptError, Accepted, AwaitError, Identities, RecordError, accept, accept_in_advance,
    identities,
};
pub use rebuild::{Rebuilt, map_of_hosts, rebuild_map};
pub use security::exposed;
pub(crate) use settings::START_A_STANDBY;
pub use sources::sources;

/// What is wrong with the hosts by themselves, where there is no map to compare them with: those
/// that cannot be read.
pub fn check_without_map(survey: &Survey) -> Vec<Finding> {
    let mut findings = Findings::default();
    for (host, facts) in survey {
        if let Err(error) = facts {
            host::unread(&mut findings, host, error);
        }
    }
    findings.sorted()
}

/// Everything in which the hosts differ from the map and the config, the worst first. `migrations`
/// are those of the folder, if there is one; without them the shards are compared with each other.
pub fn check(
    map: &ShardMap,
    survey: &Survey,
    cluster: &Cluster,
    migrations: Option<&Migrations>,
) -> Vec<Finding> {
    let mut findings = Findings::default();
    let others = without_contradicting(survey, cluster);
    let comparable = others.as_ref().unwrap_or(survey);
    let hosts = Hosts::new(comparable, cluster);
    for (host, facts) in survey {
        match facts {
            Err(error) => host::unread(&mut findings, host, error),
            Ok(facts) => host::check(&mut findings, &hosts, host, facts),
        }
    }
    records::absent(&mut findings, &hosts);
    for (shard, host, epoch) in map.iter() {
        shard::check(&mut findings, &hosts, InMap { shard, host, epoch });
    }
    for (host, control) in &hosts.controls {
        moves::check(&mut findings, &hosts, host, control);
    }
    records::behind(&mut findings, &hosts);
    migrations::check(&mut findings, &hosts, migrations);
    clock::check(&mut findings, comparable, cluster.epoch);
    orphans::check(&mut findings, comparable, &cluster.schema_prefix);
    settings::check(&mut findings, survey);
    security::check(&mut findings, survey);
    security::lacking(&mut findings, survey);
    security::watchers(&mut findings, survey);
    findings.without_consequences();
    findings.sorted()
}
