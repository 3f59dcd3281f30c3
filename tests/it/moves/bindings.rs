//! What a definition is bound to is the same after a move: operators that it does not name, and
//! functions that find something by the search_path.

use crate::support::{World, lines, never_stopped, other, stopped};

/// The extensions, as an administrator creates them on both hosts.
async fn extend(world: &World, extensions: &[&str]) {
    for host in 0..2 {
        let admin = world.servers.superuser(host).await;
        for extension in extensions {
            let sql = format!("CREATE EXTENSION {extension} SCHEMA public");
            admin.batch_execute(&sql).await.unwrap();
        }
    }
}

on_each_version! {
    /// citext's own equality is used where the definition does not name it, and ltree's in the
    /// condition of a trigger.
    async fn an_operator_without_a_name_stays_the_same(version) {
        let world = World::new(&[version, other(version)], 4).await;
        extend(&world, &["citext", "ltree"]).await;
        for (shard, mode) in [("0", "online"), ("1", "blocking")] {
            let schema = format!("shard_000{shard}");
            let sql = format!(
                "SET search_path = {schema}, public;
                CREATE TABLE a (id int PRIMARY KEY, e citext, l ltree, n int DEFAULT 0,
                    d boolean DEFAULT CASE 'A'::citext WHEN 'a'::citext THEN true ELSE false END,
                    g boolean GENERATED ALWAYS AS (nullif(e, 'X') IS NULL) STORED,
                    CHECK (e IS DISTINCT FROM 'never'));
                CREATE VIEW v AS SELECT count(*) FROM a JOIN a b USING (e);
                CREATE MATERIALIZED VIEW m AS
                    SELECT id, ROW(1, e) < ROW(1, 'B'::citext) AS c FROM a;
                CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS
                    $$ BEGIN NEW.n := NEW.n + 1; RETURN NEW; END $$;
                CREATE TRIGGER t BEFORE UPDATE ON a FOR EACH ROW
                    WHEN (OLD.l IS DISTINCT FROM NEW.l) EXECUTE FUNCTION f();
                INSERT INTO a (id, e, l) VALUES (1, 'A', 'Top'), (2, 'a', 'Top.A'), (3, 'x', NULL);
                REFRESH MATERIALIZED VIEW m"
            );
            world
                .servers
                .app(0)
                .await
                .batch_execute(&sql)
                .await
                .unwrap();
            let questions = [
                "SELECT a::text FROM a ORDER BY id",
                "SELECT v::text FROM v",
                "SELECT m::text FROM m ORDER BY id",
            ];
            let ask = async |host| {
                let app = world.servers.app(host).await;
                let path = format!("SET search_path = {schema}, public");
                app.batch_execute(&path).await.unwrap();
                let mut all = String::new();
                for question in questions {
                    all += &lines(&app, question).await;
                }
                let refused = app
                    .batch_execute("INSERT INTO a (id, e) VALUES (7, 'NEVER')")
                    .await;
                all += refused.unwrap_err().code().unwrap().code();
                app.batch_execute(
                    "BEGIN; INSERT INTO a (id, e) VALUES (8, 'b');
                    UPDATE a SET l = 'Top'",
                )
                .await
                .unwrap();
                all += &lines(&app, questions[0]).await;
                all
            };
            let before = ask(0).await;
            world
                .run(&["move", shard, "--to", "db2", "--mode", mode, "--yes"])
                .await
                .ended(0);
            assert_eq!(ask(1).await, before);
        }
    }

    /// Other roles may make operators where the definition would find one: it is refused in the
    /// plan, and the remedy helps.
    async fn an_open_schema_is_not_searched(version) {
        let world = World::new(&[version, version], 4).await;
        extend(&world, &["citext"]).await;
        let sql = "CREATE VIEW shard_0000.v AS SELECT NULLIF('a'::public.citext, 'A') IS NULL AS c";
        let app = world.servers.app(0).await;
        app.batch_execute(&format!("SET search_path = shard_0000, public; {sql}"))
            .await
            .unwrap();
        let admin = world.servers.superuser(1).await;
        admin
            .batch_execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
            .await
            .unwrap();
        let args = ["move", "0", "--to", "db2", "--yes"];
        let ran = world.run(&args).await;
        let said = "view v compares values by an operator of schema public";
        assert!(ran.ended(4).stderr.contains(said), "{}", ran.stderr);
        admin
            .batch_execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
            .await
            .unwrap();
        world.run(&args).await.ended(0);
    }

    /// A shard's own operator hides PostgreSQL's while the schema is built: what would be bound to
    /// it is refused in the plan.
    async fn what_would_be_bound_otherwise_is_refused(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let sql = "CREATE FUNCTION shard_0000.same(text, text) RETURNS boolean LANGUAGE sql
                IMMUTABLE RETURN true;
            CREATE OPERATOR shard_0000.= (
                FUNCTION = shard_0000.same, LEFTARG = text, RIGHTARG = text);
            CREATE VIEW shard_0000.v AS
                SELECT name IS DISTINCT FROM 'x' AS c FROM shard_0000.users";
        world.servers.app(0).await.batch_execute(sql).await.unwrap();
        let before = world.everything().await;
        let ran = world.run(&["move", "0", "--to", "db2", "--yes"]).await;
        let said = "view v uses PostgreSQL's own here";
        assert!(ran.ended(4).stderr.contains(said), "{}", ran.stderr);
        assert_eq!(world.everything().await, before);
    }

    /// A function outside the shard compares citext, or finds unaccent, by the search_path: an
    /// index over it would be damaged from birth. The remedy that the plan names helps.
    async fn a_function_that_needs_the_search_path_is_refused(version) {
        let world = World::new(&[version, other(version)], 4).await;
        extend(&world, &["citext", "unaccent"]).await;
        let functions = "CREATE FUNCTION public.isa(e public.citext) RETURNS boolean
                LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN e = 'a'; END $$;
            CREATE FUNCTION public.plain(t text) RETURNS text
                LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN unaccent(t); END $$;
            CREATE FUNCTION public.fine(t text) RETURNS text
                LANGUAGE sql IMMUTABLE AS $$ SELECT public.unaccent('public.unaccent', $1) $$;
            CREATE FUNCTION public.lowered(t text) RETURNS text
                LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN lower(t); END $$;";
        for host in 0..2 {
            world
                .servers
                .app(host)
                .await
                .batch_execute(functions)
                .await
                .unwrap();
        }
        let app = world.servers.app(0).await;
        app.batch_execute(
            "SET search_path = shard_0000, public;
            CREATE TABLE x (id int PRIMARY KEY, e citext, t text,
                u text GENERATED ALWAYS AS (plain(t)) STORED,
                CHECK (fine(t) <> ''), CHECK (lowered(t) <> ''));
            CREATE INDEX x_isa ON x (isa(e));
            INSERT INTO x SELECT n, 'A', 'é' FROM generate_series(1, 500) n",
        )
        .await
        .unwrap();
        let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        let ran = world.run(&args).await;
        for said in [
            "runs public.isa(public.citext)",
            "runs public.plain(pg_catalog.text)",
            "ALTER FUNCTION public.isa(public.citext) SET search_path = pg_catalog, \"public\"",
        ] {
            assert!(ran.ended(4).stderr.contains(said), "{said}: {}", ran.stderr);
        }
        for no in ["public.fine", "public.lowered"] {
            assert!(!ran.stderr.contains(no), "{}", ran.stderr);
        }
        let remedy = "ALTER FUNCTION public.isa SET search_path = pg_catalog, public;
            ALTER FUNCTION public.plain SET search_path = pg_catalog, public";
        for host in 0..2 {
            world
                .servers
                .app(host)
                .await
                .batch_execute(remedy)
                .await
                .unwrap();
        }
        world.run(&args).await.ended(0);
        let app = world.servers.app(1).await;
        let sql = "BEGIN; SET LOCAL enable_seqscan = off;
            SET LOCAL search_path = shard_0000, public;";
        app.batch_execute(sql).await.unwrap();
        assert_eq!(
            lines(&app, "SELECT count(*)::text FROM x WHERE isa(e)")
                .await
                .trim(),
            "500"
        );
    }

    /// Tables and functions of a shard have names that PostgreSQL has, too.
    async fn names_that_hide_postgresqls_are_moved(version) {
        let world = World::new(&[version, other(version)], 4).await;
        for shard in 0..2 {
            let schema = format!("shard_000{shard}");
            let sql = [
                "text", "name", "regtype", "oid", "int4", "regclass", "json", "pg_class",
            ]
            .map(|name| {
                format!(
                    "CREATE TABLE {schema}.\"{name}\" (
                    id int PRIMARY KEY, t pg_catalog.text DEFAULT 'x');"
                )
            })
            .concat();
            let functions = format!(
                "CREATE FUNCTION {schema}.format(pg_catalog.text, pg_catalog.name, pg_catalog.name)
                    RETURNS pg_catalog.text LANGUAGE sql AS $$ SELECT 'hidden' $$;
                CREATE FUNCTION {schema}.same(pg_catalog.oid, pg_catalog.int4) RETURNS boolean
                    LANGUAGE sql IMMUTABLE RETURN true;
                CREATE OPERATOR {schema}.= (
                    FUNCTION = {schema}.same, LEFTARG = oid, RIGHTARG = pg_catalog.int4);
                CREATE VIEW {schema}.v AS SELECT t::pg_catalog.text FROM {schema}.\"text\""
            );
            let app = world.servers.app(0).await;
            app.batch_execute(&(sql + &functions)).await.unwrap();
        }
        let checked = world.run(&["check", "--ddl", "--movable"]).await;
        assert!(
            !checked.stdout.contains("definitions_unread"),
            "{}",
            checked.stdout
        );
        world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
        world
            .run(&["move", "1", "--to", "db2", "--yes"])
            .await
            .ended(0);
        world.audit_places().await;
    }

    /// A relation of a kind that this release does not know is refused by name.
    async fn an_unknown_kind_is_refused(version) {
        let world = World::new(&[version, version], 4).await;
        let admin = world.servers.superuser(0).await;
        admin
            .batch_execute(
                "CREATE VIEW shard_0000.graph AS SELECT 1 AS a;
                ALTER VIEW shard_0000.graph OWNER TO app;
                SET allow_system_table_mods = on;
                UPDATE pg_class SET relkind = 'Z' WHERE relname = 'graph'",
            )
            .await
            .unwrap();
        let ran = world.run(&["move", "0", "--to", "db2", "--yes"]).await;
        let said = "relation graph is a relation of unknown kind Z, which is not carried";
        assert!(ran.ended(4).stderr.contains(said), "{}", ran.stderr);
    }

    /// A statement of the open is refused there permanently: the shard is served again immediately,
    /// and not closed while the open is tried for seconds.
    async fn a_refused_open_ends_the_pause_at_once(version) {
        let world = World::new(&[version, version], 4).await;
        let app = world.servers.app(0).await;
        app.batch_execute(
            "CREATE FUNCTION shard_0000.f() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RETURN NEW; END $$;
            CREATE TRIGGER t BEFORE UPDATE ON shard_0000.users FOR EACH ROW
                EXECUTE FUNCTION shard_0000.f()",
        )
        .await
        .unwrap();
        let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        let child = world
            .command(&args, &[("PGSHARD_FAILPOINT", "after catch-up=stop")])
            .spawn()
            .unwrap();
        stopped(&child).await;
        let there = world.servers.superuser(1).await;
        there
            .batch_execute("DROP FUNCTION shard_0000__incoming.f()")
            .await
            .unwrap();
        let ran = never_stopped(child).await;
        assert!(ran.ended(7).stderr.contains("(42883)"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("observing again"), "{}", ran.stderr);
        assert_eq!(world.state(0, 0).await, "serving");
        let id = ran.id();
        world.run(&["moves", "abort", &id]).await.ended(0);
    }
}
