//! What applications write (calls as they come to mind, streams, other crates), and the errors that
//! they get. It is a small binary of its own, since it is the one to run after a change of the
//! library's API.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "what the tests share is more than these need"
)]

#[path = "../it/router/by_hand.rs"]
mod by_hand;
#[macro_use]
#[path = "../it/support/mod.rs"]
mod support;

mod natural;
mod other_crates;
mod streams;
mod truth;

const INSERT: &str = "INSERT INTO {shard}.photos (id, title) VALUES ($1, $2)";
