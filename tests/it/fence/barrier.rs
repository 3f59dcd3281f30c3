//! What the barrier sees and what it ignores.

use std::time::Duration;

use super::setup::{Blocker, Fence, LEFT, SCHEMA, SHARD, code, shop};
use crate::support::TestCluster;

async fn ready(version: u32) -> (TestCluster, Fence) {
    let cluster = shop(version).await;
    let fence = Fence::prepare(cluster.app(0).await, SHARD).await;
    (cluster, fence)
}

fn modes(blockers: &[Blocker], relation: &str) -> Vec<String> {
    let mut modes: Vec<_> = blockers
        .iter()
        .filter(|b| b.relation == relation)
        .map(|b| b.mode.clone())
        .collect();
    modes.sort();
    modes
}

on_each_version! {
    /// It sees every session that could write to the old copy, until the transaction ends.
    async fn a_barrier_sees_every_writer(version) {
        let (cluster, mut fence) = ready(version).await;
        let cases = [
            (
                "INSERT INTO {s}.users (email) VALUES ('new')",
                "users",
                "RowExclusiveLock",
            ),
            (
                "UPDATE {s}.users SET n = 1 WHERE false",
                "users",
                "RowExclusiveLock",
            ),
            (
                "SELECT id FROM {s}.users FOR UPDATE",
                "users",
                "RowShareLock",
            ),
            (
                "SELECT id FROM {s}.users FOR KEY SHARE",
                "users",
                "RowShareLock",
            ),
            (
                "SELECT nextval('{s}.tickets')",
                "tickets",
                "RowExclusiveLock",
            ),
            ("LOCK TABLE {s}.photos IN SHARE MODE", "photos", "ShareLock"),
            (
                "LOCK TABLE {s}.photos IN SHARE UPDATE EXCLUSIVE \
                MODE",
                "photos",
                "ShareUpdateExclusiveLock",
            ),
            ("TRUNCATE {s}.photos", "photos", "AccessExclusiveLock"),
            (
                "ALTER TABLE {s}.users ADD COLUMN extra integer",
                "users",
                "AccessExclusiveLock",
            ),
            (
                "CREATE TABLE {s}.fresh (n integer); INSERT INTO {s}.fresh VALUES \
                (1)",
                "the schema",
                "AccessShareLock",
            ),
            (
                "CREATE TABLE public.fresh (n integer); ALTER TABLE public.fresh SET SCHEMA {s}",
                "the schema",
                "AccessShareLock",
            ),
        ];
        for (sql, relation, mode) in cases {
            let writer = cluster.app(0).await;
            let pid: i32 = writer
                .query_one("SELECT pg_backend_pid()", &[])
                .await
                .unwrap()
                .get(0);
            writer
                .batch_execute(&format!("BEGIN; {}", sql.replace("{s}", SCHEMA)))
                .await
                .unwrap();
            fence.swap().await.unwrap();
            let blockers = fence.barrier().await;
            assert!(
                modes(&blockers, relation).contains(&mode.to_owned()),
                "{sql}: {blockers:?}"
            );
            assert!(
                blockers.iter().all(|blocker| blocker.pid == Some(pid)),
                "{sql}: {blockers:?}"
            );
            writer.batch_execute("ROLLBACK").await.unwrap();
            assert_eq!(fence.barrier().await, [], "{sql}");
            fence.unfence().await.unwrap();
        }
    }

    /// The barrier names who is in the way, since when, and with which statement.
    async fn it_names_the_blocker(version) {
        let (cluster, mut fence) = ready(version).await;
        let writer = cluster.app(0).await;
        writer
            .batch_execute(&format!(
                "BEGIN; DELETE FROM {SCHEMA}.photos WHERE \
            false"
            ))
            .await
            .unwrap();
        fence.swap().await.unwrap();
        let row = fence
            .client
            .query_one(
                "SELECT seconds, query FROM pgshard.barrier($1)
            WHERE relation = 'photos'",
                &[&fence.left],
            )
            .await
            .unwrap();
        assert!(row.get::<_, f64>(0) >= 0.0);
        assert!(
            row.get::<_, &str>(1)
                .contains("DELETE FROM shard_0007.photos")
        );
    }

    /// A prepared transaction has no process, and any of its locks counts.
    async fn it_sees_prepared_transactions(version) {
        let (cluster, mut fence) = ready(version).await;
        let client = cluster.app(0).await;
        let statements = [
            (
                format!("INSERT INTO {SCHEMA}.users (email) VALUES ('prepared')"),
                "RowExclusiveLock",
            ),
            (
                format!(
                    "LOCK TABLE {SCHEMA}.users IN SHARE UPDATE EXCLUSIVE \
                MODE"
                ),
                "ShareUpdateExclusiveLock",
            ),
        ];
        for (sql, mode) in statements {
            client
                .batch_execute(&format!("BEGIN; {sql}; PREPARE TRANSACTION 'p'"))
                .await
                .unwrap();
            fence.swap().await.unwrap();
            let blockers = fence.barrier().await;
            assert!(
                modes(&blockers, "users").contains(&mode.to_owned()),
                "{blockers:?}"
            );
            assert!(blockers.iter().all(|blocker| blocker.pid.is_none()));
            client.batch_execute("ROLLBACK PREPARED 'p'").await.unwrap();
            assert_eq!(fence.barrier().await, []);
            fence.unfence().await.unwrap();
        }
    }

    /// A table was added to the old copy between two looks: its creator was in the way at the
    /// first, and the session that has it locked is in the way at the second.
    async fn it_reads_the_relations_at_each_look(version) {
        let (cluster, mut fence) = ready(version).await;
        let (maker, user) = (cluster.app(0).await, cluster.app(0).await);
        maker
            .batch_execute(&format!(
                "BEGIN; CREATE TABLE {SCHEMA}.fresh (n \
            integer)"
            ))
            .await
            .unwrap();
        fence.swap().await.unwrap();
        assert_eq!(
            modes(&fence.barrier().await, "the schema"),
            ["AccessShareLock"]
        );
        maker.batch_execute("COMMIT").await.unwrap();
        user.batch_execute(&format!("BEGIN; INSERT INTO {LEFT}.fresh VALUES (1)"))
            .await
            .unwrap();
        assert_eq!(modes(&fence.barrier().await, "fresh"), ["RowExclusiveLock"]);
        user.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(fence.barrier().await, []);
    }

    /// A session that waits for a lock on the old copy is in the way too, until the name has been
    /// resolved again.
    async fn it_sees_who_waits(version) {
        let (cluster, mut fence) = ready(version).await;
        let (first, second) = (cluster.app(0).await, cluster.app(0).await);
        let pid: i32 = second
            .query_one("SELECT pg_backend_pid()", &[])
            .await
            .unwrap()
            .get(0);
        first
            .batch_execute(&format!(
                "BEGIN; LOCK TABLE {SCHEMA}.users IN SHARE \
            MODE"
            ))
            .await
            .unwrap();
        let waits = tokio::spawn(async move {
            second
                .batch_execute(&format!(
                    "INSERT INTO {SCHEMA}.users (email) VALUES \
                ('late')"
                ))
                .await
        });
        let waiting = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted";
        while fence
            .client
            .query_one(waiting, &[&pid])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        fence.swap().await.unwrap();
        assert!(
            fence
                .barrier()
                .await
                .iter()
                .any(|blocker| blocker.pid == Some(pid))
        );
        first.batch_execute("COMMIT").await.unwrap();
        let error = waits.await.unwrap().unwrap_err();
        assert_eq!(code(&error), "SH001");
        assert_eq!(fence.barrier().await, []);
    }

    /// Readers are left alone, also SERIALIZABLE ones, although their predicate locks outlive them.
    async fn it_passes_over_readers(version) {
        let (cluster, mut fence) = ready(version).await;
        let mut readers = Vec::new();
        for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
            let reader = cluster.app(0).await;
            reader
                .batch_execute(&format!(
                    "BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM \
                    {SCHEMA}.users"
                ))
                .await
                .unwrap();
            readers.push(reader);
        }
        let gone = cluster.app(0).await;
        gone.batch_execute(&format!(
            "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM \
            {SCHEMA}.users; COMMIT"
        ))
        .await
        .unwrap();
        fence.swap().await.unwrap();
        let marks = format!(
            "SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND relation = \
                '{LEFT}.users'::regclass"
        );
        assert!(
            fence
                .client
                .query_one(&marks, &[])
                .await
                .unwrap()
                .get::<_, i64>(0)
                > 0
        );
        assert_eq!(fence.barrier().await, []);
    }

    /// VACUUM and ANALYZE hold SHARE UPDATE EXCLUSIVE for any time, and write no rows.
    async fn it_passes_over_vacuum_and_analyze(version) {
        let (cluster, mut fence) = ready(version).await;
        let client = cluster.app(0).await;
        // It is slow enough to be met: it pauses after every page.
        let fill = format!(
            "INSERT INTO {SCHEMA}.users (email) SELECT 'filler ' || i FROM \
                generate_series(1, 20000) AS i"
        );
        client.batch_execute(&fill).await.unwrap();
        let slow = "SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1; SET \
            vacuum_cost_page_hit = 10";
        for (command, view) in [("VACUUM", "vacuum"), ("ANALYZE", "analyze")] {
            let worker = cluster.app(0).await;
            let pid: i32 = worker
                .query_one("SELECT pg_backend_pid()", &[])
                .await
                .unwrap()
                .get(0);
            worker.batch_execute(slow).await.unwrap();
            let cancel = worker.cancel_token();
            let task = tokio::spawn(async move {
                worker
                    .batch_execute(&format!(
                        "{command} \
                {SCHEMA}.users"
                    ))
                    .await
            });
            let progress = format!("SELECT count(*) FROM pg_stat_progress_{view} WHERE pid = $1");
            while client
                .query_one(&progress, &[&pid])
                .await
                .unwrap()
                .get::<_, i64>(0)
                == 0
            {
                assert!(!task.is_finished(), "{command} went by unseen");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            fence.swap().await.unwrap();
            let holds = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND mode = \
                'ShareUpdateExclusiveLock'";
            let held: i64 = client.query_one(holds, &[&pid]).await.unwrap().get(0);
            assert_eq!(fence.barrier().await, [], "{command}");
            assert!(
                held > 0 && !task.is_finished(),
                "{command} was at work all the time"
            );
            fence.unfence().await.unwrap();
            cancel.cancel_query(tokio_postgres::NoTls).await.unwrap();
            task.await.unwrap().unwrap_err();
        }
    }
}
