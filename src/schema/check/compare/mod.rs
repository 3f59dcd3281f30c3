//! Compares the shards' definitions with each other: one query on each host that digests all of
//! them, however many shards there are, and one for the texts of what differs.
//!
//! Shards with the same definition form a group. For each group but the largest, the findings list
//! how it differs from that one.
//!
//! Invariant: what belongs to one shard alone is no difference: its schema's name, and its number
//! where the others have theirs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use self::classes::{Values, classes};
use self::definitions::Subject;
use super::finding::{Finding, Findings, Severity};
use crate::map::HostName;
use crate::shard::ShardId;

mod classes;
mod definitions;
mod number;
mod read;

pub use definitions::{DefinitionSurvey, Definitions};
pub use read::definitions;

/// The most differences of a group that are named.
const SAID_MAX: usize = 12;

/// Reports shards with a definition that differs from most, and hosts that could not be read.
pub fn compare(survey: &DefinitionSurvey) -> Vec<Finding> {
    let mut findings = Findings::default();
    for (host, definitions) in survey {
        if let Err(reason) = definitions {
            let remedy = "see what the server's log says";
            findings.add(
                Severity::Error,
                "definitions_unread",
                Some(host),
                reason.as_str(),
                remedy,
            );
        }
    }
    let read: Vec<&Definitions> = survey
        .values()
        .filter_map(|definitions| definitions.as_ref().ok())
        .collect();
    let classes = classes(&read);
    let mut groups: HashMap<Signature, Vec<ShardId>> = HashMap::new();
    for (shard, signature) in signatures(&classes) {
        groups.entry(signature).or_default().push(shard);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by(|a, b| (b.1.len(), &a.1).cmp(&(a.1.len(), &b.1)));
    let Some(((usual, most), others)) = groups.split_first() else {
        return findings.sorted();
    };
    for (signature, shards) in others {
        let (mut here, mut there): (BTreeMap<usize, usize>, BTreeMap<usize, usize>) = (
            signature.iter().copied().collect(),
            usual.iter().copied().collect(),
        );
        here.retain(|at, class| there.get(at) != Some(class) || there.remove(at).is_none());
        let mut keys: Vec<usize> = here.keys().chain(there.keys()).copied().collect();
        keys.sort_unstable();
        keys.dedup();
        let text =
            |at: usize, class: Option<&usize>| class.map(|class| classes[at].1[*class].text());
        let mut said: Vec<String> = keys
            .iter()
            .take(SAID_MAX)
            .map(|at| {
                difference(
                    &classes[*at].0,
                    text(*at, here.get(at)),
                    text(*at, there.get(at)),
                )
            })
            .collect();
        if keys.len() > SAID_MAX {
            said.push(format!("and {} more", keys.len() - SAID_MAX));
        }
        let what = format!(
            "defined differently from {} others: {}",
            most.len(),
            said.join("; ")
        );
        let remedy = "run `pgshard migrate up` if it lacks a migration; otherwise alter it by \
            hand, and find out who changed it";
        for shard in shards {
            findings.add_shard(
                Severity::Warning,
                "ddl_differs",
                None,
                *shard,
                what.as_str(),
                remedy,
            );
        }
    }
    findings.sorted()
}

/// The shards of each host with the same definition, together.
pub(crate) fn made_alike(survey: &DefinitionSurvey) -> Vec<(HostName, Vec<ShardId>)> {
    let read = || {
        survey
            .iter()
            .filter_map(|(host, definitions)| Some((host, definitions.as_ref().ok()?)))
    };
    let all: Vec<&Definitions> = read().map(|(_, definitions)| definitions).collect();
    let signatures = signatures(&classes(&all));
    let mut groups: BTreeMap<(&HostName, &Signature), BTreeSet<ShardId>> = BTreeMap::new();
    for (host, definitions) in read() {
        for shard in definitions
            .properties
            .iter()
            .flat_map(|property| &property.shards)
        {
            if let Some(signature) = signatures.get(shard) {
                groups.entry((host, signature)).or_default().insert(*shard);
            }
        }
    }
    groups
        .into_iter()
        .map(|((host, _), shards)| (host.clone(), shards.into_iter().collect()))
        .collect()
}

/// Which value a shard has of each of its properties: indexes into a list of [`Values`], and into
/// each of those.
type Signature = Vec<(usize, usize)>;

fn signatures(classes: &[Values<'_>]) -> BTreeMap<ShardId, Signature> {
    let mut of_shards: BTreeMap<ShardId, Signature> = BTreeMap::new();
    for (at, (_, values)) in classes.iter().enumerate() {
        for (class, value) in values.iter().enumerate() {
            for shard in &value.shards {
                of_shards.entry(*shard).or_default().push((at, class));
            }
        }
    }
    of_shards
}

/// `table photos: column caption: missing`, or what it is and what it should be.
fn difference(subject: &Subject, here: Option<&str>, there: Option<&str>) -> String {
    let name = if subject.1.is_empty() {
        subject.0.clone()
    } else {
        format!("{}: {}", subject.0, subject.1)
    };
    let short = |text: &str| {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        (!text.is_empty() && text.chars().count() <= 80).then_some(text)
    };
    match (here, there) {
        (None, _) => format!("{name}: missing"),
        (Some(_), None) => format!("{name}: only here"),
        (Some(here), Some(there)) => match (short(here), short(there)) {
            (Some(here), Some(there)) => format!("{name}: {here}, elsewhere {there}"),
            _ => format!("{name}: differs"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::definitions::Property;
    use super::*;
    use crate::schema::tables::{host, shard};

    /// Values of properties of shards, and the findings about them. Digests and texts are made as
    /// the queries make them.
    pub(in crate::schema) fn definitions(properties: &[(&str, &str, &str, &[u16])]) -> Definitions {
        let mut made = Definitions::default();
        for (object, name, value, shards) in properties {
            let subject = ((*object).to_owned(), (*name).to_owned());
            for shard in shards.iter().map(|number| shard(*number)) {
                let digest = number::out_of(value, shard);
                let plain = if digest == *value {
                    Vec::new()
                } else {
                    vec![(*value).to_owned()]
                };
                made.properties.push(Property {
                    subject: subject.clone(),
                    digest,
                    shards: vec![shard],
                    plain,
                });
                made.texts
                    .entry(subject.clone())
                    .or_default()
                    .insert(shard, (*value).to_owned());
            }
        }
        made
    }

    fn found(properties: &[(&str, &str, &str, &[u16])]) -> Vec<String> {
        let survey = DefinitionSurvey::from([(host("db1"), Ok(definitions(properties)))]);
        compare(&survey)
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn what_the_odd_ones_differ_in() {
        assert_eq!(found(&[]), [""; 0]);
        let same = ("table t", "", "", &[1, 2, 3, 7][..]);
        assert_eq!(found(&[same]), [""; 0]);
        assert_eq!(
            found(&[
                same,
                ("table t", "column a", "text", &[1, 2, 3]),
                ("table t", "column b", "bigint", &[1, 2]),
                ("table t", "column b", "integer", &[3, 7]),
                ("index t_x", "", "CREATE INDEX …", &[7]),
            ]),
            [
                "shard 3: defined differently from 2 others: table t: column b: integer, elsewhere \
                    bigint",
                "shard 7: defined differently from 2 others: index t_x: only here; table t: column \
                    a: missing; table t: column b: integer, elsewhere bigint",
            ]
        );
    }

    #[test]
    fn a_shards_own_number_is_no_difference() {
        assert_eq!(
            found(&[
                ("function f_7()", "", "SELECT 7 << 10", &[7]),
                ("function f_10()", "", "SELECT 10 << 10", &[10]),
                ("function f_11()", "", "SELECT 11 << 10", &[11]),
                ("table t_7", "", "", &[7, 10, 11]),
            ]),
            [""; 0]
        );
        assert_eq!(
            found(&[
                ("function f()", "", "SELECT 7", &[7]),
                ("function f()", "", "SELECT 8", &[9, 10])
            ]),
            [
                "shard 7: defined differently from 2 others: function f(): SELECT 7, elsewhere \
                    SELECT 8"
            ]
        );
    }

    /// All shards have one number, or each has its own, and one shard has another: that one is
    /// named, and no other, for all numbers there can be.
    #[test]
    fn the_odd_one_is_named_whatever_its_number_is() {
        for shards in [5_u16, 12] {
            for (odd, wrong) in
                (0..shards).flat_map(|odd| (0..=shards).map(move |wrong| (odd, wrong)))
            {
                let own =
                    (0..shards).map(|shard| (shard, if shard == odd { wrong } else { shard }));
                let of_all = |all| move |shard| (shard, if shard == odd { wrong } else { all });
                let mut worlds: Vec<(bool, Vec<(u16, u16)>)> = vec![(wrong != odd, own.collect())];
                worlds.extend(
                    (0..=shards).map(|all| (wrong != all, (0..shards).map(of_all(all)).collect())),
                );
                for (is_odd, world) in worlds {
                    let values: Vec<String> = world
                        .iter()
                        .map(|(_, number)| format!("numeric(12,1) DEFAULT {number}"))
                        .collect();
                    let numbers: Vec<u16> = (0..shards).collect();
                    let one = |at: usize| {
                        (
                            "table t",
                            "column a",
                            values[at].as_str(),
                            &numbers[at..=at],
                        )
                    };
                    let properties: Vec<_> = (0..values.len()).map(one).collect();
                    let named: Vec<String> = found(&properties)
                        .iter()
                        .map(|said| said.split(": ").next().unwrap_or_default().to_owned())
                        .collect();
                    let expected = if is_odd {
                        vec![format!("shard {odd}")]
                    } else {
                        Vec::new()
                    };
                    assert_eq!(named, expected, "{world:?}");
                }
            }
        }
    }
}
