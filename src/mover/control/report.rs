//! How the shards of a move ended, for its operator.

use std::time::Duration;

use crate::map::HostName;
use crate::mover::control::journal::{Entry, ReverseReplication};
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::state::Phase;
use crate::mover::protocol::verdict::Audit;
use crate::shard::ShardId;

/// One shard that was moved (or that a move was aborted for).
#[derive(Clone, Debug, PartialEq)]
pub struct ShardReport {
    /// The shard.
    pub shard: ShardId,
    /// Where it was.
    pub source: HostName,
    /// Where it was to go.
    pub target: HostName,
    /// How far its move is.
    pub phase: Phase,
    /// Rows copied.
    pub rows: u64,
    /// Bytes that went over the wire.
    pub bytes: u64,
    /// How long the copy took.
    pub copy: Duration,
    /// How long the shard was unavailable; `None` if that is not known.
    pub pause: Option<Duration>,
    /// The result of its audit.
    pub audit: Audit,
    /// Whether a rollback can take it back: its reverse replication is open.
    pub can_be_taken_back: bool,
}

impl ShardReport {
    pub(crate) fn of(entry: &Entry) -> ShardReport {
        let timing = |name: &str| entry.timings.get(name).and_then(|ms| ms.as_f64());
        let duration = |ms: f64| Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default();
        ShardReport {
            shard: entry.shard,
            source: entry.source.clone(),
            target: entry.target.clone(),
            phase: entry.phase,
            rows: entry
                .rows
                .and_then(|rows| u64::try_from(rows).ok())
                .unwrap_or(0),
            bytes: entry
                .bytes
                .and_then(|bytes| u64::try_from(bytes).ok())
                .unwrap_or(0),
            copy: timing("copy_ms").map(duration).unwrap_or_default(),
            pause: timing("pause_ms").map(duration),
            audit: entry.audit.clone(),
            can_be_taken_back: entry
                .reverse
                .as_ref()
                .is_some_and(ReverseReplication::is_open),
        }
    }
}

/// The results of the hosts, and the hosts that could not be read.
#[derive(Debug)]
#[non_exhaustive]
pub struct PartialAnswer<T> {
    /// The results of the reachable hosts.
    pub found: Vec<T>,
    /// The hosts that could not be read or written: they may have more.
    pub unknown: Vec<(HostName, Error)>,
}

impl<T> PartialAnswer<T> {
    pub(in crate::mover) fn of(
        (found, unknown): (Vec<T>, Vec<(HostName, Error)>),
    ) -> PartialAnswer<T> {
        PartialAnswer { found, unknown }
    }
}

/// How a move, a resume or an abort ended, shard by shard.
#[derive(Debug)]
pub struct Report {
    /// The move.
    pub id: MoveId,
    /// The shards that are where they should be.
    pub done: Vec<ShardReport>,
    /// The others, each with its error. The [`Error`] contains what is left behind.
    pub failed: Vec<(ShardId, Error)>,
    /// The hosts that could not be read: more shards of the move may come from there.
    pub unknown: Vec<(HostName, Error)>,
}

/// Sorts the shards by how they ended.
pub(crate) fn report(id: MoveId, ends: Vec<(ShardId, Result<ShardReport, Error>)>) -> Report {
    let mut report = Report {
        id,
        done: Vec::new(),
        failed: Vec::new(),
        unknown: Vec::new(),
    };
    for (shard, end) in ends {
        match end {
            Ok(done) => report.done.push(done),
            Err(error) => report.failed.push((shard, error)),
        }
    }
    report
}

/// Something that [`Mover::gc`](crate::mover::Mover::gc) put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleaned {
    /// Where.
    pub host: HostName,
    /// The shard.
    pub shard: ShardId,
    /// What was done.
    pub what: String,
}
