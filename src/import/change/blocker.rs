//! A session that is in the way of a lock.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A session that is in the way: it has a lock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Blocker {
    /// The server's process.
    pub pid: i32,
    /// Its role.
    pub role: String,
    /// Its `application_name`.
    pub application: String,
    /// For how long its transaction, or else the session, has been open.
    pub open_s: f64,
    /// The beginning of its last statement, without constants.
    pub statement: String,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of {}", self.pid, self.role)?;
        if !self.application.is_empty() {
            write!(f, " ({})", self.application)?;
        }
        write!(f, ", open for {:.0} s", self.open_s)?;
        if !self.statement.is_empty() {
            write!(f, ": {}", self.statement)?;
        }
        Ok(())
    }
}

/// Several in a line.
pub(super) fn listed(blockers: &[Blocker]) -> String {
    match blockers {
        [] => "sessions that have ended by now".to_owned(),
        some => {
            let texts: Vec<String> = some.iter().map(Blocker::to_string).collect();
            texts.join("; ")
        }
    }
}
