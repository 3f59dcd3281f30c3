//! Many small shards: in one move, and in one each.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use pgshard::ShardId;

use crate::Arguments;
use crate::bed::{Bed, phase, shard};
use crate::numbers::Times;
use crate::writers::{TABLES, Writers, count, fill};

/// In each table of each shard.
const ROWS: u32 = 50;

/// Writes a second, so that there is something to decode.
const RATE: u32 = 200;

pub(crate) async fn run(arguments: &Arguments) {
    let shards = arguments.shards;
    let bed = Bed::new(arguments, 2 * shards, TABLES, 256).await;
    let all: Vec<ShardId> = (0..shards as u16).map(shard).collect();
    fill(&bed, 0, all.iter().copied(), ROWS).await;
    bed.settle().await;
    println!("\nwave: {shards} shards with 2 tables of {ROWS} rows, under {RATE} writes/s");
    let writers = Writers::start(&bed, RATE).await;
    let slots = Slots::watch(&bed).await;
    let began = Instant::now();
    let (report, entries) = bed.go(all.clone(), 1).await;
    let together = began.elapsed();
    let most = slots.most();
    println!(
        "  in one move:  {:8.1} s, {:6.0} ms a shard, {} slots at most, {} failed",
        together.as_secs_f64(),
        together.as_secs_f64() * 1e3 / f64::from(shards),
        most,
        report.failed.len()
    );
    for (shard, error) in report.failed.iter().take(3) {
        println!("    shard {shard}: {error}");
    }
    let pauses = Times::of(
        entries
            .iter()
            .filter_map(|entry| phase(entry, "pause"))
            .collect(),
    );
    println!("  pause         {}", pauses.line());
    let sample: Vec<ShardId> = all
        .iter()
        .copied()
        .take(arguments.sample as usize)
        .collect();
    let began = Instant::now();
    for shard in &sample {
        let (report, _) = bed.go(vec![*shard], 0).await;
        assert!(report.failed.is_empty(), "{:?}", report.failed);
    }
    let apart = began
        .elapsed()
        .mul_f64(f64::from(shards) / sample.len() as f64);
    println!(
        "  one by one:   {:8.1} s (of {}, scaled), {:6.0} ms a shard",
        apart.as_secs_f64(),
        sample.len(),
        apart.as_secs_f64() * 1e3 / f64::from(shards)
    );
    println!(
        "  one by one / in one move: {:.2}",
        apart.as_secs_f64() / together.as_secs_f64()
    );
    let notes = writers.stop().await;
    let (inserts, updates) = count(&bed).await;
    println!(
        "  {} errors of writers; lost: {} of {} inserts, {} of {} updates",
        notes.errors.len(),
        notes.inserts.saturating_sub(inserts),
        notes.inserts,
        notes.updates.saturating_sub(updates),
        notes.updates
    );
    for error in notes.errors.iter().take(5) {
        println!("    {error}");
    }
}

/// Looks how many slots there are on the source.
struct Slots {
    most: Arc<AtomicI64>,
    task: tokio::task::JoinHandle<()>,
}

impl Slots {
    async fn watch(bed: &Bed) -> Slots {
        let client = bed.app(0).await;
        let most = Arc::new(AtomicI64::new(0));
        let seen = most.clone();
        let task = tokio::spawn(async move {
            while let Ok(row) = client
                .query_one("SELECT count(*) FROM pg_replication_slots", &[])
                .await
            {
                seen.fetch_max(row.get(0), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Slots { most, task }
    }

    fn most(self) -> i64 {
        self.task.abort();
        self.most.load(Ordering::Relaxed)
    }
}
