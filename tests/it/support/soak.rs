//! Online moves in great number: the same shards back and forth, and very many small shards in one
//! move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use super::world::World;
use super::writers::Writers;

/// Moves two shards to the other host and back this many times, under load. Returns the pauses in
/// milliseconds, sorted.
pub(crate) async fn ping_pong(versions: &[u32], moves: usize) -> Vec<f64> {
    let world = World::new(versions, 4).await;
    let writers = Writers::start_all(&world, 3).await;
    let mut pauses = Vec::new();
    for number in 0..moves {
        let to = if number % 2 == 0 { "db2" } else { "db1" };
        let ran = world
            .run(&["move", "0-1", "--to", to, "--mode", "online", "--yes"])
            .await;
        let last = ran.ended(0).last();
        let by_shard = last["pause_ms"]
            .as_object()
            .unwrap_or_else(|| panic!("{last}"));
        pauses.extend(by_shard.values().filter_map(serde_json::Value::as_f64));
        let id = ran.id();
        // Old copies would only fill the disk.
        world
            .run(&["moves", "complete", &id, "--yes"])
            .await
            .ended(0);
        world.audit_streams(Some(&id)).await;
    }
    let notes = writers.stop().await;
    world.audit(notes.flawless()).await;
    pauses.sort_by(f64::total_cmp);
    pauses
}

/// The load of a wave on its source.
#[derive(Debug)]
pub(crate) struct Wave {
    pub(crate) took: Duration,
    /// The highest number of the mover's connections at the same time, on the source.
    pub(crate) backends: i64,
    /// The highest number of slots at the same time.
    pub(crate) slots: i64,
}

/// Moves this many small shards from one host to another in one move.
pub(crate) async fn wave(versions: &[u32], shards: u16) -> Wave {
    let world = World::new(versions, shards * 2).await;
    let writers = Writers::start(&world, 2).await;
    let stop = Arc::new(AtomicBool::new(false));
    let (backends, slots) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let look = {
        let (db, stop, backends, slots) = (
            world.servers.superuser(0).await,
            stop.clone(),
            backends.clone(),
            slots.clone(),
        );
        tokio::spawn(async move {
            let sql = "SELECT (SELECT count(*) FROM pg_stat_activity
                    WHERE application_name ~ '^pgshard (mover|[0-9a-f-]{36}/)'),
                (SELECT count(*) FROM pg_replication_slots)";
            while !stop.load(Ordering::Relaxed) {
                if let Ok(row) = db.query_one(sql, &[]).await {
                    backends.fetch_max(row.get(0), Ordering::Relaxed);
                    slots.fetch_max(row.get(1), Ordering::Relaxed);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    };
    let begun = Instant::now();
    let list = format!("0-{}", shards - 1);
    let child = world
        .command(
            &["move", &list, "--to", "db2", "--mode", "online", "--yes"],
            &[],
        )
        .spawn()
        .unwrap();
    let output = child.wait_with_output().await.unwrap();
    let took = begun.elapsed();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    stop.store(true, Ordering::Relaxed);
    look.await.unwrap();
    let notes = writers.stop().await;
    world.audit(notes.flawless()).await;
    Wave {
        took,
        backends: backends.load(Ordering::Relaxed),
        slots: slots.load(Ordering::Relaxed),
    }
}
