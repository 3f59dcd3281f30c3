//! The jobs of one host, as its connections share them: those that wait, and those that must run by
//! themselves.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::job::Pace;
use super::params::{Make, Params};
use super::results::Results;
use crate::router::{PipelinedConnection, Reach, Router, Sql};
use crate::shard::ShardId;

/// What all statements of a batch have in common.
pub(super) struct Common {
    pub(super) router: Router,
    pub(super) sql: Sql,
    pub(super) shards: Arc<[ShardId]>,
    pub(super) reach: Reach,
    pub(super) pace: Pace,
    /// `None`: the caller has the parameters, and binds them once their types are known.
    pub(super) make: Option<Make>,
}

pub(super) struct HostJobs {
    pub(super) router: Router,
    pub(super) sql: Sql,
    pub(super) only_reads: bool,
    pub(super) shards: Arc<[ShardId]>,
    pub(super) reach: Reach,
    pub(super) pace: Pace,
    pub(super) results: Arc<Results>,
    /// `None`: the caller has the parameters, and binds them once their types are known.
    pub(super) make: Option<Make>,
    /// Jobs that no connection has taken.
    pub(super) waiting: Mutex<VecDeque<usize>>,
    /// Fires when no job waits any more.
    pub(super) none_waits: Notify,
    /// Jobs that cannot be pipelined.
    pub(super) again: Mutex<Vec<usize>>,
    /// Connections with a blocked first statement.
    pub(super) stuck: AtomicUsize,
    /// Fires when one more connection is stuck.
    pub(super) one_is_stuck: Notify,
}

impl HostJobs {
    pub(super) fn new(common: Common, jobs: VecDeque<usize>, results: Arc<Results>) -> HostJobs {
        HostJobs {
            only_reads: common.router.only_reads(&common.sql),
            router: common.router,
            sql: common.sql,
            shards: common.shards,
            reach: common.reach,
            pace: common.pace,
            results,
            make: common.make,
            waiting: Mutex::new(jobs),
            none_waits: Notify::new(),
            again: Mutex::default(),
            stuck: AtomicUsize::new(0),
            one_is_stuck: Notify::new(),
        }
    }

    /// `None` while the caller has not bound them.
    pub(super) fn params(&self, at: usize) -> Option<Box<dyn Params>> {
        self.make.as_ref().map(|make| make(at))
    }

    pub(super) fn first(&self) -> Option<ShardId> {
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
                Some(at) if self.results.is_answered(at) => {}
                next => break next,
            }
        };
        if waiting.is_empty() {
            self.none_waits.notify_waiters();
        }
        next
    }

    /// The jobs with statements that this connection has prepared, up to its share of all.
    pub(super) fn prepared(&self, connection: &PipelinedConnection) -> VecDeque<usize> {
        let mut waiting = lock(&self.waiting);
        if self.pace.depth == 1 {
            return VecDeque::new();
        }
        let share = waiting.len().div_ceil(self.pace.width);
        let (mut here, mut others) = (VecDeque::new(), VecDeque::new());
        for at in waiting.drain(..) {
            let is_prepared = connection.has(self.shards[at], &self.sql);
            if is_prepared && here.len() < share {
                here.push_back(at)
            } else {
                others.push_back(at)
            }
        }
        *waiting = others;
        here
    }

    /// Takes back jobs from a connection; they are the next.
    pub(super) fn give_back(&self, jobs: impl DoubleEndedIterator<Item = usize>) {
        let mut waiting = lock(&self.waiting);
        jobs.rev().for_each(|at| waiting.push_front(at));
    }

    /// Takes note of a job that cannot be pipelined.
    pub(super) fn note_unpipelined(&self, at: usize) {
        lock(&self.again).push(at);
    }

    /// Records that a connection's first statement is blocked, until the mark is dropped.
    pub(super) fn mark_stuck(&self) -> Stuck<'_> {
        self.stuck.fetch_add(1, Ordering::Relaxed);
        self.one_is_stuck.notify_one();
        Stuck(self)
    }
}

/// Marks a connection as blocked while it exists.
pub(super) struct Stuck<'c>(&'c HostJobs);

impl Drop for Stuck<'_> {
    fn drop(&mut self) {
        self.0.stuck.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
