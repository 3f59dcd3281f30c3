//! What all calls over many shards are made of: a [`Batch`] of jobs, one a shard, and the stream of their answers.
//!
//! Invariant: every job gives exactly one answer, whatever happens to the others; and no more statements of a
//! host are on their way than its [`Pace`] allows.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use tokio::time::Sleep;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::router::{Error, Lane, Ran, Router, Sql};
use crate::shard::ShardId;

/// How fast a batch goes, and how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Connections of a host, at least 1.
    pub(super) width: usize,
    /// Statements on their way on one connection, at least 1.
    pub(super) depth: usize,
    /// From the first answer that is asked for.
    /// `None`: as long as any call.
    pub(super) deadline: Option<Duration>,
}

/// The parameters of a shard's statement.
pub(super) trait Params: Send {
    fn params(&self) -> Vec<&(dyn ToSql + Sync)>;
}

impl Params for &[&(dyn ToSql + Sync)] {
    fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.to_vec()
    }
}

/// Statements to run, one a shard. `W` is what is wanted of a shard; the parameters are made of it when its turn comes.
pub(super) struct Batch<'a, W, P> {
    pub(super) router: Router,
    pub(super) sql: Sql,
    pub(super) jobs: Arc<[(ShardId, W)]>,
    pub(super) params: Arc<dyn Fn(&W) -> P + Send + Sync + 'a>,
    pub(super) pace: Pace,
}

impl<W, P> Clone for Batch<'_, W, P> {
    fn clone(&self) -> Self {
        let Batch { router, sql, jobs, params, pace } = self;
        Batch { router: router.clone(), sql: sql.clone(), jobs: jobs.clone(), params: params.clone(), pace: *pace }
    }
}

/// A job, by its place in the batch, and how it ended.
pub(super) type Answer = (usize, Result<Vec<Row>, Error>);

/// The answers of a batch, in the order in which they come.
pub(super) struct Answers<'a> {
    /// `None` once the deadline has passed.
    running: Option<BoxStream<'a, Answer>>,
    router: Router,
    shards: Vec<ShardId>,
    /// Where the answers stand: those sent and not answered may have run.
    progress: Arc<Mutex<Progress>>,
    only_reads: bool,
    deadline: Option<Duration>,
    alarm: Option<Pin<Box<Sleep>>>,
    /// The next job that is told of the deadline.
    late: usize,
}

#[derive(Debug)]
struct Progress {
    sent: Vec<bool>,
    answered: Vec<bool>,
}

impl<'a, W, P> Batch<'a, W, P>
where
    W: Send + Sync + 'a,
    P: Params + 'a,
{
    /// Nothing is sent before the first answer is asked for.
    pub(super) fn run(self) -> Answers<'a> {
        let total = self.jobs.len();
        let progress = Arc::new(Mutex::new(Progress { sent: vec![false; total], answered: vec![false; total] }));
        let mut by_host: BTreeMap<_, VecDeque<usize>> = BTreeMap::new();
        for (at, (shard, _)) in self.jobs.iter().enumerate() {
            // A shard that does not exist is on no host and fails by itself.
            let host = self.router.shard(*shard).ok().map(|shard| shard.host());
            by_host.entry(host).or_default().push_back(at);
        }
        let hosts = by_host.into_values().map(|jobs| self.clone().on_host(jobs, progress.clone()));
        Answers {
            running: Some(stream::select_all(hosts).boxed()),
            router: self.router.clone(),
            shards: self.jobs.iter().map(|(shard, _)| *shard).collect(),
            progress,
            only_reads: self.router.only_reads(&self.sql),
            deadline: self.pace.deadline.or(self.router.statement_timeout()),
            alarm: None,
            late: 0,
        }
    }

    /// The jobs of one host: first on its lanes, then those that met a move, one connection each.
    fn on_host(self, jobs: VecDeque<usize>, progress: Arc<Mutex<Progress>>) -> BoxStream<'a, Answer> {
        let shard = jobs.front().map(|at| self.jobs[*at].0);
        let width = shard.map_or(1, |shard| self.pace.width.min(self.router.lanes_max(shard)));
        let waiting = Arc::new(Waiting { jobs: Mutex::new(jobs), again: Mutex::default() });
        let lanes = (0..width).map(|number| self.clone().on_lane(number, waiting.clone(), progress.clone()));
        let lanes = stream::select_all(lanes);
        let again = stream::once(async move { lock(&waiting.again).drain(..).collect::<Vec<_>>() });
        let again = again.flat_map(move |jobs| {
            let (batch, progress) = (self.clone(), progress.clone());
            let alone = stream::iter(jobs).map(move |at| {
                lock(&progress).sent[at] = true;
                batch.clone().alone(at)
            });
            alone.buffer_unordered(width)
        });
        lanes.chain(again).boxed()
    }

    /// What one connection does. The first waits for its connection; the others take one only if it is free.
    fn on_lane(self, number: usize, waiting: Arc<Waiting>, progress: Arc<Mutex<Progress>>) -> BoxStream<'a, Answer> {
        stream::once(async move {
            let Some(first) = lock(&waiting.jobs).front().copied() else { return stream::empty().boxed() };
            let shard = self.jobs[first].0;
            let lane = if number == 0 {
                self.router.lane(shard).await
            } else {
                match self.router.lane_if_free(shard).await {
                    Some(lane) => Ok(lane),
                    None => return stream::empty().boxed(),
                }
            };
            match lane {
                Ok(lane) => self.down(lane, waiting, progress),
                // The others have waited in the same queue as long as this one.
                Err(Error::PoolTimeout { host, phase, limit_ms, .. }) => {
                    let late = move |at: usize| {
                        let (shard, host) = (self.jobs[at].0, host.clone());
                        (at, Err(Error::PoolTimeout { shard, host, phase, limit_ms }))
                    };
                    let all = std::mem::take(&mut *lock(&waiting.jobs));
                    stream::iter(all.into_iter().map(late)).boxed()
                }
                // That is the first job's answer. The host may be better off when it is the others' turn.
                Err(error) => {
                    let mut rest = std::mem::take(&mut *lock(&waiting.jobs));
                    let first = rest.pop_front();
                    lock(&waiting.again).extend(rest);
                    stream::iter(first.map(|at| (at, Err(error)))).boxed()
                }
            }
        })
        .flatten()
        .boxed()
    }

    fn down(self, lane: Lane, waiting: Arc<Waiting>, progress: Arc<Mutex<Progress>>) -> BoxStream<'a, Answer> {
        let mut warm = self.warm(&lane, &waiting);
        let depth = if lane.can_pipeline() { self.pace.depth } else { 1 };
        let source = waiting.clone();
        let jobs = std::iter::from_fn(move || warm.pop_front().or_else(|| lock(&source.jobs).pop_front()));
        let ran = stream::iter(jobs).map(move |at| {
            let (batch, lane, waiting) = (self.clone(), lane.clone(), waiting.clone());
            lock(&progress).sent[at] = true;
            async move {
                let (shard, wanted) = &batch.jobs[at];
                let params = (batch.params)(wanted);
                match lane.query(*shard, &batch.sql, &params.params()).await {
                    Ran::Done(result) => Some((at, result)),
                    Ran::Again => {
                        lock(&waiting.again).push(at);
                        None
                    }
                }
            }
        });
        ran.buffer_unordered(depth).filter_map(ready).boxed()
    }

    /// The jobs whose statements this connection has prepared, up to its share of all.
    fn warm(&self, lane: &Lane, waiting: &Waiting) -> VecDeque<usize> {
        let mut jobs = lock(&waiting.jobs);
        if self.pace.depth == 1 {
            return VecDeque::new();
        }
        let share = jobs.len().div_ceil(self.pace.width);
        let (mut warm, mut cold) = (VecDeque::new(), VecDeque::new());
        for at in jobs.drain(..) {
            let here = warm.len() < share && lane.has(self.jobs[at].0, &self.sql);
            if here { warm.push_back(at) } else { cold.push_back(at) }
        }
        *jobs = cold;
        warm
    }

    /// One job with all that the router does about moves.
    async fn alone(self, at: usize) -> Answer {
        let (shard, wanted) = &self.jobs[at];
        let params = (self.params)(wanted);
        let result = match self.router.shard(*shard) {
            Ok(shard) => shard.query(&self.sql, &params.params()).await,
            Err(error) => Err(error),
        };
        (at, result)
    }
}

/// The jobs of a host that no lane has taken, and those for which a lane will not do.
struct Waiting {
    jobs: Mutex<VecDeque<usize>>,
    again: Mutex<Vec<usize>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Answers<'_> {
    /// Whether the statement changes nothing, by the caller's word.
    pub(super) fn only_reads(&self) -> bool {
        self.only_reads
    }
}

impl Stream for Answers<'_> {
    type Item = Answer;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let this = &mut *self;
        if let Some(running) = &mut this.running {
            match running.as_mut().poll_next(context) {
                Poll::Ready(Some(answer)) => {
                    lock(&this.progress).answered[answer.0] = true;
                    return Poll::Ready(Some(answer));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {}
            }
            let Some(deadline) = this.deadline else { return Poll::Pending };
            let alarm = this.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(deadline)));
            if alarm.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            // Connections on which an answer is awaited are closed with it.
            this.running = None;
        }
        let progress = lock(&this.progress);
        while let Some(shard) = this.shards.get(this.late).copied() {
            let at = this.late;
            this.late += 1;
            if !progress.answered[at] {
                let may_have_run = progress.sent[at] && !this.only_reads;
                let limit = this.deadline.unwrap_or_default();
                let late = this.router.shard(shard).map(|shard| shard.timed_out(limit, may_have_run));
                return Poll::Ready(Some((at, Err(late.unwrap_or_else(|error| error)))));
            }
        }
        Poll::Ready(None)
    }
}
