//! What every test with servers needs.

mod audit;
mod cluster;
mod control;
#[allow(dead_code, reason = "support for all modules, whichever of them are there")]
pub(crate) mod faults;
#[allow(dead_code, reason = "support for all modules, whichever of them are there")]
pub(crate) mod soak;
mod standby;
#[macro_use]
mod versions;
mod world;
mod writers;

#[allow(unused_imports, reason = "support for all modules, whichever of them are there")]
pub(crate) use cluster::{TestCluster, connect};
#[allow(unused_imports, reason = "support for all modules, whichever of them are there")]
pub(crate) use control::control;
#[allow(unused_imports, reason = "support for all modules, whichever of them are there")]
pub(crate) use world::{Ran, TABLES, World, go_on, lines, never_stopped, other, stopped};
#[allow(unused_imports, reason = "support for all modules, whichever of them are there")]
pub(crate) use writers::{Notes, Writers};
