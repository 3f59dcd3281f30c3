//! Digests of rows: their number, and a sum of a hash of each.
//!
//! Invariant: both sides hash the same columns in the same order with the same settings, so that digests differ only if
//! rows differ.

use crate::mover::control::session::Session;
use crate::mover::copy::transfer::qualified;
use crate::mover::preflight::table::{Column, TableShape};
use crate::mover::protocol::error::Error;

/// How rows are hashed. Both sides must do it alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hashing {
    /// By the values' binary forms, and by the texts of values whose types have none or are not PostgreSQL's own.
    /// Available since version 14; takes half the time of texts, or less.
    Binary,
    /// By the texts of all values.
    Text,
}

impl Hashing {
    /// The quicker one that both versions (as in `server_version_num`) support.
    pub(crate) fn of(source_version: u32, target_version: u32) -> Hashing {
        if source_version.min(target_version) >= 140_000 { Hashing::Binary } else { Hashing::Text }
    }

    /// SQL for a row's 64-bit hash.
    ///
    /// It hashes the form, not the value: two numerics that are equal but look different (1.0, 1.00) have different
    /// hashes. The whole row goes into one hash: with a sum of the columns' hashes, two rows could exchange values
    /// unnoticed.
    pub(crate) fn of_row(self, table: &TableShape) -> String {
        let list = |binary: bool| {
            let columns = table.columns.iter().map(compared);
            let wanted = columns.filter(|(_, is_binary)| self == Hashing::Text || *is_binary == binary);
            wanted.map(|(sql, _)| sql).collect::<Vec<_>>()
        };
        match self {
            Hashing::Text => format!("hashtextextended(ROW({})::text, 0)", list(true).join(", ")),
            Hashing::Binary => {
                let (mut columns, others) = (list(true), list(false));
                if !others.is_empty() {
                    columns.push(format!("ROW({})::text", others.join(", ")));
                }
                format!("hash_record_extended(ROW(record_send(ROW({}))), 0)", columns.join(", "))
            }
        }
    }
}

/// SQL for a column as it is compared, and whether its binary form is used. The binary form of NaN has a sign, which
/// the text does not show and the stream does not bring: a NaN that was computed at the source may have one.
fn compared(column: &Column) -> (String, bool) {
    let name = column.quoted();
    match column.type_oid {
        FLOAT4 | FLOAT8 => (format!("CASE WHEN {name} = 'NaN' THEN 'NaN' ELSE {name} END"), true),
        oid => (name, column.is_binary() && !HOLDS_FLOATS.contains(&oid)),
    }
}

const FLOAT4: u32 = 700;
const FLOAT8: u32 = 701;

/// point, lseg, path, box, polygon, line, circle, and the arrays of these and of floats.
const HOLDS_FLOATS: [u32; 16] = [600, 601, 602, 603, 604, 628, 718, 1017, 1018, 1019, 1020, 1027, 629, 719, 1021, 1022];

/// A digest of rows of a table: their number, and a sum of their hashes that does not depend on their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    pub(crate) rows: i64,
    sum: String,
}

#[cfg(test)]
impl Digest {
    pub(crate) fn of(rows: i64, sum: &str) -> Digest {
        Digest { rows, sum: sum.to_owned() }
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rows, digest {}", self.rows, self.sum)
    }
}

/// The digest of the rows of a table that fulfil `condition`, in the session's snapshot.
///
/// Locks: ACCESS SHARE on the table until the end of the session's transaction.
pub(crate) async fn digest(
    session: &Session,
    schema: &str,
    table: &TableShape,
    condition: &str,
    hashing: Hashing,
) -> Result<Digest, Error> {
    digest_of((session, &qualified(schema, table)), table, condition, hashing).await
}

/// The same for a table with this name in SQL, which may differ from the name in its shape.
///
/// Locks: as [`digest`].
pub(crate) async fn digest_of(
    (session, from): (&Session, &str),
    table: &TableShape,
    condition: &str,
    hashing: Hashing,
) -> Result<Digest, Error> {
    let hash = hashing.of_row(table);
    let sql = format!("SELECT count(*), coalesce(sum({hash}), 0)::text FROM ONLY {from} WHERE {condition}");
    let row = session.row("digesting rows", &sql, &[]).await?;
    Ok(Digest { rows: row.get(0)?, sum: row.get(1)? })
}
