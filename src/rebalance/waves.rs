//! A plan cut into waves: what can be run at the same time, in portions that a mover can do at
//! once.

use std::collections::{BTreeMap, BTreeSet};

use super::load::Load;
use super::outcome::Move;
use super::problem::{Error, Problem};
use crate::map::HostName;
use crate::shard::ShardId;

/// Shards that go from one host to another together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The host that serves them.
    pub source: HostName,
    /// The host that will.
    pub target: HostName,
    /// The shards, in the plan's order.
    pub shards: Vec<ShardId>,
}

/// Groups that run at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wave {
    /// The groups, in the order of their first moves.
    pub groups: Vec<Group>,
}

/// How much at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The most groups that leave one host in a wave, and the most that come to one.
    pub groups_per_host: usize,
    /// The most shards in a group.
    pub shards_per_group: usize,
}

impl Default for Pace {
    /// One group out of a host and one in, since they share its disk. Sixteen shards: more should
    /// not be left to resume by an interrupted wave.
    fn default() -> Pace {
        Pace {
            groups_per_host: 1,
            shards_per_group: 16,
        }
    }
}

/// Cuts a plan's moves into waves. Within a wave nothing relies on another move of it: a host has
/// room for what comes before anything has left.
///
/// A move runs earlier than in the plan only where it cannot be in another's way: its host has no
/// limits, and its shard is in no apart-set. So the remaining moves can always continue.
///
/// # Errors
/// As [`plan`](super::plan): the problem must be the one that was planned.
pub fn waves(problem: &Problem, moves: &[Move], pace: Pace) -> Result<Vec<Wave>, Error> {
    let problem = problem.checked()?;
    let host = |name: &HostName| {
        problem
            .hosts
            .binary_search_by(|host| host.name.cmp(name))
            .ok()
    };
    let shard = |id: ShardId| {
        problem
            .shards
            .binary_search_by(|shard| shard.shard.cmp(&id))
            .ok()
    };
    let mut left: Vec<(usize, usize, &Move)> = Vec::with_capacity(moves.len());
    for planned in moves {
        let unknown = || Error::UnknownHost {
            shard: planned.shard,
            host: planned.target.clone(),
        };
        let (number, to) = shard(planned.shard)
            .zip(host(&planned.target))
            .ok_or_else(unknown)?;
        left.push((number, to, planned));
    }
    let mut now = Load::of(&problem);
    let mut waves = Vec::new();
    while !left.is_empty() {
        let (wave, taken) = next_wave(&now, &left, pace);
        for (number, to, _) in taken.iter().map(|at| &left[*at]) {
            now.put(*number, *to);
        }
        // The first move that is left can always go, so a wave is never empty.
        left = left
            .iter()
            .enumerate()
            .filter(|(at, _)| !taken.contains(at))
            .map(|(_, entry)| *entry)
            .collect();
        waves.push(wave);
    }
    Ok(waves)
}

fn next_wave(
    now: &Load<'_>,
    left: &[(usize, usize, &Move)],
    pace: Pace,
) -> (Wave, BTreeSet<usize>) {
    let mut wave = Wave::default();
    let mut taken = BTreeSet::new();
    let (mut out, mut into): (BTreeMap<&HostName, usize>, BTreeMap<&HostName, usize>) =
        Default::default();
    // The load with what has come in this wave, and nothing gone.
    let mut filled = now.clone();
    let mut passed_over = false;
    for (at, (number, to, planned)) in left.iter().enumerate() {
        let limits = &now.problem.hosts[*to].limits;
        let harmless = limits.shards_max.is_none()
            && limits.bytes_max.is_none()
            && now.sets[*number].is_empty();
        let first = at == 0;
        if !(first || harmless || (!passed_over && filled.may_go(*number, *to))) {
            passed_over = true;
            continue;
        }
        let of_pair =
            |group: &Group| (&group.source, &group.target) == (&planned.source, &planned.target);
        match wave.groups.iter_mut().find(|group| of_pair(group)) {
            Some(group) if group.shards.len() < pace.shards_per_group.max(1) => {
                group.shards.push(planned.shard)
            }
            Some(_) => {
                passed_over = true;
                continue;
            }
            None => {
                let most = pace.groups_per_host.max(1);
                let (leaving, coming) = (
                    out.entry(&planned.source).or_default(),
                    into.entry(&planned.target).or_default(),
                );
                if *leaving >= most || *coming >= most {
                    passed_over = true;
                    continue;
                }
                *leaving += 1;
                *coming += 1;
                let (source, target) = (planned.source.clone(), planned.target.clone());
                wave.groups.push(Group {
                    source,
                    target,
                    shards: vec![planned.shard],
                });
            }
        }
        filled.add(*number, *to);
        taken.insert(at);
    }
    (wave, taken)
}
