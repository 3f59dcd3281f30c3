//! What is to be separated.

use crate::import::change::ChangeRequest;
use crate::import::key::KeyName;

/// How sessions get to look for tables in the new schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// `search_path` is set for the database, and for the roles with one of their own; sessions
    /// that began before are waited for.
    Set,
    /// Each session has it already.
    Kept,
}

/// What is to be separated.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SeparateRequest {
    /// The key, what was decided about tables, and how long a step waits.
    pub change: ChangeRequest,
    /// The new schema.
    pub schema: String,
    /// How sessions get to look for tables there.
    pub search_path: PathChange,
}

impl SeparateRequest {
    /// A new schema for the tables that have this key, with defaults for the rest.
    pub fn new(key: KeyName, schema: impl Into<String>) -> SeparateRequest {
        SeparateRequest {
            change: ChangeRequest::new(key),
            schema: schema.into(),
            search_path: PathChange::Set,
        }
    }
}

setters! { SeparateRequest: change: ChangeRequest, search_path: PathChange }
