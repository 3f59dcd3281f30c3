//! What happens to a cluster.

use std::time::Duration;

use futures_util::future::join_all;

use super::figures::Figures;
use super::server::Condition;
use super::world::{DEADLINE, Scale, World};
use crate::map::{Changes, Placement, ShardEpoch};
use crate::shard::ShardId;

/// Runs a scene in time that jumps.
fn play(scene: impl AsyncFnOnce(Scale)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime.expect("a runtime").block_on(scene(Scale::wanted()));
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// The memory of this process.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok())
        .unwrap_or(0)
        * 4
}

#[test]
fn calls_are_measured_alone() {
    play(async |scale| {
        let before = resident();
        let world = World::warm(scale).await;
        println!(
            "{} KiB a router, with {} hosts' connections, both ends",
            (resident() - before) / scale.routers,
            scale.hosts
        );
        let figures = Figures::begin(&world, "calls alone");
        seconds(20).await;
        let figures = figures.end(&world);
        assert!(figures.errors.is_empty() && figures.look_ups == 0);
    });
}

#[test]
fn a_new_map() {
    play(async |scale| {
        let world = World::warm(scale).await;
        let figures = Figures::begin(&world, "a new map");
        let shard = ShardId::new(0).expect("a shard");
        let placement = world.map().placement(shard).expect("it has a place");
        let epoch = ShardEpoch::new(placement.epoch.get() + 1).expect("an epoch");
        let version = world.publish(&Changes::from_iter([(
            shard,
            Placement { epoch, ..placement },
        )]));
        let began = tokio::time::Instant::now();
        while world.routers_at(version) < scale.routers {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let took = began.elapsed();
        println!("every router has it after {} ms", took.as_millis());
        seconds(2).await;
        let figures = figures.end(&world);
        assert!(figures.errors.is_empty() && took < Duration::from_millis(200));
        // They do not query at the same moment, though all are notified at the same.
        assert!(figures.control_at_work <= scale.routers / 4, "{figures}");
    });
}

async fn a_host_goes(scale: Scale, condition: Condition, what: &str) {
    let world = World::warm(scale).await;
    let figures = Figures::begin(&world, &format!("a host {what}"));
    world.hosts[0].server.become_away(condition);
    seconds(20).await;
    let figures = figures.end(&world);
    // A router tries once for all its callers, with pauses.
    assert!(figures.connects as usize <= 2 * scale.routers, "{figures}");
    let figures = Figures::begin(&world, "it comes back");
    world.hosts[0].server.come_back();
    seconds(20).await;
    let figures = figures.end(&world);
    assert!(figures.connects as usize <= 4 * scale.routers, "{figures}");
    let figures = Figures::begin(&world, "and a while later");
    seconds(5).await;
    assert!(figures.end(&world).errors.is_empty());
}

#[test]
fn a_host_dies() {
    play(async |scale| a_host_goes(scale, Condition::Refuses, "dies").await);
}

#[test]
fn a_host_goes_silent() {
    play(async |scale| a_host_goes(scale, Condition::Silent, "goes silent").await);
}

#[test]
fn a_host_is_drained() {
    play(async |scale| {
        let world = World::warm(scale).await;
        let figures = Figures::begin(&world, "a host is drained");
        let map = world.map();
        let shards: Vec<ShardId> = map.shards_on(&world.hosts[0].name).collect();
        for (at, pair) in shards.chunks(2).enumerate() {
            let to = |which: usize| 1 + (2 * at + which) % (scale.hosts - 1);
            join_all(
                pair.iter()
                    .enumerate()
                    .map(|(which, shard)| world.move_shard(*shard, 0, to(which))),
            )
            .await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        seconds(2).await;
        let figures = figures.end(&world);
        assert!(figures.errors.is_empty());
        assert!(figures.look_ups as usize <= 5 * scale.routers, "{figures}");
    });
}

#[test]
fn a_mover_dies_behind_its_fence() {
    play(async |scale| {
        let world = World::warm(scale).await;
        let figures = Figures::begin(&world, "a mover dies behind 8 fences");
        let map = world.map();
        let shards: Vec<ShardId> = map.shards_on(&world.hosts[0].name).take(8).collect();
        shards.iter().for_each(|shard| world.fence(*shard, 0));
        tokio::time::sleep(DEADLINE + Duration::from_secs(5)).await;
        let figures = figures.end(&world);
        assert!(figures.errors.is_empty());
        // So many calls come to the closed shards until the deadline, and each of them waits.
        let waiting = figures.calls as usize / 15 * 10 * 8 / scale.shards as usize;
        assert!(
            figures.look_ups as usize <= 12 * waiting,
            "{waiting} wait, {figures}"
        );
        assert!(figures.mends as usize <= 8 * scale.routers, "{figures}");
    });
}

#[test]
fn all_routers_start_anew() {
    play(async |scale| {
        let mut world = World::warm(scale).await;
        world.stop_routers().await;
        let figures = Figures::begin(&world, "all routers start anew");
        world.start_routers();
        seconds(20).await;
        let figures = figures.end(&world);
        assert!(figures.errors.is_empty());
        assert!(
            figures.control_connects as usize == scale.routers,
            "{figures}"
        );
    });
}

/// Many more callers than connections, and few hosts: each router wants all of its connections at
/// once.
#[test]
fn busy_routers_start_anew() {
    play(async |scale| {
        let scale = Scale {
            hosts: scale.hosts / 8 + 1,
            callers: 8 * scale.callers,
            ..scale
        };
        let mut world = World::new(scale);
        let figures = Figures::begin(&world, "busy routers start, few hosts");
        world.start_routers();
        seconds(3).await;
        let figures = figures.end(&world);
        assert!(figures.errors.is_empty());
        // A router opens a few connections to a host at a time, and its callers share those that
        // are there.
        assert!(figures.opening <= 4 * scale.routers, "{figures}");
    });
}

#[test]
fn the_control_database_goes_and_comes() {
    play(async |scale| {
        let world = World::warm(scale).await;
        let figures = Figures::begin(&world, "the control database goes");
        world.control.become_away(Condition::Refuses);
        seconds(30).await;
        let figures = figures.end(&world);
        assert!(figures.errors.is_empty());
        let figures = Figures::begin(&world, "it comes back");
        world.control.come_back();
        seconds(20).await;
        let figures = figures.end(&world);
        assert!(figures.errors.is_empty());
        assert!(figures.control_opening <= scale.routers / 4, "{figures}");
        let figures = Figures::begin(&world, "it is started anew, in 200 ms");
        world.control.become_away(Condition::Refuses);
        tokio::time::sleep(Duration::from_millis(200)).await;
        world.control.come_back();
        seconds(10).await;
        let figures = figures.end(&world);
        assert!(figures.errors.is_empty());
        assert!(figures.control_opening <= scale.routers / 4, "{figures}");
    });
}
