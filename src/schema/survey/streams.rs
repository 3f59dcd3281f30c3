//! The readers of a host's WAL, and what is kept for them: every slot and every standby, whichever
//! program created them.

use tokio_postgres::{Client, Error, Row};

use crate::pg::state::is_not_provided;

/// The slots and the readers of a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Streams {
    /// Its replication slots, the one that keeps the most WAL first.
    pub slots: Vec<Slot>,
    /// The standbys and others that stream from it, the slowest first.
    pub readers: Vec<StreamReader>,
}

/// A replication slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// Its name.
    pub name: String,
    /// `physical` or `logical`.
    pub kind: String,
    /// The database of a logical one.
    pub database: Option<String>,
    /// Whether a reader is connected to it.
    pub active: bool,
    /// `reserved`, `extended`, `unreserved` or `lost`; `None` if it never kept anything.
    pub wal_status: Option<String>,
    /// The WAL that the server keeps for it, in bytes; `None` if it keeps none, or has lost it.
    pub kept: Option<u64>,
    /// How far the reader of a logical one is behind, in bytes.
    pub behind: Option<u64>,
}

/// A client that streams. A role without `pg_monitor` sees the names and the lag of its own only.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamReader {
    /// Its `application_name`.
    pub name: Option<String>,
    /// `streaming`, `catchup` and so on.
    pub state: Option<String>,
    /// `sync`, `quorum`, `potential` or `async`.
    pub sync_state: Option<String>,
    /// How far it is behind in replay, in bytes.
    pub lag_bytes: Option<u64>,
    /// The same in milliseconds; `None` also if nothing was written lately.
    pub lag_ms: Option<f64>,
}

/// The end of a server's WAL, as `wal.lsn`: on a standby, of what it has replayed. `wal.least` is
/// the least of what is counted from there. The second and third are for servers that do not
/// provide a function in the one before.
const WAL: [&str; 3] = [
    "WITH wal AS (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN
        pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END AS lsn,
        0::numeric AS least)",
    "WITH wal AS (SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN
        pg_catalog.pg_current_wal_lsn() END AS lsn,
        CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN 0::numeric END AS least)",
    "WITH wal AS (SELECT NULL::pg_catalog.pg_lsn AS lsn, NULL::numeric AS least)",
];

/// Runs a question about distances from the end of the WAL. They are NULL where the server does not
/// provide the functions for it.
pub(in crate::schema) async fn query_with_wal(
    client: &Client,
    sql: &str,
) -> Result<Vec<Row>, Error> {
    let [all, primary, none] = WAL.map(|wal| format!("{wal} {sql}"));
    for sql in [all, primary] {
        match client.query(&sql, &[]).await {
            Err(error) if is_not_provided(&error) => {}
            answer => return answer,
        }
    }
    client.query(&none, &[]).await
}

/// Reads the slots and the readers, a hundred of each at most. It locks only catalogs.
///
/// # Errors
/// When a query fails.
///
/// # Cancel safety
/// Only reads.
pub async fn streams(client: &Client) -> Result<Streams, Error> {
    let slots = "SELECT slot_name::text, slot_type, database::text, active, wal_status,
            greatest(pg_catalog.pg_wal_lsn_diff(lsn, restart_lsn), least)::bigint,
            greatest(pg_catalog.pg_wal_lsn_diff(lsn, confirmed_flush_lsn), least)::bigint
        FROM wal, pg_catalog.pg_replication_slots ORDER BY 6 DESC NULLS LAST, 1 LIMIT 100";
    let readers = "SELECT application_name, state, sync_state,
            greatest(pg_catalog.pg_wal_lsn_diff(lsn, replay_lsn), least)::bigint,
            (extract(epoch FROM replay_lag) * 1000)::double precision
        FROM wal, pg_catalog.pg_stat_replication ORDER BY 4 DESC NULLS LAST, 1 LIMIT 100";
    let slots = query_with_wal(client, slots).await?;
    let readers = match query_with_wal(client, readers).await {
        Err(error) if is_not_provided(&error) => Vec::new(),
        readers => readers?,
    };
    Ok(Streams {
        slots: slots.iter().map(slot).collect::<Result<_, _>>()?,
        readers: readers.iter().map(reader).collect::<Result<_, _>>()?,
    })
}

fn bytes(row: &Row, at: usize) -> Result<Option<u64>, Error> {
    Ok(row
        .try_get::<_, Option<i64>>(at)?
        .and_then(|bytes| u64::try_from(bytes).ok()))
}

fn slot(row: &Row) -> Result<Slot, Error> {
    Ok(Slot {
        name: row.try_get(0)?,
        kind: row.try_get(1)?,
        database: row.try_get(2)?,
        active: row.try_get(3)?,
        wal_status: row.try_get(4)?,
        kept: bytes(row, 5)?,
        behind: bytes(row, 6)?,
    })
}

fn reader(row: &Row) -> Result<StreamReader, Error> {
    Ok(StreamReader {
        name: row.try_get(0)?,
        state: row.try_get(1)?,
        sync_state: row.try_get(2)?,
        lag_bytes: bytes(row, 3)?,
        lag_ms: row.try_get(4)?,
    })
}
