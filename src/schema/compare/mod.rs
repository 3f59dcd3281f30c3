//! Compares the shards' definitions with each other: one query on each host that digests all of them, however many
//! shards there are, and one for the texts of what differs.
//!
//! Shards with the same definition form a group. For each group but the largest, the findings say how it differs from
//! that one.
//!
//! Invariant: what belongs to one shard alone is no difference: its schema's name, and its number where the others have
//! theirs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::finding::{Finding, Findings, Severity};
use crate::map::HostName;
use crate::shard::ShardId;

mod number;
mod read;

pub use read::definitions;

/// The definitions of a host's shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definitions(Vec<Property>);

/// A property of an object, and the shards that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Property {
    subject: Subject,
    /// A digest that is equal where the value is equal, apart from the shard's number.
    digest: String,
    /// The value in the first of the shards, if it was read: it is where shards have different digests.
    text: Option<String>,
    shards: Vec<ShardId>,
}

/// `table photos`, and which property: `column title`; empty for the object itself.
type Subject = (String, String);

/// The definitions of the shards of all hosts.
pub type DefinitionSurvey = BTreeMap<HostName, Result<Definitions, String>>;

/// The most differences of a group that are named.
const SAID_MAX: usize = 12;

/// Reports shards whose definition differs from most, and hosts that could not be asked.
pub fn compare(survey: &DefinitionSurvey) -> Vec<Finding> {
    let mut findings = Findings::default();
    let mut all: Vec<&Property> = Vec::new();
    for (host, definitions) in survey {
        match definitions {
            Ok(definitions) => all.extend(&definitions.0),
            Err(reason) => {
                let remedy = "see what the server's log says".to_owned();
                findings.add(Severity::Error, "definitions_unread", Some(host), reason.clone(), remedy);
            }
        }
    }
    let classes = classes(&all);
    let mut groups: HashMap<Signature, Vec<ShardId>> = HashMap::new();
    for (shard, signature) in signatures(&classes) {
        groups.entry(signature).or_default().push(shard);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by(|a, b| (b.1.len(), &a.1).cmp(&(a.1.len(), &b.1)));
    let Some(((usual, most), others)) = groups.split_first() else { return findings.sorted() };
    for (signature, shards) in others {
        let (mut here, mut there): (BTreeMap<usize, usize>, BTreeMap<usize, usize>) =
            (signature.iter().copied().collect(), usual.iter().copied().collect());
        here.retain(|at, class| there.get(at) != Some(class) || there.remove(at).is_none());
        let mut keys: Vec<usize> = here.keys().chain(there.keys()).copied().collect();
        keys.sort_unstable();
        keys.dedup();
        let text = |at: usize, class: Option<&usize>| class.map(|class| classes[at].1[*class].0.unwrap_or_default());
        let mut said: Vec<String> = keys
            .iter()
            .take(SAID_MAX)
            .map(|at| difference(&classes[*at].0, text(*at, here.get(at)), text(*at, there.get(at))))
            .collect();
        if keys.len() > SAID_MAX {
            said.push(format!("and {} more", keys.len() - SAID_MAX));
        }
        let what = format!("defined differently from {} others: {}", most.len(), said.join("; "));
        let remedy =
            "run `pgshard migrate up` if it lacks a migration; otherwise alter it by hand, and find out who changed it";
        for shard in shards {
            findings.add_shard(Severity::Warning, "ddl_differs", None, *shard, what.as_str(), remedy);
        }
    }
    findings.sorted()
}

/// The shards of each host with the same definition, together.
pub(crate) fn made_alike(survey: &DefinitionSurvey) -> Vec<(HostName, Vec<ShardId>)> {
    let read = || survey.iter().filter_map(|(host, definitions)| Some((host, definitions.as_ref().ok()?)));
    let all: Vec<&Property> = read().flat_map(|(_, definitions)| &definitions.0).collect();
    let signatures = signatures(&classes(&all));
    let mut groups: BTreeMap<(&HostName, &Signature), BTreeSet<ShardId>> = BTreeMap::new();
    for (host, definitions) in read() {
        for shard in definitions.0.iter().flat_map(|property| &property.shards) {
            if let Some(signature) = signatures.get(shard) {
                groups.entry((host, signature)).or_default().insert(*shard);
            }
        }
    }
    groups.into_iter().map(|((host, _), shards)| (host.clone(), shards.into_iter().collect())).collect()
}

/// Which value a shard has of each of its properties: indexes into a list of [`Values`], and into each of those.
type Signature = Vec<(usize, usize)>;

fn signatures(classes: &[Values<'_>]) -> BTreeMap<ShardId, Signature> {
    let mut of_shards: BTreeMap<ShardId, Signature> = BTreeMap::new();
    for (at, (_, values)) in classes.iter().enumerate() {
        for (class, (_, shards)) in values.iter().enumerate() {
            for shard in shards {
                of_shards.entry(*shard).or_default().push((at, class));
            }
        }
    }
    of_shards
}

/// A property with its values, as far as they were read, and the shards that have each.
type Values<'a> = (Subject, Vec<(Option<&'a str>, Vec<ShardId>)>);

/// The properties by their subject; objects that have their shard's number in their name count as one.
fn by_object<'a>(all: &[&'a Property]) -> BTreeMap<Subject, Vec<&'a Property>> {
    let mut counts: HashMap<&Subject, usize> = HashMap::new();
    for property in all {
        *counts.entry(&property.subject).or_default() += property.shards.len();
    }
    let mut by_subject: BTreeMap<Subject, Vec<&'a Property>> = BTreeMap::new();
    for property in all {
        // An object that only one shard has may have that shard's number in its name, where the others have theirs.
        let key = match (counts[&property.subject], property.shards.first()) {
            (1, Some(shard)) => (number::out_of(&property.subject.0, *shard), property.subject.1.clone()),
            _ => property.subject.clone(),
        };
        by_subject.entry(key).or_default().push(property);
    }
    by_subject
}

/// The values of every property; values that differ only in the shard's number count as one.
fn classes<'a>(all: &[&'a Property]) -> Vec<Values<'a>> {
    let classes = by_object(all).into_iter().map(|(key, properties)| {
        let mut by_digest: BTreeMap<&str, (&Property, Vec<ShardId>)> = BTreeMap::new();
        for property in properties {
            let class = by_digest.entry(&property.digest).or_insert((property, Vec::new()));
            if class.0.text.is_none() {
                class.0 = property;
            }
            class.1.extend(&property.shards);
        }
        // A number that all shards have in a text may be the own number of one of them.
        let mut classes: Vec<(&Property, Vec<ShardId>)> = Vec::new();
        for (property, shards) in by_digest.into_values() {
            match classes.iter_mut().find(|(first, _)| alike(first, property)) {
                Some((_, same)) => same.extend(shards),
                None => classes.push((property, shards)),
            }
        }
        (key, classes.into_iter().map(|(first, shards)| (first.text.as_deref(), shards)).collect())
    });
    classes.collect()
}

fn alike(a: &Property, b: &Property) -> bool {
    match (&a.text, &b.text, a.shards.first(), b.shards.first()) {
        (Some(text_a), Some(text_b), Some(of_a), Some(of_b)) => {
            text_a == text_b || number::alike(text_a, *of_a, text_b, *of_b)
        }
        _ => false,
    }
}

/// `table photos: column caption: missing`, or what it is and what it should be.
fn difference(subject: &Subject, here: Option<&str>, there: Option<&str>) -> String {
    let name = if subject.1.is_empty() { subject.0.clone() } else { format!("{}: {}", subject.0, subject.1) };
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
    use super::super::tables::{host, shard};
    use super::*;

    fn found(properties: &[(&str, &str, &str, &[u16])]) -> Vec<String> {
        let property = |(object, property, value, shards): &(&str, &str, &str, &[u16])| Property {
            subject: ((*object).to_owned(), (*property).to_owned()),
            digest: (*value).to_owned(),
            text: Some((*value).to_owned()),
            shards: shards.iter().map(|number| shard(*number)).collect(),
        };
        let definitions = Definitions(properties.iter().map(property).collect());
        let findings = compare(&DefinitionSurvey::from([(host("db1"), Ok(definitions))]));
        findings.into_iter().map(|finding| finding.message).collect()
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
                "shard 3: defined differently from 2 others: table t: column b: integer, elsewhere bigint",
                "shard 7: defined differently from 2 others: index t_x: only here; table t: column a: missing; \
                 table t: column b: integer, elsewhere bigint",
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
            found(&[("function f()", "", "SELECT 7", &[7]), ("function f()", "", "SELECT 8", &[9, 10])]),
            ["shard 7: defined differently from 2 others: function f(): SELECT 7, elsewhere SELECT 8"]
        );
    }
}
