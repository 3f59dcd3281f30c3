//! Reads a host's clock, and how far the IDs of its shards are ahead of it.
//!
//! Invariant: it stays cheap with thousands of shards, and takes no more than a small part of the
//! host's locks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use jiff::Timestamp;
use tokio_postgres::Client;

use super::facts::{ClockFacts, FactsError, HostFacts};
use crate::shard::ShardId;

/// How often the clock is read; the reading with the shortest round trip counts.
const READINGS: usize = 3;

/// Shards in one query, at most. Each takes two locks until its end.
const SHARDS_MAX: i64 = 500;

const NOW: &str =
    "SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::int8";

/// The sequences are found by name, for which pg_class has an index. Shards without the sequences,
/// or with sequences that may not be read, are left out. CASE is needed because a signpost has
/// views of these names, and the server may check the privilege before it looks at the kind.
const IDS: &str = "
SELECT s.shard, ((pg_catalog.pg_sequence_last_value(t.oid) + \
pg_catalog.pg_sequence_last_value(o.oid)) >> 10)
    - ((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000)::int8 - $3)
FROM unnest($1::int4[], $2::text[]) AS s(shard, schema)
JOIN pg_catalog.pg_namespace n ON n.nspname = s.schema
JOIN pg_catalog.pg_class t ON t.relnamespace = n.oid AND t.relname = 'id_ticket' AND t.relkind = 'S'
JOIN pg_catalog.pg_class o ON o.relnamespace = n.oid AND o.relname = 'id_offset' AND o.relkind = 'S'
WHERE CASE WHEN t.relkind = 'S' THEN pg_catalog.has_sequence_privilege(t.oid, 'USAGE') END
    AND CASE WHEN o.relkind = 'S' THEN pg_catalog.has_sequence_privilege(o.oid, 'USAGE') END";

/// Reads the host's clock and those of its shards.
///
/// # Cancel safety
/// Only reads.
pub(in crate::schema) async fn read(
    client: &Client,
    facts: &HostFacts,
) -> Result<ClockFacts, FactsError> {
    let failed = |source| FactsError::Query {
        what: "clock",
        source,
    };
    let statement = client.prepare(NOW).await.map_err(failed)?;
    let mut best: Option<(u128, i64, i64)> = None;
    for _ in 0..READINGS {
        let (ours, began) = (Timestamp::now().as_millisecond(), Instant::now());
        let theirs: i64 = client
            .query_one(&statement, &[])
            .await
            .and_then(|row| row.try_get(0))
            .map_err(failed)?;
        let took = began.elapsed().as_micros();
        if best.is_none_or(|(least, ..)| took < least) {
            best = Some((took, ours + (took / 2000) as i64, theirs));
        }
    }
    let (took, ours, theirs) = best.expect("the clock was read at least once");
    let mut clock = ClockFacts {
        ahead_ms: theirs - ours,
        // Plus the rounding on both sides.
        within_ms: (took / 2000) as i64 + 2,
        now: Timestamp::from_millisecond(theirs).unwrap_or(Timestamp::MAX),
        ids_ahead_ms: BTreeMap::new(),
        ids_unset: BTreeSet::new(),
    };
    let Some((control, cluster)) = facts
        .control
        .as_ref()
        .and_then(|c| Some((c, c.cluster.as_ref()?)))
    else {
        return Ok(clock);
    };
    // An unsharded host makes no IDs of shards.
    if control.whole.is_some() {
        return Ok(clock);
    }
    let owned: Vec<(i32, &str)> = control
        .shards
        .iter()
        .filter(|(_, row)| row.state.is_owner())
        .map(|(shard, row)| (shard.as_i32(), row.schema.as_str()))
        .collect();
    let size = (facts.server.lock_slots / 32).clamp(1, SHARDS_MAX) as usize;
    if owned.is_empty() {
        return Ok(clock);
    }
    let statement = client.prepare(IDS).await.map_err(failed)?;
    for chunk in owned.chunks(size) {
        let (shards, schemas): (Vec<i32>, Vec<&str>) = chunk.iter().copied().unzip();
        let rows = client
            .query(&statement, &[&shards, &schemas, &cluster.epoch_ms])
            .await
            .map_err(failed)?;
        for row in rows {
            let (shard, ahead): (i32, Option<i64>) = row
                .try_get(0)
                .and_then(|shard| Ok((shard, row.try_get(1)?)))
                .map_err(failed)?;
            let Ok(shard) = ShardId::try_from(shard) else {
                continue;
            };
            match ahead {
                Some(ahead) => _ = clock.ids_ahead_ms.insert(shard, ahead),
                None => _ = clock.ids_unset.insert(shard),
            }
        }
    }
    Ok(clock)
}
