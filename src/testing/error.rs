//! [`Error`].

use std::io;
use std::path::PathBuf;

use crate::config::{ConfigError, ConnectError};
use crate::schema::MigrationsError;
use crate::shard::ShardCount;
use crate::{dev, pg};

/// Why there is no cluster for a test.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such number of shards.
    #[error("a cluster has 1 to {} shards, not {shards}", ShardCount::MAX.get())]
    Shards {
        /// How many were requested.
        shards: u16,
    },
    /// The migrations cannot be read, or have mistakes.
    #[error("the migrations in {} cannot be used", folder.display())]
    Migrations {
        /// Their folder.
        folder: PathBuf,
        /// Every mistake.
        #[source]
        source: MigrationsError,
    },
    /// The servers cannot be made or started.
    #[error(transparent)]
    Servers(#[from] dev::Error),
    /// Bootstrap failed, most likely in a migration.
    #[error("the shards cannot be created: {}", reasons.join("; "))]
    Bootstrap {
        /// Why, by host and shard; at most eight of them.
        reasons: Vec<String>,
    },
    /// The config has a mistake: look at the argument of `config`.
    #[error("the test's config cannot be used")]
    Config(#[source] ConfigError),
    /// There is no router.
    #[error("the test's router cannot be made")]
    Router(#[source] ConnectError),
    /// The URL of a server of ours cannot be read.
    #[error("the URL of the test's server cannot be used")]
    Url(#[from] pg::OptionsError),
    /// A server cannot be reached.
    #[error("the test's server cannot be reached")]
    Connect(#[from] pg::ConnectError),
    /// A database cannot be created.
    #[error("cannot create the database {database}")]
    Database {
        /// Its name.
        database: String,
        /// The error of the server or the driver.
        #[source]
        source: tokio_postgres::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// No runtime could be created for the blocking work, or the test's own ended in the meantime.
    #[error("there is no runtime to prepare the test's servers on")]
    Runtime(#[source] io::Error),
}
