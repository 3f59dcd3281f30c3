//! What became of audits, for people and programs.

use pgshard::mover::{Audit, AuditDifference, AuditState, LeftOut};
use serde::Serialize;

/// An audit as JSON.
#[derive(Serialize)]
pub(super) struct ShownAudit {
    /// `under way`, `audited`, `differs` or `not audited`; null where there is nothing to audit yet.
    state: Option<&'static str>,
    ended_at: Option<String>,
    differences: Vec<AuditDifference>,
    left_out: Vec<LeftOut>,
}

impl ShownAudit {
    pub(super) fn of(audit: &Audit) -> ShownAudit {
        ShownAudit {
            state: audit.state.as_str(),
            ended_at: audit.at.map(|at| at.to_string()),
            differences: audit.differences.clone(),
            left_out: audit.left_out.clone(),
        }
    }
}

/// An audit in a word or two.
pub(super) fn word(audit: &Audit) -> &'static str {
    audit.state.as_str().unwrap_or("-")
}

/// The audits of several shards in a word: the one that matters most.
pub(super) fn worst<'a>(audits: impl Iterator<Item = &'a Audit>) -> &'static str {
    let weight = |audit: &&Audit| match audit.state {
        AuditState::Differs => 4,
        AuditState::NotAudited => 3,
        AuditState::UnderWay => 2,
        AuditState::None => 1,
        AuditState::Audited => 0,
    };
    audits.max_by_key(weight).map_or("-", word)
}
