//! Trials: tests with real servers of parts that no user of the library can reach. Above everything, as they start
//! servers with [`dev`](crate::dev); compiled for tests only. What can be tried through the library's own surface is in
//! `tests/it`.

mod chunk;
mod decoded;
mod pair;
mod writers;
