//! Functions with bodies that are bound to tables. A call of one by a cached plan looks no name up:
//! it would write to the old copy, past the fence. `pgshard.build_signpost` refuses them, too, but
//! only while a move is prepared.

use crate::mover::control::row::AnsweredRow;
use crate::mover::control::session::Session;
use crate::mover::definition::refusal::Refusal;
use crate::mover::protocol::error::Error;

/// The refusals for VOLATILE functions of a schema that are bound to its tables or views.
///
/// Locks: none but ACCESS SHARE on catalogs.
pub(crate) async fn bound(source: &Session, schema: u32) -> Result<Vec<Refusal>, Error> {
    let sql =
        "SELECT CASE p.prokind WHEN 'p' THEN 'procedure' ELSE 'function' END, p.proname::text,
            pg_get_function_identity_arguments(p.oid), min(c.relname::text)
        FROM pg_depend m JOIN pg_proc p ON p.oid = m.objid
        JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
        JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid
        WHERE m.refclassid = 'pg_namespace'::regclass AND m.refobjid = $1 AND m.classid = \
        'pg_proc'::regclass
            AND p.provolatile = 'v' AND c.relnamespace = $1 AND c.relkind <> 'S'
        GROUP BY p.oid, p.prokind, p.proname ORDER BY 2, 3";
    let rows = source
        .rows(
            "looking for functions that are bound to tables",
            sql,
            &[&schema],
        )
        .await?;
    let refusal = |row: &AnsweredRow| {
        let (kind, name, arguments): (String, String, String) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        let table: String = row.get(3)?;
        let reason = format!(
            "is VOLATILE and bound to {table} by a body in SQL: it could write past the fence"
        );
        let remedy = "give it a body that is text (AS '…'), or make it STABLE if it only reads";
        Ok(Refusal::new(
            format!("{kind} {name}({arguments})"),
            reason,
            remedy,
        ))
    };
    rows.iter().map(refusal).collect()
}
