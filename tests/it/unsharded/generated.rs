//! Random calls on an unsharded host, each compared with the same statement on a copy of the
//! tables that no router reads. `PGSHARD_UNSHARDED_SEEDS=1-100` tries other seeds.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use fastrand::Rng;
use futures_util::TryStreamExt;
use pgshard::router::Error;
use pgshard::{Router, columns, params};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::{LEGACY, UNSHARDED, config_text, made_by};
use crate::support::{TestCluster, World};

/// Keys on both sides of zero, several of which share a shard; the tables also have rows without.
const KEYS: Range<i64> = -100..200;

const CALLS: usize = 150;

/// Two schemas with the same rows.
const TABLES: &str = "CREATE SCHEMA app;
    CREATE TABLE app.photos (id bigint PRIMARY KEY, user_id bigint, title text NOT NULL,
        likes integer NOT NULL);
    INSERT INTO app.photos SELECT n, CASE WHEN n % 29 > 0 THEN n % 300 - 100 END, 'photo ' || n,
        n % 7 FROM generate_series(1, 900) AS n;
    CREATE SCHEMA plain;
    CREATE TABLE plain.photos (LIKE app.photos INCLUDING ALL);
    INSERT INTO plain.photos SELECT * FROM app.photos;";

fn seeds(few: Range<u64>) -> Range<u64> {
    let Ok(wanted) = std::env::var("PGSHARD_UNSHARDED_SEEDS") else {
        return few;
    };
    let (from, to) = wanted.split_once('-').expect("seeds like 1-100");
    from.parse().expect("a number")..to.parse().expect("a number")
}

/// What both sides of a comparison have.
struct Database {
    router: Router,
    plain: Client,
    rng: Rng,
    /// IDs that shards could have made, for the next rows.
    made: u64,
    wide: Vec<i64>,
}

/// The rows as text, in their order.
fn texts<'r>(rows: impl IntoIterator<Item = &'r Row>) -> Vec<String> {
    rows.into_iter().map(|row| row.get("row")).collect()
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort_unstable();
    texts
}

const ROW: &str = "p::text AS row, p.id, p.likes";

impl Database {
    async fn expected(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        let sql = sql.replace("{shard}", "plain");
        self.plain.query(&sql, params).await.unwrap()
    }

    /// A condition that has nothing to do with the key.
    fn condition(&mut self) -> String {
        let number = self.rng.u8(..8);
        match self.rng.u8(..5) {
            0 => "true".to_owned(),
            1 => format!("p.likes < {number}"),
            2 => format!("p.title LIKE '%{number}'"),
            3 => format!("p.id % 8 = {number}"),
            _ => format!("(p.likes = {number} OR p.user_id < {number})"),
        }
    }

    fn keys(&mut self) -> Vec<i64> {
        let count = self.rng.usize(1..60);
        let mut keys: Vec<i64> = (0..count).map(|_| self.rng.i64(KEYS)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn ids(&mut self) -> Vec<i64> {
        let mut ids = self.wide.clone();
        self.rng.shuffle(&mut ids);
        ids.truncate(30);
        ids
    }

    fn new_rows(&mut self) -> Vec<(i64, i64)> {
        let keys: Vec<i64> = (0..self.rng.usize(1..40))
            .map(|_| self.rng.i64(KEYS))
            .collect();
        let rows = keys.into_iter().map(|key| {
            self.made += 1;
            (made_by(self.router.by_key(key).id(), self.made), key)
        });
        rows.collect()
    }

    /// Runs a statement in both places, and compares how many rows it had.
    async fn written(&self, rows: u64, sql: &str, params: &[&(dyn ToSql + Sync)], call: &str) {
        let sql = sql.replace("{shard}", "plain");
        let expected = self.plain.execute(&sql, params).await.unwrap();
        assert_eq!(rows, expected, "{call}: {sql}");
    }

    /// One random call. Returns its name.
    async fn call(&mut self) -> &'static str {
        let (key, condition) = (self.rng.i64(KEYS), self.condition());
        let order = |row: &Row| {
            let place = (
                Reverse(row.try_get::<_, i32>("likes")?),
                row.try_get::<_, i64>("id")?,
            );
            Ok(place)
        };
        let select = format!("SELECT {ROW} FROM {{shard}}.photos p WHERE {condition}");
        let ordered = "ORDER BY p.likes DESC, p.id";
        let router = self.router.clone();
        match self.rng.u8(..14) {
            0 => {
                let sql = format!("{select} AND p.user_id = $1 {ordered}");
                let found = router.by_key(key).query(&sql, &[&key]).await.unwrap();
                let expected = self.expected(&sql, &[&key]).await;
                assert_eq!(texts(&found), texts(&expected), "{sql} {key}");
                "query by_key"
            }
            1 => {
                let change = match self.rng.bool() {
                    true => "UPDATE {shard}.photos p SET likes = likes + 1",
                    false => "DELETE FROM {shard}.photos p",
                };
                let sql = format!("{change} WHERE {condition} AND p.user_id = $1");
                let rows = router.by_key(key).execute(&sql, &[&key]).await.unwrap();
                self.written(rows, &sql, &[&key], "by_key").await;
                "execute by_key"
            }
            2 => {
                let commits = self.rng.bool();
                let sql = format!(
                    "UPDATE {{shard}}.photos p SET title = title || '!' WHERE {condition} AND \
                     p.user_id = $1"
                );
                let ran = router.by_key(key).transaction(async |tx| {
                    let rows = tx.execute(&sql, &[&key]).await?;
                    let title = "SELECT count(*) FROM {shard}.photos WHERE user_id = $1 AND \
                                 title LIKE '%!'";
                    let (seen,): (i64,) = tx.query_one_as(title, &[&key]).await?;
                    assert!(u64::try_from(seen).unwrap() >= rows, "{sql}");
                    match commits {
                        true => Ok(rows),
                        false => Err(Error::TransactionFailed { shard: tx.shard() }),
                    }
                });
                match (ran.await, commits) {
                    (Ok(rows), true) => self.written(rows, &sql, &[&key], "transaction").await,
                    (Err(Error::TransactionFailed { .. }), false) => {}
                    (ran, _) => panic!("{ran:?}"),
                }
                "transaction"
            }
            3 => {
                let keys = self.keys();
                let sql = format!("{select} AND p.user_id = ANY($1)");
                let by_keys = router.by_keys(&keys).unwrap();
                let by_keys = match self.rng.bool() {
                    true => by_keys,
                    false => by_keys.depth(7),
                };
                let found = by_keys.query(&sql).await.unwrap();
                for (shard, row) in &found {
                    let id: i64 = row.get("id");
                    assert!(id <= LEGACY || pgshard::id::Id::decode(id).shard() == *shard);
                }
                let expected = self.expected(&sql, &[&keys]).await;
                let found = texts(found.iter().map(|(_, row)| row));
                assert_eq!(sorted(found), sorted(texts(&expected)), "{sql} {keys:?}");
                "by_keys"
            }
            4 => {
                let (keys, limit) = (self.keys(), self.rng.usize(1..40));
                let sql = format!("{select} AND p.user_id = ANY($1) {ordered} LIMIT {limit}");
                let merged = router.by_keys(&keys).unwrap();
                let merged = merged.merge(&*sql, params![], limit, order).await.unwrap();
                let expected = self.expected(&sql, &[&keys]).await;
                let found = texts(merged.iter().map(|(_, row)| row));
                assert_eq!(found, texts(&expected), "{sql} {keys:?}");
                "merge by_keys"
            }
            5 => {
                let keys = self.keys();
                let sql = format!("{select} AND p.user_id = ANY($1) {ordered}");
                let merged = router.by_keys(&keys).unwrap();
                let merged = merged.merge_raw(&*sql, params![], order).await.unwrap();
                let merged: Vec<_> = merged.try_collect().await.unwrap();
                let expected = self.expected(&sql, &[&keys]).await;
                let found = texts(merged.iter().map(|(_, row)| row));
                assert_eq!(found, texts(&expected), "{sql} {keys:?}");
                "stream by_keys"
            }
            6 => {
                let sql = format!(
                    "SELECT (count(*), sum(likes), avg(likes), max(title), count(DISTINCT \
                     user_id))::text AS row FROM {{shard}}.photos p WHERE {condition}"
                );
                let found = router.all_shards().query(&sql, &[]).await.unwrap();
                let expected = self.expected(&sql, &[]).await;
                let found = texts(found.iter().map(|(_, row)| row));
                assert_eq!(found, texts(&expected), "{sql}");
                "aggregate on all_shards"
            }
            7 => {
                let sql = format!("{select} {ordered}");
                let merged = router.all_shards();
                let merged = merged.merge_raw(&*sql, params![], order).await.unwrap();
                let merged: Vec<_> = merged.try_collect().await.unwrap();
                let expected = self.expected(&sql, &[]).await;
                let found = texts(merged.iter().map(|(_, row)| row));
                assert_eq!(found, texts(&expected), "{sql}");
                "stream of all_shards"
            }
            8 => {
                let change = match self.rng.u8(..4) {
                    0 => format!("DELETE FROM {{shard}}.photos p WHERE {condition} AND likes > 9"),
                    _ => {
                        format!("UPDATE {{shard}}.photos p SET likes = likes + 1 WHERE {condition}")
                    }
                };
                let sql = format!("{change} RETURNING {ROW}");
                let found = router.all_shards().query(&sql, &[]).await.unwrap();
                let expected = self.expected(&sql, &[]).await;
                let found = texts(found.iter().map(|(_, row)| row));
                assert_eq!(sorted(found), sorted(texts(&expected)), "{sql}");
                "write on all_shards"
            }
            9 => {
                self.insert_many(&router).await;
                "insert_many"
            }
            10 => {
                self.read_ids(&router, &select).await;
                "by_ids"
            }
            11 => {
                let Some(id) = self.ids().first().copied() else {
                    return "by_id";
                };
                let sql = "UPDATE {shard}.photos p SET likes = -likes WHERE id = $1";
                let rows = router
                    .by_id(id)
                    .unwrap()
                    .execute(sql, &[&id])
                    .await
                    .unwrap();
                self.written(rows, sql, &[&id], "by_id").await;
                "by_id"
            }
            12 => {
                let sql = format!("{select} {ordered} LIMIT 20");
                let found = router.unrouted().unwrap().query(&sql, &[]).await.unwrap();
                let expected = self.expected(&sql, &[]).await;
                assert_eq!(texts(&found), texts(&expected), "{sql}");
                "unrouted"
            }
            _ => {
                let shard = router.by_key(key).id();
                let sql = format!("DELETE FROM {{shard}}.photos p WHERE {condition}");
                let one = router.shard(shard).unwrap().execute(&sql, &[]).await;
                assert!(matches!(one, Err(Error::Unsharded { .. })), "{one:?}");
                let part = router.shards([shard]).query(&sql, &[]).await;
                assert!(part.unwrap_err().done.is_empty());
                "refused"
            }
        }
    }

    async fn insert_many(&mut self, router: &Router) {
        let rows = self.new_rows();
        let sql = "INSERT INTO {shard}.photos (id, user_id, title, likes)
            SELECT id, key, 'new', 0 FROM unnest($1::bigint[], $2::bigint[]) AS n (id, key)";
        let inserted = router.insert_many(&rows, |(_, key)| *key).unwrap();
        let returning = format!("{sql} RETURNING id");
        let inserted = inserted.query(returning.as_str(), |rows| {
            columns![
                rows.iter().map(|(id, _)| *id),
                rows.iter().map(|(_, key)| *key)
            ]
        });
        let inserted = inserted.await.unwrap();
        let count: usize = inserted.iter().map(|one| one.rows.len()).sum();
        let (ids, keys): (Vec<i64>, Vec<i64>) = rows.iter().copied().unzip();
        let count = u64::try_from(count).unwrap();
        self.written(count, sql, &[&ids, &keys], "insert_many")
            .await;
        self.wide.extend(ids);
    }

    /// Reads rows by their IDs, some of which may name no shard.
    async fn read_ids(&mut self, router: &Router, select: &str) {
        let ids = self.ids();
        let sql = format!("{select} AND p.id = ANY($1)");
        let legacy: Vec<i64> = (0..self.rng.usize(..3))
            .map(|_| self.rng.i64(1..LEGACY))
            .collect();
        let expected = self.expected(&sql, &[&ids]).await;
        let wanted = [ids.clone(), legacy.clone()].concat();
        let (done, refused) = match router.by_ids(&wanted).query(&sql).await {
            Ok(done) => (done, Vec::new()),
            Err(partial) => {
                for failed in &partial.failed {
                    assert!(matches!(failed.error, Error::LegacyId { .. }));
                }
                let refused = partial.wanted().copied().collect();
                (partial.done, refused)
            }
        };
        let found = texts(done.iter().map(|(_, row)| row));
        assert_eq!(sorted(found), sorted(texts(&expected)), "{sql} {wanted:?}");
        let numbers =
            |ids: Vec<i64>| -> BTreeMap<i64, ()> { ids.into_iter().map(|id| (id, ())).collect() };
        assert_eq!(numbers(refused), numbers(legacy));
    }

    /// Both copies have the same rows.
    async fn compare(&self) {
        let differs = "SELECT count(*) FROM ((TABLE app.photos EXCEPT ALL TABLE plain.photos)
            UNION ALL (TABLE plain.photos EXCEPT ALL TABLE app.photos)) AS d";
        let differs: i64 = self.plain.query_one(differs, &[]).await.unwrap().get(0);
        assert_eq!(differs, 0, "the copies differ");
    }
}

on_each_version! {
    /// Whatever is called gives what the one database gives, and writes what it would write.
    async fn random_calls_give_what_one_database_gives(version) {
        let few = if version == 15 { 1..3 } else { 3..5 };
        for seed in seeds(few) {
            println!("PGSHARD_UNSHARDED_SEEDS={seed}-{}", seed + 1);
            let servers = TestCluster::start(version, 1);
            servers.app(0).await.batch_execute(TABLES).await.unwrap();
            let host = format!("{UNSHARDED}\nunrouted = \"log\"");
            let path = servers.write("pgshard.toml", &config_text(&servers, &host));
            let config = pgshard::config::Config::load(path).unwrap();
            let world = World { servers, config };
            world.run(&["bootstrap"]).await.ended(0);
            let mut database = Database {
                router: world.router().await,
                plain: world.servers.app(0).await,
                rng: Rng::with_seed(seed),
                made: 0,
                wide: Vec::new(),
            };
            let mut calls: BTreeMap<&str, usize> = BTreeMap::new();
            for _ in 0..CALLS {
                *calls.entry(database.call().await).or_default() += 1;
                database.compare().await;
            }
            assert_eq!(calls.len(), 14, "not every call was made: {calls:?}");
        }
    }
}
