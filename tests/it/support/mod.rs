//! What every test with servers needs.

mod audit;
mod backup;
mod cluster;
mod control;
pub(crate) mod faults;
mod frozen;
mod rounds;
pub(crate) mod soak;
mod standby;
#[macro_use]
mod versions;
mod world;
mod writers;

pub(crate) use cluster::{TestCluster, connect};
pub(crate) use control::control;
pub(crate) use frozen::Frozen;
pub(crate) use rounds::rounds;
pub(crate) use world::{Ran, TABLES, World, go_on, in_turn, is_long, lines, never_stopped, other, share, stopped};
pub(crate) use writers::Writers;
