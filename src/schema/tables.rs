//! Writes the facts of hosts as text, for the tests of pure functions.

use std::collections::BTreeSet;

use uuid::Uuid;

use crate::map::{HostName, MapVersion, Placement, ShardEpoch, ShardMap};
use crate::pg::ConnectError;
use crate::schema::survey::facts::{
    FactsError, HostFacts, IncomingRow, ShardRow, ShardState, Survey,
};
use crate::schema::survey::host_records::record;
use crate::schema::survey::refusal::tests::facts;
use crate::shard::{SchemaPrefix, ShardCount, ShardId};

pub(crate) fn host(name: &str) -> HostName {
    HostName::new(name).unwrap()
}

pub(crate) fn shard(number: u16) -> ShardId {
    ShardId::new(number).unwrap()
}

pub(crate) fn epoch(number: u32) -> ShardEpoch {
    ShardEpoch::new(number).unwrap()
}

/// A bootstrapped host with these rows: `0 serving 1`, `0 moved 2 db2`, `0 fenced 1 db2 late`,
/// `0 incoming 2 db1`, and `0 moving` for a move away in its journal, `0 knows db2 1` for its
/// record of another host.
pub(crate) fn facts_of(name: &str, rows: &str) -> HostFacts {
    let mut facts = facts(name);
    let control = facts.control.as_mut().unwrap();
    for row in rows.split(',').map(str::trim).filter(|row| !row.is_empty()) {
        let words: Vec<&str> = row.split(' ').collect();
        let number = shard(words[0].parse().unwrap());
        let at = || epoch(words[2].parse().unwrap());
        let peer = words.get(3).map(|name| host(name));
        let schema = SchemaPrefix::default().schema(number);
        let state = match words[1] {
            "serving" => ShardState::Serving,
            "fenced" => ShardState::Fenced,
            "moved" => ShardState::Moved,
            "knows" => {
                control
                    .known
                    .entry(host(words[2]))
                    .or_default()
                    .insert(number, epoch(words[3].parse().unwrap()));
                continue;
            }
            "moving" => {
                control.moving.insert(number);
                continue;
            }
            "incoming" => {
                let row = IncomingRow {
                    move_id: Uuid::nil(),
                    source: peer.unwrap(),
                    epoch: at(),
                    ready: true,
                };
                control.incoming.insert(number, row);
                continue;
            }
            other => panic!("{other}"),
        };
        let left = if words.contains(&"late") {
            -1.0
        } else {
            1000.0
        };
        let fence_left_ms = (state == ShardState::Fenced).then_some(left);
        facts.schemas.insert(schema.clone());
        let row = ShardRow {
            schema,
            state,
            epoch: at(),
            peer,
            move_id: None,
            fence_left_ms,
            fence_ago_ms: None,
        };
        control.shards.insert(number, row);
    }
    facts
}

/// Hosts with their rows, `down` for one that could not be reached, `empty` for one that was never
/// bootstrapped.
pub(crate) fn survey_of(hosts: &[(&str, &str)]) -> Survey {
    let facts = |name: &str, rows: &str| match rows {
        "down" => {
            let source = ConnectError::TimedOut {
                to: "app@there/app".to_owned(),
                timeout_ms: 5,
            };
            Err(FactsError::Unreachable { source })
        }
        "empty" => {
            let mut facts = facts(name);
            (facts.control, facts.server.has_pgshard) = (None, false);
            Ok(facts)
        }
        _ => Ok(facts_of(name, rows)),
    };
    let mut survey: Survey = hosts
        .iter()
        .map(|(name, rows)| (host(name), facts(name, rows)))
        .collect();
    // Each has recorded the current state of all.
    let said = survey
        .iter()
        .filter_map(|(name, facts)| Some((name, facts.as_ref().ok()?.control.as_ref()?)));
    let known = record(said, &BTreeSet::new());
    for facts in survey
        .values_mut()
        .filter_map(|facts| facts.as_mut().ok()?.control.as_mut())
    {
        facts.known = known.clone();
    }
    survey
}

/// A map of the shards 0, 1, …: `db1`, `db2@3`.
pub(crate) fn map_of(placements: &[&str]) -> ShardMap {
    let placed = placements.iter().enumerate().map(|(number, text)| {
        let (name, at) = text.split_once('@').unwrap_or((text, "1"));
        (
            shard(number as u16),
            Placement {
                host: host(name),
                epoch: epoch(at.parse().unwrap()),
            },
        )
    });
    ShardMap::new(
        MapVersion::FIRST,
        ShardCount::new(placements.len() as u32).unwrap(),
        placed,
    )
    .unwrap()
}
