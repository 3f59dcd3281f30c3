//! Tests with real servers of parts that no user of the library can reach. Above everything, as they start
//! servers with [`dev`](crate::dev); compiled for tests only. What can be tried through the library's own surface is in
//! `tests/it`.

// One macro makes a test on each version, here and in `tests/it`.
#[macro_use]
#[path = "../../tests/it/support/versions.rs"]
mod versions;

mod catalog;
mod chunk;
mod decoded;
mod followed;
mod pair;
mod servers;
mod stream;
mod tls;
mod writers;
