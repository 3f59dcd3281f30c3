//! What an application writes without thinking compiles, and does what it reads like.

// A text that is borrowed without need is one of those things.
#![allow(clippy::needless_borrows_for_generic_args)]

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use pgshard::id::Id;
use pgshard::router::{Error, Executor, Sql};
use pgshard::{Router, params};
use tokio::task::JoinSet;
use tokio_postgres::IsolationLevel;

use super::INSERT;
use super::by_hand::{Shards, shard};

/// A helper that is written once.
async fn titles(on: &impl Executor) -> Result<Vec<String>, Error> {
    let rows = on
        .query_as::<(String,)>("SELECT title FROM {shard}.photos ORDER BY id", &[])
        .await?;
    Ok(rows.into_iter().map(|(title,)| title).collect())
}

async fn add(on: &impl Executor, id: i64) -> Result<u64, Error> {
    on.execute(format!("{INSERT} /* by a helper */"), &[&id, &"x"])
        .await
}

/// As a service keeps it: boxed, with borrowed parameters.
fn boxed<'a>(
    router: &'a Router,
    id: &'a i64,
    title: &'a str,
) -> std::pin::Pin<Box<dyn Future<Output = Result<u64, Error>> + Send + 'a>> {
    Box::pin(async move {
        let shard = router.by_key(*id);
        shard
            .transaction(async |tx| tx.execute(INSERT, &[id, &title]).await)
            .await
    })
}

/// A router in a `static` is shared by tests that each have a runtime of their own.
#[test]
fn the_map_is_followed_when_the_runtime_that_connected_has_ended() {
    const CONFIG: &str = r#"
[cluster]
shards = 4
epoch = "2012-01-01T00:00:00Z"
[hosts.db1]
url = "postgres://app@10.0.0.1/app"
[map]
version = 1
[map.placement]
db1 = "0-3"
"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pgshard.toml");
    std::fs::write(&path, CONFIG).unwrap();
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let connecting = runtime();
    let router = connecting.block_on(pgshard::connect(&path)).unwrap();
    drop(connecting);
    std::fs::write(&path, CONFIG.replace("version = 1", "version = 2")).unwrap();
    runtime().block_on(async {
        while router.map().version().get() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    // It ends with the router, and not before a clone of it does.
    let is_followed = || {
        std::fs::read_dir("/proc/self/task").unwrap().any(|task| {
            let name = std::fs::read_to_string(task.unwrap().path().join("comm"));
            name.is_ok_and(|name| name.trim() == "pgshard-map")
        })
    };
    let clone = router.clone();
    drop(router);
    assert!(is_followed());
    drop(clone);
    while is_followed() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let error = runtime().block_on(pgshard::connect(folder.path().join("none.toml")));
    assert!(error.is_err());
}

on_each_version! {
    /// Texts of all kinds, IDs, keys, parameters, results awaited as a whole.
    async fn calls_take_what_is_at_hand(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        let table = "photos";
        for id in 0..8_i64 {
            let id = Id::new(60_000, shard(id as u16), 0).unwrap();
            router
                .by_id(id)
                .unwrap()
                .execute(INSERT, &[&id.encode(), &"x"])
                .await
                .unwrap();
        }
        let id = Id::new(60_000, shard(3), 0).unwrap().encode();
        let row = router.by_id(id).unwrap();
        let text = format!("SELECT id FROM {{shard}}.{table}");
        for found in [
            row.query_one(text.clone(), &[]).await.unwrap(),
            row.query_one(&text, &[]).await.unwrap(),
            row.query_one(text.as_str(), &[]).await.unwrap(),
            row.query_one(Sql::reading(&text), &[]).await.unwrap(),
            row.reads()
                .query_one(format!("{text} WHERE id = $1"), &[&id])
                .await
                .unwrap(),
        ] {
            assert_eq!(found.get::<_, i64>(0), id);
        }
        // An ID without a time names a shard, too.
        assert_eq!(router.by_id(12).unwrap().id().get(), 0);

        // The text of a statement may be made on the spot.
        let mut results = router.all_shards().query(&format!("{text} LIMIT 1"), &[]);
        let mut seen = BTreeSet::new();
        while let Some((shard, rows)) = results.next().await {
            assert_eq!(rows.unwrap().len(), 1);
            seen.insert(shard);
        }
        assert_eq!(seen.len(), 8);
        let rows = router
            .all_shards()
            .query(&Sql::reading(&text), &[])
            .await
            .unwrap();
        assert_eq!(rows.len(), 8);
        let rows = router
            .all_shards()
            .query(format!("{text} WHERE id = $1"), &[&id])
            .await
            .unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].0, shard(3));
        let failed = router
            .all_shards()
            .query("SELECT nothing", &[])
            .await
            .unwrap_err();
        assert_eq!(failed.wanted().count(), 8);
        let whole: Error = failed.into();
        assert!(whole.is_application() && !whole.is_retryable(), "{whole}");
        // What owns its parameters goes to another task.
        let owned = router
            .all_shards()
            .query_with(format!("{text} WHERE id = $1"), params![id]);
        let rows = tokio::spawn(async move { owned.await.map_err(Error::from) })
            .await
            .unwrap();
        assert_eq!(rows.unwrap().len(), 1);

        // Keys of any integer type, and of text where the cluster's are.
        let sql = "SELECT $1::bigint[]";
        assert_eq!(
            router
                .by_keys(&[1_u64, 9])
                .unwrap()
                .query(sql)
                .await
                .unwrap()
                .len(),
            1
        );
        assert_eq!(
            router
                .by_keys(&[1_i128, 2])
                .unwrap()
                .query(sql)
                .await
                .unwrap()
                .len(),
            2
        );
        assert_eq!(
            router
                .by_keys(&[1_u8])
                .unwrap()
                .query("SELECT $1::smallint[]")
                .await
                .unwrap()
                .len(),
            1
        );
        assert_eq!(
            router
                .by_keys(&[&1_i32])
                .unwrap()
                .query("SELECT $1::integer[]")
                .await
                .unwrap()
                .len(),
            1
        );
        assert!(matches!(
            router.by_keys(&["ada", "bob"]),
            Err(Error::WrongKey { .. })
        ));
        let large = router
            .by_keys(&[u64::MAX])
            .unwrap()
            .query(sql)
            .await
            .unwrap_err();
        let text = Error::from(large).to_string();
        assert!(
            text.contains("key 18446744073709551615 does not fit"),
            "{text}"
        );
    }

    /// The first rows of many keys by any order, page by page.
    async fn rows_merge_by_any_order(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        let keys: Vec<i64> = (0..40).collect();
        for key in &keys {
            // Only three different titles: the ID breaks the tie.
            let title = ["a", "b", "c"][(*key % 3) as usize];
            router
                .by_key(*key)
                .execute(INSERT, &[key, &title])
                .await
                .unwrap();
        }
        let mut wanted: Vec<(String, Reverse<i64>)> = keys
            .iter()
            .map(|key| {
                (
                    ["a", "b", "c"][(*key % 3) as usize].to_owned(),
                    Reverse(*key),
                )
            })
            .collect();
        wanted.sort();
        let sql = "SELECT id, title FROM {shard}.photos WHERE id = ANY($1)
            AND (title > $2 COLLATE \"C\" OR title = $2 AND id < $3)
            ORDER BY title COLLATE \"C\", id DESC LIMIT 7";
        let (mut read, mut last) = (Vec::new(), (String::new(), i64::MAX));
        loop {
            let order = |row: &tokio_postgres::Row| {
                Ok((
                    row.try_get::<_, String>(1)?,
                    Reverse(row.try_get::<_, i64>(0)?),
                ))
            };
            let page = router.by_keys(&keys).unwrap();
            let page = page
                .merge(sql, params![last.0.clone(), last.1], 7, order)
                .await
                .unwrap();
            let page: Vec<(String, Reverse<i64>)> =
                page.iter().map(|(_, row)| order(row).unwrap()).collect();
            read.extend(page.clone());
            match page.last() {
                Some((title, Reverse(id))) if page.len() == 7 => last = (title.clone(), *id),
                _ => break,
            }
        }
        assert_eq!(read, wanted);
        let unreadable =
            router
                .by_keys(&keys)
                .unwrap()
                .merge(sql, params!["", i64::MAX], 7, |row| {
                    row.try_get::<_, i64>(1)
                });
        let error = Error::from(unreadable.await.unwrap_err());
        assert!(!error.is_retryable() && error.may_have_run(), "{error:?}");
    }

    /// One helper over a shard, its reads and a transaction; closures that change what they
    /// capture, that are boxed, and that run in another task.
    async fn helpers_and_closures(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        let shard = router.by_key(1);
        assert_eq!(add(&shard, 1).await.unwrap(), 1);
        let within = shard.transaction(async |tx| {
            add(&tx, 9).await?;
            titles(&tx).await
        });
        assert_eq!(within.await.unwrap(), ["x", "x"]);
        assert_eq!(titles(&shard).await.unwrap().len(), 2);
        assert_eq!(titles(&shard.reads()).await.unwrap().len(), 2);
        let refused = add(&shard.reads(), 17).await.unwrap_err();
        assert!(matches!(refused, Error::NotARead { .. }), "{refused:?}");

        assert_eq!(boxed(&router, &25, "y").await.unwrap(), 1);
        let mut tries = Vec::new();
        let counted = shard.transaction(|tx| {
            tries.push("once");
            async move {
                tx.query_one_as::<(i64,)>("SELECT count(*) FROM {shard}.photos", &[])
                    .await
            }
        });
        assert_eq!(counted.await.unwrap(), (3,));
        assert_eq!(tries, ["once"]);
        let other = router.clone();
        let ids = vec![33_i64, 41];
        let task = tokio::spawn(async move {
            other
                .by_key(1)
                .transaction(async |tx| -> Result<(), Error> {
                    for id in &ids {
                        tx.execute(INSERT, &[id, &"z"]).await?;
                    }
                    Ok(())
                })
                .await?;
            Ok::<_, Error>(other)
        });
        assert_eq!(
            titles(&task.await.unwrap().unwrap().by_key(1))
                .await
                .unwrap()
                .len(),
            5
        );
    }

    /// Transactions that are in each other's way are run again where that is wanted, and only then.
    async fn conflicts_are_run_again_where_that_is_wanted(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        router
            .by_key(1)
            .execute(INSERT, &[&1_i64, &""])
            .await
            .unwrap();
        let update = async |tx: pgshard::router::Transaction| {
            let read = "SELECT title FROM {shard}.photos WHERE id = 1";
            let (title,) = tx.query_one_as::<(String,)>(read, &[]).await?;
            tx.query("SELECT pg_sleep(0.01)", &[]).await?;
            tx.execute(
                "UPDATE {shard}.photos SET title = $1 WHERE id = 1",
                &[&(title + "x")],
            )
            .await
        };
        let mut callers = JoinSet::new();
        for _ in 0..4 {
            let router = router.clone();
            callers.spawn(async move {
                for _ in 0..5 {
                    let tx = router.by_key(1).build_transaction();
                    let tx = tx.isolation_level(IsolationLevel::RepeatableRead);
                    assert_eq!(tx.retry_conflicts(1000).run(update).await.unwrap(), 1);
                }
            });
        }
        callers.join_all().await;
        assert_eq!(shards.titles(0, 1).await, ["x".repeat(20)]);
        assert!(router.stats().retries > 0, "they were in each other's way");

        for (times, wanted) in [(0, 1), (2, 3)] {
            let mut runs = 0;
            let failed = router
                .by_key(1)
                .build_transaction()
                .retry_conflicts(times)
                .run(|tx| {
                    runs += 1;
                    async move {
                        tx.execute(
                            "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$",
                            &[],
                        )
                        .await
                    }
                });
            let error: Error = failed.await.unwrap_err();
            assert!(error.is_retryable(), "{error:?}");
            assert_eq!(runs, wanted);
        }
    }
}
