//! A few rounds of fail-overs in the middle of moves, which `script/test-failover` plays for hours.

#[path = "../failover/case.rs"]
mod case;
#[path = "../failover/round.rs"]
mod round;
#[path = "../failover/writers.rs"]
mod writers;

use crate::support;

use case::Case;
use round::Round;

on_each_version! {
    /// No acknowledged row is lost except those that only a former primary had.
    async fn rounds(version) {
        for seed in if version == 15 { [2, 16] } else { [2, 4] } {
            Round::play(Case::of(seed, version)).await;
        }
    }
}
