//! What a store must do, whichever it is, and maps to try it with.

mod contract;

use std::sync::Arc;

use proptest::prelude::*;

use super::{MapStore, PublishError, publish_merged};
use crate::map::{Changes, HostName, MapVersion, Placement, ShardEpoch, ShardMap};
use crate::shard::{ShardCount, ShardId};

pub(crate) use contract::{first_map, place, store_contract};

/// Any map of up to 40 shards on `db0` to `db3`.
pub(crate) fn any_map() -> impl Strategy<Value = ShardMap> {
    (
        prop::collection::vec((0u8..4, 1u32..4), 1..40),
        1u64..=super::map_text::VERSION_MAX - 100,
    )
        .prop_map(|(slots, version)| {
            let shards = ShardCount::new(slots.len() as u32).unwrap();
            let placements = shards
                .iter()
                .zip(slots)
                .map(|(shard, (host, epoch))| (shard, place(host, epoch)));
            ShardMap::new(MapVersion::new(version), shards, placements).unwrap()
        })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_keeps_the_contract_of_a_store() {
    store_contract(Arc::new(super::MemoryStore::new(first_map()))).await;
}
