//! PostgreSQL as the rest of the crate sees it: how to [connect](ConnectOptions), how to
//! [quote](quote_ident), which SQLSTATE means what ([`state`]), how an error is shown ([`cause`]),
//! and SQL with a schema that is filled in later ([`Template`]).
//!
//! Invariant: no password leaves this module (not in `Debug`, errors or logs), and every name or
//! text that goes into SQL goes through [`quote_ident`] or [`quote_literal`].

#[cfg(feature = "ops")]
mod activity;
#[cfg(feature = "ops")]
mod binding;
mod cancel;
pub mod cause;
mod certificate;
mod connect;
mod connect_error;
mod conninfo;
#[cfg(feature = "ops")]
pub(crate) mod decoding;
mod driver;
#[cfg(all(any(test, fuzzing), feature = "ops"))]
pub(crate) mod fuzz;
mod guard;
mod host_state;
mod identity;
mod keys;
#[cfg(feature = "ops")]
mod libpq;
mod lookout;
mod options;
mod options_error;
mod password;
mod password_command;
mod password_error;
mod quote;
#[cfg(feature = "ops")]
mod replication;
mod require_auth;
mod service;
#[cfg(feature = "ops")]
mod sessions;
mod silence;
pub(crate) mod simulated;
mod socket;
pub mod state;
mod template;
mod tls;
mod vitals;

#[cfg(feature = "ops")]
pub(crate) use activity::shown;
pub use connect::Connection;
pub use connect_error::ConnectError;
#[cfg(feature = "dev")]
pub(crate) use conninfo::put_key;
pub use host_state::HostState;
pub use identity::{Identity, Impostor, Record, Server};
pub(crate) use identity::{Records, record};
#[cfg(feature = "ops")]
pub use libpq::LibpqEnvironment;
pub(crate) use lookout::Lookout;
pub use options::ConnectOptions;
pub use options_error::OptionsError;
pub use password::Password;
pub use password_command::PasswordCommand;
pub use password_error::PasswordError;
#[cfg(feature = "ops")]
pub(crate) use quote::do_block;
pub use quote::{quote_ident, quote_literal};
#[cfg(feature = "ops")]
pub use replication::ReplicationError;
#[cfg(feature = "ops")]
pub(crate) use replication::{Reader, Reply, Writer};
#[cfg(feature = "ops")]
pub use sessions::{Session, Sessions};
pub use template::Template;
pub use tls::{RootCert, SslMode, TlsError, TlsOptions, TlsVersion};

/// The `cluster_name` of servers with rows that may be lost: their settings put nothing at risk.
#[cfg(any(feature = "dev", feature = "ops"))]
pub(crate) const THROWAWAY: &str = "pgshard throwaway";
