//! Connections: what a session keeps, and what it must not keep; transactions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pgshard::Router;
use pgshard::router::{Error, Sql, Transaction};
use tokio_postgres::IsolationLevel;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type};

use super::by_hand::{Shards, shard};
use super::{COUNT, INSERT};

fn narrow(shards: &Shards, statements: usize) -> Router {
    let mut options = shards.options();
    options.hosts[0].pool_size = 1;
    options.statements_per_connection = statements;
    Router::new(options)
}

/// A value of an enum that each shard has of its own.
#[derive(Debug)]
struct Kind(&'static str);

impl ToSql for Kind {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        ty.name() == "kind"
    }

    tokio_postgres::types::to_sql_checked!();
}

on_each_version! {
    /// A connection never has more statements prepared than it may, in client and server; with 0 it
    /// keeps none.
    async fn prepared_statements_are_bounded(version) {
        let shards = Shards::start(version, 4).await;
        let prepared = "SELECT count(*) FROM pg_prepared_statements";
        for (limit, left) in [(3, 3), (0, 1)] {
            let router = narrow(&shards, limit);
            for number in 0..20 {
                let sql = format!("SELECT {number} FROM {{shard}}.photos");
                router
                    .shard(shard(number % 2))
                    .unwrap()
                    .query(&sql, &[])
                    .await
                    .unwrap();
            }
            let row = router
                .by_key(0)
                .query_one(&Sql::new(prepared), &[])
                .await
                .unwrap();
            assert_eq!(row.get::<_, i64>(0), left);
        }
    }

    /// A statement that is not kept gives what one that is kept gives: with types of the shard's
    /// own, after a migration that changes the type of a parameter, and when something is wrong.
    async fn statements_that_are_not_kept(version) {
        let shards = Shards::start(version, 4).await;
        for schema in ["shard_0000", "shard_0001"] {
            let insert = format!("INSERT INTO {schema}.photos (id, title) VALUES (1, '{schema}')");
            shards.db[0].batch_execute(&insert).await.unwrap();
        }
        for kept in [0, 256] {
            let router = narrow(&shards, kept);
            for number in [0, 1, 0, 1, 0] {
                let (shard, schema) = (
                    router.shard(shard(number)).unwrap(),
                    format!("shard_{number:04}"),
                );
                let sql = "SELECT title, kind, $2::int + 1 FROM {shard}.photos WHERE id = $1 AND \
                    kind = $3";
                let row = shard
                    .query_one(sql, &[&1_i64, &7, &Kind("photo")])
                    .await
                    .unwrap();
                assert_eq!((row.get::<_, String>(0), row.get::<_, i32>(2)), (schema, 8));
                assert_eq!(row.columns()[1].type_().name(), "kind");
                let none = shard
                    .query(
                        "SELECT FROM {shard}.photos WHERE id = \
                    $1",
                        &[&2_i64],
                    )
                    .await
                    .unwrap();
                assert!(none.is_empty());
                let changed = shard.execute(
                    "UPDATE {shard}.photos SET title = title WHERE id = \
                    $1",
                    &[&1_i64],
                );
                assert_eq!(changed.await.unwrap(), 1);
                for (sql, code) in [
                    ("SELECT 1 / $1::int", "22012"),
                    (
                        "SELECT $1::int FROM \
                    {shard}.nowhere",
                        "42P01",
                    ),
                ] {
                    let error = shard.query(sql, &[&0_i32]).await.unwrap_err();
                    assert_eq!(error.code().map(|code| code.code()), Some(code), "{error}");
                }
            }
        }
        for kept in [0, 256] {
            let router = narrow(&shards, kept);
            let shard = router.by_key(0);
            let sql = "SELECT title FROM {shard}.photos WHERE id = $1";
            for _ in 0..3 {
                shard.query_one(sql, &[&1_i64]).await.unwrap();
            }
            let change = |to: &str| {
                format!(
                    "ALTER TABLE shard_0000.photos ALTER COLUMN id TYPE \
                {to}"
                )
            };
            shards.db[0].batch_execute(&change("text")).await.unwrap();
            for _ in 0..2 {
                shard.query_one(sql, &[&"1"]).await.unwrap();
            }
            assert!(shard.query_one(sql, &[&1_i64]).await.is_err());
            shard.query_one(sql, &[&"1"]).await.unwrap();
            shards.db[0]
                .batch_execute(&change("bigint USING id::bigint"))
                .await
                .unwrap();
            shard.query_one(sql, &[&1_i64]).await.unwrap();
        }
    }

    /// Where the statements of all shards fit on each connection, a call gets the one used last.
    async fn the_connection_used_last_serves_all_shards(version) {
        let shards = Shards::start(version, 16).await;
        let router = shards.router();
        let pid = async |number| {
            let sql = "SELECT pg_backend_pid(), count(*) FROM {shard}.photos";
            let row = router.shard(shard(number)).unwrap().query_one(sql, &[]);
            row.await.unwrap().get::<_, i32>(0)
        };
        let first = router.shard(shard(0)).unwrap();
        let held = futures_util::future::try_join_all((0..4).map(|_| first.client()));
        drop(held.await.unwrap());
        while router.pools()[0].used > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut seen = BTreeSet::new();
        for number in 0..8 {
            seen.insert(pid(number).await);
        }
        assert_eq!(seen.len(), 1);
    }

    /// Where they do not fit, a shard's calls get the same connection while it is free, and another
    /// if it is not; and while one connection is enough, there is only one.
    async fn a_shard_keeps_its_favourite_connection(version) {
        let shards = Shards::start(version, 16).await;
        let mut options = shards.options();
        options.statements_per_connection = 4;
        let router = Router::new(options);
        let pid = async |number| {
            let sql = "SELECT pg_backend_pid(), count(*) FROM {shard}.photos";
            let row = router.shard(shard(number)).unwrap().query_one(sql, &[]);
            row.await.unwrap().get::<_, i32>(0)
        };
        let mut one = BTreeSet::new();
        for number in 0..8 {
            one.insert(pid(number).await);
        }
        assert_eq!(one.len(), 1);

        let first = router.shard(shard(0)).unwrap();
        let held = futures_util::future::try_join_all((0..4).map(|_| first.client()))
            .await
            .unwrap();
        drop(held);
        // Each is cleaned before others get it: this waits until all four exist.
        let together = tokio::sync::Barrier::new(4);
        let all = (0..4).map(|_| {
            first.transaction(async |_| {
                together.wait().await;
                Ok::<_, Error>(())
            })
        });
        futures_util::future::try_join_all(all).await.unwrap();
        let mut pids = Vec::new();
        for _ in 0..3 {
            let mut round = Vec::new();
            for number in 0..8 {
                round.push(pid(number).await);
            }
            pids.push(round);
        }
        assert_eq!(pids[0].iter().collect::<BTreeSet<_>>().len(), 4, "{pids:?}");
        assert!(pids.iter().all(|round| *round == pids[0]), "{pids:?}");

        // Its favourite is in use, and then others are: any will do.
        let mut seen = BTreeSet::new();
        let mut held = Vec::new();
        for _ in 0..3 {
            seen.insert(pid(5).await);
            held.push(router.shard(shard(5)).unwrap().client().await.unwrap());
        }
        seen.insert(pid(5).await);
        assert_eq!(seen.len(), 4);
    }

    /// Where statements fall out of the connections, a call waits for its shard's favourite for a
    /// moment, and not until a slow statement is done with it.
    async fn a_slow_favourite(version) {
        let shards = Shards::start(version, 16).await;
        let mut options = shards.options();
        options.statements_per_connection = 1;
        options.wait_max = Duration::from_secs(3600);
        options.hosts.iter_mut().for_each(|host| host.pool_size = 8);
        let router = Router::new(options);
        let on = |number| router.shard(shard(number)).unwrap();
        let sql = "SELECT pg_backend_pid(), count(*) FROM {shard}.photos";
        let pid = async |number| {
            on(number)
                .query_one(sql, &[])
                .await
                .unwrap()
                .get::<_, i32>(0)
        };
        let unused = async || {
            while router.pools()[0].used > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // One connection for the statements of eight shards: it finds none of them.
        let held = futures_util::future::try_join_all((0..7).map(|number| on(number).client()))
            .await
            .unwrap();
        for call in 0..100 {
            pid(call % 8).await;
        }
        drop(held);
        unused().await;
        assert_eq!(router.pools()[0].idle, 8);

        // All connections but one are in use, and a statement has the favourite of shard 0.
        let sleeper = router.clone();
        let slow = tokio::spawn(async move {
            sleeper
                .shard(shard(0))
                .unwrap()
                .query(
                    "SELECT pg_backend_pid(), \
                pg_sleep(600)",
                    &[],
                )
                .await
        });
        let sleeps = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND \
            wait_event = 'PgSleep'";
        let of_slow: i32 = loop {
            if let Some(row) = shards.db[0].query_opt(sleeps, &[]).await.unwrap() {
                break row.get(0);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let held = futures_util::future::try_join_all((1..7).map(|number| on(number).client()))
            .await
            .unwrap();
        assert_eq!((router.pools()[0].used, router.pools()[0].idle), (7, 1));
        for _ in 0..3 {
            assert_ne!(pid(0).await, of_slow);
        }
        assert!(!slow.is_finished());
        drop(held);
        slow.abort();
        unused().await;
        pid(0).await;
    }

    /// Statements prepared before a migration of the application are prepared again, in and out of
    /// transactions.
    async fn a_migration_does_not_show(version) {
        let shards = Shards::start(version, 4).await;
        let router = narrow(&shards, 256);
        let all = "SELECT * FROM {shard}.photos";
        router
            .by_key(0)
            .execute(INSERT, &[&1_i64, &"a"])
            .await
            .unwrap();
        assert_eq!(router.by_key(0).query_one(all, &[]).await.unwrap().len(), 3);
        shards.db[0]
            .batch_execute(
                "ALTER TABLE shard_0000.photos ADD COLUMN more \
            int",
            )
            .await
            .unwrap();
        assert_eq!(router.by_key(0).query_one(all, &[]).await.unwrap().len(), 4);
        shards.db[0]
            .batch_execute(
                "ALTER TABLE shard_0000.photos ADD COLUMN still_more \
            int",
            )
            .await
            .unwrap();
        let columns = router.by_key(0).transaction(async |tx| {
            tx.execute("UPDATE {shard}.photos SET title = title || '!'", &[])
                .await?;
            Ok::<_, Error>(tx.query_one(all, &[]).await?.len())
        });
        assert_eq!(columns.await.unwrap(), 5);
        assert_eq!(shards.titles(0, 0).await, ["a!"]);
        // The caller has deallocated everything that was prepared.
        router
            .by_key(0)
            .execute("DEALLOCATE ALL", &[])
            .await
            .unwrap();
        router.by_key(0).query_one(all, &[]).await.unwrap();
    }

    /// What a raw client or a SET leaves behind is gone for the next user of the connection.
    async fn sessions_come_back_clean(version) {
        let shards = Shards::start(version, 4).await;
        let router = narrow(&shards, 256);
        let state = "SELECT current_setting('search_path') || ' ' || current_setting('work_mem') \
            || ' '
            || (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory') || ' ' || (SELECT \
            count(*)
                FROM pg_listening_channels())
            || ' ' || coalesce(to_regclass('pg_temp.mine')::text, '-') || ' ' || pg_backend_pid()";
        let asked = async || {
            router
                .by_key(0)
                .query_one(state, &[])
                .await
                .unwrap()
                .get::<_, String>(0)
        };
        let before = asked().await;
        {
            let mut client = router.by_key(0).client().await.unwrap();
            assert_eq!(
                (client.schema().as_str(), client.host()),
                ("\"shard_0000\"", &shards.name(0))
            );
            client
                .batch_execute(
                    "SET search_path = nowhere; SELECT pg_advisory_lock(7); LISTEN \
                x",
                )
                .await
                .unwrap();
            let transaction = client.transaction().await.unwrap();
            transaction
                .batch_execute(
                    "CREATE TEMP TABLE mine (n int); DECLARE c CURSOR WITH HOLD FOR \
                    SELECT 1",
                )
                .await
                .unwrap();
            transaction.commit().await.unwrap();
            client
                .batch_execute(
                    "BEGIN; INSERT INTO shard_0000.photos VALUES (1, 'never \
                committed')",
                )
                .await
                .unwrap();
        }
        assert_eq!(asked().await, before, "the same connection");
        router
            .by_key(0)
            .execute("SET work_mem = '123kB'", &[])
            .await
            .unwrap();
        assert_eq!(asked().await, before);
        assert!(shards.titles(0, 0).await.is_empty());
    }

    /// COMMIT and ROLLBACK, savepoints, errors, isolation; and the future of a transaction can be
    /// spawned.
    async fn transactions_commit_and_roll_back(version) {
        let shards = Shards::start(version, 4).await;
        let router = narrow(&shards, 256);
        let title = String::from("kept");
        let spawned = {
            let (router, title) = (router.clone(), title.clone());
            tokio::spawn(async move {
                let (title, times) = (&title, AtomicU32::new(0));
                let times = &times;
                let closure = async |tx: Transaction| {
                    times.fetch_add(1, Ordering::Relaxed);
                    tx.execute(INSERT, &[&1_i64, title]).await?;
                    tx.query_one(COUNT, &[])
                        .await
                        .map(|row| row.get::<_, i64>(0))
                };
                let count = router.by_key(0).transaction(closure).await;
                // The other way to write it.
                let second = router
                    .by_key(0)
                    .transaction(|tx| async move { tx.execute(INSERT, &[&2_i64, title]).await });
                second.await?;
                count
            })
        };
        assert_eq!(spawned.await.unwrap().unwrap(), 1);
        assert_eq!(shards.titles(0, 0).await, ["kept", "kept"]);

        /// An error of the application's own.
        #[derive(Debug)]
        enum Mine {
            No,
            #[allow(dead_code, reason = "shown when the test fails")]
            Router(Error),
        }
        impl From<Error> for Mine {
            fn from(error: Error) -> Mine {
                Mine::Router(error)
            }
        }
        let refused: Result<(), Mine> = router
            .by_key(0)
            .transaction(async |tx| {
                tx.execute(INSERT, &[&3_i64, &"undone"]).await?;
                Err(Mine::No)
            })
            .await;
        assert!(matches!(refused, Err(Mine::No)));

        let caught = router.by_key(0).transaction(async |tx| {
            tx.execute(INSERT, &[&4_i64, &"outer"]).await?;
            let twice: Result<u64, Error> = tx
                .savepoint(async { tx.execute(INSERT, &[&4_i64, &"inner"]).await })
                .await;
            assert_eq!(twice.unwrap_err().code().unwrap().code(), "23505");
            // A mistake in a name, caught the same way: the host is queried, and then it is
            // committed.
            tx.execute("SAVEPOINT mine", &[]).await?;
            assert!(
                tx.execute("SELECT * FROM {shard}.nothing", &[])
                    .await
                    .is_err()
            );
            tx.execute("ROLLBACK TO SAVEPOINT mine", &[]).await?;
            assert!(matches!(
                tx.execute("COMMIT", &[]).await,
                Err(Error::TransactionControl { .. })
            ));
            Ok::<_, Error>(())
        });
        caught.await.unwrap();
        assert_eq!(shards.titles(0, 0).await, ["kept", "kept", "outer"]);

        let swallowed = router.by_key(0).transaction(async |tx| {
            tx.execute(INSERT, &[&5_i64, &"lost"]).await?;
            let _ = tx.execute("SELECT 1/0", &[]).await;
            Ok::<_, Error>(())
        });
        assert!(matches!(
            swallowed.await,
            Err(Error::TransactionFailed { .. })
        ));

        let leaked = router
            .by_key(0)
            .transaction(async |tx| Ok::<_, Error>(tx))
            .await
            .unwrap();
        assert!(matches!(
            leaked.query(COUNT, &[]).await,
            Err(Error::TransactionEnded { .. })
        ));

        let level = router
            .by_key(0)
            .build_transaction()
            .isolation_level(IsolationLevel::RepeatableRead)
            .read_only(true);
        let said = level.run(async |tx| {
            let sql = "SELECT current_setting('transaction_isolation') || ' ' || \
                    current_setting('transaction_read_only')";
            Ok::<String, Error>(tx.query_one(sql, &[]).await?.get(0))
        });
        assert_eq!(said.await.unwrap(), "repeatable read on");

        // Dropped halfway: it is rolled back, and its connection is given to no other caller.
        let hangs = router.by_key(0).transaction(async |tx| {
            tx.execute(INSERT, &[&6_i64, &"dropped"]).await?;
            tx.execute("SELECT pg_sleep(60)", &[]).await
        });
        assert!(
            tokio::time::timeout(std::time::Duration::from_millis(100), hangs)
                .await
                .is_err()
        );
        assert_eq!(
            router
                .by_key(0)
                .query_one(COUNT, &[])
                .await
                .unwrap()
                .get::<_, i64>(0),
            3
        );
    }

    /// A lost connection is reported precisely: during COMMIT the outcome is in doubt, before that
    /// nothing has happened.
    async fn lost_connections_are_reported_precisely(version) {
        let shards = Shards::start(version, 4).await;
        let router = narrow(&shards, 256);
        shards.db[0]
            .batch_execute(
                "
            CREATE FUNCTION public.die() RETURNS trigger
            LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN \
            NULL; END';
            CREATE CONSTRAINT TRIGGER die AFTER INSERT ON shard_0000.photos DEFERRABLE INITIALLY \
            DEFERRED
                FOR EACH ROW WHEN (NEW.title = 'die') EXECUTE FUNCTION public.die()",
            )
            .await
            .unwrap();
        let runs = Arc::new(AtomicU32::new(0));
        let in_doubt = router.by_key(0).transaction(async |tx| {
            runs.fetch_add(1, Ordering::Relaxed);
            tx.execute(INSERT, &[&1_i64, &"die"]).await
        });
        let error = in_doubt.await.unwrap_err();
        assert!(
            matches!(error, Error::InDoubt { .. }) && error.may_have_run() && !error.is_retryable(),
            "{error:?}"
        );
        assert_eq!(runs.load(Ordering::Relaxed), 1);

        let die = "SELECT pg_terminate_backend(pg_backend_pid())";
        let error = router
            .by_key(0)
            .transaction(async |tx| tx.query(die, &[]).await)
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                Error::ConnectionLost {
                    may_have_run: false,
                    ..
                }
            ) && error.is_retryable(),
            "{error:?}"
        );
        let error = router.by_key(0).query(die, &[]).await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::ConnectionLost {
                    may_have_run: true,
                    ..
                }
            ) && !error.is_retryable(),
            "{error:?}"
        );
        let writes = "WITH x AS (SELECT pg_terminate_backend(pg_backend_pid())) SELECT * FROM x";
        let error = router.by_key(0).query(writes, &[]).await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::ConnectionLost {
                    may_have_run: true,
                    ..
                }
            ) && !error.is_retryable(),
            "{error:?}"
        );
    }
}
