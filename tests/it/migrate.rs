//! `pgshard migrate` on real servers: busy tables, failures, kills, canaries, moves, and statements
//! without a transaction.

mod apart;
mod backfill;
mod expand;
mod matrix;
mod resolve;
mod sessions;
mod texts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Ran, World, Writers, lines};

const ADD: (&str, &str) = (
    "migrations/0002_caption.sql",
    "ALTER TABLE {shard}.photos ADD COLUMN caption text",
);

impl World {
    fn file(&self, (name, sql): (&str, &str)) {
        self.servers.write(name, sql);
    }

    /// How many of the hosts' shards (those that are served) have a column or an index of this
    /// name.
    async fn having(&self, name: &str) -> i64 {
        let sql =
            "SELECT count(*) FROM pgshard.shard s JOIN pg_namespace n ON n.nspname = s.schema_name
            WHERE s.state = 'serving' AND (
                EXISTS (SELECT FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
                        WHERE c.relnamespace = n.oid AND c.relkind = 'r' AND a.attname = $1)
                OR EXISTS (SELECT FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
                           WHERE c.relnamespace = n.oid AND c.relname = $1 AND i.indisvalid))";
        let mut count = 0;
        for client in self.all().await {
            count += client
                .query_one(sql, &[&name])
                .await
                .unwrap()
                .get::<_, i64>(0);
        }
        count
    }

    /// How many shards have recorded a migration, on the hosts that serve them.
    async fn recorded(&self, name: &str) -> i64 {
        let sql = "SELECT count(*) FROM pgshard.shard_migration JOIN pgshard.shard USING (shard_id)
            WHERE state = 'serving' AND name = $1";
        let mut count = 0;
        for client in self.all().await {
            count += client
                .query_one(sql, &[&name])
                .await
                .unwrap()
                .get::<_, i64>(0);
        }
        count
    }
}

on_each_version! {
    /// A transaction that stays open on one shard's table does not make its writers wait: the
    /// migration gives way each time, does all other shards in that time, and that shard later.
    async fn a_busy_table(version) {
        let world = World::new(&[version, version], 16).await;
        world.file(ADD);
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "INSERT INTO shard_0003.users (name) VALUES ('a');
            INSERT INTO shard_0003.photos (user_id, title) SELECT id, 'x' FROM \
            shard_0003.users",
        )
        .await
        .unwrap();
        let holder = world.servers.app(0).await;
        holder
            .batch_execute("BEGIN; SELECT * FROM shard_0003.photos")
            .await
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let writer = {
            let (client, stop) = (world.servers.app(0).await, stop.clone());
            tokio::spawn(async move {
                let (mut worst, mut wrote) = (Duration::ZERO, 0);
                while !stop.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    client
                        .batch_execute(
                            "UPDATE shard_0003.photos SET title = title || \
                        'y'",
                        )
                        .await
                        .unwrap();
                    (worst, wrote) = (worst.max(begun.elapsed()), wrote + 1);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                (worst, wrote)
            })
        };
        let up = world.command(&["migrate", "up"], &[]).spawn().unwrap();
        // All shards but that one are done while the lock is held.
        let begun = Instant::now();
        while world.having("caption").await < 15 {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "the others do not wait"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(world.having("caption").await, 15);
        holder.batch_execute("COMMIT").await.unwrap();
        crate::support::Ran::of(up).await.ended(0);
        stop.store(true, Ordering::Relaxed);
        let (worst, wrote) = writer.await.unwrap();
        assert_eq!(
            (
                world.having("caption").await,
                world.recorded("0002_caption").await
            ),
            (16, 16)
        );
        eprintln!("{wrote} writes, the longest {worst:?}");
        assert!(wrote > 10);
    }

    /// A shard that stays busy, and one that fails, are named and recorded; the others are done.
    /// `retry` does only those two; `up` then finds nothing to do.
    async fn failures_and_retry(version) {
        let world = World::new(&[version, version], 16).await;
        world.file(ADD);
        let db2 = world.servers.app(1).await;
        // This is in the way of the second migration, in one shard.
        db2.batch_execute("CREATE TABLE shard_0012.albums ()")
            .await
            .unwrap();
        world.file((
            "migrations/0003_albums.sql",
            "CREATE TABLE {shard}.albums (id bigint);",
        ));
        let holder = world.servers.app(0).await;
        holder
            .batch_execute("BEGIN; SELECT * FROM shard_0003.photos")
            .await
            .unwrap();
        let ran = world.run(&["migrate", "up", "--patience-s", "1"]).await;
        ran.ended(8);
        let done = ran.last();
        assert_eq!(
            (
                &done["hosts"]["db1"]["migrated"],
                &done["hosts"]["db2"]["migrated"]
            ),
            (&7.into(), &7.into())
        );
        let busy = done["hosts"]["db1"]["failed"][0]["message"]
            .as_str()
            .unwrap();
        assert!(
            busy.starts_with("busy, tried") && busy.contains("has been in a transaction"),
            "{busy}"
        );
        let failed = &done["hosts"]["db2"]["failed"][0];
        assert_eq!(
            failed["message"],
            "0003_albums failed: relation \"albums\" already exists \
            (42P07)"
        );
        // Both of its migrations are in one transaction.
        assert_eq!(
            (
                world.having("caption").await,
                world.recorded("0002_caption").await
            ),
            (14, 14)
        );
        let status = world.run(&["migrate", "status"]).await.last();
        assert_eq!(
            (
                &status["migrations"][1]["failed"],
                &status["migrations"][2]["failed"]
            ),
            (&"3".into(), &"12".into())
        );

        holder.batch_execute("COMMIT").await.unwrap();
        db2.batch_execute("DROP TABLE shard_0012.albums")
            .await
            .unwrap();
        world.file((
            "migrations/0004_more.sql",
            "ALTER TABLE {shard}.albums ADD COLUMN more int",
        ));
        world.run(&["migrate", "retry"]).await.ended(0);
        assert_eq!(
            (
                world.having("caption").await,
                world.recorded("0004_more").await
            ),
            (16, 2)
        );
        world.run(&["migrate", "retry"]).await.ended(0);
        assert_eq!(world.recorded("0004_more").await, 2);
        world.run(&["migrate", "up"]).await.ended(0);
        assert_eq!(world.recorded("0004_more").await, 16);
        assert!(
            world
                .run(&["migrate", "up"])
                .await
                .ended(0)
                .stderr
                .contains("nothing to do")
        );
        // An edited, a missing and a late file: all three are reported, and nothing is run.
        world.file((
            "migrations/0002_caption.sql",
            "ALTER TABLE {shard}.photos ADD COLUMN caption \
            varchar",
        ));
        std::fs::remove_file(world.servers.directory().join("migrations/0004_more.sql")).unwrap();
        world.file((
            "migrations/0005_new.sql",
            "ALTER TABLE {shard}.photos ADD COLUMN new int",
        ));
        let before = world.everything().await;
        for command in ["up", "plan"] {
            let ran = world.run(&["migrate", command]).await;
            ran.ended(4);
            for words in [
                "0002_caption was changed",
                "0004_more was run, but its file no longer \
                exists",
            ] {
                assert!(
                    ran.stdout.contains(words) || ran.stderr.contains(words),
                    "{}{}",
                    ran.stdout,
                    ran.stderr
                );
            }
        }
        assert_eq!(world.everything().await, before);
    }

    /// Where a file is applied in all shards and the next one in none, something was done. A
    /// folder's pipe has no end, and is not read.
    async fn a_file_before_the_one_that_fails(version) {
        let world = World::new(&[version, version], 4).await;
        // It would never get better, so it is not tried again; and it takes the file before it
        // along, with which it shares a transaction.
        world.file(ADD);
        world.file((
            "migrations/0003_pairs.sql",
            "SET TRANSACTION READ ONLY; CREATE TABLE \
            {shard}.pairs (x int)",
        ));
        let ran = world.run(&["migrate", "up"]).await;
        assert!(
            ran.ended(1).stderr.contains("read-only transaction"),
            "{}",
            ran.stderr
        );
        assert!(!ran.stderr.contains("busy"), "{}", ran.stderr);
        let twice = "-- pgshard: no-transaction\nCREATE UNIQUE INDEX CONCURRENTLY twice ON \
            {shard}.pairs (x)";
        let pairs = "CREATE TABLE {shard}.pairs AS SELECT 1 AS x FROM generate_series(1, 2)";
        world.file(("migrations/0003_pairs.sql", pairs));
        world.file(("migrations/0004_twice.sql", twice));
        let ran = world.run(&["migrate", "up"]).await;
        assert!(ran.ended(8).stderr.contains("0004_twice"), "{}", ran.stderr);
        assert_eq!(world.having("caption").await, 4);
        // Now nothing is done.
        world.run(&["migrate", "up"]).await.ended(1);
        let unset = world.run(&["migrate", "up", "--only", ""]).await;
        assert!(
            unset.ended(2).stderr.contains("--only names no shards"),
            "{}",
            unset.stderr
        );
        let pipe = world.servers.directory().join("migrations/0005_pipe.sql");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        let ran = world.run(&["migrate", "up"]).await;
        assert!(
            ran.ended(2).stderr.contains("0005_pipe.sql") && ran.stderr.contains("not a file"),
            "{}",
            ran.stderr
        );
    }

    /// If the canary's shards fail, no other is touched. If they succeed, the others follow.
    async fn a_failing_canary_stops_the_others(version) {
        let world = World::new(&[version, version], 32).await;
        world.file((
            "migrations/0002_bad.sql",
            "ALTER TABLE {shard}.photos ADD COLUMN caption \
            nothing",
        ));
        let ran = world.run(&["migrate", "up", "--canary", "5%"]).await;
        let done = ran.ended(1).last();
        let failed = |host: &str| done["hosts"][host]["failed"].as_array().unwrap().len();
        assert_eq!(
            (failed("db1"), failed("db2"), world.having("caption").await),
            (1, 1, 0)
        );
        let not_tried = |host: &str| {
            done["hosts"][host]["not_tried"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        assert!(
            !not_tried("db1").is_empty() && !not_tried("db2").is_empty(),
            "{done:#}"
        );
        std::fs::remove_file(world.servers.directory().join("migrations/0002_bad.sql")).unwrap();
        world.file(ADD);
        world
            .run(&["migrate", "up", "--canary", "3"])
            .await
            .ended(0);
        assert_eq!(world.having("caption").await, 32);
    }

    /// Only these shards, only this host.
    async fn a_part_is_migrated_alone(version) {
        let world = World::new(&[version, version], 16).await;
        world.file(ADD);
        world
            .run(&["migrate", "up", "--only", "3-9"])
            .await
            .ended(0);
        assert_eq!(world.having("caption").await, 7);
        let plan = world.run(&["migrate", "plan"]).await.ended(0).last();
        assert_eq!(plan["hosts"]["db1"]["groups"][0]["shards"], "0-2");
        assert_eq!(plan["migrations"][0]["first_line"], ADD.1);
        let sql = world
            .run(&["migrate", "plan", "--sql"])
            .await
            .ended(0)
            .last();
        assert_eq!(sql["migrations"][0]["sql"], ADD.1);
        world
            .run(&["migrate", "up", "--host", "db2"])
            .await
            .ended(0);
        assert_eq!(world.having("caption").await, 13);
        world.run(&["migrate", "up", "--only", "16"]).await.ended(2);
    }

    /// Once in each database and before its shards, in bootstrap and in `up`. A host where it fails
    /// is left alone, and the other continues.
    async fn once_per_host(version) {
        let world = World::with_tables(
            &[version, version],
            8,
            &[
                (
                    "0001_shared.sql",
                    "-- pgshard: once-per-host\nCREATE TYPE public.mood AS ENUM \
                    ('good', 'bad')",
                ),
                (
                    "0002_tables.sql",
                    "CREATE TABLE {shard}.photos (id bigint, mood public.mood)",
                ),
            ],
        )
        .await;
        assert_eq!(world.having("mood").await, 8);
        world.file((
            "migrations/0003_shared.sql",
            "-- pgshard: once-per-host\nCREATE FUNCTION public.nice() RETURNS int LANGUAGE sql AS \
                'SELECT 1'",
        ));
        world.file((
            "migrations/0004_nice.sql",
            "ALTER TABLE {shard}.photos ADD COLUMN caption int DEFAULT public.nice()",
        ));
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "CREATE FUNCTION public.nice() RETURNS int LANGUAGE sql AS 'SELECT \
            2'",
        )
        .await
        .unwrap();
        let done = world.run(&["migrate", "up"]).await.ended(8).last();
        let fault = done["hosts"]["db1"]["fault"].as_str().unwrap();
        assert!(
            fault.starts_with(
                "0003_shared failed: function \"nice\" already \
            exists"
            ),
            "{fault}"
        );
        assert_eq!(world.having("caption").await, 4);
        db1.batch_execute("DROP FUNCTION public.nice()")
            .await
            .unwrap();
        world.run(&["migrate", "up"]).await.ended(0);
        assert_eq!(world.having("caption").await, 8);
        let status = world.run(&["migrate", "status"]).await.last();
        assert_eq!(
            status["once_per_host"][1]["applied"],
            serde_json::json!(["db1", "db2"])
        );
        world.file((
            "migrations/0003_shared.sql",
            "-- pgshard: once-per-host\nSELECT 1",
        ));
        world.run(&["migrate", "up"]).await.ended(4);
    }

    /// An index is created while writers continue. If the data does not allow it, nothing is left.
    /// An index of the name that no migration began is not ours. What a killed attempt left, valid
    /// or not, is cleaned up or adopted.
    async fn without_a_transaction(version) {
        let world = World::new(&[version, version], 8).await;
        world.file((
            "migrations/0002_titles.sql",
            "-- pgshard: no-transaction\nCREATE UNIQUE INDEX CONCURRENTLY photos_title ON \
                {shard}.photos (user_id, \
             title);",
        ));
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "INSERT INTO shard_0001.users (name) VALUES ('a');
            INSERT INTO shard_0001.photos (user_id, title) SELECT id, 'x' FROM shard_0001.users, \
            generate_series(1, 2);
            CREATE INDEX photos_title ON shard_0002.photos (id)",
        )
        .await
        .unwrap();
        let writers = Writers::start(&world, 2).await;
        let ran = world.run(&["migrate", "up"]).await;
        let done = ran.ended(8).last();
        let failed: Vec<(i64, String)> = done["hosts"]["db1"]["failed"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| {
                (
                    one["shard"].as_i64().unwrap(),
                    one["message"].as_str().unwrap().to_owned(),
                )
            })
            .collect();
        assert_eq!(failed[0].0, 1, "{failed:?}");
        assert!(
            failed[0].1.contains("could not create unique index"),
            "{failed:?}"
        );
        assert_eq!(
            failed[1],
            (
                2,
                "0002_titles failed: there is already an index photos_title, which no migration \
                has begun"
                    .to_owned()
            )
        );
        let left = "SELECT count(*) FROM pg_class WHERE relname = 'photos_title' \
                    AND relnamespace = 'shard_0001'::regnamespace";
        assert_eq!(db1.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0);
        assert_eq!(world.recorded("0002_titles").await, 6);
        writers.stop().await.flawless();

        // What killed attempts may leave: begun, with an invalid index, a valid one, or none.
        let superuser = world.servers.superuser(0).await;
        for (shard, valid) in [(1, false), (2, true)] {
            db1.batch_execute(&format!(
                "DROP INDEX IF EXISTS shard_000{shard}.photos_title; DELETE FROM \
                    shard_000{shard}.photos;
                CREATE UNIQUE INDEX photos_title ON shard_000{shard}.photos (user_id, title);
                UPDATE pgshard.migration_attempt SET begun = true WHERE shard_id = {shard}"
            ))
            .await
            .unwrap();
            superuser
                .batch_execute(&format!(
                    "UPDATE pg_index SET indisvalid = {valid}
                WHERE indexrelid = 'shard_000{shard}.photos_title'::regclass"
                ))
                .await
                .unwrap();
        }
        let oid = "SELECT array_agg(oid ORDER BY relnamespace::regnamespace::text) FROM pg_class
            WHERE relname = 'photos_title'
            AND relnamespace IN ('shard_0001'::regnamespace, 'shard_0002'::regnamespace)";
        let before: Vec<u32> = db1.query_one(oid, &[]).await.unwrap().get(0);
        world.run(&["migrate", "retry"]).await.ended(0);
        let after: Vec<u32> = db1.query_one(oid, &[]).await.unwrap().get(0);
        assert_eq!(
            (before[0] == after[0], before[1] == after[1]),
            (false, true)
        );
        assert_eq!(
            (
                world.having("photos_title").await,
                world.recorded("0002_titles").await
            ),
            (8, 8)
        );
        // A new shard has the same index immediately.
        assert_eq!(
            db1.query_one(
                "SELECT count(*) FROM \
                pgshard.migration_attempt",
                &[]
            )
            .await
            .unwrap()
            .get::<_, i64>(0),
            0
        );
    }

    /// The client is killed while the server still builds an index: no other run begins in that
    /// time, and afterwards the finished index is adopted; unless the file was edited in between,
    /// because then another one is wanted.
    async fn killed_at_an_index(version) {
        let world = World::new(&[version], 4).await;
        let (db1, other) = (world.servers.app(0).await, world.servers.superuser(0).await);
        let kill_in_the_middle = async || {
            // CREATE INDEX CONCURRENTLY waits for the end of this.
            db1.batch_execute(
                "BEGIN; INSERT INTO shard_0001.users (name) VALUES ('a');
                LOCK TABLE shard_0001.photos IN ROW EXCLUSIVE MODE",
            )
            .await
            .unwrap();
            let mut up = world
                .command(&["migrate", "up", "--only", "1"], &[])
                .spawn()
                .unwrap();
            let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
            let begun = Instant::now();
            while other
                .query_one(waiting, &[])
                .await
                .unwrap()
                .get::<_, i64>(0)
                == 0
            {
                assert!(begun.elapsed() < Duration::from_secs(60));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            up.kill().await.unwrap();
            db1.batch_execute("COMMIT").await.unwrap();
        };
        let oid = "SELECT 'shard_0001.photos_title'::regclass::oid::bigint";
        let left = "SELECT count(*) FROM pg_index WHERE NOT indisvalid";
        world.file((
            "migrations/0002_i.sql",
            "-- pgshard: no-transaction\nCREATE INDEX CONCURRENTLY photos_title ON {shard}.photos \
                (title)",
        ));
        kill_in_the_middle().await;
        world.run(&["migrate", "up"]).await.ended(0);
        assert_eq!(
            (
                world.having("photos_title").await,
                world.recorded("0002_i").await
            ),
            (4, 4)
        );
        assert_eq!(
            other.query_one(left, &[]).await.unwrap().get::<_, i64>(0),
            0
        );
        let first: i64 = other.query_one(oid, &[]).await.unwrap().get(0);

        world.file((
            "migrations/0003_j.sql",
            "-- pgshard: no-transaction\nCREATE INDEX CONCURRENTLY photos_by ON {shard}.photos \
                (title)",
        ));
        kill_in_the_middle().await;
        world.file((
            "migrations/0003_j.sql",
            "-- pgshard: no-transaction\nCREATE UNIQUE INDEX CONCURRENTLY photos_by ON \
                {shard}.photos (id)",
        ));
        world.run(&["migrate", "up"]).await.ended(0);
        assert_eq!(
            (
                world.having("photos_by").await,
                world.recorded("0003_j").await
            ),
            (4, 4)
        );
        let sql = "SELECT DISTINCT replace(indexdef, schemaname, '…') FROM pg_indexes WHERE \
            indexname = 'photos_by'";
        let made: Vec<String> = other
            .query(sql, &[])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        assert_eq!(
            made,
            ["CREATE UNIQUE INDEX photos_by ON ….photos USING btree (id)"]
        );
        assert_eq!(
            other.query_one(left, &[]).await.unwrap().get::<_, i64>(0),
            0
        );
        assert_eq!(
            other.query_one(oid, &[]).await.unwrap().get::<_, i64>(0),
            first,
            "the other \
            index is left alone"
        );
    }

    /// An index that is built without a transaction and an online move of another shard of the host
    /// do not wait for each other.
    async fn an_index_beside_moves(version) {
        let world = World::new(&[version, version], 8).await;
        let (holder, other) = (world.servers.app(0).await, world.servers.superuser(0).await);
        // CREATE INDEX CONCURRENTLY waits for the end of this. It has written nothing, so a slot
        // does not wait for it.
        let hold = "BEGIN; LOCK TABLE shard_0001.photos IN ROW EXCLUSIVE MODE";
        holder.batch_execute(hold).await.unwrap();
        world.file((
            "migrations/0002_i.sql",
            "-- pgshard: no-transaction\nCREATE INDEX CONCURRENTLY photos_title ON {shard}.photos \
                (title)",
        ));
        let up = world
            .command(&["migrate", "up", "--only", "1"], &[])
            .spawn()
            .unwrap();
        let waits = "SELECT pid::text FROM pg_locks WHERE NOT granted AND locktype = 'virtualxid'";
        let begun = Instant::now();
        while lines(&other, waits).await.is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
        assert_eq!(
            lines(&other, waits).await.lines().count(),
            1,
            "the index is not made yet"
        );
        // The index's own shard is not moved with half an index.
        let own = world
            .run(&["move", "1", "--to", "db2", "--mode", "online", "--yes"])
            .await;
        assert!(
            own.code() != 0 && own.stderr.contains("photos_title"),
            "{}\n{}",
            own.stdout,
            own.stderr
        );
        holder.batch_execute("COMMIT").await.unwrap();
        Ran::of(up).await.ended(0);
        world
            .run(&["move", "1", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
        assert_eq!((world.host_of(1), world.recorded("0002_i").await), (1, 1));
        let there = "SELECT indexname::text FROM pg_indexes WHERE schemaname = 'shard_0001' AND \
            indexname ~ 'title'";
        assert_eq!(
            lines(&world.servers.app(1).await, there).await,
            "photos_title\n"
        );
    }

    /// A shard that is taken away from its host while a file without a transaction runs there does
    /// not have that file.
    async fn a_shard_stands_down_meanwhile(version) {
        let world = World::new(&[version, version], 4).await;
        let (holder, other) = (world.servers.app(0).await, world.servers.superuser(0).await);
        holder
            .batch_execute(
                "BEGIN; LOCK TABLE shard_0001.photos IN ROW EXCLUSIVE \
            MODE",
            )
            .await
            .unwrap();
        world.file((
            "migrations/0002_i.sql",
            "-- pgshard: no-transaction\nCREATE INDEX CONCURRENTLY photos_title ON {shard}.photos \
                (title)",
        ));
        let up = world
            .command(&["migrate", "up", "--only", "1"], &[])
            .spawn()
            .unwrap();
        let waits = "SELECT pid::text FROM pg_locks WHERE NOT granted AND locktype = 'virtualxid'";
        let begun = Instant::now();
        while lines(&other, waits).await.is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let db1 = world.servers.app(0).await;
        let stand_down = "SELECT pgshard.stand_down(1, 1, 'db2', 2, gen_random_uuid(), 'a test', \
            'a test')";
        assert_eq!(lines(&db1, stand_down).await, "shard_0001__left_e1\n");
        holder.batch_execute("COMMIT").await.unwrap();
        let ran = Ran::of(up).await;
        let failed = &ran.ended(8).last()["hosts"]["db1"]["failed"][0];
        assert_eq!(
            (
                &failed["shard"],
                ran.stdout.contains("a move away from here")
            ),
            (&1.into(), true),
            "{failed}"
        );
        let recorded = "SELECT name FROM pgshard.shard_migration WHERE shard_id = 1 AND name = \
            '0002_i'";
        assert_eq!(lines(&db1, recorded).await, "");
    }

    /// Killed in the middle, again and again: each shard has a migration completely or not at all,
    /// and the last run finishes.
    async fn killed_in_the_middle(version) {
        let world = World::new(&[version, version], 64).await;
        world.file(ADD);
        world.file((
            "migrations/0003_two.sql",
            "CREATE TABLE {shard}.two (id int); SELECT \
            pg_catalog.pg_sleep(0.02)",
        ));
        for round in 0..4 {
            let mut up = world
                .command(&["migrate", "up", "--jobs", "2"], &[])
                .spawn()
                .unwrap();
            tokio::time::sleep(Duration::from_millis(60 + 70 * round)).await;
            let _ = up.kill().await;
        }
        // The server processes of the last run may still be at work; the next run waits for them.
        let ran = world.run(&["migrate", "up"]).await;
        ran.ended(0);
        assert_eq!(
            (
                world.having("caption").await,
                world.recorded("0002_caption").await
            ),
            (64, 64)
        );
        assert_eq!(world.recorded("0003_two").await, 64);
        world.run(&["check"]).await.ended(0);
    }

    /// Shards move back and forth while they are migrated, during writes: every move succeeds,
    /// every shard has the migration and its record, on the host where it is, and no row is lost.
    async fn moves_and_migrations_run_together(version) {
        let world = World::new(&[version, version], 8).await;
        let writers = Writers::start(&world, 2).await;
        for round in 0..4 {
            world.file((
                &format!("migrations/000{}_c.sql", round + 2),
                &format!(
                    "ALTER TABLE {{shard}}.photos ADD COLUMN c{round} text;
                    CREATE TABLE {{shard}}.t{round} (id bigint PRIMARY KEY);
                    CREATE FUNCTION {{shard}}.f{round}() RETURNS int LANGUAGE sql AS 'SELECT \
                    {round}';
                    SELECT pg_catalog.pg_sleep(0.05)"
                ),
            ));
            let target = if round % 2 == 0 { "db2" } else { "db1" };
            let shards = "0-3";
            // Both modes in each direction.
            let mode = if round < 2 { "online" } else { "blocking" };
            let move_ = [
                "move",
                shards,
                "--to",
                target,
                "--mode",
                mode,
                "--yes",
                "--fence-attempts",
                "200",
            ];
            let (moved, first) = tokio::join!(world.run(&move_), async {
                tokio::time::sleep(Duration::from_millis(40 * round)).await;
                world.run(&["migrate", "up", "--jobs", "1"]).await
            });
            moved.ended(0);
            assert!(
                [0, 8].contains(&first.code()),
                "{}{}",
                first.stdout,
                first.stderr
            );
            for one in first.last()["hosts"]
                .as_object()
                .unwrap()
                .values()
                .flat_map(|host| host["failed"].as_array().unwrap().clone())
            {
                let message = one["message"].as_str().unwrap();
                assert!(
                    message.starts_with(
                        "a move away from here is at work, and migrations wait for \
                        it"
                    ),
                    "{message}"
                );
            }
            world.run(&["migrate", "up"]).await.ended(0);
            let (column, name) = (format!("c{round}"), format!("000{}_c", round + 2));
            assert_eq!(
                (world.having(&column).await, world.recorded(&name).await),
                (8, 8)
            );
        }
        writers.stop().await.flawless();
        world.audit_places().await;
    }

    /// A migration that began before the move, and takes longer than a lease, does not end the
    /// move; and the move carries what it did.
    async fn a_long_migration_and_a_mover(version) {
        let world = World::new(&[version, version], 4).await;
        world.file((
            "migrations/0002_long.sql",
            "CREATE TABLE {shard}.long (id int PRIMARY KEY); SELECT pg_catalog.pg_sleep(4)",
        ));
        let up = world
            .command(&["migrate", "up", "--only", "0-1"], &[])
            .spawn()
            .unwrap();
        let db1 = world.servers.superuser(0).await;
        let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        while db1.query_one(asleep, &[]).await.unwrap().get::<_, i64>(0) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let by = async |shard: &str, mode: &str| {
            let args = ["move", shard, "--to", "db2", "--mode", mode, "--yes"];
            world.run_with(&args, &[("PGSHARD_LEASE_MS", "1000")]).await
        };
        let (blocking, online) = tokio::join!(by("0", "blocking"), by("1", "online"));
        blocking.ended(0);
        online.ended(0);
        crate::support::Ran::of(up).await.ended(0);
        assert_eq!(
            (
                world.host_of(0),
                world.host_of(1),
                world.recorded("0002_long").await
            ),
            (1, 1, 2)
        );
        let db2 = world.servers.app(1).await;
        db2.query("SELECT * FROM shard_0000.long, shard_0001.long", &[])
            .await
            .unwrap();
    }

    /// Shards that are being moved online are left alone by migrations and bootstrap, however far
    /// they are: they are named as pending, and the others are done. They are migrated once they
    /// have arrived.
    async fn shards_on_their_way_online(version) {
        let world = World::new(&[version, version], 8).await;
        let writers = Writers::start(&world, 2).await;
        let mut ids = Vec::new();
        for (shards, point) in [
            ("0", "after prepare=kill"),
            ("1-2", "after loaded=kill"),
            ("3", "after catch-up=kill"),
        ] {
            let killed = world
                .run_until(
                    &["move", shards, "--to", "db2", "--mode", "online", "--yes"],
                    point,
                )
                .await;
            ids.push(killed.ended(-9).id());
        }
        world.file(ADD);
        for command in [&["migrate", "up"][..], &["bootstrap"]] {
            let done = world.run(command).await.ended(8).last();
            let failed = done["hosts"]["db1"]["failed"].as_array().unwrap();
            let left: Vec<i64> = failed
                .iter()
                .map(|one| one["shard"].as_i64().unwrap())
                .collect();
            assert_eq!(left, [0, 1, 2, 3], "{done}");
            let (words, id) = (failed[0]["message"].as_str().unwrap(), &ids[0]);
            let told =
                format!("migrations wait for it: the move {id}, on which no command works (");
            assert!(words.contains(&told), "{words}");
            assert_eq!(
                (
                    world.having("caption").await,
                    world.recorded("0002_caption").await
                ),
                (4, 4),
                "{command:?}"
            );
        }
        let status = world.run(&["migrate", "status"]).await.last();
        assert_eq!(status["migrations"][1]["pending"], "0-3", "{status}");
        for id in &ids {
            world.run(&["moves", "resume", id]).await.ended(0);
        }
        world.run(&["migrate", "up"]).await.ended(0);
        assert_eq!(
            (
                world.having("caption").await,
                world.recorded("0002_caption").await
            ),
            (8, 8)
        );
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }

    /// A shard that no host serves, because its move was decided and it was not opened, is not
    /// forgotten in any count: `up`, `status`, `wait`, and an application that waits. Nor are
    /// shards of a mover that is alive; that mover is named.
    async fn shards_that_are_missed(version) {
        let world = World::new(&[version, version], 8).await;
        for (host, shard) in [(0, "shard_0000"), (1, "shard_0004")] {
            let sql = format!("CREATE ROLE web LOGIN; GRANT USAGE ON SCHEMA {shard} TO web");
            world
                .servers
                .superuser(host)
                .await
                .batch_execute(&sql)
                .await
                .unwrap();
        }
        world.run(&["bootstrap"]).await.ended(0);
        let text = std::fs::read_to_string(&world.config.path)
            .unwrap()
            .replace("app@", "web@");
        let application = pgshard::connect(world.write("web.toml", &text))
            .await
            .unwrap();
        let waits = [
            "migrate",
            "wait",
            "--for",
            "0002_caption.sql",
            "--timeout-s",
            "0",
        ];
        world.run(&["migrate", "status"]).await.ended(0);
        world
            .run(&["migrate", "wait", "--timeout-s", "0"])
            .await
            .ended(0);
        world.run(&waits).await.ended(2);

        let id = world
            .run_until(&["move", "0", "--to", "db2", "--yes"], "after decide=kill")
            .await
            .ended(-9)
            .id();
        world.file(ADD);
        let ran = world.run(&waits).await;
        assert!(
            ran.ended(8).stderr.contains(
                "has run in 0 of 8 shards; shards that lack it: 1-7; shards that no host \
                    says it serves: 0"
            ),
            "{}",
            ran.stderr
        );
        let ran = world.run(&["migrate", "up"]).await;
        assert_eq!(ran.ended(8).last()["unserved"], "0", "{}", ran.stdout);
        let words = "shard 0: no host says that it serves it: db1 has given it to db2, which has \
            not opened it yet";
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
        assert_eq!(world.recorded("0002_caption").await, 7);
        let status = world.run(&["migrate", "status"]).await;
        assert_eq!(status.ended(8).last()["unserved"], "0", "{}", status.stdout);
        world.run(&waits).await.ended(8);
        let early = application
            .wait_for_migration("0002_caption", Duration::ZERO)
            .await
            .unwrap_err();
        assert_eq!(
            early.how_far.unserved().collect::<Vec<_>>(),
            [pgshard::ShardId::new(0).unwrap()],
            "{early}"
        );

        // Processes that wait are notified when it is done.
        world.run(&["moves", "resume", &id]).await.ended(0);
        let waiting = world
            .command(&["migrate", "wait", "--for", "0002_caption"], &[])
            .spawn()
            .unwrap();
        let (applied, up) = tokio::join!(
            application.wait_for_migration("0002_caption", Duration::from_secs(60)),
            world.run(&["migrate", "up"])
        );
        applied.unwrap();
        up.ended(0);
        let waited = crate::support::Ran::of(waiting).await;
        assert_eq!(
            waited.ended(0).last()["migrations"][0]["applied"],
            8,
            "{}",
            waited.stdout
        );
        world.run(&["migrate", "status"]).await.ended(0);
        assert!(application.migrated("0003_nothing").await.having.is_empty());
        // A migration that runs once per host, and one that was changed after it ran.
        world.file((
            "migrations/0003_once.sql",
            "-- pgshard: once-per-host\nCREATE TABLE \
            public.once ()",
        ));
        world
            .run(&["migrate", "wait", "--for", "0003_once", "--timeout-s", "0"])
            .await
            .ended(8);
        world.run(&["migrate", "up"]).await.ended(0);
        world
            .run(&["migrate", "wait", "--timeout-s", "0"])
            .await
            .ended(0);
        world.file((
            "migrations/0002_caption.sql",
            "ALTER TABLE {shard}.photos ADD COLUMN other \
            text",
        ));
        world.run(&waits).await.ended(4);
        world.run(&["migrate", "status"]).await.ended(8);
        world.file(ADD);

        // A mover that is alive is named, with what to do.
        let held = [
            "move", "1", "--to", "db2", "--mode", "online", "--hold", "--yes",
        ];
        let mover = world.command(&held, &[]).spawn().unwrap();
        while world.run(&["moves", "list"]).await.last()["moves"]
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["phase"] != "ready")
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        world.file((
            "migrations/0004_later.sql",
            "ALTER TABLE {shard}.photos ADD COLUMN later \
            text",
        ));
        let ran = world.run(&["migrate", "up"]).await;
        let pid = format!("pid {}", mover.id().unwrap());
        let named = ran.stderr.contains(&pid)
            && ran.stderr.contains(" since ")
            && ran.stderr.contains("`pgshard moves abort ");
        assert!(named && ran.code() == 8, "{} {}", ran.code(), ran.stderr);
        let second = world.run(&["move", "1", "--to", "db2", "--yes"]).await;
        assert!(second.ended(4).stderr.contains(&pid), "{}", second.stderr);
        let id = world.run(&["moves", "list"]).await.last()["moves"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["phase"] == "ready")
            .unwrap()["move"]
            .as_str()
            .unwrap()
            .to_owned();
        world.run(&["moves", "abort", &id]).await.ended(0);
        crate::support::Ran::of(mover).await;
        world.run(&["migrate", "up"]).await.ended(0);
    }

    /// What a killed attempt has made moves with its shard, and so does the record that it is ours.
    async fn an_attempt_moves_along(version) {
        let world = World::new(&[version, version], 4).await;
        world.file((
            "migrations/0002_titles.sql",
            "-- pgshard: no-transaction\nCREATE INDEX CONCURRENTLY photos_title ON {shard}.photos \
                (title)",
        ));
        let db1 = world.servers.app(0).await;
        for (shard, mode) in [(0, "blocking"), (1, "online")] {
            db1.batch_execute(&format!(
                "CREATE INDEX photos_title ON shard_000{shard}.photos \
                (title);
                INSERT INTO pgshard.migration_attempt (shard_id, name, checksum, begun)
                VALUES ({shard}, '0002_titles', 'x', true)"
            ))
            .await
            .unwrap();
            world
                .run(&[
                    "move",
                    &shard.to_string(),
                    "--to",
                    "db2",
                    "--mode",
                    mode,
                    "--yes",
                ])
                .await
                .ended(0);
        }
        world.run(&["migrate", "retry"]).await.ended(0);
        assert_eq!(world.recorded("0002_titles").await, 2);
        world.run(&["migrate", "up"]).await.ended(0);
        assert_eq!(
            (
                world.having("photos_title").await,
                world.recorded("0002_titles").await
            ),
            (4, 4)
        );
    }
}

/// `new` takes the next number, whatever the files are called, and never overwrites a file.
#[tokio::test]
async fn new_takes_the_next_number() {
    let world = World::new(&[18], 4).await;
    let first = world
        .run(&["migrate", "new", "add_captions"])
        .await
        .ended(0)
        .last();
    assert!(
        first["file"]
            .as_str()
            .unwrap()
            .ends_with("migrations/0002_add_captions.sql")
    );
    let second = world.run(&["migrate", "new", "more"]).await.ended(0).last();
    assert!(
        second["file"]
            .as_str()
            .unwrap()
            .ends_with("migrations/0003_more.sql")
    );
    world.run(&["migrate", "new", "../x"]).await.ended(2);
    // A file with only comments is not run by mistake.
    assert!(
        world
            .run(&["migrate", "up"])
            .await
            .ended(2)
            .stderr
            .contains("holds no statement")
    );
}
