//! The roles that only watch: what they may read, and which roles they are.
//!
//! A role that was granted SELECT on `pgshard.control_migration` counts as a monitor's, since no
//! other purpose needs that. As with routers, the catalogs are the only record: what a role may
//! watch on one host, it may watch on all.
//!
//! Invariant: a monitor reads no token of a move or of a worker number, no key of a row that is
//! being copied, and writes nowhere.

use std::collections::BTreeSet;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::pg::{do_block, quote_ident, quote_literal};

/// What a monitor reads of the control schema: tables, each with its columns, or with none for the
/// whole table. A column that is not listed stays unread: tokens, statements, and the bounds of
/// chunks, which are keys of rows.
const READ: [(&str, &str); 16] = [
    ("back", ""),
    (
        "chunk",
        "move_id, shard_id, table_name, number, snapshot, rows, bytes, verified_at",
    ),
    ("cluster", ""),
    ("control_migration", ""),
    ("host_migration", ""),
    ("identity", ""),
    (
        "incoming",
        "shard_id, schema_name, move_id, source, epoch, ready_attempt, stream_from, created_at",
    ),
    ("known_host", ""),
    ("ledger", ""),
    ("lent_identity", ""),
    ("migration_attempt", ""),
    (
        "move",
        "move_id, shard_id, source, target, mode, phase, epoch, attempt, lease, lease_until, \
            holder, fingerprint, back_of, back, rows, bytes, timings, last_error, wanted, \
            hold_until, created_at, updated_at, audit, audited_at, audit_found",
    ),
    ("mover", ""),
    (
        "shard",
        "shard_id, schema_name, state, epoch, peer, move_id, attempt, fence_deadline, \
            last_fence_at, opened_lsn",
    ),
    ("shard_migration", ""),
    ("whole", ""),
];

/// The table that no other purpose needs.
const MARK: &str = "control_migration";

/// The schemas that exist where there are tickets or worker numbers.
const TICKETS: &str = "pgshard_tickets";
const WORKERS: &str = "pgshard_workers";

/// The predefined role that sees what all sessions do, and how far standbys are.
const STATISTICS: &str = "pg_read_all_stats";

fn read() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    let columns = |columns: &'static str| {
        columns
            .split(", ")
            .filter(|column| !column.is_empty())
            .collect()
    };
    READ.into_iter()
        .map(move |(table, listed)| (table, columns(listed)))
}

/// The statement by which an administrator lets a role see what all sessions do.
pub(in crate::schema) fn of_server(role: &str) -> String {
    format!("GRANT {STATISTICS} TO {}", quote_ident(role))
}

/// The statements that let a role watch. Running them again changes nothing.
pub(in crate::schema) fn of_monitor(role: &str) -> Vec<String> {
    let grantee = quote_ident(role);
    let whole: Vec<String> = read()
        .filter(|(_, columns)| columns.is_empty())
        .map(|(t, _)| format!("pgshard.{t}"))
        .collect();
    let mut statements = vec![
        format!("GRANT USAGE ON SCHEMA pgshard TO {grantee}"),
        format!("GRANT SELECT ON TABLE {} TO {grantee}", whole.join(", ")),
    ];
    for (table, columns) in read().filter(|(_, columns)| !columns.is_empty()) {
        statements.push(format!(
            "GRANT SELECT ({}) ON TABLE pgshard.{table} TO {grantee}",
            columns.join(", ")
        ));
    }
    // It only reads pg_locks: which sessions are in the way of a fence.
    statements.push(format!(
        "GRANT EXECUTE ON FUNCTION pgshard.barrier(oid) TO {grantee}"
    ));
    statements.push(where_there_is(
        TICKETS,
        &[
            format!("GRANT USAGE ON SCHEMA {TICKETS} TO {grantee}"),
            format!("GRANT SELECT ON ALL TABLES IN SCHEMA {TICKETS} TO {grantee}"),
            format!("GRANT SELECT ON ALL SEQUENCES IN SCHEMA {TICKETS} TO {grantee}"),
        ],
    ));
    statements.push(where_there_is(
        WORKERS,
        &[
            format!("GRANT USAGE ON SCHEMA {WORKERS} TO {grantee}"),
            format!("GRANT SELECT ON TABLE {WORKERS}.version TO {grantee}"),
            format!(
                "GRANT SELECT (space, worker, ceiling_ms, expires_at) ON TABLE {WORKERS}.lease \
                TO {grantee}"
            ),
        ],
    ));
    statements
}

fn where_there_is(schema: &str, statements: &[String]) -> String {
    let body: String = statements
        .iter()
        .map(|one| format!("        EXECUTE {};\n", quote_literal(one)))
        .collect();
    do_block(&format!(
        "BEGIN\n    IF pg_catalog.to_regnamespace('{schema}') IS NOT NULL THEN\n{body}    END \
            IF;\nEND"
    ))
}

/// An SQL expression: whether a role lacks the right to read what a monitor reads of the control
/// schema; its row of pg_namespace is `n`. What an older control schema does not have is not
/// lacking.
fn lacks(role: &str) -> String {
    let mut wanted = Vec::new();
    for (table, columns) in read() {
        let table = quote_literal(table);
        match columns.is_empty() {
            true => wanted.push(format!("({table}, NULL)")),
            false => wanted.extend(
                columns
                    .iter()
                    .map(|column| format!("({table}, {})", quote_literal(column))),
            ),
        }
    }
    format!(
        "(NOT pg_catalog.has_schema_privilege({role}, n.oid, 'USAGE')
            OR EXISTS (SELECT FROM (VALUES {wanted}) AS w (relation, attribute)
                JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.relation \
                AND c.relkind = 'r'
                LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = \
                w.attribute
                    AND NOT a.attisdropped
                WHERE CASE WHEN w.attribute IS NULL THEN NOT \
                pg_catalog.has_table_privilege({role}, c.oid, 'SELECT')
                    WHEN a.attnum IS NOT NULL
                        THEN NOT pg_catalog.has_column_privilege({role}, c.oid, a.attnum, 'SELECT')
                    ELSE false END)
            OR EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid AND p.proname \
            = 'barrier'
                       AND NOT pg_catalog.has_function_privilege({role}, p.oid, 'EXECUTE')))",
        wanted = wanted.join(", "),
    )
}

/// The same for tickets and worker numbers, which come and go without a bootstrap.
fn lacks_sources(role: &str) -> String {
    format!(
        "EXISTS (SELECT FROM pg_catalog.pg_namespace t LEFT JOIN pg_catalog.pg_class c ON \
            c.relnamespace = t.oid
                AND (t.nspname = '{TICKETS}' AND c.relkind IN ('r', 'S') OR c.relname = 'lease')
            WHERE t.nspname IN ('{TICKETS}', '{WORKERS}')
                AND (NOT pg_catalog.has_schema_privilege({role}, t.oid, 'USAGE')
                    OR c.oid IS NOT NULL AND NOT CASE c.relkind
                        WHEN 'S' THEN pg_catalog.has_sequence_privilege({role}, c.oid, 'SELECT')
                        ELSE pg_catalog.has_any_column_privilege({role}, c.oid, 'SELECT') END))"
    )
}

/// A query for the OIDs of the monitors' roles.
pub(in crate::schema) fn oids() -> String {
    format!(
        "SELECT x.grantee FROM pg_catalog.pg_class t JOIN pg_catalog.pg_namespace k ON k.oid = \
            t.relnamespace
            CROSS JOIN LATERAL pg_catalog.aclexplode(t.relacl) AS x
        WHERE k.nspname = 'pgshard' AND t.relname = '{MARK}' AND x.privilege_type = 'SELECT'
            AND x.grantee NOT IN (0, t.relowner)"
    )
}

/// The roles that watch a host, and what they lack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::schema) struct Monitors {
    pub(in crate::schema) all: BTreeSet<String>,
    /// Those of them that lack something that the owner can give.
    pub(in crate::schema) lacking: BTreeSet<String>,
    /// Those that do not see what all sessions do, which an administrator gives.
    pub(in crate::schema) blind: BTreeSet<String>,
}

/// Reads the monitors' roles, and those of `others` that exist.
///
/// Locks: none.
pub(in crate::schema) async fn monitors(
    client: &Client,
    others: &BTreeSet<String>,
) -> Result<Monitors, tokio_postgres::Error> {
    let sql = format!(
        "SELECT r.rolname::text, {lacks} OR {lacks_sources},
            NOT pg_catalog.pg_has_role(r.oid, '{STATISTICS}', 'USAGE')
        FROM pg_catalog.pg_roles r CROSS JOIN pg_catalog.pg_namespace n
        WHERE n.nspname = 'pgshard' AND (r.oid IN ({oids}) OR r.rolname = ANY \
        ($1::pg_catalog.text[]))",
        lacks = lacks("r.oid"),
        lacks_sources = lacks_sources("r.oid"),
        oids = oids(),
    );
    let others: Vec<&String> = others.iter().collect();
    let mut monitors = Monitors::default();
    for row in client
        .query_typed(&sql, &[(&others, Type::TEXT_ARRAY)])
        .await?
    {
        let role: String = row.try_get(0)?;
        if row.try_get(1)? {
            monitors.lacking.insert(role.clone());
        }
        if row.try_get(2)? {
            monitors.blind.insert(role.clone());
        }
        monitors.all.insert(role);
    }
    Ok(monitors)
}

/// Whether the current role may monitor the whole host: it reads what a monitor reads, and sees the
/// activity of all sessions. Without the second, it would take a running audit for one that has
/// broken off.
///
/// Locks: none.
pub(in crate::schema) async fn watches(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let me = "(SELECT oid FROM pg_catalog.pg_roles WHERE rolname = CURRENT_USER)";
    let sql = format!(
        "SELECT pg_catalog.pg_has_role('{STATISTICS}', 'USAGE') AND NOT {lacks}
        FROM pg_catalog.pg_namespace n WHERE n.nspname = 'pgshard'",
        lacks = lacks(me),
    );
    client.query_one(&sql, &[]).await?.try_get(0)
}

/// A role that may write to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrivilegedRole {
    /// The role.
    pub role: String,
    /// Whether it is a superuser; otherwise it acts for the owner of the control schema.
    pub is_superuser: bool,
}

/// Whether the role behind a connection may write to what is pgshard's on the host: a role that
/// only watches should not.
///
/// # Errors
/// When the query fails.
///
/// # Cancel safety
/// Only reads.
pub async fn privileged_role(
    client: &Client,
) -> Result<Option<PrivilegedRole>, tokio_postgres::Error> {
    let sql = "SELECT r.rolname::text, r.rolsuper, r.rolsuper OR EXISTS (SELECT FROM \
        pg_catalog.pg_namespace n
            WHERE n.nspname = 'pgshard' AND pg_catalog.pg_has_role(r.oid, n.nspowner, 'MEMBER'))
        FROM pg_catalog.pg_roles r WHERE r.rolname = CURRENT_USER";
    let row = client.query_one(sql, &[]).await?;
    let role = PrivilegedRole {
        role: row.try_get(0)?,
        is_superuser: row.try_get(1)?,
    };
    Ok(row.try_get::<_, bool>(2)?.then_some(role))
}

#[cfg(test)]
mod tests {
    use super::super::shape;
    use super::*;

    /// The columns that a monitor does not read. A new table or column belongs here or above.
    const UNREAD: [(&str, &str); 8] = [
        ("beacon", "move_id, number"),
        ("chunk", "high, low"),
        ("incoming", "at_open, lease, open_hash"),
        ("marker", "attempt, made_at, move_id, shard_id"),
        ("move", "open_token"),
        (
            "progress",
            "applied_lsn, breach, lease, move_id, shard_id, updated_at",
        ),
        ("reread", "key, move_id, shard_id, snapshot, table_name"),
        ("shard", "lease, open_token"),
    ];

    #[test]
    fn every_column_is_read_or_unread() {
        let mut left = shape::columns();
        for (table, columns) in read() {
            let there = left
                .get_mut(table)
                .unwrap_or_else(|| panic!("there is no table {table}"));
            match columns.is_empty() {
                true => there.clear(),
                false => columns
                    .iter()
                    .for_each(|column| assert!(there.remove(*column), "{table}.{column}")),
            }
        }
        left.retain(|_, columns| !columns.is_empty());
        let unread: Vec<(String, String)> = left
            .into_iter()
            .map(|(table, columns)| (table, columns.into_iter().collect::<Vec<_>>().join(", ")))
            .collect();
        let unread: Vec<(&str, &str)> = unread
            .iter()
            .map(|(table, columns)| (table.as_str(), columns.as_str()))
            .collect();
        assert_eq!(unread, UNREAD);
    }
}
