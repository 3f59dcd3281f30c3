//! The state of a host, for `pgshard host list`; and what it offers to shards, for
//! `pgshard host add`.

use std::collections::BTreeSet;

use tokio_postgres::{Client, Row};

use super::streams::query_with_wal;
use crate::pg::decoding::CAN_DECODE;
use crate::pg::state::is_not_provided;

/// Whether commits wait for standbys that are not there, as an SQL expression: fewer stream than
/// `synchronous_standby_names` requires. A role that may not see which of them are synchronous
/// counts each of them.
pub(crate) const COMMITS_WAIT: &str = r"
    (pg_catalog.current_setting('synchronous_standby_names') <> ''
    AND pg_catalog.current_setting('synchronous_commit') <> 'local'
    AND NOT pg_catalog.pg_is_in_recovery()
    AND (SELECT count(*) FROM pg_catalog.pg_stat_replication
         WHERE coalesce(sync_state, 'hidden') IN ('sync', 'quorum', 'hidden'))
        < coalesce((pg_catalog.regexp_match(pg_catalog.current_setting('synchronous_standby_names'),
                    '^\s*(?:first\s+|any\s+)?([0-9]{1,9})\s*\(', 'i'))[1]::pg_catalog.int8, 1))";

/// The state of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostStatus {
    /// `server_version_num`: 150004 is 15.4.
    pub version: i32,
    /// Whether it is a standby.
    pub in_recovery: bool,
    /// The shards that it owns; `None` before bootstrap.
    pub shards: Option<u32>,
    /// The size of the database, in bytes: old copies and everything else in it too.
    pub bytes: u64,
    /// Sessions in the database now, this one among them.
    pub connections: u32,
    /// `max_connections`, for all databases of the server.
    pub connections_max: u32,
    /// `wal_level`.
    pub wal_level: String,
    /// Where the WAL ends, `0/3000148`.
    pub wal: String,
    /// The WAL that replication slots keep, in bytes; `None` where there are no slots.
    pub wal_kept: Option<u64>,
    /// Standbys and others that stream from it; `None` where the server hides them.
    pub standbys: Option<u32>,
    /// How far the slowest of them is behind in replay, in bytes; `None` if there are none, or the
    /// role may not see them (it needs `pg_monitor`).
    pub lag_bytes: Option<u64>,
    /// The same in milliseconds; `None` also if nothing was written lately.
    pub lag_ms: Option<f64>,
    /// Whether no commit ends, because too few synchronous standbys stream.
    pub commits_wait: bool,
}

/// Reads the state of a host.
///
/// # Errors
/// When a query fails.
///
/// # Cancel safety
/// Only reads.
pub async fn host_status(client: &Client) -> Result<HostStatus, tokio_postgres::Error> {
    let sql = "SELECT pg_catalog.current_setting('server_version_num')::int4, \
        pg_catalog.pg_is_in_recovery(),
            pg_catalog.pg_database_size(pg_catalog.current_database()),
            (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE datname = \
            pg_catalog.current_database())::int4,
            pg_catalog.current_setting('max_connections')::int4, \
            pg_catalog.current_setting('wal_level'), lsn::text,
            (SELECT max(greatest(pg_catalog.pg_wal_lsn_diff(lsn, restart_lsn), least))::bigint
                FROM pg_catalog.pg_replication_slots),
            pg_catalog.to_regclass('pgshard.shard') IS NOT NULL
                AND pg_catalog.to_regclass('pgshard.whole') IS NOT NULL
        FROM wal";
    let standbys = "SELECT count(*)::int4,
            max(greatest(pg_catalog.pg_wal_lsn_diff(lsn, replay_lsn), least))::bigint,
            max(extract(epoch FROM replay_lag) * 1000)::double precision
        FROM wal LEFT JOIN pg_catalog.pg_stat_replication ON true WHERE pid IS NOT NULL";
    let rows = query_with_wal(client, sql).await?;
    let row = rows.first().expect("a question without a table has a row");
    let standbys = match query_with_wal(client, standbys).await {
        Err(error) if is_not_provided(&error) => Vec::new(),
        standbys => standbys?,
    };
    let standbys = standbys.first();
    let waits = client
        .query_one(&format!("SELECT {COMMITS_WAIT}"), &[])
        .await;
    let commits_wait = waits.is_ok_and(|row| row.try_get(0).unwrap_or(false));
    let shards = if row.try_get(8)? {
        // An unsharded host has one row for all of them.
        let sql = "SELECT count(*)::int4 + coalesce((SELECT c.shards FROM pgshard.whole,
                pgshard.cluster c), 0) FROM pgshard.shard WHERE state <> 'moved'";
        Some(unsigned(client.query_one(sql, &[]).await?.try_get(0)?))
    } else {
        None
    };
    let bytes = |row: &Row, at: usize| {
        let bytes: Option<i64> = row.try_get(at)?;
        Ok::<_, tokio_postgres::Error>(bytes.map(|bytes| u64::try_from(bytes).unwrap_or(0)))
    };
    let (mut lag_bytes, mut lag_ms, mut readers) = (None, None, None);
    if let Some(standbys) = standbys {
        readers = Some(unsigned(standbys.try_get(0)?));
        lag_bytes = bytes(standbys, 1)?;
        lag_ms = standbys.try_get(2)?;
    }
    Ok(HostStatus {
        version: row.try_get(0)?,
        in_recovery: row.try_get(1)?,
        shards,
        bytes: bytes(row, 2)?.unwrap_or(0),
        connections: unsigned(row.try_get(3)?),
        connections_max: unsigned(row.try_get(4)?),
        wal_level: row.try_get(5)?,
        wal: row.try_get::<_, Option<String>>(6)?.unwrap_or_default(),
        wal_kept: bytes(row, 7)?,
        standbys: readers,
        lag_bytes,
        lag_ms,
        commits_wait,
    })
}

fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// What a host has that shards on it may need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseEnvironment {
    /// The database's encoding.
    pub encoding: String,
    /// Its `LC_COLLATE` and `LC_CTYPE`.
    pub collation: String,
    /// `wal_level`.
    pub wal_level: String,
    /// Whether shards can leave it while they are open: its WAL can be decoded at that level.
    pub can_decode: bool,
    /// The roles that exist.
    pub roles: BTreeSet<String>,
    /// The roles that have grants in a shard of this host.
    pub granted: BTreeSet<String>,
    /// The extensions in the database, `plpgsql` not among them.
    pub extensions: BTreeSet<String>,
}

/// Reads what a host offers to shards. Works before bootstrap; then nothing is granted.
///
/// # Errors
/// When a query fails.
///
/// # Cancel safety
/// Only reads.
pub async fn database_environment(
    client: &Client,
) -> Result<DatabaseEnvironment, tokio_postgres::Error> {
    let sql = format!(
        "SELECT pg_catalog.pg_encoding_to_char(d.encoding)::text, d.datcollate::text || '/' \
        || d.datctype::text,
            pg_catalog.current_setting('wal_level'),
            ARRAY(SELECT rolname::text FROM pg_catalog.pg_roles),
            ARRAY(SELECT extname::text FROM pg_catalog.pg_extension WHERE extname <> 'plpgsql'),
            pg_catalog.to_regclass('pgshard.shard') IS NOT NULL, {CAN_DECODE}
        FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()"
    );
    let row = client.query_one(&sql, &[]).await?;
    let names = |at: usize| {
        row.try_get::<_, Vec<String>>(at)
            .map(|names| names.into_iter().collect())
    };
    let mut found = DatabaseEnvironment {
        encoding: row.try_get(0)?,
        collation: row.try_get(1)?,
        wal_level: row.try_get(2)?,
        can_decode: row.try_get(6)?,
        roles: names(3)?,
        granted: BTreeSet::new(),
        extensions: names(4)?,
    };
    if row.try_get(5)? {
        // Every access list of a shard's schema and of its objects.
        let sql = "WITH here AS (SELECT n.oid, n.nspacl FROM (SELECT schema_name FROM pgshard.shard
                    WHERE state <> 'moved' UNION ALL SELECT schema_name FROM pgshard.whole) s
                JOIN pg_catalog.pg_namespace n ON n.nspname = s.schema_name),
            lists AS (SELECT nspacl AS list FROM here
                UNION ALL SELECT c.relacl FROM here JOIN pg_catalog.pg_class c ON c.relnamespace = \
                here.oid
                UNION ALL SELECT p.proacl FROM here JOIN pg_catalog.pg_proc p ON p.pronamespace = \
                here.oid)
            SELECT DISTINCT r.rolname::text FROM lists, pg_catalog.aclexplode(list) AS entry
            JOIN pg_catalog.pg_roles r ON r.oid = entry.grantee";
        found.granted = client
            .query(sql, &[])
            .await?
            .iter()
            .map(|row| row.try_get(0))
            .collect::<Result<_, _>>()?;
    }
    Ok(found)
}
