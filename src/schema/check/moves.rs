//! What moves have left: old copies, audits, ways back, lent replica identities.

use crate::map::HostName;
use crate::schema::facts::{ControlFacts, KeptAudit};
use crate::schema::finding::{Findings, Severity};

/// Moves whose shards may not be at their targets with everything that they had.
pub(super) fn audits(findings: &mut Findings, host: &HostName, control: &ControlFacts) {
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

pub(super) fn leftovers(findings: &mut Findings, host: &HostName, control: &ControlFacts) {
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
