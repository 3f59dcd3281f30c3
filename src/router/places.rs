//! The connections of one host, and which of them a call gets.
//!
//! Each shard has a favourite among them, so that its statements are prepared there and not on all: a call goes to it when it
//! is free, else to the connection that was given back last, and one is opened only when all are busy. Nobody waits for a
//! favourite.
//!
//! What may not break: there are never more connections than places, and whoever waits is served in the order of asking.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool::managed::{Pool, PoolError, TimeoutType};
use tokio::sync::Semaphore;

use super::room::Room;
use super::session::{Lease, Manager, OpenError};
use crate::shard::ShardId;

/// Places for connections, so many as the host's pool is large.
pub(super) struct Places {
    /// A permit for each place that is free.
    permits: Semaphore,
    free: Mutex<Free>,
    /// One connection each: opens it, checks it when it is borrowed again, and has the limits for both.
    pools: Box<[Pool<Manager>]>,
    wait_max: Duration,
}

struct Free {
    /// The place that was given back last is on top; below all those that never had a connection, the first of them on top.
    stack: Vec<usize>,
    /// How many places have had a connection: those with the lowest numbers.
    opened: usize,
}

/// A place that is taken, until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: usize,
}

impl Places {
    /// `pool` makes a pool of one connection.
    pub(super) fn new(size: usize, wait_max: Duration, pool: impl Fn() -> Pool<Manager>) -> Places {
        let size = size.clamp(1, Semaphore::MAX_PERMITS);
        Places {
            permits: Semaphore::new(size),
            free: Mutex::new(Free { stack: (0..size).rev().collect(), opened: 0 }),
            pools: std::iter::repeat_with(pool).take(size).collect(),
            wait_max,
        }
    }

    /// How many connections there are at most.
    pub(super) fn size(&self) -> usize {
        self.pools.len()
    }

    pub(super) fn pools(&self) -> &[Pool<Manager>] {
        &self.pools
    }

    /// A connection for a statement on `shard`, once one is free.
    ///
    /// # Cancel safety
    /// The place is free again when the future is dropped.
    pub(super) async fn get(self: &Arc<Self>, shard: ShardId) -> Result<Lease, PoolError<OpenError>> {
        let permit = match self.permits.try_acquire() {
            Ok(permit) => permit,
            Err(_) => match tokio::time::timeout(self.wait_max, self.permits.acquire()).await {
                Ok(Ok(permit)) => permit,
                Ok(Err(_)) | Err(_) => return Err(PoolError::Timeout(TimeoutType::Wait)),
            },
        };
        permit.forget();
        self.open(self.take(Some(shard))).await
    }

    /// A connection of a place that is free now, for whatever shard; opened only if `room` has any.
    ///
    /// # Cancel safety
    /// As [`Places::get`].
    pub(super) async fn get_if_free(
        self: &Arc<Self>,
        room: Option<&Room>,
    ) -> Option<Result<Lease, PoolError<OpenError>>> {
        self.permits.try_acquire().ok()?.forget();
        let place = self.take(None);
        if room.is_some_and(Room::is_full) && !self.is_open(place.number) {
            return None;
        }
        Some(self.open(place).await)
    }

    async fn open(&self, place: Place) -> Result<Lease, PoolError<OpenError>> {
        let session = self.pools[place.number].get().await?;
        Ok(Lease::new(session, Some(place)))
    }

    /// Takes a free place, for which the caller has a permit.
    fn take(self: &Arc<Self>, shard: Option<ShardId>) -> Place {
        let mut free = self.lock();
        let favourite = shard.map(|shard| usize::from(shard.get()) % free.opened.max(1));
        let favourite = favourite.and_then(|number| free.stack.iter().rposition(|free| *free == number));
        // A place whose connection was closed is as good as one that never had any.
        let open = favourite.filter(|at| self.is_open(free.stack[*at]));
        let open = open.or_else(|| free.stack.iter().rposition(|number| self.is_open(*number)));
        let at = open.unwrap_or(free.stack.len() - 1);
        let number = free.stack.remove(at);
        free.opened = free.opened.max(number + 1);
        Place { places: self.clone(), number }
    }

    /// Whether a free place has a connection.
    fn is_open(&self, number: usize) -> bool {
        self.pools[number].status().available > 0
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().stack.push(self.number);
        self.places.permits.add_permits(1);
    }
}
