//! Two servers with a bootstrapped cluster, and a mover on its config: what every part of the bench
//! begins with.

use std::path::PathBuf;
use std::sync::Arc;

use pgshard::config::{Config, HostConfig};
use pgshard::dev::{Cluster, ClusterOptions, ServerOptions};
use pgshard::map::HostName;
use pgshard::mover::{Entry, Hosts, Mode, MoveId, Mover, Observer, Options, Report, Request};
use pgshard::schema::bootstrap;
use pgshard::schema::{self, Migrations};
use pgshard::{ShardCount, ShardId};
use tokio_postgres::{Client, NoTls};

use crate::Arguments;

pub(crate) struct Bed {
    pub(crate) cluster: Cluster,
    pub(crate) config: Config,
    path: PathBuf,
    jobs: Option<usize>,
}

impl Bed {
    /// Two hosts with half of so many shards each; the SQL makes each shard's tables.
    pub(crate) async fn new(
        arguments: &Arguments,
        shards: u32,
        tables: &str,
        shared_buffers_mib: u32,
    ) -> Bed {
        // Checkpoints in the midst of a bench would be those of whichever part is unlucky.
        let settings = [
            ("max_wal_size", "8GB"),
            ("min_wal_size", "4GB"),
            ("checkpoint_timeout", "30min"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let server = ServerOptions::default()
            .durability(arguments.durability)
            .shared_buffers_mib(shared_buffers_mib)
            .settings(settings.to_vec());
        let options = ClusterOptions::new(2, arguments.binaries.clone()).server(server);
        let cluster =
            tokio::task::block_in_place(|| Cluster::start(&options)).expect("the servers start");
        let count = ShardCount::new(shards).expect("1 to 8192 shards");
        let files = cluster.directory().join("files");
        std::fs::create_dir_all(files.join("migrations")).expect("the cluster's directory is ours");
        std::fs::write(files.join("migrations/0001_tables.sql"), tables)
            .expect("a file is written");
        let path = files.join("pgshard.toml");
        std::fs::write(&path, cluster.config_text(count, Some("migrations")))
            .expect("a file is written");
        let config = Config::load(&path).expect("a good config");
        let bed = Bed {
            cluster,
            config,
            path,
            jobs: arguments.jobs,
        };
        bed.bootstrap().await;
        bed
    }

    async fn bootstrap(&self) {
        let map = self.config.map.as_ref().expect("the config keeps its map");
        let host = |host: &HostConfig| bootstrap::Host {
            name: host.name.clone(),
            connect: host.connect.clone(),
            shards: map
                .iter()
                .filter(|(_, on, _)| **on == host.name)
                .map(|(shard, _, epoch)| (shard, epoch))
                .collect(),
        };
        let hosts = self.config.hosts.values().map(host).collect();
        let migrations =
            Migrations::read(self.config.cluster.migrations.as_ref().expect("a folder"))
                .expect("good migrations");
        let request = bootstrap::Request::new(self.cluster(), hosts, migrations);
        let report = bootstrap::bootstrap(&request, &|_| ()).await;
        assert!(report.is_complete(), "{report:?}");
    }

    fn cluster(&self) -> schema::Cluster {
        let cluster = &self.config.cluster;
        let (shards, epoch, schema_prefix) =
            (cluster.shards, cluster.epoch, cluster.prefix.clone());
        schema::Cluster {
            shards,
            epoch,
            schema_prefix,
            key: cluster.key,
            legacy_below: 0,
            unsharded: None,
        }
    }

    pub(crate) async fn router(&self) -> pgshard::Router {
        pgshard::connect(&self.path).await.expect("a router")
    }

    fn mover(&self, observer: Observer) -> Mover {
        let hosts = Hosts::new(
            self.config
                .hosts
                .values()
                .map(|host| (host.name.clone(), host.connect.clone())),
        );
        let options = Options::default().jobs(self.jobs.unwrap_or(Options::default().jobs));
        let store = Arc::new(self.config.map_store());
        Mover::new(hosts, self.cluster(), store, options, observer)
    }

    /// Plans a move of shards, as the command does it.
    pub(crate) async fn plan(&self, shards: Vec<ShardId>, target: usize) {
        let request = Request::new(shards, self.host(target)).mode(Some(Mode::Online));
        self.mover(Observer::silent())
            .plan(&request)
            .await
            .unwrap_or_else(|error| panic!("a plan: {error}"));
    }

    /// Moves shards while they are open, as the command does it. Returns the report, and the
    /// journal of the move.
    pub(crate) async fn go(&self, shards: Vec<ShardId>, target: usize) -> (Report, Vec<Entry>) {
        self.go_observed(shards, target, Observer::silent()).await
    }

    /// The same, with an observer that gets the events.
    pub(crate) async fn go_observed(
        &self,
        shards: Vec<ShardId>,
        target: usize,
        observer: Observer,
    ) -> (Report, Vec<Entry>) {
        let mover = self.mover(observer);
        let request = Request::new(shards, self.host(target)).mode(Some(Mode::Online));
        let plan = mover
            .plan(&request)
            .await
            .unwrap_or_else(|error| panic!("a plan: {error}"));
        let report = mover.run(&plan).await;
        let entries = mover.list(Some(report.id)).await.found;
        (report, entries)
    }

    /// Drops the old copies of a move.
    pub(crate) async fn complete(&self, id: MoveId) {
        let report = self
            .mover(Observer::silent())
            .complete(id)
            .await
            .unwrap_or_else(|error| panic!("complete: {error}"));
        assert!(report.failed.is_empty(), "{:?}", report.failed);
    }

    /// So that no measurement pays for what another one has written.
    pub(crate) async fn settle(&self) {
        for host in 0..self.cluster.servers().len() {
            let client = self.superuser(host).await;
            // In a message each: a VACUUM wants no transaction around it.
            client
                .batch_execute("VACUUM (ANALYZE)")
                .await
                .expect("a vacuum");
            client
                .batch_execute("CHECKPOINT")
                .await
                .expect("a checkpoint");
        }
    }

    /// 0 is `db1`.
    pub(crate) fn host(&self, at: usize) -> HostName {
        self.cluster.servers()[at].name().clone()
    }

    pub(crate) async fn app(&self, host: usize) -> Client {
        connect(&self.cluster.servers()[host].url()).await
    }

    pub(crate) async fn superuser(&self, host: usize) -> Client {
        connect(&self.cluster.servers()[host].superuser_url()).await
    }
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("the server takes connections");
    tokio::spawn(connection);
    client
}

/// A shard that there is in every bench.
pub(crate) fn shard(number: u16) -> ShardId {
    ShardId::new(number).expect("a shard's number")
}

/// The phases of a pause, in order, and the pause itself. `check` runs during `drain` and `open`;
/// `barrier` differs from `marker` only if a session held a lock.
pub(crate) const PAUSE: [&str; 9] = [
    "swap", "barrier", "marker", "drain", "check", "open", "decide", "commit", "pause",
];

/// What a phase took, in the journal of a move.
pub(crate) fn phase(entry: &Entry, name: &str) -> Option<f64> {
    entry
        .timings
        .get(format!("{name}_ms"))
        .and_then(|ms| ms.as_f64())
}
