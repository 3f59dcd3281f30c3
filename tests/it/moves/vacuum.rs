//! The open takes locks on the target's tables that conflict with a vacuum.

use std::time::{Duration, Instant};

use tokio_postgres::Client;

use crate::support::{Ran, TestCluster, World, go_on, lines, stopped};

/// How long the tests wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes autovacuum look every second, but at nothing by itself.
async fn restless(servers: &TestCluster, host: usize) {
    let superuser = servers.superuser(host).await;
    for setting in [
        "naptime = '1s'",
        "vacuum_threshold = 1000000000",
        "vacuum_insert_threshold = -1",
        "analyze_threshold = 1000000000",
    ] {
        superuser
            .batch_execute(&format!("ALTER SYSTEM SET autovacuum_{setting}"))
            .await
            .unwrap();
    }
    superuser
        .batch_execute("SELECT pg_reload_conf()")
        .await
        .unwrap();
}

/// The processes that vacuum the table.
async fn vacuums(db: &Client, table: &str) -> String {
    // As a superuser: no other role can see what autovacuum is doing.
    let sql = format!(
        "SELECT pid::text FROM pg_stat_progress_vacuum WHERE relid = to_regclass('{table}')"
    );
    lines(db, &sql).await
}

/// Makes autovacuum, if it is restless, begin with the table, and take minutes for it.
async fn attract(db: &Client, table: &str) {
    db.batch_execute(&format!(
        "ALTER TABLE {table} SET (autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor \
            = 0,
            autovacuum_vacuum_insert_threshold = 0, autovacuum_vacuum_insert_scale_factor = 0,
            autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1)"
    ))
    .await
    .unwrap();
}

/// Waits until autovacuum has begun with the table.
async fn autovacuumed(db: &Client, table: &str) {
    let began = Instant::now();
    while vacuums(db, table).await.is_empty() {
        assert!(began.elapsed() < PATIENCE, "autovacuum comes");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Tables with foreign keys, and rows enough for a vacuum of minutes.
async fn world(version: u32) -> World {
    let world = World::new(&[version, version], 4).await;
    for shard in 0..2 {
        let insert = format!(
            "INSERT INTO shard_000{shard}.users (name) SELECT repeat('x', 500) FROM \
                generate_series(1, 20000)"
        );
        world
            .servers
            .app(0)
            .await
            .batch_execute(&insert)
            .await
            .unwrap();
    }
    restless(&world.servers, 1).await;
    world
}

/// Waits until the move of the shard waits before its fence.
async fn held(world: &World, shard: u16) {
    let (db1, began) = (world.servers.app(0).await, Instant::now());
    let phase = format!("SELECT phase FROM pgshard.move WHERE shard_id = {shard}");
    while lines(&db1, &phase).await != "ready\n" {
        assert!(began.elapsed() < PATIENCE, "the move gets ready");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

on_each_version! {
    /// An autovacuum of the target's tables ends before the fence, and none begins until the open.
    /// A VACUUM by hand is never ended: no fence is begun while it runs.
    async fn a_fence_never_waits_for_a_vacuum(version) {
        let world = world(version).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        let incoming = "shard_0000__incoming.users";
        // The target's tables are created with the settings of the source's.
        attract(&db1, "shard_0000.users").await;
        let args = [
            "move", "0", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let child = world
            .command(&args, &[("PGSHARD_FAILPOINT", "after swap=stop")])
            .spawn()
            .unwrap();
        held(&world, 0).await;
        let superuser = world.servers.superuser(1).await;
        autovacuumed(&superuser, incoming).await;
        world.run(&["moves", "continue"]).await.ended(0);
        let pid = stopped(&child).await;
        assert_eq!(world.state(0, 0).await, "fenced");
        assert_eq!(vacuums(&superuser, incoming).await, "");
        let locked = "SELECT c.relname::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
            WHERE c.relnamespace = 'shard_0000__incoming'::regnamespace AND l.mode = \
            'ShareUpdateExclusiveLock'
            AND l.granted ORDER BY 1";
        assert_eq!(lines(&db2, locked).await, "photos\nusers\n");
        go_on(pid);
        Ran::of(child).await.ended(0);
        assert_eq!(
            lines(&db1, "SELECT attempt::text FROM pgshard.move").await,
            "1\n"
        );
        world.audit_places().await;

        let incoming = "shard_0001__incoming.users";
        let args = [
            "move", "1", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let child = world.command(&args, &[]).spawn().unwrap();
        held(&world, 1).await;
        let by_hand = world.servers.app(1).await;
        by_hand
            .batch_execute(
                "SET vacuum_cost_delay = 100; SET vacuum_cost_limit = \
            1",
            )
            .await
            .unwrap();
        let (cancel, vacuum) = (by_hand.cancel_token(), format!("VACUUM {incoming}"));
        let vacuuming = tokio::spawn(async move { by_hand.batch_execute(&vacuum).await });
        let began = Instant::now();
        while vacuums(&superuser, incoming).await.is_empty() {
            assert!(began.elapsed() < PATIENCE, "the vacuum begins");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        world.run(&["moves", "continue"]).await.ended(0);
        // The mover has waited for it once.
        let waits = "SELECT pid::text FROM pg_locks WHERE relation = \
                to_regclass('shard_0001__incoming.users') AND NOT granted";
        while lines(&db2, waits).await.is_empty() {
            assert!(began.elapsed() < PATIENCE, "the mover waits for the vacuum");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(world.state(0, 1).await, "serving");
        while !lines(&db2, waits).await.is_empty() {
            assert_eq!(world.state(0, 1).await, "serving");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Once it waits again, it has reported who was in the way.
        while lines(&db2, waits).await.is_empty() {
            assert!(began.elapsed() < PATIENCE, "the mover tries again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        cancel.cancel_query(tokio_postgres::NoTls).await.unwrap();
        assert!(vacuuming.await.unwrap().is_err());
        let ran = Ran::of(child).await;
        ran.ended(0);
        assert!(
            ran.stdout.contains("VACUUM shard_0001__incoming.users"),
            "{}",
            ran.stdout
        );
        assert_eq!(
            lines(
                &db1,
                "SELECT attempt::text FROM pgshard.move WHERE shard_id = \
            1"
            )
            .await,
            "1\n"
        );
        world.audit_places().await;
    }

    /// The mover dies when it has decided, and autovacuum works on the target's tables: a router
    /// opens the target nevertheless.
    async fn a_router_opens_past_an_autovacuum(version) {
        let world = world(version).await;
        let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        world.run_until(&args, "after decide=kill").await.ended(-9);
        let (superuser, incoming) = (
            world.servers.superuser(1).await,
            "shard_0000__incoming.users",
        );
        attract(&superuser, incoming).await;
        autovacuumed(&superuser, incoming).await;
        let router = world.router().await;
        let named = router
            .by_key(0)
            .query_one(
                "SELECT count(*) FROM \
            {shard}.users",
                &[],
            )
            .await
            .unwrap();
        assert_eq!(named.get::<_, i64>(0), 20_000);
        assert_eq!(world.state(1, 0).await, "serving");
        let id = lines(
            &world.servers.app(0).await,
            "SELECT move_id::text FROM pgshard.move",
        )
        .await;
        world.run(&["moves", "resume", id.trim()]).await.ended(0);
        world.audit_places().await;
    }
}
