//! A few random rounds of calls over servers that fail; `script/test-library` plays any number of
//! them.
#![allow(dead_code, reason = "the rounds' parts are those of tests/library")]

#[path = "../../library/caller.rs"]
mod caller;
#[path = "../../library/case.rs"]
mod case;
#[path = "../../library/fates.rs"]
mod fates;
#[path = "../../library/limits.rs"]
mod limits;
#[path = "../../library/mistakes.rs"]
mod mistakes;
#[path = "../../library/round.rs"]
mod round;

use super::{by_hand, pooler, proxy};

use case::Case;

async fn plays(seed: u64, version: u32, without: &[&str]) {
    let without = without.iter().map(|kind| (*kind).to_owned()).collect();
    let case = Case {
        seed,
        version,
        callers: 4,
        steps: 20,
        without,
    };
    let outcome = round::round(&case).await;
    if let Some(failure) = outcome.failure {
        let story = outcome.story.join("\n");
        panic!(
            "{story}\n{}: {}\nscript/test-library {}",
            failure.kind,
            failure.text,
            case.words()
        );
    }
    eprintln!("{:?} in {:.1} s", outcome.counts, outcome.seconds);
}

on_each_version! {
    /// What happens to the servers is noticed immediately, so that connections can be counted and
    /// time be judged.
    async fn with_moves_and_locks(version) {
        plays(1, version, &["silent", "restart", "failover"]).await;
    }

    /// Everything.
    async fn mutual_trust_with_everything_on(version) {
        plays(2, version, &[]).await;
    }
}
