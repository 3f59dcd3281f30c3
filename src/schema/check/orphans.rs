//! What moves have left on the hosts that no ledger and no journal knows, and signposts that lead
//! nowhere. Pure.
//!
//! Invariant: nothing is called an orphan before every host that could know it has answered.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::finding::{Findings, Severity};
use super::remedy;
use crate::map::HostName;
use crate::schema::survey::facts::{ControlFacts, HostFacts, ShardState, Survey};
use crate::shard::{SchemaPrefix, ShardId};

pub(in crate::schema) fn check(findings: &mut Findings, survey: &Survey, prefix: &SchemaPrefix) {
    let hosts: BTreeMap<&HostName, &HostFacts> = survey
        .iter()
        .filter_map(|(name, facts)| Some((name, facts.as_ref().ok()?)))
        .collect();
    let all_heard = hosts.len() == survey.len();
    // A move's journal is on its source, but its slot and its publication can be on either side.
    let live: BTreeSet<Uuid> = hosts
        .values()
        .filter_map(|facts| facts.control.as_ref())
        .flat_map(|control| control.live_moves.clone())
        .collect();
    let controls = || hosts.values().filter_map(|facts| facts.control.as_ref());
    let served = controls()
        .flat_map(|control| &control.shards)
        .filter(|(_, row)| row.state.is_owner());
    let there: BTreeSet<ShardId> = served
        .map(|(shard, _)| *shard)
        .chain(controls().flat_map(|control| control.incoming.keys().copied()))
        .collect();
    for (host, facts) in &hosts {
        let Some(control) = &facts.control else {
            continue;
        };
        schemas(findings, host, facts, control, prefix);
        if all_heard {
            for slot in facts
                .of_moves
                .slots
                .iter()
                .filter(|name| !is_of(name, &live))
            {
                let what = format!(
                    "the replication slot {slot} belongs to no move, and keeps the server's log"
                );
                let remedy = match is_in_ledger(control, slot) {
                    true => remedy::GC.to_owned(),
                    false => format!("SELECT pg_drop_replication_slot('{slot}')"),
                };
                findings.add(Severity::Warning, "stray_slot", Some(host), what, remedy);
            }
            for publication in facts
                .of_moves
                .publications
                .iter()
                .filter(|name| !is_of(name, &live))
            {
                let what = format!("the publication {publication} belongs to no move");
                let remedy = match is_in_ledger(control, publication) {
                    true => remedy::GC.to_owned(),
                    false => format!("DROP PUBLICATION {}", crate::pg::quote_ident(publication)),
                };
                findings.add(
                    Severity::Warning,
                    "stray_publication",
                    Some(host),
                    what,
                    remedy,
                );
            }
        }
        for (shard, row) in control
            .shards
            .iter()
            .filter(|(_, row)| row.state == ShardState::Moved)
        {
            if !facts.schemas.contains(&row.schema) {
                let what = "it has moved away, but there is no signpost where it was";
                let remedy = "statements that come here by an old map fail, or find another schema \
                    in the search_path: restart the applications that have one; moving the shard \
                    here and away again makes a new signpost";
                findings.add_shard(
                    Severity::Warning,
                    "signpost_missing",
                    Some(host),
                    *shard,
                    what,
                    remedy,
                );
            }
            let end = astray(&hosts, survey, host, *shard);
            // For a host that is not in the config and has a shard that is nowhere else, another
            // finding is more precise.
            if let Some(end) = end.filter(|end| survey.contains_key(*end) || there.contains(shard))
            {
                let (not, remedy) = if survey.contains_key(end) {
                    let remedy = "run `pgshard map rebuild`, so that no application asks here; \
                        then see whether that host was restored or replaced";
                    ("does not know it", remedy)
                } else {
                    let remedy = "run `pgshard bootstrap`, which leads it to where the shard is";
                    ("the config does not name", remedy)
                };
                let what = format!("its signpost leads to {end}, which {not}");
                findings.add_shard(
                    Severity::Warning,
                    "signpost_astray",
                    Some(host),
                    *shard,
                    what,
                    remedy,
                );
            }
        }
    }
}

/// Whether a move has made it here; then the host of its journal has forgotten the move, since it
/// was restored.
fn is_in_ledger(control: &ControlFacts, name: &str) -> bool {
    control.ledger.iter().any(|row| row.name == name)
}

/// Schemas with a name that only moves give, and that are not in the ledger.
fn schemas(
    findings: &mut Findings,
    host: &HostName,
    facts: &HostFacts,
    control: &ControlFacts,
    prefix: &SchemaPrefix,
) {
    let known: BTreeSet<&str> = control.ledger.iter().map(|row| row.name.as_str()).collect();
    for name in facts
        .of_moves
        .schemas
        .iter()
        .filter(|name| !known.contains(name.as_str()))
    {
        let Some(number) = name
            .strip_prefix(prefix.as_str())
            .and_then(|rest| rest.get(..4)?.parse().ok())
        else {
            continue;
        };
        let Some(shard) = ShardId::new(number) else {
            continue;
        };
        let what = format!("the schema {name} looks like a move's, and no ledger has it");
        let remedy = format!(
            "see whether what is in it is still needed, then DROP SCHEMA {} CASCADE",
            crate::pg::quote_ident(name)
        );
        findings.add_shard(
            Severity::Warning,
            "stray_schema",
            Some(host),
            shard,
            what,
            remedy,
        );
    }
}

/// Whether a name is `pgshard_` and the ID of one of these moves, or, where it has no whole ID, its
/// first eight digits: moves that began within a minute have those in common.
fn is_of(name: &str, moves: &BTreeSet<Uuid>) -> bool {
    let name: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect::<String>()
        .to_lowercase();
    let id = name
        .strip_prefix("pgshard")
        .and_then(|rest| rest.get(..32)?.parse::<Uuid>().ok());
    match id {
        Some(id) => moves.contains(&id),
        None => moves
            .iter()
            .any(|id| name.contains(&id.simple().to_string()[..8])),
    }
}

/// Where the signposts of a shard lead to in the end, from this host on, if that host has answered
/// and does not know the shard.
fn astray<'a>(
    hosts: &BTreeMap<&HostName, &'a HostFacts>,
    survey: &Survey,
    from: &HostName,
    shard: ShardId,
) -> Option<&'a HostName> {
    let control = |name: &HostName| hosts.get(name).and_then(|facts| facts.control.as_ref());
    let mut at = control(from)?.shards.get(&shard)?.peer.as_ref()?;
    // No chain is longer than the number of hosts.
    for _ in 0..survey.len() {
        if !survey.contains_key(at) {
            return Some(at);
        }
        let there = control(at)?;
        match there.shards.get(&shard) {
            Some(row) if row.state.is_owner() => return None,
            Some(row) => at = row.peer.as_ref()?,
            None => return (!there.incoming.contains_key(&shard)).then_some(at),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::tables::{host, survey_of};

    fn found(survey: &Survey) -> Vec<String> {
        let mut findings = Findings::default();
        check(&mut findings, survey, &SchemaPrefix::default());
        findings
            .sorted()
            .into_iter()
            .map(|finding| format!("{} {}", finding.code, finding.message))
            .collect()
    }

    #[test]
    fn signposts_that_lead_nowhere_are_found() {
        let survey = |rows: &[(&str, &str)]| survey_of(rows);
        assert_eq!(
            found(&survey(&[("db1", "0 moved 2 db2"), ("db2", "0 serving 2")])),
            [""; 0]
        );
        assert_eq!(
            found(&survey(&[
                ("db1", "0 moved 2 db2"),
                ("db2", "0 incoming 2 db1")
            ])),
            [""; 0]
        );
        assert_eq!(
            found(&survey(&[("db1", "0 moved 2 db2"), ("db2", "down")])),
            [""; 0]
        );
        assert_eq!(
            found(&survey(&[
                ("db1", "0 moved 2 db2"),
                ("db2", "0 moved 3 db3"),
                ("db3", "")
            ])),
            ["signpost_astray shard 0: its signpost leads to db3, which does not know it"; 2]
        );
        assert_eq!(
            found(&survey(&[("db1", "0 moved 2 db9"), ("db2", "0 serving 3")])),
            ["signpost_astray shard 0: its signpost leads to db9, which the config does not name"]
        );
    }

    #[test]
    fn leavings_of_moves_are_found() {
        let mut survey = survey_of(&[("db1", "0 serving 1"), ("db2", "")]);
        let id = Uuid::from_u128(0x1234_5678 << 96);
        {
            let facts = survey.get_mut("db1").unwrap().as_mut().unwrap();
            facts.of_moves.schemas = ["shard_0003__left_e1", "other_0003__incoming"]
                .map(str::to_owned)
                .into();
            facts.of_moves.slots = vec!["pgshard_12345678_f".to_owned(), "pgshard_9".to_owned()];
            facts.of_moves.publications = vec!["pgshard_old".to_owned()];
        }
        survey
            .get_mut("db2")
            .unwrap()
            .as_mut()
            .unwrap()
            .control
            .as_mut()
            .unwrap()
            .live_moves
            .insert(id);
        let said = found(&survey);
        let codes: Vec<&str> = said
            .iter()
            .map(|line| line.split(' ').next().unwrap())
            .collect();
        assert_eq!(
            codes,
            ["stray_publication", "stray_schema", "stray_slot"],
            "{said:?}"
        );
        survey.insert(
            host("db3"),
            survey_of(&[("db3", "down")]).remove("db3").unwrap(),
        );
        assert_eq!(found(&survey).len(), 1);
    }

    #[test]
    fn names_of_moves_that_began_in_one_minute() {
        let [first, second] = [
            0x0193_0000_0000_7000_8000_0000_0000_0001,
            0x0193_0000_0000_7000_8000_0000_0000_0002,
        ]
        .map(Uuid::from_u128);
        let live = BTreeSet::from([first]);
        assert!(is_of(
            &format!("pgshard_{}_back_82e64648", first.simple()),
            &live
        ));
        assert!(!is_of(
            &format!("pgshard_{}_back_82e64648", second.simple()),
            &live
        ));
        assert!(is_of("pgshard_01930000_x", &live));
    }
}
