//! What a shard's schema should contain and does not: tables, views, sequences and functions, by
//! their names. Pure.
//!
//! There is no record of what a migration creates, and a file can contain anything. But shards that
//! have run the same migrations contain the same: an object that nearly all have and one does not
//! have is gone. What pgshard's own migrations create is known.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::ControlFacts;
use crate::map::HostName;
use crate::schema::control::{RecordedMigration, id_functions};
use crate::shard::ShardId;

/// With fewer shards it is not clear what is usual.
const SHARDS_MIN: usize = 4;

/// The most objects that are named.
const NAMED_MAX: usize = 8;

/// A shard, and what it contains.
type Made<'a> = (&'a HostName, ShardId, &'a BTreeSet<String>);

/// What shards lack, as a clause that follows their schema's name.
pub(in crate::schema) type Lacking<'a> = BTreeMap<(&'a HostName, ShardId), String>;

/// The shards that lack what shards with the same migrations have.
pub(in crate::schema) fn lacking<'a>(
    controls: impl IntoIterator<Item = (&'a HostName, &'a ControlFacts)>,
) -> Lacking<'a> {
    let mut alike: BTreeMap<&[RecordedMigration], Vec<Made<'_>>> = BTreeMap::new();
    for (host, control) in controls {
        let applied = control.migrations_by_shard();
        for set in &control.made {
            for shard in &set.shards {
                let migrations = applied.get(shard).copied().unwrap_or_default();
                alike
                    .entry(migrations)
                    .or_default()
                    .push((host, *shard, &set.objects));
            }
        }
    }
    let mut lacking = Lacking::new();
    for (applied, shards) in alike {
        // Judged once for each set of objects, not once for each of thousands of shards.
        let mut sets: BTreeMap<&BTreeSet<String>, Vec<(&HostName, ShardId)>> = BTreeMap::new();
        for (host, shard, objects) in &shards {
            sets.entry(objects).or_default().push((host, *shard));
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (objects, here) in &sets {
            for object in *objects {
                *counts.entry(object).or_default() += here.len();
            }
        }
        let usual = usual(counts, shards.len());
        for (objects, here) in sets {
            if let Some(what) = verdict(objects, applied, &usual, shards.len()) {
                lacking.extend(here.into_iter().map(|at| (at, what.clone())));
            }
        }
    }
    lacking
}

/// What nearly all of these shards have, and how many. Found once: shards with names of their own
/// are a set each, and to look through all names for each of thousands of sets takes seconds.
fn usual(mut counts: BTreeMap<&str, usize>, all: usize) -> BTreeMap<&str, usize> {
    counts.retain(|_, count| all >= SHARDS_MIN && *count * 4 >= all * 3);
    counts
}

fn verdict(
    objects: &BTreeSet<String>,
    applied: &[RecordedMigration],
    usual: &BTreeMap<&str, usize>,
    all: usize,
) -> Option<String> {
    let ours: Vec<&str> = id_functions::functions(applied)
        .filter(|name| !objects.contains(*name))
        .collect();
    let mut gone: Vec<(&str, usize)> = usual
        .iter()
        .map(|(name, count)| (*name, *count))
        .filter(|(name, _)| !objects.contains(*name))
        .collect();
    // Not all are named, and rows matter most.
    gone.sort_by_key(|(name, _)| !name.starts_with("table "));
    let how = if objects.is_empty() {
        "is empty: it lacks"
    } else {
        "lacks"
    };
    match (gone.as_slice(), ours.as_slice()) {
        ([], []) => None,
        ([], ours) => Some(format!(
            "{how} {}, which pgshard's own migrations made there",
            ours.join(", ")
        )),
        (gone, _) => {
            let mut named: Vec<String> = gone
                .iter()
                .take(NAMED_MAX)
                .map(|(name, _)| (*name).to_owned())
                .collect();
            if gone.len() > NAMED_MAX {
                named.push(format!("and {} more", gone.len() - NAMED_MAX));
            }
            let have = gone
                .iter()
                .map(|(_, count)| *count)
                .min()
                .unwrap_or_default();
            Some(format!(
                "{how} {}, which {have} of {all} shards with the same migrations have",
                named.join(", ")
            ))
        }
    }
}

/// The shards of one host that lack what the others there have, each with what it lacks: a clause
/// that follows the schema's name.
pub fn missing_objects(host: &HostName, control: &ControlFacts) -> BTreeMap<ShardId, String> {
    lacking([(host, control)])
        .into_iter()
        .map(|((_, shard), what)| (shard, what))
        .collect()
}

/// What to do about it.
pub const RESTORE: &str = "stop its writers and restore the schema from a backup, as \
    docs/trouble.md says under \"A shard's tables are gone\"; if it was meant, do the same by a \
    migration in all shards";

#[cfg(test)]
mod tests {
    use super::super::facts::{AppliedSet, MadeSet};
    use super::*;
    use crate::schema::tables::{host, shard};

    fn found(applied: &[&str], sets: &[(&[&str], &[u16])]) -> Vec<String> {
        let shards = |numbers: &[u16]| {
            numbers
                .iter()
                .map(|number| shard(*number))
                .collect::<Vec<_>>()
        };
        let all: Vec<u16> = sets
            .iter()
            .flat_map(|(_, shards)| shards.iter().copied())
            .collect();
        let recorded = |name: &&str| RecordedMigration {
            name: (*name).to_owned(),
            checksum: String::new(),
        };
        let control = ControlFacts {
            applied: vec![AppliedSet {
                migrations: applied.iter().map(recorded).collect(),
                shards: shards(&all),
            }],
            made: sets
                .iter()
                .map(|(objects, here)| MadeSet {
                    objects: objects.iter().map(|object| (*object).to_owned()).collect(),
                    shards: shards(here),
                })
                .collect(),
            ..ControlFacts::default()
        };
        let said = missing_objects(&host("db1"), &control);
        said.into_iter()
            .map(|(shard, what)| format!("{shard} {what}"))
            .collect()
    }

    #[test]
    fn what_nearly_all_have() {
        let (full, half) = (&["table photos", "table users"][..], &["table users"][..]);
        assert_eq!(found(&["0001_a"], &[(full, &[0, 1, 2, 3])]), [""; 0]);
        assert_eq!(
            found(
                &["0001_a"],
                &[
                    (full, &[0, 1, 2, 4, 6, 7, 8, 9, 10]),
                    (half, &[3]),
                    (&[], &[5])
                ]
            ),
            [
                "3 lacks table photos, which 9 of 11 shards with the same migrations have",
                "5 is empty: it lacks table photos, table users, which 9 of 11 shards with the \
                    same migrations have",
            ]
        );
        // Where not all are named, tables are.
        let many: Vec<String> = (0..9)
            .map(|number| format!("function f{number}"))
            .chain(["table z".into()])
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let said = found(&["0001_a"], &[(&many, &[0, 1, 2, 3]), (&[], &[5])]);
        assert!(
            said[0].starts_with("5 is empty: it lacks table z, function f0,"),
            "{said:?}"
        );
        assert!(
            said[0].contains(", function f6, and 2 more, which 4 of 5"),
            "{said:?}"
        );
        // What half of them have is not missing in the others, and two shards prove nothing.
        assert_eq!(
            found(&["0001_a"], &[(full, &[0, 1]), (half, &[2, 3])]),
            [""; 0]
        );
        assert_eq!(found(&["0001_a"], &[(full, &[0]), (&[], &[1])]), [""; 0]);
    }

    #[test]
    fn what_our_own_migrations_made() {
        let name = id_functions::ID_FUNCTIONS[0].name;
        assert_eq!(found(&[name], &[(&["function next_id"], &[0])]), [""; 0]);
        assert_eq!(
            found(&[name], &[(&[], &[0])]),
            ["0 is empty: it lacks function next_id, which pgshard's own migrations made there"]
        );
    }
}
