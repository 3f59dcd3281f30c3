//! Why a connection string is refused.

use std::path::PathBuf;

/// Why a connection string is refused. The text itself is not repeated: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// Not a URL and not key=value pairs.
    #[error("the connection string cannot be read: {reason}")]
    Parse {
        /// What is wrong.
        reason: String,
    },
    /// The host holds an `@`: user or password do, and it is not escaped there. The text is not
    /// repeated, as it holds a part of the password.
    #[error("the host holds an @: write %40 for an @ in user or password")]
    AtInHost,
    /// A key that pgshard does not know. It is not shown, because it may be a part of a password.
    #[error("the connection string has a key that pgshard does not know")]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A value that the key cannot have.
    #[error("{key} has a wrong value: {reason}")]
    WrongValue {
        /// The key.
        key: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A key requires what pgshard cannot check. The connection would be trusted further than the
    /// string allows.
    #[error("{key} asks for something that pgshard does not have: {why}")]
    Unsupported {
        /// The key.
        key: &'static str,
        /// What it is.
        why: String,
    },
    /// `sslmode` is none that libpq knows.
    #[error("sslmode {mode:?} is none of disable, prefer, require, verify-ca, verify-full")]
    SslMode {
        /// What was given.
        mode: String,
    },
    /// `sslrootcert=system` with an `sslmode` that does not check the server's name: any server
    /// with a certificate of a public authority would be accepted.
    #[error("sslmode {mode:?} is too weak for sslrootcert=system: that wants verify-full")]
    WeakWithSystem {
        /// What was given.
        mode: String,
    },
    /// `sslnegotiation=direct` with an `sslmode` that takes a connection without TLS.
    #[error("sslnegotiation=direct wants sslmode=require, verify-ca or verify-full")]
    WeakWithDirect,
    /// `target_session_attrs` is none that we know.
    #[error(
        "target_session_attrs {value:?} is none of any, read-write, primary, read-only, standby"
    )]
    TargetSessionAttrs {
        /// What was given.
        value: String,
    },
    /// No file has the service that `service` names.
    #[error("there is no service {service:?} in {}", named(files))]
    NoSuchService {
        /// What was given.
        service: String,
        /// The files that were looked into, where they are there.
        files: Vec<PathBuf>,
    },
    /// The file that has the service cannot be used.
    #[error("service [{service}] of {}: {reason}", file.display())]
    ServiceFile {
        /// The file.
        file: PathBuf,
        /// The section.
        service: String,
        /// What is wrong, and in which line.
        reason: String,
    },
    /// A variable of the environment has a value that its key cannot have.
    #[error("{name} in the environment: {reason}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A key that must be there is not.
    #[error("the {key} is missing")]
    Missing {
        /// `host`, `user` or `dbname`.
        key: &'static str,
    },
}

/// A word as it was given, for an error. What cannot be a key may be a part of a password: a string
/// that is mistyped, or two of them without a space between.
pub(super) fn word(value: &str) -> String {
    let is_word = value.len() <= 30
        && value
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'));
    if is_word {
        value.to_owned()
    } else {
        "…".to_owned()
    }
}

fn named(files: &[PathBuf]) -> String {
    let files: Vec<String> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    if files.is_empty() {
        "any file: PGSERVICEFILE and HOME are not set".to_owned()
    } else {
        files.join(" or ")
    }
}
