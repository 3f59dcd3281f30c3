//! Movers: the host that lies is the source or the target.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::*;

/// An application that knows both servers, and writes to shard 0 wherever it is served.
pub(super) struct Application {
    stop: Arc<AtomicBool>,
    running: JoinHandle<Written>,
}

/// The names of users by their IDs, as they were acknowledged; where an answer was lost, what it
/// may be as well.
#[derive(Default)]
pub(super) struct Written {
    names: BTreeMap<i64, String>,
    doubt: Vec<String>,
}

impl Application {
    pub(super) async fn start(world: &World) -> Application {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, clients) = (stop.clone(), world.all().await);
        let running = tokio::spawn(async move {
            let mut written = Written::default();
            for client in &clients {
                client
                    .batch_execute("SET statement_timeout = '3s'")
                    .await
                    .unwrap();
            }
            let mut n = 0;
            while !stopped.load(Ordering::Relaxed) {
                for client in &clients {
                    n += 1;
                    write(client, n, &mut written).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            written
        });
        Application { stop, running }
    }

    pub(super) async fn stop(self) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        self.running.await.unwrap()
    }
}

/// A new user, or a new name for the last one, or one less.
async fn write(client: &Client, n: u64, written: &mut Written) {
    let last = written.names.keys().next_back().copied();
    let name = format!("n{n}");
    let done = match (n % 7, last) {
        (3 | 4, Some(id)) => {
            client
                .query(
                    "UPDATE shard_0000.users SET name = $1 WHERE id = $2 RETURNING id",
                    &[&name, &id],
                )
                .await
        }
        (6, Some(id)) => {
            client
                .query(
                    "DELETE FROM shard_0000.users WHERE id = $1 RETURNING -id",
                    &[&id],
                )
                .await
        }
        _ => {
            client
                .query(
                    "INSERT INTO shard_0000.users (name) VALUES ($1) RETURNING id",
                    &[&name],
                )
                .await
        }
    };
    match done {
        Ok(rows) => {
            let id: i64 = rows.first().expect("the last user is there").get(0);
            if id < 0 {
                drop(written.names.remove(&-id))
            } else {
                drop(written.names.insert(id, name))
            }
        }
        Err(error) if error.as_db_error().is_none() => written.doubt.push(name),
        // It was undone: this host does not serve the shard, or the shard is closed.
        Err(_) => {}
    }
}

impl World {
    /// Brings every open move to an end, while all hosts can be reached and none lies.
    pub(super) async fn end_moves(&self) {
        for verb in ["resume", "resume", "abort", "resume"] {
            let open = self.open_moves().await;
            for id in &open {
                let ran = self.run(&["moves", verb, id]).await;
                eprintln!("  {verb}: {} {}", ran.code(), ran.stderr.trim());
            }
            if open.is_empty() {
                return;
            }
        }
        panic!("moves stay open: {:?}", self.open_moves().await);
    }

    async fn open_moves(&self) -> Vec<String> {
        let sql = "SELECT DISTINCT move_id::text FROM pgshard.move WHERE phase NOT IN ('kept', \
            'completed', 'aborted')";
        let mut open = Vec::new();
        for client in self.all().await {
            open.extend(
                client
                    .query(sql, &[])
                    .await
                    .unwrap()
                    .iter()
                    .map(|row| row.get::<_, String>(0)),
            );
        }
        open.sort();
        open.dedup();
        open
    }

    /// Drops old copies, so that the shard may go back.
    pub(super) async fn complete_all(&self) {
        let sql = "SELECT DISTINCT move_id::text FROM pgshard.move WHERE phase = 'kept'";
        for client in self.all().await {
            for row in client.query(sql, &[]).await.unwrap() {
                self.run(&["moves", "complete", row.get(0), "--yes", "--unaudited"])
                    .await;
            }
        }
        self.run(&["moves", "gc", "--yes"]).await;
    }

    /// Checks that shard 0 has what was acknowledged to its application, and the cluster is intact.
    /// Then it is empty again.
    pub(super) async fn has(&self, written: Written, story: &str) {
        let Written { names, doubt } = written;
        self.audit_places().await;
        let host = self.servers.app(self.host_of(0)).await;
        let rows = host
            .query(
                "SELECT id, name FROM shard_0000.users WHERE name LIKE 'n%'",
                &[],
            )
            .await
            .unwrap();
        let there: BTreeMap<i64, String> =
            rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let differ = |(id, name): &(&i64, &String)| there.get(id) != Some(name) && doubt.is_empty();
        let lost: Vec<_> = names.iter().filter(differ).collect();
        let strange: Vec<_> = there
            .iter()
            .filter(|(id, name)| !names.contains_key(id) && !doubt.contains(name))
            .collect();
        assert!(
            lost.is_empty() && strange.is_empty(),
            "lost {lost:?}, strange {strange:?}\n{story}"
        );
        assert!(!names.is_empty(), "somebody wrote something\n{story}");
        host.batch_execute("TRUNCATE shard_0000.users CASCADE")
            .await
            .unwrap();
        self.complete_all().await;
        let checked = self.run(&["check"]).await;
        assert_eq!(checked.code(), 0, "{}\n{story}", checked.stdout);
    }
}

impl Enemy {
    /// Moves shard 0 to where it is not, with a lie; ends the move without one; and finds every
    /// row.
    async fn moves(&self, mode: &str, lie: Lie) {
        let application = Application::start(&self.world).await;
        let to = format!("db{}", 2 - self.world.host_of(0));
        let ran = self
            .lied_to(&["move", "0", "--to", &to, "--mode", mode, "--yes"], lie)
            .await;
        self.world.end_moves().await;
        let written = application.stop().await;
        self.world
            .has(written, &format!("{}\n{}", ran.stdout, ran.stderr))
            .await;
    }
}

async fn lies(version: u32, mode: &str, few: Range<u64>) {
    let enemy = Enemy::new(version).await;
    // There and back, for the number of answers.
    let mut answers = [0; 2];
    for (count, to) in answers.iter_mut().zip(["db2", "db1"]) {
        *count = enemy
            .answers(&["move", "0", "--to", to, "--mode", mode, "--yes"])
            .await;
        enemy.world.complete_all().await;
    }
    eprintln!("{mode}: {answers:?}");
    for seed in seeds(few) {
        let from = enemy.world.host_of(0);
        enemy.moves(mode, lie(seed, answers[from])).await;
    }
}

on_each_version! {
    /// An honest host with answers that come in pieces, as a network may cut them: a query behind a
    /// statement that is on its way does not wait for ever.
    async fn answers_in_pieces(version) {
        let enemy = Enemy::new(version).await;
        enemy.liar.dawdle();
        enemy
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
        enemy.world.audit_places().await;
    }

    /// The shard is open while it is copied, so what changes comes by a stream.
    async fn online_moves_survive_false_answers(version) {
        lies(
            version,
            "online",
            u64::from(version)..u64::from(version) + 4,
        )
        .await;
    }

    /// The shard is closed while it is copied.
    async fn blocking_moves_survive_false_answers(version) {
        lies(
            version,
            "blocking",
            u64::from(version) + 100..u64::from(version) + 104,
        )
        .await;
    }
}
