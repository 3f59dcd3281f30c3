//! Moves that are watched, paused, held and limited, from other processes than the mover's.

use std::time::Duration;

use pgshard::ShardId;
use serde_json::Value;
use tokio::process::Child;
use tokio_postgres::Client;

use crate::support::{Ran, World, Writers, lines, other};

/// Beats of 600 ms, so that a request is read soon.
const LEASE: (&str, &str) = ("PGSHARD_LEASE_MS", "3000");

/// About this many kilobytes of photos in each of these shards, all on db1.
async fn fill(db: &Client, shards: std::ops::Range<u16>, kilobytes: u32) {
    for shard in shards {
        let schema = format!("shard_{shard:04}");
        db.batch_execute(&format!(
            "INSERT INTO {schema}.users (name) VALUES ('u');
             INSERT INTO {schema}.photos (user_id, title)
             SELECT id, repeat('x', 1000) FROM {schema}.users, generate_series(1, {kilobytes})"
        ))
        .await
        .unwrap();
    }
}

/// Queries until the answer is true.
#[track_caller]
fn until<'a>(db: &'a Client, sql: &'a str) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        let asked = async {
            while !db.query_one(sql, &[]).await.unwrap().get::<_, bool>(0) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), asked)
            .await
            .unwrap_or_else(|_| panic!("{caller}: never: {sql}"));
    }
}

async fn id(db: &Client) -> String {
    let sql = "SELECT move_id::text FROM pgshard.move ORDER BY created_at DESC LIMIT 1";
    db.query_one(sql, &[]).await.unwrap().get(0)
}

fn events<'a>(lines: &'a [Value], event: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == event).collect()
}

fn spawn(world: &World, args: &[&str]) -> Child {
    world.command(args, &[LEASE]).spawn().unwrap()
}

on_each_version! {
    /// Another process sees chunks, bytes and WAL of a slow copy, pauses it, and lets it continue.
    async fn watched_paused_and_continued(version) {
        let world = World::new(&[version, other(version)], 16).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        fill(&db1, 0..8, 100).await;
        // Four shards are copied at a time, which takes two seconds; the others come after.
        let mover = spawn(
            &world,
            &[
                "move",
                "0-7",
                "--to",
                "db2",
                "--yes",
                "--mode",
                "online",
                "--max-rate",
                "200kB",
            ],
        );
        until(
            &db2,
            "SELECT count(DISTINCT shard_id) = 8 FROM pgshard.chunk",
        )
        .await;
        let id = id(&db1).await;
        let watch = spawn(&world, &["moves", "watch", &id]);
        let told = world.run(&["moves", "pause", &id]).await.ended(0).last();
        assert_eq!(
            (&told["desired"], &told["shards"]),
            (&"pause".into(), &"0-7".into())
        );
        // What is under way is finished; after that nothing more is begun.
        let still = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'COPY%' AND \
            state = 'active')";
        until(&db1, "SELECT wanted = 'pause' FROM pgshard.move LIMIT 1").await;
        tokio::time::sleep(Duration::from_millis(700)).await; // A beat.
        until(&db1, still).await;
        // What the source has sent is kept once the target has taken all of it.
        let kept = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity
            WHERE application_name LIKE 'pgshard%' AND xact_start IS NOT NULL AND pid <> \
            pg_backend_pid())";
        until(&db2, kept).await;
        let copied = "SELECT count(snapshot) FROM pgshard.chunk";
        let before: i64 = db2.query_one(copied, &[]).await.unwrap().get(0);
        // In which four more would have begun.
        tokio::time::sleep(Duration::from_millis(500)).await;
        until(&db1, still).await;
        assert_eq!(
            db2.query_one(copied, &[]).await.unwrap().get::<_, i64>(0),
            before
        );
        let all: i64 = db2
            .query_one(
                "SELECT count(*) FROM \
            pgshard.chunk",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        assert!(before < all, "{before} of {all}");
        // The watcher has seen it, too: it checks every second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        world.run(&["moves", "continue", &id]).await.ended(0);
        Ran::of(mover).await.ended(0);
        let watched = Ran::of(watch).await;
        let lines = watched.ended(0).json();
        let shards = events(&lines, "shard");
        assert!(
            shards.iter().any(|line| line["desired"] == "pause"),
            "{}",
            watched.stdout
        );
        assert!(
            shards
                .iter()
                .any(|line| line["chunks_copied"].as_u64() < line["chunks"].as_u64()),
            "{}",
            watched.stdout
        );
        assert!(
            shards.iter().any(|line| line["phase"] == "kept"),
            "{}",
            watched.stdout
        );
        assert!(
            events(&lines, "stream")
                .iter()
                .any(|line| line["wal_kept"].as_u64() > Some(0)),
            "{}",
            watched.stdout
        );
        let last = watched.last();
        assert_eq!(
            (&last["event"], &last["exit_code"], &last["phases"]["kept"]),
            (&"ended".into(), &0.into(), &8.into())
        );
        world.run(&["moves", "pause", &id]).await.ended(4);
        world.audit_places().await;
    }

    /// Everything but the fence is done and kept up to date, through an interrupt and a resume,
    /// until an operator continues it.
    async fn held_before_the_fence(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let db1 = world.servers.app(0).await;
        let writers = Writers::start(&world, 2).await;
        let args = [
            "move", "0-1", "--to", "db2", "--yes", "--mode", "online", "--hold", "--jobs", "1",
        ];
        let mover = spawn(&world, &args);
        let ready = "SELECT count(*) = 2 FROM pgshard.move WHERE phase = 'ready'";
        until(&db1, ready).await;
        let id = id(&db1).await;
        let pid = rustix::process::Pid::from_raw(mover.id().unwrap() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let ran = Ran::of(mover).await;
        ran.ended(130);
        // No mover works on it: a watcher reports that instead of waiting for ever.
        let idle = world.run(&["moves", "watch", &id]).await;
        assert!(
            idle.ended(7).stderr.contains("no command works on the move"),
            "{}",
            idle.stderr
        );
        let resumed = spawn(&world, &["moves", "resume", &id]);
        until(
            &db1,
            "SELECT bool_and(lease_until > clock_timestamp()) FROM pgshard.move",
        )
        .await;
        let mover = world.mover();
        let list = mover.progress(id.parse().unwrap()).await.unwrap();
        for shard in &list.shards {
            assert_eq!(shard.entry.desired, pgshard::mover::DesiredState::Hold);
            assert!(
                shard.chunks.all > 0 && shard.chunks.verified == shard.chunks.all,
                "{shard:?}"
            );
        }
        // Until that time it is not fenced.
        until(&db1, "SELECT bool_and(active) FROM pg_replication_slots").await;
        let fenced = "SELECT bool_and(attempt = 0 AND phase = 'ready') FROM pgshard.move";
        assert!(db1.query_one(fenced, &[]).await.unwrap().get::<_, bool>(0));
        world.run(&["moves", "continue"]).await.ended(0);
        Ran::of(resumed).await.ended(0);
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }

    /// A hold with a time ends by itself.
    async fn held_until_a_time(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let db1 = world.servers.app(0).await;
        let soon = (jiff::Timestamp::now() + Duration::from_secs(6)).to_string();
        let mover = spawn(
            &world,
            &[
                "move", "0", "--to", "db2", "--yes", "--mode", "online", "--at", &soon,
            ],
        );
        until(
            &db1,
            "SELECT count(*) = 1 FROM pgshard.move WHERE phase = 'ready' AND attempt = \
            0",
        )
        .await;
        Ran::of(mover).await.ended(0);
        assert!(jiff::Timestamp::now() >= soon.parse().unwrap());
        world.audit_places().await;
    }

    /// Before the slot fills the source's disk, the move is given up and the slot is dropped.
    async fn a_slot_that_keeps_too_much(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let db1 = world.servers.app(0).await;
        fill(&db1, 0..1, 100).await;
        let args = [
            "move",
            "0",
            "--to",
            "db2",
            "--yes",
            "--mode",
            "online",
            "--max-rate",
            "10kB",
            "--max-wal",
            "2MB",
        ];
        let mover = spawn(&world, &args);
        until(&db1, "SELECT count(*) = 1 FROM pg_replication_slots").await;
        fill(&db1, 1..2, 4000).await;
        let ran = Ran::of(mover).await;
        let said = &ran.ended(5).stderr;
        assert!(
            said.contains("of WAL for the move") && said.contains("--max-wal"),
            "{said}"
        );
        assert_eq!(world.state(0, 0).await, "serving");
        let nothing =
            "SELECT NOT EXISTS (SELECT FROM pg_replication_slots) AND NOT EXISTS (SELECT \
            FROM pg_publication)
            AND NOT EXISTS (SELECT FROM pgshard.ledger) AND NOT EXISTS (SELECT FROM \
            pgshard.incoming)";
        for client in world.all().await {
            assert!(
                client
                    .query_one(nothing, &[])
                    .await
                    .unwrap()
                    .get::<_, bool>(0)
            );
        }
        let phase: String = db1
            .query_one("SELECT phase FROM pgshard.move", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(phase, "aborted");
        world.audit_places().await;
    }

    /// A shard is altered while it is copied, and another while it is followed: these stop, and
    /// report why. The others continue.
    async fn altered_while_open(version) {
        let world = World::new(&[version, other(version)], 8).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        fill(&db1, 0..2, 100).await;
        let args = [
            "move",
            "0-1",
            "--to",
            "db2",
            "--yes",
            "--mode",
            "online",
            "--max-rate",
            "30kB",
        ];
        let mover = spawn(&world, &args);
        until(
            &db2,
            "SELECT count(DISTINCT shard_id) = 2 FROM pgshard.chunk",
        )
        .await;
        db1.batch_execute("CREATE TABLE shard_0000.fresh (a integer)")
            .await
            .unwrap();
        let ran = Ran::of(mover).await;
        let said = &ran.ended(8).stderr;
        assert!(
            said.contains(
                "shard 0: its tables were \
            altered"
            ) && !said.contains("shard 1:"),
            "{said}"
        );
        assert_eq!(
            (world.state(0, 0).await, world.state(1, 1).await),
            ("serving".to_owned(), "serving".to_owned())
        );
        let loaded = |shard: u16| {
            ran.stdout
                .contains(&format!("\"shard\":{shard},\"phase\":\"loaded\""))
        };
        assert!(
            !loaded(0) && loaded(1),
            "it stopped in the midst of the copy: {}",
            ran.stdout
        );
        // What it changes from now on is in no stream.
        let left = "SELECT format('%s, attempt %s', phase, attempt) FROM pgshard.move WHERE \
            shard_id = 0";
        assert_eq!(lines(&db1, left).await, "claimed, attempt 0\n");
        // The one is undone; for the other it is too late.
        world.run(&["moves", "abort", &ran.id()]).await.ended(8);
        let mover = spawn(
            &world,
            &[
                "move", "2", "--to", "db2", "--yes", "--mode", "online", "--hold",
            ],
        );
        until(
            &db1,
            "SELECT count(*) = 1 FROM pgshard.move WHERE phase = 'ready' AND shard_id = \
            2",
        )
        .await;
        db1.batch_execute("ALTER TABLE shard_0002.users ADD COLUMN bio text")
            .await
            .unwrap();
        let ran = Ran::of(mover).await;
        assert!(
            ran.ended(7)
                .stderr
                .contains("shard 2: its tables were altered"),
            "{}",
            ran.stderr
        );
        assert_eq!(world.state(0, 2).await, "serving");
        world.run(&["moves", "abort", &ran.id()]).await.ended(0);
        let shard = ShardId::new(2).unwrap();
        assert!(
            world
                .mover()
                .list(None)
                .await
                .found
                .iter()
                .all(|entry| entry.shard != shard)
        );
        world.audit_places().await;
    }

    /// Statements that rewrite rows, or exchange them, and leave the definition as it was: no
    /// stream carries them. The move stops before it decides, whichever check comes first, and a
    /// resume copies the rows as they are now; so it does if no mover has checked.
    async fn rows_rewritten_while_open(version) {
        let tables = "CREATE TYPE {shard}.pair AS (a text, b text);
            CREATE TABLE {shard}.t (id int PRIMARY KEY, body text, p {shard}.pair);
            CREATE TABLE {shard}.u (id int PRIMARY KEY, body text, p {shard}.pair);";
        // The first half of them is on db1.
        let world = World::with_tables(
            &[version, other(version)],
            28,
            &[("0001_tables.sql", tables)],
        )
        .await;
        let exchange =
            "BEGIN; ALTER TABLE t RENAME TO x; ALTER TABLE u RENAME TO t; ALTER TABLE x \
            RENAME TO u;
            ALTER INDEX t_pkey RENAME TO x; ALTER INDEX u_pkey RENAME TO t_pkey; ALTER INDEX x \
            RENAME TO u_pkey;
            COMMIT";
        // Not null constraints have names on 18.
        let exchange = if version < 18 {
            exchange
        } else {
            "ALTER TABLE t ALTER body TYPE text \
            USING reverse(body)"
        };
        let statements = [
            "ALTER TABLE t ALTER body TYPE text USING upper(body)",
            "ALTER TABLE t DROP p; ALTER TABLE t DROP body, ADD body text; ALTER TABLE t ADD p \
                pair",
            exchange,
            "ALTER TYPE pair DROP ATTRIBUTE b CASCADE; ALTER TYPE pair ADD ATTRIBUTE b text \
                CASCADE",
            // What comes after it fits no more.
            "ALTER TABLE t ADD z int; INSERT INTO t VALUES (1000, 'new', NULL, 1)",
            // What was written before is described by a key that the table no longer has.
            "UPDATE t SET body = 'by its key' WHERE id < 9; ALTER TABLE t DROP CONSTRAINT t_pkey",
            // These alter nothing, and are carried.
            "TRUNCATE u; REINDEX TABLE t; VACUUM FULL t; ANALYZE t; UPDATE t SET body = 'new' \
                WHERE id < 5",
        ];
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        for (shard, killed) in (0..14).map(|shard| (shard, shard >= 7)) {
            let fill = format!(
                "SET search_path = shard_{shard:04};
                INSERT INTO t SELECT g, 'abc' || g, ROW('a', 'b' || g)::pair FROM \
                generate_series(1, 50) g;
                INSERT INTO u SELECT g, 'zzz' || g, ROW('c', 'd' || g)::pair FROM \
                generate_series(1, 50) g"
            );
            db1.batch_execute(&fill).await.unwrap();
            let number = shard.to_string();
            let mut mover = spawn(
                &world,
                &[
                    "move", &number, "--to", "db2", "--yes", "--mode", "online", "--hold",
                ],
            );
            let ready = format!(
                "SELECT count(*) = 1 FROM pgshard.move WHERE phase = 'ready' AND \
                shard_id = {shard}"
            );
            until(&db1, &ready).await;
            if killed {
                mover.kill().await.unwrap();
            }
            let at = usize::from(shard) % statements.len();
            for statement in statements[at].split_inclusive(';') {
                let sql = format!("SET search_path = shard_{shard:04}");
                db1.batch_execute(&sql).await.unwrap();
                db1.batch_execute(statement).await.unwrap();
            }
            let read = async |client: &tokio_postgres::Client| {
                let mut all = String::new();
                for table in ["t", "u"] {
                    let sql = format!("SELECT x::text FROM shard_{shard:04}.{table} x ORDER BY id");
                    all += &lines(client, &sql).await;
                }
                all
            };
            let expected = read(&db1).await;
            let resumed = if killed {
                world.run(&["moves", "continue"]).await;
                world.run(&["moves", "resume"]).await
            } else {
                // The watchdog may have ended it already.
                world.run(&["moves", "continue"]).await;
                let ran = Ran::of(mover).await;
                if at == 6 {
                    ran
                } else {
                    let said = &ran.ended(7).stderr;
                    assert!(
                        said.contains("its tables were altered"),
                        "{}: {said}",
                        statements[at]
                    );
                    assert_eq!(world.state(0, shard).await, "serving");
                    world.run(&["moves", "resume", &ran.id()]).await
                }
            };
            resumed.ended(0);
            assert_eq!(read(&db2).await, expected, "{}", statements[at]);
            world
                .run(&["moves", "complete", &id(&db1).await, "--yes"])
                .await
                .ended(0);
        }
        world.audit_places().await;
    }
}
