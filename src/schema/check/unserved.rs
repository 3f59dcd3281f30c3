//! Shards that no host serves.

use super::view::{Brought, Hosts, InMap};
use crate::map::ShardEpoch;
use crate::schema::check::finding::{Findings, Severity};
use crate::schema::check::remedy::{BOOTSTRAP, REBUILD, REPAIR, RESUME};
use crate::schema::survey::facts::ControlFacts;
use crate::schema::survey::ownership::Statement;
use crate::schema::survey::refusal::restore;

/// A shard about which no host states anything.
pub(super) fn unknown(findings: &mut Findings, hosts: &Hosts<'_>, in_map: InMap<'_>) {
    let InMap { shard, host, epoch } = in_map;
    if let Some(last) = hosts.known.lost(shard) {
        // A host that is empty, or that the config does not name, has a finding of its own.
        if hosts.controls.contains_key(last.owner) {
            let what = format!(
                "{} knows that it was on {}, which no longer knows it",
                last.by, last.owner
            );
            findings.add_shard(
                Severity::Alarm,
                "shard_lost",
                Some(last.owner),
                shard,
                what,
                restore(last.owner),
            );
        }
        return;
    }
    // A host that was not read, or not bootstrapped, has a finding of its own.
    if !hosts.controls.contains_key(host) {
        return;
    }
    if epoch > ShardEpoch::FIRST {
        let what =
            format!("the map says that it has moved before (epoch {epoch}), but no host knows it");
        let remedy = "the host that had it may have been replaced: restore its database";
        findings.add_shard(
            Severity::Alarm,
            "served_nowhere",
            Some(host),
            shard,
            what,
            remedy,
        );
    } else {
        let (what, remedy) = missing(hosts, in_map);
        findings.add_shard(
            Severity::Error,
            "shard_missing",
            Some(host),
            shard,
            what,
            remedy,
        );
    }
}

/// A shard that has left a host, and is not served where it went.
pub(super) fn given_away(
    findings: &mut Findings,
    hosts: &Hosts<'_>,
    InMap { shard, host, .. }: InMap<'_>,
    given: Statement<'_>,
) {
    let (epoch, from, to) = (given.epoch, given.by, given.owner);
    // A host that was not read may serve it, and has a finding of its own.
    if hosts.facts(to).is_none() {
        if to != host {
            let what = format!(
                "the map puts it on {host}, but {from} says that it has moved to {to} (epoch \
                    {epoch})"
            );
            findings.add_shard(
                Severity::Warning,
                "shard_elsewhere",
                Some(to),
                shard,
                what,
                REBUILD,
            );
        }
        return;
    }
    let Some(brought) = hosts.brought(shard, given) else {
        let what = format!(
            "{from} says that it has moved to {to} (epoch {epoch}), which does not serve it"
        );
        let remedy = format!(
            "was {to} restored, emptied, or failed over to a standby that lacked the shard? \
                Restore it to where it was; else {REPAIR} with the old copy on {from}, and \
                `pgshard recover {to} --plan` with all shards of {to}"
        );
        findings.add_shard(
            Severity::Alarm,
            "served_nowhere",
            Some(to),
            shard,
            what,
            remedy,
        );
        return;
    };
    let what =
        format!("it has moved from {from} to {to} (epoch {epoch}), which has not opened it yet");
    let remedy = match brought {
        Brought::Less => format!("{to} has lost a part of it, as by a fail-over: {REPAIR}"),
        Brought::Everything if hosts.is_moving(from, shard) => RESUME.to_owned(),
        // By the journal the move has ended: the target had opened the shard, and has lost that.
        Brought::Everything => {
            format!(
                "{to} had opened it, and has lost that: {REPAIR}, or the next statement opens it"
            )
        }
    };
    findings.add_shard(Severity::Error, "not_opened", Some(to), shard, what, remedy);
}

/// The finding for a shard that no host knows. Bootstrap creates it, but not over objects that were
/// created by hand.
///
/// The schema is named by its prefix, so that many such shards are one finding.
fn missing(hosts: &Hosts<'_>, InMap { shard, host, .. }: InMap<'_>) -> (String, String) {
    let prefix = &hosts.cluster.schema_prefix;
    let is_there = hosts
        .facts(host)
        .is_some_and(|facts| facts.schemas.contains(&prefix.schema(shard)));
    // What a bootstrap that was killed has left is the next one's own.
    let is_left = |control: &&ControlFacts| {
        control
            .applied
            .iter()
            .any(|set| set.shards.contains(&shard))
    };
    if !is_there || hosts.controls.get(host).is_some_and(is_left) {
        return ("it is not there".to_owned(), BOOTSTRAP.to_owned());
    }
    (
        format!(
            "it is not there, and its schema ({prefix} and the number) is one that the host does \
                not know as a shard"
        ),
        format!("rename the schema, or drop it if its rows are not needed; then {BOOTSTRAP}"),
    )
}
