//! What moves have left: old copies, audits, ways back, lent replica identities.

use crate::map::HostName;
use crate::schema::check::finding::{Findings, Severity};
use crate::schema::check::remedy::GC;
use crate::schema::check::view::Hosts;
use crate::schema::survey::facts::{ControlFacts, HostFacts, KeptAudit, LedgerRow};
use crate::shard::ShardId;

pub(super) fn check(
    findings: &mut Findings,
    hosts: &Hosts<'_>,
    host: &HostName,
    control: &ControlFacts,
) {
    slots(findings, hosts, host, control);
    for (shard, why) in &control.lost_rollbacks {
        let what = format!("it cannot be taken back here by `pgshard moves rollback`: {why}");
        let remedy = "run `pgshard moves complete` when all is well; `pgshard move` brings it back \
            by a new copy";
        findings.add_shard(
            Severity::Notice,
            "no_reverse",
            Some(host),
            *shard,
            what,
            remedy,
        );
    }
    for (shard, table) in &control.still_lent {
        let what = format!("table {table} still has the replica identity that a move lent it");
        let remedy = format!("{GC}, which takes it back");
        findings.add_shard(
            Severity::Notice,
            "identity_lent",
            Some(host),
            *shard,
            what,
            remedy,
        );
    }
    ledger(findings, host, control);
    for audit in &control.audits {
        not_audited(findings, hosts, host, audit);
    }
}

/// The slots that moves need and that are gone, or invalidated: a failover manager may drop what it
/// does not know, and a server gives up what keeps too much.
fn slots(findings: &mut Findings, hosts: &Hosts<'_>, host: &HostName, control: &ControlFacts) {
    for (shard, way) in &control.open_rollbacks {
        let Some(facts) = hosts.facts(&way.target) else {
            continue;
        };
        // A target that has lost the shard is found as that.
        let rows = facts.control.as_ref().map(|control| &control.shards);
        let row = rows.and_then(|rows| rows.get(shard));
        if row.is_none_or(|row| !row.state.is_owner()) || has_slot(facts, &way.slot) {
            continue;
        }
        let (slot, target, id) = (&way.slot, &way.target, way.id);
        let what = format!(
            "the move {id} cannot be rolled back: the replication slot {slot} on {target} is gone"
        );
        let remedy = format!("{GC}, which records it; {KEEP_SLOTS}");
        findings.add_shard(
            Severity::Warning,
            "slot_gone",
            Some(host),
            *shard,
            what,
            remedy,
        );
    }
    let Some(facts) = hosts.facts(host) else {
        return;
    };
    catalogs(findings, host, facts);
    let followed = |row: &&LedgerRow| {
        row.kind == "slot" && matches!(row.phase.as_deref(), Some("loaded" | "ready"))
    };
    for row in control.ledger.iter().filter(followed) {
        // A mover that is at work notices by itself, and may be making a new one.
        let is_at_work = control
            .open_moves
            .get(&row.shard)
            .is_some_and(|open| open.since.is_some());
        if is_at_work || has_slot(facts, &row.name) {
            continue;
        }
        let (slot, id) = (&row.name, row.move_id);
        let what = format!(
            "what the move {id} has copied cannot be brought up to date: its replication slot \
                {slot} is gone"
        );
        let remedy = format!(
            "run `pgshard moves resume {id}`, which copies again, or `pgshard moves abort {id}`; \
                {KEEP_SLOTS}"
        );
        findings.add_shard(
            Severity::Warning,
            "slot_gone",
            Some(host),
            row.shard,
            what,
            remedy,
        );
    }
}

/// Fewer dead rows than this make no query of the catalogs slow.
const DEAD_ROWS_MIN: u64 = 20_000;

/// A slot keeps VACUUM from rows of the catalogs that are dead since it was last confirmed: where
/// many temporary tables are made, the catalogs grow, and every plan is made more slowly.
fn catalogs(findings: &mut Findings, host: &HostName, facts: &HostFacts) {
    let of_moves = &facts.of_moves;
    let (dead, live) = (of_moves.dead_catalog_rows, of_moves.live_catalog_rows);
    let Some(slot) = &of_moves.catalog_slot else {
        return;
    };
    if dead < DEAD_ROWS_MIN || dead < live / 4 {
        return;
    }
    let what = format!(
        "its catalogs have {dead} dead rows, and {live} that are live; the replication slot {slot} \
            of a move keeps VACUUM from them"
    );
    let remedy = "end the move, or run `pgshard moves complete` where its old copy is not needed \
        any more; `pgshard moves feed` lets the slot of a rollback go on. Then VACUUM pg_attribute";
    findings.add(
        Severity::Warning,
        "catalogs_held",
        Some(host),
        what,
        remedy.to_owned(),
    );
}

const KEEP_SLOTS: &str = "a failover manager must leave slots named pgshard_… alone \
    (docs/high-availability.md)";

fn has_slot(facts: &HostFacts, slot: &str) -> bool {
    let is = |name: &String| name == slot;
    facts.of_moves.slots.iter().any(is) && !facts.of_moves.lost_slots.iter().any(is)
}

/// What moves have created here and must be dropped.
fn ledger(findings: &mut Findings, host: &HostName, control: &ControlFacts) {
    for object in &control.ledger {
        let has_ended = match object.phase.as_deref() {
            Some(phase) => ["completed", "aborted"].contains(&phase),
            // The journal is another host's, but a move that ends takes its row of pgshard.incoming
            // with it.
            None => object.kind == "incoming" && !control.incoming.contains_key(&object.shard),
        };
        let (severity, code, what, remedy) = match (object.kind.as_str(), object.phase.as_deref()) {
            ("left", Some("kept")) => {
                let remedy = "run `pgshard moves complete` when all is well".to_owned();
                (Severity::Notice, "old_copy", "its old copy is kept", remedy)
            }
            _ if has_ended => (
                Severity::Warning,
                "leftover",
                "a move that has ended left something behind",
                GC.to_owned(),
            ),
            ("old signpost", _) => (
                Severity::Notice,
                "old_signpost",
                "an old signpost is kept",
                format!("{GC} to drop it"),
            ),
            _ => continue,
        };
        findings.add_shard(severity, code, Some(host), object.shard, what, remedy);
    }
}

/// Whether a host has answered, and no longer owns a shard.
fn has_left(hosts: &Hosts<'_>, host: &HostName, shard: ShardId) -> bool {
    let control = hosts.facts(host).and_then(|facts| facts.control.as_ref());
    control.is_some_and(|control| {
        let row = control.shards.get(&shard);
        row.is_none_or(|row| !row.state.is_owner())
    })
}

/// A move that may not have brought everything to its target.
fn not_audited(findings: &mut Findings, hosts: &Hosts<'_>, host: &HostName, audit: &KeptAudit) {
    let KeptAudit {
        shard,
        move_id,
        target,
        differences,
        left_out,
    } = audit;
    if differences.is_empty() {
        let why = if left_out.is_empty() {
            "it was broken off".to_owned()
        } else {
            left_out.join("; ")
        };
        let what = format!("the move {move_id} to {target} was not audited: {why}");
        let complete = format!("`pgshard moves complete {move_id} --unaudited`");
        let remedy = match has_left(hosts, target, *shard) {
            true => format!(
                "the shard has left {target} since, so it can no longer be audited: run \
                    {complete} when all is well"
            ),
            false => format!("run `pgshard moves audit {move_id}`; without an audit, {complete}"),
        };
        findings.add_shard(
            Severity::Warning,
            "not_audited",
            Some(host),
            *shard,
            what,
            remedy,
        );
    } else {
        let found = differences.join("; ");
        let what = format!(
            "{target} did not have what it had here when the move {move_id} opened it there: \
                {found}"
        );
        let remedy = "its old copy is right, and what was written since: compare and repair as \
            docs/differs.md says under \"A move that differs\"";
        findings.add_shard(
            Severity::Alarm,
            "audit_differs",
            Some(host),
            *shard,
            what,
            remedy,
        );
    }
}
