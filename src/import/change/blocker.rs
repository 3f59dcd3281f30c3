//! A session that is in the way of a lock.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A transaction that is shorter, in seconds, does not hold up a step.
const PASSING_S: f64 = 1.0;

/// A session that is in the way: it has a lock, or a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Blocker {
    /// The server's process; 0 for a prepared transaction.
    pub pid: i32,
    /// Its role.
    pub role: String,
    /// Its `application_name`.
    pub application: String,
    /// For how many seconds its transaction, or else the session, has been open. None if the role
    /// may not see it (`pg_read_all_stats`).
    pub open_s: Option<f64>,
    /// The beginning of its last statement, without constants.
    pub statement: String,
}

impl Blocker {
    /// Whether it may hold up a step: it is no passing writer, as far as can be seen.
    pub(super) fn stays(&self) -> bool {
        self.open_s.is_none_or(|open_s| open_s >= PASSING_S)
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of {}", self.pid, self.role)?;
        if !self.application.is_empty() {
            write!(f, " ({})", self.application)?;
        }
        if let Some(open_s) = self.open_s {
            write!(f, ", open for {open_s:.0} s")?;
        }
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
