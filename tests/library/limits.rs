//! Steps about time: what is given up ends at the servers, a call over many shards has one limit,
//! and a shard that does not answer makes no other fail.
//!
//! The last two use a router of their own, so that no other caller's calls are to blame. All three
//! judge only in calm rounds, in which every server answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use pgshard::router::{Error, PrepareMode, Sql};
use pgshard::{Router, ShardId};
use tokio_postgres::types::ToSql;

use super::by_hand::schema;
use super::caller::{Caller, SHARDS, Told};

/// How long a statement runs if it is not cancelled.
const GOES_ON: u64 = 30;

/// How long a statement that was given up may run on.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// How much longer than its limit a call may take if it waits for nothing else.
const SLACK: Duration = Duration::from_secs(4);

/// The time that this process did not get because others had the processor, so that no call is
/// blamed for it.
#[derive(Default)]
pub(crate) struct Hiccups(AtomicU64);

impl Hiccups {
    const BEAT: Duration = Duration::from_millis(20);

    /// Watches until it is dropped.
    pub(crate) async fn watch(&self) {
        loop {
            let began = Instant::now();
            tokio::time::sleep(Hiccups::BEAT).await;
            let late = began
                .elapsed()
                .saturating_sub(2 * Hiccups::BEAT)
                .as_millis() as u64;
            self.0.fetch_add(late, Ordering::Relaxed);
        }
    }

    fn so_far(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

impl Caller {
    /// Some calls at a time that are all given up: by their limit, or because they are dropped.
    pub(crate) async fn abandon(&mut self) -> Vec<Told> {
        let (id, calm) = (self.id(), self.world.calm);
        let sql = format!(
            "SELECT pg_sleep({}) /* given up {id} */",
            if calm { GOES_ON } else { 2 }
        );
        let calls = (0..self.rng.usize(1..9)).map(|_| (self.rng.u8(..4), self.rng.u64(1..400)));
        let calls: Vec<(u8, u64)> = calls.collect();
        let before = self.world.hiccups.so_far();
        let router = &self.router;
        join_all(
            calls.iter().map(|(kind, long)| {
                give_up(router, (id, &sql), *kind, Duration::from_millis(*long))
            }),
        )
        .await;
        if calm {
            self.nothing_goes_on(id, before).await;
        }
        Vec::new()
    }

    /// Checks that what was given up with this mark ends at the servers.
    async fn nothing_goes_on(&self, id: i64, before: Duration) {
        let given_up = Instant::now();
        let which = format!("state = 'active' AND query LIKE '%/* given up {id} */%'");
        loop {
            let left = self.world.backends(0, &which).await + self.world.backends(1, &which).await;
            if left == 0 {
                return;
            }
            if given_up.elapsed() > ENDS_WITHIN + (self.world.hiccups.so_far() - before) {
                return self.failures.add(
                    "goes on",
                    format!("{left} statements go on that were given up: mark {id}"),
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A router of its own.
    fn own_router(&self, pool_size: usize, limit: Option<Duration>, wait_max: Duration) -> Router {
        let mut options = self.world.options.clone();
        options
            .hosts
            .iter_mut()
            .for_each(|host| host.pool_size = pool_size);
        (
            options.max_connections,
            options.statement_timeout,
            options.wait_max,
        ) = (None, limit, wait_max);
        options.application_name = "library alone".to_owned();
        Router::new(options)
    }

    /// One shard of a call over all of them does not answer: only that one fails.
    pub(crate) async fn stuck(&mut self) -> Vec<Told> {
        // Without names each statement has a connection to itself.
        let named = self
            .world
            .options
            .hosts
            .iter()
            .all(|host| host.prepare == PrepareMode::Named);
        if !self.world.calm || !named {
            return Vec::new();
        }
        let (slow, reads) = (self.rng.u16(..SHARDS as u16), self.rng.bool());
        // A statement that may not run twice waits until the one before it has been ended, and so
        // takes longer.
        let (limit, deadline) = if reads { (5, 5) } else { (1, 60) };
        let pool_size = self.rng.usize(2..5);
        let router = self.own_router(
            pool_size,
            Some(Duration::from_secs(limit)),
            Duration::from_secs(4),
        );
        let (width, depth) = (self.rng.usize(1..3), self.rng.usize(2..9));
        let deadline = Duration::from_secs(deadline);
        let before = self.world.hiccups.so_far();
        let failed: Vec<(ShardId, String)> = if self.rng.bool() {
            let sql = "SELECT pg_sleep(CASE WHEN '{shard}' LIKE '%' || $1::text || '%' THEN 30 \
                ELSE 0 END)";
            let sql = if reads {
                Sql::reading(sql)
            } else {
                Sql::new(sql)
            };
            let name = schema(slow);
            let params: [&(dyn ToSql + Sync); 1] = [&name];
            let shards = router
                .all_shards()
                .width(width)
                .depth(depth)
                .deadline(deadline);
            let answers: Vec<(ShardId, Result<_, Error>)> =
                shards.query(&sql, &params).collect().await;
            answers
                .into_iter()
                .filter_map(|(shard, said)| Some((shard, said.err()?.to_string())))
                .collect()
        } else {
            let keys: Vec<i64> = (0..SHARDS).collect();
            let sql =
                format!("SELECT pg_sleep(CASE WHEN {slow} = ANY($1::bigint[]) THEN 30 ELSE 0 END)");
            let sql = if reads {
                Sql::reading(&sql)
            } else {
                Sql::new(&sql)
            };
            let keys = router
                .by_keys(&keys)
                .expect("keys are integers")
                .width(width)
                .depth(depth);
            let partial = keys.deadline(deadline).query(&sql).await.err();
            let failed = partial.map(|partial| partial.failed).unwrap_or_default();
            failed
                .into_iter()
                .map(|failed| (failed.shard, failed.error.to_string()))
                .collect()
        };
        let others = failed
            .iter()
            .filter(|(shard, _)| shard.get() != slow)
            .count();
        let lost = self.world.hiccups.so_far() - before;
        if others > 0 && lost < Duration::from_secs(1) {
            self.failures.add(
                "neighbour",
                format!("shard {slow} stood still, and {others} others failed: {failed:?}"),
            );
        }
        Vec::new()
    }

    /// However many shards wait for one thing, they wait for it at the same time.
    pub(crate) async fn budget(&mut self) -> Vec<Told> {
        if !self.world.calm {
            return Vec::new();
        }
        let (pool_size, limit) = (self.rng.usize(1..4), Duration::from_secs(2));
        let (width, depth, busy) = (self.rng.usize(1..3), self.rng.usize(1..9), self.rng.bool());
        let router = if busy {
            self.own_router(pool_size, None, limit)
        } else {
            self.own_router(pool_size, Some(limit), Duration::from_secs(60))
        };
        let mut held = Vec::new();
        while busy && held.len() < pool_size {
            // A shard may just have left the host that needs the connections.
            let Ok(client) = router.by_key(0).client().await else {
                return Vec::new();
            };
            held.push(client);
        }
        let sql = if busy {
            "SELECT 1"
        } else {
            "SELECT pg_sleep(30)"
        };
        let (began, before) = (Instant::now(), self.world.hiccups.so_far());
        let keys: Vec<i64> = (0..SHARDS).collect();
        if self.rng.bool() {
            let shards = router.all_shards().width(width).depth(depth);
            drop(shards.query(sql, &[]).collect::<Vec<_>>().await);
        } else {
            let keys = router
                .by_keys(&keys)
                .expect("keys are integers")
                .width(width)
                .depth(depth);
            drop(
                keys.query(format!("{sql} WHERE $1::bigint[] IS NOT NULL").as_str())
                    .await,
            );
        }
        let took = began.elapsed();
        if took > limit + SLACK + (self.world.hiccups.so_far() - before) {
            let what = if busy {
                "a busy pool"
            } else {
                "slow statements"
            };
            self.failures.add(
                "late",
                format!("{took:?} for {what} with a limit of {limit:?}: {width} × {depth}"),
            );
        }
        Vec::new()
    }
}

/// Begins a call, and gives it up after this time.
async fn give_up(router: &Router, (key, sql): (i64, &str), kind: u8, long: Duration) {
    let shard = router.by_key(key);
    let call = async {
        match kind {
            0 => drop(shard.within(long).query(sql, &[]).await),
            1 => drop(shard.query(sql, &[]).await),
            2 => drop(shard.transaction(async |tx| tx.query(sql, &[]).await).await),
            _ => drop(
                router
                    .all_shards()
                    .query(sql, &[])
                    .collect::<Vec<_>>()
                    .await,
            ),
        }
    };
    // If it has a limit, that ends it.
    let _ = tokio::time::timeout(if kind == 0 { ENDS_WITHIN } else { long }, call).await;
}
