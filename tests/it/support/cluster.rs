//! [`TestCluster`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pgshard::ShardCount;
use pgshard::dev::{Binaries, Cluster, ClusterOptions, Server, ServerOptions, config_text};
use pgshard::map::HostName;
use tokio_postgres::{Client, NoTls};

/// Throwaway servers `db1`, `db2`, … for one test. Hosts are counted from 0: host 0 is `db1`.
///
/// They stop and vanish at the end of the test; if the test fails, their data stays and its place
/// is printed.
pub(crate) struct TestCluster {
    /// One for all hosts, or one for each host where their versions differ.
    clusters: Vec<Cluster>,
    files: PathBuf,
    /// Servers at the end that configs do not name.
    left_out: usize,
}

impl TestCluster {
    /// Starts servers of this major version.
    pub(crate) fn start(version: u32, hosts: usize) -> TestCluster {
        TestCluster::start_with(version, hosts, ServerOptions::default())
    }

    /// Starts servers of this major version that are set up in a special way.
    pub(crate) fn start_with(version: u32, hosts: usize, server: ServerOptions) -> TestCluster {
        TestCluster::of(vec![start(version, hosts, server)])
    }

    /// Starts one server for each of these major versions.
    pub(crate) fn start_mixed(versions: &[u32]) -> TestCluster {
        if versions.iter().all(|version| *version == versions[0]) {
            return TestCluster::start(versions[0], versions.len());
        }
        TestCluster::of(
            versions
                .iter()
                .map(|version| start(*version, 1, ServerOptions::default()))
                .collect(),
        )
    }

    fn of(clusters: Vec<Cluster>) -> TestCluster {
        let files = clusters[0].directory().join("files");
        std::fs::create_dir(&files).expect("the cluster's directory is ours to write to");
        TestCluster {
            clusters,
            files,
            left_out: 0,
        }
    }

    /// The server of one host.
    pub(crate) fn server(&self, host: usize) -> &Server {
        self.servers()[host]
    }

    /// All servers.
    pub(crate) fn servers(&self) -> Vec<&Server> {
        self.clusters.iter().flat_map(Cluster::servers).collect()
    }

    /// The name of one host: `db1` for 0.
    pub(crate) fn name(&self, host: usize) -> HostName {
        assert!(host < self.servers().len(), "there is such a host");
        HostName::new(&format!("db{}", host + 1)).expect("db and a number is a host name")
    }

    /// An empty directory for this test's files, removed with the servers.
    pub(crate) fn directory(&self) -> &Path {
        &self.files
    }

    /// The text of a config with this many shards, spread evenly, and no migrations.
    pub(crate) fn config_text(&self, shards: u16) -> String {
        self.text(shards, None)
    }

    /// From now on no config names the last server.
    pub(crate) fn leave_out_the_last(&mut self) {
        self.left_out += 1;
    }

    fn text(&self, shards: u16, migrations: Option<&str>) -> String {
        let servers = self.servers();
        let named = servers
            .iter()
            .take(servers.len() - self.left_out)
            .enumerate();
        let hosts: Vec<_> = named
            .map(|(at, server)| (self.name(at), server.url()))
            .collect();
        config_text(count(shards), &hosts, migrations)
    }

    /// Writes that config to `pgshard.toml` in [`TestCluster::directory`], and returns its path.
    pub(crate) fn write_config(&self, shards: u16) -> PathBuf {
        self.write("pgshard.toml", &self.config_text(shards))
    }

    /// The same with `migrations = "migrations"`, and these files (name, SQL) in that folder.
    pub(crate) fn write_config_with_migrations(
        &self,
        shards: u16,
        migrations: &[(&str, &str)],
    ) -> PathBuf {
        for (name, sql) in migrations {
            self.write(&format!("migrations/{name}"), sql);
        }
        self.write("pgshard.toml", &self.text(shards, Some("migrations")))
    }

    /// Writes a file below [`TestCluster::directory`], and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.files.join(name);
        let folder = path.parent().expect("a file is in a folder");
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, text))
            .expect("the directory can be written");
        path
    }

    /// A connection to one host's database as the application's role `app`.
    pub(crate) async fn app(&self, host: usize) -> Client {
        connect(&self.server(host).url()).await
    }

    /// A connection to one host's database as the superuser.
    pub(crate) async fn superuser(&self, host: usize) -> Client {
        connect(&self.server(host).superuser_url()).await
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for cluster in &mut self.clusters {
                cluster.keep();
                eprintln!(
                    "the servers' data is kept in {}",
                    cluster.directory().display()
                );
            }
            for (host, server) in self.servers().into_iter().enumerate() {
                eprintln!("  db{}: log in {}", host + 1, server.log().display());
            }
        }
    }
}

/// Starting blocks; on a runtime with several threads the other threads continue.
fn start(version: u32, hosts: usize, mut server: ServerOptions) -> Cluster {
    // Shared memory is sized for everything that could be locked, and a server's start and each of
    // its processes pay for it.
    let small = [
        ("max_locks_per_transaction", "64"),
        ("max_wal_senders", "40"),
        ("max_replication_slots", "40"),
    ];
    server.settings.splice(
        0..0,
        small.map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    Cluster::start(&ClusterOptions::new(hosts, binaries(version)).server(server))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The programs of a major version. They are searched once, because that runs four of them.
fn binaries(version: u32) -> Binaries {
    static FOUND: Mutex<BTreeMap<u32, Binaries>> = Mutex::new(BTreeMap::new());
    // A test that found none has failed, with the reason; the others search again.
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let look = || Binaries::of_major(version).unwrap_or_else(|error| panic!("{error}"));
    found.entry(version).or_insert_with(look).clone()
}

/// A connection with its socket driven by a task of the runtime.
pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("a test's server takes connections");
    // When the server goes away, the user of the client gets an error too.
    tokio::spawn(connection);
    client
}

fn count(shards: u16) -> ShardCount {
    ShardCount::new(shards.into()).expect("a test has 1 to 8192 shards")
}
