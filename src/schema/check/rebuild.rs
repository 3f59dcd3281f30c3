//! The shard map according to the hosts. Pure.
//!
//! Invariant: of two reports about a shard the one with the larger epoch counts, and where the
//! hosts report nothing the map is kept. A host that cannot be read keeps its shards, unless
//! another shows a later epoch. A host's own report is not enough against another host that answers
//! and serves the shard. If hosts contradict each other about a shard, or its epoch is one that no
//! move can have led to, the map does not change, and an alarm is raised.

use std::collections::BTreeMap;

use super::finding::{Finding, Findings, Severity};
use super::remedy::REPAIR;
use crate::map::{Change, HostName, MapVersion, Placement, ShardEpoch, ShardMap};
use crate::schema::check::{Departure, jumped, went_back};
use crate::schema::survey::facts::{ShardState, Survey};
use crate::schema::survey::host_records::HostRecords;
use crate::shard::{ShardCount, ShardId};

/// A map rebuilt from the reports of the hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Rebuilt {
    /// The map: the next version, or the same one if nothing differs.
    pub map: ShardMap,
    /// What differs, in the order of the shards.
    pub changes: Vec<Change>,
    /// What could not be determined, or is wrong.
    pub notes: Vec<Finding>,
}

/// A host's report about the owner of a shard.
struct Claim<'a> {
    epoch: ShardEpoch,
    /// Whether it is the owner's own report; otherwise it is from the host that gave the shard
    /// away.
    first_hand: bool,
    /// Who owns it.
    host: &'a HostName,
    /// The reporting host.
    from: &'a HostName,
}

/// Corrects a map by the reports of the hosts. A row `moved` that names a host which has not opened
/// the shard yet means that host: the move is decided, and the next router or mover that comes by
/// opens the shard.
pub fn rebuild_map(map: &ShardMap, survey: &Survey) -> Rebuilt {
    let mut notes = Findings::default();
    let mut claims: BTreeMap<ShardId, Vec<Claim<'_>>> = BTreeMap::new();
    for (from, facts) in survey {
        let Ok(facts) = facts else { continue };
        for (shard, row) in facts.control.iter().flat_map(|control| &control.shards) {
            let (host, first_hand) = match (row.state, &row.peer) {
                (ShardState::Moved, Some(peer)) => (peer, false),
                (ShardState::Moved, None) => continue,
                (ShardState::Serving | ShardState::Fenced, _) => (from, true),
            };
            if survey.contains_key(host) {
                claims.entry(*shard).or_default().push(Claim {
                    epoch: row.epoch,
                    first_hand,
                    host,
                    from,
                });
            } else {
                let what = format!(
                    "it has moved to {host} (epoch {}), which the config does not name",
                    row.epoch
                );
                let remedy = format!("add {host} to the config");
                notes.add_shard(Severity::Error, "unknown_host", None, *shard, what, remedy);
            }
        }
    }
    let known = HostRecords::of_survey(survey);
    let placements = map.iter().map(|(shard, host, epoch)| {
        let was = Placement {
            host: host.clone(),
            epoch,
        };
        let claims = claims.remove(&shard).unwrap_or_default();
        (
            shard,
            judge(shard, was, &claims, survey, &known, &mut notes),
        )
    });
    let placements: Vec<_> = placements.collect();
    let rebuilt = ShardMap::new(map.version().next(), map.shards(), placements)
        .expect("every shard of a map was given one placement");
    let changes = map.diff(&rebuilt);
    let map = if changes.is_empty() {
        map.clone()
    } else {
        rebuilt
    };
    Rebuilt {
        map,
        changes,
        notes: notes.sorted(),
    }
}

/// The map as the hosts have it, where no other map is left: each shard is where its owner or the
/// host that gave it away reports it, or else where it was last by the records that the hosts keep
/// of each other. Everything has the first version.
///
/// # Errors
/// The shards of which no host that answers knows anything.
pub fn map_of_hosts(shards: ShardCount, survey: &Survey) -> Result<ShardMap, Vec<ShardId>> {
    let known = HostRecords::of_survey(survey);
    let mut best: BTreeMap<ShardId, (ShardEpoch, bool, &HostName)> = BTreeMap::new();
    for (from, facts) in survey {
        let Ok(facts) = facts else { continue };
        for (shard, row) in facts.control.iter().flat_map(|control| &control.shards) {
            let owner = row.state.is_owner();
            let Some(host) = (if owner { Some(from) } else { row.peer.as_ref() }) else {
                continue;
            };
            if survey.contains_key(host) {
                let claim = (row.epoch, owner, host);
                best.entry(*shard)
                    .and_modify(|known| *known = (*known).max(claim))
                    .or_insert(claim);
            }
        }
    }
    let place = |shard: ShardId| match best.get(&shard) {
        Some((epoch, _, host)) => Ok((
            shard,
            Placement {
                host: (*host).clone(),
                epoch: *epoch,
            },
        )),
        None => match known
            .last(shard)
            .filter(|last| survey.contains_key(last.host))
        {
            Some(last) => Ok((
                shard,
                Placement {
                    host: last.host.clone(),
                    epoch: last.epoch,
                },
            )),
            None => Err(shard),
        },
    };
    let (placed, unknown): (Vec<_>, Vec<_>) = shards.iter().map(place).partition(Result::is_ok);
    if !unknown.is_empty() {
        return Err(unknown.into_iter().filter_map(Result::err).collect());
    }
    let placed = placed.into_iter().filter_map(Result::ok);
    Ok(ShardMap::new(MapVersion::FIRST, shards, placed).expect("every shard has one placement"))
}

fn judge(
    shard: ShardId,
    was: Placement,
    claims: &[Claim<'_>],
    survey: &Survey,
    known: &HostRecords<'_>,
    notes: &mut Findings,
) -> Placement {
    let silent = !matches!(survey.get(&was.host), Some(Ok(_)));
    let Some(best) = claims
        .iter()
        .max_by_key(|claim| (claim.epoch, claim.first_hand))
    else {
        if silent {
            let what = "the host was not asked, the map keeps what it said";
            let remedy = "run `pgshard map rebuild` again when it answers";
            notes.add_shard(
                Severity::Notice,
                "kept",
                Some(&was.host),
                shard,
                what,
                remedy,
            );
        } else if let Some(last) = known.lost(shard) {
            let what = format!(
                "{} knows that it was on {}, and no host serves it; the map keeps what it said",
                last.by, last.host
            );
            notes.add_shard(
                Severity::Alarm,
                "shard_lost",
                Some(last.host),
                shard,
                what,
                "run `pgshard check`",
            );
        } else {
            let (what, remedy) = (
                "no host serves it, the map keeps what it said",
                "run `pgshard check`",
            );
            notes.add_shard(
                Severity::Error,
                "served_nowhere",
                Some(&was.host),
                shard,
                what,
                remedy,
            );
        }
        return was;
    };
    if silent && best.epoch <= was.epoch && *best.host != was.host {
        let what =
            "the host was not asked and no other shows a later epoch, the map keeps what it said";
        let remedy = "run `pgshard map rebuild` again when it answers";
        notes.add_shard(
            Severity::Notice,
            "kept",
            Some(&was.host),
            shard,
            what,
            remedy,
        );
        return was;
    }
    let others = claims
        .iter()
        .filter(|claim| claim.from != best.from)
        .map(|claim| claim.epoch);
    if best.epoch.jumps(others.fold(was.epoch, ShardEpoch::max)) {
        let (what, remedy) = jumped(best.from, best.epoch, was.epoch);
        notes.add_shard(
            Severity::Alarm,
            "epoch_jump",
            Some(best.from),
            shard,
            what,
            remedy,
        );
        return was;
    }
    let owners: Vec<&Claim<'_>> = claims.iter().filter(|claim| claim.first_hand).collect();
    match owners[..] {
        [owner, other, ..] => {
            let what = format!(
                "{} (epoch {}) and {} (epoch {}) both serve it, the map keeps what it said",
                owner.host, owner.epoch, other.host, other.epoch
            );
            notes.add_shard(Severity::Alarm, "served_twice", None, shard, what, REPAIR);
            was
        }
        // It reports itself as serving the shard, at an epoch before another gave it away.
        [owner] if owner.epoch < best.epoch => {
            let given = Departure {
                epoch: best.epoch,
                from: best.from,
                to: best.host,
            };
            let (what, remedy) = went_back(owner.host, owner.epoch, given);
            notes.add_shard(
                Severity::Alarm,
                "went_back",
                Some(owner.host),
                shard,
                what,
                remedy,
            );
            was
        }
        _ => Placement {
            host: best.host.clone(),
            epoch: best.epoch,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::tables::{map_of, survey_of};

    #[test]
    fn the_hosts_are_the_truth() {
        // The map, the hosts' reports, the rebuilt map, and the notes.
        for (was, hosts, now, notes) in [
            ("db1", vec![("db1", "0 serving 1")], "db1", vec![]),
            (
                "db1",
                vec![("db1", "0 fenced 1 db2"), ("db2", "0 incoming 2 db1")],
                "db1",
                vec![],
            ),
            (
                "db1",
                vec![("db1", "0 moved 2 db2"), ("db2", "0 serving 2")],
                "db2@2",
                vec![],
            ),
            (
                "db1",
                vec![("db1", "0 moved 2 db2"), ("db2", "0 incoming 2 db1")],
                "db2@2",
                vec![],
            ),
            (
                "db1",
                vec![("db1", "0 moved 2 db2"), ("db2", "down")],
                "db2@2",
                vec![],
            ),
            (
                "db1",
                vec![("db1", "0 moved 2 db2"), ("db2", "0 moved 3 db1")],
                "db1@3",
                vec![],
            ),
            // A map from the future, or a host from the past: the hosts are right.
            (
                "db1@9",
                vec![("db1", "0 serving 2"), ("db2", "")],
                "db1@2",
                vec![],
            ),
            (
                "db2@9",
                vec![("db1", "0 serving 2"), ("db2", "")],
                "db1@2",
                vec![],
            ),
            // A host that was not read keeps its shards, unless another shows a later epoch.
            (
                "db2@2",
                vec![("db1", ""), ("db2", "down")],
                "db2@2",
                vec!["kept"],
            ),
            (
                "db2@2",
                vec![("db1", "0 serving 1"), ("db2", "down")],
                "db2@2",
                vec!["kept"],
            ),
            (
                "db2@2",
                vec![("db1", "0 moved 2 db2"), ("db2", "down")],
                "db2@2",
                vec![],
            ),
            (
                "db2@2",
                vec![("db1", "0 serving 3"), ("db2", "down")],
                "db1@3",
                vec![],
            ),
            // An owner that was restored to before the move that brought it the shard.
            (
                "db1@3",
                vec![("db1", "0 serving 1"), ("db2", "0 moved 3 db1")],
                "db1@3",
                vec!["went_back"],
            ),
            (
                "db2@2",
                vec![("db1", "0 serving 1"), ("db2", "0 moved 3 db1")],
                "db2@2",
                vec!["went_back"],
            ),
            // No host serves it, two do, or a host that the config does not have does.
            (
                "db1",
                vec![("db1", ""), ("db2", "")],
                "db1",
                vec!["served_nowhere"],
            ),
            (
                "db1",
                vec![("db1", ""), ("db2", "0 knows db1 1")],
                "db1",
                vec!["shard_lost"],
            ),
            (
                "db1",
                vec![("db1", ""), ("db2", "0 knows db9 1")],
                "db1",
                vec!["shard_lost"],
            ),
            // A host reports that it serves what another serves; that another has it; that there
            // were a million moves.
            (
                "db1",
                vec![("db1", "0 serving 2"), ("db2", "0 serving 3")],
                "db1",
                vec!["served_twice"],
            ),
            (
                "db2",
                vec![("db1", "0 serving 2"), ("db2", "0 serving 2")],
                "db2",
                vec!["served_twice"],
            ),
            (
                "db1",
                vec![
                    ("db1", "0 serving 1"),
                    ("db2", "0 moved 3 db3"),
                    ("db3", ""),
                ],
                "db1",
                vec!["went_back"],
            ),
            (
                "db1",
                vec![
                    ("db1", "0 serving 1"),
                    ("db2", "0 moved 3 db3"),
                    ("db3", "down"),
                ],
                "db1",
                vec!["went_back"],
            ),
            (
                "db1",
                vec![("db1", "0 serving 1"), ("db2", "0 serving 2147483647")],
                "db1",
                vec!["epoch_jump"],
            ),
            (
                "db1",
                vec![("db1", "down"), ("db2", "0 serving 2147483647")],
                "db1",
                vec!["epoch_jump"],
            ),
            (
                "db1",
                vec![("db1", "0 serving 2147483647"), ("db2", "")],
                "db1",
                vec!["epoch_jump"],
            ),
            (
                "db1",
                vec![("db1", "0 moved 2 db7")],
                "db1",
                vec!["unknown_host", "shard_lost"],
            ),
        ] {
            let map = map_of(&[was]);
            let rebuilt = rebuild_map(&map, &survey_of(&hosts));
            assert_eq!(
                rebuilt.changes,
                map.diff(&map_of(&[now])),
                "{was} {hosts:?}"
            );
            assert_eq!(map.diff(&rebuilt.map), rebuilt.changes);
            assert_eq!(
                rebuilt.map.version() == map.version(),
                rebuilt.changes.is_empty()
            );
            let mut codes: Vec<_> = rebuilt.notes.iter().map(|note| note.code).collect();
            codes.sort_unstable();
            let mut expected = notes.clone();
            expected.sort_unstable();
            assert_eq!(codes, expected, "{was} {hosts:?}");
        }
    }

    #[test]
    fn a_rebuilt_map_is_not_rebuilt_again() {
        let hosts = [
            ("db1", "0 serving 1, 1 moved 4 db2, 2 fenced 2 db2"),
            ("db2", "1 incoming 4 db1"),
            ("db3", "down"),
        ];
        let survey = survey_of(&hosts);
        let once = rebuild_map(&map_of(&["db2", "db1", "db1", "db3"]), &survey);
        assert_eq!(once.changes.len(), 3);
        let again = rebuild_map(&once.map, &survey);
        assert_eq!((again.changes.len(), again.map), (0, once.map));
    }
}
