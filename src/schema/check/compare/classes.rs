//! Which shards have the same value of a property. Pure.
//!
//! A shard's own number in a value may be what the others have theirs for (`SELECT 7 << 10`), or a
//! number that all have (`DEFAULT 7`). So a value counts in two ways, as it is and without the
//! number, and what most shards agree in decides.

use std::collections::{BTreeMap, HashMap};

use super::definitions::{Definitions, Property, Subject, SubjectsByShard};
use super::number;
use crate::shard::ShardId;

/// A property with its values, those of most shards first.
pub(super) type Values<'a> = (Subject, Vec<Value<'a>>);

/// A value, and the shards that have it.
#[derive(Debug)]
pub(super) struct Value<'a> {
    pub(super) shards: Vec<ShardId>,
    /// Two shards that represent all: what is compared as text is compared with both.
    samples: Vec<(ShardId, &'a Subject, Option<&'a str>)>,
}

impl Value<'_> {
    /// The value in one of the shards; empty if it was not read.
    pub(super) fn text(&self) -> &str {
        self.samples
            .iter()
            .find_map(|(.., text)| *text)
            .unwrap_or_default()
    }

    /// Whether the values are equal, except that each of the shards has its own number where the
    /// other has its own. Two samples distinguish a number that the shards have in common from one
    /// that each has for itself.
    fn is_alike(&self, other: &Value<'_>) -> bool {
        self.samples.iter().all(|(of_a, _, a)| {
            other.samples.iter().all(|(of_b, _, b)| {
                a.zip(*b)
                    .is_some_and(|(a, b)| number::alike(a, *of_a, b, *of_b))
            })
        })
    }
}

/// A shard with its value of a property.
struct Member<'a> {
    shard: ShardId,
    subject: &'a Subject,
    /// The digest of the value as it is.
    plain: &'a str,
    /// That without the shard's number, if it is in the value.
    own: Option<&'a str>,
    text: Option<&'a str>,
}

impl<'a> Member<'a> {
    fn alone(self) -> Value<'a> {
        Value {
            shards: vec![self.shard],
            samples: vec![(self.shard, self.subject, self.text)],
        }
    }
}

/// The values of every property, of all hosts.
pub(super) fn classes<'a>(hosts: &[&'a Definitions]) -> Vec<Values<'a>> {
    by_object(hosts)
        .into_iter()
        .map(|(key, properties)| (key, joined(values(&properties))))
        .collect()
}

/// The values that must be read to be sure, of properties in which shards seem to differ.
pub(super) fn unsure(hosts: &[&Definitions]) -> SubjectsByShard {
    let mut wanted = SubjectsByShard::new();
    for properties in by_object(hosts).into_values() {
        let values = values(&properties);
        for (shard, subject, _) in values
            .iter()
            .filter(|_| values.len() > 1)
            .flat_map(|value| &value.samples)
        {
            wanted.entry(*shard).or_default().insert((*subject).clone());
        }
    }
    wanted
}

/// A property on one host.
type OnHost<'a> = (&'a Definitions, &'a Property);

/// The properties by their subject; objects that have their shard's number in their name count as
/// one.
fn by_object<'a>(hosts: &[&'a Definitions]) -> BTreeMap<Subject, Vec<OnHost<'a>>> {
    let all = || {
        hosts
            .iter()
            .flat_map(|one| one.properties.iter().map(move |property| (*one, property)))
    };
    let mut counts: HashMap<&Subject, usize> = HashMap::new();
    for (_, property) in all() {
        *counts.entry(&property.subject).or_default() += property.shards.len();
    }
    let mut by_subject: BTreeMap<Subject, Vec<OnHost<'a>>> = BTreeMap::new();
    for (definitions, property) in all() {
        // An object that only one shard has may have that shard's number in its name, where the
        // others have theirs.
        let key = match (counts[&property.subject], property.shards.first()) {
            (1, Some(shard)) => (
                number::out_of(&property.subject.0, *shard),
                property.subject.1.clone(),
            ),
            _ => property.subject.clone(),
        };
        by_subject
            .entry(key)
            .or_default()
            .push((definitions, property));
    }
    by_subject
}

fn members<'a>((definitions, property): OnHost<'a>) -> impl Iterator<Item = Member<'a>> {
    let texts = definitions.texts.get(&property.subject);
    property.shards.iter().enumerate().map(move |(at, shard)| {
        let plain = property.plain.get(at).map(String::as_str);
        Member {
            shard: *shard,
            subject: &property.subject,
            plain: plain.unwrap_or(&property.digest),
            own: plain.is_some().then_some(property.digest.as_str()),
            text: texts.and_then(|texts| texts.get(shard)).map(String::as_str),
        }
    })
}

/// The shards by what most of them agree in, then by what most of the others agree in, and so on.
fn values<'a>(properties: &[OnHost<'a>]) -> Vec<Value<'a>> {
    let mut values = Vec::new();
    let mut left: Vec<Member<'a>> = properties
        .iter()
        .flat_map(|property| members(*property))
        .collect();
    while !left.is_empty() {
        let (mut plain, mut own): (BTreeMap<&str, usize>, BTreeMap<&str, usize>) =
            Default::default();
        for member in &left {
            *plain.entry(member.plain).or_default() += 1;
            if let Some(digest) = member.own {
                *own.entry(digest).or_default() += 1;
            }
        }
        let most =
            |counts: BTreeMap<&'a str, usize>| counts.into_iter().max_by_key(|(_, count)| *count);
        let (plain, own) = (most(plain), most(own));
        if plain.into_iter().chain(own).all(|(_, count)| count == 1) {
            // No two agree: what is left is not counted over and over.
            values.extend(left.into_iter().map(Member::alone));
            break;
        }
        // If as many agree in either, it is not the number that makes the difference.
        let by_number = own.map(|(_, count)| count) > plain.map(|(_, count)| count);
        let (mut same, others): (Vec<Member<'a>>, Vec<Member<'a>>) =
            left.into_iter().partition(|member| {
                if by_number {
                    member.own == own.map(|(digest, _)| digest)
                } else {
                    Some(member.plain) == plain.map(|(digest, _)| digest)
                }
            });
        left = others;
        // A shard with its own number in a value that only a few agree in may have what most have.
        // It is not judged by the others.
        let mut apart = Vec::new();
        if !by_number && !values.is_empty() {
            (apart, same) = same.into_iter().partition(|member| member.own.is_some());
        }
        // A shard without its own number in the value shows best what all have.
        same.sort_by_key(|member| {
            (
                !by_number && member.own.is_some(),
                member.text.is_none(),
                member.shard,
            )
        });
        let samples = same
            .iter()
            .take(2)
            .map(|member| (member.shard, member.subject, member.text))
            .collect();
        let mut shards: Vec<ShardId> = same.iter().map(|member| member.shard).collect();
        shards.sort_unstable();
        values.extend((!shards.is_empty()).then_some(Value { shards, samples }));
        values.extend(apart.into_iter().map(Member::alone));
    }
    values
}

/// The values, where those that are alike as texts count as one: a shard's number may also be in a
/// value by chance.
fn joined(values: Vec<Value<'_>>) -> Vec<Value<'_>> {
    let mut joined: Vec<Value<'_>> = Vec::new();
    for value in values {
        match joined.iter_mut().find(|one| one.is_alike(&value)) {
            Some(one) => one.shards.extend(value.shards),
            None => joined.push(value),
        }
    }
    joined
}
