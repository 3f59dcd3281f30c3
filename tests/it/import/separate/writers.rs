//! The application's writers meanwhile.

use std::io::{BufRead, BufReader};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{database, report, spawned, writer};
use crate::import::keys::application::{Application, Use};
use crate::import::keys::{self, differ};
use crate::support::{TestCluster, connect};

on_each_version! {
    /// Writers renew their sessions, and use names without a schema; one session of before stays,
    /// then one reads in a transaction that stays open. No writer waits, fails or loses a row.
    async fn writers_notice_nothing(version) {
        let cluster = TestCluster::start(version, 1);
        let url = database(&cluster).await;
        let (exit, _, stderr) = keys::keys(&url, &[]);
        assert_eq!(exit, 0, "{stderr}");
        let renewed = Use::Renewed(Duration::from_millis(700));
        let application = Application::start_with(&cluster, 3, renewed).await;
        let likes = std::sync::Arc::clone(&application.likes);
        let old = writer(&cluster).await;
        old.batch_execute("SELECT FROM users WHERE id = 1").await.unwrap();

        let mut child = spawned(&url, &[]);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        // Only the session that is not renewed remains.
        let waits = lines.by_ref().find(|line| line.contains("\"old_sessions\""));
        assert!(waits.expect("it waits").contains("\"writer\""));
        tokio::time::sleep(Duration::from_secs(3)).await;
        let reader = connect(&url).await;
        reader.batch_execute("BEGIN; SELECT FROM likes LIMIT 1; SELECT FROM photos LIMIT 1")
            .await
            .unwrap();
        old.batch_execute("UPDATE users SET name = 'x' WHERE id = 1").await.unwrap();
        drop(old);
        let blocked = lines.by_ref().find(|line| line.contains("\"blocked\""));
        let blocked = blocked.expect("the reader holds it up");
        assert!(blocked.contains("SELECT FROM photos LIMIT ?"), "{blocked}");
        tokio::time::sleep(Duration::from_secs(4)).await;
        // What the reader sees has not moved.
        let name = "SELECT 'photos'::regclass::text, relnamespace::regnamespace::text
            FROM pg_class WHERE oid = 'photos'::regclass";
        assert_eq!(reader.query_one(name, &[]).await.unwrap().get::<_, String>(1), "public");
        reader.batch_execute("COMMIT").await.unwrap();
        let last = lines.last();
        assert!(child.wait().unwrap().success(), "{last:?}");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let counts = application.stop().await;
        eprintln!("{counts:?}");
        assert!(counts.done > 300, "{counts:?}");
        assert!(counts.longest < Duration::from_secs(1), "{counts:?}");
        assert_eq!(differ(&reader).await, 0);
        let rows = "SELECT count(*) FROM likes";
        let rows: i64 = reader.query_one(rows, &[]).await.unwrap().get(0);
        assert_eq!(rows, 3_000 + likes.load(Ordering::SeqCst));
        drop(reader);
        let (exit, check) = report(&url, &["--check"]);
        assert_eq!(exit, 0, "{check}");

        // Back, under writers that need not be renewed: both paths lead to the tables.
        let application = Application::start(&cluster, 3).await;
        let (exit, undone) = report(&url, &["--undo"]);
        assert_eq!(exit, 0, "{undone}");
        let counts = application.stop().await;
        eprintln!("{counts:?}");
        assert!(counts.longest < Duration::from_secs(1), "{counts:?}");
        let base = connect(&url).await;
        assert_eq!(differ(&base).await, 0);
    }
}
