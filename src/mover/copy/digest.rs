//! Digests of rows: their number, and a sum of a hash of each.
//!
//! Invariant: both sides hash the same columns in the same order with the same settings, so that
//! digests differ only if rows differ.

use crate::mover::control::session::Session;
use crate::mover::copy::transfer::qualified;
use crate::mover::preflight::table::{Column, TableShape};
use crate::mover::protocol::error::Error;

/// How rows are hashed. Both sides must do it alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hashing {
    /// By the values' binary forms, and by the texts of values of types that have none or are not
    /// PostgreSQL's own. Available since version 14; takes half the time of texts, or less.
    Binary,
    /// By the texts of all values.
    Text,
}

impl Hashing {
    /// The quicker one that both versions (as in `server_version_num`) support.
    pub(crate) fn of(source_version: u32, target_version: u32) -> Hashing {
        if source_version.min(target_version) >= 140_000 {
            Hashing::Binary
        } else {
            Hashing::Text
        }
    }

    /// SQL for a row's 64-bit hash.
    ///
    /// It hashes the form, not the value: two numerics that are equal but look different (1.0,
    /// 1.00) have different hashes. The whole row goes into one hash: with a sum of the columns'
    /// hashes, two rows could exchange values unnoticed.
    pub(crate) fn of_row(self, table: &TableShape) -> String {
        match self {
            Hashing::Text => format!(
                "hashtextextended(ROW({})::text, 0)",
                joined(table.columns.iter().map(compared))
            ),
            Hashing::Binary => binary(table),
        }
    }
}

/// How many columns are hashed one around the other. The rest are hashed within: PostgreSQL's
/// parser would refuse expressions as deep as a table can be wide.
const LINKS_MAX: usize = 64;

/// SQL for a row's hash by binary forms.
///
/// The hash of one column is the seed of the next: `f(c, f(b, f(a, seed)))` (decision 0039).
/// PostgreSQL computes that in place, without a copy of the row. The innermost seed is the hash of
/// those columns that have a type without a function for it. That one is linear in its columns;
/// around it at least one other is not, or there is no such seed at all and the whole row goes
/// through one hash of its bytes.
fn binary(table: &TableShape) -> String {
    let mut links = Vec::new();
    let mut sent = Vec::new();
    let (mut forms, mut texts) = (Vec::new(), Vec::new());
    for column in &table.columns {
        match ColumnHash::of(column) {
            ColumnHash::Linked(link) if links.len() < LINKS_MAX => links.push((column, link)),
            ColumnHash::Sent(function) => sent.push(format!("{function}({})", compared(column))),
            ColumnHash::Linked(_) | ColumnHash::Form => forms.push(compared(column)),
            ColumnHash::Text => texts.push(compared(column)),
        }
    }
    if links.is_empty() {
        return whole(&table.columns);
    }
    if !texts.is_empty() {
        forms.push(format!("ROW({})::text", texts.join(", ")));
    }
    if !forms.is_empty() {
        sent.push(format!("record_send(ROW({}))", forms.join(", ")));
    }
    let seed = match sent.is_empty() {
        true => "0::bigint".to_owned(),
        false => format!("hash_record_extended(ROW({}), 0)", sent.join(", ")),
    };
    links
        .iter()
        .fold(seed, |seed, (column, link)| link.around(column, &seed))
}

/// SQL for a hash of all bytes of a row.
fn whole(columns: &[Column]) -> String {
    let (forms, texts): (Vec<_>, Vec<_>) = columns
        .iter()
        .partition(|column| !matches!(ColumnHash::of(column), ColumnHash::Text));
    let mut forms: Vec<String> = forms.into_iter().map(compared).collect();
    if !texts.is_empty() {
        forms.push(format!(
            "ROW({})::text",
            joined(texts.into_iter().map(compared))
        ));
    }
    format!(
        "hash_record_extended(ROW(record_send(ROW({}))), 0)",
        forms.join(", ")
    )
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// How a column takes part in [`binary`].
enum ColumnHash {
    /// By a function of its type that takes a seed.
    Linked(Link),
    /// By the bytes that this function sends, in a record.
    Sent(&'static str),
    /// By its binary form, among others.
    Form,
    /// By its text.
    Text,
}

impl ColumnHash {
    fn of(column: &Column) -> ColumnHash {
        match column.type_oid {
            BOOL => ColumnHash::Linked(Link::Bool),
            INT2 => ColumnHash::Linked(Link::Int2),
            INT4 => ColumnHash::Linked(Link::Int4),
            INT8 => ColumnHash::Linked(Link::Int8),
            TEXT | VARCHAR => ColumnHash::Linked(Link::Text),
            UUID => ColumnHash::Linked(Link::Uuid),
            JSONB => ColumnHash::Linked(Link::Jsonb),
            FLOAT4 => ColumnHash::Sent("float4send"),
            FLOAT8 => ColumnHash::Sent("float8send"),
            DATE => ColumnHash::Sent("date_send"),
            TIMESTAMP => ColumnHash::Sent("timestamp_send"),
            TIMESTAMPTZ => ColumnHash::Sent("timestamptz_send"),
            NUMERIC => ColumnHash::Sent("numeric_send"),
            oid if column.is_binary() && !HOLDS_FLOATS.contains(&oid) => ColumnHash::Form,
            _ => ColumnHash::Text,
        }
    }
}

/// A type that is hashed in place: different values have different hashes, up to chance. That is
/// why there is none for bpchar, which has a function that ignores blanks at the end, or timestamp,
/// which has one that folds it to half its size.
#[derive(Clone, Copy)]
enum Link {
    Bool,
    Int2,
    Int4,
    Int8,
    Text,
    Uuid,
    Jsonb,
}

impl Link {
    /// SQL for the hash of a column, with another hash as its seed. A null value is hashed as some
    /// other one, with another seed. A key has none.
    fn around(self, column: &Column, seed: &str) -> String {
        let name = column.quoted();
        let other = match self {
            Link::Bool => "false",
            Link::Int2 => "0::smallint",
            Link::Int4 => "0",
            Link::Int8 => "0::bigint",
            Link::Text | Link::Jsonb => "''",
            Link::Uuid => "'00000000-0000-0000-0000-000000000000'::uuid",
        };
        let value = match self {
            // Its text is what it sends. Its own function takes 1.0 for 1.00.
            Link::Jsonb => format!("{name}::text"),
            _ => name.clone(),
        };
        // Not a sum: a hash may be the largest bigint there is.
        let (value, seed) = match column.in_key {
            Some(_) => (value, seed.to_owned()),
            None => (
                format!("coalesce({value}, {other})"),
                format!("{seed} # ({name} IS NULL)::integer::bigint"),
            ),
        };
        match self {
            Link::Bool => format!("hashint4extended({value}::integer, {seed})"),
            Link::Int2 => format!("hashint2extended({value}, {seed})"),
            Link::Int4 => format!("hashint4extended({value}, {seed})"),
            // The function folds the value's halves: 1 and 4294967296 would have one hash. The
            // upper half goes into the seed, and from both follows the value.
            Link::Int8 => format!("hashint8extended({value}, {seed} # ({value} >> 32))"),
            // The collation may call different texts equal.
            Link::Text | Link::Jsonb => format!("hashtextextended({value} COLLATE \"C\", {seed})"),
            Link::Uuid => format!("uuid_hash_extended({value}, {seed})"),
        }
    }
}

/// SQL for a column as it is compared. The binary form of NaN has a sign, which the text does not
/// show and the stream does not bring: a NaN that was computed at the source may have one.
fn compared(column: &Column) -> String {
    let name = column.quoted();
    match column.type_oid {
        FLOAT4 | FLOAT8 => format!("CASE WHEN {name} = 'NaN' THEN 'NaN' ELSE {name} END"),
        _ => name,
    }
}

const BOOL: u32 = 16;
const INT8: u32 = 20;
const INT2: u32 = 21;
const INT4: u32 = 23;
const TEXT: u32 = 25;
const FLOAT4: u32 = 700;
const FLOAT8: u32 = 701;
const VARCHAR: u32 = 1043;
const DATE: u32 = 1082;
const TIMESTAMP: u32 = 1114;
const TIMESTAMPTZ: u32 = 1184;
const NUMERIC: u32 = 1700;
const UUID: u32 = 2950;
const JSONB: u32 = 3802;

/// point, lseg, path, box, polygon, line, circle, and the arrays of these and of floats.
const HOLDS_FLOATS: [u32; 16] = [
    600, 601, 602, 603, 604, 628, 718, 1017, 1018, 1019, 1020, 1027, 629, 719, 1021, 1022,
];

/// A digest of rows of a table: their number, and a sum of their hashes that does not depend on
/// their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    pub(crate) rows: i64,
    sum: String,
}

#[cfg(test)]
impl Digest {
    pub(crate) fn of(rows: i64, sum: &str) -> Digest {
        Digest {
            rows,
            sum: sum.to_owned(),
        }
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
    digest_of(
        (session, &qualified(schema, table)),
        table,
        condition,
        hashing,
    )
    .await
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
    let sql = format!(
        "SELECT count(*), coalesce(sum({hash}), 0)::text FROM ONLY {from} WHERE {condition}"
    );
    let row = session.row("digesting rows", &sql, &[]).await?;
    Ok(Digest {
        rows: row.get(0)?,
        sum: row.get(1)?,
    })
}

/// The generated columns that differ, if nothing else does. `None` where it is not that, or nothing
/// differs.
///
/// Locks: as [`digest`].
pub(crate) async fn computed_otherwise(
    (source, here): (&Session, &str),
    (target, there): (&Session, &str),
    table: &TableShape,
    condition: &str,
    hashing: Hashing,
) -> Result<Option<Vec<String>>, Error> {
    let same = async |which: &(dyn Fn(&Column) -> bool + Sync)| {
        let columns = table
            .columns
            .iter()
            .filter(|column| which(column))
            .cloned()
            .collect();
        let part = TableShape {
            columns,
            ..table.clone()
        };
        let (ours, theirs) = tokio::try_join!(
            digest(source, here, &part, condition, hashing),
            digest(target, there, &part, condition, hashing)
        )?;
        Ok::<bool, Error>(ours == theirs)
    };
    let has_generated = table.columns.iter().any(|column| column.generated);
    if !has_generated || !same(&|column| !column.generated).await? {
        return Ok(None);
    }
    let mut differ = Vec::new();
    for one in table.columns.iter().filter(|column| column.generated) {
        if !same(&|column| column.name == one.name).await? {
            differ.push(one.name.clone());
        }
    }
    Ok(Some(differ).filter(|differ| !differ.is_empty()))
}
