//! Sessions of a mover that are used again.

use std::time::Duration;

use super::pair::{Pair, one};
use crate::mover::Session;

/// What one user may leave in a session for the next.
const LEFT: [&str; 14] = [
    "SET application_name = 'pgshard of somebody'",
    "SET synchronous_commit = off; SET search_path = public, pg_temp; SET statement_timeout = 1",
    "SET default_transaction_read_only = on; SET default_transaction_isolation = serializable",
    "SET datestyle = 'German'; SET timezone = 'Asia/Tokyo'; SET own.thing = 'own'",
    "SET enable_seqscan = off; SET plan_cache_mode = force_custom_plan; SET jit = on; SET work_mem \
        = '64kB'",
    "SELECT set_config('role', current_user, false), set_config('session_authorization', \
        current_user, false)",
    "CREATE FUNCTION public.role() RETURNS boolean LANGUAGE plpgsql AS
        'BEGIN PERFORM set_config(''role'', current_user, false); RETURN true; END';
     CREATE TABLE public.t (n integer CHECK (public.role())); INSERT INTO public.t VALUES (1)",
    "CREATE TEMP TABLE left_over (n integer); INSERT INTO left_over SELECT generate_series(1, 10)",
    "SELECT pg_advisory_lock(7), pg_advisory_lock(8), pg_advisory_lock(8)",
    "LISTEN left_over",
    "DECLARE left_over CURSOR WITH HOLD FOR SELECT generate_series(1, 10)",
    "CREATE TEMP SEQUENCE left_over; SELECT nextval('left_over')",
    "BEGIN; SET LOCAL search_path = public; LOCK TABLE pgshard.cluster IN ACCESS SHARE MODE; \
        COMMIT",
    "BEGIN; SAVEPOINT a; SET timezone = 'Asia/Tokyo'; ROLLBACK TO a; SET lock_timeout = 1; \
        ROLLBACK",
];

/// Everything that a session has of its own, but for what names it, and for the defaults of a
/// library that was loaded.
const STATE: &str = "SELECT concat_ws(E'\\n',
    (SELECT string_agg(name || ' = ' || setting, ', ' ORDER BY name) FROM pg_settings
        WHERE name NOT LIKE 'plpgsql.%'),
    (SELECT string_agg(name, ', ') FROM pg_cursors WHERE is_holdable),
    (SELECT string_agg(c, ', ') FROM pg_listening_channels() AS c),
    (SELECT string_agg(relname, ', ') FROM pg_class WHERE relnamespace = pg_my_temp_schema()),
    (SELECT string_agg(locktype, ', ') FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = \
    'advisory'),
    current_user, session_user, current_setting('role'), pg_current_xact_id_if_assigned(),
    coalesce(current_setting('own.thing', true), ''))";

async fn pid(session: &Session) -> i32 {
    one(&session.client, "SELECT pg_backend_pid()").await
}

on_each_version! {
    async fn whoever_comes_next_finds_nothing(version) {
        let pair = Pair::start([version, version]).await;
        let (hosts, source) = (&pair.hosts, &pair.route.source);
        let _kept = hosts.keep_sessions();
        let first = hosts.open(source).await.unwrap();
        let fresh: String = one(&first.client, STATE).await;
        hosts.give_back(first).await;
        let mut same = 0;
        for left in LEFT {
            let user = hosts.open(source).await.unwrap();
            let process = pid(&user).await;
            user.batch("leaving something", left)
                .await
                .unwrap_or_else(|error| panic!("{left}: {error}"));
            hosts.give_back(user).await;
            let next = hosts.open(source).await.unwrap();
            same += usize::from(pid(&next).await == process);
            assert_eq!(
                one::<String>(&next.client, STATE).await,
                fresh,
                "after {left}"
            );
            assert!(next.shard.is_none());
            hosts.give_back(next).await;
        }
        // On a machine that is slow enough, one or the other becomes too old.
        assert!(same > LEFT.len() / 2, "{same} sessions were used again");
    }

    /// The client looks types up by statements that it has prepared.
    async fn types_are_looked_up_still(version) {
        let pair = Pair::start([version, version]).await;
        let (hosts, source) = (&pair.hosts, &pair.route.source);
        let _kept = hosts.keep_sessions();
        let mut processes = Vec::new();
        for name in ["one", "two", "three"] {
            let session = hosts.open(source).await.unwrap();
            let sql = format!(
                "CREATE TYPE public.{name} AS ENUM ('a'); CREATE TYPE public.row_{name} AS (a \
                    public.{name})"
            );
            session.batch("making types", &sql).await.unwrap();
            let sql = format!("SELECT 'a'::public.{name}, ARRAY[ROW('a')]::public.row_{name}[]");
            session.rows("reading them", &sql, &[]).await.unwrap();
            processes.push(pid(&session).await);
            hosts.give_back(session).await;
        }
        processes.dedup();
        assert_eq!(processes.len(), 1, "the session is the same");
    }

    async fn a_session_that_is_not_at_rest_is_closed(version) {
        let pair = Pair::start([version, version]).await;
        let (hosts, source, watcher) = (&pair.hosts, &pair.route.source, pair.app(0).await);
        let _kept = hosts.keep_sessions();
        for left in [
            "BEGIN",
            "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SELECT pg_current_snapshot()",
            "BEGIN; SAVEPOINT a; LOCK TABLE pgshard.cluster IN SHARE MODE; ROLLBACK TO a",
            "BEGIN; SELECT 1 / 0",
        ] {
            let user = hosts.open(source).await.unwrap();
            let process = pid(&user).await;
            let begun = user.batch("leaving a transaction", left).await;
            assert_eq!(begun.is_err(), left.ends_with("0"), "{left}: {begun:?}");
            hosts.give_back(user).await;
            let next = hosts.open(source).await.unwrap();
            assert_ne!(pid(&next).await, process, "after {left}");
            let there = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process}");
            while one::<i64>(&watcher, &there).await > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    async fn sessions_are_kept_while_somebody_wants_them(version) {
        let pair = Pair::start([version, version]).await;
        let (hosts, source, watcher) = (&pair.hosts, &pair.route.source, pair.app(0).await);
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgshard \
            mover'";
        let gone = async || {
            while one::<i64>(&watcher, waiting).await > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // No guard keeps any.
        hosts.give_back(hosts.open(source).await.unwrap()).await;
        gone().await;
        // Two do, and the other is at another host.
        let (kept, also) = (hosts.keep_sessions(), hosts.clone());
        let also = also.keep_sessions();
        let (ours, other) = (
            hosts.open(source).await.unwrap(),
            hosts.open(&pair.route.target).await.unwrap(),
        );
        let process = pid(&ours).await;
        hosts.give_back(other).await;
        hosts.give_back(ours).await;
        drop(kept);
        let again = hosts.open(source).await.unwrap();
        assert_eq!(pid(&again).await, process);
        hosts.give_back(again).await;
        drop(also);
        gone().await;
        // A process that has seen much of a host is not kept for ever.
        let _kept = hosts.keep_sessions();
        let mut uses = std::collections::BTreeMap::new();
        for _ in 0..200 {
            let session = hosts.open(source).await.unwrap();
            *uses.entry(pid(&session).await).or_default() += 1;
            hosts.give_back(session).await;
        }
        assert!(
            uses.values().all(|uses: &i32| *uses <= 64) && uses.len() < 50,
            "{uses:?}"
        );
    }

    async fn a_session_that_was_lost_meanwhile_is_replaced(version) {
        let pair = Pair::start([version, version]).await;
        let (hosts, source, watcher) = (&pair.hosts, &pair.route.source, pair.app(0).await);
        let _kept = hosts.keep_sessions();
        let session = hosts.open(source).await.unwrap();
        let process = pid(&session).await;
        hosts.give_back(session).await;
        one::<bool>(&watcher, &format!("SELECT pg_terminate_backend({process})")).await;
        let session = hosts.open(source).await.unwrap();
        let process = pid(&session).await;
        hosts.give_back(session).await;
        // One that does not answer: its query waits for a lock, until another session runs the
        // same.
        watcher
            .batch_execute(
                "BEGIN; LOCK TABLE pgshard.cluster IN ACCESS EXCLUSIVE \
            MODE",
            )
            .await
            .unwrap();
        let waits = format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> {process}");
        let (opened, ()) = tokio::join!(hosts.open(source), async {
            while one::<i64>(&watcher, &waits).await == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            watcher.batch_execute("COMMIT").await.unwrap();
        });
        assert_ne!(pid(&opened.unwrap()).await, process);
    }
}
