//! What a follower follows: the shards of a group, where they come from, and where they go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::map::HostName;
use crate::mover::control::hosts::Hosts;
use crate::mover::control::journal::Hold;
use crate::mover::preflight::table::TableShape;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::options::Options;
use crate::shard::ShardId;

/// How it is decided which changes are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// By the chunks in `pgshard.chunk`: a chunk contains already what its snapshot has seen.
    Chunks,
    /// By the slot's position: the target is a copy as of that position, so every change is
    /// applied.
    Position,
}

/// A shard with changes that are applied. Its row of `pgshard.progress` must exist, under this
/// lease.
#[derive(Clone, Debug)]
pub(crate) struct FollowedShard {
    pub(crate) hold: Hold,
    /// Where the changes go.
    pub(crate) target_schema: String,
    /// The tables as they are at the source.
    pub(crate) tables: Vec<TableShape>,
    pub(crate) basis: Basis,
}

/// What to follow.
#[derive(Clone, Debug)]
pub(crate) struct FollowerOptions {
    pub(crate) hosts: Hosts,
    pub(crate) source: HostName,
    pub(crate) target: HostName,
    pub(crate) id: MoveId,
    /// The name of the slot and of the publication.
    pub(crate) stream: String,
    pub(crate) shards: Vec<FollowedShard>,
    /// The positions of shards that share the slot and are not followed now: the slot keeps the
    /// rest for their next follower.
    pub(crate) others: BTreeMap<ShardId, u64>,
    /// For how long broken connections are opened again without any progress in between.
    pub(crate) patience: Duration,
    /// The options with the failpoints that are passed.
    pub(crate) failpoints: Arc<Options>,
}

impl FollowerOptions {
    /// A minute.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
}
