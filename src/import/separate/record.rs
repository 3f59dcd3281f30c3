//! What was done, as it is recorded in the database: one row of `pgshard_import.separate`.
//!
//! Invariant: each change is recorded in its own transaction; the tables need no record, as those
//! of the new schema are all that came there.

use serde::{Deserialize, Serialize};

use crate::import::change::{ChangeError, Session, record};
use crate::pg::quote_literal;

/// Its table.
pub(super) const TABLE: &str = "separate";

/// Makes the record. It locks nothing of the application's.
pub(super) const MAKE: &str = "CREATE SCHEMA IF NOT EXISTS pgshard_import;
    CREATE TABLE IF NOT EXISTS pgshard_import.separate (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        old_schema text NOT NULL, new_schema text NOT NULL, makes_schema boolean NOT NULL,
        grants jsonb NOT NULL DEFAULT '[]', paths jsonb NOT NULL DEFAULT '[]',
        paths_at timestamptz)";

/// A right on a schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Grant {
    /// The role; none is PUBLIC.
    pub(super) role: Option<String>,
    pub(super) privilege: String,
    pub(super) grantable: bool,
}

/// A `search_path` that was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SetPath {
    /// The role, within the database; none is the database.
    pub(super) role: Option<String>,
    /// What it was there; none if it was not set.
    pub(super) former: Option<String>,
    /// What it is.
    pub(super) path: Vec<String>,
}

/// What was done.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Record {
    pub(super) old_schema: String,
    pub(super) new_schema: String,
    /// Whether the schema was not there before.
    pub(super) makes_schema: bool,
    pub(super) grants: Vec<Grant>,
    pub(super) paths: Vec<SetPath>,
    /// When new sessions were the first to have the path.
    pub(super) paths_at: Option<String>,
}

/// Reads the record, if there is one.
pub(super) async fn read(session: &Session) -> Result<Option<Record>, ChangeError> {
    if !record::exists(session, TABLE).await? {
        return Ok(None);
    }
    let sql = "SELECT row_to_json(s) FROM pgshard_import.separate s";
    session.value("read pgshard_import.separate", sql).await
}

/// A statement that sets a column of JSON.
pub(super) fn sets(column: &str, value: &impl Serialize) -> String {
    let json = serde_json::json!(value).to_string();
    format!(
        "UPDATE pgshard_import.separate SET {column} = {}",
        quote_literal(&json)
    )
}

/// Notes when new sessions were the first to have the path: after that was committed.
pub(super) const PATHS_ARE_SET: &str =
    "UPDATE pgshard_import.separate SET paths_at = clock_timestamp() WHERE paths_at IS NULL";
