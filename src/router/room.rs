//! The connections to all hosts together: no more than a number, wherever they are.
//!
//! Invariant: nobody waits while another host keeps a connection that nobody uses.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool::managed::WeakPool;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::session::Manager;

/// Room for the connections of a router's pools.
pub(super) struct Room {
    places: Arc<Semaphore>,
    wait_max: Duration,
    /// Whose idle connections make room for others.
    pools: Mutex<Vec<WeakPool<Manager>>>,
    waiting: AtomicUsize,
}

impl Room {
    pub(super) fn new(connections_max: usize, wait_max: Duration) -> Room {
        let places = Arc::new(Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS)));
        Room { places, wait_max, pools: Mutex::default(), waiting: AtomicUsize::new(0) }
    }

    pub(super) fn add(&self, pool: WeakPool<Manager>) {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).push(pool);
    }

    /// Whether a connection that comes back is to be closed, for one to another host.
    pub(super) fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether another connection would have to wait.
    pub(super) fn is_full(&self) -> bool {
        self.places.available_permits() == 0
    }

    /// A place for a connection, once there is one; `None` when that takes too long.
    ///
    /// # Cancel safety
    /// Nothing is kept when the future is dropped.
    pub(super) async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Some(place);
        }
        let _waiting = Waiting::new(&self.waiting);
        self.close_idle();
        match tokio::time::timeout(self.wait_max, self.places.clone().acquire_owned()).await {
            Ok(Ok(place)) => Some(place),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Closes one connection of the pool that has most of them idle.
    fn close_idle(&self) {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = pools.iter().filter_map(WeakPool::upgrade).max_by_key(|pool| pool.status().available);
        if let Some(pool) = idle {
            let mut closed = false;
            pool.retain(|_, _| std::mem::replace(&mut closed, true));
        }
    }
}

struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn new(waiting: &AtomicUsize) -> Waiting<'_> {
        waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
