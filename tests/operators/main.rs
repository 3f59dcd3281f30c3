//! Several operators at the same time, round after round. See `script/test-operators --help`.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "what the tests share is more than this needs"
)]

mod case;
mod deeds;
mod fates;
mod judge;
mod operator;
mod round;
#[path = "../failover/rounds.rs"]
mod rounds;
mod settle;
mod state;
#[path = "../rows/words.rs"]
mod words;
mod writers;

#[macro_use]
#[path = "../it/support/mod.rs"]
mod support;

use std::process::ExitCode;

use case::Case;
use round::Round;

const HELP: &str = "script/test-operators [--seed S] [--minutes M] [--rounds N] [--version V] \
    [--keep-going]

Each seed is a round: some hosts with writers, and two to four operators who run commands at the \
same time, each of
them a process, some of which are killed, stopped or interrupted. Then everything is settled as a \
careful operator
would, and the hosts are looked at. Rounds go on from seed to seed, on 15 and 18 in turn where no \
version is named,
until the minutes or the rounds are over. A round that fails prints its story and the words that \
play it again;
PGSHARD_OPERATORS_TELL=1 prints the story of each as it goes.";

fn main() -> ExitCode {
    rounds::play(HELP, Case::of, Round::play)
}
