//! The `[map]` table of a config as text: read with every mistake, and written without touching anything else.
//!
//! What may not break: [`edit_map`] changes the bytes of the values that differ and no others.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use toml_edit::{Document, DocumentMut, Item, Value};

use super::diagnostic::{Diagnostic, Findings};
use super::section::{Section, similar};
use crate::map::{HostName, MapVersion, Placement, RangeItem, RangesFault, ShardMap, parse_ranges, print_shards};
use crate::shard::{ShardCount, ShardId};

/// Reads the map out of a whole config, ignoring the rest of it.
pub(super) fn parse_map(text: &str, file: &Path, shards: ShardCount) -> Result<ShardMap, Vec<Diagnostic>> {
    let mut findings = Findings::new(file, text);
    let Some(document) = parse_toml(&mut findings) else { return Err(findings.into_sorted()) };
    let root = Section::root(document.as_table());
    let cluster = root.get("cluster").and_then(|cluster| cluster.item().as_table_like());
    let given = cluster.and_then(|cluster| cluster.get_key_value("shards"));
    if let Some((key, number)) = given.and_then(|(key, item)| Some((key, item.as_integer()?))) {
        if number != i64::from(shards.get()) {
            let hint = "N is fixed for the life of a cluster: put the old number back".to_owned();
            let message = format!("cluster.shards is {number}, but this cluster has {shards} shards");
            findings.add(&key.span().unwrap_or_default(), message, Some(hint));
            return Err(findings.into_sorted());
        }
    }
    let hosts = root.get("hosts").and_then(|hosts| hosts.item().as_table_like());
    // A name that is no host's cannot be told from one that is not there.
    let valid = |name: &&str| HostName::new(name).is_ok();
    let hosts: Option<Vec<&str>> = hosts.map(|hosts| hosts.iter().map(|(name, _)| name).filter(valid).collect());
    let section = root.need("map", MAP_REMEDY, &mut findings).and_then(|map| map.section(&mut findings));
    let map = section.and_then(|map| read_map(&map, Some(shards), hosts.as_deref(), &mut findings));
    map.ok_or_else(|| findings.into_sorted())
}

pub(crate) const MAP_REMEDY: &str =
    "add [map] with version = 1, and [map.placement] with a line such as db1 = \"0-4095\" for each host";

/// The document; a finding where the text is not TOML.
pub(crate) fn parse_toml<'a>(findings: &mut Findings<'a>) -> Option<Document<&'a str>> {
    match Document::parse(findings.text()) {
        Ok(document) => Some(document),
        Err(error) => {
            let end = findings.text().len();
            let at = error.span().unwrap_or(end..end);
            let message = format!("this is not TOML: {}", error.message().replace('\n', ", "));
            // A string without an end leaves its rest on lines of their own: below [hosts] that may be a password.
            let before = findings.text().get(..at.start).unwrap_or_default();
            let header = before.lines().rev().find(|line| line.trim_start().starts_with('['));
            if header.is_some_and(|header| header.contains("hosts")) {
                findings.add_unshown(&at, message, None);
            } else {
                findings.add(&at, message, None);
            }
            None
        }
    }
}

/// One item of a host's list, and where it stands.
struct Placed<'t> {
    host: &'t str,
    item: RangeItem,
    at: Range<usize>,
}

/// Reads `[map]`. Without `shards` (because they are wrong themselves) gaps and ends cannot be judged; without `hosts`
/// any name is taken. `None` when there is a finding.
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
                let message = "the map cannot be kept in PostgreSQL by this version of pgshard";
                let hint = "it comes with a later version; store = \"file\" keeps the map in this file";
                findings.add(&store.at(), message, Some(hint.to_owned()));
                return None;
            }
            Some(other) => {
                findings.add(&store.at(), format!("unknown store {other:?}"), Some("known is \"file\"".to_owned()))
            }
        }
    }
    section.only(&["version", "placement", "store"], findings);
    let version = section.need("version", "add version = 1", findings).and_then(|version| {
        let number = version.integer(findings)?;
        let positive = u64::try_from(number).ok().filter(|number| *number > 0);
        if positive.is_none() {
            let hint = "the first version is 1; every change of the map makes it one more".to_owned();
            findings.add(&version.at(), format!("the map's version cannot be {number}"), Some(hint));
        }
        positive.map(MapVersion::new)
    });
    let placement = section.need("placement", "add [map.placement] with a line for each host", findings);
    let placement = placement.and_then(|placement| placement.section(findings))?;
    let (placed, complete) = read_lists(&placement, shards.unwrap_or(ShardCount::MAX), hosts, findings);
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
        // One name for all items of a list: a map of a thousand items does not hold it a thousand times.
        let name = match host.take() {
            Some(name) if HostName::as_str(&name) == placed.host => name,
            _ => HostName::new(placed.host).ok()?,
        };
        let epoch = placed.item.epoch;
        placements.extend(placed.item.shards().map(|shard| (shard, Placement { host: name.clone(), epoch })));
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
) -> (Vec<Placed<'t>>, bool) {
    let mut placed = Vec::new();
    let mut complete = true;
    for entry in placement.entries() {
        let host = entry.name();
        if let Some(hosts) = hosts.filter(|hosts| !hosts.contains(&host)) {
            let hint = similar(host, hosts).unwrap_or_else(|| match hosts {
                [] => format!("add [hosts.{host}] with its url"),
                hosts => format!("the hosts are {}", hosts.join(", ")),
            });
            findings.add(&entry.key_at(), format!("unknown host {host:?} in [map.placement]"), Some(hint));
        }
        // With hosts known, a wrong name is told where the host stands.
        if let (None, Err(error)) = (hosts, HostName::new(host)) {
            findings.add(&entry.key_at(), error.to_string(), None);
        }
        let Some(text) = entry.string(findings) else {
            complete = false;
            continue;
        };
        match parse_ranges(text, shards) {
            Ok(items) => placed.extend(items.into_iter().map(|item| {
                let at = entry.inside(&item.at, findings);
                Placed { host, item, at }
            })),
            Err(errors) => {
                complete = false;
                for error in errors {
                    let hint = match &error.fault {
                        RangesFault::Backwards { first, last } => Some(format!("write {last}-{first}")),
                        RangesFault::NoRange { .. } => Some("a list looks like \"0-255, 300, 301@2\"".to_owned()),
                        _ => None,
                    };
                    findings.add(&entry.inside(&error.at, findings), error.to_string(), hint);
                }
            }
        }
    }
    (placed, complete)
}

/// One finding for each two items that share shards, at the later of them.
fn report_overlaps(placed: &[Placed<'_>], shards: ShardCount, findings: &mut Findings<'_>) {
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
    for ((first, second), list) in twice {
        let (mut first, mut second) = (&placed[first], &placed[second]);
        if first.at.start > second.at.start {
            (first, second) = (second, first);
        }
        let (a, b) = (first.item.epoch, second.item.epoch);
        let hint = if a == b {
            "a shard has one host: take it out of one of the two lists".to_owned()
        } else {
            let (newer, older) = if a > b { (first, second) } else { (second, first) };
            let (host, epoch) = (newer.host, newer.item.epoch);
            format!("the larger epoch is the newer: keep it on {host:?} (@{epoch}), take it out of {:?}", older.host)
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

fn report_gaps(placed: &[Placed<'_>], shards: ShardCount, at: &Range<usize>, findings: &mut Findings<'_>) {
    let mut covered = vec![false; usize::from(shards.get())];
    for placed in placed {
        covered[placed.item.first.index()..=placed.item.last.index()].fill(true);
    }
    let missing: Vec<ShardId> = shards.iter().filter(|shard| !covered[shard.index()]).collect();
    if !missing.is_empty() {
        let hint = format!("each of the {shards} shards must be in the list of one host: add them to one");
        findings.add(at, format!("{} on no host", plural(&missing)), Some(hint));
    }
}

/// `shard 7 is` or `shards 1-3, 7 are`.
fn plural(list: &[ShardId]) -> String {
    let text = print_shards(list.iter().copied());
    if list.len() == 1 { format!("shard {text} is") } else { format!("shards {text} are") }
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
    Value::from(text).to_string()
}

/// The text with `old`, the map that stands in it, replaced by `new`. A host without shards keeps its line, with an
/// empty list. `None` when the text does not hold a map.
pub(super) fn edit_map(text: &str, old: &ShardMap, new: &ShardMap) -> Option<String> {
    let document = Document::parse(text).ok()?;
    let map = document.get("map")?.as_table_like()?;
    let placement = map.get("placement")?;
    let lists = placement.as_table_like()?;
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    if old.version() != new.version() {
        edits.push((map.get("version")?.span()?, new.version().to_string()));
    }
    for (name, item) in lists.iter() {
        let host = HostName::new(name).ok()?;
        let ranges = new.ranges(&host);
        if old.ranges(&host) != ranges {
            edits.push((item.span()?, quoted(&ranges)));
        }
    }
    let added: Vec<&HostName> = new.hosts().iter().filter(|host| !lists.contains_key(host.as_str())).collect();
    let lines = match placement {
        Item::Table(table) if !table.is_dotted() && !table.is_implicit() => Some(table),
        _ => None,
    };
    if let Some(table) = lines.filter(|_| !added.is_empty()) {
        let last = lists.iter().filter_map(|(_, item)| item.span()).map(|at| at.end).max();
        let after = last.or_else(|| table.span().map(|at| at.end))?;
        edits.push(new_lines(text, after, last.is_some(), &added, new));
    }
    edits.sort_by_key(|(at, _)| at.start);
    let mut out = text.to_owned();
    for (at, with) in edits.iter().rev() {
        out.replace_range(at.clone(), with);
    }
    // In an inline table, or one of dotted keys, there is no line to add: toml_edit knows how.
    if lines.is_none() && !added.is_empty() {
        let mut document: DocumentMut = out.parse().ok()?;
        let lists = document.get_mut("map")?.get_mut("placement")?.as_table_like_mut()?;
        for host in added {
            lists.insert(host.as_str(), toml_edit::value(new.ranges(host)));
        }
        out = document.to_string();
    }
    Some(out)
}

/// The insertion of lines for hosts behind the line in which `after` lies, indented and ended as that one is.
fn new_lines(
    text: &str,
    after: usize,
    below_entry: bool,
    added: &[&HostName],
    new: &ShardMap,
) -> (Range<usize>, String) {
    let line_end = text[after..].find('\n').map_or(text.len(), |at| after + at + 1);
    let line_start = text[..after].rfind('\n').map_or(0, |at| at + 1);
    let line = &text[line_start..line_end];
    let indent = &line[..line.len() - line.trim_start_matches([' ', '\t']).len()];
    let indent = if below_entry { indent } else { "" };
    let newline = if line.ends_with("\r\n") { "\r\n" } else { "\n" };
    let mut lines = String::new();
    if !line.ends_with('\n') {
        lines.push_str(newline);
    }
    for host in added {
        lines.push_str(&format!("{indent}{host} = {}{newline}", quoted(&new.ranges(host))));
    }
    (line_end..line_end, lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Changes;
    use crate::store::testing::any_map;
    use proptest::prelude::*;

    fn shards(n: u32) -> ShardCount {
        ShardCount::new(n).unwrap()
    }

    fn read(text: &str, n: u32) -> ShardMap {
        parse_map(text, Path::new("x.toml"), shards(n)).unwrap_or_else(|found| panic!("{}", found[0]))
    }

    fn moved(map: &ShardMap, to: &str, list: &[u16]) -> ShardMap {
        let host = HostName::new(to).unwrap();
        let changes: Changes = list
            .iter()
            .map(|n| ShardId::new(*n).unwrap())
            .map(|s| (s, Placement { host: host.clone(), epoch: map.epoch(s).unwrap().next() }))
            .collect();
        map.merged(&changes)
    }

    /// What an edit makes of a text, checked to read as the new map.
    fn edited(text: &str, n: u32, to: &str, list: &[u16]) -> String {
        let old = read(text, n);
        let new = moved(&old, to, list);
        let out = edit_map(text, &old, &new).unwrap();
        assert_eq!(read(&out, n), new, "{out}");
        out
    }

    #[test]
    fn only_what_differs_is_written() {
        let text = "# top\r\n[map]  # the map\r\nversion=1 # counted\r\n[map.placement]\r\n  db1 = '0 - 3'   # old\r\n  db2   = \"4-7\"\r\n\r\n# end";
        assert_eq!(
            edited(text, 8, "db2", &[3]),
            "# top\r\n[map]  # the map\r\nversion=2 # counted\r\n[map.placement]\r\n  db1 = \"0-2\"   # old\r\n  db2   = \"3@2, 4-7\"\r\n\r\n# end"
        );
        assert_eq!(
            edited(text, 8, "db3", &[4, 5, 6, 7]),
            "# top\r\n[map]  # the map\r\nversion=2 # counted\r\n[map.placement]\r\n  db1 = '0 - 3'   # old\r\n  db2   = \"\"\r\n  db3 = \"4-7@2\"\r\n\r\n# end"
        );
    }

    #[test]
    fn every_way_to_write_a_table() {
        for text in [
            "map = { version = 1, placement = { db1 = \"0-7\" } }",
            "map.version = 1\nmap.placement.db1 = \"0-7\"\n",
            "[map]\nversion = 1\nplacement.db1 = \"0-7\"\n",
            "[map]\nversion = 1\nplacement = { db1 = \"0-7\" } # all\n",
            "[map.placement]\ndb1 = \"0-7\"\n[map]\nversion = 1",
            "[map]\nversion = 1\n[map.placement]\ndb1 = \"0-7\"",
            "[map]\nversion = 1\n[map.placement]\ndb1 = \"\"\"\n0-3,\n4-7\"\"\"\n[hosts.db1]\n[hosts.db2]\n",
        ] {
            edited(text, 8, "db1", &[1]);
            let out = edited(text, 8, "db2", &[1, 2]);
            assert_eq!(out.contains('#'), text.contains('#'), "{out}");
        }
    }

    #[test]
    fn a_changed_number_of_shards_is_named() {
        let text = "[cluster]\nshards = 16\n[map]\nversion = 1\n[map.placement]\ndb1 = \"0-15\"\n";
        let found = parse_map(text, Path::new("x.toml"), shards(8)).unwrap_err();
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("cluster.shards is 16"), "{}", found[0]);
    }

    proptest! {
        #[test]
        fn printed_maps_are_read_and_edited(
            map in any_map(),
            moves in prop::collection::vec((0u16..40, 0u8..6), 0..9),
        ) {
            let n = u32::from(map.shards().get());
            let text = print_map(&map);
            prop_assert_eq!(&read(&text, n), &map);
            let mut text = text;
            let mut map = map;
            for (shard, host) in moves {
                if map.shards().shard(shard).is_some() {
                    text = edited(&text, n, &format!("db{host}"), &[shard]);
                    map = moved(&map, &format!("db{host}"), &[shard]);
                }
            }
            prop_assert_eq!(read(&text, n), map);
        }
    }
}
