//! Measures the shards of a host, in one query.

use std::collections::BTreeMap;

use tokio_postgres::Client;

use crate::shard::ShardId;

/// The measure of one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measure {
    /// Its tables with their indexes and TOAST, in bytes on disk, as exactly as [`Sizes`] requires.
    pub bytes: u64,
    /// Rows inserted, updated and deleted since the host's statistics began, or since the shard
    /// came: a counter, of which two readings give a rate. The server records it up to a second
    /// late.
    pub writes: u64,
}

/// How sizes are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// From the server's files, of which a table has ten or more.
    Exact,
    /// As VACUUM or ANALYZE last saw them, from the catalogs alone; exact for tables that neither
    /// has seen.
    Estimated,
}

const EXACT: &str = "pg_catalog.pg_total_relation_size(c.oid)";

const ESTIMATED: &str = "CASE WHEN c.reltuples < 0 THEN pg_catalog.pg_total_relation_size(c.oid)
    ELSE pg_catalog.current_setting('block_size')::bigint * (c.relpages
        + coalesce((SELECT t.relpages FROM pg_catalog.pg_class t WHERE t.oid = c.reltoastrelid), 0)
        + (SELECT coalesce(sum(i.relpages), 0) FROM pg_catalog.pg_index x
            JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid WHERE x.indrelid IN (c.oid, \
            c.reltoastrelid)))
    END";

/// Measures the shards that a host owns.
///
/// Locks: ACCESS SHARE on each table while its files are measured. If another session holds ACCESS
/// EXCLUSIVE on one, it waits five seconds at most.
///
/// # Errors
/// When the host has no control schema, or a lock is not granted.
///
/// # Cancel safety
/// Only reads.
pub async fn measure(
    client: &Client,
    sizes: Sizes,
) -> Result<BTreeMap<ShardId, Measure>, tokio_postgres::Error> {
    client.batch_execute("SET lock_timeout = '5s'").await?;
    let size = match sizes {
        Sizes::Exact => EXACT,
        Sizes::Estimated => ESTIMATED,
    };
    let sql = format!(
        "SELECT s.shard_id, coalesce(sum({size}), 0)::bigint,
            coalesce(sum(pg_catalog.pg_stat_get_tuples_inserted(c.oid) + \
            pg_catalog.pg_stat_get_tuples_updated(c.oid)
                + pg_catalog.pg_stat_get_tuples_deleted(c.oid)), 0)::bigint
        FROM pgshard.shard s
        LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = s.schema_name
        LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'm')
        WHERE s.state <> 'moved' GROUP BY s.shard_id"
    );
    let rows = client.query(&sql, &[]).await?;
    let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
    let mut measures = BTreeMap::new();
    for row in &rows {
        let Ok(shard) = ShardId::try_from(row.try_get::<_, i32>(0)?) else {
            continue;
        };
        measures.insert(
            shard,
            Measure {
                bytes: unsigned(row.try_get(1)?),
                writes: unsigned(row.try_get(2)?),
            },
        );
    }
    Ok(measures)
}
