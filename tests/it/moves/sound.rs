//! A source with rows that violate its own definition: this is found before anything is copied, and
//! named with what to do on the source.

use crate::support::{World, lines, other};

on_each_version! {
    async fn damaged_indexes_and_broken_checks_are_found_before_the_copy(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let db1 = world.servers.superuser(0).await;
        db1.batch_execute(
            "INSERT INTO shard_0000.users (id, name) VALUES (1, 'one'), (2, 'two');
             CREATE UNIQUE INDEX users_name ON shard_0000.users (name);
             ALTER TABLE shard_0000.users ADD CONSTRAINT named CHECK (name <> '') NOT VALID;
             ALTER TABLE shard_0000.users OWNER TO app",
        )
        .await
        .unwrap();
        let args = ["move", "0", "--to", "db2", "--yes", "--mode", "online"];
        let untrue = |index: bool| {
            format!(
                "UPDATE pg_index SET indisunique = {index} WHERE indexrelid = \
                'shard_0000.users_name'::regclass"
            )
        };
        // As a damaged index lets it happen.
        db1.batch_execute(&untrue(false)).await.unwrap();
        let twice = "INSERT INTO shard_0000.users (id, name) VALUES (3, 'two')";
        db1.batch_execute(twice).await.unwrap();
        db1.batch_execute(&untrue(true)).await.unwrap();
        // As a CHECK after a change of its function.
        db1.batch_execute(
            "ALTER TABLE shard_0000.users DROP CONSTRAINT named;
             INSERT INTO shard_0000.users (id, name) VALUES (4, '');
             ALTER TABLE shard_0000.users ADD CONSTRAINT named CHECK (name <> '') NOT VALID;
             UPDATE pg_constraint SET convalidated = true WHERE conname = 'named'",
        )
        .await
        .unwrap();
        let ran = world.run(&args).await;
        let said = &ran.ended(4).stderr;
        for told in [
            "unique index users_name of table users is damaged",
            "REINDEX INDEX \"shard_0000\".\"users_name\"",
            "CHECK named of table users has rows that break it",
        ] {
            assert!(said.contains(told), "{told}: {said}");
        }
        let db2 = world.servers.superuser(1).await;
        assert_eq!(
            lines(
                &db2,
                "SELECT relname::text FROM pg_class WHERE relnamespace =
            to_regnamespace('shard_0000__incoming')"
            )
            .await,
            "",
            "nothing was begun there"
        );
        assert_eq!(world.state(0, 0).await, "serving");
        db1.batch_execute(
            "SET enable_indexscan = off; SET enable_bitmapscan = off;
             DELETE FROM shard_0000.users WHERE id IN (3, 4);
             REINDEX INDEX shard_0000.users_name",
        )
        .await
        .unwrap();
        world.run(&["moves", "resume", &ran.id()]).await.ended(0);
        world.audit_places().await;
    }

    /// A slot keeps VACUUM from dead rows of the catalogs, and a session makes many temporary
    /// tables.
    async fn catalogs_that_grow_behind_a_slot_are_a_finding(version) {
        let world = World::new(&[version, version], 2).await;
        let moved = world
            .run(&["move", "0", "--to", "db2", "--yes", "--mode", "online"])
            .await;
        moved.ended(0);
        let db2 = world.servers.superuser(1).await;
        let columns: Vec<String> = (0..500).map(|n| format!("c{n} int")).collect();
        let churn = format!(
            "CREATE TEMP TABLE t ({}); DROP TABLE t;",
            columns.join(", ")
        );
        for _ in 0..50 {
            db2.batch_execute(&churn).await.unwrap();
        }
        let dead = "SELECT pg_stat_get_dead_tuples('pg_attribute'::regclass) > 20000";
        crate::support::until(&db2, dead).await;
        let check = world.run(&["check"]).await;
        assert!(
            check.stdout.contains(r#""catalogs_held""#),
            "{}",
            check.stdout
        );
        world
            .run(&["moves", "complete", &moved.id(), "--yes"])
            .await
            .ended(0);
        db2.batch_execute("VACUUM pg_attribute").await.unwrap();
        let alive = "SELECT pg_stat_get_dead_tuples('pg_attribute'::regclass) < 20000";
        crate::support::until(&db2, alive).await;
        let check = world.run(&["check"]).await;
        assert!(
            !check.stdout.contains(r#""catalogs_held""#),
            "{}",
            check.stdout
        );
    }
}
