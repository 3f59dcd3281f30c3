//! Unlogged tables, whose changes are not in the stream: their rows are copied behind the fence, or
//! left.
//!
//! Each transaction writes the same to an unlogged table as to a logged one, so at every moment
//! both have the same rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{World, lines, other, rounds};

/// A primary key of either kind, a foreign key to a logged table, foreign keys among unlogged ones,
/// a trigger, an index, no key at all.
const SCHEMA: &str = r#"
    CREATE TABLE {shard}.kinds (id int PRIMARY KEY);
    INSERT INTO {shard}.kinds SELECT generate_series(0, 9);
    CREATE TABLE {shard}.logged (id bigint PRIMARY KEY, v text);
    CREATE TABLE {shard}.noted (id bigint);
    CREATE UNLOGGED TABLE {shard}.sessions (
        id bigint PRIMARY KEY, v text, kind int REFERENCES {shard}.kinds, "Näher" {shard}.kinds);
    CREATE INDEX ON {shard}.sessions (v);
    CREATE UNLOGGED TABLE {shard}.jobs (
        n serial PRIMARY KEY, at int GENERATED ALWAYS AS IDENTITY,
        session bigint REFERENCES {shard}.sessions ON DELETE CASCADE);
    CREATE UNLOGGED TABLE {shard}.lines (v text);
    CREATE UNLOGGED SEQUENCE {shard}.tickets START 5;
    CREATE TABLE {shard}.parts (n int, v text) PARTITION BY LIST (n);
    CREATE UNLOGGED TABLE {shard}.part_1 PARTITION OF {shard}.parts FOR VALUES IN (1);
    CREATE TABLE {shard}.part_rest PARTITION OF {shard}.parts DEFAULT;
    CREATE FUNCTION {shard}.note() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO {shard}.noted VALUES (NEW.id); RETURN NEW; END $$;
    CREATE TRIGGER noted BEFORE INSERT ON {shard}.sessions FOR EACH ROW
        EXECUTE FUNCTION {shard}.note();
    ALTER TABLE {shard}.sessions ENABLE ALWAYS TRIGGER noted;
"#;

/// One transaction, on the newest rows, so that it does not become longer.
fn round(n: u32) -> String {
    let newest = format!("id > {}", (n * 100).saturating_sub(2000));
    format!(
        "BEGIN; SET LOCAL search_path = shard_0000;
         WITH new AS (SELECT {n} * 100 + g AS id, 'v' || g AS v FROM generate_series(1, 9) g),
             logged AS (INSERT INTO logged SELECT id, v FROM new),
             parts AS (INSERT INTO parts SELECT id % 3, v FROM new)
             INSERT INTO sessions SELECT id, v, id % 10 FROM new;
         UPDATE sessions SET v = v || '+' WHERE {newest} AND id % 7 = {n} % 7;
         UPDATE logged SET v = v || '+' WHERE {newest} AND id % 7 = {n} % 7;
         INSERT INTO jobs (session) SELECT id FROM sessions WHERE {newest} AND id / 100 = {n};
         INSERT INTO lines VALUES ('{n}');
         DELETE FROM sessions WHERE {newest} AND id % 19 = {n} % 19;
         DELETE FROM logged WHERE {newest} AND id % 19 = {n} % 19; COMMIT"
    )
}

/// Between two rounds.
const REST: Duration = Duration::from_millis(40);

/// How many sessions there are where the shard is, after checking that each is equal to its logged
/// twin.
async fn twins(world: &World, host: usize) -> i64 {
    let db = world.servers.app(host).await;
    db.batch_execute("SET search_path = shard_0000")
        .await
        .unwrap();
    let differ = "SELECT id, l.v, s.v FROM logged l FULL JOIN sessions s USING (id)
        WHERE l.v IS DISTINCT FROM s.v LIMIT 5";
    assert_eq!(lines(&db, differ).await, "");
    let jobs = "SELECT count(*) FROM sessions s FULL JOIN jobs j ON j.session = s.id WHERE s.id IS \
        NULL OR j.n IS NULL";
    assert_eq!(db.query_one(jobs, &[]).await.unwrap().get::<_, i64>(0), 0);
    // There is a row for each time that one was created, and none for one that was copied.
    let noted = "SELECT count(*) - count(DISTINCT id) FROM noted";
    assert_eq!(db.query_one(noted, &[]).await.unwrap().get::<_, i64>(0), 0);
    let kept = "SELECT string_agg(relname || relpersistence::text, ' ' ORDER BY relname) FROM \
        pg_class
        WHERE relnamespace = 'shard_0000'::regnamespace AND relpersistence = 'u' AND relkind IN \
        ('r', 'S')";
    let kept: String = db.query_one(kept, &[]).await.unwrap().get(0);
    assert_eq!(
        kept,
        "jobsu jobs_at_sequ jobs_n_sequ linesu part_1u sessionsu ticketsu"
    );
    db.query_one("SELECT count(*) FROM sessions", &[])
        .await
        .unwrap()
        .get(0)
}

async fn world(version: u32) -> World {
    World::with_tables(
        &[version, other(version)],
        2,
        &[("0001_unlogged.sql", SCHEMA)],
    )
    .await
}

on_each_version! {
    /// There, back with the old copy, and there again, with writers all the time and movers that
    /// die around the copy.
    async fn rows_come_along(version) {
        let world = world(version).await;
        let stop = Arc::new(AtomicBool::new(false));
        let worker = tokio::spawn(rounds(world.all().await, REST, stop.clone(), round));
        tokio::time::sleep(Duration::from_millis(500)).await;
        let to_db2 = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        let plan = world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--plan"])
            .await;
        assert!(
            plan.ended(0).stdout.contains("copy 4 unlogged tables"),
            "{}",
            plan.stdout
        );
        let mut id: Option<String> = None;
        for place in [
            "in empty unlogged=kill",
            "in unlogged=kill",
            "after unlogged=kill",
            "after drain=kill",
        ] {
            let ran = match &id {
                None => world.run_until(&to_db2, place).await,
                Some(id) => world.run_until(&["moves", "resume", id], place).await,
            };
            assert_eq!(ran.code(), -9, "{place}: {}", ran.stderr);
            id = id.or_else(|| Some(ran.id()));
        }
        let id = id.unwrap();
        world.run(&["moves", "resume", &id]).await.ended(0);
        assert_eq!(world.state(1, 0).await, "serving");
        twins(&world, 1).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        world
            .run(&["moves", "rollback", &id, "--yes"])
            .await
            .ended(0);
        assert_eq!(world.state(0, 0).await, "serving");
        twins(&world, 0).await;
        let again = world.run(&to_db2).await.ended(0).id();
        stop.store(true, Ordering::Relaxed);
        let (rounds, refused) = worker.await.unwrap();
        assert!(
            rounds > 5 && refused.is_empty(),
            "{rounds} rounds, and {refused:#?}"
        );
        let sessions = twins(&world, 1).await;
        assert!(sessions > 20, "{sessions}");
        // Sequences continue where they were, also those of unlogged tables.
        let db = world.servers.app(1).await;
        let next = "SET search_path = shard_0000; INSERT INTO jobs (session) SELECT min(id) FROM \
            sessions";
        db.batch_execute(next).await.unwrap();
        world
            .run(&["moves", "complete", &again, "--yes"])
            .await
            .ended(0);
        world
            .run(&["move", "0", "--to", "db1", "--mode", "blocking", "--yes"])
            .await
            .ended(0);
        assert_eq!(twins(&world, 0).await, sessions);
        let report = world.run(&["check", "--ddl"]).await.last();
        let differs = report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|one| one["code"] == "ddl_differs");
        assert_eq!(
            differs
                .map(|one| one["message"].to_string())
                .collect::<Vec<_>>(),
            [""; 0]
        );
        world.audit_places().await;
    }

    /// `--unlogged empty`: as after a crash; also for an old copy that is taken back.
    async fn rows_are_left(version) {
        let world = world(version).await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(&round(1))
            .await
            .unwrap();
        let count = async |host: usize| {
            let db = world.servers.app(host).await;
            let sql = "SELECT (SELECT count(*) FROM shard_0000.sessions), (SELECT count(*) FROM \
                shard_0000.logged)";
            let row = db.query_one(sql, &[]).await.unwrap();
            (row.get::<_, i64>(0), row.get::<_, i64>(1))
        };
        let (sessions, logged) = count(0).await;
        assert!(sessions > 0 && sessions == logged);
        let empty = [
            "move",
            "0",
            "--to",
            "db2",
            "--unlogged",
            "empty",
            "--yes",
            "--mode",
        ];
        let id = world
            .run(&[&empty[..], &["online"]].concat())
            .await
            .ended(0)
            .id();
        assert_eq!(count(1).await, (0, logged));
        world
            .run(&["moves", "rollback", &id, "--unlogged", "empty", "--yes"])
            .await
            .ended(0);
        assert_eq!(count(0).await, (0, logged));
        world
            .run(&[&empty[..], &["blocking"]].concat())
            .await
            .ended(0);
        assert_eq!(count(1).await, (0, logged));
    }

    /// A copy that takes longer than the shard may be closed ends the move at the first attempt:
    /// the source serves with all its rows, and a later move carries them.
    async fn a_copy_that_takes_too_long(version) {
        let slow = "CREATE FUNCTION {shard}.slow(t text) RETURNS boolean LANGUAGE plpgsql AS
                $$ BEGIN PERFORM pg_sleep(0.3); RETURN true; END $$;
            CREATE DOMAIN {shard}.slowly AS text CHECK ({shard}.slow(VALUE));
            CREATE UNLOGGED TABLE {shard}.sleepy (v {shard}.slowly);
            INSERT INTO {shard}.sleepy SELECT 'v' || g FROM generate_series(1, 10) g";
        let tables = [("0001_slow.sql", slow)];
        let world = World::with_tables(&[version, other(version)], 2, &tables).await;
        let args = [
            "move",
            "0",
            "--to",
            "db2",
            "--mode",
            "online",
            "--yes",
            "--max-pause-s",
            "1",
        ];
        let ran = world.run(&args).await;
        let words = "it was not copied within 1 s; the source serves again";
        assert!(ran.ended(5).stderr.contains(words), "{}", ran.stderr);
        let serves = async || {
            assert_eq!(world.state(0, 0).await, "serving");
            let db = world.servers.app(0).await;
            let row = db
                .query_one("SELECT count(*) FROM shard_0000.sleepy", &[])
                .await
                .unwrap();
            assert_eq!(row.get::<_, i64>(0), 10);
        };
        serves().await;
        world.run(&["moves", "resume", &ran.id()]).await.ended(0);
        assert_eq!(world.state(1, 0).await, "serving");
        let sql = "SELECT count(*) FROM shard_0000.sleepy";
        let there: i64 = world
            .servers
            .app(1)
            .await
            .query_one(sql, &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(there, 10);
    }

    /// A table that is created while the shard is copied is an alteration, like any other.
    async fn an_unlogged_table_created_late_is_an_alteration(version) {
        let world = world(version).await;
        let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        for (place, sql) in [
            (
                "after loaded",
                "CREATE UNLOGGED TABLE shard_0000.more (id int)",
            ),
            (
                "after swap",
                "ALTER TABLE shard_0000__left_e1.lines ADD COLUMN w int",
            ),
        ] {
            let child = world
                .command(&args, &[("PGSHARD_FAILPOINT", &format!("{place}=stop"))])
                .spawn()
                .unwrap();
            crate::support::stopped(&child).await;
            let altered = world.servers.app(0).await.batch_execute(sql).await;
            let ran = crate::support::never_stopped(child).await;
            altered.unwrap();
            assert!(
                ran.ended(7).stderr.contains("altered"),
                "{place}: {}",
                ran.stderr
            );
            assert_eq!(world.state(0, 0).await, "serving");
            world.run(&["moves", "abort", &ran.id()]).await.ended(0);
        }
    }
}
