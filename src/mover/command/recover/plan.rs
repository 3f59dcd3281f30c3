//! What is known of a host that has come back from an earlier time, and what would be done: for the
//! operator to decide.

use jiff::Timestamp;

use crate::map::{HostName, ShardEpoch};
use crate::mover::command::repair::RepairPlan;
use crate::mover::protocol::names::MoveId;
use crate::shard::ShardId;

/// What brings a host that was restored, failed over or emptied back into service, and what only a
/// human can decide.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecoveryPlan {
    /// The host.
    pub host: HostName,
    /// Which server it is. `None`: its database has no control schema.
    pub server: Option<RecoveredServer>,
    /// The moves that others know of and the host does not, by shard.
    pub moves: Vec<LostMove>,
    /// The shards about which hosts contradict each other and for which it is certain what must be
    /// done.
    pub repairs: Vec<RepairPlan>,
    /// The ID clocks that must be raised, so that no ID is given a second time.
    pub clocks: Vec<ClockRaise>,
    /// Shards of which another host has rows that the serving host may have lost.
    pub elsewhere: Vec<RowsElsewhere>,
    /// What only a human can decide.
    pub decisions: Vec<Decision>,
}

impl RecoveryPlan {
    /// Whether there is nothing to do and nothing to decide.
    pub fn is_done(&self) -> bool {
        self.has_nothing_to_do() && self.decisions.is_empty()
    }

    /// Whether nothing can be done without a decision.
    pub fn has_nothing_to_do(&self) -> bool {
        self.repairs.is_empty() && self.clocks.is_empty()
    }
}

/// The server that is the host now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveredServer {
    /// Its system identifier.
    pub system: i64,
    /// The timeline that it writes.
    pub timeline: i64,
    /// The highest timeline that it has recorded for itself. If it is lower, the server was
    /// promoted or restored since.
    pub recorded: Option<i64>,
    /// When the last ID that it knows of was made, of all shards that it serves. `None` if it
    /// serves none.
    pub last_id: Option<Timestamp>,
}

/// A move that a host no longer knows of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostMove {
    /// The shard.
    pub shard: ShardId,
    /// The move, if a host remembers it.
    pub id: Option<MoveId>,
    /// The host that it took the shard from, if a host remembers that.
    pub from: Option<HostName>,
    /// The host that it took the shard to.
    pub to: HostName,
    /// The epoch since which the shard is there.
    pub epoch: ShardEpoch,
}

/// An ID clock that has to continue from a later time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockRaise {
    /// The host that serves the shard.
    pub host: HostName,
    /// The shard.
    pub shard: ShardId,
    /// All IDs that are made after the raise have a later time than this.
    pub after: Timestamp,
    /// The same time as an ID, which is the argument of `resume_after()`.
    pub id: i64,
    /// The reason.
    pub why: String,
}

/// Rows of a shard that another host has kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowsElsewhere {
    /// The shard.
    pub shard: ShardId,
    /// That host's facts about them.
    pub says: String,
    /// The command that makes that host serve the shard with these rows, while the other keeps its
    /// own.
    pub command: String,
}

/// Something that only a human can decide.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// The shards that it is about.
    pub shards: Vec<ShardId>,
    /// The situation.
    pub what: String,
    /// The commands that resolve it. If there are several, run one of them.
    pub commands: Vec<String>,
}
