//! How far the IDs of an unsharded host have come.

use tokio_postgres::Client;

/// The last value of each sequence of a primary key in the schema, of a thousand at most: each is
/// locked.
const LAST: &str = "SELECT s.oid::regclass::text, made.last FROM (SELECT s.oid FROM pg_class s
        JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = s.oid
            AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
        JOIN pg_class t ON t.oid = d.refobjid
        JOIN pg_namespace n ON n.oid = t.relnamespace AND n.nspname = $1
        JOIN pg_index i ON i.indrelid = t.oid AND i.indisprimary
            AND d.refobjsubid = ANY (i.indkey)
        WHERE s.relkind = 'S' ORDER BY s.oid LIMIT 1000) s
    CROSS JOIN LATERAL (SELECT CASE WHEN has_sequence_privilege(s.oid, 'SELECT, USAGE')
        THEN pg_sequence_last_value(s.oid) END AS last) made
    WHERE made.last IS NOT NULL ORDER BY made.last DESC LIMIT 1";

/// The sequence of a primary key in this schema that has come furthest, and the last ID that it
/// made. None if there is none, the role may not read them, or one is locked.
///
/// Locks: ROW EXCLUSIVE on the sequences until the transaction ends, which only DDL waits for.
/// Waits a tenth of a second at most.
pub(super) async fn last_id(client: &Client, schema: &str) -> Option<(String, i64)> {
    let begin = "BEGIN READ ONLY; SET LOCAL lock_timeout = '100ms'";
    client.batch_execute(begin).await.ok()?;
    let row = client.query_opt(LAST, &[&schema]).await;
    client.batch_execute("ROLLBACK").await.ok()?;
    let row = row.ok()??;
    Some((row.try_get(0).ok()?, row.try_get(1).ok()?))
}
