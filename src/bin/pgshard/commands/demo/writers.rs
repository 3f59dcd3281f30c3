//! Writers that never pause: they insert by key, read back by ID, and remember the acknowledged
//! rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pgshard::Router;
use pgshard::router::Error;
use tokio::task::JoinHandle;

/// A row with an acknowledged insert.
pub(super) struct AcknowledgedRow {
    pub(super) id: i64,
    pub(super) user: i64,
    pub(super) title: String,
}

/// What the writers have seen.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) rows: Vec<AcknowledgedRow>,
    pub(super) errors: u64,
    /// The first few errors, in words.
    pub(super) complaints: Vec<String>,
    /// The longest that one call took.
    pub(super) longest: Duration,
}

/// How many errors are kept in words.
const COMPLAINTS_MAX: usize = 5;

/// The writers at work.
pub(super) struct Writers {
    stop: Arc<AtomicBool>,
    rows: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Tally>>,
}

impl Writers {
    /// Sets them to work.
    pub(super) fn start(router: &Router, count: u16) -> Writers {
        let (stop, rows) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let writer =
            |number| tokio::spawn(write(router.clone(), number, stop.clone(), rows.clone()));
        let tasks = (0..count).map(writer).collect();
        Writers { stop, rows, tasks }
    }

    /// How many rows they have written so far.
    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Lets each writer finish its call, and gathers what they have seen.
    pub(super) async fn stop(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Tally::default();
        for task in self.tasks {
            match task.await {
                Ok(tally) => {
                    all.rows.extend(tally.rows);
                    all.errors += tally.errors;
                    all.complaints.extend(tally.complaints);
                    all.longest = all.longest.max(tally.longest);
                }
                Err(error) => all.complain(format!("a writer ended: {error}")),
            }
        }
        all.complaints.truncate(COMPLAINTS_MAX);
        all
    }
}

impl Tally {
    fn complain(&mut self, what: String) {
        self.errors += 1;
        if self.complaints.len() < COMPLAINTS_MAX {
            self.complaints.push(what);
        }
    }

    /// Times one call, and counts its error.
    async fn timed<T>(&mut self, call: impl Future<Output = Result<T, Error>>) -> Option<T> {
        let started = Instant::now();
        let outcome = call.await;
        self.longest = self.longest.max(started.elapsed());
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                self.complain(format!("a writer met {error}"));
                None
            }
        }
    }
}

async fn write(router: Router, number: u16, stop: Arc<AtomicBool>, rows: Arc<AtomicU64>) -> Tally {
    let mut tally = Tally::default();
    let mut turn = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        // A random user each time, so that every shard is written to all the time.
        let user = i64::from(fastrand::u32(..));
        let title = format!("{number}/{turn}");
        let inserted = if turn.is_multiple_of(4) {
            tally.timed(insert_with_like(&router, user, &title)).await
        } else {
            tally.timed(insert(&router, user, &title)).await
        };
        let Some(id) = inserted else { continue };
        rows.fetch_add(1, Ordering::Relaxed);
        match tally.timed(title_of(&router, id)).await {
            Some(read) if read == title => {}
            Some(read) => tally.complain(format!(
                "photo {id} was read back as {read:?}, not {title:?}"
            )),
            None => {}
        }
        tally.rows.push(AcknowledgedRow { id, user, title });
    }
    tally
}

async fn insert(router: &Router, user: i64, title: &str) -> Result<i64, Error> {
    let sql = "INSERT INTO {shard}.photos (user_id, title) VALUES ($1, $2) RETURNING id";
    let (id,) = router
        .by_key(user)
        .query_one_as(sql, &[&user, &title])
        .await?;
    Ok(id)
}

/// Two rows in one transaction: it is run again, whole, if the shard moves during that time.
async fn insert_with_like(router: &Router, user: i64, title: &str) -> Result<i64, Error> {
    let work = async |tx: pgshard::router::Transaction| {
        let sql = "INSERT INTO {shard}.photos (user_id, title) VALUES ($1, $2) RETURNING id";
        let (id,): (i64,) = tx.query_one_as(sql, &[&user, &title]).await?;
        let sql = "INSERT INTO {shard}.likes (photo_id, user_id) VALUES ($1, $2)";
        tx.execute(sql, &[&id, &user]).await?;
        Ok(id)
    };
    router.by_key(user).transaction(work).await
}

async fn title_of(router: &Router, id: i64) -> Result<String, Error> {
    let (title,) = router
        .by_id(id)?
        .query_one_as("SELECT title FROM {shard}.photos WHERE id = $1", &[&id])
        .await?;
    Ok(title)
}
