//! Schemas with one obstacle each: that one is reported, and nothing else.

use std::path::Path;

use tokio_postgres::Client;

use super::{assess, decision, obstacles};
use crate::support::{TestCluster, connect};

/// The schemas: a heading for each, `--- added two_owners`, and its statements.
fn cases() -> Vec<(String, String)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/import/obstacles.sql");
    let text = std::fs::read_to_string(file).expect("the schemas are there");
    let parts = text.split("--- ").skip(1);
    parts
        .map(|part| {
            let (heading, sql) = part.split_once('\n').expect("a heading is a line");
            (heading.trim().to_owned(), sql.to_owned())
        })
        .collect()
}

/// Runs the statements of a schema.
async fn run_all(database: &Client, sql: &str) {
    if let Err(error) = database.batch_execute(sql).await {
        panic!("{sql}: {error:?}");
    }
}

on_each_version! {
    /// Each schema's obstacle is reported, and nothing else.
    async fn one_at_a_time(version) {
        let cluster = TestCluster::start(version, 1);
        let server = cluster.server(0);
        let admin = cluster.superuser(0).await;
        let role = "CREATE ROLE assessor LOGIN REPLICATION
            IN ROLE pg_read_all_data, pg_read_all_stats";
        admin.batch_execute(role).await.unwrap();
        let mut wrong = Vec::new();
        let mut base = String::new();
        for (number, (heading, sql)) in cases().into_iter().enumerate() {
            let (part, obstacle) = heading.split_once(' ').unwrap_or((&heading, "none"));
            let name = format!("case_{number}");
            admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
            let database = connect(&server.superuser_url_of(&name)).await;
            if part == "added" {
                run_all(&database, &base).await;
            }
            run_all(&database, &sql).await;
            if part == "base" {
                base = sql.clone();
            }
            let url = format!("postgres://assessor@127.0.0.1:{}/{name}", server.port());
            let report = assess(&url, &[]);
            let found = obstacles(&report);
            let expected: Vec<&str> = obstacle.split(' ').filter(|one| *one != "none").collect();
            if found != expected {
                let all = &report["obstacles"];
                wrong.push(format!("{sql}\n    expected {expected:?}, found {found:?}: {all}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Each table has a decision, and the way to the key is named.
    async fn decisions(version) {
        let cluster = TestCluster::start(version, 1);
        let admin = cluster.superuser(0).await;
        admin.batch_execute("CREATE DATABASE base").await.unwrap();
        let url = cluster.server(0).superuser_url_of("base");
        let base = connect(&url).await;
        run_all(&base, &cases()[0].1).await;
        base.batch_execute("
            ALTER TABLE photos ADD country text REFERENCES countries;
            CREATE TABLE likes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                photo_id bigint NOT NULL REFERENCES photos);
            CREATE TABLE tags (id bigint PRIMARY KEY, tagged_type text, tagged_id bigint)
            ").await.unwrap();
        let report = assess(&url, &[]);
        for (table, expected) in [
            ("users", "key"),
            ("photos", "key_column"),
            ("likes", "path_to_key"),
            ("countries", "reference"),
            ("jobs", "stays"),
            ("tags", "impossible"),
        ] {
            assert_eq!(decision(&report, table), expected, "{table}");
        }
        let mut tables = report["tables"].as_array().unwrap().iter();
        let likes = tables.find(|one| one["table"] == "likes").unwrap();
        assert_eq!(likes["reason"], "photo_id → photos.user_id");
        assert_eq!(likes["path"][0]["foreign_key"], "likes_photo_id_fkey");
    }
}
