//! Which tables of a shard have rows that the stream cannot identify, and which replica identity
//! such a table is lent during the move.
//!
//! Invariant: a table is lent only what can be taken back, and the plan announces it.

use std::collections::BTreeMap;
use std::fmt;

use crate::mover::control::session::Session;
use crate::mover::definition::refusal::Refusal;
use crate::mover::preflight::table::{Identity, TableShape};
use crate::mover::protocol::desired::IdentityPolicy;
use crate::mover::protocol::error::Error;
use crate::pg::quote_ident;

/// A replica identity that a table gets for the time of an online move. Without it the stream could
/// not identify the table's rows, and the server would refuse UPDATE and DELETE once the table is
/// published.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LentIdentity {
    /// The table.
    pub table: String,
    /// The unique index that identifies its rows. `None`: REPLICA IDENTITY FULL, all columns do.
    pub index: Option<String>,
}

impl LentIdentity {
    /// `FULL`, or `USING INDEX name`, as ALTER TABLE writes it.
    pub(crate) fn clause(&self) -> String {
        self.index.as_deref().map_or("FULL".to_owned(), |index| {
            format!("USING INDEX {}", quote_ident(index))
        })
    }
}

/// `table audit_log gets REPLICA IDENTITY FULL`.
impl fmt::Display for LentIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "table {} gets REPLICA IDENTITY {}",
            self.table,
            self.clause()
        )
    }
}

/// The reasons against copying tables while they are written to, and what is lent to tables so that
/// there is no reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) lent: Vec<LentIdentity>,
    pub(crate) refusals: Vec<Refusal>,
}

/// For each table, by its OID, the unique index that can identify its rows.
pub(crate) type Keys = BTreeMap<u32, String>;

/// Judges the tables. Once a table is published, its UPDATE and DELETE fail at the source unless
/// the stream can identify their rows: so this must be checked before anything is published.
pub(crate) fn judge(shapes: &[TableShape], keys: &Keys, policy: IdentityPolicy) -> Judgement {
    let mut judgement = Judgement::default();
    for shape in shapes {
        let Some((reason, instead)) = unnamed(shape) else {
            continue;
        };
        let index = keys.get(&shape.oid).cloned();
        // If the index of its identity is gone, that identity cannot be restored.
        let is_lost = shape.identity == Identity::Index && shape.key_index.is_none();
        let full_works = shape.columns.iter().all(|column| !column.is_virtual);
        if policy == IdentityPolicy::Lend && !is_lost && (index.is_some() || full_works) {
            judgement.lent.push(LentIdentity {
                table: shape.name.clone(),
                index,
            });
        } else {
            let full = if full_works && policy == IdentityPolicy::Keep {
                "move without --no-replica-identity"
            } else {
                "move with --mode blocking"
            };
            judgement.refusals.push(Refusal::new(
                format!("table {}", shape.name),
                format!(
                    "{reason}, so that its UPDATE and DELETE would fail while it is copied online"
                ),
                format!("ALTER TABLE … {instead}, or {full}"),
            ));
        }
    }
    judgement
}

/// Why the stream cannot identify the rows of a table, and what would help.
fn unnamed(shape: &TableShape) -> Option<(&'static str, &'static str)> {
    let is_virtual = shape.columns.iter().any(|column| column.is_virtual);
    Some(match (shape.identity, &shape.key_index) {
        (Identity::Full, _) if is_virtual => (
            "has REPLICA IDENTITY FULL and a virtual generated column",
            "REPLICA IDENTITY DEFAULT, with a primary key",
        ),
        (Identity::Full, _) => return None,
        (Identity::Nothing, _) => ("has REPLICA IDENTITY NOTHING", "REPLICA IDENTITY DEFAULT"),
        (Identity::Default, None) => ("has no primary key", "ADD PRIMARY KEY"),
        (Identity::Index, None) => (
            "has lost the index of its REPLICA IDENTITY",
            "REPLICA IDENTITY DEFAULT",
        ),
        (_, Some(index)) if !index.immediate => (
            "has a deferrable primary key",
            "ADD PRIMARY KEY … NOT DEFERRABLE",
        ),
        (_, Some(_)) if shape.columns.iter().any(|column| column.ambiguous) => (
            "has a key under another collation, which tells texts apart that its column's calls \
                equal",
            "ADD PRIMARY KEY",
        ),
        (_, Some(_)) if shape.key.is_empty() => {
            ("has a generated column in its key", "ADD PRIMARY KEY")
        }
        (_, Some(_)) => return None,
    })
}

/// Reads the unique indexes that can identify the rows of these tables. Such an index is on whole
/// columns that are NOT NULL and not generated, covers all rows, and is checked row by row; by it,
/// no rows are different that are equal by its columns. Of several, the one with the fewest columns
/// is taken.
///
/// Locks: ACCESS SHARE on catalogs, for one statement.
pub(crate) async fn keys(session: &Session, shapes: &[TableShape]) -> Result<Keys, Error> {
    let what = "looking for unique indexes";
    let wanted: Vec<u32> = shapes
        .iter()
        .filter(|shape| unnamed(shape).is_some())
        .map(|shape| shape.oid)
        .collect();
    if wanted.is_empty() {
        return Ok(Keys::new());
    }
    let sql = "SELECT DISTINCT ON (i.indrelid) i.indrelid, x.relname::text
        FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
        WHERE i.indrelid = ANY ($1) AND i.indisunique AND i.indimmediate AND i.indisvalid AND \
        i.indisready
            AND i.indpred IS NULL AND i.indexprs IS NULL AND NOT EXISTS (
                SELECT FROM pg_attribute a
                WHERE a.attrelid = i.indrelid AND a.attnum = ANY \
                ((i.indkey::int2[])[0:i.indnkeyatts - 1])
                    AND (NOT a.attnotnull OR a.attgenerated <> ''
                        OR a.attcollation IN (SELECT oid FROM pg_collation WHERE NOT \
                        collisdeterministic)
                            AND a.attcollation <> \
                            (i.indcollation::oid[])[array_position(i.indkey::int2[], a.attnum)]))
        ORDER BY i.indrelid, i.indnkeyatts, x.relname COLLATE \"C\"";
    let rows = session.rows(what, sql, &[&wanted]).await?;
    rows.iter()
        .map(|row| Ok((row.get(0)?, row.get(1)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mover::preflight::table::tests::{self, keyed_by_a_generated_column};

    fn judged(
        shape: &TableShape,
        identity: Identity,
        keys: &Keys,
        policy: IdentityPolicy,
    ) -> String {
        let judgement = judge(
            &[TableShape {
                identity,
                ..shape.clone()
            }],
            keys,
            policy,
        );
        let refused = judgement
            .refusals
            .iter()
            .map(|refusal| format!("{}; {}", refusal.reason, refusal.remedy));
        judgement
            .lent
            .iter()
            .map(LentIdentity::clause)
            .chain(refused)
            .collect::<Vec<_>>()
            .join("; ")
    }

    #[test]
    fn what_is_lent_and_refused() {
        let plain = tests::shape(&["id", "v"], 1);
        let keyless = tests::shape(&["id", "v"], 0);
        let mut deferrable = plain.clone();
        deferrable.key_index.as_mut().unwrap().immediate = false;
        let generated = keyed_by_a_generated_column();
        let mut computed = plain.clone();
        (
            computed.columns[1].generated,
            computed.columns[1].is_virtual,
        ) = (true, true);
        let mut computed_keyless = keyless.clone();
        (
            computed_keyless.columns[1].generated,
            computed_keyless.columns[1].is_virtual,
        ) = (true, true);
        let index = || Keys::from([(1, "T\"_key".to_owned())]);
        for (shape, identity, alone, with_index) in [
            (&plain, Identity::Default, "", ""),
            (&plain, Identity::Index, "", ""),
            (&plain, Identity::Full, "", ""),
            (&computed, Identity::Default, "", ""),
            (&keyless, Identity::Full, "", ""),
            (&deferrable, Identity::Full, "", ""),
            (&generated, Identity::Full, "", ""),
            (
                &plain,
                Identity::Nothing,
                "FULL",
                "USING INDEX \"T\"\"_key\"",
            ),
            (
                &keyless,
                Identity::Default,
                "FULL",
                "USING INDEX \"T\"\"_key\"",
            ),
            (
                &deferrable,
                Identity::Default,
                "FULL",
                "USING INDEX \"T\"\"_key\"",
            ),
            (
                &generated,
                Identity::Default,
                "FULL",
                "USING INDEX \"T\"\"_key\"",
            ),
            (
                &generated,
                Identity::Index,
                "FULL",
                "USING INDEX \"T\"\"_key\"",
            ),
            (
                &keyless,
                Identity::Index,
                "has lost the index of its REPLICA IDENTITY, so",
                "has lost the index of",
            ),
            (
                &computed,
                Identity::Full,
                "has REPLICA IDENTITY FULL and a virtual",
                "USING INDEX \"T\"\"_key\"",
            ),
            (
                &computed_keyless,
                Identity::Default,
                "has no primary key, so",
                "USING INDEX \"T\"\"_key\"",
            ),
        ] {
            for (keys, expected) in [(Keys::new(), alone), (index(), with_index)] {
                let said = judged(shape, identity, &keys, IdentityPolicy::Lend);
                let as_expected = if expected.starts_with("has") {
                    said.starts_with(expected)
                } else {
                    said == expected
                };
                assert!(
                    as_expected,
                    "{identity:?} {keys:?}: {said:?}, and not {expected:?}"
                );
                let kept = judged(shape, identity, &keys, IdentityPolicy::Keep);
                assert_eq!(
                    kept.is_empty(),
                    expected.is_empty(),
                    "{identity:?} {keys:?}: {kept:?}"
                );
                assert!(kept.is_empty() || kept.starts_with("has "), "{kept:?}");
            }
        }
    }
}
