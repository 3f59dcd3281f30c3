//! What the planner gives.

use std::fmt;

use super::load::Load;
use super::order::order;
use super::problem::{Error, Problem};
use super::search::{bound, flatten, force, level, refine, take_back};
use crate::map::HostName;
use crate::shard::ShardId;

/// Which shards should go where, in which order, and what it brings.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The moves, each possible when those before it are done.
    pub moves: Vec<Move>,
    /// Every host, by name.
    pub hosts: Vec<HostLoad>,
    /// How far the fullest host is above the lowest that is possible, before the plan: 0.02 is 2 %.
    pub spread_before: f64,
    /// The same after it.
    pub spread_after: f64,
    /// What is not as it should be, and this plan does not change.
    pub unmet: Vec<Unmet>,
}

/// One move.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// The shard.
    pub shard: ShardId,
    /// The host that serves it.
    pub source: HostName,
    /// The host that will.
    pub target: HostName,
    /// What it weighs.
    pub weight: u64,
    /// What moving it costs.
    pub bytes: u64,
    /// Why.
    pub reason: Reason,
}

/// Why a shard is moved.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// It is pinned to its target.
    Pinned {
        /// The target.
        to: HostName,
    },
    /// Its source takes no shards: it is drained, or has the weight 0.
    Emptied {
        /// The source.
        host: HostName,
    },
    /// It is with a shard that it is to be kept apart from.
    Apart {
        /// The other shard.
        from: ShardId,
    },
    /// Its source has more than it may.
    OverLimit {
        /// The source.
        host: HostName,
    },
    /// Its source has more than its share and its target less, in percent of the share, before this
    /// move.
    Levels {
        /// How much more; positive.
        source_percent: f64,
        /// How much less; negative.
        target_percent: f64,
    },
    /// It goes in exchange for others, which together come closer to the shares.
    Exchanged,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Pinned { to } => write!(f, "it is pinned to {to}"),
            Reason::Emptied { host } => write!(f, "{host} is to be empty"),
            Reason::Apart { from } => write!(f, "it is kept apart from shard {from}"),
            Reason::OverLimit { host } => write!(f, "{host} has more than it may"),
            Reason::Levels {
                source_percent,
                target_percent,
            } => {
                let target = -target_percent;
                write!(
                    f,
                    "the source is {source_percent:.1} % over its share, the target {target:.1} % \
                        below"
                )
            }
            Reason::Exchanged => f.write_str("in exchange for others: together they come closer"),
        }
    }
}

/// What is not as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Unmet {
    /// The shard.
    pub shard: ShardId,
    /// The host that it stays on.
    pub host: HostName,
    /// Why it should not be there.
    pub reason: Reason,
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "shard {} stays on {}, although {}",
            self.shard, self.host, self.reason
        )
    }
}

/// What a host has before and after.
#[derive(Clone, Debug, PartialEq)]
pub struct HostLoad {
    /// The host.
    pub host: HostName,
    /// What it should have of the weight of all shards: 0.25 is a quarter.
    pub share: f64,
    /// Before.
    pub before: Amount,
    /// After.
    pub after: Amount,
}

/// What a host has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    /// Shards.
    pub shards: u32,
    /// Their weight.
    pub weight: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What part of the weight of all shards that is: beside [`HostLoad::share`].
    pub part: f64,
}

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
    let host = |(at, host): (usize, &super::Host)| HostLoad {
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
