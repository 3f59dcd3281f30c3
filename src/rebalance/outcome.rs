//! What the planner gives.

use std::fmt;

use crate::map::HostName;
use crate::shard::ShardId;

/// Which shards should go where, in which order, and the effect of that.
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

/// A host's shards before and after.
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

/// The shards of a host, as sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    /// Shards.
    pub shards: u32,
    /// Their weight.
    pub weight: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Its part of the weight of all shards, to be compared with [`HostLoad::share`].
    pub part: f64,
}
