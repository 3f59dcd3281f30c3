//! [`plan`]: the search, the order of its moves, and what they lead to.

use super::load::Load;
use super::order::order;
use super::outcome::{Amount, HostLoad, Move, Plan, Unmet};
use super::problem::{Error, Host, Problem};
use super::search::{bound, flatten, force, level, refine, take_back};

/// How often the steps of the search are repeated, each for what the one before has made possible.
/// The second changes something rarely, the third next to never.
const ROUNDS_MAX: usize = 3;

/// Plans.
///
/// ```
/// use std::collections::BTreeSet;
/// use pgshard::ShardId;
/// use pgshard::map::HostName;
/// use pgshard::rebalance::{Constraint, Host, HostLimits, Problem, Shard, plan};
///
/// let name = |name: &str| HostName::new(name).unwrap();
/// let shard = |number| Shard {
///     shard: ShardId::new(number).unwrap(), host: name("db1"), weight: 1, bytes: 1 << 20,
///     constraint: Constraint::Free,
/// };
/// let problem = Problem {
///     hosts: vec![
///         Host { name: name("db1"), limits: HostLimits::default() },
///         Host { name: name("db2"), limits: HostLimits { weight: 3.0, ..HostLimits::default() } },
///     ],
///     shards: (0..8).map(shard).collect(),
///     ..Problem::default()
/// };
/// let plan = plan(&problem).unwrap();
/// assert_eq!(plan.moves.len(), 6);
/// assert_eq!(plan.hosts[1].after.shards, 6);
/// assert_eq!(plan.spread_after, 0.0);
/// ```
///
/// # Errors
/// When the problem contradicts itself. It is no error if not everything can be met: the plan names
/// what is not.
pub fn plan(problem: &Problem) -> Result<Plan, Error> {
    let problem = problem.checked()?;
    let start = Load::of(&problem);
    let bound = bound(&start);
    let mut end = start.clone();
    for _ in 0..ROUNDS_MAX {
        force(&mut end);
        if end.peak() > bound * (1.0 + problem.options.threshold) {
            flatten(&mut end);
            refine(&mut end, bound);
        }
        // Levelling may have made room for what had nowhere to go.
        if end.score().misplaced == 0 {
            break;
        }
    }
    let mut moves = Vec::new();
    for _ in 0..ROUNDS_MAX {
        take_back(&mut end);
        moves = order(&start, &end, level(&end), problem.options.moves_max);
        let mut reached = start.clone();
        moves
            .iter()
            .for_each(|planned| reached.put(planned.shard, planned.to));
        // Where the order has left moves out, others may have lost their point.
        let before = reached.at.clone();
        end = reached;
        // Too few moves to make the fullest host less full are still a part of the way.
        if problem
            .options
            .moves_max
            .is_some_and(|most| moves.len() >= most)
        {
            break;
        }
        take_back(&mut end);
        // And moves that were left out may have left room for what had nowhere to go.
        force(&mut end);
        if end.at == before {
            break;
        }
    }
    // The plan reports where these moves lead, even if the rounds were not enough.
    end = start.clone();
    moves
        .iter()
        .for_each(|planned| end.put(planned.shard, planned.to));
    let name = |host: usize| problem.hosts[host].name.clone();
    let moves = moves.into_iter().map(|planned| {
        let shard = &problem.shards[planned.shard];
        let (source, target) = (name(planned.from), name(planned.to));
        Move {
            shard: shard.shard,
            source,
            target,
            weight: shard.weight,
            bytes: shard.bytes,
            reason: planned.reason,
        }
    });
    let spread = |load: &Load<'_>| {
        if bound > 0.0 {
            (load.peak() / bound - 1.0).max(0.0)
        } else {
            0.0
        }
    };
    Ok(Plan {
        moves: moves.collect(),
        hosts: hosts(&start, &end),
        spread_before: spread(&start),
        spread_after: spread(&end),
        unmet: unmet(&end),
    })
}

fn hosts(start: &Load<'_>, end: &Load<'_>) -> Vec<HostLoad> {
    let problem = start.problem;
    let total: u64 = start.weight.iter().sum();
    let shares: f64 = problem.hosts.iter().map(|host| host.limits.weight).sum();
    let amount = |load: &Load<'_>, at: usize| Amount {
        shards: load.count[at],
        weight: load.weight[at],
        bytes: load.bytes[at],
        part: if total > 0 {
            load.weight[at] as f64 / total as f64
        } else {
            0.0
        },
    };
    let host = |(at, host): (usize, &Host)| HostLoad {
        host: host.name.clone(),
        share: host.limits.weight / shares,
        before: amount(start, at),
        after: amount(end, at),
    };
    problem.hosts.iter().enumerate().map(host).collect()
}

fn unmet(end: &Load<'_>) -> Vec<Unmet> {
    let one = |shard: usize| {
        let (number, host) = (
            end.problem.shards[shard].shard,
            end.problem.hosts[end.at[shard]].name.clone(),
        );
        end.why_it_must(shard).map(|reason| Unmet {
            shard: number,
            host,
            reason,
        })
    };
    (0..end.at.len()).filter_map(one).collect()
}
