//! The map in PostgreSQL: what every store promises, and what happens when the control database
//! goes away and comes back.

#[path = "../../src/store/testing/contract.rs"]
mod contract;

use std::sync::Arc;
use std::time::Duration;

use pgshard::config::Config;
use pgshard::dev::StopMode;
use pgshard::map::{Changes, HostName, MapVersion, Placement, ShardEpoch, ShardMap};
use pgshard::pg::ConnectOptions;
use pgshard::router::{Options, Router};
use pgshard::store::postgres::{Follow, Installed};
use pgshard::store::{MapStore, MapWatch, PostgresStore, PublishError, StoreError, publish_merged};
use pgshard::{ShardCount, ShardId};

use self::contract::{first_map, place, store_contract};
use crate::support::{TestCluster, World, lines, other};

/// Polls that do not happen within a test: what a watch sees came by a notification.
const NEVER: Duration = Duration::from_secs(3600);

fn store(cluster: &TestCluster) -> PostgresStore {
    let connect = ConnectOptions::parse(&cluster.server(0).url()).unwrap();
    PostgresStore::new(connect, first_map().shards())
}

/// A server that keeps the first map.
async fn installed(version: u32) -> (TestCluster, PostgresStore) {
    let cluster = TestCluster::start(version, 1);
    let store = store(&cluster);
    assert_eq!(
        store.install(&first_map()).await.unwrap(),
        Installed::Created
    );
    (cluster, store)
}

/// Shard 7 on `db{host}`, with a newer epoch each time.
fn moved(host: u8) -> Changes {
    Changes::from_iter([(ShardId::new(7).unwrap(), place(host, u32::from(host) + 1))])
}

/// Waits for the map with this version.
async fn version(watch: &mut MapWatch, version: u64) -> Arc<ShardMap> {
    let wait = async {
        loop {
            let map = watch.current();
            if map.version() >= MapVersion::new(version) {
                return map;
            }
            watch.changed().await.expect("the store goes on");
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .expect("the map arrives")
}

/// Waits until the watch has an error.
async fn failing(watch: &MapWatch) -> Arc<StoreError> {
    let wait = async {
        loop {
            match watch.last_error() {
                Some(error) => return error,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .expect("the store says what is wrong")
}

on_each_version! {
    async fn what_every_store_promises(version) {
        let (_cluster, store) = installed(version).await;
        store_contract(Arc::new(store)).await;
    }

    /// Many start from one map, and exactly one publishes; the errors of the others contain the
    /// version that they met.
    async fn one_of_many_publishes(version) {
        let (_cluster, store) = installed(version).await;
        let tries = (0..8_u8).map(|at| {
            let store = store.clone();
            tokio::spawn(async move {
                store
                    .publish(MapVersion::FIRST, &first_map().merged(&moved(at + 1)))
                    .await
            })
        });
        let mut published = 0;
        for one in tries.collect::<Vec<_>>() {
            match one.await.unwrap() {
                Ok(()) => published += 1,
                Err(PublishError::Conflict { found, .. }) => assert_eq!(found, MapVersion::new(2)),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((published, store.history(10).await.unwrap().len()), (1, 2));
    }

    /// The tables are created once, whichever process creates them; an existing map stays.
    async fn installing_twice_keeps_the_map(version) {
        let cluster = TestCluster::start(version, 1);
        let store = store(&cluster);
        let error = store.load().await.unwrap_err();
        assert!(
            matches!(error, StoreError::NotInstalled { .. }) && !error.is_unreachable(),
            "{error}"
        );
        assert!(error.to_string().contains("pgshard map import"), "{error}");
        let (map, other) = (first_map(), first_map().merged(&moved(1)));
        let (one, two) = tokio::join!(store.install(&map), store.install(&other));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert!(
            (one == Installed::Created) != (two == Installed::Created),
            "{one:?} {two:?}"
        );
        let kept = store.load().await.unwrap();
        assert_eq!(store.install(&map).await.unwrap(), Installed::Kept(kept));

        let more = PostgresStore::new(store.database().clone(), ShardCount::new(64).unwrap());
        let error = more.watch().await.unwrap_err().to_string();
        assert!(
            error.ends_with(
                "keeps a map of 32 shards, the config says 64: it is the map of \
                another cluster"
            ),
            "{error}"
        );

        let client = cluster.app(0).await;
        client
            .batch_execute(
                "UPDATE pgshard_map.map SET placement = \
            '{\"db1\": \"0-30\"}'",
            )
            .await
            .unwrap();
        let error = store.load().await.unwrap_err().to_string();
        let words = "keeps is not a map, and `pgshard map rebuild` replaces it: shard 31 has no \
            host";
        assert!(error.ends_with(words), "{error}");
        client
            .batch_execute("DELETE FROM pgshard_map.map")
            .await
            .unwrap();
        assert!(matches!(store.watch().await, Err(StoreError::NoMap { .. })));
        assert!(matches!(
            store.publish(MapVersion::FIRST, &other).await,
            Err(PublishError::Store(StoreError::NoMap { .. }))
        ));
    }

    /// No caller's search_path decides what the function's names mean.
    async fn the_function_has_its_own_search_path(version) {
        let (cluster, _store) = installed(version).await;
        let client = cluster.app(0).await;
        let setting = "SELECT coalesce(proconfig[1], '') FROM pg_proc WHERE proname = 'publish'";
        assert_eq!(
            lines(&client, setting).await,
            "search_path=pg_catalog, pg_temp\n"
        );
    }

    /// Who published, when and why; the newest thousand.
    async fn the_history_has_the_newest_thousand(version) {
        let (cluster, store) = installed(version).await;
        let why = store.clone().with_reason("pgshard map rebuild");
        let second = publish_merged(&why, &moved(1)).await.unwrap();
        let history = store.history(10).await.unwrap();
        assert_eq!(
            history
                .iter()
                .map(|one| one.map.clone())
                .collect::<Vec<_>>(),
            [second.clone(), first_map()]
        );
        assert_eq!(
            (history[0].role.as_str(), history[0].reason.as_str()),
            (
                "app",
                "pgshard map \
            rebuild"
            )
        );
        assert!(
            history[0]
                .publisher
                .ends_with(&format!("pid {}", std::process::id()))
        );
        assert!(history[0].published_at >= history[1].published_at);
        assert_eq!(
            store.version(MapVersion::FIRST).await.unwrap(),
            Some(first_map())
        );
        assert_eq!(store.version(MapVersion::new(9)).await.unwrap(), None);

        let client = cluster.app(0).await;
        client
            .batch_execute(
                "INSERT INTO pgshard_map.history (version, shards, placement, publisher, reason)
             SELECT v, shards, placement, '', '' FROM generate_series(3, 1500) v, pgshard_map.map;
             UPDATE pgshard_map.map SET version = 1500",
            )
            .await
            .unwrap();
        publish_merged(&store, &moved(2)).await.unwrap();
        let kept = "SELECT count(*), min(version), max(version) FROM pgshard_map.history";
        let row = client.query_one(kept, &[]).await.unwrap();
        assert_eq!(
            (row.get(0), row.get(1), row.get(2)),
            (PostgresStore::HISTORY_MAX as i64, 502_i64, 1501_i64)
        );
    }

    /// Notifications alone bring every map, even to a watch whose connection was ended.
    async fn told_by_notifications(version_of) {
        let (cluster, store) = installed(version_of).await;
        let mut watch = store
            .clone()
            .with_poll_interval(NEVER)
            .watch()
            .await
            .unwrap();
        publish_merged(&store, &moved(1)).await.unwrap();
        version(&mut watch, 2).await;

        let superuser = cluster.superuser(0).await;
        let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE \
            application_name \
                = 'pgshard map'";
        // The connection that has published may still exist.
        assert!(
            superuser
                .query_one(ended, &[])
                .await
                .unwrap()
                .get::<_, i64>(0)
                >= 1
        );
        let failed = failing(&watch).await;
        assert!(failed.is_unreachable(), "{failed}");
        // Published before it listens again, or after: it is seen in both cases.
        publish_merged(&store, &moved(2)).await.unwrap();
        version(&mut watch, 3).await;
        publish_merged(&store, &moved(3)).await.unwrap();
        version(&mut watch, 4).await;
        assert!(watch.last_error().is_none());
        drop(watch);
        let gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgshard map'";
        while superuser
            .query_one(gone, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            > 0
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A notification is lost: the poll finds the map, or a requested look does.
    async fn a_lost_notification(version_of) {
        let (cluster, store) = installed(version_of).await;
        let often = store.clone().with_poll_interval(Duration::from_millis(20));
        let mut watches = [
            often.watch().await.unwrap(),
            often.with_follow(Follow::Polling).watch().await.unwrap(),
        ];
        let mut never = store
            .clone()
            .with_poll_interval(NEVER)
            .watch()
            .await
            .unwrap();
        let client = cluster.app(0).await;
        client
            .batch_execute(
                "UPDATE pgshard_map.map SET version = 2, publication = \
            gen_random_uuid()",
            )
            .await
            .unwrap();
        for watch in &mut watches {
            version(watch, 2).await;
        }
        assert_eq!(never.current().version(), MapVersion::FIRST);
        never.refresh().now();
        version(&mut never, 2).await;
        // The same version with another map, as after a fail-over that lost the first.
        client
            .batch_execute(
                "UPDATE pgshard_map.map SET placement = '{\"db9\": \"0-31\"}', publication = \
                gen_random_uuid()",
            )
            .await
            .unwrap();
        // Version 2 may have come before anything waited for it, and is then the first change.
        let wait = async {
            while watches[0].changed().await.unwrap().hosts() != [HostName::new("db9").unwrap()] {}
        };
        tokio::time::timeout(Duration::from_secs(60), wait)
            .await
            .expect("the other map arrives");
    }

    /// If the database is away no map is lost: neither while the process runs, nor at the next
    /// start.
    async fn the_database_is_away(version_of) {
        let (cluster, store) = installed(version_of).await;
        let path = cluster.directory().join("map.toml");
        let copying = store
            .clone()
            .with_copy(&path)
            .with_poll_interval(Duration::from_millis(50));
        let mut watch = copying.watch().await.unwrap();
        publish_merged(&store, &moved(1)).await.unwrap();
        let second = version(&mut watch, 2).await;
        while copying_of(&path).as_deref() != Some("version = 2") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let server = cluster.server(0);
        tokio::task::block_in_place(|| server.stop(StopMode::Immediate)).unwrap();
        assert!(failing(&watch).await.is_unreachable());
        assert_eq!(watch.current(), second);

        // The next process.
        let error = store.watch().await.unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        assert!(
            copying.load().await.unwrap_err().is_unreachable(),
            "who publishes is not given the copy"
        );
        let loaded = copying.load_or_copy().await.unwrap();
        assert_eq!((&loaded.map, loaded.stale.is_some()), (&*second, true));
        let mut restarted = copying.watch().await.unwrap();
        assert_eq!(restarted.current(), second);
        assert!(
            restarted.last_error().unwrap().is_unreachable(),
            "it says that this is the copy"
        );

        tokio::task::block_in_place(|| server.start()).unwrap();
        publish_merged(&store, &moved(2)).await.unwrap();
        let third = version(&mut watch, 3).await;
        assert_eq!(version(&mut restarted, 3).await, third);
        assert!(restarted.last_error().is_none() && watch.last_error().is_none());
    }

    /// A database that answers is believed, whatever the local copy contains; a damaged copy is
    /// ignored.
    async fn the_copy_is_the_last_resort(version_of) {
        let (cluster, store) = installed(version_of).await;
        let path = cluster.directory().join("map.toml");
        let copying = store.clone().with_copy(&path);
        drop(copying.watch().await.unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("# The map as app@127.0.0.1:") && text.contains("db0 = \"0-31\""),
            "{text}"
        );
        let client = cluster.app(0).await;
        client
            .batch_execute("DROP SCHEMA pgshard_map CASCADE")
            .await
            .unwrap();
        assert!(matches!(
            copying.watch().await,
            Err(StoreError::NotInstalled { .. })
        ));
        assert!(matches!(
            copying.load_or_copy().await,
            Err(StoreError::NotInstalled { .. })
        ));
        tokio::task::block_in_place(|| cluster.server(0).stop(StopMode::Fast)).unwrap();
        assert_eq!(copying.load_or_copy().await.unwrap().map, first_map());
        std::fs::write(&path, text.replace("0-31", "0-30")).unwrap();
        assert!(copying.load_or_copy().await.unwrap_err().is_unreachable());
        let files = std::fs::read_dir(cluster.directory())
            .unwrap()
            .map(|file| file.unwrap().file_name());
        assert_eq!(
            files.collect::<Vec<_>>(),
            ["map.toml"],
            "no temporary file is left behind"
        );
    }

    /// The database was restored to before some maps, and a row was set by hand to the last
    /// possible version and corrected; a router began with a later map, from its copy. It takes
    /// whatever is in the database.
    async fn a_map_of_an_earlier_version(version_of) {
        let (cluster, store) = installed(version_of).await;
        let client = cluster.app(0).await;
        client
            .batch_execute("CREATE TABLE before AS SELECT * FROM pgshard_map.map")
            .await
            .unwrap();
        let cached = Arc::new(first_map().with_version(MapVersion::new(5000)));
        let router = Router::new(Options::new(Vec::new(), cached.clone()));
        router.follow(
            store
                .clone()
                .with_poll_interval(Duration::from_millis(20))
                .watch()
                .await
                .unwrap(),
        );
        let has = async |version: u64| {
            let wait = async {
                while router.map().version() != MapVersion::new(version) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), wait)
                .await
                .expect("the router has it");
        };
        has(1).await;
        for at in 1..=3 {
            publish_merged(&store, &moved(at)).await.unwrap();
        }
        has(4).await;
        let set = "UPDATE pgshard_map.map m SET (version, placement, publication) =";
        client
            .batch_execute(&format!(
                "{set} (SELECT version, placement, publication FROM \
            before)"
            ))
            .await
            .unwrap();
        has(1).await;
        for version in [i64::MAX as u64, 2] {
            let sql = format!("{set} ({version}, m.placement, gen_random_uuid())");
            client.batch_execute(&sql).await.unwrap();
            has(version).await;
        }
        publish_merged(&store, &moved(5)).await.unwrap();
        has(3).await;
        // By hand it accepts no earlier one.
        assert!(router.set_map(Arc::new(first_map())).is_err());
    }

    /// The map's row was overwritten. `rebuild` makes it again from the history and the hosts,
    /// `import` from a file.
    async fn a_damaged_row(version_of) {
        let world = World::new(&[version_of, version_of], 8).await;
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        let (head, _) = text.split_once("[map]").unwrap();
        let fleet = format!(
            "{head}[map]\nstore = \"postgres\"\nurl \
            = \"{}\"\n",
            world.servers.server(0).url()
        );
        let fleet = world.write("fleet.toml", &fleet);
        let (file, fleet) = (
            world.config.path.to_str().unwrap(),
            ["--config", fleet.to_str().unwrap()],
        );
        let run = async |args: &[&str]| world.run(&[&fleet[..], args].concat()).await;
        run(&["map", "import", file]).await.ended(0);
        run(&["move", "1", "--to", "db2", "--yes"]).await.ended(0);
        let client = world.servers.app(0).await;
        let damage = [
            "UPDATE pgshard_map.map SET placement = '{\"db1\": \"0-3\"}'",
            "UPDATE pgshard_map.map SET placement = '[]', version = 9223372036854775807",
            // Few bytes that name all shards again and again.
            "UPDATE pgshard_map.map SET placement = jsonb_build_object('db1', repeat('0-7,', \
                200000) || '0-7')",
            "UPDATE pgshard_map.map SET placement =
                (SELECT jsonb_object_agg('h' || n, '0-7') FROM generate_series(1, 200000) n)",
            "DELETE FROM pgshard_map.map",
        ];
        for damage in damage {
            client.batch_execute(damage).await.unwrap();
            let told = run(&["check"]).await;
            assert!(
                told.ended(1).stdout.contains("map_damaged"),
                "{}",
                told.stdout
            );
            run(&["map", "rebuild", "--yes"]).await.ended(0);
            run(&["check"]).await.ended(0);
            let shown = run(&["map", "show"]).await.ended(0).last();
            assert_eq!(
                (
                    &shown["hosts"]["db1"]["count"],
                    &shown["hosts"]["db2"]["count"]
                ),
                (&3.into(), &5.into())
            );
            assert!(shown["version"].as_u64().unwrap() < 100, "{shown}");
        }
        client.batch_execute(damage[0]).await.unwrap();
        client
            .batch_execute("DELETE FROM pgshard_map.history")
            .await
            .unwrap();
        for damage in [
            "DELETE FROM pgshard_map.map",
            "DROP SCHEMA pgshard_map CASCADE",
        ] {
            client.batch_execute(damage).await.unwrap();
            let told = run(&["check"]).await;
            assert!(
                told.ended(1).stdout.contains("map_damaged"),
                "{}",
                told.stdout
            );
            assert!(!told.stdout.contains("shard_missing"), "{}", told.stdout);
            // There is no history either: the hosts know where their shards are.
            run(&["map", "rebuild", "--yes"]).await.ended(0);
            run(&["check"]).await.ended(0);
            client
                .batch_execute("DELETE FROM pgshard_map.history")
                .await
                .unwrap();
        }
        let shown = run(&["map", "show"]).await.ended(0).last();
        assert_eq!(
            (
                &shown["hosts"]["db1"]["count"],
                &shown["hosts"]["db2"]["count"]
            ),
            (&3.into(), &5.into())
        );
        run(&["map", "import", file, "--yes"]).await.ended(0);
        run(&["check"]).await.ended(0);
    }

    /// A cluster goes from the file to the database and back, while routers run; movers publish
    /// where the map is.
    async fn from_file_to_database_and_back(version_of) {
        let world = World::new(&[version_of, other(version_of)], 8).await;
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        let (head, _) = text.split_once("[map]").unwrap();
        let url = world.servers.server(0).url();
        let fleet = format!(
            "{head}[map]\nstore = \"postgres\"\nurl = \"{url}\"\ncache \
            = \"map.toml\"\n"
        );
        let fleet = world.write("fleet.toml", &fleet);
        let (file, fleet_path) = (world.config.path.to_str().unwrap(), fleet.to_str().unwrap());

        let ran = world.run(&["--config", fleet_path, "map", "show"]).await;
        assert!(
            ran.ended(1).stderr.contains(
                "`pgshard map import` brings a map \
            there"
            ),
            "{}",
            ran.stderr
        );
        world.run(&["map", "import", file]).await.ended(2);
        world.run(&["map", "history"]).await.ended(2);
        for _ in 0..2 {
            world
                .run(&["--config", fleet_path, "map", "import", file])
                .await
                .ended(0);
        }
        let router = pgshard::connect(&fleet).await.unwrap();
        assert_eq!(*router.map(), world.published());

        world
            .run(&["--config", fleet_path, "move", "1", "--to", "db2", "--yes"])
            .await
            .ended(0);
        let shard = ShardId::new(1).unwrap();
        let db2 = HostName::new("db2").unwrap();
        while router.map().host(shard) != Some(&db2) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(world.host_of(1), 0, "the file is not written any more");
        let history = world
            .run(&["--config", fleet_path, "map", "history"])
            .await
            .ended(0)
            .last();
        let versions = history["versions"].as_array().unwrap();
        assert_eq!(
            (
                versions.len(),
                &versions[0]["version"],
                &versions[0]["changed"]
            ),
            (2, &2.into(), &1.into())
        );
        assert_eq!(versions[0]["changes"], "1: db1 @1 -> db2 @2");
        assert!(
            versions[0]["reason"]
                .as_str()
                .unwrap()
                .contains("move 1 --to db2 --yes"),
            "{history}"
        );
        assert!(
            versions[1]["reason"]
                .as_str()
                .unwrap()
                .contains("map import"),
            "{history}"
        );
        let diff = world
            .run(&["--config", fleet_path, "map", "diff", "--from", "1"])
            .await
            .ended(0)
            .last();
        assert_eq!(
            (&diff["from_version"], &diff["changes"][0]["to"]["host"]),
            (&1.into(), &"db2".into())
        );
        world
            .run(&[
                "--config", fleet_path, "map", "diff", "--from", "1", "--to", "7",
            ])
            .await
            .ended(1);
        world.run(&["--config", fleet_path, "check"]).await;

        // In the meantime, a version was published in the file; it is merged by epochs, and what is
        // older is ignored.
        let to = Placement {
            host: db2.clone(),
            epoch: ShardEpoch::new(5).unwrap(),
        };
        publish_merged(
            &world.config.map_store(),
            &Changes::from_iter([(ShardId::new(3).unwrap(), to)]),
        )
        .await
        .unwrap();
        world
            .run(&["--config", fleet_path, "map", "import", file, "--yes"])
            .await
            .ended(0);
        let exported = world.text(&["--config", fleet_path, "map", "export"]).await;
        let back = Config::parse(
            &format!("{head}{}", exported.ended(0).stdout),
            &world.config.path,
        )
        .unwrap();
        let map = back.map.clone().unwrap();
        assert_eq!(map.version(), MapVersion::new(3));
        assert_eq!(
            (map.host(shard), map.host(ShardId::new(3).unwrap())),
            (Some(&db2), Some(&db2))
        );
        while *router.map() != map {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// The version that the copy has.
fn copying_of(path: &std::path::Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines()
        .find(|line| line.starts_with("version"))
        .map(str::to_owned)
}
