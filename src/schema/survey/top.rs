//! What a host is busy with: rows read and written by shard, the statements that took the most
//! time, and the sessions that block others. For `pgshard top`.

use std::collections::BTreeMap;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::pg::{quote_ident, shown};
use crate::shard::{SchemaPrefix, ShardId};

/// What a host is busy with. Counters only grow, until the host's statistics are reset; two
/// readings give a rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    /// The shards that the host owns.
    pub shards: BTreeMap<ShardId, ShardActivity>,
    /// The statements that took the most time in all, the slowest first; `None` if the extension
    /// `pg_stat_statements` is not installed in the database, or its library is not loaded.
    pub statements: Option<Vec<StatementActivity>>,
    /// Sessions for which others wait, the one with the most waiting sessions first.
    pub blockers: Vec<Blocker>,
}

/// The counters of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardActivity {
    /// Its tables with their indexes and TOAST on disk in bytes, as VACUUM or ANALYZE last saw
    /// them.
    pub bytes: u64,
    /// Rows that scans fetched, of tables. An index-only scan fetches none.
    pub rows_read: u64,
    /// Rows inserted, updated and deleted.
    pub rows_written: u64,
}

/// The counters of a statement, summed over all shards of the host.
#[derive(Clone, Debug, PartialEq)]
pub struct StatementActivity {
    /// Its text without literals, with `{shard}` in the place of the shard's schema.
    pub text: String,
    /// How often it ran.
    pub calls: u64,
    /// The time that it took in all, in milliseconds.
    pub total_ms: f64,
    /// The rows that it returned or changed.
    pub rows: u64,
}

/// A session for which others wait.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocker {
    /// Its process.
    pub pid: i32,
    /// Its role.
    pub role: String,
    /// Its `application_name`.
    pub application: String,
    /// `active`, `idle in transaction` and so on.
    pub state: String,
    /// How long its transaction has been open, in milliseconds.
    pub transaction_ms: Option<f64>,
    /// Its current or last statement without literals, with `{shard}` in the place of the schema.
    pub statement: String,
    /// How many sessions wait for it.
    pub waiting: u32,
}

/// Reads what a host is busy with: at most `limit` statements and `limit` blocking sessions.
///
/// Locks: none but those of the catalogs and statistics views that it reads.
///
/// # Errors
/// When the host has no control schema, or a query fails.
///
/// # Cancel safety
/// Only reads.
pub async fn activity(
    client: &Client,
    prefix: &SchemaPrefix,
    limit: u16,
) -> Result<Activity, tokio_postgres::Error> {
    Ok(Activity {
        shards: shards(client).await?,
        statements: statements(client, prefix, limit).await?,
        blockers: blockers(client, prefix, limit).await?,
    })
}

/// Takes no lock on a table, so that one that is locked can be looked at, too: sizes are those that
/// the catalogs have.
async fn shards(
    client: &Client,
) -> Result<BTreeMap<ShardId, ShardActivity>, tokio_postgres::Error> {
    let sql = "SELECT s.shard_id,
            coalesce(sum(pages) * pg_catalog.current_setting('block_size')::bigint, 0)::bigint,
            coalesce(sum(rows_read), 0)::bigint, coalesce(sum(rows_written), 0)::bigint
        FROM pgshard.shard s
        LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = s.schema_name
        LEFT JOIN LATERAL (
            SELECT c.relpages::bigint + coalesce((SELECT t.relpages
                    + (SELECT coalesce(sum(i.relpages), 0) FROM pg_catalog.pg_index x
                        JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
                        WHERE x.indrelid = t.oid)
                    FROM pg_catalog.pg_class t WHERE t.oid = c.reltoastrelid), 0) AS pages,
                -- A bitmap scan counts the rows that it fetches for the table, an index scan for
                -- the index.
                pg_catalog.pg_stat_get_tuples_fetched(c.oid)
                    + CASE c.relkind WHEN 'i' THEN 0
                        ELSE pg_catalog.pg_stat_get_tuples_returned(c.oid) END AS rows_read,
                CASE c.relkind WHEN 'i' THEN 0
                    ELSE pg_catalog.pg_stat_get_tuples_inserted(c.oid)
                        + pg_catalog.pg_stat_get_tuples_updated(c.oid)
                        + pg_catalog.pg_stat_get_tuples_deleted(c.oid) END AS rows_written
            FROM pg_catalog.pg_class c
            WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'm', 'i')) c ON true
        WHERE s.state <> 'moved' GROUP BY s.shard_id";
    let mut shards = BTreeMap::new();
    for row in client.query(sql, &[]).await? {
        if let Ok(shard) = ShardId::try_from(row.try_get::<_, i32>(0)?) {
            let activity = ShardActivity {
                bytes: unsigned(row.try_get(1)?),
                rows_read: unsigned(row.try_get(2)?),
                rows_written: unsigned(row.try_get(3)?),
            };
            shards.insert(shard, activity);
        }
    }
    Ok(shards)
}

/// A regular expression for the schema of any shard, quoted or not: `"?shard_\d{4}"?`, and not a
/// longer name that begins or ends so.
fn schema_pattern(prefix: &SchemaPrefix) -> String {
    let escaped: String = prefix
        .as_str()
        .chars()
        .flat_map(|c| {
            let special = !(c.is_alphanumeric() || c == '_');
            special.then_some('\\').into_iter().chain([c])
        })
        .collect();
    format!("\"?(?<![\\w$]){escaped}\\d{{4}}(?![\\w$])\"?")
}

/// From PostgreSQL 18 on, `pg_stat_statements` counts the same statement in all schemas as one.
/// Before, each shard has its own row; here they are summed.
async fn statements(
    client: &Client,
    prefix: &SchemaPrefix,
    limit: u16,
) -> Result<Option<Vec<StatementActivity>>, tokio_postgres::Error> {
    let sql = "SELECT n.nspname::text FROM pg_catalog.pg_extension e \
        JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace \
        WHERE e.extname = 'pg_stat_statements'";
    let Some(row) = client.query_opt(sql, &[]).await? else {
        return Ok(None);
    };
    let schema = quote_ident(row.try_get(0)?);
    let text = shown("pg_catalog.regexp_replace(s.query, $1, '{shard}', 'g')");
    let sql = format!(
        "SELECT {text}, sum(s.calls)::bigint, sum(s.total_exec_time)::double precision,
            sum(s.rows)::bigint
        FROM {schema}.pg_stat_statements s
        JOIN pg_catalog.pg_database d ON d.oid = s.dbid
        WHERE d.datname = pg_catalog.current_database() AND s.query IS NOT NULL
        GROUP BY 1 ORDER BY 3 DESC LIMIT $2"
    );
    let rows = client
        .query(&sql, &[&schema_pattern(prefix), &i64::from(limit)])
        .await;
    let rows = match rows {
        // The extension is there, but shared_preload_libraries does not load its library.
        Err(error) if error.code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => {
            return Ok(None);
        }
        rows => rows?,
    };
    let statement = |row: &tokio_postgres::Row| {
        Ok(StatementActivity {
            text: row.try_get(0)?,
            calls: unsigned(row.try_get(1)?),
            total_ms: row.try_get(2)?,
            rows: unsigned(row.try_get(3)?),
        })
    };
    rows.iter()
        .map(statement)
        .collect::<Result<_, _>>()
        .map(Some)
}

async fn blockers(
    client: &Client,
    prefix: &SchemaPrefix,
    limit: u16,
) -> Result<Vec<Blocker>, tokio_postgres::Error> {
    let text = shown("pg_catalog.regexp_replace(a.query, $1, '{shard}', 'g')");
    // `pg_blocking_pids` takes the lock manager's locks for a moment, so it is called for sessions
    // that wait for a lock only.
    let sql = format!(
        "WITH waits AS (SELECT w.pid, b.blocker, (count(*) OVER (PARTITION BY b.blocker))::int4 AS \
        waiting
            FROM pg_catalog.pg_stat_activity w,
                LATERAL (SELECT DISTINCT pg_catalog.unnest(pg_catalog.pg_blocking_pids(w.pid)) AS \
        blocker) b
            WHERE w.wait_event_type = 'Lock' AND w.datname = pg_catalog.current_database())
        SELECT DISTINCT a.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''),
            coalesce(a.state, ''),
            (extract(epoch FROM pg_catalog.clock_timestamp() - a.xact_start)
                * 1000)::double precision,
            coalesce({text}, ''), waits.waiting
        FROM waits JOIN pg_catalog.pg_stat_activity a ON a.pid = waits.blocker
        ORDER BY waits.waiting DESC, a.pid LIMIT $2"
    );
    let rows = client
        .query(&sql, &[&schema_pattern(prefix), &i64::from(limit)])
        .await?;
    let blocker = |row: &tokio_postgres::Row| {
        Ok(Blocker {
            pid: row.try_get(0)?,
            role: row.try_get(1)?,
            application: row.try_get(2)?,
            state: row.try_get(3)?,
            transaction_ms: row.try_get(4)?,
            statement: row.try_get(5)?,
            waiting: u32::try_from(row.try_get::<_, i32>(6)?).unwrap_or(0),
        })
    };
    rows.iter().map(blocker).collect()
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_escapes_the_prefix() {
        let prefix = SchemaPrefix::new("shard_").unwrap();
        assert_eq!(
            schema_pattern(&prefix),
            r#""?(?<![\w$])shard_\d{4}(?![\w$])"?"#
        );
    }
}
