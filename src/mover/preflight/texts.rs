//! Names of a shard's tables in tables of extensions that hold names as text: jobs of pg_cron,
//! partition sets of pg_partman. A move changes no text, and PostgreSQL does not know that they
//! depend on the shard.

use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::pg::quote_ident;

/// Warnings about what names this schema there.
///
/// Only in tables that belong to an extension: any other could belong to another role, with
/// policies that run as the role that reads.
///
/// Locks: ACCESS SHARE on those tables, for one statement each, in one transaction.
pub(crate) async fn named(source: &Session, schema: &str) -> Result<Vec<String>, Error> {
    let what = "looking for names of the shard in tables of extensions";
    let sql = "SELECT n.nspname::text, c.relname::text, a.attname::text, e.extname::text
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
        JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
            AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
        JOIN pg_extension e ON e.oid = d.refobjid
        WHERE (e.extname, c.relname, a.attname) IN (('pg_partman', 'part_config', 'parent_table'),
                ('pg_partman', 'part_config_sub', 'sub_parent'), ('pg_cron', 'job', 'command'))
            AND c.relkind = 'r' AND has_table_privilege(c.oid, 'SELECT')
            AND has_schema_privilege(n.oid, 'USAGE')
        ORDER BY 1, 2";
    let mut warnings = Vec::new();
    for row in source.rows(what, sql, &[]).await? {
        let (namespace, table): (String, String) = (row.get(0)?, row.get(1)?);
        let (column, extension): (String, String) = (row.get(2)?, row.get(3)?);
        let name = format!("{}.{}", quote_ident(&namespace), quote_ident(&table));
        let count = format!(
            "SELECT count(*) FROM {name} WHERE position($1 IN {}::text) > 0",
            quote_ident(&column)
        );
        // pg_cron shows each role its own jobs, by a policy.
        source
            .batch(what, "BEGIN READ ONLY; SET LOCAL row_security = on")
            .await?;
        let dotted = format!("{schema}.");
        let counted = source.row(what, &count, &[&dotted]).await;
        source.batch(what, "ROLLBACK").await?;
        let rows: i64 = counted?.get(0)?;
        if rows > 0 {
            warnings.push(format!(
                "{name} of the extension {extension} names its tables in {rows} rows: the move \
                    does not change them, do that on both hosts"
            ));
        }
    }
    Ok(warnings)
}
