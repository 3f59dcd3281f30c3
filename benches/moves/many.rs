//! A shard with 500 tables and 2000 partitions: what it takes to plan its move, compared with
//! `pg_dump --schema-only`, and for how long the move closes it, compared with a shard with one
//! table.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Arguments;
use crate::bed::{Bed, PAUSE, phase, shard};
use crate::numbers::Times;

const TABLES: &str =
    "CREATE TABLE {shard}.users (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), name text);";

const PLAIN: u32 = 500;
const PARTITIONED: u32 = 20;
const PARTITIONS: u32 = 100;

/// Some at a time: the locks of one transaction are bounded.
const AT_ONCE: u32 = 100;

pub(crate) async fn run(arguments: &Arguments) {
    let bed = Bed::new(arguments, 4, TABLES, 256).await;
    fill(&bed).await;
    bed.settle().await;
    let (many, few) = (shard(0), shard(1));
    let partitions = PARTITIONED * PARTITIONS;
    println!(
        "\nmany: a shard with {PLAIN} tables and {partitions} partitions, {} runs",
        arguments.runs
    );
    let (mut plans, mut dumps, mut moves) = (Vec::new(), Vec::new(), Vec::new());
    let (mut pauses, mut small) = (Vec::new(), Vec::new());
    let mut phases: Vec<Vec<f64>> = vec![Vec::new(); PAUSE.len()];
    for run in 0..arguments.runs as usize {
        let source = run % 2;
        dumps.push(dump(&bed, arguments, source));
        let began = Instant::now();
        bed.plan(vec![many], 1 - source).await;
        plans.push(began.elapsed());
        for (one, paused) in [(few, &mut small), (many, &mut pauses)] {
            let began = Instant::now();
            let (report, entries) = bed.go(vec![one], 1 - source).await;
            assert!(report.failed.is_empty(), "{:?}", report.failed);
            paused.extend(entries.iter().filter_map(|entry| phase(entry, "pause")));
            if one == many {
                moves.push(began.elapsed());
                for (name, took) in PAUSE.iter().zip(&mut phases) {
                    took.extend(entries.iter().filter_map(|entry| phase(entry, name)));
                }
            }
            bed.complete(report.id).await;
        }
    }
    let (plans, dumps) = (Times::of_durations(plans), Times::of_durations(dumps));
    println!("  pg_dump --schema-only  {}", dumps.line());
    println!("  plan                   {}", plans.line());
    println!(
        "  plan / pg_dump         {:.2} ×",
        plans.median() / dumps.median()
    );
    println!(
        "  the whole move         {}",
        Times::of_durations(moves).line()
    );
    let (pauses, small) = (Times::of(pauses), Times::of(small));
    println!("  pause, one table       {}", small.line());
    println!("  pause                  {}", pauses.line());
    println!(
        "  pause / of one table   {:.2} ×",
        pauses.median() / small.median()
    );
    let words = PAUSE
        .iter()
        .zip(phases)
        .map(|(name, took)| format!("{name} {:.1}", Times::of(took).median()));
    let words: Vec<String> = words.collect();
    println!("  of it, medians in ms: {}", words.join(", "));
}

async fn fill(bed: &Bed) {
    let client = bed.app(0).await;
    client
        .batch_execute("SET search_path = shard_0000")
        .await
        .expect("a setting");
    for first in (1..=PLAIN).step_by(AT_ONCE as usize) {
        let sql = format!(
            "DO $$ BEGIN FOR n IN {first}..{} LOOP
                EXECUTE format('CREATE TABLE t%s (id bigint PRIMARY KEY, v text, at timestamptz \
                DEFAULT now())', n);
                EXECUTE format('INSERT INTO t%s SELECT g, ''v'' FROM generate_series(1, 3) g', n);
            END LOOP; END $$",
            first + AT_ONCE - 1
        );
        client.batch_execute(&sql).await.expect("tables are made");
    }
    for n in 1..=PARTITIONED {
        let sql = format!(
            "CREATE TABLE p{n} (id bigint, at int, v text, PRIMARY KEY (at, id)) PARTITION BY \
                RANGE (at);
             DO $$ BEGIN FOR n IN 1..{PARTITIONS} LOOP
                EXECUTE format('CREATE TABLE p{n}_%s PARTITION OF p{n} FOR VALUES FROM (%s) TO \
                (%s)', n, n, n + 1);
             END LOOP; END $$;
             INSERT INTO p{n} SELECT g, g, 'v' FROM generate_series(1, {PARTITIONS}) g"
        );
        client
            .batch_execute(&sql)
            .await
            .expect("partitions are made");
    }
}

fn dump(bed: &Bed, arguments: &Arguments, source: usize) -> Duration {
    let mut command = Command::new(arguments.binaries.program("pg_dump"));
    let url = bed.cluster.servers()[source].url();
    command
        .args(["--schema-only", "-n", "shard_0000", "-d", &url])
        .stdout(Stdio::null());
    let began = Instant::now();
    let done = tokio::task::block_in_place(|| command.status()).expect("pg_dump runs");
    assert!(done.success(), "pg_dump: {done}");
    began.elapsed()
}
