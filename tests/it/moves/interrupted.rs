//! Commands that hear Ctrl-C and SIGTERM end in order: what they hold is given back at once, and
//! what is left is named.

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio_postgres::Client;

use crate::support::{Frozen, Ran, World, lines, other, until};

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(
        child
            .id()
            .expect("the process was not waited for")
            .cast_signed(),
    )
    .unwrap();
    kill_process(pid, signal).unwrap();
}

/// Whether the user with this name is in the old copy of shard 0.
fn is_fed(name: &str) -> String {
    format!("SELECT EXISTS (SELECT FROM shard_0000__left_e1.users WHERE name = '{name}')")
}

/// Whether a session of pgshard waits for a lock.
const WAITS: &str = "SELECT EXISTS (SELECT FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND application_name LIKE 'pgshard%')";

/// Who works on moves, and which shards are held.
async fn held(db: &Client) -> String {
    let sql = "SELECT 'mover ' || work FROM pgshard.mover
        UNION ALL SELECT 'shard ' || shard_id FROM pgshard.move WHERE lease_until > \
        clock_timestamp() ORDER BY 1";
    lines(db, sql).await
}

/// The shards whose old copies are kept.
async fn kept(db: &Client) -> String {
    let sql = "SELECT coalesce(string_agg(shard_id::text, ',' ORDER BY shard_id), '')
        FROM pgshard.move WHERE phase = 'kept'";
    db.query_one(sql, &[]).await.unwrap().get(0)
}

on_each_version! {
    /// Whether it waits between two looks, is in the midst of one, or has just begun: nobody is at
    /// work afterwards.
    async fn a_feed_gives_back_what_it_holds(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        world
            .run(&["move", "0", "--to", "db2", "--yes", "--mode", "online"])
            .await
            .ended(0);
        let mut wrong = Vec::new();
        for how in [Signal::INT, Signal::TERM] {
            let name = format!("fed until {}", how.as_raw());
            let feed = world.command(&["moves", "feed"], &[]).spawn().unwrap();
            db2.execute("INSERT INTO shard_0000.users (name) VALUES ($1)", &[&name])
                .await
                .unwrap();
            until(&db1, &is_fed(&name)).await;
            signal(&feed, how);
            let ran = Ran::of(feed).await;
            wrong.push((format!("{how:?}"), ran.code(), held(&db1).await));
        }
        // A look asks the new host who serves the shard.
        let feed = world.command(&["moves", "feed"], &[]).spawn().unwrap();
        until(&db1, "SELECT EXISTS (SELECT FROM pgshard.mover)").await;
        db2.execute(
            "INSERT INTO shard_0000.users (name) VALUES ('looked \
            after')",
            &[],
        )
        .await
        .unwrap();
        until(&db1, &is_fed("looked after")).await;
        db2.batch_execute("BEGIN; LOCK TABLE pgshard.shard")
            .await
            .unwrap();
        until(&world.servers.app(1).await, WAITS).await;
        signal(&feed, Signal::INT);
        let ran = Ran::of(feed).await;
        db2.batch_execute("ROLLBACK").await.unwrap();
        wrong.push(("in a look".to_owned(), ran.code(), held(&db1).await));
        // Whoever begins writes into the journal that it has the shard.
        let locker = world.servers.app(0).await;
        locker
            .batch_execute("BEGIN; SELECT FROM pgshard.move FOR UPDATE")
            .await
            .unwrap();
        let feed = world.command(&["moves", "feed"], &[]).spawn().unwrap();
        until(&db1, "SELECT EXISTS (SELECT FROM pgshard.mover)").await;
        until(&db1, WAITS).await;
        signal(&feed, Signal::INT);
        let ran = Ran::of(feed).await;
        locker.batch_execute("ROLLBACK").await.unwrap();
        wrong.push(("at its start".to_owned(), ran.code(), held(&db1).await));
        wrong.retain(|(_, code, held)| *code != 0 || !held.is_empty());
        assert!(wrong.is_empty(), "{wrong:?}");
        world.audit_places().await;
    }

    /// However often it is asked, a mover is not cut off between the fence and the open: the source
    /// serves again.
    async fn a_move_stops_in_order(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let db1 = world.servers.app(0).await;
        for how in [Signal::INT, Signal::TERM] {
            let order = ["move", "0", "--to", "db2", "--yes"];
            let child = world
                .command(&order, &[("PGSHARD_FAILPOINT", "after swap=stop")])
                .spawn()
                .unwrap();
            let pid = crate::support::stopped(&child).await;
            signal(&child, how);
            signal(&child, Signal::TERM);
            crate::support::go_on(pid);
            let ran = Ran::of(child).await;
            assert!(
                ran.ended(130).stderr.contains("stops in order"),
                "{}",
                ran.stderr
            );
            db1.execute(
                "INSERT INTO shard_0000.users (name) VALUES \
                ('served')",
                &[],
            )
            .await
            .unwrap();
            world.run(&["moves", "abort"]).await.ended(0);
        }
        world.audit_places().await;
    }

    /// The shard that is at work is finished, the others are named, and the same command drops
    /// them.
    async fn complete_ends_between_two_shards(version) {
        let world = World::new(&[version, other(version)], 8).await;
        let db1 = world.servers.app(0).await;
        world
            .run(&["move", "0-3", "--to", "db2", "--yes"])
            .await
            .ended(0);
        let complete = ["moves", "complete", "--yes"];
        let child = world
            .command(&complete, &[("PGSHARD_FAILPOINT", "after old copy=stop")])
            .spawn()
            .unwrap();
        crate::support::stopped(&child).await;
        assert_eq!(kept(&db1).await, "1,2,3");
        signal(&child, Signal::INT);
        let ran = crate::support::never_stopped(child).await;
        let left = kept(&db1).await;
        assert!(
            ["1,2,3", "2,3"].contains(&left.as_str()),
            "{left}\n{}",
            ran.stderr
        );
        let told = ran.ended(130).last();
        assert_eq!(
            told["failed"].as_array().unwrap().len(),
            left.split(',').count(),
            "{told}"
        );
        assert_eq!(told["shards"], if left == "2,3" { "0-1" } else { "0" });
        assert!(
            ran.stderr.contains("interrupted") && ran.stderr.contains("the old copy is kept"),
            "{}",
            ran.stderr
        );
        let all = world
            .command(&["moves", "complete", "--all", "--yes"], &[])
            .spawn()
            .unwrap();
        Ran::of(all).await.ended(0);
        assert_eq!(kept(&db1).await, "");
        world.audit_places().await;
    }

    /// The shards that it has not come to can be taken back, also while it is at work, and then it
    /// leaves them alone.
    async fn complete_leaves_the_ways_back_that_it_has_not_come_to(version) {
        let world = World::new(&[version, other(version)], 8).await;
        let db1 = world.servers.app(0).await;
        let id = world
            .run(&["move", "0-3", "--to", "db2", "--yes", "--mode", "online"])
            .await
            .ended(0)
            .id();
        let complete = ["moves", "complete", "--yes"];
        let child = world
            .command(&complete, &[("PGSHARD_FAILPOINT", "after old copy=stop")])
            .spawn()
            .unwrap();
        crate::support::stopped(&child).await;
        assert_eq!(kept(&db1).await, "1,2,3");
        world
            .run(&["moves", "rollback", &id, "--yes"])
            .await
            .ended(0);
        crate::support::never_stopped(child).await;
        assert_eq!([0, 1, 2, 3].map(|shard| world.host_of(shard)), [1, 0, 0, 0]);
        world
            .run(&["moves", "complete", "--all", "--yes"])
            .await
            .ended(0);
        world.run(&["moves", "gc"]).await.ended(0);
        world.run(&["check"]).await.ended(0);
        world.audit_places().await;
    }

    /// Of several moves, those that were not begun are left; a second Ctrl-C waits for nobody.
    async fn complete_all_ends_between_two_moves(version) {
        let world = World::new(&[version, other(version)], 8).await;
        let db1 = world.servers.app(0).await;
        for shard in ["0", "1", "2", "3"] {
            world
                .run(&["move", shard, "--to", "db2", "--yes"])
                .await
                .ended(0);
        }
        let complete = ["moves", "complete", "--all", "--yes"];
        let child = world
            .command(&complete, &[("PGSHARD_FAILPOINT", "after old copy=stop")])
            .spawn()
            .unwrap();
        crate::support::stopped(&child).await;
        signal(&child, Signal::INT);
        let ran = crate::support::never_stopped(child).await;
        let left = kept(&db1).await;
        assert!(
            ["1,2,3", "2,3"].contains(&left.as_str()),
            "{left}\n{}",
            ran.stderr
        );
        let done = format!("completed {} of 4 moves", 4 - left.split(',').count());
        assert!(ran.ended(130).stderr.contains(&done), "{}", ran.stderr);

        let mut child = world
            .command(&complete, &[("PGSHARD_FAILPOINT", "after old copy=stop")])
            .spawn()
            .unwrap();
        let pid = crate::support::stopped(&child).await;
        let frozen = Frozen::new(world.servers.server(0).pid().unwrap());
        crate::support::go_on(pid);
        signal(&child, Signal::INT);
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        while !said
            .next_line()
            .await
            .unwrap()
            .expect(
                "it tells of a second \
            Ctrl-C",
            )
            .contains("Ctrl-C again")
        {}
        signal(&child, Signal::INT);
        Ran::of(child).await.ended(130);
        drop(frozen);
        world.run(&complete).await.ended(0);
        world.audit_places().await;
    }
}
