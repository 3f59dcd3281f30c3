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
    /// No table has a name that a choice names.
    #[error("there is no table {table}, or the role may not see it")]
    NoTable {
        /// The name.
        table: String,
    },
    /// A table that was named has no way to the key.
    #[error("{table} is not imported: nothing leads from it to the key; see import assess")]
    NotImported {
        /// The table.
        table: String,
    },
    /// A choice is about the key's own table.
    #[error("{choice} is the key's own table, which is always imported")]
    KeyTableChosen {
        /// The table or column of the choice.
        choice: String,
    },
    /// Two choices are about the same table.
    #[error("{choice}: there is another choice for this table; give one")]
    ChosenTwice {
        /// The table or column of the choice.
        choice: String,
    },
    /// A column that was chosen does not lead to the key.
    #[error(
        "{choice} does not lead to the key: it has another type than the key, and refers to no \
         imported table"
    )]
    NoWay {
        /// The column.
        choice: String,
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
                | Error::NoTable { .. }
                | Error::NotImported { .. }
                | Error::KeyTableChosen { .. }
                | Error::ChosenTwice { .. }
                | Error::NoWay { .. }
                | Error::Statements { .. }
        )
    }
}
