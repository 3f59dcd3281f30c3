//! The assessment writes nothing, and repeats no password.

use pgshard::dev::ServerOptions;
use serde_json::Value;
use tokio_postgres::Client;

use super::{assess, obstacles, run};
use crate::support::{TestCluster, connect};

const SCHEMA: &str = "
    CREATE TABLE users (id bigint PRIMARY KEY, name text NOT NULL UNIQUE);
    CREATE TABLE photos (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        user_id bigint NOT NULL REFERENCES users);
    CREATE TABLE likes (user_id bigint REFERENCES users, photo_id bigint REFERENCES photos,
        PRIMARY KEY (user_id, photo_id));
    INSERT INTO users SELECT n, n::text FROM generate_series(1, 2000) n;
    INSERT INTO photos (user_id) SELECT n FROM generate_series(1, 2000) n;
    INSERT INTO likes SELECT n, n FROM generate_series(1, 2000) n;
    VACUUM ANALYZE";

/// What the server counts of writes, and the next transaction's number.
async fn written(client: &Client) -> Vec<String> {
    let sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text,
            sum(n_tup_ins)::text, sum(n_tup_upd)::text, sum(n_tup_del)::text,
            (SELECT count(*)::text FROM pg_replication_slots), (SELECT count(*)::text FROM pg_class)
        FROM pg_stat_all_tables";
    let row = client.query_one(sql, &[]).await.unwrap();
    (0..row.len()).map(|at| row.get(at)).collect()
}

on_each_version! {
    /// No transaction of the assessment writes: none gets a number, no row and no object is new.
    async fn nothing_is_written(version) {
        let cluster = TestCluster::start(version, 1);
        let admin = cluster.superuser(0).await;
        admin.batch_execute("CREATE DATABASE base").await.unwrap();
        let url = cluster.server(0).superuser_url_of("base");
        let base = connect(&url).await;
        for statement in SCHEMA.split(';') {
            base.batch_execute(statement).await.unwrap();
        }
        admin.batch_execute("ALTER SYSTEM SET autovacuum = off; ").await.unwrap();
        admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        let before = written(&base).await;
        let report = assess(&url, &[]);
        assert_eq!(obstacles(&report), ["unique_without_key"]);
        assert_eq!(written(&base).await, before);
    }

    /// A role that may read nothing but catalogs gets a report, which names what is not known.
    async fn what_may_not_be_read_is_named(version) {
        let cluster = TestCluster::start(version, 1);
        let admin = cluster.superuser(0).await;
        admin.batch_execute("CREATE ROLE stranger LOGIN").await.unwrap();
        admin.batch_execute("CREATE DATABASE base").await.unwrap();
        let base = connect(&cluster.server(0).superuser_url_of("base")).await;
        for statement in SCHEMA.split(';') {
            base.batch_execute(statement).await.unwrap();
        }
        let url = format!("postgres://stranger@127.0.0.1:{}/base", cluster.server(0).port());
        let report = assess(&url, &[]);
        let found = obstacles(&report);
        assert!(found.contains(&"replication_refused".to_owned()), "{found:?}");
        assert!(found.contains(&"foreign_key_unverified".to_owned()), "{found:?}");
        let unknown = report["unknown"].to_string();
        for expected in ["the IDs of", "were not followed", "pg_stat_statements"] {
            assert!(unknown.contains(expected), "{expected}: {unknown}");
        }
    }

    /// A server without logical decoding and without slots.
    async fn a_server_that_cannot_be_followed(version) {
        let none = [("max_wal_senders", "0"), ("max_replication_slots", "0")];
        let settings = [&[("wal_level", "minimal")][..], &none].concat();
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let settings = settings.into_iter().map(owned).collect();
        let options = ServerOptions::default().settings(settings);
        let cluster = TestCluster::start_with(version, 1, options);
        let admin = cluster.superuser(0).await;
        admin.batch_execute("CREATE DATABASE base").await.unwrap();
        let url = cluster.server(0).superuser_url_of("base");
        let base = connect(&url).await;
        base.batch_execute("CREATE TABLE users (id bigint PRIMARY KEY)").await.unwrap();
        let found = obstacles(&assess(&url, &[]));
        assert_eq!(found, ["logical_decoding_off", "replication_refused", "replication_slots"]);
    }
}

/// Mistakes in the request end with 2, and name what is wrong; a password is not repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes() {
    let cluster = TestCluster::start(18, 1);
    let admin = cluster.superuser(0).await;
    admin.batch_execute("CREATE DATABASE base").await.unwrap();
    let url = cluster.server(0).superuser_url_of("base");
    let base = connect(&url).await;
    let (exit, _, stderr) = run(&url, &[]);
    assert_eq!(exit, 2);
    assert!(
        stderr.contains("there is no table for the key users.id"),
        "{stderr}"
    );
    base.batch_execute("CREATE TABLE users (number bigint)")
        .await
        .unwrap();
    base.batch_execute("CREATE SCHEMA more; CREATE TABLE more.users (id bigint)")
        .await
        .unwrap();
    let (exit, _, stderr) = run(&url, &[]);
    assert_eq!(exit, 2);
    assert!(
        stderr.contains("several schemas have a table for the key users.id: "),
        "{stderr}"
    );
    base.batch_execute("DROP SCHEMA more CASCADE")
        .await
        .unwrap();
    let (exit, _, stderr) = run(&url, &[]);
    assert_eq!(exit, 2);
    assert!(stderr.contains("table users has no column id"), "{stderr}");
    base.batch_execute(
        "ALTER TABLE users RENAME number TO id; ALTER TABLE users ADD PRIMARY KEY (id)",
    )
    .await
    .unwrap();
    let (exit, _, stderr) = run(&url, &["--statements", "/nowhere.log"]);
    assert_eq!(exit, 2);
    assert!(stderr.contains("/nowhere.log"), "{stderr}");
    let (exit, stdout, stderr) = run("postgres://app:hunter2@127.0.0.1:1/base", &["--json"]);
    assert_eq!(exit, 2);
    assert!(
        !stdout.contains("hunter2") && !stderr.contains("hunter2"),
        "{stderr}"
    );
}

/// The page has what the text has, and no name of a table is markup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_escapes_names() {
    let cluster = TestCluster::start(18, 1);
    let admin = cluster.superuser(0).await;
    admin.batch_execute("CREATE DATABASE base").await.unwrap();
    let url = cluster.server(0).superuser_url_of("base");
    let base = connect(&url).await;
    base.batch_execute(
        "CREATE TABLE users (id bigint PRIMARY KEY);
        CREATE TABLE \"<script>\" (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            user_id bigint NOT NULL REFERENCES users)",
    )
    .await
    .unwrap();
    let page = cluster.directory().join("report.html");
    let (exit, stdout, _) = run(&url, &["--html", page.to_str().unwrap()]);
    assert_eq!(exit, 1);
    assert!(
        stdout.contains("an import is possible after 1 change"),
        "{stdout}"
    );
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("id_integer") && page.contains("&lt;script&gt;"));
    assert!(!page.contains("<script"));
}

/// Hundreds of tables are read by as many queries as a few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tables() {
    let cluster = TestCluster::start(18, 1);
    let admin = cluster.superuser(0).await;
    admin.batch_execute("CREATE DATABASE base").await.unwrap();
    let url = cluster.server(0).superuser_url_of("base");
    let base = connect(&url).await;
    base.batch_execute("CREATE TABLE users (id bigint PRIMARY KEY)")
        .await
        .unwrap();
    // Few in a transaction: each holds a lock.
    for batch in 0..10 {
        base.batch_execute(&format!(
            "DO $$ BEGIN FOR n IN {batch} * 50 .. {batch} * 50 + 49 LOOP
                EXECUTE format('CREATE TABLE t%s (
                    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                    user_id bigint NOT NULL REFERENCES users)', n);
            END LOOP; END $$"
        ))
        .await
        .unwrap();
    }
    let report = assess(&url, &[]);
    assert_eq!(report["verdict"], "possible");
    let tables: &Vec<Value> = report["tables"].as_array().unwrap();
    assert_eq!(tables.len(), 501);
}
