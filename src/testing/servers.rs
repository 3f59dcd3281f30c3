//! The servers that the tests of one process have in common.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::Error;
use super::prepared::{self, Recipe};
use crate::dev::{Binaries, Cluster, ClusterOptions, Server, ServerOptions};
use crate::map::HostName;
use crate::pg::quote_ident;

/// One server for each data directory and way to set it up. Tests of a process have nothing else in
/// common that could hold it. It is started by the first test that needs it, and stops with the
/// process: a static is not dropped, but the pipe to the server's guardian breaks.
static SHARED: Mutex<Vec<Kind>> = Mutex::new(Vec::new());

struct Kind {
    data: PathBuf,
    options: ServerOptions,
    /// Held while it is started, so that tests that begin together start one.
    server: Arc<Mutex<Option<Arc<SharedServer>>>>,
}

/// A server that several tests use, each with databases of its own.
pub(super) struct SharedServer {
    servers: Cluster,
    /// How many tests have used it.
    tests: AtomicU64,
}

impl SharedServer {
    /// The server of this process. Blocks.
    pub(super) fn of(
        binaries: &Binaries,
        data: &Path,
        options: &ServerOptions,
    ) -> Result<Arc<SharedServer>, Error> {
        let place = {
            let mut kinds = lock(&SHARED);
            let known = kinds.iter();
            let found = known
                .into_iter()
                .find(|kind| kind.data == data && kind.options == *options);
            match found {
                Some(kind) => kind.server.clone(),
                None => {
                    let (data, options) = (data.to_owned(), options.clone());
                    let server = Arc::default();
                    kinds.push(Kind {
                        data,
                        options,
                        server: Arc::clone(&server),
                    });
                    server
                }
            }
        };
        let mut running = lock(&place);
        if let Some(shared) = &*running {
            return Ok(shared.clone());
        }
        let cluster = ClusterOptions::new(1, binaries.clone()).server(options.clone());
        let shared = Arc::new(SharedServer {
            servers: Cluster::start(&cluster.copy_of(data.to_owned()))?,
            tests: AtomicU64::new(0),
        });
        *running = Some(shared.clone());
        Ok(shared)
    }

    fn server(&self) -> &Server {
        // A cluster has as many servers as requested: one.
        &self.servers.servers()[0]
    }

    /// New databases for the hosts of one test.
    pub(super) async fn databases(self: Arc<Self>, recipe: &Recipe) -> Result<Databases, Error> {
        let number = self.tests.fetch_add(1, Ordering::Relaxed);
        // Made first, so that what is created is dropped also when this future is.
        let mut databases = Databases {
            number,
            names: Vec::new(),
            shared: self,
        };
        let admin = prepared::admin(databases.shared.server()).await?;
        for host in recipe.names() {
            let name = format!("test_{number}_{host}");
            databases.names.push((host.clone(), name.clone()));
            prepared::create(&admin, &name, host.as_str()).await?;
        }
        Ok(databases)
    }
}

/// The databases of one test; they are dropped with it.
pub(super) struct Databases {
    number: u64,
    names: Vec<(HostName, String)>,
    shared: Arc<SharedServer>,
}

impl Databases {
    /// Where the application connects.
    pub(super) fn urls(&self) -> Vec<(HostName, String)> {
        let url = |(host, database): &(HostName, String)| {
            (host.clone(), self.shared.server().url_of(database))
        };
        self.names.iter().map(url).collect()
    }

    /// A directory for the test's files. It goes with the databases.
    pub(super) fn directory(&self) -> PathBuf {
        let directory = self.shared.servers.directory();
        directory.join(format!("test_{}", self.number))
    }

    /// The URL of this host's database for the superuser.
    pub(super) fn superuser_url(&self, host: &HostName) -> Option<String> {
        let mut names = self.names.iter();
        let (_, database) = names.find(|(name, _)| name == host)?;
        Some(self.shared.server().superuser_url_of(database))
    }
}

impl Drop for Databases {
    /// Blocks for some hundredths of a second. What fails is only logged: the databases go with the
    /// server, at the latest with this process.
    fn drop(&mut self) {
        // What stays goes with the server.
        let _ = std::fs::remove_dir_all(self.directory());
        let (names, shared) = (std::mem::take(&mut self.names), self.shared.clone());
        let work = move || -> Result<(), Error> {
            super::runtime()?.block_on(async {
                let admin = prepared::admin(shared.server()).await?;
                for (_, database) in names {
                    let name = quote_ident(&database);
                    let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                    let dropped = admin.batch_execute(&sql).await;
                    dropped.map_err(|source| Error::Database { database, source })?;
                }
                Ok(())
            })
        };
        // A runtime cannot be blocked on within another one, so this needs a thread.
        let thread = std::thread::Builder::new().name(super::NAME.to_owned());
        let ended = thread.spawn(work).map(std::thread::JoinHandle::join);
        if let Ok(Ok(Err(error))) = ended {
            tracing::debug!(%error, "a test's databases stay until its server stops");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is half-done under these locks when a test panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
