//! What is refused, with everything as it was.

use super::{database, pgshard, report, separate, state, writer};
use crate::support::{TestCluster, connect};

/// Something in the way, what is refused, and how it is taken away.
const OBSTACLES: [(&str, &str, &str); 18] = [
    (
        "ALTER TABLE audit ADD photo bigint REFERENCES photos",
        "audit.photo: is a foreign key to photos, which is imported",
        "ALTER TABLE audit DROP photo",
    ),
    (
        "ALTER TABLE photos ADD audit bigint REFERENCES audit",
        "photos.audit: is a foreign key to audit, which is not imported",
        "ALTER TABLE photos DROP audit",
    ),
    (
        "CREATE VIEW recent AS SELECT * FROM photos",
        "public.recent: is a view of imported tables outside their schema",
        "DROP VIEW recent",
    ),
    (
        "CREATE MATERIALIZED VIEW both_of AS SELECT 1 AS one FROM photos, audit",
        "public.both_of: is a view that reads photos and audit",
        "DROP MATERIALIZED VIEW both_of",
    ),
    (
        "CREATE RULE copied AS ON INSERT TO audit DO ALSO UPDATE users SET name = '' WHERE id = 0",
        "copied on public.audit: is a rule, bound to audit",
        "DROP RULE copied ON audit",
    ),
    (
        "CREATE FUNCTION bound() RETURNS void LANGUAGE sql
            BEGIN ATOMIC DELETE FROM photos WHERE id = 0; END",
        "public.bound: is a function with a body that is bound to photos",
        "DROP FUNCTION bound",
    ),
    (
        "ALTER TABLE audit ADD name text, ADD mood mood NOT NULL, INHERIT users",
        "audit: inherits from users, and one of them is not imported",
        "ALTER TABLE audit NO INHERIT users; ALTER TABLE audit DROP name, DROP mood",
    ),
    (
        "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN INSERT INTO audit (note) VALUES (1); RETURN NULL; END';
        CREATE TRIGGER noted AFTER INSERT ON likes FOR EACH ROW EXECUTE FUNCTION noted()",
        "public.noted: is called by trigger noted on likes, which is imported, and names audit",
        "DROP FUNCTION noted CASCADE",
    ),
    (
        "CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN UPDATE users SET name = NEW.note WHERE id = 0; RETURN NULL; END';
        CREATE TRIGGER counted AFTER INSERT ON audit FOR EACH ROW EXECUTE FUNCTION counted()",
        "public.counted: is called by trigger counted on audit, which is not imported, and names \
            users",
        "DROP FUNCTION counted CASCADE",
    ),
    (
        "CREATE FUNCTION named(int) RETURNS bigint LANGUAGE sql AS
            'SELECT count(*) FROM public.photos'",
        "public.named(integer): names public.photos; leave the schema out",
        "DROP FUNCTION named",
    ),
    (
        "CREATE FUNCTION pathed() RETURNS bigint LANGUAGE plpgsql SET search_path = public AS
            'BEGIN RETURN (SELECT count(*) FROM photos); END'",
        "ALTER ROUTINE public.pathed() SET search_path = \"app\", \"public\"",
        "DROP FUNCTION pathed",
    ),
    (
        "CREATE PUBLICATION whole FOR TABLES IN SCHEMA public",
        "publication whole: has all tables of schema public",
        "DROP PUBLICATION whole",
    ),
    (
        "CREATE POLICY audited ON albums TO writer USING (EXISTS (SELECT FROM audit))",
        "policy audited on albums: reads audit",
        "DROP POLICY audited ON albums",
    ),
    (
        "CREATE TABLE countries (id int PRIMARY KEY);
            ALTER TABLE photos ADD country int REFERENCES countries ON DELETE SET NULL",
        "is a foreign key by which countries, a reference table, writes to it",
        "ALTER TABLE photos DROP country; DROP TABLE countries",
    ),
    (
        "CREATE SCHEMA app CREATE TABLE something ()",
        "schema app: is there, with something in it",
        "DROP SCHEMA app CASCADE",
    ),
    (
        "CREATE SCHEMA other; ALTER TABLE likes SET SCHEMA other",
        "other.likes: is imported, and not in schema public",
        "ALTER TABLE other.likes SET SCHEMA public; DROP SCHEMA other",
    ),
    (
        "CREATE SCHEMA other; CREATE TABLE other.photos (id bigint PRIMARY KEY,
            album_id bigint REFERENCES albums)",
        "photos: is the name of several imported tables",
        "DROP SCHEMA other CASCADE",
    ),
    (
        "ALTER DATABASE base SET search_path = \"$user\"; ALTER ROLE reporting RESET search_path;
            ALTER ROLE nightly IN DATABASE base RESET search_path",
        "search_path: leads to schema public for no role",
        "ALTER DATABASE base RESET search_path",
    ),
];

on_each_version! {
    /// Each obstacle is named, with what to do about it, and nothing is changed.
    async fn an_open_border_is_refused_by_name(version) {
        let cluster = TestCluster::start(version, 1);
        let url = database(&cluster).await;
        for (sql, expected, back) in OBSTACLES {
            let base = connect(&url).await;
            base.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            drop(base);
            let before = state(version, &url).await;
            for args in [&["--stays", "audit"][..], &["--stays", "audit", "--plan"]] {
                let (exit, _, stderr) = separate(&url, args);
                assert_eq!(exit, 4, "{sql}: {stderr}");
                assert!(stderr.contains(expected), "{expected}: {stderr}");
            }
            assert_eq!(state(version, &url).await, before, "{sql}");
            let base = connect(&url).await;
            base.batch_execute(back).await.unwrap();
        }
        let words = ["import", "separate", &url, "--key", "users.id", "--schema", "pg_own"];
        let (exit, _, stderr) = pgshard(&words);
        assert_eq!(exit, 4, "{stderr}");
        assert!(stderr.contains("schema pg_own: is a name that PostgreSQL"), "{stderr}");
    }

    /// A role without the rights: each is named, with the statement for one that has it. Once that
    /// was run, the rest is done.
    async fn a_missing_right_is_named(version) {
        let cluster = TestCluster::start(version, 1);
        let url = database(&cluster).await;
        let base = connect(&url).await;
        let owned = "CREATE ROLE owner LOGIN; GRANT ALL ON SCHEMA public TO owner;
            DO $$ DECLARE r record; BEGIN FOR r IN SELECT relname FROM pg_class
                WHERE relkind IN ('r', 'p') AND relname <> 'audit' AND relname <> 'likes'
                AND relnamespace = 'public'::regnamespace LOOP
                EXECUTE format('ALTER TABLE %I OWNER TO owner', r.relname); END LOOP; END $$;
            ALTER STATISTICS photo_stats OWNER TO owner";
        base.batch_execute(owned).await.unwrap();
        drop(base);
        let before = state(version, &url).await;
        let port = cluster.server(0).port();
        let owner = format!("postgres://owner@127.0.0.1:{port}/base");
        let session = writer(&cluster).await;
        let (exit, _, stderr) = separate(&owner, &[]);
        assert_eq!(exit, 4, "{stderr}");
        let statements = [
            r#"ALTER DATABASE "base" SET search_path = "$user", "app", "public""#,
            r#"ALTER ROLE "nightly" IN DATABASE "base" SET search_path = "app", "public""#,
            r#"ALTER ROLE "reporting" IN DATABASE "base" SET search_path =
                "app", "public", "$user", "other one""#,
        ];
        for expected in [
            "public.likes: it, or statistics of it, belong to role",
            r#"GRANT CREATE ON DATABASE "base" TO "owner""#,
            r#"GRANT pg_read_all_stats TO "owner""#,
        ].into_iter().chain(statements) {
            let words: Vec<&str> = expected.split_whitespace().collect();
            assert!(stderr.contains(&words.join(" ")), "{expected}: {stderr}");
        }
        drop(session);
        assert_eq!(state(version, &url).await, before);
        let base = connect(&url).await;
        base.batch_execute(
            "ALTER TABLE likes OWNER TO owner; GRANT CREATE ON DATABASE base TO owner;
            GRANT pg_read_all_stats TO owner",
        ).await.unwrap();
        base.batch_execute(&statements.join(";")).await.unwrap();
        drop(base);
        let with_paths = state(version, &url).await;
        let (exit, done) = report(&owner, &[]);
        assert_eq!(exit, 0, "{done}");
        let session = writer(&cluster).await;
        session.batch_execute("INSERT INTO likes (photo_id) VALUES (1)").await.unwrap();
        drop(session);
        // Settings that others have made remain.
        let (exit, undone) = report(&owner, &["--undo"]);
        assert_eq!(exit, 0, "{undone}");
        assert_eq!(state(version, &url).await, with_paths);
    }

    /// The operator's own `search_path`: none is set, and no session is waited for.
    async fn search_path_can_be_left_alone(version) {
        let cluster = TestCluster::start(version, 1);
        let url = database(&cluster).await;
        let before = state(version, &url).await;
        let session = writer(&cluster).await;
        session.batch_execute("SET search_path = app, public; SELECT FROM users").await.unwrap();
        let (exit, done) = report(&url, &["--keep-search-path"]);
        assert_eq!(exit, 0, "{done}");
        session.batch_execute("INSERT INTO likes (photo_id) VALUES (1)").await.unwrap();
        drop(session);
        let base = connect(&url).await;
        let set = "SELECT count(*) FROM pg_db_role_setting s, unnest(setconfig) c
            WHERE c LIKE '%app%'";
        assert_eq!(base.query_one(set, &[]).await.unwrap().get::<_, i64>(0), 0);
        drop(base);
        assert_eq!(report(&url, &["--undo"]).0, 0);
        assert_eq!(state(version, &url).await, before);
    }

    /// A view is read at every moment if there are two of it for a while. What an unsharded host
    /// serves is not taken back.
    async fn a_view_is_made_in_the_new_schema_first(version) {
        let cluster = TestCluster::start(version, 1);
        let url = database(&cluster).await;
        let base = connect(&url).await;
        base.batch_execute("CREATE VIEW recent AS SELECT id FROM photos").await.unwrap();
        let (exit, _, stderr) = separate(&url, &["--plan"]);
        assert_eq!(exit, 4, "{stderr}");
        assert!(stderr.contains("create it in schema app too"), "{stderr}");
        base.batch_execute(
            "CREATE SCHEMA app; CREATE VIEW app.recent AS SELECT id FROM public.photos;
            ALTER DATABASE base SET search_path = app, public; DROP VIEW public.recent",
        ).await.unwrap();
        drop(base);
        let (exit, done) = report(&url, &["--keep-search-path"]);
        assert_eq!(exit, 0, "{done}");
        let base = connect(&url).await;
        let rows = "SELECT count(*) FROM recent";
        assert_eq!(base.query_one(rows, &[]).await.unwrap().get::<_, i64>(0), 1000);
        let config = format!(
            "[cluster]\nshards = 16\nepoch = \"2026-01-01T00:00:00Z\"\nlegacy_below = 1000000\n\
             [hosts.old]\nurl = \"{url}\"\nlayout = \"unsharded\"\nschema = \"app\"\n\
             [map]\nversion = 1\n[map.placement]\nold = \"0-15\"\n"
        );
        let config = cluster.write("one.toml", &config);
        let (exit, _, stderr) = pgshard(&["--config", config.to_str().unwrap(), "bootstrap"]);
        assert_eq!(exit, 0, "{stderr}");
        let (exit, _, stderr) = separate(&url, &["--undo"]);
        assert_eq!(exit, 4, "{stderr}");
        assert!(stderr.contains("serves the shards of an unsharded host"), "{stderr}");
        base.batch_execute("DROP SCHEMA pgshard CASCADE; DROP VIEW app.recent").await.unwrap();
        drop(base);
        let (exit, undone) = report(&url, &["--undo"]);
        assert_eq!(exit, 0, "{undone}");
    }
}
