//! What an application needs from an answer: rows as values of its own; and from an error: whether
//! it is its own, and what to do.

use std::time::Duration;

use pgshard::Router;
use pgshard::from_row;
use pgshard::router::Error;

use super::by_hand::Shards;
use super::{COUNT, INSERT};

from_row! {
    /// A row of the tests' table.
    #[derive(Debug, PartialEq)]
    struct Photo {
        id: i64,
        title: String,
    }
}

/// The answers to the four questions, and to all others.
fn answers(error: &Error) -> Vec<&'static str> {
    let asked = [
        ("retryable", error.is_retryable()),
        ("may have run", error.may_have_run()),
        ("application", error.is_application()),
        ("cluster", error.is_cluster()),
        ("not found", error.is_not_found()),
        ("timeout", error.is_timeout()),
        ("unique", error.is_unique_violation()),
        ("constraint", error.is_constraint_violation()),
    ];
    asked
        .iter()
        .filter(|(_, said)| *said)
        .map(|(name, _)| *name)
        .collect()
}

on_each_version! {
    /// Rows as structs and tuples, wherever statements run.
    async fn rows_as_values(version) {
        let shards = Shards::start(version, 4).await;
        let router = shards.router();
        for (id, title) in [(1_i64, "one"), (2, "two")] {
            router
                .by_key(1)
                .execute(INSERT, &[&id, &title])
                .await
                .unwrap();
        }
        let sql = "SELECT title, id FROM {shard}.photos ORDER BY id";
        let two = |photos: Vec<Photo>| {
            assert_eq!(
                photos,
                [(1, "one"), (2, "two")].map(|(id, title)| Photo {
                    id,
                    title: title.into()
                })
            )
        };
        two(router.by_key(1).query_as(sql, &[]).await.unwrap());
        two(router.by_key(1).reads().query_as(sql, &[]).await.unwrap());
        two(router
            .by_key(1)
            .transaction(async |tx| tx.query_as(sql, &[]).await)
            .await
            .unwrap());
        let (count, last): (i64, Option<String>) = router
            .by_key(1)
            .query_one_as(
                "SELECT count(*), max(title) FROM \
                {shard}.photos",
                &[],
            )
            .await
            .unwrap();
        assert_eq!((count, last.as_deref()), (2, Some("two")));
        let none: Option<Photo> = router
            .by_key(1)
            .query_opt_as("SELECT id, title FROM {shard}.photos WHERE id = 9", &[])
            .await
            .unwrap();
        assert_eq!(none, None);
        // A column that does not exist, or a NULL where none is allowed, is the application's
        // mistake, and is seen after the statement has run.
        for sql in [
            "SELECT id FROM {shard}.photos",
            "SELECT id, NULL::text AS title FROM {shard}.photos",
        ] {
            let error = router
                .by_key(1)
                .query_as::<Photo>(sql, &[])
                .await
                .unwrap_err();
            assert_eq!(
                answers(&error),
                ["may have run", "application"],
                "{error:?}"
            );
        }
    }

    /// Each error is the application's or the cluster's, and contains what to do.
    async fn whose_an_error_is(version) {
        let shards = Shards::start(version, 4).await;
        let mut options = shards.options();
        options.hosts[0].pool_size = 1;
        options.wait_max = Duration::from_millis(50);
        let router = Router::new(options);
        let shard = router.by_key(1);
        shard.execute(INSERT, &[&1_i64, &"x"]).await.unwrap();
        let sleeps = "SELECT pg_sleep(60)";

        let error = shard.execute(INSERT, &[&1_i64, &"x"]).await.unwrap_err();
        assert_eq!(answers(&error), ["application", "unique", "constraint"]);
        assert_eq!(error.constraint(), Some("photos_pkey"));
        let error = shard
            .execute(INSERT, &[&2_i64, &None::<String>])
            .await
            .unwrap_err();
        assert_eq!(answers(&error), ["application", "constraint"]);
        let error = shard
            .query_one("SELECT id FROM {shard}.photos WHERE id = 9", &[])
            .await
            .unwrap_err();
        assert_eq!(
            answers(&error),
            ["may have run", "application", "not found"]
        );
        let error = shard.query("SELECT 1/0", &[]).await.unwrap_err();
        assert_eq!(answers(&error), ["application"]);
        let error = shard
            .query("SELECT $1::bigint", &[&"no number"])
            .await
            .unwrap_err();
        assert_eq!(answers(&error), ["application"], "the driver's own refusal");
        let error = shard
            .within(Duration::from_millis(100))
            .query(sleeps, &[])
            .await
            .unwrap_err();
        assert_eq!(answers(&error), ["may have run", "cluster", "timeout"]);
        let cancelled = shard.transaction(async |tx| {
            tx.execute("SET LOCAL statement_timeout = '50ms'", &[])
                .await?;
            tx.query(sleeps, &[]).await
        });
        assert_eq!(
            answers(&cancelled.await.unwrap_err()),
            ["cluster", "timeout"]
        );
        let held = shard.client().await.unwrap();
        assert_eq!(
            answers(&shard.query(COUNT, &[]).await.unwrap_err()),
            ["retryable", "cluster", "timeout"]
        );
        drop(held);
        shards
            .cluster
            .server(1)
            .stop(pgshard::dev::StopMode::Fast)
            .unwrap();
        assert_eq!(
            answers(&router.by_key(2).query(COUNT, &[]).await.unwrap_err()),
            ["retryable", "cluster"]
        );
    }
}
