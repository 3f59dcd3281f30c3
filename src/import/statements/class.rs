//! The classes of statements.

use schemars::JsonSchema;
use serde::Serialize;

/// Whether a statement could be sent to one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StatementClass {
    /// It uses imported tables and tables that stay.
    Across,
    /// It uses imported tables, and names neither the key nor an ID.
    WithoutKey,
    /// It names an ID of an imported table, and not the key.
    ById,
    /// It names the key.
    ByKey,
    /// It uses no imported table.
    Other,
    /// It cannot be parsed, or what it does is not in its text.
    Unreadable,
}
