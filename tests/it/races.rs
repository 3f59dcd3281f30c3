//! Moves that meet what they did not make: objects in their way, exchanged names, a wrong map, dead
//! hosts.

use std::time::Duration;

use pgshard::ShardId;
use pgshard::dev::StopMode;
use pgshard::map::{Changes, HostName, Placement, ShardEpoch};
use pgshard::mover::{Error, Hosts, Mover, Observer, Options, Phase, Report};
use pgshard::store::{MemoryStore, publish_merged};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::World;

async fn moved(world: &World, shard: &str, target: &str) -> Report {
    let mover = world.mover();
    let plan = mover.plan(&world.request(shard, target)).await.unwrap();
    let report = mover.run(&plan).await;
    assert!(report.failed.is_empty(), "{report:?}");
    report
}

/// The text of a config up to its map.
fn upto_map(text: &str) -> &str {
    &text[..text.find("[map]").expect("the config keeps its map")]
}

on_each_version!(
    /// A target that can never be opened must not keep the shard closed for ever: the mover gives
    /// up, and the source serves.
    async fn a_target_that_cannot_be_opened(version) {
        let world = World::new(&[version, version], 4).await;
        moved(&world, "1", "db2").await;
        // The name to which the old signpost is to be renamed is taken.
        let db1 = world.servers.app(0).await;
        db1.batch_execute("CREATE SCHEMA shard_0001__signpost_e2").await.unwrap();
        let mover = world.mover();
        let plan = mover.plan(&world.request("1", "db1")).await.unwrap();
        let report = tokio::time::timeout(Duration::from_secs(40), mover.run(&plan)).await;
        let report = report.expect("the mover ends");
        assert_eq!(report.failed.len(), 1, "{report:?}");
        assert_eq!(world.state(1, 1).await, "serving");
        db1.batch_execute("DROP SCHEMA shard_0001__signpost_e2").await.unwrap();
        let report = mover.resume(report.id).await.unwrap();
        assert!(report.failed.is_empty(), "{report:?}");
        assert_eq!(world.state(0, 1).await, "serving");
    }

    /// The map is a hint: a shard is not "there already" because of the map.
    async fn a_map_that_is_wrong(version) {
        let world = World::new(&[version, version], 4).await;
        let (shard, host) = (ShardId::new(1).unwrap(), HostName::new("db2").unwrap());
        let wrong = Placement { host, epoch: ShardEpoch::new(5).unwrap() };
        let wrong = Changes::from_iter([(shard, wrong)]);
        publish_merged(&world.config.map_store(), &wrong).await.unwrap();
        match world.mover().plan(&world.request("1", "db2")).await {
            Err(Error::Refused { refusals }) => assert_eq!(refusals.len(), 1, "{refusals:?}"),
            other => panic!("{other:?}"),
        }
    }

    /// If the names of two hosts are exchanged, gc would take one host's journal for the other's.
    async fn names_that_are_exchanged(version) {
        let world = World::new(&[version, version], 4).await;
        let options = world.config.hosts.values().map(|host| host.connect.clone());
        let options: Vec<_> = options.rev().collect();
        let hosts = Hosts::new(world.config.hosts.keys().cloned().zip(options));
        let store = std::sync::Arc::new(world.config.map_store());
        let mover =
            Mover::new(hosts, world.cluster(), store, Options::default(), Observer::silent());
        assert!(mover.plan(&world.request("1", "db2")).await.is_err());
        let report = mover.gc().await;
        assert_eq!(report.failed.len(), 2, "{report:?}");
    }

    /// With a config of another cluster nothing is moved, dropped or published. Under another
    /// prefix the schemas of all shards and old copies would seem to be gone.
    async fn a_config_of_another_cluster(version) {
        let world = World::new(&[version, version], 4).await;
        let id = world.run(&["move", "1", "--to", "db2", "--yes"]).await.ended(0).id();
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        let before = world.everything().await;
        let prefix = text.replace("[hosts.db1]", "schema_prefix = \"x_\"\n\n[hosts.db1]");
        let fewer = text.replace("shards = 4", "shards = 2");
        let fewer = format!("{}[map]\nversion = 9\n[map.placement]\ndb1 = \"0\"\ndb2 \
            = \"1\"\n", upto_map(&fewer));
        let epoch = text.replace("2026-01-01", "2025-01-01");
        assert!(epoch != text && fewer.contains("shards = 2"), "{text}");
        for (name, config) in [
            ("prefix.toml", &prefix),
            ("fewer.toml", &fewer),
            ("epoch.toml", &epoch),
        ] {
            let path = world.write(name, config);
            let path = path.to_str().unwrap();
            for (args, code) in [
                (&["moves", "complete", id.as_str(), "--yes"][..], 2),
                (&["moves", "rollback", id.as_str(), "--yes"], 2),
                (&["moves", "gc"], 1),
                (&["move", "0", "--to", "db2", "--yes"], 2),
                (&["moves", "repair", "1", "--yes"], 2),
                (&["drain", "db2", "--by", "count", "--yes"], 1),
                (&["map", "rebuild", "--yes"], 4),
            ] {
                let ran = world.run(&[&["--config", path], args].concat()).await;
                assert_eq!(ran.code(), code, "{name} {args:?}: {}", ran.stderr);
                assert!(ran.stderr.contains("the config says"), "{name} {args:?}: {}", ran.stderr);
                assert_eq!(std::fs::read_to_string(path).unwrap(), *config, "{name} {args:?}");
            }
        }
        assert_eq!(world.everything().await, before);
        world.run(&["moves", "complete", &id, "--yes"]).await.ended(0);
    }

    /// A map is not made from hosts with exchanged names.
    async fn no_map_of_exchanged_names(version) {
        let world = World::new(&[version, version], 4).await;
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        let exchanged = text
            .replace("[hosts.db1]", "[hosts.x]")
            .replace("[hosts.db2]", "[hosts.db1]");
        world.write("pgshard.toml", &exchanged.replace("[hosts.x]", "[hosts.db2]"));
        let ran = world.run(&["map", "rebuild", "--yes"]).await;
        assert!(ran.ended(4).stderr.contains("it recorded that it is the host \
            db2"), "{}", ran.stderr);
        world.run(&["map", "diff"]).await.ended(4);
        world.run(&["host", "accept", "db1", "--yes"]).await.ended(4);
        assert_eq!(world.published(), world.config.map.clone().unwrap());
    }

    /// A shard that moves away after the look of `map rebuild`, by a mover that cannot publish to
    /// the map, is in the map that is published.
    async fn a_rebuild_from_a_look_of_before(version) {
        let world = World::new(&[version, version], 4).await;
        let hosts = world.config.hosts.values();
        let hosts = Hosts::new(hosts.map(|host| (host.name.clone(), host.connect.clone())));
        let elsewhere = std::sync::Arc::new(MemoryStore::new(world.published()));
        let mover =
            Mover::new(hosts, world.cluster(), elsewhere, Options::default(), Observer::silent());
        let go = async |shard: &str| {
            let plan = mover.plan(&world.request(shard, "db2")).await.unwrap();
            assert!(mover.run(&plan).await.failed.is_empty());
        };
        go("0").await;
        let file = std::fs::File::open(&world.config.path).unwrap();
        file.lock().unwrap();
        let mut rebuild = world.command(&["map", "rebuild", "--yes"], &[]).spawn().unwrap();
        // It has looked when it prints what it has seen.
        let mut said = BufReader::new(rebuild.stdout.take().unwrap()).lines();
        assert!(said.next_line().await.unwrap().unwrap().contains("changes"));
        go("1").await;
        file.unlock().unwrap();
        drop(file);
        crate::support::Ran::of(rebuild).await.ended(0);
        assert_eq!((world.host_of(0), world.host_of(1)), (1, 1));
    }

    /// What a database's administrator has set must not matter.
    async fn settings_of_the_role(version) {
        let world = World::new(&[version, version], 4).await;
        for host in [0, 1] {
            let sql = "ALTER ROLE app SET default_transaction_isolation = 'serializable';
                ALTER ROLE app SET default_transaction_read_only = on";
            world.servers.superuser(host).await.batch_execute(sql).await.unwrap();
        }
        moved(&world, "1", "db2").await;
    }

    /// One object that cannot be dropped now does not keep gc from the others.
    async fn gc_goes_on(version) {
        let world = World::new(&[version, version], 4).await;
        for target in ["db2", "db1"] {
            moved(&world, "0-1", target).await;
        }
        let reader = world.servers.app(0).await;
        reader.batch_execute("BEGIN; PREPARE s AS SELECT * FROM \
            shard_0000__signpost_e2.users").await.unwrap();
        let report = world.mover().gc().await;
        assert_eq!((report.failed.len(), report.cleaned.len()), (1, 1), "{report:?}");
        reader.batch_execute("ROLLBACK").await.unwrap();
        let report = world.mover().gc().await;
        assert_eq!((report.failed.len(), report.cleaned.len()), (0, 1), "{report:?}");
    }

    /// A move to a host that is gone permanently can be aborted; gc cleans up there if it comes
    /// back.
    async fn abort_without_the_target(version) {
        let world = World::new(&[version, version], 4).await;
        let move_it = ["move", "1", "--to", "db2", "--yes"];
        let id = world.run_until(&move_it, "after ready=kill").await.ended(-9).id();
        world.servers.server(1).stop(StopMode::Immediate).unwrap();
        // Only in part: what the target has is left to gc.
        world.run(&["moves", "abort", &id]).await.ended(8);
        assert_eq!(world.state(0, 1).await, "serving");
        world.servers.server(1).start().unwrap();
        let report = world.mover().gc().await;
        assert!(report.failed.is_empty() && report.cleaned.len() == 1, "{report:?}");
        let report = moved(&world, "1", "db2").await;
        assert_eq!(report.done[0].phase, Phase::Kept);
    }

    /// A GRANT that was not committed yet when the shard was fenced is only in the old copy, which
    /// is not silently dropped.
    async fn ddl_under_way_at_the_fence(version) {
        let world = World::new(&[version, version], 4).await;
        let db1 = world.servers.app(0).await;
        db1.batch_execute("BEGIN; GRANT SELECT ON shard_0001.users TO PUBLIC").await.unwrap();
        let id = moved(&world, "1", "db2").await.id;
        db1.batch_execute("COMMIT").await.unwrap();
        let report = world.mover().complete(id).await.unwrap();
        assert!(matches!(report.failed[..], [(_, Error::NotNow { .. })]), "{report:?}");
        db1.batch_execute("DROP SCHEMA shard_0001__left_e1 CASCADE").await.unwrap();
        let report = world.mover().complete(id).await.unwrap();
        assert_eq!((report.done.len(), report.failed.len()), (1, 0), "{report:?}");
    }
);
