//! What hosts know of each other: hosts that the config does not name, and records that are behind.

use std::collections::BTreeSet;

use super::view::Hosts;
use crate::map::HostName;
use crate::schema::check::finding::{Findings, Severity};
use crate::schema::check::remedy::BOOTSTRAP;
use crate::schema::fleet::fault::add_again;
use crate::schema::survey::facts::ControlFacts;
use crate::schema::survey::host_records;
use crate::schema::survey::refusal::pending;

/// Hosts that others know and the config does not name.
pub(super) fn absent(findings: &mut Findings, hosts: &Hosts<'_>) {
    for (host, by) in hosts.known.absent() {
        match hosts.known.missing_shards(host) {
            Some((shards, by)) => {
                for shard in shards {
                    let what =
                        format!("{by} knows that it was on {host}, which the config does not name");
                    findings.add_shard(
                        Severity::Alarm,
                        "host_absent",
                        Some(host),
                        shard,
                        what,
                        add_again(host),
                    );
                }
            }
            None => {
                let message = format!("{by} knows it as a host, and the config does not name it");
                let remedy = format!(
                    "name it in the config again, or, if it is gone, have the hosts forget it: \
                        `pgshard bootstrap --lost {host}`"
                );
                findings.add(
                    Severity::Warning,
                    "host_absent",
                    Some(host),
                    message,
                    remedy,
                );
            }
        }
    }
}

/// Hosts that could not report what the others had. Hosts with an older control schema, or one of
/// another cluster, have findings of their own.
pub(super) fn behind(findings: &mut Findings, hosts: &Hosts<'_>) {
    let is_current = |host: &HostName| {
        let versions = hosts
            .facts(host)
            .map(|facts| pending(facts, hosts.cluster, host));
        versions.is_some_and(|versions| versions.is_ok_and(|versions| versions.is_empty()))
    };
    let controls = hosts
        .controls
        .iter()
        .map(|(host, control)| (*host, *control));
    let current: Vec<(&HostName, &ControlFacts)> =
        controls.filter(|(host, _)| is_current(host)).collect();
    let record = host_records::record(current.iter().copied(), &BTreeSet::new());
    for (host, control) in current {
        let (unknown, shards) = host_records::lacks(&control.known, &record);
        for other in unknown {
            let message = format!("it has not recorded that {other} is a host");
            findings.add(
                Severity::Warning,
                "record_behind",
                Some(host),
                message,
                BOOTSTRAP,
            );
        }
        for shard in shards {
            let what = "it has not recorded on which host the shard is";
            findings.add_shard(
                Severity::Warning,
                "record_behind",
                Some(host),
                shard,
                what,
                BOOTSTRAP,
            );
        }
    }
}
