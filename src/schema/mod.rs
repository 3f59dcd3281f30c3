//! The schemas on the hosts: the control schema ([`control`]), the shards' own
//! ([`bootstrap`](mod@bootstrap), [`Migrations`], [`migrate`](mod@migrate)), and what is there
//! compared with what should be ([`survey`], [`check`], [`rebuild_map`]).
//!
//! Invariant: nothing here makes a shard a second time. A shard of which any host knows anything is
//! created nowhere, whatever the map says, and none is created while a host's word is missing.

mod apart;
pub mod backfill;
mod batch;
pub mod bootstrap;
pub(crate) mod catalog;
mod check;
mod clock;
mod cluster;
mod compare;
mod contents;
mod damage;
mod dump;
mod exposed;
mod facts;
mod fault;
mod finding;
pub(crate) mod fingerprint;
mod forget;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod identity;
mod install;
mod known;
mod load;
pub(crate) mod lock;
mod made;
mod measure;
pub mod migrate;
mod migrations;
mod monitors;
mod orphans;
mod own;
mod plan;
mod rebuild;
mod redirect;
mod refusal;
mod remedy;
pub(crate) mod rights;
mod script;
mod session;
mod settings;
mod shape;
mod sources;
mod status;
mod steps;
mod streams;
mod survey;
#[cfg(test)]
pub(crate) mod tables;
pub mod top;

pub use backfill::backfill;
pub use bootstrap::bootstrap;
pub use catalog::{Error as CatalogError, Namespace};
pub use check::{check, check_without_map};
pub use clock::ClockFacts;
pub use cluster::Cluster;
pub(crate) use compare::made_alike;
pub use compare::{DefinitionSurvey, Definitions, compare, definitions};
pub use contents::{Contents, RowRules, Shelf, contents};
pub use exposed::exposed;
pub use facts::{
    AppliedSet, Attempt, ControlFacts, FactsError, HostFacts, IncomingRow, KeptAudit, LedgerRow,
    OfMoves, OpenMove, OpenWay, RecordedCluster, RecordedControl, RecordedMigration, ServerFacts,
    ShardRow, ShardState, Survey,
};
pub use fault::{HostFault, ShardFault};
pub(crate) use finding::Findings;
pub use finding::{Finding, Severity};
pub use forget::{Lost, forget, lost_on};
pub use identity::{AcceptError, Accepted, Identities, RecordError, accept, identities};
pub use known::Record;
pub use load::{HostLoad, SlotLoad, host_load};
pub use made::{MadeSet, RESTORE, lacking_on};
pub use measure::{Measure, Sizes, measure};
pub use migrate::migrate;
pub use migrations::{Drift, Migration, MigrationMistake, Migrations, MigrationsError};
pub use monitors::{Writer, writer};
pub use rebuild::{Rebuilt, map_of_hosts, rebuild_map};
pub use refusal::restore;
pub use rights::{Grantor, Grants, Purpose, Service, rights, shard_migration};
pub(crate) use settings::{COMMITS_WAIT, START_A_STANDBY};
pub use shape::Gone;
pub use sources::sources;
pub use status::{HostStatus, Surroundings, host_status, surroundings};
pub use streams::{Slot, StreamReader, Streams, streams};
pub use survey::{
    host_facts, survey, survey_with_clocks, watched_facts, watched_facts_with_clocks,
};

/// Our own SQL: that of the control schema, and of each shard.
#[cfg(feature = "dev")]
pub(crate) fn texts() -> impl Iterator<Item = &'static str> {
    steps::steps().map(|(_, text)| text).chain(own::texts())
}

/// The control schema of one host: installed, upgraded, and compared with the config.
pub mod control {
    pub use super::cluster::Cluster;
    pub use super::install::{ControlError, install};
    pub(crate) use super::refusal::shards_named;
    pub use super::refusal::{Refusal, differences, restore};
    pub use super::steps::VERSION;
}
