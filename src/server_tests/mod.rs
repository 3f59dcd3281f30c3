//! Tests with real servers of parts that no user of the library can reach. This is the topmost
//! module, because it starts servers with [`dev`](crate::dev). It is compiled for tests only. What
//! can be tested through the library's public API is in `tests/it`.

// One macro makes a test for each version, here and in `tests/it`.
#[macro_use]
#[path = "../../tests/it/support/versions.rs"]
mod versions;

mod activity;
mod barrier;
mod catalog;
mod chunk;
mod decoded;
mod digest;
mod followed;
mod libpq;
mod pair;
mod servers;
mod spare;
mod stream;
mod tls;
mod tls_world;
mod writers;
