//! What a host says about itself and its shards, read in two queries.
//!
//! Invariant: everything about the shards comes from one statement, so from one snapshot. With two statements, a shard
//! that opens in between would seem to be nowhere, or in two places.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{BoxFuture, join_all};
use jiff::Timestamp;
use serde::Deserialize;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use super::clock::{self, ClockFacts};
use super::damage::{INSTALLED, Installed};
use super::known::Record;
use super::lock::{self, Foreign};
use super::made::MadeSet;
use super::monitors::{self, Monitors};
use super::rights::{self, Routers, Users};
use super::shape::{self, SHAPE, Shape};
use crate::map::{HostName, RangeItem, ShardEpoch, parse_ranges};
use crate::pg::{ConnectError, ConnectOptions};
use crate::shard::{ShardCount, ShardId};

/// What every host that was asked says.
pub type Survey = BTreeMap<HostName, Result<HostFacts, FactsError>>;

/// What one host says.
#[derive(Clone, Debug, PartialEq)]
pub struct HostFacts {
    /// The server and the role that asked.
    pub server: ServerFacts,
    /// The schemas whose names end in four digits, as shards' do.
    pub schemas: BTreeSet<String>,
    /// Objects that only moves create.
    pub of_moves: OfMoves,
    /// Settings that matter, of the server, the database and the role, by name.
    pub settings: BTreeMap<String, String>,
    /// What the control schema holds; `None` where there is none, that is, before bootstrap.
    pub control: Option<ControlFacts>,
    /// The clocks; `None` where they were not asked for, see [`survey_with_clocks`].
    pub clock: Option<ClockFacts>,
}

/// Objects with names that only moves give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfMoves {
    /// Schemas like `shard_0007__left_e1`.
    pub schemas: BTreeSet<String>,
    /// Replication slots of this database whose names begin with `pgshard_`.
    pub slots: Vec<String>,
    /// Publications whose names begin with `pgshard_`.
    pub publications: Vec<String>,
}

/// The server, and the rights of the role that asked; or of the owner, where who asked only watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// `server_version_num`: 150004 is 15.4.
    pub version: i32,
    /// The role that asked.
    pub role: String,
    /// The database.
    pub database: String,
    /// Whether it is a standby, where nothing can be written.
    pub in_recovery: bool,
    /// Whether the role may create schemas in the database.
    pub may_create: bool,
    /// Whether there is a schema named `pgshard`, the control schema or not.
    pub has_pgshard: bool,
    /// Whether the role is a superuser.
    pub is_superuser: bool,
    /// Whether every role may create objects in the schema `public`.
    pub public_may_create: bool,
    /// Whether the role may make replication slots.
    pub may_replicate: bool,
    /// How many locks on objects the server has room for, all connections together.
    pub lock_slots: i64,
    /// The role that asked, if it only watches. What is said of a role is then said of the control schema's owner.
    pub watcher: Option<String>,
}

/// What the control schema of a host holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControlFacts {
    /// The control migrations that were run, by version.
    pub migrations: Vec<RecordedControl>,
    /// What was recorded about the cluster; `None` only if somebody has emptied the table.
    pub cluster: Option<RecordedCluster>,
    /// The shards that are here, or were.
    pub shards: BTreeMap<ShardId, ShardRow>,
    /// The shards that moves are bringing here.
    pub incoming: BTreeMap<ShardId, IncomingRow>,
    /// The shards with a move away from here that is at work or has stopped halfway.
    pub moving: BTreeSet<ShardId>,
    /// The migrations of the shards; shards with the same ones are together.
    pub applied: Vec<AppliedSet>,
    /// What is in the schemas of the shards that are served here, by name.
    pub made: Vec<MadeSet>,
    /// The once-per-host migrations that were run.
    pub host_migrations: Vec<RecordedMigration>,
    /// The shard migrations that were begun here and did not succeed.
    pub attempts: BTreeMap<ShardId, Attempt>,
    /// The moves in this host's journal that have neither been completed nor aborted.
    pub live_moves: BTreeSet<Uuid>,
    /// The shards that left and cannot be taken back although their old copies are kept, with the reason.
    pub lost_ways: BTreeMap<ShardId, String>,
    /// The shards that left and can be taken back.
    pub open_ways: BTreeMap<ShardId, OpenWay>,
    /// The shards whose old copies are kept, and whose moves may not have brought everything.
    pub audits: Vec<KeptAudit>,
    /// What moves have created here and must be dropped some day.
    pub ledger: Vec<LedgerRow>,
    /// Tables of shards served here that still have a replica identity that a move lent them, although no move needs it
    /// any longer; empty if the control schema is older.
    pub still_lent: BTreeSet<(ShardId, String)>,
    /// What the host has recorded about the cluster; empty if the control schema is older than that.
    pub known: Record,
    /// For shards with a move that is at work or has stopped halfway: that move; empty if the control schema is older.
    pub open_moves: BTreeMap<ShardId, OpenMove>,
    /// The indexes of the shards here that are not valid.
    pub(super) invalid_indexes: BTreeSet<(ShardId, String)>,
    /// The objects of the control schema, if they were read.
    pub(super) installed: Option<Installed>,
    /// What its tables are made of.
    pub(super) shape: Option<Shape>,
    /// The roles of routers.
    pub(super) routers: Routers,
    /// The roles that only watch.
    pub(super) monitors: Monitors,
    /// Locks of ours that are a stranger's.
    pub(super) foreign_locks: Vec<Foreign>,
}

/// How a shard that left can be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenWay {
    /// The move that would be taken back.
    pub id: Uuid,
    /// Where the shard is.
    pub target: HostName,
}

/// A move that is at work or has stopped halfway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenMove {
    /// The move.
    pub id: Uuid,
    /// The host that gets the shard.
    pub target: HostName,
    /// Host and process of its mover, at work or not.
    pub holder: String,
    /// Since when somebody works on it, by the host's clock; `None`: nobody renews its lease.
    pub since: Option<Timestamp>,
}

impl std::fmt::Display for OpenMove {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.since {
            Some(since) => write!(f, "the move {} by {} since {since:.0}", self.id, self.holder),
            None => write!(f, "the move {}, on which nobody works ({} did)", self.id, self.holder),
        }
    }
}

/// A row of `pgshard.control_migration`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RecordedControl {
    /// Its number.
    pub version: i32,
    /// Its name, without the number.
    pub name: String,
    /// SHA-256 of its text, in hexadecimal.
    pub checksum: String,
}

/// The row of `pgshard.cluster`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RecordedCluster {
    /// N.
    pub shards: i32,
    /// The epoch as Unix milliseconds.
    pub epoch_ms: i64,
    /// What comes before a shard's number in the name of its schema.
    pub schema_prefix: String,
    /// The name that the config gave the host.
    pub host_name: String,
    /// How a key becomes a shard, [`crate::KeyKind::as_str`].
    pub key_kind: String,
}

/// Whether a host owns a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardState {
    /// It does.
    Serving,
    /// It does, but a move has closed the shard for a moment.
    Fenced,
    /// It did. The peer owns it now.
    Moved,
}

/// A row of `pgshard.shard`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardRow {
    /// The shard's schema.
    pub schema: String,
    /// Whether the host owns the shard.
    pub state: ShardState,
    /// Since which epoch it does; for a moved shard, since which epoch the peer does.
    pub epoch: ShardEpoch,
    /// Where the shard is, or is going.
    pub peer: Option<HostName>,
    /// The move that fenced it or took it away.
    pub move_id: Option<Uuid>,
    /// How long the fence still stands, in milliseconds by the host's clock; negative if its mover is late.
    pub fence_left_ms: Option<f64>,
    /// How long ago the shard was last fenced, un-fenced or opened, in milliseconds.
    pub fence_ago_ms: Option<f64>,
}

/// A row of `pgshard.incoming`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingRow {
    /// The move that brings the shard.
    pub move_id: Uuid,
    /// Where it comes from.
    pub source: HostName,
    /// The epoch that it will have here.
    pub epoch: ShardEpoch,
    /// Whether everything is in place and only the open is missing.
    pub ready: bool,
}

/// A migration that a shard has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct RecordedMigration {
    /// Its file's name without `.sql`; pgshard's own start with `pgshard:`.
    pub name: String,
    /// SHA-256 of its text, in hexadecimal.
    pub checksum: String,
}

/// A row of `pgshard.migration_attempt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The migration.
    pub name: String,
    /// Why it failed; `None` if its outcome is unknown.
    pub message: Option<String>,
}

/// Shards of one host that have the same migrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedSet {
    /// The migrations, by name.
    pub migrations: Vec<RecordedMigration>,
    /// The shards, in order.
    pub shards: Vec<ShardId>,
}

/// A shard that left, whose move was not audited, or differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAudit {
    /// The shard.
    pub shard: ShardId,
    /// The move.
    pub move_id: Uuid,
    /// Where it went.
    pub target: HostName,
    /// What differs: each thing, and the keys of its rows.
    pub differences: Vec<String>,
    /// What was not compared, and why.
    pub left_out: Vec<String>,
}

/// A row of `pgshard.ledger`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LedgerRow {
    /// `incoming`, `signpost`, `left`, `old signpost`, `publication` or `slot`.
    pub kind: String,
    /// The object's name.
    pub name: String,
    /// The move that made it.
    pub move_id: Uuid,
    /// The shard.
    pub shard: ShardId,
    /// The phase of that move in the journal of this host; `None` where the journal is another host's.
    pub phase: Option<String>,
}

/// A table or a column of the control schema that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Which, in a sentence.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// Why it is unknown what a host says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FactsError {
    /// There is no connection.
    #[error("{}", if source.is_login_refused() { "it does not let us in" } else { "it cannot be reached" })]
    Unreachable {
        /// Why not.
        #[source]
        source: ConnectError,
    },
    /// The control schema belongs to another role, and who asked may not watch either.
    #[error("its control schema belongs to the role {owner}, not to {role}")]
    NotOwner {
        /// The role that owns it.
        owner: String,
        /// The role that asked.
        role: String,
    },
    /// A query failed.
    #[error("it does not answer a question about its {what}")]
    Query {
        /// `server`, `control schema` or `clock`.
        what: &'static str,
        /// What the server or the driver says.
        #[source]
        source: tokio_postgres::Error,
    },
    /// Tables or columns of the control schema are gone, and what was in them.
    #[error("of its control schema: {}", gone.iter().map(|one| one.what.as_str()).collect::<Vec<_>>().join("; "))]
    Lacking {
        /// Each of them.
        gone: Vec<Gone>,
    },
    /// The control schema holds something that no pgshard writes.
    #[error("its control schema holds {what}, which is impossible")]
    Unreadable {
        /// What.
        what: String,
    },
}

const SERVER: &str = r"
WITH owner AS (
    SELECT r.* FROM pg_roles r JOIN pg_namespace n ON n.nspowner = r.oid
    WHERE n.nspname = 'pgshard' AND NOT pg_has_role(n.nspowner, 'USAGE')
        AND (SELECT count(*) > 1 FROM pg_class c WHERE c.relnamespace = n.oid
             AND c.relname IN ('control_migration', 'cluster', 'shard'))),
about AS (
    SELECT oid, rolname, rolsuper, rolreplication FROM owner
    UNION ALL SELECT oid, rolname, rolsuper, rolreplication FROM pg_roles
    WHERE rolname = current_user AND NOT EXISTS (SELECT FROM owner))
SELECT current_setting('server_version_num')::int4, current_user::text, current_database()::text,
       pg_is_in_recovery(), has_database_privilege(about.oid, current_database(), 'CREATE'),
       (SELECT pg_get_userbyid(nspowner)::text FROM pg_namespace WHERE nspname = 'pgshard'),
       coalesce((SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = 'pgshard'), true),
       current_setting('max_locks_per_transaction')::int8
           * (current_setting('max_connections')::int8 + current_setting('max_prepared_transactions')::int8),
       -- Whatever table somebody has dropped, it is still known as a control schema.
       (SELECT count(*) > 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'pgshard' AND c.relname IN ('control_migration', 'cluster', 'shard')),
       EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'pgshard' AND c.relname = 'known_host'),
       ARRAY(SELECT nspname::text FROM pg_namespace WHERE nspname ~ '[0-9]{4}$'),
       ARRAY(SELECT nspname::text FROM pg_namespace
             WHERE nspname ~ '[0-9]{4}__(left_e[0-9]+|incoming|signpost(_e[0-9]+)?)$' ORDER BY 1),
       ARRAY(SELECT slot_name::text FROM pg_replication_slots
             WHERE slot_name LIKE 'pgshard\_%' AND database = current_database() ORDER BY 1),
       ARRAY(SELECT pubname::text FROM pg_publication WHERE pubname LIKE 'pgshard\_%' ORDER BY 1),
       (SELECT json_object_agg(name, current_setting(name)) FROM unnest(ARRAY[
             'cluster_name', 'fsync', 'full_page_writes', 'synchronous_commit', 'wal_level', 'max_replication_slots',
             'max_wal_senders',
             'max_prepared_transactions', 'default_transaction_isolation', 'default_transaction_read_only',
             'default_transaction_deferrable', 'session_replication_role']) AS name)::text,
       (SELECT json_build_object('server_encoding', pg_encoding_to_char(encoding), 'lc_collate', datcollate,
                                 'lc_ctype', datctype) FROM pg_database WHERE datname = current_database())::text,
       about.rolsuper,
       EXISTS (SELECT FROM pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS a
               WHERE n.nspname = 'public' AND a.grantee = 0 AND a.privilege_type = 'CREATE'),
       about.rolreplication OR about.rolsuper, about.rolname::text
FROM about";

/// Where the leases of movers are.
const MOVERS: &str = "pgshard.mover";

/// In the place of [`MOVERS`] where that table is gone: `bootstrap` makes it anew, so the rest must be readable
/// without it.
const NO_MOVERS: &str = "(SELECT NULL::uuid AS lease, NULL::timestamptz AS lease_until, NULL::timestamptz AS since)";

/// What control schemas have since version 6. It is not compared between hosts, since it may be from another moment
/// than the rest.
///
/// A mover is alive if it renews its lease, and the connection that holds the lease's lock exists.
fn since_6(movers: &str) -> String {
    format!(
        "
SELECT (SELECT json_agg(json_build_array(host_name, shards)) FROM pgshard.known_host)::text,
       (SELECT json_agg(json_build_array(m.shard_id, m.move_id, m.target, m.holder,
                   CASE WHEN coalesce(w.lease_until, m.lease_until) > clock_timestamp()
                             AND (w.lease IS NULL OR EXISTS (
                                 SELECT FROM pg_locks l
                                 WHERE l.locktype = 'advisory' AND l.granted AND l.classid = $1 AND l.objsubid = 2
                                   AND l.objid::bigint = ('x' || left(w.lease::text, 8))::bit(32)::bigint
                                   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())))
                        THEN coalesce(w.since, m.created_at) END))
        FROM pgshard.move m LEFT JOIN {movers} w USING (lease)
        WHERE m.phase NOT IN ('kept', 'completed', 'aborted') AND ($2::integer IS NULL OR m.shard_id = $2))::text"
    )
}

/// What control schemas have since version 8, read separately for the same reason.
const SINCE_8: &str = r"
SELECT l.shard_id, l.table_name
FROM pgshard.lent_identity l JOIN pgshard.shard s ON s.shard_id = l.shard_id AND s.state = 'serving'
WHERE NOT EXISTS (SELECT FROM pgshard.move m WHERE m.shard_id = l.shard_id
                  AND m.phase NOT IN ('kept', 'completed', 'aborted'))
  -- By the catalogs: to_regclass() wants a right on the schema, which a monitor does not have.
  AND NOT EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                  JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname = s.schema_name AND c.relname = l.table_name AND p.pubname LIKE 'pgshard\_%')";

/// Where audits are, and what stands for them in a control schema of a version before 4. Of the whole row a monitor may
/// not ask.
const AUDITED: &str = "pgshard.move";
const NO_AUDITS: &str = "(SELECT shard_id, move_id, target, phase, NULL::text AS audit, NULL::jsonb AS audit_found
    FROM pgshard.move)";

/// Rows as JSON arrays, which are short: a host has thousands of shards. `AUDITED` is [`AUDITED`] or [`NO_AUDITS`].
const CONTROL: &str = r#"
SELECT json_build_object(
    'migrations', (SELECT json_agg(json_build_array(version, name, checksum) ORDER BY version)
        FROM pgshard.control_migration),
    'cluster', (SELECT json_build_array(shards, epoch_ms, schema_prefix, host_name, key_kind) FROM pgshard.cluster),
    'shards', (SELECT json_agg(json_build_array(shard_id, schema_name, state, epoch, peer, move_id,
                   date_part('epoch', fence_deadline - clock_timestamp()) * 1000,
                   date_part('epoch', clock_timestamp() - last_fence_at) * 1000)) FROM pgshard.shard),
    'incoming', (SELECT json_agg(json_build_array(shard_id, move_id, source, epoch, ready_attempt IS NOT NULL))
                 FROM pgshard.incoming),
    'moving', (SELECT json_agg(DISTINCT shard_id) FROM pgshard.move WHERE phase NOT IN ('kept', 'completed',
        'aborted')),
    'applied', (SELECT json_agg(json_build_array(migrations, shards)) FROM (
                    SELECT migrations::json, json_agg(shard_id ORDER BY shard_id) AS shards FROM (
                        SELECT shard_id, json_agg(json_build_array(name, checksum)
                            ORDER BY name COLLATE "C")::text AS migrations
                        FROM pgshard.shard_migration GROUP BY shard_id) AS of_a_shard
                    GROUP BY of_a_shard.migrations) AS sets),
    'host_migrations', (SELECT json_agg(json_build_array(name, checksum) ORDER BY name) FROM pgshard.host_migration),
    -- What is recorded has been run, whatever is noted of an attempt at it.
    'attempts', (SELECT json_agg(json_build_array(a.shard_id, a.name, a.message)) FROM pgshard.migration_attempt a
        WHERE NOT EXISTS (SELECT FROM pgshard.shard_migration m WHERE m.shard_id = a.shard_id AND m.name = a.name)),
    'made', (SELECT json_agg(json_build_array(objects, shards)) FROM (
                 SELECT objects::json, json_agg(shard_id ORDER BY shard_id) AS shards FROM (
                     SELECT s.shard_id, coalesce(o.objects, '[]') AS objects
                     FROM pgshard.shard s JOIN pg_namespace n ON n.nspname = s.schema_name
                     LEFT JOIN (SELECT ns, json_agg(DISTINCT object ORDER BY object)::text AS objects FROM (
                                    SELECT relnamespace, CASE relkind WHEN 'v' THEN 'view ' WHEN 'm'
                                    THEN 'materialized view '
                                               WHEN 'f' THEN 'foreign table ' WHEN 'S' THEN 'sequence ' ELSE 'table '
                                               END || relname
                                    FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND NOT relispartition
                                        AND relname <> 'pgshard_backfill'
                                    -- Two of ours have the shard's number in their names. All shards have them.
                                    UNION ALL SELECT pronamespace, 'function '
                                        || regexp_replace(proname, '^(id_raise|id_lease)_[0-9]+$', '\1_N')
                                    FROM pg_proc) AS of (ns, object)
                                GROUP BY ns) AS o ON o.ns = n.oid
                     WHERE s.state = 'serving') AS of_a_shard
                 GROUP BY of_a_shard.objects) AS sets),
    'invalid_indexes', (SELECT json_agg(json_build_array(s.shard_id, c.relname))
        FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pgshard.shard s ON s.schema_name = n.nspname WHERE NOT (i.indisvalid AND i.indisready)),
    'lost_ways', (SELECT json_agg(json_build_array(b.shard_id, b.lost)) FROM pgshard.back b JOIN pgshard.move m
        USING (move_id, shard_id)
                  WHERE b.lost IS NOT NULL AND m.phase = 'kept'),
    'open_ways', (SELECT json_agg(json_build_array(b.shard_id, b.move_id, m.target)) FROM pgshard.back b
        JOIN pgshard.move m USING (move_id, shard_id)
                  WHERE b.lost IS NULL AND b.taken_by IS NULL AND m.phase = 'kept'),
    'audits', (SELECT json_agg(json_build_array(m.shard_id, m.move_id, m.target, coalesce(m.audit_found, '{}')))
               FROM AUDITED AS m
               WHERE m.phase = 'kept' AND m.audit IS DISTINCT FROM 'audited'
                 AND NOT (m.audit = 'under way' AND EXISTS (SELECT FROM pg_stat_activity a
                          WHERE a.application_name = 'pgshard audit ' || m.move_id || '/' || m.shard_id))),
    'live_moves', (SELECT json_agg(DISTINCT move_id) FROM pgshard.move WHERE phase NOT IN ('completed', 'aborted')),
    'ledger', (SELECT json_agg(json_build_array(l.kind, l.name, l.move_id, l.shard_id, m.phase) ORDER BY l.kind, l.name)
               FROM pgshard.ledger l LEFT JOIN pgshard.move m USING (move_id, shard_id)))::text"#;

#[derive(Deserialize)]
struct RawControl {
    migrations: Option<Vec<RecordedControl>>,
    cluster: Option<RecordedCluster>,
    shards: Option<Vec<RawShard>>,
    incoming: Option<Vec<RawIncoming>>,
    moving: Option<Vec<ShardId>>,
    applied: Option<Vec<(Vec<RecordedMigration>, Vec<ShardId>)>>,
    made: Option<Vec<(BTreeSet<String>, Vec<ShardId>)>>,
    invalid_indexes: Option<BTreeSet<(ShardId, String)>>,
    host_migrations: Option<Vec<RecordedMigration>>,
    attempts: Option<Vec<(ShardId, String, Option<String>)>>,
    lost_ways: Option<Vec<(ShardId, String)>>,
    open_ways: Option<Vec<(ShardId, Uuid, String)>>,
    audits: Option<Vec<(ShardId, Uuid, String, RawFound)>>,
    live_moves: Option<Vec<Uuid>>,
    ledger: Option<Vec<LedgerRow>>,
}

fn open_way((shard, id, target): (ShardId, Uuid, String)) -> Option<(ShardId, OpenWay)> {
    Some((shard, OpenWay { id, target: HostName::new(&target).ok()? }))
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

type RawShard = (ShardId, String, ShardState, i32, Option<String>, Option<Uuid>, Option<f64>, Option<f64>);
type RawIncoming = (ShardId, Uuid, String, i32, bool);

/// What the host behind a connection says. Works on a host that was never bootstrapped, and needs no rights there. If
/// there is a control schema, the role must own it.
///
/// # Errors
/// When the control schema belongs to another role, when a query fails, or when the control schema contains something
/// impossible.
///
/// # Cancel safety
/// Nothing is written and no transaction is left open.
pub async fn host_facts(client: &Client) -> Result<HostFacts, FactsError> {
    facts_for(client, Who::Owner).await
}

/// How often a control schema is read that changes meanwhile.
const CONTROL_READS_MAX: u32 = 3;

/// Who may ask a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// A role that acts for the owner of the control schema: it is going to write.
    Owner,
    /// That, or one that only watches.
    Monitor,
}

fn facts_for(client: &Client, who: Who) -> BoxFuture<'_, Result<HostFacts, FactsError>> {
    Box::pin(async move {
        let failed = |source| FactsError::Query { what: "server", source };
        let row = client.query_one(SERVER, &[]).await.map_err(failed)?;
        let owner: Option<String> = get(&row, 5)?;
        let (owns_control, bootstrapped, has_record): (bool, bool, bool) =
            (get(&row, 6)?, get(&row, 8)?, get(&row, 9)?);
        let mut watcher = None;
        if let (false, true, Some(owner)) = (owns_control, bootstrapped, &owner) {
            let role: String = get(&row, 1)?;
            if who == Who::Owner || !monitors::watches(client).await.map_err(failed)? {
                return Err(FactsError::NotOwner { owner: owner.clone(), role });
            }
            watcher = Some(role);
        }
        let server = ServerFacts {
            version: get(&row, 0)?,
            role: get(&row, 19)?,
            database: get(&row, 2)?,
            in_recovery: get(&row, 3)?,
            may_create: get(&row, 4)?,
            has_pgshard: owner.is_some(),
            is_superuser: get(&row, 16)?,
            public_may_create: get(&row, 17)?,
            may_replicate: get(&row, 18)?,
            lock_slots: get(&row, 7)?,
            watcher,
        };
        let schemas = get::<Vec<String>>(&row, 10)?.into_iter().collect();
        let of_moves = OfMoves {
            schemas: get::<Vec<String>>(&row, 11)?.into_iter().collect(),
            slots: get(&row, 12)?,
            publications: get(&row, 13)?,
        };
        let mut settings = BTreeMap::new();
        for column in [14, 15] {
            let read: Result<BTreeMap<String, String>, _> = serde_json::from_str(get(&row, column)?);
            settings.extend(read.map_err(|error| FactsError::Unreadable { what: error.to_string() })?);
        }
        let control = if bootstrapped { Some(control_read(client, has_record).await?) } else { None };
        Ok(HostFacts { server, schemas, of_moves, settings, control, clock: None })
    })
}

/// The control schema and its shape. Where something is gone it is read again, unless the shape has stayed the same
/// meanwhile: a bootstrap may have brought it up to date between the two, and what that has made is not gone.
async fn control_read(client: &Client, has_record: bool) -> Result<ControlFacts, FactsError> {
    let mut seen = shape(client).await?;
    let mut reads = 0;
    loop {
        let read = read_control(client, &seen, has_record).await;
        reads += 1;
        if reads < CONTROL_READS_MAX && (read.is_err() || !shape::gone(&seen).is_empty()) {
            let now = shape(client).await?;
            if now != seen {
                seen = now;
                continue;
            }
        }
        let read = read.map_err(|error| if lacks(&error) { of_what_is_gone(&seen, error) } else { error });
        return Ok(ControlFacts { shape: Some(seen), ..read? });
    }
}

/// Everything of the control schema but its shape.
async fn read_control(client: &Client, shape: &Shape, has_record: bool) -> Result<ControlFacts, FactsError> {
    let failed = |source| FactsError::Query { what: "control schema", source };
    let audited = if shape.has_column("move", "audit_found") { AUDITED } else { NO_AUDITS };
    let row = client.query_one(&CONTROL.replace("AUDITED", audited), &[]).await.map_err(failed)?;
    let mut control = control_facts(row.try_get(0).map_err(failed)?)?;
    if has_record {
        read_since_6(client, shape, &mut control).await?;
    }
    if control.migrations.iter().any(|migration| migration.version == 8) {
        control.still_lent = read_still_lent(client).await?;
    }
    control.installed = Some(installed(client).await?);
    control.foreign_locks = lock::foreign(client).await.map_err(failed)?;
    control.routers = rights::routers(client, &Users::OfShards, &BTreeSet::new()).await.map_err(failed)?;
    control.monitors = monitors::monitors(client, &BTreeSet::new()).await.map_err(failed)?;
    Ok(control)
}

/// Whether a table or a column of the control schema is not there.
fn lacks(error: &FactsError) -> bool {
    let FactsError::Query { source, .. } = error else { return false };
    source.code().is_some_and(|code| [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN].contains(code))
}

/// The same error, as the tables and columns that are gone; as it was where none is.
fn of_what_is_gone(shape: &Shape, error: FactsError) -> FactsError {
    let gone = shape::gone(shape);
    if gone.is_empty() { error } else { FactsError::Lacking { gone } }
}

/// The objects of the control schema.
pub(super) async fn installed(client: &Client) -> Result<Installed, FactsError> {
    let failed = |source| FactsError::Query { what: "control schema", source };
    let row = client.query_one(INSTALLED, &[]).await.map_err(failed)?;
    let read = serde_json::from_str(row.try_get(0).map_err(failed)?);
    read.map_err(|error| FactsError::Unreadable { what: error.to_string() })
}

/// What the control schema's tables are made of.
pub(super) async fn shape(client: &Client) -> Result<Shape, FactsError> {
    let failed = |source| FactsError::Query { what: "control schema", source };
    let row = client.query_one(SHAPE, &[]).await.map_err(failed)?;
    let read = serde_json::from_str(row.try_get(0).map_err(failed)?);
    read.map_err(|error| FactsError::Unreadable { what: error.to_string() })
}

/// A column of the answer to [`SERVER`].
fn get<'r, T: FromSql<'r>>(row: &'r tokio_postgres::Row, column: usize) -> Result<T, FactsError> {
    row.try_get(column).map_err(|source| FactsError::Query { what: "server", source })
}

async fn read_since_6(client: &Client, shape: &Shape, control: &mut ControlFacts) -> Result<(), FactsError> {
    let failed = |source| FactsError::Query { what: "control schema", source };
    let sql = since_6(if shape.has_table("mover") { MOVERS } else { NO_MOVERS });
    let row = client.query_one(&sql, &[&lock::MOVERS.cast_unsigned(), &None::<i32>]).await.map_err(failed)?;
    let unreadable = |error: &dyn std::fmt::Display| FactsError::Unreadable { what: error.to_string() };
    if let Some(json) = row.try_get::<_, Option<&str>>(0).map_err(failed)? {
        let hosts: Vec<(String, String)> = serde_json::from_str(json).map_err(|error| unreadable(&error))?;
        for (host, text) in hosts {
            let host = HostName::new(&host).map_err(|error| unreadable(&error))?;
            let shards = parse_ranges(&text, ShardCount::MAX);
            let shards =
                shards.map_err(|_| unreadable(&format!("the shards {text:?} of {host} in pgshard.known_host")))?;
            let placed = |item: &RangeItem| item.shards().map(|shard| (shard, item.epoch)).collect::<Vec<_>>();
            control.known.insert(host, shards.iter().flat_map(placed).collect());
        }
    }
    control.open_moves = open_moves(&row)?;
    Ok(())
}

async fn read_still_lent(client: &Client) -> Result<BTreeSet<(ShardId, String)>, FactsError> {
    let failed = |source| FactsError::Query { what: "control schema", source };
    let mut lent = BTreeSet::new();
    for row in client.query(SINCE_8, &[]).await.map_err(failed)? {
        let (number, table): (i32, String) = (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
        lent.extend(ShardId::try_from(number).map(|shard| (shard, table)));
    }
    Ok(lent)
}

/// The moves in an answer to [`since_6`].
fn open_moves(row: &tokio_postgres::Row) -> Result<BTreeMap<ShardId, OpenMove>, FactsError> {
    let failed = |source| FactsError::Query { what: "control schema", source };
    let Some(json) = row.try_get::<_, Option<&str>>(1).map_err(failed)? else { return Ok(BTreeMap::new()) };
    let unreadable = |error: &dyn std::fmt::Display| FactsError::Unreadable { what: error.to_string() };
    let moves: Vec<(ShardId, Uuid, String, String, Option<String>)> =
        serde_json::from_str(json).map_err(|error| unreadable(&error))?;
    let mut open = BTreeMap::new();
    for (shard, id, target, holder, since) in moves {
        let target = HostName::new(&target).map_err(|error| unreadable(&error))?;
        let since = since.map(|since| since.parse()).transpose().map_err(|error: jiff::Error| unreadable(&error))?;
        open.insert(shard, OpenMove { id, target, holder, since });
    }
    Ok(open)
}

/// The move of a shard that is at work or has stopped halfway, if it still is and can be read.
pub(super) async fn open_move(client: &Client, shard: ShardId) -> Option<OpenMove> {
    let row = client.query_one(&since_6(MOVERS), &[&lock::MOVERS.cast_unsigned(), &Some(shard.as_i32())]).await.ok()?;
    open_moves(&row).ok()?.remove(&shard)
}

fn control_facts(json: &str) -> Result<ControlFacts, FactsError> {
    let raw: RawControl =
        serde_json::from_str(json).map_err(|error| FactsError::Unreadable { what: error.to_string() })?;
    let host = |name: String| HostName::new(&name).map_err(|error| FactsError::Unreadable { what: error.to_string() });
    let epoch = |shard: ShardId, epoch: i32| {
        let unreadable = || FactsError::Unreadable { what: format!("epoch {epoch} of shard {shard}") };
        ShardEpoch::from_i32(epoch).ok_or_else(unreadable)
    };
    let mut shards = BTreeMap::new();
    for (shard, schema, state, at, peer, move_id, fence_left_ms, fence_ago_ms) in raw.shards.unwrap_or_default() {
        let (epoch, peer) = (epoch(shard, at)?, peer.map(host).transpose()?);
        shards.insert(shard, ShardRow { schema, state, epoch, peer, move_id, fence_left_ms, fence_ago_ms });
    }
    let mut incoming = BTreeMap::new();
    for (shard, move_id, source, at, ready) in raw.incoming.unwrap_or_default() {
        incoming.insert(shard, IncomingRow { move_id, source: host(source)?, epoch: epoch(shard, at)?, ready });
    }
    let mut audits = Vec::new();
    for (shard, move_id, target, found) in raw.audits.unwrap_or_default() {
        let key = |row: RawRow| row.key;
        let difference = |one: RawDifference| match one.rows.is_empty() {
            true => format!("{} ({})", one.what, one.how),
            false => format!("{} {}", one.what, one.rows.into_iter().map(key).collect::<Vec<_>>().join(", ")),
        };
        let differences = found.differences.into_iter().map(difference).collect();
        let left_out = found.left_out.into_iter().map(|left| format!("{}: {}", left.what, left.why)).collect();
        audits.push(KeptAudit { shard, move_id, target: host(target)?, differences, left_out });
    }
    let applied = raw.applied.unwrap_or_default().into_iter();
    let attempts = raw.attempts.unwrap_or_default().into_iter();
    let made = raw.made.unwrap_or_default().into_iter();
    Ok(ControlFacts {
        migrations: raw.migrations.unwrap_or_default(),
        cluster: raw.cluster,
        shards,
        incoming,
        moving: raw.moving.unwrap_or_default().into_iter().collect(),
        applied: applied.map(|(migrations, shards)| AppliedSet { migrations, shards }).collect(),
        made: made.map(|(objects, shards)| MadeSet { objects, shards }).collect(),
        invalid_indexes: raw.invalid_indexes.unwrap_or_default(),
        host_migrations: raw.host_migrations.unwrap_or_default(),
        attempts: attempts.map(|(shard, name, message)| (shard, Attempt { name, message })).collect(),
        lost_ways: raw.lost_ways.unwrap_or_default().into_iter().collect(),
        open_ways: raw.open_ways.unwrap_or_default().into_iter().filter_map(open_way).collect(),
        live_moves: raw.live_moves.unwrap_or_default().into_iter().collect(),
        audits,
        ledger: raw.ledger.unwrap_or_default(),
        ..ControlFacts::default()
    })
}

/// Asks many hosts at the same time, each over a connection of its own. The role may be one that only watches.
///
/// # Cancel safety
/// Dropping the future closes the connections.
pub fn survey(hosts: impl IntoIterator<Item = (HostName, ConnectOptions)>) -> BoxFuture<'static, Survey> {
    survey_of(hosts.into_iter().collect())
}

fn survey_of(hosts: Vec<(HostName, ConnectOptions)>) -> BoxFuture<'static, Survey> {
    Box::pin(async move {
        let ask = |(name, connect): (HostName, ConnectOptions)| async move {
            let facts = match connect.connect("pgshard survey").await {
                Ok(connection) => facts_for(&connection, Who::Monitor).await,
                Err(source) => Err(FactsError::Unreachable { source }),
            };
            (name, facts)
        };
        join_all(hosts.into_iter().map(ask)).await.into_iter().collect()
    })
}

/// The same, with the clocks of the hosts and of their shards' IDs.
///
/// # Cancel safety
/// As [`survey`].
pub fn survey_with_clocks(hosts: impl IntoIterator<Item = (HostName, ConnectOptions)>) -> BoxFuture<'static, Survey> {
    survey_with_clocks_of(hosts.into_iter().collect())
}

fn survey_with_clocks_of(hosts: Vec<(HostName, ConnectOptions)>) -> BoxFuture<'static, Survey> {
    Box::pin(async move {
        let ask = |(name, connect): (HostName, ConnectOptions)| async move { (name, facts_with_clock(connect).await) };
        join_all(hosts.into_iter().map(ask)).await.into_iter().collect()
    })
}

fn facts_with_clock(connect: ConnectOptions) -> BoxFuture<'static, Result<HostFacts, FactsError>> {
    Box::pin(async move {
        let connection =
            connect.connect("pgshard survey").await.map_err(|source| FactsError::Unreachable { source })?;
        let mut facts = facts_for(&connection, Who::Monitor).await?;
        facts.clock = Some(clock::read(&connection, &facts).await?);
        Ok(facts)
    })
}

/// An error and its causes on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let refused = error.downcast_ref::<tokio_postgres::Error>().and_then(|error| error.as_db_error());
        let words = refused.map_or_else(|| error.to_string(), crate::pg::state::words);
        // The driver's Display may or may not contain its cause already.
        if !line.contains(&words) {
            line.push_str(": ");
            line.push_str(&words);
        }
        // The server's answer comes last: its own cause would repeat it.
        cause = if refused.is_some() { None } else { error.source() };
    }
    line
}
