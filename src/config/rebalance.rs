//! What `pgshard rebalance` goes by: `[rebalance]`, and the keys of hosts about their share.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::map::{HostLimits, HostName, parse_shards};
use crate::shard::{ShardCount, ShardId};
use crate::store::Findings;
use crate::store::section::{Entry, Section, similar};

/// Where shards may be, in addition to the limits of each host. Only `rebalance` and `drain` use
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebalance {
    /// Shards that belong on a host.
    pub pinned: BTreeMap<ShardId, HostName>,
    /// Sets of shards of which no two may be on one host.
    pub apart: Vec<BTreeSet<ShardId>>,
}

const PINNED_HINT: &str = "write [rebalance.pinned] with lines such as db1 = \"5, 7-9\"";
const APART_HINT: &str = "write apart = [\"1, 2, 3\", \"17, 900\"]: a list of shards for each set";

/// Reads `[rebalance]`. Without `shards` (because they are wrong themselves) any number is taken.
pub(super) fn read(
    section: &Section<'_>,
    shards: Option<ShardCount>,
    hosts: Option<&[&str]>,
    findings: &mut Findings<'_>,
) -> Rebalance {
    section.only(&["pinned", "apart"], findings);
    let shards = shards.unwrap_or(ShardCount::MAX);
    let mut rebalance = Rebalance::default();
    if let Some(entry) = section.get("pinned") {
        if entry.as_table().is_none() {
            let message = "rebalance.pinned must be a table of hosts";
            findings.add(&entry.at(), message, Some(PINNED_HINT.to_owned()));
        } else if let Some(pinned) = entry.section(findings) {
            read_pinned(&pinned, shards, hosts, &mut rebalance, findings);
        }
    }
    if let Some(entry) = section.get("apart") {
        read_apart(&entry, shards, &mut rebalance, findings);
    }
    report_unmeetable(section, hosts, &rebalance, findings);
    rebalance
}

fn read_pinned(
    section: &Section<'_>,
    shards: ShardCount,
    hosts: Option<&[&str]>,
    rebalance: &mut Rebalance,
    findings: &mut Findings<'_>,
) {
    for entry in section.entries() {
        let host = entry.name();
        if let Some(hosts) = hosts.filter(|hosts| !hosts.contains(&host)) {
            let hint = similar(host, hosts)
                .unwrap_or_else(|| format!("the hosts are {}", hosts.join(", ")));
            findings.add(
                &entry.key_at(),
                format!("unknown host {host:?} in [rebalance.pinned]"),
                Some(hint),
            );
        }
        let Some(text) = entry.string(findings) else {
            continue;
        };
        let place = entry.text_place(findings);
        let list = read_list(text, shards, |at| place.part(at), findings);
        let Ok(host) = HostName::new(host) else {
            continue;
        };
        for shard in list {
            if let Some(other) = rebalance
                .pinned
                .insert(shard, host.clone())
                .filter(|other| *other != host)
            {
                let message = format!("shard {shard} is pinned to {other} and to {host}");
                let hint =
                    "it can be on one host only: take it out of one of the two lists".to_owned();
                findings.add(&entry.at(), message, Some(hint));
            }
        }
    }
}

fn read_apart(
    entry: &Entry<'_>,
    shards: ShardCount,
    rebalance: &mut Rebalance,
    findings: &mut Findings<'_>,
) {
    let Some(sets) = entry.as_array() else {
        findings.add(
            &entry.at(),
            "rebalance.apart must be an array of strings",
            Some(APART_HINT.to_owned()),
        );
        return;
    };
    for set in sets {
        let at = set.span();
        let Some(text) = set.get_ref().as_str() else {
            let message = format!(
                "a set of rebalance.apart must be a string, not {}",
                set.get_ref().type_str()
            );
            findings.add(&at, message, Some(APART_HINT.to_owned()));
            continue;
        };
        // The place is behind the quote, if the value is nothing but the text between two quotes.
        let plain = at.len() == text.len() + 2;
        let part = |range: &Range<usize>| {
            if plain {
                at.start + 1 + range.start..at.start + 1 + range.end
            } else {
                at.clone()
            }
        };
        let before = findings.count();
        let list: BTreeSet<ShardId> = read_list(text, shards, part, findings)
            .into_iter()
            .collect();
        if list.len() < 2 && findings.count() == before {
            let message = "a set of rebalance.apart needs two shards or more";
            findings.add(&at, message, Some(APART_HINT.to_owned()));
        }
        rebalance.apart.push(list);
    }
}

fn read_list(
    text: &str,
    shards: ShardCount,
    place: impl Fn(&Range<usize>) -> Range<usize>,
    findings: &mut Findings<'_>,
) -> Vec<ShardId> {
    parse_shards(text, shards).unwrap_or_else(|errors| {
        for error in errors {
            let hint = "a list looks like \"5, 7-9\"".to_owned();
            findings.add(&place(&error.at), error.to_string(), Some(hint));
        }
        Vec::new()
    })
}

/// Sets that no placement can keep apart: more shards than hosts, or two pinned to one host.
fn report_unmeetable(
    section: &Section<'_>,
    hosts: Option<&[&str]>,
    rebalance: &Rebalance,
    findings: &mut Findings<'_>,
) {
    let Some(entry) = section.get("apart") else {
        return;
    };
    for set in &rebalance.apart {
        if let Some(hosts) = hosts.filter(|hosts| set.len() > hosts.len()) {
            let message = format!(
                "{} shards cannot be kept apart on {} hosts",
                set.len(),
                hosts.len()
            );
            findings.add(
                &entry.at(),
                message,
                Some("add hosts, or make the set smaller".to_owned()),
            );
        }
        let mut taken: BTreeMap<&HostName, ShardId> = BTreeMap::new();
        for (shard, host) in set
            .iter()
            .filter_map(|shard| Some((*shard, rebalance.pinned.get(shard)?)))
        {
            if let Some(other) = taken.insert(host, shard) {
                let message = format!(
                    "shards {other} and {shard} are to be kept apart, and both are pinned to {host}"
                );
                findings.add(&entry.at(), message, Some("let one of them go".to_owned()));
            }
        }
    }
}

/// The keys of a host that [`read_limits`] reads.
pub(super) const HOST_KEYS: [&str; 3] = ["weight", "max_shards", "max_bytes"];

/// A host's share and limits; the defaults where something is wrong with them.
pub(super) fn read_limits(section: &Section<'_>, findings: &mut Findings<'_>) -> HostLimits {
    let mut limits = HostLimits::default();
    if let Some(entry) = section.get("weight") {
        let given = entry.as_number();
        match given {
            None => entry.wrong_type("a number", findings),
            Some(weight) if weight == 0.0 || (1e-6..=1e6).contains(&weight) => {
                limits.weight = weight
            }
            Some(weight) => {
                let hint = "with 2 a host gets twice what one with 1 gets, with 0 nothing; the \
                    default is 1"
                    .to_owned();
                findings.add(
                    &entry.at(),
                    format!("weight must be 0 to 1000000, not {weight}"),
                    Some(hint),
                );
            }
        }
    }
    limits.shards_max = section.get("max_shards").and_then(|entry| {
        let number = entry.integer(findings)?;
        let max = u32::try_from(number).ok();
        if max.is_none() {
            let hint = "leave it out if there is no limit".to_owned();
            findings.add(
                &entry.at(),
                format!("max_shards cannot be {number}"),
                Some(hint),
            );
        }
        max
    });
    limits.bytes_max = section
        .get("max_bytes")
        .and_then(|entry| read_bytes(&entry, findings));
    limits
}

const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// A size: a number of bytes, or text with a unit.
fn read_bytes(entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<u64> {
    let bytes = match entry.as_integer() {
        Some(number) => u64::try_from(number).ok(),
        None => parse_bytes(entry.string(findings)?),
    };
    if bytes.is_none() {
        let hint = "write it like \"500 GB\" or \"1.5 TiB\", or as a number of bytes".to_owned();
        findings.add(
            &entry.at(),
            format!("{} is not a size", entry.name()),
            Some(hint),
        );
    }
    bytes
}

/// A size with its unit, as the config has it: `500 GB`, `1.5TiB`.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let unit = text[end..].trim();
    let (_, size) = UNITS
        .into_iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    let bytes = number * size as f64;
    // Above that an f64 no longer counts single bytes, and no disk is that large.
    (bytes < (1u64 << 53) as f64).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_limits() {
        assert_eq!(parse_bytes("500 GB"), Some(500_000_000_000));
        assert_eq!(parse_bytes("1.5TiB"), Some(1_649_267_441_664));
        assert_eq!(parse_bytes("7b"), Some(7));
        for wrong in ["", "GB", "500", "5 XB", "-1 GB", "1..5 GB", "9999999 TB"] {
            assert_eq!(parse_bytes(wrong), None, "{wrong}");
        }
    }
}
