//! Random runs of `migrate up`: files of every kind, killed and interrupted at random, while a
//! shard moves and a second operator works.
//!
//! The oracle is a cluster that ran the same files undisturbed: every shard must have the same
//! definitions as its shards. The exit code of a run is compared with what the hosts have recorded.
//! At the end, sessions and everything that a killed run began must be gone.
//!
//! `PGSHARD_TEST_MATRIX=100` plays that many rounds; `PGSHARD_TEST_MATRIX_SEED=4711` begins with
//! that seed.

use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Ran, TABLES, World, lines};

const SHARDS: u16 = 6;

/// The first lines of files that do not run in a transaction in each shard.
const ALONE: &str = "-- pgshard: no-transaction\n";
const ONCE: &str = "-- pgshard: once-per-host\n";

/// A file of a random kind. The names of what it creates contain its number.
fn file(rng: &mut Rng, number: usize) -> (String, String) {
    let pause = format!("SELECT pg_catalog.pg_sleep(0.0{})", rng.u32(0..8));
    let sql = match rng.u32(0..9) {
        0 => format!("ALTER TABLE {{shard}}.photos ADD COLUMN c{number} text DEFAULT 'x'; {pause}"),
        1 => format!(
            "CREATE TABLE {{shard}}.t{number} (id bigint PRIMARY KEY DEFAULT {{shard}}.next_id(), \
                p bigint REFERENCES \
             {{shard}}.photos); {pause}; CREATE INDEX ON {{shard}}.t{number} (p)"
        ),
        2 => {
            format!(
                "CREATE FUNCTION {{shard}}.f{number}() RETURNS int LANGUAGE sql AS 'SELECT \
                    {{shard_id}}'; {pause}"
            )
        }
        3 => format!(
            "ALTER TABLE {{shard}}.users ADD COLUMN d{number} int; {pause}; UPDATE {{shard}}.users \
                SET d{number} = 1; \
             ALTER TABLE {{shard}}.users ADD CHECK (d{number} > 0)"
        ),
        4 => format!("{ALONE}CREATE INDEX CONCURRENTLY i{number} ON {{shard}}.photos (title, id)"),
        5 => format!(
            "{ALONE}CREATE UNIQUE INDEX CONCURRENTLY u{number} ON {{shard}}.photos (id, user_id)"
        ),
        6 => format!("{ALONE}VACUUM {{shard}}.photos"),
        7 => format!("{ONCE}CREATE TYPE public.m{number} AS ENUM ('a', 'b'); {pause}"),
        _ => format!(
            "{ONCE}CREATE FUNCTION public.g{number}() RETURNS int LANGUAGE sql AS 'SELECT \
                {number}'; {pause}"
        ),
    };
    (format!("{number:04}_random.sql"), sql)
}

/// What disturbs a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    None,
    Kill(u64),
    Interrupt(u64),
    /// A second `migrate up`, which begins this many milliseconds later.
    Second(u64),
    /// A move of this shard to the other host.
    Move(u16, &'static str),
}

fn fate(rng: &mut Rng) -> Fate {
    match rng.u32(0..6) {
        0 | 1 => Fate::Kill(rng.u64(30..700)),
        2 => Fate::Interrupt(rng.u64(30..500)),
        3 => Fate::Second(rng.u64(0..200)),
        4 => Fate::Move(
            rng.u16(0..SHARDS),
            if rng.bool() { "online" } else { "blocking" },
        ),
        _ => Fate::None,
    }
}

impl World {
    /// Runs `migrate up` together with its fate, and returns the exit codes of the runs that were
    /// not killed.
    async fn up_beside(&self, fate: Fate) -> Vec<Ran> {
        let up = ["migrate", "up", "--jobs", "2", "--patience-s", "20"];
        let run = self.command(&up, &[]).spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(run.id().unwrap()).unwrap()).unwrap();
        match fate {
            Fate::None => vec![Ran::of(run).await],
            Fate::Kill(after) | Fate::Interrupt(after) => {
                tokio::time::sleep(Duration::from_millis(after)).await;
                let signal = if matches!(fate, Fate::Kill(_)) {
                    Signal::KILL
                } else {
                    Signal::INT
                };
                // It may have ended already.
                let _ = kill_process(pid, signal);
                vec![Ran::of(run).await]
            }
            Fate::Second(after) => {
                let (first, second) = tokio::join!(Ran::of(run), async {
                    tokio::time::sleep(Duration::from_millis(after)).await;
                    self.run(&up).await
                });
                vec![first, second]
            }
            Fate::Move(shard, mode) => {
                let target = if self.host_of(shard) == 0 {
                    "db2"
                } else {
                    "db1"
                };
                let shard = shard.to_string();
                let args = [
                    "move",
                    &shard,
                    "--to",
                    target,
                    "--mode",
                    mode,
                    "--yes",
                    "--fence-attempts",
                    "200",
                ];
                let (first, moved) = tokio::join!(Ran::of(run), self.run(&args));
                // The definitions may be altered while the target is built, or an index may be half
                // built: the move names it, and nothing is lost.
                assert!(
                    [0, 1, 4, 5, 7].contains(&moved.code()),
                    "{}{}",
                    moved.stdout,
                    moved.stderr
                );
                if moved.code() == 7 {
                    self.run(&["moves", "resume", &moved.id(), "--yes"]).await;
                }
                vec![first]
            }
        }
    }

    /// The definitions of each shard, without its own name and number, on the host that serves it.
    async fn definitions(&self) -> Vec<(String, String)> {
        let sql = "SELECT line FROM (
                SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, \
                a.atttypmod) || ' '
                    || a.attnotnull || ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
                FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT \
                a.attisdropped
                LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
                WHERE c.relnamespace = to_regnamespace('SHARD') AND c.relkind IN ('r', 'S')
                UNION ALL SELECT pg_get_indexdef(indexrelid) || indisvalid FROM pg_index JOIN \
                pg_class c
                    ON c.oid = indexrelid WHERE c.relnamespace = to_regnamespace('SHARD')
                UNION ALL SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint
                    WHERE connamespace = to_regnamespace('SHARD')
                UNION ALL SELECT proname || md5(prosrc) FROM pg_proc
                    WHERE pronamespace = to_regnamespace('SHARD') AND proname ~ '^f[0-9]'
                UNION ALL SELECT 'once ' || proname FROM pg_proc WHERE pronamespace = \
                'public'::regnamespace
                UNION ALL SELECT 'once ' || typname FROM pg_type
                    WHERE typnamespace = 'public'::regnamespace AND typtype = 'e'
                UNION ALL SELECT 'has ' || name || checksum FROM pgshard.shard_migration WHERE \
                shard_id = NUMBER
                UNION ALL SELECT 'host has ' || name || checksum FROM pgshard.host_migration) AS \
                all_of_it (line)
            ORDER BY 1";
        let mut all = Vec::new();
        for client in self.all().await {
            let served =
                "SELECT shard_id || ' ' || schema_name FROM pgshard.shard WHERE state = 'serving'";
            for line in lines(&client, served).await.lines() {
                let (number, schema) = line.split_once(' ').unwrap();
                let made = lines(
                    &client,
                    &sql.replace("SHARD", schema).replace("NUMBER", number),
                )
                .await;
                // Each function contains its shard's number.
                let own = client
                    .query_one("SELECT md5('SELECT ' || $1::text)", &[&number])
                    .await
                    .unwrap();
                let own: String = own.get(0);
                all.push((
                    schema.to_owned(),
                    made.replace(schema, "SHARD").replace(&own, "OWN"),
                ));
            }
        }
        all
    }

    /// Waits until no server process works for a run that has ended.
    async fn nobody_at_work(&self) {
        let begun = Instant::now();
        for client in self.all().await {
            let sql = "SELECT pid || ' ' || state || ' ' || query FROM pg_stat_activity
                WHERE application_name LIKE 'pgshard migrate%'
                UNION ALL SELECT 'lock ' || objid FROM pg_locks WHERE locktype = 'advisory' AND \
                classid = 1885827944
                UNION ALL SELECT 'invalid ' || indexrelid::regclass FROM pg_index WHERE NOT \
                indisvalid
                UNION ALL SELECT 'attempt ' || shard_id FROM pgshard.migration_attempt JOIN \
                pgshard.shard
                    USING (shard_id) WHERE state = 'serving'";
            loop {
                let left = lines(&client, sql).await;
                if left.is_empty() {
                    break;
                }
                assert!(begun.elapsed() < Duration::from_secs(30), "{left}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// One round. If it panics, it prints the story; the same seed gives the same round.
async fn round(version: u32, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let files: Vec<(String, String)> = (2..rng.usize(6..9))
        .map(|number| file(&mut rng, number))
        .collect();
    let mut story = format!("PGSHARD_TEST_MATRIX_SEED={seed} on {version}: {files:#?}\n");
    let world = World::new(&[version, version], SHARDS).await;
    for client in world.all().await {
        for schema in lines(&client, "SELECT schema_name FROM pgshard.shard")
            .await
            .lines()
        {
            let rows = format!(
                "INSERT INTO {schema}.users (name) VALUES ('a'), ('b');
                 INSERT INTO {schema}.photos (user_id, title)
                 SELECT id, 'x' FROM {schema}.users, generate_series(1, 50)"
            );
            client.batch_execute(&rows).await.unwrap();
        }
    }
    let mut written = 0;
    while written < files.len() {
        let more = rng.usize(1..=2).min(files.len() - written);
        for (name, sql) in &files[written..written + more] {
            world.servers.write(&format!("migrations/{name}"), sql);
        }
        written += more;
        for _ in 0..rng.u32(1..3) {
            let fate = fate(&mut rng);
            story += &format!("{fate:?} with {written} files: ");
            for ran in world.up_beside(fate).await {
                story += &format!("{} ", ran.code());
                // 1: nothing was done, for instance because another run is at work; 8: some shards
                // were left.
                assert!(
                    [0, 1, 8, 130, -9].contains(&ran.code()),
                    "{story}\n{}\n{}",
                    ran.stdout,
                    ran.stderr
                );
                let all = usize::from(SHARDS) * (written + 1)
                    - once(&files[..written]) * usize::from(SHARDS);
                if ran.code() == 0 {
                    assert_eq!(
                        recorded(&world).await,
                        all,
                        "{story}: exit code 0\n{}",
                        ran.stdout
                    );
                }
            }
            story += "\n";
        }
    }
    let mut tries = 0;
    loop {
        let ran = world.run(&["migrate", "up"]).await;
        tries += 1;
        if ran.code() == 0 {
            break;
        }
        assert!(tries < 5, "{story}\n{}\n{}", ran.stdout, ran.stderr);
    }
    world.run(&["migrate", "status"]).await.ended(0);
    world.nobody_at_work().await;

    let all: Vec<(&str, &str)> = [("0001_tables.sql", TABLES)].into_iter().collect();
    let oracle = World::with_tables(&[version], 2, &all).await;
    for (name, sql) in &files {
        oracle.servers.write(&format!("migrations/{name}"), sql);
    }
    oracle.run(&["migrate", "up"]).await.ended(0);
    let expected = oracle.definitions().await.remove(0).1;
    for (schema, made) in world.definitions().await {
        assert_eq!(made, expected, "{schema}: {story}");
    }
    world.run(&["moves", "complete", "--yes"]).await;
    world.run(&["moves", "gc"]).await;
    let checked = world.run(&["check", "--ddl"]).await;
    assert_eq!(checked.code(), 0, "{story}\n{}", checked.stdout);
    world.audit_places().await;
}

/// How many of these run once per host.
fn once(files: &[(String, String)]) -> usize {
    files
        .iter()
        .filter(|(_, sql)| sql.starts_with(ONCE))
        .count()
}

/// How many of the application's files the served shards have recorded, all together.
async fn recorded(world: &World) -> usize {
    let mut count = 0;
    for client in world.all().await {
        let sql =
            "SELECT count(*)::text FROM pgshard.shard_migration JOIN pgshard.shard USING (shard_id)
            WHERE state <> 'moved' AND name !~ '^pgshard:'";
        count += lines(&client, sql).await.trim().parse::<usize>().unwrap();
    }
    count
}

on_each_version! {
    /// Two rounds, or as many as the environment sets.
    async fn random_runs_end_as_expected(version) {
        let number = |name: &str| {
            std::env::var(name)
                .ok()
                .and_then(|text| text.parse::<u64>().ok())
        };
        let first = number("PGSHARD_TEST_MATRIX_SEED").unwrap_or(u64::from(version));
        for seed in first..first + number("PGSHARD_TEST_MATRIX").unwrap_or(2) {
            eprintln!("PGSHARD_TEST_MATRIX_SEED={seed}");
            round(version, seed).await;
        }
    }
}
