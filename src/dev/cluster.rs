//! Several servers that live as long as the value: [`Cluster`].

use std::fmt;
use std::path::{Path, PathBuf};

use super::binaries::Binaries;
use super::config_text::config_text;
use super::error::Error;
use super::guardian::Guardian;
use super::layout;
use super::passwords::Passwords;
use super::privileges::Account;
use super::server::Server;
use super::settings::{Access, Durability, ServerOptions};
use crate::map::HostName;
use crate::shard::ShardCount;

/// What servers to start.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterOptions {
    /// How many: 1 to [`ClusterOptions::HOSTS_MAX`].
    pub hosts: usize,
    /// The programs that run them.
    pub binaries: Binaries,
    /// How each is set up.
    pub server: ServerOptions,
    /// The data directory that each begins as a copy of, if not an empty one.
    data: Option<PathBuf>,
}

impl ClusterOptions {
    /// `hosts` small and quick servers that run these programs.
    pub fn new(hosts: usize, binaries: Binaries) -> ClusterOptions {
        ClusterOptions {
            hosts,
            binaries,
            server: ServerOptions::default(),
            data: None,
        }
    }

    /// The same with servers that begin as copies of this data directory of a stopped server: one
    /// that [`prepared`](super::prepared) has made.
    pub(crate) fn copy_of(mut self, data: PathBuf) -> ClusterOptions {
        self.data = Some(data);
        self
    }

    /// The most servers of one cluster: 64, more than any machine for development bears.
    pub const HOSTS_MAX: usize = 64;
}

setters!(ClusterOptions: server: ServerOptions);

/// Throwaway servers `db1`, `db2`, … in one temporary directory.
///
/// Dropping it stops them all and removes everything; so does the end of this process, by Ctrl-C, a
/// panic or SIGKILL. After [`Cluster::keep`] they are stopped, but their directories stay.
pub struct Cluster {
    directory: PathBuf,
    servers: Vec<Server>,
    /// Declared after the servers, so that it is dropped last: it waits until they are gone.
    directory_guardian: Guardian,
}

impl Cluster {
    /// Starts the servers, side by side, and waits until all of them take connections. Blocks; the
    /// first time on a machine it also runs `initdb`, which takes a second or two.
    ///
    /// # Errors
    /// When the number is out of bounds or a server cannot be made or started. Nothing is left
    /// behind then.
    pub fn start(options: &ClusterOptions) -> Result<Cluster, Error> {
        if !(1..=ClusterOptions::HOSTS_MAX).contains(&options.hosts) {
            let max = ClusterOptions::HOSTS_MAX;
            return Err(Error::HostCount {
                hosts: options.hosts,
                shards: ShardCount::MAX.get(),
                max,
            });
        }
        let account = Account::for_servers()?;
        let binaries = options.binaries.within_reach(&account)?;
        let temporary = match options.server.durability {
            Durability::Throwaway => layout::throwaway(&account)?,
            Durability::Durable => layout::temporary(&account)?,
        };
        let directory = tempfile::Builder::new()
            .prefix("pgshard-")
            .tempdir_in(&temporary);
        let directory = directory
            .map_err(Error::io("create a directory in", &temporary))?
            .keep();
        // From here on, dropping the cluster cleans up.
        let directory_guardian = Guardian::of_directory(&directory)?;
        let mut cluster = Cluster {
            directory,
            servers: Vec::new(),
            directory_guardian,
        };
        // The directory stays ours: the servers' user could put a link in place of a directory in
        // it, for us to follow.
        account.let_through(&cluster.directory)?;
        let passfile = cluster.directory.join("passfile");
        let passwords = match options.server.access {
            Access::Everybody => None,
            Access::Password => Some(Passwords::random()?),
        };
        if let Some(passwords) = &passwords {
            passwords.write(&passfile)?;
        }
        let passwords = passwords
            .as_ref()
            .map(|passwords| (passwords, passfile.as_path()));
        let create = |number: usize| {
            Server::create(
                host_name(number),
                &cluster.directory,
                &binaries,
                &account,
                &options.server,
                (options.data.as_deref(), passwords),
            )
        };
        let created: Vec<Result<Server, Error>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=options.hosts)
                .map(|number| scope.spawn(move || create(number)))
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        let mut failed = None;
        for outcome in created {
            match outcome {
                Ok(server) => cluster.servers.push(server),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(cluster), Err)
    }

    /// The servers, `db1` first.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The temporary directory of the cluster: a directory a server, and room for files of the
    /// caller's.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A config for these servers, with `shards` spread evenly over them. See [`config_text`].
    pub fn config_text(&self, shards: ShardCount, migrations: Option<&str>) -> String {
        let hosts: Vec<_> = self
            .servers
            .iter()
            .map(|server| (server.name().clone(), server.url()))
            .collect();
        config_text(shards, &hosts, migrations)
    }

    /// Keeps everything but the running servers when the cluster is dropped, for inspection.
    pub fn keep(&mut self) {
        let servers = self.servers.iter().map(Server::keep);
        for error in servers
            .chain([self.directory_guardian.keep()])
            .filter_map(Result::err)
        {
            tracing::warn!(%error, "a directory may not be kept");
        }
    }
}

/// The names of this many hosts.
pub(crate) fn host_names(hosts: usize) -> impl Iterator<Item = HostName> {
    (1..=hosts).map(host_name)
}

/// `db1` is the first.
pub(super) fn host_name(number: usize) -> HostName {
    HostName::new(&format!("db{number}")).expect("db and a number is a host name")
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // All are stopped before any is waited for.
        for server in &mut self.servers {
            server.release();
        }
        self.servers.clear();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("directory", &self.directory)
            .field("servers", &self.servers)
            .finish()
    }
}
