//! The holes that were found when the design was attacked (with their numbers) and how they are
//! closed, as far as the functions of the control schema can show it. Two more are in `attempts`
//! (3) and `barrier` (14).

use std::time::Duration;

use super::setup::{
    Fence, LEFT, SCHEMA, SHARD, code, content, detail, expire, leads_to_signpost, refused, shop,
    state,
};
use crate::support::TestCluster;

async fn ready(version: u32) -> (TestCluster, Fence) {
    let cluster = shop(version).await;
    let fence = Fence::prepare(cluster.app(0).await, SHARD).await;
    (cluster, fence)
}

fn in_shard(sql: &str) -> String {
    sql.replace("{s}", SCHEMA)
}

on_each_version! {
    /// What is bound by OID from outside is not stopped by the fence. Therefore a shard with a
    /// crossing over its border is refused before the fence and again at the marker. If one of
    /// these fails some day, the border may be opened for it.
    async fn what_is_bound_by_oid_from_outside_is_refused(version) {
        let (cluster, mut fence) = ready(version).await;
        let client = cluster.app(0).await;
        client
            .batch_execute(&in_shard(
                "
            CREATE VIEW outside.view AS SELECT * FROM {s}.photos;
            CREATE TEMP VIEW temporary AS SELECT * FROM {s}.photos;
            CREATE TABLE outside.ruled (title text);
            CREATE RULE r AS ON INSERT TO outside.ruled DO INSTEAD INSERT INTO {s}.photos (id, \
            title)
            VALUES (1002, NEW.title);
            CREATE TABLE outside.parent (k integer) PARTITION BY LIST (k);
            CREATE TABLE {s}.part PARTITION OF outside.parent FOR VALUES IN (1);
            CREATE TABLE outside.owner (id integer PRIMARY KEY);
            INSERT INTO outside.owner VALUES (1);
            CREATE TABLE {s}.owned (id integer REFERENCES outside.owner ON DELETE CASCADE);
            INSERT INTO {s}.owned VALUES (1);
            CREATE TABLE outside.defaulted (n bigint DEFAULT nextval('{s}.tickets'))",
            ))
            .await
            .unwrap();
        let mut writes = vec![
            "INSERT INTO outside.view (id, title) VALUES (1003, 'view')",
            "INSERT INTO pg_temp.temporary (id, title) VALUES (1004, 'temporary')",
            "INSERT INTO outside.ruled VALUES ('rule')",
            "INSERT INTO outside.parent VALUES (1)",
            "DELETE FROM outside.owner",
            "INSERT INTO outside.defaulted DEFAULT VALUES",
        ];
        if version >= 14 {
            let atomic = "CREATE FUNCTION outside.atomic() RETURNS void BEGIN ATOMIC INSERT INTO \
                {s}.photos (id, title)
                VALUES (1001, 'atomic'); END";
            client.batch_execute(&in_shard(atomic)).await.unwrap();
            writes.push("SELECT outside.atomic()");
        }
        // The signpost was built before those tables were created.
        client
            .batch_execute(&in_shard(
                "DROP SCHEMA {s}__signpost CASCADE; DELETE FROM \
            pgshard.ledger",
            ))
            .await
            .unwrap();
        fence.build_signpost().await.unwrap();
        fence.close().await;
        for sql in writes {
            let before = content(&client, LEFT).await;
            client.batch_execute(sql).await.unwrap();
            assert_ne!(content(&client, LEFT).await, before, "{sql}");
        }
    }

    /// Bound by OID from inside: a call in a transaction older than the swap would write to the old
    /// copy after the barrier. Such a shard gets no signpost; one with functions that only read
    /// does.
    async fn functions_that_write_by_oid_get_no_signpost(version) {
        let cluster = shop(version).await;
        let client = cluster.app(0).await;
        let fence = Fence::claim(cluster.app(0).await, SHARD).await;
        let atomic = |volatility: &str, body: &str| {
            in_shard(&format!(
                "
            CREATE OR REPLACE FUNCTION {{s}}.bound() RETURNS bigint {volatility} BEGIN ATOMIC \
            {body}; END"
            ))
        };
        let writes = atomic(
            "VOLATILE",
            "INSERT INTO {s}.photos (title) VALUES ('inside') \
            RETURNING id",
        );
        if version < 14 {
            // No function is bound there: PostgreSQL keeps a text, and looks its names up each
            // time.
            assert_eq!(
                code(&client.batch_execute(&writes).await.unwrap_err()),
                "42601"
            );
            return;
        }
        client.batch_execute(&writes).await.unwrap();
        refused(fence.build_signpost().await);
        client
            .batch_execute(&atomic("VOLATILE", "SELECT nextval('{s}.tickets')"))
            .await
            .unwrap();
        fence.build_signpost().await.unwrap();
        client
            .batch_execute(&in_shard(
                "DROP SCHEMA {s}__signpost CASCADE; DELETE FROM \
            pgshard.ledger",
            ))
            .await
            .unwrap();
        client
            .batch_execute(&atomic("STABLE", "SELECT count(*) FROM {s}.photos"))
            .await
            .unwrap();
        fence.build_signpost().await.unwrap();
    }

    /// A table is created, filled and committed around the swap: the barrier waits for it.
    async fn the_barrier_waits_for_a_table_created_over_the_swap(version) {
        let (cluster, mut fence) = ready(version).await;
        let maker = cluster.app(0).await;
        maker
            .batch_execute(&in_shard(
                "BEGIN; CREATE TABLE {s}.fresh (n integer); INSERT INTO \
                {s}.fresh VALUES (1)",
            ))
            .await
            .unwrap();
        fence.swap().await.unwrap();
        assert_ne!(fence.barrier().await, []);
        maker.batch_execute("COMMIT").await.unwrap();
        assert_eq!(fence.barrier().await, []);
        // It is in the old copy before the marker, where the fingerprint shows it, and before the
        // next swap.
        assert!(
            content(&fence.client, LEFT)
                .await
                .iter()
                .any(|(name, _)| name == "fresh")
        );
        fence.unfence().await.unwrap();
        refused(fence.swap().await);
    }

    /// The same for a filled table that becomes a partition.
    async fn the_barrier_waits_for_a_partition_attached_over_the_swap(version) {
        let (cluster, mut fence) = ready(version).await;
        let maker = cluster.app(0).await;
        maker
            .batch_execute(&in_shard(
                "CREATE TABLE {s}.parts (k integer) PARTITION BY LIST (k);
            CREATE TABLE outside.filled AS SELECT 1 AS k",
            ))
            .await
            .unwrap();
        maker
            .batch_execute(&in_shard(
                "DROP SCHEMA {s}__signpost CASCADE; DELETE FROM \
            pgshard.ledger",
            ))
            .await
            .unwrap();
        fence.build_signpost().await.unwrap();
        maker
            .batch_execute(&in_shard(
                "BEGIN; ALTER TABLE {s}.parts ATTACH PARTITION outside.filled \
                FOR VALUES IN (1)",
            ))
            .await
            .unwrap();
        fence.swap().await.unwrap();
        let blockers = fence.barrier().await;
        assert!(
            blockers
                .iter()
                .any(|b| b.relation == "parts" && b.mode == "ShareUpdateExclusiveLock"),
            "{blockers:?}"
        );
        maker.batch_execute("ROLLBACK").await.unwrap();
        fence.barrier_until_empty().await;
    }

    /// The mover sleeps after its marker, the deadline passes, a router swaps back, rows are
    /// written, the next attempt fences: the decision of the first attempt is refused, and no write
    /// is lost.
    async fn a_mover_that_slept_decides_nothing(version) {
        let (cluster, mut fence) = ready(version).await;
        let router = cluster.app(0).await;
        fence.swap_for(Duration::ZERO).await.unwrap();
        fence.mark().await.unwrap();
        let sleeper = fence.beside(cluster.app(0).await);
        assert!(expire(&router, SHARD).await.unwrap());
        router
            .batch_execute(&in_shard(
                "INSERT INTO {s}.photos (title) VALUES \
            ('acknowledged')",
            ))
            .await
            .unwrap();
        refused(sleeper.decide().await);
        fence.swap().await.unwrap();
        refused(sleeper.decide().await);
        assert_eq!(state(&router, SHARD).await, "fenced 3");
        let count = "SELECT count(*) FROM shard_0007__left_e3.photos WHERE title = 'acknowledged'";
        assert_eq!(
            router.query_one(count, &[]).await.unwrap().get::<_, i64>(0),
            1
        );
    }

    /// An upsert during a fence fails with the code of an application's mistake, and after the swap
    /// back the row shows that the shard is served. What shows the cause is that the shard was
    /// fenced after the statement began.
    async fn an_upsert_that_met_a_short_fence_is_known_by_its_time(version) {
        let (cluster, mut fence) = ready(version).await;
        let client = cluster.app(0).await;
        let look = "SELECT state, last_fence_ago_ms,
            (SELECT extract(epoch FROM clock_timestamp() - $2::timestamptz)::float8 * 1000)
            FROM pgshard.look($1)";
        let began: std::time::SystemTime = client
            .query_one("SELECT clock_timestamp()", &[])
            .await
            .unwrap()
            .get(0);
        fence.swap().await.unwrap();
        for (sql, expected) in [
            (
                "INSERT INTO {s}.users (email) VALUES ('user 1') ON CONFLICT (email) DO UPDATE SET \
                    n \
                = 9",
                "42P10",
            ),
            (
                "INSERT INTO {s}.users (email) VALUES ('user 1') ON CONFLICT ON CONSTRAINT \
                    users_email DO NOTHING",
                "42704",
            ),
            ("SELECT 'sad'::{s}.mood", "42704"),
            ("SELECT id, email FROM {s}.users GROUP BY id", "42803"),
            ("SELECT ctid FROM {s}.users", "42703"),
        ] {
            assert_eq!(
                code(&client.batch_execute(&in_shard(sql)).await.unwrap_err()),
                expected,
                "{sql}"
            );
        }
        fence.unfence().await.unwrap();
        let row = client.query_one(look, &[&SHARD, &began]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "serving");
        assert!(
            row.get::<_, f64>(1) <= row.get::<_, f64>(2),
            "it was fenced after the statement \
            began"
        );
    }

    /// Under REPEATABLE READ the row is read in an old state: DETAIL then contains fenced, which is
    /// still true, and never serving.
    async fn detail_is_never_serving_under_repeatable_read(version) {
        let (cluster, mut fence) = ready(version).await;
        let old = cluster.app(0).await;
        let read = in_shard("SELECT count(*) FROM {s}.users");
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM public.users";
        old.batch_execute(begin).await.unwrap();
        fence.close().await;
        let said = detail(&old.batch_execute(&read).await.unwrap_err());
        assert_eq!(
            (&said["state"], &said["host"]),
            (&"fenced".into(), &serde_json::Value::Null)
        );
        old.batch_execute(&format!("ROLLBACK; {begin}"))
            .await
            .unwrap();
        fence.decide().await.unwrap();
        let said = detail(&old.batch_execute(&read).await.unwrap_err());
        assert_eq!(
            (&said["state"], &said["host"], &said["epoch"]),
            (&"fenced".into(), &"db2".into(), &3.into())
        );
        old.batch_execute("ROLLBACK").await.unwrap();
        let said = detail(&old.batch_execute(&read).await.unwrap_err());
        assert_eq!(
            (&said["state"], &said["host"], &said["epoch"]),
            (&"moved".into(), &"db2".into(), &4.into())
        );
    }

    /// A procedure that commits halfway has done its first half when it meets the signpost: it must
    /// not be run again.
    async fn a_procedure_that_commits_is_not_run_again(version) {
        let (cluster, mut fence) = ready(version).await;
        let (client, gate) = (cluster.app(0).await, cluster.app(0).await);
        client
            .batch_execute(&in_shard(
                "CREATE PROCEDURE outside.halves() LANGUAGE plpgsql AS $$ \
            BEGIN
            INSERT INTO public.photos (title) VALUES ('first half'); COMMIT;
            PERFORM pg_advisory_xact_lock(1);
            INSERT INTO {s}.photos (title) VALUES ('second half'); END $$",
            ))
            .await
            .unwrap();
        gate.batch_execute("SELECT pg_advisory_lock(1)")
            .await
            .unwrap();
        let call = tokio::spawn(async move { client.batch_execute("CALL outside.halves()").await });
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
        while gate.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        fence.close().await;
        gate.batch_execute("SELECT pg_advisory_unlock(1)")
            .await
            .unwrap();
        assert_eq!(code(&call.await.unwrap().unwrap_err()), "SH001");
        let halves = "SELECT count(*) FROM public.photos WHERE title = 'first half'";
        assert_eq!(
            gate.query_one(halves, &[]).await.unwrap().get::<_, i64>(0),
            1
        );
    }

    /// An old signpost that an open transaction has used cannot be dropped before its end, but it
    /// can be renamed.
    async fn a_used_signpost_can_be_renamed(version) {
        let (cluster, mut fence) = ready(version).await;
        let (client, user) = (cluster.app(0).await, cluster.app(0).await);
        fence.close().await;
        user.batch_execute("BEGIN").await.unwrap();
        user.prepare(&in_shard("SELECT id FROM {s}.users"))
            .await
            .unwrap();
        client
            .batch_execute("SET lock_timeout = '50ms'")
            .await
            .unwrap();
        let dropped = client
            .batch_execute(&in_shard("DROP SCHEMA {s} CASCADE"))
            .await
            .unwrap_err();
        assert_eq!(code(&dropped), "55P03");
        fence
            .client
            .batch_execute("SET lock_timeout = '50ms'")
            .await
            .unwrap();
        fence.unfence().await.unwrap();
        fence.close().await;
        fence.decide().await.unwrap();
    }

    /// The old copy can be dropped, types and all, without dropping a view of the signpost.
    async fn the_old_copy_is_dropped_without_the_signpost(version) {
        let (cluster, mut fence) = ready(version).await;
        let client = cluster.app(0).await;
        fence.close().await;
        fence.decide().await.unwrap();
        client
            .batch_execute(&format!("DROP SCHEMA {LEFT} CASCADE"))
            .await
            .unwrap();
        for sql in [
            "SELECT mood FROM {s}.users",
            "SELECT {s}.is_happy('sad')",
            "SELECT {s}.named('x')",
            "SELECT id FROM {s}.happy",
        ] {
            assert_eq!(
                code(&client.batch_execute(&in_shard(sql)).await.unwrap_err()),
                "SH001",
                "{sql}"
            );
        }
    }

    /// `SELECT … FOR UPDATE` may claim work, so the barrier waits for it; and no table can be
    /// created on a signpost.
    async fn the_barrier_waits_for_row_locks_and_a_signpost_takes_no_tables(version) {
        let (cluster, mut fence) = ready(version).await;
        let worker = cluster.app(0).await;
        worker
            .batch_execute(&in_shard(
                "BEGIN; SELECT id FROM {s}.users LIMIT 1 FOR UPDATE SKIP \
                LOCKED",
            ))
            .await
            .unwrap();
        fence.swap().await.unwrap();
        assert!(
            fence
                .barrier()
                .await
                .iter()
                .any(|blocker| blocker.mode == "RowShareLock")
        );
        worker.batch_execute("COMMIT").await.unwrap();
        fence.barrier_until_empty().await;
        assert_eq!(
            code(
                &worker
                    .batch_execute(&in_shard(
                        "CREATE TABLE {s}.fresh (n \
                integer)"
                    ))
                    .await
                    .unwrap_err()
            ),
            "42501"
        );
    }

    /// A function elsewhere with `%ROWTYPE` of a shard's table is first run during a fence:
    /// whatever error it gives in that session afterwards makes routers look, and a new session
    /// works.
    async fn a_rowtype_compiled_during_a_fence_makes_routers_look(version) {
        let (cluster, mut fence) = ready(version).await;
        let client = cluster.app(0).await;
        client
            .batch_execute(&in_shard(
                "CREATE FUNCTION outside.mood_of(wanted bigint) RETURNS boolean LANGUAGE plpgsql \
                    AS $$
            DECLARE u {s}.users%ROWTYPE;
            BEGIN SELECT * INTO u FROM {s}.users WHERE id = wanted; RETURN {s}.is_happy(u.mood); \
            END $$",
            ))
            .await
            .unwrap();
        fence.close().await;
        assert_eq!(
            code(
                &client
                    .batch_execute("SELECT outside.mood_of(1)")
                    .await
                    .unwrap_err()
            ),
            "SH001"
        );
        fence.unfence().await.unwrap();
        if let Err(error) = client.batch_execute("SELECT outside.mood_of(1)").await {
            assert!(leads_to_signpost(&error), "{error:?}");
        }
        cluster
            .app(0)
            .await
            .batch_execute("SELECT outside.mood_of(1)")
            .await
            .unwrap();
    }

    /// The owner's DDL that works on a view or a function as well as on a table succeeds on a
    /// signpost, and is lost. Shard migrations go through pgshard, which checks who serves.
    async fn ddl_that_a_signpost_takes(version) {
        let (cluster, mut fence) = ready(version).await;
        let client = cluster.app(0).await;
        fence.close().await;
        let before = content(&client, LEFT).await;
        for sql in [
            "GRANT SELECT ON {s}.users TO PUBLIC",
            "COMMENT ON COLUMN {s}.users.n IS 'a number'",
            "ALTER TABLE {s}.users ALTER COLUMN n SET DEFAULT 7",
            "DROP VIEW {s}.happy",
            "DROP FUNCTION {s}.next_id()",
        ] {
            client.batch_execute(&in_shard(sql)).await.unwrap();
        }
        assert_eq!(content(&client, LEFT).await, before);
        fence.unfence().await.unwrap();
        client
            .batch_execute(&in_shard(
                "SELECT id FROM {s}.happy; SELECT \
            {s}.next_id()",
            ))
            .await
            .unwrap();
    }
}
