//! What an application gets back is true: `Ok` means that the server has committed, and an error
//! that reports that nothing has run means that there is no effect.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgshard::fanout::{Inserted, Partial};
use pgshard::pg::ConnectOptions;
use pgshard::router::{Error, Sql, Transaction};
use pgshard::{Router, columns};
use tokio::sync::Notify;

use super::by_hand::{Shards, schema, shard};
use super::proxy::Proxy;
use super::ways::Ways;
use super::{COUNT, INSERT};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Inserts, and waits for a lock that a test holds.
const BUMP: &str = "CREATE FUNCTION shard_0000.bump() RETURNS bigint LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock(99);
        INSERT INTO shard_0000.photos SELECT count(*), 'bumped' FROM shard_0000.photos;
        RETURN 1;
    END $$";

/// Waits until the server's statistics show this.
async fn until(shards: &Shards, host: usize, condition: &str) {
    let sql = format!("SELECT {condition}");
    let met = async {
        while !shards.db[host]
            .query_one(&sql, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, met)
        .await
        .unwrap_or_else(|_| panic!("never: {condition}"));
}

/// Returns the titles of shard 0, and empties it.
async fn taken(shards: &Shards) -> Vec<String> {
    let titles = shards.titles(0, 0).await;
    shards.db[0]
        .batch_execute("TRUNCATE shard_0000.photos")
        .await
        .unwrap();
    titles
}

on_each_version! {
    /// The backend dies while it runs a statement, or COMMIT: it is unknown whether that has taken
    /// effect. A pooler reports it in its own words.
    async fn whoever_dies_at_work_may_have_done_it(version) {
        let shards = Shards::start(version, 4).await;
        let slow =
            "CREATE FUNCTION shard_0000.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                PERFORM pg_sleep(60);
            RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON shard_0000.photos DEFERRABLE \
            INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION shard_0000.slow()";
        shards.db[0].batch_execute(slow).await.unwrap();
        let sleeping = "EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep')";
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = \
            'PgSleep'";
        for Ways { name, router, .. } in Ways::all(&shards).await {
            // From here on the types of its parameters are known, so that nothing is sent before
            // it.
            let _ = router
                .by_key(0)
                .execute(INSERT, &[&Option::<i64>::None, &"no key"])
                .await
                .unwrap_err();
            let single = tokio::spawn({
                let router = router.clone();
                async move {
                    router
                        .by_key(0)
                        .execute(INSERT, &[&1_i64, &"single"])
                        .await
                        .map(drop)
                }
            });
            until(&shards, 0, sleeping).await;
            shards
                .cluster
                .superuser(0)
                .await
                .query(kill, &[])
                .await
                .unwrap();
            let error = single.await.unwrap().unwrap_err();
            assert!(
                error.may_have_run() && !error.is_retryable(),
                "{name}: {error:?}"
            );
            let whole = tokio::spawn({
                let router = router.clone();
                async move {
                    let insert = async |tx: Transaction| {
                        tx.execute(INSERT, &[&2_i64, &"whole"]).await.map(drop)
                    };
                    router.by_key(0).transaction(insert).await
                }
            });
            until(&shards, 0, sleeping).await;
            shards
                .cluster
                .superuser(0)
                .await
                .query(kill, &[])
                .await
                .unwrap();
            let error = whole.await.unwrap().unwrap_err();
            assert!(
                matches!(error, Error::InDoubt { .. }) && error.may_have_run(),
                "{name}: {error:?}"
            );
        }
    }

    /// An error that a savepoint has caught does not undo the rest: neither that the server refused
    /// to write, nor that a row existed.
    async fn ok_is_a_commit(version) {
        let shards = Shards::start(version, 4).await;
        for Ways { name, router, .. } in Ways::all(&shards).await {
            for (refused, code) in [
                (
                    "SET LOCAL transaction_read_only = \
                on",
                    "25006",
                ),
                ("SELECT 1/0", "22012"),
            ] {
                let done = router.by_key(0).transaction(async |tx| {
                    tx.execute(INSERT, &[&1_i64, &"first"]).await?;
                    let caught: Result<u64, Error> = tx
                        .savepoint(async {
                            tx.execute(refused, &[]).await?;
                            tx.execute("DELETE FROM {shard}.photos", &[]).await
                        })
                        .await;
                    assert_eq!(caught.unwrap_err().code().unwrap().code(), code, "{name}");
                    tx.execute(INSERT, &[&2_i64, &"second"]).await
                });
                done.await.unwrap();
                assert_eq!(taken(&shards).await, ["first", "second"], "{name} {code}");
            }
            // An error that was not caught.
            let failed = router.by_key(0).transaction(async |tx| {
                tx.execute(INSERT, &[&1_i64, &"first"]).await?;
                tx.execute("SET LOCAL transaction_read_only = on", &[])
                    .await?;
                let _ = tx.execute("DELETE FROM {shard}.photos", &[]).await;
                Ok::<_, Error>(())
            });
            assert!(
                matches!(failed.await, Err(Error::TransactionFailed { .. })),
                "{name}"
            );
            assert_eq!(taken(&shards).await, [""; 0], "{name}");
            // A savepoint with work that reports success although it failed.
            let kept = router.by_key(0).transaction(async |tx| {
                tx.execute(INSERT, &[&1_i64, &"kept"]).await?;
                let swallowed: Result<(), Error> = tx
                    .savepoint(async {
                        tx.execute(INSERT, &[&2_i64, &"undone"]).await?;
                        let _ = tx.execute("SELECT 1/0", &[]).await;
                        Ok(())
                    })
                    .await;
                assert!(swallowed.is_err(), "{name}");
                Ok::<_, Error>(())
            });
            kept.await.unwrap();
            assert_eq!(taken(&shards).await, ["kept"], "{name}");
            // Refused at COMMIT: nothing is there, and the connection can be used again.
            shards.db[0]
                .batch_execute(
                    "ALTER TABLE shard_0000.photos ADD CONSTRAINT twice UNIQUE (title) DEFERRABLE \
                        INITIALLY DEFERRED",
                )
                .await
                .unwrap();
            let deferred = router.by_key(0).transaction(async |tx| {
                tx.execute(INSERT, &[&1_i64, &"twice"]).await?;
                tx.execute(INSERT, &[&2_i64, &"twice"]).await
            });
            let error = deferred.await.unwrap_err();
            assert!(
                error.code().unwrap().code() == "23505" && !error.may_have_run(),
                "{name} {error:?}"
            );
            shards.db[0]
                .batch_execute(
                    "ALTER TABLE shard_0000.photos DROP CONSTRAINT \
                twice",
                )
                .await
                .unwrap();
            assert_eq!(
                router
                    .by_key(0)
                    .query_one(COUNT, &[])
                    .await
                    .unwrap()
                    .get::<_, i64>(0),
                0,
                "{name}"
            );
        }
    }

    /// After a statement was given up nothing more is sent on the transaction, so that nothing of
    /// it can be committed.
    async fn given_up_in_a_transaction(version) {
        let shards = Shards::start(version, 4).await;
        for Ways { name, router, .. } in Ways::all(&shards).await {
            let result = router.by_key(0).transaction(async |tx| {
                tx.execute(INSERT, &[&1_i64, &"given up"]).await?;
                let slow = tx.query("SELECT pg_sleep(60)", &[]);
                assert!(
                    tokio::time::timeout(Duration::from_millis(50), slow)
                        .await
                        .is_err()
                );
                // With a text that was never sent before.
                let next = format!(
                    "UPDATE {{shard}}.photos SET title = $1 WHERE id = $2 /* {name} \
                    */"
                );
                let next = tx.execute(&next, &[&"seen", &1_i64]).await;
                assert!(
                    matches!(next, Err(Error::TransactionFailed { .. })),
                    "{name} {next:?}"
                );
                Ok::<_, Error>(())
            });
            let error = result.await.unwrap_err();
            assert!(
                matches!(error, Error::TransactionFailed { .. }) && !error.may_have_run(),
                "{name} {error:?}"
            );
            assert_eq!(taken(&shards).await, [""; 0], "{name}");
        }
    }

    /// A savepoint that is dropped between two statements leaves half of its work: the transaction
    /// is not committed.
    async fn a_savepoint_is_given_up(version) {
        let shards = Shards::start(version, 4).await;
        for Ways { name, router, .. } in Ways::all(&shards).await {
            let result = router.by_key(0).transaction(async |tx| {
                let half = Notify::new();
                let savepoint = tx.savepoint(async {
                    tx.execute(INSERT, &[&1_i64, &"half"]).await?;
                    half.notify_one();
                    std::future::pending::<Result<(), Error>>().await
                });
                tokio::select! {
                    _ = savepoint => unreachable!("it never ends"),
                    () = half.notified() => {}
                }
                let next = tx.execute(INSERT, &[&2_i64, &"rest"]).await;
                assert!(
                    matches!(next, Err(Error::TransactionFailed { .. })),
                    "{name} {next:?}"
                );
                Ok::<_, Error>(())
            });
            assert!(
                matches!(result.await, Err(Error::TransactionFailed { .. })),
                "{name}"
            );
            assert_eq!(taken(&shards).await, [""; 0], "{name}");
        }
    }

    /// What runs concurrently with an open savepoint would be undone with it, so it is refused. One
    /// after the other and within each other they are allowed, also around those of another
    /// transaction.
    async fn savepoints_do_not_overlap(version) {
        let shards = Shards::start(version, 4).await;
        for Ways { name, router, .. } in Ways::all(&shards).await {
            let told = router.by_key(0).transaction(async |tx| {
                let insert =
                    async |id: i64, title: &'static str| tx.execute(INSERT, &[&id, &title]).await;
                let fails = tx.savepoint(async {
                    insert(1, "undone").await?;
                    // The others get their turn.
                    tokio::task::yield_now().await;
                    tx.execute("SELECT 1/0", &[]).await
                });
                let beside = tx.savepoint(insert(2, "beside"));
                let (failed, beside, plain) = tokio::join!(fails, beside, insert(3, "plain"));
                assert_eq!(
                    failed.unwrap_err().code().unwrap().code(),
                    "22012",
                    "{name}"
                );
                for refused in [&beside, &plain] {
                    assert!(
                        matches!(refused, Err(Error::SavepointOpen { .. })),
                        "{name} {refused:?}"
                    );
                }
                // A task of its own is not within it either.
                let spawned = tx
                    .savepoint(async {
                        let tx = tx.clone();
                        tokio::spawn(async move { tx.execute(INSERT, &[&4_i64, &"spawned"]).await })
                            .await
                            .unwrap()
                    })
                    .await;
                assert!(
                    matches!(spawned, Err(Error::SavepointOpen { .. })),
                    "{name} {spawned:?}"
                );
                let nested = tx
                    .savepoint(async {
                        insert(5, "outer").await?;
                        let inner: Result<u64, Error> = tx
                            .savepoint(async {
                                insert(6, "inner").await?;
                                insert(6, "again").await
                            })
                            .await;
                        assert!(inner.is_err(), "{name}");
                        // Another shard's transaction with a savepoint, within which this one
                        // continues.
                        let other = router.by_key(2).transaction(async |other| {
                            let both = async {
                                other.execute(COUNT, &[]).await?;
                                insert(7, "through another").await
                            };
                            other.savepoint(both).await
                        });
                        other.await
                    })
                    .await;
                nested?;
                tx.savepoint(insert(8, "last")).await
            });
            told.await.unwrap();
            assert_eq!(
                taken(&shards).await,
                ["last", "outer", "through another"],
                "{name}"
            );
        }
    }

    /// A clone of a transaction ends with its call: it keeps no connection and no lock.
    async fn a_clone_does_not_outlive_the_call(version) {
        let shards = Shards::start(version, 4).await;
        for Ways { name, router, .. } in Ways::all(&shards).await {
            let kept: Arc<Mutex<Vec<Transaction>>> = Arc::default();
            let busy = Arc::new(Mutex::new(None));
            let call = router
                .by_key(0)
                .within(Duration::from_secs(3))
                .transaction(async |tx| {
                    tx.execute(INSERT, &[&1_i64, &"locked"]).await?;
                    kept.lock().unwrap().push(tx.clone());
                    let clone = tx.clone();
                    let sleeping =
                        tokio::spawn(async move { clone.query("SELECT pg_sleep(59)", &[]).await });
                    *busy.lock().unwrap() = Some(sleeping);
                    std::future::pending::<Result<(), Error>>().await
                });
            let error = call.await.unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::TimedOut {
                        may_have_run: false,
                        ..
                    }
                ),
                "{name} {error:?}"
            );
            let sleeping = busy.lock().unwrap().take().unwrap();
            assert!(
                matches!(sleeping.await.unwrap(), Err(Error::TransactionEnded { .. })),
                "{name}"
            );
            let kept = kept.lock().unwrap().pop().unwrap();
            assert!(
                matches!(
                    kept.execute(INSERT, &[&2_i64, &"late"]).await,
                    Err(Error::TransactionEnded { .. })
                ),
                "{name}"
            );
            until(
                &shards,
                0,
                "NOT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%(59)%' AND pid <> \
                    pg_backend_pid())",
            )
            .await;
            shards.db[0]
                .batch_execute("SET lock_timeout = '20s'")
                .await
                .unwrap();
            assert_eq!(taken(&shards).await, [""; 0], "{name}");
        }
    }

    /// `?` on a call over many shards keeps what is done, and its error reports that the call must
    /// not be repeated.
    async fn done_in_part(version) {
        let shards = Shards::start(version, 16).await;
        let router = shards.router();
        let rows: Vec<(i64, i64)> = (0..16).map(|key| (key, 100 + key)).collect();
        let insert = async |places: &[usize]| -> Result<Vec<Inserted>, Error> {
            let rows: Vec<(i64, i64)> = places.iter().map(|place| rows[*place]).collect();
            let sql = "INSERT INTO {shard}.photos (id, title) SELECT * FROM unnest($1::bigint[], \
                    $2::text[]) RETURNING id";
            let columns = |rows: &[&(i64, i64)]| {
                columns![
                    rows.iter().map(|row| row.1),
                    rows.iter().map(|_| "x".to_owned())
                ]
            };
            Ok(router
                .insert_many(&rows, |(key, _)| *key)?
                .query(sql, columns)
                .await?)
        };
        shards
            .cluster
            .server(1)
            .stop(pgshard::dev::StopMode::Fast)
            .unwrap();
        let all: Vec<usize> = (0..rows.len()).collect();
        let error = insert(&all).await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::Partial {
                    failed: 8,
                    shards: 16,
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(error.may_have_run() && !error.is_retryable(), "{error:?}");
        let partial = Partial::<Vec<Inserted>, usize>::of(&error).unwrap();
        assert_eq!(partial.done.len(), 8);
        let left: Vec<usize> = partial.wanted().copied().collect();
        assert_eq!(left, (8..16).collect::<Vec<_>>());
        // If every shard failed before it was reached, nothing was done, and the call may be tried
        // again.
        let error = insert(&left).await.unwrap_err();
        assert!(error.is_retryable() && !error.may_have_run(), "{error:?}");
        // Nor was anything done by a call that only reads.
        let count = Sql::reading(COUNT);
        let ids: Vec<i64> = (0..16)
            .map(|number| pgshard::id::Id::new(1, shard(number), 0).unwrap().encode())
            .collect();
        let error = Error::from(
            router
                .by_ids(&ids)
                .query(&Sql::reading(
                    "SELECT id FROM {shard}.photos WHERE id = ANY($1)",
                ))
                .await
                .unwrap_err(),
        );
        assert!(error.is_retryable() && !error.may_have_run(), "{error:?}");
        shards.cluster.server(1).start().unwrap();
        let back = async {
            while router.by_key(8).query(&count, &[]).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await
            }
        };
        tokio::time::timeout(LONG, back).await.unwrap();
        insert(&left).await.unwrap();
        let mut counts = router.all_shards().query(COUNT, &[]);
        while let Some((shard, rows)) = counts.next().await {
            assert_eq!(rows.unwrap()[0].get::<_, i64>(0), 1, "{shard}");
        }
    }

    /// A SELECT can write: once it was sent, and its answer is lost, it may have run, and is not
    /// run again.
    async fn a_select_that_was_sent(version) {
        let shards = Shards::start(version, 4).await;
        shards.db[0].batch_execute(BUMP).await.unwrap();
        for unnamed in [false, true] {
            for many in [false, true] {
                let proxy = Proxy::to(shards.cluster.server(0).port()).await;
                let mut options = shards.options();
                // What is lost at the proxy has reached the server nevertheless.
                let text = format!(
                    "host=127.0.0.1,127.0.0.1 port={},{} user=app dbname=app",
                    proxy.port,
                    shards.cluster.server(0).port()
                );
                options.hosts[0].connect = ConnectOptions::parse(&text).unwrap();
                if unnamed {
                    options.hosts[0].prepare = pgshard::router::PrepareMode::Unnamed;
                }
                let router = Router::new(options);
                shards.db[0]
                    .batch_execute("SELECT pg_advisory_lock(99)")
                    .await
                    .unwrap();
                let call = tokio::spawn({
                    let router = router.clone();
                    async move {
                        let bump = "SELECT {shard}.bump()";
                        if many {
                            router
                                .shards([shard(0)])
                                .query(bump, &[])
                                .next()
                                .await
                                .unwrap()
                                .1
                                .map(drop)
                        } else {
                            router.by_key(0).query(bump, &[]).await.map(drop)
                        }
                    }
                });
                until(
                    &shards,
                    0,
                    "EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND \
                    NOT granted)",
                )
                .await;
                // The statement continues, and no answer comes back.
                proxy.fall_silent();
                shards.db[0]
                    .batch_execute("SELECT pg_advisory_unlock(99)")
                    .await
                    .unwrap();
                if unnamed {
                    // It waits within a transaction of the router's, and the end of that does not
                    // arrive.
                    until(
                        &shards,
                        0,
                        "NOT EXISTS (SELECT FROM pg_locks WHERE locktype = \
                        'advisory' AND NOT granted)",
                    )
                    .await;
                } else {
                    until(&shards, 0, "EXISTS (SELECT FROM shard_0000.photos)").await;
                }
                drop(proxy);
                let error = call.await.unwrap().unwrap_err();
                assert!(matches!(error, Error::ConnectionLost { .. }), "{error:?}");
                assert!(error.may_have_run() && !error.is_retryable(), "{error:?}");
                let rows = taken(&shards).await.len();
                assert_eq!(
                    rows,
                    usize::from(!unnamed),
                    "unnamed {unnamed}, many {many}"
                );
            }
        }
    }

    /// The caller declares that it only reads: then a lost connection is nothing worse, and many
    /// shards are queried again.
    async fn a_select_by_the_callers_word(version) {
        let shards = Shards::start(version, 4).await;
        let once = "CASE WHEN nextval('shard_0000.times') = 1 THEN \
            pg_terminate_backend(pg_backend_pid()) \
                ELSE true END";
        shards.db[0]
            .batch_execute("CREATE SEQUENCE shard_0000.times")
            .await
            .unwrap();
        let again = async || {
            shards.db[0]
                .batch_execute(
                    "ALTER SEQUENCE shard_0000.times \
            RESTART",
                )
                .await
                .unwrap()
        };
        let sql = format!("SELECT {once}");
        let router = shards.router();
        let error = router.by_key(0).query(&sql, &[]).await.unwrap_err();
        assert!(error.may_have_run() && !error.is_retryable(), "{error:?}");
        for way in 0..4 {
            again().await;
            let mut options = shards.options();
            if way == 3 {
                options.selects = pgshard::router::Selects::OnlyRead;
            }
            let router = Router::new(options);
            let shard = router.by_key(0);
            let error = match way {
                0 => shard.query(&Sql::reading(&sql), &[]).await,
                1 => shard.reads().query(&sql, &[]).await,
                2 => {
                    shard
                        .build_transaction()
                        .read_only(true)
                        .run(async |tx| {
                            tx.query("SELECT pg_terminate_backend(pg_backend_pid())", &[])
                                .await
                        })
                        .await
                }
                _ => shard.query(&sql, &[]).await,
            };
            let error = error.unwrap_err();
            assert!(
                error.is_retryable() && !error.may_have_run(),
                "{way} {error:?}"
            );
        }
        again().await;
        let sql = Sql::reading(&sql);
        router
            .shards([shard(0)])
            .query(&sql, &[])
            .next()
            .await
            .unwrap()
            .1
            .unwrap();
    }

    /// A raw client that is dropped within a transaction leaves no lock, even if its connection is
    /// never borrowed again.
    async fn a_raw_client_is_dropped(version) {
        let shards = Shards::start(version, 4).await;
        for Ways { name, router, .. } in Ways::all(&shards).await {
            {
                let client = router.by_key(0).client().await.unwrap();
                client
                    .batch_execute("BEGIN; LOCK TABLE shard_0000.photos")
                    .await
                    .unwrap();
            }
            shards.db[0]
                .batch_execute("SET lock_timeout = '20s'")
                .await
                .unwrap();
            assert_eq!(taken(&shards).await, [""; 0], "{name}");
        }
    }

    /// A router outlives a runtime that ends while a host is tried.
    async fn a_router_outlives_a_runtime(version) {
        let shards = Shards::start(version, 4).await;
        let proxy = Proxy::to(shards.cluster.server(0).port()).await;
        let mut options = shards.options();
        options.hosts[0].connect = ConnectOptions::parse(&format!(
            "host=127.0.0.1 port={} user=app \
                dbname=app",
            proxy.port
        ))
        .unwrap();
        options.create_max = Duration::from_millis(300);
        let router = Router::new(options);
        proxy.fall_silent();
        let first = router.clone();
        tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                first.by_key(0).query(COUNT, &[]).await.unwrap_err();
                tokio::time::sleep(Duration::from_millis(150)).await;
                // Begins a try, and does not wait for it.
                first.by_key(0).query(COUNT, &[]).await.unwrap_err();
            });
            runtime.shutdown_background();
        })
        .await
        .unwrap();
        proxy.speak_again();
        let tried = AtomicU32::new(0);
        let back = async {
            while router.by_key(0).query(COUNT, &[]).await.is_err() {
                tried.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), back)
            .await
            .expect("the host is met again");
    }

    /// A limit applies to a call over many shards as a whole, however many of them do not answer.
    async fn one_limit_for_many(version) {
        let shards = Shards::start(version, 64).await;
        let mut options = shards.options();
        options.statement_timeout = Some(Duration::from_secs(2));
        let router = Router::new(options);
        let mut lock = String::from("BEGIN;");
        for number in 0..32 {
            lock += &format!("LOCK TABLE {}.photos;", schema(number));
        }
        shards.db[0].batch_execute(&lock).await.unwrap();
        let asking = async {
            let mut answers = router.all_shards().width(1).query(COUNT, &[]);
            let (mut late, mut fine) = (0, 0);
            while let Some((shard, answer)) = answers.next().await {
                match answer {
                    Ok(_) => fine += 1,
                    Err(error) => {
                        assert!(
                            matches!(error, Error::TimedOut { .. }) && shard.get() < 32,
                            "{error:?}"
                        );
                        late += 1;
                    }
                }
            }
            (late, fine)
        };
        // One after the other they would take 64 seconds.
        let ended = tokio::time::timeout(Duration::from_secs(30), asking)
            .await
            .expect(
                "one limit, \
            not one for each",
            );
        assert_eq!(ended, (32, 32));
        shards.db[0].batch_execute("ROLLBACK").await.unwrap();
    }
}
