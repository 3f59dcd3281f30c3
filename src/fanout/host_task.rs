//! The task that works on the jobs of one host. It has a few connections, and continues while the
//! caller does something else.
//!
//! Invariant: work that holds a pipelined connection waits for no other one, and returns it as soon
//! as no statement is on its way there. A statement that is blocked delays only itself: those
//! behind it are moved to another connection, where that is safe.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::stream::{self, FuturesUnordered, StreamExt};
use tracing::Instrument;

use super::host_jobs::{HostJobs, lock};
use super::job::Servers;
use super::params::make;
use super::pipeline::Pipeline;
use crate::router::{Error, Outcome};

pub(super) struct HostTask {
    jobs: HostJobs,
    servers: Servers,
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

impl HostTask {
    pub(super) fn new(jobs: HostJobs, servers: Servers) -> HostTask {
        HostTask {
            jobs,
            servers,
            began: Instant::now(),
        }
    }

    /// Works until every job has its answer, or is left to the caller.
    pub(super) async fn run(mut self) {
        let Some(first) = self.jobs.first() else {
            return;
        };
        let borrowed = self.jobs.make.is_none();
        if self.servers == Servers::Standbys {
            let jobs = std::mem::take(&mut *lock(&self.jobs.waiting));
            let at_once = (self.jobs.pace.width * self.jobs.pace.depth)
                .min(self.jobs.router.pipelined_connections_max(first));
            return if borrowed {
                self.jobs.results.leave_to_caller(jobs)
            } else {
                self.alone(jobs.into(), at_once).await
            };
        }
        if borrowed {
            let bound = match self
                .jobs
                .router
                .parameter_types(first, &self.jobs.sql)
                .await
            {
                Ok(Some(types)) => self.jobs.results.request_binding(types).await,
                Ok(None) => None,
                Err(error) => {
                    self.failed(error);
                    lock(&self.jobs.waiting).extend(lock(&self.jobs.again).drain(..));
                    None
                }
            };
            match bound {
                Some(bound) => self.jobs.make = Some(make(bound)),
                None => {
                    return self
                        .jobs
                        .results
                        .leave_to_caller(lock(&self.jobs.waiting).drain(..));
                }
            }
        }
        let connections_max = self.jobs.router.pipelined_connections_max(first);
        let width = self.jobs.pace.width.min(connections_max);
        self.on_connections(width, connections_max + 1).await;
        let again = std::mem::take(&mut *lock(&self.jobs.again));
        if borrowed {
            self.jobs.results.leave_to_caller(again)
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
            let stuck = self.jobs.stuck.load(Ordering::Relaxed);
            let works = self.jobs.first().is_some() && self.jobs.results.has_room();
            while works && free && connections.len() < (width + stuck).min(most) {
                // The task waits for one connection, and takes the others if they are free.
                connections
                    .push(self.connection(connections.is_empty() || connections.len() == stuck));
            }
            if connections.is_empty() {
                if self.jobs.first().is_none() {
                    return;
                }
                if let Some(error) = failed.take() {
                    self.failed(error);
                    continue;
                }
                free = true;
                self.jobs.results.room().await;
                continue;
            }
            tokio::select! {
                Some(end) = connections.next() => match end {
                    End::Done => (free, failed) = (true, None),
                    End::NoneFree => free = false,
                    // Other connections may continue.
                    End::Failed(error) => (free, failed) = (false, Some(error)),
                },
                () = self.jobs.one_is_stuck.notified() => free = true,
            }
        }
    }

    /// Gets one connection and works on it.
    async fn connection(&self, waits: bool) -> End {
        let Some(first) = self.jobs.first() else {
            return End::Done;
        };
        let connection = if waits {
            tokio::select! {
                biased;
                connection = self.jobs.router.pipelined_connection(first) => match connection {
                    Ok(connection) => connection,
                    Err(error) => return End::Failed(error),
                },
                () = self.jobs.none_waits.notified() => return End::Done,
            }
        } else {
            match self.jobs.router.pipelined_connection_if_free(first).await {
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
        Pipeline::new(&self.jobs, connection, span.clone())
            .run()
            .instrument(span)
            .await;
        End::Done
    }

    /// No connection to the host came: answers the jobs for which that is known.
    fn failed(&self, error: Error) {
        let mut jobs = std::mem::take(&mut *lock(&self.jobs.waiting));
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
                let (shard, host) = (self.jobs.shards[at], host.clone());
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
            lock(&self.jobs.again).extend(jobs);
        }
        self.refuse(first, error);
    }

    /// Answers a job with an error. Nothing was sent for it.
    fn refuse(&self, at: usize, error: Error) {
        self.jobs.router.count(
            self.jobs.shards[at],
            self.began.elapsed(),
            Outcome::of(&error),
        );
        self.jobs.results.give(at, Err(error));
    }

    /// Runs jobs by themselves, `width` at a time, in the way that handles moves.
    async fn alone(&self, jobs: Vec<usize>, width: usize) {
        // The jobs wait for a connection once, together. When one has waited in vain, the others
        // fail immediately.
        let busy = Mutex::new(None);
        let busy = &busy;
        let one = |at: usize| async move {
            self.jobs.results.room().await;
            let shard = self.jobs.shards[at];
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
            let Some(params) = self.jobs.params(at) else {
                return;
            };
            self.jobs.results.sent(at);
            let result = self
                .servers
                .run_alone(
                    &self.jobs.router,
                    (shard, self.jobs.reach),
                    &self.jobs.sql,
                    &params.params(),
                )
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
            self.jobs.results.give(at, result);
        };
        stream::iter(jobs)
            .map(one)
            .buffer_unordered(width)
            .collect::<()>()
            .await;
    }
}
