//! Snowflake: 41 bits of milliseconds since an epoch, 10 bits of worker, 12 bits of sequence, made
//! in this process: 63 in all, so a `bigint` that is never negative.
//!
//! Sortable by time, ordered within a generator, 4,096 a millisecond and worker: 4.096 million a
//! second. A caller that wants more waits for the next millisecond by yielding to other tasks and
//! asking the clock again, which keeps a core busy. Needs a worker number of its own, leased from
//! the database every few seconds (`lease`); an ID itself needs no round trip.
//!
//! Invariant: no ID is made outside the milliseconds that the lease grants. So a process that was
//! suspended, for however long, makes no ID that the next holder of its number makes. In addition,
//! a generator stops a margin before its lease ends by the monotonic clock. Limits: while the
//! database is unreachable for longer than the lease, there are no IDs; a clock that steps back
//! makes callers wait, and beyond [`Options::wait_max`] fail; the last ID is 69.7 years after the
//! epoch.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use uuid::Uuid;

use super::lease::{self, Grant, LeaseStore, Term};
use super::process::Process;
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
        Some(Fields {
            ms: id as u64 >> (WORKER_BITS + SEQ_BITS),
            worker,
            seq: id as u16 & ((1 << SEQ_BITS) - 1),
        })
    }

    /// Puts an ID together; `None` when a field has too many bits.
    pub const fn encode(self) -> Option<i64> {
        if self.ms > MS_MAX || self.worker >> WORKER_BITS != 0 || self.seq >> SEQ_BITS != 0 {
            return None;
        }
        Some(
            (self.ms << (WORKER_BITS + SEQ_BITS)
                | (self.worker as u64) << SEQ_BITS
                | self.seq as u64) as i64,
        )
    }
}

/// How a generator works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The zero of the clock. It must be the same for all generators of the IDs, and never change.
    pub epoch: Epoch,
    /// How long a lease is. With a long one the database may be away for longer; with a short one a
    /// number is free again sooner.
    pub lease: Duration,
    /// How long before its end a lease counts as ended. Less than the lease.
    pub margin: Duration,
    /// How long a call waits for a clock that stepped back.
    pub wait_max: Duration,
}

impl Options {
    /// Leases of 30 s with 2 s of margin, and [`WAIT_MAX`].
    pub fn new(epoch: Epoch) -> Options {
        let (lease, margin) = (Duration::from_secs(30), Duration::from_secs(2));
        Options {
            epoch,
            lease,
            margin,
            wait_max: WAIT_MAX,
        }
    }
}

setters!(Options: lease: Duration, margin: Duration, wait_max: Duration);

/// A generator of snowflakes. Clones share it, and the last one gives the worker number back.
#[derive(Debug)]
pub struct Snowflake<S: LeaseStore> {
    inner: Arc<Inner<S>>,
    hold: Arc<Hold<S>>,
}

impl<S: LeaseStore> Clone for Snowflake<S> {
    fn clone(&self) -> Self {
        Snowflake {
            inner: self.inner.clone(),
            hold: self.hold.clone(),
        }
    }
}

/// What ends with the last clone: the task that renews, and the lease.
#[derive(Debug)]
struct Hold<S: LeaseStore> {
    inner: Arc<Inner<S>>,
    keeper: Option<AbortHandle>,
}

impl<S: LeaseStore> Drop for Hold<S> {
    fn drop(&mut self) {
        if let Some(keeper) = &self.keeper {
            keeper.abort();
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let inner = self.inner.clone();
        runtime.spawn(async move {
            if let Err(error) = inner.release().await {
                tracing::debug!(%error, "a worker number was not given back; it is free when its \
                    lease ends");
            }
        });
    }
}

#[derive(Debug)]
struct Inner<S> {
    store: S,
    clock: Arc<dyn Clock>,
    options: Options,
    epoch_ms: i64,
    ticks: Ticks<SEQ_BITS>,
    held: ArcSwapOption<HeldGrant>,
    renewing: Mutex<Renewing>,
}

/// A grant, and until when it holds by this process's monotonic clock.
#[derive(Debug)]
struct HeldGrant {
    grant: Grant,
    until: Duration,
    /// The process that it was granted to.
    process: Process,
}

type Renewed = Result<(), Arc<lease::Error>>;

/// One renewal for all callers, in a task of its own, so that a caller that gives up does not end
/// it.
#[derive(Debug)]
struct Renewing {
    process: Process,
    under_way: Option<watch::Receiver<Option<Renewed>>>,
    /// The token of a request for a number, until it is answered: the number may have been granted
    /// already.
    token: Option<Uuid>,
}

impl Renewing {
    fn none() -> Renewing {
        Renewing {
            process: Process::current(),
            under_way: None,
            token: None,
        }
    }
}

impl<S: LeaseStore> Snowflake<S> {
    /// A generator that has a worker number and keeps it. A task renews the lease three times in
    /// its length, and leases another number if that one was lost. When the last clone is dropped,
    /// a task gives the number back. Wait for [`Snowflake::release`] before the runtime ends, or
    /// the number is free only when its lease has ended.
    ///
    /// This waits while the database grants no number because it may have gone back in time
    /// ([`lease::Error::OnHold`]), for about the longest lease.
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
                    tracing::warn!(%error, "the lease of a snowflake worker was not renewed; \
                        trying again");
                }
            }
        });
        let hold = Arc::get_mut(&mut generator.hold).expect("nobody else has it yet");
        hold.keeper = Some(task.abort_handle());
        Ok(generator)
    }

    /// A generator that has a worker number, with this clock. It renews the lease only when an ID
    /// is requested after its end, or by [`Snowflake::renew`].
    ///
    /// # Errors
    /// When no number can be leased.
    ///
    /// # Cancel safety
    /// As [`Snowflake::start`].
    pub async fn acquire(
        store: S,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Result<Snowflake<S>, Error> {
        let epoch_ms = options.epoch.unix_ms();
        let (held, renewing) = (ArcSwapOption::empty(), Mutex::new(Renewing::none()));
        let inner = Inner {
            store,
            clock,
            options,
            epoch_ms,
            ticks: Ticks::from(0),
            held,
            renewing,
        };
        let inner = Arc::new(inner);
        // It exists from here on, so that a start that is given up gives back what it was granted.
        let generator = Snowflake {
            hold: Arc::new(Hold {
                inner: inner.clone(),
                keeper: None,
            }),
            inner,
        };
        let mut waits = 0;
        loop {
            match generator.inner.renew().await {
                Ok(()) => return Ok(generator),
                Err(error) => match *error {
                    lease::Error::OnHold { left_ms } if waits < HOLDS_MAX => {
                        waits += 1;
                        tracing::warn!(
                            left_ms,
                            "no worker number is leased yet: the database of the leases may have \
                                gone back in time"
                        );
                        generator
                            .inner
                            .clock
                            .sleep(Duration::from_millis(left_ms))
                            .await;
                    }
                    _ => return Err(Error::NoLease(error)),
                },
            }
        }
    }

    /// Renews the lease, or leases another number if that one was lost. Concurrent callers wait for
    /// the same renewal.
    ///
    /// # Errors
    /// When the store is out of reach or has no free number. The lease is then valid until its end.
    ///
    /// # Cancel safety
    /// The renewal continues.
    pub async fn renew(&self) -> Result<(), Error> {
        self.inner.renew().await.map_err(Error::NoLease)
    }

    /// Gives the worker number back, so that the next generator may begin immediately, if this is
    /// the last clone. Else it only drops this one.
    ///
    /// # Errors
    /// When the store is out of reach: the number is free when its lease has ended.
    ///
    /// # Cancel safety
    /// When dropped, the number may be free only when its lease has ended.
    pub async fn release(self) -> Result<(), Error> {
        let Snowflake { inner, hold } = self;
        match Arc::into_inner(hold) {
            Some(_last) => inner
                .release()
                .await
                .map_err(|error| Error::NoLease(Arc::new(error))),
            None => Ok(()),
        }
    }

    /// The worker number, if one is held; it may have changed when you look at it.
    pub fn worker(&self) -> Option<u16> {
        self.inner
            .held
            .load()
            .as_ref()
            .map(|held| held.grant.worker)
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
    fn renewing(&self) -> std::sync::MutexGuard<'_, Renewing> {
        // No state is half changed under this lock if a thread panics.
        let mut renewing = self.renewing.lock().unwrap_or_else(PoisonError::into_inner);
        if !renewing.process.is_current() {
            *renewing = Renewing::none();
        }
        renewing
    }

    async fn renew(self: &Arc<Self>) -> Renewed {
        // A renewal in a task of another runtime may end without an answer. The next one is this
        // caller's own.
        for _ in 0..2 {
            let mut under_way = self.renewal();
            if let Ok(answer) = under_way.wait_for(Option::is_some).await {
                return answer.clone().expect("it was waited for");
            }
        }
        Err(Arc::new(lease::Error::Ended))
    }

    /// Renews the lease for a caller that has none, unless another call has just done so.
    async fn renew_unless_held(self: &Arc<Self>) -> Renewed {
        let usable = self
            .held
            .load()
            .as_ref()
            .is_some_and(|held| self.check(held, self.clock.unix_ms()).is_ok());
        if usable { Ok(()) } else { self.renew().await }
    }

    /// The renewal that is under way, or a new one.
    fn renewal(self: &Arc<Self>) -> watch::Receiver<Option<Renewed>> {
        let mut renewing = self.renewing();
        let goes_on = |under_way: &&watch::Receiver<Option<Renewed>>| {
            under_way.borrow().is_none() && under_way.has_changed().is_ok()
        };
        if let Some(under_way) = renewing.under_way.as_ref().filter(goes_on) {
            return under_way.clone();
        }
        let (answer, under_way) = watch::channel(None);
        renewing.under_way = Some(under_way.clone());
        let inner = self.clone();
        tokio::spawn(async move {
            answer
                .send(Some(inner.renew_alone().await.map_err(Arc::new)))
                .ok()
        });
        under_way
    }

    async fn renew_alone(&self) -> Result<(), lease::Error> {
        let held = self
            .held
            .load_full()
            .filter(|held| held.process.is_current());
        // Taken before the request: the store counts from when it got the request, which is later.
        let asked_at = self.clock.monotonic();
        let now_ms = self.clock.unix_ms();
        let length = self.options.lease;
        // The store keeps the number for longer than it is used, so that a renewal that is a little
        // late keeps it.
        let term = Term {
            epoch: self.options.epoch,
            now_ms,
            length,
            keep: length + self.options.margin,
        };
        let renewed = match held {
            Some(held) => self.store.renew(held.grant, term).await?,
            None => None,
        };
        let grant = match renewed {
            Some(grant) => grant,
            None => {
                self.held.store(None);
                let token = *self.renewing().token.get_or_insert_with(Uuid::new_v4);
                let grant = self.store.acquire(token, term).await?;
                self.renewing().token = None;
                grant
            }
        };
        let until = asked_at + length.saturating_sub(self.options.margin);
        self.held.store(Some(Arc::new(HeldGrant {
            grant,
            until,
            process: Process::current(),
        })));
        Ok(())
    }

    /// Gives the number back, for the last clone: no more IDs are made.
    async fn release(&self) -> Result<(), lease::Error> {
        // A renewal that is still under way could lease a number after this.
        let under_way = self.renewing().under_way.clone();
        if let Some(mut under_way) = under_way {
            under_way.wait_for(Option::is_some).await.ok();
        }
        let Some(held) = self
            .held
            .swap(None)
            .filter(|held| held.process.is_current())
        else {
            return Ok(());
        };
        let last_ms = self
            .ticks
            .last_ms()
            .max(held.grant.floor_ms.saturating_sub(1));
        self.store.release(held.grant, last_ms).await
    }

    fn check(&self, held: &HeldGrant, unix_ms: u64) -> Result<(), Later> {
        let ended = unix_ms > held.grant.ceiling_ms || self.clock.monotonic() >= held.until;
        if ended || !held.process.is_current() {
            return Err(Later::Lease);
        }
        if unix_ms < held.grant.floor_ms {
            return Err(Later::Behind {
                by_ms: held.grant.floor_ms - unix_ms,
            });
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
        // A stop between here and the return is harmless: the millisecond is within the grant, for
        // ever.
        let taken = self.ticks.take(now, want)?;
        let ms = self
            .since_epoch(taken.ms)
            .expect("the millisecond was checked");
        for seq in taken.seq..taken.seq + taken.count {
            let fields = Fields {
                ms,
                worker: held.grant.worker,
                seq: seq as u16,
            };
            put(fields.encode().expect("every field was checked"));
        }
        Ok(())
    }
}

/// How often a generator that starts waits for a hold on the leases to end: the server may be
/// promoted or restarted during the wait.
const HOLDS_MAX: u32 = 3;

/// How often one call may have the lease renewed.
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
        let inner = &self.inner;
        let mut ids = Vec::with_capacity(count);
        let mut patience = Patience::new(&*inner.clock, inner.options.wait_max);
        let mut renewals = 0;
        while ids.len() < count {
            match inner.take((count - ids.len()) as u64, |id| ids.push(id)) {
                Ok(()) => patience.rewarded(),
                Err(Later::NextMillisecond) => patience.wait(0).await?,
                Err(Later::Behind { by_ms }) => patience.wait(by_ms).await?,
                Err(Later::Lease) if renewals == RENEWALS_MAX => {
                    return Err(Error::LeaseTooShort {
                        length_ms: inner.options.lease.as_millis(),
                    });
                }
                Err(Later::Lease) => {
                    renewals += 1;
                    inner.renew_unless_held().await.map_err(Error::NoLease)?;
                }
                Err(Later::Forked) => return Err(Error::Forked),
                Err(Later::OutOfRange { unix_ms }) => {
                    let (first_ms, span) = (inner.epoch_ms, MS_MAX.cast_signed());
                    return Err(Error::OutOfRange {
                        unix_ms,
                        first_ms,
                        last_ms: first_ms + span,
                    });
                }
            }
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests;
