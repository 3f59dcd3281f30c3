//! What became of audits, for people and programs.

use pgshard::mover::{Audit, AuditDifference, AuditState, LeftOut};
use schemars::JsonSchema;
use serde::Serialize;

/// An audit as JSON.
#[derive(JsonSchema, Serialize)]
pub(crate) struct ShownAudit {
    /// `under way`, `audited`, `differs` or `not audited`; null where there is nothing to audit
    /// yet.
    state: Option<&'static str>,
    ended_at: Option<String>,
    #[schemars(with = "Vec<ShownDifference>")]
    differences: Vec<AuditDifference>,
    #[schemars(with = "Vec<ShownLeftOut>")]
    left_out: Vec<LeftOut>,
}

/// How an [`AuditDifference`] is written.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is wanted: the library writes it")]
struct ShownDifference {
    /// `table photos`, `sequence photos_id_seq`, `definitions`.
    what: String,
    how: String,
    /// Of a table: the rows, ten at most, by their keys; left out where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rows: Vec<ShownRow>,
}

/// A row that is not the same on both sides.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is wanted: the library writes it")]
struct ShownRow {
    key: String,
    /// Its hash at the source; null: it is not there.
    source: Option<String>,
    target: Option<String>,
}

/// How a [`LeftOut`] is written.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is wanted: the library writes it")]
struct ShownLeftOut {
    what: String,
    why: String,
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
pub(in super::super) fn word(audit: &Audit) -> &'static str {
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
