//! The connections of one host, and which of them a call gets.
//!
//! Each shard has a favourite among them, so that its statements are prepared there and not on all: a call goes to it when it
//! is free, else to the next one that is, by number, so that a shard's second choice is always the same too. One is opened
//! only when all are busy. Nobody waits for a favourite.
//!
//! Invariant: there are never more connections than places, and whoever waits is served in the order of asking.

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

impl Free {
    /// Where in the stack the first place is that has had a connection, from a shard's favourite on and round.
    fn nearest(&self, shard: usize) -> Option<usize> {
        let favourite = shard % self.opened.max(1);
        let distance = |number: usize| (number + self.opened - favourite) % self.opened;
        let had = self.stack.iter().enumerate().filter(|(_, number)| **number < self.opened);
        had.min_by_key(|(_, number)| distance(**number)).map(|(at, _)| at)
    }
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
        let nearest = shard.and_then(|shard| free.nearest(usize::from(shard.get())));
        // A place whose connection was closed is as good as one that never had any.
        let open = nearest.filter(|at| self.is_open(free.stack[*at]));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shards_choices_are_always_the_same() {
        let nearest = |stack: &[usize], opened, shard| {
            let free = Free { stack: stack.to_vec(), opened };
            free.nearest(shard).map(|at| free.stack[at])
        };
        assert_eq!(nearest(&[3, 2, 1, 0], 4, 5), Some(1));
        assert_eq!(nearest(&[0, 3], 4, 5), Some(3));
        assert_eq!(nearest(&[3, 0], 4, 5), Some(3));
        assert_eq!(nearest(&[0], 4, 5), Some(0));
        // Places that never had a connection are nobody's favourites.
        assert_eq!(nearest(&[7, 6, 5, 2, 0], 3, 8), Some(2));
        assert_eq!(nearest(&[7, 6, 5], 3, 8), None);
        assert_eq!(nearest(&[1, 0], 0, 8), None);
    }
}
