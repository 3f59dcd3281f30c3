//! The contents of migration files: the schema's name in strings, COPY, and names that PostgreSQL
//! changes.

use crate::support::{Ran, World};

on_each_version! {
    /// `{shard}` in a string is the schema's name as the catalogs have it, so that a guard is true;
    /// and a shard that was made when it had quotes is not another than one that was made since.
    async fn the_schema_in_strings(version) {
        let world = World::new(&[version], 2).await;
        world.file((
            "migrations/0002_caption.sql",
            "DO $$ BEGIN
            IF EXISTS (SELECT FROM information_schema.tables WHERE table_schema = '{shard}' AND \
            table_name = 'photos')
                AND to_regclass('{shard}.photos') IS NOT NULL
            THEN ALTER TABLE {shard}.photos ADD COLUMN caption text; END IF; END $$",
        ));
        world.run(&["migrate", "up"]).await.ended(0);
        assert_eq!(world.having("caption").await, 2);
        let count = "SELECT count(*) FROM pg_tables WHERE schemaname = '{shard}' AND tablename = \
            'photos'";
        let found = world
            .run(&["sql", count, "--shards", "1"])
            .await
            .ended(0)
            .last();
        assert_eq!(found["rows"][0]["count"], "1");

        world.file((
            "migrations/0003_count.sql",
            "CREATE FUNCTION {shard}.photos_count() RETURNS \
            bigint LANGUAGE sql
            AS $$ SELECT count(*) FROM {shard}.photos $$",
        ));
        world.run(&["migrate", "up"]).await.ended(0);
        let quoted = r#"CREATE OR REPLACE FUNCTION shard_0001.photos_count() RETURNS bigint
            LANGUAGE sql
            AS $$ SELECT count(*) FROM "shard_0001".photos $$"#;
        world
            .servers
            .app(0)
            .await
            .batch_execute(quoted)
            .await
            .unwrap();
        world.run(&["check", "--ddl"]).await.ended(0);
    }

    /// COPY to or from the client is refused before anything runs. One that only the server sees
    /// does no harm, and is not taken for the end of the connection.
    async fn rows_for_the_client(version) {
        let world = World::new(&[version], 2).await;
        let alter = "ALTER TABLE {shard}.photos ADD COLUMN caption text;\n";
        for copy in [
            "COPY {shard}.users TO STDOUT",
            "COPY {shard}.users FROM STDIN",
        ] {
            world.file(("migrations/0002_caption.sql", &format!("{alter}{copy}")));
            let refused = world.run(&["migrate", "up"]).await;
            assert_ne!(refused.code(), 0);
            assert!(
                refused.stderr.contains(
                    "0002_caption.sql line 2: COPY \
                SHARD"
                ),
                "{}",
                refused.stderr
            );
            assert_eq!(
                (
                    world.recorded("0002_caption").await,
                    world.having("caption").await
                ),
                (0, 0)
            );
        }
        let hidden = "CREATE FUNCTION {shard}.one() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1 \
            case; END;\n\
            COPY {shard}.users TO STDOUT";
        world.file(("migrations/0002_caption.sql", &format!("{alter}{hidden}")));
        world.run(&["migrate", "up"]).await.ended(0);
        assert_eq!(
            (
                world.recorded("0002_caption").await,
                world.having("caption").await
            ),
            (2, 2)
        );
    }

    /// An index is known by the name that it has, where PostgreSQL cuts the file's off or folds it
    /// in its own way: what a failure leaves of it does not stay, and the next attempt succeeds.
    async fn names_of_indexes(version) {
        let world = World::new(&[version], 4).await;
        let db1 = world.servers.app(0).await;
        let long = "users_name_is_unique_in_this_shard_because_somebody_likes_very_long_names_idx";
        for (file, index, key, rows) in [
            ("0002_long", long, "name", "('a'), ('a')"),
            ("0003_fold", "ÚNICO", "left(name, 1)", "('x1'), ('x2')"),
        ] {
            world.file((
                &format!("migrations/{file}.sql"),
                &format!(
                    "-- pgshard: no-transaction\nCREATE UNIQUE INDEX CONCURRENTLY {index} ON \
                    {{shard}}.users (({key}))"
                ),
            ));
            let insert = format!("INSERT INTO shard_0001.users (name) VALUES {rows}");
            db1.batch_execute(&insert).await.unwrap();
            world.run(&["migrate", "up"]).await.ended(8);
            let invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid";
            assert_eq!(
                db1.query_one(invalid, &[]).await.unwrap().get::<_, i64>(0),
                0,
                "{index}"
            );
            db1.batch_execute("DELETE FROM shard_0001.users")
                .await
                .unwrap();
            world.run(&["migrate", "retry"]).await.ended(0);
            assert_eq!(world.recorded(file).await, 4);
        }
    }

    /// pg_dump's output is refused when it is read, with the lines to take out; without them it
    /// runs.
    async fn the_output_of_pg_dump_is_refused_by_line(version) {
        let world = World::new(&[version], 2).await;
        let dumped = "\\restrict k3\n\nSET statement_timeout = 0;\n\
            SELECT pg_catalog.set_config('search_path', '', false);\n\
            CREATE TABLE {shard}.y (a text);\n\
            COPY {shard}.y (a) FROM stdin;\nit's a row\n\\.\n\n\\unrestrict k3\n";
        world.file(("migrations/0002_y.sql", dumped));
        let before = world.everything().await;
        let ran = world.run(&["migrate", "up"]).await;
        assert_ne!(ran.code(), 0);
        for told in [
            "0002_y.sql line 1: \\restrict is a command of psql",
            "0002_y.sql line 4: SELECT PG_CATALOG SET_CONFIG empties the search_path",
            "0002_y.sql line 6: COPY SHARD Y has rows from the client",
            "0002_y.sql line 10: \\unrestrict is a command of psql",
        ] {
            assert!(ran.stderr.contains(told), "{told}: {}", ran.stderr);
        }
        assert_eq!(world.everything().await, before, "no server was asked");
        let rest: Vec<&str> = dumped
            .lines()
            .filter(|line| line.starts_with("CREATE") || line.starts_with("SET"))
            .collect();
        world.file(("migrations/0002_y.sql", &rest.join("\n")));
        world.run(&["migrate", "up"]).await.ended(0);
        assert_eq!(world.recorded("0002_y").await, 2);
    }

    /// CREATE INDEX CONCURRENTLY waits for every snapshot of the database. A move's ends by itself,
    /// and is waited for beyond the patience; another's is named.
    async fn an_index_waits_for_the_snapshot_of_a_move(version) {
        let world = World::new(&[version], 1).await;
        let index = "-- pgshard: no-transaction\n\
            CREATE INDEX CONCURRENTLY y ON {shard}.users (name)";
        world.file(("migrations/0002_y.sql", index));
        let (db1, holder) = (world.servers.superuser(0).await, world.servers.app(0).await);
        let old = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class";
        holder
            .batch_execute("SET application_name = 'psql'")
            .await
            .unwrap();
        holder.batch_execute(old).await.unwrap();
        let up = ["migrate", "up", "--patience-s", "1"];
        let ran = world.run(&up).await;
        let said = &ran.ended(1).stderr;
        assert!(
            said.contains("(psql) has the oldest snapshot of the database"),
            "{said}"
        );
        holder.batch_execute("ROLLBACK").await.unwrap();
        let name = "pgshard 0192a1b2-0000-7000-8000-000000000000/0/0192a1b2";
        holder
            .batch_execute(&format!("SET application_name = '{name}'"))
            .await
            .unwrap();
        holder.batch_execute(old).await.unwrap();
        let waiting = world.command(&up, &[]).spawn().unwrap();
        let waits = "SELECT count(*) = 1 FROM pg_stat_activity
            WHERE query LIKE '%CREATE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'
                AND query_start > $1";
        // The second try is later than the patience.
        let mut since = std::time::SystemTime::UNIX_EPOCH;
        for _ in 0..2 {
            while !db1
                .query_one(waits, &[&since])
                .await
                .unwrap()
                .get::<_, bool>(0)
            {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            let sql = "SELECT max(query_start) FROM pg_stat_activity
                WHERE query LIKE '%CREATE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'";
            let seen = db1.query_one(sql, &[]).await.unwrap();
            since = seen
                .get::<_, Option<std::time::SystemTime>>(0)
                .unwrap_or(since);
        }
        holder.batch_execute("ROLLBACK").await.unwrap();
        Ran::of(waiting).await.ended(0);
        assert_eq!(world.recorded("0002_y").await, 1);
    }

    /// A text without an end is named with its file and line, not with what comes after it.
    async fn texts_without_an_end(version) {
        let world = World::new(&[version], 2).await;
        for (text, said) in [
            (
                "CREATE TABLE {shard}.y ();\nCOMMENT ON TABLE {shard}.y IS \
                'never;\n",
                "line 2: ' \
                opens a text",
            ),
            (
                "CREATE TABLE {shard}.y (); /* never\n",
                "line 1: /* opens a comment",
            ),
        ] {
            world.file(("migrations/0002_y.sql", text));
            let refused = world.run(&["migrate", "up"]).await;
            assert!(
                refused.stderr.contains(&format!(
                    "0002_y.sql {said} that is never \
                closed"
                )),
                "{}",
                refused.stderr
            );
        }
        world.file((
            "migrations/0002_y.sql",
            "CREATE FUNCTION {shard}.f() RETURNS int LANGUAGE sql \
            BEGIN ATOMIC
            SELECT p.end FROM (SELECT 1 AS \"end\") p; SELECT 2; END;",
        ));
        world.run(&["migrate", "up"]).await.ended(0);
    }
}
