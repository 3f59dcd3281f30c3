//! Runs that are killed, taken back in between, or have to wait.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use super::application::Application;
use super::{database, differ, dump, keys, killed_at_step, report, spawned};
use crate::support::TestCluster;

on_each_version! {
    /// The application writes, keys change at random from several connections, and the command is
    /// killed in each of its steps.
    async fn writers_never_wait_and_no_row_is_wrong(version) {
        let cluster = TestCluster::start(version, 1);
        let (url, base) = database(&cluster).await;
        let application = Application::start(&cluster, 4).await;
        let likes = std::sync::Arc::clone(&application.likes);
        let mut at = 0;
        let killed = tokio::task::spawn_blocking({
            let url = url.clone();
            move || {
                // Steps that are done are left out: the first that is left is killed, often.
                while killed_at_step(&url, fastrand::usize(0..2)) && at < 60 {
                    at += 1;
                }
                at
            }
        });
        let killed = killed.await.unwrap();
        let (exit, done) = tokio::task::spawn_blocking({
            let url = url.clone();
            move || report(&url, &[])
        }).await.unwrap();
        assert_eq!(exit, 0, "{done}");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let counts = application.stop().await;
        assert!(killed > 8, "{killed} runs were killed");
        assert!(counts.done > 500, "{counts:?}");
        assert!(counts.deadlocks * 10 < counts.done, "{counts:?}");
        assert_eq!(differ(&base).await, 0, "{counts:?}");
        let rows: i64 = base.query_one("SELECT count(*) FROM likes", &[]).await.unwrap().get(0);
        assert_eq!(rows, 3_000 + likes.load(std::sync::atomic::Ordering::SeqCst));
        let (exit, check) = report(&url, &["--check"]);
        assert_eq!(exit, 0, "{check}");
    }

    /// Killed in each step, what was done is taken back, and the schema is that of before.
    async fn each_step_can_be_taken_back(version) {
        let cluster = TestCluster::start(version, 1);
        let (url, base) = database(&cluster).await;
        let before = dump(version, &url);
        let mut at = 0;
        while killed_at_step(&url, at) {
            // Rows that are not filled yet are no wrong rows.
            let (exit, checked) = report(&url, &["--check"]);
            assert_ne!(exit, 6, "step {at}: {checked}");
            assert!(!checked.to_string().contains("delete them"), "step {at}: {checked}");
            if at % 3 == 0 {
                // The undo is killed, too, and done again.
                let mut undo = spawned(&url, &["--undo"]);
                std::thread::sleep(Duration::from_millis(fastrand::u64(5..80)));
                undo.kill().unwrap();
                undo.wait().unwrap();
            }
            let (exit, undone) = report(&url, &["--undo"]);
            assert_eq!(exit, 0, "step {at}: {undone}");
            assert_eq!(dump(version, &url), before, "step {at}");
            at += 1;
        }
        assert!(at > 15, "{at} steps");
        assert_eq!(differ(&base).await, 0);
        let (exit, undone) = report(&url, &["--undo", "--table", "photos"]);
        assert_eq!(exit, 0, "{undone}");
        // Those that have their key from it go with it.
        let tables = undone["tables"].to_string();
        assert_eq!(tables, r#"["likes","views","photos"]"#);
        let (exit, _) = report(&url, &["--undo"]);
        assert_eq!(exit, 0);
        assert_eq!(dump(version, &url), before);
    }

    /// A transaction that has read the tables stays open: the command waits, and names it; writers
    /// do not wait.
    async fn a_reader_holds_up_the_command_only(version) {
        let cluster = TestCluster::start(version, 1);
        let (url, base) = database(&cluster).await;
        let reader = crate::support::connect(&url).await;
        reader.batch_execute("BEGIN; SELECT FROM likes LIMIT 1; SELECT FROM photos LIMIT 1")
            .await
            .unwrap();
        let application = Application::start(&cluster, 3).await;
        let mut child = spawned(&url, &[]);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let seen = tokio::task::spawn_blocking(move || {
            let mut lines = lines.map_while(Result::ok);
            let blocked = lines.by_ref().find(|line| line.contains("\"blocked\""));
            (blocked.expect("it is held up"), lines)
        });
        let (blocked, rest) = seen.await.unwrap();
        assert!(blocked.contains("SELECT FROM photos LIMIT ?"), "{blocked}");
        tokio::time::sleep(Duration::from_secs(4)).await;
        reader.batch_execute("COMMIT").await.unwrap();
        let ended = tokio::task::spawn_blocking(move || {
            let last = rest.last();
            (child.wait().unwrap(), last)
        });
        let (status, last) = ended.await.unwrap();
        assert!(status.success(), "{last:?}");
        let counts = application.stop().await;
        assert!(counts.done > 100, "{counts:?}");
        assert_eq!(differ(&base).await, 0);
    }

    /// An index waits for each transaction with an older snapshot, whatever it reads: such a one is
    /// named, and waited for no longer than a step may take. The next run continues.
    async fn a_snapshot_that_an_index_waits_for_is_named(version) {
        let cluster = TestCluster::start(version, 1);
        let (url, base) = database(&cluster).await;
        let reader = crate::support::connect(&url).await;
        reader
            .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_am LIMIT 1")
            .await
            .unwrap();
        let (exit, _, stderr) = keys(&url, &["--max-wait-s", "1"]);
        assert_eq!(exit, 8, "{stderr}");
        assert!(stderr.contains("SELECT FROM pg_am LIMIT ?"), "{stderr}");
        assert!(stderr.contains("build the index"), "{stderr}");
        reader.batch_execute("COMMIT").await.unwrap();
        // A prepared transaction has no session.
        reader
            .batch_execute(
                "BEGIN; UPDATE albums SET photos = photos WHERE id = 1; PREPARE TRANSACTION 'one'",
            )
            .await
            .unwrap();
        let (exit, _, stderr) = keys(&url, &["--max-wait-s", "1"]);
        assert_eq!(exit, 8, "{stderr}");
        assert!(stderr.contains("PREPARE TRANSACTION 'one'"), "{stderr}");
        reader.batch_execute("ROLLBACK PREPARED 'one'").await.unwrap();
        let (exit, _, stderr) = keys(&url, &[]);
        assert_eq!(exit, 0, "{stderr}");
        assert_eq!(differ(&base).await, 0);
        let invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid";
        let invalid: i64 = base.query_one(invalid, &[]).await.unwrap().get(0);
        assert_eq!(invalid, 0);
    }
}
