//! What every test with servers needs.

mod cluster;
#[macro_use]
mod versions;

#[allow(unused_imports, reason = "support for all modules, whichever of them are there")]
pub(crate) use cluster::{TestCluster, connect};
