//! Applications that write all the time, and the rows that were acknowledged to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pgshard::Router;
use tokio::task::JoinHandle;

use super::support::World;

/// A row that was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    pub(crate) id: i64,
    pub(crate) shard: u16,
    /// The port of the server that took it.
    pub(crate) port: u16,
}

/// Tasks that write to every shard, by two routers.
pub(crate) struct Writers {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Vec<Noted>>>,
}

impl Writers {
    pub(crate) async fn start(world: &World, shards: u16) -> Writers {
        let (stop, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut tasks = Vec::new();
        for _ in 0..2 {
            let router = world.router().await;
            for shard in 0..shards {
                tasks.push(tokio::spawn(write(
                    router.clone(),
                    shard,
                    stop.clone(),
                    acknowledged.clone(),
                )));
            }
        }
        Writers {
            stop,
            acknowledged,
            tasks,
        }
    }

    /// Waits until `count` more rows are acknowledged.
    pub(crate) async fn more(&self, count: u64) {
        let (before, begun) = (self.acknowledged.load(Ordering::Relaxed), Instant::now());
        while self.acknowledged.load(Ordering::Relaxed) < before + count {
            assert!(
                begun.elapsed() < Duration::from_secs(90),
                "writes are acknowledged"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends them. The rows of each task are in the order in which they were acknowledged.
    pub(crate) async fn end(self) -> Vec<Vec<Noted>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.push(task.await.expect("a writer does not panic"));
        }
        all
    }
}

const INSERT: &str =
    "INSERT INTO {shard}.users (name) VALUES ('x') RETURNING id, inet_server_port()";

async fn write(
    router: Router,
    shard: u16,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
) -> Vec<Noted> {
    let mut rows = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        // A call that waits for a host that never comes back must not outlive the round.
        let call = tokio::time::timeout(
            Duration::from_secs(20),
            router.by_key(shard).query_one(INSERT, &[]),
        )
        .await;
        if let Ok(Ok(row)) = call {
            let port = u16::try_from(row.get::<_, i32>(1)).expect("a port is a small number");
            rows.push(Noted {
                id: row.get(0),
                shard,
                port,
            });
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    rows
}

/// What is wrong with the order in which servers have acknowledged rows. `later` has, for each
/// former primary, the server that took its place. An ID that came twice is wrong, too.
pub(crate) fn disorder(all: &[Vec<Noted>], later: &BTreeMap<u16, u16>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut ids = BTreeMap::new();
    for rows in all {
        let mut seen = Vec::new();
        for row in rows {
            if later
                .get(&row.port)
                .is_some_and(|later| seen.contains(later))
            {
                wrong.push(format!(
                    "{row:?} was acknowledged by a former primary after one by the later was"
                ));
            }
            seen.push(row.port);
            if let Some(other) = ids.insert(row.id, *row) {
                wrong.push(format!("one ID came twice: {row:?} and {other:?}"));
            }
        }
    }
    wrong
}
