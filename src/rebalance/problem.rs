//! What the planner is given.

use std::collections::BTreeSet;

use crate::map::{HostLimits, HostName};
use crate::shard::ShardId;

/// A host.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Its name.
    pub name: HostName,
    /// Its share and its limits.
    pub limits: HostLimits,
}

/// Whether a shard may be moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Constraint {
    /// To any host.
    #[default]
    Free,
    /// Not now: it stays where it is.
    Stays,
    /// It belongs on this host: stays there, or goes there.
    Pinned(HostName),
}

/// A shard and what it weighs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its number.
    pub shard: ShardId,
    /// The host that serves it.
    pub host: HostName,
    /// What is to be spread evenly: 1 for the number of shards, bytes, writes a second, or anything
    /// else.
    pub weight: u64,
    /// What moving it costs.
    pub bytes: u64,
    /// Whether it may be moved.
    pub constraint: Constraint,
}

/// When to plan, and how much.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// How far over its share the fullest host may be before shards are moved to even that out:
    /// 0.02 is 2 %.
    pub threshold: f64,
    /// The most moves.
    pub moves_max: Option<usize>,
}

impl Options {
    /// The default threshold. Below it moving costs more than it gains.
    pub const THRESHOLD: f64 = 0.02;
}

impl Default for Options {
    fn default() -> Options {
        Options {
            threshold: Options::THRESHOLD,
            moves_max: None,
        }
    }
}

setters!(Options: threshold: f64, moves_max: Option<usize>);

/// What is to be planned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problem {
    /// The hosts, each once.
    pub hosts: Vec<Host>,
    /// The shards, each once.
    pub shards: Vec<Shard>,
    /// Sets of shards of which no two may be on one host. A shard may be in several.
    pub apart: Vec<BTreeSet<ShardId>>,
    /// When, and how much.
    pub options: Options,
}

/// Why there is no plan: the problem contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A host or a shard is there twice.
    #[error("{what} is there twice")]
    Twice {
        /// Which.
        what: String,
    },
    /// A shard is on, or is pinned to, a host that is not there.
    #[error("shard {shard} is for host {host}, which does not exist")]
    UnknownHost {
        /// The shard.
        shard: ShardId,
        /// The host.
        host: HostName,
    },
    /// A share that is no number, negative, or too large.
    #[error("host {host} cannot have the weight {weight}: it must be 0 to 1000000")]
    Weight {
        /// The host.
        host: HostName,
        /// Its weight.
        weight: String,
    },
    /// Every host has the weight 0.
    #[error("no host takes shards: all have the weight 0")]
    NoHost,
    /// The weights or sizes add up to more than the planner counts exactly.
    #[error("the weights or sizes of the shards add up to more than 2^53")]
    TooHeavy,
}

impl Problem {
    /// The same problem with one host emptied, and no other shard moved for it.
    ///
    /// Shards that are pinned to the host stay: to drain it, they must be let go.
    #[must_use]
    pub fn draining(mut self, host: &HostName) -> Problem {
        for known in self.hosts.iter_mut().filter(|known| known.name == *host) {
            known.limits.weight = 0.0;
        }
        for shard in self.shards.iter_mut().filter(|shard| shard.host != *host) {
            shard.constraint = Constraint::Stays;
        }
        self
    }

    /// The problem in the order in which it is worked on, and known to make sense.
    pub(super) fn checked(&self) -> Result<Problem, Error> {
        let mut problem = self.clone();
        problem.hosts.sort_by(|a, b| a.name.cmp(&b.name));
        problem.shards.sort_by_key(|shard| shard.shard);
        problem.apart.sort();
        problem.apart.dedup();
        if let Some(pair) = problem
            .hosts
            .windows(2)
            .find(|pair| pair[0].name == pair[1].name)
        {
            return Err(Error::Twice {
                what: format!("host {}", pair[0].name),
            });
        }
        if let Some(pair) = problem
            .shards
            .windows(2)
            .find(|pair| pair[0].shard == pair[1].shard)
        {
            return Err(Error::Twice {
                what: format!("shard {}", pair[0].shard),
            });
        }
        for Host { name, limits } in &problem.hosts {
            // A share that is next to nothing would make every load on it infinite.
            let sound = limits.weight == 0.0 || (1e-6..=1e6).contains(&limits.weight);
            if !sound {
                return Err(Error::Weight {
                    host: name.clone(),
                    weight: limits.weight.to_string(),
                });
            }
        }
        if problem.hosts.iter().all(|host| host.limits.weight == 0.0) {
            return Err(Error::NoHost);
        }
        let known = |name: &HostName| {
            problem
                .hosts
                .binary_search_by(|host| host.name.cmp(name))
                .is_ok()
        };
        for Shard {
            shard,
            host,
            constraint,
            ..
        } in &problem.shards
        {
            let pinned = if let Constraint::Pinned(to) = constraint {
                Some(to)
            } else {
                None
            };
            if let Some(host) = [Some(host), pinned]
                .into_iter()
                .flatten()
                .find(|name| !known(name))
            {
                return Err(Error::UnknownHost {
                    shard: *shard,
                    host: host.clone(),
                });
            }
        }
        let sum = |value: fn(&Shard) -> u64| {
            problem
                .shards
                .iter()
                .try_fold(0u64, |sum, shard| sum.checked_add(value(shard)))
        };
        let exact = |sum: Option<u64>| sum.is_some_and(|sum| sum < 1 << 53);
        if !(exact(sum(|shard| shard.weight)) && exact(sum(|shard| shard.bytes))) {
            return Err(Error::TooHeavy);
        }
        Ok(problem)
    }
}
