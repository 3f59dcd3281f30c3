//! What a store must do, whichever it is, and maps to try it with.

use std::sync::Arc;

use proptest::prelude::*;

use super::{MapStore, PublishError, publish_merged};
use crate::map::{Changes, HostName, MapVersion, Placement, ShardEpoch, ShardMap};
use crate::shard::{ShardCount, ShardId};

/// Any map of up to 40 shards on `db0` to `db3`.
pub(crate) fn any_map() -> impl Strategy<Value = ShardMap> {
    (prop::collection::vec((0u8..4, 1u32..4), 1..40), 1u64..=i64::MAX as u64 - 100).prop_map(|(slots, version)| {
        let shards = ShardCount::new(slots.len() as u32).unwrap();
        let placements = shards.iter().zip(slots).map(|(shard, (host, epoch))| (shard, place(host, epoch)));
        ShardMap::new(MapVersion::new(version), shards, placements).unwrap()
    })
}

pub(crate) fn place(host: u8, epoch: u32) -> Placement {
    Placement { host: HostName::new(&format!("db{host}")).unwrap(), epoch: ShardEpoch::new(epoch).unwrap() }
}

fn one(shard: u16, host: u8, epoch: u32) -> Changes {
    Changes::from_iter([(ShardId::new(shard).unwrap(), place(host, epoch))])
}

/// Runs everything that [`MapStore`] promises against a store that keeps the map it is made with.
pub(super) async fn store_contract(make_store: impl Fn(&ShardMap) -> Arc<dyn MapStore>) {
    let shards = ShardCount::new(32).unwrap();
    let first = ShardMap::new(MapVersion::FIRST, shards, shards.iter().map(|shard| (shard, place(0, 1)))).unwrap();

    // Load, publish, load.
    let store = make_store(&first);
    assert_eq!(store.load().await.unwrap(), first);
    let second = first.merged(&one(3, 1, 2));
    store.publish(first.version(), &second).await.unwrap();
    assert_eq!(store.load().await.unwrap(), second);

    // What must not be published is not.
    let third = second.merged(&one(4, 1, 2));
    let conflict = store.publish(first.version(), &third).await.unwrap_err();
    assert!(
        matches!(conflict, PublishError::Conflict { expected, found } if (expected, found) == (first.version(), second.version()))
    );
    assert!(conflict.is_retryable());
    let same_version = third.with_version(second.version());
    assert!(matches!(store.publish(second.version(), &same_version).await, Err(PublishError::NotNewer { .. })));
    let fewer = ShardCount::new(8).unwrap();
    let fewer = ShardMap::new(third.version(), fewer, fewer.iter().map(|shard| (shard, place(0, 1)))).unwrap();
    assert!(matches!(store.publish(second.version(), &fewer).await, Err(PublishError::OtherCluster { .. })));
    assert_eq!(store.load().await.unwrap(), second);

    // Nothing newer, nothing published.
    assert_eq!(publish_merged(&*store, &one(3, 2, 2)).await.unwrap(), second);
    assert_eq!(publish_merged(&*store, &Changes::new()).await.unwrap(), second);

    // A watcher sees what others publish; several at once lose nothing of each other's.
    let mut watch = store.watch().await.unwrap();
    assert_eq!(*watch.current(), second);
    let movers = (0..12u16).map(|mover| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for shard in [mover, mover + 12] {
                publish_merged(&*store, &one(shard, 2, 5)).await.unwrap();
            }
        })
    });
    for mover in movers.collect::<Vec<_>>() {
        mover.await.unwrap();
    }
    let last = store.load().await.unwrap();
    for shard in shards.iter() {
        let wanted = if shard.get() < 24 { place(2, 5) } else { place(0, 1) };
        assert_eq!(last.placement(shard), Some(wanted));
    }
    assert_eq!(last.version().get(), second.version().get() + 24);
    while *watch.changed().await.unwrap() != last {}
    assert!(watch.last_error().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory() {
    store_contract(|map| Arc::new(super::MemoryStore::new(map.clone()))).await;
}
