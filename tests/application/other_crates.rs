//! The examples of docs/with-other-crates.md: they compile, and do on a server what the page
//! describes.

use std::time::Duration;

use pgshard::Router;
use pgshard::router::{Error, Executor};
use tokio_postgres::GenericClient;

use super::INSERT;
use super::by_hand::Shards;

/// As cornucopia and clorinde generate it, and as a helper of one's own takes it.
async fn rename(
    client: &impl GenericClient,
    id: i64,
    title: &str,
) -> Result<u64, tokio_postgres::Error> {
    let sql = "UPDATE photos SET title = $1 WHERE id = $2";
    client.execute(sql, &[&title, &id]).await
}

async fn by_another_crate(router: &Router, user: i64, photo: i64) -> Result<u64, Error> {
    router
        .by_key(user)
        .orm_transaction(async |tx| {
            let client = tx.client().await?;
            rename(&*client, photo, "Brno")
                .await
                .map_err(|error| tx.failed(error))
        })
        .await
}

mod query_builder {
    use pgshard::Router;
    use pgshard::router::Error;
    use sea_query::{Expr, ExprTrait, Iden, PostgresQueryBuilder, Query};

    #[derive(Iden)]
    enum Photos {
        Table,
        Id,
        Title,
    }

    pub(super) async fn title(router: &Router, user: i64, photo: i64) -> Result<String, Error> {
        let select = Query::select()
            .column(Photos::Title)
            .from(Photos::Table)
            .and_where(Expr::col(Photos::Id).eq(photo))
            .to_string(PostgresQueryBuilder);
        let row = router
            .by_key(user)
            .orm_transaction(async |tx| tx.query_one(&select, &[]).await);
        Ok(row.await?.get(0))
    }
}

async fn count(on: &impl Executor) -> Result<i64, Error> {
    let (count,) = on
        .query_one_as::<(i64,)>("SELECT count(*) FROM {shard}.photos", &[])
        .await?;
    Ok(count)
}

#[test]
fn the_page_has_the_examples_of_this_file() {
    let page = include_str!("../../docs/with-other-crates.md");
    let source = include_str!("other_crates.rs");
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let (mut in_block, mut compared) = (false, 0);
    for line in page.lines() {
        match line {
            "```rust,ignore" => in_block = true,
            "```" => in_block = false,
            line if in_block && !line.trim().is_empty() => {
                assert!(
                    lines.contains(&line.trim()),
                    "not in other_crates.rs: {line}"
                );
                compared += 1;
            }
            _ => {}
        }
    }
    assert!(compared > 20, "{compared} lines");
}

on_each_version! {
    /// A query builder, generated code, a helper.
    async fn other_crates_reach_the_shard(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        router
            .by_key(1)
            .execute(INSERT, &[&9_i64, &"Prague"])
            .await
            .unwrap();
        assert_eq!(query_builder::title(&router, 1, 9).await.unwrap(), "Prague");
        assert_eq!(by_another_crate(&router, 1, 9).await.unwrap(), 1);
        assert_eq!(shards.titles(0, 1).await, ["Brno"]);
        assert_eq!(count(&router.by_key(1)).await.unwrap(), 1);
        // Its own mistake is returned, and leaves nothing.
        let failed = router.by_key(1).orm_transaction(async |tx| {
            rename(&*tx.client().await?, 9, "half")
                .await
                .map_err(|error| tx.failed(error))?;
            let client = tx.client().await?;
            client
                .execute("SELECT 1/0", &[])
                .await
                .map_err(|error| tx.failed(error))
        });
        let error = failed.await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "22012", "{error}");
        assert!(error.is_application() && !error.may_have_run(), "{error:?}");
        assert_eq!(shards.titles(0, 1).await, ["Brno"]);
        // If the closure hides an error, nothing is committed.
        let silent = router.by_key(1).orm_transaction(async |tx| {
            let client = tx.client().await?;
            let _ = client.execute("SELECT 1/0", &[]).await;
            Ok::<_, Error>(())
        });
        assert!(matches!(silent.await, Err(Error::TransactionFailed { .. })));
        // What it leaves in the session ends with it.
        let left = router.by_key(1).transaction(async |tx| {
            let client = tx.client().await?;
            client
                .batch_execute("SET app.who = 'me'")
                .await
                .map_err(|error| tx.failed(error))
        });
        left.await.unwrap();
        let sql = "SELECT coalesce(current_setting('app.who', true), '')";
        for _ in 0..8 {
            assert_eq!(
                router
                    .by_key(1)
                    .query_one(sql, &[])
                    .await
                    .unwrap()
                    .get::<_, &str>(0),
                ""
            );
        }
        // What is prepared, and what a savepoint undoes, does not count as given up.
        let prepared = router.by_key(1).orm_transaction(async |tx| {
            for _ in 0..50 {
                let client = tx.client().await?;
                client
                    .prepare("SELECT * FROM photos, pg_class")
                    .await
                    .map_err(|error| tx.failed(error))?;
                drop(client);
                let caught = tx.savepoint(async {
                    let client = tx.client().await?;
                    client
                        .execute("SELECT 1/0", &[])
                        .await
                        .map_err(|error| tx.failed(error))
                });
                assert!(caught.await.is_err());
            }
            tx.execute("UPDATE photos SET title = 'Ostrava'", &[]).await
        });
        assert_eq!(prepared.await.unwrap(), 1);
        assert_eq!(shards.titles(0, 1).await, ["Ostrava"]);
        // A statement that is given up leaves nothing.
        let given_up = router.by_key(1).orm_transaction(async |tx| {
            let client = tx.client().await?;
            let update = "UPDATE photos SET title = 'x' WHERE pg_sleep(60) IS NOT NULL";
            let slow = client.execute(update, &[]);
            assert!(
                tokio::time::timeout(Duration::from_millis(50), slow)
                    .await
                    .is_err()
            );
            Ok::<_, Error>(())
        });
        assert!(matches!(
            given_up.await,
            Err(Error::TransactionFailed { .. })
        ));
        // Conflicts are run again for it too.
        let mut runs = 0;
        let conflict = router
            .by_key(1)
            .build_transaction()
            .retry_conflicts(2)
            .run(|tx| {
                runs += 1;
                async move {
                    let client = tx.client().await?;
                    let raise = "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$";
                    client
                        .batch_execute(raise)
                        .await
                        .map_err(|error| tx.failed(error))
                }
            });
        assert!(conflict.await.unwrap_err().is_retryable());
        assert_eq!(runs, 3);
        assert_eq!(shards.titles(0, 1).await, ["Ostrava"]);
        // COMMIT is the router's own.
        let own = router.by_key(1).transaction(async |tx| {
            let client = tx.client().await?;
            client
                .batch_execute("COMMIT")
                .await
                .map_err(|error| tx.failed(error))
        });
        assert!(matches!(own.await, Err(Error::InDoubt { .. })));
    }

    /// The shard moves while another crate's statements run: the closure runs again, whole, where
    /// the shard is then, also where it has hidden what it met.
    async fn another_crates_statements_follow_a_move(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        router
            .by_key(1)
            .execute(INSERT, &[&9_i64, &"Prague"])
            .await
            .unwrap();
        let moving = shards.prepare(1, 0).await;
        moving.fence(Duration::from_secs(60)).await;
        let renaming = by_another_crate(&router, 1, 9);
        let hiding = router.by_key(1).orm_transaction(async |tx| {
            let client = tx.client().await?;
            Ok::<_, Error>(
                client
                    .execute("UPDATE photos SET title = title", &[])
                    .await
                    .ok(),
            )
        });
        let moves = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            moving.decide().await;
            moving.open().await;
        };
        let (renamed, hidden, ()) = tokio::join!(renaming, hiding, moves);
        assert_eq!(renamed.unwrap(), 1);
        assert_eq!(hidden.unwrap(), Some(1));
        assert_eq!(shards.titles(1, 1).await, ["Brno"]);
    }

    /// Increments by another crate's statements, of several callers, while their shard moves: each
    /// that was acknowledged is there once.
    async fn another_crates_statements_count_once(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..4_i64 {
            router
                .by_key(1)
                .execute(INSERT, &[&caller, &"0"])
                .await
                .unwrap();
            let (router, done) = (router.clone(), done.clone());
            callers.spawn(async move {
                let mut acknowledged = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) || acknowledged == 0 {
                    let added = router.by_key(1).orm_transaction(async |tx| {
                        let client = tx.client().await?;
                        let sql = "UPDATE photos SET title = (title::int + 1)::text WHERE id = $1";
                        client
                            .execute(sql, &[&caller])
                            .await
                            .map_err(|error| tx.failed(error))
                    });
                    assert_eq!(added.await.unwrap(), 1);
                    acknowledged += 1;
                }
                (caller, acknowledged)
            });
        }
        let moving = shards.prepare(1, 0).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        moving.fence(Duration::from_secs(60)).await;
        moving.decide().await;
        moving.open().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut all = callers.join_all().await;
        all.sort_unstable();
        let stored = "SELECT id, title::bigint FROM shard_0001.photos ORDER BY id";
        let stored = shards.db[1].query(stored, &[]).await.unwrap();
        let stored: Vec<(i64, i64)> = stored.iter().map(|row| (row.get(0), row.get(1))).collect();
        assert_eq!(stored, all);
    }
}
