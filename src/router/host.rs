//! A host: its pools, whether it can be reached, and the lookups of who owns its shards.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;

use super::circuit::{Circuit, Down};
use super::error::{Error, HostDiffers, LookUpError, PoolPhase, Queue};
use super::metrics::HostMetrics;
use super::opener::{OpenError, Opener};
use super::options::{HostOptions, Options, PrepareMode};
use super::ownership_lookup::OwnershipLookups;
use super::peers::Peers;
use super::pool::{ConnectionLimit, GetError, Pool, PoolOptions};
use super::pool_slots::Use;
use super::replica::Replicas;
use super::session::{Lease, Statements};
use super::unnamed::LearnedTypes;
use crate::map::HostName;
use crate::pg::{ConnectError, Lookout};
use crate::shard::ShardId;

pub(super) struct Host {
    pub(super) name: HostName,
    /// The options that it was made from.
    pub(super) options: HostOptions,
    pool: Arc<Pool>,
    /// Connections for lookups only: a lookup must get through when every other connection waits
    /// for its answer.
    look_ups: Arc<Pool>,
    pub(super) circuit: Arc<Circuit>,
    pub(super) ownership_lookups: OwnershipLookups,
    pub(super) replicas: Replicas,
    waiters_max: u32,
    pub(super) metrics: HostMetrics,
    wait_max: Duration,
}

impl Host {
    /// How many connections there are for lookups. Two are enough: an answer takes well under a
    /// millisecond.
    pub(super) const LOOK_UPS: usize = 2;

    /// Makes the pools; no connection is opened.
    pub(super) fn new(
        host: &HostOptions,
        options: &Options,
        limit: Option<&ConnectionLimit>,
        peers: &Arc<Peers>,
    ) -> Host {
        let connect = || host.connect.clone();
        let circuit = Arc::new(Circuit::new(
            connect(),
            options.application_name.clone(),
            options.create_max,
        ));
        let learned = Arc::new(LearnedTypes::new());
        let statements = |max| match host.prepare {
            PrepareMode::Unnamed => Statements::Unnamed(learned.clone()),
            PrepareMode::Named => Statements::Named {
                max,
                learned: learned.clone(),
                room: Arc::default(),
            },
        };
        let opener = Opener {
            connect: connect(),
            key: options.key,
            shards: options.map.shards(),
            admitted: Arc::new(AtomicBool::new(false)),
            application_name: options.application_name.clone(),
            create_max: options.create_max,
            recycle_max: options.recycle_max,
            statements: statements(options.statements_per_connection),
            circuit: circuit.clone(),
            lookout: Arc::new(Lookout::new(
                host.name.clone(),
                connect(),
                options.application_name.clone(),
            )),
            peers: peers.clone(),
            ends: Arc::default(),
            recycle: options.recycle,
        };
        let waiting_max = options.waiters_per_host;
        let pool = |size, limit, opener| {
            Pool::new(
                PoolOptions {
                    host: &host.name,
                    size,
                    waiting_max,
                    limit,
                },
                options,
                opener,
            )
        };
        Host {
            name: host.name.clone(),
            options: host.clone(),
            look_ups: pool(
                Self::LOOK_UPS,
                None,
                Opener {
                    statements: statements(8),
                    ..opener.clone()
                },
            ),
            pool: pool(host.pool_size, limit, opener),
            circuit,
            ownership_lookups: OwnershipLookups::new(),
            replicas: Replicas::new(host, options, limit, peers),
            waiters_max: options.waiters_per_host,
            metrics: HostMetrics::default(),
            wait_max: options.wait_max,
        }
    }

    /// Borrows a connection for a statement on `shard`.
    pub(super) async fn lease(&self, shard: ShardId, held_for: Use) -> Result<Lease, Error> {
        if !self.circuit.is_open()
            && let Some(lease) = self.pool.borrow_idle(shard, held_for)
        {
            self.metrics.pool(&self.name, Duration::ZERO, true);
            return Ok(lease);
        }
        let began = Instant::now();
        let lease = Box::pin(self.connection(self.pool.get(Some(shard), held_for))).await;
        self.metrics
            .pool(&self.name, began.elapsed(), lease.is_ok());
        let host = || self.name.clone();
        lease.map_err(|fault| match fault {
            PoolFault::Connect(source) => Error::Connect {
                shard,
                host: host(),
                source,
            },
            PoolFault::Down { cause, again_in } => Error::HostDown {
                shard,
                host: host(),
                again_in_ms: again_in.as_millis(),
                source: cause,
            },
            PoolFault::Differs(source) => Error::HostDiffers {
                shard,
                host: host(),
                source,
            },
            PoolFault::TimedOut(phase, limit) => Error::PoolTimeout {
                shard,
                host: host(),
                phase,
                limit_ms: limit.as_millis(),
            },
            PoolFault::TooManyWait => {
                let (queue, limit) = (Queue::Connection, self.waiters_max);
                Error::TooManyWaiting {
                    shard,
                    host: host(),
                    queue,
                    limit,
                }
            }
            PoolFault::Closed => Error::Closed,
        })
    }

    /// Borrows an idle connection, or opens one if there may be another. Does not wait until one is
    /// given back.
    pub(super) async fn lease_if_free(&self) -> Option<Lease> {
        self.circuit.pass().await.ok()?;
        tokio::select! {
            biased;
            got = self.pool.get_if_free() => got?.map_err(|error| self.pool_fault(error)).ok(),
            _ = self.circuit.opened() => None,
        }
    }

    /// The most connections of the pool.
    pub(super) fn pool_size(&self) -> usize {
        self.pool.size()
    }

    /// Its pool, and those of its standbys.
    pub(super) fn pools(&self) -> Vec<Arc<Pool>> {
        let standbys = self.replicas.hosts().map(|standby| standby.pool.clone());
        std::iter::once(self.pool.clone()).chain(standbys).collect()
    }

    /// The pools for lookups, its own and those of its standbys.
    pub(super) fn look_up_pools(&self) -> Vec<Arc<Pool>> {
        let standbys = self
            .replicas
            .hosts()
            .map(|standby| standby.look_ups.clone());
        std::iter::once(self.look_ups.clone())
            .chain(standbys)
            .collect()
    }

    /// Borrows a connection for a lookup.
    pub(super) async fn control(&self) -> Result<Lease, LookUpError> {
        self.connection(self.look_ups.get(None, Use::Longer))
            .await
            .map_err(|fault| match fault {
                PoolFault::Connect(source) | PoolFault::Down { cause: source, .. } => {
                    LookUpError::Connect(source)
                }
                PoolFault::Differs(source) => LookUpError::Differs(source),
                PoolFault::TimedOut(_, limit) => LookUpError::TimedOut(limit),
                PoolFault::TooManyWait => LookUpError::TimedOut(Duration::ZERO),
                PoolFault::Closed => LookUpError::Closed,
            })
    }

    /// Waits for a connection of a pool. Fails as soon as any call finds out that the host is out
    /// of reach.
    async fn connection(
        &self,
        getting: impl Future<Output = Result<Lease, GetError>>,
    ) -> Result<Lease, PoolFault> {
        let down = |down: Down| PoolFault::Down {
            cause: down.cause,
            again_in: down.again_in,
        };
        self.circuit.pass().await.map_err(down)?;
        // `biased`: where a connection is free, only the first branch is ever polled.
        tokio::select! {
            biased;
            got = getting => got.map_err(|error| self.pool_fault(error)),
            found = self.circuit.opened() => Err(down(found)),
        }
    }

    fn pool_fault(&self, error: GetError) -> PoolFault {
        match error {
            GetError::Open(OpenError::Connect(error)) => {
                PoolFault::Connect(self.circuit.failed(error))
            }
            GetError::Open(OpenError::Differs(error)) => PoolFault::Differs(error),
            GetError::TimedOut(phase) => PoolFault::TimedOut(phase, self.wait_max),
            GetError::TooManyWait => PoolFault::TooManyWait,
            GetError::Closed => PoolFault::Closed,
        }
    }
}

enum PoolFault {
    Connect(Arc<ConnectError>),
    Down {
        cause: Arc<ConnectError>,
        again_in: Duration,
    },
    Differs(HostDiffers),
    TimedOut(PoolPhase, Duration),
    TooManyWait,
    Closed,
}
