//! What a rebalance prints as JSON: its events, the last of which is the result.

use pgshard::ShardId;
use schemars::JsonSchema;
use serde::Serialize;

#[derive(JsonSchema, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum RebalanceEvent {
    Wave {
        wave: usize,
        waves: usize,
        groups: Vec<WaveGroup>,
    },
    Started {
        r#move: String,
        shards: usize,
    },
    FenceRetried {
        #[schemars(with = "u16")]
        shard: ShardId,
        attempt: u32,
        reason: String,
    },
    Opened {
        #[schemars(with = "u16")]
        shard: ShardId,
        host: String,
        pause_ms: f64,
    },
    Asked {
        asked: &'static str,
        by: String,
    },
    Failed {
        #[schemars(with = "u16")]
        shard: ShardId,
        message: String,
    },
    Done(RebalanceSummary),
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct WaveGroup {
    pub(super) source: String,
    pub(super) target: String,
    pub(super) shards: String,
}

/// The last event.
#[derive(JsonSchema, Serialize)]
pub(crate) struct RebalanceSummary {
    pub(super) moved: usize,
    /// Shards of moves that were open before, finished first.
    pub(super) finished: usize,
    /// Shards that another command had already moved to their target.
    pub(super) there: usize,
    pub(super) bytes: u64,
    pub(super) waves: usize,
    pub(super) pause_ms_max: f64,
    pub(super) total_ms: u128,
    pub(super) moves: Vec<String>,
    pub(super) failed: Vec<FailedShard>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct FailedShard {
    #[schemars(with = "u16")]
    pub(super) shard: ShardId,
    pub(super) message: String,
}
