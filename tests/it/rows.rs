//! A few random rounds, each for a pair of versions; `script/test-rows` plays them for hours.
#![allow(dead_code, reason = "the rounds' parts are those of tests/rows")]

#[path = "../rows/alter.rs"]
mod alter;
#[path = "../rows/compare.rs"]
mod compare;
#[path = "../rows/definition.rs"]
mod definition;
#[path = "../rows/fates.rs"]
mod fates;
#[path = "../rows/overseer.rs"]
mod overseer;
#[path = "../rows/reader.rs"]
mod reader;
#[path = "../rows/round.rs"]
mod round;
#[path = "../rows/schema.rs"]
mod schema;
#[path = "../rows/state.rs"]
mod state;
#[path = "../rows/statements.rs"]
mod statements;
#[path = "../rows/values.rs"]
mod values;
#[path = "../rows/work.rs"]
mod work;

use std::collections::BTreeSet;

use crate::support;

use state::Case;

/// Three moves of a round of this seed lose nothing, and leave nothing behind.
async fn plays(seed: u64, versions: [u32; 2]) {
    let case = Case {
        seed,
        versions,
        moves: 3,
        sessions: None,
        tables: None,
        without: BTreeSet::new(),
    };
    let outcome = round::round(&case).await;
    if let Some(failure) = outcome.failure {
        panic!(
            "{}\n{}: {}\nscript/test-rows {}",
            outcome.story.join("\n"),
            failure.kind,
            failure.text,
            case.words()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_15_to_18() {
    plays(10004, [15, 18]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_18_to_15() {
    plays(10010, [18, 15]).await;
}

on_each_version! {
    /// Both hosts of one version.
    async fn rows_survive_between_equal_versions(version) {
        plays(
            if version == 15 { 11003 } else { 11005 },
            [version, version],
        )
        .await;
    }
}
