//! `pgshard recover`: each way in which a host comes back from an earlier time, with writers before
//! and after. At the end no hosts contradict each other, only rows are lost that the restore itself
//! lost, and no ID has come twice.

mod bed;

use pgshard::dev::StopMode;
use serde_json::Value;

use crate::support::{World, lines, other};
use bed::{Bed, alarms, codes};

/// How a host comes back.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// An old base backup, started as it is: it keeps its timeline.
    BaseBackup,
    /// The same, recovered to its end: it gets a new timeline.
    Recovered,
    /// A copy of its files, with its slots.
    Files,
}

/// Takes a backup in this way.
fn back_up(world: &World, version: u32, way: Way) {
    tokio::task::block_in_place(|| match way {
        Way::BaseBackup | Way::Recovered => world.servers.base_backup(version, 0),
        Way::Files => world.servers.back_up(0),
    });
}

fn restore(world: &World, way: Way) {
    tokio::task::block_in_place(|| match way {
        Way::BaseBackup | Way::Files => world.servers.restore(0),
        Way::Recovered => world.servers.restore_to_a_new_timeline(0),
    });
}

/// Shards leave, come, come back and are fed, while db1's backup gets old. Then it is restored.
async fn comes_back(version: u32, way: Way) {
    let bed = Bed::new(World::new(&[version, version], 8).await).await;
    let world = &bed.world;
    world.run(&["bootstrap"]).await.ended(0);
    bed.write("before", 4).await;
    back_up(world, version, way);
    // 0 leaves; 1 leaves and comes back; 4 comes; 5 comes, is written to, and its old copy is fed.
    // 2 and 3 stay.
    world
        .run(&["move", "0,1", "--to", "db2", "--mode", "online", "--yes"])
        .await
        .ended(0);
    world
        .run(&["move", "4", "--to", "db1", "--mode", "online", "--yes"])
        .await
        .ended(0);
    bed.write("between", 3).await;
    world
        .run(&[
            "moves",
            "complete",
            &bed.move_of(0).await,
            "--unaudited",
            "--yes",
        ])
        .await;
    world
        .run(&["move", "1", "--to", "db1", "--mode", "online", "--yes"])
        .await
        .ended(0);
    let fed = world
        .run(&["move", "5", "--to", "db1", "--mode", "online", "--yes"])
        .await
        .ended(0)
        .id();
    bed.write("since", 3).await;
    bed.feed(&fed, 1, 5, 0).await;
    restore(world, way);

    // Applications write before any operator has looked at the host: none of these rows may vanish
    // either.
    bed.write_where_possible("blind", 2).await;
    let found = alarms(world).await;
    let codes = codes(&found);
    for code in ["served_twice", "went_back", "served_nowhere"] {
        assert!(
            codes.contains(&code.to_owned()),
            "{way:?} {code}: {found:#?}"
        );
    }
    let before = world.everything().await;
    let planned = world
        .run(&["recover", "db1", "--plan"])
        .await
        .ended(4)
        .last();
    assert_eq!(world.everything().await, before, "a plan changes nothing");
    let list = |name: &str| planned[name].as_array().unwrap().clone();
    let moved: Vec<_> = list("moves")
        .iter()
        .map(|one| one["shard"].as_u64().unwrap())
        .collect();
    assert_eq!(moved, [0, 1, 4, 5], "{planned:#}");
    assert_eq!(list("repairs").len(), 1, "{planned:#}");
    let decided: Vec<_> = list("decisions")
        .iter()
        .map(|one| one["shards"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(decided, ["1", "4", "5"], "{planned:#}");
    assert_eq!(planned["done"], false);

    // The command dies in the middle, and is then run again.
    world
        .run_until(&["recover", "db1", "--yes"], "after repair=kill")
        .await
        .ended(-9);
    let left = world
        .run(&["recover", "db1", "--yes"])
        .await
        .ended(4)
        .last();
    for decision in left["decisions"].as_array().unwrap() {
        bed.decide(decision).await;
    }
    let last = world
        .run(&["recover", "db1", "--yes"])
        .await
        .ended(0)
        .last();
    let nothing = |name: &str| last[name].as_array().unwrap().is_empty();
    assert!(
        nothing("moves") && nothing("repairs") && nothing("decisions"),
        "{last:#}"
    );
    let before = world.everything().await;
    let again = world
        .run(&["recover", "db1", "--yes"])
        .await
        .ended(0)
        .last();
    assert_eq!(
        (world.everything().await, &again["clocks"]),
        (before, &serde_json::json!([])),
        "{again:#}"
    );
    world.run(&["moves", "gc"]).await.ended(0);
    assert_eq!(alarms(world).await, Vec::<Value>::new());

    bed.write("after", 3).await;
    bed.judge(0).await;
    // Every shard can be moved again.
    world
        .run(&["move", "0-7", "--to", "db2", "--mode", "online", "--yes"])
        .await
        .ended(0);
    bed.judge(0).await;
}

on_each_version! {
    /// An old base backup, started as it is.
    async fn a_base_backup(version) {
        comes_back(version, Way::BaseBackup).await;
    }

    /// The same with a new timeline.
    async fn a_restored_host_is_recovered(version) {
        comes_back(version, Way::Recovered).await;
    }

    /// A copy of the host's files, including its replication slots.
    async fn a_copy_of_files(version) {
        comes_back(version, Way::Files).await;
    }

    /// The promoted standby lacks the last seconds, in which one shard left and one came.
    async fn a_standby_that_lacks_the_last_seconds(version) {
        let bed = Bed::new(World::with_standby(version, 4, 0).await).await;
        let world = &bed.world;
        world.run(&["bootstrap"]).await.ended(0);
        bed.write("before", 4).await;
        world.servers.cut_off(2, 0).await;
        world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0);
        world
            .run(&["move", "2", "--to", "db1", "--yes"])
            .await
            .ended(0);
        bed.write("since", 3).await;
        tokio::task::block_in_place(|| world.servers.server(0).stop(StopMode::Immediate)).unwrap();
        world.servers.promote(2).await;

        bed.write_where_possible("blind", 2).await;
        assert_eq!(
            codes(&alarms(world).await),
            ["served_nowhere", "served_twice"]
        );
        let left = world
            .run(&["recover", "db1", "--yes"])
            .await
            .ended(8)
            .last();
        assert_eq!(left["server"]["timeline"], 2, "{left:#}");
        for decision in left["decisions"].as_array().unwrap() {
            bed.decide(decision).await;
        }
        world.run(&["recover", "db1", "--yes"]).await.ended(0);
        assert_eq!(alarms(world).await, Vec::<Value>::new());
        bed.write("after", 3).await;
        bed.judge(2).await;
    }

    /// An empty disk: no shard is created there by itself. What others have kept is taken back, and
    /// the rest is created only with the operator's consent.
    async fn an_empty_disk(version) {
        let bed = Bed::new(World::new(&[version, version], 4).await).await;
        let world = &bed.world;
        world.run(&["bootstrap"]).await.ended(0);
        world
            .run(&["move", "2", "--to", "db1", "--yes"])
            .await
            .ended(0);
        bed.write("since", 3).await;
        let root = world
            .servers
            .server(0)
            .superuser_url()
            .replace("/app", "/postgres");
        let root = crate::support::connect(&root).await;
        root.batch_execute("DROP DATABASE app WITH (FORCE)")
            .await
            .unwrap();
        root.batch_execute("CREATE DATABASE app OWNER app")
            .await
            .unwrap();

        assert_eq!(
            codes(&alarms(world).await),
            ["host_emptied", "served_nowhere"]
        );
        let planned = world
            .run(&["recover", "db1", "--yes"])
            .await
            .ended(4)
            .last();
        assert_eq!(planned["server"], Value::Null, "{planned:#}");
        let schemas = "SELECT nspname::text FROM pg_namespace WHERE nspname ~ 'shard'";
        assert!(lines(&world.servers.app(0).await, schemas).await.is_empty());
        for decision in planned["decisions"].as_array().unwrap() {
            bed.decide(decision).await;
        }
        world.run(&["recover", "db1", "--yes"]).await.ended(0);
        assert_eq!(alarms(world).await, Vec::<Value>::new());
        bed.write("after", 2).await;
        bed.judge(0).await;
    }

    /// Another cluster's server under the host's name: refused, with the reason, and nothing is
    /// written there.
    async fn another_cluster_under_its_name(version) {
        let world = World::with_spare(&[version, version, version], 4).await;
        world.run(&["bootstrap"]).await.ended(0);
        // Test servers of one version are copies of one template, so they share a system
        // identifier; this one has another version.
        let other = World::new(&[other(version)], 4).await;
        let [own, strange] = [
            world.servers.server(0).port(),
            other.servers.server(0).port(),
        ];
        let config = std::fs::read_to_string(&world.config.path).unwrap();
        let wrong = world.write(
            "wrong.toml",
            &config.replace(&format!(":{own}/"), &format!(":{strange}/")),
        );
        let before = other.everything().await;
        let refused = world
            .run(&[
                "recover",
                "db1",
                "--yes",
                "--config",
                wrong.to_str().unwrap(),
            ])
            .await;
        assert!(
            refused.ended(4).stderr.contains("it is another server"),
            "{}",
            refused.stderr
        );
        assert_eq!(other.everything().await, before);
        world.run(&["recover", "db1", "--yes"]).await.ended(0);
        world.run(&["recover", "db9"]).await.ended(2);
    }

    /// IDs that another host made with a clock that was ahead do not come again: the clock of the
    /// chosen host continues after them.
    async fn ids_of_a_later_time_are_passed(version) {
        let world = World::new(&[version, version], 2).await;
        tokio::task::block_in_place(|| world.servers.back_up(0));
        world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0);
        let db2 = world.servers.app(1).await;
        let ahead = "SELECT shard_0000.resume_after(shard_0000.next_id() + (1800000::bigint << \
            23))";
        db2.batch_execute(ahead).await.unwrap();
        let insert = "INSERT INTO shard_0000.users (name) VALUES ('x') RETURNING id";
        let given: i64 = db2.query_one(insert, &[]).await.unwrap().get(0);
        world
            .run(&["move", "0", "--to", "db1", "--yes"])
            .await
            .ended(0);
        tokio::task::block_in_place(|| world.servers.restore(0));

        world.run(&["recover", "db1", "--yes"]).await.ended(4);
        world
            .run(&["moves", "repair", "0", "--give-up", "db2", "--yes"])
            .await
            .ended(0);
        let next = async || -> i64 {
            let client = world.servers.app(0).await;
            client
                .query_one("SELECT shard_0000.next_id()", &[])
                .await
                .unwrap()
                .get(0)
        };
        assert!(next().await < given);
        let done = world
            .run(&["recover", "db1", "--yes"])
            .await
            .ended(0)
            .last();
        assert_eq!(done["done"], true, "{done:#}");
        assert!(next().await > given);
        let again = world
            .run(&["recover", "db1", "--plan"])
            .await
            .ended(0)
            .last();
        assert_eq!(again["clocks"], serde_json::json!([]), "{again:#}");
        // The operator's margin.
        let before = next().await;
        world
            .run(&["recover", "db1", "--yes", "--margin-s", "7200"])
            .await
            .ended(0);
        assert!((next().await >> 23) - (before >> 23) > 3_000_000);
    }
}
