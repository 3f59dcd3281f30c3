//! What a follower reports: how far it is, and which shards it has lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use tokio::sync::watch;

use crate::mover::preflight::facts::Servers;
use crate::mover::stream::fault::Fault;
use crate::mover::stream::transport::Server;
use crate::shard::ShardId;

/// How far behind the source the target is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Lag {
    /// In bytes of WAL, up to where the source has decoded it. The slot's state shows how much is
    /// not even decoded.
    pub(crate) bytes: u64,
    /// Between the commit of the last applied transaction and the source's clock; 0 if nothing is
    /// left.
    pub(crate) seconds: f64,
}

/// The state of a shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardView {
    /// The attempt of the last marker that was applied, durably, with everything before it.
    pub(crate) ready: Option<i32>,
    /// A change that came after that marker.
    pub(crate) breach: Option<String>,
    /// Why it is no longer followed.
    pub(crate) fault: Option<Fault>,
}

/// What the worker reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// Everything that was committed before this position is durable at the target.
    pub(crate) position: u64,
    /// The lag at the last report, and when that was. Nothing is reported while the target is
    /// slow, or waits for a lock.
    pub(crate) lag: Lag,
    pub(crate) reported_at: Option<Instant>,
    /// The source's state, which the stream brings at all times.
    pub(crate) server: Option<watch::Receiver<Server>>,
    /// The watermarks that have come through.
    pub(crate) watermarks: BTreeSet<i64>,
    pub(crate) shards: BTreeMap<ShardId, ShardView>,
    /// Source transactions and changes that this process has applied.
    pub(crate) transactions: u64,
    pub(crate) changes: u64,
    /// The servers that it is connected to.
    pub(crate) servers: Option<Servers>,
    /// Why nothing is followed any longer.
    pub(crate) ended: Option<String>,
}

impl View {
    /// How far behind the target is by now.
    pub(crate) fn lag_now(&self) -> Lag {
        let (Some(reported_at), Some(server)) = (self.reported_at, &self.server) else {
            return self.lag;
        };
        let bytes = server.borrow().wal_end.saturating_sub(self.position);
        let seconds = match bytes {
            0 => 0.0,
            _ => self.lag.seconds + reported_at.elapsed().as_secs_f64(),
        };
        Lag { bytes, seconds }
    }
}

/// Records a shard's fault. The first one stays.
pub(super) fn note_fault(view: &watch::Sender<View>, shard: ShardId, fault: Fault) {
    view.send_modify(|view| {
        view.shards
            .entry(shard)
            .or_default()
            .fault
            .get_or_insert(fault);
    });
}
