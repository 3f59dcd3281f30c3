//! The tests that need real PostgreSQL servers, in one binary so that they are linked once. Each
//! module tests one part.
//!
//! `on_each_version!` runs a test on every major version that we test; [`support::TestCluster`]
//! starts servers for it.

#[macro_use]
mod support;

mod balance;
mod bootstrap;
mod cli;
mod console;
mod contents;
mod damaged;
mod dev;
mod drift;
mod failover;
mod fence;
mod hostile;
mod hosts;
mod ids;
mod import;
mod keys;
mod lookups;
mod manual;
mod migrate;
mod moves;
mod objects;
mod operators;
#[path = "../../examples/photo_app.rs"]
#[allow(dead_code, reason = "its main is for the example; its tests run here")]
mod photo_app;
mod primaries;
mod races;
mod recover;
mod remembered;
mod restored;
mod rights;
mod router;
mod rows;
mod runbooks;
mod services;
mod states;
mod store;
mod strangers;
mod testing;
mod tickets;
mod unsharded;
mod watched;
