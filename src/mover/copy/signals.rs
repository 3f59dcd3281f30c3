//! Signals to a shard's copy while it runs.

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::mover::protocol::error::Error;
use crate::shard::ShardId;

/// The shards that were altered, and how.
pub(crate) type Altered = BTreeMap<ShardId, String>;

/// Waits until a shard is among those that were altered.
pub(crate) async fn altered(found: &watch::Receiver<Altered>, shard: ShardId) -> Error {
    let mut found = found.clone();
    let what = found.wait_for(|altered| altered.contains_key(&shard)).await;
    match what.map(|altered| altered.get(&shard).cloned().unwrap_or_default()) {
        Ok(what) => Error::Altered { shard, what },
        // The shards are not watched any more.
        Err(_) => std::future::pending().await,
    }
}
