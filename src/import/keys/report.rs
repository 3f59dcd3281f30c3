//! What `import keys` reports: values without further logic.

use schemars::JsonSchema;
use serde::Serialize;

use super::steps::PlannedStep;
use crate::import::change::StepKind;

/// What would be done.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct KeysPlan {
    /// The database.
    pub database: String,
    /// The steps that are not done yet, in their order.
    pub steps: Vec<PlannedStep>,
    /// What to know before.
    pub warnings: Vec<String>,
}

/// What is there.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct KeysReport {
    /// The database.
    pub database: String,
    /// The imported tables.
    pub tables: Vec<KeysTable>,
}

/// The state of a table.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct KeysTable {
    /// The table.
    pub table: String,
    /// Its column with the key.
    pub column: String,
    /// The table from which its rows have the key; none if the column is the application's own.
    pub parent: Option<String>,
    /// The steps that are not done.
    pub missing: Vec<StepKind>,
    /// Rows; none if they were not counted.
    pub rows: Option<u64>,
    /// Rows without a key; none if they were not counted.
    pub rows_without_key: Option<u64>,
    /// Rows with another key than the row that they refer to; none if they were not counted.
    pub rows_that_differ: Option<u64>,
    /// How many rows were filled now.
    pub filled: u64,
    /// What to do about rows without a key.
    pub remedy: Option<String>,
}

impl KeysReport {
    /// Whether each table has the key, and each row the right one.
    pub fn is_complete(&self) -> bool {
        self.tables.iter().all(|table| table.missing.is_empty()) && !self.has_difference()
    }

    /// Whether a row has another key than the row that it refers to.
    pub fn has_difference(&self) -> bool {
        let mut tables = self.tables.iter();
        tables.any(|table| table.rows_that_differ.is_some_and(|rows| rows > 0))
    }
}
