//! The task that works on the jobs of one host. It has a few connections, and continues while the
//! caller does something else.
//!
//! Invariant: work that holds a pipelined connection waits for no other one, and returns it as soon
//! as no statement is on its way there. A statement that is blocked delays only itself: those
//! behind it are moved to another connection, where that is safe.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::stream::{self, FuturesUnordered, StreamExt};
use tokio::sync::Notify;
use tracing::Instrument;

use super::batch::{Batch, Pace, Servers};
use super::outbox::Outbox;
use super::params::{Make, Source, make};
use super::pipeline::Pipeline;
use crate::router::{Error, Outcome, PipelinedConnection, Router, Sql};
use crate::shard::ShardId;

pub(super) struct Crew {
    pub(super) router: Router,
    pub(super) sql: Sql,
    pub(super) only_reads: bool,
    pub(super) shards: Arc<[ShardId]>,
    pub(super) pace: Pace,
    servers: Servers,
    pub(super) outbox: Arc<Outbox>,
    /// `None`: the caller has the parameters, and binds them once their types are known.
    make: Option<Make>,
    /// Jobs that no connection has taken.
    waiting: Mutex<VecDeque<usize>>,
    /// Fires when no job waits any more.
    none_waits: Notify,
    /// Jobs that cannot be pipelined.
    again: Mutex<Vec<usize>>,
    /// Connections with a blocked first statement.
    stuck: AtomicUsize,
    /// Fires when one more connection is stuck.
    one_is_stuck: Notify,
    began: Instant,
}

/// How the work on a connection ended.
enum End {
    /// It has worked, or there was nothing to do any more.
    Done,
    /// No connection was free.
    NoneFree,
    /// None could be opened.
    Failed(Error),
}

impl Crew {
    pub(super) fn new(batch: &Batch<'_>, jobs: VecDeque<usize>, outbox: Arc<Outbox>) -> Crew {
        let Batch {
            router,
            sql,
            shards,
            pace,
            params,
            servers,
        } = batch;
        let make = match params {
            Source::Owned(make) => Some(make.clone()),
            Source::Borrowed(_) => None,
        };
        Crew {
            router: router.clone(),
            sql: sql.clone(),
            only_reads: router.only_reads(sql),
            shards: shards.clone(),
            pace: *pace,
            servers: *servers,
            outbox,
            make,
            waiting: Mutex::new(jobs),
            none_waits: Notify::new(),
            again: Mutex::default(),
            stuck: AtomicUsize::new(0),
            one_is_stuck: Notify::new(),
            began: Instant::now(),
        }
    }

    /// Works until every job has its answer, or is left to the caller.
    pub(super) async fn run(mut self) {
        let Some(first) = self.first() else { return };
        let borrowed = self.make.is_none();
        if self.servers == Servers::Standbys {
            let jobs = std::mem::take(&mut *lock(&self.waiting));
            let at_once = (self.pace.width * self.pace.depth)
                .min(self.router.pipelined_connections_max(first));
            return if borrowed {
                self.outbox.leave(jobs)
            } else {
                self.alone(jobs.into(), at_once).await
            };
        }
        if borrowed {
            let bound = match self.router.parameter_types(first, &self.sql).await {
                Ok(Some(types)) => self.outbox.ask(types).await,
                Ok(None) => None,
                Err(error) => {
                    self.failed(error);
                    lock(&self.waiting).extend(lock(&self.again).drain(..));
                    None
                }
            };
            match bound {
                Some(bound) => self.make = Some(make(bound)),
                None => return self.outbox.leave(lock(&self.waiting).drain(..)),
            }
        }
        let connections_max = self.router.pipelined_connections_max(first);
        let width = self.pace.width.min(connections_max);
        self.on_connections(width, connections_max + 1).await;
        let again = std::mem::take(&mut *lock(&self.again));
        if borrowed {
            self.outbox.leave(again)
        } else {
            self.alone(again, width).await
        }
    }

    /// Works on `width` connections, and on one more for each that is stuck, up to `most`.
    async fn on_connections(&self, width: usize, most: usize) {
        let mut connections = FuturesUnordered::new();
        // Whether it is worth asking for another connection.
        let mut free = true;
        // The error of a connection that did not come, unless another one has done work since.
        let mut failed = None;
        loop {
            let stuck = self.stuck.load(Ordering::Relaxed);
            let works = self.first().is_some() && self.outbox.has_room();
            while works && free && connections.len() < (width + stuck).min(most) {
                // The crew waits for one connection, and takes the others if they are free.
                connections
                    .push(self.connection(connections.is_empty() || connections.len() == stuck));
            }
            if connections.is_empty() {
                if self.first().is_none() {
                    return;
                }
                if let Some(error) = failed.take() {
                    self.failed(error);
                    continue;
                }
                free = true;
                self.outbox.room().await;
                continue;
            }
            tokio::select! {
                Some(end) = connections.next() => match end {
                    End::Done => (free, failed) = (true, None),
                    End::NoneFree => free = false,
                    // Other connections may continue.
                    End::Failed(error) => (free, failed) = (false, Some(error)),
                },
                () = self.one_is_stuck.notified() => free = true,
            }
        }
    }

    /// Gets one connection and works on it.
    async fn connection(&self, waits: bool) -> End {
        let Some(first) = self.first() else {
            return End::Done;
        };
        let connection = if waits {
            tokio::select! {
                biased;
                connection = self.router.pipelined_connection(first) => match connection {
                    Ok(connection) => connection,
                    Err(error) => return End::Failed(error),
                },
                () = self.none_waits.notified() => return End::Done,
            }
        } else {
            match self.router.pipelined_connection_if_free(first).await {
                Some(connection) => connection,
                None => return End::NoneFree,
            }
        };
        let span = tracing::debug_span!(
            "pgshard.pipeline",
            "otel.kind" = "client",
            "db.system.name" = "postgresql",
            host = %connection.host(),
            statements = tracing::field::Empty,
            failed = tracing::field::Empty,
        );
        Pipeline::new(self, connection, span.clone())
            .run()
            .instrument(span)
            .await;
        End::Done
    }

    /// No connection to the host came: answers the jobs for which that is known.
    fn failed(&self, error: Error) {
        let mut jobs = std::mem::take(&mut *lock(&self.waiting));
        let Some(first) = jobs.pop_front() else {
            return;
        };
        if let Error::PoolTimeout {
            host,
            phase,
            limit_ms,
            ..
        } = &error
        {
            // The others have waited in the same queue as long as this one.
            for at in jobs {
                let (shard, host) = (self.shards[at], host.clone());
                self.refuse(
                    at,
                    Error::PoolTimeout {
                        shard,
                        host,
                        phase: *phase,
                        limit_ms: *limit_ms,
                    },
                );
            }
        } else {
            // The error answers the first job. The others run later, when the host may be well
            // again.
            lock(&self.again).extend(jobs);
        }
        self.refuse(first, error);
    }

    /// Answers a job with an error. Nothing was sent for it.
    fn refuse(&self, at: usize, error: Error) {
        self.router
            .count(self.shards[at], self.began.elapsed(), Outcome::of(&error));
        self.outbox.give(at, Err(error));
    }

    /// Runs jobs by themselves, `width` at a time, in the way that handles moves.
    async fn alone(&self, jobs: Vec<usize>, width: usize) {
        // The jobs wait for a connection once, together. When one has waited in vain, the others
        // fail at once.
        let busy = Mutex::new(None);
        let busy = &busy;
        let one = |at: usize| async move {
            self.outbox.room().await;
            let shard = self.shards[at];
            let late = lock(busy).clone();
            if let Some((host, phase, limit_ms)) = late {
                return self.refuse(
                    at,
                    Error::PoolTimeout {
                        shard,
                        host,
                        phase,
                        limit_ms,
                    },
                );
            }
            let Some(params) = self.params(at) else {
                return;
            };
            self.outbox.sent(at);
            let result = self
                .servers
                .ask(&self.router, shard, &self.sql, &params.params())
                .await;
            if let Err(Error::PoolTimeout {
                host,
                phase,
                limit_ms,
                ..
            }) = &result
            {
                *lock(busy) = Some((host.clone(), *phase, *limit_ms));
            }
            self.outbox.give(at, result);
        };
        stream::iter(jobs)
            .map(one)
            .buffer_unordered(width)
            .collect::<()>()
            .await;
    }

    /// `None` while the caller has not bound them.
    pub(super) fn params(&self, at: usize) -> Option<Box<dyn super::params::Params>> {
        self.make.as_ref().map(|make| make(at))
    }

    fn first(&self) -> Option<ShardId> {
        lock(&self.waiting).front().map(|at| self.shards[*at])
    }

    /// Whether a job waits for a connection.
    pub(super) fn has_waiting(&self) -> bool {
        !lock(&self.waiting).is_empty()
    }

    /// The next job for a connection.
    pub(super) fn next(&self) -> Option<usize> {
        let mut waiting = lock(&self.waiting);
        let next = loop {
            match waiting.pop_front() {
                // It was answered after all, on the connection that had it first.
                Some(at) if self.outbox.is_answered(at) => {}
                next => break next,
            }
        };
        if waiting.is_empty() {
            self.none_waits.notify_waiters();
        }
        next
    }

    /// The jobs with statements that this connection has prepared, up to its share of all.
    pub(super) fn warm(&self, connection: &PipelinedConnection) -> VecDeque<usize> {
        let mut waiting = lock(&self.waiting);
        if self.pace.depth == 1 {
            return VecDeque::new();
        }
        let share = waiting.len().div_ceil(self.pace.width);
        let (mut warm, mut cold) = (VecDeque::new(), VecDeque::new());
        for at in waiting.drain(..) {
            let here = warm.len() < share && connection.has(self.shards[at], &self.sql);
            if here {
                warm.push_back(at)
            } else {
                cold.push_back(at)
            }
        }
        *waiting = cold;
        warm
    }

    /// Takes back jobs from a connection; they are the next.
    pub(super) fn give_back(&self, jobs: impl DoubleEndedIterator<Item = usize>) {
        let mut waiting = lock(&self.waiting);
        jobs.rev().for_each(|at| waiting.push_front(at));
    }

    /// Takes note of a job that cannot be pipelined.
    pub(super) fn again(&self, at: usize) {
        lock(&self.again).push(at);
    }

    /// Records that a connection's first statement is blocked, until the mark is dropped.
    pub(super) fn mark_stuck(&self) -> Stuck<'_> {
        self.stuck.fetch_add(1, Ordering::Relaxed);
        self.one_is_stuck.notify_one();
        Stuck(self)
    }
}

pub(super) struct Stuck<'c>(&'c Crew);

impl Drop for Stuck<'_> {
    fn drop(&mut self) {
        self.0.stuck.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
