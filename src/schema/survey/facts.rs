//! What is read of a host and its shards. The reading is in [`survey`](mod@crate::schema::survey).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Deserialize;
use uuid::Uuid;

use crate::map::{HostName, ShardEpoch};
use crate::pg::{ConnectError, HostState};
use crate::schema::control::RecordedMigration;
use crate::schema::control::damage::InstalledObjects;
use crate::schema::control::lock::Foreign;
use crate::schema::control::monitors::Monitors;
use crate::schema::control::rights::Routers;
use crate::schema::control::shape::{Gone, Shape};
use crate::shard::ShardId;

/// The facts of every host that was read.
pub type Survey = BTreeMap<HostName, Result<HostFacts, FactsError>>;

/// The facts of one host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostFacts {
    /// The server and the role that was used.
    pub server: ServerFacts,
    /// The schemas with names that end in four digits, as shards' do.
    pub schemas: BTreeSet<String>,
    /// Objects that only moves create.
    pub of_moves: OfMoves,
    /// Settings that matter, of the server, the database and the role, by name.
    pub settings: BTreeMap<String, String>,
    /// What the control schema holds; `None` where there is none, that is, before bootstrap.
    pub control: Option<ControlFacts>,
    /// The clocks; `None` unless they were requested, see
    /// [`survey_with_clocks`](super::survey_with_clocks).
    pub clock: Option<ClockFacts>,
}

/// Objects with names that only moves give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfMoves {
    /// Schemas like `shard_0007__left_e1`.
    pub schemas: BTreeSet<String>,
    /// Replication slots of this database with names that begin with `pgshard_`.
    pub slots: Vec<String>,
    /// Those of them that the server has invalidated.
    pub lost_slots: Vec<String>,
    /// Publications with names that begin with `pgshard_`.
    pub publications: Vec<String>,
    /// The slot of those that keeps VACUUM from the most rows of the catalogs.
    pub catalog_slot: Option<String>,
    /// The dead rows of the catalogs that grow with each change of a definition, and of temporary
    /// tables.
    pub dead_catalog_rows: u64,
    /// Their live rows.
    pub live_catalog_rows: u64,
}

/// A host's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockFacts {
    /// How far it is ahead of the clock of the machine that runs the survey, in milliseconds;
    /// negative when it is behind.
    pub ahead_ms: i64,
    /// The error of that in milliseconds, at most: half a round trip.
    pub within_ms: i64,
    /// The host's time when it was read.
    pub now: Timestamp,
    /// The shards that the host owns, with the milliseconds by which their IDs are ahead of the
    /// host's clock; negative, as is usual, if they are behind.
    pub ids_ahead_ms: BTreeMap<ShardId, i64>,
    /// The shards that the host owns and in which the sequences of IDs have never been called: they
    /// make no ID.
    pub ids_unset: BTreeSet<ShardId>,
}

/// The server, and the rights of the role that was used; or of the owner, if the role is a monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// `server_version_num`: 150004 is 15.4.
    pub version: i32,
    /// The role that was used.
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
    /// Whether the role may make replication slots, as far as the catalogs show.
    pub may_replicate: bool,
    /// Whether shards can leave the server while they are open: its WAL can be decoded.
    pub can_decode: bool,
    /// How many locks on objects the server has room for, all connections together.
    pub lock_slots: i64,
    /// Whether no commit ends, because too few synchronous standbys stream.
    pub commits_wait: bool,
    /// The role that was used, if it is a monitor. The rights are then those of the control
    /// schema's owner.
    pub watcher: Option<String>,
}

/// What the control schema of a host holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControlFacts {
    /// The control migrations that were run, by version.
    pub migrations: Vec<RecordedControl>,
    /// What was recorded about the cluster; `None` only if the table was emptied by hand.
    pub cluster: Option<RecordedCluster>,
    /// The schema of all shards, on an unsharded host. `shards` has a row for each of them then, as
    /// the host answers for it.
    pub whole: Option<WholeRow>,
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
    /// The shards that left and cannot be taken back although their old copies are kept, with the
    /// reason.
    pub lost_rollbacks: BTreeMap<ShardId, String>,
    /// The shards that left and can be taken back.
    pub open_rollbacks: BTreeMap<ShardId, OpenRollback>,
    /// The shards with old copies that are kept, from moves that may not have copied everything.
    pub audits: Vec<KeptAudit>,
    /// What moves have created here and must be dropped some day.
    pub ledger: Vec<LedgerRow>,
    /// Tables of shards served here that still have a replica identity that a move lent them,
    /// although no move needs it any longer; empty if the control schema is older.
    pub still_lent: BTreeSet<(ShardId, String)>,
    /// What the host has recorded about the cluster; empty if the control schema is older than
    /// that.
    pub known: Record,
    /// For shards with a move that is at work or has stopped halfway: that move; empty if the
    /// control schema is older.
    pub open_moves: BTreeMap<ShardId, OpenMove>,
    /// The indexes of the shards here that are not valid.
    pub(in crate::schema) invalid_indexes: BTreeSet<(ShardId, String)>,
    /// The objects of the control schema, if they were read.
    pub(in crate::schema) installed: Option<InstalledObjects>,
    /// What its tables are made of.
    pub(in crate::schema) shape: Option<Shape>,
    /// The roles of routers.
    pub(in crate::schema) routers: Routers,
    /// The roles that only watch.
    pub(in crate::schema) monitors: Monitors,
    /// Locks of ours that a foreign role holds.
    pub(in crate::schema) foreign_locks: Vec<Foreign>,
}

impl ControlFacts {
    /// The migrations of each shard that has any.
    pub(in crate::schema) fn migrations_by_shard(&self) -> BTreeMap<ShardId, &[RecordedMigration]> {
        let mut by_shard: BTreeMap<ShardId, &[RecordedMigration]> = BTreeMap::new();
        for set in &self.applied {
            by_shard.extend(
                set.shards
                    .iter()
                    .map(|shard| (*shard, set.migrations.as_slice())),
            );
        }
        by_shard
    }
}

/// The shards of a host with schemas that contain the same, written as `table photos`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MadeSet {
    /// What there is.
    pub objects: BTreeSet<String>,
    /// In which shards.
    pub shards: Vec<ShardId>,
}

/// A host's record of the cluster: every host that has been bootstrapped, and the shards that each
/// had.
pub type Record = BTreeMap<HostName, BTreeMap<ShardId, ShardEpoch>>;

/// How a shard that left can be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRollback {
    /// The move that would be taken back.
    pub id: Uuid,
    /// Where the shard is.
    pub target: HostName,
    /// The slot there from which its old copy takes changes.
    pub slot: String,
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
    /// Since when a mover works on it, by the host's clock; `None`: its lease is not renewed.
    pub since: Option<Timestamp>,
}

impl std::fmt::Display for OpenMove {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.since {
            Some(since) => write!(
                f,
                "the move {} by {} since {since:.0}",
                self.id, self.holder
            ),
            None => write!(
                f,
                "the move {}, on which no command works ({} did)",
                self.id, self.holder
            ),
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
    /// How a key becomes a shard, [`crate::Layout::recorded_key`].
    pub key_kind: String,
    /// IDs below it are older than the shards.
    pub legacy_below: i64,
}

/// The row of `pgshard.whole`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeRow {
    /// The schema with the rows of all shards.
    pub schema: String,
    /// Whether it is there.
    pub exists: bool,
    /// Since which epoch the host owns the shards.
    pub epoch: ShardEpoch,
    /// The sequence of a primary key there that has come furthest, and the last ID that it made;
    /// read with the clocks, where that takes no time.
    pub last_id: Option<(String, i64)>,
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
    /// How long the fence is still valid, in milliseconds by the host's clock; negative if its
    /// mover is late.
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

/// A shard that left in a move that was not audited, or differs.
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
    /// What was not compared, and why; empty where an audit was broken off.
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
    /// The phase of that move in the journal of this host; `None` where the journal is another
    /// host's.
    pub phase: Option<String>,
}

impl FactsError {
    /// The state of the host that could not be read.
    pub fn host_state(&self) -> HostState {
        match self {
            FactsError::Unreachable { source } => source.host_state(),
            FactsError::Query { source, .. } => HostState::of_query(source),
            FactsError::NotOwner { .. }
            | FactsError::Lacking { .. }
            | FactsError::Unreadable { .. } => HostState::AnswersWithError,
        }
    }
}

/// The error when the facts of a host cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FactsError {
    /// There is no connection.
    #[error("it {}", source.host_state())]
    Unreachable {
        /// Why not.
        #[source]
        source: ConnectError,
    },
    /// The control schema belongs to another role, and the role that was used is no monitor either.
    #[error("its control schema belongs to the role {owner}, not to {role}")]
    NotOwner {
        /// The role that owns it.
        owner: String,
        /// The role that was used.
        role: String,
    },
    /// A query failed.
    #[error("it does not answer a question about its {what}")]
    Query {
        /// `server`, `control schema`, `clock`, `catalogs` or `rows`.
        what: &'static str,
        /// The error of the server or the driver.
        #[source]
        source: tokio_postgres::Error,
    },
    /// Tables or columns of the control schema are gone, and what was in them.
    #[error(
        "of its control schema: {}",
        gone.iter().map(|one| one.what.as_str()).collect::<Vec<_>>().join("; ")
    )]
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
