//! `pgshard migrate backfill`: it touches each row once, whichever process is killed and wherever
//! the shard moves.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Ran, World, lines};

const COLUMN: (&str, &str) = (
    "0002_n.sql",
    "ALTER TABLE {shard}.photos ADD COLUMN n int NOT NULL DEFAULT 0",
);
const SQL: &str = "UPDATE {shard}.photos SET n = n + 1 WHERE id BETWEEN {low} AND {high}";

/// Two hosts, with `rows` photos in each shard, none of which has been counted.
async fn world(version: u32, shards: u16, rows: usize) -> World {
    let world = World::with_tables(
        &[version, version],
        shards,
        &[("0001_tables.sql", crate::support::TABLES), COLUMN],
    )
    .await;
    world.servers.write("count.sql", SQL);
    for (host, client) in world.all().await.iter().enumerate() {
        for shard in (0..shards).filter(|shard| world.host_of(*shard) == host) {
            client
                .batch_execute(&format!(
                    "INSERT INTO shard_{shard:04}.users (name) VALUES ('a');
                    INSERT INTO shard_{shard:04}.photos (user_id, title) SELECT id, 'x'
                    FROM shard_{shard:04}.users, generate_series(1, {rows})"
                ))
                .await
                .unwrap();
        }
    }
    world
}

impl World {
    /// The arguments of a backfill, and some more.
    fn counting<'a>(file: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        [&["migrate", "backfill", file, "--table", "photos"], more].concat()
    }

    fn count_file(&self) -> String {
        self.servers
            .directory()
            .join("count.sql")
            .to_str()
            .unwrap()
            .to_owned()
    }

    /// How often rows were counted, as `times: rows`, over all shards where they are served.
    async fn counted(&self) -> Vec<String> {
        let mut all = Vec::new();
        for client in self.all().await {
            let shards = lines(
                &client,
                "SELECT schema_name FROM pgshard.shard WHERE state = 'serving'",
            )
            .await;
            for schema in shards.lines() {
                let sql = format!(
                    "SELECT n || ': ' || count(*) FROM {schema}.photos GROUP BY n ORDER BY n"
                );
                all.extend(
                    lines(&client, &sql)
                        .await
                        .lines()
                        .map(|line| format!("{schema} {line}")),
                );
            }
        }
        all.sort();
        all
    }

    async fn backfill_status(&self) -> Value {
        self.run(&["migrate", "backfill", "--status", "--name", "count"])
            .await
            .last()["backfills"]["count"]
            .clone()
    }

    /// Waits until a backfill has run some ranges and is not finished.
    async fn in_the_middle(&self, ranges: u64) {
        let begun = Instant::now();
        loop {
            let status = self.backfill_status().await;
            if status["batches"]
                .as_u64()
                .is_some_and(|done| done >= ranges)
            {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{status}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn once(shards: u16, rows: usize) -> Vec<String> {
    (0..shards)
        .map(|shard| format!("shard_{shard:04} 1: {rows}"))
        .collect()
}

/// Types of keys, and keys of each for the numbers g from 1 to 1500, of which no two are the same.
/// Their texts come in another order than they do themselves.
const KEYS: [(&str, &str); 17] = [
    ("bigint", "g::bigint * g * g - 500000"),
    ("integer", "g * 3 - 1000"),
    ("smallint", "g - 700"),
    ("numeric(20,3)", "(g - 700) / 3.0"),
    ("numeric", "g * 10.0 ^ (g % 30 - 15)"),
    ("double precision", "(g - 700) / 7::float8"),
    ("text", "substr(md5(g::text), 1, 1 + g % 9) || '-' || g"),
    (
        "text COLLATE \"C\"",
        "CASE WHEN g % 2 = 0 THEN 'a' ELSE 'B' END || g",
    ),
    ("varchar(40)", "repeat('z', g % 5) || g || 'é'"),
    ("character(12)", "'k' || g"),
    ("date", "date '1999-06-01' + g"),
    (
        "timestamptz",
        "timestamptz '1999-12-01 00:00:00.123456+01' + g * interval '7 hours 13 minutes 0.1 \
            seconds'",
    ),
    (
        "timestamp",
        "timestamp '0012-12-01 BC' + g * interval '3 days'",
    ),
    ("interval", "g * interval '97 minutes' - interval '20 days'"),
    ("uuid", "md5(g::text)::uuid"),
    (
        "bytea",
        "decode(substr(md5(g::text), 1, 2 * (1 + g % 15)) || lpad(to_hex(g), 4, '0'), 'hex')",
    ),
    ("inet", "inet '9.255.254.250' + g"),
];

on_each_version! {
    /// Each row is touched once, whatever the keys are: PostgreSQL determines what comes after
    /// what, and not the texts of keys.
    async fn whatever_the_keys_are(version) {
        let tables: Vec<String> = KEYS
            .iter()
            .enumerate()
            .map(|(n, (kind, _))| {
                format!(
                    "CREATE TABLE {{shard}}.of_{n} (id {kind} PRIMARY KEY, n int NOT NULL DEFAULT \
                0);"
                )
            })
            .collect();
        // Ranges by its first column end in the middle of rows that have the same.
        let pairs = "CREATE TABLE {shard}.pairs (id int, b int, n int NOT NULL DEFAULT 0, PRIMARY \
            KEY (id, b));";
        let tables = format!("{}{pairs}", tables.concat());
        let world =
            World::with_tables(&[version, version], 2, &[("0001_tables.sql", &tables)]).await;
        let client = world.servers.app(0).await;
        // The texts of keys do not depend on what the role has set.
        client
            .batch_execute(
                "ALTER ROLE app SET extra_float_digits = -3; ALTER ROLE app SET \
            datestyle = 'German'",
            )
            .await
            .unwrap();
        for (n, (_, key)) in KEYS.iter().enumerate() {
            let sql = format!(
                "INSERT INTO shard_0000.of_{n} (id) SELECT {key} FROM \
                generate_series(1, 1500) g"
            );
            client.batch_execute(&sql).await.unwrap();
        }
        let sql = "INSERT INTO shard_0000.pairs (id, b) SELECT g % 40 * 7, g FROM \
            generate_series(1, 1500) g";
        client.batch_execute(sql).await.unwrap();
        let names: Vec<String> = (0..KEYS.len())
            .map(|n| format!("of_{n}"))
            .chain(["pairs".to_owned()])
            .collect();
        for (n, name) in names.iter().enumerate() {
            let file = format!("{name}.sql");
            let once = if name == "pairs" {
                "n = 1"
            } else {
                "n = n + 1"
            };
            let sql = format!(
                "UPDATE {{shard}}.{name} SET {once} WHERE id BETWEEN {{low}} AND \
                {{high}}"
            );
            world.servers.write(&file, &sql);
            let file = world.servers.directory().join(&file);
            let args = [
                "migrate",
                "backfill",
                file.to_str().unwrap(),
                "--table",
                name,
                "--range-ms",
                "1",
            ];
            world.run(&args).await.ended(0);
            let counted = format!(
                "SELECT n || ': ' || count(*) FROM shard_0000.{name} GROUP BY n \
                ORDER BY n"
            );
            assert_eq!(
                lines(&client, &counted).await,
                "1: 1500\n",
                "{name}: {:?}",
                KEYS.get(n)
            );
        }
    }

    /// Rows that a policy hides from the role are not left out without a word: the shards fail, and
    /// are done once the role sees all rows.
    async fn rows_that_a_policy_hides(version) {
        let world = world(version, 2, 20).await;
        let file = world.count_file();
        for (host, client) in world.all().await.iter().enumerate() {
            let hide = format!(
                "ALTER TABLE shard_{host:04}.photos ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL \
                    SECURITY;
                CREATE POLICY half ON shard_{host:04}.photos USING (id % 2 = 0)"
            );
            client.batch_execute(&hide).await.unwrap();
        }
        let before = world.everything().await;
        let ran = world.run(&World::counting(&file, &[])).await;
        assert!(
            ran.ended(1).stderr.contains("row-level security"),
            "{}",
            ran.stderr
        );
        // What cannot be done leaves nothing behind.
        world
            .run(&["migrate", "backfill", &file, "--table", "fotos"])
            .await
            .ended(1);
        assert_eq!(world.everything().await, before);
        for (host, client) in world.all().await.iter().enumerate() {
            let show = format!("ALTER TABLE shard_{host:04}.photos NO FORCE ROW LEVEL SECURITY");
            client.batch_execute(&show).await.unwrap();
        }
        world.run(&World::counting(&file, &[])).await.ended(0);
        assert_eq!(world.counted().await, once(2, 20));
    }

    /// It is killed at any moment, interrupted, and run by two operators at the same time: each row
    /// is touched once. A further run has nothing to do; an edited statement is refused.
    async fn each_row_once(version) {
        let world = world(version, 6, 2000).await;
        let file = world.count_file();
        let small = World::counting(&file, &["--range-ms", "1"]);
        for round in 0..5_u64 {
            let mut one = world.command(&small, &[]).spawn().unwrap();
            world.in_the_middle(3 * (round + 1)).await;
            tokio::time::sleep(Duration::from_millis(7 * round)).await;
            one.kill().await.unwrap();
        }
        assert_ne!(
            world.counted().await,
            once(6, 2000),
            "it was killed in the middle"
        );
        let one = world
            .command(&World::counting(&file, &["--rows-per-s", "500"]), &[])
            .spawn()
            .unwrap();
        world.in_the_middle(18).await;
        let pid =
            rustix::process::Pid::from_raw(i32::try_from(one.id().unwrap()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let ran = Ran::of(one).await;
        assert!(
            ran.ended(130).stderr.contains("it does what is left"),
            "{}",
            ran.stderr
        );
        let (first, second) = tokio::join!(world.run(&small), world.run(&small));
        first.ended(0);
        second.ended(0);
        assert_eq!(world.counted().await, once(6, 2000));
        let status = world.backfill_status().await;
        let said = (&status["finished"], &status["rows"], &status["not_begun"]);
        assert_eq!(said, (&"0-5".into(), &12_000.into(), &"".into()));
        let again = world.run(&small).await.ended(0).last();
        assert_eq!(
            (&again["finished"], &again["unchanged"], &again["rows"]),
            (&0.into(), &6.into(), &0.into())
        );
        world.servers.write("count.sql", &SQL.replace("+ 1", "+ 2"));
        let edited = world.run(&small).await;
        assert!(
            edited.ended(4).stderr.contains(
                "count was begun with another \
            statement"
            ),
            "{}",
            edited.stderr
        );
        assert_eq!(world.counted().await, once(6, 2000));
        // The table of the progress does not count as a difference between shards.
        world.run(&["check", "--ddl"]).await.ended(0);
    }

    /// Shards move online and blocking while the backfill runs, and one is rolled back: the record
    /// moves along, and each row is touched once.
    async fn moves_in_the_middle(version) {
        let world = world(version, 6, 3000).await;
        let file = world.count_file();
        let slow = World::counting(&file, &["--rows-per-s", "250", "--jobs", "3"]);
        let mut run = world.command(&slow, &[]).spawn().unwrap();
        world.in_the_middle(12).await;
        world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
        let back = world
            .run(&["move", "1", "--to", "db2", "--mode", "online", "--yes"])
            .await;
        world
            .run(&["move", "3", "--to", "db1", "--mode", "blocking", "--yes"])
            .await
            .ended(0);
        let touched = world.backfill_status().await;
        assert!(
            touched["finished"].as_str() != Some("0-5"),
            "the moves were in its middle: \
            {touched}"
        );
        world
            .run(&["moves", "rollback", &back.ended(0).id(), "--yes"])
            .await
            .ended(0);
        // It is killed and run again, on the hosts where the shards are now.
        run.kill().await.unwrap();
        let at_kill = world.backfill_status().await;
        world.run(&World::counting(&file, &[])).await.ended(0);
        assert_eq!(world.counted().await, once(6, 3000), "{at_kill}");
        assert_eq!(
            (world.host_of(0), world.host_of(1), world.host_of(3)),
            (1, 0, 0)
        );
    }

    /// A shard that fails is named with its range, and the others are done; after the fault is
    /// repaired, the same command does the rest. A table without usable ranges is refused with the
    /// reason. A locked row is waited for.
    async fn a_shard_that_fails_is_named(version) {
        let world = world(version, 4, 300).await;
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "ALTER TABLE shard_0001.photos ADD CONSTRAINT no CHECK (n < 1) NOT \
            VALID",
        )
        .await
        .unwrap();
        let file = world.count_file();
        let args = World::counting(&file, &["--patience-s", "1"]);
        let moved = world
            .run(&["move", "3", "--to", "db1", "--mode", "online", "--yes"])
            .await
            .ended(0)
            .id();
        let holder = world.servers.app(0).await;
        holder
            .batch_execute("BEGIN; UPDATE shard_0000.photos SET title = 'held'")
            .await
            .unwrap();
        let ran = world.run(&args).await;
        let failed = ran.ended(8).last()["failed"].clone();
        let ended = format!("the move {moved} can no longer be rolled back (shards 3)");
        assert!(ran.stderr.contains(&ended), "{}", ran.stderr);
        let said = |at: usize| failed[at]["message"].as_str().unwrap().to_owned();
        assert!(
            said(0).starts_with("busy: canceling statement due to lock timeout"),
            "{failed}"
        );
        assert!(
            said(1).contains("failed: new row") && said(1).contains("violates check constraint"),
            "{failed}"
        );
        assert_eq!(failed.as_array().unwrap().len(), 2, "{failed}");
        holder.batch_execute("COMMIT").await.unwrap();
        db1.batch_execute("ALTER TABLE shard_0001.photos DROP CONSTRAINT no")
            .await
            .unwrap();
        world.run(&args).await.ended(0);
        assert_eq!(world.counted().await, once(4, 300));

        for (more, words) in [
            (&["--table", "nothing"][..], "it has no table nothing"),
            (
                &["--table", "photos", "--key", "nothing"],
                "its table photos has no column nothing",
            ),
            (
                &["--table", "photos", "--key", "title"],
                "begins with title",
            ),
        ] {
            let ran = world
                .run(
                    &[
                        &["migrate", "backfill", "--sql", SQL, "--name", "other"],
                        more,
                    ]
                    .concat(),
                )
                .await;
            assert!(ran.ended(1).stderr.contains(words), "{}", ran.stderr);
        }
        // A record of it is a change, although no range was run.
        let fails = "UPDATE {shard}.photos SET n = n / 0 WHERE id BETWEEN {low} AND {high}";
        let fails = [
            "migrate", "backfill", "--sql", fails, "--name", "fails", "--table", "photos",
        ];
        let ran = world.run(&fails).await;
        assert!(
            ran.ended(8).stderr.contains("division by zero"),
            "{}",
            ran.stderr
        );
        let unset = world.run(&[&fails[..], &["--only", " "]].concat()).await;
        assert!(
            unset.ended(2).stderr.contains("--only names no shards"),
            "{}",
            unset.stderr
        );
        // A host with a name that differs from the config's is not written to.
        db1.batch_execute("UPDATE pgshard.cluster SET host_name = 'db7'")
            .await
            .unwrap();
        let more = [
            "migrate", "backfill", "--sql", SQL, "--name", "more", "--table", "photos",
        ];
        let refused = world.run(&[&more[..], &["--only", "0-1"]].concat()).await;
        assert!(
            refused.ended(4).stderr.contains(
                "it recorded that it is the host \
            db7"
            ),
            "{}",
            refused.stderr
        );
        assert_eq!(world.counted().await, once(4, 300));
        let usage = world
            .run(&[
                "migrate", "backfill", "--sql", "SELECT 1", "--name", "o", "--table", "photos",
            ])
            .await;
        assert!(
            usage.ended(2).stderr.contains("it never says {shard}"),
            "{}",
            usage.stderr
        );
    }

    /// Work on a host pauses while its standby is behind.
    async fn a_standby_that_falls_behind(version) {
        let world = World::with_standby(version, 2, 0).await;
        let superuser = world.servers.superuser(0).await;
        superuser
            .batch_execute("GRANT pg_monitor TO app")
            .await
            .unwrap();
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "INSERT INTO shard_0000.users (name) VALUES ('a');
            INSERT INTO shard_0000.photos (user_id, title) SELECT id, repeat('x', 500)
            FROM shard_0000.users, generate_series(1, 4000)",
        )
        .await
        .unwrap();
        // It has those rows when it stops: otherwise it is too far behind from the beginning.
        world.servers.caught_up(2, 0).await;
        let standby = world.servers.superuser(2).await;
        standby
            .batch_execute("SELECT pg_wal_replay_pause()")
            .await
            .unwrap();
        let args = [
            "migrate",
            "backfill",
            "--name",
            "count",
            "--table",
            "photos",
            "--max-lag",
            "300KiB",
            "--only",
            "0",
            "--range-ms",
            "1",
            "--sql",
            "UPDATE {shard}.photos SET title = title || 'y' WHERE id BETWEEN {low} AND {high}",
        ];
        let run = world.command(&args, &[]).spawn().unwrap();
        let begun = Instant::now();
        let mut before = 0;
        // It makes no progress, and is not finished.
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let rows = world.backfill_status().await["rows"].as_u64().unwrap_or(0);
            if rows > 0 && rows == before {
                break;
            }
            before = rows;
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        assert!(before < 4000, "{before} rows");
        standby
            .batch_execute("SELECT pg_wal_replay_resume()")
            .await
            .unwrap();
        let ran = Ran::of(run).await;
        ran.ended(0);
        assert!(
            ran.json().iter().any(|event| event["event"] == "throttled"),
            "{}",
            ran.stdout
        );
        let touched = "SELECT count(*)::text FROM shard_0000.photos WHERE title LIKE '%xy'";
        assert_eq!(lines(&db1, touched).await, "4000\n");
    }
}
