//! The move of one large shard, compared with tools that copy a schema of a database without
//! writers.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::BytesMut;
use futures_util::future::try_join_all;
use futures_util::{SinkExt, TryStreamExt};
use pgshard::mover::{Event, Observer, Phase};

use crate::Arguments;
use crate::bed::{Bed, connect, phase, shard};
use crate::busy::busy_seconds;
use crate::numbers::Times;

/// Five tables, with keys, indexes and a foreign key.
const TABLES: &str = "
CREATE TABLE {shard}.users (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), name text NOT NULL,
    email text NOT NULL UNIQUE,
    made_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE {shard}.photos (id bigint PRIMARY KEY DEFAULT {shard}.next_id(),
    user_id bigint NOT NULL REFERENCES {shard}.users,
    title text NOT NULL, place text, made_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON {shard}.photos (user_id, id);
CREATE INDEX ON {shard}.photos (made_at);
CREATE TABLE {shard}.comments (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), photo_id bigint \
NOT NULL,
    user_id bigint NOT NULL,
    body text NOT NULL);
CREATE INDEX ON {shard}.comments (photo_id);
CREATE TABLE {shard}.likes (photo_id bigint, user_id bigint, made_at timestamptz NOT NULL DEFAULT \
now(),
    PRIMARY KEY (photo_id, user_id));
CREATE TABLE {shard}.events (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), made_at timestamptz \
NOT NULL,
    data jsonb NOT NULL);
CREATE INDEX ON {shard}.events (made_at);";

/// Rows by table for a megabyte, and how to make them of `g`.
const FILL: [(&str, f64, &str); 5] = [
    (
        "users",
        390.0,
        "(id, name, email) SELECT g << 10, 'user number ' || g, md5(g::text) || \
        '@example.org'",
    ),
    (
        "photos",
        780.0,
        "(id, user_id, title, place, made_at) SELECT g << 10, (1 + g % USERS) << 10, \
            repeat(md5(g::text), 5),
            md5((g / 7)::text), '2025-01-01'::timestamptz + g * interval '13 s'",
    ),
    (
        "comments",
        1000.0,
        "(id, photo_id, user_id, body) SELECT g << 10, (g * 7919 % 100000) << 10, g % 1000, \
            repeat(md5(g::text), 4)",
    ),
    (
        "likes",
        1500.0,
        "(photo_id, user_id) SELECT (g * 31 % 500000) << 10, g",
    ),
    (
        "events",
        480.0,
        "(id, made_at, data) SELECT g << 10, '2025-01-01'::timestamptz + g * interval '17 s',
            jsonb_build_object('kind', 'view', 'path', '/photos/' || md5(g::text), 'agent', \
            repeat('x', 100), 'n', g)",
    ),
];

/// The size of a block that the copy by hand forwards.
const BLOCK_BYTES: usize = 64 * 1024;

/// Tables at a time, of each of the tools.
const JOBS: &str = "4";

/// Until the target serves and the shard is kept.
const MOVE: &str = "pgshard move";

/// What the mover's time is made of.
const PHASES: [&str; 6] = ["copy", "keys", "catch_up", "indexes", "verify", "pause"];

/// What something took of the clock, and of all processors.
#[derive(Clone, Copy)]
struct Taken {
    seconds: f64,
    busy: f64,
}

/// A time that runs.
#[derive(Clone, Copy)]
struct Began {
    at: Instant,
    busy: f64,
}

impl Began {
    fn now() -> Began {
        Began {
            at: Instant::now(),
            busy: busy_seconds(),
        }
    }

    fn until(self, end: Began) -> Taken {
        Taken {
            seconds: (end.at - self.at).as_secs_f64(),
            busy: end.busy - self.busy,
        }
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8.1} s, processors {:5.1} s", self.seconds, self.busy)
    }
}

pub(crate) async fn run(arguments: &Arguments) {
    let bed = Bed::new(arguments, 2, TABLES, 512).await;
    fill(&bed, arguments.size).await;
    println!(
        "\nlarge: a shard of {:.2} GB with its indexes in {} tables, {} runs",
        size(&bed).await,
        FILL.len(),
        arguments.runs
    );
    let mut takens: BTreeMap<&str, Vec<Taken>> = BTreeMap::new();
    let mut parts: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for run in 1..=arguments.runs {
        let source = (run as usize - 1) % 2;
        if run <= 2 {
            // The first to fill a server pays for WAL files and pages of the file system that the
            // others find there.
            dump_pipe(&bed, arguments, source)
                .await
                .unwrap_or_else(|error| panic!("pg_dump | pg_restore: {error}"));
        }
        let mut note = |name, taken: Result<Taken, String>| match taken {
            Ok(taken) => {
                println!("  run {run}: {name:<30} {taken}");
                takens.entry(name).or_default().push(taken);
            }
            Err(why) => println!("  run {run}: {name:<30} left out: {why}"),
        };
        note(
            "pg_dump -Fd -j, pg_restore -j",
            dump_folder(&bed, arguments, source).await,
        );
        note(
            "pg_dump -Fc | pg_restore",
            dump_pipe(&bed, arguments, source).await,
        );
        note("pgcopydb clone", copydb(&bed, arguments, source).await);
        let (copied, hashed) = by_hand(&bed, arguments, source)
            .await
            .unwrap_or_else(|error| panic!("by hand: {error}"));
        note("by hand: rows, keys, indexes", Ok(copied));
        note("by hand: each row hashed twice", Ok(hashed));
        let (taken, audit) = pgshard(&bed, source, &mut parts).await;
        note(MOVE, Ok(taken));
        note("its audit, once it serves", Ok(audit));
    }
    let middle = |times: Vec<f64>| Times::of(times).median();
    let medians: BTreeMap<&str, Taken> = takens
        .into_iter()
        .map(|(name, takens)| {
            let seconds = middle(takens.iter().map(|taken| taken.seconds).collect());
            (
                name,
                Taken {
                    seconds,
                    busy: middle(takens.iter().map(|taken| taken.busy).collect()),
                },
            )
        })
        .collect();
    let Taken {
        seconds: ours,
        busy,
    } = medians[MOVE];
    for (name, median) in &medians {
        let ratios = (ours / median.seconds, busy / median.busy);
        println!(
            "  median: {name:<30} {median}   {MOVE} / it: {:.2}, its processors {:.2}",
            ratios.0, ratios.1
        );
    }
    let split: BTreeMap<&str, f64> = parts
        .into_iter()
        .map(|(name, times)| (name, Times::of(times).median() / 1e3))
        .collect();
    let named = |name: &str| split.get(name).copied().unwrap_or(0.0);
    let words: Vec<String> = PHASES
        .iter()
        .map(|name| format!("{name} {:.1}", named(name)))
        .collect();
    let rest = ours - split.values().sum::<f64>();
    println!(
        "  seconds of the move, median: {}, all else {rest:.1}",
        words.join(", ")
    );
    println!(
        "  without the verification, which no other has: {:.1} s",
        ours - named("verify")
    );
}

async fn fill(bed: &Bed, size: u32) {
    let rows = |share: f64| ((share * f64::from(size)) as i64).max(1);
    let users = rows(FILL[0].1);
    // The users first, to whom the photos refer.
    for tables in [&FILL[..1], &FILL[1..]] {
        let filled = tables.iter().map(|(table, share, values)| async move {
            let client = bed.superuser(0).await;
            let (values, rows) = (values.replace("USERS", &users.to_string()), rows(*share));
            // Every user that a photo refers to is there, so foreign keys need no check.
            let sql = format!(
                "SET session_replication_role = replica;
                 INSERT INTO shard_0000.{table} {values} FROM generate_series(1::bigint, {rows}) \
                 AS g"
            );
            client
                .batch_execute(&sql)
                .await
                .unwrap_or_else(|error| panic!("{table}: {error}"));
        });
        futures_util::future::join_all(filled).await;
    }
    bed.settle().await;
}

/// In GB.
async fn size(bed: &Bed) -> f64 {
    let sql = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relkind = 'r' \
               AND relnamespace = 'shard_0000'::regnamespace";
    let bytes: i64 = bed
        .superuser(0)
        .await
        .query_one(sql, &[])
        .await
        .expect("a size")
        .get(0);
    bytes as f64 / f64::from(1 << 30)
}

/// The time until the shard is kept, and that of the audit, which the application does not wait
/// for.
async fn pgshard(
    bed: &Bed,
    source: usize,
    parts: &mut BTreeMap<&'static str, Vec<f64>>,
) -> (Taken, Taken) {
    bed.settle().await;
    let kept = Arc::new(OnceLock::new());
    let note = Arc::clone(&kept);
    let observer = Observer::new(move |event| {
        if let Event::Reached {
            phase: Phase::Kept, ..
        } = event
        {
            note.get_or_init(Began::now);
        }
    });
    let began = Began::now();
    let (report, entries) = bed.go_observed(vec![shard(0)], 1 - source, observer).await;
    let ended = Began::now();
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    let kept = *kept.get().expect("it was kept");
    for entry in &entries {
        for name in PHASES {
            // The time of the verification has that of the indexes in it.
            let within = if name == "verify" {
                phase(entry, "indexes").unwrap_or(0.0)
            } else {
                0.0
            };
            parts
                .entry(name)
                .or_default()
                .extend(phase(entry, name).map(|ms| ms - within));
        }
    }
    bed.complete(report.id).await;
    (began.until(kept), kept.until(ended))
}

/// An empty database on the other host. Returns the URL of the shard's host, and its own.
async fn database(bed: &Bed, source: usize) -> (String, String) {
    bed.settle().await;
    let client = bed.superuser(1 - source).await;
    client
        .batch_execute("DROP DATABASE IF EXISTS copy")
        .await
        .expect("a database is dropped");
    client
        .batch_execute("CREATE DATABASE copy TEMPLATE template0")
        .await
        .expect("a database is made");
    let servers = bed.cluster.servers();
    let url = servers[1 - source].superuser_url();
    let (server, _) = url.rsplit_once('/').expect("a URL ends with a database");
    (servers[source].superuser_url(), format!("{server}/copy"))
}

async fn drop_database(bed: &Bed, source: usize) {
    let client = bed.superuser(1 - source).await;
    client
        .batch_execute("DROP DATABASE copy")
        .await
        .expect("a database is dropped");
}

async fn dump_folder(bed: &Bed, arguments: &Arguments, source: usize) -> Result<Taken, String> {
    let (from, to) = database(bed, source).await;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let dump = folder.path().join("dump");
    let began = Began::now();
    let mut command = Command::new(arguments.binaries.program("pg_dump"));
    command
        .args([
            "-Fd",
            "-j",
            JOBS,
            "-Z0",
            "-n",
            "shard_0000",
            "-d",
            &from,
            "-f",
        ])
        .arg(&dump);
    finish(command)?;
    let mut command = Command::new(arguments.binaries.program("pg_restore"));
    command.args(["-j", JOBS, "-d", &to]).arg(&dump);
    finish(command)?;
    let took = began.until(Began::now());
    drop_database(bed, source).await;
    Ok(took)
}

async fn dump_pipe(bed: &Bed, arguments: &Arguments, source: usize) -> Result<Taken, String> {
    let (from, to) = database(bed, source).await;
    let began = Began::now();
    let mut dump = Command::new(arguments.binaries.program("pg_dump"))
        .args(["-Fc", "-Z0", "-n", "shard_0000", "-d", &from])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut restore = Command::new(arguments.binaries.program("pg_restore"));
    restore
        .args(["-d", &to])
        .stdin(dump.stdout.take().expect("it was asked for"));
    finish(restore)?;
    let dumped = tokio::task::block_in_place(|| dump.wait()).map_err(|error| error.to_string())?;
    assert!(dumped.success(), "pg_dump: {dumped}");
    let took = began.until(Began::now());
    drop_database(bed, source).await;
    Ok(took)
}

/// What no tool can do without that copies by statements and compares: the rows of each table by a
/// binary COPY from server to server, its keys and indexes, and then a hash of each row on both
/// sides, by the statement that is the shortest. There is no stream, no snapshot that others share,
/// and no statistics.
async fn by_hand(
    bed: &Bed,
    arguments: &Arguments,
    source: usize,
) -> Result<(Taken, Taken), String> {
    let (from, to) = database(bed, source).await;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let schema = folder.path().join("schema");
    let restore = |section: &str| {
        let mut command = Command::new(arguments.binaries.program("pg_restore"));
        command.args(["-j", JOBS, section, "-d", &to]).arg(&schema);
        finish(command)
    };
    let began = Began::now();
    let mut command = Command::new(arguments.binaries.program("pg_dump"));
    command
        .args(["-Fc", "-s", "-n", "shard_0000", "-d", &from, "-f"])
        .arg(&schema);
    finish(command)?;
    restore("--section=pre-data")?;
    try_join_all(FILL.map(|(table, ..)| copy(&from, &to, table)))
        .await
        .map_err(|error| error.to_string())?;
    restore("--section=post-data")?;
    let copied = began.until(Began::now());
    let began = Began::now();
    let sides = [&from, &to];
    let hashes = FILL
        .iter()
        .flat_map(|(table, ..)| sides.map(|url| hash(url, table)));
    try_join_all(hashes)
        .await
        .map_err(|error| error.to_string())?;
    let hashed = began.until(Began::now());
    drop_database(bed, source).await;
    Ok((copied, hashed))
}

/// Copies a table as the mover does, a few messages at a time.
async fn copy(from: &str, to: &str, table: &str) -> Result<(), tokio_postgres::Error> {
    let (from, to) = tokio::join!(connect(from), connect(to));
    let rows = from
        .copy_out(&format!(
            "COPY shard_0000.{table} TO STDOUT (FORMAT binary)"
        ))
        .await?;
    let sink = to
        .copy_in(&format!(
            "COPY shard_0000.{table} FROM STDIN (FORMAT binary)"
        ))
        .await?;
    let (mut rows, mut sink) = (std::pin::pin!(rows), std::pin::pin!(sink));
    let mut block = BytesMut::new();
    while let Some(row) = rows.try_next().await? {
        block.extend_from_slice(&row);
        if block.len() >= BLOCK_BYTES {
            sink.send(block.split().freeze()).await?;
        }
    }
    sink.send(block.freeze()).await?;
    sink.finish().await.map(drop)
}

/// Adds up hashes of the rows of a table. The mover's own hash is stricter: this one calls 1.0 and
/// 1.00 the same.
async fn hash(url: &str, table: &str) -> Result<(), tokio_postgres::Error> {
    let sql = format!("SELECT sum(hash_record_extended(r, 0)) FROM shard_0000.{table} AS r");
    connect(url).await.query_one(&sql, &[]).await.map(drop)
}

async fn copydb(bed: &Bed, arguments: &Arguments, source: usize) -> Result<Taken, String> {
    if Command::new("pgcopydb").arg("--version").output().is_err() {
        return Err("pgcopydb is not installed".to_owned());
    }
    let (from, to) = database(bed, source).await;
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let filters = folder.path().join("filters.ini");
    let sql = "SELECT nspname::text FROM pg_namespace WHERE nspname ~ '^(pgshard|shard_)' AND \
        nspname <> 'shard_0000'";
    let others = bed
        .superuser(source)
        .await
        .query(sql, &[])
        .await
        .map_err(|error| error.to_string())?;
    let others: Vec<String> = others.iter().map(|row| row.get(0)).collect();
    std::fs::write(
        &filters,
        format!("[exclude-schema]\n{}\n", others.join("\n")),
    )
    .map_err(|error| error.to_string())?;
    let mut command = Command::new("pgcopydb");
    command.args([
        "clone",
        "--table-jobs",
        JOBS,
        "--index-jobs",
        JOBS,
        "--skip-large-objects",
        "--skip-extensions",
    ]);
    // It restores the rights on schemas that it leaves out.
    command.args(["--no-acl", "--no-owner"]);
    command
        .args(["--source", &from, "--target", &to, "--filters"])
        .arg(&filters);
    command.arg("--dir").arg(folder.path().join("work"));
    // It runs pg_dump and pg_restore, which may not be older than the server.
    let folder_of = |program: &Path| {
        program
            .parent()
            .map(|folder| folder.display().to_string())
            .unwrap_or_default()
    };
    let path = std::env::var("PATH").unwrap_or_default();
    command.env(
        "PATH",
        format!(
            "{}:{path}",
            folder_of(&arguments.binaries.program("pg_dump"))
        ),
    );
    let began = Began::now();
    let outcome = finish(command);
    let took = began.until(Began::now());
    drop_database(bed, source).await;
    outcome.map(|()| took)
}

fn finish(mut command: Command) -> Result<(), String> {
    // When it fails, pgcopydb ends all processes of its group.
    command.process_group(0);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let done =
        tokio::task::block_in_place(|| command.output()).map_err(|error| error.to_string())?;
    if done.status.success() {
        return Ok(());
    }
    // The first errors; later ones only report that something failed.
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let errors = || {
        said.lines()
            .filter(|line| line.to_lowercase().contains("error"))
    };
    let first = if errors().next().is_some() {
        errors().take(4).collect()
    } else {
        said.lines().collect::<Vec<_>>()
    };
    Err(format!("{}: {}", done.status, first.join(" / ")))
}
