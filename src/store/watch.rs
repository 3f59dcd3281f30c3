//! Following a map: the end that a store holds and the end that a reader holds.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::StoreError;
use crate::map::ShardMap;

/// The store's end: hands out maps and the reason when one was skipped.
#[derive(Debug)]
pub struct MapSender {
    maps: watch::Sender<Arc<ShardMap>>,
    error: watch::Sender<Option<Arc<StoreError>>>,
    refresh: Arc<Notify>,
}

/// A reader's end: the map as it is, and as it becomes.
///
/// Holds one map, however many were published since: a slow reader sees the newest, not all.
#[derive(Clone, Debug)]
pub struct MapWatch {
    maps: watch::Receiver<Arc<ShardMap>>,
    error: watch::Receiver<Option<Arc<StoreError>>>,
    refresh: Refresh,
}

/// Makes the store behind a [`MapWatch`] check for a new map now. Keeps nothing alive: the store
/// stops when its readers are gone.
#[derive(Clone, Debug)]
pub struct Refresh(Arc<Notify>);

impl Refresh {
    /// Makes the store look immediately, whatever it waits for. Has no effect on a store that hears
    /// of every change anyway (in memory). Returns immediately; several calls may make one look.
    pub fn now(&self) {
        self.0.notify_one();
    }
}

impl MapSender {
    /// A sender that starts with this map.
    pub fn new(map: Arc<ShardMap>) -> MapSender {
        MapSender {
            maps: watch::Sender::new(map),
            error: watch::Sender::new(None),
            refresh: Arc::default(),
        }
    }

    /// A new reader. It sees the current map first.
    pub fn subscribe(&self) -> MapWatch {
        let refresh = Refresh(self.refresh.clone());
        MapWatch {
            maps: self.maps.subscribe(),
            error: self.error.subscribe(),
            refresh,
        }
    }

    /// The map handed out last.
    pub fn current(&self) -> Arc<ShardMap> {
        self.maps.borrow().clone()
    }

    /// Hands out a map, unless it is the same as the last.
    pub fn send(&self, map: ShardMap) {
        self.error.send_replace(None);
        self.maps.send_if_modified(|last| {
            let differs = **last != map;
            if differs {
                *last = Arc::new(map);
            }
            differs
        });
    }

    /// Reports that a map could not be read; the last one is kept.
    pub fn failed(&self, error: StoreError) {
        self.error.send_replace(Some(Arc::new(error)));
    }

    /// Waits until no reader is left.
    ///
    /// # Cancel safety
    /// Changes nothing: may be dropped at any time.
    pub async fn closed(&self) {
        self.maps.closed().await;
    }

    /// Waits until a reader wants the store to look ([`Refresh::now`]).
    ///
    /// # Cancel safety
    /// No request is lost: the next call returns immediately.
    pub async fn refresh_wanted(&self) {
        self.refresh.notified().await;
    }

    pub(super) fn replace_if<E>(
        &self,
        replace: impl FnOnce(&ShardMap) -> Result<ShardMap, E>,
    ) -> Result<(), E> {
        let mut result = Ok(());
        // The channel's own lock makes comparing and swapping one step.
        self.maps.send_if_modified(|kept| match replace(kept) {
            Ok(map) => {
                *kept = Arc::new(map);
                true
            }
            Err(error) => {
                result = Err(error);
                false
            }
        });
        result
    }
}

impl MapWatch {
    /// The map as it is now.
    pub fn current(&self) -> Arc<ShardMap> {
        self.maps.borrow().clone()
    }

    /// Waits for a map that this reader has not been given by `changed` or had when it began;
    /// `None` when the store is gone.
    ///
    /// # Cancel safety
    /// No map is lost: the next call gives it.
    pub async fn changed(&mut self) -> Option<Arc<ShardMap>> {
        self.maps.changed().await.ok()?;
        Some(self.maps.borrow_and_update().clone())
    }

    /// Why the map that is kept now could not be read; `None` when [`MapWatch::current`] is that
    /// map.
    pub fn last_error(&self) -> Option<Arc<StoreError>> {
        self.error.borrow().clone()
    }

    /// Makes the store check immediately: after SIGHUP, for example.
    pub fn refresh(&self) -> Refresh {
        self.refresh.clone()
    }
}
