//! The application's writers, while a database is changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::support::{TestCluster, connect};

/// Connections that write until they are stopped. None ever waits for a lock for a second.
pub(crate) struct Application {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Counts>>,
    /// Rows that were added, and not deleted.
    pub(crate) likes: Arc<AtomicI64>,
}

/// What the writers have done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) done: u64,
    pub(crate) deadlocks: u64,
    /// What took longest.
    pub(crate) longest: Duration,
}

/// How long a connection is used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    Always,
    /// Another takes its place after this time.
    Renewed(Duration),
}

impl Application {
    pub(crate) async fn start(cluster: &TestCluster, writers: usize) -> Application {
        Application::start_with(cluster, writers, Use::Always).await
    }

    pub(crate) async fn start_with(
        cluster: &TestCluster,
        writers: usize,
        connections: Use,
    ) -> Application {
        let port = cluster.server(0).port();
        let (stop, likes) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicI64::new(0)),
        );
        let mut tasks = Vec::new();
        for _ in 0..writers {
            let url = format!("postgres://writer@127.0.0.1:{port}/base");
            let writer = writer(&url).await;
            let (stop, likes) = (Arc::clone(&stop), Arc::clone(&likes));
            tasks.push(tokio::spawn(write(writer, url, connections, stop, likes)));
        }
        Application { stop, tasks, likes }
    }

    /// Ends the writers.
    pub(crate) async fn stop(self) -> Counts {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = Counts::default();
        for task in self.tasks {
            let counts = task.await.expect("no writer has failed");
            all.done += counts.done;
            all.deadlocks += counts.deadlocks;
            all.longest = all.longest.max(counts.longest);
        }
        all
    }
}

async fn writer(url: &str) -> Client {
    let writer = connect(url).await;
    let set = writer.batch_execute("SET lock_timeout = '1s'").await;
    set.unwrap();
    writer
}

async fn write(
    mut writer: Client,
    url: String,
    connections: Use,
    stop: Arc<AtomicBool>,
    likes: Arc<AtomicI64>,
) -> Counts {
    let mut counts = Counts::default();
    let mut since = Instant::now();
    while !stop.load(Ordering::SeqCst) {
        if let Use::Renewed(after) = connections
            && since.elapsed() > after
        {
            writer = self::writer(&url).await;
            since = Instant::now();
        }
        let (sql, added) = statements();
        let begun = Instant::now();
        let answer = writer.simple_query(&sql).await;
        counts.longest = counts.longest.max(begun.elapsed());
        match answer {
            Ok(messages) => {
                counts.done += 1;
                let rows = messages.iter().find_map(|message| match message {
                    tokio_postgres::SimpleQueryMessage::CommandComplete(rows) if *rows > 0 => {
                        Some(*rows)
                    }
                    _ => None,
                });
                let rows = i64::try_from(rows.unwrap_or(0)).unwrap();
                likes.fetch_add(added * rows, Ordering::SeqCst);
            }
            Err(error) => {
                // A row's parent may be gone by now, or two changes of keys meet.
                let code = error.code().cloned();
                let deadlock = code == Some(SqlState::T_R_DEADLOCK_DETECTED);
                let gone = code == Some(SqlState::FOREIGN_KEY_VIOLATION);
                assert!(deadlock || gone, "{error:?}: {sql}");
                counts.deadlocks += u64::from(deadlock);
                let _ = writer.batch_execute("ROLLBACK").await;
            }
        }
    }
    counts
}

/// Statements, and by how many likes each row of the first that changes any changes their number.
fn statements() -> (String, i64) {
    let (album, photo) = (fastrand::u32(1..=100), fastrand::u32(1..=1000));
    let (user, other) = (fastrand::u32(1..=20), fastrand::u32(1..=1000));
    match fastrand::u32(0..12) {
        0..=3 => (
            // What every application has: a row, and a count of such rows in its parent.
            format!(
                "BEGIN; INSERT INTO likes (photo_id) VALUES ({photo});
                UPDATE photos SET likes = likes + 1 WHERE id = {photo}; COMMIT"
            ),
            1,
        ),
        4 => (
            format!(
                "BEGIN; INSERT INTO photos (album_id) VALUES ({album});
                UPDATE albums SET photos = photos + 1 WHERE id = {album}; COMMIT"
            ),
            0,
        ),
        5 | 6 => (
            format!("UPDATE albums SET user_id = {user} WHERE id = {album}"),
            0,
        ),
        7 => (
            format!("UPDATE photos SET album_id = {album} WHERE id = {photo}"),
            0,
        ),
        8 => (
            format!(
                "UPDATE likes SET photo_id = {other} WHERE id =
                    (SELECT id FROM likes WHERE photo_id = {photo} LIMIT 1)"
            ),
            0,
        ),
        9 => (
            format!(
                "DELETE FROM likes WHERE id =
                    (SELECT id FROM likes WHERE photo_id = {photo} LIMIT 1)"
            ),
            -1,
        ),
        10 => (
            format!("INSERT INTO views VALUES ({photo}, {other} + 10) ON CONFLICT DO NOTHING"),
            0,
        ),
        _ => (
            format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED; INSERT INTO likes (photo_id)
                VALUES ({photo}), ({other}); UPDATE albums SET user_id = {user} WHERE id = {album};
                COMMIT"
            ),
            1,
        ),
    }
}
