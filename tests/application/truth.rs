//! What an error reports is true: whether the statement has run, whether another try is safe, and
//! PostgreSQL's message.

use std::collections::BTreeSet;
use std::time::Duration;

use pgshard::from_row;
use pgshard::pg::cause::chain;
use pgshard::router::{Error, Expected, PrepareMode, Sql};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::INSERT;
use super::by_hand::Shards;

type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A value that cannot be encoded.
#[derive(Debug)]
struct Unreadable;

impl ToSql for Unreadable {
    fn to_sql(
        &self,
        _: &Type,
        _: &mut bytes::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        Err(Box::new(std::io::Error::other("the disk is gone")))
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

from_row! {
    #[derive(Debug)]
    struct Wrong { title: i64 }
}

/// The backends of a router's connections.
async fn backends(shards: &Shards) -> BTreeSet<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'truth'";
    let rows = shards.db[0].query(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Waits until no connection of the router is being cleaned or ended.
async fn settled(shards: &Shards) {
    let sql = "SELECT count(*) FROM pg_stat_activity
        WHERE application_name = 'truth' AND state <> 'idle'";
    while shards.db[0]
        .query_one(sql, &[])
        .await
        .unwrap()
        .get::<_, i64>(0)
        > 0
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

on_each_version! {
    /// The rows are there, and the error does not claim that they are not.
    async fn an_error_about_the_answer_says_that_the_statement_has_run(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        let two = "INSERT INTO {shard}.photos (id, title) VALUES ($1, 'x'), ($1 + 1, 'x') \
            RETURNING title";
        let shard = router.by_key(0);
        let one = shard.query_one(two, &[&10_i64]).await.unwrap_err();
        assert!(
            matches!(
                one,
                Error::RowCount {
                    expected: Expected::One,
                    got: 2,
                    ..
                }
            ),
            "{one:?}"
        );
        assert_eq!(
            one.to_string(),
            "shard 0 on host db1 gave 2 rows where exactly one was wanted, \
             and the statement has run"
        );
        let opt = shard.query_opt(two, &[&20_i64]).await.unwrap_err();
        let wrong = [
            shard.query_as::<Wrong>(two, &[&30_i64]).await.unwrap_err(),
            shard
                .query_one_as::<(i64,)>(
                    "INSERT INTO {shard}.photos (id, title) VALUES ($1, 'x') RETURNING title",
                    &[&40_i64],
                )
                .await
                .unwrap_err(),
            shard
                .query_opt_as::<(i64,)>(
                    "INSERT INTO {shard}.photos (id, title) VALUES ($1, 'x') RETURNING title",
                    &[&50_i64],
                )
                .await
                .unwrap_err(),
        ];
        for error in &wrong {
            assert!(matches!(error, Error::Decode { .. }), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains("shard 0 on host db1") && text.contains("the statement has run"),
                "{text}"
            );
        }
        let ids = router.by_ids(&[0]).query_in_order(
            "INSERT INTO {shard}.photos (id, title) SELECT 60, 'x' FROM unnest($1::bigint[]) \
             RETURNING title"
        ).await.unwrap_err();
        let ids = ids.failed[0].error.clone();
        assert!(matches!(ids, Error::Decode { .. }), "{ids:?}");
        for error in wrong.iter().chain([&one, &opt, &ids]) {
            assert!(
                error.may_have_run() && !error.is_retryable() && error.is_application(),
                "{error:?}"
            );
        }
        assert_eq!(shards.titles(0, 0).await.len(), 9);

        // What only reads has no effect, and what a transaction did is rolled back with its error.
        let read = Sql::reading("SELECT 1 FROM {shard}.photos");
        let error = shard.query_one(&read, &[]).await.unwrap_err();
        assert!(!error.may_have_run(), "{error:?}");
        let error = shard
            .reads()
            .query_one("SELECT title FROM {shard}.photos", &[])
            .await
            .unwrap_err();
        assert!(!error.may_have_run(), "{error:?}");
        let error: Error = shard
            .transaction(async |tx| tx.query_one(two, &[&70_i64]).await)
            .await
            .unwrap_err();
        assert!(!error.may_have_run(), "{error:?}");
        assert_eq!(shards.titles(0, 0).await.len(), 9);
    }

    /// What can commit before its end may have run, although the server refused it, and is not
    /// worth another try by itself.
    async fn a_statement_that_commits_in_part_says_so(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        let sql = "DO $$ BEGIN
            INSERT INTO {shard}.photos (id, title) VALUES (1, 'x');
            COMMIT;
            RAISE EXCEPTION 'later' USING ERRCODE = '40001';
        END $$";
        let error = router.by_key(0).execute(sql, &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "40001", "{error}");
        assert!(error.may_have_run() && !error.is_retryable(), "{error:?}");
        assert_eq!(shards.titles(0, 0).await, ["x"]);
        let error = router
            .by_key(0)
            .execute("CALL nothing()", &[])
            .await
            .unwrap_err();
        assert!(!error.may_have_run(), "it was not even prepared: {error:?}");
    }

    /// What the driver refuses costs no connection, and is the application's mistake.
    async fn what_the_driver_refuses_is_no_lost_connection(version) {
        let shards = Shards::start(version, 8).await;
        for prepare in [PrepareMode::Named, PrepareMode::Unnamed] {
            let mut options = shards.options();
            options.application_name = "truth".to_owned();
            options.hosts[0].prepare = prepare;
            options.hosts[0].pool_size = 2;
            let router = pgshard::Router::new(options);
            let shard = router.by_key(0);
            shard.query("SELECT 1", &[]).await.unwrap();
            settled(&shards).await;
            let before = backends(&shards).await;
            assert!(!before.is_empty());
            let nul = "SELECT 'a\0b' FROM {shard}.photos";
            let many = vec![&1_i64 as &(dyn ToSql + Sync); 65_536];
            let mistakes: [(&str, &str, Params<'_>); 6] = [
                ("a NUL in the text", nul, &[]),
                (
                    "a NUL in a text with parameters",
                    "INSERT INTO {shard}.photos (id, title) VALUES ($1, '\0')",
                    &[&1_i64],
                ),
                ("too many parameters", "SELECT $1::bigint", &many),
                (
                    "a value that cannot be encoded",
                    INSERT,
                    &[&1_i64, &Unreadable],
                ),
                ("too few parameters", INSERT, &[&1_i64]),
                ("another type", INSERT, &[&"1", &"x"]),
            ];
            for (mistake, sql, params) in mistakes {
                let all: Vec<_> = futures_util::StreamExt::collect(
                    router.shards([shard.id()]).query(sql, params),
                )
                .await;
                let (_, fanned) = all.into_iter().next().unwrap();
                let errors = [
                    shard.query(sql, params).await.unwrap_err(),
                    shard.execute(sql, params).await.unwrap_err(),
                    shard
                        .reads()
                        .query(
                            &sql.replace("INSERT INTO", "WITH x AS (SELECT 1) INSERT INTO"),
                            params,
                        )
                        .await
                        .unwrap_err(),
                    fanned.unwrap_err(),
                    shard
                        .transaction(async |tx| {
                            let error = tx.query(sql, params).await.unwrap_err();
                            // The transaction continues if nothing was sent.
                            if error.code().is_none() {
                                tx.query("SELECT 1", &[]).await?;
                            }
                            Err::<(), _>(error)
                        })
                        .await
                        .unwrap_err(),
                ];
                for error in errors {
                    let why = format!("{mistake}: {error:?}");
                    assert!(matches!(error, Error::Statement { .. }), "{why}");
                    assert!(
                        error.is_application() && !error.is_retryable() && !error.may_have_run(),
                        "{why}"
                    );
                    let text = error.to_string();
                    assert!(text.contains("shard 0 on host db1"), "{text}");
                    assert!(!text.contains("db error"), "{text}");
                }
            }
            settled(&shards).await;
            let after = backends(&shards).await;
            assert!(
                before.is_subset(&after),
                "connections were given up: {before:?}, {after:?}"
            );
            // Two of the pool, two for look-ups.
            assert!(after.len() <= 4, "{after:?}");
            assert!(shards.titles(0, 0).await.is_empty());
        }
    }

    /// PostgreSQL's message with its SQLSTATE, the shard and the host are in the text, each once if
    /// the causes are printed too.
    async fn the_text_of_an_error_says_what_postgresql_says(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        let shard = router.by_key(1);
        shard.execute(INSERT, &[&1_i64, &"x"]).await.unwrap();
        let error = shard.execute(INSERT, &[&1_i64, &"x"]).await.unwrap_err();
        let message = "duplicate key value violates unique constraint \"photos_pkey\" (23505)";
        assert_eq!(
            error.to_string(),
            format!("shard 1 on host db1 refuses the statement: {message}")
        );
        assert_eq!(
            chain(&error),
            format!("{error}; detail: Key (id)=(1) already exists.")
        );
        // The driver's own error is still the source, and an error can be kept and given on.
        let source = std::error::Error::source(&error).unwrap();
        assert!(source.is::<tokio_postgres::Error>());
        assert_eq!(error.clone().to_string(), error.to_string());

        let killed = shard
            .execute("SELECT pg_terminate_backend(pg_backend_pid())", &[])
            .await
            .unwrap_err();
        let text = killed.to_string();
        assert!(matches!(killed, Error::ConnectionLost { .. }), "{killed:?}");
        assert!(
            text.contains("host db1 of shard 1") && text.contains("(57P01)"),
            "{text}"
        );
        shards
            .cluster
            .server(1)
            .stop(pgshard::dev::StopMode::Immediate)
            .unwrap();
        let away = router
            .by_key(5)
            .execute(INSERT, &[&1_i64, &"x"])
            .await
            .unwrap_err();
        let text = away.to_string();
        assert!(
            text.contains("host db2 of shard 5 is out of reach") && text.contains("onnect"),
            "{text}"
        );
    }

    /// PREPARE ends with its caller; the driver's own statements stay. Nothing of the cleaning is
    /// in the server's log.
    async fn what_a_caller_prepares_is_gone_for_the_next(version) {
        let shards = Shards::start(version, 8).await;
        for prepare in [PrepareMode::Named, PrepareMode::Unnamed] {
            let mut options = shards.options();
            options.hosts[0].pool_size = 1;
            options.hosts[0].prepare = prepare;
            let router = pgshard::Router::new(options);
            let shard = router.by_key(0);
            let left = "SELECT count(*) FROM pg_catalog.pg_prepared_statements WHERE from_sql";
            let own = "SELECT count(*) FROM pg_catalog.pg_prepared_statements WHERE NOT from_sql";
            for _ in 0..2 {
                shard
                    .execute("PREPARE mine AS SELECT 1", &[])
                    .await
                    .unwrap();
                shard
                    .execute("PREPARE \"all\" AS SELECT 1", &[])
                    .await
                    .unwrap();
                assert_eq!(shard.query_one_as::<(i64,)>(left, &[]).await.unwrap(), (0,));
                let tx =
                    shard.transaction(async |tx| tx.execute("PREPARE mine AS SELECT 1", &[]).await);
                tx.await.unwrap();
                assert_eq!(shard.query_one_as::<(i64,)>(left, &[]).await.unwrap(), (0,));
            }
            if prepare == PrepareMode::Named {
                let (own,) = shard.query_one_as::<(i64,)>(own, &[]).await.unwrap();
                assert!(own > 0, "ours are kept");
                let client = shard.client().await.unwrap();
                client
                    .batch_execute("PREPARE mine AS SELECT 1")
                    .await
                    .unwrap();
                drop(client);
                let client = shard.client().await.unwrap();
                client
                    .batch_execute("BEGIN; PREPARE mine AS SELECT 1")
                    .await
                    .unwrap();
                drop(client);
                assert_eq!(shard.query_one_as::<(i64,)>(left, &[]).await.unwrap(), (0,));
            }
        }
        let log = std::fs::read_to_string(shards.cluster.server(0).log()).unwrap();
        let warnings: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("WARNING"))
            .collect();
        assert!(warnings.is_empty(), "{warnings:#?}");
    }
}
