//! The progress of backfills, as the shards record it.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use uuid::Uuid;

use super::request::APPLICATION;
use super::shard::TABLE;
use crate::map::HostName;
use crate::pg::{ConnectOptions, Connection, quote_ident, state};
use crate::schema::control::Cluster;
use crate::schema::fleet::fault::HostFault;
use crate::schema::fleet::session;
use crate::schema::survey::host_facts;
use crate::schema::survey::refusal::pending_in_shards;
use crate::shard::ShardId;

/// The number of shards that one statement reads.
const SHARDS_A_STATEMENT: usize = 100;

/// How often a host is read again when shards move away during the reading.
const TRIES: usize = 5;

/// The progress of a backfill in a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The backfill.
    pub name: String,
    /// SHA-256 of the statement, the table and the key.
    pub checksum: String,
    /// The last key of the last range that was run.
    pub done_to: Option<String>,
    /// The last key that the table had when the backfill was begun: the backfill ends there.
    pub until: Option<String>,
    /// How many rows the statement has touched, according to the server.
    pub rows: u64,
    /// How many ranges were run.
    pub batches: u64,
    /// Whether all ranges were run.
    pub finished: bool,
}

/// The progress of the backfills in the shards of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostProgress {
    /// The shards that it owns, each with its backfills. The list is empty for a shard in which
    /// none was begun, and for one that a move has closed at that moment.
    pub shards: BTreeMap<ShardId, Vec<Progress>>,
    /// Moves from or to this host that can still be rolled back, by shard. Creating the table of
    /// the progress in the shard ends that.
    pub(super) open_rollbacks: BTreeMap<ShardId, Uuid>,
    /// The shards that have no table for the progress yet.
    pub(super) without: Vec<ShardId>,
}

/// The same as [`progress`] of hosts that may be written to: those that are this cluster's, with
/// its control schema.
pub(super) async fn progress_in(
    cluster: &Cluster,
    hosts: &[(HostName, ConnectOptions)],
) -> BTreeMap<HostName, Result<HostProgress, HostFault>> {
    let ask = async |(host, connect): &(HostName, ConnectOptions)| {
        let read = match session::open(connect, APPLICATION).await {
            Ok(client) => read_in(cluster, host, &client).await,
            Err(fault) => Err(fault),
        };
        (host.clone(), read)
    };
    join_all(hosts.iter().map(ask)).await.into_iter().collect()
}

async fn read_in(
    cluster: &Cluster,
    host: &HostName,
    client: &Connection,
) -> Result<HostProgress, HostFault> {
    let facts = host_facts(client)
        .await
        .map_err(|error| HostFault::unread(&error))?;
    match pending_in_shards(&facts, cluster, host) {
        Ok(versions) if versions.is_empty() => read(client).await,
        Ok(_) => Err(HostFault::NotBootstrapped),
        Err(refusals) => Err(HostFault::Refused(refusals)),
    }
}

/// Reads the progress of backfills from all hosts, at the same time.
///
/// # Cancel safety
/// Only reads.
pub async fn progress(
    hosts: &[(HostName, ConnectOptions)],
) -> BTreeMap<HostName, Result<HostProgress, HostFault>> {
    let ask = async |(host, connect): &(HostName, ConnectOptions)| {
        let read = match session::open(connect, APPLICATION).await {
            Ok(client) => read(&client).await,
            Err(fault) => Err(fault),
        };
        (host.clone(), read)
    };
    join_all(hosts.iter().map(ask)).await.into_iter().collect()
}

async fn read(client: &Connection) -> Result<HostProgress, HostFault> {
    for _ in 1..TRIES {
        match read_once(client).await {
            // A shard has moved away between two statements.
            Err(error) if state::is_signpost(&error) || state::may_be_moved(&error) => {}
            read => {
                return read.map_err(|error| HostFault::unanswered(&error));
            }
        }
    }
    read_once(client)
        .await
        .map_err(|error| HostFault::unanswered(&error))
}

async fn read_once(client: &Connection) -> Result<HostProgress, tokio_postgres::Error> {
    let sql = "SELECT s.shard_id, s.schema_name, c.oid IS NOT NULL, s.state
        FROM pgshard.shard s LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = s.schema_name
        LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = $1 AND c.relkind \
        = 'r'
            -- What somebody else has made is no record of ours, and a policy on it would run as us.
            AND c.relowner IN (n.nspowner, (SELECT u.oid FROM pg_catalog.pg_roles u WHERE \
            u.rolname = current_user))
        WHERE s.state <> 'moved' ORDER BY 1";
    let mut host = HostProgress::default();
    let mut having = Vec::new();
    for row in client.query(sql, &[&TABLE]).await? {
        let Ok(shard) = ShardId::try_from(row.try_get::<_, i32>(0)?) else {
            continue;
        };
        host.shards.insert(shard, Vec::new());
        match row.try_get(2)? {
            true => having.push((shard, row.try_get::<_, String>(1)?)),
            false if row.try_get::<_, &str>(3)? == "serving" => host.without.push(shard),
            // The shard is closed for a moment: a signpost is in its place.
            false => {}
        }
    }
    for some in having.chunks(SHARDS_A_STATEMENT) {
        let of_shard = |(shard, schema): &(ShardId, String)| {
            format!(
                "SELECT {shard}::int4, name, checksum, done_to, until, rows, batches, finished_at \
                    IS NOT NULL
                 FROM {}.{}",
                quote_ident(schema),
                quote_ident(TABLE)
            )
        };
        let sql: Vec<String> = some.iter().map(of_shard).collect();
        for row in client
            .query_typed(&(sql.join(" UNION ALL ") + " ORDER BY 1, 2"), &[])
            .await?
        {
            let number = |at: usize| {
                row.try_get::<_, i64>(at)
                    .map(|number| u64::try_from(number).unwrap_or(0))
            };
            let Ok(shard) = ShardId::try_from(row.try_get::<_, i32>(0)?) else {
                continue;
            };
            host.shards.entry(shard).or_default().push(Progress {
                name: row.try_get(1)?,
                checksum: row.try_get(2)?,
                done_to: row.try_get(3)?,
                until: row.try_get(4)?,
                rows: number(5)?,
                batches: number(6)?,
                finished: row.try_get(7)?,
            });
        }
    }
    // The journal is on the source, but the table would be created on the target. So what this host
    // has recorded about a shard counts for another host's shard.
    let sql = "SELECT b.shard_id, b.move_id FROM pgshard.back b JOIN pgshard.move m USING \
        (move_id, shard_id)
        WHERE b.lost IS NULL AND b.taken_by IS NULL AND m.phase = 'kept'";
    for row in client.query_typed(sql, &[]).await? {
        if let Ok(shard) = ShardId::try_from(row.try_get::<_, i32>(0)?) {
            host.open_rollbacks.insert(shard, row.try_get(1)?);
        }
    }
    Ok(host)
}
