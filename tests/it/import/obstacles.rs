//! Schemas with one obstacle each: that one is reported, and nothing else.

use std::path::Path;

use tokio_postgres::Client;

use super::{assess, database, decision, obstacles, run};
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

    /// What an engineer chooses is decided, and what the choice answers is no obstacle.
    async fn choices_answer_obstacles(version) {
        let cluster = TestCluster::start(version, 1);
        let (url, base) = database(&cluster).await;
        run_all(&base, &cases()[0].1).await;
        run_all(&base, "
            CREATE TABLE follows (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                follower_id bigint NOT NULL REFERENCES users,
                followed_id bigint NOT NULL REFERENCES users);
            CREATE TABLE albums (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                user_id bigint NOT NULL REFERENCES users);
            CREATE TABLE placed (photo_id bigint REFERENCES photos,
                album_id bigint REFERENCES albums, PRIMARY KEY (photo_id, album_id));
            CREATE TABLE tags (id bigint PRIMARY KEY, tagged_type text, tagged_id bigint);
            CREATE TABLE notes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                whose bigint NOT NULL);
            CREATE TABLE plans (id bigint PRIMARY KEY, note_id bigint REFERENCES notes)
            ").await;
        let report = assess(&url, &[]);
        let before = obstacles(&report);
        assert_eq!(before, ["two_owners", "several_paths", "polymorphic"]);
        assert_eq!(decision(&report, "notes"), "stays");
        let report = assess(&url, &[
            "--by", "follows.followed_id", "--by", "placed.album_id", "--by", "notes.whose",
            "--stays", "tags", "--reference", "jobs", "--stays", "public.plans",
        ]);
        for (table, expected) in [
            ("follows", "key_column"),
            ("placed", "path_to_key"),
            ("notes", "key_column"),
            ("tags", "stays"),
            ("jobs", "reference"),
            ("plans", "stays"),
        ] {
            assert_eq!(decision(&report, table), expected, "{table}");
        }
        let mut tables = report["tables"].as_array().unwrap().iter();
        let follows = tables.find(|one| one["table"] == "follows").unwrap();
        assert_eq!(follows["key_column"], "followed_id");
        let after = obstacles(&report);
        assert_eq!(after, ["foreign_key_from_stays", "foreign_key_unverified"]);
    }

    /// Each table has a decision, and the way to the key is named.
    async fn each_table_has_a_decision(version) {
        let cluster = TestCluster::start(version, 1);
        let (url, base) = database(&cluster).await;
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

/// A choice that fits nothing ends with 2, and names what is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn choices_that_fit_nothing_are_refused() {
    let cluster = TestCluster::start(18, 1);
    let admin = cluster.superuser(0).await;
    admin.batch_execute("CREATE DATABASE base").await.unwrap();
    let url = cluster.server(0).superuser_url_of("base");
    run_all(&connect(&url).await, &cases()[0].1).await;
    for (args, expected) in [
        (&["--stays", "nothing"][..], "there is no table nothing"),
        (&["--stays", "users"], "users is the key's own table"),
        (&["--by", "users.id"], "users.id is the key's own table"),
        (&["--by", "photos.what"], "table photos has no column what"),
        (
            &["--by", "photos.title"],
            "photos.title does not lead to the key",
        ),
        (&["--by", "jobs.note"], "jobs.note does not lead to the key"),
        (
            &["--stays", "jobs", "--reference", "jobs"],
            "jobs: there is another choice for this table",
        ),
        (&["--reference", "a.b.c"], "write TABLE or SCHEMA.TABLE"),
    ] {
        let (exit, _, stderr) = run(&url, args);
        assert_eq!(exit, 2, "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
}
