//! The load of a host's database, for dashboards: its size, the rows written, and what pgshard's
//! slots keep.

use tokio_postgres::Client;

use super::streams::query_with_wal;

/// The load of a host's database.
#[derive(Clone, Debug, PartialEq)]
pub struct HostLoad {
    /// The size of the database, in bytes.
    pub bytes: u64,
    /// The rows inserted, updated and deleted since its statistics began. It only grows, until they
    /// are reset.
    pub rows_written: u64,
    /// The version of its control schema; `None` before bootstrap.
    pub control_version: Option<u32>,
    /// The slots of moves and rollbacks.
    pub slots: Vec<SlotLoad>,
}

/// The load of one of pgshard's replication slots.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotLoad {
    /// Its name.
    pub name: String,
    /// Whether a reader is connected to it.
    pub active: bool,
    /// The WAL that the server keeps for it, in bytes; `None` if it has lost that.
    pub kept: Option<u64>,
    /// How far its reader is behind, in bytes; `None` if it never began.
    pub behind: Option<u64>,
}

/// Reads the load. It takes one statement, or two once the host is bootstrapped; it locks only
/// catalogs.
///
/// # Errors
/// When a query fails.
///
/// # Cancel safety
/// Only reads.
pub async fn host_load(client: &Client) -> Result<HostLoad, tokio_postgres::Error> {
    let sql =
        "SELECT pg_catalog.pg_database_size(d.datname), coalesce(d.tup_inserted + d.tup_updated + \
            d.tup_deleted, 0),
            pg_catalog.to_regclass('pgshard.control_migration') IS NOT NULL
        FROM pg_catalog.pg_stat_database d WHERE d.datname = pg_catalog.current_database()";
    let row = client.query_one(sql, &[]).await?;
    let control_version = if row.try_get(2)? {
        let sql = "SELECT max(version)::int4 FROM pgshard.control_migration";
        client
            .query_one(sql, &[])
            .await?
            .try_get::<_, Option<i32>>(0)?
            .and_then(|version| u32::try_from(version).ok())
    } else {
        None
    };
    let sql = r"
        SELECT slot_name::text, active,
            greatest(pg_catalog.pg_wal_lsn_diff(lsn, restart_lsn), least)::bigint,
            greatest(pg_catalog.pg_wal_lsn_diff(lsn, confirmed_flush_lsn), least)::bigint
        FROM wal, pg_catalog.pg_replication_slots
        WHERE slot_name LIKE 'pgshard\_%' AND database = pg_catalog.current_database() ORDER BY 1";
    let slots = query_with_wal(client, sql).await?;
    let slot = |row: &tokio_postgres::Row| {
        let bytes = |at: usize| Ok(row.try_get::<_, Option<i64>>(at)?.map(unsigned));
        Ok(SlotLoad {
            name: row.try_get(0)?,
            active: row.try_get(1)?,
            kept: bytes(2)?,
            behind: bytes(3)?,
        })
    };
    Ok(HostLoad {
        bytes: unsigned(row.try_get(0)?),
        rows_written: unsigned(row.try_get(1)?),
        control_version,
        slots: slots
            .iter()
            .map(slot)
            .collect::<Result<_, tokio_postgres::Error>>()?,
    })
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
