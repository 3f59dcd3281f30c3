//! The assessment writes nothing, and repeats no password.

use pgshard::dev::ServerOptions;
use serde_json::Value;
use tokio_postgres::Client;

use super::{assess, database, obstacles, run};
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

/// What the server counts of writes, and the next transaction's number. A session reports what it
/// has written when it ends, at the latest, so none of an assessment is left.
async fn written(client: &Client) -> Vec<String> {
    let others = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    while client
        .query_one(others, &[])
        .await
        .unwrap()
        .get::<_, i64>(0)
        > 0
    {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    client
        .batch_execute("SELECT pg_stat_force_next_flush()")
        .await
        .unwrap();
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
        let off = vec![("autovacuum".to_owned(), "off".to_owned())];
        let options = ServerOptions::default().settings(off);
        let cluster = TestCluster::start_with(version, 1, options);
        let (url, base) = database(&cluster).await;
        for statement in SCHEMA.split(';') {
            base.batch_execute(statement).await.unwrap();
        }
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
        for expected in ["the IDs of", "was not followed", "pg_stat_statements"] {
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
        let (url, base) = database(&cluster).await;
        base.batch_execute("CREATE TABLE users (id bigint PRIMARY KEY)").await.unwrap();
        let found = obstacles(&assess(&url, &[]));
        assert_eq!(found, ["logical_decoding_off", "replication_refused", "replication_slots"]);
    }
}

/// Without statistics, pages are sampled: a key with many rows is found, and the rows are
/// estimated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_without_statistics_are_sampled() {
    let off = vec![("autovacuum".to_owned(), "off".to_owned())];
    let options = ServerOptions::default().settings(off);
    let cluster = TestCluster::start_with(18, 1, options);
    let (url, base) = database(&cluster).await;
    base.batch_execute(
        "CREATE TABLE users (id bigint PRIMARY KEY);
        CREATE TABLE photos (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            user_id bigint NOT NULL REFERENCES users);
        CREATE TABLE visits (id bigint GENERATED ALWAYS AS IDENTITY, at int NOT NULL,
            user_id bigint REFERENCES users, PRIMARY KEY (id, at)) PARTITION BY LIST (at);
        CREATE TABLE visits_1 PARTITION OF visits FOR VALUES IN (1);
        CREATE TABLE visits_2 PARTITION OF visits FOR VALUES IN (2);
        INSERT INTO users SELECT n FROM generate_series(1, 5000) n;
        INSERT INTO photos (user_id) SELECT CASE WHEN n % 2 = 0 THEN 7 ELSE n % 5000 + 1 END
            FROM generate_series(1, 20000) n;
        INSERT INTO visits (at, user_id) SELECT 1 + n % 2, CASE WHEN n % 4 > 0 THEN n END
            FROM generate_series(1, 4000) n",
    )
    .await
    .unwrap();
    let report = assess(&url, &[]);
    assert_eq!(obstacles(&report), ["nullable_key", "skew"]);
    let largest = &report["largest_keys"][0];
    assert_eq!(largest["key"], "7");
    let rows = largest["rows"].as_f64().unwrap();
    assert!((9_000.0..11_000.0).contains(&rows), "{largest}");
    let nulls = report["obstacles"][0]["objects"][0].to_string();
    assert!(nulls.contains("25.0 % of the rows have none"), "{nulls}");
    // Statistics of a tenth of the rows are no evidence about today's.
    base.batch_execute("DELETE FROM photos WHERE user_id = 7; ANALYZE photos")
        .await
        .unwrap();
    assert_eq!(obstacles(&assess(&url, &[])), ["nullable_key"]);
    base.batch_execute(
        "INSERT INTO photos (user_id) SELECT 9 FROM generate_series(1, 20000);
        SELECT pg_stat_force_next_flush()",
    )
    .await
    .unwrap();
    let report = assess(&url, &[]);
    assert_eq!(
        report["largest_keys"][0]["key"], "9",
        "{}",
        report["largest_keys"]
    );
}

/// A transaction that was prepared and not ended holds up a new slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_transactions_are_found() {
    let some = vec![("max_prepared_transactions".to_owned(), "4".to_owned())];
    let options = ServerOptions::default().settings(some);
    let cluster = TestCluster::start_with(18, 1, options);
    let (url, base) = database(&cluster).await;
    base.batch_execute("CREATE TABLE users (id bigint PRIMARY KEY)")
        .await
        .unwrap();
    for statement in [
        "BEGIN",
        "INSERT INTO users VALUES (1)",
        "PREPARE TRANSACTION 'left'",
    ] {
        base.batch_execute(statement).await.unwrap();
    }
    assert_eq!(obstacles(&assess(&url, &[])), ["prepared_transactions"]);
    base.batch_execute("ROLLBACK PREPARED 'left'")
        .await
        .unwrap();
    assert_eq!(obstacles(&assess(&url, &[])), Vec::<String>::new());
}

/// A database that refuses writes by default, as replicas for reports are set up, is assessed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_read_only_is_assessed() {
    let cluster = TestCluster::start(18, 1);
    let admin = cluster.superuser(0).await;
    admin.batch_execute("CREATE DATABASE base").await.unwrap();
    let url = cluster.server(0).superuser_url_of("base");
    connect(&url)
        .await
        .batch_execute(SCHEMA.split("VACUUM").next().unwrap())
        .await
        .unwrap();
    let read_only = "ALTER DATABASE base SET default_transaction_read_only = on";
    admin.batch_execute(read_only).await.unwrap();
    assert_eq!(obstacles(&assess(&url, &[])), ["unique_without_key"]);
}

/// A table that is locked is left out, and reported: the assessment waits for no lock for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_table_is_left_out() {
    let cluster = TestCluster::start(18, 1);
    let (url, base) = database(&cluster).await;
    for statement in SCHEMA.split(';') {
        base.batch_execute(statement).await.unwrap();
    }
    base.batch_execute("BEGIN; LOCK TABLE photos")
        .await
        .unwrap();
    let report = assess(&url, &[]);
    let unknown = report["unknown"].to_string();
    assert!(
        unknown.contains("the IDs of photos were not read"),
        "{unknown}"
    );
    assert!(
        unknown.contains("1 foreign key was not followed"),
        "{unknown}"
    );
}

/// A standby is assessed as the primary is; what only the primary knows is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_assessed() {
    let cluster = TestCluster::start(18, 2);
    let admin = cluster.superuser(0).await;
    admin.batch_execute("CREATE DATABASE base").await.unwrap();
    let primary = cluster.server(0).superuser_url_of("base");
    let base = connect(&primary).await;
    for statement in SCHEMA.split(';') {
        base.batch_execute(statement).await.unwrap();
    }
    cluster.make_standby(18, 1, 0);
    cluster.caught_up(1, 0).await;
    let of_primary = assess(&primary, &[]);
    let report = assess(&cluster.server(1).superuser_url_of("base"), &[]);
    assert_eq!(report["obstacles"], of_primary["obstacles"]);
    assert_eq!(report["tables"], of_primary["tables"]);
    let unknown = report["unknown"].to_string();
    assert!(unknown.contains("this is a standby"), "{unknown}");
    assert!(
        !of_primary["unknown"]
            .to_string()
            .contains("this is a standby")
    );
}

/// Mistakes in the request end with 2, and name what is wrong; a password is not repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_in_the_request_are_named() {
    let cluster = TestCluster::start(18, 1);
    let (url, base) = database(&cluster).await;
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
    let (url, base) = database(&cluster).await;
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
async fn many_tables_take_as_many_queries_as_few() {
    let cluster = TestCluster::start(18, 1);
    let (url, base) = database(&cluster).await;
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
