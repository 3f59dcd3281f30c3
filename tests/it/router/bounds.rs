//! What is limited: look-ups, calls that wait, connections, time; and what a dropped future leaves
//! behind.

use std::time::{Duration, Instant};

use pgshard::Router;
use pgshard::router::{Error, PoolPhase, Queue, Sql};
use tokio::task::JoinSet;

use super::by_hand::Shards;
use super::proxy::Polls;
use super::{COUNT, INSERT};

const LONG: Duration = Duration::from_secs(60);

on_each_version! {
    /// A statement that is always wrong, on every shard at the same time, gets its error each time,
    /// with few look-ups.
    async fn a_typo_is_no_storm(version) {
        let shards = Shards::start(version, 64).await;
        let router = shards.router();
        let began = Instant::now();
        let mut callers = JoinSet::new();
        for caller in 0..64 {
            let router = router.clone();
            callers.spawn(async move {
                for _ in 0..10 {
                    let error = router
                        .by_key(caller)
                        .query("SELECT * FROM {shard}.fotos", &[])
                        .await
                        .unwrap_err();
                    assert_eq!(error.code().unwrap().code(), "42P01", "{error}");
                    assert!(matches!(error, Error::Statement { .. }) && !error.is_retryable());
                }
            });
        }
        callers.join_all().await;
        let most = 2 * (began.elapsed().as_millis() / 10 + 1);
        let asked = router.stats().look_ups;
        eprintln!("640 typos, {asked} questions in {:?}", began.elapsed());
        assert!(
            u128::from(asked) <= most,
            "{asked} questions, {most} at most"
        );
        // There is not one for each statement: look-ups of other shards are combined.
        assert!(asked < 640 / 2, "{asked}");
    }

    /// A limited number of calls wait for a move; the next one fails immediately, and may try
    /// again.
    async fn waiters_are_bounded(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.waiters_per_shard = 3;
        options.hosts[0].pool_size = 1;
        options.waiters_per_host = 16;
        let router = Router::new(options);
        let moving = shards.prepare(1, 0).await;
        moving.fence(LONG).await;
        let mut callers = JoinSet::new();
        for id in 0..10_i64 {
            let router = router.clone();
            callers.spawn(async move { router.by_key(1).execute(INSERT, &[&id, &"x"]).await });
        }
        for _ in 0..7 {
            let error = callers.join_next().await.unwrap().unwrap().unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::TooManyWaiting {
                        queue: Queue::Move,
                        limit: 3,
                        ..
                    }
                ),
                "{error:?}"
            );
            assert!(error.is_retryable() && !error.may_have_run());
            assert_eq!(
                error.to_string(),
                "3 calls to shard 1 on host db1 wait for its move to end \
                already"
            );
        }
        // Other shards of the host are not affected.
        router.by_key(2).query(COUNT, &[]).await.unwrap();
        moving.unfence().await;
        for done in callers.join_all().await {
            assert_eq!(done.unwrap(), 1);
        }
        assert_eq!(shards.titles(0, 1).await.len(), 3);
    }

    /// The same for calls that wait for a connection.
    async fn waiters_for_a_connection_are_bounded(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.hosts[0].pool_size = 1;
        options.waiters_per_host = 2;
        let router = Router::new(options);
        let held = router.by_key(1).client().await.unwrap();
        let mut callers = JoinSet::new();
        for key in 0..8_i64 {
            let router = router.clone();
            callers.spawn(async move { router.by_key(key % 4).query(COUNT, &[]).await });
        }
        for _ in 0..6 {
            let error = callers.join_next().await.unwrap().unwrap().unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::TooManyWaiting {
                        queue: Queue::Connection,
                        limit: 2,
                        ..
                    }
                ),
                "{error:?}"
            );
        }
        drop(held);
        assert!(callers.join_all().await.iter().all(Result::is_ok));
    }

    /// All hosts share a number of connections; an idle one makes room for another host's.
    async fn connections_in_total(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.max_connections = Some(3);
        options.application_name = "limit test".to_owned();
        options.wait_max = Duration::from_secs(20);
        let router = Router::new(options);
        let count = async || {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'limit test'";
            let mut sum = 0_i64;
            for client in &shards.db {
                sum += client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
            }
            sum
        };
        let mut callers = JoinSet::new();
        for key in 0..64_i64 {
            let router = router.clone();
            callers.spawn(async move {
                router
                    .by_key(key)
                    .execute(INSERT, &[&key, &"x"])
                    .await
                    .unwrap();
                router
                    .by_key(key)
                    .query("SELECT pg_sleep(0.002)", &[])
                    .await
                    .unwrap();
            });
        }
        // A connection that is closed ends at the server a little later; a superfluous one would
        // stay.
        let settles = async || {
            for _ in 0..500 {
                if count().await <= 3 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            panic!("{} connections, three at most", count().await);
        };
        while let Some(done) = callers.join_next().await {
            done.unwrap();
            settles().await;
        }
        // While they are in use, there is no room; when one is given back, there is.
        let mut held = Vec::new();
        for key in 0..3 {
            held.push(router.by_key(key).client().await.unwrap());
        }
        let waits = {
            let router = router.clone();
            tokio::spawn(async move { router.by_key(7).query(COUNT, &[]).await })
        };
        tokio::task::yield_now().await;
        held.pop();
        waits.await.unwrap().unwrap();

        let mut options = shards.options();
        (options.max_connections, options.wait_max) = (Some(1), Duration::from_millis(50));
        let router = Router::new(options);
        let held = router.by_key(1).client().await.unwrap();
        let error = router.by_key(7).query(COUNT, &[]).await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::PoolTimeout {
                    phase: PoolPhase::Limit,
                    ..
                }
            ) && error.is_retryable(),
            "{error:?}"
        );
        drop(held);
        // Cleaning what was held may take longer than a call waits.
        while let Err(error) = router.by_key(7).query(COUNT, &[]).await {
            assert!(matches!(error, Error::PoolTimeout { .. }), "{error:?}");
        }
    }

    /// There are as many callers as connections to all hosts, and each host in turn has too few:
    /// connections are not closed and opened all the time.
    async fn a_limit_is_no_storm_of_connections(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.max_connections = Some(8);
        options.hosts.iter_mut().for_each(|host| host.pool_size = 8);
        let router = Router::new(options);
        let opened = async || {
            let sql = "SELECT sessions FROM pg_stat_database WHERE datname = current_database()";
            let mut sum = 0_i64;
            for host in 0..2 {
                // Its own connection counts too, in both figures.
                sum += shards
                    .cluster
                    .app(host)
                    .await
                    .query_one(sql, &[])
                    .await
                    .unwrap()
                    .get::<_, i64>(0);
            }
            sum
        };
        let before = opened().await;
        let mut callers = JoinSet::new();
        for caller in 0..8_i64 {
            let router = router.clone();
            callers.spawn(async move {
                for call in 0..500_i64 {
                    router
                        .by_key(caller + call * 3)
                        .query(COUNT, &[])
                        .await
                        .unwrap();
                }
            });
        }
        callers.join_all().await;
        // Those of the counting, and the cost of opening them; with a connection for each call
        // there were thousands.
        let opened = opened().await - before;
        assert!(
            opened <= 200,
            "{opened} connections were opened for 4000 calls"
        );
    }

    /// A connection that its host does not need is closed for a caller that waits, however many
    /// connections that caller's host has.
    async fn idle_connections_are_no_ones(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.max_connections = Some(4);
        let router = Router::new(options);
        // Two on each host.
        let held = [0, 1, 4, 5].map(async |key| router.by_key(key).client().await.unwrap());
        let mut held = futures_util::future::join_all(held).await;
        drop(held.split_off(2));
        for key in [2, 3] {
            held.push(
                tokio::time::timeout(LONG, router.by_key(key).client())
                    .await
                    .unwrap()
                    .unwrap(),
            );
        }
        let waits = {
            let router = router.clone();
            tokio::spawn(async move { router.by_key(6).query(COUNT, &[]).await })
        };
        tokio::task::yield_now().await;
        drop(held);
        waits.await.unwrap().unwrap();
    }

    /// What is idle for long, or has been open for long, is closed; and what exists is reported.
    async fn old_and_idle_connections_are_closed(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.idle_timeout = Some(Duration::from_millis(200));
        let idle = Router::new(options.clone());
        (options.idle_timeout, options.max_lifetime) = (None, Some(Duration::from_millis(200)));
        let old = Router::new(options);
        let pid = async |router: &Router| -> i32 {
            router
                .by_key(1)
                .query_one("SELECT pg_backend_pid()", &[])
                .await
                .unwrap()
                .get(0)
        };
        let (one, other) = (pid(&idle).await, pid(&old).await);
        let pool = idle.pools().remove(0);
        assert_eq!(
            (
                pool.host.as_str(),
                pool.size,
                pool.idle,
                pool.used,
                pool.waiting
            ),
            ("db1", 4, 1, 0, 0)
        );
        let ended = async {
            // One of them is used all the time.
            while idle.pools()[0].idle > 0 || pid(&old).await == other {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, ended).await.unwrap();
        assert_ne!(pid(&idle).await, one);
    }

    /// A call that takes too long ends, and so does its statement on the server.
    async fn a_call_ends_at_its_deadline(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.statement_timeout = Some(Duration::from_millis(500));
        options.application_name = "late".to_owned();
        let router = Router::new(options);
        let error = router
            .by_key(1)
            .query("SELECT pg_sleep(60)", &[])
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                Error::TimedOut {
                    limit_ms: 500,
                    may_have_run: true,
                    ..
                }
            ),
            "{error:?}"
        );
        let error = router
            .by_key(1)
            .query(&Sql::reading("SELECT pg_sleep(60)"), &[])
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                Error::TimedOut {
                    limit_ms: 500,
                    may_have_run: false,
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(
            error.to_string(),
            "shard 1 on host db1 gave no answer within 500 ms"
        );
        let writes = "WITH slow AS (SELECT pg_sleep(60)) INSERT INTO {shard}.photos SELECT 1, 'x' \
            FROM slow";
        let error = router.by_key(1).execute(writes, &[]).await.unwrap_err();
        assert!(error.may_have_run() && !error.is_retryable(), "{error:?}");
        let transaction = router.by_key(1).transaction(async |tx| {
            tx.execute(INSERT, &[&1_i64, &"x"]).await?;
            tx.query("SELECT pg_sleep(60)", &[]).await
        });
        let error = transaction.await.unwrap_err();
        assert!(error.is_retryable() && !error.may_have_run(), "{error:?}");
        router
            .by_key(1)
            .within(LONG)
            .query("SELECT pg_sleep(0.2)", &[])
            .await
            .unwrap();
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'late' AND query \
            LIKE '%(60)%' \
                   AND state = 'active'";
        while shards.db[0]
            .query_one(sql, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            > 0
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(shards.titles(0, 1).await, [""; 0]);
    }

    /// What is given up ends on the server, all of it: nothing takes effect later, and there are no
    /// more backends than slots.
    async fn given_up_is_ended(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.application_name = "given up".to_owned();
        options.hosts[0].pool_size = 16;
        options.wait_max = LONG;
        let router = Router::new(options);
        router
            .by_key(1)
            .execute(INSERT, &[&1_i64, &"as it was"])
            .await
            .unwrap();
        shards.db[0]
            .batch_execute(
                "BEGIN; SELECT * FROM shard_0001.photos FOR \
            UPDATE",
            )
            .await
            .unwrap();
        let watching = shards.cluster.app(0).await;
        for _ in 0..6 {
            let mut callers = JoinSet::new();
            for _ in 0..16 {
                let router = router.clone();
                callers.spawn(async move {
                    let update = "UPDATE {shard}.photos SET title = 'later' WHERE id = 1";
                    router
                        .by_key(1)
                        .within(Duration::from_millis(300))
                        .execute(update, &[])
                        .await
                });
            }
            for ended in callers.join_all().await {
                assert!(matches!(ended, Err(Error::TimedOut { .. })), "{ended:?}");
            }
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'given up'";
            let backends: i64 = watching.query_one(sql, &[]).await.unwrap().get(0);
            // Those for look-ups, one that tries the host, and connections that are just ending.
            assert!(backends <= 16 + 2 + 1 + 4, "{backends} backends");
        }
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'given up' AND \
            state = 'active'";
        while watching.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        shards.db[0].batch_execute("ROLLBACK").await.unwrap();
        router.by_key(1).query(COUNT, &[]).await.unwrap();
        assert_eq!(shards.titles(0, 1).await, ["as it was"]);
    }

    /// If a call is dropped at any point, the pool still has a working connection, and nothing is
    /// half done.
    async fn dropped_at_every_await(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.hosts[0].pool_size = 1;
        let router = Router::new(options);
        let works = async |number: i32| {
            let row = router
                .by_key(1)
                .query_one("SELECT $1::int4", &[&number])
                .await
                .unwrap();
            assert_eq!(row.get::<_, i32>(0), number);
        };
        for left in 0.. {
            let title = format!("{left}");
            let call = async {
                let id = i64::from(left);
                router
                    .by_key(1)
                    .query(
                        "SELECT count(*), $1::text FROM \
                    {shard}.photos",
                        &[&title],
                    )
                    .await?;
                router
                    .by_key(1)
                    .transaction(async |tx| {
                        tx.execute(INSERT, &[&id, &"one"]).await?;
                        let caught: Result<u64, Error> = tx
                            .savepoint(async { tx.execute(INSERT, &[&id, &"two"]).await })
                            .await;
                        assert!(caught.is_err());
                        tx.execute("DELETE FROM {shard}.photos WHERE id <> $1", &[&id])
                            .await
                    })
                    .await?;
                router
                    .by_key(1)
                    .query("SELECT * FROM {shard}.nothing", &[])
                    .await
                    .map(drop)
            };
            let done = Polls {
                future: Box::pin(call),
                left,
            }
            .await;
            works(left as i32).await;
            // The whole transaction or nothing of it.
            assert!(shards.titles(0, 1).await.len() <= 1);
            if done.is_some() {
                eprintln!("dropped at {left} places");
                break;
            }
        }
    }
}
