//! Work on every shard of every host: [`bootstrap`](fn@bootstrap) creates the shards,
//! [`migrate`](fn@migrate) changes their schemas, [`backfill`](fn@backfill) changes their rows, and
//! [`forget`] removes the records of shards that are lost.
//!
//! It uses [`control`](crate::schema::control), [`survey`](crate::schema::survey) and
//! `catalog`.
//!
//! Invariant: no shard is created twice. A shard that any host has a record of is not created
//! anywhere, whatever the map has, and none is created while a host cannot be read.

pub mod backfill;
mod batch;
pub mod bootstrap;
mod dump;
pub(in crate::schema) mod fault;
mod forget;
mod install;
pub mod migrate;
pub(in crate::schema) mod migrations;
mod one_by_one;
mod plan;
mod queue;
mod recipe;
mod redirect;
mod report;
pub(in crate::schema) mod session;

pub use backfill::backfill;
pub use bootstrap::bootstrap;
pub use fault::{HostFault, ShardFault};
pub use forget::{MissingShards, forget, missing_shards};
pub use install::{ControlError, install};
pub use migrate::migrate;
pub use migrations::{Drift, Migration, MigrationMistake, Migrations, MigrationsError};
