//! How small models are explored.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// Explores everything: every rule is kept, and everything that must be possible happens.
pub(crate) fn keeps_its_rules<M>(what: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Send + Sync + Clone + PartialEq,
    M::Action: Debug + Send + Sync + Clone + PartialEq,
{
    let checker = model.checker().spawn_bfs().join();
    assert!(checker.unique_state_count() > 10, "{what}: nothing happens");
    checker.assert_properties();
}

/// Whether a world is found in which the rule is broken.
pub(crate) fn breaks<M>(model: M, rule: &'static str) -> bool
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Send + Sync + Clone + PartialEq,
    M::Action: Send + Sync + Clone + PartialEq,
{
    let first = HasDiscoveries::AnyOf([rule].into());
    model
        .checker()
        .finish_when(first)
        .spawn_bfs()
        .join()
        .discovery(rule)
        .is_some()
}
