//! What happens while a database is changed.

use schemars::JsonSchema;
use serde::Serialize;

use super::blocker::Blocker;

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// The key's column is added.
    Column,
    /// Triggers fill the column from now on.
    Triggers,
    /// The rows that were there before are filled.
    Fill,
    /// The column is `NOT NULL`.
    NotNull,
    /// A unique index has the primary key and the key.
    Index,
    /// The key is part of the replica identity.
    Identity,
    /// There is a schema for the imported tables, with the rights of the former one.
    Schema,
    /// New sessions look for tables there, too.
    SearchPath,
    /// The sessions that began before have ended.
    Sessions,
    /// The imported tables are in their schema.
    Tables,
    /// What was done is taken back.
    Undo,
}

impl StepKind {
    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            StepKind::Column => "add the column",
            StepKind::Triggers => "keep it filled",
            StepKind::Fill => "fill it",
            StepKind::NotNull => "allow no NULL",
            StepKind::Index => "build the index",
            StepKind::Identity => "set the replica identity",
            StepKind::Schema => "create the schema",
            StepKind::SearchPath => "set search_path",
            StepKind::Sessions => "wait for sessions of before",
            StepKind::Tables => "move the tables",
            StepKind::Undo => "take back",
        }
    }
}

/// What happens while a database is changed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ChangeEvent {
    /// A step begins.
    Step {
        /// The table, or the schema.
        object: String,
        /// The step.
        step: StepKind,
    },
    /// Rows were filled.
    Filled {
        /// The table.
        object: String,
        /// How many, so far.
        rows: u64,
    },
    /// Sessions are in the way; it is tried again.
    Blocked {
        /// What is being done.
        what: String,
        /// The sessions.
        by: Vec<Blocker>,
    },
    /// Sessions have the settings of before; they are waited for.
    OldSessions {
        /// The sessions, the oldest first.
        sessions: Vec<Blocker>,
    },
}

/// Gets what happens.
pub type Observer<'a> = &'a (dyn Fn(ChangeEvent) + Send + Sync);
