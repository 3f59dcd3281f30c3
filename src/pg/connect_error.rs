//! Why a connection cannot be opened.

use super::identity::Impostor;
use super::password_error::PasswordError;
use super::state::is_refused_login;
use super::tls::TlsError;

/// Why a connection cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The password cannot be read.
    #[error("no password for {to}, which was not contacted")]
    Password {
        /// `user@address/database`.
        to: String,
        /// Why not.
        source: PasswordError,
    },
    /// TLS cannot be set up.
    #[error("no TLS for {to}")]
    Tls {
        /// `user@address/database`.
        to: String,
        /// Why not.
        source: TlsError,
    },
    /// No socket to the server can be opened.
    #[error("cannot connect to {to}")]
    Unreachable {
        /// `user@address/database`.
        to: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The server refuses, or sends a message that cannot be understood.
    #[error("cannot connect to {to}")]
    Refused {
        /// `user@address/database`.
        to: String,
        /// The driver's error.
        source: tokio_postgres::Error,
    },
    /// The server did not answer in time.
    #[error("{to} did not answer within {timeout_ms} ms")]
    TimedOut {
        /// `user@address/database`.
        to: String,
        /// The limit.
        timeout_ms: u128,
    },
    /// The server has begun to answer, and has not let us in in time.
    #[error("{to} has begun to answer, and has not let us in within {timeout_ms} ms")]
    Stalled {
        /// `user@address/database`.
        to: String,
        /// The limit.
        timeout_ms: u128,
    },
    /// The server takes no writes and should, or takes writes and should not.
    #[error(
        "{to}: {address} is not what target_session_attrs asks for: it {}",
        if *read_only { "takes no writes" } else { "takes writes" }
    )]
    OtherRole {
        /// `user@address/database`.
        to: String,
        /// The one of its addresses.
        address: String,
        /// Whether it takes no writes.
        read_only: bool,
    },
    /// The server is not, or not any more, the one that belongs under this name. Nothing was sent
    /// to it.
    #[error("{to}: {address} is not connected to")]
    Impostor {
        /// `user@address/database`.
        to: String,
        /// The one of its addresses.
        address: String,
        /// Why.
        source: Impostor,
    },
    /// Two servers take writes, and nothing shows which of them is the host.
    #[error(
        "{to}: both {first} and {second} take writes, and neither is known to be the later: stop \
            the one that is not the host (docs/high-availability.md)"
    )]
    TwoPrimaries {
        /// `user@address/database`.
        to: String,
        /// One address.
        first: String,
        /// The other.
        second: String,
    },
}

impl ConnectError {
    /// Whether the server refused the login.
    pub(super) fn is_refused_login(&self) -> bool {
        match self {
            ConnectError::Refused { source, .. } => source
                .code()
                .is_some_and(|code| is_refused_login(code.code())),
            _ => false,
        }
    }

    /// Whether the server could not be reached, or no server that answered is the host's primary.
    /// This may pass, but another immediate try does not help. False when the server answered with
    /// an error.
    pub fn is_unreachable(&self) -> bool {
        match self {
            ConnectError::TimedOut { .. }
            | ConnectError::Stalled { .. }
            | ConnectError::OtherRole { .. }
            | ConnectError::Unreachable { .. }
            | ConnectError::Impostor { .. }
            | ConnectError::TwoPrimaries { .. } => true,
            ConnectError::Refused { source, .. } => {
                let cause = std::error::Error::source(source)
                    .and_then(|cause| cause.downcast_ref::<std::io::Error>());
                // The TLS library reports a handshake that failed as invalid data.
                let broken =
                    |error: &std::io::Error| error.kind() != std::io::ErrorKind::InvalidData;
                source.as_db_error().is_none() && (source.is_closed() || cause.is_some_and(broken))
            }
            ConnectError::Password { .. } | ConnectError::Tls { .. } => false,
        }
    }
}
