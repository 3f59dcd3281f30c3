//! What a command that moves shards prints as JSON, one event a line.

use std::collections::BTreeMap;
use std::time::Duration;

use pgshard::ShardId;
use schemars::JsonSchema;
use serde::Serialize;

use super::audit::ShownAudit;

#[derive(JsonSchema, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum MoveEvent {
    Started {
        r#move: String,
        shards: usize,
    },
    Reached {
        #[schemars(with = "u16")]
        shard: ShardId,
        phase: &'static str,
    },
    TableCopied {
        #[schemars(with = "u16")]
        shard: ShardId,
        table: String,
        rows: u64,
        bytes: u64,
    },
    FenceRetried {
        #[schemars(with = "u16")]
        shard: ShardId,
        attempt: u32,
        reason: String,
    },
    Waits {
        #[schemars(with = "u16")]
        shard: ShardId,
        desired: &'static str,
    },
    Asked {
        asked: &'static str,
        by: String,
    },
    Opened {
        #[schemars(with = "u16")]
        shard: ShardId,
        host: String,
        pause_ms: f64,
    },
    Audited {
        #[schemars(with = "u16")]
        shard: ShardId,
        audit: ShownAudit,
    },
    Feeding {
        r#move: String,
        shards: usize,
    },
    Fed {
        r#move: String,
        behind_bytes: u64,
        behind_s: f64,
        changes: u64,
    },
    NotFed {
        r#move: String,
        message: String,
    },
    Failed {
        #[schemars(with = "u16")]
        shard: ShardId,
        message: String,
    },
    Done(MoveSummary),
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct MoveSummary {
    pub(super) r#move: String,
    pub(super) shards: String,
    pub(super) source: String,
    pub(super) target: String,
    /// The rows that were copied. Those that were written meanwhile came by the stream, and are
    /// not counted.
    pub(super) rows: u64,
    /// The bytes of these rows, as they were sent.
    pub(super) bytes: u64,
    /// The longest time that the copy of a shard took. Shards that are copied together share one.
    pub(super) copy_ms: f64,
    /// For each shard, how long it was unavailable.
    pub(super) pause_ms: BTreeMap<String, f64>,
    /// How long this command worked on the move.
    pub(super) total_ms: u128,
    pub(super) audits: BTreeMap<String, ShownAudit>,
    pub(super) failed: Vec<FailedShard>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct FailedShard {
    #[schemars(with = "u16")]
    pub(super) shard: ShardId,
    pub(super) message: String,
}

/// Milliseconds with two digits after the point.
pub(crate) fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 100.0
}
