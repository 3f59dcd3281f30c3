//! The work on all hosts: a board with the shards that are still to be done, and for each host a
//! few connections that take shards from it.
//!
//! A shard that is being moved returns to the board, to the list of the host that has it then.
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
use crate::schema::fleet::report::NO_PANIC;
use crate::schema::fleet::session;
use crate::shard::ShardId;

/// If this many shards have failed before the first is done, the rest is not tried.
const FAILURES_MAX: usize = 16;

/// How long a worker without a shard waits before it looks at the board again: a shard may have
/// come to its host.
const LOOK: Duration = Duration::from_millis(100);

/// The pauses before a busy shard is tried again.
const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(50),
    max: Duration::from_secs(2),
    jitter: (0.5, 1.5),
};

/// The shortest limit for a statement of a range, however short the ranges should be.
const STATEMENT_MIN: Duration = Duration::from_secs(5);

/// A shard on the board.
#[derive(Clone, Debug)]
struct Task {
    shard: ShardId,
    size: Size,
    rows: u64,
    tries: u32,
    /// When it last made progress, or was first tried.
    since: Option<Instant>,
    /// It is not taken before this time.
    due: Instant,
}

/// Which shards are to be done on which host. A shard that a worker has taken is on no list, and
/// counts as open.
#[derive(Default)]
struct Board {
    lists: BTreeMap<HostName, Vec<Task>>,
    open: usize,
    lost: BTreeMap<HostName, HostFault>,
    failed: usize,
    done: usize,
}

/// The work on all hosts.
pub(super) struct Work<'a> {
    request: &'a Request,
    observer: Observer<'a>,
    in_all: Semaphore,
    throttles: BTreeMap<HostName, Throttle>,
    hidden: Mutex<BTreeSet<HostName>>,
    board: Mutex<Board>,
    report: Mutex<Report>,
}

/// What the board has for a worker.
enum Next {
    Now(Task),
    Wait(Duration),
    Nothing,
}

/// The result of a worker's work on a shard.
enum After {
    Done,
    /// It goes back on this host's list, after a pause. When the patience is over, it is given up
    /// for this reason.
    Later(BackfillFault),
    /// It is put on the list of the host that it has moved to.
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
        let due = Instant::now();
        let task = |shard| Task {
            shard,
            size: Size::first(),
            rows: 0,
            tries: 0,
            since: None,
            due,
        };
        let mut board = Board::default();
        for (host, shards) in shards {
            board.open += shards.len();
            // Workers take from the end.
            board
                .lists
                .insert(host, shards.into_iter().rev().map(task).collect());
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
            board: Mutex::new(board),
            report: Mutex::new(report),
        }
    }

    pub(super) fn report(self) -> Report {
        self.report.into_inner().expect(NO_PANIC)
    }

    /// A worker of a host: it takes shards from the board until none are left on any host.
    pub(super) async fn work(&self, host: &HostName, connect: &ConnectOptions) {
        let mut session: Option<Connection> = None;
        // Since when the host has not answered.
        let mut silent: Option<Instant> = None;
        loop {
            let task = match self.next(host) {
                Next::Nothing => return,
                Next::Wait(pause) => {
                    tokio::time::sleep(pause).await;
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
                Ok(after) => self.put_back(host, task, after),
                Err(fault) => {
                    let since = *silent.get_or_insert_with(Instant::now);
                    self.put_back_at(host, task, Duration::ZERO);
                    if since.elapsed() >= self.request.pace.patience {
                        self.lose(host, &fault);
                    } else {
                        tokio::time::sleep(PAUSES.max.min(self.request.pace.patience)).await;
                    }
                }
            }
        }
    }

    fn next(&self, host: &HostName) -> Next {
        let mut board = self.board.lock().expect(NO_PANIC);
        if board.open == 0 {
            return Next::Nothing;
        }
        let now = Instant::now();
        let stops = board.failed >= FAILURES_MAX && board.done == 0;
        let failed = board.failed;
        let Some(list) = board.lists.get_mut(host) else {
            return Next::Wait(LOOK);
        };
        if stops {
            let left = std::mem::take(list);
            board.open -= left.len();
            drop(board);
            for task in left {
                self.leave(host, &task, BackfillFault::NotTried { failed });
            }
            return Next::Wait(Duration::ZERO);
        }
        match list.iter().rposition(|task| task.due <= now) {
            Some(at) => Next::Now(list.remove(at)),
            None => {
                let due = list
                    .iter()
                    .map(|task| task.due.saturating_duration_since(now))
                    .min();
                Next::Wait(due.unwrap_or(LOOK).min(LOOK))
            }
        }
    }

    /// Works on one shard, until it is done or cannot be continued here.
    async fn shard(
        &self,
        host: &HostName,
        client: &Connection,
        mut task: Task,
    ) -> (Result<After, HostFault>, Task) {
        let lost = |error: &tokio_postgres::Error| HostFault::Lost {
            reason: chain(error),
        };
        task.since.get_or_insert_with(Instant::now);
        let pace = self.request.pace;
        let schema = self.request.cluster.schema_prefix.schema(task.shard);
        let on_shard = OnShard {
            backfill: &self.request.backfill,
            schema: &schema,
            shard: task.shard,
            lock_timeout: pace.lock_timeout,
            statement_timeout: STATEMENT_MIN.max(pace.range * 10),
        };
        if let Err(error) = session::settle(client).await {
            return (Err(lost(&error)), task);
        }
        let mut key: Option<Key> = None;
        loop {
            if let Err(error) = self.held(host, client).await {
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
                Some(key) => on_shard.step(client, key, task.size.keys()).await,
            };
            drop(turn);
            let after = match step {
                Err(error) => return (Err(lost(&error)), task),
                Ok(Step::Started(found)) => {
                    self.report.lock().expect(NO_PANIC).begun.insert(task.shard);
                    key = Some(found);
                    continue;
                }
                Ok(Step::Ran { rows }) => {
                    task.size = task.size.after(began.elapsed(), pace.range);
                    (task.rows, task.tries, task.since) =
                        (task.rows + rows, 0, Some(Instant::now()));
                    self.ran(host, task.shard, rows);
                    continue;
                }
                Ok(Step::TooSlow(fault)) => match task.size.smaller() {
                    Some(smaller) => {
                        task.size = smaller;
                        continue;
                    }
                    None => After::Left(fault),
                },
                Ok(Step::Finished) => After::Done,
                Ok(Step::Again(words)) => After::Later(BackfillFault::Busy { words }),
                Ok(Step::Failed(fault)) => After::Left(fault),
                Ok(Step::Elsewhere) => match self.whereabouts(client, task.shard).await {
                    Ok(after) => after,
                    Err(error) => return (Err(lost(&error)), task),
                },
            };
            return (Ok(after), task);
        }
    }

    /// Waits as long as something holds the host's workers back.
    async fn held(
        &self,
        host: &HostName,
        client: &Connection,
    ) -> Result<(), tokio_postgres::Error> {
        let throttle = &self.throttles[host];
        let mut is_told = false;
        loop {
            let (held, is_hidden) = throttle.held(client).await?;
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
                    tokio::time::sleep(LOOK * 5).await;
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

    fn put_back(&self, host: &HostName, mut task: Task, after: After) {
        match after {
            After::Done => {
                let mut board = self.board.lock().expect(NO_PANIC);
                (board.open, board.done) = (board.open - 1, board.done + 1);
                drop(board);
                self.report.lock().expect(NO_PANIC).done.insert(task.shard);
                (self.observer)(Event::ShardDone {
                    host,
                    shard: task.shard,
                    rows: task.rows,
                });
            }
            After::Later(fault) | After::Left(fault) if !self.may_wait(&task, &fault) => {
                let mut board = self.board.lock().expect(NO_PANIC);
                (board.open, board.failed) = (board.open - 1, board.failed + 1);
                drop(board);
                self.leave(host, &task, fault);
            }
            After::Gone(to) => {
                task.tries += 1;
                self.put_back_at(&to, task, PAUSES.first);
            }
            After::Later(_) | After::Left(_) => {
                task.tries += 1;
                let pause = PAUSES.pause(task.tries - 1);
                self.put_back_at(host, task, pause);
            }
        }
    }

    /// Whether the fault may pass and the shard's patience is not over.
    fn may_wait(&self, task: &Task, fault: &BackfillFault) -> bool {
        let passes = matches!(fault, BackfillFault::Busy { .. } | BackfillFault::Moving);
        passes
            && task
                .since
                .is_none_or(|since| since.elapsed() < self.request.pace.patience)
    }

    fn put_back_at(&self, host: &HostName, mut task: Task, pause: Duration) {
        task.due = Instant::now() + pause;
        let mut board = self.board.lock().expect(NO_PANIC);
        if let Some(fault) = board.lost.get(host).cloned() {
            board.open -= 1;
            drop(board);
            self.leave(
                host,
                &task,
                BackfillFault::Host {
                    reason: fault.to_string(),
                },
            );
        } else {
            board.lists.entry(host.clone()).or_default().insert(0, task);
        }
    }

    /// Gives up all shards on a host's list.
    fn lose(&self, host: &HostName, fault: &HostFault) {
        let mut board = self.board.lock().expect(NO_PANIC);
        let left = board
            .lists
            .insert(host.clone(), Vec::new())
            .unwrap_or_default();
        board.open -= left.len();
        board.lost.insert(host.clone(), fault.clone());
        drop(board);
        for task in left {
            self.leave(
                host,
                &task,
                BackfillFault::Host {
                    reason: fault.to_string(),
                },
            );
        }
    }

    fn leave(&self, host: &HostName, task: &Task, fault: BackfillFault) {
        (self.observer)(Event::ShardFailed {
            host,
            shard: task.shard,
            fault: &fault,
        });
        self.report
            .lock()
            .expect(NO_PANIC)
            .left
            .insert(task.shard, fault);
    }
}
