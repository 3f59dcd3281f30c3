//! An application at work: inserts and updates through a router, each a statement of its own, so
//! many a second. It notes how long each took and how many were acknowledged, which [`count`]
//! compares with what is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pgshard::router::Error;
use pgshard::{Router, ShardId};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::bed::Bed;

/// The tables that are written to, as a shard migration.
pub(crate) const TABLES: &str = "
CREATE TABLE {shard}.users (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), name text NOT NULL,
    seen integer NOT NULL DEFAULT 0);
CREATE INDEX ON {shard}.users (name);
CREATE TABLE {shard}.photos (id bigint PRIMARY KEY DEFAULT {shard}.next_id(),
    user_id bigint NOT NULL REFERENCES {shard}.users,
    title text NOT NULL, made_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON {shard}.photos (user_id, id);";

/// Tasks that write; each is one connection's worth of work at most.
const WRITERS: u32 = 32;

/// One call.
pub(crate) struct Call {
    pub(crate) shard: ShardId,
    pub(crate) began: Instant,
    pub(crate) took: Duration,
}

/// What writers did and saw.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) calls: Vec<Call>,
    pub(crate) inserts: u64,
    pub(crate) updates: u64,
    pub(crate) errors: Vec<String>,
}

pub(crate) struct Writers {
    stop: Arc<AtomicBool>,
    running: JoinSet<Notes>,
}

impl Writers {
    /// So many writes a second, spread over all shards.
    pub(crate) async fn start(bed: &Bed, rate: u32) -> Writers {
        let router = bed.router().await;
        let stop = Arc::new(AtomicBool::new(false));
        let mut running = JoinSet::new();
        let writers = WRITERS.min(rate);
        let every = Duration::from_secs(1) * writers / rate;
        for writer in 0..writers {
            running.spawn(write(router.clone(), writer, every, stop.clone()));
        }
        Writers { stop, running }
    }

    pub(crate) async fn stop(mut self) -> Notes {
        self.stop.store(true, Ordering::Relaxed);
        let mut notes = Notes::default();
        while let Some(done) = self.running.join_next().await {
            let one = done.expect("a writer does not panic");
            notes.calls.extend(one.calls);
            notes.errors.extend(one.errors);
            notes.inserts += one.inserts;
            notes.updates += one.updates;
        }
        notes
    }
}

async fn write(router: Router, writer: u32, every: Duration, stop: Arc<AtomicBool>) -> Notes {
    let mut notes = Notes::default();
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ids: Vec<i64> = Vec::new();
    for number in 0_u64.. {
        ticks.tick().await;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let began = Instant::now();
        // Inserts and updates in turn; a row that is updated was inserted by this writer, wherever
        // it is by now.
        let old = fastrand::choice(&ids)
            .copied()
            .filter(|_| number.is_multiple_of(2));
        let outcome = match old {
            Some(id) => update(&router, id).await,
            None => insert(&router, &format!("w{writer}-{number}")).await,
        };
        let took = began.elapsed();
        match outcome {
            Ok((shard, id)) => {
                notes.calls.push(Call { shard, began, took });
                match old {
                    Some(_) => notes.updates += 1,
                    None => {
                        notes.inserts += 1;
                        ids.push(id);
                    }
                }
            }
            Err(error) => notes.errors.push(error),
        }
    }
    notes
}

async fn insert(router: &Router, name: &str) -> Result<(ShardId, i64), String> {
    let shard = router.by_key(fastrand::i64(0..1 << 40));
    let id = shard.id();
    let sql = "INSERT INTO {shard}.users (name) VALUES ($1) RETURNING id";
    let row = shard.query_one(sql, &[&name]).await.map_err(words)?;
    Ok((id, row.get(0)))
}

async fn update(router: &Router, id: i64) -> Result<(ShardId, i64), String> {
    let shard = router.by_id(id).map_err(words)?;
    let number = shard.id();
    let rows = shard
        .execute(
            "UPDATE {shard}.users SET seen = seen + 1 WHERE id = $1",
            &[&id],
        )
        .await
        .map_err(words)?;
    if rows == 1 {
        Ok((number, id))
    } else {
        Err(format!("an update of {id} hit {rows} rows"))
    }
}

fn words(error: Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        text += &format!(": {inner}");
        cause = inner.source();
    }
    text
}

/// How many of the writers' rows there are where they are served, and how many updates these have
/// had.
pub(crate) async fn count(bed: &Bed) -> (u64, u64) {
    let (mut inserts, mut updates) = (0, 0);
    for host in 0..bed.cluster.servers().len() {
        let client = bed.app(host).await;
        let sql = "SELECT schema_name FROM pgshard.shard WHERE state = 'serving'";
        for row in client.query(sql, &[]).await.expect("the shards") {
            let schema: String = row.get(0);
            let sql = format!(
                "SELECT count(*), coalesce(sum(seen), 0) FROM {schema}.users WHERE \
                    starts_with(name, 'w')"
            );
            let row = client.query_one(&sql, &[]).await.expect("a count");
            inserts += u64::try_from(row.get::<_, i64>(0)).unwrap_or(0);
            updates += u64::try_from(row.get::<_, i64>(1)).unwrap_or(0);
        }
    }
    (inserts, updates)
}

/// Rows of before, in some shards: `rows` in each table.
pub(crate) async fn fill(bed: &Bed, host: usize, shards: impl Iterator<Item = ShardId>, rows: u32) {
    let client = bed.app(host).await;
    for shard in shards {
        let schema = bed.config.cluster.prefix.schema(shard);
        let sql = format!(
            "INSERT INTO {schema}.users (name) SELECT 'old ' || g FROM generate_series(1, {rows}) \
                AS g;
             INSERT INTO {schema}.photos (user_id, title) SELECT id, repeat(name, 5) FROM \
             {schema}.users;"
        );
        client.batch_execute(&sql).await.expect("rows are inserted");
    }
}
