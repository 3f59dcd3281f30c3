//! Which differences are ignored when the definitions of a shard's two copies are compared after a
//! move: those that the move has still to make after the open, and those that a server has half
//! done.
//!
//! Invariant: only a difference that is about to go away, or that the plan has reported, is
//! ignored. What else a shard has lost is reported.

use std::collections::BTreeSet;

use crate::schema::catalog::fingerprint::{Difference, differences};
use crate::schema::catalog::{Address, Constraint, ConstraintKind, Facts, Index};

/// Where the definitions of an old copy and of the open shard differ, without what is still to
/// come.
pub(crate) fn drift(ours: &Facts, theirs: &Facts) -> Vec<Difference> {
    let keys: BTreeSet<(&str, &str)> = [ours, theirs]
        .into_iter()
        .flat_map(keys_of_partitioned)
        .collect();
    let may_lack: BTreeSet<String> = [(ours, theirs), (theirs, ours)]
        .into_iter()
        .flat_map(|(one, other)| {
            late_keys(one, &keys)
                .into_iter()
                .chain(unfinished_indexes(one, other))
        })
        .collect();
    let mut found = differences(ours, theirs);
    // A foreign key is validated after the open.
    found.retain(|one| {
        proved(&one.left) != proved(&one.right)
            && !(may_lack.contains(&one.object) && is_on_one_side(one))
    });
    let version = ours.version.min(theirs.version);
    found.retain(|one| !is_not_kept(one, version));
    found
}

/// The foreign keys of partitioned tables: the table, and the key's definition.
fn keys_of_partitioned(facts: &Facts) -> impl Iterator<Item = (&str, &str)> {
    let keys = facts
        .constraints
        .iter()
        .filter(|key| key.kind == ConstraintKind::ForeignKey);
    keys.filter_map(|key| {
        let table = facts
            .relation(key.relation)
            .filter(|table| table.partition_key.is_some())?;
        Some((table.name.as_str(), says(key)))
    })
}

/// These keys, and those that partitions have of them. Before PostgreSQL 18 they are made on each
/// partition, and then on the whole table, which adopts them. The move does not end without that.
fn late_keys(facts: &Facts, keys: &BTreeSet<(&str, &str)>) -> Vec<String> {
    let of_partitioned = facts.constraints.iter().filter(|key| {
        let table = facts.relation(key.relation);
        key.kind == ConstraintKind::ForeignKey
            && std::iter::successors(table, |table| {
                facts.relation(table.partition.as_ref()?.parent)
            })
            .any(|table| keys.contains(&(table.name.as_str(), says(key))))
    });
    plain_names(
        facts,
        of_partitioned.map(|key| Address::new("pg_constraint", key.oid)),
    )
}

/// A constraint's definition, whether it is validated or not.
fn says(key: &Constraint) -> &str {
    key.definition.trim_end_matches(NOT_VALID)
}

/// Indexes of ordinary tables that are not valid, and that the other side does not have. There was
/// none at the fence, or the shard could not have been moved. So each belongs to a REINDEX
/// CONCURRENTLY or CREATE INDEX CONCURRENTLY that has begun since and has not finished. On the old
/// copy too: such a command keeps a list of the tables' OIDs from before the fence.
fn unfinished_indexes(facts: &Facts, other: &Facts) -> Vec<String> {
    let is_ordinary = |index: &&Index| {
        facts
            .relation(index.relation)
            .is_some_and(|table| table.partition_key.is_none())
    };
    let is_new = |index: &&Index| !other.indexes.iter().any(|known| known.name == index.name);
    let unfinished = facts
        .indexes
        .iter()
        .filter(|index| !index.valid)
        .filter(is_ordinary)
        .filter(is_new);
    plain_names(
        facts,
        unfinished.map(|index| Address::new("pg_class", index.oid)),
    )
}

/// The names that differences use for objects.
fn plain_names(facts: &Facts, objects: impl Iterator<Item = Address>) -> Vec<String> {
    let names = facts.names();
    objects
        .filter_map(|object| names.get(&object).map(|name| name.plain.clone()))
        .collect()
}

/// Whether the difference is in the name of a NOT NULL that the older of both versions does not
/// keep. The plan has reported that.
fn is_not_kept(one: &Difference, version: u32) -> bool {
    let since = if one.object.starts_with("type ") {
        170_000
    } else {
        180_000
    };
    one.property.ends_with("name of NOT NULL") && version < since
}

/// Whether only one side has the object.
fn is_on_one_side(one: &Difference) -> bool {
    one.left.is_none() || one.right.is_none()
}

const NOT_VALID: &str = " NOT VALID";

fn proved(text: &Option<String>) -> Option<&str> {
    text.as_deref().map(|text| text.trim_end_matches(NOT_VALID))
}
