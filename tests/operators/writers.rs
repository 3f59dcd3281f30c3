//! Applications that write all the time through the router, and what was acknowledged to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pgshard::Router;
use pgshard::router::Error;
use tokio::task::JoinHandle;

/// What the judge needs of a row.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    pub(crate) shard: u16,
    pub(crate) name: String,
    /// How often it was changed for certain, and at most.
    pub(crate) versions: (i32, i32),
    /// How many rows without a key go with it.
    pub(crate) visits: i64,
    /// Seconds since the round began.
    pub(crate) at: f64,
}

/// The writers' results.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) rows: BTreeMap<i64, Noted>,
    /// Names of rows that may be there or not.
    pub(crate) in_doubt: Vec<String>,
    /// Results that they should not have got.
    pub(crate) wrong: Vec<String>,
    pub(crate) longest: Duration,
}

pub(crate) struct Writers {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Notes>>,
}

impl Writers {
    /// Starts one for each router that is given and each of these shares of the shards.
    pub(crate) fn start(routers: Vec<Router>, shards: u16, begun: Instant) -> Writers {
        let (stop, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let share = u16::try_from(routers.len()).expect("a few routers");
        let mut tasks = Vec::new();
        for (number, router) in routers.into_iter().enumerate() {
            for part in 0..2 {
                let first = u16::try_from(number).expect("a few routers") + part * share;
                let own: Vec<u16> = (first..shards).step_by(usize::from(share) * 2).collect();
                let writer = Writer {
                    router: router.clone(),
                    name: format!("w{number}{part}"),
                    shards: own,
                    begun,
                    notes: Notes::default(),
                };
                tasks.push(tokio::spawn(
                    writer.write(stop.clone(), acknowledged.clone()),
                ));
            }
        }
        Writers {
            stop,
            acknowledged,
            tasks,
        }
    }

    /// Waits until `count` more calls are acknowledged.
    pub(crate) async fn more(&self, count: u64) {
        let (before, begun) = (self.acknowledged.load(Ordering::Relaxed), Instant::now());
        while self.acknowledged.load(Ordering::Relaxed) < before + count {
            assert!(
                begun.elapsed() < Duration::from_secs(90),
                "writes are acknowledged"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn end(self) -> Notes {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Notes::default();
        for task in self.tasks {
            let notes = task.await.expect("a writer does not panic");
            for (id, row) in notes.rows {
                if let Some(other) = all.rows.insert(id, row.clone()) {
                    all.wrong
                        .push(format!("the ID {id} came twice: {row:?} and {other:?}"));
                }
            }
            all.in_doubt.extend(notes.in_doubt);
            all.wrong.extend(notes.wrong);
            all.longest = all.longest.max(notes.longest);
        }
        all
    }
}

struct Writer {
    router: Router,
    name: String,
    shards: Vec<u16>,
    begun: Instant,
    notes: Notes,
}

const INSERT: &str = "INSERT INTO {shard}.users (name) VALUES ($1) RETURNING id";
const VISIT: &str = "INSERT INTO {shard}.visits (user_id, page) VALUES ($1, 'x')";
const TOUCH: &str = "UPDATE {shard}.users SET version = version + 1 WHERE id = $1";
const READ: &str = "UPDATE {shard}.visits SET page = page || 'y' WHERE user_id = $1";

impl Writer {
    async fn write(mut self, stop: Arc<AtomicBool>, acknowledged: Arc<AtomicU64>) -> Notes {
        let mut number = 0_usize;
        while !stop.load(Ordering::Relaxed) && !self.shards.is_empty() {
            number += 1;
            let shard = self.shards[number % self.shards.len()];
            let begun = Instant::now();
            let done = match number % 5 {
                0 | 1 => self.one(shard, number).await,
                2 | 3 => self.both(shard, number).await,
                _ => self.touch().await,
            };
            self.notes.longest = self.notes.longest.max(begun.elapsed());
            if done {
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        self.notes
    }

    /// A row.
    async fn one(&mut self, shard: u16, number: usize) -> bool {
        let name = format!("{}-{number}", self.name);
        let called = self.router.by_key(shard).query_one(INSERT, &[&name]).await;
        match called.map(|row| row.get::<_, i64>(0)) {
            Ok(id) => self.noted(id, shard, name, 0),
            Err(error) => self.failed(&error, name),
        }
    }

    /// A row, and two without a key that go with it, in a transaction.
    async fn both(&mut self, shard: u16, number: usize) -> bool {
        let name = format!("{}-{number}", self.name);
        let work = async |tx: pgshard::router::Transaction| -> Result<i64, Error> {
            let id: i64 = tx.query_one(INSERT, &[&name]).await?.get(0);
            tx.execute(VISIT, &[&id]).await?;
            tx.execute(VISIT, &[&id]).await?;
            tx.execute(READ, &[&id]).await?;
            Ok(id)
        };
        match self.router.by_key(shard).transaction(work).await {
            Ok(id) => self.noted(id, shard, name, 2),
            Err(error) => self.failed(&error, name),
        }
    }

    /// A row of before is changed.
    async fn touch(&mut self) -> bool {
        let rows = self.notes.rows.len();
        if rows == 0 {
            return false;
        }
        let id = *self
            .notes
            .rows
            .keys()
            .nth(fastrand::usize(0..rows))
            .expect("there are so many");
        let called = self.router.by_id(id).expect("it is an ID of the cluster");
        match called.execute(TOUCH, &[&id]).await {
            Ok(1) => {
                let row = self.notes.rows.get_mut(&id).expect("it is noted");
                row.versions = (row.versions.0 + 1, row.versions.1 + 1);
                true
            }
            Ok(hit) => {
                let row = &self.notes.rows[&id];
                self.notes.wrong.push(format!(
                    "{row:?} with the ID {id} was acknowledged, and {hit} are there"
                ));
                false
            }
            Err(error) => {
                if error.may_have_run() {
                    self.notes
                        .rows
                        .get_mut(&id)
                        .expect("it is noted")
                        .versions
                        .1 += 1;
                }
                let name = format!("a change of {id}");
                self.failed(&error, name)
            }
        }
    }

    fn noted(&mut self, id: i64, shard: u16, name: String, visits: i64) -> bool {
        let at = self.begun.elapsed().as_secs_f64();
        let row = Noted {
            shard,
            name,
            versions: (0, 0),
            visits,
            at,
        };
        if let Some(other) = self.notes.rows.insert(id, row.clone()) {
            self.notes
                .wrong
                .push(format!("the ID {id} came twice: {row:?} and {other:?}"));
        }
        true
    }

    /// No host fails in a round, and no mover is away for as long as a router waits.
    fn failed(&mut self, error: &Error, name: String) -> bool {
        let mut text = format!(
            "at {:.1} {name}: {error}",
            self.begun.elapsed().as_secs_f64()
        );
        let mut cause = std::error::Error::source(error);
        while let Some(inner) = cause {
            text += &format!(": {inner}");
            cause = inner.source();
        }
        if error.may_have_run() {
            self.notes.in_doubt.push(name);
        }
        self.notes.wrong.push(text);
        false
    }
}
