//! Who has what at one moment of the search, and what may go where.
//!
//! Hosts and shards are indexes into the sorted problem here, so that sums are arrays.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::outcome::Reason;
use super::problem::{Constraint, Problem};

/// Which host each shard is on, with the sums that follow from it.
#[derive(Clone)]
pub(super) struct Load<'p> {
    pub(super) problem: &'p Problem,
    /// The host of each shard.
    pub(super) at: Vec<usize>,
    /// The host of each shard before the plan.
    pub(super) home: Vec<usize>,
    pub(super) weight: Vec<u64>,
    pub(super) bytes: Vec<u64>,
    pub(super) count: Vec<u32>,
    /// The host a shard is pinned to.
    pub(super) pin: Vec<Option<usize>>,
    /// The apart-sets of each shard.
    pub(super) sets: Vec<Vec<usize>>,
    /// How many shards of each set are on each host.
    together: Vec<Vec<u32>>,
}

/// How good a placement is. Smaller is better, and the first field that differs decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Score {
    /// Shards that are where they may not be.
    pub(super) misplaced: u64,
    /// Bytes over the limits of hosts.
    over_bytes: u64,
    /// The fullest host's load, divided by its share.
    pub(super) peak: f64,
    /// How uneven the rest is.
    unevenness: f64,
}

impl Score {
    /// Whether this is better by more than rounding errors.
    pub(super) fn is_better_than(&self, other: &Score) -> bool {
        let by = |a: f64, b: f64| {
            if (a - b).abs() <= 1e-12 * a.abs().max(b.abs()) {
                Ordering::Equal
            } else {
                a.total_cmp(&b)
            }
        };
        let first = (self.misplaced, self.over_bytes).cmp(&(other.misplaced, other.over_bytes));
        let rest = || by(self.peak, other.peak).then_with(|| by(self.unevenness, other.unevenness));
        first.then_with(rest) == Ordering::Less
    }
}

impl<'p> Load<'p> {
    /// The placement as it is now. The problem has been checked.
    pub(super) fn of(problem: &'p Problem) -> Load<'p> {
        let hosts = problem.hosts.len();
        let place: BTreeMap<&str, usize> = problem
            .hosts
            .iter()
            .enumerate()
            .map(|(at, host)| (host.name.as_str(), at))
            .collect();
        let numbers: BTreeMap<_, usize> = problem
            .shards
            .iter()
            .enumerate()
            .map(|(number, shard)| (shard.shard, number))
            .collect();
        let home: Vec<usize> = problem
            .shards
            .iter()
            .map(|shard| place[shard.host.as_str()])
            .collect();
        let pin = problem.shards.iter().map(|shard| match &shard.constraint {
            Constraint::Pinned(host) => Some(place[host.as_str()]),
            Constraint::Free | Constraint::Stays => None,
        });
        let mut sets = vec![Vec::new(); problem.shards.len()];
        for (set, members) in problem.apart.iter().enumerate() {
            for number in members.iter().filter_map(|shard| numbers.get(shard)) {
                sets[*number].push(set);
            }
        }
        let mut load = Load {
            problem,
            at: home.clone(),
            pin: pin.collect(),
            weight: vec![0; hosts],
            bytes: vec![0; hosts],
            count: vec![0; hosts],
            together: vec![vec![0; hosts]; problem.apart.len()],
            sets,
            home,
        };
        for shard in 0..load.at.len() {
            load.add(shard, load.at[shard]);
        }
        load
    }

    /// Counts a shard on a host in addition to the one where it is, as while it is moved there.
    pub(super) fn add(&mut self, shard: usize, host: usize) {
        let facts = &self.problem.shards[shard];
        self.weight[host] += facts.weight;
        self.bytes[host] += facts.bytes;
        self.count[host] += 1;
        for set in &self.sets[shard] {
            self.together[*set][host] += 1;
        }
    }

    /// Puts a shard on another host.
    pub(super) fn put(&mut self, shard: usize, host: usize) {
        let (facts, from) = (&self.problem.shards[shard], self.at[shard]);
        self.weight[from] -= facts.weight;
        self.bytes[from] -= facts.bytes;
        self.count[from] -= 1;
        for set in &self.sets[shard] {
            self.together[*set][from] -= 1;
        }
        self.at[shard] = host;
        self.add(shard, host);
    }

    pub(super) fn share(&self, host: usize) -> f64 {
        self.problem.hosts[host].limits.weight
    }

    /// The load of a host, divided by its share. A host that takes no shards has 0: what it has
    /// counts as misplaced instead.
    pub(super) fn fullness(&self, host: usize) -> f64 {
        self.fullness_with(host, self.weight[host])
    }

    /// The same load, if the host had this weight.
    pub(super) fn fullness_with(&self, host: usize, weight: u64) -> f64 {
        let share = self.share(host);
        if share > 0.0 {
            weight as f64 / share
        } else {
            0.0
        }
    }

    /// The fullest host's fullness.
    pub(super) fn peak(&self) -> f64 {
        (0..self.weight.len())
            .map(|host| self.fullness(host))
            .fold(0.0, f64::max)
    }

    /// Whether a shard may be put on a host, as things are.
    pub(super) fn may_go(&self, shard: usize, host: usize) -> bool {
        self.may_exchange(shard, host, None)
    }

    /// The same, while another shard leaves that host.
    pub(super) fn may_exchange(&self, shard: usize, host: usize, leaving: Option<usize>) -> bool {
        let (facts, limits) = (
            &self.problem.shards[shard],
            &self.problem.hosts[host].limits,
        );
        let freed = leaving.map(|leaving| &self.problem.shards[leaving]);
        let count = self.count[host] + 1 - u32::from(freed.is_some());
        let bytes = self.bytes[host] + facts.bytes - freed.map_or(0, |freed| freed.bytes);
        let alone = |set: &usize| {
            let gone = leaving.is_some_and(|leaving| self.sets[leaving].contains(set));
            self.together[*set][host] == u32::from(gone)
        };
        limits.weight > 0.0
            && self.at[shard] != host
            && self.pin[shard].is_none_or(|pin| pin == host)
            && limits.shards_max.is_none_or(|max| count <= max)
            && limits.bytes_max.is_none_or(|max| bytes <= max)
            && self.sets[shard].iter().all(alone)
    }

    /// Another shard on the same host, from which this one is to be kept apart.
    pub(super) fn too_near(&self, shard: usize) -> Option<usize> {
        let host = self.at[shard];
        if !self.sets[shard]
            .iter()
            .any(|set| self.together[*set][host] > 1)
        {
            return None;
        }
        let near = |other: &usize| {
            *other != shard
                && self.at[*other] == host
                && self.sets[*other]
                    .iter()
                    .any(|s| self.sets[shard].contains(s))
        };
        (0..self.at.len()).find(near)
    }

    pub(super) fn over_shards(&self, host: usize) -> u32 {
        self.problem.hosts[host]
            .limits
            .shards_max
            .map_or(0, |max| self.count[host].saturating_sub(max))
    }

    pub(super) fn over_bytes(&self, host: usize) -> u64 {
        self.problem.hosts[host]
            .limits
            .bytes_max
            .map_or(0, |max| self.bytes[host].saturating_sub(max))
    }

    pub(super) fn score(&self) -> Score {
        let hosts = 0..self.weight.len();
        let unserved = |shard: &usize| {
            let host = self.at[*shard];
            self.share(host) == 0.0 || self.pin[*shard].is_some_and(|pin| pin != host)
        };
        let crowded: u64 = self
            .together
            .iter()
            .flatten()
            .map(|count| u64::from(count.saturating_sub(1)))
            .sum();
        let over: u64 = hosts
            .clone()
            .map(|host| u64::from(self.over_shards(host)))
            .sum();
        Score {
            misplaced: (0..self.at.len()).filter(unserved).count() as u64 + crowded + over,
            over_bytes: hosts.map(|host| self.over_bytes(host)).sum(),
            peak: self.peak(),
            unevenness: self.unevenness(),
        }
    }

    /// The score, when no shard that was misplaced has moved since `former`.
    pub(super) fn score_like(&self, former: &Score) -> Score {
        Score {
            peak: self.peak(),
            unevenness: self.unevenness(),
            ..*former
        }
    }

    /// The sum of squares by share: least when every host is as full as the others.
    fn unevenness(&self) -> f64 {
        (0..self.weight.len())
            .map(|host| self.share(host) * self.fullness(host).powi(2))
            .sum()
    }

    /// Why a shard may not be where it is.
    pub(super) fn why_it_must(&self, shard: usize) -> Option<Reason> {
        let (host, name) = (self.at[shard], |host: usize| {
            self.problem.hosts[host].name.clone()
        });
        if let Some(pin) = self.pin[shard].filter(|pin| *pin != host) {
            return Some(Reason::Pinned { to: name(pin) });
        }
        if self.share(host) == 0.0 {
            return Some(Reason::Emptied { host: name(host) });
        }
        if let Some(other) = self.too_near(shard) {
            return Some(Reason::Apart {
                from: self.problem.shards[other].shard,
            });
        }
        let over = self.over_shards(host) > 0 || self.over_bytes(host) > 0;
        over.then(|| Reason::OverLimit { host: name(host) })
    }
}
