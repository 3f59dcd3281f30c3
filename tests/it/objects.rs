//! A few rounds of random schema objects, which `script/test-objects` plays for hours.

#[path = "../objects/case.rs"]
mod case;
#[path = "../objects/generator.rs"]
mod generator;
#[path = "../objects/recipes.rs"]
mod recipes;
#[path = "../objects/round.rs"]
mod round;

use crate::support;

use case::Case;

on_each_version! {
    /// What is moved behaves as before, and what would not is refused by name.
    async fn a_moved_object_behaves_as_before(version) {
        let case = Case::of(7001, version);
        round::play(Case { shards: 8, ..case }).await;
    }
}
