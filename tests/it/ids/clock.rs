//! Clocks that step, stop and reach the limits of 41 bits; sessions that sleep at the wrong moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;

/// The last millisecond for which IDs are made; what comes after it is reserved for bursts.
const LAST_MS: i64 = (1 << 41) - 1 - 4096;

on_each_version! {
    /// Four writers while the clock steps: back by less and by more than the functions wait for,
    /// and forward.
    async fn ids_grow_while_the_clock_steps(version) {
        let servers = TestCluster::start(version, 1);
        let client = servers.app(0).await;
        for (shard, step_ms) in [-500, -900, -1500, -10_000, -3_600_000, 1000, 86_400_000]
            .into_iter()
            .enumerate()
        {
            let schema = format!("shard_{shard:04}");
            client
                .batch_execute(&format!(
                    "CREATE SCHEMA {schema}; \
                    {}",
                    rendered(shard as u16, EPOCH_MS)
                ))
                .await
                .unwrap();
            with_test_clock(&client, &schema).await;
            shift(&client, 0).await;
            let stop = Arc::new(AtomicBool::new(false));
            let mut writers = tokio::task::JoinSet::new();
            for _ in 0..4 {
                let (writer, stop, schema) = (servers.app(0).await, stop.clone(), schema.clone());
                writers.spawn(async move {
                    let mut ids = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        ids.extend(next_id(&writer, &schema, 50).await);
                        ids.extend(next_ids(&writer, &schema, 20).await);
                    }
                    ids
                });
            }
            // The writers get time to make IDs on both sides of the step.
            tokio::time::sleep(Duration::from_millis(150)).await;
            shift(&client, step_ms).await;
            tokio::time::sleep(Duration::from_millis(250)).await;
            stop.store(true, Ordering::Relaxed);
            assert_sound(&writers.join_all().await);
        }
    }

    /// More than 1024 IDs within one millisecond, while the clock does not advance.
    async fn a_burst_runs_ahead_of_the_clock(version) {
        let servers = server(version, 5).await;
        let client = servers.app(0).await;
        with_test_clock(&client, "shard_0005").await;
        fix(&client, EPOCH_MS + 5000).await;
        let mut ids = next_id(&client, "shard_0005", 10_000).await;
        ids.extend(next_ids(&client, "shard_0005", 10_000).await);
        assert_grows(&ids);
        let (first, last) = (Id::decode(ids[0]), Id::decode(ids[19_999]));
        assert_eq!(first.ms(), 5000);
        assert!((5018..5022).contains(&last.ms()), "{last:?}");
    }

    /// Across 2^40 ms the sign flips and nothing else changes.
    async fn the_sign_flip(version) {
        let servers = server(version, 5).await;
        let client = servers.app(0).await;
        with_test_clock(&client, "shard_0005").await;
        let flip = EPOCH_MS + (1 << 40);
        let mut ids = Vec::new();
        for ms in [flip - 2, flip - 1, flip, flip + 1] {
            fix(&client, ms).await;
            ids.extend(next_id(&client, "shard_0005", 700).await);
            ids.extend(next_ids(&client, "shard_0005", 700).await);
        }
        assert_grows(&ids);
        for id in &ids {
            assert_eq!(
                (*id < 0, Id::decode(*id).shard().get()),
                (Id::decode(*id).ms() >= 1 << 40, 5)
            );
        }
        assert!(ids[0] > 0 && *ids.last().unwrap() < 0);
        // The high water also counts what is skipped between reserved IDs and those after them.
        let (high, last) = (
            Id::decode(high_water(&client, "shard_0005").await),
            Id::decode(*ids.last().unwrap()),
        );
        assert!(
            high >= last && high.ms() <= last.ms() + 1,
            "{high:?} {last:?}"
        );
        // A negative ID is a late one.
        let late = Id::new((1 << 40) + 50, pgshard::ShardId::new(5).unwrap(), 7)
            .unwrap()
            .encode();
        client
            .execute("SELECT shard_0005.resume_after($1)", &[&late])
            .await
            .unwrap();
        assert!(next_id(&client, "shard_0005", 1).await[0] as u64 > late as u64);
    }

    /// Before the epoch and after 41 bits there are no IDs, and the errors of both functions
    /// contain the reason. A wrong clock that is corrected does no harm, whether the shard was last
    /// used a moment ago or years before.
    async fn times_out_of_range_are_refused(version) {
        let servers = server(version, 5).await;
        let client = servers.app(0).await;
        with_test_clock(&client, "shard_0005").await;
        let mut ids = Vec::new();
        for right in [EPOCH_MS + 500_000_000_000, EPOCH_MS + LAST_MS] {
            fix(&client, right).await;
            ids.extend(next_id(&client, "shard_0005", 10).await);
            for (ms, words) in [
                // Two milliseconds late would be enough.
                (
                    EPOCH_MS + LAST_MS + 3,
                    "the 41 bits of the cluster's IDs are used up",
                ),
                (
                    EPOCH_MS + (1 << 43),
                    "the 41 bits of the cluster's IDs are used up",
                ),
                (
                    EPOCH_MS - 1,
                    "the clock of this server is before the epoch of the cluster's IDs",
                ),
            ] {
                fix(&client, ms).await;
                for sql in [
                    "SELECT shard_0005.next_id()",
                    "SELECT shard_0005.next_ids(100)",
                ] {
                    let error = client.query(sql, &[]).await.unwrap_err();
                    let error = error.as_db_error().unwrap().clone();
                    assert_eq!(
                        (error.message(), error.code().code()),
                        (words, "22008"),
                        "{sql}"
                    );
                    assert!(
                        error.hint().unwrap().contains("clock right") && error.detail().is_some()
                    );
                }
            }
            fix(&client, right).await;
            ids.extend(next_id(&client, "shard_0005", 2000).await);
            ids.extend(next_ids(&client, "shard_0005", 10).await);
            assert!(
                (0..4)
                    .contains(&(Id::decode(*ids.last().unwrap()).ms() as i64 - (right - EPOCH_MS)))
            );
        }
        assert_grows(&ids);
    }

    /// `resume_after` accepts no value that cannot be an ID of this cluster, and goes no further
    /// than its argument.
    async fn resume_after_is_bounded(version) {
        let servers = server(version, 5).await;
        let client = servers.app(0).await;
        let mut ids = next_id(&client, "shard_0005", 10).await;
        let hour = 3_600_000 << 23;
        let snowflake_of_another_system: i64 = 1 << 62;
        for (call, refused) in [
            ("resume_after(-1)".to_owned(), true),
            ("resume_after(-1, '100 years')".to_owned(), true),
            (format!("resume_after({snowflake_of_another_system})"), true),
            (format!("resume_after({})", ids[9] + 25 * hour), true),
            (
                format!("resume_after({}, '1 hour')", ids[9] + 2 * hour),
                true,
            ),
            (
                format!("resume_after({}, '2 days')", ids[9] + 25 * hour),
                false,
            ),
            // It has been reached already.
            (format!("resume_after({})", ids[9] + 24 * hour), false),
        ] {
            let before = high_water(&client, "shard_0005").await;
            let done = client
                .batch_execute(&format!("SELECT shard_0005.{call}"))
                .await;
            match done {
                Err(error) => {
                    assert!(refused, "{call}: {error:?}");
                    assert_eq!(error.code().unwrap().code(), "22003", "{call}");
                    assert_eq!(high_water(&client, "shard_0005").await, before, "{call}");
                }
                Ok(()) => assert!(!refused, "{call}"),
            }
            ids.extend(next_id(&client, "shard_0005", 10).await);
        }
        assert!(Id::decode(ids[69]).ms() - Id::decode(ids[9]).ms() > 25 * 3_600_000);
        assert_grows(&ids);
    }

    /// A shard with IDs far ahead, by a wrong clock, is brought back, and repeats none. One that is
    /// only a little ahead is left alone.
    async fn a_shard_far_ahead_is_repaired(version) {
        let servers = server(version, 5).await;
        let client = servers.app(0).await;
        with_test_clock(&client, "shard_0005").await;
        let year = 365 * 86_400_000_i64;
        let today = EPOCH_MS + 15 * year;
        fix(&client, today).await;
        let mut ids = next_id(&client, "shard_0005", 100).await;
        let last = ids[99];
        let repair = format!("SELECT shard_0005.id_repair({last})");
        let refused = |error: tokio_postgres::Error| error.code().unwrap().code().to_owned();
        fix(&client, today + 2 * year).await;
        next_id(&client, "shard_0005", 10).await;
        fix(&client, today).await;
        assert_eq!(
            refused(client.batch_execute(&repair).await.unwrap_err()),
            "55000"
        );
        // Ahead by forty years: IDs are negative, and once the clock is right there is only a
        // moment of them left.
        fix(&client, EPOCH_MS + LAST_MS).await;
        let wild = next_id(&client, "shard_0005", 10).await;
        assert!(wild[0] < 0);
        assert_eq!(
            refused(client.batch_execute(&repair).await.unwrap_err()),
            "22003",
            "by this clock they are right"
        );
        fix(&client, today).await;
        assert_eq!(
            refused(
                client
                    .batch_execute("SELECT shard_0005.id_repair(-1)")
                    .await
                    .unwrap_err()
            ),
            "22003"
        );
        client.batch_execute(&repair).await.unwrap();
        let mut after = next_id(&client, "shard_0005", 3000).await;
        after.extend(next_ids(&client, "shard_0005", 1000).await);
        assert!(after[0] > last && Id::decode(after[0]).ms() < Id::decode(last).ms() + 5000);
        ids.extend(after);
        assert_grows(&ids);
        assert_eq!(
            refused(client.batch_execute(&repair).await.unwrap_err()),
            "55000"
        );
    }

    /// An operator in a schema of the search path that matches the operands better is never called.
    async fn operators_of_strangers_are_not_called(version) {
        let servers = server(version, 5).await;
        let (client, superuser) = (servers.app(0).await, servers.superuser(0).await);
        superuser
            .batch_execute(
                "CREATE TABLE public.called (by text); GRANT INSERT ON public.called TO PUBLIC;
            CREATE TABLE public.t (id bigint DEFAULT shard_0005.next_id(), n int); GRANT ALL ON \
            public.t TO PUBLIC",
            )
            .await
            .unwrap();
        let types = ["int4", "int8", "float8", "numeric"];
        for operator in [
            "+", "-", "*", "/", "&", "|", "<<", ">>", "<", ">", "<=", ">=", "=",
        ] {
            for (left, right) in types
                .iter()
                .flat_map(|left| types.iter().map(move |right| (left, right)))
            {
                let result =
                    if operator.contains(['<', '>', '=']) && !matches!(operator, "<<" | ">>") {
                        "bool"
                    } else {
                        "int8"
                    };
                superuser
                    .batch_execute(&format!(
                        "CREATE FUNCTION public.f_{left}_{right}_{}(a {left}, b {right}) RETURNS \
                            {result}
                        LANGUAGE plpgsql AS
                        $$ BEGIN INSERT INTO public.called VALUES ('{left} {operator} {right}');
                        RETURN a OPERATOR(pg_catalog.{operator}) b; END $$;
                    CREATE OPERATOR public.{operator} (FUNCTION = public.f_{left}_{right}_{}, \
                    LEFTARG = {left},
                        RIGHTARG = {right})",
                        operator
                            .bytes()
                            .map(|byte| byte.to_string())
                            .collect::<String>(),
                        operator
                            .bytes()
                            .map(|byte| byte.to_string())
                            .collect::<String>()
                    ))
                    .await
                    .unwrap();
            }
        }
        client
            .batch_execute("SET search_path = public, pg_catalog")
            .await
            .unwrap();
        for _ in 0..5 {
            // So that the offset has to grow, and then a burst, and then a lease.
            tokio::time::sleep(Duration::from_millis(5)).await;
            client
                .batch_execute(
                    "INSERT INTO public.t (n) SELECT 1 FROM pg_catalog.generate_series(1, 3000);
                SELECT pg_catalog.count(*) FROM shard_0005.next_ids(100); SELECT \
                shard_0005.id_high_water();
                SELECT shard_0005.resume_after(shard_0005.next_id())",
                )
                .await
                .unwrap();
        }
        let called = superuser
            .query("SELECT DISTINCT by FROM public.called", &[])
            .await
            .unwrap();
        let called: Vec<String> = called.iter().map(|row| row.get(0)).collect();
        assert!(called.is_empty(), "{called:?}");
    }

    /// A session that was stopped between ticket and offset takes another ticket. Without that an
    /// ID would be repeated here.
    async fn a_stale_ticket(version) {
        for (fresh, repeats) in [("128", 0), ("1000000", 1)] {
            let servers = server(version, 5).await;
            let client = servers.app(0).await;
            with_test_clock(&client, "shard_0005").await;
            client
                .batch_execute(&format!(
                    "CREATE FUNCTION test_clock.stop(ticket bigint) RETURNS bigint LANGUAGE \
                        plpgsql AS $$ BEGIN
                    IF current_setting('test.stop', true) = 'on' THEN
                        PERFORM pg_advisory_xact_lock(42);
                    END IF;
                    RETURN ticket;
                END $$;
                DO $do$ BEGIN EXECUTE (SELECT \
                replace(replace(pg_get_functiondef('shard_0005.next_id'::regproc),
                    $$h bigint := pg_catalog.nextval('shard_0005.id_ticket'::pg_catalog.regclass)$$,
                    $$h bigint := \
                    test_clock.stop(\
                    pg_catalog.nextval('shard_0005.id_ticket'::pg_catalog.regclass))$$),
                    '128', '{fresh}')); END $do$"
                ))
                .await
                .unwrap();
            let source: String = client
                .query_one(
                    "SELECT prosrc FROM pg_proc WHERE oid = \
                    'shard_0005.next_id'::regproc",
                    &[],
                )
                .await
                .unwrap()
                .get(0);
            assert_eq!(
                (
                    source.matches("test_clock.stop(").count(),
                    source.matches(fresh).count()
                ),
                (1, 4)
            );
            let (gate, sleeper) = (servers.app(0).await, servers.app(0).await);
            fix(&client, EPOCH_MS + 1000).await;
            let mut ids = next_id(&client, "shard_0005", 1).await;
            gate.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(42)")
                .await
                .unwrap();
            sleeper.batch_execute("SET test.stop = on").await.unwrap();
            let sleeping = tokio::spawn(async move { next_id(&sleeper, "shard_0005", 1).await });
            // Waits until it has its ticket.
            loop {
                let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT \
                    granted";
                if client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            // A burst of three milliseconds, and then the clock continues: the offset grows by as
            // much as the tickets did.
            ids.extend(next_id(&client, "shard_0005", 3 * 1024 + 6).await);
            fix(&client, EPOCH_MS + 1006).await;
            ids.extend(next_id(&client, "shard_0005", 5).await);
            gate.batch_execute("COMMIT").await.unwrap();
            let late = sleeping.await.unwrap()[0];
            assert_grows(&ids);
            assert_eq!(
                ids.iter().filter(|id| **id == late).count(),
                repeats,
                "fresh is {fresh}"
            );
        }
    }
}
