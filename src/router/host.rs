//! A host: its pools, and the questions where a shard is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use deadpool::Runtime;
use deadpool::managed::{Pool, PoolError, TimeoutType, Timeouts};

use super::error::{Error, HostDiffers, LookUpError, PoolPhase};
use super::look::Question;
use super::metrics::HostMetrics;
use super::options::{HostOptions, Options};
use super::session::{Lease, Manager, OpenError};
use crate::map::HostName;
use crate::pg::ConnectError;
use crate::shard::ShardId;

pub(super) struct Host {
    pub(super) name: HostName,
    pool: Pool<Manager>,
    /// For look-ups. Of their own, because they must get through when every other connection waits for their answer.
    control: Pool<Manager>,
    /// By shard that was ever asked about; at most N.
    questions: Mutex<HashMap<ShardId, Arc<Question>>>,
    look_ups: AtomicU64,
    pub(super) metrics: HostMetrics,
    wait_max: Duration,
    create_max: Duration,
    recycle_max: Duration,
}

impl Host {
    /// Connections for look-ups. An answer takes well under a millisecond.
    pub(super) const CONTROL_SIZE: usize = 2;

    /// Makes the pools; no connection is opened.
    pub(super) fn new(host: &HostOptions, options: &Options) -> Host {
        let met = Arc::<AtomicBool>::default();
        let pool = |size: usize, statements_max| {
            let manager = Manager {
                connect: host.connect.clone(),
                key: options.key,
                shards: options.map.shards(),
                met: met.clone(),
                application_name: options.application_name.clone(),
                statements_max,
            };
            let pool = Pool::builder(manager)
                .max_size(size.max(1))
                .runtime(Runtime::Tokio1)
                .wait_timeout(Some(options.wait_max))
                .create_timeout(Some(options.create_max))
                .recycle_timeout(Some(options.recycle_max));
            pool.build().expect("a pool with timeouts was given its runtime")
        };
        Host {
            name: host.name.clone(),
            pool: pool(host.pool_size, options.statements_per_connection),
            control: pool(Self::CONTROL_SIZE, 8),
            questions: Mutex::default(),
            look_ups: AtomicU64::new(0),
            metrics: HostMetrics::default(),
            wait_max: options.wait_max,
            create_max: options.create_max,
            recycle_max: options.recycle_max,
        }
    }

    /// Borrows a connection for a statement on `shard`.
    pub(super) async fn lease(&self, shard: ShardId) -> Result<Lease, Error> {
        let host = || self.name.clone();
        let began = Instant::now();
        let session = self.pool.get().await;
        self.metrics.pool(&self.name, began.elapsed(), session.is_ok());
        match session {
            Ok(session) => Ok(Lease::new(session)),
            Err(error) => Err(match self.pool_fault(error) {
                PoolFault::Connect(source) => Error::Connect { shard, host: host(), source },
                PoolFault::Differs(source) => Error::HostDiffers { shard, host: host(), source },
                PoolFault::TimedOut(phase, limit) => {
                    Error::PoolTimeout { shard, host: host(), phase, limit_ms: limit.as_millis() }
                }
            }),
        }
    }

    /// Borrows a connection that nobody uses, or opens one if the pool has room; does not wait for one.
    pub(super) async fn lease_if_free(&self) -> Option<Lease> {
        let timeouts = Timeouts { wait: Some(Duration::ZERO), ..self.pool.timeouts() };
        self.pool.timeout_get(&timeouts).await.ok().map(Lease::new)
    }

    /// The most connections of the pool.
    pub(super) fn pool_size(&self) -> usize {
        self.pool.status().max_size
    }

    /// Borrows a connection for a look-up.
    pub(super) async fn control(&self) -> Result<Lease, LookUpError> {
        match self.control.get().await {
            Ok(session) => Ok(Lease::new(session)),
            Err(error) => Err(match self.pool_fault(error) {
                PoolFault::Connect(source) => LookUpError::Connect(source),
                PoolFault::Differs(source) => LookUpError::Differs(source),
                PoolFault::TimedOut(_, limit) => LookUpError::TimedOut(limit),
            }),
        }
    }

    pub(super) fn question(&self, shard: ShardId) -> Arc<Question> {
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        questions.entry(shard).or_insert_with(|| Arc::new(Question::new(shard, Instant::now()))).clone()
    }

    /// Questions asked so far.
    pub(super) fn look_ups(&self) -> u64 {
        self.look_ups.load(Ordering::Relaxed)
    }

    pub(super) fn count_look_up(&self) {
        self.look_ups.fetch_add(1, Ordering::Relaxed);
        self.metrics.look_up(&self.name);
    }

    fn pool_fault(&self, error: PoolError<OpenError>) -> PoolFault {
        match error {
            PoolError::Backend(OpenError::Connect(error)) => PoolFault::Connect(Box::new(error)),
            PoolError::Backend(OpenError::Differs(error)) => PoolFault::Differs(error),
            PoolError::Timeout(TimeoutType::Wait) => PoolFault::TimedOut(PoolPhase::Wait, self.wait_max),
            PoolError::Timeout(TimeoutType::Create) => PoolFault::TimedOut(PoolPhase::Create, self.create_max),
            PoolError::Timeout(TimeoutType::Recycle) => PoolFault::TimedOut(PoolPhase::Recycle, self.recycle_max),
            PoolError::Closed | PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => {
                unreachable!("our pools have a runtime and no hooks, and nobody closes them")
            }
        }
    }
}

enum PoolFault {
    Connect(Box<ConnectError>),
    Differs(HostDiffers),
    TimedOut(PoolPhase, Duration),
}
