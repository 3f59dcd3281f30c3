//! What is to be changed, as far as the commands have it in common.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::import::choices::{Choices, TableName};
use crate::import::key::KeyName;

/// What is to be changed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChangeRequest {
    /// The key.
    pub key: KeyName,
    /// What was decided about tables.
    pub choices: Choices,
    /// Only these tables, and those on their paths to the key; all if it is empty.
    pub tables: Vec<TableName>,
    /// Names of the key's column that differ from the one that the key implies.
    pub columns: Vec<(TableName, String)>,
    /// How many rows are filled in a second at most.
    pub rows_per_second: NonZeroU32,
    /// How long one step waits for other sessions.
    pub wait_max: Duration,
}

impl ChangeRequest {
    /// A change for this key, with defaults for the rest.
    pub fn new(key: KeyName) -> ChangeRequest {
        ChangeRequest {
            key,
            choices: Choices::default(),
            tables: Vec::new(),
            columns: Vec::new(),
            rows_per_second: NonZeroU32::new(20_000).unwrap_or(NonZeroU32::MIN),
            wait_max: Duration::from_secs(3600),
        }
    }
}

setters! { ChangeRequest: choices: Choices, tables: Vec<TableName>,
columns: Vec<(TableName, String)>, rows_per_second: NonZeroU32, wait_max: Duration }
