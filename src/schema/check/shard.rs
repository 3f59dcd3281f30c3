//! Who serves a shard, by the map and by the hosts.

use super::contradiction::{jumped, went_back};
use super::unserved;
use super::view::{Hosts, InMap};
use crate::map::HostName;
use crate::pg::quote_literal;
use crate::schema::check::finding::{Findings, Severity};
use crate::schema::check::remedy::{GC, MOVES, REBUILD, REPAIR, RESUME};
use crate::schema::control::Cluster;
use crate::schema::survey::facts::{ControlFacts, HostFacts, ShardRow, ShardState};
use crate::schema::survey::ownership::{Ownership, Statement};
use crate::shard::ShardId;

pub(super) fn check(findings: &mut Findings, hosts: &Hosts<'_>, in_map: InMap<'_>) {
    let shard = in_map.shard;
    if let Some((claimed, from)) = hosts.jump(in_map) {
        let (what, remedy) = jumped(from, claimed, in_map.epoch);
        findings.add_shard(
            Severity::Alarm,
            "epoch_jump",
            Some(from),
            shard,
            what,
            remedy,
        );
    }
    match hosts.ownership(shard) {
        Ownership::Unknown => unserved::unknown(findings, hosts, in_map),
        Ownership::InTransit(given) => unserved::given_away(findings, hosts, in_map, given),
        Ownership::Owner(own) => {
            ServingCopy::check(findings, hosts, own.owner, shard);
            elsewhere(findings, in_map, own);
        }
        Ownership::WentBack { owner: own, given } => {
            ServingCopy::check(findings, hosts, own.owner, shard);
            let (what, remedy) = went_back(own, given);
            let host = Some(own.owner);
            findings.add_shard(Severity::Alarm, "went_back", host, shard, what, remedy);
        }
        Ownership::ServedTwice(first, second) => twice(findings, in_map, first, second),
    }
}

/// The map has another host for the shard than the owner, or another epoch.
fn elsewhere(
    findings: &mut Findings,
    InMap { shard, host, epoch }: InMap<'_>,
    Statement {
        owner,
        epoch: served,
        ..
    }: Statement<'_>,
) {
    if owner != host {
        let what = format!("the map puts it on {host}, but {owner} serves it (epoch {served})");
        findings.add_shard(
            Severity::Warning,
            "shard_elsewhere",
            Some(owner),
            shard,
            what,
            REBUILD,
        );
    } else if served != epoch {
        let what = format!("the map has it at epoch {epoch}, the host at {served}");
        findings.add_shard(
            Severity::Warning,
            "shard_epoch_differs",
            Some(owner),
            shard,
            what,
            REBUILD,
        );
    }
}

/// Two hosts serve the shard. The first has the later epoch.
fn twice(findings: &mut Findings, in_map: InMap<'_>, first: Statement<'_>, second: Statement<'_>) {
    let (right, served) = (first.owner, first.epoch);
    let (other, other_epoch) = (second.owner, second.epoch);
    let what = format!("{right} (epoch {served}) and {other} (epoch {other_epoch}) both serve it");
    let remedy = if (right, served) == (in_map.host, in_map.epoch) && served > other_epoch {
        format!(
            "{right} is right, by its epoch and by the map; {other} does not know of the move, and \
                what it takes is missing on {right}: {REPAIR}, which has {other} stand down and \
                keeps what it took; docs/trouble.md, \"Hosts contradict each other\""
        )
    } else {
        format!("stop its writers, find out by its rows which is right, then {REPAIR}")
    };
    findings.add_shard(
        Severity::Alarm,
        "served_twice",
        None,
        in_map.shard,
        what,
        remedy,
    );
}

/// A shard on a host that serves it.
struct ServingCopy<'a> {
    shard: ShardId,
    host: &'a HostName,
    facts: &'a HostFacts,
    control: &'a ControlFacts,
    row: &'a ShardRow,
}

impl<'a> ServingCopy<'a> {
    fn check(findings: &mut Findings, hosts: &Hosts<'a>, host: &'a HostName, shard: ShardId) {
        if let Some(there) = ServingCopy::by(hosts, host, shard) {
            there.schema(findings, hosts.cluster);
            there.closed(findings);
            there.half_made(findings, hosts);
        }
    }

    fn by(hosts: &Hosts<'a>, host: &'a HostName, shard: ShardId) -> Option<ServingCopy<'a>> {
        let (facts, control) = (hosts.facts(host)?, *hosts.controls.get(host)?);
        Some(ServingCopy {
            shard,
            host,
            facts,
            control,
            row: control.shards.get(&shard)?,
        })
    }

    /// Whether its schema is there, and has the name that it should.
    fn schema(&self, findings: &mut Findings, cluster: &Cluster) {
        // With another prefix in the config no schema has the name that is looked for: that has a
        // finding of its own.
        let prefix = &cluster.schema_prefix;
        if self
            .control
            .cluster
            .as_ref()
            .is_some_and(|said| said.schema_prefix != prefix.as_str())
        {
            return;
        }
        // The one schema of an unsharded host is compared with the config by itself.
        if self.control.whole.is_some() {
            return;
        }
        let schema = prefix.schema(self.shard);
        if !self.facts.schemas.contains(&schema) {
            let what = "the host serves it, but its schema is not there";
            let remedy = "restore the schema from a backup";
            findings.add_shard(
                Severity::Error,
                "schema_missing",
                Some(self.host),
                self.shard,
                what,
                remedy,
            );
        }
        if self.row.schema != schema {
            let what = format!("the host says that its schema is {}", self.row.schema);
            // For a person to run: no SQL of ours changes the table.
            let (table, name) = ("pgshard.shard", quote_literal(&schema));
            let remedy = format!(
                "UPDATE {table} SET schema_name = {name} WHERE shard_id = {}",
                self.shard
            );
            findings.add_shard(
                Severity::Error,
                "schema_misnamed",
                Some(self.host),
                self.shard,
                what,
                remedy,
            );
        }
    }

    /// What a move away does to it.
    fn closed(&self, findings: &mut Findings) {
        let (host, shard) = (Some(self.host), self.shard);
        if self.row.state == ShardState::Fenced {
            let peer = self.row.peer.as_ref().map_or("?", HostName::as_str);
            if self.row.fence_left_ms.is_some_and(|left| left < 0.0) {
                let what = format!("a move to {peer} has closed it, and its mover is late");
                findings.add_shard(Severity::Error, "fence_overdue", host, shard, what, RESUME);
            } else {
                let what = format!("a move to {peer} has closed it for a moment");
                findings.add_shard(Severity::Notice, "fenced", host, shard, what, MOVES);
            }
        } else if self.control.moving.contains(&shard) {
            let what = "a move away is at work, or waits for `pgshard moves resume`";
            findings.add_shard(Severity::Notice, "moving", host, shard, what, MOVES);
        }
    }

    /// What moves away that have ended have left on their targets.
    fn half_made(&self, findings: &mut Findings, hosts: &Hosts<'_>) {
        if self.control.moving.contains(&self.shard) {
            return;
        }
        for (target, there) in &hosts.controls {
            if let Some(incoming) = there.incoming.get(&self.shard) {
                let what = format!(
                    "a move from {} that has ended left it half made",
                    incoming.source
                );
                findings.add_shard(
                    Severity::Warning,
                    "leftover",
                    Some(target),
                    self.shard,
                    what,
                    GC,
                );
            }
        }
    }
}
