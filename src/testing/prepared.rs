//! A data directory in which a cluster is bootstrapped, made once and kept in the cache of
//! [`dev`](crate::dev): one database a host, `db1`, `db2`, …

use std::path::{Path, PathBuf};

use super::error::Error;
use crate::config::Config;
use crate::dev::{self, Binaries, Server};
use crate::map::{HostName, ShardMap};
use crate::pg::{ConnectOptions, Connection, quote_ident};
use crate::schema::bootstrap::{Host, Report, Request};
use crate::schema::{self, Cluster, Migrations};
use crate::shard::{KeyKind, ShardCount};

/// What a prepared data directory depends on, except for PostgreSQL and our own SQL.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) hosts: usize,
    pub(super) shards: ShardCount,
    pub(super) key: KeyKind,
    /// The folder of migrations, absolute.
    pub(super) folder: Option<PathBuf>,
}

impl Recipe {
    /// The data directory. The first time it starts a server and bootstraps, which takes a second
    /// or two. Blocks.
    pub(super) fn data(&self, binaries: &Binaries) -> Result<PathBuf, Error> {
        let migrations = match &self.folder {
            None => Migrations::none(),
            Some(folder) => Migrations::read(folder).map_err(|source| Error::Migrations {
                folder: folder.clone(),
                source,
            })?,
        };
        let mut keys = vec![
            env!("CARGO_PKG_VERSION").to_owned(),
            format!("{} {} {}", self.hosts, self.shards, self.key),
        ];
        keys.extend(schema::texts().map(str::to_owned));
        for migration in migrations.iter().chain(migrations.of_hosts()) {
            keys.extend([migration.name().to_owned(), migration.checksum().to_owned()]);
        }
        dev::prepared(binaries, &keys, |server| {
            let runtime = super::runtime()?;
            runtime.block_on(self.prepare(server, &migrations))
        })
    }

    async fn prepare(&self, server: &Server, migrations: &Migrations) -> Result<(), Error> {
        let admin = admin(server).await?;
        for host in self.names() {
            // The database `app` is empty, and its owner may create in its `public`.
            create(&admin, host.as_str(), "app").await?;
        }
        drop(admin);
        let urls = self.names().map(|host| {
            let url = server.url_of(host.as_str());
            (host, url)
        });
        let text = self.config_text(urls.collect());
        let config = Config::parse(&text, "pgshard.toml").map_err(Error::Config)?;
        let report = schema::bootstrap(&self.request(&config, migrations.clone()), &|_| ()).await;
        match report.is_complete() {
            true => Ok(()),
            false => Err(Error::Bootstrap {
                reasons: reasons(&report),
            }),
        }
    }

    /// The names of the hosts, which in the prepared data directory are those of their databases.
    pub(super) fn names(&self) -> impl Iterator<Item = HostName> + use<> {
        dev::host_names(self.hosts)
    }

    /// The config of a cluster of hosts with these URLs.
    pub(super) fn config_text(&self, hosts: Vec<(HostName, String)>) -> String {
        let folder = self.folder.as_deref().map(Path::to_string_lossy);
        let text = dev::config_text(self.shards, &hosts, folder.as_deref());
        match self.key == KeyKind::default() {
            true => text,
            false => text.replacen(
                "[cluster]\n",
                &format!("[cluster]\nkey = \"{}\"\n", self.key),
                1,
            ),
        }
    }

    fn request(&self, config: &Config, migrations: Migrations) -> Request {
        let cluster = Cluster {
            shards: config.cluster.shards,
            epoch: config.cluster.epoch,
            schema_prefix: config.cluster.prefix.clone(),
            key: config.cluster.key,
            legacy_below: config.cluster.legacy_below,
            unsharded: None,
        };
        let map = config.map.as_ref();
        let shards_of = |name: &HostName| {
            let all = map.into_iter().flat_map(ShardMap::iter);
            all.filter(|(_, on, _)| *on == name)
                .map(|(shard, _, epoch)| (shard, epoch))
                .collect()
        };
        let hosts = config.hosts.values().map(|host| Host {
            name: host.name.clone(),
            connect: host.connect.clone(),
            shards: shards_of(&host.name),
        });
        Request::new(cluster, hosts.collect(), migrations)
    }
}

/// A session of the superuser, in a database that nothing is copied from.
pub(super) async fn admin(server: &Server) -> Result<Connection, Error> {
    let options = ConnectOptions::parse(&server.superuser_url_of("postgres"))?;
    Ok(options.connect(super::NAME).await?)
}

/// Creates a database of the application's role, as a copy of another one of the server.
pub(super) async fn create(
    admin: &Connection,
    database: &str,
    template: &str,
) -> Result<(), Error> {
    let (name, template) = (quote_ident(database), quote_ident(template));
    let sql = format!("CREATE DATABASE {name} TEMPLATE {template} OWNER app");
    let created = admin.batch_execute(&sql).await;
    created.map_err(|source| Error::Database {
        database: database.to_owned(),
        source,
    })
}

/// Why it is not complete.
fn reasons(report: &Report) -> Vec<String> {
    const MANY: usize = 8;
    let hosts = report.hosts.iter().flat_map(|(name, host)| {
        let fault = host
            .fault
            .iter()
            .map(move |fault| format!("{name}: {fault}"));
        let failed = host.failed.iter();
        fault.chain(failed.map(move |(shard, fault)| format!("shard {shard} on {name}: {fault}")))
    });
    hosts.take(MANY).collect()
}
