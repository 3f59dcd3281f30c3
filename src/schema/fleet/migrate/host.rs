//! The work on one host: a queue of shards, and a few connections that take from it.
//!
//! Invariant: it ends. Each shard is tried for as long as the patience lasts, and each try is
//! bounded.

use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::once::run_once;
use super::outside::Alone;
use super::request::Pace;
use super::steps::{Step, record, steps, together};
use super::transaction::{self, Outcome};
use crate::backoff::Backoff;
use crate::map::HostName;
use crate::pg::cause::chain;
use crate::pg::{ConnectOptions, Connection, quote_literal, shown};
use crate::schema::control::Cluster;
use crate::schema::fleet::fault::{HostFault, ShardFault};
use crate::schema::fleet::migrations::{Migrations, Pending};
use crate::schema::fleet::queue::{Next, Queue, Task};
use crate::schema::fleet::report::{Event, HostReport, NO_PANIC, Observer};
use crate::schema::fleet::session;
use crate::schema::survey::open_move;
use crate::shard::ShardId;

/// The pauses before a busy shard is tried again, spread so that several do not come back together.
const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(100),
    max: Duration::from_secs(2),
    jitter: (0.5, 1.5),
};

/// The work on one host, and its results.
pub(in crate::schema) struct OnHost<'a> {
    pub(super) host: &'a HostName,
    connect: &'a ConnectOptions,
    cluster: &'a Cluster,
    migrations: &'a Migrations,
    pace: Pace,
    in_all: &'a Semaphore,
    observer: Observer<'a>,
    pub(in crate::schema) report: Mutex<HostReport>,
    queue: Queue<ShardWork>,
}

/// A shard in the queue.
struct ShardWork {
    shard: ShardId,
    pending: Pending,
    /// How many of its steps are done. Their SQL is composed when its turn comes: that of all
    /// shards may not fit into memory.
    done: usize,
}

/// A connection, and the one that holds the shard while something runs on the first without a
/// transaction.
struct Worker {
    client: Connection,
    guard: Option<Connection>,
}

impl<'a> OnHost<'a> {
    pub(in crate::schema) fn new(
        host: &'a HostName,
        connect: &'a ConnectOptions,
        cluster: &'a Cluster,
        migrations: &'a Migrations,
        pace: Pace,
        in_all: &'a Semaphore,
        observer: Observer<'a>,
    ) -> OnHost<'a> {
        OnHost {
            host,
            connect,
            cluster,
            migrations,
            pace,
            in_all,
            observer,
            report: Mutex::default(),
            queue: Queue::new(PAUSES),
        }
    }

    /// Runs the once-per-host migrations from this one on.
    pub(super) async fn once(&self, from: usize) {
        if from == self.migrations.of_hosts().len() {
            return;
        }
        let outcome = match session::open(self.connect, "pgshard migrate").await {
            Ok(client) => {
                let (done, outcome) = run_once(&client, self.migrations, from).await;
                self.report.lock().expect(NO_PANIC).once = done;
                outcome
            }
            Err(fault) => Err(fault),
        };
        self.lose(outcome.err());
    }

    /// Migrates these shards, unless the host was given up before.
    pub(in crate::schema) async fn run(&self, shards: Vec<(ShardId, Pending)>) {
        if shards.is_empty() || self.is_lost() {
            return;
        }
        let width = self.pace.width.get().min(shards.len());
        let work = |(shard, pending)| ShardWork {
            shard,
            pending,
            done: 0,
        };
        self.queue.fill(self.host, shards.into_iter().map(work));
        let workers = (0..width).map(|_| async {
            let client = session::open(self.connect, "pgshard migrate").await?;
            let mut worker = Worker {
                client,
                guard: None,
            };
            self.work(&mut worker).await
        });
        let outcomes = join_all(workers).await;
        // With fewer connections than wanted it is slower, not wrong, as long as the queue was
        // emptied.
        let left = self.queue.waiting(self.host) > 0;
        let fault = outcomes
            .into_iter()
            .filter_map(Result::err)
            .find(|fault| left || is_lost(fault));
        self.lose(fault);
    }

    /// How many shards were tried and have failed; a host that was given up counts as one.
    pub(super) fn failures(&self) -> usize {
        self.queue.failures() + usize::from(self.is_lost())
    }

    /// Whether the host was given up.
    pub(super) fn is_lost(&self) -> bool {
        self.report.lock().expect(NO_PANIC).fault.is_some()
    }

    fn lose(&self, fault: Option<HostFault>) {
        if fault.is_some() {
            self.report.lock().expect(NO_PANIC).fault = fault;
        }
    }

    pub(super) fn failed(&self, shard: ShardId, fault: ShardFault) {
        (self.observer)(Event::ShardFailed {
            host: self.host,
            shard,
            fault: &fault,
        });
        self.report
            .lock()
            .expect(NO_PANIC)
            .failed
            .insert(shard, fault);
    }

    /// The work of one connection: shards from the queue until there are none.
    async fn work(&self, worker: &mut Worker) -> Result<(), HostFault> {
        loop {
            match self.queue.next(self.host) {
                Next::Nothing => return Ok(()),
                Next::Later(pause) => tokio::time::sleep(pause).await,
                Next::Stop { left, failed } => {
                    for task in left {
                        self.failed(task.work.shard, ShardFault::NotTried { failed });
                    }
                }
                Next::Now(task) => {
                    let _turn = self
                        .in_all
                        .acquire()
                        .await
                        .expect("nobody closes the semaphore");
                    let tried = self.try_one(worker, task).await;
                    // The task is lost with the connection, and the host with it.
                    tried.inspect_err(|_| self.queue.left())?;
                }
            }
        }
    }

    async fn try_one(
        &self,
        worker: &mut Worker,
        mut task: Task<ShardWork>,
    ) -> Result<(), HostFault> {
        let lost = |error: tokio_postgres::Error| HostFault::Lost {
            reason: chain(&error),
        };
        let shard = task.work.shard;
        let guard = transaction::guard(self.pace.lock_timeout);
        let steps = steps(
            self.cluster,
            self.migrations,
            task.work.pending,
            shard,
            &guard,
        );
        match self.steps_of(worker, &mut task.work, &steps).await? {
            Outcome::Done => {
                self.queue.done();
                let mut report = self.report.lock().expect(NO_PANIC);
                report.begun.remove(&shard);
                report.migrated.push(shard);
                drop(report);
                (self.observer)(Event::ShardDone {
                    host: self.host,
                    shard,
                });
            }
            Outcome::Again(_) if task.waited() < self.pace.patience => self.retry(task),
            Outcome::Again(fault) => {
                let is_outside = steps
                    .get(task.work.done)
                    .is_some_and(|one| one.outside.is_some());
                let snapshot = match is_outside {
                    true => oldest_snapshot(&worker.client).await.map_err(lost)?,
                    false => None,
                };
                if snapshot.as_ref().is_some_and(|oldest| oldest.is_movers)
                    && task.waited() < self.pace.patience + MOVERS_PATIENCE
                {
                    self.retry(task);
                    return Ok(());
                }
                let holder = match snapshot {
                    Some(oldest) => Some(oldest.words),
                    None => self.holder(&worker.client, shard).await.map_err(lost)?,
                };
                let (words, seconds) = (fault.to_string(), task.waited().as_secs());
                let fault = ShardFault::Busy {
                    words,
                    tries: task.tries(),
                    seconds,
                    holder,
                };
                self.give_up(worker, &task.work, &steps, fault).await?;
            }
            // It has not been touched, and its turn comes when the move has ended.
            Outcome::Failed(ShardFault::Moving(_)) => {
                let open = open_move(&worker.client, shard).await;
                self.queue.left();
                self.failed(shard, ShardFault::Moving(open));
            }
            Outcome::Failed(fault) | Outcome::Apart(fault) => {
                self.give_up(worker, &task.work, &steps, fault).await?
            }
        }
        Ok(())
    }

    /// Tries a shard again after a pause.
    fn retry(&self, task: Task<ShardWork>) {
        if let Err((_, fault)) = self.queue.retry(self.host, task) {
            self.lose(Some(fault));
        }
    }

    /// Runs as many steps as succeed. What is done stays done.
    async fn steps_of(
        &self,
        worker: &mut Worker,
        task: &mut ShardWork,
        steps: &[Step],
    ) -> Result<Outcome, HostFault> {
        let lost = |error: tokio_postgres::Error| HostFault::Lost {
            reason: chain(&error),
        };
        let lock_timeout = self.pace.lock_timeout;
        let mut is_apart = false;
        while task.done < steps.len() {
            let next = if is_apart {
                &steps[task.done..=task.done]
            } else {
                together(&steps[task.done..])
            };
            let outcome = if next[0].outside.is_none() {
                transaction::run(
                    &worker.client,
                    task.shard,
                    next,
                    &record(task.shard, next),
                    lock_timeout,
                )
                .await
                .map_err(lost)?
            } else {
                let guard = match worker.guard.take() {
                    Some(guard) => guard,
                    None => session::open(self.connect, "pgshard migrate").await?,
                };
                let schema = self.cluster.schema_prefix.schema(task.shard);
                let (shard, patience) = (task.shard, self.pace.patience);
                let alone = Alone {
                    shard,
                    schema: &schema,
                    step: &next[0],
                    lock_timeout,
                    patience,
                };
                let outcome = alone.run(&worker.client, &guard).await.map_err(lost)?;
                worker.guard = Some(guard);
                outcome
            };
            match outcome {
                Outcome::Done => {
                    task.done += next.len();
                    self.report.lock().expect(NO_PANIC).begun.insert(task.shard);
                }
                Outcome::Apart(_) => is_apart = true,
                other => return Ok(other),
            }
        }
        Ok(Outcome::Done)
    }

    /// Records that the shard has failed, for `retry` and `status`.
    async fn give_up(
        &self,
        worker: &Worker,
        task: &ShardWork,
        steps: &[Step],
        fault: ShardFault,
    ) -> Result<(), HostFault> {
        let step = match &fault {
            ShardFault::Migration { migration, .. } => {
                steps.iter().find(|step| step.recorded.name == *migration)
            }
            _ => None,
        };
        if let Some(step) = step.or(steps.get(task.done)) {
            let recorded = &step.recorded;
            let sql = format!(
                "INSERT INTO pgshard.migration_attempt AS a (shard_id, name, checksum, begun, \
                    message)
                 VALUES ({}, {}, {}, false, {message})
                 ON CONFLICT (shard_id) DO UPDATE SET name = excluded.name, checksum = \
                 excluded.checksum,
                     begun = a.begun AND a.name = excluded.name, message = excluded.message,
                     tried_at = pg_catalog.clock_timestamp()",
                task.shard,
                quote_literal(&recorded.name),
                quote_literal(&recorded.checksum),
                message = quote_literal(&fault.to_string()),
            );
            let noted = worker.client.batch_execute(&sql).await;
            noted.map_err(|error| HostFault::Lost {
                reason: chain(&error),
            })?;
        }
        self.queue.failed();
        self.failed(task.shard, fault);
        Ok(())
    }

    /// Who is in the way: the oldest transaction that holds a lock on one of the shard's relations.
    async fn holder(
        &self,
        client: &Client,
        shard: ShardId,
    ) -> Result<Option<String>, tokio_postgres::Error> {
        let sql = format!(
            "SELECT pg_catalog.format('process %s (%s) has been in a transaction for %s s: %s', \
                a.pid,
                coalesce(nullif(a.application_name, ''), a.usename::text, '?'), \
                pg_catalog.date_part('epoch',
                    pg_catalog.clock_timestamp() - a.xact_start)::int8,
                {})
            FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_class c ON c.oid = l.relation
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN \
            pg_catalog.pg_stat_activity a ON a.pid = l.pid
            WHERE n.nspname = $1 AND l.granted AND l.pid <> pg_catalog.pg_backend_pid()
            ORDER BY a.xact_start LIMIT 1",
            shown("a.query")
        );
        let schema = self.cluster.schema_prefix.schema(shard);
        let rows = client.query_typed(&sql, &[(&schema, Type::TEXT)]).await?;
        rows.first().map(|row| row.try_get(0)).transpose()
    }
}

/// The session with the oldest snapshot of the database: what CREATE INDEX CONCURRENTLY waits for,
/// whatever tables that session reads.
struct OldestSnapshot {
    words: String,
    /// Whether it is a mover's: a move reads in snapshots that end by themselves.
    is_movers: bool,
}

/// Locks: none.
async fn oldest_snapshot(client: &Client) -> Result<Option<OldestSnapshot>, tokio_postgres::Error> {
    let sql = format!(
        "SELECT pg_catalog.format('process %s (%s) has the oldest snapshot of the database, %s s \
            old%s: %s', a.pid,
            coalesce(nullif(a.application_name, ''), a.usename::text, '?'),
            pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - a.xact_start)::int8,
            CASE WHEN {IS_MOVERS} THEN ', for a move' ELSE '' END, {query}), {IS_MOVERS}
        FROM pg_catalog.pg_stat_activity a
        WHERE a.backend_xmin IS NOT NULL AND a.datname = pg_catalog.current_database()
            AND a.pid <> pg_catalog.pg_backend_pid()
        ORDER BY pg_catalog.age(a.backend_xmin) DESC, a.xact_start LIMIT 1",
        query = shown("a.query")
    );
    let rows = client.query_typed(&sql, &[]).await?;
    let read = |row: &tokio_postgres::Row| {
        Ok(OldestSnapshot {
            words: row.try_get(0)?,
            is_movers: row.try_get(1)?,
        })
    };
    rows.first().map(read).transpose()
}

/// Whether a session `a` is a mover's, by its name.
const IS_MOVERS: &str = "a.application_name ~ '^pgshard (audit )?[0-9a-f]{8}-[0-9a-f-]{27}/'";

/// How much longer an index is tried while a move has the oldest snapshot: an audit may hold one
/// for ten minutes.
const MOVERS_PATIENCE: Duration = Duration::from_secs(900);

fn is_lost(fault: &HostFault) -> bool {
    matches!(fault, HostFault::Lost { .. })
}
