//! The `[map]` table of a config as text: read with every mistake, and printed.
//!
//! Invariant: what is read places every shard `0..N` once; a text that does not is refused, not
//! mended.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::DeTable;

use super::diagnostic::{Diagnostic, Findings};
use super::section::{Section, similar};
use crate::map::{
    HostName, MapVersion, Placement, RangeItem, RangesFault, ShardMap, parse_ranges, print_shards,
};
use crate::shard::{ShardCount, ShardId};

/// Reads the map out of a whole config, ignoring the rest of it.
pub(super) fn parse_map(
    text: &str,
    file: &Path,
    shards: ShardCount,
) -> Result<ShardMap, Vec<Diagnostic>> {
    let mut findings = Findings::new(file, text);
    let Some(document) = parse_toml(&mut findings) else {
        return Err(findings.into_sorted());
    };
    let root = Section::root(document.get_ref());
    // This reader does not report what is wrong with the other sections.
    let section = |name| {
        root.get(name)
            .and_then(|entry| Some(Section::root(entry.as_table()?)))
    };
    let given = section("cluster").and_then(|cluster| cluster.get("shards"));
    let given = given.and_then(|entry| Some((entry.key_at(), entry.as_integer()?)));
    if let Some((at, number)) = given.filter(|(_, number)| *number != i64::from(shards.get())) {
        let hint = "N is fixed for the life of a cluster: put the old number back".to_owned();
        let message = format!("cluster.shards is {number}, but this cluster has {shards} shards");
        findings.add(&at, message, Some(hint));
        return Err(findings.into_sorted());
    }
    // A name in [hosts] that is not valid counts as missing here.
    let valid = |name: &&str| HostName::new(name).is_ok();
    let hosts: Option<Vec<&str>> =
        section("hosts").map(|hosts| hosts.names().filter(valid).collect());
    let section = root
        .need("map", MAP_REMEDY, &mut findings)
        .and_then(|map| map.section(&mut findings));
    let map = section.and_then(|map| read_map(&map, Some(shards), hosts.as_deref(), &mut findings));
    map.ok_or_else(|| findings.into_sorted())
}

/// Where a map can be stored, by `map.store`.
const STORES: [&str; 2] = ["file", "postgres"];

/// No map is published so often. After the last number that TOML and PostgreSQL know, a move could
/// not publish its map.
pub(super) const VERSION_MAX: u64 = 1 << 62;

pub(crate) const MAP_REMEDY: &str = "add [map] with version = 1, and [map.placement] with a line \
    such as db1 = \"0-4095\" for each host";

/// The document; a finding where the text is not TOML.
pub(crate) fn parse_toml<'a>(findings: &mut Findings<'a>) -> Option<Spanned<DeTable<'a>>> {
    match DeTable::parse(findings.text()) {
        Ok(document) => Some(document),
        Err(error) => {
            let end = findings.text().len();
            let at = error.span().unwrap_or(end..end);
            let message = format!("this is not TOML: {}", error.message().replace('\n', ", "));
            // The rest of a string without an end is on lines of its own. Below [hosts] and [map]
            // it may be a password.
            let before = findings.text().get(..at.start).unwrap_or_default();
            let header = before
                .lines()
                .rev()
                .find(|line| line.trim_start().starts_with('['));
            if header.is_some_and(|header| {
                header.contains("hosts") || header.trim_start().starts_with("[map]")
            }) {
                findings.add_unshown(&at, message, None);
            } else {
                findings.add(&at, message, None);
            }
            None
        }
    }
}

/// One item of a host's list, and its place.
struct PlacedItem<'t> {
    host: &'t str,
    item: RangeItem,
    at: Range<usize>,
}

/// Reads `[map]`. Without `shards` (because they are wrong themselves) gaps and ends cannot be
/// judged; without `hosts` any name is taken. `None` when there is a finding.
pub(crate) fn read_map(
    section: &Section<'_>,
    shards: Option<ShardCount>,
    hosts: Option<&[&str]>,
    findings: &mut Findings<'_>,
) -> Option<ShardMap> {
    let before = findings.count();
    if let Some(store) = section.get("store") {
        match store.string(findings) {
            Some("file") | None => {}
            Some("postgres") => {
                let message = "the map is not kept in this file any more, but in PostgreSQL";
                let hint = "restart what still follows the file, so that it follows the database";
                findings.add(&store.at(), message, Some(hint.to_owned()));
                return None;
            }
            Some(other) => {
                let hint = similar(other, STORES)
                    .unwrap_or_else(|| "known are \"file\" and \"postgres\"".to_owned());
                findings.add(&store.at(), format!("unknown store {other:?}"), Some(hint))
            }
        }
    }
    section.only(&["version", "placement", "store"], findings);
    let version = section
        .need("version", "add version = 1", findings)
        .and_then(|version| {
            let number = version.integer(findings)?;
            let possible = u64::try_from(number)
                .ok()
                .filter(|number| (1..=VERSION_MAX).contains(number));
            if possible.is_none() {
                let hint =
                    "the first version is 1; every change of the map makes it one more".to_owned();
                findings.add(
                    &version.at(),
                    format!("the map's version cannot be {number}"),
                    Some(hint),
                );
            }
            possible.map(MapVersion::new)
        });
    let placement = section.need(
        "placement",
        "add [map.placement] with a line for each host",
        findings,
    );
    let placement = placement.and_then(|placement| placement.section(findings))?;
    let (placed, complete) = read_lists(
        &placement,
        shards.unwrap_or(ShardCount::MAX),
        hosts,
        findings,
    );
    let shards = shards?;
    report_overlaps(&placed, shards, findings);
    // A list that could not be read would only seem to leave a gap.
    if complete {
        report_gaps(&placed, shards, placement.at(), findings);
    }
    if findings.count() > before {
        return None;
    }
    let mut placements = Vec::with_capacity(usize::from(shards.get()));
    let mut host = None;
    for placed in &placed {
        // One name for all items of a list: a map of a thousand items does not hold it a thousand
        // times.
        let name = match host.take() {
            Some(name) if HostName::as_str(&name) == placed.host => name,
            _ => HostName::new(placed.host).ok()?,
        };
        let epoch = placed.item.epoch;
        placements.extend(placed.item.shards().map(|shard| {
            (
                shard,
                Placement {
                    host: name.clone(),
                    epoch,
                },
            )
        }));
        host = Some(name);
    }
    ShardMap::new(version?, shards, placements).ok()
}

/// Every item of every list, and whether all lists could be read.
fn read_lists<'t>(
    placement: &Section<'t>,
    shards: ShardCount,
    hosts: Option<&[&str]>,
    findings: &mut Findings<'_>,
) -> (Vec<PlacedItem<'t>>, bool) {
    let mut placed = Vec::new();
    let mut complete = true;
    for entry in placement.entries() {
        let host = entry.name();
        if let Some(hosts) = hosts.filter(|hosts| !hosts.contains(&host)) {
            let hint = similar(host, hosts).unwrap_or_else(|| match hosts {
                [] => format!("add [hosts.{host}] with its url"),
                hosts => format!("the hosts are {}", hosts.join(", ")),
            });
            findings.add(
                &entry.key_at(),
                format!("unknown host {host:?} in [map.placement]"),
                Some(hint),
            );
        }
        // If the hosts are known, a name that is not valid is reported where the host is defined.
        if let (None, Err(error)) = (hosts, HostName::new(host)) {
            findings.add(&entry.key_at(), error.to_string(), None);
        }
        let Some(text) = entry.string(findings) else {
            complete = false;
            continue;
        };
        let place = entry.text_place(findings);
        match parse_ranges(text, shards) {
            Ok(items) => placed.extend(items.into_iter().map(|item| {
                let at = place.part(&item.at);
                PlacedItem { host, item, at }
            })),
            Err(errors) => {
                complete = false;
                for error in errors {
                    let hint = match &error.fault {
                        RangesFault::Backwards { first, last } => {
                            Some(format!("write {last}-{first}"))
                        }
                        RangesFault::NoRange { .. } => {
                            Some("a list looks like \"0-255, 300, 301@2\"".to_owned())
                        }
                        _ => None,
                    };
                    findings.add(&place.part(&error.at), error.to_string(), hint);
                }
            }
        }
    }
    (placed, complete)
}

/// One finding for each two items that share shards, at the later of them.
fn report_overlaps(placed: &[PlacedItem<'_>], shards: ShardCount, findings: &mut Findings<'_>) {
    let mut owner: Vec<Option<usize>> = vec![None; usize::from(shards.get())];
    let mut twice: BTreeMap<(usize, usize), Vec<ShardId>> = BTreeMap::new();
    for (index, placed) in placed.iter().enumerate() {
        for shard in placed.item.shards() {
            match owner[shard.index()] {
                None => owner[shard.index()] = Some(index),
                Some(first) => twice.entry((first, index)).or_default().push(shard),
            }
        }
    }
    // Beyond that no reader continues.
    for ((first, second), list) in twice.into_iter().take(100) {
        let (mut first, mut second) = (&placed[first], &placed[second]);
        if first.at.start > second.at.start {
            (first, second) = (second, first);
        }
        let (a, b) = (first.item.epoch, second.item.epoch);
        let hint = if a == b {
            "a shard has one host: take it out of one of the two lists".to_owned()
        } else {
            let (newer, older) = if a > b {
                (first, second)
            } else {
                (second, first)
            };
            let (host, epoch) = (newer.host, newer.item.epoch);
            format!(
                "the larger epoch is the newer: keep it on {host:?} (@{epoch}), take it out of \
                    {:?}",
                older.host
            )
        };
        let message = format!(
            "{} placed twice: here on {:?} and at {} on {:?}",
            plural(&list),
            second.host,
            findings.place_text(first.at.start),
            first.host
        );
        findings.add(&second.at, message, Some(hint));
    }
}

fn report_gaps(
    placed: &[PlacedItem<'_>],
    shards: ShardCount,
    at: &Range<usize>,
    findings: &mut Findings<'_>,
) {
    let mut covered = vec![false; usize::from(shards.get())];
    for placed in placed {
        covered[placed.item.first.index()..=placed.item.last.index()].fill(true);
    }
    let missing: Vec<ShardId> = shards
        .iter()
        .filter(|shard| !covered[shard.index()])
        .collect();
    if !missing.is_empty() {
        let hint =
            format!("each of the {shards} shards must be in the list of one host: add them to one");
        findings.add(at, format!("{} on no host", plural(&missing)), Some(hint));
    }
}

/// `shard 7 is` or `shards 1-3, 7 are`.
fn plural(list: &[ShardId]) -> String {
    let text = print_shards(list.iter().copied());
    if list.len() == 1 {
        format!("shard {text} is")
    } else {
        format!("shards {text} are")
    }
}

/// The `[map]` table as a config has it, for a map of its own.
pub(crate) fn print_map(map: &ShardMap) -> String {
    let mut out = format!("[map]\nversion = {}\n\n[map.placement]\n", map.version());
    for host in map.hosts() {
        out.push_str(&format!("{host} = {}\n", quoted(&map.ranges(host))));
    }
    out
}

/// A text as a TOML string.
pub(crate) fn quoted(text: &str) -> String {
    toml_edit::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::any_map;
    use proptest::prelude::*;

    #[test]
    fn a_changed_number_of_shards_is_named() {
        let text = "[cluster]\nshards = 16\n[map]\nversion = 1\n[map.placement]\ndb1 = \"0-15\"\n";
        let found = parse_map(text, Path::new("x.toml"), ShardCount::new(8).unwrap()).unwrap_err();
        assert_eq!(found.len(), 1);
        assert!(
            found[0].message.contains("cluster.shards is 16"),
            "{}",
            found[0]
        );
    }

    proptest! {
        #[test]
        fn printed_maps_are_read(map in any_map()) {
            let read = parse_map(&print_map(&map), Path::new("x.toml"), map.shards());
            prop_assert_eq!(read, Ok(map));
        }
    }
}
