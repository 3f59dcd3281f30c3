//! The map and the config compared with what the hosts say. Pure.
//!
//! Invariant: every difference has a finding, and two hosts that serve one shard are an alarm.

use self::contradiction::without_contradicting;
use self::view::{Hosts, InMap};
use super::cluster::Cluster;
use super::facts::Survey;
use super::finding::{Finding, Findings};
use super::migrations::Migrations;
use super::{clock, exposed, orphans, settings};
use crate::map::ShardMap;

mod contradiction;
mod host;
mod migrations;
mod moves;
mod records;
mod shard;
#[cfg(test)]
mod tests;
mod unserved;
mod view;

pub(super) use contradiction::{jumped, went_back};
pub(super) use view::Given;

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
    exposed::check(&mut findings, survey);
    exposed::lacking(&mut findings, survey);
    exposed::watchers(&mut findings, survey);
    findings.without_consequences();
    findings.sorted()
}
