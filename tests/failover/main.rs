//! Fail-overs in the middle of moves, round after round. See `script/test-failover --help`.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "what the tests share is more than this needs"
)]

mod case;
#[path = "../it/router/pooler.rs"]
mod pooler;
mod round;
mod rounds;
#[path = "../rows/words.rs"]
mod words;
mod writers;

#[macro_use]
#[path = "../it/support/mod.rs"]
mod support;

use std::process::ExitCode;

use case::Case;
use round::Round;

const HELP: &str = "script/test-failover [--seed S] [--minutes M] [--rounds N] [--version V] \
    [--keep-going]

Each seed is a round: a phase of a move, which hosts fail over in it, what their standbys lack, \
what becomes of the
mover and of the former primaries, whether routers go through PgBouncer, and whether standbys \
synchronize slots. Rounds
go on from seed to seed, on 15 and 18 in turn where no version is named, until the minutes or the \
rounds are over. Seeds from 1000000 on are clean switchovers, one for each phase:
--seed 1000000 --rounds 25 --version 18.
A round that fails prints its story and the words that play it again.";

fn main() -> ExitCode {
    rounds::play(HELP, Case::of, Round::play)
}
