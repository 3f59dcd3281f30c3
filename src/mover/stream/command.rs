//! The requests to a follower. It takes them between two target transactions.

use tokio::sync::{mpsc, oneshot};

use crate::mover::copy::snapshot::Snapshot;
use crate::shard::ShardId;

/// A request to a worker. It listens between two target transactions.
pub(crate) enum Command {
    /// The marker of this attempt shall make the shard ready.
    Expect {
        shard: ShardId,
        attempt: i32,
        open_hash: String,
    },
    Detach {
        shard: ShardId,
    },
    Pause {
        granted: oneshot::Sender<()>,
        steps: mpsc::Receiver<Align>,
    },
    Stop,
}

/// A request to read on to a watermark, and to apply what a snapshot sees.
pub(crate) struct Align {
    pub(crate) snapshot: Snapshot,
    pub(crate) watermark: i64,
    pub(crate) answer: oneshot::Sender<Result<bool, String>>,
}
