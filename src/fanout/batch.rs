//! What all calls over many shards are made of: a [`Batch`] of jobs, one a shard, and the stream of
//! their answers.
//!
//! Tasks send the statements, one for each host ([`HostTask`]), and continue while the caller does
//! something else. So a slow caller holds no connection, unless its results would need more memory
//! than allowed.
//!
//! Invariant: every job gives exactly one answer, whatever happens to the others; and no more
//! statements of a host are on their way than its [`Pace`] allows.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, Stream, StreamExt};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_postgres::types::ToSql;
use tracing::{Instrument, Span};

use super::host_jobs::{Common, HostJobs};
use super::host_task::HostTask;
use super::job::{Answer, Pace, Servers};
use super::params::Source;
use super::results::Results;
use crate::map::HostName;
use crate::router::{Bound, Error, Outcome, PoolPhase, Reach, Router, Sql};
use crate::shard::ShardId;

/// Statements to run, one a shard.
pub(super) struct Batch<'a> {
    pub(super) router: Router,
    pub(super) sql: Sql,
    pub(super) shards: Arc<[ShardId]>,
    pub(super) reach: Reach,
    pub(super) params: Source<'a>,
    pub(super) pace: Pace,
    pub(super) servers: Servers,
}

/// The answers of a batch, in the order in which they come.
pub(super) struct Answers<'a> {
    batch: Batch<'a>,
    results: Arc<Results>,
    phase: Phase<'a>,
    only_reads: bool,
    deadline: Option<Duration>,
    span: Span,
    failed: usize,
    /// The next job that gets an expired deadline as its result.
    late: usize,
}

enum Phase<'a> {
    /// No result was requested yet.
    New,
    Running(Running<'a>),
    /// The deadline has passed.
    Over,
}

struct Running<'a> {
    tasks: JoinSet<()>,
    /// Jobs with borrowed parameters that cannot be pipelined.
    alone: FuturesUnordered<BoxFuture<'a, Answer>>,
    alone_max: usize,
    /// Hosts that had no connection in time for one of these jobs. The jobs behind it have waited
    /// as long, and fail too.
    busy: BTreeMap<HostName, (PoolPhase, u128)>,
    alarm: Option<Pin<Box<Sleep>>>,
    began: Instant,
}

impl<'a> Batch<'a> {
    /// Nothing is sent before the first result is requested.
    pub(super) fn run(self) -> Answers<'a> {
        Answers {
            results: Arc::new(Results::new(self.shards.len())),
            only_reads: self.router.only_reads(&self.sql),
            deadline: self.pace.deadline.or(self.router.statement_timeout()),
            phase: Phase::New,
            span: Span::none(),
            failed: 0,
            late: 0,
            batch: self,
        }
    }

    /// Starts one task for each host.
    fn start(
        &self,
        results: &Arc<Results>,
        deadline: Option<Duration>,
        span: &Span,
    ) -> Running<'a> {
        let mut by_host: BTreeMap<_, VecDeque<usize>> = BTreeMap::new();
        for (at, shard) in self.shards.iter().enumerate() {
            // A shard that does not exist is on no host and fails by itself.
            let host = self.router.shard(*shard).ok().map(|shard| shard.host());
            by_host.entry(host).or_default().push_back(at);
        }
        let alone_max = self.pace.width * by_host.len();
        let mut tasks = JoinSet::new();
        for jobs in by_host.into_values() {
            tasks.spawn(
                HostTask::new(
                    HostJobs::new(self.common(), jobs, results.clone()),
                    self.servers,
                )
                .run()
                .instrument(span.clone()),
            );
        }
        Running {
            tasks,
            alone: FuturesUnordered::new(),
            alone_max,
            busy: BTreeMap::new(),
            alarm: deadline.map(|deadline| Box::pin(tokio::time::sleep(deadline))),
            began: Instant::now(),
        }
    }

    fn common(&self) -> Common {
        Common {
            router: self.router.clone(),
            sql: self.sql.clone(),
            shards: self.shards.clone(),
            reach: self.reach,
            pace: self.pace,
            make: match &self.params {
                Source::Owned(make) => Some(make.clone()),
                Source::Borrowed(_) => None,
            },
        }
    }

    /// Runs one job in the way that handles moves, with the caller's own parameters.
    fn alone(&self, at: usize, params: &'a [&'a (dyn ToSql + Sync)]) -> BoxFuture<'a, Answer> {
        let (router, sql, job, servers) = (
            self.router.clone(),
            self.sql.clone(),
            (self.shards[at], self.reach),
            self.servers,
        );
        Box::pin(async move { (at, servers.run_alone(&router, job, &sql, params).await) })
    }
}

impl<'a> Running<'a> {
    /// Does what only the caller's future can do, because the parameters never leave it.
    fn with_params(
        &mut self,
        batch: &Batch<'a>,
        results: &Results,
        params: &'a [&'a (dyn ToSql + Sync)],
        context: &mut Context<'_>,
    ) {
        while let Some(question) = results.question() {
            // The requesting task may be gone.
            let _ = question.answer.send(Bound::new(params, &question.types));
        }
        loop {
            while self.alone.len() < self.alone_max
                && let Some(at) = results.alone()
            {
                let shard = batch.shards[at];
                let host = batch.router.shard(shard).ok().map(|shard| shard.host());
                match host.and_then(|host| self.busy.get_key_value(&host)) {
                    Some((host, (phase, limit_ms))) => {
                        let (host, phase, limit_ms) = (host.clone(), *phase, *limit_ms);
                        results.give(
                            at,
                            Err(Error::PoolTimeout {
                                shard,
                                host,
                                phase,
                                limit_ms,
                            }),
                        );
                    }
                    None => {
                        results.sent(at);
                        self.alone.push(batch.alone(at, params));
                    }
                }
            }
            let Poll::Ready(Some((at, result))) = self.alone.poll_next_unpin(context) else {
                return;
            };
            if let Err(Error::PoolTimeout {
                host,
                phase,
                limit_ms,
                ..
            }) = &result
            {
                self.busy.insert(host.clone(), (*phase, *limit_ms));
            }
            results.give(at, result);
        }
    }
}

impl Answers<'_> {
    /// Whether the statement is declared as read-only.
    pub(super) fn only_reads(&self) -> bool {
        self.only_reads
    }
}

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        self.span.record("failed", self.failed);
        // No call waits for these any more.
        let Phase::Running(Running { began, .. }) = &self.phase else {
            return;
        };
        let mut from = 0;
        while let Some((at, sent)) = self.results.give_up(&mut from) {
            if sent {
                self.batch
                    .router
                    .count(self.batch.shards[at], began.elapsed(), Outcome::Dropped);
            }
        }
    }
}

impl Stream for Answers<'_> {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let next = self.poll_answer(context);
        if let Poll::Ready(Some((_, Err(_)))) = &next {
            self.failed += 1;
        }
        next
    }
}

impl Answers<'_> {
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let this = self;
        if let Phase::New = this.phase {
            this.span = tracing::debug_span!(
                "pgshard.fanout",
                "otel.kind" = "client",
                "db.system.name" = "postgresql",
                shards = this.batch.shards.len(),
                failed = tracing::field::Empty,
            );
            this.phase = Phase::Running(this.batch.start(&this.results, this.deadline, &this.span));
        }
        this.results.register(context);
        if let Phase::Running(running) = &mut this.phase {
            while let Poll::Ready(Some(ended)) = running.tasks.poll_join_next(context) {
                // Most likely a parameter's own code has panicked, so the caller gets the panic.
                if let Err(error) = ended
                    && let Ok(panic) = error.try_into_panic()
                {
                    std::panic::resume_unwind(panic);
                }
            }
            // This comes after the tasks' ends, because a task may leave jobs for the caller when
            // it ends.
            if let Source::Borrowed(params) = this.batch.params {
                running.with_params(&this.batch, &this.results, params, context);
            }
            if let Some(answer) = this.results.take() {
                return Poll::Ready(Some(answer));
            }
            if running.tasks.is_empty() && running.alone.is_empty() {
                return Poll::Ready(None);
            }
            if running
                .alarm
                .as_mut()
                .is_none_or(|alarm| alarm.as_mut().poll(context).is_pending())
            {
                return Poll::Pending;
            }
            // This drops the tasks, and so closes the connections on which an answer is awaited.
            this.phase = Phase::Over;
        }
        if let Some(answer) = this.results.take() {
            return Poll::Ready(Some(answer));
        }
        let Some((at, sent)) = this.results.give_up(&mut this.late) else {
            return Poll::Ready(None);
        };
        let limit = this.deadline.unwrap_or_default();
        this.batch
            .router
            .count(this.batch.shards[at], limit, Outcome::Timeout);
        let late = this.batch.router.shard(this.batch.shards[at]);
        let late = late.map(|shard| shard.timed_out(limit, sent && !this.only_reads));
        Poll::Ready(Some((at, Err(late.unwrap_or_else(|error| error)))))
    }
}
