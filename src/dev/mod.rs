//! Throwaway PostgreSQL servers on this machine: for the tests, for `pgshard demo`, and, outliving
//! the command, for `pgshard dev up`.
//!
//! - [`Cluster`]: any number of servers, each with its own data directory, its own port on
//!   127.0.0.1 and a unix socket. They stop and vanish when the value is dropped and when the
//!   process that holds it ends, however it ends.
//! - [`up`], [`down`], [`status`]: servers that stay, below a directory, with a ready
//!   `pgshard.toml`.
//! - [`Binaries`]: which PostgreSQL programs there are on this machine.
//!
//! Every server has the superuser `postgres` and the role `app` (`LOGIN REPLICATION CREATEDB`, no
//! superuser), which owns the database `app` and may make others, for tests.
//!
//! Servers of [`up`] require a password, which is in a file that only its owner can read; the URLs
//! and the config name that file. A [`Cluster`] lets every user of this machine in as any role
//! unless [`ServerOptions`] set another [`Access`]: the superuser of a server can run programs as
//! the server's user, so on a machine with other users choose [`Access::Password`].
//!
//! Where we are root, servers run as `postgres` or `nobody`, and each server's directory is given
//! to that user. From then on we write there only as that user, and follow no link when we read.
//!
//! Everything here blocks its thread, for a fraction of a second as a rule (starting a server) and
//! for up to a minute at worst; from async code call it with `tokio::task::block_in_place` or
//! `spawn_blocking`.
//!
//! Invariant: no server and no directory is left behind unless requested, and only what this module
//! has created is ever stopped or removed.

mod binaries;
mod cache;
mod cluster;
mod config_text;
mod detached;
mod error;
mod given;
mod guardian;
mod layout;
mod passwords;
mod port;
mod prepared;
mod privileges;
mod server;
mod settings;
mod template;

pub use binaries::Binaries;
pub(crate) use cluster::host_names;
pub use cluster::{Cluster, ClusterOptions};
pub use config_text::config_text;
pub use detached::{
    ConfigState, ServerState, ServerStatus, Up, UpOptions, down, down_with, status, up, up_with,
};
pub use error::Error;
pub(crate) use prepared::prepared;
pub use server::{Server, StopMode};
pub use settings::{Access, Durability, ServerOptions};
