//! The connections of one host: borrowed, waited for, opened, checked, and closed when they are
//! old.
//!
//! [`slots`](super::slots) decides which connection a call gets and which call waits. This file
//! carries that out.
//!
//! Invariant: a slot is given back exactly once, by its last holder: the caller, or the task that
//! cleans or ends what the caller left. No connection is closed while the slots are locked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::error::PoolPhase;
use super::metrics::PoolGauges;
use super::opener::Opener;
use super::options::Options;
use super::pool_error::PoolError;
use super::pool_slots::{Favourite, Grant, Service, Use, Wish};
use super::session::{Session, Statements};
use super::slots::{Counts, Effects, SlotAnswer, Slots};
use crate::map::HostName;
use crate::shard::ShardId;

type Tell = oneshot::Sender<Grant<Box<Session>>>;
type Shared = Mutex<Slots<Box<Session>, Tell>>;

/// The most connections to all hosts together, those for lookups not counted.
pub(super) struct ConnectionLimit(Arc<Shared>);

/// The connections of one host.
pub(super) struct Pool {
    /// This pool's slots, together with those of the other pools under the same limit.
    slots: Arc<Shared>,
    /// This pool's number in `slots`.
    number: usize,
    size: usize,
    has_limit: bool,
    opener: Opener,
    wait_max: Duration,
    waiters_max: u32,
    idle_timeout: Option<Duration>,
    max_lifetime: Option<Duration>,
    /// By slot: the handle that ends its connection, also while a call uses it.
    drivers: Mutex<Box<[Option<AbortHandle>]>>,
    /// Wakes [`Pool::unused`] whenever a slot is given back after the pool was closed.
    given_back: Notify,
    is_closed: AtomicBool,
    sweeping: AtomicBool,
    gauges: Mutex<PoolGauges>,
}

/// What a pool is made with.
pub(super) struct PoolOptions<'a> {
    pub(super) host: &'a HostName,
    pub(super) size: usize,
    pub(super) waiting_max: u32,
    pub(super) limit: Option<&'a ConnectionLimit>,
}

/// The connections of a pool at one time. A host's standbys have pools of their own. Connections
/// for lookups are not counted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolState {
    /// The host that it belongs to, by itself or by one of its standbys.
    pub host: HostName,
    /// How many connections there are at most.
    pub size: usize,
    /// Open, and unused.
    pub idle: usize,
    /// In use, being opened, or being cleaned or ended.
    pub used: usize,
    /// Calls that wait for one.
    pub waiting: usize,
}

impl ConnectionLimit {
    pub(super) fn new(connections_max: usize) -> ConnectionLimit {
        ConnectionLimit(Arc::new(Mutex::new(Slots::new(connections_max))))
    }
}

/// How long a call waits for a connection of its own pool before it makes another pool close an
/// idle one. Opening a connection costs some milliseconds, and the other pool may have to open its
/// own again a moment later.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long a call waits for its shard's favourite while other connections are idle. On one of
/// those the server would have to plan its statement, which is soon done, too.
const FAVOURITE_WAIT: Duration = Duration::from_millis(2);

/// The time between two sweeps, at most and at least.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const SWEEP_EVERY_MIN: Duration = Duration::from_millis(10);

impl Pool {
    /// Makes the pool. Opens no connection.
    pub(super) fn new(pool: PoolOptions<'_>, options: &Options, opener: Opener) -> Arc<Pool> {
        let size = pool.size.max(1);
        let slots = match pool.limit {
            Some(limit) => limit.0.clone(),
            None => ConnectionLimit::new(size).0,
        };
        let waiting_max = usize::try_from(pool.waiting_max).unwrap_or(usize::MAX);
        let number = slots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(size, waiting_max);
        Arc::new(Pool {
            slots,
            number,
            size,
            has_limit: pool.limit.is_some(),
            opener,
            wait_max: options.wait_max,
            waiters_max: pool.waiting_max,
            idle_timeout: options.idle_timeout,
            max_lifetime: options.max_lifetime,
            drivers: Mutex::new(std::iter::repeat_with(|| None).take(size).collect()),
            given_back: Notify::new(),
            is_closed: AtomicBool::new(false),
            sweeping: AtomicBool::new(false),
            gauges: Mutex::new(PoolGauges::new(pool.host, size)),
        })
    }

    /// How many connections there are at most.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The pool's connections now.
    pub(super) fn state(&self, host: &HostName) -> PoolState {
        let Counts {
            idle,
            used,
            waiting,
        } = self.lock().counts(self.number);
        PoolState {
            host: host.clone(),
            size: self.size,
            idle,
            used,
            waiting,
        }
    }

    /// A connection that can be used as it is, if one is idle.
    pub(super) fn borrow_idle(
        self: &Arc<Self>,
        shard: ShardId,
        held_for: Use,
    ) -> Option<BorrowedConnection> {
        let wish = self.wish(Some(shard), held_for);
        let grant = self.lock().ask_if_idle(self.number, wish)?;
        let slot = Slot::of(self, &grant);
        // A session that cannot be used as it is is closed, and its slot stays empty.
        let mut session = grant
            .connection
            .filter(|session| !session.is_worn() && !session.is_dirty())?;
        session.is_favourite = grant.is_favourite;
        Some(BorrowedConnection { session, slot })
    }

    fn wish(&self, shard: Option<ShardId>, held_for: Use) -> Wish {
        let favourite = match &self.opener.statements {
            Statements::Named { room, .. } if !room.is_exceeded() => Favourite::NotNeeded,
            Statements::Named { room, .. } if held_for == Use::Statement && room.fall_out() => {
                Favourite::WaitBriefly
            }
            Statements::Named { .. } | Statements::Unnamed(_) => Favourite::IfIdle,
        };
        Wish {
            shard: shard.map(|shard| usize::from(shard.get())),
            held_for,
            favourite,
        }
    }

    /// Waits for a connection. Where not all statements fit on each connection, a statement on
    /// `shard` gets the shard's favourite if that is idle, or soon will be.
    ///
    /// # Cancel safety
    /// The slot is free again when the future is dropped.
    pub(super) async fn get(
        self: &Arc<Self>,
        shard: Option<ShardId>,
        held_for: Use,
    ) -> Result<BorrowedConnection, PoolError> {
        // A caller that gets a connection that has died requests another, and does not wait for
        // longer because of that.
        let mut until = None;
        loop {
            let (asked, receiver) = self.request_slot(self.wish(shard, held_for));
            let mut until = || *until.get_or_insert_with(|| Instant::now() + self.wait_max);
            let waiting = |ticket| Waiting {
                pool: self,
                ticket: Some(ticket),
                receiver,
            };
            let grant = match asked {
                SlotAnswer::Granted(grant) => grant,
                SlotAnswer::Waits(ticket) => waiting(ticket).end(until()).await?,
                SlotAnswer::WaitsForFavourite(ticket) => {
                    waiting(ticket).end_for_favourite(until()).await?
                }
                SlotAnswer::Full => {
                    return Err(PoolError::TooManyWait {
                        limit: self.waiters_max,
                    });
                }
                SlotAnswer::Closed => return Err(PoolError::Closed),
            };
            // Else one connection less is left that cannot be used.
            if let Some(ready) = self.ready(grant).await {
                return ready;
            }
        }
    }

    /// An idle connection, or a new one if there is room. Closes no other connection for it, and
    /// waits for none.
    ///
    /// # Cancel safety
    /// As [`Pool::get`].
    pub(super) async fn get_if_free(
        self: &Arc<Self>,
    ) -> Option<Result<BorrowedConnection, PoolError>> {
        loop {
            let wish = self.wish(None, Use::Longer);
            let grant = self.lock().ask_if_free(self.number, wish)?;
            if let Some(ready) = self.ready(grant).await {
                return Some(ready);
            }
        }
    }

    fn request_slot(
        &self,
        wish: Wish,
    ) -> (
        SlotAnswer<Box<Session>>,
        oneshot::Receiver<Grant<Box<Session>>>,
    ) {
        let (tell, receiver) = oneshot::channel();
        let mut slots = self.lock();
        let (asked, effects) = slots.request_slot(self.number, wish, || tell);
        follow(slots, effects);
        (asked, receiver)
    }

    /// Checks the slot's connection, or opens one. `None` when the connection cannot be used: it is
    /// closed, and the slot is empty again. The future holds the slot.
    async fn ready(
        self: &Arc<Self>,
        grant: Grant<Box<Session>>,
    ) -> Option<Result<BorrowedConnection, PoolError>> {
        let mut slot = Slot::of(self, &grant);
        let Some(mut session) = grant.connection else {
            let opened = self.open(grant.slot).await;
            slot.ends_opening();
            return Some(opened.map(|session| BorrowedConnection { session, slot }));
        };
        match self.opener.checks(&session).await {
            true => {
                session.is_favourite = grant.is_favourite;
                Some(Ok(BorrowedConnection { session, slot }))
            }
            // The connection is closed before the slot is free.
            false => {
                drop(session);
                None
            }
        }
    }

    /// Opens the connection of a slot that the caller holds.
    async fn open(self: &Arc<Self>, slot: usize) -> Result<Box<Session>, PoolError> {
        let ends_at = self.max_lifetime.map(|most| Instant::now() + spread(most));
        // Boxed, because every call's future would contain it otherwise.
        let session = Box::pin(self.opener.open(ends_at)).await?;
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = drivers.get_mut(slot) {
            *driver = Some(session.connection.driver());
        }
        drop(drivers);
        // The pool may have been closed, and its connections cut, before this driver was known.
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(PoolError::Closed);
        }
        self.start_sweeping();
        Ok(Box::new(session))
    }

    /// A connection is not being opened any more.
    fn opened(&self) {
        let mut slots = self.lock();
        let effects = slots.opened(self.number);
        follow(slots, effects);
    }

    fn give_back(&self, slot: usize, session: Option<Box<Session>>) {
        let mut slots = self.lock();
        let effects = slots.give_back(self.number, slot, session);
        follow(slots, effects);
        if self.is_closed.load(Ordering::SeqCst) {
            self.given_back.notify_waiters();
        }
    }

    /// From now on a connection is closed as soon as it is unused and no call waits for it.
    pub(super) fn retire(&self) {
        let mut slots = self.lock();
        let (effects, _) = slots.end(self.number, Service::Retired);
        follow(slots, effects);
    }

    /// From now on the pool gives no connection, and calls that wait get an error.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let mut slots = self.lock();
        let (effects, dismissed) = slots.end(self.number, Service::Closed);
        follow(slots, effects);
        drop(dismissed);
    }

    /// Returns once no connection of a closed pool is in use.
    pub(super) async fn unused(&self) {
        loop {
            let mut given_back = std::pin::pin!(self.given_back.notified());
            given_back.as_mut().enable();
            if self.lock().counts(self.number).used == 0 {
                return;
            }
            given_back.await;
        }
    }

    /// Ends the connections that are in use; their calls get an error. Returns how many they are.
    pub(super) fn cut(&self) -> usize {
        let drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        drivers.iter().flatten().for_each(AbortHandle::abort);
        self.lock().counts(self.number).used
    }

    /// Starts the task that closes idle connections, unless it runs. It continues for as long as
    /// there is a connection.
    fn start_sweeping(self: &Arc<Self>) {
        if self.sweeping.swap(true, Ordering::SeqCst) {
            return;
        }
        let sweeping = Sweeping(Arc::downgrade(self));
        let limits = [self.idle_timeout, self.max_lifetime].into_iter().flatten();
        let every = limits
            .map(|limit| limit / 4)
            .fold(SWEEP_EVERY, Duration::min)
            .max(SWEEP_EVERY_MIN);
        tokio::spawn(async move {
            while sweeping.0.upgrade().is_some_and(|pool| pool.sweep()) {
                tokio::time::sleep(every).await;
            }
        });
    }

    /// Closes connections that are too old or were idle for too long, and publishes the counts.
    /// False when no connection is left.
    fn sweep(&self) -> bool {
        let now = Instant::now();
        let mut slots = self.lock();
        let effects = slots.close_idle(self.number, |session| {
            session.is_over(now, self.idle_timeout)
        });
        let counts = slots.counts(self.number);
        let goes_on = counts != Counts::default();
        // Under the lock, so that a call that takes a slot after this starts the task again.
        self.sweeping.store(goes_on, Ordering::SeqCst);
        follow(slots, effects);
        self.gauges
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .publish(counts);
        goes_on
    }

    fn lock(&self) -> MutexGuard<'_, Slots<Box<Session>, Tell>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut slots = self.lock();
        let effects = slots.remove(self.number);
        follow(slots, effects);
    }
}

/// Hands out the slots that were granted, and closes connections once the slots are unlocked.
fn follow(slots: MutexGuard<'_, Slots<Box<Session>, Tell>>, effects: Effects<Box<Session>, Tell>) {
    for (tell, grant) in effects.grants {
        // This is always received: a waiter leaves only after it has cancelled, and it does that
        // under the same lock.
        let _ = tell.send(grant);
    }
    drop(slots);
    drop(effects.closed);
}

/// Nine tenths of the limit or more, so that connections that were opened together do not end
/// together.
fn spread(limit: Duration) -> Duration {
    limit.mul_f64(0.9 + fastrand::f64() / 10.0)
}

/// Notes that no sweep runs once its task ends, however it ends: a router can outlive the runtime
/// that the task ran in.
struct Sweeping(Weak<Pool>);

impl Drop for Sweeping {
    fn drop(&mut self) {
        let Some(pool) = self.0.upgrade() else { return };
        let slots = pool.lock();
        // If the task ended by itself, no connection was left. `sweep` has noted it then, and
        // another task may have begun.
        if slots.counts(pool.number) != Counts::default() {
            pool.sweeping.store(false, Ordering::SeqCst);
        }
    }
}

/// A call that waits for a slot.
struct Waiting<'a> {
    pool: &'a Pool,
    /// `None` once the slot was granted.
    ticket: Option<u64>,
    receiver: oneshot::Receiver<Grant<Box<Session>>>,
}

impl Waiting<'_> {
    /// Waits for the favourite for a moment, and then for any slot, until then at most.
    async fn end_for_favourite(mut self, until: Instant) -> Result<Grant<Box<Session>>, PoolError> {
        let moment = until.min(Instant::now() + FAVOURITE_WAIT);
        if let Ok(told) = timeout_at(moment, &mut self.receiver).await {
            self.ticket = None;
            return told.map_err(|_| PoolError::Closed);
        }
        if let Some(ticket) = self.ticket {
            let mut slots = self.pool.lock();
            let effects = slots.accept_any(self.pool.number, ticket);
            follow(slots, effects);
        }
        self.end(until).await
    }

    /// Waits for the slot until then at most.
    async fn end(mut self, until: Instant) -> Result<Grant<Box<Session>>, PoolError> {
        let wait_max = self.pool.wait_max;
        let patience = if self.pool.has_limit {
            PATIENCE.min(wait_max / 2)
        } else {
            wait_max
        };
        let mut told = timeout_at(until - (wait_max - patience), &mut self.receiver).await;
        if told.is_err() && patience < wait_max {
            self.escalate();
            told = timeout_at(until, &mut self.receiver).await;
        }
        match told {
            Ok(Ok(grant)) => {
                self.ticket = None;
                Ok(grant)
            }
            Ok(Err(_)) => Err(PoolError::Closed),
            Err(_) if self.pool.lock().is_limited(self.pool.number) => {
                Err(PoolError::TimedOut(PoolPhase::Limit, self.pool.wait_max))
            }
            Err(_) => Err(PoolError::TimedOut(PoolPhase::Wait, self.pool.wait_max)),
        }
    }

    fn escalate(&self) {
        let Some(ticket) = self.ticket else { return };
        let mut slots = self.pool.lock();
        let effects = slots.escalate(self.pool.number, ticket);
        follow(slots, effects);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let cancelled = self.pool.lock().cancel(self.pool.number, ticket);
        if !cancelled && let Ok(grant) = self.receiver.try_recv() {
            if grant.connection.is_none() {
                self.pool.opened();
            }
            self.pool.give_back(grant.slot, grant.connection);
        }
    }
}

/// A connection that is in use, and its slot. Unless the slot is given back, the connection is
/// closed when this is dropped, and then the slot is free. The fields are dropped in this order.
pub(super) struct BorrowedConnection {
    pub(super) session: Box<Session>,
    pub(super) slot: Slot,
}

/// A slot that is held. Dropping it frees the slot, without a connection.
pub(super) struct Slot {
    pool: Arc<Pool>,
    /// `None` once it was given back.
    number: Option<usize>,
    /// Whether its connection is being opened.
    opening: bool,
}

impl Slot {
    fn of(pool: &Arc<Pool>, grant: &Grant<Box<Session>>) -> Slot {
        Slot {
            pool: pool.clone(),
            number: Some(grant.slot),
            opening: grant.connection.is_none(),
        }
    }

    /// Its connection was opened, or will not be: others may open one.
    fn ends_opening(&mut self) {
        if std::mem::take(&mut self.opening) {
            self.pool.opened();
        }
    }

    /// Gives the slot back with its connection, for others to use.
    pub(super) fn give_back(mut self, mut session: Box<Session>) {
        let Some(number) = self.number.take() else {
            return;
        };
        let worn = session.is_worn() || session.begin_idle(Instant::now());
        if worn {
            // The connection is closed before the slot is free, so that there are never more
            // connections than slots.
            drop(session);
            return self.pool.give_back(number, None);
        }
        self.pool.give_back(number, Some(session));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.ends_opening();
        if let Some(number) = self.number.take() {
            self.pool.give_back(number, None);
        }
    }
}
