//! Statements: of `pg_stat_statements`, and of files.

use pgshard::dev::ServerOptions;
use serde_json::Value;

use super::{assess, obstacles};
use crate::support::{TestCluster, connect};

const SCHEMA: &str = "
    CREATE TABLE users (id bigint PRIMARY KEY, name text NOT NULL);
    CREATE TABLE photos (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        user_id bigint NOT NULL REFERENCES users, title text);
    CREATE TABLE likes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        photo_id bigint NOT NULL REFERENCES photos);
    CREATE TABLE jobs (id bigint PRIMARY KEY, note text);
    CREATE TABLE countries (code bigint PRIMARY KEY);
    ALTER TABLE photos ADD country bigint REFERENCES countries";

/// Statements, and their class.
const CLASSES: &[(&str, &str)] = &[
    ("by_key", "SELECT * FROM photos WHERE user_id = 1"),
    (
        "by_key",
        "SELECT p.* FROM photos AS p JOIN users u ON u.id = p.user_id WHERE u.id = 1",
    ),
    (
        "by_key",
        "SELECT * FROM photos WHERE user_id IN (1, 2) AND title = 'a'",
    ),
    (
        "by_key",
        "SELECT * FROM photos WHERE user_id = ANY('{1,2}'::bigint[])",
    ),
    (
        "by_key",
        "SELECT * FROM photos WHERE (user_id = 1 AND title = 'a') OR (user_id = 1 AND title = 'b')",
    ),
    (
        "by_key",
        "UPDATE photos SET title = 'a' WHERE id = 1 AND user_id = 2",
    ),
    ("by_key", "DELETE FROM photos WHERE user_id = 1"),
    (
        "by_key",
        "INSERT INTO photos (user_id, title) VALUES (1, 'a') RETURNING id",
    ),
    (
        "by_key",
        "WITH p AS (SELECT * FROM photos WHERE user_id = 1) SELECT count(*) FROM p",
    ),
    (
        "by_key",
        "SELECT 1 FROM users u WHERE id = 1 AND EXISTS (SELECT 1 FROM photos WHERE user_id = u.id)",
    ),
    (
        "by_key",
        "SELECT * FROM photos p JOIN countries c ON c.code = p.country WHERE p.user_id = 1",
    ),
    ("by_id", "SELECT * FROM photos WHERE id = 1"),
    ("by_id", "SELECT * FROM likes WHERE photo_id = 1"),
    ("by_id", "INSERT INTO likes (photo_id) VALUES (1)"),
    ("without_key", "SELECT * FROM photos WHERE title = 'a'"),
    ("without_key", "SELECT count(*) FROM photos"),
    (
        "without_key",
        "SELECT * FROM photos WHERE user_id = 1 OR title = 'a'",
    ),
    ("without_key", "SELECT * FROM photos WHERE NOT user_id = 1"),
    ("without_key", "SELECT * FROM photos WHERE user_id > 1"),
    (
        "without_key",
        "SELECT * FROM photos p JOIN users u ON u.id = p.user_id",
    ),
    ("without_key", "SELECT * FROM users WHERE name = 'a'"),
    ("without_key", "INSERT INTO users (name) VALUES ('a')"),
    ("without_key", "DELETE FROM photos"),
    (
        "without_key",
        "SELECT * FROM photos WHERE user_id = 1 UNION SELECT * FROM photos WHERE title = 'a'",
    ),
    (
        "across",
        "SELECT * FROM photos p JOIN jobs j ON j.id = p.id WHERE p.user_id = 1",
    ),
    ("other", "SELECT * FROM jobs WHERE id = 1"),
    ("other", "SELECT 1"),
    ("other", "BEGIN"),
    ("other", "CREATE INDEX ON photos (title)"),
    ("unreadable", "SELECT FROM photos WHERE )"),
    ("other", "SELECT FROM jobs WHERE )"),
    ("unreadable", "EXECUTE s1(1)"),
];

/// The classes with at least one statement.
fn classes(report: &Value) -> Vec<(String, u64)> {
    let shares = report["statements"]["shares"].as_array().expect("a list");
    shares
        .iter()
        .map(|one| {
            (
                one["class"].as_str().unwrap().to_owned(),
                one["calls"].as_u64().unwrap(),
            )
        })
        .collect()
}

/// Each statement is judged alone, from a file with that line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_has_a_class() {
    let cluster = TestCluster::start(18, 1);
    let admin = cluster.superuser(0).await;
    admin.batch_execute("CREATE DATABASE base").await.unwrap();
    let url = cluster.server(0).superuser_url_of("base");
    connect(&url).await.batch_execute(SCHEMA).await.unwrap();
    let mut wrong = Vec::new();
    for (class, statement) in CLASSES {
        let file = cluster.write("statements.sql", statement);
        let report = assess(&url, &["--statements", file.to_str().unwrap()]);
        let found = classes(&report);
        if found != [((*class).to_owned(), 1)] {
            wrong.push(format!("{statement}: {class}, not {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

on_each_version! {
    /// The extension's statements are read, in whatever schema it is.
    async fn of_the_extension(version) {
        let (name, value) = ("shared_preload_libraries", "pg_stat_statements");
        let settings = vec![(name.to_owned(), value.to_owned())];
        let options = ServerOptions::default().settings(settings);
        let cluster = TestCluster::start_with(version, 1, options);
        let admin = cluster.superuser(0).await;
        admin.batch_execute("CREATE DATABASE base").await.unwrap();
        let url = cluster.server(0).superuser_url_of("base");
        let base = connect(&url).await;
        base.batch_execute(SCHEMA).await.unwrap();
        base.batch_execute("CREATE SCHEMA \"Odd one\"").await.unwrap();
        base.batch_execute("CREATE EXTENSION pg_stat_statements SCHEMA \"Odd one\"")
            .await
            .unwrap();
        base.batch_execute("SELECT \"Odd one\".pg_stat_statements_reset()").await.unwrap();
        for key in 1..=3_i64 {
            base.query("SELECT title FROM photos WHERE user_id = $1", &[&key]).await.unwrap();
        }
        let unrouted = "SELECT title FROM public.photos WHERE title LIKE 'a%'";
        base.query(unrouted, &[]).await.unwrap();
        let report = assess(&url, &[]);
        let statements = &report["statements"];
        assert_eq!(statements["source"], "pg_stat_statements");
        assert_eq!(statements["by_time"], true);
        let found = classes(&report);
        assert!(found.contains(&("by_key".to_owned(), 3)), "{found:?}");
        assert!(found.contains(&("without_key".to_owned(), 1)), "{found:?}");
        assert_eq!(obstacles(&report), ["statements_without_key", "statements_with_schema"]);
        let listed = statements["without_key"].as_array().unwrap();
        assert!(listed[0]["statement"].as_str().unwrap().contains("LIKE $1"), "{listed:?}");
    }
}
