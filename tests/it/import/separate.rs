//! `pgshard import separate`.

mod interrupted;
mod refused;
mod writers;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio_postgres::Client;

use super::keys::{self, differ, dump};
use super::pgshard;
use crate::support::{TestCluster, connect};

/// What depends on tables by their OIDs, and settings of roles.
const MORE: &str = r#"
    CREATE TABLE visits (id bigserial, user_id bigint NOT NULL REFERENCES users, day date,
        PRIMARY KEY (id, user_id)) PARTITION BY HASH (user_id);
    CREATE TABLE visits_0 PARTITION OF visits FOR VALUES WITH (MODULUS 2, REMAINDER 0);
    CREATE TABLE "Visits 1" PARTITION OF visits FOR VALUES WITH (MODULUS 2, REMAINDER 1);
    CREATE TABLE audit (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text);
    CREATE TYPE mood AS ENUM ('good', 'bad');
    ALTER TABLE users ADD COLUMN mood mood NOT NULL DEFAULT 'good';
    CREATE STATISTICS photo_stats ON album_id, likes FROM photos;
    CREATE PUBLICATION part FOR TABLE photos, likes;
    ALTER TABLE albums ENABLE ROW LEVEL SECURITY;
    CREATE POLICY visible ON albums TO writer USING (id <> 77) WITH CHECK (true);
    CREATE VIEW audits AS SELECT * FROM audit;
    CREATE ROLE reporting LOGIN; CREATE ROLE nightly LOGIN; CREATE ROLE elsewhere LOGIN;
    GRANT SELECT ON ALL TABLES IN SCHEMA public TO reporting, nightly;
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO writer;
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO writer;
    GRANT CREATE ON SCHEMA public TO writer;
    ALTER ROLE reporting SET search_path = 'public', "$user", 'other one';
    ALTER ROLE nightly IN DATABASE base SET statement_timeout = '1h';
    ALTER ROLE nightly IN DATABASE base SET search_path = public;
    ALTER ROLE nightly IN DATABASE base SET work_mem = '5MB';
    ALTER ROLE elsewhere SET search_path = audits"#;

/// A database with tables for `keys`, and more.
async fn database(cluster: &TestCluster) -> String {
    let (url, base) = keys::database(cluster).await;
    base.batch_execute(MORE).await.unwrap();
    drop(base);
    ended(&url).await;
    url
}

/// Waits until no session is left from before.
async fn ended(url: &str) {
    let base = connect(url).await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
    while base.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The exit code, stdout and stderr of `pgshard import separate`.
fn separate(url: &str, args: &[&str]) -> (i32, String, String) {
    let words = [
        "import", "separate", url, "--key", "users.id", "--schema", "app",
    ];
    pgshard(&[&words, args].concat())
}

/// The same, with what it reports last.
fn report(url: &str, args: &[&str]) -> (i32, Value) {
    let (exit, stdout, stderr) = separate(url, &[&["--json"], args].concat());
    let last = stdout
        .lines()
        .last()
        .unwrap_or_else(|| panic!("{exit}: {stderr}"));
    (exit, serde_json::from_str(last).unwrap())
}

fn spawned(url: &str, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_pgshard"))
        .args([
            "import", "separate", url, "--key", "users.id", "--schema", "app", "--json",
        ])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command was built")
}

/// Everything that an undo brings back: the schema as text, and the settings of roles.
async fn state(version: u32, url: &str) -> String {
    let base = connect(url).await;
    let sql = "SELECT coalesce(string_agg(format('%s %s %s', setdatabase = 0,
            setrole::regrole, setconfig), E'\\n' ORDER BY setdatabase, setrole::regrole::text), '')
        FROM pg_db_role_setting";
    let settings: String = base.query_one(sql, &[]).await.unwrap().get(0);
    drop(base);
    ended(url).await;
    format!("{settings}\n{}", dump(version, url))
}

async fn text(base: &Client, sql: &str) -> String {
    base.query_one(sql, &[]).await.unwrap().get(0)
}

/// A session of the application.
async fn writer(cluster: &TestCluster) -> Client {
    let port = cluster.server(0).port();
    connect(&format!("postgres://writer@127.0.0.1:{port}/base")).await
}

on_each_version! {
    /// With the key in each table before and afterwards: what depends on the tables stays right,
    /// and everything comes back.
    async fn imported_tables_get_a_schema(version) {
        let cluster = TestCluster::start(version, 1);
        let url = database(&cluster).await;
        let first = state(version, &url).await;
        // The schema alone, without keys.
        let (exit, done) = report(&url, &[]);
        assert_eq!(exit, 0, "{done}");
        let (exit, undone) = report(&url, &["--undo"]);
        assert_eq!(exit, 0, "{undone}");
        assert_eq!(undone["tables"].as_array().unwrap().len(), 8, "{undone}");
        assert_eq!(state(version, &url).await, first);

        let (exit, _, stderr) = keys::keys(&url, &[]);
        assert_eq!(exit, 0, "{stderr}");
        let before = state(version, &url).await;
        let (exit, plan) = report(&url, &["--plan"]);
        assert_eq!(exit, 0, "{plan}");
        for expected in [
            r#"ALTER DATABASE \"base\" SET search_path = \"$user\", \"app\", \"public\""#,
            r#"ALTER ROLE \"reporting\" IN DATABASE \"base\" SET search_path = \"app\""#,
            r#"GRANT CREATE ON SCHEMA \"app\" TO \"writer\""#,
            "ALTER STATISTICS",
            "CREATE OR REPLACE FUNCTION pgshard_import.fill_",
        ] {
            assert!(plan.to_string().contains(expected), "{expected}: {plan}");
        }
        assert!(!plan.to_string().contains("elsewhere"), "{plan}");
        let (exit, missing) = report(&url, &["--check"]);
        assert_eq!(exit, 1, "{missing}");
        assert_eq!(missing["missing"].as_array().unwrap().len(), 4, "{missing}");
        assert_eq!(state(version, &url).await, before, "a plan and a check change nothing");

        // A session of before is named, and waited for.
        let old = writer(&cluster).await;
        old.batch_execute("SELECT FROM users WHERE id = 12345").await.unwrap();
        let (exit, stdout, stderr) = separate(&url, &["--max-wait-s", "1"]);
        assert_eq!(exit, 8, "{stdout}{stderr}");
        for expected in ["of writer", "SELECT FROM users WHERE id = ?", "RECONNECT"] {
            assert!(stderr.contains(expected), "{stderr}");
        }
        let (exit, missing) = report(&url, &["--check"]);
        assert_eq!(exit, 1, "{missing}");
        assert_eq!(missing["missing"].to_string(), r#"["sessions","tables"]"#);
        assert_eq!(missing["sessions"].as_array().unwrap().len(), 1, "{missing}");
        old.batch_execute("INSERT INTO likes (photo_id) VALUES (1)").await.unwrap();
        drop(old);
        ended(&url).await;
        let (exit, done) = report(&url, &[]);
        assert_eq!(exit, 0, "{done}");
        assert_eq!(done["missing"].to_string(), "[]");

        let base = connect(&url).await;
        let here = "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class
            WHERE relnamespace = 'public'::regnamespace";
        assert_eq!(text(&base, here).await, "audit audit_id_seq audit_pkey audits");
        let published = "SELECT string_agg(schemaname || '.' || tablename, ' ' ORDER BY tablename)
            FROM pg_publication_tables";
        assert_eq!(text(&base, published).await, "app.likes app.photos");
        let statistics = "SELECT stxnamespace::regnamespace::text FROM pg_statistic_ext";
        assert_eq!(text(&base, statistics).await, "app");
        let identities = "SELECT string_agg(relname || ':' || relreplident::text, ' '
            ORDER BY relname) FROM pg_class WHERE relkind IN ('r', 'p')
            AND relnamespace = 'app'::regnamespace";
        assert_eq!(
            text(&base, identities).await,
            "Visits 1:d albums:i likes:i photos:i users:d views:i visits:d visits_0:d"
        );
        // The application's role, by names without a schema; its own table comes there, too.
        let writer = writer(&cluster).await;
        writer.batch_execute(
            "INSERT INTO users (id, mood) VALUES (1000, 'bad');
            INSERT INTO visits (user_id) SELECT id FROM users;
            WITH a AS (INSERT INTO albums (user_id) VALUES (1000) RETURNING id),
                p AS (INSERT INTO photos (album_id) SELECT id FROM a RETURNING id)
            INSERT INTO likes (photo_id) SELECT id FROM p;
            UPDATE albums SET user_id = 7 WHERE id IN (1, 2, 3);
            UPDATE photos SET album_id = 50 WHERE id < 40;
            INSERT INTO audit (note) VALUES ('done');
            CREATE TABLE drafts (id bigint PRIMARY KEY, note text)",
        ).await.unwrap();
        let of_draft = "SELECT relnamespace::regnamespace::text FROM pg_class
            WHERE relname = 'drafts'";
        assert_eq!(text(&writer, of_draft).await, "app");
        let hidden = "SELECT count(*)::text FROM albums WHERE id = 77";
        assert_eq!(text(&writer, hidden).await, "0", "the policy holds");
        assert_eq!(differ(&base).await, 0);
        let reporting = format!("postgres://reporting@127.0.0.1:{}/base", cluster.server(0).port());
        let reporting = connect(&reporting).await;
        assert_eq!(text(&reporting, "SELECT count(*)::text FROM users").await, "21");
        let path = text(&reporting, "SHOW search_path").await;
        assert_eq!(path, r#"app, public, "$user", "other one""#);
        drop((writer, reporting));

        // It is complete, for the other commands, too.
        let (exit, check) = report(&url, &["--check"]);
        assert_eq!(exit, 0, "{check}");
        assert_eq!(report(&url, &["--plan"]).1["steps"].to_string(), "[]");
        assert_eq!(report(&url, &[]).0, 0);
        let (exit, _, stderr) = keys::keys(&url, &["--check"]);
        assert_eq!(exit, 0, "{stderr}");
        let (exit, plan) = keys::report(&url, &["--plan"]);
        assert_eq!((exit, plan["steps"].as_array().unwrap().len()), (0, 0), "{plan}");
        let all = crate::import::assess(&url, &[]);
        assert_eq!(crate::import::decision(&all, "likes"), "key_column");
        let named = |key: &str, schema: &str| {
            pgshard(&["import", "separate", &url, "--key", key, "--schema", schema, "--check"])
        };
        let (exit, _, stderr) = named("public.users.id", "app");
        assert_eq!(exit, 0, "{stderr}");
        let (exit, _, stderr) = named("users.id", "other");
        assert_eq!(exit, 4, "{stderr}");
        assert!(stderr.contains("schema app: is the one that an earlier run"), "{stderr}");

        // What the application has made there since is its own to decide about, if it is no table.
        base.batch_execute("DROP TABLE app.drafts; CREATE VIEW app.recent AS SELECT 1 AS one")
            .await
            .unwrap();
        let (exit, _, stderr) = separate(&url, &["--undo"]);
        assert_eq!(exit, 4, "{stderr}");
        assert!(stderr.contains("view app.recent"), "{stderr}");
        base.batch_execute("DROP VIEW app.recent").await.unwrap();
        drop(base);
        let (exit, undone) = report(&url, &["--undo"]);
        assert_eq!(exit, 0, "{undone}");
        assert_eq!(state(version, &url).await, before);
        let (exit, _, stderr) = keys::keys(&url, &["--check"]);
        assert_eq!(exit, 0, "{stderr}");
        let (exit, _, stderr) = keys::keys(&url, &["--undo"]);
        assert_eq!(exit, 0, "{stderr}");
        assert_eq!(state(version, &url).await, first);
    }

    /// The key after the schema, and the key taken back first.
    async fn the_key_comes_after_the_schema(version) {
        let cluster = TestCluster::start(version, 1);
        let url = database(&cluster).await;
        let first = state(version, &url).await;
        assert_eq!(report(&url, &[]).0, 0);
        let separated = state(version, &url).await;
        let (exit, _, stderr) = keys::keys(&url, &[]);
        assert_eq!(exit, 0, "{stderr}");
        let session = writer(&cluster).await;
        session.batch_execute("INSERT INTO likes (photo_id) VALUES (7), (8)").await.unwrap();
        drop(session);
        let (exit, _, stderr) = keys::keys(&url, &["--check"]);
        assert_eq!(exit, 0, "{stderr}");
        let (exit, _, stderr) = keys::keys(&url, &["--undo"]);
        assert_eq!(exit, 0, "{stderr}");
        assert_eq!(state(version, &url).await, separated);
        assert_eq!(report(&url, &["--undo"]).0, 0);
        assert_eq!(state(version, &url).await, first);
    }
}
