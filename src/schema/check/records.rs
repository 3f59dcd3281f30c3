//! What hosts know of each other: hosts that the config does not name, and records that are behind.

use std::collections::BTreeSet;

use super::remedy::BOOTSTRAP;
use super::view::Hosts;
use crate::map::HostName;
use crate::schema::control::{Cluster, pending};
use crate::schema::facts::HostFacts;
use crate::schema::fault::add_again;
use crate::schema::finding::{Findings, Severity};
use crate::schema::known::{self, Known};

/// Hosts that others know and the config does not name.
pub(super) fn absent(findings: &mut Findings, known: &Known<'_>) {
    for (host, by) in known.absent() {
        match known.lost_on(host) {
            Some((shards, by)) => {
                for shard in shards {
                    let what = format!("{by} knows that it was on {host}, which the config does not name");
                    findings.add_shard(Severity::Alarm, "host_absent", Some(host), shard, what, add_again(host));
                }
            }
            None => {
                let message = format!("{by} knows it as a host, and the config does not name it");
                let remedy = format!(
                    "name it in the config again, or, if it is gone, have the hosts forget it: `pgshard bootstrap \
                     --lost {host}`"
                );
                findings.add(Severity::Warning, "host_absent", Some(host), message, remedy);
            }
        }
    }
}

/// Hosts that could not say what the others had. Hosts that are older, or somebody else's, have findings of their own.
pub(super) fn behind(findings: &mut Findings, hosts: &Hosts<'_>, cluster: &Cluster) {
    let current =
        |host: &HostName, facts: &HostFacts| pending(facts, cluster, host).is_ok_and(|steps| steps.is_empty());
    let good = || hosts.controls.iter().filter(|(host, (facts, _))| current(host, facts));
    let record = known::record(good().map(|(host, (_, control))| (*host, *control)), &BTreeSet::new());
    for (host, (_, control)) in good() {
        let (unknown, shards) = known::lacks(&control.known, &record);
        for other in unknown {
            let message = format!("it has not recorded that {other} is a host");
            findings.add(Severity::Warning, "record_behind", Some(host), message, BOOTSTRAP);
        }
        for shard in shards {
            let what = "it has not recorded on which host the shard is";
            findings.add_shard(Severity::Warning, "record_behind", Some(host), shard, what, BOOTSTRAP);
        }
    }
}
