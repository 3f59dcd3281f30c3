//! Processes that claim few values for few keys, round after round. See
//! `script/test-lookups --help`.
//!
//! What a round that fails reports:
//!
//! | word | meaning |
//! | --- | --- |
//! | `double` | one value has two committed rows |
//! | `programme` | one table with a UNIQUE index refuses the committed writes, or has other rows after them |
//! | `untrue` | a call reported that it is committed or that nothing has run, and it is not so |
//! | `entry` | `find` does not lead to a row |
//! | `newcomer` | a value of no key could not be claimed, or one of a key could |
//! | `error` | a call failed with an error that it may not have |
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "what the tests share is more than this needs"
)]

mod case;
mod fates;
mod introduce;
mod judge;
mod longest;
mod notes;
mod round;
#[path = "../failover/rounds.rs"]
mod rounds;
#[path = "../rows/words.rs"]
mod words;
mod work;

#[macro_use]
#[path = "../it/support/mod.rs"]
mod support;

use std::process::ExitCode;

use case::Case;
use round::Round;

const HELP: &str = "script/test-lookups [--seed S] [--minutes M] [--rounds N] [--version V] \
    [--keep-going]

Each seed is a round: eight processes claim, change and delete few values of few keys, while they \
are stopped or killed,
their connections are lost, and shards move and are rolled back. Then the committed writes are \
repeated on one table with
UNIQUE indexes. In every third round the look-ups are introduced: there are rows already, and half \
of the processes do
not claim until the look-ups enforce. Rounds go on from seed to seed, on 15 and 18 in turn where \
no version is named, until the minutes or the
rounds are over. A round that fails prints what happened and the words that play it again.";

fn main() -> ExitCode {
    if let Some(order) = work::order() {
        work::work(order);
        return ExitCode::SUCCESS;
    }
    rounds::play(HELP, Case::of, Round::play)
}
