//! Balance: hosts are added and removed while an application writes, rebalances are killed and
//! interrupted and continued; nothing is lost.

use pgshard::ShardCount;
use pgshard::config::Config;
use pgshard::dev::config_text;
use pgshard::schema::{self, Sizes};
use rustix::process::{Signal, kill_process};

use crate::support::{Ran, TABLES, TestCluster, World, Writers, go_on, lines, other, stopped};

/// How many shards the map has on each host of the file.
fn counts(world: &World) -> Vec<(String, usize)> {
    let config = Config::load(&world.config.path).unwrap();
    config
        .hosts
        .keys()
        .map(|host| {
            (
                host.to_string(),
                config
                    .map
                    .as_ref()
                    .expect("the file has the map")
                    .shards_on(host)
                    .count(),
            )
        })
        .collect()
}

fn pairs(counts: &[(&str, usize)]) -> Vec<(String, usize)> {
    counts
        .iter()
        .map(|(host, count)| ((*host).to_owned(), *count))
        .collect()
}

/// Servers for all hosts, and a config that knows only the first of them.
async fn small_start(versions: &[u32], first: usize, shards: u16) -> World {
    let servers = TestCluster::start_mixed(versions);
    let hosts: Vec<_> = (0..first)
        .map(|host| (servers.name(host), servers.server(host).url()))
        .collect();
    servers.write("migrations/0001_tables.sql", TABLES);
    let text = config_text(
        ShardCount::new(shards.into()).unwrap(),
        &hosts,
        Some("migrations"),
    );
    let path = servers.write("pgshard.toml", &text);
    let config = Config::load(path).unwrap();
    let world = World { servers, config };
    world.run(&["bootstrap"]).await.ended(0);
    world
}

on_each_version! {
    /// Where sizes decide nothing, a table that ANALYZE has seen is not opened to measure it.
    /// Others are, and a limit of a host needs all of them measured.
    async fn sizes_that_decide_nothing(version) {
        let world = small_start(&[version], 1, 2).await;
        let db1 = world.servers.app(0).await;
        for shard in ["shard_0000", "shard_0001"] {
            let rows = "SELECT repeat('x', 500) FROM generate_series(1, 1000)";
            let fill = format!("INSERT INTO {shard}.users (name) {rows}");
            db1.batch_execute(&fill).await.unwrap();
        }
        let client = world.servers.app(0).await;
        let measured = async |sizes| schema::measure(&client, sizes).await.unwrap();
        let (exact, unseen) = (
            measured(Sizes::Exact).await,
            measured(Sizes::Estimated).await,
        );
        assert_eq!(exact, unseen);
        db1.batch_execute("VACUUM ANALYZE").await.unwrap();
        let (exact, estimated) = (
            measured(Sizes::Exact).await,
            measured(Sizes::Estimated).await,
        );
        for (shard, exact) in &exact {
            let (exact, estimated) = (exact.bytes, estimated[shard].bytes);
            // Without the free space map and the visibility map, which no catalog counts.
            assert!(
                estimated <= exact && exact - estimated < 200_000 && estimated > 500_000,
                "{exact} {estimated}"
            );
        }
        db1.batch_execute("BEGIN; LOCK TABLE shard_0001.users")
            .await
            .unwrap();
        world
            .run(&["rebalance", "--plan", "--by", "count"])
            .await
            .ended(0);
        let refused = world.run(&["rebalance", "--plan"]).await;
        assert!(
            refused.ended(1).stderr.contains("lock timeout"),
            "{}",
            refused.stderr
        );
    }

    /// A host that does not fit is refused, what its shards will lack is named, and no password is
    /// accepted on the command line.
    async fn a_host_is_checked_before_it_is_added(version) {
        let world = small_start(&[version, other(version)], 1, 4).await;
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        let url = world.servers.server(1).url();
        let secret = url.replace("app@", "app:hunter2@");
        let refused = world.run(&["host", "add", "db2", &secret]).await;
        assert!(
            refused.ended(2).stderr.contains("--password-env"),
            "{}",
            refused.stderr
        );
        assert!(!refused.stderr.contains("hunter2"), "{}", refused.stderr);
        let same = world
            .run(&["host", "add", "db2", &world.servers.server(0).url()])
            .await;
        assert!(
            same.ended(2).stderr.contains(
                "is the same database \
            as \"db1\""
            ),
            "{}",
            same.stderr
        );
        let down = world
            .run(&["host", "add", "db2", "postgres://app@127.0.0.1:1/app"])
            .await;
        down.ended(1);
        assert_eq!(std::fs::read_to_string(&world.config.path).unwrap(), text);

        let admin = world.servers.superuser(0).await;
        admin
            .batch_execute(
                "CREATE ROLE web; GRANT SELECT ON shard_0001.users TO \
            web",
            )
            .await
            .unwrap();
        let added = world
            .run(&["host", "add", "db2", &url])
            .await
            .ended(0)
            .last();
        assert!(
            added["missing"][0]
                .as_str()
                .unwrap()
                .contains("CREATE ROLE \"web\""),
            "{added}"
        );
        world
            .servers
            .superuser(1)
            .await
            .batch_execute("CREATE ROLE web")
            .await
            .unwrap();
        let again = world
            .run(&["host", "add", "db2", &url])
            .await
            .ended(0)
            .last();
        assert_eq!(
            (&again["bootstrapped"], &again["missing"]),
            (&false.into(), &serde_json::json!([]))
        );
        world
            .run(&["rebalance", "--yes", "--by", "count"])
            .await
            .ended(0);
        assert_eq!(counts(&world), pairs(&[("db1", 2), ("db2", 2)]));
        // A move to db2 keeps old copies on db1: without db2 there is no way to find out whether
        // they may go.
        let back = world.run(&["drain", "db2", "--yes"]).await;
        back.ended(0);
        let refused = world.run(&["host", "remove", "db2", "--yes"]).await;
        assert!(
            refused.ended(4).stderr.contains("pgshard moves complete"),
            "{}",
            refused.stderr
        );
    }

    /// After moves away from a host, it keeps old copies, and the new host keeps its WAL for their
    /// rollback: nothing would release that once no process knows the host any more.
    async fn a_host_whose_way_back_holds_a_slot_is_not_removed(version) {
        let world = World::new(&[version, version], 2).await;
        let id = world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0)
            .id();
        let config = std::fs::read_to_string(&world.config.path).unwrap();
        let refused = world.run(&["host", "remove", "db1", "--yes"]).await;
        let said = &refused.ended(4).stderr;
        assert!(
            said.contains(&format!(
                "move {id} from db1 can be taken back: db2 keeps its \
            log"
            )),
            "{said}"
        );
        assert!(
            said.contains(&format!("pgshard moves complete {id}")),
            "{said}"
        );
        assert_eq!(std::fs::read_to_string(&world.config.path).unwrap(), config);
        world
            .run(&["moves", "complete", &id, "--yes"])
            .await
            .ended(0);
        world
            .run(&["host", "remove", "db1", "--yes"])
            .await
            .ended(0);
        let slots = "SELECT slot_name::text FROM pg_replication_slots";
        assert_eq!(lines(&world.servers.app(1).await, slots).await, "");
        world.run(&["check"]).await.ended(0);
    }

    /// Another operator moves a shard to the host while the command waits for a confirmation: it is
    /// there, or its move is only claimed yet.
    async fn a_host_that_gets_a_shard_is_not_forgotten(version) {
        let world = World::new(&[version, version, version], 6).await;
        world
            .run(&["drain", "db3", "--by", "count", "--yes", "--complete"])
            .await
            .ended(0);
        let hosts = || {
            world
                .config
                .hosts
                .values()
                .map(|host| (host.name.clone(), host.connect.clone()))
                .collect()
        };
        let (hosts, db3): (Vec<_>, _) = (hosts(), world.servers.name(2));
        let cluster = schema::Cluster {
            shards: world.config.cluster.shards,
            epoch: world.config.cluster.epoch,
            schema_prefix: world.config.cluster.prefix.clone(),
            key: world.config.cluster.key,
            legacy_below: 0,
            unsharded: None,
        };
        let five = vec![pgshard::ShardId::new(5).unwrap()];
        let refused = [(db3.clone(), schema::HostFault::HasShards(five))];
        let moving = ["move", "5", "--to", "db3", "--mode", "blocking", "--yes"];
        world.run_until(&moving, "after claim=kill").await.ended(-9);
        assert_eq!(
            schema::forget(&cluster, &hosts, &db3).await,
            Err(refused.to_vec())
        );
        let said = world.run(&["host", "remove", "db3", "--yes"]).await;
        assert!(
            said.ended(4).stderr.contains(
                "shards 5 are about to be moved to \
            db3"
            ),
            "{}",
            said.stderr
        );
        let sql = "SELECT move_id::text FROM pgshard.move WHERE phase = 'claimed'";
        let id = lines(&world.servers.app(world.host_of(5)).await, sql).await;
        world.run(&["moves", "resume", id.trim()]).await.ended(0);
        assert_eq!(
            schema::forget(&cluster, &hosts, &db3).await,
            Err(refused.to_vec())
        );
        world.run(&["check"]).await.ended(0);
    }

    /// A move that was planned before its target was removed from the config does not begin: no
    /// router would know where the shard is.
    async fn a_host_that_is_removed_gets_no_shard(version) {
        let world = World::new(&[version, version, version], 6).await;
        world
            .run(&["drain", "db3", "--by", "count", "--yes", "--complete"])
            .await
            .ended(0);
        for mode in ["online", "blocking"] {
            let moving = ["move", "0", "--to", "db3", "--mode", mode, "--yes"];
            let child = world
                .command(&moving, &[("PGSHARD_FAILPOINT", "before claim=stop")])
                .spawn()
                .unwrap();
            let pid = stopped(&child).await;
            world
                .run(&["host", "remove", "db3", "--yes"])
                .await
                .ended(0);
            go_on(pid);
            let refused = Ran::of(child).await;
            assert!(
                refused.ended(4).stderr.contains("cannot go to db3"),
                "{}",
                refused.stderr
            );
            world.run(&["check"]).await.ended(0);
            world
                .run(&["host", "add", "db3", &world.servers.server(2).url()])
                .await
                .ended(0);
            world
                .run(&["move", "0", "--to", "db3", "--mode", mode, "--yes"])
                .await
                .ended(0);
            world
                .run(&["drain", "db3", "--by", "count", "--yes"])
                .await
                .ended(0);
            world
                .run(&["moves", "complete", "--all", "--yes"])
                .await
                .ended(0);
        }
    }

    /// A move on hold without a mover is left alone: finishing it would mean waiting for the
    /// operator who holds it.
    async fn a_held_move_is_not_waited_for(version) {
        let world = World::new(&[version, version], 4).await;
        let moving = [
            "move", "0", "--to", "db2", "--mode", "online", "--hold", "--yes",
        ];
        let id = world
            .run_until(&moving, "after loaded=kill")
            .await
            .ended(-9)
            .id();
        let remedy = format!("pgshard moves continue {id}");
        let balanced = world
            .run(&["rebalance", "--by", "count", "--threshold", "0", "--yes"])
            .await;
        assert!(
            balanced.ended(0).stderr.contains(&remedy),
            "{}",
            balanced.stderr
        );
        let refused = world.run(&["drain", "db1", "--by", "count", "--yes"]).await;
        assert!(
            refused.ended(4).stderr.contains(&remedy),
            "{}",
            refused.stderr
        );
        assert_eq!(counts(&world), pairs(&[("db1", 2), ("db2", 2)]));
        world.run(&["moves", "continue", &id]).await.ended(0);
        assert_eq!(
            world
                .run(&["drain", "db1", "--by", "count", "--yes"])
                .await
                .ended(0)
                .last()["finished"],
            1
        );
        assert_eq!(counts(&world), pairs(&[("db1", 0), ("db2", 4)]));
    }

    /// A run that fails after it has finished others' moves reports what it has done, and ends with
    /// 8.
    async fn a_rebalance_that_fails_after_it_has_done_something(version) {
        let world = World::new(&[version, version], 4).await;
        let moving = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        world
            .run_until(&moving, "after chunks=kill")
            .await
            .ended(-9);
        let args = [
            "rebalance",
            "--by",
            "sql:SELECT 1 / 0 FROM {shard}.users",
            "--yes",
        ];
        let ran = world.run(&args).await;
        let done = ran.ended(8).last();
        assert_eq!(
            (&done["finished"], &done["moved"]),
            (&1.into(), &0.into()),
            "{done}"
        );
        assert!(ran.stderr.contains("division by zero"), "{}", ran.stderr);
        assert_eq!(world.host_of(0), 1);
        // Now there is nothing to finish.
        world.run(&args).await.ended(1);

        // It finishes a move with rows that differ, since its mover loses a change: that is the
        // worse news.
        let moving = ["move", "1", "--to", "db2", "--mode", "online", "--yes"];
        world.run_until(&moving, "before swap=kill").await.ended(-9);
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "INSERT INTO shard_0001.users (name) VALUES \
            ('failpoint')",
        )
        .await
        .unwrap();
        let ran = world.run_until(&args, "in a change=drop").await;
        assert!(
            ran.ended(6).stderr.contains("division by zero"),
            "{}",
            ran.stderr
        );
        assert_eq!(ran.last()["failed"][0]["shard"], 1, "{}", ran.stdout);
    }

    /// Constraints of the config are respected, a shard that cannot be moved is named and the
    /// others go. A drain that would leave a shard behind is refused as a whole.
    async fn what_cannot_move_is_named(version) {
        let world = World::new(&[version, version], 8).await;
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        let rules = "[rebalance]\napart = [\"0, 1\"]\n[rebalance.pinned]\ndb1 = \"7\"\n\n[map]";
        world.write("pgshard.toml", &text.replace("[map]", rules));
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "CREATE VIEW public.outside AS SELECT id FROM \
            shard_0002.users",
        )
        .await
        .unwrap();

        let plan = world
            .run(&["rebalance", "--by", "count", "--threshold", "0", "--plan"])
            .await
            .ended(0)
            .last();
        let moves = plan["moves"].as_array().unwrap();
        let of = |shard: u64| {
            moves
                .iter()
                .find(|one| one["shard"] == shard)
                .map(|one| one["target"].as_str().unwrap())
        };
        assert_eq!(of(7), Some("db1"), "{plan}");
        assert!(of(0).is_some() != of(1).is_some(), "{plan}");

        let refused = world.run(&["drain", "db1", "--yes"]).await;
        // Shard 7 is still on db2, so it does not prevent that; shards 0 and 1 cannot both go where
        // one of them is.
        assert!(
            refused.ended(4).stderr.contains(
                "no other host can take \
            it"
            ),
            "{}",
            refused.stderr
        );
        world.write("pgshard.toml", &text);
        let drained = world
            .run(&[
                "drain",
                "db1",
                "--by",
                "sql:SELECT count(*) FROM \
            {shard}.users",
                "--yes",
            ])
            .await;
        let done = drained.ended(8).last();
        assert_eq!(
            (done["moved"].as_u64(), done["failed"][0]["shard"].as_u64()),
            (Some(3), Some(2)),
            "{done}"
        );
        db1.batch_execute("DROP VIEW public.outside").await.unwrap();
        world.run(&["drain", "db1", "--yes"]).await.ended(0);
        assert_eq!(counts(&world), pairs(&[("db1", 0), ("db2", 8)]));
    }
}

on_mixed_versions! {
    /// Capacity is added: two hosts become four, the first is retired, and the writers notice
    /// nothing, although their router was made when there were two.
    15: async fn two_hosts_become_four_and_the_first_is_retired(version) {
        let mut world =
            small_start(&[version, other(version), version, other(version)], 2, 24).await;
        let writers = Writers::start(&world, 3).await;
        for (host, name) in [(2, "db3"), (3, "db4")] {
            let url = world.servers.server(host).url();
            let added = world.run(&["host", "add", name, &url]).await;
            assert_eq!(added.ended(0).last()["bootstrapped"], true);
        }
        let refused = world.run(&["host", "remove", "db1", "--yes"]).await;
        assert!(
            refused.ended(4).stderr.contains("db1 holds shards 0-11"),
            "{}",
            refused.stderr
        );

        let rebalance = ["rebalance", "--by", "count", "--yes", "--group-size", "4"];
        let done = world.run(&rebalance).await.ended(0).last();
        assert_eq!(
            (
                done["moved"].as_u64(),
                done["failed"].as_array().map(Vec::len)
            ),
            (Some(12), Some(0))
        );
        assert_eq!(
            counts(&world),
            pairs(&[("db1", 6), ("db2", 6), ("db3", 6), ("db4", 6)])
        );
        // There is nothing left to do.
        assert_eq!(world.run(&rebalance).await.ended(0).last()["moved"], 0);

        // This also works with what the first wave has left behind.
        world
            .run(&["drain", "db1", "--by", "count", "--yes", "--complete"])
            .await
            .ended(0);
        assert_eq!(
            counts(&world),
            pairs(&[("db1", 0), ("db2", 8), ("db3", 8), ("db4", 8)])
        );
        world.config = Config::load(&world.config.path).unwrap();
        // The first wave can be taken back, and for that other hosts keep their logs.
        let refused = world.run(&["host", "remove", "db1", "--yes"]).await;
        let remedies = refused
            .ended(4)
            .stderr
            .split('`')
            .filter(|said| said.starts_with("pgshard moves complete"));
        for remedy in remedies {
            let args: Vec<&str> = remedy.split(' ').skip(1).chain(["--yes"]).collect();
            world.run(&args).await.ended(0);
        }
        let removed = world
            .run(&["host", "remove", "db1", "--yes"])
            .await
            .ended(0)
            .last();
        assert!(removed["left"].as_array().unwrap().len() == 2, "{removed}");
        assert_eq!(counts(&world), pairs(&[("db2", 8), ("db3", 8), ("db4", 8)]));

        let notes = writers.stop().await;
        eprintln!(
            "{} rows, the longest call took {:?}",
            notes.acknowledged.len(),
            notes.longest
        );
        world.audit(notes.flawless()).await;
        // Shards were copied while they were open, several through one slot; the slots that are
        // left are of reverse replications.
        for client in world.all().await {
            let sql = "SELECT count(*) FILTER (WHERE mode <> 'online') FROM pgshard.move
                UNION ALL SELECT count(*) FROM pg_replication_slots WHERE slot_name NOT LIKE \
                '%\\_back\\_%'";
            let rows = client.query(sql, &[]).await.unwrap();
            assert_eq!(
                rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>(),
                [0, 0]
            );
        }
        let check = world.run(&["check"]).await;
        check.ended(0);
        let listed = world.run(&["host", "list"]).await.ended(0).last();
        assert_eq!(listed["hosts"]["db3"]["shards"], 8);
    }

    /// Killed in the middle of a wave, and interrupted in another: the same command continues, from
    /// the state at that time.
    18: async fn a_rebalance_goes_on_after_a_kill_and_after_ctrl_c(version) {
        let world = World::new(&[version, other(version)], 12).await;
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        world.write(
            "pgshard.toml",
            &text.replace("[hosts.db2]", "[hosts.db2]\nweight = 3"),
        );
        let writers = Writers::start(&world, 2).await;
        // While rows are copied and the slot exists; behind the fence; with one shard of the group
        // open at its target.
        for point in ["after chunks=kill", "after swap=kill", "after decide=kill"] {
            let args = ["rebalance", "--by", "count", "--yes", "--group-size", "2"];
            world.run_until(&args, point).await.ended(-9);
        }
        world
            .run(&["rebalance", "--by", "count", "--yes", "--complete"])
            .await
            .ended(0);
        assert_eq!(counts(&world), pairs(&[("db1", 3), ("db2", 9)]));

        let drain = ["drain", "db1", "--yes", "--group-size", "1"];
        world.run_until(&drain, "after slot=kill").await.ended(-9);
        let child = world
            .command(&drain, &[("PGSHARD_FAILPOINT", "after swap=stop")])
            .spawn()
            .unwrap();
        let pid = stopped(&child).await;
        kill_process(pid, Signal::INT).unwrap();
        go_on(pid);
        let interrupted = Ran::of(child).await;
        interrupted.ended(130);
        assert!(
            interrupted.stderr.contains("stops in order"),
            "{}",
            interrupted.stderr
        );
        assert!(
            interrupted.stderr.contains(
                "pgshard drain db1 --yes --group-size \
            1"
            ),
            "{}",
            interrupted.stderr
        );
        world.run(&drain).await.ended(0);
        assert_eq!(counts(&world), pairs(&[("db1", 0), ("db2", 12)]));
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }
}
