//! A host fails over to a standby that lacks the last seconds, while a mover, or a feeder of old
//! copies, is still alive.

use std::time::Duration;

use pgshard::dev::StopMode;
use tokio_postgres::Client;

use crate::support::{Ran, World, go_on, lines, stopped, until};

/// Cuts the standby off, waits until `client`'s slot has confirmed more than the standby has of
/// these shards, and promotes the standby in place of its primary.
async fn fail_over(world: &World, primary: usize, client: &Client) {
    let standby = world.servers.superuser(2).await;
    standby
        .batch_execute("ALTER SYSTEM SET primary_conninfo = ''")
        .await
        .unwrap();
    standby
        .batch_execute("SELECT pg_reload_conf()")
        .await
        .unwrap();
    until(
        &standby,
        "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)",
    )
    .await;
    let received = lines(
        &standby,
        "SELECT max(applied_lsn)::text FROM pgshard.progress",
    )
    .await;
    let sql = format!(
        "SELECT bool_and(confirmed_flush_lsn > '{}') FROM pg_replication_slots WHERE slot_name \
            LIKE 'pgshard%'",
        received.trim()
    );
    until(client, &sql).await;
    tokio::task::block_in_place(|| world.servers.server(primary).stop(StopMode::Immediate))
        .unwrap();
    let promote = "SELECT pg_promote(true, 60)";
    assert!(
        standby
            .query_one(promote, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    );
}

/// Writes to a shard until it is closed or the host is gone.
fn write(client: Client, shard: u16) -> tokio::task::JoinHandle<u32> {
    tokio::spawn(async move {
        let insert = format!("INSERT INTO shard_{shard:04}.users (name) VALUES ('written')");
        let mut written = 0;
        while client.execute(&insert, &[]).await.is_ok() {
            written += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        written
    })
}

/// All rows of a table.
async fn rows(world: &World, host: usize, table: &str) -> String {
    lines(
        &world.servers.app(host).await,
        &format!("SELECT t::text FROM {table} t ORDER BY 1"),
    )
    .await
}

on_each_version! {
    /// The target fails over while the shards wait before their fence. The slot has confirmed what
    /// the promoted server lacks: the mover reports that, and a resume copies again.
    async fn of_the_target(version) {
        let world = World::with_standby(version, 2, 1).await;
        let db1 = world.servers.app(0).await;
        // Both shards are on db1.
        let all = "INSERT INTO shard_0000.users (name) SELECT 'old' FROM generate_series(1, 500)";
        db1.batch_execute(all).await.unwrap();
        let writer = write(world.servers.app(0).await, 0);
        let args = [
            "move", "0", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let child = world.command(&args, &[]).spawn().unwrap();
        until(&db1, "SELECT bool_or(phase = 'ready') FROM pgshard.move").await;
        let id = lines(&db1, "SELECT move_id::text FROM pgshard.move").await;
        let id = id.trim();
        fail_over(&world, 1, &db1).await;
        let lost = Ran::of(child).await;
        // The mover also ends if one of its connections reaches the standby before it is promoted.
        let told = lost
            .ended(7)
            .stderr
            .contains("has lost changes that were applied there");
        assert!(
            told || lost.stderr.contains("moves resume"),
            "{}",
            lost.stderr
        );
        assert!(
            !told || lost.stderr.contains("which copies again"),
            "{}",
            lost.stderr
        );
        assert_eq!(world.state(0, 0).await, "serving");
        world.run(&["moves", "continue", id]).await;
        world.run(&["moves", "resume", id]).await.ended(0);
        assert!(writer.await.unwrap() > 100);
        assert_eq!(
            rows(&world, 2, "shard_0000.users").await,
            rows(&world, 0, "shard_0000__left_e1.users").await
        );
        assert_eq!(world.state(2, 0).await, "serving");
    }

    /// The host of an old copy fails over while the copy is fed: there is no longer a reverse
    /// replication, and every command about it reports that.
    async fn of_the_host_of_an_old_copy(version) {
        let world = World::with_standby(version, 2, 0).await;
        let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        let id = world.run(&args).await.ended(0).id();
        let db2 = world.servers.app(1).await;
        let writer = write(world.servers.app(1).await, 0);
        let mut feed = world.command(&["moves", "feed"], &[]).spawn().unwrap();
        let fed = world.servers.superuser(0).await;
        until(&fed, "SELECT count(*) > 10 FROM shard_0000__left_e1.users").await;
        let standby = world.servers.superuser(2).await;
        until(
            &standby,
            "SELECT count(*) > 10 FROM shard_0000__left_e1.users",
        )
        .await;
        fail_over(&world, 0, &db2).await;
        let lost = "SELECT bool_or(lost LIKE 'db1 has lost changes of the old copy%') FROM \
            pgshard.back";
        until(&standby, lost).await;
        feed.kill().await.unwrap();
        let listed = world.run(&["moves", "list"]).await.ended(0).last()["moves"][0].take();
        assert!(
            listed["back"].as_str().unwrap().starts_with("lost"),
            "{listed}"
        );
        let refused = world.run(&["moves", "rollback", &id, "--yes"]).await;
        assert!(
            refused.ended(4).stderr.contains(
                "has lost changes of the old \
            copy"
            ),
            "{}",
            refused.stderr
        );
        assert_eq!(world.state(1, 0).await, "serving");
        writer.abort();
        // The same without a running feed: a rollback checks by itself.
        standby
            .batch_execute("UPDATE pgshard.back SET lost = NULL")
            .await
            .unwrap();
        let slot = lines(&db2, "SELECT slot_name::text FROM pg_replication_slots").await;
        if !slot.is_empty() {
            let refused = world.run(&["moves", "rollback", &id, "--yes"]).await;
            assert!(
                refused.ended(4).stderr.contains(
                    "has lost changes of the old \
                copy"
                ),
                "{}",
                refused.stderr
            );
        }
    }

    /// For `*` PostgreSQL counts every stream that reports what it has flushed as a standby. The
    /// mover's stream is none, also where the setting comes later: while the standby is gone, a
    /// commit waits although the target has its row. The slot is confirmed nevertheless.
    async fn a_stream_is_no_standby(version) {
        let world = World::with_standby(version, 2, 0).await;
        let db1 = world.servers.superuser(0).await;
        let args = [
            "move", "0", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let child = world.command(&args, &[]).spawn().unwrap();
        until(&db1, "SELECT bool_or(phase = 'ready') FROM pgshard.move").await;
        let id = lines(&db1, "SELECT move_id::text FROM pgshard.move").await;
        let of_mover = "FROM pg_stat_replication WHERE application_name = 'pgshard mover'";
        until(
            &db1,
            &format!("SELECT bool_and(flush_lsn IS NOT NULL) {of_mover}"),
        )
        .await;
        db1.batch_execute(
            "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 \
            (\"*\")'",
        )
        .await
        .unwrap();
        db1.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        until(
            &db1,
            &format!(
                "SELECT bool_and(flush_lsn IS NULL AND sync_state = 'async') \
            {of_mover}"
            ),
        )
        .await;

        let slot = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_type = \
            'logical'";
        let before = lines(&db1, slot).await;
        for segments in 1.. {
            db1.batch_execute(
                "SELECT pg_logical_emit_message(false, 'a test', \
                'x')",
            )
            .await
            .unwrap();
            db1.batch_execute("SELECT pg_switch_wal()").await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = lines(&db1, slot).await;
            if !now.is_empty() && now != before {
                break;
            }
            assert!(segments < 300, "the slot stays at {before}");
        }

        tokio::task::block_in_place(|| world.servers.server(2).stop(StopMode::Fast)).unwrap();
        let writer = world.servers.app(0).await;
        let pid: i32 = writer
            .query_one("SELECT pg_backend_pid()", &[])
            .await
            .unwrap()
            .get(0);
        let insert = "INSERT INTO shard_0000.users (id, name) VALUES (1, 'waits')";
        let insert = tokio::spawn(async move { writer.execute(insert, &[]).await });
        until(
            &db1,
            &format!(
                "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = \
            {pid}"
            ),
        )
        .await;
        let flushed = lines(&db1, "SELECT pg_current_wal_flush_lsn()::text").await;
        until(
            &db1,
            &format!(
                "SELECT bool_and(write_lsn >= '{}') \
            {of_mover}",
                flushed.trim()
            ),
        )
        .await;
        assert!(
            rows(&world, 1, "shard_0000__incoming.users")
                .await
                .contains("(1,waits)")
        );
        until(
            &db1,
            &format!(
                "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = \
            {pid}"
            ),
        )
        .await;
        assert!(
            !insert.is_finished(),
            "it was acknowledged, and no standby has it"
        );

        tokio::task::block_in_place(|| world.servers.server(2).start()).unwrap();
        assert_eq!(insert.await.unwrap().unwrap(), 1);
        world.run(&["moves", "continue", id.trim()]).await;
        // Its heartbeats waited, too: on a slow machine its lease may be over.
        if Ran::of(child).await.code() != 0 {
            world.run(&["moves", "resume", id.trim()]).await.ended(0);
        }
        assert_eq!(
            rows(&world, 1, "shard_0000.users").await,
            rows(&world, 0, "shard_0000__left_e1.users").await
        );
    }
}

/// A source that synchronizes slots with its standby (from 17 on) fails over without what its
/// target has had, and the slot of the move has come over. At the positions where the lost changes
/// were there are others now: a mover must not read on from there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_source_whose_slot_comes_over() {
    let world = World::with_standby(18, 2, 0).await;
    world.servers.synchronize_slots(2, 0).await;
    let (db1, db2) = (
        world.servers.superuser(0).await,
        world.servers.superuser(1).await,
    );
    // The mover makes one slot only, so that it stops once.
    let args = [
        "move",
        "0",
        "--to",
        "db2",
        "--mode",
        "online",
        "--yes",
        "--hold",
        "--no-reverse-replication",
    ];
    let mut child = world
        .command(&args, &[("PGSHARD_FAILPOINT", "before slot=stop")])
        .spawn()
        .unwrap();
    let pid = stopped(&child).await;
    // A mover makes none like this, but the slot may be altered.
    let id = lines(&db1, "SELECT move_id::text FROM pgshard.move")
        .await
        .trim()
        .to_owned();
    let name = format!("pgshard_{}", id.replace('-', ""));
    let slot = format!(
        "SELECT FROM pg_create_logical_replication_slot('{name}', 'pgoutput', false, false, true)"
    );
    world
        .servers
        .app(0)
        .await
        .execute(&slot, &[])
        .await
        .unwrap();
    go_on(pid);
    until(&db1, "SELECT bool_or(phase = 'ready') FROM pgshard.move").await;
    let standby = world.servers.superuser(2).await;
    let synced = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE synced AND NOT temporary)";
    // The standby takes it once the stream has gone beyond what the standby itself has for it.
    for _ in 0..3000 {
        db1.batch_execute("INSERT INTO shard_0000.users (name) VALUES ('before')")
            .await
            .unwrap();
        db1.batch_execute("SELECT pg_log_standby_snapshot()")
            .await
            .unwrap();
        if standby
            .query_one(synced, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until(&standby, synced).await;
    world.servers.cut_off(2, 0).await;
    for _ in 0..3 {
        db1.batch_execute("INSERT INTO shard_0000.users (name) VALUES ('lost')")
            .await
            .unwrap();
        db1.batch_execute("SELECT pg_switch_wal()").await.unwrap();
    }
    until(
        &db2,
        "SELECT count(*) = 3 FROM shard_0000__incoming.users WHERE name = 'lost'",
    )
    .await;
    // The source's WAL advances in that time: the mover's own lease is in it.
    let lost = lines(&db1, "SELECT pg_current_wal_lsn()::text").await;
    let lost = format!(
        "SELECT confirmed_flush_lsn >= '{}' FROM pg_replication_slots WHERE failover",
        lost.trim()
    );
    until(&db1, &lost).await;
    child.kill().await.unwrap();
    tokio::task::block_in_place(|| world.servers.server(0).stop(StopMode::Immediate)).unwrap();
    world.servers.promote(2).await;
    standby
        .batch_execute("INSERT INTO shard_0000.users (name) VALUES ('new')")
        .await
        .unwrap();
    let there = format!("SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = '{name}'");
    until(&standby, &there).await;
    world.run(&["moves", "continue", &id]).await;
    world.run(&["moves", "resume", &id]).await.ended(0);
    let moved = rows(&world, 1, "shard_0000.users").await;
    assert!(
        moved.contains(",new)") && !moved.contains(",lost)"),
        "{moved}"
    );
    assert_eq!(moved, rows(&world, 2, "shard_0000__left_e1.users").await);
}
