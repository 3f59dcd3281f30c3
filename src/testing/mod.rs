//! Clusters for the tests of an application: a router on throwaway servers, with the application's
//! migrations, in a fraction of a second.
//!
//! ```no_run
//! #[tokio::test]
//! async fn a_photo_is_found_by_its_id() -> Result<(), Box<dyn std::error::Error>> {
//!     let cluster = pgshard::testing::cluster();
//!     let cluster = cluster.hosts(2).shards(16).migrations("migrations").await?;
//!     let router = cluster.router();
//!
//!     let user = 31341_i64;
//!     let insert = "INSERT INTO {shard}.photos (user_id, title) VALUES ($1, $2) RETURNING id";
//!     let id: i64 = router.by_key(user).query_one(insert, &[&user, &"Prague"]).await?.get(0);
//!     let select = "SELECT title FROM {shard}.photos WHERE id = $1";
//!     let title: String = router.by_id(id)?.query_one(select, &[&id]).await?.get(0);
//!     assert_eq!(title, "Prague");
//!     Ok(())
//! }
//! # fn main() {}
//! ```
//!
//! It needs PostgreSQL's programs on the machine ([`Binaries`] documents where they are searched),
//! no superuser, no container, and no running server.
//!
//! # How it is fast
//!
//! The first time, a server is made, bootstrapped and stopped, and its data directory is kept in a
//! cache among the temporary files. The cache depends on PostgreSQL's version, the contents of the
//! migrations, pgshard's control schema, and the numbers of hosts and shards. The tests of a
//! process share one server that begins as a copy of it, and each gets new databases there, copied
//! by `CREATE DATABASE … TEMPLATE`: a host of pgshard's is a database.
//!
//! Tests may run in parallel, in one process or in several (nextest): each process has its own
//! server.
//!
//! # What is left behind
//!
//! Nothing but the cache. A test's databases are dropped with its [`TestCluster`], also when the
//! test panics. The server stops when its process ends, however it ends.
//!
//! # One cluster for several tests
//!
//! Keep it in a static, and take a router for each test: a router belongs to the runtime in which
//! it was made, and `#[tokio::test]` makes one for each test.
//!
//! ```no_run
//! use pgshard::testing::{self, TestCluster};
//! use tokio::sync::OnceCell;
//!
//! static CLUSTER: OnceCell<TestCluster> = OnceCell::const_new();
//!
//! async fn router() -> Result<pgshard::Router, testing::Error> {
//!     let cluster = CLUSTER.get_or_try_init(|| async {
//!         testing::cluster().migrations("migrations").await
//!     });
//!     cluster.await?.connect().await
//! }
//! ```
//!
//! # Servers of one's own
//!
//! With [`ClusterBuilder::own_servers`] each host is a server that only this test uses, and that it
//! may stop and start: [`TestCluster::servers`].

mod error;
mod prepared;
mod servers;

use std::future::{Future, IntoFuture};
use std::path::{Path, PathBuf};
use std::pin::Pin;

pub use error::Error;

use crate::config::Config;
use crate::dev::{self, Binaries, ClusterOptions, Server, ServerOptions};
use crate::map::HostName;
use crate::router::Router;
use crate::shard::{KeyKind, ShardCount};
use prepared::Recipe;
use servers::{Databases, SharedServer};

/// The `application_name` of our sessions.
const NAME: &str = "pgshard testing";

/// A cluster for a test: two hosts and 16 shards by default. Await it.
pub fn cluster() -> ClusterBuilder {
    ClusterBuilder {
        hosts: 2,
        shards: 16,
        key: KeyKind::default(),
        migrations: None,
        config: String::new(),
        major: None,
        // Each test has a router, with some connections to each host.
        server: ServerOptions::default().max_connections(500),
        own_servers: false,
    }
}

/// What cluster to make: [`cluster`]. It is made when the builder is awaited.
#[derive(Clone, Debug)]
#[must_use = "a cluster is made when its builder is awaited"]
pub struct ClusterBuilder {
    hosts: usize,
    shards: u16,
    key: KeyKind,
    migrations: Option<PathBuf>,
    config: String,
    major: Option<u32>,
    server: ServerOptions,
    own_servers: bool,
}

impl ClusterBuilder {
    /// How many hosts: `db1`, `db2`, … The shards are spread evenly over them.
    pub fn hosts(mut self, hosts: usize) -> ClusterBuilder {
        self.hosts = hosts;
        self
    }

    /// N. A few are enough for a test; more take longer to copy.
    pub fn shards(mut self, shards: u16) -> ClusterBuilder {
        self.shards = shards;
        self
    }

    /// How a key becomes a shard: `key` of the config.
    pub fn key(mut self, key: KeyKind) -> ClusterBuilder {
        self.key = key;
        self
    }

    /// The folder of the application's shard migrations, from the working directory, which is that
    /// of the package in `cargo test`.
    pub fn migrations(mut self, folder: impl Into<PathBuf>) -> ClusterBuilder {
        self.migrations = Some(folder.into());
        self
    }

    /// More sections for the config, such as `[router]`, in TOML.
    pub fn config(mut self, sections: impl Into<String>) -> ClusterBuilder {
        self.config = sections.into();
        self
    }

    /// The major version of PostgreSQL; without it the first choice of [`Binaries::all`].
    pub fn postgres(mut self, major: u32) -> ClusterBuilder {
        self.major = Some(major);
        self
    }

    /// How the server is set up. On a machine that others use, choose
    /// [`Access::Password`](dev::Access::Password).
    pub fn server(mut self, options: ServerOptions) -> ClusterBuilder {
        self.server = options;
        self
    }

    /// Gives each host a server that only this test uses. It takes a few tenths of a second more.
    pub fn own_servers(mut self) -> ClusterBuilder {
        self.own_servers = true;
        self
    }

    async fn start(self) -> Result<TestCluster, Error> {
        let shards = ShardCount::new(self.shards.into()).ok_or(Error::Shards {
            shards: self.shards,
        })?;
        let max = ClusterOptions::HOSTS_MAX;
        if !(1..=max.min(self.shards.into())).contains(&self.hosts) {
            let hosts = self.hosts;
            let shards = self.shards;
            return Err(dev::Error::HostCount { hosts, shards, max }.into());
        }
        let folder = match &self.migrations {
            None => None,
            Some(folder) => Some(std::path::absolute(folder).map_err(|source| Error::File {
                path: folder.clone(),
                source,
            })?),
        };
        let recipe = Recipe {
            hosts: self.hosts,
            shards,
            key: self.key,
            folder,
        };
        let started = tokio::task::spawn_blocking({
            let (recipe, options) = (recipe.clone(), self.server);
            move || match self.own_servers {
                true => start_cluster(&recipe, self.major, options).map(BlockingStart::Own),
                false => shared(&recipe, self.major, &options).map(BlockingStart::Shared),
            }
        });
        let place = match started.await {
            Ok(started) => match started? {
                BlockingStart::Own(servers) => Place::Own(servers),
                BlockingStart::Shared(shared) => Place::Shared(shared.databases(&recipe).await?),
            },
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => return Err(Error::Runtime(error.into())),
            },
        };
        let text = recipe.config_text(place.urls(&recipe)) + "\n" + &self.config;
        let directory = place.directory();
        let path = directory.join("pgshard.toml");
        let written =
            std::fs::create_dir_all(&directory).and_then(|()| std::fs::write(&path, text));
        written.map_err(|source| Error::File {
            path: path.clone(),
            source,
        })?;
        let config = Config::load(&path).map_err(Error::Config)?;
        let router = crate::connect(&path).await.map_err(Error::Router)?;
        Ok(TestCluster {
            router,
            config,
            path,
            place,
        })
    }
}

impl IntoFuture for ClusterBuilder {
    type Output = Result<TestCluster, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.start())
    }
}

/// What was started on a thread for blocking work.
enum BlockingStart {
    Shared(std::sync::Arc<SharedServer>),
    Own(dev::Cluster),
}

fn binaries(major: Option<u32>) -> Result<Binaries, dev::Error> {
    major.map_or_else(Binaries::first, Binaries::of_major)
}

fn shared(
    recipe: &Recipe,
    major: Option<u32>,
    options: &ServerOptions,
) -> Result<std::sync::Arc<SharedServer>, Error> {
    let binaries = binaries(major)?;
    SharedServer::of(&binaries, &recipe.data(&binaries)?, options)
}

fn start_cluster(
    recipe: &Recipe,
    major: Option<u32>,
    options: ServerOptions,
) -> Result<dev::Cluster, Error> {
    let binaries = binaries(major)?;
    let data = recipe.data(&binaries)?;
    let cluster = ClusterOptions::new(recipe.hosts, binaries).server(options);
    Ok(dev::Cluster::start(&cluster.copy_of(data))?)
}

/// Where a test's hosts are.
enum Place {
    Shared(Databases),
    Own(dev::Cluster),
}

impl Place {
    fn urls(&self, recipe: &Recipe) -> Vec<(HostName, String)> {
        match self {
            Place::Shared(databases) => databases.urls(),
            // Each server has the databases of all hosts, and is used for one of them.
            Place::Own(cluster) => recipe
                .names()
                .zip(cluster.servers())
                .map(|(host, server)| {
                    let url = server.url_of(host.as_str());
                    (host, url)
                })
                .collect(),
        }
    }

    /// A directory for this test's files. It goes with the servers.
    fn directory(&self) -> PathBuf {
        match self {
            Place::Shared(databases) => databases.directory(),
            Place::Own(cluster) => cluster.directory().join("test"),
        }
    }
}

/// A cluster that a test has for itself. Its databases are dropped with it, which blocks for some
/// hundredths of a second.
pub struct TestCluster {
    router: Router,
    config: Config,
    path: PathBuf,
    place: Place,
}

impl TestCluster {
    /// A router, made in the runtime that made the cluster.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Another router, as another process of the application has one, or a test with a runtime of
    /// its own.
    ///
    /// # Errors
    /// When the config can no longer be read.
    pub async fn connect(&self) -> Result<Router, Error> {
        crate::connect(&self.path).await.map_err(Error::Router)
    }

    /// The config as it was at the start.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The config file, for `pgshard --config` and [`connect`](crate::connect).
    pub fn config_path(&self) -> &Path {
        &self.path
    }

    /// The URL of a host's database as the superuser, for what the application's role may not do.
    /// [`Config::hosts`] has the application's.
    pub fn superuser_url(&self, host: &HostName) -> Option<String> {
        match &self.place {
            Place::Shared(databases) => databases.superuser_url(host),
            Place::Own(cluster) => {
                let mut servers = cluster.servers().iter();
                let server = servers.find(|server| server.name() == host)?;
                Some(server.superuser_url_of(host.as_str()))
            }
        }
    }

    /// The servers, `db1` first, which the test may stop and start, if it was made with
    /// [`ClusterBuilder::own_servers`]; otherwise none, as other tests use them.
    pub fn servers(&self) -> &[Server] {
        match &self.place {
            Place::Shared(_) => &[],
            Place::Own(cluster) => cluster.servers(),
        }
    }
}

impl std::fmt::Debug for TestCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestCluster")
            .field("config", &self.path)
            .finish_non_exhaustive()
    }
}

/// A runtime for work on a thread of its own.
fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(Error::Runtime)
}
