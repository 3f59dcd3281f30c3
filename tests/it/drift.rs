//! `pgshard check --ddl`, and other findings of `check` about things that are not recorded.

use serde_json::Value;

use crate::support::World;

/// One object of each kind that an ordinary role can create.
const OF_EACH_KIND: &str = "
    CREATE TABLE SHARD.a (id bigint PRIMARY KEY, t text);
    CREATE STATISTICS SHARD.s (dependencies) ON id, t FROM SHARD.a;
    CREATE TYPE SHARD.e AS ENUM ('one', 'two');
    CREATE DOMAIN SHARD.n AS int CHECK (VALUE > 0);
    CREATE TYPE SHARD.r AS RANGE (SUBTYPE = float8, SUBTYPE_DIFF = float8mi);
    CREATE COLLATION SHARD.c (LOCALE = 'C');
    CREATE FUNCTION SHARD.number(SHARD.e) RETURNS int LANGUAGE sql AS 'SELECT length($1::text)';
    CREATE CAST (SHARD.e AS int) WITH FUNCTION SHARD.number(SHARD.e);
    CREATE OPERATOR SHARD.### (FUNCTION = int4eq, LEFTARG = int, RIGHTARG = int);
    CREATE AGGREGATE SHARD.total (int) (SFUNC = int4pl, STYPE = int, INITCOND = '0');
    CREATE TEXT SEARCH DICTIONARY SHARD.d (TEMPLATE = simple);
    CREATE TEXT SEARCH CONFIGURATION SHARD.g (COPY = pg_catalog.simple);
    ALTER TEXT SEARCH CONFIGURATION SHARD.g ALTER MAPPING FOR word WITH SHARD.d;
    CREATE CONVERSION SHARD.v FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8";
/// Drops them again, with the comments and grants on other objects.
const NONE_OF_THEM: &str = "
    DROP TABLE SHARD.a;
    DROP CAST IF EXISTS (SHARD.e AS int);
    DROP FUNCTION SHARD.number;
    DROP TYPE SHARD.e, SHARD.n, SHARD.r;
    DROP COLLATION IF EXISTS SHARD.c;
    DROP OPERATOR IF EXISTS SHARD.### (int, int);
    DROP AGGREGATE SHARD.total (int);
    DROP TEXT SEARCH CONFIGURATION SHARD.g;
    DROP TEXT SEARCH DICTIONARY SHARD.d;
    DROP CONVERSION IF EXISTS SHARD.v;
    DROP CONVERSION IF EXISTS SHARD.w;
    COMMENT ON FUNCTION SHARD.next_id() IS NULL;
    COMMENT ON SCHEMA SHARD IS NULL;
    ALTER DEFAULT PRIVILEGES FOR ROLE app IN SCHEMA SHARD REVOKE SELECT ON TABLES FROM other";

/// The findings, without those that every world has: `code: message`.
async fn findings(world: &World, args: &[&str]) -> Vec<String> {
    let report = world.run(args).await.last();
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let all = report["findings"].as_array().unwrap().iter();
    all.map(|finding| format!("{}: {}", text(finding, "code"), text(finding, "message")))
        .collect()
}

on_each_version! {
    /// Shards with the same definition give no finding, although each has its number in its
    /// functions. Those that were altered by hand are grouped, and the differences are named.
    async fn shards_that_differ_are_grouped(version) {
        let world = World::new(&[version, version], 48).await;
        world.run(&["check", "--ddl"]).await.ended(0);
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        for shard in [3, 4] {
            db1.batch_execute(&format!(
                "ALTER TABLE shard_000{shard}.photos ADD COLUMN extra text;
                DROP INDEX shard_000{shard}.photos_user_id_id_idx"
            ))
            .await
            .unwrap();
        }
        db2.batch_execute(
            "ALTER TABLE shard_0040.users ALTER name DROP NOT NULL;
            CREATE OR REPLACE FUNCTION shard_0040.id_high_water() RETURNS bigint LANGUAGE sql AS \
            'SELECT 40::bigint';
            GRANT SELECT ON shard_0041.users TO PUBLIC",
        )
        .await
        .unwrap();
        let said = findings(&world, &["check", "--ddl"]).await;
        assert_eq!(
            said,
            [
                "ddl_differs: 2 shards (3-4): defined differently from 44 others: index \
                    photos_user_id_id_idx: \
                 missing; table photos: column extra: only here; table photos: order of columns: \
                 id, user_id, title, \
                 made_at, extra, elsewhere id, user_id, title, made_at",
                "ddl_differs: shard 40: defined differently from 44 others: function \
                    id_high_water(): differs; \
             table users: column name: text, elsewhere text NOT NULL",
                "ddl_differs: shard 41: defined differently from 44 others: table users: SELECT \
                    granted to PUBLIC: \
                 only here",
            ]
        );
        world.run(&["check", "--ddl"]).await.ended(1);
        world.run(&["check"]).await.ended(0);
    }

    /// Numbers that are those of shards: all shards have a 1, but shard 2, which has a 2; or each
    /// has its own, but shard 4, which has a 6. That shard is named, and shard 1 is not.
    async fn the_odd_one_is_named_whatever_its_number_is(version) {
        let tables = "CREATE TABLE {shard}.t (a int DEFAULT 1, b numeric(12,1), c varchar(1), \
            CHECK (a >= 1))";
        let world =
            World::with_tables(&[version, version], 8, &[("0001_tables.sql", tables)]).await;
        world.run(&["check", "--ddl"]).await.ended(0);
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        let change = "ALTER TABLE shard_0002.t ALTER a SET DEFAULT 2, ALTER c TYPE varchar(2),
            DROP CONSTRAINT t_a_check, ADD CONSTRAINT t_a_check CHECK (a >= 2)";
        db1.batch_execute(change).await.unwrap();
        for shard in 0..8 {
            let own = if shard == 4 { 6 } else { shard };
            let sql = format!("COMMENT ON TABLE shard_{shard:04}.t IS 'of {own}'");
            let client = if world.host_of(shard) == 0 {
                &db1
            } else {
                &db2
            };
            client.batch_execute(&sql).await.unwrap();
        }
        let said = findings(&world, &["check", "--ddl"]).await;
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0].starts_with(
                "ddl_differs: shard 2: defined differently from 6 others: \
            "
            ),
            "{said:?}"
        );
        for what in [
            "DEFAULT 2, elsewhere",
            "character varying(2)",
            "CHECK ((a >= 2)), elsewhere \
            CHECK ((a >= 1))",
        ] {
            assert!(said[0].contains(what), "{said:?}");
        }
        assert!(
            said[1].starts_with(
                "ddl_differs: shard 4: defined differently from 6 others: \
            "
            ),
            "{said:?}"
        );
        assert!(said[1].contains("of 6, elsewhere of "), "{said:?}");
    }

    /// What can be altered by hand apart from tables and columns, one thing after the other: the
    /// change is seen, and so is its repair.
    async fn each_is_seen(version) {
        let world = World::new(&[version, version], 4).await;
        for shard in 0..4 {
            let client = world.servers.app(shard / 2).await;
            let tables = format!(
                "CREATE TABLE shard_000{shard}.a (id bigint PRIMARY KEY, t text);
                CREATE TABLE shard_000{shard}.b (id bigint REFERENCES shard_000{shard}.a)"
            );
            client.batch_execute(&tables).await.unwrap();
        }
        world.run(&["check", "--ddl"]).await.ended(0);
        let superuser = world.servers.superuser(0).await;
        superuser.batch_execute("CREATE ROLE other").await.unwrap();
        for (breaks, mends, seen) in [
            (
                "ALTER FUNCTION SHARD.next_id() OWNER TO other",
                "ALTER FUNCTION SHARD.next_id() OWNER TO app",
                "function next_id(): owner: other, elsewhere app",
            ),
            (
                "REVOKE INSERT ON SHARD.a FROM app",
                "GRANT INSERT ON SHARD.a TO app",
                "table a: INSERT taken from its owner: only here",
            ),
            (
                "GRANT SELECT (t) ON SHARD.a TO other",
                "REVOKE SELECT (t) ON SHARD.a FROM other",
                "table a, column t: SELECT granted to other: only here",
            ),
            (
                "ALTER TABLE SHARD.b DISABLE TRIGGER ALL",
                "ALTER TABLE SHARD.b ENABLE TRIGGER ALL",
                "table b: triggers of constraint b_id_fkey: only here",
            ),
            (
                "ALTER TABLE SHARD.a ALTER t SET STORAGE EXTERNAL",
                "ALTER TABLE SHARD.a ALTER t SET STORAGE EXTENDED",
                "table a: column t: text storage e, elsewhere text",
            ),
            (
                "ALTER TABLE SHARD.a CLUSTER ON a_pkey",
                "ALTER TABLE SHARD.a SET WITHOUT CLUSTER",
                "index a_pkey: what CLUSTER goes by: only here",
            ),
            (
                "ALTER SCHEMA SHARD OWNER TO other; GRANT ALL ON SCHEMA SHARD TO app",
                "ALTER SCHEMA SHARD OWNER TO app; REVOKE ALL ON SCHEMA SHARD FROM other",
                "the schema: owner: other, elsewhere app",
            ),
        ] {
            superuser
                .batch_execute(&breaks.replace("SHARD", "shard_0001"))
                .await
                .unwrap();
            let said = findings(&world, &["check", "--ddl"]).await;
            let begin = "ddl_differs: shard 1: defined differently from 3 others: ";
            let of_shard = said.iter().find_map(|said| said.strip_prefix(begin));
            assert!(
                of_shard.is_some_and(|said| said.split("; ").any(|said| said == seen)),
                "{breaks}: {said:#?}"
            );
            superuser
                .batch_execute(&mends.replace("SHARD", "shard_0001"))
                .await
                .unwrap();
            world.run(&["check", "--ddl"]).await.ended(0);
        }
    }

    /// What else a schema can contain, apart from tables and functions.
    async fn of_each_kind_is_seen(version) {
        let world = World::new(&[version, version], 4).await;
        for shard in 0..4 {
            let client = world.servers.app(shard / 2).await;
            client
                .batch_execute(&OF_EACH_KIND.replace("SHARD", &format!("shard_000{shard}")))
                .await
                .unwrap();
        }
        world.run(&["check", "--ddl"]).await.ended(0);
        let superuser = world.servers.superuser(0).await;
        superuser.batch_execute("CREATE ROLE other").await.unwrap();
        for (breaks, seen) in [
            (
                "ALTER OPERATOR SHARD.### (int, int) SET (RESTRICT = \
                eqsel)",
                "int4eq(integer,integer) restrict eqsel",
            ),
            (
                "ALTER OPERATOR SHARD.### (int, int) OWNER TO \
                other",
                "(integer, integer): owner: \
                other",
            ),
            (
                "DROP OPERATOR SHARD.### (int, int)",
                "operator ### (integer, integer): missing",
            ),
            (
                "CREATE OR REPLACE AGGREGATE SHARD.total (int) (SFUNC = int4pl, STYPE = int, \
                    INITCOND \
                = '7')",
                "total(",
            ),
            ("DROP COLLATION SHARD.c", "collation c: missing"),
            (
                "ALTER TEXT SEARCH DICTIONARY SHARD.d (StopWords = \
                english)",
                "dictionary d: simple \
                stopwords",
            ),
            (
                "ALTER TEXT SEARCH CONFIGURATION SHARD.g DROP MAPPING FOR \
                word",
                "text search \
                configuration g: ",
            ),
            (
                "DROP CAST (SHARD.e AS int)",
                "cast ({shard}.e AS integer): missing",
            ),
            (
                "ALTER CONVERSION SHARD.v RENAME TO w",
                "conversion v: missing",
            ),
            (
                "COMMENT ON DOMAIN SHARD.n IS 'other'",
                "type n: comment: only here",
            ),
            (
                "COMMENT ON FUNCTION SHARD.next_id() IS 'other'",
                "function next_id(): comment: ",
            ),
            (
                "COMMENT ON SCHEMA SHARD IS 'other'",
                "the schema: comment: ",
            ),
            ("REVOKE USAGE ON TYPE SHARD.e FROM PUBLIC", "type e: "),
            (
                "ALTER TYPE SHARD.e OWNER TO other",
                "type e: owner: other, elsewhere app",
            ),
            (
                "ALTER STATISTICS SHARD.s SET STATISTICS 7",
                "statistics s: ",
            ),
            (
                "ALTER TABLE SHARD.a ALTER t SET STATISTICS \
                7",
                "column t: text statistics 7, \
                elsewhere text",
            ),
            (
                "ALTER TABLE SHARD.a ALTER t SET COMPRESSION \
                pglz",
                "column t: text compression p, \
                elsewhere text",
            ),
            (
                "ALTER TABLE SHARD.a ALTER t SET (n_distinct = \
                7)",
                "column t: text n_distinct=7, \
                elsewhere text",
            ),
            (
                "ALTER DEFAULT PRIVILEGES FOR ROLE app IN SCHEMA SHARD GRANT SELECT ON TABLES TO \
                    other",
                "default privileges: app on r: ",
            ),
        ] {
            superuser
                .batch_execute(&breaks.replace("SHARD", "shard_0001"))
                .await
                .unwrap();
            let said = findings(&world, &["check", "--ddl"]).await;
            let begin = "ddl_differs: shard 1: defined differently from 3 others: ";
            let of_shard = said.iter().find_map(|said| said.strip_prefix(begin));
            assert!(
                of_shard.is_some_and(|said| said.contains(seen)),
                "{breaks}: {said:#?}"
            );
            let anew = format!("{NONE_OF_THEM}; SET ROLE app; {OF_EACH_KIND}; RESET ROLE");
            superuser
                .batch_execute(&anew.replace("SHARD", "shard_0001"))
                .await
                .unwrap();
            world.run(&["check", "--ddl"]).await.ended(0);
        }
    }

    /// Rights of PUBLIC are seen, on the host where they exist.
    async fn rights_of_all(version) {
        let world = World::new(&[version, version], 4).await;
        world.run(&["check"]).await.ended(0);
        let superuser = world.servers.superuser(1).await;
        superuser
            .batch_execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
            .await
            .unwrap();
        let report = world.run(&["check"]).await.ended(1).last();
        let found = &report["findings"][0];
        assert_eq!(
            (&found["code"], &found["host"]),
            (&"public_create".into(), &"db2".into()),
            "{report}"
        );
        superuser
            .batch_execute(found["remedy"].as_str().unwrap())
            .await
            .unwrap();
        world.run(&["check"]).await.ended(0);
    }

    /// A schema that was dropped and created again, and one that has lost a table: both checks find
    /// them, and they are not moved.
    async fn emptied_schemas_are_found_and_not_moved(version) {
        let world = World::new(&[version, version], 16).await;
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "DROP SCHEMA shard_0004 CASCADE; CREATE SCHEMA shard_0004; DROP TABLE \
            shard_0002.photos",
        )
        .await
        .unwrap();
        for args in [&["check"][..], &["check", "--ddl"]] {
            let said = findings(&world, args).await;
            let about = |shard: &str| {
                said.iter()
                    .filter(|said| said.contains(shard))
                    .cloned()
                    .collect::<Vec<_>>()
                    .join("\n")
            };
            let (empty, half) = (about("shard 4"), about("shard 2"));
            assert!(
                empty.contains("objects_missing: shard 4: its schema is empty: it lacks")
                    && empty.contains("table photos"),
                "{said:#?}"
            );
            let lost = "objects_missing: shard 2: its schema lacks table photos, which 14 of 16 \
                shards with the same \
                        migrations have";
            assert!(half.contains(lost), "{said:#?}");
            assert_eq!(
                args.len() == 2,
                empty.contains(
                    "defined differently from 14 \
                others"
                ),
                "{said:#?}"
            );
            world.run(args).await.ended(1);
        }
        let before = world.everything().await;
        for (shard, words) in [("4", "is empty"), ("2", "table photos")] {
            for last in ["--plan", "--yes"] {
                let ran = world.run(&["move", shard, "--to", "db2", last]).await;
                assert!(ran.ended(4).stderr.contains(words), "{}", ran.stderr);
            }
        }
        assert_eq!(world.everything().await, before);
        world
            .run(&["move", "3", "--to", "db2", "--plan"])
            .await
            .ended(0);
        // Its name has the shard's number, and so no other shard has it.
        db1.batch_execute("DROP FUNCTION shard_0003.id_raise_3()")
            .await
            .unwrap();
        let lost = "objects_missing: shard 3: its schema lacks function id_raise_N, which 14 of 16 \
            shards";
        let said = findings(&world, &["check"]).await;
        assert!(said.iter().any(|said| said.starts_with(lost)), "{said:#?}");
    }

    /// One shard that has run another text keeps all others, on every host, from getting anything.
    async fn bootstrap_runs_nothing_beside_drift(version) {
        let world = World::new(&[version, version], 8).await;
        let folder = world.config.cluster.migrations.clone().unwrap();
        std::fs::write(
            folder.join("0002_more.sql"),
            "CREATE TABLE {shard}.more (id bigint PRIMARY \
            KEY);",
        )
        .unwrap();
        let db1 = world.servers.app(0).await;
        let edited = "UPDATE pgshard.shard_migration SET checksum = reverse(checksum) WHERE \
            shard_id = 3 \
                      AND name = '0001_tables'";
        db1.batch_execute(edited).await.unwrap();
        let before = world.everything().await;
        let ran = world.run(&["bootstrap"]).await;
        assert!(
            ran.ended(4).stderr.contains("nothing is run while others"),
            "{}",
            ran.stderr
        );
        assert_eq!(world.everything().await, before);
        db1.batch_execute(edited).await.unwrap();
        world.run(&["bootstrap"]).await.ended(0);
        world.run(&["check", "--ddl"]).await.ended(0);
    }

    /// Schemas, slots and publications that belong to no move; a signpost that was dropped.
    async fn orphans_of_moves_are_found(version) {
        let world = World::new(&[version, version], 8).await;
        let db1 = world.servers.app(0).await;
        world
            .run(&["move", "1", "--to", "db2", "--yes"])
            .await
            .ended(0);
        let superuser = world.servers.superuser(0).await;
        superuser
            .batch_execute(
                "SELECT pg_create_logical_replication_slot('pgshard_lost', \
            'pgoutput')",
            )
            .await
            .unwrap();
        db1.batch_execute(
            "CREATE SCHEMA shard_0002__left_e7; DROP SCHEMA shard_0001 CASCADE;
            CREATE PUBLICATION pgshard_lost FOR TABLE shard_0000.users",
        )
        .await
        .unwrap();
        let said = findings(&world, &["check"]).await;
        assert_eq!(
            said,
            [
                "signpost_missing: shard 1: it has moved away, but there is no signpost where it \
                    was",
                "stray_publication: the publication pgshard_lost belongs to no move",
                "stray_schema: shard 2: the schema shard_0002__left_e7 looks like a move's, and no \
                ledger has it",
                "stray_slot: the replication slot pgshard_lost belongs to no move, and keeps the \
                server's log",
                "old_copy: shard 1: its old copy is kept",
            ]
        );
        superuser
            .batch_execute("SELECT pg_drop_replication_slot('pgshard_lost')")
            .await
            .unwrap();
    }
}
