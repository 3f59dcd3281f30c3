//! What the shards are made of, compared with each other: a query or a few on each host, however many shards there are.
//!
//! The shards of the same make are a group; of each group but the largest it is said in what it differs from that one.
//!
//! What may not break: nothing that belongs to one shard alone counts as a difference: its schema's name, and its number
//! where the others have theirs.

use std::collections::{BTreeMap, HashMap};

use futures_util::future::join_all;
use tokio_postgres::types::Type;

use super::facts::FactsError;
use super::finding::{Finding, Findings, Severity};
use super::session;
use crate::map::HostName;
use crate::pg::ConnectOptions;
use crate::shard::ShardId;

mod number;

/// Shards in one query. Deparsing a view takes locks on what it reads until the end of the query, and only a small part of the
/// host's locks may be taken.
const SHARDS_AT_ONCE: i32 = 512;

const SQL: &str = include_str!("definitions.sql");

/// What the shards of a host are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definitions(Vec<Property>);

/// A property of an object, and the shards in which it is so.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Property {
    /// `table photos`, and what of it: `column title`; empty for the object itself.
    of: (String, String),
    value: String,
    shards: Vec<ShardId>,
}

/// What the shards of all hosts are made of.
pub type DefinitionSurvey = BTreeMap<HostName, Result<Definitions, String>>;

/// Reads what the shards that the hosts serve are made of. A host that cannot be read has the reason.
///
/// # Cancel safety
/// Only reads.
pub async fn definitions(hosts: impl IntoIterator<Item = (HostName, ConnectOptions)>) -> DefinitionSurvey {
    let ask = |(name, connect): (HostName, ConnectOptions)| async move { (name, of_host(&connect).await) };
    join_all(hosts.into_iter().map(ask)).await.into_iter().collect()
}

async fn of_host(connect: &ConnectOptions) -> Result<Definitions, String> {
    let client = session::open(connect, "pgshard survey").await.map_err(|fault| fault.to_string())?;
    let failed = |source| super::facts::chain(&FactsError::Query { what: "catalogs", source });
    client.batch_execute("SET quote_all_identifiers = off; SET jit = off").await.map_err(failed)?;
    let numbers = "SELECT shard_id FROM pgshard.shard WHERE state = 'serving' ORDER BY shard_id";
    let numbers: Vec<i32> =
        client.query_typed(numbers, &[]).await.map_err(failed)?.iter().map(|row| row.get(0)).collect();
    let mut definitions = Definitions::default();
    for some in numbers.chunks(SHARDS_AT_ONCE as usize) {
        let (Some(first), Some(last)) = (some.first(), some.last()) else { continue };
        let rows = client.query_typed(SQL, &[(first, Type::INT4), (last, Type::INT4)]).await.map_err(failed)?;
        for row in rows {
            let shards: Vec<i32> = row.get(3);
            let shard = |number: &i32| u16::try_from(*number).ok().and_then(ShardId::new);
            let shards = shards.iter().filter_map(shard).collect();
            definitions.0.push(Property { of: (row.get(0), row.get(1)), value: row.get(2), shards });
        }
    }
    Ok(definitions)
}

/// So many differences of a group are said.
const SAID_MAX: usize = 12;

/// Where shards are made otherwise than most, or hosts could not be asked.
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
    let mut of_shards: BTreeMap<ShardId, Vec<(usize, usize)>> = BTreeMap::new();
    for (at, (_, values)) in classes.iter().enumerate() {
        for (class, (_, shards)) in values.iter().enumerate() {
            for shard in shards {
                of_shards.entry(*shard).or_default().push((at, class));
            }
        }
    }
    let mut groups: HashMap<Vec<(usize, usize)>, Vec<ShardId>> = HashMap::new();
    for (shard, signature) in of_shards {
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
        let text = |at: usize, class: Option<&usize>| class.map(|class| classes[at].1[*class].0);
        let mut said: Vec<String> = keys
            .iter()
            .take(SAID_MAX)
            .map(|at| difference(&classes[*at].0, text(*at, here.get(at)), text(*at, there.get(at))))
            .collect();
        if keys.len() > SAID_MAX {
            said.push(format!("and {} more", keys.len() - SAID_MAX));
        }
        let what = format!("made otherwise than {} others: {}", most.len(), said.join("; "));
        let remedy = "run `pgshard migrate up` if it lacks a migration; else alter it by hand, and see who did";
        for shard in shards {
            findings.add_shard(Severity::Warning, "ddl_differs", None, *shard, what.as_str(), remedy);
        }
    }
    findings.sorted()
}

type Of = (String, String);

/// A property with its values, and the shards that have each.
type Values<'a> = (Of, Vec<(&'a str, Vec<ShardId>)>);

/// For every property the values that there are, those that differ in nothing but the shard's number as one.
fn classes<'a>(all: &[&'a Property]) -> Vec<Values<'a>> {
    let mut counts: HashMap<&Of, usize> = HashMap::new();
    for property in all {
        *counts.entry(&property.of).or_default() += property.shards.len();
    }
    let mut of: BTreeMap<Of, Vec<&'a Property>> = BTreeMap::new();
    for property in all {
        // An object that only one shard has may have the shard's number in its name, where the others have theirs.
        let key = match (counts[&property.of], property.shards.first()) {
            (1, Some(shard)) => (number::out_of(&property.of.0, *shard), property.of.1.clone()),
            _ => property.of.clone(),
        };
        of.entry(key).or_default().push(property);
    }
    let classes = of.into_iter().map(|(key, properties)| {
        let mut classes: Vec<(&Property, Vec<ShardId>)> = Vec::new();
        for property in properties {
            let same = classes.iter_mut().find(|(first, _)| {
                first.value == property.value
                    || number::alike(&first.value, first.shards[0], &property.value, property.shards[0])
            });
            match same {
                Some((_, shards)) => shards.extend(&property.shards),
                None => classes.push((property, property.shards.clone())),
            }
        }
        (key, classes.into_iter().map(|(first, shards)| (first.value.as_str(), shards)).collect())
    });
    classes.collect()
}

/// `table photos: column caption: missing`, or what it is and what it should be.
fn difference(of: &Of, here: Option<&str>, there: Option<&str>) -> String {
    let name = if of.1.is_empty() { of.0.clone() } else { format!("{}: {}", of.0, of.1) };
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
            of: ((*object).to_owned(), (*property).to_owned()),
            value: (*value).to_owned(),
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
                "shard 3: made otherwise than 2 others: table t: column b: integer, elsewhere bigint",
                "shard 7: made otherwise than 2 others: index t_x: only here; table t: column a: missing; \
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
            ["shard 7: made otherwise than 2 others: function f(): SELECT 7, elsewhere SELECT 8"]
        );
    }
}
