//! Servers that crash while a shard is copied.

use std::time::{Duration, Instant};

use pgshard::dev::StopMode;

use crate::support::{Ran, World, Writers, other};

const ROWS: i64 = 50_000;

/// Waits until a copy has sent some megabytes to a host.
async fn under_way(world: &World, host: usize) {
    let db = world.servers.superuser(host).await;
    let begun = Instant::now();
    loop {
        let sql = "SELECT coalesce(max(bytes_processed), 0)::bigint FROM pg_stat_progress_copy";
        if db.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 4_000_000 {
            return;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "a copy is under way"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

on_each_version! {
    /// Source and target end as in a power cut in the middle of a copy; the move is then resumed,
    /// and separately aborted.
    async fn in_the_midst_of_a_copy(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let seed = format!(
            "WITH one AS (INSERT INTO shard_0000.users (name) VALUES ('seed') RETURNING id)
            INSERT INTO shard_0000.photos (user_id, title) SELECT id, 'seed' || repeat('x', 1000) \
            FROM one,
            generate_series(1, {ROWS})"
        );
        world
            .servers
            .app(0)
            .await
            .batch_execute(&seed)
            .await
            .unwrap();
        let writers = Writers::start(&world, 2).await;
        for (victim, verb) in [(0, "abort"), (1, "abort"), (0, "resume"), (1, "resume")] {
            let from = world.host_of(0);
            let to = format!("db{}", 2 - from);
            let child = world
                .command(&["move", "0", "--to", &to, "--yes"], &[])
                .spawn()
                .unwrap();
            under_way(&world, 1 - from).await;
            let victim = if victim == 0 { from } else { 1 - from };
            tokio::task::block_in_place(|| {
                world.servers.server(victim).restart(StopMode::Immediate)
            })
            .unwrap();
            let ran = Ran::of(child).await;
            let id = ran.ended(7).id();
            if victim != from {
                assert_eq!(
                    world.state(from, 0).await,
                    "serving",
                    "the source is well, and serves"
                );
            }
            world.run(&["moves", verb, &id]).await.ended(0);
            let now = if verb == "abort" { from } else { 1 - from };
            assert_eq!(world.state(now, 0).await, "serving");
            let sql = "SELECT count(*) FROM shard_0000.photos WHERE title LIKE 'seed%'";
            let rows: i64 = world
                .servers
                .app(now)
                .await
                .query_one(sql, &[])
                .await
                .unwrap()
                .get(0);
            assert_eq!(rows, ROWS);
            // Old copies are large.
            if verb == "resume" {
                world
                    .run(&["moves", "complete", &id, "--yes"])
                    .await
                    .ended(0);
            }
            world.audit_places().await;
        }
        let notes = writers.stop().await;
        world.audit_places().await;
        world.audit_rows_but(notes.tolerably(), "seed").await;
    }

    /// Neither host forces commits to disk, and both lose power right after the source has decided:
    /// what makes the target ready, and every acknowledged write, is still there. So is an open
    /// once the map is published.
    async fn asynchronous_commits_are_not_lost(version) {
        let world = World::new(&[version, other(version)], 4).await;
        for host in 0..2 {
            let db = world.servers.superuser(host).await;
            db.batch_execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
                .await
                .unwrap();
            db.batch_execute("ALTER ROLE app SET synchronous_commit = off")
                .await
                .unwrap();
            db.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        }
        let restart = |host: usize| {
            tokio::task::block_in_place(|| world.servers.server(host).restart(StopMode::Immediate))
                .unwrap();
        };
        for (shard, point, lost) in [
            ("0", "after ready=kill", 1),
            ("1", "after decide=kill", 0),
            ("1", "after publish=kill", 1),
        ] {
            let shard_number: u16 = shard.parse().unwrap();
            let from = world.host_of(shard_number);
            let db = world.servers.app(from).await;
            let sql = format!(
                "INSERT INTO shard_{shard_number:04}.users (name) SELECT 'late' FROM \
                    generate_series(1, 100)"
            );
            db.batch_execute(&sql).await.unwrap();
            let to = format!("db{}", 2 - from);
            let id = world
                .run_until(&["move", shard, "--to", &to, "--yes"], point)
                .await
                .ended(-9)
                .id();
            let before = world.all_about(shard_number).await;
            restart(if lost == 0 { from } else { 1 - from });
            if point != "after ready=kill" {
                assert_eq!(world.all_about(shard_number).await, before, "{point}");
            }
            world.run(&["moves", "resume", &id]).await.ended(0);
            let sql = format!("SELECT count(*) FROM shard_{shard_number:04}.users");
            let rows: i64 = world
                .servers
                .app(1 - from)
                .await
                .query_one(&sql, &[])
                .await
                .unwrap()
                .get(0);
            assert_eq!(rows % 100, 0, "{point}: {rows}");
            assert!(rows >= 100);
        }
        world.audit_places().await;
    }
}
