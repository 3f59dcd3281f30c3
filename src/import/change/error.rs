//! Why a database could not be changed.

use schemars::JsonSchema;
use serde::Serialize;

use super::blocker::{Blocker, listed};
use crate::import::error::Error;

/// Something that has to be changed first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Refusal {
    /// The object.
    pub object: String,
    /// What is wrong with it.
    pub reason: String,
    /// What to do about it: an imperative.
    pub remedy: String,
}

impl Refusal {
    pub(crate) fn new(
        object: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Refusal {
        Refusal {
            object: object.into(),
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.object, self.reason, self.remedy)
    }
}

/// Error returned by the commands that change a database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The database could not be read.
    #[error(transparent)]
    Read(#[from] Error),
    /// The server refused, or the connection broke. What was done before remains.
    #[error("cannot {what}")]
    Postgres {
        /// What was being done.
        what: String,
        /// The error of the driver.
        source: tokio_postgres::Error,
    },
    /// Something has to be changed first. Nothing was changed.
    #[error("{} in the way, and nothing was changed", count(refusals.len()))]
    Refused {
        /// What is in the way.
        refusals: Vec<Refusal>,
    },
    /// Other sessions have had locks for too long. What was done before remains.
    #[error("cannot {what}: it waited for {}", listed(by))]
    Blocked {
        /// What was being done.
        what: String,
        /// The sessions.
        by: Vec<Blocker>,
    },
    /// Sessions with the settings of before have not ended. What was done before remains.
    #[error("sessions began before search_path was set: {}", listed(sessions))]
    OldSessions {
        /// The sessions, the oldest first.
        sessions: Vec<Blocker>,
    },
    /// Another command changes the same database.
    #[error("another import command is at work in this database: process {pid}")]
    Busy {
        /// Its process at the server.
        pid: i32,
    },
}

fn count(refusals: usize) -> String {
    match refusals {
        1 => "1 thing is".to_owned(),
        more => format!("{more} things are"),
    }
}

impl ChangeError {
    pub(crate) fn postgres(what: impl Into<String>, source: tokio_postgres::Error) -> ChangeError {
        ChangeError::Postgres {
            what: what.into(),
            source,
        }
    }

    /// Whether the request was wrong, and not the server.
    pub fn is_usage(&self) -> bool {
        matches!(self, ChangeError::Read(error) if error.is_usage())
    }
}
