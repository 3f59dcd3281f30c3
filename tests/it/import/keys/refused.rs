//! What is refused, with everything as it was; and rows without a key.

use super::{database, differ, dump, keys, report};
use crate::support::TestCluster;

on_each_version! {
    /// Each obstacle is named, with what to do about it, and nothing is changed.
    async fn obstacles_are_refused_by_name(version) {
        let cluster = TestCluster::start(version, 1);
        let (url, base) = database(&cluster).await;
        for (sql, args, expected) in [
            ("ALTER TABLE likes ADD COLUMN owner text",
                &["--column", "likes=owner"][..], "likes.owner: is a column already"),
            ("CREATE TABLE tags (photo_id bigint NOT NULL REFERENCES photos)",
                &[], "tags: has no primary key; add one"),
            ("CREATE TABLE visits (id bigint, photo_id bigint REFERENCES photos,
                PRIMARY KEY (id)) PARTITION BY HASH (id)", &[], "visits: is partitioned"),
            ("CREATE TABLE crops (id bigint PRIMARY KEY, photo_id bigint NOT NULL
                REFERENCES photos, first_id bigint NOT NULL REFERENCES photos)",
                &[], "crops: several ways lead to the key"),
            ("CREATE TABLE notes (id bigint PRIMARY KEY, like_id bigint REFERENCES likes);
                CREATE TABLE more_notes () INHERITS (notes)", &[], "notes: inherits"),
        ] {
            base.batch_execute(&format!("BEGIN; {sql}; COMMIT")).await.unwrap();
            let before = dump(version, &url);
            let (exit, _, stderr) = keys(&url, args);
            assert_eq!(exit, 4, "{stderr}");
            assert!(stderr.contains(expected), "{expected}: {stderr}");
            let (exit, _, stderr) = keys(&url, &[args, &["--plan"]].concat());
            assert_eq!(exit, 4, "{stderr}");
            assert_eq!(dump(version, &url), before);
            base.batch_execute(
                "DROP TABLE IF EXISTS tags, visits, crops, more_notes, notes;
                ALTER TABLE likes DROP COLUMN IF EXISTS owner",
            ).await.unwrap();
        }
        for args in [&["--table", "nothing"][..], &["--by", "users.id"], &["--table", "other"]] {
            base.batch_execute("CREATE TABLE IF NOT EXISTS other (id int PRIMARY KEY)")
                .await
                .unwrap();
            let (exit, _, stderr) = keys(&url, args);
            assert_eq!(exit, 2, "{stderr}");
        }
        base.batch_execute("DROP TABLE other").await.unwrap();

        // A role that may not keep triggers from firing.
        base.batch_execute(
            "CREATE ROLE owner LOGIN; GRANT CREATE ON DATABASE base TO owner;
            DO $$ DECLARE r record; BEGIN FOR r IN SELECT relname FROM pg_class WHERE relkind = 'r'
                AND relnamespace = 'public'::regnamespace LOOP
                EXECUTE format('ALTER TABLE %I OWNER TO owner', r.relname); END LOOP; END $$;
            GRANT ALL ON SCHEMA public TO owner",
        ).await.unwrap();
        let port = cluster.server(0).port();
        let owner = format!("postgres://owner@127.0.0.1:{port}/base");
        let (exit, _, stderr) = keys(&owner, &[]);
        assert_eq!(exit, 4, "{stderr}");
        assert!(stderr.contains("its triggers would fire"), "{stderr}");
        base.batch_execute("ALTER TABLE photos DISABLE TRIGGER changed").await.unwrap();
        let (exit, _, stderr) = keys(&owner, &[]);
        assert_eq!(exit, 0, "{stderr}");
        assert_eq!(differ(&base).await, 0);
        // Another choice than the one that was begun.
        let (exit, _, stderr) = keys(&owner, &["--column", "likes=owner"]);
        assert_eq!(exit, 4, "{stderr}");
        assert!(stderr.contains("has the key in user_id, by an earlier run"), "{stderr}");
    }

    /// A row that refers to nothing gets no key. The other tables are completed, and the table is
    /// once its rows are.
    async fn rows_without_a_key_are_counted(version) {
        let cluster = TestCluster::start(version, 1);
        let (url, base) = database(&cluster).await;
        base.batch_execute(
            "ALTER TABLE photos ALTER COLUMN album_id DROP NOT NULL;
            UPDATE photos SET album_id = NULL WHERE id IN (1, 2);
            INSERT INTO views VALUES (5000, 1)",
        ).await.unwrap();
        let before = dump(version, &url);
        let (exit, done) = report(&url, &[]);
        assert_eq!(exit, 8, "{done}");
        let counts = |report: &serde_json::Value| -> Vec<(String, u64)> {
            let tables = report["tables"].as_array().unwrap().iter();
            let without = tables.filter_map(|table| {
                let rows = table["rows_without_key"].as_u64().filter(|rows| *rows > 0)?;
                Some((table["table"].as_str().unwrap().to_owned(), rows))
            });
            without.collect()
        };
        let expected = [("photos", 2), ("likes", 6), ("views", 3)];
        assert_eq!(counts(&done), expected.map(|(table, rows)| (table.to_owned(), rows)));
        assert!(done.to_string().contains("let album_id refer to a row of albums"), "{done}");
        let (exit, check) = report(&url, &["--check"]);
        assert_eq!(exit, 1, "{check}");
        assert_eq!(counts(&check).len(), 3, "{check}");
        // The column follows when the row gets a parent.
        base.batch_execute(
            "UPDATE photos SET album_id = 3 WHERE album_id IS NULL;
            DELETE FROM views WHERE photo_id = 5000",
        ).await.unwrap();
        assert_eq!(differ(&base).await, 0);
        let (exit, done) = report(&url, &[]);
        assert_eq!(exit, 0, "{done}");
        let (exit, _) = report(&url, &["--undo"]);
        assert_eq!(exit, 0);
        assert_eq!(dump(version, &url), before);
    }
}
