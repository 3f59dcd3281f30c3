//! A map in memory, for tests and for programs that keep it in their own way.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, ready};

use super::{MapSender, MapStore, MapWatch, PublishError, StoreError, check_replaceable};
use crate::map::{MapVersion, ShardMap};

/// A map that lives as long as this value.
#[derive(Debug)]
pub struct MemoryStore {
    map: MapSender,
}

impl MemoryStore {
    /// A store that keeps this map.
    pub fn new(map: ShardMap) -> MemoryStore {
        MemoryStore {
            map: MapSender::new(Arc::new(map)),
        }
    }
}

impl MapStore for MemoryStore {
    fn load(&self) -> BoxFuture<'_, Result<ShardMap, StoreError>> {
        ready(Ok(ShardMap::clone(&self.map.current()))).boxed()
    }

    fn publish<'a>(
        &'a self,
        expected: MapVersion,
        map: &'a ShardMap,
    ) -> BoxFuture<'a, Result<(), PublishError>> {
        // In an async block: nothing may happen before the future is polled.
        let swap =
            move |kept: &ShardMap| check_replaceable(kept, expected, map).map(|()| map.clone());
        async move { self.map.replace_if(swap) }.boxed()
    }

    fn watch(&self) -> BoxFuture<'_, Result<MapWatch, StoreError>> {
        ready(Ok(self.map.subscribe())).boxed()
    }
}
