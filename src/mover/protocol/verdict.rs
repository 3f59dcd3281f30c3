//! The result of the audit of a shard's move, as the journal keeps it and people read it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The state of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AuditState {
    /// There is nothing to audit yet, since the shard is not kept; or it was kept by a pgshard that
    /// had no audits.
    #[default]
    None,
    /// A mover is comparing.
    UnderWay,
    /// Everything was compared, and is the same.
    Audited,
    /// Something is not the same.
    Differs,
    /// Something could not be compared, and nothing was found to differ.
    NotAudited,
}

impl AuditState {
    const ALL: [(AuditState, &'static str); 4] = [
        (AuditState::UnderWay, "under way"),
        (AuditState::Audited, "audited"),
        (AuditState::Differs, "differs"),
        (AuditState::NotAudited, "not audited"),
    ];

    /// The state as the journal writes it; `None` where it writes nothing.
    pub fn as_str(self) -> Option<&'static str> {
        Self::ALL
            .into_iter()
            .find(|(state, _)| *state == self)
            .map(|(_, name)| name)
    }

    pub(crate) fn parse(name: &str) -> Option<AuditState> {
        Self::ALL
            .into_iter()
            .find(|(_, known)| *known == name)
            .map(|(state, _)| state)
    }
}

/// What happens to the old copy of a shard that differs, or was not audited, when its move is
/// completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Unaudited {
    /// It is kept: it may be the only right one.
    #[default]
    Kept,
    /// It is dropped like all others.
    Dropped,
}

/// A part of a shard in which the target was not what the source was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditDifference {
    /// `table photos`, `sequence photos_id_seq`, `definitions`.
    pub what: String,
    /// How they differ.
    pub how: String,
    /// If it is a table: the rows, ten at most, by their keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<RowDifference>,
}

impl fmt::Display for AuditDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.how)?;
        for (at, row) in self.rows.iter().enumerate() {
            write!(f, "{} {row}", if at == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

/// Something that was not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// `table photos`; `everything`.
    pub what: String,
    /// Why not.
    pub why: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

/// The result of the audit of a shard's move.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Audit {
    /// Its state.
    pub state: AuditState,
    /// When it ended.
    pub at: Option<Timestamp>,
    /// The differences, each with its kind.
    pub differences: Vec<AuditDifference>,
    /// What was not compared, and why.
    pub left_out: Vec<LeftOut>,
}

/// What the journal keeps in addition to the state.
#[derive(Default, Serialize, Deserialize)]
struct JournalResult {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    differences: Vec<AuditDifference>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOut>,
}

impl Audit {
    /// A result with these differences and omissions. If both are empty, all is well.
    pub(crate) fn of(differences: Vec<AuditDifference>, left_out: Vec<LeftOut>) -> Audit {
        let state = match (differences.is_empty(), left_out.is_empty()) {
            (false, _) => AuditState::Differs,
            (true, false) => AuditState::NotAudited,
            (true, true) => AuditState::Audited,
        };
        Audit {
            state,
            at: None,
            differences,
            left_out,
        }
    }

    /// The result when nothing was compared.
    pub(crate) fn left_out(why: impl Into<String>) -> Audit {
        Audit::of(
            Vec::new(),
            vec![LeftOut {
                what: "everything".to_owned(),
                why: why.into(),
            }],
        )
    }

    /// The result while an audit is under way.
    pub(crate) fn under_way() -> Audit {
        Audit {
            state: AuditState::UnderWay,
            ..Audit::default()
        }
    }

    /// Reads what the journal has: the state's name, when it ended, and what was found.
    pub(crate) fn read(state: Option<&str>, at: Option<Timestamp>, found: Option<&str>) -> Audit {
        let JournalResult {
            differences,
            left_out,
        } = found
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let state = state.and_then(AuditState::parse).unwrap_or_default();
        Audit {
            state,
            at,
            differences,
            left_out,
        }
    }

    /// The differences and omissions, for the journal.
    pub(crate) fn found(&self) -> serde_json::Value {
        let found = JournalResult {
            differences: self.differences.clone(),
            left_out: self.left_out.clone(),
        };
        serde_json::to_value(found).unwrap_or_default()
    }

    /// Why the old copy must not be dropped, since it may be the only right one; `None` if it may
    /// be dropped.
    pub fn objection(&self) -> Option<String> {
        match self.state {
            AuditState::Audited => None,
            AuditState::UnderWay => {
                Some("it is being audited: wait until the audit has ended".to_owned())
            }
            AuditState::Differs => Some(format!("its audit found that the target differs: {self}")),
            AuditState::NotAudited => Some(format!("it was not audited ({self})")),
            AuditState::None => {
                Some("it was not audited: it was kept by an older pgshard".to_owned())
            }
        }
    }
}

impl fmt::Display for Audit {
    /// What differs and what was left out, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = self
            .differences
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>();
        told.extend(
            self.left_out
                .iter()
                .map(|left| format!("not compared: {left}")),
        );
        f.write_str(&told.join("; "))
    }
}

/// A row that is not the same on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowDifference {
    /// Its key, or, if it has none, the shortened row.
    pub key: String,
    /// Its hash at the source, one for each such row; `None` if the row is not there.
    pub source: Option<String>,
    /// Its hash at the target.
    pub target: Option<String>,
}

impl fmt::Display for RowDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |hash: &Option<String>| hash.clone().unwrap_or_else(|| "nothing".to_owned());
        write!(
            f,
            "{}: {} at the source, {} at the target",
            self.key,
            side(&self.source),
            side(&self.target)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_gives_back_what_it_got() {
        let row = RowDifference {
            key: "(1)".to_owned(),
            source: Some("ab".to_owned()),
            target: None,
        };
        let difference = |rows| AuditDifference {
            what: "table t".to_owned(),
            how: "rows".to_owned(),
            rows,
        };
        let left = LeftOut {
            what: "table u".to_owned(),
            why: "truncated".to_owned(),
        };
        for (differences, left_out, state) in [
            (vec![], vec![], AuditState::Audited),
            (vec![], vec![left.clone()], AuditState::NotAudited),
            (vec![difference(vec![row])], vec![left], AuditState::Differs),
            (vec![difference(vec![])], vec![], AuditState::Differs),
        ] {
            let audit = Audit::of(differences, left_out);
            assert_eq!(audit.state, state);
            assert_eq!(
                Audit::read(state.as_str(), None, Some(&audit.found().to_string())),
                audit
            );
            assert_eq!(audit.objection().is_none(), state == AuditState::Audited);
        }
        assert_eq!(Audit::read(None, None, Some("{}")), Audit::default());
        assert!(Audit::default().objection().is_some());
    }
}
