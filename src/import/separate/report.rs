//! What `import separate` reports: values without further logic.

use schemars::JsonSchema;
use serde::Serialize;

use crate::import::change::{Blocker, StepKind};

/// What would be done.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SeparatePlan {
    /// The database.
    pub database: String,
    /// The schema that the tables are in.
    pub from: String,
    /// The schema that they get.
    pub schema: String,
    /// The steps that are not done yet, in their order.
    pub steps: Vec<SeparateStep>,
    /// Sessions that have the settings of before, or would have them, the oldest first.
    pub sessions: Vec<Blocker>,
    /// What to know before.
    pub warnings: Vec<String>,
}

/// A step, as it is shown.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SeparateStep {
    /// The step.
    pub step: StepKind,
    /// The locks that it takes, and for how long.
    pub locks: String,
    /// Its statements.
    pub sql: Vec<String>,
}

/// What is there.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SeparateReport {
    /// The database.
    pub database: String,
    /// The schema that the tables were in.
    pub from: String,
    /// The schema that they get.
    pub schema: String,
    /// The steps that are not done.
    pub missing: Vec<StepKind>,
    /// The imported tables, with their partitions.
    pub tables: Vec<SeparateTable>,
    /// The settings by which sessions find them.
    pub paths: Vec<SeparatePath>,
    /// Sessions that have the settings of before, while tables have to move.
    pub sessions: Vec<Blocker>,
    /// What to know.
    pub warnings: Vec<String>,
}

/// A table.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SeparateTable {
    /// The table.
    pub table: String,
    /// The schema that it is in.
    pub schema: String,
}

/// A `search_path`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SeparatePath {
    /// The role, in this database; none is the database.
    pub role: Option<String>,
    /// What sessions begin with.
    pub path: String,
    /// The statement that has to be run; none if nothing is missing.
    pub statement: Option<String>,
}

impl SeparateReport {
    /// Whether all tables are in their schema, and sessions look for them there.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }
}
