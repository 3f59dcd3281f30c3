//! The schema `pgshard` of a host and the functions of its shards: their SQL, their rights and
//! their locks.
//!
//! The lowest room of [`schema`](crate::schema): it uses none of the others.

mod cluster;
pub(in crate::schema) mod damage;
pub(in crate::schema) mod id_functions;
pub(crate) mod lock;
pub(in crate::schema) mod monitors;
mod recorded;
pub(crate) mod rights;
pub(in crate::schema) mod script;
pub(in crate::schema) mod shape;
pub(in crate::schema) mod steps;

pub use cluster::{Cluster, UnshardedHost};
pub use monitors::{PrivilegedRole, privileged_role};
pub use recorded::RecordedMigration;
pub use rights::{Grantor, Grants, Purpose, Service, rights, shard_migration};
pub use shape::Gone;
pub use steps::VERSION;
