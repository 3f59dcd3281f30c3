//! Snowflake: 41 bits of milliseconds since an epoch, 10 bits of worker, 12 bits of sequence, made in this process: 63 in all,
//! so a `bigint` that is never negative.
//!
//! Sortable by time, ordered within a generator, 4,096 a millisecond and worker: 4.096 million a second. Whoever wants more
//! waits for the next millisecond by yielding to other tasks and asking the clock again, which keeps a core busy. Needs a worker number
//! of its own, leased from the database every few seconds (`lease`); an ID itself needs no round trip.
//!
//! Invariant: no ID is made outside the milliseconds that the lease grants, so that a process that was stopped for
//! however long makes none that the next holder of its number makes. Besides that, a generator stops a margin before its lease
//! ends by the monotonic clock. What fails: with the database away for longer than the lease, there are no IDs; a clock that
//! steps back makes callers wait, and beyond [`Options::wait_max`] fail; the last ID is 69.7 years after the epoch.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use uuid::Uuid;

use super::lease::{self, Grant, LeaseStore, Term};
use super::ticks::{Patience, Ticks};
use super::{Clock, Error, IdSource, Later, SystemClock, WAIT_MAX, check_batch};
use crate::id::Epoch;

/// Bits of milliseconds.
pub const MS_BITS: u32 = 41;
/// Bits of worker.
pub const WORKER_BITS: u32 = 10;
/// Bits of sequence.
pub const SEQ_BITS: u32 = 12;
/// The epoch of the first snowflakes, 2010-11-04T01:42:54.657Z, as Unix milliseconds.
pub const TWITTER_EPOCH_MS: i64 = 1_288_834_974_657;

const MS_MAX: u64 = (1 << MS_BITS) - 1;

/// The fields of a snowflake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fields {
    /// Milliseconds since the epoch, 41 bits.
    pub ms: u64,
    /// The worker, 10 bits.
    pub worker: u16,
    /// The sequence number, 12 bits.
    pub seq: u16,
}

impl Fields {
    /// Takes an ID apart; `None` for a negative number, which is no snowflake.
    pub const fn decode(id: i64) -> Option<Fields> {
        if id < 0 {
            return None;
        }
        let worker = (id >> SEQ_BITS) as u16 & ((1 << WORKER_BITS) - 1);
        Some(Fields { ms: id as u64 >> (WORKER_BITS + SEQ_BITS), worker, seq: id as u16 & ((1 << SEQ_BITS) - 1) })
    }

    /// Puts an ID together; `None` when a field has too many bits.
    pub const fn encode(self) -> Option<i64> {
        if self.ms > MS_MAX || self.worker >> WORKER_BITS != 0 || self.seq >> SEQ_BITS != 0 {
            return None;
        }
        Some((self.ms << (WORKER_BITS + SEQ_BITS) | (self.worker as u64) << SEQ_BITS | self.seq as u64) as i64)
    }
}

/// How a generator works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The zero of the clock. The same for ever and for all generators of the IDs.
    pub epoch: Epoch,
    /// How long a lease is. Long: the database may be away for so long. Short: a number is free again sooner.
    pub lease: Duration,
    /// So long before its end a lease is taken as ended. Less than the lease.
    pub margin: Duration,
    /// How long a call waits for a clock that stepped back.
    pub wait_max: Duration,
}

impl Options {
    /// Leases of 30 s with 2 s of margin, and [`WAIT_MAX`].
    pub fn new(epoch: Epoch) -> Options {
        let (lease, margin) = (Duration::from_secs(30), Duration::from_secs(2));
        Options { epoch, lease, margin, wait_max: WAIT_MAX }
    }
}

/// A generator of snowflakes. Clones share it.
#[derive(Debug)]
pub struct Snowflake<S: LeaseStore> {
    inner: Arc<Inner<S>>,
    /// Ends the renewing with the last clone.
    keeper: Option<Arc<Keeper>>,
}

impl<S: LeaseStore> Clone for Snowflake<S> {
    fn clone(&self) -> Self {
        Snowflake { inner: self.inner.clone(), keeper: self.keeper.clone() }
    }
}

#[derive(Debug)]
struct Keeper(AbortHandle);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
struct Inner<S> {
    store: S,
    clock: Arc<dyn Clock>,
    options: Options,
    epoch_ms: i64,
    ticks: Ticks<SEQ_BITS>,
    held: ArcSwapOption<Held>,
    renewing: Mutex<()>,
}

/// A grant, and until when by this process's monotonic clock.
#[derive(Debug)]
struct Held {
    grant: Grant,
    until: Duration,
}

impl<S: LeaseStore> Snowflake<S> {
    /// A generator that has a worker number and keeps it: a task renews the lease three times in its length, and leases
    /// another number where that one was lost. It ends when the last clone is dropped; the number is free again when the
    /// lease has ended.
    ///
    /// Waits while the database grants none because it may have gone back in time ([`lease::Error::OnHold`]): for about the longest lease.
    ///
    /// # Errors
    /// When no number can be leased.
    ///
    /// # Cancel safety
    /// When dropped, a number may stay leased until its lease ends.
    pub async fn start(store: S, options: Options) -> Result<Snowflake<S>, Error> {
        let mut generator = Snowflake::acquire(store, options, SystemClock::shared()).await?;
        let inner = generator.inner.clone();
        let pace = inner.options.lease / 3;
        let task = tokio::spawn(async move {
            loop {
                inner.clock.sleep(pace).await;
                if let Err(error) = inner.renew().await {
                    tracing::warn!(%error, "the lease of a snowflake worker was not renewed; trying again");
                }
            }
        });
        generator.keeper = Some(Arc::new(Keeper(task.abort_handle())));
        Ok(generator)
    }

    /// A generator that has a worker number, with this clock, and renews the lease only when an ID is asked for after its
    /// end, or by [`Snowflake::renew`].
    ///
    /// # Errors
    /// When no number can be leased.
    ///
    /// # Cancel safety
    /// As [`Snowflake::start`].
    pub async fn acquire(store: S, options: Options, clock: Arc<dyn Clock>) -> Result<Snowflake<S>, Error> {
        let epoch_ms = options.epoch.unix_ms();
        let (held, renewing) = (ArcSwapOption::empty(), Mutex::new(()));
        let inner = Inner { store, clock, options, epoch_ms, ticks: Ticks::from(0), held, renewing };
        let mut waits = 0;
        loop {
            match inner.renew().await {
                Ok(()) => break,
                Err(lease::Error::OnHold { left_ms }) if waits < HOLDS_MAX => {
                    waits += 1;
                    tracing::warn!(
                        left_ms,
                        "no worker number is leased yet: the database of the leases may have gone back in time"
                    );
                    inner.clock.sleep(Duration::from_millis(left_ms)).await;
                }
                Err(error) => return Err(Error::NoLease(error)),
            }
        }
        Ok(Snowflake { inner: Arc::new(inner), keeper: None })
    }

    /// Renews the lease, or leases another number where that one was lost.
    ///
    /// # Errors
    /// When the store is out of reach or has no number free. The lease goes on until its end.
    ///
    /// # Cancel safety
    /// The lease may be renewed without this process knowing: it then stops sooner than it must.
    pub async fn renew(&self) -> Result<(), Error> {
        self.inner.renew().await.map_err(Error::NoLease)
    }

    /// The worker number, if one is held; it may have changed when you look at it.
    pub fn worker(&self) -> Option<u16> {
        self.inner.held.load().as_ref().map(|held| held.grant.worker)
    }

    /// The next ID, without waiting.
    ///
    /// # Errors
    /// What keeps it: this millisecond is used up, the clock is behind, or the lease has ended.
    pub fn try_next(&self) -> Result<i64, Later> {
        let mut one = None;
        self.inner.take(1, |id| one = Some(id))?;
        Ok(one.expect("at least one is taken"))
    }
}

impl<S: LeaseStore> Inner<S> {
    async fn renew(&self) -> Result<(), lease::Error> {
        let _one_at_a_time = self.renewing.lock().await;
        self.renew_locked().await
    }

    /// For a caller without a lease: several of them wait for one renewal.
    async fn renew_unless_held(&self) -> Result<(), lease::Error> {
        let _one_at_a_time = self.renewing.lock().await;
        let usable = self.held.load().as_ref().is_some_and(|held| self.check(held, self.clock.unix_ms()).is_ok());
        if usable { Ok(()) } else { self.renew_locked().await }
    }

    async fn renew_locked(&self) -> Result<(), lease::Error> {
        let held = self.held.load_full();
        // From before the request: the store counts from when it got it, which is later.
        let asked_at = self.clock.monotonic();
        let now_ms = self.clock.unix_ms();
        let length = self.options.lease;
        // The store keeps the number for longer than it is used, so that a renewal that is a little late keeps it.
        let term = Term { now_ms, length, keep: length + self.options.margin };
        let renewed = match held {
            Some(held) => self.store.renew(held.grant, term).await?,
            None => None,
        };
        let grant = match renewed {
            Some(grant) => grant,
            None => {
                self.held.store(None);
                self.store.acquire(Uuid::new_v4(), term).await?
            }
        };
        let until = asked_at + length.saturating_sub(self.options.margin);
        self.held.store(Some(Arc::new(Held { grant, until })));
        Ok(())
    }

    fn check(&self, held: &Held, unix_ms: u64) -> Result<(), Later> {
        if unix_ms > held.grant.ceiling_ms || self.clock.monotonic() >= held.until {
            return Err(Later::Lease);
        }
        if unix_ms < held.grant.floor_ms {
            return Err(Later::Behind { by_ms: held.grant.floor_ms - unix_ms });
        }
        Ok(())
    }

    fn since_epoch(&self, unix_ms: u64) -> Option<u64> {
        let ms = i64::try_from(unix_ms).ok()?.checked_sub(self.epoch_ms)?;
        u64::try_from(ms).ok().filter(|ms| *ms <= MS_MAX)
    }

    fn take(&self, want: u64, mut put: impl FnMut(i64)) -> Result<(), Later> {
        let held = self.held.load();
        let held = held.as_ref().ok_or(Later::Lease)?;
        let now = || {
            let unix_ms = self.clock.unix_ms();
            self.check(held, unix_ms)?;
            match self.since_epoch(unix_ms) {
                Some(_) => Ok(unix_ms),
                None => Err(Later::OutOfRange { unix_ms }),
            }
        };
        // A stop between here and the return is harmless: the millisecond is within the grant, for ever.
        let taken = self.ticks.take(now, want)?;
        let ms = self.since_epoch(taken.ms).expect("the millisecond was checked");
        for seq in taken.seq..taken.seq + taken.count {
            let fields = Fields { ms, worker: held.grant.worker, seq: seq as u16 };
            put(fields.encode().expect("every field was checked"));
        }
        Ok(())
    }
}

/// How often a generator that starts waits for a hold on the leases to end: the server may be promoted or restarted meanwhile.
const HOLDS_MAX: u32 = 3;

/// How often one call has the lease renewed.
const RENEWALS_MAX: u32 = 3;

impl<S: LeaseStore> IdSource for Snowflake<S> {
    type Id = i64;
    type Error = Error;

    async fn next(&self) -> Result<i64, Error> {
        if let Ok(id) = self.try_next() {
            return Ok(id);
        }
        Ok(self.next_many(1).await?[0])
    }

    async fn next_many(&self, count: usize) -> Result<Vec<i64>, Error> {
        check_batch(count)?;
        let inner = &*self.inner;
        let mut ids = Vec::with_capacity(count);
        let mut patience = Patience::new(&*inner.clock, inner.options.wait_max);
        let mut renewals = 0;
        while ids.len() < count {
            match inner.take((count - ids.len()) as u64, |id| ids.push(id)) {
                Ok(()) => patience.rewarded(),
                Err(Later::NextMillisecond) => patience.wait(0).await?,
                Err(Later::Behind { by_ms }) => patience.wait(by_ms).await?,
                Err(Later::Lease) if renewals == RENEWALS_MAX => {
                    return Err(Error::LeaseTooShort { length_ms: inner.options.lease.as_millis() });
                }
                Err(Later::Lease) => {
                    renewals += 1;
                    inner.renew_unless_held().await.map_err(Error::NoLease)?;
                }
                Err(Later::Forked) => return Err(Error::Forked),
                Err(Later::OutOfRange { unix_ms }) => {
                    let (first_ms, span) = (inner.epoch_ms, MS_MAX.cast_signed());
                    return Err(Error::OutOfRange { unix_ms, first_ms, last_ms: first_ms + span });
                }
            }
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests;
