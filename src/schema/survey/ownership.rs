//! Who serves a shard, by what the hosts state about it. Pure.
//!
//! Invariant: an owner is the only host that serves the shard, and no host has given the shard away
//! at a later epoch.

use std::cmp::Reverse;

use super::facts::{ShardRow, ShardState};
use crate::map::{HostName, ShardEpoch};

/// A host's statement about the owner of a shard. The later one is the greater, at the same epoch
/// the owner's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::schema) struct Statement<'a> {
    /// Since when the owner has the shard.
    pub(in crate::schema) epoch: ShardEpoch,
    /// Whether it is the owner's own row. Otherwise it is the row of a host that gave the shard
    /// away, or a record.
    pub(in crate::schema) first_hand: bool,
    /// The host that states it.
    pub(in crate::schema) by: &'a HostName,
    pub(in crate::schema) owner: &'a HostName,
}

impl<'a> Statement<'a> {
    /// What a host states by its row. A row `moved` without a peer states nothing.
    pub(in crate::schema) fn of(by: &'a HostName, row: &'a ShardRow) -> Option<Statement<'a>> {
        let first_hand = row.state.is_owner();
        let owner = match row.state {
            ShardState::Serving | ShardState::Fenced => by,
            ShardState::Moved => row.peer.as_ref()?,
        };
        Some(Statement {
            epoch: row.epoch,
            first_hand,
            by,
            owner,
        })
    }
}

/// Who serves a shard, by all statements about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::schema) enum Ownership<'a> {
    /// One host serves it, and no other has given it away later.
    Owner(Statement<'a>),
    /// No host serves it. This is the last that was given it.
    InTransit(Statement<'a>),
    /// Two hosts serve it. The first has the later epoch.
    ServedTwice(Statement<'a>, Statement<'a>),
    /// One host serves it, at an epoch before another gave it away.
    WentBack {
        owner: Statement<'a>,
        given: Statement<'a>,
    },
    /// No host states anything.
    Unknown,
}

/// Weighs the statements about one shard.
pub(in crate::schema) fn settle<'a>(
    statements: impl IntoIterator<Item = Statement<'a>>,
) -> Ownership<'a> {
    let (mut owners, given): (Vec<_>, Vec<_>) = statements
        .into_iter()
        .partition(|statement| statement.first_hand);
    owners.sort_unstable_by_key(|own| (Reverse(own.epoch), own.owner));
    match (&owners[..], given.into_iter().max()) {
        ([first, second, ..], _) => Ownership::ServedTwice(*first, *second),
        ([owner], Some(given)) if given.epoch > owner.epoch => Ownership::WentBack {
            owner: *owner,
            given,
        },
        ([owner], _) => Ownership::Owner(*owner),
        ([], Some(given)) => Ownership::InTransit(given),
        ([], None) => Ownership::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schema::tables::{epoch, host, shard, survey_of};

    /// What these hosts state about shard 0.
    fn settled(hosts: &[(&str, &str)]) -> String {
        let survey = survey_of(hosts);
        let rows = survey.iter().filter_map(|(by, facts)| {
            let control = facts.as_ref().ok()?.control.as_ref()?;
            Statement::of(by, control.shards.get(&shard(0))?)
        });
        match settle(rows) {
            Ownership::Owner(own) => format!("{}@{}", own.owner, own.epoch),
            Ownership::InTransit(given) => {
                format!("{} to {}@{}", given.by, given.owner, given.epoch)
            }
            Ownership::ServedTwice(first, second) => {
                let at = |one: Statement<'_>| format!("{}@{}", one.owner, one.epoch);
                format!("{} and {}", at(first), at(second))
            }
            Ownership::WentBack { owner, given } => {
                let at = format!("{}@{}", owner.owner, owner.epoch);
                format!("{at} before {} gave it away at {}", given.by, given.epoch)
            }
            Ownership::Unknown => "unknown".to_owned(),
        }
    }

    #[test]
    fn who_serves_a_shard() {
        for (hosts, expected) in [
            (vec![("db1", "0 serving 1"), ("db2", "")], "db1@1"),
            (vec![("db1", "0 fenced 1 db2")], "db1@1"),
            (
                vec![("db1", "0 moved 2 db2"), ("db2", "0 serving 2")],
                "db2@2",
            ),
            (
                vec![("db1", "0 moved 2 db2"), ("db2", "0 fenced 3 db1")],
                "db2@3",
            ),
            // It was given away, and is open nowhere.
            (vec![("db1", "0 moved 2 db2"), ("db2", "")], "db1 to db2@2"),
            (
                vec![("db1", "0 moved 2 db2"), ("db2", "0 moved 3 db1")],
                "db2 to db1@3",
            ),
            (
                vec![("db1", "0 moved 2 db3"), ("db2", "0 moved 2 db3")],
                "db2 to db3@2",
            ),
            // Hosts contradict each other.
            (
                vec![("db1", "0 serving 1"), ("db2", "0 fenced 3 db1")],
                "db2@3 and db1@1",
            ),
            (
                vec![("db1", "0 serving 2"), ("db2", "0 serving 2")],
                "db1@2 and db2@2",
            ),
            (
                vec![("db1", "0 serving 1"), ("db2", "0 moved 3 db1")],
                "db1@1 before db2 gave it away at 3",
            ),
            (
                vec![("db1", ""), ("db2", "down"), ("db3", "empty")],
                "unknown",
            ),
        ] {
            assert_eq!(settled(&hosts), expected, "{hosts:?}");
        }
    }

    proptest! {
        /// The order in which hosts were read does not count, and an owner is the only host that
        /// serves the shard, at an epoch that no other statement is later than.
        #[test]
        fn an_owner_is_not_contradicted(
            said in prop::collection::vec((1u32..5, any::<bool>(), 0usize..4, 0usize..4), 0..6)
        ) {
            let hosts = ["db0", "db1", "db2", "db3"].map(host);
            let mut said: Vec<Statement<'_>> = said
                .into_iter()
                .map(|(at, first_hand, by, to)| Statement {
                    epoch: epoch(at),
                    first_hand,
                    by: &hosts[by],
                    owner: &hosts[if first_hand { by } else { to }],
                })
                .collect();
            let settled = settle(said.iter().copied());
            if let Ownership::Owner(own) = settled {
                let first_hand = said.iter().filter(|one| one.first_hand);
                prop_assert_eq!(first_hand.collect::<Vec<_>>(), [&own]);
                prop_assert!(said.iter().all(|one| one.epoch <= own.epoch));
            }
            said.reverse();
            prop_assert_eq!(settle(said), settled);
        }
    }
}
