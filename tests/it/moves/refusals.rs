//! Moves that are refused, give up, or find that something is wrong: they report everything, and
//! leave nothing closed.

use crate::support::{World, lines, never_stopped, other, stopped};

/// A run as a snapshot shows it, without what differs each time.
fn assert_shown(name: &str, stderr: &str) {
    let filters = [
        // The plan's warning, if a slow machine has taken a second by then.
        (
            r"(?m)^  shard \d+: backend \d+ has held .*: the fence waits for it\n",
            "",
        ),
        (r"backend \d+", "backend [PID]"),
        (r"transaction is \d+\.\d s old", "transaction is [AGE] old"),
        (
            r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}",
            "[MOVE]",
        ),
        (r"digest -?\d+", "digest [SUM]"),
        (r"/\S*/pgshard.toml", "[FOLDER]/pgshard.toml"),
    ];
    insta::with_settings!({ filters => filters }, { insta::assert_snapshot!(name, stderr) });
}

/// What `check --movable` has found.
fn not_movable(report: &serde_json::Value) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap().iter();
    let found = findings.filter(|one| one["code"] == "not_movable");
    found
        .map(|one| one["message"].as_str().unwrap().to_owned())
        .collect()
}

on_each_version! {
    /// Preflight reports everything in one error, with the remedies, and changes nothing.
    async fn every_reason_at_once(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "
            ALTER TABLE shard_0000.users FORCE ROW LEVEL SECURITY;
            CREATE TABLE shard_0000.scratch (a regrole);
            CREATE VIEW public.everybody AS SELECT * FROM shard_0001.users;
            CREATE TABLE public.likes (photo bigint REFERENCES shard_0001.photos ON DELETE \
            CASCADE)",
        )
        .await
        .unwrap();
        world
            .servers
            .app(1)
            .await
            .batch_execute("CREATE SCHEMA shard_0000")
            .await
            .unwrap();
        let before = world.everything().await;
        let ran = world.run(&["move", "0-1", "--to", "db2", "--yes"]).await;
        assert_shown("every_reason_at_once", &ran.ended(4).stderr);
        assert_eq!(world.everything().await, before);
    }

    /// `--plan` prints what would run. It runs nothing.
    async fn a_plan_changes_nothing(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let before = world.everything().await;
        let plan = world
            .run(&["move", "0-1", "--to", "db2", "--plan"])
            .await
            .ended(0)
            .last();
        assert_eq!(plan["shards"].as_array().unwrap().len(), 2, "{plan}");
        assert!(
            plan["shards"][0]["statements_after_data"]
                .to_string()
                .contains("FOREIGN KEY"),
            "{plan}"
        );
        let there = world
            .run(&["move", "0", "--to", "db1", "--yes"])
            .await
            .ended(0)
            .last();
        assert_eq!(
            (&there["event"], &there["shards"]),
            (&"done".into(), &"".into())
        );
        let unknown = world.run(&["move", "0", "--to", "db22", "--yes"]).await;
        assert!(
            unknown.ended(2).stderr.contains("the hosts are db1, db2"),
            "{}",
            unknown.stderr
        );
        world
            .run(&["move", "4", "--to", "db2", "--yes"])
            .await
            .ended(2);
        world
            .run(&["moves", "resume", "018f0000-0000-7000-8000-000000000000"])
            .await
            .ended(2);
        assert_eq!(world.everything().await, before);
    }

    /// The plan warns about what makes a move slow or hard, before the operator has to confirm;
    /// what makes it impossible is refused.
    async fn what_an_operator_should_know(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let (root, writer) = (world.servers.superuser(1).await, world.servers.app(0).await);
        writer
            .batch_execute(
                "BEGIN; INSERT INTO shard_0001.users (name) VALUES ('old'); SELECT \
                pg_sleep(2.1)",
            )
            .await
            .unwrap();
        root.batch_execute(
            "
            CREATE FUNCTION public.note() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';
            CREATE EVENT TRIGGER note_all ON ddl_command_end EXECUTE FUNCTION public.note()",
        )
        .await
        .unwrap();
        let plan = world
            .run(&["move", "0", "--to", "db2", "--plan", "--mode", "online"])
            .await
            .ended(0)
            .last();
        let warnings = plan["warnings"].to_string();
        assert!(
            warnings.contains("db2 has event triggers") && warnings.contains("note_all"),
            "{warnings}"
        );
        assert!(
            warnings.contains(
                "the slot waits for its \
            end"
            ) && warnings.contains("pg_sleep"),
            "{warnings}"
        );
        let to_older = version > other(version);
        assert_eq!(warnings.contains("older than"), to_older, "{warnings}");
        writer.batch_execute("ROLLBACK").await.unwrap();
        // The owner of the control schema opens what the role has built.
        root.batch_execute(
            "CREATE ROLE keeper; ALTER SCHEMA pgshard OWNER TO keeper; GRANT USAGE, CREATE ON \
                SCHEMA pgshard TO app",
        )
        .await
        .unwrap();
        let ran = world.run(&["move", "0", "--to", "db2", "--yes"]).await;
        let said = &ran.ended(4).stderr;
        assert!(
            said.contains(
                "has a control schema of \
            keeper"
            ) && said.contains(
                "GRANT app TO \
            keeper"
            ),
            "{said}"
        );
    }

    /// A role that has grants in a shard must be able to reach it at the target as well.
    async fn a_role_that_would_be_shut_out(version) {
        let world = World::new(&[version, other(version)], 4).await;
        for host in [0, 1] {
            world
                .servers
                .superuser(host)
                .await
                .batch_execute("CREATE ROLE reader LOGIN; CREATE SCHEMA ext AUTHORIZATION app")
                .await
                .unwrap();
            world
                .servers
                .app(host)
                .await
                .batch_execute(
                    "CREATE TYPE ext.mood AS ENUM ('well', \
                'ill')",
                )
                .await
                .unwrap();
        }
        let (db1, db2) = (world.servers.app(0).await, world.servers.superuser(1).await);
        db1.batch_execute(
            "
            GRANT USAGE ON SCHEMA ext TO reader;
            ALTER TABLE shard_0000.users ADD mood ext.mood;
            GRANT SELECT ON shard_0000.users TO reader",
        )
        .await
        .unwrap();
        let database: String = db2
            .query_one("SELECT quote_ident(current_database())", &[])
            .await
            .unwrap()
            .get(0);
        db2.batch_execute(&format!(
            "REVOKE CONNECT ON DATABASE {database} FROM \
            PUBLIC"
        ))
        .await
        .unwrap();
        let ran = world.run(&["move", "0", "--to", "db2", "--yes"]).await;
        let said = &ran.ended(4).stderr;
        assert!(
            said.contains("role reader may connect to db1, but not at the target"),
            "{said}"
        );
        assert!(
            said.contains(
                "may use schema ext on \
                db1"
            ) && said.contains(r#"GRANT USAGE ON SCHEMA "ext" TO "reader""#),
            "{said}"
        );
        db2.batch_execute(&format!(
            "GRANT CONNECT ON DATABASE {database} TO PUBLIC; GRANT USAGE ON SCHEMA ext TO reader"
        ))
        .await
        .unwrap();
        world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0);
    }

    /// Numbers of large objects would refer to nothing at the target; other numbers are carried.
    async fn large_objects_are_refused(version) {
        let world = World::new(&[version, version], 2).await;
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "CREATE TABLE shard_0000.images (id int PRIMARY KEY, \"The image\" oid, others oid[]);
             INSERT INTO shard_0000.images VALUES (1, 7, '{8,9}'), (2, NULL, NULL)",
        )
        .await
        .unwrap();
        let args = ["move", "0", "--to", "db2", "--plan"];
        let plan = world.run(&args).await.ended(0).last();
        assert!(!plan.to_string().contains("large objects"), "{plan}");
        for (column, value) in [
            ("\"The image\"", "lo_create(0)"),
            (
                "others",
                "ARRAY[7, \
            lo_create(0)]",
            ),
        ] {
            let sql = format!("UPDATE shard_0000.images SET {column} = {value} WHERE id = 2");
            db1.batch_execute(&sql).await.unwrap();
            let ran = world.run(&args).await;
            let said = format!(
                "column images.{} refers to large \
                objects",
                column.trim_matches('"')
            );
            assert!(ran.ended(4).stderr.contains(&said), "{}", ran.stderr);
            db1.batch_execute(
                "UPDATE shard_0000.images SET \"The image\" = NULL, others = \
                NULL",
            )
            .await
            .unwrap();
        }
        world.run(&args).await.ended(0);
    }

    /// So are numbers within other types, wherever these are; and OIDs of this host.
    async fn numbers_within_other_types_are_refused(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let (db1, args) = (
            world.servers.app(0).await,
            ["move", "0", "--to", "db2", "--plan"],
        );
        for host in [0, 1] {
            let sql = "CREATE DOMAIN public.rc AS regclass; CREATE TYPE public.rcs AS (a int, list \
                public.rc[])";
            world
                .servers
                .superuser(host)
                .await
                .batch_execute(sql)
                .await
                .unwrap();
        }
        db1.batch_execute(
            "SET search_path = shard_0000;
             CREATE DOMAIN lob AS oid; CREATE TYPE doc AS (name text, lo oid);
             CREATE TYPE span AS RANGE (subtype = oid);
             CREATE TABLE images (id int PRIMARY KEY, a lob, b doc, c doc[], d span, e lob[]);
             INSERT INTO images VALUES (1, 7, ROW('x', 8), ARRAY[ROW('y', 9)]::doc[], '[7,9)', \
             '{8}')",
        )
        .await
        .unwrap();
        let lo: u32 = db1
            .query_one("SELECT lo_create(0)", &[])
            .await
            .unwrap()
            .get(0);
        world.run(&args).await.ended(0);
        for (column, value) in [
            ("a", format!("{lo}")),
            ("b", format!("ROW('x', {lo})")),
            ("c", format!("ARRAY[NULL, ROW('x', {lo})]::doc[]")),
            ("d", format!("'[{lo},{lo}]'")),
            ("e", format!("'{{7,{lo}}}'")),
        ] {
            let undo = format!(
                "UPDATE images SET {column} = (SELECT i.{column} FROM images i \
                WHERE id = 1)"
            );
            db1.batch_execute(&format!(
                "INSERT INTO images (id, {column}) VALUES (2, \
                {value})"
            ))
            .await
            .unwrap();
            let ran = world.run(&args).await;
            let said = &ran.ended(4).stderr;
            assert!(
                said.contains(&format!("column images.{column} is of type ")),
                "{said}"
            );
            assert!(
                said.contains(
                    "has numbers of large objects, which are in no \
                schema"
                ),
                "{said}"
            );
            db1.batch_execute(&format!("{undo}; DELETE FROM images WHERE id = 2"))
                .await
                .unwrap();
        }
        let named = "CREATE TABLE named (a public.rc, b public.rcs);
            CREATE TABLE parted (a public.rc[]) PARTITION BY LIST (a)";
        db1.batch_execute(named).await.unwrap();
        for said in [
            world.run(&args).await.ended(4).stderr.clone(),
            world.run(&["check", "--movable"]).await.stdout,
        ] {
            for (column, kind) in [
                ("named.a", "public.rc"),
                ("named.b", "public.rcs"),
                ("parted.a", "public.rc[]"),
            ] {
                let refused = format!(
                    "column {column} is of type {kind}, which is made of \
                    regclass, whose values are"
                );
                assert!(said.contains(&refused), "{said}");
            }
        }
    }

    /// A type outside the shard that has the same name at the target, and another meaning, would
    /// change stored values.
    async fn types_that_mean_something_else_are_refused(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let (there, db1) = (world.servers.superuser(1).await, world.servers.app(0).await);
        let types = "CREATE TYPE public.mood AS ENUM ('well', 'ill');
            CREATE TYPE public.pair AS (a int, b numeric(5, 2));
            CREATE TYPE public.gone AS (x int, a int); ALTER TYPE public.gone DROP ATTRIBUTE x;
            CREATE DOMAIN public.code AS varchar(5);
            CREATE TYPE public.span AS RANGE (subtype = text, collation = \"C\");
            CREATE TYPE public.deep AS (pairs public.pair[], code public.code);
            CREATE TABLE public.rows (a int, b text)";
        for host in [0, 1] {
            world
                .servers
                .superuser(host)
                .await
                .batch_execute(types)
                .await
                .unwrap();
        }
        there
            .batch_execute(
                "DROP TYPE public.gone; CREATE TYPE public.gone AS (a \
            int)",
            )
            .await
            .unwrap();
        db1.batch_execute(
            "CREATE TABLE shard_0000.t (id int PRIMARY KEY, a public.mood, b public.deep[], c \
                public.span,
                d public.rows, e public.gone);
             INSERT INTO shard_0000.t VALUES (1, 'ill', ARRAY[ROW(ARRAY[ROW(1, 2)::public.pair], \
             'x')::public.deep])",
        )
        .await
        .unwrap();
        let args = ["move", "0", "--to", "db2", "--plan"];
        world.run(&args).await.ended(0);
        for (change, undo, said) in [
            (
                "ALTER TYPE public.pair RENAME ATTRIBUTE a TO c; ALTER TYPE public.pair RENAME \
                    ATTRIBUTE b TO a",
                "ALTER TYPE public.pair RENAME ATTRIBUTE a TO b; ALTER TYPE public.pair RENAME \
                    ATTRIBUTE c TO a",
                "uses type public.pair, which has the attributes a integer, b numeric(5,2) at db1 \
                    and the attributes c \
                 integer, a numeric(5,2) at the target",
            ),
            (
                "ALTER TYPE public.mood ADD VALUE 'so' BEFORE 'ill'",
                "SELECT 1",
                "uses type public.mood, which has the labels 'well', 'ill' at db1 and the labels \
                    'well', 'so', \
                 'ill' at",
            ),
            (
                "ALTER TABLE public.rows ADD c int",
                "ALTER TABLE public.rows DROP c",
                "uses type public.rows, which has the attributes a integer, b text at db1",
            ),
        ] {
            there.batch_execute(change).await.unwrap();
            let ran = world.run(&args).await;
            assert!(ran.ended(4).stderr.contains(said), "{}", ran.stderr);
            there.batch_execute(undo).await.unwrap();
        }
        there
            .batch_execute(
                "DROP TYPE public.deep, public.span, public.mood; DROP DOMAIN \
            public.code",
            )
            .await
            .unwrap();
        there
            .batch_execute(
                "CREATE TYPE public.mood AS ENUM ('well', 'ill'); CREATE DOMAIN public.code AS \
                    varchar(4) NOT NULL;
                 CREATE TYPE public.span AS RANGE (subtype = text);
                 CREATE TYPE public.deep AS (pairs public.pair[], code public.code)",
            )
            .await
            .unwrap();
        let ran = world.run(&args).await;
        for said in [
            "the base type character varying(5) at db1 and the base type character varying(4) NOT \
                NULL at the target",
            "the subtype text with pg_catalog.text_ops COLLATE \"C\" at db1 and the subtype text \
                with pg_catalog.",
        ] {
            assert!(ran.ended(4).stderr.contains(said), "{}", ran.stderr);
        }
    }

    /// An interval that the target's version does not have is refused. Where the plan does not
    /// look, the copy finds it. In its binary form it would have become another.
    async fn an_interval_that_the_target_does_not_have(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        let (values, code, reason) = match version {
            17.. => (
                ["interval 'infinity'", "interval '-infinity'"],
                7,
                "has infinite intervals",
            ),
            // No text is read as the smallest one.
            _ => (
                [
                    "interval '178956970 years 7 mons 2147483647 days 2562047788:00:54.775807'",
                    "interval '-178956970 years -8 mons -2147483648 days -2562047788:00:54.775807' \
                        - '0.000001 s'",
                ],
                6,
                "has the largest or the smallest interval",
            ),
        };
        db1.batch_execute(
            "CREATE DOMAIN shard_0000.pause AS interval;
             CREATE TABLE shard_0000.pauses (id int PRIMARY KEY, i interval, list interval[], d \
             shard_0000.pause);
             INSERT INTO shard_0000.pauses VALUES (1, NULL), (2, '1 day -3 s')",
        )
        .await
        .unwrap();
        let set = async |column: &str, value: &str| {
            let sql = format!("UPDATE shard_0000.pauses SET {column} = {value} WHERE id = 1");
            db1.batch_execute(&sql).await.unwrap();
        };
        for value in values {
            for (column, value) in [
                ("i", value.to_owned()),
                ("list", format!("ARRAY[NULL, {value}]")),
            ] {
                set(column, &value).await;
                let ran = world.run(&["move", "0", "--to", "db2", "--plan"]).await;
                let said = format!("column pauses.{column} {reason}");
                assert!(ran.ended(4).stderr.contains(&said), "{}", ran.stderr);
                set(column, "NULL").await;
            }
        }
        set("d", values[0]).await;
        for mode in ["online", "blocking"] {
            let ran = world
                .run(&["move", "0", "--to", "db2", "--mode", mode, "--yes"])
                .await;
            assert!(
                ran.ended(code)
                    .stderr
                    .contains(if code == 7 { "interval" } else { "pauses" }),
                "{}",
                ran.stderr
            );
            assert_eq!(world.state(0, 0).await, "serving");
            world.run(&["moves", "abort", &ran.id()]).await.ended(0);
        }
        set("d", "'-1 mon 5 s', list = '{1 year,NULL}'").await;
        let pauses = "SELECT p::text FROM shard_0000.pauses p ORDER BY id";
        let before = lines(&db1, pauses).await;
        world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0);
        assert_eq!(lines(&db2, pauses).await, before);
        world.audit_places().await;
    }

    /// What would stop a move is reported for all shards beforehand, in the same words; shards with
    /// the same definition are together.
    async fn what_is_not_movable(version) {
        let world = World::new(&[version, other(version)], 6).await;
        let movable = ["check", "--movable"];
        assert_eq!(not_movable(&world.run(&movable).await.last()), [""; 0]);
        for shard in [0, 1, 4] {
            let db = world.servers.app(world.host_of(shard)).await;
            let sql = format!("CREATE TABLE shard_{shard:04}.scratch (a regrole)");
            db.batch_execute(&sql).await.unwrap();
        }
        let own = "CREATE VIEW public.everybody AS SELECT * FROM shard_0002.users;
            CREATE TABLE shard_0002.other (id int, of regclass)";
        world
            .servers
            .app(world.host_of(2))
            .await
            .batch_execute(own)
            .await
            .unwrap();
        let said = not_movable(&world.run(&movable).await.ended(1).last());
        let of_this_host = "whose values are OIDs of this host, which keeps it from being moved";
        let scratch = &format!("column scratch.a is of type regrole, {of_this_host}");
        let together = |shards: &str| {
            said.iter()
                .any(|one| one.contains(shards) && one.contains(scratch))
        };
        let same_host = world.host_of(4) == world.host_of(0);
        assert!(
            together(if same_host {
                "3 shards (0-1,4)"
            } else {
                "2 shards (0-1)"
            }),
            "{said:#?}"
        );
        assert!(
            said.iter().any(|one| one.starts_with(
                "shard 2: column other.of is of type \
            regclass"
            )),
            "{said:#?}"
        );
        assert!(
            said.iter().any(|one| one.starts_with(
                "shard 2: view public.everybody is bound \
            to"
            )),
            "{said:#?}"
        );
        assert_eq!(said.len(), if same_host { 3 } else { 4 }, "{said:#?}");
    }

    /// A function that writes past a fence is refused by the plan, not while the move is prepared.
    async fn a_body_that_is_bound_to_a_table(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "CREATE FUNCTION shard_0000.f(a int) RETURNS bigint LANGUAGE sql
                BEGIN ATOMIC SELECT count(*) + a FROM shard_0000.users; END;
             CREATE PROCEDURE shard_0000.p() LANGUAGE sql BEGIN ATOMIC DELETE FROM \
             shard_0000.users; END;
             CREATE FUNCTION shard_0000.reads() RETURNS bigint STABLE LANGUAGE sql
                RETURN (SELECT count(*) FROM shard_0000.users);
             CREATE FUNCTION shard_0000.free() RETURNS int LANGUAGE sql RETURN 1",
        )
        .await
        .unwrap();
        let plan = world.run(&["move", "0", "--to", "db2", "--plan"]).await;
        for said in [
            &plan.ended(4).stderr,
            &world.run(&["check", "--movable"]).await.stdout,
        ] {
            for bound in ["function f(a integer)", "procedure p()"] {
                let reason = format!(
                    "{bound} is VOLATILE and bound to users by a body in SQL: it \
                    could write"
                );
                assert!(said.contains(&reason), "{said}");
            }
            assert!(
                !said.contains("reads()") && !said.contains("free()"),
                "{said}"
            );
        }
        assert!(
            plan.stderr.contains("make it STABLE if it only reads"),
            "{}",
            plan.stderr
        );
        db1.batch_execute(
            "ALTER FUNCTION shard_0000.f STABLE; DROP PROCEDURE \
            shard_0000.p",
        )
        .await
        .unwrap();
        world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0);
    }

    /// What cannot be made at the target although the plan does not know it is named, before
    /// anything is copied.
    async fn what_the_target_refuses_is_named(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let db1 = world.servers.app(0).await;
        // PostgreSQL deparses this in a way that it cannot read.
        let mut cases = vec![(
            "CREATE VIEW shard_0000.circle AS WITH RECURSIVE x (n) AS (
                VALUES (1) UNION ALL SELECT n + 1 FROM x WHERE n < 3)
                CYCLE n SET c TO 'y' DEFAULT 'n' USING p SELECT n, c FROM x",
            "view circle",
        )];
        if version == 18 {
            cases.push((
                "CREATE TABLE shard_0001.t (id uuid DEFAULT uuidv7())",
                "default of t.id",
            ));
        }
        for (at, (sql, named)) in cases.into_iter().enumerate() {
            db1.batch_execute(sql).await.unwrap();
            let ran = world
                .run(&["move", &at.to_string(), "--to", "db2", "--yes"])
                .await;
            let said = format!("{named} cannot be made at the target");
            assert!(ran.ended(4).stderr.contains(&said), "{}", ran.stderr);
            assert_eq!(world.state(0, at as u16).await, "serving");
        }
    }

    /// A host without a control schema cannot be a target, and the remedy is named.
    async fn a_target_that_is_not_bootstrapped(version) {
        let world = World::new(&[version, version], 4).await;
        world
            .servers
            .superuser(1)
            .await
            .batch_execute(
                "CREATE DATABASE empty OWNER \
            app",
            )
            .await
            .unwrap();
        let url = format!(
            "postgres://app@127.0.0.1:{}/empty",
            world.servers.server(1).port()
        );
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        let text = text.replace(
            "\n[hosts.db2]",
            &format!(
                "\n[hosts.db3]\nurl = \
            {url:?}\n\n[hosts.db2]"
            ),
        );
        let path = world.write("three.toml", &text);
        let before = world.everything().await;
        let ran = world
            .run(&[
                "move",
                "0",
                "--to",
                "db3",
                "--yes",
                "--config",
                path.to_str().unwrap(),
            ])
            .await;
        let said = &ran.ended(4).stderr;
        assert!(
            said.contains("not bootstrapped")
                && said.contains(
                    "pgshard bootstrap --host \
            db3"
                ),
            "{said}"
        );
        assert_eq!(world.everything().await, before);
    }

    /// A transaction holds a lock on the shard: the fence is taken back each time, and the session
    /// in the way is named.
    async fn a_long_transaction_is_in_the_way(version) {
        let world = World::new(&[version, version], 4).await;
        let blocker = world.servers.app(0).await;
        blocker
            .batch_execute(
                "BEGIN; INSERT INTO shard_0000.users (name) VALUES \
            ('long')",
            )
            .await
            .unwrap();
        let args = [
            "move",
            "0",
            "--to",
            "db2",
            "--yes",
            "--fence-attempts",
            "2",
            "--fence-budget-ms",
            "20",
        ];
        let ran = world.run(&args).await;
        assert_shown("a_long_transaction", &ran.ended(5).stderr);
        assert_eq!(world.state(0, 0).await, "serving");
        // A prepared transaction blocks as well, and has no backend.
        blocker
            .batch_execute("PREPARE TRANSACTION 'forgotten'")
            .await
            .unwrap();
        let args = ["moves", "resume", &ran.id(), "--fence-attempts", "1"];
        let said = world.run(&args).await;
        assert!(
            said.ended(5)
                .stderr
                .contains("the prepared transaction 'forgotten' in database"),
            "{}",
            said.stderr
        );
        blocker
            .batch_execute("COMMIT PREPARED 'forgotten'")
            .await
            .unwrap();
        world.run(&["moves", "resume", &ran.id()]).await.ended(0);
        let sql = "SELECT count(*) FROM shard_0000.users WHERE name = 'long'";
        assert_eq!(
            world
                .servers
                .app(1)
                .await
                .query_one(sql, &[])
                .await
                .unwrap()
                .get::<_, i64>(0),
            1
        );
        world.audit_places().await;
    }

    /// A generated column with a function that is declared immutable, but is not, has other values
    /// at the target: the digests show it.
    async fn a_copy_that_differs(version) {
        let world = World::new(&[version, version], 4).await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(
                "
            CREATE FUNCTION shard_0000.port() RETURNS text IMMUTABLE LANGUAGE sql AS $$
            SELECT current_setting('port') $$;
            CREATE TABLE shard_0000.liar (id int PRIMARY KEY, port text GENERATED ALWAYS AS \
            (shard_0000.port()) STORED);
            INSERT INTO shard_0000.liar VALUES (1), (2)",
            )
            .await
            .unwrap();
        let ran = world.run(&["move", "0", "--to", "db2", "--yes"]).await;
        assert_shown("a_copy_that_differs", &ran.ended(6).stderr);
        assert_eq!(world.state(0, 0).await, "serving");
        world.run(&["moves", "abort", &ran.id()]).await.ended(0);
        world.audit_places().await;
    }

    /// What fails before the shard is claimed is in no journal: nothing waits for a resume, and no
    /// output suggests one.
    async fn failed_before_it_began(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let admin = world.servers.superuser(0).await;
        // The plan has its connection, and the mover needs more.
        admin
            .batch_execute("ALTER ROLE app CONNECTION LIMIT 1")
            .await
            .unwrap();
        let ran = world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await;
        let said = &ran.ended(4).stderr;
        assert!(
            said.contains("connections") && !said.contains("moves resume"),
            "{said}"
        );
        admin
            .batch_execute("ALTER ROLE app CONNECTION LIMIT -1")
            .await
            .unwrap();
        assert!(world.mover().list(None).await.found.is_empty());
        world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
    }

    /// The shard's tables are altered between prepare and fence: the target is built again.
    async fn an_altered_shard_is_built_again(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let db = world.servers.app(0).await;
        for (shard, sql, check) in [
            (
                "0",
                "ALTER TABLE shard_0000.users ADD COLUMN bio text DEFAULT 'none'",
                "SELECT bio FROM shard_0000.users",
            ),
            (
                "1",
                "CREATE TABLE shard_0001.fresh AS SELECT 'none'::text AS \
                a",
                "SELECT a FROM \
                shard_0001.fresh",
            ),
        ] {
            let number: u16 = shard.parse().unwrap();
            db.batch_execute(&format!(
                "INSERT INTO shard_{number:04}.users (name) VALUES \
                ('x')"
            ))
            .await
            .unwrap();
            let args = ["move", shard, "--to", "db2", "--yes"];
            let child = world
                .command(&args, &[("PGSHARD_FAILPOINT", "after prepare=stop")])
                .spawn()
                .unwrap();
            stopped(&child).await;
            db.batch_execute(sql).await.unwrap();
            never_stopped(child).await.ended(0);
            let found: String = world
                .servers
                .app(1)
                .await
                .query_one(check, &[])
                .await
                .unwrap()
                .get(0);
            assert_eq!(found, "none");
        }
        world.audit_places().await;
    }

    /// Something outside is bound to the shard during the move: the move stops, reports what it is,
    /// and the source serves.
    async fn bound_from_outside_meanwhile(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let db = world.servers.app(0).await;
        let args = ["move", "0", "--to", "db2", "--yes"];
        let child = world
            .command(&args, &[("PGSHARD_FAILPOINT", "after prepare=stop")])
            .spawn()
            .unwrap();
        stopped(&child).await;
        db.batch_execute(
            "CREATE VIEW public.everybody AS SELECT * FROM \
            shard_0000.users",
        )
        .await
        .unwrap();
        let ran = never_stopped(child).await;
        assert!(
            ran.ended(7).stderr.contains("public.everybody"),
            "{}",
            ran.stderr
        );
        assert_eq!(world.state(0, 0).await, "serving");
        db.batch_execute("DROP VIEW public.everybody")
            .await
            .unwrap();
        world.run(&["moves", "resume", &ran.id()]).await.ended(0);
        world.audit_places().await;
    }
}
