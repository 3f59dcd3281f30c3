//! Reads the control schema's rows about the shards, their moves and their migrations.
//!
//! Invariant: everything about the shards comes from one statement, so from one snapshot. With two
//! statements, a shard that opens in between would seem to be nowhere, or in two places.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tokio_postgres::Client;
use uuid::Uuid;

use super::answer::{json, unreadable};
use crate::map::{HostName, ShardEpoch};
use crate::schema::control::RecordedMigration;
use crate::schema::control::shape::Shape;
use crate::schema::survey::facts::{
    AppliedSet, Attempt, ControlFacts, FactsError, IncomingRow, KeptAudit, LedgerRow, MadeSet,
    OpenRollback, RecordedCluster, RecordedControl, ShardRow, ShardState, WholeRow,
};
use crate::shard::ShardId;

/// The source of audits. A monitor may not read the whole row.
const AUDITED: &str = "pgshard.move";

/// Replaces [`AUDITED`] if the columns were dropped by hand: nothing is known of any audit, which
/// is reported as damage.
const NO_AUDITS: &str = "(SELECT shard_id, move_id, target, phase, NULL AS audit,
        NULL::jsonb AS audit_found
    FROM pgshard.move WHERE false)";

/// Rows as JSON arrays, which are short: a host has thousands of shards. `AUDITED` in it is
/// [`AUDITED`] or [`NO_AUDITS`].
const CONTROL: &str = r#"
SELECT json_build_object(
    'migrations', (SELECT json_agg(json_build_array(version, name, checksum) ORDER BY version)
        FROM pgshard.control_migration),
    'cluster', (SELECT json_build_array(shards, epoch_ms, schema_prefix, host_name, key_kind,
            legacy_below) FROM pgshard.cluster),
    'whole', (SELECT json_build_array(schema_name, epoch,
            EXISTS (SELECT FROM pg_namespace WHERE nspname = schema_name)) FROM pgshard.whole),
    'shards', (SELECT json_agg(json_build_array(shard_id, schema_name, state, epoch, peer, move_id,
                   date_part('epoch', fence_deadline - clock_timestamp()) * 1000,
                   date_part('epoch', clock_timestamp() - last_fence_at) * 1000))
               FROM pgshard.shard),
    'incoming', (SELECT json_agg(json_build_array(shard_id, move_id, source, epoch,
                     ready_attempt IS NOT NULL))
                 FROM pgshard.incoming),
    'moving', (SELECT json_agg(DISTINCT shard_id) FROM pgshard.move
        WHERE phase NOT IN ('kept', 'completed', 'aborted')),
    'applied', (SELECT json_agg(json_build_array(migrations, shards)) FROM (
                    SELECT migrations::json, json_agg(shard_id ORDER BY shard_id) AS shards FROM (
                        SELECT shard_id, json_agg(json_build_array(name, checksum)
                            ORDER BY name COLLATE "C")::text AS migrations
                        FROM pgshard.shard_migration GROUP BY shard_id) AS of_a_shard
                    GROUP BY of_a_shard.migrations) AS sets),
    'host_migrations', (SELECT json_agg(json_build_array(name, checksum) ORDER BY name)
        FROM pgshard.host_migration),
    -- What is recorded has been run, whatever is noted of an attempt at it.
    'attempts', (SELECT json_agg(json_build_array(a.shard_id, a.name, a.message))
        FROM pgshard.migration_attempt a
        WHERE NOT EXISTS (SELECT FROM pgshard.shard_migration m
            WHERE m.shard_id = a.shard_id AND m.name = a.name)),
    'made', (SELECT json_agg(json_build_array(objects, shards)) FROM (
                 SELECT objects::json, json_agg(shard_id ORDER BY shard_id) AS shards FROM (
                     SELECT s.shard_id, coalesce(o.objects, '[]') AS objects
                     FROM pgshard.shard s JOIN pg_namespace n ON n.nspname = s.schema_name
                     LEFT JOIN (SELECT ns,
                                    json_agg(DISTINCT object ORDER BY object)::text AS objects
                                FROM (
                                    SELECT relnamespace, CASE relkind WHEN 'v' THEN 'view '
                                               WHEN 'm' THEN 'materialized view '
                                               WHEN 'f' THEN 'foreign table '
                                               WHEN 'S' THEN 'sequence ' ELSE 'table '
                                               END || relname
                                    FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
                                        AND NOT relispartition
                                        AND relname <> 'pgshard_backfill'
                                    -- Two of ours have the shard's number in their names. All
                                    -- shards have them.
                                    UNION ALL SELECT pronamespace, 'function '
                                        || regexp_replace(proname, '^(id_raise|id_lease)_[0-9]+$',
                                            '\1_N')
                                    FROM pg_proc) AS of (ns, object)
                                GROUP BY ns) AS o ON o.ns = n.oid
                     WHERE s.state = 'serving') AS of_a_shard
                 GROUP BY of_a_shard.objects) AS sets),
    'invalid_indexes', (SELECT json_agg(json_build_array(s.shard_id, c.relname))
        FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pgshard.shard s ON s.schema_name = n.nspname
        WHERE NOT (i.indisvalid AND i.indisready)),
    'lost_rollbacks', (SELECT json_agg(json_build_array(b.shard_id, b.lost))
        FROM pgshard.back b JOIN pgshard.move m USING (move_id, shard_id)
        WHERE b.lost IS NOT NULL AND m.phase = 'kept'),
    'open_rollbacks', (SELECT json_agg(json_build_array(b.shard_id, b.move_id, m.target, b.stream))
        FROM pgshard.back b JOIN pgshard.move m USING (move_id, shard_id)
        WHERE b.lost IS NULL AND b.taken_by IS NULL AND m.phase = 'kept'),
    'audits', (SELECT json_agg(json_build_array(m.shard_id, m.move_id, m.target, m.audit,
                   coalesce(m.audit_found, '{}')))
               FROM AUDITED AS m
               WHERE m.phase = 'kept' AND m.audit IS DISTINCT FROM 'audited'
                 AND NOT (m.audit = 'under way' AND EXISTS (SELECT FROM pg_stat_activity a
                          WHERE a.application_name = 'pgshard audit ' || m.move_id || '/'
                              || m.shard_id))),
    'live_moves', (SELECT json_agg(DISTINCT move_id) FROM pgshard.move
        WHERE phase NOT IN ('completed', 'aborted')),
    'ledger', (SELECT json_agg(json_build_array(l.kind, l.name, l.move_id, l.shard_id, m.phase)
                   ORDER BY l.kind, l.name)
               FROM pgshard.ledger l LEFT JOIN pgshard.move m USING (move_id, shard_id)))::text"#;

#[derive(Deserialize)]
struct RawControl {
    migrations: Option<Vec<RecordedControl>>,
    cluster: Option<RecordedCluster>,
    whole: Option<(String, i32, bool)>,
    shards: Option<Vec<RawShard>>,
    incoming: Option<Vec<RawIncoming>>,
    moving: Option<Vec<ShardId>>,
    applied: Option<Vec<(Vec<RecordedMigration>, Vec<ShardId>)>>,
    made: Option<Vec<(BTreeSet<String>, Vec<ShardId>)>>,
    invalid_indexes: Option<BTreeSet<(ShardId, String)>>,
    host_migrations: Option<Vec<RecordedMigration>>,
    attempts: Option<Vec<(ShardId, String, Option<String>)>>,
    lost_rollbacks: Option<Vec<(ShardId, String)>>,
    open_rollbacks: Option<Vec<(ShardId, Uuid, String, String)>>,
    audits: Option<Vec<RawAudit>>,
    live_moves: Option<Vec<Uuid>>,
    ledger: Option<Vec<LedgerRow>>,
}

/// What an audit found, as the journal has it.
#[derive(Deserialize)]
struct RawFound {
    #[serde(default)]
    differences: Vec<RawDifference>,
    #[serde(default)]
    left_out: Vec<RawLeftOut>,
}

#[derive(Deserialize)]
struct RawDifference {
    what: String,
    how: String,
    #[serde(default)]
    rows: Vec<RawRow>,
}

#[derive(Deserialize)]
struct RawRow {
    key: String,
}

#[derive(Deserialize)]
struct RawLeftOut {
    what: String,
    why: String,
}

type RawShard = (
    ShardId,
    String,
    ShardState,
    i32,
    Option<String>,
    Option<Uuid>,
    Option<f64>,
    Option<f64>,
);
type RawIncoming = (ShardId, Uuid, String, i32, bool);
type RawAudit = (ShardId, Uuid, String, Option<String>, RawFound);

/// Reads the snapshot. Locks: none that another session waits for.
pub(super) async fn read(client: &Client, shape: &Shape) -> Result<ControlFacts, FactsError> {
    let audited = if shape.has_column("move", "audit_found") {
        AUDITED
    } else {
        NO_AUDITS
    };
    facts(json(client, &CONTROL.replace("AUDITED", audited)).await?)
}

fn facts(raw: RawControl) -> Result<ControlFacts, FactsError> {
    let shards = raw.shards.unwrap_or_default().into_iter().map(shard_row);
    let mut shards = shards.collect::<Result<BTreeMap<_, _>, _>>()?;
    let whole = raw.whole.map(whole_row).transpose()?;
    if let (Some(whole), Some(cluster)) = (&whole, &raw.cluster) {
        for shard in of_whole(cluster) {
            shards.entry(shard).or_insert_with(|| served(whole));
        }
    }
    let incoming = raw
        .incoming
        .unwrap_or_default()
        .into_iter()
        .map(incoming_row);
    let audits = raw.audits.unwrap_or_default().into_iter().map(kept_audit);
    let applied = raw.applied.unwrap_or_default().into_iter();
    let attempts = raw.attempts.unwrap_or_default().into_iter();
    let made = raw.made.unwrap_or_default().into_iter();
    Ok(ControlFacts {
        migrations: raw.migrations.unwrap_or_default(),
        cluster: raw.cluster,
        whole,
        shards,
        incoming: incoming.collect::<Result<_, _>>()?,
        moving: raw.moving.unwrap_or_default().into_iter().collect(),
        applied: applied
            .map(|(migrations, shards)| AppliedSet { migrations, shards })
            .collect(),
        made: made
            .map(|(objects, shards)| MadeSet { objects, shards })
            .collect(),
        invalid_indexes: raw.invalid_indexes.unwrap_or_default(),
        host_migrations: raw.host_migrations.unwrap_or_default(),
        attempts: attempts
            .map(|(shard, name, message)| (shard, Attempt { name, message }))
            .collect(),
        lost_rollbacks: raw.lost_rollbacks.unwrap_or_default().into_iter().collect(),
        open_rollbacks: raw
            .open_rollbacks
            .unwrap_or_default()
            .into_iter()
            .filter_map(open_way)
            .collect(),
        live_moves: raw.live_moves.unwrap_or_default().into_iter().collect(),
        audits: audits.collect::<Result<_, _>>()?,
        ledger: raw.ledger.unwrap_or_default(),
        ..ControlFacts::default()
    })
}

fn whole_row((schema, at, exists): (String, i32, bool)) -> Result<WholeRow, FactsError> {
    let epoch = ShardEpoch::from_i32(at);
    let epoch = epoch.ok_or_else(|| unreadable(format!("epoch {at} of all shards")))?;
    Ok(WholeRow {
        schema,
        exists,
        epoch,
        last_id: None,
    })
}

/// The shards that an unsharded host answers for, as `pgshard.look` does.
fn of_whole(cluster: &RecordedCluster) -> impl Iterator<Item = ShardId> + use<> {
    (0..cluster.shards).filter_map(|number| ShardId::try_from(number).ok())
}

fn served(whole: &WholeRow) -> ShardRow {
    ShardRow {
        schema: whole.schema.clone(),
        state: ShardState::Serving,
        epoch: whole.epoch,
        peer: None,
        move_id: None,
        fence_left_ms: None,
        fence_ago_ms: None,
    }
}

fn shard_row(row: RawShard) -> Result<(ShardId, ShardRow), FactsError> {
    let (shard, schema, state, at, peer, move_id, fence_left_ms, fence_ago_ms) = row;
    let (epoch, peer) = (epoch(shard, at)?, peer.map(host).transpose()?);
    Ok((
        shard,
        ShardRow {
            schema,
            state,
            epoch,
            peer,
            move_id,
            fence_left_ms,
            fence_ago_ms,
        },
    ))
}

fn incoming_row(
    (shard, move_id, source, at, ready): RawIncoming,
) -> Result<(ShardId, IncomingRow), FactsError> {
    Ok((
        shard,
        IncomingRow {
            move_id,
            source: host(source)?,
            epoch: epoch(shard, at)?,
            ready,
        },
    ))
}

fn kept_audit((shard, move_id, target, state, found): RawAudit) -> Result<KeptAudit, FactsError> {
    let difference = |one: RawDifference| match one.rows.is_empty() {
        true => format!("{} ({})", one.what, one.how),
        false => {
            let keys: Vec<String> = one.rows.into_iter().map(|row| row.key).collect();
            format!("{} {}", one.what, keys.join(", "))
        }
    };
    let differences = found.differences.into_iter().map(difference).collect();
    let left_out = match state {
        None => vec!["nothing is recorded of its audit".to_owned()],
        Some(_) => found
            .left_out
            .into_iter()
            .map(|left| format!("{}: {}", left.what, left.why))
            .collect(),
    };
    Ok(KeptAudit {
        shard,
        move_id,
        target: host(target)?,
        differences,
        left_out,
    })
}

fn open_way(
    (shard, id, target, slot): (ShardId, Uuid, String, String),
) -> Option<(ShardId, OpenRollback)> {
    Some((
        shard,
        OpenRollback {
            id,
            target: HostName::new(&target).ok()?,
            slot,
        },
    ))
}

fn host(name: String) -> Result<HostName, FactsError> {
    HostName::new(&name).map_err(unreadable)
}

fn epoch(shard: ShardId, epoch: i32) -> Result<ShardEpoch, FactsError> {
    ShardEpoch::from_i32(epoch).ok_or_else(|| unreadable(format!("epoch {epoch} of shard {shard}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The report about a kept shard with this audit in the journal.
    fn told(audit: &str) -> KeptAudit {
        let json = format!(
            r#"{{"audits": [[7, "00000000-0000-0000-0000-000000000000", "db2", {audit}]]}}"#
        );
        facts(serde_json::from_str(&json).unwrap())
            .unwrap()
            .audits
            .remove(0)
    }

    #[test]
    fn why_a_kept_shard_was_not_audited() {
        assert_eq!(
            told("null, {}").left_out,
            ["nothing is recorded of its audit"]
        );
        assert_eq!(told(r#""under way", {}"#).left_out, [""; 0]);
        let left_out =
            r#""not audited", {"left_out": [{"what": "table photos", "why": "it was dropped"}]}"#;
        assert_eq!(told(left_out).left_out, ["table photos: it was dropped"]);
        let differs = r#""differs", {"differences":
            [{"what": "table photos", "how": "", "rows": [{"key": "(7)"}]}]}"#;
        assert_eq!(told(differs).differences, ["table photos (7)"]);
    }
}
