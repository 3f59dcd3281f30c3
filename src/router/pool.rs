//! The connections of one host: borrowed, waited for, opened, checked, and closed when they are old.
//!
//! Which connection a call gets, and who waits, is decided in [`slots`](super::slots); here it is done.
//!
//! Invariant: a slot is given back exactly once, by whoever held it last: the caller, or the task that cleans or ends
//! what the caller left. Nothing is closed, and nobody is called, while the slots are locked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use super::error::PoolPhase;
use super::metrics::PoolGauges;
use super::opener::{OpenError, Opener};
use super::options::Options;
use super::session::{Lease, Session};
use super::slots::{Asked, Counts, Effects, Grant, Service, Slots};
use crate::map::HostName;
use crate::shard::ShardId;

type Tell = oneshot::Sender<Grant<Box<Session>>>;
type Shared = Mutex<Slots<Box<Session>, Tell>>;

/// The most connections to all hosts together, look-ups not counted.
pub(super) struct ConnectionLimit(Arc<Shared>);

/// The connections of one host.
pub(super) struct Pool {
    /// Those of the other pools under the same limit are there too.
    slots: Arc<Shared>,
    /// This pool among them.
    number: usize,
    size: usize,
    has_limit: bool,
    opener: Opener,
    wait_max: Duration,
    idle_timeout: Option<Duration>,
    max_lifetime: Option<Duration>,
    /// By slot: what ends its connection, whoever uses it.
    drivers: Mutex<Box<[Option<AbortHandle>]>>,
    /// Wakes who waits for the pool's end whenever a slot is given back after it was closed.
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

/// The connections of a pool at one time. Those of a host's standbys are in pools of their own, and those for look-ups
/// in none of these.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolState {
    /// The host that it belongs to, by itself or by one of its standbys.
    pub host: HostName,
    /// How many connections there are at most.
    pub size: usize,
    /// Open, and nobody uses them.
    pub idle: usize,
    /// In use, being opened, or being cleaned or ended.
    pub used: usize,
    /// Calls that wait for one.
    pub waiting: usize,
}

/// Why there is no connection.
pub(super) enum GetError {
    Open(OpenError),
    TimedOut(PoolPhase),
    /// As many calls wait as may.
    TooManyWait,
    /// The router is closed.
    Closed,
}

impl ConnectionLimit {
    pub(super) fn new(connections_max: usize) -> ConnectionLimit {
        ConnectionLimit(Arc::new(Mutex::new(Slots::new(connections_max))))
    }
}

/// How long a call waits for a connection of its own pool before it takes what another one has no use for: opening
/// costs some milliseconds, and the other pool may have to open it again a moment later.
const PATIENCE: Duration = Duration::from_millis(100);

/// From one look at what is idle to the next.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const SWEEP_EVERY_MIN: Duration = Duration::from_millis(10);

impl Pool {
    /// No connection is opened.
    pub(super) fn new(pool: PoolOptions<'_>, options: &Options, opener: Opener) -> Arc<Pool> {
        let size = pool.size.max(1);
        let slots = match pool.limit {
            Some(limit) => limit.0.clone(),
            None => ConnectionLimit::new(size).0,
        };
        let waiting_max = usize::try_from(pool.waiting_max).unwrap_or(usize::MAX);
        let number = slots.lock().unwrap_or_else(PoisonError::into_inner).add(size, waiting_max);
        Arc::new(Pool {
            slots,
            number,
            size,
            has_limit: pool.limit.is_some(),
            opener,
            wait_max: options.wait_max,
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

    /// What is there now.
    pub(super) fn state(&self, host: &HostName) -> PoolState {
        let Counts { idle, used, waiting } = self.lock().counts(self.number);
        PoolState { host: host.clone(), size: self.size, idle, used, waiting }
    }

    /// A connection that can be used as it is, if one is idle.
    pub(super) fn borrow_idle(self: &Arc<Self>, shard: ShardId) -> Option<Lease> {
        let grant = self.lock().ask_if_idle(self.number, Some(usize::from(shard.get())))?;
        let slot = Slot::new(self, grant.slot);
        // One that cannot goes, and its slot is empty.
        let session = grant.connection.filter(|session| !session.is_worn() && !session.is_dirty())?;
        Some(Lease::new(session, slot))
    }

    /// A connection, once there is one; for a statement on `shard`, its favourite if that is idle.
    ///
    /// # Cancel safety
    /// The slot is free again when the future is dropped.
    pub(super) async fn get(self: &Arc<Self>, shard: Option<ShardId>) -> Result<Lease, GetError> {
        let (asked, receiver) = self.ask(shard);
        let grant = match asked {
            Asked::Granted(grant) => grant,
            Asked::Waits(ticket) => Waiting { pool: self, ticket: Some(ticket), receiver }.end().await?,
            Asked::Full => return Err(GetError::TooManyWait),
            Asked::Closed => return Err(GetError::Closed),
        };
        self.ready(grant).await
    }

    /// A connection that nobody uses, or one that may be opened; nobody's is closed for it, and nothing waited for.
    ///
    /// # Cancel safety
    /// As [`Pool::get`].
    pub(super) async fn get_if_free(self: &Arc<Self>) -> Option<Result<Lease, GetError>> {
        let grant = self.lock().ask_if_free(self.number)?;
        Some(self.ready(grant).await)
    }

    fn ask(&self, shard: Option<ShardId>) -> (Asked<Box<Session>>, oneshot::Receiver<Grant<Box<Session>>>) {
        let (tell, receiver) = oneshot::channel();
        let mut slots = self.lock();
        let shard = shard.map(|shard| usize::from(shard.get()));
        let (asked, effects) = slots.ask(self.number, shard, || tell);
        follow(slots, effects);
        (asked, receiver)
    }

    /// Checks the slot's connection, or opens one. The slot is held by the future.
    async fn ready(self: &Arc<Self>, grant: Grant<Box<Session>>) -> Result<Lease, GetError> {
        let slot = Slot::new(self, grant.slot);
        if let Some(session) = grant.connection
            && self.opener.checks(&session).await
        {
            return Ok(Lease::new(session, slot));
        }
        let ends_at = self.max_lifetime.map(|most| Instant::now() + spread(most));
        // Boxed: what every call carries along otherwise.
        let session = Box::pin(self.opener.open(ends_at)).await.map_err(GetError::Open)?;
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = drivers.get_mut(grant.slot) {
            *driver = Some(session.connection.driver());
        }
        drop(drivers);
        // Whoever closes it by force may have come before the driver was known.
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(GetError::Closed);
        }
        self.start_sweeping();
        Ok(Lease::new(Box::new(session), slot))
    }

    fn give_back(&self, slot: usize, session: Option<Box<Session>>) {
        let mut slots = self.lock();
        let effects = slots.give_back(self.number, slot, session);
        follow(slots, effects);
        if self.is_closed.load(Ordering::SeqCst) {
            self.given_back.notify_waiters();
        }
    }

    /// From now on a connection is closed as soon as nobody uses it or waits for it.
    pub(super) fn retire(&self) {
        let mut slots = self.lock();
        let (effects, _) = slots.end(self.number, Service::Retired);
        follow(slots, effects);
    }

    /// From now on it gives no connection, and whoever waits is told so.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let mut slots = self.lock();
        let (effects, dismissed) = slots.end(self.number, Service::Closed);
        follow(slots, effects);
        drop(dismissed);
    }

    /// Comes back when no connection of a closed pool is in use.
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

    /// Ends the connections that are in use: whoever uses one gets an error. Gives back how many they are.
    pub(super) fn cut(&self) -> usize {
        let drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        drivers.iter().flatten().for_each(AbortHandle::abort);
        self.lock().counts(self.number).used
    }

    /// Looks after what is idle for as long as there is a connection.
    fn start_sweeping(self: &Arc<Self>) {
        if self.sweeping.swap(true, Ordering::SeqCst) {
            return;
        }
        let sweeping = Sweeping(Arc::downgrade(self));
        let limits = [self.idle_timeout, self.max_lifetime].into_iter().flatten();
        let every = limits.map(|limit| limit / 4).fold(SWEEP_EVERY, Duration::min).max(SWEEP_EVERY_MIN);
        tokio::spawn(async move {
            while sweeping.0.upgrade().is_some_and(|pool| pool.sweep()) {
                tokio::time::sleep(every).await;
            }
        });
    }

    /// Closes what is old or was idle for too long, and publishes how many there are. False when there are none any
    /// more.
    fn sweep(&self) -> bool {
        let now = Instant::now();
        let mut slots = self.lock();
        let effects = slots.close_idle(self.number, |session| session.is_over(now, self.idle_timeout));
        let counts = slots.counts(self.number);
        let goes_on = counts != Counts::default();
        // Under the lock, so that who takes a slot after this starts anew.
        self.sweeping.store(goes_on, Ordering::SeqCst);
        follow(slots, effects);
        self.gauges.lock().unwrap_or_else(PoisonError::into_inner).publish(counts);
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

/// Tells who was granted a slot, and closes what is to be closed once the slots are unlocked.
fn follow(slots: MutexGuard<'_, Slots<Box<Session>, Tell>>, effects: Effects<Box<Session>, Tell>) {
    for (tell, grant) in effects.grants {
        // It is received: a waiter goes only after he has cancelled, which he does under the same lock.
        let _ = tell.send(grant);
    }
    drop(slots);
    drop(effects.closed);
}

/// Nine tenths of it to the whole, so that connections that were opened together do not end together.
fn spread(limit: Duration) -> Duration {
    limit.mul_f64(0.9 + fastrand::f64() / 10.0)
}

/// Ends with its task, however that ends: a router outlives the runtime that it began in.
struct Sweeping(Weak<Pool>);

impl Drop for Sweeping {
    fn drop(&mut self) {
        let Some(pool) = self.0.upgrade() else { return };
        let slots = pool.lock();
        // Where it ended by itself, another may have begun.
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
    async fn end(mut self) -> Result<Grant<Box<Session>>, GetError> {
        let wait_max = self.pool.wait_max;
        let patience = if self.pool.has_limit { PATIENCE.min(wait_max / 2) } else { wait_max };
        let mut told = tokio::time::timeout(patience, &mut self.receiver).await;
        if told.is_err() && patience < wait_max {
            self.insist();
            told = tokio::time::timeout(wait_max - patience, &mut self.receiver).await;
        }
        match told {
            Ok(Ok(grant)) => {
                self.ticket = None;
                Ok(grant)
            }
            Ok(Err(_)) => Err(GetError::Closed),
            Err(_) if self.pool.lock().is_limited(self.pool.number) => Err(GetError::TimedOut(PoolPhase::Limit)),
            Err(_) => Err(GetError::TimedOut(PoolPhase::Wait)),
        }
    }

    fn insist(&self) {
        let Some(ticket) = self.ticket else { return };
        let mut slots = self.pool.lock();
        let effects = slots.insist(self.pool.number, ticket);
        follow(slots, effects);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let cancelled = self.pool.lock().cancel(self.pool.number, ticket);
        if !cancelled && let Ok(grant) = self.receiver.try_recv() {
            self.pool.give_back(grant.slot, grant.connection);
        }
    }
}

/// A slot that somebody holds. Dropped, it is empty and free.
pub(super) struct Slot {
    pool: Arc<Pool>,
    /// `None` once it was given back.
    number: Option<usize>,
}

impl Slot {
    fn new(pool: &Arc<Pool>, number: usize) -> Slot {
        Slot { pool: pool.clone(), number: Some(number) }
    }

    /// Gives the slot back with its connection, for others to use.
    pub(super) fn give_back(mut self, mut session: Box<Session>) {
        let Some(number) = self.number.take() else { return };
        let worn = session.is_worn() || session.begin_idle(Instant::now());
        if worn {
            // Closed before the slot is free.
            drop(session);
            return self.pool.give_back(number, None);
        }
        self.pool.give_back(number, Some(session));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(number) = self.number.take() {
            self.pool.give_back(number, None);
        }
    }
}
