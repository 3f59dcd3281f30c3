//! The statements on their way on one connection, one behind the other, and the time that each may
//! take.
//!
//! A statement's time begins when the one before it has answered. One that is blocked (behind a
//! lock, for example) is noticed early, and does not delay those behind it: reads, and statements
//! that were not sent yet, are moved to another connection. Other statements stay, because they may
//! run as soon as the first has ended. So the first is cancelled on the server, has no effect then,
//! and is run again by itself.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{AbortHandle, BoxFuture, abortable};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;
use tracing::Span;

use super::host_jobs::{HostJobs, Stuck, lock};
use crate::router::{PipelinedConnection, Ran};

/// A statement that has not answered this long after the one before it holds up those behind it.
const STUCK_AFTER: Duration = Duration::from_millis(500);

/// How long a statement that was cancelled may take to end before its connection is given up.
const CANCELLED_MAX: Duration = Duration::from_secs(2);

pub(super) struct Pipeline<'c> {
    jobs: &'c HostJobs,
    connection: PipelinedConnection,
    /// Jobs for this connection, before all others.
    prepared: VecDeque<usize>,
    running: FuturesUnordered<BoxFuture<'c, Option<(usize, Ran)>>>,
    on_way: Vec<(usize, AbortHandle)>,
    wire: Arc<Mutex<Wire>>,
    state: State<'c>,
    /// The answer to something sent here is not awaited by any call: nothing is sent behind it.
    left: bool,
    span: Span,
    statements: u64,
    failed: u64,
}

/// What was sent and is not answered.
struct Wire {
    /// By job, in the order in which it was sent.
    sent: VecDeque<(usize, Sent)>,
    /// When the first of them got its turn.
    since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// It was sent to be prepared, so nothing has run.
    ToPrepare,
    ToRun,
}

impl Wire {
    fn send(&mut self, at: usize, what: Sent) {
        if self.sent.is_empty() {
            self.since = Instant::now();
        }
        self.sent.push_back((at, what));
    }

    fn answered(&mut self, job: usize) {
        self.since = Instant::now();
        self.sent.retain(|(at, _)| *at != job);
    }

    /// Whether a job may have run.
    fn may_have_run(&self, job: usize) -> bool {
        self.sent.contains(&(job, Sent::ToRun))
    }
}

enum State<'c> {
    Flowing,
    /// The first statement is blocked. If others wait behind it that may not run twice, it was
    /// cancelled.
    Stuck(Stuck<'c>),
    /// The first statement reached its time limit, and was cancelled.
    Cancelled(#[expect(dead_code, reason = "held until the server has ended it")] Stuck<'c>),
}

impl<'c> Pipeline<'c> {
    pub(super) fn new(
        jobs: &'c HostJobs,
        connection: PipelinedConnection,
        span: Span,
    ) -> Pipeline<'c> {
        Pipeline {
            prepared: jobs.prepared(&connection),
            jobs,
            connection,
            running: FuturesUnordered::new(),
            on_way: Vec::new(),
            wire: Arc::new(Mutex::new(Wire {
                sent: VecDeque::new(),
                since: Instant::now(),
            })),
            state: State::Flowing,
            left: false,
            span,
            statements: 0,
            failed: 0,
        }
    }

    /// Returns when nothing is on its way here and there is nothing to do, or no room for answers.
    pub(super) async fn run(mut self) {
        let depth = if self.connection.can_pipeline() {
            self.jobs.pace.depth
        } else {
            1
        };
        let results = &self.jobs.results;
        loop {
            while matches!(self.state, State::Flowing)
                && !self.left
                && self.on_way.len() < depth
                && results.has_room()
                && let Some(at) = self.prepared.pop_front().or_else(|| self.jobs.next())
            {
                self.start(at);
            }
            if self.on_way.is_empty() {
                self.jobs.give_back(self.prepared.drain(..));
                return;
            }
            // A statement that is alone on its way is read to its end, so that the connection can
            // go back.
            let reads = self.on_way.len() == 1 || results.has_room();
            let patience = self.patience();
            let since = lock(&self.wire).since;
            tokio::select! {
                biased;
                Some(done) = self.running.next(), if reads => self.done(done),
                () = results.room(), if !reads => lock(&self.wire).since = Instant::now(),
                () = tokio::time::sleep_until(since + patience.unwrap_or_default()),
                    if reads && patience.is_some() =>
                {
                    // Something may have been prepared in the meantime.
                    let stands_still = lock(&self.wire).since == since;
                    if stands_still && !self.on_timeout(since).await {
                        return;
                    }
                }
            }
        }
    }

    fn start(&mut self, at: usize) {
        let (jobs, connection, wire) = (self.jobs, self.connection.clone(), self.wire.clone());
        let (running, handle) = abortable(async move {
            let shard = jobs.shards[at];
            let Some(params) = jobs.params(at) else {
                return Ran::Again;
            };
            if jobs.pace.depth > 1 && !connection.has(shard, &jobs.sql) {
                lock(&wire).send(at, Sent::ToPrepare);
                connection.prepare(shard, jobs.reach, &jobs.sql).await;
                lock(&wire).answered(at);
            }
            // Prepared statements are sent immediately.
            lock(&wire).send(at, Sent::ToRun);
            jobs.results.sent(at);
            let job = (shard, jobs.reach);
            connection.query(job, &jobs.sql, &params.params()).await
        });
        self.on_way.push((at, handle));
        self.running.push(Box::pin(
            async move { running.await.ok().map(|ran| (at, ran)) },
        ));
    }

    fn done(&mut self, done: Option<(usize, Ran)>) {
        // It was aborted here: another connection has it.
        let Some((at, ran)) = done else { return };
        lock(&self.wire).answered(at);
        self.on_way.retain(|(on_way, _)| *on_way != at);
        self.state = State::Flowing;
        match ran {
            Ran::Done(result) => {
                self.statements += 1;
                self.failed += u64::from(result.is_err());
                self.jobs.results.give(at, result);
            }
            Ran::Again if self.jobs.results.is_answered(at) => {}
            Ran::Again => self.jobs.note_unpipelined(at),
        }
    }

    /// How long to wait for the first statement before something is done about it. `None`: as long
    /// as it takes.
    fn patience(&self) -> Option<Duration> {
        let limit = self.jobs.router.statement_timeout();
        let soon = [limit, self.jobs.pace.deadline];
        let soon = soon.into_iter().flatten().map(|limit| limit / 4).min();
        // With depth 1 each statement has its connection for itself, and holds up no other.
        let holds_up = self.jobs.pace.depth > 1
            && (self.on_way.len() > 1 || !self.prepared.is_empty() || self.jobs.has_waiting());
        match self.state {
            State::Flowing if holds_up => {
                Some(soon.map_or(STUCK_AFTER, |soon| soon.min(STUCK_AFTER)))
            }
            State::Flowing | State::Stuck(_) => limit,
            State::Cancelled(_) => Some(CANCELLED_MAX),
        }
    }

    /// Acts on a first statement that took too long. False when the connection is of no use any
    /// more.
    async fn on_timeout(&mut self, since: Instant) -> bool {
        let limit = self.jobs.router.statement_timeout();
        match std::mem::replace(&mut self.state, State::Flowing) {
            State::Flowing if limit.is_none_or(|limit| since.elapsed() < limit) => {
                self.reassign_rest();
                if self.on_way.len() > 1 {
                    self.left = true;
                    self.connection.set_cancelled();
                    self.connection.cancel().await;
                }
                self.state = State::Stuck(self.jobs.mark_stuck());
                true
            }
            State::Cancelled(_) => {
                self.give_up();
                false
            }
            State::Flowing => self.cancel(None).await,
            State::Stuck(stuck) => self.cancel(Some(stuck)).await,
        }
    }

    /// The job that all others here wait for.
    fn first(&self) -> Option<usize> {
        let first = lock(&self.wire).sent.front().map(|(at, _)| *at);
        first.or_else(|| self.on_way.first().map(|(at, _)| *at))
    }

    /// The first statement stays. The others go to another connection, if it does no harm that they
    /// run twice, or if they have not run.
    fn reassign_rest(&mut self) {
        let first = self.first();
        let mut wire = lock(&self.wire);
        let stays =
            |at: usize| Some(at) == first || (!self.jobs.only_reads && wire.may_have_run(at));
        let (staying, going): (Vec<_>, Vec<_>) =
            self.on_way.drain(..).partition(|(at, _)| stays(*at));
        wire.sent
            .retain(|(at, _)| staying.iter().any(|(stays, _)| stays == at));
        drop(wire);
        self.on_way = staying;
        self.left |= !going.is_empty();
        going.iter().for_each(|(_, handle)| handle.abort());
        let jobs: Vec<usize> = going
            .into_iter()
            .map(|(at, _)| at)
            .chain(self.prepared.drain(..))
            .collect();
        self.jobs.give_back(jobs.into_iter());
    }

    /// The first statement reached its time limit. Cancels it, and continues with the next.
    async fn cancel(&mut self, stuck: Option<Stuck<'c>>) -> bool {
        let Some(first) = self.first() else {
            return true;
        };
        let may_have_run = !self.jobs.only_reads && lock(&self.wire).may_have_run(first);
        self.time_out(first, may_have_run);
        self.left = true;
        self.connection.cancel().await;
        lock(&self.wire).since = Instant::now();
        self.state = State::Cancelled(stuck.unwrap_or_else(|| self.jobs.mark_stuck()));
        true
    }

    fn time_out(&self, at: usize, may_have_run: bool) {
        let limit = self.jobs.router.statement_timeout().unwrap_or_default();
        self.jobs.results.give(
            at,
            Err(self
                .connection
                .timed_out(self.jobs.shards[at], limit, may_have_run)),
        );
    }

    /// The server did not end what was cancelled. Gives up all that was sent here; the connection
    /// is closed.
    fn give_up(&mut self) {
        for (at, handle) in std::mem::take(&mut self.on_way) {
            handle.abort();
            let safe = self.jobs.only_reads || !lock(&self.wire).may_have_run(at);
            match (self.jobs.results.is_answered(at), safe) {
                (true, _) => {}
                (false, true) => self.jobs.note_unpipelined(at),
                (false, false) => self.time_out(at, true),
            }
        }
        self.jobs.give_back(self.prepared.drain(..));
    }
}

impl Drop for Pipeline<'_> {
    fn drop(&mut self) {
        self.span.record("statements", self.statements);
        self.span.record("failed", self.failed);
    }
}
