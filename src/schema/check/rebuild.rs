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
use crate::map::{Change, MapVersion, Placement, ShardEpoch, ShardMap};
use crate::schema::check::{jumped, went_back};
use crate::schema::survey::facts::Survey;
use crate::schema::survey::host_records::HostRecords;
use crate::schema::survey::ownership::{Ownership, Statement, settle};
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

/// Corrects a map by the reports of the hosts. A row `moved` that names a host which has not opened
/// the shard yet means that host: the move is decided, and the next router or mover that comes by
/// opens the shard.
pub fn rebuild_map(map: &ShardMap, survey: &Survey) -> Rebuilt {
    let mut notes = Findings::default();
    let mut claims: BTreeMap<ShardId, Vec<Statement<'_>>> = BTreeMap::new();
    for (shard, claim) in statements(survey) {
        let Statement { owner, epoch, .. } = claim;
        if survey.contains_key(owner) {
            claims.entry(shard).or_default().push(claim);
        } else {
            let what =
                format!("it has moved to {owner} (epoch {epoch}), which the config does not name");
            let remedy = format!("add {owner} to the config");
            notes.add_shard(Severity::Error, "unknown_host", None, shard, what, remedy);
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
    let mut best: BTreeMap<ShardId, Statement<'_>> = BTreeMap::new();
    for (shard, claim) in statements(survey).filter(|(_, claim)| survey.contains_key(claim.owner)) {
        let known = best.entry(shard).or_insert(claim);
        *known = (*known).max(claim);
    }
    let place = |shard: ShardId| {
        let recorded = || {
            let last = known.last(shard)?;
            survey.contains_key(last.owner).then_some(last)
        };
        match best.get(&shard).copied().or_else(recorded) {
            Some(claim) => Ok((shard, placement(claim))),
            None => Err(shard),
        }
    };
    let (placed, unknown): (Vec<_>, Vec<_>) = shards.iter().map(place).partition(Result::is_ok);
    if !unknown.is_empty() {
        return Err(unknown.into_iter().filter_map(Result::err).collect());
    }
    let placed = placed.into_iter().filter_map(Result::ok);
    Ok(ShardMap::new(MapVersion::FIRST, shards, placed).expect("every shard has one placement"))
}

/// What the hosts that answer state about shards.
fn statements(survey: &Survey) -> impl Iterator<Item = (ShardId, Statement<'_>)> {
    let read = survey
        .iter()
        .filter_map(|(by, facts)| Some((by, facts.as_ref().ok()?.control.as_ref()?)));
    read.flat_map(|(by, control)| {
        let rows = control.shards.iter();
        rows.filter_map(move |(shard, row)| Some((*shard, Statement::of(by, row)?)))
    })
}

fn placement(claim: Statement<'_>) -> Placement {
    Placement {
        host: claim.owner.clone(),
        epoch: claim.epoch,
    }
}

fn judge(
    shard: ShardId,
    was: Placement,
    claims: &[Statement<'_>],
    survey: &Survey,
    known: &HostRecords<'_>,
    notes: &mut Findings,
) -> Placement {
    let silent = !matches!(survey.get(&was.host), Some(Ok(_)));
    let Some(best) = claims.iter().max() else {
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
                last.by, last.owner
            );
            notes.add_shard(
                Severity::Alarm,
                "shard_lost",
                Some(last.owner),
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
    if silent && best.epoch <= was.epoch && *best.owner != was.host {
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
        .filter(|claim| claim.by != best.by)
        .map(|claim| claim.epoch);
    if best.epoch.jumps(others.fold(was.epoch, ShardEpoch::max)) {
        let (what, remedy) = jumped(best.by, best.epoch, was.epoch);
        notes.add_shard(
            Severity::Alarm,
            "epoch_jump",
            Some(best.by),
            shard,
            what,
            remedy,
        );
        return was;
    }
    match settle(claims.iter().copied()) {
        Ownership::ServedTwice(first, second) => {
            let mut both = [first, second];
            both.sort_by_key(|one| one.owner);
            let [owner, other] = both;
            let what = format!(
                "{} (epoch {}) and {} (epoch {}) both serve it, the map keeps what it said",
                owner.owner, owner.epoch, other.owner, other.epoch
            );
            notes.add_shard(Severity::Alarm, "served_twice", None, shard, what, REPAIR);
            was
        }
        Ownership::WentBack { owner: own, given } => {
            let (what, remedy) = went_back(own, given);
            let host = Some(own.owner);
            notes.add_shard(Severity::Alarm, "went_back", host, shard, what, remedy);
            was
        }
        Ownership::Owner(_) | Ownership::InTransit(_) | Ownership::Unknown => placement(*best),
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
