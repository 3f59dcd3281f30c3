//! `pgshard migrate resolve`: an operator's statement about a migration that ran in part.

use crate::support::World;

const INDEX: &str = "migrations/0002_titles.sql";

on_each_version! {
    /// A unique index that cannot be created in one shard: the file is edited to one that can, and
    /// shards that have the first keep it; in one shard it was created by hand.
    async fn a_file_that_ran_in_part_and_was_edited(version) {
        let world = World::new(&[version, version], 8).await;
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "INSERT INTO shard_0001.users (name) VALUES ('a');
            INSERT INTO shard_0001.photos (user_id, title) SELECT id, 'x' FROM shard_0001.users, \
            generate_series(1, 2);
            CREATE INDEX photos_title ON shard_0002.photos (user_id, title)",
        )
        .await
        .unwrap();
        world.file((
            INDEX,
            "CREATE UNIQUE INDEX photos_title ON {shard}.photos (user_id, title)",
        ));
        world.run(&["migrate", "up"]).await.ended(8);
        assert_eq!(world.recorded("0002_titles").await, 6);
        world.file((
            INDEX,
            "CREATE INDEX photos_title ON {shard}.photos (user_id, title)",
        ));
        let refused = world.run(&["migrate", "up"]).await;
        assert!(refused.ended(4).stderr.contains(
            "`pgshard migrate resolve 0002_titles \
            --accept-edit`"
        ));

        // If it cannot be true, or the file is not known, nothing is written.
        let before = world.everything().await;
        let wrong = world
            .run(&["migrate", "resolve", "0002_titles", "--applied"])
            .await;
        let words = "db1: shards 0, 3 ran 0002_titles with another text";
        assert!(wrong.ended(4).stderr.contains(words), "{}", wrong.stderr);
        world
            .run(&["migrate", "resolve", "0003_nothing", "--applied"])
            .await
            .ended(2);
        world
            .run(&["migrate", "resolve", "0002_titles"])
            .await
            .ended(2);
        let plan = world
            .run(&[
                "migrate",
                "resolve",
                "0002_titles.sql",
                "--accept-edit",
                "--plan",
            ])
            .await;
        let plan = plan.ended(0).last();
        assert_eq!(
            (
                &plan["hosts"]["db1"]["shards"],
                &plan["hosts"]["db2"]["shards"]
            ),
            (&"0, 3".into(), &"4-7".into())
        );
        assert_eq!(world.everything().await, before);

        let accepted = world
            .run(&["migrate", "resolve", "0002_titles", "--accept-edit"])
            .await
            .ended(0)
            .last();
        assert_eq!(accepted["hosts"]["db1"]["migrated"], 2);
        let again = world
            .run(&["migrate", "resolve", "0002_titles", "--accept-edit"])
            .await;
        assert!(again.ended(0).stderr.contains("nothing to do"));
        world
            .run(&[
                "migrate",
                "resolve",
                "0002_titles",
                "--applied",
                "--only",
                "2",
            ])
            .await
            .ended(0);
        assert_eq!(world.recorded("0002_titles").await, 7);
        world.run(&["migrate", "up"]).await.ended(0);
        // A shard that was restored from before it ran runs it again; not while a later one counts
        // as run there.
        world
            .servers
            .app(1)
            .await
            .batch_execute("DROP INDEX shard_0005.photos_title")
            .await
            .unwrap();
        let early = world
            .run(&[
                "migrate",
                "resolve",
                "0001_tables",
                "--not-applied",
                "--only",
                "5",
            ])
            .await;
        assert!(
            early.ended(4).stderr.contains(
                "shard 5 has run 0002_titles, which comes \
            after"
            ),
            "{}",
            early.stderr
        );
        world
            .run(&[
                "migrate",
                "resolve",
                "0002_titles",
                "--not-applied",
                "--only",
                "5",
            ])
            .await
            .ended(0);
        world
            .run(&[
                "migrate",
                "resolve",
                "0002_titles",
                "--not-applied",
                "--only",
                "5",
            ])
            .await
            .ended(0);
        assert_eq!(world.recorded("0002_titles").await, 7);
        world.run(&["migrate", "up"]).await.ended(0);
        assert_eq!(
            (
                world.recorded("0002_titles").await,
                world.having("photos_title").await
            ),
            (8, 8)
        );
        world.run(&["migrate", "status"]).await.ended(0);
        world.run(&["check", "--ddl"]).await;
        let failed = "SELECT count(*) FROM pgshard.migration_attempt";
        assert_eq!(
            db1.query_one(failed, &[]).await.unwrap().get::<_, i64>(0),
            0
        );
    }

    /// An index that was made by hand, and that is not valid, does not count: its migration does
    /// not count as run.
    async fn an_index_that_is_not_valid(version) {
        let world = World::new(&[version], 4).await;
        let db1 = world.servers.app(0).await;
        db1.batch_execute("INSERT INTO shard_0001.users (name) VALUES ('a'), ('a')")
            .await
            .unwrap();
        world.file((
            "migrations/0002_names.sql",
            "-- pgshard: no-transaction\nCREATE UNIQUE INDEX CONCURRENTLY users_names ON \
                {shard}.users (name)",
        ));
        let by_hand = "CREATE UNIQUE INDEX CONCURRENTLY users_names ON shard_0001.users (name)";
        db1.batch_execute(by_hand).await.unwrap_err();
        let resolve = [
            "migrate",
            "resolve",
            "0002_names",
            "--applied",
            "--only",
            "1",
        ];
        for more in [&[][..], &["--plan"]] {
            let refused = world.run(&[&resolve[..], more].concat()).await;
            let words = "db1: shard 1 has the index users_names, which is not valid: `pgshard \
                migrate up` makes it";
            assert!(
                refused.ended(4).stderr.contains(words),
                "{}",
                refused.stderr
            );
        }
        assert_eq!(world.recorded("0002_names").await, 0);
        db1.batch_execute(
            "DROP INDEX shard_0001.users_names; DELETE FROM \
            shard_0001.users",
        )
        .await
        .unwrap();
        db1.batch_execute(by_hand).await.unwrap();
        world.run(&resolve).await.ended(0);
        world.run(&["migrate", "up"]).await.ended(0);
        assert_eq!(
            (
                world.recorded("0002_names").await,
                world.having("users_names").await
            ),
            (4, 4)
        );
    }

    /// A file that runs once per host; one before which another is missing; a shard that a move has
    /// claimed.
    async fn hosts_orders_and_moves(version) {
        let world = World::new(&[version, version], 8).await;
        let once = "migrations/0002_once.sql";
        world.file((once, "-- pgshard: once-per-host\nCREATE SCHEMA extra"));
        world
            .run(&["migrate", "up", "--host", "db1"])
            .await
            .ended(0);
        world
            .servers
            .app(1)
            .await
            .batch_execute("CREATE SCHEMA extra")
            .await
            .unwrap();
        world
            .run(&[
                "migrate",
                "resolve",
                "0002_once",
                "--applied",
                "--host",
                "db2",
            ])
            .await
            .ended(0);
        world.run(&["migrate", "up"]).await.ended(0);
        world.file((
            once,
            "-- pgshard: once-per-host\nCREATE SCHEMA IF NOT EXISTS extra",
        ));
        world.run(&["migrate", "up"]).await.ended(4);
        world
            .run(&["migrate", "resolve", "0002_once", "--accept-edit"])
            .await
            .ended(0);

        world.file((
            "migrations/0003_a.sql",
            "ALTER TABLE {shard}.photos ADD COLUMN a int",
        ));
        world.file((
            "migrations/0004_b.sql",
            "ALTER TABLE {shard}.photos ADD COLUMN b int",
        ));
        let early = world
            .run(&["migrate", "resolve", "0004_b", "--applied"])
            .await;
        assert!(
            early.ended(4).stderr.contains(
                "lacks 0003_a, which comes \
            before"
            ),
            "{}",
            early.stderr
        );

        world
            .run_until(&["move", "1", "--to", "db2", "--yes"], "before swap=kill")
            .await
            .ended(-9);
        for shard in [0, 1] {
            let sql = format!("ALTER TABLE shard_000{shard}.photos ADD COLUMN a int");
            world
                .servers
                .app(0)
                .await
                .batch_execute(&sql)
                .await
                .unwrap();
        }
        let part = world
            .run(&["migrate", "resolve", "0003_a", "--applied", "--only", "0-1"])
            .await;
        assert!(
            part.ended(8).stderr.contains(
                "shard 1: a move away from here is at \
            work"
            ),
            "{}",
            part.stderr
        );
        assert_eq!(world.recorded("0003_a").await, 1);
        world.run(&["moves", "abort"]).await;
        world
            .run(&["migrate", "resolve", "0003_a", "--applied", "--only", "0-1"])
            .await
            .ended(0);
        world.run(&["migrate", "up"]).await.ended(0);
        assert_eq!(
            (world.recorded("0004_b").await, world.having("b").await),
            (8, 8)
        );
    }
}
