//! The map and the config compared with what the hosts say. Pure.
//!
//! Invariant: every difference has a finding, and two hosts that serve one shard are an alarm.

use std::collections::{BTreeMap, BTreeSet};

use super::clock;
use super::control::{Cluster, pending, record_of, restore};
use super::damage::damages;
use super::facts::{
    ControlFacts, FactsError, Gone, HostFacts, KeptAudit, RecordedMigration, ShardRow, ShardState, Survey, chain,
};
use super::fault::add_again;
use super::finding::{Finding, Findings, Severity};
use super::known::{self, Known};
use super::migrations::{Drift, Migrations, Pending};
use super::own::{MARK, OWN};
use super::{exposed, made, orphans, settings, shape};
use crate::map::{HostName, ShardEpoch, ShardMap};
use crate::shard::ShardId;

/// Everything in which the hosts differ from the map and the config, the worst first. `migrations` are those of the
/// folder, if there is one; without them the shards are compared with each other.
pub fn check(map: &ShardMap, survey: &Survey, cluster: &Cluster, migrations: Option<&Migrations>) -> Vec<Finding> {
    let mut findings = Findings::default();
    let mut controls = BTreeMap::new();
    let known = Known::of_survey(survey);
    for (host, facts) in survey {
        match facts {
            Err(error) => unread(&mut findings, host, error),
            Ok(facts) => {
                check_host(&mut findings, host, facts, cluster, &known);
                if let Some(control) = &facts.control {
                    controls.insert(host, (facts, control));
                }
            }
        }
    }
    check_absent(&mut findings, &known);
    let hosts = Hosts { survey, controls, known };
    for (shard, host, epoch) in map.iter() {
        check_shard(&mut findings, &hosts, cluster, shard, host, epoch);
    }
    for (host, (_, control)) in &hosts.controls {
        check_leftovers(&mut findings, host, control);
        check_audits(&mut findings, host, control);
    }
    check_records(&mut findings, &hosts, cluster);
    check_made(&mut findings, &hosts);
    check_migrations(&mut findings, &hosts, migrations);
    check_attempts(&mut findings, &hosts, migrations);
    clock::check(&mut findings, survey, cluster.epoch);
    orphans::check(&mut findings, survey, &cluster.schema_prefix);
    settings::check(&mut findings, survey);
    exposed::check(&mut findings, survey);
    exposed::lacking(&mut findings, survey);
    exposed::watchers(&mut findings, survey);
    findings.without_consequences();
    findings.sorted()
}

struct Hosts<'a> {
    survey: &'a Survey,
    /// The hosts that have been bootstrapped.
    controls: BTreeMap<&'a HostName, (&'a HostFacts, &'a ControlFacts)>,
    known: Known<'a>,
}

impl<'a> Hosts<'a> {
    fn rows(&self, shard: ShardId) -> impl Iterator<Item = (&'a HostName, &'a ShardRow)> {
        self.controls.iter().filter_map(move |(host, (_, control))| Some((*host, control.shards.get(&shard)?)))
    }

    /// Who says that it has given the shard away, at a later epoch than its owner knows: the epoch, the giver, and the
    /// receiver.
    fn given_later(&self, shard: ShardId, served: ShardEpoch) -> Option<(ShardEpoch, &'a HostName, &'a HostName)> {
        let moved = self.rows(shard).filter(|(_, row)| row.state == ShardState::Moved && row.epoch > served);
        moved.filter_map(|(from, row)| Some((row.epoch, from, row.peer.as_ref()?))).max()
    }

    /// Who says that the shard is at an epoch to which no move can have led, by what the map and the others say.
    fn jump(&self, shard: ShardId, in_map: ShardEpoch) -> Option<(ShardEpoch, &'a HostName)> {
        let mut epochs: Vec<(ShardEpoch, &'a HostName)> =
            self.rows(shard).map(|(host, row)| (row.epoch, host)).collect();
        epochs.sort_unstable();
        let (claimed, from) = epochs.pop()?;
        let others = epochs.last().map_or(in_map, |(epoch, _)| in_map.max(*epoch));
        claimed.jumps(others).then_some((claimed, from))
    }

    /// Whether a move is bringing a host a shard that another host has given to it, and whether everything is there.
    fn brings(&self, shard: ShardId, from: &HostName, to: &HostName) -> Option<bool> {
        let brought = self.controls.get(to)?.1.incoming.get(&shard)?;
        let given = self.controls.get(from)?.1.shards.get(&shard)?;
        // If the giver no longer knows the move, it is unknown what the move has brought.
        Some(brought.ready && given.move_id.is_none_or(|id| id == brought.move_id))
    }

    fn is_read(&self, host: &HostName) -> bool {
        matches!(self.survey.get(host), Some(Ok(_)))
    }
}

fn unread(findings: &mut Findings, host: &HostName, error: &FactsError) {
    let (code, remedy) = match error {
        FactsError::Unreachable { source } if source.is_login_refused() => {
            ("login_refused", format!("{}; the server runs, and may serve its shards to others", source.remedy()))
        }
        FactsError::Unreachable { source } => {
            ("host_unreachable", format!("{}; its shards are not served", source.remedy()))
        }
        FactsError::NotOwner { owner, role } => ("not_owner", not_owner(owner, role)),
        FactsError::Lacking { gone } => {
            for Gone { what, remedy } in gone {
                let message = format!("of its control schema: {what}");
                findings.add(Severity::Error, "control_damaged", Some(host), message, remedy.clone());
            }
            return;
        }
        FactsError::Unreadable { .. } => {
            let remedy = "somebody has written there: correct that row; `DELETE FROM pgshard.known_host`, then \
                          `pgshard bootstrap`, where it is what the host knows of others";
            ("host_unreadable", remedy.to_owned())
        }
        _ => ("host_unreadable", "see what the server's log says".to_owned()),
    };
    findings.add(Severity::Error, code, Some(host), chain(error), remedy);
}

/// What to do where a role neither owns the control schema nor may watch it.
fn not_owner(owner: &str, role: &str) -> String {
    format!(
        "connect as {owner}, or as a member of it; or, for {role} to watch only, run what `pgshard rights --for \
         monitor --role {}` prints",
        super::rights::shell_word(role)
    )
}

/// The control migrations that were run by what is there, and are not recorded; with the statement that records them.
fn unrecorded(facts: &HostFacts, versions: &[i32]) -> impl Iterator<Item = (i32, String)> {
    let shape = facts.control.as_ref().and_then(|control| control.shape.as_ref());
    let made = shape.into_iter().flat_map(|shape| versions.iter().filter(|version| shape::is_made(**version, shape)));
    made.map(|version| (*version, record_of(*version)))
}

/// Whether a schema has the name of a shard past the last one.
fn is_beyond(schema: &str, cluster: &Cluster) -> bool {
    let number = schema.strip_prefix(cluster.schema_prefix.as_str()).and_then(|number| number.parse().ok());
    number
        .and_then(ShardId::new)
        .is_some_and(|shard| !cluster.shards.contains(shard) && cluster.schema_prefix.schema(shard) == schema)
}

fn check_host(findings: &mut Findings, host: &HostName, facts: &HostFacts, cluster: &Cluster, known: &Known<'_>) {
    match pending(facts, cluster, host) {
        Err(refusals) => {
            for refusal in refusals {
                findings.add(Severity::Error, refusal.code(), Some(host), refusal.to_string(), refusal.remedy());
            }
        }
        Ok(versions) if unrecorded(facts, &versions).next().is_some() => {
            for (version, insert) in unrecorded(facts, &versions) {
                let message = format!("its control migration {version} was run, and the record of that is gone");
                findings.add(Severity::Error, "control_unrecorded", Some(host), message, insert);
            }
        }
        Ok(versions) if facts.control.is_some() && !versions.is_empty() => {
            let message = "its control schema is of an older version".to_owned();
            findings.add(Severity::Warning, "control_old", Some(host), message, BOOTSTRAP.to_owned());
        }
        Ok(_) => {
            let installed = facts.control.iter().filter_map(|control| control.installed.as_ref());
            let shapes = facts.control.iter().filter_map(|control| control.shape.as_ref());
            for damage in installed.flat_map(damages).chain(shapes.flat_map(shape::damages)) {
                let what = format!("of its control schema: {}", damage.what);
                let remedy = damage.by_hand.unwrap_or_else(|| MEND.to_owned());
                findings.add(Severity::Error, "control_damaged", Some(host), what, remedy);
            }
            for role in facts.control.iter().flat_map(|control| &control.routers.lacking) {
                let what = format!(
                    "the role {role} may use shards here, and may not ask where they are: its statements fail while a \
                     shard moves"
                );
                let role = super::rights::shell_word(role);
                let remedy =
                    format!("run `pgshard bootstrap`, or what `pgshard rights --for router --role {role}` prints");
                findings.add(Severity::Error, "rights_missing", Some(host), what, remedy);
            }
        }
    }
    for schema in facts.schemas.iter().filter(|schema| is_beyond(schema, cluster)) {
        let what = format!("the schema {schema} is named like a shard, but the cluster has {}", cluster.shards);
        let name = crate::pg::quote_ident(schema);
        let remedy = format!("see whether somebody needs what is in it, then DROP SCHEMA {name} CASCADE, or rename it");
        findings.add(Severity::Warning, "schema_beyond", Some(host), what, remedy);
    }
    match (&facts.control, known.lost_on(host)) {
        (None, Some((shards, by))) => {
            for shard in shards {
                let what = format!("the database of {host} is empty, and {by} knows that the shard was there");
                findings.add_shard(Severity::Alarm, "host_emptied", Some(host), shard, what, restore(host));
            }
        }
        (None, None) => {
            let message = "it has not been bootstrapped".to_owned();
            findings.add(Severity::Error, "not_bootstrapped", Some(host), message, BOOTSTRAP.to_owned());
        }
        (Some(_), _) => {}
    }
}

/// Hosts that others know and the config does not name.
fn check_absent(findings: &mut Findings, known: &Known<'_>) {
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
fn check_records(findings: &mut Findings, hosts: &Hosts<'_>, cluster: &Cluster) {
    let current =
        |host: &HostName, facts: &HostFacts| pending(facts, cluster, host).is_ok_and(|steps| steps.is_empty());
    let good = || hosts.controls.iter().filter(|(host, (facts, _))| current(host, facts));
    let record = known::record(good().map(|(host, (_, control))| (*host, *control)), &BTreeSet::new());
    for (host, (_, control)) in good() {
        let (unknown, shards) = known::lacks(&control.known, &record);
        for other in unknown {
            let message = format!("it has not recorded that {other} is a host");
            findings.add(Severity::Warning, "record_behind", Some(host), message, BOOTSTRAP.to_owned());
        }
        for shard in shards {
            let what = "it has not recorded on which host the shard is";
            findings.add_shard(Severity::Warning, "record_behind", Some(host), shard, what, BOOTSTRAP);
        }
    }
}

const MEND: &str = "run `pgshard bootstrap`, which restores it";
const BOOTSTRAP: &str = "run `pgshard bootstrap`";
const REBUILD: &str = "run `pgshard map rebuild`";
/// The command that says what can be repaired, for a shard about which hosts contradict each other.
pub(super) const REPAIR: &str = "`pgshard moves repair SHARD --plan` says what can be done";
const MOVES: &str = "see `pgshard moves list`";

fn check_shard(
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
        [] => check_unserved(findings, hosts, cluster, shard, (host, epoch)),
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
pub(super) fn went_back(
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
pub(super) fn jumped(from: &HostName, claimed: ShardEpoch, known: ShardEpoch) -> (String, String) {
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

/// A shard that no host says it serves.
fn check_unserved(
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

/// Moves whose shards may not be at their targets with everything that they had.
fn check_audits(findings: &mut Findings, host: &HostName, control: &ControlFacts) {
    for KeptAudit { shard, move_id, target, differences, left_out } in &control.audits {
        if differences.is_empty() {
            let why = if left_out.is_empty() { "it was broken off".to_owned() } else { left_out.join("; ") };
            let what = format!("the move {move_id} to {target} was not audited: {why}");
            let remedy = format!(
                "run `pgshard moves audit {move_id}`; without an audit, `pgshard moves complete` takes --unaudited"
            );
            findings.add_shard(Severity::Warning, "not_audited", Some(host), *shard, what, remedy);
        } else {
            let found = differences.join("; ");
            let what =
                format!("{target} did not have what it had here when the move {move_id} opened it there: {found}");
            let remedy = "its old copy is right, and what was written since: compare and repair as docs/operating.md \
                          says under \"A move that differs\"";
            findings.add_shard(Severity::Alarm, "audit_differs", Some(host), *shard, what, remedy);
        }
    }
}

fn check_leftovers(findings: &mut Findings, host: &HostName, control: &ControlFacts) {
    for (shard, why) in &control.lost_ways {
        let what = format!("it cannot be taken back here by `pgshard moves rollback`: {why}");
        let remedy = "run `pgshard moves complete` when all is well; `pgshard move` brings it back by a new copy";
        findings.add_shard(Severity::Notice, "no_reverse", Some(host), *shard, what, remedy);
    }
    for (shard, table) in &control.still_lent {
        let what = format!("table {table} still has the replica identity that a move lent it");
        let remedy = "run `pgshard moves gc`, which takes it back";
        findings.add_shard(Severity::Notice, "identity_lent", Some(host), *shard, what, remedy);
    }
    for object in &control.ledger {
        let (severity, code, what, remedy) = match (object.kind.as_str(), object.phase.as_deref()) {
            ("left", Some("kept")) => {
                (Severity::Notice, "old_copy", "its old copy is kept", "run `pgshard moves complete` when all is well")
            }
            (_, Some("completed" | "aborted")) => {
                (Severity::Warning, "leftover", "a move that has ended left something behind", "run `pgshard moves gc`")
            }
            ("incoming", None) if !control.incoming.contains_key(&object.shard) => {
                (Severity::Warning, "leftover", "a move that has ended left something behind", "run `pgshard moves gc`")
            }
            ("old signpost", _) => {
                (Severity::Notice, "old_signpost", "an old signpost is kept", "run `pgshard moves gc` to drop it")
            }
            _ => continue,
        };
        findings.add_shard(severity, code, Some(host), object.shard, what, remedy);
    }
}

/// Shards whose schemas exist, but lack what was created in them.
fn check_made(findings: &mut Findings, hosts: &Hosts<'_>) {
    let controls = hosts.controls.iter().map(|(host, (_, control))| (*host, *control));
    for ((host, shard), what) in made::lacking(controls) {
        let what = format!("its schema {what}");
        findings.add_shard(Severity::Error, "objects_missing", Some(host), shard, what, made::RESTORE);
    }
}

fn check_migrations(findings: &mut Findings, hosts: &Hosts<'_>, migrations: Option<&Migrations>) {
    const NONE: &[RecordedMigration] = &[];
    let mut of_shards: Vec<(&HostName, ShardId, &[RecordedMigration])> = Vec::new();
    for (host, (_, control)) in &hosts.controls {
        let applied: BTreeMap<ShardId, &[RecordedMigration]> = control
            .applied
            .iter()
            .flat_map(|set| set.shards.iter().map(|shard| (*shard, set.migrations.as_slice())))
            .collect();
        // What a moved shard had does not matter any longer.
        let owned = control.shards.iter().filter(|(_, row)| row.state.is_owner());
        of_shards.extend(owned.map(|(shard, _)| (*host, *shard, *applied.get(shard).unwrap_or(&NONE))));
    }
    let mut counts: BTreeMap<&[RecordedMigration], usize> = BTreeMap::new();
    for (.., applied) in &of_shards {
        *counts.entry(applied).or_default() += 1;
    }
    let Some((usual, _)) = counts.iter().max_by_key(|(_, count)| **count) else { return };
    // Judged once for each set of migrations, not once for each of thousands of shards.
    let verdicts: BTreeMap<_, _> =
        counts.keys().map(|applied| (*applied, verdict(applied, usual, migrations))).collect();
    for (host, shard, applied) in of_shards {
        if let Some((severity, code, what, remedy)) = &verdicts[applied] {
            findings.add_shard(*severity, code, Some(host), shard, what.as_str(), remedy.as_str());
        }
    }
}

/// Shard migrations that failed, and once-per-host migrations that have not run yet, or ran with another text.
fn check_attempts(findings: &mut Findings, hosts: &Hosts<'_>, migrations: Option<&Migrations>) {
    for (host, (_, control)) in &hosts.controls {
        for (shard, attempt) in control
            .attempts
            .iter()
            .filter(|(shard, _)| control.shards.get(shard).is_some_and(|row| row.state.is_owner()))
        {
            let message = attempt.message.as_deref().unwrap_or("it was begun, and its outcome is unknown");
            let what = format!("{}: {message}", attempt.name);
            let has_file = |all: &Migrations| all.iter().any(|one| one.name() == attempt.name);
            let remedy = if attempt.name.starts_with(MARK) || migrations.is_none_or(has_file) {
                "correct what is wrong, then `pgshard migrate retry`".to_owned()
            } else {
                format!(
                    "its file is gone: put it back, or see whether it has left an index that is not valid, then DELETE \
                     FROM pgshard.migration_attempt WHERE shard_id = {shard}"
                )
            };
            findings.add_shard(Severity::Warning, "migration_failed", Some(host), *shard, what, remedy);
        }
        match migrations.map(|migrations| (migrations, migrations.pending_on_host(&control.host_migrations))) {
            Some((migrations, Ok(from))) if from < migrations.of_hosts().len() => {
                let lacks: Vec<&str> = migrations.of_hosts().skip(from).map(|one| one.name()).collect();
                let what = format!("it lacks the once-per-host migrations {}", lacks.join(", "));
                let remedy = "run `pgshard migrate up`".to_owned();
                findings.add(Severity::Warning, "host_migrations_pending", Some(host), what, remedy);
            }
            Some((_, Err(drifts))) => {
                for drift in drifts {
                    let what = format!("of the once-per-host migrations, {drift}");
                    findings.add(Severity::Error, "host_migrations_drift", Some(host), what, drift.remedy());
                }
            }
            _ => {}
        }
    }
}

type Verdict = Option<(Severity, &'static str, String, String)>;

fn verdict(applied: &[RecordedMigration], usual: &[RecordedMigration], migrations: Option<&Migrations>) -> Verdict {
    let Some(migrations) = migrations else {
        return (applied != usual).then(|| {
            let names = |list: &[RecordedMigration], other: &[RecordedMigration]| {
                let more = list.iter().filter(|one| !other.contains(one)).map(|one| one.name.as_str());
                more.collect::<Vec<_>>().join(", ")
            };
            let what = match (names(usual, applied), names(applied, usual)) {
                (lacks, more) if more.is_empty() => format!("it lacks migrations that most shards have: {lacks}"),
                (lacks, more) if lacks.is_empty() => format!("it has migrations that most shards do not have: {more}"),
                (lacks, more) => format!("most shards have {lacks}, where it has {more}"),
            };
            (Severity::Warning, "migrations_differ", what, BOOTSTRAP.to_owned())
        });
    };
    let everything = Pending { own_from: OWN.len(), from: migrations.iter().len() };
    match migrations.pending(applied) {
        Ok(pending) if pending == everything => None,
        Ok(pending) => {
            let own = OWN[pending.own_from..].iter().map(|own| own.name);
            let lacks: Vec<&str> = own.chain(migrations.iter().skip(pending.from).map(|m| m.name())).collect();
            let what = format!("it lacks {}", lacks.join(", "));
            let first = lacks.first().unwrap_or(&"NAME");
            let remedy = format!(
                "run `pgshard migrate up`; where what it makes is there already, `pgshard migrate resolve \
                 {first} --applied` records it"
            );
            Some((Severity::Warning, "migrations_pending", what, remedy))
        }
        Err(drifts) => {
            let said: Vec<String> = drifts.iter().map(ToString::to_string).collect();
            let mut remedies: Vec<String> = drifts.iter().map(Drift::remedy).collect();
            remedies.dedup();
            Some((Severity::Error, "migrations_drift", said.join("; "), remedies.join("; ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::control::tests::cluster;
    use super::super::facts::{AppliedSet, LedgerRow};
    use super::super::migrations::tests::migrations;
    use super::super::tables::{host, map_of, shard, survey_of};
    use super::*;

    /// What is found for one shard on one to three hosts, without the remedies; another test is about migrations.
    fn found(placement: &str, hosts: &[(&str, &str)]) -> Vec<String> {
        let findings = check(&map_of(&[placement]), &survey_of(hosts), &cluster(), None);
        let said = findings.iter().map(|f| {
            assert!(!f.remedy.is_empty() && !f.message.ends_with('.'));
            let host = f.host.as_ref().map_or("-", HostName::as_str);
            format!("{} {} {host} {}", f.severity.as_str(), f.code, f.message)
        });
        said.collect()
    }

    type Case<'a> = (&'a str, Vec<(&'a str, &'a str)>, Vec<&'a str>);

    fn are_found(cases: impl IntoIterator<Item = Case<'static>>) {
        for (placement, hosts, expected) in cases {
            assert_eq!(found(placement, &hosts), expected, "{placement} {hosts:?}");
        }
    }

    const DOWN: &str = "error host_unreachable db2 it cannot be reached: app@there/app did not answer within 5 ms";

    #[test]
    fn every_difference_is_found() {
        let quiet = ("db2", "");
        are_found([
            ("db1", vec![("db1", "0 serving 1"), quiet], vec![]),
            ("db1@2", vec![("db1", "0 serving 2"), ("db2", "0 moved 2 db1")], vec![]),
            ("db1", vec![("db1", "0 serving 1"), ("db2", "down")], vec![DOWN]),
            ("db2", vec![("db1", ""), ("db2", "down")], vec![DOWN]),
            ("db1", vec![("db1", "empty")], vec!["error not_bootstrapped db1 it has not been bootstrapped"]),
            ("db1", vec![("db1", ""), quiet], vec!["error shard_missing db1 shard 0: it is not there"]),
            (
                "db1@4",
                vec![("db1", ""), quiet],
                vec![
                    "alarm served_nowhere db1 shard 0: the map says that it has moved before (epoch 4), but no host \
                     knows it",
                ],
            ),
            (
                "db1",
                vec![("db1", "0 moved 2 db2"), ("db2", "0 serving 2")],
                vec!["warning shard_elsewhere db2 shard 0: the map puts it on db1, but db2 serves it (epoch 2)"],
            ),
            (
                "db1",
                vec![("db1", "0 serving 3")],
                vec!["warning shard_epoch_differs db1 shard 0: the map has it at epoch 1, the host at 3"],
            ),
            // The shard was on db1, went to db2 and came back; db1 is from before all that, whatever the map says.
            (
                "db1@3",
                vec![("db1", "0 serving 1"), ("db2", "0 moved 3 db1")],
                vec![
                    "alarm went_back db1 shard 0: db2 gave it to db1 at epoch 3, but db1 serves it at epoch 1, from \
                     before that",
                ],
            ),
            (
                "db2",
                vec![("db1", "0 serving 1"), ("db2", "0 moved 3 db1"), ("db3", "0 moved 5 db1")],
                vec![
                    "alarm went_back db1 shard 0: db3 gave it to db1 at epoch 5, but db1 serves it at epoch 1, from \
                     before that",
                ],
            ),
            (
                "db2@3",
                vec![("db1", "0 serving 2"), ("db2", "0 serving 3")],
                vec!["alarm served_twice - shard 0: db2 (epoch 3) and db1 (epoch 2) both serve it"],
            ),
            (
                "db1",
                vec![("db1", "0 serving 1"), ("db2", "0 moved 3 db3"), ("db3", "")],
                vec![
                    "alarm went_back db1 shard 0: db2 gave it to db3 at epoch 3, but db1 serves it at epoch 1, from \
                     before that",
                ],
            ),
            (
                "db1@2",
                vec![("db1", "0 serving 2"), ("db2", "0 serving 2147483647")],
                vec![
                    "alarm served_twice - shard 0: db2 (epoch 2147483647) and db1 (epoch 2) both serve it",
                    "alarm epoch_jump db2 shard 0: db2 says that it is in epoch 2147483647; the map has epoch 2, and \
                     no host comes near",
                ],
            ),
        ]);
    }

    #[test]
    fn every_move_that_is_half_done_is_found() {
        let quiet = ("db2", "");
        are_found([
            (
                "db1",
                vec![("db1", "0 moved 2 db2, 0 moving"), ("db2", "0 incoming 2 db1")],
                vec![
                    "error not_opened db2 shard 0: it has moved from db1 to db2 (epoch 2), which has not opened it yet",
                ],
            ),
            (
                "db1",
                vec![("db1", "0 moved 2 db2"), quiet],
                vec![
                    "alarm served_nowhere db2 shard 0: db1 says that it has moved to db2 (epoch 2), which does not \
                     serve it",
                ],
            ),
            (
                "db1",
                vec![("db1", "0 moved 2 db2"), ("db2", "down")],
                vec![
                    DOWN,
                    "warning shard_elsewhere db2 shard 0: the map puts it on db1, but db1 says that it has moved to \
                     db2 (epoch 2)",
                ],
            ),
            (
                "db1",
                vec![("db1", "0 fenced 1 db2, 0 moving"), ("db2", "0 incoming 2 db1")],
                vec!["notice fenced db1 shard 0: a move to db2 has closed it for a moment"],
            ),
            (
                "db1",
                vec![("db1", "0 fenced 1 db2 late, 0 moving"), ("db2", "0 incoming 2 db1")],
                vec!["error fence_overdue db1 shard 0: a move to db2 has closed it, and its mover is late"],
            ),
            (
                "db1",
                vec![("db1", "0 serving 1, 0 moving"), ("db2", "0 incoming 2 db1")],
                vec!["notice moving db1 shard 0: a move away is at work, or waits for `pgshard moves resume`"],
            ),
            (
                "db1",
                vec![("db1", "0 serving 1"), ("db2", "0 incoming 2 db1")],
                vec!["warning leftover db2 shard 0: a move from db1 that has ended left it half made"],
            ),
        ]);
    }

    #[test]
    fn every_host_that_has_forgotten_is_found() {
        are_found([
            (
                "db1",
                vec![("db1", "empty"), ("db2", "0 knows db1 1")],
                vec![
                    "alarm host_emptied db1 shard 0: the database of db1 is empty, and db2 knows that the shard was \
                     there",
                ],
            ),
            (
                "db1",
                vec![("db1", ""), ("db2", "0 knows db1 1")],
                vec!["alarm shard_lost db1 shard 0: db2 knows that it was on db1, which no longer knows it"],
            ),
            (
                "db1",
                vec![("db1", ""), ("db2", "0 knows db9 1")],
                vec!["alarm host_absent db9 shard 0: db1 knows that it was on db9, which the config does not name"],
            ),
            // No record knows the host, but a shard has gone there.
            (
                "db1",
                vec![("db1", "0 moved 2 db9"), ("db2", "")],
                vec![
                    "alarm host_absent db9 shard 0: db1 knows that it was on db9, which the config does not name",
                    "warning shard_elsewhere db9 shard 0: the map puts it on db1, but db1 says that it has moved to \
                     db9 (epoch 2)",
                ],
            ),
            (
                "db1",
                vec![("db1", "0 serving 1"), ("db2", "0 knows db9 1")],
                vec!["warning host_absent db9 db1 knows it as a host, and the config does not name it"],
            ),
        ]);
    }

    #[test]
    fn shards_with_the_same_trouble_are_one_finding() {
        let map = map_of(&["db1", "db1", "db2", "db1"]);
        let survey = survey_of(&[("db1", "1 serving 1"), ("db2", "2 serving 1")]);
        let findings = check(&map, &survey, &cluster(), None);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].message, "2 shards (0, 3): it is not there");
        assert_eq!((findings[0].shards.clone(), findings[0].shard()), (vec![shard(0), shard(3)], None));
    }

    #[test]
    fn hosts_of_another_cluster_and_lost_schemas() {
        let mut survey = survey_of(&[("db1", "0 serving 1")]);
        let facts = survey.get_mut("db1").unwrap().as_mut().unwrap();
        facts.schemas.clear();
        facts.control.as_mut().unwrap().cluster.as_mut().unwrap().shards = 5;
        let findings = check(&map_of(&["db1"]), &survey, &cluster(), None);
        let codes: Vec<_> = findings.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, ["schema_missing", "shards_differ"]);
    }

    /// Bootstrap refuses to make the shard there, so it is not the remedy alone.
    #[test]
    fn a_schema_with_the_name_of_a_shard_that_is_missing() {
        let mut survey = survey_of(&[("db1", ""), ("db2", "")]);
        let facts = survey.get_mut("db1").unwrap().as_mut().unwrap();
        facts.schemas.insert("shard_0000".to_owned());
        let findings = check(&map_of(&["db1"]), &survey, &cluster(), None);
        assert_eq!((findings.len(), findings[0].code), (1, "shard_missing"));
        assert!(findings[0].message.contains("its schema (shard_ and the number) is one that"), "{findings:?}");
        assert!(findings[0].remedy.starts_with("rename or drop the schema"), "{}", findings[0].remedy);
        // What a bootstrap that was killed has left, the next one makes anew.
        let unfinished = RecordedMigration { name: super::super::own::UNFINISHED.to_owned(), checksum: String::new() };
        let left = AppliedSet { migrations: vec![unfinished], shards: vec![shard(0)] };
        survey.get_mut("db1").unwrap().as_mut().unwrap().control.as_mut().unwrap().applied.push(left);
        assert_eq!(check(&map_of(&["db1"]), &survey, &cluster(), None)[0].remedy, BOOTSTRAP);
    }

    #[test]
    fn migrations_are_compared_with_the_folder_or_with_each_other() {
        let folder = migrations(&[("0001_a.sql", "select {shard}.a()"), ("0002_b.sql", "select {shard}.b()")]).unwrap();
        let own = OWN.iter().map(super::super::own::Own::recorded);
        let all: Vec<RecordedMigration> = own.chain(folder.iter().map(|one| one.recorded())).collect();
        let mut survey =
            survey_of(&[("db1", "0 serving 1, 1 serving 1, 2 serving 1, 3 moved 2 db2"), ("db2", "3 serving 2")]);
        let set = |migrations: &[RecordedMigration], shards: &[u16]| AppliedSet {
            migrations: migrations.to_vec(),
            shards: shards.iter().map(|number| shard(*number)).collect(),
        };
        let mut control =
            |name: &str, sets| survey.get_mut(name).unwrap().as_mut().unwrap().control.as_mut().unwrap().applied = sets;
        control("db1", vec![set(&all, &[0, 1]), set(&all[..=OWN.len()], &[2, 3])]);
        let mut other = all.clone();
        other[OWN.len()].checksum = "other".to_owned();
        control("db2", vec![set(&other, &[3])]);
        let map = map_of(&["db1", "db1", "db1", "db2@2"]);
        let said = |folder| -> Vec<String> {
            check(&map, &survey, &cluster(), folder).iter().map(|f| format!("{} {}", f.code, f.message)).collect()
        };
        assert_eq!(
            said(Some(&folder)),
            [
                "migrations_drift shard 3: 0001_a was changed after it was run",
                "migrations_pending shard 2: it lacks 0002_b"
            ]
        );
        assert_eq!(
            said(None),
            [
                "migrations_differ shard 2: it lacks migrations that most shards have: 0002_b",
                "migrations_differ shard 3: most shards have 0001_a, where it has 0001_a",
            ]
        );
    }

    #[test]
    fn what_moves_have_left() {
        let mut survey = survey_of(&[("db1", "0 serving 1")]);
        let control = survey.get_mut("db1").unwrap().as_mut().unwrap().control.as_mut().unwrap();
        let row = |kind: &str, phase: Option<&str>| LedgerRow {
            kind: kind.to_owned(),
            name: kind.to_owned(),
            move_id: uuid::Uuid::nil(),
            shard: shard(0),
            phase: phase.map(str::to_owned),
        };
        control.ledger = vec![
            row("left", Some("kept")),
            row("signpost", Some("aborted")),
            row("signpost", Some("prepared")),
            row("incoming", None),
            row("old signpost", None),
        ];
        control.lost_ways.insert(shard(0), "its slot is gone".to_owned());
        let findings = check(&map_of(&["db1"]), &survey, &cluster(), None);
        let codes: Vec<_> = findings.iter().map(|finding| (finding.severity, finding.code)).collect();
        assert_eq!(
            codes,
            [
                (Severity::Warning, "leftover"),
                (Severity::Notice, "no_reverse"),
                (Severity::Notice, "old_copy"),
                (Severity::Notice, "old_signpost"),
            ]
        );
        assert_eq!(findings[0].host, Some(host("db1")));
    }
}
