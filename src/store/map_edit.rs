//! A new map written into the text of a config.
//!
//! Invariant: the bytes of the values that differ are changed and no others, so that comments,
//! formatting and line ends are kept.

use std::ops::Range;

use toml_edit::{Document, DocumentMut, Item};

use super::map_text::quoted;
use crate::map::{HostName, ShardMap};

/// The text with `old`, the map that it contains, replaced by `new`. A host without shards keeps
/// its line, with an empty list. `None` when the text contains no map.
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
    let added: Vec<&HostName> = new
        .hosts()
        .iter()
        .filter(|host| !lists.contains_key(host.as_str()))
        .collect();
    let lines = match placement {
        Item::Table(table) if !table.is_dotted() && !table.is_implicit() => Some(table),
        _ => None,
    };
    if let Some(table) = lines.filter(|_| !added.is_empty()) {
        let last = lists
            .iter()
            .filter_map(|(_, item)| item.span())
            .map(|at| at.end)
            .max();
        let after = last.or_else(|| table.span().map(|at| at.end))?;
        edits.push(new_lines(text, after, last.is_some(), &added, new));
    }
    edits.sort_by_key(|(at, _)| at.start);
    let mut out = text.to_owned();
    for (at, with) in edits.iter().rev() {
        out.replace_range(at.clone(), with);
    }
    // An inline table, or one of dotted keys, has no place for a new line. toml_edit adds the host
    // there.
    if lines.is_none() && !added.is_empty() {
        let mut document: DocumentMut = out.parse().ok()?;
        let lists = document
            .get_mut("map")?
            .get_mut("placement")?
            .as_table_like_mut()?;
        for host in added {
            lists.insert(host.as_str(), toml_edit::value(new.ranges(host)));
        }
        out = document.to_string();
    }
    Some(out)
}

/// The insertion of lines for hosts behind the line in which `after` lies, indented and ended as
/// that one is.
fn new_lines(
    text: &str,
    after: usize,
    below_entry: bool,
    added: &[&HostName],
    new: &ShardMap,
) -> (Range<usize>, String) {
    let line_end = text[after..]
        .find('\n')
        .map_or(text.len(), |at| after + at + 1);
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
        lines.push_str(&format!(
            "{indent}{host} = {}{newline}",
            quoted(&new.ranges(host))
        ));
    }
    (line_end..line_end, lines)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::map::{Changes, Placement};
    use crate::store::map_text::{parse_map, print_map};
    use crate::store::testing::any_map;
    use crate::{ShardCount, ShardId};
    use proptest::prelude::*;

    fn read(text: &str, n: u32) -> ShardMap {
        parse_map(text, Path::new("x.toml"), ShardCount::new(n).unwrap())
            .unwrap_or_else(|found| panic!("{}", found[0]))
    }

    fn moved(map: &ShardMap, to: &str, list: &[u16]) -> ShardMap {
        let host = HostName::new(to).unwrap();
        let changes: Changes = list
            .iter()
            .map(|n| ShardId::new(*n).unwrap())
            .map(|s| {
                (
                    s,
                    Placement {
                        host: host.clone(),
                        epoch: map.epoch(s).unwrap().next(),
                    },
                )
            })
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
        let text = "# top\r\n[map]  # the map\r\nversion=1 # counted\r\n[map.placement]\r\n  db1 = \
            '0 - 3'   # old\r\n  db2   = \"4-7\"\r\n\r\n# end";
        assert_eq!(
            edited(text, 8, "db2", &[3]),
            "# top\r\n[map]  # the map\r\nversion=2 # counted\r\n[map.placement]\r\n  db1 = \
                \"0-2\"   # old\r\n  db2   = \"3@2, 4-7\"\r\n\r\n# end"
        );
        assert_eq!(
            edited(text, 8, "db3", &[4, 5, 6, 7]),
            "# top\r\n[map]  # the map\r\nversion=2 # counted\r\n[map.placement]\r\n  db1 = '0 - \
                3'   # old\r\n  db2   = \"\"\r\n  db3 = \"4-7@2\"\r\n\r\n# end"
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
            "[map]\nversion = 1\n[map.placement]\ndb1 = \
                \"\"\"\n0-3,\n4-7\"\"\"\n[hosts.db1]\n[hosts.db2]\n",
        ] {
            edited(text, 8, "db1", &[1]);
            let out = edited(text, 8, "db2", &[1, 2]);
            assert_eq!(out.contains('#'), text.contains('#'), "{out}");
        }
    }

    proptest! {
        #[test]
        fn edited_maps_are_read(
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
