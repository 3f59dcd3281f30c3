//! A few rounds of fail-overs in the middle of moves, which `script/test-failover` plays for hours.

#[path = "../failover/case.rs"]
mod case;
#[path = "../failover/round.rs"]
mod round;
#[path = "../failover/writers.rs"]
mod writers;

use std::time::Duration;

use crate::router::pooler;
use crate::support;
use crate::support::{Ran, World, lines, until};

use case::{Case, Former, Gap, Mover, Names, Phase, Slots, Way};
use round::Round;

/// Sends SIGINT.
fn interrupt(child: &tokio::process::Child) {
    let pid = child.id().expect("it was not waited for");
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process's number is positive");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is ours");
}

on_each_version! {
    /// No acknowledged row is lost except those that only a former primary had.
    async fn rounds_lose_no_acknowledged_row(version) {
        for seed in if version == 15 { [2, 16] } else { [2, 4] } {
            Round::play(Case::of(seed, version)).await;
        }
    }

    /// Commits wait for `*`, and the former primary continues after its standby was promoted: it
    /// acknowledges nothing, although the mover still streams from it.
    async fn a_former_primary_acknowledges_nothing(version) {
        let case = Case::of(0, version);
        let (phase, gap, former, mover) = (Phase::Held, Gap::None, Former::Thawed, Mover::Lives);
        let (names, way, slots) = (Names::Any, Way::Addresses, Slots::None);
        Round::play(Case {
            phase,
            hosts: vec![0],
            gap,
            former,
            mover,
            names,
            way,
            slots,
            ..case
        })
        .await;
    }

    /// Routers go through PgBouncer in transaction mode, and on 18 the standbys synchronize slots.
    async fn through_a_pooler(version) {
        let case = Case::of(0, version);
        let (phase, gap, former, mover) =
            (Phase::Held, Gap::SincePhase, Former::Thawed, Mover::Lives);
        let slots = if version < 17 {
            Slots::None
        } else {
            Slots::Synchronized
        };
        let way = Way::PgBouncer;
        Round::play(Case {
            phase,
            hosts: vec![0, 1],
            gap,
            former,
            mover,
            way,
            slots,
            ..case
        })
        .await;
    }

    /// From 17 on a standby synchronizes the slots of moves. After a clean switchover of the source
    /// a move that was on hold ends without another copy. Before 17 the slot is gone, and the move
    /// copies again.
    async fn a_held_move_survives_a_switchover_of_its_source(version) {
        let world = World::with_standbys(version, 4).await;
        world.run(&["bootstrap"]).await.ended(0);
        let synchronizes = version >= 17;
        for host in [0, 1] {
            if synchronizes {
                world.servers.synchronize_slots(host + 2, host).await;
            }
        }
        let (router, shard) = (world.router().await, pgshard::ShardId::new(0).unwrap());
        let write = async |count: usize| {
            for _ in 0..count {
                let insert = "INSERT INTO {shard}.users (name) VALUES ('a')";
                let begun = std::time::Instant::now();
                while let Err(error) = router.shard(shard).unwrap().execute(insert, &[]).await {
                    assert!(begun.elapsed() < Duration::from_secs(60), "{error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        write(20).await;
        let hold = [
            "move", "0", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let held = world.command(&hold, &[]).spawn().unwrap();
        let ready = "SELECT bool_or(phase = 'ready') FROM pgshard.move";
        until(&world.servers.app(0).await, ready).await;
        write(20).await;
        world.servers.switch_over(2, 0).await;
        write(20).await;
        let source = world.servers.app(2).await;
        if synchronizes {
            let adopted = "SELECT bool_or(obj_description(oid, 'pg_publication') LIKE '%adopted%') \
                FROM pg_publication";
            until(&source, adopted).await;
        }
        world.run(&["moves", "continue"]).await;
        let ended = Ran::of(held).await;
        let id = ended.id();
        match ended.code() {
            0 => {}
            code if !synchronizes => {
                assert_eq!(code, 7, "{}", ended.stderr);
                world.run(&["moves", "resume", &id]).await.ended(0);
            }
            _ => panic!("{}", ended.stderr),
        }
        write(20).await;
        let count = "SELECT count(*) FROM shard_0000.users";
        let there: i64 = world
            .servers
            .app(1)
            .await
            .query_one(count, &[])
            .await
            .unwrap()
            .get(0);
        // A statement with a lost answer was repeated.
        assert!((80..100).contains(&there), "{there}");
    }

    /// What a former primary has sent to a move, and its standby lacks, is noticed: the
    /// synchronized slot is not used, and the move copies again.
    async fn a_synchronized_slot_that_lacks_what_was_sent_is_not_used(version) {
        let version = version.max(18);
        let world = World::with_standbys(version, 4).await;
        world.run(&["bootstrap"]).await.ended(0);
        world.servers.synchronize_slots(2, 0).await;
        let hold = [
            "move", "0", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let held = world.command(&hold, &[]).spawn().unwrap();
        let db1 = world.servers.app(0).await;
        until(&db1, "SELECT bool_or(phase = 'ready') FROM pgshard.move").await;
        let synced = "SELECT bool_or(synced AND NOT temporary) FROM pg_replication_slots \
            WHERE slot_type = 'logical'";
        until(&world.servers.superuser(2).await, synced).await;
        world.servers.cut_off(2, 0).await;
        let insert = "INSERT INTO shard_0000.users (name) VALUES ('lost') RETURNING id";
        let lost: i64 = db1.query_one(insert, &[]).await.unwrap().get(0);
        let target = world.servers.superuser(1).await;
        let arrived =
            format!("SELECT EXISTS (SELECT FROM shard_0000__incoming.users WHERE id = {lost})");
        until(&target, &arrived).await;
        let former = world.servers.server(0);
        tokio::task::block_in_place(|| former.stop(pgshard::dev::StopMode::Immediate)).unwrap();
        world.servers.promote(2).await;
        world.run(&["moves", "continue"]).await;
        let ended = Ran::of(held).await;
        if ended.code() != 0 {
            world.run(&["moves", "resume", &ended.id()]).await.ended(0);
        }
        let there: bool = target
            .query_one(&arrived.replace("__incoming", ""), &[])
            .await
            .unwrap()
            .get(0);
        assert!(!there, "the target has a row that the source has lost");
    }

    /// From 17 on a rollback survives a clean switchover of the host that its slot is on, if its
    /// changes were applied to the old copy before: PostgreSQL synchronizes only slots that are
    /// read. Before 17 it is refused, since the slot is gone.
    async fn a_rollback_survives_a_switchover_of_its_slots_host(version) {
        let world = World::with_standbys(version, 4).await;
        world.run(&["bootstrap"]).await.ended(0);
        let synchronizes = version >= 17;
        if synchronizes {
            world.servers.synchronize_slots(3, 1).await;
        }
        let there = async |host: usize, table: &str| {
            let count = format!("SELECT count(*)::text FROM {table}.users");
            lines(&world.servers.superuser(host).await, &count).await
        };
        let write = async |host: usize| {
            let insert = "INSERT INTO shard_0000.users (name) VALUES ('a')";
            world
                .servers
                .app(host)
                .await
                .execute(insert, &[])
                .await
                .unwrap();
        };
        let order = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        let id = world.run(&order).await.ended(0).id();
        write(1).await;
        let feed = world.command(&["moves", "feed"], &[]).spawn().unwrap();
        let fed = "SELECT count(*) = 1 FROM shard_0000__left_e1.users";
        until(&world.servers.superuser(0).await, fed).await;
        write(1).await;
        world.servers.switch_over(3, 1).await;
        write(3).await;
        if synchronizes {
            // The feed finds the promoted server by itself.
            let fed = "SELECT count(*) = 3 FROM shard_0000__left_e1.users";
            until(&world.servers.superuser(0).await, fed).await;
        }
        interrupt(&feed);
        Ran::of(feed).await;
        let ran = world.run(&["moves", "rollback", &id, "--yes"]).await;
        if synchronizes {
            ran.ended(0);
            assert_eq!(there(0, "shard_0000").await, "3\n");
        } else {
            assert!(ran.stderr.contains("its slot is gone"), "{}", ran.stderr);
            assert_eq!(there(3, "shard_0000").await, "3\n");
        }
    }

    /// What a former primary has sent to an old copy, and its standby lacks, is noticed: there is
    /// no rollback to an old copy with a row that the serving host has lost.
    async fn a_rollback_to_more_than_the_promoted_server_has_is_refused(version) {
        let world = World::with_standbys(version.max(18), 4).await;
        world.run(&["bootstrap"]).await.ended(0);
        world.servers.synchronize_slots(3, 1).await;
        let order = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        let id = world.run(&order).await.ended(0).id();
        let feed = world.command(&["moves", "feed"], &[]).spawn().unwrap();
        let synced = "SELECT bool_or(synced AND NOT temporary) FROM pg_replication_slots \
            WHERE slot_type = 'logical'";
        until(&world.servers.superuser(3).await, synced).await;
        world.servers.cut_off(3, 1).await;
        let insert = "INSERT INTO shard_0000.users (name) VALUES ('lost')";
        world
            .servers
            .app(1)
            .await
            .execute(insert, &[])
            .await
            .unwrap();
        let (db1, arrived) = (
            world.servers.superuser(0).await,
            "SELECT count(*) = 1 FROM \
            shard_0000__left_e1.users",
        );
        until(&db1, arrived).await;
        let former = world.servers.server(1);
        tokio::task::block_in_place(|| former.stop(pgshard::dev::StopMode::Immediate)).unwrap();
        world.servers.promote(3).await;
        let ran = world.run(&["moves", "rollback", &id, "--yes"]).await;
        assert_ne!(ran.code(), 0);
        assert!(
            ran.stderr.contains("a copy of a former primary's"),
            "{}",
            ran.stderr
        );
        interrupt(&feed);
        Ran::of(feed).await;
        let count = "SELECT count(*)::text FROM shard_0000.users";
        assert_eq!(lines(&world.servers.superuser(3).await, count).await, "0\n");
    }
}
