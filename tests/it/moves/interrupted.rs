//! Commands that get Ctrl-C and SIGTERM end in order: what they hold is given back immediately, and
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

/// The processes that work on moves, and the shards that are held.
async fn held(db: &Client) -> String {
    let sql = "SELECT 'mover ' || work FROM pgshard.mover
        UNION ALL SELECT 'shard ' || shard_id FROM pgshard.move WHERE lease_until > \
        clock_timestamp() ORDER BY 1";
    lines(db, sql).await
}

/// The shards with kept old copies.
async fn kept(db: &Client) -> String {
    let sql = "SELECT coalesce(string_agg(shard_id::text, ',' ORDER BY shard_id), '')
        FROM pgshard.move WHERE phase = 'kept'";
    db.query_one(sql, &[]).await.unwrap().get(0)
}

on_each_version! {
    /// Whether it waits between two looks, is in the midst of one, or has just begun: no process is
    /// at work afterwards.
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
        // A look queries the new host about who serves the shard.
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
        // A process that begins writes into the journal that it has the shard.
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

    /// However many signals it gets, a mover is not cut off between the fence and the open: the
    /// source serves again.
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

    /// Shards that are at work are finished, the others are named, and the same command drops them.
    async fn complete_begins_no_other_shard(version) {
        let world = World::new(&[version, other(version)], 16).await;
        let db1 = world.servers.app(0).await;
        world
            .run(&["move", "0-7", "--to", "db2", "--yes"])
            .await
            .ended(0);
        let complete = ["moves", "complete", "--yes"];
        let child = world
            .command(&complete, &[("PGSHARD_FAILPOINT", "after old copy=stop")])
            .spawn()
            .unwrap();
        crate::support::stopped(&child).await;
        signal(&child, Signal::INT);
        let ran = crate::support::never_stopped(child).await;
        let left = kept(&db1).await;
        assert!(!left.is_empty(), "{}", ran.stderr);
        let told = ran.ended(130).last();
        let failed = told["failed"].as_array().unwrap().iter();
        let failed: Vec<String> = failed.map(|one| one["shard"].to_string()).collect();
        assert_eq!(failed.join(","), left, "{told}");
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
        let world = World::new(&[version, other(version)], 16).await;
        let id = world
            .run(&["move", "0-7", "--to", "db2", "--yes", "--mode", "online"])
            .await
            .ended(0)
            .id();
        let complete = ["moves", "complete", "--yes"];
        let child = world
            .command(&complete, &[("PGSHARD_FAILPOINT", "after old copy=stop")])
            .spawn()
            .unwrap();
        crate::support::stopped(&child).await;
        // Those of the first four that are not dropped yet may be locked.
        world.run(&["moves", "rollback", &id, "--yes"]).await;
        crate::support::never_stopped(child).await;
        assert_eq!([4, 5, 6, 7].map(|shard| world.host_of(shard)), [0; 4]);
        world.run(&["moves", "resume"]).await;
        world
            .run(&["moves", "complete", "--all", "--yes"])
            .await
            .ended(0);
        world.run(&["moves", "gc"]).await.ended(0);
        world.run(&["check"]).await.ended(0);
        world.audit_places().await;
    }

    /// Old copies are dropped at the same time. One with a reader is kept, and stops no other.
    async fn old_copies_are_dropped_at_the_same_time(version) {
        let world = World::new(&[version, other(version)], 16).await;
        let db1 = world.servers.app(0).await;
        let id = world
            .run(&["move", "0-7", "--to", "db2", "--yes"])
            .await
            .ended(0)
            .id();
        let mut readers = Vec::new();
        for shard in [1, 2] {
            let reader = world.servers.superuser(0).await;
            let sql = format!("BEGIN; SELECT FROM shard_000{shard}__left_e1.users");
            reader.batch_execute(&sql).await.unwrap();
            readers.push(reader);
        }
        let child = world
            .command(&["moves", "complete", &id, "--yes"], &[])
            .spawn()
            .unwrap();
        until(
            &db1,
            "SELECT count(*) = 2 FROM pg_stat_activity
             WHERE wait_event_type = 'Lock' AND application_name = 'pgshard mover'",
        )
        .await;
        let ran = Ran::of(child).await;
        assert_eq!(kept(&db1).await, "1,2", "{}", ran.stderr);
        let told = ran.ended(8).last();
        assert_eq!(told["shards"], "0, 3-7", "{told}");
        assert_eq!(told["failed"].as_array().unwrap().len(), 2, "{told}");
        drop(readers);
        world
            .run(&["moves", "complete", &id, "--yes"])
            .await
            .ended(0);
        world.audit_places().await;
    }

    /// An old copy is checked when it is its turn: a view that was created on it since the command
    /// began is not dropped with it.
    async fn an_old_copy_that_came_into_use_is_kept(version) {
        let world = World::new(&[version, other(version)], 16).await;
        let db1 = world.servers.app(0).await;
        let id = world
            .run(&["move", "0-7", "--to", "db2", "--yes", "--mode", "online"])
            .await
            .ended(0)
            .id();
        let complete = ["moves", "complete", id.as_str(), "--yes"];
        let child = world
            .command(&complete, &[("PGSHARD_FAILPOINT", "after old copy=stop")])
            .spawn()
            .unwrap();
        crate::support::stopped(&child).await;
        let owner = world.servers.superuser(0).await;
        owner
            .batch_execute("CREATE VIEW public.uses AS SELECT * FROM shard_0006__left_e1.users")
            .await
            .unwrap();
        let ran = crate::support::never_stopped(child).await;
        let told = ran.ended(8).last();
        assert_eq!(told["shards"], "0-5, 7", "{told}");
        assert!(ran.stderr.contains("is still in use: "), "{}", ran.stderr);
        assert_eq!(kept(&db1).await, "6");
        owner
            .batch_execute("SELECT FROM public.uses; DROP VIEW public.uses")
            .await
            .unwrap();
        // A refusal leaves everything as it was.
        world
            .run(&["moves", "rollback", &id, "--yes"])
            .await
            .ended(0);
        assert_eq!(world.host_of(6), 0);
        world
            .run(&["moves", "complete", "--all", "--yes"])
            .await
            .ended(0);
        world.audit_places().await;
    }

    /// Of several moves, those that were not begun are left; a second Ctrl-C waits for nothing.
    async fn complete_all_ends_between_two_moves(version) {
        let world = World::new(&[version, other(version)], 16).await;
        let db1 = world.servers.app(0).await;
        for shard in ["0", "1", "2", "3", "4", "5", "6", "7"] {
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
        assert!(!left.is_empty(), "{}", ran.stderr);
        let done = format!("completed {} of 8 moves", 8 - left.split(',').count());
        assert!(ran.ended(130).stderr.contains(&done), "{}", ran.stderr);

        let mut child = world
            .command(&complete, &[("PGSHARD_FAILPOINT", "after old copy=stop")])
            .spawn()
            .unwrap();
        crate::support::stopped(&child).await;
        let frozen = Frozen::new(world.servers.server(0).pid().unwrap());
        // Moves are completed side by side, so others may pass the failpoint after it.
        let going = crate::support::kept_going(&child);
        signal(&child, Signal::INT);
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        while !said
            .next_line()
            .await
            .unwrap()
            .expect("it tells of a second Ctrl-C")
            .contains("Ctrl-C again")
        {}
        signal(&child, Signal::INT);
        Ran::of(child).await.ended(130);
        drop((going, frozen));
        world.run(&complete).await.ended(0);
        world.audit_places().await;
    }
}
