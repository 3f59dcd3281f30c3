//! The pause of a move under writers, as the mover measures it and as writers see it, and what the
//! others notice.

use std::time::{Duration, Instant};

use pgshard::ShardId;
use pgshard::mover::Entry;

use crate::Arguments;
use crate::bed::{Bed, PAUSE, phase, shard};
use crate::floor::{Chain, Floor};
use crate::numbers::Times;
use crate::writers::{Call, TABLES, Writers, count, fill};

/// Shards that go there and back, together; as many on either host stay where they are.
const MOVING: u16 = 10;

const SHARDS: u16 = 4 * MOVING;

/// Between two waves nothing moves: what calls take then, those during the waves are compared with.
const REST: Duration = Duration::from_millis(1500);

const BOUNDS: [f64; 9] = [5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0];

/// A time in which the moving shards went from one host to the other, or in which nothing moved.
struct Window {
    source: usize,
    moving: bool,
    began: Instant,
    ended: Instant,
}

impl Window {
    fn has(&self, began: Instant) -> bool {
        self.began <= began && began < self.ended
    }
}

pub(crate) async fn run(arguments: &Arguments) {
    let bed = Bed::new(arguments, SHARDS.into(), TABLES, 256).await;
    let moving: Vec<ShardId> = (0..MOVING).map(shard).collect();
    fill(&bed, 0, moving.iter().copied(), arguments.rows).await;
    bed.settle().await;
    println!(
        "\npause: {} moves of shards with 2 tables of {} rows, {MOVING} at a go, under {} writes/s \
            on {SHARDS} shards",
        arguments.moves, arguments.rows, arguments.rate
    );
    let writers = Writers::start(&bed, arguments.rate).await;
    let floor = Floor::start(&bed).await;
    // Connections are opened and statements prepared.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let began = Instant::now();
    let mut windows = Vec::new();
    let (mut entries, mut failed) = (Vec::new(), Vec::new());
    let mut source = 0;
    while entries.len() + failed.len() < arguments.moves as usize {
        let calm = Instant::now();
        tokio::time::sleep(REST).await;
        let start = Instant::now();
        windows.push(Window {
            source,
            moving: false,
            began: calm,
            ended: start,
        });
        let left = arguments.moves as usize - entries.len() - failed.len();
        let (report, journal) = bed
            .go(moving.iter().copied().take(left).collect(), 1 - source)
            .await;
        windows.push(Window {
            source,
            moving: true,
            began: start,
            ended: Instant::now(),
        });
        failed.extend(
            report
                .failed
                .iter()
                .map(|(shard, error)| format!("shard {shard}: {error}")),
        );
        entries.extend(journal);
        bed.complete(report.id).await;
        source = 1 - source;
        // What dropping the old copies leaves to do.
        tokio::time::sleep(Duration::from_millis(300)).await;
        if !failed.is_empty() {
            break;
        }
    }
    let lasted = began.elapsed();
    let chains = floor.stop().await;
    let notes = writers.stop().await;
    report(&entries, &failed, arguments);
    by_hand(&entries, &windows, &chains);
    waits(&bed, &entries, &windows, &notes.calls);
    let calls = notes
        .calls
        .iter()
        .filter(|call| call.began >= began)
        .count();
    let (inserts, updates) = count(&bed).await;
    println!(
        "  {calls} writes in {:.0} s ({:.0}/s), {} errors; lost: {} of {} inserts, {} of {} \
            updates",
        lasted.as_secs_f64(),
        calls as f64 / lasted.as_secs_f64(),
        notes.errors.len(),
        notes.inserts.saturating_sub(inserts),
        notes.inserts,
        notes.updates.saturating_sub(updates),
        notes.updates,
    );
    for error in notes.errors.iter().take(5) {
        println!("    {error}");
    }
    if (inserts, updates) != (notes.inserts, notes.updates) {
        println!("    there are {inserts} rows with {updates} updates");
    }
}

/// Prints the mover's numbers.
fn report(entries: &[Entry], failed: &[String], arguments: &Arguments) {
    let again = entries.iter().filter(|entry| entry.attempt > 1).count();
    println!(
        "  {} moves, {} failed, {again} of them fenced more than once",
        entries.len(),
        failed.len()
    );
    for failed in failed {
        println!("    {failed}");
    }
    for name in PAUSE {
        let times: Vec<f64> = entries
            .iter()
            .filter_map(|entry| phase(entry, name))
            .collect();
        match times.len() {
            0 => println!("  {name:<10} in no move"),
            _ => println!("  {name:<10} {}", Times::of(times).line()),
        }
    }
    let pauses = Times::of(
        entries
            .iter()
            .filter_map(|entry| phase(entry, "pause"))
            .collect(),
    );
    print!("{}", pauses.histogram(&BOUNDS));
    if arguments.phases {
        for entry in entries {
            println!("    {} {}", entry.shard, entry.timings);
        }
    }
}

/// Prints the pause next to its round trips and flushes by hand.
fn by_hand(entries: &[Entry], windows: &[Window], chains: &[Chain]) {
    let pause = Times::of(
        entries
            .iter()
            .filter_map(|entry| phase(entry, "pause"))
            .collect(),
    )
    .median();
    println!("  its round trips and flushes by hand, at the same time and while nothing moved");
    for (what, moving) in [("with", true), ("without", false)] {
        let of = windows.iter().filter(|window| window.moving == moving);
        let took = of.flat_map(|window| {
            chains
                .iter()
                .filter(|one| window.has(one.began))
                .map(|one| one.took)
        });
        let took = Times::of_durations(took);
        println!(
            "  {what:<10} {}   the pause is {:.1} × p50",
            took.line(),
            pause / took.median()
        );
    }
}

/// Prints the writers' waits.
fn waits(bed: &Bed, entries: &[Entry], windows: &[Window], calls: &[Call]) {
    let moved: Vec<ShardId> = {
        let mut moved: Vec<ShardId> = entries.iter().map(|entry| entry.shard).collect();
        moved.sort_unstable();
        moved.dedup();
        moved
    };
    let mut longest = Vec::new();
    for window in windows.iter().filter(|window| window.moving) {
        for shard in &moved {
            let of_it = calls
                .iter()
                .filter(|call| call.shard == *shard && window.has(call.began));
            longest.extend(of_it.map(|call| call.took).max());
        }
    }
    println!("  the longest wait of a writer, by move");
    println!("  {:<10} {}", "", Times::of_durations(longest).line());
    // Shards that stay, on the host that the others leave.
    let map = bed.config.map.as_ref().expect("the config keeps its map");
    let calls_of = |moving: bool| {
        let took = windows
            .iter()
            .filter(|window| window.moving == moving)
            .flat_map(|window| {
                let source = bed.host(window.source);
                calls
                    .iter()
                    .filter(|call| {
                        window.has(call.began)
                            && !moved.contains(&call.shard)
                            && map.host(call.shard) == Some(&source)
                    })
                    .map(|call| call.took)
                    .collect::<Vec<_>>()
            });
        Times::of_durations(took)
    };
    let (without, with) = (calls_of(false), calls_of(true));
    println!(
        "  writers of other shards of the source ({} and {} writes)",
        without.len(),
        with.len()
    );
    println!("  {:<10} {}", "without", without.line());
    println!("  {:<10} {}", "with", with.line());
    println!(
        "  {:<10} p50 {:.2} ×, p99 {:.2} ×",
        "ratio",
        with.median() / without.median(),
        with.at(0.99) / without.at(0.99)
    );
}
