//! What moves have left: old copies, audits, ways back, lent replica identities.

use crate::map::HostName;
use crate::schema::facts::{ControlFacts, KeptAudit};
use crate::schema::finding::{Findings, Severity};
use crate::schema::remedy::GC;

pub(super) fn check(findings: &mut Findings, host: &HostName, control: &ControlFacts) {
    for (shard, why) in &control.lost_ways {
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
        not_audited(findings, host, audit);
    }
}

/// What moves have made here and somebody must drop.
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

/// A move whose shard may not be at its target with everything that it had.
fn not_audited(findings: &mut Findings, host: &HostName, audit: &KeptAudit) {
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
        let remedy = format!(
            "run `pgshard moves audit {move_id}`; without an audit, `pgshard moves complete` takes \
                --unaudited"
        );
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
            docs/differs.md says \
                      under \"A move that differs\"";
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
