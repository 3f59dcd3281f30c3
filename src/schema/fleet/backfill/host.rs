//! The work on all hosts: a queue with the shards that are still to be done, and for each host a
//! few connections that take shards from it.
//!
//! A shard that is being moved returns to the queue, under the host that has it then.
//!
//! Invariant: the work ends. A shard without progress is tried until the patience is over, and so
//! is a host that does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio_postgres::types::Type;

use super::report::{BackfillFault, Event, Observer, Report};
use super::request::{APPLICATION, Request};
use super::shard::{Key, OnShard, Step};
use super::throttle::{Size, Throttle, ThrottleReason};
use crate::backoff::Backoff;
use crate::map::HostName;
use crate::pg::cause::chain;
use crate::pg::{ConnectOptions, Connection};
use crate::schema::fleet::fault::HostFault;
use crate::schema::fleet::queue::{Next, Queue, Task};
use crate::schema::fleet::report::NO_PANIC;
use crate::schema::fleet::session;
use crate::shard::ShardId;

/// How long workers that a standby's lag holds back wait before they look again.
const LAG_LOOK: Duration = Duration::from_millis(500);

/// The pauses before a busy shard is tried again.
const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(50),
    max: Duration::from_secs(2),
    jitter: (0.5, 1.5),
};

/// The shortest limit for a statement of a range, however short the ranges should be.
const STATEMENT_MIN: Duration = Duration::from_secs(5);

/// A shard in the queue.
#[derive(Clone, Debug)]
struct ShardWork {
    shard: ShardId,
    size: Size,
    rows: u64,
}

/// The work on all hosts.
pub(super) struct Work<'a> {
    request: &'a Request,
    observer: Observer<'a>,
    in_all: Semaphore,
    throttles: BTreeMap<HostName, Throttle>,
    hidden: Mutex<BTreeSet<HostName>>,
    queue: Queue<ShardWork>,
    report: Mutex<Report>,
}

/// The result of a worker's work on a shard.
enum After {
    Done,
    /// It goes back into this host's queue, after a pause. When the patience is over, it is given
    /// up for this reason.
    Later(BackfillFault),
    /// It goes into the queue of the host that it has moved to.
    Gone(HostName),
    Left(BackfillFault),
}

impl<'a> Work<'a> {
    pub(super) fn new(
        request: &'a Request,
        shards: BTreeMap<HostName, Vec<ShardId>>,
        report: Report,
        observer: Observer<'a>,
    ) -> Work<'a> {
        let throttle = || Throttle::new(request.pace.lag_max, request.pace.rows_per_second_max);
        let work = |shard| ShardWork {
            shard,
            size: Size::first(),
            rows: 0,
        };
        let queue = Queue::new(PAUSES);
        for (host, shards) in shards {
            queue.fill(&host, shards.into_iter().map(work));
        }
        Work {
            request,
            observer,
            in_all: Semaphore::new(request.pace.max_concurrency.get()),
            throttles: request
                .hosts
                .iter()
                .map(|(host, _)| (host.clone(), throttle()))
                .collect(),
            hidden: Mutex::default(),
            queue,
            report: Mutex::new(report),
        }
    }

    pub(super) fn report(self) -> Report {
        self.report.into_inner().expect(NO_PANIC)
    }

    /// A worker of a host: it takes shards from the queue until none are left on any host.
    pub(super) async fn work(&self, host: &HostName, connect: &ConnectOptions) {
        let mut session: Option<Connection> = None;
        // Since when the host has not answered.
        let mut silent: Option<Instant> = None;
        loop {
            let task = match self.queue.next(host) {
                Next::Nothing => return,
                Next::Later(pause) => {
                    tokio::time::sleep(pause).await;
                    continue;
                }
                Next::Stop { left, failed } => {
                    for task in left {
                        self.leave(host, task.work.shard, BackfillFault::NotTried { failed });
                    }
                    continue;
                }
                Next::Now(task) => task,
            };
            let client = match session.take() {
                Some(client) => Ok(client),
                None => session::open(connect, APPLICATION).await,
            };
            let (outcome, task) = match client {
                Ok(client) => {
                    let (outcome, task) = self.shard(host, &client, task).await;
                    if outcome.is_ok() {
                        (session, silent) = (Some(client), None);
                    }
                    (outcome, task)
                }
                Err(fault) => (Err(fault), task),
            };
            match outcome {
                Ok(after) => self.end_turn(host, task, after),
                Err(fault) => {
                    let since = *silent.get_or_insert_with(Instant::now);
                    self.put_back(host, task, Duration::ZERO);
                    if since.elapsed() >= self.request.pace.patience {
                        self.lose(host, &fault);
                    } else {
                        tokio::time::sleep(PAUSES.max.min(self.request.pace.patience)).await;
                    }
                }
            }
        }
    }

    /// Works on one shard, until it is done or cannot be continued here.
    async fn shard(
        &self,
        host: &HostName,
        client: &Connection,
        mut task: Task<ShardWork>,
    ) -> (Result<After, HostFault>, Task<ShardWork>) {
        let lost = |error: &tokio_postgres::Error| HostFault::Lost {
            reason: chain(error),
        };
        let pace = self.request.pace;
        let schema = self.request.cluster.schema_prefix.schema(task.work.shard);
        let on_shard = OnShard {
            backfill: &self.request.backfill,
            schema: &schema,
            shard: task.work.shard,
            lock_timeout: pace.lock_timeout,
            statement_timeout: STATEMENT_MIN.max(pace.range * 10),
        };
        if let Err(error) = session::settle(client).await {
            return (Err(lost(&error)), task);
        }
        let mut key: Option<Key> = None;
        loop {
            if let Err(error) = self.wait_for_throttle(host, client).await {
                return (Err(lost(&error)), task);
            }
            let turn = self
                .in_all
                .acquire()
                .await
                .expect("nobody closes the semaphore");
            let began = Instant::now();
            let step = match &key {
                None => on_shard.start(client).await,
                Some(key) => on_shard.step(client, key, task.work.size.keys()).await,
            };
            drop(turn);
            let after = match step {
                Err(error) => return (Err(lost(&error)), task),
                Ok(Step::Started(found)) => {
                    self.report
                        .lock()
                        .expect(NO_PANIC)
                        .begun
                        .insert(task.work.shard);
                    key = Some(found);
                    continue;
                }
                Ok(Step::Ran { rows }) => {
                    task.work.size = task.work.size.after(began.elapsed(), pace.range);
                    task.work.rows += rows;
                    task.has_progressed();
                    self.ran(host, task.work.shard, rows);
                    continue;
                }
                Ok(Step::TooSlow(fault)) => match task.work.size.smaller() {
                    Some(smaller) => {
                        task.work.size = smaller;
                        continue;
                    }
                    None => After::Left(fault),
                },
                Ok(Step::Finished) => After::Done,
                Ok(Step::Again(words)) => After::Later(BackfillFault::Busy { words }),
                Ok(Step::Failed(fault)) => After::Left(fault),
                Ok(Step::Elsewhere) => match self.whereabouts(client, task.work.shard).await {
                    Ok(after) => after,
                    Err(error) => return (Err(lost(&error)), task),
                },
            };
            return (Ok(after), task);
        }
    }

    /// Waits as long as something holds the host's workers back.
    async fn wait_for_throttle(
        &self,
        host: &HostName,
        client: &Connection,
    ) -> Result<(), tokio_postgres::Error> {
        let throttle = &self.throttles[host];
        let mut is_told = false;
        loop {
            let (held, is_hidden) = throttle.reason_to_wait(client).await?;
            if is_hidden && self.hidden.lock().expect(NO_PANIC).insert(host.clone()) {
                (self.observer)(Event::LagHidden { host });
            }
            match held {
                None => return Ok(()),
                Some(ThrottleReason::Rate(pause)) => tokio::time::sleep(pause).await,
                Some(ThrottleReason::Lag(bytes)) => {
                    if !is_told {
                        (self.observer)(Event::Throttled { host, bytes });
                        is_told = true;
                    }
                    tokio::time::sleep(LAG_LOOK).await;
                }
            }
        }
    }

    fn ran(&self, host: &HostName, shard: ShardId, rows: u64) {
        self.throttles[host].ran(rows);
        self.report.lock().expect(NO_PANIC).rows += rows;
        (self.observer)(Event::RangeDone { host, shard, rows });
    }

    /// Where a shard is that the host does not serve now. Locks: none.
    async fn whereabouts(
        &self,
        client: &Connection,
        shard: ShardId,
    ) -> Result<After, tokio_postgres::Error> {
        let sql = "SELECT state, peer FROM pgshard.shard WHERE shard_id = $1";
        let rows = client
            .query_typed(sql, &[(&shard.as_i32(), Type::INT4)])
            .await?;
        let waits = || After::Later(BackfillFault::Moving);
        let Some(row) = rows.first() else {
            return Ok(waits());
        };
        let (state, peer): (&str, Option<&str>) = (row.try_get(0)?, row.try_get(1)?);
        let peer = peer
            .filter(|_| state == "moved")
            .and_then(|peer| HostName::new(peer).ok());
        Ok(match peer {
            Some(peer) if self.throttles.contains_key(&peer) => After::Gone(peer),
            Some(host) => After::Left(BackfillFault::Absent { host }),
            None => waits(),
        })
    }

    fn end_turn(&self, host: &HostName, task: Task<ShardWork>, after: After) {
        let shard = task.work.shard;
        match after {
            After::Done => {
                self.queue.done();
                self.report.lock().expect(NO_PANIC).done.insert(shard);
                (self.observer)(Event::ShardDone {
                    host,
                    shard,
                    rows: task.work.rows,
                });
            }
            After::Later(fault) | After::Left(fault) if !self.may_wait(&task, &fault) => {
                self.queue.failed();
                self.leave(host, shard, fault);
            }
            After::Gone(to) => self.put_back(&to, task, PAUSES.first),
            After::Later(_) | After::Left(_) => {
                let outcome = self.queue.retry(host, task);
                self.leave_with_host(host, outcome);
            }
        }
    }

    /// Whether the fault may pass and the shard's patience is not over.
    fn may_wait(&self, task: &Task<ShardWork>, fault: &BackfillFault) -> bool {
        let passes = matches!(fault, BackfillFault::Busy { .. } | BackfillFault::Moving);
        passes && task.waited() < self.request.pace.patience
    }

    fn put_back(&self, host: &HostName, task: Task<ShardWork>, pause: Duration) {
        let outcome = self.queue.put_back(host, task, pause);
        self.leave_with_host(host, outcome);
    }

    fn leave_with_host(&self, host: &HostName, outcome: Result<(), (Task<ShardWork>, HostFault)>) {
        if let Err((task, fault)) = outcome {
            let reason = fault.to_string();
            self.leave(host, task.work.shard, BackfillFault::Host { reason });
        }
    }

    /// Gives up all shards of a host.
    fn lose(&self, host: &HostName, fault: &HostFault) {
        for task in self.queue.lose(host, fault.clone()) {
            let reason = fault.to_string();
            self.leave(host, task.work.shard, BackfillFault::Host { reason });
        }
    }

    fn leave(&self, host: &HostName, shard: ShardId, fault: BackfillFault) {
        (self.observer)(Event::ShardFailed {
            host,
            shard,
            fault: &fault,
        });
        self.report
            .lock()
            .expect(NO_PANIC)
            .left
            .insert(shard, fault);
    }
}
