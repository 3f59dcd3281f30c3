//! Moves between real servers.

use std::sync::Arc;

use pgshard::config::Config;
use pgshard::map::{HostName, parse_shards};
use pgshard::mover::{Hosts, Mode, Mover, Observer, Options, Phase, Request};
use pgshard::schema::bootstrap;
use pgshard::schema::{Cluster, Migrations};

use crate::support::TestCluster;

const TABLES: &str = "
    CREATE TABLE {shard}.users (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), name text NOT NULL);
    CREATE TABLE {shard}.photos (
        id bigint PRIMARY KEY DEFAULT {shard}.next_id(),
        user_id bigint NOT NULL REFERENCES {shard}.users,
        title text NOT NULL CHECK (title <> ''),
        made_at timestamptz NOT NULL DEFAULT now());
    CREATE INDEX ON {shard}.photos (user_id, id);
";

/// A bootstrapped cluster of servers.
struct World {
    servers: TestCluster,
    config: Config,
}

impl World {
    async fn new(version: u32, hosts: usize, shards: u16) -> World {
        let servers = TestCluster::start(version, hosts);
        let path = servers.write_config_with_migrations(shards, &[("0001_tables.sql", TABLES)]);
        let config = Config::load(path).unwrap();
        let world = World { servers, config };
        world.bootstrap().await;
        world
    }

    async fn bootstrap(&self) {
        let config = &self.config;
        let host = |host: &pgshard::config::HostConfig| bootstrap::Host {
            name: host.name.clone(),
            connect: host.connect.clone(),
            shards: config.map.iter().filter(|(_, on, _)| **on == host.name).map(|(s, _, e)| (s, e)).collect(),
        };
        let cluster = &config.cluster;
        let request = bootstrap::Request {
            cluster: Cluster { shards: cluster.shards, epoch: cluster.epoch, schema_prefix: cluster.prefix.clone() },
            hosts: config.hosts.values().map(host).collect(),
            only: Default::default(),
            vouched: Default::default(),
            migrations: Migrations::read(cluster.migrations.as_ref().unwrap()).unwrap(),
            width: bootstrap::Request::WIDTH,
        };
        let report = bootstrap::bootstrap(&request, &|_| ()).await;
        assert!(report.is_complete(), "{report:?}");
    }

    fn mover(&self) -> Mover {
        let hosts = Hosts::new(self.config.hosts.values().map(|host| (host.name.clone(), host.connect.clone())));
        let observer = Observer::new(|event| eprintln!("{event:?}"));
        let store = Arc::new(self.config.map_store());
        Mover::new(hosts, self.config.cluster.prefix.clone(), store, Options::default(), observer)
    }

    fn request(&self, shards: &str, target: &str) -> Request {
        Request {
            shards: parse_shards(shards, self.config.cluster.shards).unwrap(),
            target: HostName::new(target).unwrap(),
            mode: Mode::Blocking,
        }
    }
}

on_each_version!(
    async fn a_shard_goes_and_comes_back(version) {
        let world = World::new(version, 2, 4).await;
        let db1 = world.servers.app(0).await;
        db1.batch_execute("INSERT INTO shard_0001.users (name) SELECT 'u' || n FROM generate_series(1, 100) n;
            INSERT INTO shard_0001.photos (user_id, title) SELECT id, 'x' FROM shard_0001.users").await.unwrap();
        let mover = world.mover();
        let plan = mover.plan(&world.request("1", "db2")).await.unwrap();
        for line in plan.shards[0].steps(&plan.target) { eprintln!("{line}"); }
        let report = mover.run(&plan).await;
        assert!(report.failed.is_empty(), "{report:?}");
        assert_eq!(report.done[0].phase, Phase::Kept);
        let db2 = world.servers.app(1).await;
        let n: i64 = db2.query_one("SELECT count(*) FROM shard_0001.photos", &[]).await.unwrap().get(0);
        assert_eq!(n, 100);
        let error = db1.query("SELECT * FROM shard_0001.photos", &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "SH001");
        db2.execute("INSERT INTO shard_0001.users (name) VALUES ('new')", &[]).await.unwrap();
        let back = mover.plan(&world.request("1", "db1")).await.unwrap();
        let report = mover.run(&back).await;
        assert!(report.failed.is_empty(), "{report:?}");
        let n: i64 = db1.query_one("SELECT count(*) FROM shard_0001.users", &[]).await.unwrap().get(0);
        assert_eq!(n, 101);
        for entry in mover.list(None).await.0 {
            let report = mover.complete(entry.id).await.unwrap();
            assert!(report.failed.is_empty(), "{report:?}");
        }
        let gc = mover.gc().await;
        assert!(gc.failed.is_empty(), "{gc:?}");
        for db in [&db1, &db2] {
            let rows = db.query("SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'shard%' ORDER BY 1", &[]).await.unwrap();
            eprintln!("{:?}", rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>());
        }
    }
);
