//! A host: its pools, whether it can be reached, and the questions where shards are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use deadpool::Runtime;
use deadpool::managed::{Pool, PoolError};
use tokio::sync::Semaphore;

use super::circuit::Circuit;
use super::error::{Error, HostDiffers, LookUpError, PoolPhase, Queue};
use super::look::Questions;
use super::lookout::Lookout;
use super::metrics::HostMetrics;
use super::options::{HostOptions, Options, PrepareMode};
use super::peers::Peers;
use super::places::Places;
use super::replica::Replicas;
use super::room::Room;
use super::session::{Lease, Manager, OpenError, Statements};
use super::unnamed::Learned;
use crate::map::HostName;
use crate::pg::ConnectError;
use crate::shard::ShardId;

pub(super) struct Host {
    pub(super) name: HostName,
    places: Arc<Places>,
    room: Option<Arc<Room>>,
    /// For look-ups. Of their own, because they must get through when every other connection waits for their answer.
    control: Pool<Manager>,
    pub(super) circuit: Arc<Circuit>,
    pub(super) questions: Questions,
    pub(super) replicas: Replicas,
    /// Calls that are getting a connection.
    getting: AtomicU32,
    getting_max: u32,
    waiters_max: u32,
    pub(super) metrics: HostMetrics,
    wait_max: Duration,
}

impl Host {
    /// Connections for look-ups. An answer takes well under a millisecond.
    pub(super) const CONTROL_SIZE: usize = 2;
    /// Requests to cancel that are on their way at a time.
    const CANCELS_MAX: usize = 4;

    /// Makes the pools; no connection is opened.
    pub(super) fn new(host: &HostOptions, options: &Options, room: Option<&Arc<Room>>, peers: &Arc<Peers>) -> Host {
        let met = Arc::<AtomicBool>::default();
        let connect = || host.connect.clone();
        let circuit = Arc::new(Circuit::new(connect(), options.application_name.clone(), options.create_max));
        let lookout = Arc::new(Lookout::new(host.name.clone(), connect(), options.application_name.clone()));
        let cancels = Arc::new(Semaphore::new(Self::CANCELS_MAX));
        let learned = (host.prepare == PrepareMode::Unnamed).then(|| Arc::new(Learned::new()));
        let pool = |size: usize, wait_max, statements_max, room: Option<&Arc<Room>>| {
            let manager = Manager {
                connect: connect(),
                key: options.key,
                shards: options.map.shards(),
                met: met.clone(),
                application_name: options.application_name.clone(),
                create_max: options.create_max,
                recycle_max: options.recycle_max,
                statements: match &learned {
                    None => Statements::Named { max: statements_max },
                    Some(learned) => Statements::Unnamed(learned.clone()),
                },
                circuit: circuit.clone(),
                lookout: lookout.clone(),
                peers: peers.clone(),
                room: room.cloned(),
                cancels: cancels.clone(),
                recycle: options.recycle,
            };
            let pool = Pool::builder(manager).max_size(size).runtime(Runtime::Tokio1).wait_timeout(wait_max);
            pool.build().expect("a pool with timeouts was given its runtime")
        };
        let size = u32::try_from(host.pool_size).unwrap_or(u32::MAX);
        let replicas = Replicas::new(host, options, room, peers);
        let host = Host {
            name: host.name.clone(),
            // A place is only asked for its connection when it is free.
            places: Places::new(host.pool_size, options.wait_max, || {
                pool(1, None, options.statements_per_connection, room)
            })
            .into(),
            room: room.cloned(),
            control: pool(Self::CONTROL_SIZE, Some(options.wait_max), 8, None),
            circuit,
            questions: Questions::new(),
            replicas,
            getting: AtomicU32::new(0),
            getting_max: options.waiters_per_host.saturating_add(size),
            waiters_max: options.waiters_per_host,
            metrics: HostMetrics::default(),
            wait_max: options.wait_max,
        };
        if let Some(room) = room {
            host.places.pools().iter().for_each(|pool| room.add(pool.weak()));
        }
        host
    }

    /// Borrows a connection for a statement on `shard`.
    pub(super) async fn lease(&self, shard: ShardId) -> Result<Lease, Error> {
        let host = || self.name.clone();
        let _getting = match Getting::new(&self.getting, self.getting_max) {
            Some(getting) => getting,
            None => {
                self.metrics.pool(&self.name, Duration::ZERO, false);
                let (queue, limit) = (Queue::Connection, self.waiters_max);
                return Err(Error::TooManyWaiting { shard, host: host(), queue, limit });
            }
        };
        let began = Instant::now();
        let lease = self.connection(self.places.get(shard)).await;
        self.metrics.pool(&self.name, began.elapsed(), lease.is_ok());
        lease.map_err(|fault| match fault {
            PoolFault::Connect(source) => Error::Connect { shard, host: host(), source },
            PoolFault::Down { cause, again_in } => {
                Error::HostDown { shard, host: host(), again_in_ms: again_in.as_millis(), source: cause }
            }
            PoolFault::Differs(source) => Error::HostDiffers { shard, host: host(), source },
            PoolFault::TimedOut(phase, limit) => {
                Error::PoolTimeout { shard, host: host(), phase, limit_ms: limit.as_millis() }
            }
        })
    }

    /// Borrows a connection that nobody uses, or opens one if the pool has room; does not wait for one.
    pub(super) async fn lease_if_free(&self) -> Option<Lease> {
        self.circuit.pass().await.ok()?;
        tokio::select! {
            biased;
            got = self.places.get_if_free(self.room.as_deref()) => got?.map_err(|error| self.pool_fault(error)).ok(),
            _ = self.circuit.opened() => None,
        }
    }

    /// The most connections of the pool.
    pub(super) fn pool_size(&self) -> usize {
        self.places.size()
    }

    /// Borrows a connection for a look-up.
    pub(super) async fn control(&self) -> Result<Lease, LookUpError> {
        let session = async { Ok(Lease::new(self.control.get().await?, None)) };
        self.connection(session).await.map_err(|fault| match fault {
            PoolFault::Connect(source) | PoolFault::Down { cause: source, .. } => LookUpError::Connect(source),
            PoolFault::Differs(source) => LookUpError::Differs(source),
            PoolFault::TimedOut(_, limit) => LookUpError::TimedOut(limit),
        })
    }

    /// What a pool gives, or the news that the host is out of reach as soon as anybody finds that out.
    async fn connection(
        &self,
        getting: impl Future<Output = Result<Lease, PoolError<OpenError>>>,
    ) -> Result<Lease, PoolFault> {
        let down = |down: super::circuit::Down| PoolFault::Down { cause: down.cause, again_in: down.again_in };
        self.circuit.pass().await.map_err(down)?;
        // The first only is polled where a connection is free.
        tokio::select! {
            biased;
            got = getting => got.map_err(|error| self.pool_fault(error)),
            found = self.circuit.opened() => Err(down(found)),
        }
    }

    fn pool_fault(&self, error: PoolError<OpenError>) -> PoolFault {
        match error {
            PoolError::Backend(OpenError::Connect(error)) => PoolFault::Connect(self.circuit.failed(error)),
            PoolError::Backend(OpenError::Differs(error)) => PoolFault::Differs(error),
            PoolError::Backend(OpenError::NoRoom) => PoolFault::TimedOut(PoolPhase::Room, self.wait_max),
            // Our pools have a runtime, no hooks and no other limit, and nobody closes them: what is left is waiting.
            PoolError::Timeout(_)
            | PoolError::Closed
            | PoolError::NoRuntimeSpecified
            | PoolError::PostCreateHook(_) => PoolFault::TimedOut(PoolPhase::Wait, self.wait_max),
        }
    }
}

/// A call that is getting a connection.
struct Getting<'a>(&'a AtomicU32);

impl Getting<'_> {
    fn new(getting: &AtomicU32, max: u32) -> Option<Getting<'_>> {
        let before = getting.fetch_add(1, Ordering::Relaxed);
        let place = Getting(getting);
        (before < max).then_some(place)
    }
}

impl Drop for Getting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

enum PoolFault {
    Connect(Arc<ConnectError>),
    Down { cause: Arc<ConnectError>, again_in: Duration },
    Differs(HostDiffers),
    TimedOut(PoolPhase, Duration),
}
