//! A short round of eight processes, which `script/test-lookups` plays for hours.
#![allow(dead_code, reason = "the rounds' parts are those of tests/lookups")]

#[path = "../../lookups/case.rs"]
mod case;
#[path = "../../lookups/fates.rs"]
mod fates;
#[path = "../../lookups/introduce.rs"]
mod introduce;
#[path = "../../lookups/judge.rs"]
mod judge;
#[path = "../../lookups/longest.rs"]
mod longest;
#[path = "../../lookups/notes.rs"]
mod notes;
#[path = "../../lookups/round.rs"]
mod round;
#[path = "../../lookups/work.rs"]
mod work;

use std::time::Duration;

use crate::support;

use case::{Case, Story};
use round::Round;

/// What the rounds start as a process of the application. Without an order there is nothing to do.
#[test]
fn process() {
    if let Some(order) = work::order() {
        work::work(order);
    }
}

on_each_version! {
    /// Whatever happens to processes, connections and shards, what is committed is what one table
    /// with UNIQUE indexes could have.
    async fn values_of_eight_processes_are_unique(version) {
        let case = Case::of(u64::from(version), version);
        let (story, long) = (Story::Claimed, Duration::from_secs(12));
        Round::play(Case { story, long, ..case }).await;
    }

    /// Look-ups that are introduced while half of the processes write without claims become
    /// complete, and then every row is found and no value has two.
    async fn look_ups_of_a_table_in_use_become_complete(version) {
        let case = Case::of(u64::from(version), version);
        let (story, long) = (Story::Introduced, Duration::from_secs(16));
        Round::play(Case { story, long, ..case }).await;
    }
}
