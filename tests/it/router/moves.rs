//! Calls that meet a move, at every place where one can stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pgshard::Router;
use pgshard::router::{Error, Transaction};
use tokio_postgres::IsolationLevel;

use super::by_hand::{Shards, shard};
use super::{COUNT, INSERT};

const LONG: Duration = Duration::from_secs(60);

/// Callers of every kind that use one shard all the time. Ends with the titles that were
/// acknowledged.
struct Callers {
    stop: Arc<AtomicBool>,
    running: tokio::task::JoinSet<Vec<String>>,
}

impl Callers {
    fn start(router: &Router, number: u16) -> Callers {
        let (stop, next) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicI64::new(0)),
        );
        let mut running = tokio::task::JoinSet::new();
        for caller in 0..12 {
            let (router, stop, next) = (router.clone(), stop.clone(), next.clone());
            running.spawn(async move {
                let mut titles = Vec::new();
                let shard = router.shard(shard(number)).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let id = next.fetch_add(1, Ordering::Relaxed);
                    let title = format!("{id:08}");
                    match caller % 4 {
                        0 => {
                            shard.execute(INSERT, &[&id, &title]).await.unwrap();
                        }
                        1 => {
                            shard.query_one(COUNT, &[]).await.unwrap();
                            continue;
                        }
                        2 => {
                            let sql = "INSERT INTO {shard}.photos VALUES ($1, $2, \
                                $3::text::{shard}.kind)
                                ON CONFLICT (id) DO UPDATE SET title = excluded.title RETURNING \
                                {shard}.answer()";
                            let row = shard.query_one(sql, &[&id, &title, &"film"]).await.unwrap();
                            assert_eq!(row.get::<_, i32>(0), 42);
                        }
                        _ => {
                            let title = &title;
                            let both = shard.transaction(async |tx| {
                                tx.execute(INSERT, &[&id, &"unfinished"]).await?;
                                tx.execute(
                                    "UPDATE {shard}.photos SET title = $2 WHERE id = \
                                    $1",
                                    &[&id, title],
                                )
                                .await
                            });
                            assert_eq!(both.await.unwrap(), 1);
                        }
                    }
                    titles.push(title);
                }
                titles
            });
        }
        Callers { stop, running }
    }

    async fn stop(mut self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut titles = Vec::new();
        while let Some(done) = self.running.join_next().await {
            titles.extend(done.unwrap());
        }
        titles.sort_unstable();
        titles
    }
}

async fn pass(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

on_each_version! {
    /// Fenced and swapped back, then moved there and back again: no caller sees an error, and every
    /// acknowledged row exists once, on the host that serves.
    async fn callers_go_through_moves(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        let callers = Callers::start(&router, 1);
        pass(100).await;
        let moving = shards.prepare(1, 0).await;
        moving.fence(LONG).await;
        pass(150).await;
        moving.unfence().await;
        pass(100).await;
        shards.db[0]
            .batch_execute(
                "UPDATE pgshard.move SET phase = 'aborted'; DROP SCHEMA shard_0001__signpost \
                    CASCADE;
            DELETE FROM pgshard.ledger",
            )
            .await
            .unwrap();
        shards.db[1]
            .batch_execute("DELETE FROM pgshard.incoming; DROP SCHEMA shard_0001__incoming CASCADE")
            .await
            .unwrap();
        assert_eq!(router.by_key(1).host(), shards.name(0));

        let moving = shards.prepare(1, 0).await;
        moving.fence(LONG).await;
        moving.decide().await;
        pass(20).await;
        moving.open().await;
        pass(100).await;
        assert_eq!(router.by_key(1).host(), shards.name(1));
        let back = shards.prepare(1, 1).await;
        back.fence(LONG).await;
        back.decide().await;
        back.open().await;
        pass(100).await;
        assert_eq!(router.by_key(1).host(), shards.name(0));

        let titles = callers.stop().await;
        assert!(titles.len() > 50, "{}", titles.len());
        assert_eq!(shards.titles(0, 1).await, titles);
        assert!(router.stats().retries > 0);
    }

    /// A mover died while the shard was fenced: a router swaps back once the deadline has passed.
    async fn a_router_expires_a_fence(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        let moving = shards.prepare(1, 0).await;
        moving.fence(Duration::from_millis(300)).await;
        let callers = Callers::start(&router, 1);
        router
            .by_key(1)
            .execute(INSERT, &[&-1_i64, &"-"])
            .await
            .unwrap();
        assert_eq!(shards.state(0, 1).await, "serving");
        callers.stop().await;
    }

    /// A mover died between decide and open: a router opens. Until then no call is sent back and
    /// forth.
    async fn a_router_finishes_an_open(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        router
            .by_key(1)
            .execute(INSERT, &[&-1_i64, &"before"])
            .await
            .unwrap();
        let moving = shards.prepare(1, 0).await;
        moving.fence(LONG).await;
        moving.decide().await;
        let callers = Callers::start(&router, 1);
        router
            .by_key(1)
            .execute(INSERT, &[&-2_i64, &"after"])
            .await
            .unwrap();
        assert_eq!(
            (
                shards.state(0, 1).await.as_str(),
                shards.state(1, 1).await.as_str()
            ),
            ("moved", "serving")
        );
        assert_eq!(router.by_key(1).host(), shards.name(1));
        let mut titles = callers.stop().await;
        titles.extend(["after".to_owned(), "before".to_owned()]);
        assert_eq!(shards.titles(1, 1).await, titles);
    }

    /// An application's own mistake comes back immediately, and many of them cause few look-ups.
    async fn mistakes_cause_few_look_ups(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        let error = router
            .by_key(1)
            .query("SELECT * FROM {shard}.photo", &[])
            .await
            .unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42P01");
        assert_eq!(
            error.to_string(),
            "shard 1 on host db1 refuses the statement: \
             relation \"shard_0001.photo\" does not exist (42P01)"
        );
        assert!(!error.is_retryable());

        let before = router.stats();
        let began = Instant::now();
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let router = router.clone();
            callers.spawn(async move {
                for _ in 0..20 {
                    let error = router
                        .by_key(1)
                        .query(
                            "SELECT no_such_column FROM \
                            {shard}.photos",
                            &[],
                        )
                        .await
                        .unwrap_err();
                    assert_eq!(error.code().unwrap().code(), "42703");
                }
            });
        }
        while let Some(done) = callers.join_next().await {
            done.unwrap();
        }
        let (after, took) = (router.stats(), began.elapsed());
        assert_eq!(after.retries, before.retries);
        let bound = 2 + took.as_millis() as u64 / 10;
        assert!(
            after.look_ups - before.look_ups <= bound,
            "{} in {took:?}",
            after.look_ups - before.look_ups
        );
        // And the connections were kept.
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgshard' AND \
            datname = 'app'";
        assert!(
            shards.db[0]
                .query_one(sql, &[])
                .await
                .unwrap()
                .get::<_, i64>(0)
                <= 6
        );
    }

    /// A signpost has nothing in place of a type of the shard's own: there the driver refuses the
    /// parameter.
    async fn a_type_of_the_shards_own(version) {
        use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

        #[derive(Debug)]
        struct Film;
        impl ToSql for Film {
            fn to_sql(
                &self,
                _: &Type,
                out: &mut bytes::BytesMut,
            ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
                out.extend_from_slice(b"film");
                Ok(IsNull::No)
            }
            fn accepts(ty: &Type) -> bool {
                ty.name() == "kind"
            }
            to_sql_checked!();
        }

        let shards = Shards::start(version, 8).await;
        let moving = shards.prepare(1, 0).await;
        moving.fence(LONG).await;
        let router = shards.router();
        let (insert, transaction) = {
            let sql = "INSERT INTO {shard}.photos VALUES ($1, $2, $3)";
            let (one, two) = (router.clone(), router.clone());
            (
                tokio::spawn(
                    async move { one.by_key(1).execute(sql, &[&1_i64, &"a", &Film]).await },
                ),
                tokio::spawn(async move {
                    two.by_key(1)
                        .transaction(async |tx| tx.execute(sql, &[&2_i64, &"b", &Film]).await)
                        .await
                }),
            )
        };
        pass(100).await;
        moving.unfence().await;
        assert_eq!(insert.await.unwrap().unwrap(), 1);
        assert_eq!(transaction.await.unwrap().unwrap(), 1);
    }

    /// A function of the application raises `SH001`, and the host contradicts it: it runs twice,
    /// and the error is the application's. After a fence it is believed again.
    async fn an_application_that_says_it_has_moved(version) {
        let shards = Shards::start(version, 4).await;
        let router = shards.router();
        shards.db[0]
            .batch_execute(
                "CREATE SEQUENCE public.runs;
             CREATE FUNCTION public.moved() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
                PERFORM nextval('public.runs');
                RAISE EXCEPTION 'no' USING ERRCODE = 'SH001', DETAIL = '{\"state\": \"fenced\"}';
             END $$; GRANT USAGE ON SEQUENCE public.runs TO PUBLIC",
            )
            .await
            .unwrap();
        let by = router.shard(shard(1)).unwrap();
        for called in 1..=2_i64 {
            let error = by.query("SELECT public.moved()", &[]).await.unwrap_err();
            assert_eq!(
                error.code().map(|code| code.code()),
                Some("SH001"),
                "{error:?}"
            );
            let runs = shards.db[0]
                .query_one(
                    "SELECT last_value FROM \
                public.runs",
                    &[],
                )
                .await
                .unwrap();
            assert_eq!(runs.get::<_, i64>(0), 2 * called);
        }
        let whole = by
            .transaction(async |tx| tx.query("SELECT public.moved()", &[]).await)
            .await;
        assert_eq!(
            whole.unwrap_err().code().map(|code| code.code()),
            Some("SH001")
        );
        assert_eq!(by.query("SELECT 1", &[]).await.unwrap().len(), 1);
    }

    /// A transaction is run again as a whole: if it was open when the fence came, also under
    /// REPEATABLE READ, where DETAIL still contains `serving`; and if the closure does not pass the
    /// error on.
    async fn transactions_start_over(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        for (number, isolation) in [
            (1, IsolationLevel::ReadCommitted),
            (2, IsolationLevel::RepeatableRead),
        ] {
            let moving = shards.prepare(number, 0).await;
            let (runs, details) = (AtomicU32::new(0), std::sync::Mutex::new(Vec::new()));
            let closure = async |tx: Transaction| {
                let run = runs.fetch_add(1, Ordering::Relaxed);
                // Outside the shard, so that it does not hold up the barrier; rolled back with the
                // rest.
                tx.execute("CREATE TABLE IF NOT EXISTS public.notes (run int)", &[])
                    .await?;
                tx.execute("INSERT INTO public.notes VALUES ($1)", &[&(run as i32)])
                    .await?;
                if run == 0 {
                    moving.fence(LONG).await;
                }
                let inserted: Result<u64, Error> = tx
                    .savepoint(async { tx.execute(INSERT, &[&1_i64, &"x"]).await })
                    .await;
                if let Err(error) = inserted {
                    assert_eq!(error.code().unwrap().code(), "SH001");
                    details
                        .lock()
                        .unwrap()
                        .push(error.as_db_error().unwrap().detail().unwrap().to_owned());
                    // The closure ignores it.
                }
                Ok::<_, Error>(run)
            };
            let whole = router.shard(shard(number)).unwrap();
            let whole = whole
                .build_transaction()
                .isolation_level(isolation)
                .run(closure);
            let unfence = async {
                while shards.state(0, number).await != "fenced" {
                    pass(1).await;
                }
                pass(50).await;
                moving.unfence().await;
            };
            let (run, ()) = tokio::join!(whole, unfence);
            assert_eq!(run.unwrap(), 1);
            // Also under REPEATABLE READ, where the row is seen as it was before the fence.
            let details = details.into_inner().unwrap();
            assert!(
                details.len() == 1 && details[0].contains("\"state\" : \"fenced\""),
                "{details:?}"
            );
            assert_eq!(shards.titles(0, number).await, ["x"]);
            let notes = shards.db[0]
                .query("SELECT run FROM public.notes", &[])
                .await
                .unwrap();
            assert_eq!(
                notes
                    .iter()
                    .map(|row| row.get::<_, i32>(0))
                    .collect::<Vec<_>>(),
                [1]
            );
            shards.db[0]
                .batch_execute("DROP TABLE public.notes")
                .await
                .unwrap();
        }
    }

    /// A procedure that has committed its first half is not called again.
    async fn calls_are_not_repeated(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        shards.db[0]
            .batch_execute(
                "
            CREATE TABLE public.halves (n int);
            CREATE PROCEDURE public.two_halves() LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO public.halves VALUES (1);
                COMMIT;
                INSERT INTO shard_0001.photos VALUES (1, 'x');
            END $$",
            )
            .await
            .unwrap();
        let moving = shards.prepare(1, 0).await;
        moving.fence(LONG).await;
        for sql in [
            "CALL public.two_halves()",
            "-- again\n DO $$ BEGIN CALL public.two_halves(); \
            END $$",
        ] {
            let error = router.by_key(1).execute(sql, &[]).await.unwrap_err();
            assert!(matches!(error, Error::NotRepeated { .. }), "{error:?}");
            assert!(error.may_have_run() && !error.is_retryable());
        }
        let row = shards.db[0]
            .query_one("SELECT count(*) FROM public.halves", &[])
            .await
            .unwrap();
        assert_eq!(row.get::<_, i64>(0), 2);
        let error = router
            .by_key(1)
            .execute("CALL public.no_such_procedure()", &[])
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::NotRepeated { .. }),
            "fenced: nobody can tell"
        );
        moving.unfence().await;
        pass(100).await;
        let error = router
            .by_key(1)
            .execute("CALL public.no_such_procedure()", &[])
            .await
            .unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42883");
        assert!(matches!(error, Error::Statement { .. }));
    }

    /// A function from outside the shard, compiled while the signpost was there, does not stay
    /// broken.
    async fn a_function_compiled_on_the_signpost(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.hosts[0].pool_size = 1;
        options.retry_for = Duration::from_millis(50);
        let router = Router::new(options);
        shards.db[0]
            .batch_execute(
                "
            INSERT INTO shard_0001.photos VALUES (1, 'x');
            CREATE FUNCTION public.is_photo() RETURNS boolean LANGUAGE plpgsql AS $$
            DECLARE photo shard_0001.photos%ROWTYPE;
            BEGIN SELECT * INTO STRICT photo FROM shard_0001.photos; RETURN photo.kind = \
            'photo'::shard_0001.kind;
            END $$",
            )
            .await
            .unwrap();
        let moving = shards.prepare(1, 0).await;
        moving.fence(LONG).await;
        let error = router
            .by_key(1)
            .query_one("SELECT public.is_photo()", &[])
            .await
            .unwrap_err();
        assert!(matches!(error, Error::ShardUnavailable { .. }), "{error:?}");
        let error = router
            .by_key(1)
            .transaction(async |tx| tx.query_one("SELECT public.is_photo()", &[]).await);
        assert!(matches!(error.await, Err(Error::ShardUnavailable { .. })));
        moving.unfence().await;
        // Long enough that the fence is no longer taken for the cause of an error.
        pass(200).await;
        router
            .by_key(1)
            .query_one("SELECT public.is_photo()", &[])
            .await
            .unwrap();
    }

    /// A row that names a host which does not know the shard is not believed, and is not remembered
    /// for ever.
    async fn a_bogus_row_does_not_stick(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.retry_for = Duration::from_millis(300);
        let router = Router::new(options);
        let moving = shards.prepare(1, 0).await;
        moving.fence(LONG).await;
        let bogus = "UPDATE pgshard.shard SET state = 'moved', peer = 'db2', epoch = 99 WHERE \
            shard_id = 1";
        shards.db[0].batch_execute(bogus).await.unwrap();
        let error = router.by_key(1).query(COUNT, &[]).await.unwrap_err();
        assert!(
            matches!(&error, Error::ShardUnavailable { .. }),
            "{error:?}"
        );
        assert!(error.is_retryable());
        assert_eq!(router.by_key(1).host(), shards.name(0));

        shards.db[0]
            .batch_execute(&bogus.replace("db2", "db9"))
            .await
            .unwrap();
        let error = router.by_key(1).query(COUNT, &[]).await.unwrap_err();
        assert!(
            matches!(&error, Error::UnknownHost { host, .. } if host == "db9"),
            "{error:?}"
        );

        let truth = "UPDATE pgshard.shard SET state = 'fenced', peer = 'db2', epoch = 1 WHERE \
            shard_id = 1";
        shards.db[0].batch_execute(truth).await.unwrap();
        moving.unfence().await;
        router.by_key(1).query(COUNT, &[]).await.unwrap();
    }

    /// A fence that is never lifted ends in an error that reports it, after the given time and not
    /// before.
    async fn waiting_for_a_fence_ends(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.retry_for = Duration::from_millis(200);
        options.hosts[0].pool_size = 1;
        let router = Router::new(options);
        let session = async || {
            let row = router
                .by_key(2)
                .query_one("SELECT pg_backend_pid()", &[])
                .await
                .unwrap();
            row.get::<_, i32>(0)
        };
        let before = session().await;
        let moving = shards.prepare(1, 0).await;
        moving.fence(LONG).await;
        let statement = router.by_key(1).query(COUNT, &[]).await.unwrap_err();
        let function = router
            .by_key(1)
            .query("SELECT {shard}.answer()", &[])
            .await
            .unwrap_err();
        let write = router
            .by_key(1)
            .execute(INSERT, &[&1_i64, &"x"])
            .await
            .unwrap_err();
        let transaction = router
            .by_key(1)
            .transaction(async |tx| tx.query(COUNT, &[]).await)
            .await
            .unwrap_err();
        for error in [statement, function, write, transaction] {
            assert!(error.is_retryable() && !error.may_have_run());
            let words = error.to_string();
            assert!(
                words.starts_with("shard 1 was not available in time")
                    && words.contains("last on host db1"),
                "{words}"
            );
        }
        // The host's other shards are not affected, nor is the session, which was kept.
        router.by_key(2).query(COUNT, &[]).await.unwrap();
        assert_eq!(session().await, before);
    }
}
