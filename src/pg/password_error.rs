//! Why there is no password.

use std::path::PathBuf;

/// Why there is no password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PasswordError {
    /// The environment variable is not set.
    #[error("the environment variable {name}, which password_env names, is not set")]
    Env {
        /// The variable.
        name: String,
    },
    /// The password file cannot be read.
    #[error("cannot read the password file {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The program of `password_command` gave none.
    #[error("the password command {program:?} {why}")]
    Command {
        /// The program.
        program: String,
        /// Why not.
        why: String,
    },
    /// The program was not waited for: the process ends.
    #[error("the password was not read to its end")]
    Interrupted,
    /// libpq refuses a file that others can read; so do we.
    #[error("{} can be read by others: chmod 600 it", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
}
