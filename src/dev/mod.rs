//! Throwaway PostgreSQL servers on this machine: for the tests, for `pgshard demo`, and, outliving the command, for
//! `pgshard dev up`.
//!
//! - [`Cluster`]: as many servers as asked, each with its own data directory, its own port on 127.0.0.1 and a unix
//!   socket. They stop and vanish when the value is dropped and when the process that holds it ends, however it ends.
//! - [`up`], [`down`], [`status`]: servers that stay, below a directory, with a ready `pgshard.toml`.
//! - [`Binaries`]: which PostgreSQL programs there are on this machine.
//!
//! Every server has the superuser `postgres` and the role `app` (`LOGIN REPLICATION CREATEDB`, no superuser), which
//! owns the database `app` and may make others, for tests. Nobody needs a password: every connection from
//! the loopback interface of this machine is let in, so these servers are for development only.
//!
//! Everything here blocks its thread, for a fraction of a second as a rule (starting a server) and for up to a minute
//! at worst; from async code call it with `tokio::task::block_in_place` or `spawn_blocking`.
//!
//! Invariant: no server and no directory is left behind unless somebody asked for it, and nothing is ever
//! stopped or removed that this module did not make.

mod binaries;
mod cache;
mod cluster;
mod config_text;
mod detached;
mod error;
mod guardian;
mod layout;
mod port;
mod privileges;
mod server;
mod settings;
mod template;

pub use binaries::Binaries;
pub use cluster::{Cluster, ClusterOptions};
pub use config_text::config_text;
pub use detached::{ConfigState, ServerState, ServerStatus, Up, UpOptions, down, status, up};
pub use error::Error;
pub use server::{Server, StopMode};
pub use settings::{Durability, ServerOptions};
