//! Who serves a shard, by the map and by the hosts.

use super::remedy::{MOVES, REBUILD, REPAIR};
use super::unserved;
use super::view::Hosts;
use crate::map::{HostName, ShardEpoch};
use crate::schema::control::Cluster;
use crate::schema::facts::{ShardRow, ShardState};
use crate::schema::finding::{Findings, Severity};
use crate::shard::ShardId;

pub(super) fn check(
    findings: &mut Findings,
    hosts: &Hosts<'_>,
    cluster: &Cluster,
    shard: ShardId,
    host: &HostName,
    epoch: ShardEpoch,
) {
    let mut owners: Vec<(ShardEpoch, &HostName, &ShardRow)> =
        hosts.rows(shard).filter(|(_, row)| row.state.is_owner()).map(|(host, row)| (row.epoch, host, row)).collect();
    owners.sort_by_key(|(epoch, host, _)| (std::cmp::Reverse(*epoch), *host));
    if let Some((claimed, from)) = hosts.jump(shard, epoch) {
        let (what, remedy) = jumped(from, claimed, epoch);
        findings.add_shard(Severity::Alarm, "epoch_jump", Some(from), shard, what, remedy);
    }
    match owners[..] {
        [] => unserved::check(findings, hosts, cluster, shard, (host, epoch)),
        [(served, owner, row)] => {
            check_owner(findings, hosts, cluster, shard, owner, row);
            if let Some((given, from, to)) = hosts.given_later(shard, served) {
                let (what, remedy) = went_back(owner, served, from, to, given);
                findings.add_shard(Severity::Alarm, "went_back", Some(owner), shard, what, remedy);
            } else if owner != host {
                let what = format!("the map puts it on {host}, but {owner} serves it (epoch {served})");
                findings.add_shard(Severity::Warning, "shard_elsewhere", Some(owner), shard, what, REBUILD);
            } else if served != epoch {
                let what = format!("the map has it at epoch {epoch}, the host at {served}");
                findings.add_shard(Severity::Warning, "shard_epoch_differs", Some(owner), shard, what, REBUILD);
            }
        }
        [(served, right, _), (other_epoch, other, _), ..] => {
            let what = format!("{right} (epoch {served}) and {other} (epoch {other_epoch}) both serve it");
            let remedy = if (right, served) == (host, epoch) && served > other_epoch {
                format!(
                    "{right} is right, by its epoch and by the map; {other} does not know of the move, and what it \
                     takes is missing on {right}: {REPAIR}, which has {other} stand down and keeps what it took; \
                     docs/operating.md, \"Hosts contradict each other\""
                )
            } else {
                format!("stop its writers, find out by its rows which is right, then {REPAIR}")
            };
            findings.add_shard(Severity::Alarm, "served_twice", None, shard, what, remedy);
        }
    }
}

/// An owner that does not know of the move that brought it the shard, or took it away: its database is from before that
/// move, or the other host is wrong.
pub(in crate::schema) fn went_back(
    owner: &HostName,
    served: ShardEpoch,
    from: &HostName,
    to: &HostName,
    given: ShardEpoch,
) -> (String, String) {
    let what =
        format!("{from} gave it to {to} at epoch {given}, but {owner} serves it at epoch {served}, from before that");
    let remedy = format!(
        "stop its writers: {owner} was restored from before the move, or failed over to a standby that lacks it, and \
         answers with old rows; {REPAIR}, and `pgshard recover {owner} --plan` with all of its shards; \
         docs/operating.md has the steps under \"A host has gone back in time\""
    );
    (what, remedy)
}

/// A host that claims an epoch to which no move can have led.
pub(in crate::schema) fn jumped(from: &HostName, claimed: ShardEpoch, known: ShardEpoch) -> (String, String) {
    let what = format!("{from} says that it is in epoch {claimed}; the map has epoch {known}, and no host comes near");
    let remedy = format!(
        "somebody has written to pgshard.shard of {from}, or it is not what it says it is: keep writers from it, see \
         who can write to it, and restore it from a backup"
    );
    (what, remedy)
}

fn check_owner(
    findings: &mut Findings,
    hosts: &Hosts<'_>,
    cluster: &Cluster,
    shard: ShardId,
    owner: &HostName,
    row: &ShardRow,
) {
    let Some((facts, control)) = hosts.controls.get(owner) else { return };
    // With another prefix in the config no schema has the name that is looked for: that has a finding of its own.
    let same_prefix = control.cluster.as_ref().is_none_or(|said| said.schema_prefix == cluster.schema_prefix.as_str());
    if same_prefix && !facts.schemas.contains(&cluster.schema_prefix.schema(shard)) {
        let what = "the host serves it, but its schema is not there";
        let remedy = "restore the schema from a backup";
        findings.add_shard(Severity::Error, "schema_missing", Some(owner), shard, what, remedy);
    }
    if same_prefix && row.schema != cluster.schema_prefix.schema(shard) {
        let what = format!("the host says that its schema is {}", row.schema);
        let name = crate::pg::quote_literal(&cluster.schema_prefix.schema(shard));
        // For a person to run: no SQL of ours changes the table.
        let table = "pgshard.shard";
        let remedy = format!("UPDATE {table} SET schema_name = {name} WHERE shard_id = {shard}");
        findings.add_shard(Severity::Error, "schema_misnamed", Some(owner), shard, what, remedy);
    }
    if row.state == ShardState::Fenced {
        let peer = row.peer.as_ref().map_or("?", HostName::as_str);
        if row.fence_left_ms.is_some_and(|left| left < 0.0) {
            let what = format!("a move to {peer} has closed it, and its mover is late");
            let remedy = "run `pgshard moves resume`; the next statement on the shard opens it too";
            findings.add_shard(Severity::Error, "fence_overdue", Some(owner), shard, what, remedy);
        } else {
            let what = format!("a move to {peer} has closed it for a moment");
            findings.add_shard(Severity::Notice, "fenced", Some(owner), shard, what, MOVES);
        }
    } else if control.moving.contains(&shard) {
        let what = "a move away is at work, or waits for `pgshard moves resume`";
        findings.add_shard(Severity::Notice, "moving", Some(owner), shard, what, MOVES);
    }
    for (target, (_, there)) in &hosts.controls {
        if let Some(incoming) = there.incoming.get(&shard)
            && !control.moving.contains(&shard)
        {
            let what = format!("a move from {} that has ended left it half made", incoming.source);
            findings.add_shard(Severity::Warning, "leftover", Some(target), shard, what, "run `pgshard moves gc`");
        }
    }
}
