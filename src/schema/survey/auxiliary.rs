//! What is read apart from the snapshot: what a host has recorded of others, the workers on its
//! moves, and which replica identities are lent.
//!
//! These are queries of their own, because some of their tables may be missing. Their answers may
//! be of another moment than the snapshot, and are not compared between hosts.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::answer::{failed, unreadable};
use crate::map::{HostName, RangeItem, parse_ranges};
use crate::schema::control::lock;
use crate::schema::control::shape::Shape;
use crate::schema::survey::facts::{ControlFacts, FactsError, OpenMove, Record};
use crate::shard::{ShardCount, ShardId};

/// Where the leases of movers are.
const MOVERS: &str = "pgshard.mover";

/// Replaces [`MOVERS`] if that table is gone: `bootstrap` creates it again, so the rest must be
/// readable without it.
const NO_MOVERS: &str =
    "(SELECT NULL::uuid AS lease, NULL::timestamptz AS lease_until, NULL::timestamptz AS since)";

/// Where the record of other hosts is.
const RECORD: &str = "pgshard.known_host";

/// Replaces [`RECORD`] if that table is gone: `bootstrap` creates it again, in an older control
/// schema and in a damaged one.
const NO_RECORD: &str = "(SELECT NULL::text AS host_name, NULL::text AS shards WHERE false)";

/// The record of other hosts, and the open moves.
///
/// A mover is alive if it renews its lease, and the connection that holds the lease's lock exists.
fn record_and_moves(record: &str, movers: &str) -> String {
    format!(
        "
SELECT (SELECT json_agg(json_build_array(host_name, shards)) FROM {record} AS r)::text,
       (SELECT json_agg(json_build_array(m.shard_id, m.move_id, m.target, m.holder,
                   CASE WHEN coalesce(w.lease_until, m.lease_until) > clock_timestamp()
                             AND (w.lease IS NULL OR EXISTS (
                                 SELECT FROM pg_locks l
                                 WHERE l.locktype = 'advisory' AND l.granted AND l.classid = $1 \
                                 AND l.objsubid = 2
                                   AND l.objid::bigint = ('x' || left(w.lease::text, \
                                   8))::bit(32)::bigint
                                   AND l.database = (SELECT oid FROM pg_database WHERE datname = \
                                   current_database())))
                        THEN coalesce(w.since, m.created_at) END))
        FROM pgshard.move m LEFT JOIN {movers} w USING (lease)
        WHERE m.phase NOT IN ('kept', 'completed', 'aborted') AND ($2::integer IS NULL OR \
        m.shard_id = $2))::text"
    )
}

/// The tables that still have the replica identity that a move lent them.
const STILL_LENT: &str = r"
SELECT l.shard_id, l.table_name
FROM pgshard.lent_identity l JOIN pgshard.shard s ON s.shard_id = l.shard_id AND s.state = 'serving'
WHERE NOT EXISTS (SELECT FROM pgshard.move m WHERE m.shard_id = l.shard_id
                  AND m.phase NOT IN ('kept', 'completed', 'aborted'))
  -- By the catalogs: to_regclass() wants a right on the schema, which a monitor does not have.
  AND NOT EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                  JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname = s.schema_name AND c.relname = l.table_name
                      AND p.pubname LIKE 'pgshard\_%')";

/// Reads the record of other hosts, and the open moves.
pub(super) async fn read(
    client: &Client,
    shape: &Shape,
    control: &mut ControlFacts,
) -> Result<(), FactsError> {
    let record_of = if shape.has_table("known_host") {
        RECORD
    } else {
        NO_RECORD
    };
    let movers = if shape.has_table("mover") {
        MOVERS
    } else {
        NO_MOVERS
    };
    let sql = record_and_moves(record_of, movers);
    let row = client
        .query_one(&sql, &[&lock::MOVERS.cast_unsigned(), &None::<i32>])
        .await
        .map_err(failed)?;
    control.known = record(&row)?;
    control.open_moves = open_moves(&row)?;
    Ok(())
}

/// The move of a shard that is at work or has stopped halfway, if it still is and can be read.
pub(in crate::schema) async fn open_move(client: &Client, shard: ShardId) -> Option<OpenMove> {
    let row = client
        .query_one(
            &record_and_moves(NO_RECORD, MOVERS),
            &[&lock::MOVERS.cast_unsigned(), &Some(shard.as_i32())],
        )
        .await
        .ok()?;
    open_moves(&row).ok()?.remove(&shard)
}

/// The record of other hosts in an answer to [`record_and_moves`].
fn record(row: &Row) -> Result<Record, FactsError> {
    let Some(json) = row.try_get::<_, Option<&str>>(0).map_err(failed)? else {
        return Ok(Record::new());
    };
    let hosts: Vec<(String, String)> = serde_json::from_str(json).map_err(unreadable)?;
    let mut record = Record::new();
    for (host, text) in hosts {
        let host = HostName::new(&host).map_err(unreadable)?;
        let shards = parse_ranges(&text, ShardCount::MAX);
        let shards = shards.map_err(|_| {
            unreadable(format!(
                "the shards {text:?} of {host} in pgshard.known_host"
            ))
        })?;
        let placed = |item: &RangeItem| {
            item.shards()
                .map(|shard| (shard, item.epoch))
                .collect::<Vec<_>>()
        };
        record.insert(host, shards.iter().flat_map(placed).collect());
    }
    Ok(record)
}

/// The moves in an answer to [`record_and_moves`].
fn open_moves(row: &Row) -> Result<BTreeMap<ShardId, OpenMove>, FactsError> {
    let Some(json) = row.try_get::<_, Option<&str>>(1).map_err(failed)? else {
        return Ok(BTreeMap::new());
    };
    let moves: Vec<(ShardId, Uuid, String, String, Option<String>)> =
        serde_json::from_str(json).map_err(unreadable)?;
    let mut open = BTreeMap::new();
    for (shard, id, target, holder, since) in moves {
        let target = HostName::new(&target).map_err(unreadable)?;
        let since = since
            .map(|since| since.parse())
            .transpose()
            .map_err(|error: jiff::Error| unreadable(error))?;
        open.insert(
            shard,
            OpenMove {
                id,
                target,
                holder,
                since,
            },
        );
    }
    Ok(open)
}

/// Reads the tables that still have the replica identity that a move lent them.
pub(super) async fn still_lent(client: &Client) -> Result<BTreeSet<(ShardId, String)>, FactsError> {
    let mut lent = BTreeSet::new();
    for row in client.query(STILL_LENT, &[]).await.map_err(failed)? {
        let (number, table): (i32, String) = (
            row.try_get(0).map_err(failed)?,
            row.try_get(1).map_err(failed)?,
        );
        lent.extend(ShardId::try_from(number).map(|shard| (shard, table)));
    }
    Ok(lent)
}
