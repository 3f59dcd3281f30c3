//! Columns of types that are made of others, in whatever depth: domains, arrays, row types and
//! ranges, also those outside the shard. A number of this host that is within a value means as
//! little at the target as one that is the value.

use crate::mover::control::row::AnsweredRow;
use crate::mover::control::session::Session;
use crate::mover::definition::refusal::Refusal;
use crate::mover::protocol::error::Error;

/// A part of a column's type.
pub(crate) struct Part {
    pub(crate) table: String,
    pub(crate) column: String,
    /// The column's type.
    pub(crate) whole: String,
    /// The part's: `oid`, or one of the `reg…` types.
    pub(crate) type_name: String,
}

/// The parts that hold OIDs, of the types of a schema's columns. A column that is nothing but an
/// OID, or an array of them, has no part.
///
/// Locks: none but ACCESS SHARE on catalogs.
pub(crate) async fn with_oids(source: &Session, schema: u32) -> Result<Vec<Part>, Error> {
    let sql = "WITH RECURSIVE stored AS (
            SELECT c.relname, a.attnum, a.attname, a.atttypid
            FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = $1 AND d.classid = \
            'pg_class'::regclass
                AND c.relkind IN ('r', 'p')
        ), reached (whole, part) AS (
            SELECT DISTINCT atttypid, atttypid FROM stored
            UNION
            SELECT r.whole, x.part
            FROM reached r JOIN pg_type t ON t.oid = r.part, LATERAL (
                SELECT t.typelem WHERE t.typcategory = 'A'
                UNION ALL SELECT t.typbasetype
                UNION ALL SELECT a.atttypid FROM pg_attribute a
                    WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT \
                    a.attisdropped
                UNION ALL SELECT g.rngsubtype FROM pg_range g
                    WHERE g.rngtypid = t.oid OR to_jsonb(g) ->> 'rngmultitypid' = t.oid::text) AS \
                    x(part)
        )
        SELECT s.relname::text, s.attname::text, format_type(s.atttypid, NULL), format_type(p.oid, \
        NULL)
        FROM stored s JOIN reached r ON r.whole = s.atttypid JOIN pg_type p ON p.oid = r.part
        WHERE p.typnamespace = 'pg_catalog'::regnamespace AND p.typcategory = 'N'
            AND (p.typname = 'oid' OR starts_with(p.typname, 'reg')) AND s.atttypid NOT IN (p.oid, \
            p.typarray)
        ORDER BY s.relname, s.attnum, 4";
    let rows = source
        .rows("reading what the types are made of", sql, &[&schema])
        .await?;
    let part = |row: &AnsweredRow| {
        Ok(Part {
            table: row.get(0)?,
            column: row.get(1)?,
            whole: row.get(2)?,
            type_name: row.get(3)?,
        })
    };
    rows.iter().map(part).collect()
}

/// The refusals for parts of `reg…` types.
pub(crate) fn of_this_host(parts: &[Part]) -> Vec<Refusal> {
    let reg = parts.iter().filter(|part| part.type_name != "oid");
    reg.map(|part| {
        let Part {
            table,
            column,
            whole,
            type_name,
        } = part;
        let reason = format!(
            "is of type {whole}, which is made of {type_name}, whose values are OIDs of this host"
        );
        Refusal::new(
            format!("column {table}.{column}"),
            reason,
            "keep names as text",
        )
    })
    .collect()
}
