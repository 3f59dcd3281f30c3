//! What every store promises, as a test. It is compiled with the library's own tests and with those
//! on servers, so it takes all that it needs from the module above it.

use std::sync::Arc;

use super::{
    Changes, HostName, MapStore, MapVersion, Placement, PublishError, ShardCount, ShardEpoch,
    ShardId, ShardMap, publish_merged,
};

pub(crate) fn place(host: u8, epoch: u32) -> Placement {
    Placement {
        host: HostName::new(&format!("db{host}")).unwrap(),
        epoch: ShardEpoch::new(epoch).unwrap(),
    }
}

fn one(shard: u16, host: u8, epoch: u32) -> Changes {
    Changes::from_iter([(ShardId::new(shard).unwrap(), place(host, epoch))])
}

/// The map that a store must keep before [`store_contract`].
pub(crate) fn first_map() -> ShardMap {
    let shards = ShardCount::new(32).unwrap();
    ShardMap::new(
        MapVersion::FIRST,
        shards,
        shards.iter().map(|shard| (shard, place(0, 1))),
    )
    .unwrap()
}

/// Runs everything that [`MapStore`] promises against a store that keeps [`first_map`].
pub(crate) async fn store_contract(store: Arc<dyn MapStore>) {
    let first = first_map();
    let shards = first.shards();

    // Load, publish, load.
    assert_eq!(store.load().await.unwrap(), first);
    let second = first.merged(&one(3, 1, 2));
    store.publish(first.version(), &second).await.unwrap();
    assert_eq!(store.load().await.unwrap(), second);

    // What must not be published is not.
    let third = second.merged(&one(4, 1, 2));
    let conflict = store.publish(first.version(), &third).await.unwrap_err();
    let versions = (first.version(), second.version());
    assert!(matches!(
        conflict,
        PublishError::Conflict { expected, found } if (expected, found) == versions
    ));
    assert!(conflict.is_retryable());
    let same_version = third.with_version(second.version());
    assert!(matches!(
        store.publish(second.version(), &same_version).await,
        Err(PublishError::NotNewer { .. })
    ));
    let fewer = ShardCount::new(8).unwrap();
    let fewer = ShardMap::new(
        third.version(),
        fewer,
        fewer.iter().map(|shard| (shard, place(0, 1))),
    )
    .unwrap();
    assert!(matches!(
        store.publish(second.version(), &fewer).await,
        Err(PublishError::OtherCluster { .. })
    ));
    assert_eq!(store.load().await.unwrap(), second);

    // Nothing newer, nothing published.
    assert_eq!(
        publish_merged(&*store, &one(3, 2, 2)).await.unwrap(),
        second
    );
    assert_eq!(
        publish_merged(&*store, &Changes::new()).await.unwrap(),
        second
    );

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
        let wanted = if shard.get() < 24 {
            place(2, 5)
        } else {
            place(0, 1)
        };
        assert_eq!(last.placement(shard), Some(wanted));
    }
    assert_eq!(last.version().get(), second.version().get() + 24);
    while *watch.changed().await.unwrap() != last {}
    assert!(watch.last_error().is_none());
}
