//! What a fence and an open will do is done before in the same sessions, and rolled back.

use crate::support::{Ran, World, lines, until};

/// Makes the servers count the calls of functions, those of transactions that are rolled back too.
async fn counted(version: u32) -> World {
    let world = World::new(&[version, version], 4).await;
    for host in 0..2 {
        let superuser = world.servers.superuser(host).await;
        superuser
            .batch_execute("ALTER SYSTEM SET track_functions = 'all'")
            .await
            .unwrap();
        superuser
            .batch_execute("SELECT pg_reload_conf()")
            .await
            .unwrap();
    }
    world
}

/// Waits until these functions of a host's control schema have been called so often. Sessions
/// report these statistics when they end.
async fn calls(world: &World, host: usize, expected: &str) {
    let sql = format!(
        "SELECT string_agg(funcname || ' ' || calls, ', ' ORDER BY funcname) IS NOT DISTINCT FROM \
            '{expected}'
         FROM pg_stat_user_functions
         WHERE schemaname = 'pgshard' AND funcname IN ('fence', 'mark', 'decide', 'open_incoming')"
    );
    until(&world.servers.superuser(host).await, &sql).await;
}

on_each_version! {
    /// The mover dies between the rehearsal and the swap: everything is as if there had been none,
    /// and the move can continue.
    async fn a_rehearsal_leaves_nothing(version) {
        let world = counted(version).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        world.run_until(&args, "before swap=kill").await.ended(-9);
        calls(&world, 0, "decide 1, fence 1, mark 1").await;
        calls(&world, 1, "open_incoming 1").await;
        assert_eq!(world.state(0, 0).await, "serving");
        let at_source = "SELECT concat_ws(' ', m.phase, m.attempt, m.open_token, s.attempt, \
            s.fence_deadline,
                (SELECT count(*) FROM pgshard.marker), (SELECT count(*) FROM pgshard.ledger WHERE \
                kind = 'left'))
            FROM pgshard.move m JOIN pgshard.shard s USING (shard_id)";
        assert_eq!(lines(&db1, at_source).await, "ready 0 0 0\n");
        let schemas = "SELECT nspname::text FROM pg_namespace WHERE nspname ~ '^shard_0000' ORDER \
            BY 1";
        assert_eq!(
            lines(&db1, schemas).await,
            "shard_0000\nshard_0000__signpost\n"
        );
        assert_eq!(lines(&db2, schemas).await, "shard_0000__incoming\n");
        let at_target = "SELECT concat_ws(' ', count(*), max(ready_attempt),
            (SELECT count(*) FROM pgshard.shard WHERE shard_id = 0)) FROM pgshard.incoming";
        assert_eq!(lines(&db2, at_target).await, "1 0\n");
        world.run(&["moves", "resume"]).await.ended(0);
        assert_eq!(
            lines(&db1, "SELECT attempt::text FROM pgshard.move").await,
            "1\n"
        );
        world.audit_places().await;
    }

    /// Another session has locked a row that the rehearsal needs: there is no rehearsal, and the
    /// fence succeeds all the same.
    async fn a_fence_goes_without_a_rehearsal(version) {
        let world = counted(version).await;
        let (db1, mut db2) = (world.servers.app(0).await, world.servers.app(1).await);
        let args = [
            "move", "0", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let child = world.command(&args, &[]).spawn().unwrap();
        until(
            &db1,
            "SELECT coalesce((SELECT phase = 'ready' FROM pgshard.move), false)",
        )
        .await;
        let holding = db2.transaction().await.unwrap();
        holding
            .batch_execute("SELECT FROM pgshard.incoming FOR UPDATE")
            .await
            .unwrap();
        world.run(&["moves", "continue"]).await.ended(0);
        // What comes before the swap waits for the row for two seconds, a rehearsal for a tenth of
        // one.
        let waits = "SELECT count(*) > 0 FROM pg_stat_activity
            WHERE wait_event_type = 'Lock' AND query LIKE 'SELECT FROM pgshard.incoming %'";
        until(&world.servers.superuser(1).await, waits).await;
        holding.rollback().await.unwrap();
        Ran::of(child).await.ended(0);
        calls(&world, 1, "open_incoming 1").await;
        world.audit_places().await;
    }
}
