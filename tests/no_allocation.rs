//! Routing a key and decoding an ID allocate nothing. This is a binary of its own because its
//! allocator counts.

use std::hint::black_box;
use std::sync::Arc;

use pgshard::id::Id;
use pgshard::map::{HostName, MapVersion, Placement, ShardEpoch, ShardMap};
use pgshard::router::Options;
use pgshard::{Router, ShardCount};

#[test]
fn routing_and_decoding() {
    let host = HostName::new("db1").unwrap();
    let placement = |shard| {
        (
            shard,
            Placement {
                host: host.clone(),
                epoch: ShardEpoch::FIRST,
            },
        )
    };
    let map = ShardMap::new(
        MapVersion::FIRST,
        ShardCount::MAX,
        ShardCount::MAX.iter().map(placement),
    )
    .unwrap();
    let map = Arc::new(map);
    let router = Router::new(Options::new(Vec::new(), map.clone()));
    let counted = allocation_counter::measure(|| {
        for key in 0..1000_i64 {
            let shard = router.by_key(black_box(key)).id();
            black_box(map.host(shard));
            let id = Id::decode(black_box(key << 10));
            black_box((id.ms(), id.shard(), id.seq(), id.encode()));
            black_box(
                router
                    .by_id(black_box(key << 10))
                    .map(|shard| shard.id())
                    .is_ok(),
            );
        }
    });
    assert_eq!(counted.count_total, 0);
    let counted = allocation_counter::measure(|| drop(black_box(vec![1])));
    assert_eq!(counted.count_total, 1, "it does count");
}
