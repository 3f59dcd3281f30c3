//! Movers that sleep: another takes over, and when the first wakes up it changes nothing.

use std::time::Duration;

use futures_util::future::join_all;

use crate::support::{Ran, World, Writers, go_on, never_stopped, other, stopped};

/// Three seconds instead of ten. Shorter leases end by themselves on a busy machine.
const LEASE: (&str, &str) = ("PGSHARD_LEASE_MS", "3000");

/// Stops a mover, lets another take over, wakes the first up.
async fn take_over(world: &World, shard: u16, point: &str) {
    let to = format!("db{}", 2 - world.host_of(shard));
    let (number, failpoint) = (shard.to_string(), format!("{point}=stop"));
    let args = ["move", number.as_str(), "--to", to.as_str(), "--yes"];
    let mut child = world
        .command(&args, &[LEASE, ("PGSHARD_FAILPOINT", &failpoint)])
        .spawn()
        .unwrap();
    let pid = stopped(&child).await;
    let db = world.servers.app(world.host_of(shard)).await;
    let sql = "SELECT move_id::text FROM pgshard.move WHERE shard_id = $1";
    let id: String = db
        .query_one(sql, &[&i32::from(shard)])
        .await
        .unwrap()
        .get(0);
    world
        .run_with(&["moves", "resume", &id], &[LEASE])
        .await
        .ended(0);
    let before = world.all_about(shard).await;
    assert!(
        child.try_wait().unwrap().is_none(),
        "{point}: the first mover sleeps still"
    );
    go_on(pid);
    let woken = Ran::of(child).await;
    assert_eq!(
        woken.code(),
        7,
        "{point}: {}\n{}",
        woken.stdout,
        woken.stderr
    );
    assert_eq!(
        world.all_about(shard).await,
        before,
        "{point}: the first mover changed something"
    );
}

on_each_version! {
    /// At each of these points a mover sleeps until its lease and its fence are over.
    async fn a_mover_that_slept_changes_nothing(version) {
        let world = World::new(&[version, other(version)], 16).await;
        let writers = Writers::start(&world, 2).await;
        let points = [
            "after prepare",
            "after swap",
            "after marker",
            "after rows",
            "after ready",
            "after open prepared",
            "after decide",
            "before publish",
        ];
        join_all(
            points
                .iter()
                .zip(0..)
                .map(|(point, shard)| take_over(&world, shard * 2, point)),
        )
        .await;
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }

    /// It sleeps after the copy until a router has swapped back, and rows were written since. No
    /// other mover takes over: it must notice that its copy is worthless, and start again.
    async fn a_mover_that_slept_too_long_copies_again(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let args = ["move", "0", "--to", "db2", "--yes"];
        let failpoint = ("PGSHARD_FAILPOINT", "after ready=stop");
        let child = world
            .command(&args, &[("PGSHARD_LEASE_MS", "1000"), failpoint])
            .spawn()
            .unwrap();
        let pid = stopped(&child).await;
        assert_eq!(world.state(0, 0).await, "fenced");
        let router = world.router().await;
        let row = router
            .by_key(0)
            .query_one(
                "INSERT INTO {shard}.users (name) VALUES ('late') RETURNING id",
                &[],
            )
            .await
            .unwrap();
        assert_eq!(world.state(0, 0).await, "serving");
        go_on(pid);
        never_stopped(child).await.ended(0);
        let id: i64 = row.get(0);
        let found = router
            .by_id(id)
            .unwrap()
            .query_one(
                "SELECT name FROM {shard}.users WHERE id = \
                $1",
                &[&id],
            )
            .await
            .unwrap();
        assert_eq!(found.get::<_, &str>(0), "late");
        assert_eq!(world.state(1, 0).await, "serving");
        world.audit_places().await;
    }

    /// A third mover does not take the move from one that took it over and is alive.
    async fn who_took_over_is_left_alone(version) {
        let world = World::new(&[version, version], 2).await;
        let args = ["move", "0", "--to", "db2", "--yes"];
        let first = world
            .command(&args, &[LEASE, ("PGSHARD_FAILPOINT", "after prepare=stop")])
            .spawn()
            .unwrap();
        let first_pid = stopped(&first).await;
        let db = world.servers.app(0).await;
        let id: String = db
            .query_one(
                "SELECT move_id::text FROM \
            pgshard.move",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        // It holds the move for a while, because it cannot fence: another session writes.
        db.batch_execute(
            "BEGIN; INSERT INTO shard_0000.users (name) VALUES \
            ('blocks')",
        )
        .await
        .unwrap();
        let args = ["moves", "resume", &id, "--fence-attempts", "1000"];
        let second = world.command(&args, &[LEASE]).spawn().unwrap();
        let lease = "SELECT lease::text FROM pgshard.move";
        let look = world.servers.app(0).await;
        let of_the_first: String = look.query_one(lease, &[]).await.unwrap().get(0);
        let mut of_the_second = of_the_first.clone();
        while of_the_second == of_the_first {
            tokio::time::sleep(Duration::from_millis(50)).await;
            of_the_second = look.query_one(lease, &[]).await.unwrap().get(0);
        }
        world
            .run_with(&["moves", "resume", &id], &[LEASE])
            .await
            .ended(4);
        assert_eq!(
            look.query_one(lease, &[])
                .await
                .unwrap()
                .get::<_, String>(0),
            of_the_second
        );
        db.batch_execute("COMMIT").await.unwrap();
        Ran::of(second).await.ended(0);
        go_on(first_pid);
        Ran::of(first).await.ended(7);
        world.audit_places().await;
    }
}
