//! The schemas on the hosts: the control schema, the shards' own, and the comparison of both with
//! what they should be.
//!
//! Each room is a folder, uses only those above it in this table, and re-exports what others may
//! use:
//!
//! | room | |
//! | --- | --- |
//! | [`control`] | the schema `pgshard` of a host: its SQL, its rights, its locks |
//! | `survey` | reads the state of hosts: servers, control schemas, load ([`survey`]) |
//! | `catalog` | reads what a schema consists of, and its fingerprint |
//! | `fleet` | changes every shard: [`bootstrap`](mod@bootstrap), [`migrate`](mod@migrate), [`backfill`](mod@backfill) |
//! | `check` | compares what is there with what should be: [`check`], [`compare`], [`rebuild_map`] |

pub(crate) mod catalog;
mod check;
pub mod control;
mod fleet;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod survey;
#[cfg(test)]
pub(crate) mod tables;

pub use catalog::{Error as CatalogError, Namespace};
pub use check::{
    AcceptError, Accepted, AwaitError, Contents, DefinitionSurvey, Definitions, Finding,
    HostShards, Identities, Rebuilt, RecordError, RowRules, Severity, accept, accept_in_advance,
    check, check_without_map, compare, contents, definitions, exposed, identities, map_of_hosts,
    rebuild_map, sources,
};
pub(crate) use check::{Findings, START_A_STANDBY, made_alike};
pub(crate) use control::lock;
pub use control::{
    Cluster, Gone, Grantor, Grants, PrivilegedRole, Purpose, RecordedMigration, Service,
    UnshardedHost, privileged_role, rights, shard_migration,
};
pub use fleet::{
    ControlError, Drift, HostFault, Migration, MigrationMistake, Migrations, MigrationsError,
    MissingShards, ShardFault, backfill, bootstrap, forget, install, migrate, missing_shards,
};
pub use survey::{
    AppliedSet, Attempt, BETWEEN_LOOKS, ClockFacts, ControlFacts, DatabaseEnvironment, FactsError,
    HostFacts, HostLoad, HostStatus, IncomingRow, KeptAudit, LOOKS, LOOKS_MAX, LedgerRow, MadeSet,
    Measure, OfMoves, OpenMove, OpenRollback, RESTORE, Record, RecordedCluster, RecordedControl,
    Refusal, ServerFacts, ShardRow, ShardState, Sizes, Slot, SlotLoad, StreamReader, Streams,
    Survey, WholeRow, database_environment, differences, host_facts, host_load, host_status,
    measure, missing_objects, read_until_settled, restore, streams, survey, survey_with_clocks,
    top, watched_facts, watched_facts_with_clocks,
};
pub(crate) use survey::{COMMITS_WAIT, shards_named};

/// Our own SQL: that of the control schema, and of each shard.
#[cfg(feature = "dev")]
pub(crate) fn texts() -> impl Iterator<Item = &'static str> {
    control::steps::steps()
        .map(|(_, text)| text)
        .chain(control::id_functions::texts())
}
