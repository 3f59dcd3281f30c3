//! Random schema objects are moved, and must behave as before. See `script/test-objects --help`.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "what the tests share is more than this needs"
)]

mod case;
mod generator;
mod recipes;
mod round;
#[path = "../failover/rounds.rs"]
mod rounds;
#[path = "../rows/words.rs"]
mod words;

#[macro_use]
#[path = "../it/support/mod.rs"]
mod support;

use std::process::ExitCode;

use case::Case;

const HELP: &str = "script/test-objects [--seed S] [--minutes M] [--rounds N] [--version V] \
    [--keep-going]

Each seed is a round: two hosts, and in each of their shards random objects of all kinds, over the \
types of extensions.
Each shard is moved to the other host. What its objects answer there is compared with what they \
answered before. A move
may be refused by its plan, if that names the object. --version is that of the first host; 15 and \
18 in turn if none is
named. A round that fails prints what made the object and the words that play it again;
PGSHARD_OBJECTS_TELL=1 prints each refusal.";

fn main() -> ExitCode {
    rounds::play(HELP, Case::of, round::play)
}
