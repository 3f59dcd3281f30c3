//! Holes that were found when the design was attacked, and that concern moves.

use std::time::Duration;

use crate::support::{Ran, World, other};

on_each_version! {
    /// There, back and there again: an old signpost under the shard's name captures no default and
    /// no function of the schema that is built next to it, and dropping it drops nothing else.
    async fn old_signposts_capture_nothing(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        let insert = "INSERT INTO shard_0000.users (name) VALUES ('x') RETURNING id";
        db1.query_one(insert, &[]).await.unwrap();
        let mut ids = Vec::new();
        for to in ["db2", "db1", "db2", "db1", "db2"] {
            ids.push(
                world
                    .run(&["move", "0", "--to", to, "--yes"])
                    .await
                    .ended(0)
                    .id(),
            );
            let db = if to == "db2" { &db2 } else { &db1 };
            db.query_one(insert, &[]).await.unwrap();
        }
        for id in ids {
            world
                .run(&["moves", "complete", &id, "--yes"])
                .await
                .ended(0);
        }
        world.run(&["moves", "gc"]).await.ended(0);
        db2.query_one(insert, &[]).await.unwrap();
        let rows: i64 = db2
            .query_one(
                "SELECT count(*) FROM \
            shard_0000.users",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        assert_eq!(rows, 7);
        world.audit_places().await;
        for db in [&db1, &db2] {
            let left = db
                .query_one("SELECT count(*) FROM pgshard.ledger", &[])
                .await
                .unwrap();
            assert_eq!(left.get::<_, i64>(0), 0);
        }
    }

    /// A transaction that has only prepared a statement against an old signpost does not keep the
    /// shard from coming back; only dropping the signpost waits.
    async fn who_looks_at_an_old_signpost_blocks_nothing(version) {
        let world = World::new(&[version, other(version)], 2).await;
        world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0);
        let looking = world.servers.app(0).await;
        looking
            .batch_execute(
                "BEGIN; PREPARE seen AS SELECT * FROM \
            shard_0000.users",
            )
            .await
            .unwrap();
        let id = world
            .run(&["move", "0", "--to", "db1", "--yes"])
            .await
            .ended(0)
            .id();
        assert_eq!(world.state(0, 0).await, "serving");
        world.audit_places().await;
        let blocked = world.run(&["moves", "gc"]).await;
        assert_ne!(blocked.code(), 0, "{}", blocked.stdout);
        looking.batch_execute("COMMIT").await.unwrap();
        world.run(&["moves", "gc"]).await.ended(0);
        world
            .run(&["moves", "complete", &id, "--yes"])
            .await
            .ended(0);
        world.audit_places().await;
    }

    /// The old copy is dropped, with its types; the signpost in its place stays, and still answers.
    async fn the_signpost_outlives_the_old_copy(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "
            CREATE TYPE shard_0000.kind AS ENUM ('photo', 'film');
            CREATE TABLE shard_0000.things (id int PRIMARY KEY, kind shard_0000.kind NOT NULL, \
            kinds shard_0000.kind[]);
            CREATE FUNCTION shard_0000.of(kind shard_0000.kind) RETURNS bigint LANGUAGE sql
                AS $$ SELECT count(*) FROM shard_0000.things WHERE kind = $1 $$;
            INSERT INTO shard_0000.things VALUES (1, 'film', '{photo,film}')",
        )
        .await
        .unwrap();
        let id = world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0)
            .id();
        let views = "SELECT count(*) FROM pg_class WHERE relnamespace = 'shard_0000'::regnamespace \
            AND relkind = 'v'";
        let before: i64 = db1.query_one(views, &[]).await.unwrap().get(0);
        world
            .run(&["moves", "complete", &id, "--yes"])
            .await
            .ended(0);
        assert_eq!(
            db1.query_one(views, &[]).await.unwrap().get::<_, i64>(0),
            before
        );
        for sql in [
            "SELECT * FROM shard_0000.things",
            "INSERT INTO shard_0000.things (id) VALUES (2)",
            "SELECT shard_0000.next_id()",
        ] {
            let error = db1.query(sql, &[]).await.unwrap_err();
            assert_eq!(error.code().unwrap().code(), "SH001", "{sql}");
        }
        let db2 = world.servers.app(1).await;
        let films: i64 = db2
            .query_one("SELECT shard_0000.of('film')", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(films, 1);
        world.audit_places().await;
    }

    /// An attempt without its fence decides nothing, whatever it has copied.
    async fn an_earlier_attempt_decides_nothing(version) {
        let world = World::new(&[version, version], 2).await;
        let db = world.servers.app(0).await;
        let id = world
            .run_until(&["move", "0", "--to", "db2", "--yes"], "after ready=kill")
            .await
            .ended(-9)
            .id();
        let lease: String = db
            .query_one(
                "SELECT lease::text FROM \
            pgshard.move",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        // A session swaps back after the deadline, writes, and the same mover fences again.
        let call = |sql: &str| sql.replace("$id", &id).replace("$lease", &lease);
        db.batch_execute(
            "UPDATE pgshard.shard SET fence_deadline = now() - interval '1 s' WHERE \
            shard_id = 0",
        )
        .await
        .unwrap();
        db.query_one("SELECT pgshard.expire_fence(0)", &[])
            .await
            .unwrap();
        db.batch_execute("INSERT INTO shard_0000.users (name) VALUES ('between')")
            .await
            .unwrap();
        let fence = call(
            "SELECT attempt FROM pgshard.fence(0, '$id', '$lease', gen_random_uuid(), \
            10000)",
        );
        assert_eq!(db.query_one(&fence, &[]).await.unwrap().get::<_, i32>(0), 2);
        for sql in [
            "SELECT pgshard.decide(0, '$id', 1, '$lease')",
            "SELECT pgshard.decide(0, '$id', 2, '$lease')",
            "SELECT pgshard.mark(0, '$id', 1, '$lease')",
            "SELECT pgshard.unfence(0, '$id', 1, '$lease')",
        ] {
            let error = db.query_one(&call(sql), &[]).await.unwrap_err();
            assert_eq!(error.code().unwrap().code(), "SH002", "{sql}");
        }
        world.run(&["moves", "resume", &id]).await.ended(0);
        let rows = world
            .servers
            .app(1)
            .await
            .query_one("SELECT name FROM shard_0000.users", &[])
            .await
            .unwrap();
        assert_eq!(rows.get::<_, &str>(0), "between");
        world.audit_places().await;
    }

    /// A transaction that wrote before the fence and commits behind it: a row, and a table of its
    /// own.
    async fn what_was_under_way_comes_along(version) {
        let world = World::new(&[version, other(version)], 4).await;
        for (shard, sql, check) in [
            (
                "0",
                "INSERT INTO shard_0000.users (name) VALUES \
                ('late')",
                "SELECT name FROM \
                shard_0000.users",
            ),
            (
                "1",
                "CREATE TABLE shard_0001.fresh AS SELECT 'late'::text AS \
                name",
                "SELECT name \
                FROM shard_0001.fresh",
            ),
        ] {
            let writer = world.servers.app(0).await;
            writer
                .batch_execute(&format!("BEGIN; {sql}"))
                .await
                .unwrap();
            let args = [
                "move",
                shard,
                "--to",
                "db2",
                "--yes",
                "--fence-budget-ms",
                "10000",
            ];
            let child = world.command(&args, &[]).spawn().unwrap();
            while world.state(0, shard.parse().unwrap()).await != "fenced" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // A copy that does not wait for the writer would be finished by then, without the
            // writer's row.
            tokio::time::sleep(Duration::from_millis(500)).await;
            writer.batch_execute("COMMIT").await.unwrap();
            Ran::of(child).await.ended(0);
            let found: String = world
                .servers
                .app(1)
                .await
                .query_one(check, &[])
                .await
                .unwrap()
                .get(0);
            assert_eq!(found, "late");
        }
        world.audit_places().await;
    }
}
