//! Shards that no host says it serves.

use super::remedy::{BOOTSTRAP, REBUILD, REPAIR};
use super::view::Hosts;
use crate::map::{HostName, ShardEpoch};
use crate::schema::control::{Cluster, restore};
use crate::schema::facts::{ControlFacts, HostFacts};
use crate::schema::finding::{Findings, Severity};
use crate::shard::ShardId;

/// A shard that no host says it serves.
pub(super) fn check(
    findings: &mut Findings,
    hosts: &Hosts<'_>,
    cluster: &Cluster,
    shard: ShardId,
    (host, epoch): (&HostName, ShardEpoch),
) {
    let gone = hosts.rows(shard).filter_map(|(from, row)| Some((row.epoch, from, row.peer.as_ref()?))).max();
    if let Some((since, from, peer)) = gone {
        if !hosts.is_read(peer) {
            if peer != host {
                let what =
                    format!("the map puts it on {host}, but {from} says that it has moved to {peer} (epoch {since})");
                findings.add_shard(Severity::Warning, "shard_elsewhere", Some(peer), shard, what, REBUILD);
            }
        } else if let Some(ready) = hosts.brings(shard, from, peer) {
            let what = format!("it has moved from {from} to {peer} (epoch {since}), which has not opened it yet");
            let open = hosts.controls.get(from).is_some_and(|(_, control)| control.moving.contains(&shard));
            let remedy = match (ready, open) {
                (true, true) => "run `pgshard moves resume`; the next statement on the shard opens it too".to_owned(),
                // The journal says that the move has ended: the target had opened the shard, and has lost that.
                (true, false) => {
                    format!("{peer} had opened it, and has lost that: {REPAIR}, or the next statement opens it")
                }
                (false, _) => format!("{peer} has lost a part of it, as by a fail-over: {REPAIR}"),
            };
            findings.add_shard(Severity::Error, "not_opened", Some(peer), shard, what, remedy);
        } else {
            let what = format!("{from} says that it has moved to {peer} (epoch {since}), which does not serve it");
            let remedy = format!(
                "was {peer} restored, emptied, or failed over to a standby that lacked the shard? Restore it to where \
                 it was; else {REPAIR} with the old copy on {from}, and `pgshard recover {peer} --plan` with all \
                 shards of {peer}"
            );
            findings.add_shard(Severity::Alarm, "served_nowhere", Some(peer), shard, what, remedy);
        }
        return;
    }
    if let Some(last) = hosts.known.lost(shard) {
        // A host that is empty, or that the config does not name, has a finding of its own.
        if hosts.controls.contains_key(last.host) {
            let what = format!("{} knows that it was on {}, which no longer knows it", last.by, last.host);
            findings.add_shard(Severity::Alarm, "shard_lost", Some(last.host), shard, what, restore(last.host));
        }
        return;
    }
    // A host that was not read, or not bootstrapped, has a finding of its own.
    if hosts.controls.contains_key(host) {
        if epoch > ShardEpoch::FIRST {
            let what = format!("the map says that it has moved before (epoch {epoch}), but no host knows it");
            let remedy = "the host that had it may have been replaced: restore its database";
            findings.add_shard(Severity::Alarm, "served_nowhere", Some(host), shard, what, remedy);
        } else {
            let (what, remedy) = missing(hosts, host, shard, cluster);
            findings.add_shard(Severity::Error, "shard_missing", Some(host), shard, what, remedy);
        }
    }
}

/// What is said of a shard that no host knows. Bootstrap makes it, but not over what somebody else has made.
///
/// The schema is named by its prefix, so that many such shards are one finding.
fn missing(hosts: &Hosts<'_>, host: &HostName, shard: ShardId, cluster: &Cluster) -> (String, String) {
    let (prefix, schema) = (&cluster.schema_prefix, cluster.schema_prefix.schema(shard));
    // What a bootstrap that was killed has left is the next one's own.
    let is_left = |control: &ControlFacts| control.applied.iter().any(|set| set.shards.contains(&shard));
    let is_taken =
        |(facts, control): &(&HostFacts, &ControlFacts)| facts.schemas.contains(&schema) && !is_left(control);
    if !hosts.controls.get(host).is_some_and(is_taken) {
        return ("it is not there".to_owned(), BOOTSTRAP.to_owned());
    }
    (
        format!(
            "it is not there, and its schema ({prefix} and the number) is one that the host does not know as a shard"
        ),
        format!("rename or drop the schema, or give the cluster another schema_prefix; then {BOOTSTRAP}"),
    )
}
