//! A few rounds of several operators at the same time, which `script/test-operators` plays for
//! hours.

#[path = "../operators/case.rs"]
mod case;
#[path = "../operators/deeds.rs"]
mod deeds;
#[path = "../operators/fates.rs"]
mod fates;
#[path = "../operators/judge.rs"]
mod judge;
#[path = "../operators/operator.rs"]
mod operator;
#[path = "../operators/round.rs"]
mod round;
#[path = "../operators/settle.rs"]
mod settle;
#[path = "../operators/state.rs"]
mod state;
#[path = "../operators/writers.rs"]
mod writers;

use crate::support;

use case::Case;
use round::Round;

on_each_version! {
    /// Whatever operators do at the same time, no row is lost, and a careful one brings all to its
    /// end.
    async fn rounds_of_operators_lose_nothing(version) {
        let case = Case::of(u64::from(version), version);
        Round::play(Case { deeds: 5, ..case }).await;
    }
}
