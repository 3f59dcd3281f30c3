//! Why a database could not be assessed.

use std::path::PathBuf;

use super::key::KeyName;
use crate::pg::ConnectError;

/// Error returned by [`assess`](super::assess).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server could not be reached, or it refused.
    #[error("cannot connect to the database")]
    Connect(#[source] Box<ConnectError>),
    /// The server refused, or the connection broke.
    #[error("cannot read {what}")]
    Postgres {
        /// What was being read.
        what: &'static str,
        /// The error of the driver.
        source: tokio_postgres::Error,
    },
    /// The server answered something that no server should.
    #[error("the server's answer about {what} is empty")]
    Unexpected {
        /// What was being read.
        what: &'static str,
    },
    /// No table has the name of the key's.
    #[error("there is no table for the key {key}, or the role may not see it")]
    NoKeyTable {
        /// The key.
        key: KeyName,
    },
    /// The key's table has no such column.
    #[error("table {} has no column {}", key.table, key.column)]
    NoKeyColumn {
        /// The key.
        key: KeyName,
    },
    /// Several schemas have such a table.
    #[error("several schemas have a table for the key {key}: {}", schemas.join(", "))]
    SeveralKeyTables {
        /// The key.
        key: KeyName,
        /// The schemas.
        schemas: Vec<String>,
    },
    /// The file with statements could not be read.
    #[error("cannot read the statements in {}", path.display())]
    Statements {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn postgres(what: &'static str, source: tokio_postgres::Error) -> Error {
        Error::Postgres { what, source }
    }

    /// Whether the request was wrong, and not the server.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Error::NoKeyTable { .. }
                | Error::NoKeyColumn { .. }
                | Error::SeveralKeyTables { .. }
                | Error::Statements { .. }
        )
    }
}
