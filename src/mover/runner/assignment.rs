//! A shard's part of a move, before the work on it begins, and what the parts of one route have in
//! common.

use crate::map::{HostName, ShardEpoch};
use crate::mover::control::journal::Entry;
use crate::mover::control::report::ShardReport;
use crate::mover::protocol::desired::Rollback;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::state::Mode;
use crate::shard::ShardId;

/// One shard's part of a move, before the work on it begins.
#[derive(Clone, Debug)]
pub(in crate::mover) struct Assignment {
    pub(in crate::mover) id: MoveId,
    pub(in crate::mover) shard: ShardId,
    pub(in crate::mover) source: HostName,
    pub(in crate::mover) target: HostName,
    pub(in crate::mover) mode: Mode,
    pub(in crate::mover) epoch: ShardEpoch,
    pub(in crate::mover) start: Start,
    /// The move that this one takes back.
    pub(in crate::mover) rollback_of: Option<MoveId>,
    /// Whether this move can be taken back in turn.
    pub(in crate::mover) rollback: Rollback,
}

/// What the shards of one move that come online from one host to another have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::mover) struct GroupKey {
    pub(in crate::mover) id: MoveId,
    pub(in crate::mover) source: HostName,
    pub(in crate::mover) target: HostName,
    /// The move that this one takes back.
    pub(in crate::mover) rollback_of: Option<MoveId>,
}

impl GroupKey {
    pub(in crate::mover) fn of(part: &Assignment) -> GroupKey {
        let Assignment {
            id,
            source,
            target,
            rollback_of,
            ..
        } = part.clone();
        GroupKey {
            id,
            source,
            target,
            rollback_of,
        }
    }
}

/// How the mover acquired the shard.
#[derive(Clone, Copy, Debug)]
pub(in crate::mover) enum Start {
    /// The move is new.
    Claim,
    /// The move is in the journal.
    TakeOver,
}

impl Assignment {
    pub(in crate::mover) fn of(entry: &Entry) -> Assignment {
        Assignment {
            id: entry.id,
            shard: entry.shard,
            source: entry.source.clone(),
            target: entry.target.clone(),
            mode: entry.mode,
            epoch: entry.epoch,
            start: Start::TakeOver,
            rollback_of: entry.rollback_of,
            rollback: entry.rollback,
        }
    }
}

/// Which shards of a move that is in the journal are taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::mover) enum Scope {
    /// Those that are named.
    Named,
    /// All that are open by now on the routes of those that are named.
    Routes,
}

/// How the work on a shard has ended.
pub(in crate::mover) type ShardResult = (ShardId, Result<ShardReport, Error>);
